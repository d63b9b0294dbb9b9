/*
 * A real server of files on a thread of its own, and blocking sockets that talk to it.
 */
#ifndef TESTS_SUPPORT_SITE_H
#define TESTS_SUPPORT_SITE_H

#include <pthread.h>
#include <semaphore.h>

#include "envd/app.h"
#include "lib/arena.h"
#include "tests/support/folder.h"

#define ANSWER_BYTES_MAX (96 * 1024 * 1024)

struct site {
	struct app app; /* the server thread's */
	struct message stop;
	pthread_t thread;
	sem_t wanted, ready, gone;
	unsigned port;
	_Atomic uint64_t connections;
	/* The test's: */
	size_t descriptors; /* of this process, with a server that has nothing to do */
	struct arena arena;
	struct folder folder;
};

extern struct site site;

int site_start_thread(void **state);
int site_setup(void **state);
int site_teardown(void **state);

struct answer {
	int status;
	const char *head;
	const char *body;
	size_t len;
	bool was_reset;
};

int site_connect_server(void);
/* False when the server does not take it any more. */
bool site_send_all(int fd, const void *data, size_t len);
void site_send_text(int fd, const char *text);
void site_wait_readable(int fd);
void site_read_to_end(int fd, struct answer *answer, size_t max);
/* Takes the chunked coding off. */
void site_unchunk(struct answer *answer);
void site_check_header(const struct answer *answer, const char *name, const char *want);
const char *site_encode(const char *path);
const char *site_at(const char *relative);

struct answer site_get(const char *path, const char *headers);
/* The head of an upload of `len` bytes; `path` and `headers` may be NULL. */
const char *site_post_head(const char *path, const char *type, size_t len, const char *headers);
struct answer site_post(const char *path, const void *body, size_t len, const char *headers);
/* A unary call of filesystem.Filesystem, in JSON. */
struct answer site_call(const char *method, const char *body);

char *site_make_bytes(size_t len, unsigned seed);
void site_write_bytes(const char *relative, const void *data, size_t len);
void site_check_file(const char *relative, const void *want, size_t len);
/* Nobody is told when a server has noticed a reset: waits for what must come of it. In vain, it
 * says for what, and what the process has open and holds. */
#define site_wait_until(condition, argument) \
	site_wait_for((condition), (argument), #condition, __FILE__, __LINE__)
void site_wait_for(bool (*condition)(size_t), size_t argument, const char *what, const char *file,
		   int line);
/* For site_wait_until: what clients and their requests had opened is closed, all of it. A server
 * that keeps what it opens for the first upload that needs it never comes to rest. */
bool site_is_at_rest(size_t unused);
void site_check_error(const struct answer *answer, int status, const char *message);

#endif
