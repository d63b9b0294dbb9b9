/*
 * Talks to an HTTP server of this process the way a client does, through a socket pair, while it
 * turns the server's loop. No thread, no port, no sleep.
 */
#ifndef TESTS_SUPPORT_TALK_H
#define TESTS_SUPPORT_TALK_H

#include "lib/http_server.h"

#define TALK_TIMEOUT_MS 20000

struct talk {
	struct loop *loop;
	int fd; /* the client's end; -1: closed */
	struct buf received;
};

struct talk_answer {
	int status;
	struct str head; /* with the status line and the empty line */
	struct str body;
};

void talk_open(struct talk *talk, struct loop *loop, struct http_server *server);
void talk_close(struct talk *talk);
/* Sends all of it; the loop turns meanwhile. */
void talk_send(struct talk *talk, const char *data, size_t len);
/* Turns the loop until the server has closed its side. */
void talk_read_all(struct talk *talk);
/* Turns the loop until `received` holds `text`; fails the test at TALK_TIMEOUT_MS. */
void talk_read_until(struct talk *talk, const char *text);
/* Turns the loop until the condition holds. */
#define talk_wait(loop, condition, user) talk_wait_for((loop), (condition), (user), #condition)
void talk_wait_for(struct loop *loop, bool (*condition)(void *user), void *user, const char *what);

/* One request on a connection of its own, which "Connection: close" ends: `head` is its head
 * without that field and without the empty line, e.g. "GET /health HTTP/1.1\r\nHost: x\r\n". The
 * answer lives in *talk until talk_close. */
struct talk_answer talk_request(struct talk *talk, struct loop *loop, struct http_server *server,
				const char *head, struct str body);
/* Splits the first answer received; a chunked body is joined in place. */
struct talk_answer talk_parse(struct talk *talk);
/* The value of a header of the answer, NULL when there is none; static memory. */
const char *talk_header(const struct talk_answer *answer, const char *name);

#endif
