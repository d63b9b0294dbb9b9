/*
 * A client for tests of servers: raw bytes out, parsed responses in, over a real TCP connection to
 * a server that runs on a loop of the same thread. Waiting runs the loop; every wait fails the test
 * after ten seconds.
 */
#ifndef TESTS_SUPPORT_WIRE_CLIENT_H
#define TESTS_SUPPORT_WIRE_CLIENT_H

#include "lib/buf.h"
#include "lib/loop.h"

struct wire_client {
	struct loop *loop;
	int fd;
	bool eof; /* the server has ended its direction */
	bool reset; /* ... by a reset */
	struct buf received;
};

/* Valid until the next response is read from the same client. */
struct wire_response {
	int status;
	struct str head; /* with the status line */
	struct buf body; /* without the chunked framing */
	bool complete; /* false: cut short by the end of the connection */
};

void wire_open(struct wire_client *c, struct loop *loop, unsigned port);
void wire_close(struct wire_client *c);
/* With a reset instead of an orderly end. */
void wire_reset(struct wire_client *c);
void wire_shutdown(struct wire_client *c);
void wire_send(struct wire_client *c, const void *data, size_t len);
void wire_send_str(struct wire_client *c, struct str s);
void wire_printf(struct wire_client *c, const char *format, ...) PRINTF_LIKE(2, 3);
/* Runs the loop until `done` says so. */
#define wire_wait(loop, done, user) wire_wait_for((loop), (done), (user), #done, __FILE__, __LINE__)
void wire_wait_for(struct loop *loop, bool (*done)(void *user), void *user, const char *what,
		   const char *file, int line);
/* Takes what has come into c->received, running the loop a little. */
void wire_poll(struct wire_client *c);
void wire_read_response(struct wire_client *c, struct wire_response *ret_response);
/* {NULL, 0} when there is none. */
struct str wire_header(const struct wire_response *r, const char *name);
void wire_response_fini(struct wire_response *r);

#endif
