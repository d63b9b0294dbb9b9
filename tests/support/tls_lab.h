/*
 * One TLS connection on a memory stream: tls_stream as tls_server sets it up at one end,
 * OpenSSL's client at the other, and a user of the stream that records. Bytes move only in
 * tls_lab_exchange, cut as the test likes.
 */
#ifndef TESTS_SUPPORT_TLS_LAB_H
#define TESTS_SUPPORT_TLS_LAB_H

#include <openssl/ssl.h>

#include "lib/buf.h"
#include "lib/tls/tls_server.h"
#include "lib/tls/tls_stream.h"
#include "tests/support/stream_mem.h"

struct tls_lab {
	struct loop loop;
	struct tls_buffers *buffers;
	struct stream_mem *m; /* the carrier */
	struct stream *stream;
	SSL_CTX *context;
	SSL *client;
	BIO *to_client, *from_client;
	struct buf received;
	size_t reads, drains, ends, shuts;
	int ready, end; /* 1: not yet */
	bool closed, refuses_reading;
	bool stops_at_read; /* the reader stops at every arrival */
};

extern struct tls_lab tls_lab;
/* The server's side of OpenSSL, with a certificate for *.sbx.localhost; of the next tls_lab. */
extern struct tls_server *tls_lab_tls;

/* Where that certificate's authority is, ca.pem. */
extern char tls_lab_directory[];

/* For cmocka_run_group_tests: the certificate, and tls_lab_tls. */
int tls_lab_group_set_up(void **state);
int tls_lab_group_tear_down(void **state);
/* Another one with the same certificate, the caller's; NULL when it cannot be made. */
struct tls_server *tls_lab_new_tls(void);

/* Nothing is said yet. `version` is the client's highest; the name and the session may be NULL. */
void tls_lab_open(int version, const char *server_name, SSL_SESSION *session);
/* The client's first words reach the server, `step` bytes of them (0: all); what tls_stream_start
 * says. */
int tls_lab_start(size_t step);
/* Both, and the handshake, in pieces of `step` bytes. */
void tls_lab_connect(int version, size_t step);
/* Resets what is open still, and checks that nothing is left behind. */
void tls_lab_close(void);

void tls_lab_settle(void);
/* What each side has said so far reaches the other, `step` bytes at a time; 0: all at once. */
void tls_lab_exchange(size_t step);
void tls_lab_say(const void *data, size_t len);
void tls_lab_answer(const char *text);
/* That the server's user got this, or the client that (and nothing else), or an orderly end. */
void tls_lab_expect(const char *text);
void tls_lab_hear(const char *text);
void tls_lab_hear_end(void);

#endif
