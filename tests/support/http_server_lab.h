/*
 * An HTTP server on a loop of its own, over real sockets, that echoes, refuses and waits by path:
 * /echo, /tunnel (upgraded, echoes), /wait, /known (of a client that is known from then on),
 * /refuse; anything else says hello. One for a test program.
 */
#ifndef TESTS_SUPPORT_HTTP_SERVER_LAB_H
#define TESTS_SUPPORT_HTTP_SERVER_LAB_H

#include "lib/http_server.h"

struct server_lab {
	struct loop loop;
	struct http_server *server;
	size_t closed, dispatched;
	int status;
	bool stopped;
	struct http_exchange *waiting; /* the last one of /wait, while it is open */
};

extern struct server_lab server_lab;

/* Listens on a port that the kernel chooses; `dispatch` is filled in. */
void server_lab_start(struct http_server_config config);
/* Resets what is open; nothing is left of the loop. */
void server_lab_stop(void);
void server_lab_dispatch(struct http_exchange *ex);
/* For http_server_stop: sets the bool that `stopped` points to. */
void server_lab_on_stopped(void *stopped);
/* A blocking socket; any failure ends the test. */
int server_lab_connect(unsigned port);
void server_lab_send(int fd, const char *text);

#endif
