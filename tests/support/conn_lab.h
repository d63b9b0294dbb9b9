/*
 * A server with one connection on a memory stream, whose handler only records.
 */
#ifndef TESTS_SUPPORT_CONN_LAB_H
#define TESTS_SUPPORT_CONN_LAB_H

#include "lib/http_server.h"
#include "tests/support/stream_mem.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

/* A handler that only records; the tests act on the exchange themselves. */
struct conn_lab {
	struct loop loop;
	struct http_server *server;
	struct stream_mem *m;
	struct http_exchange *ex; /* the newest one */
	struct buf body;
	size_t dispatched, body_calls, ends, drains, closed;
	int status;
	bool start, stopped, respond_in_dispatch;
};

extern struct conn_lab conn;
extern const struct http_exchange_handler conn_recorder;

void conn_on_stopped(void *user);
void conn_settle(void);
void conn_feed(const char *text);
/* What the client received since the last look. */
void conn_expect_output(const char *text);
bool conn_output_has(const char *text);
void conn_open_with(struct http_server_config config);
int conn_set_up(void **state);
/* Closes what is open and checks that nothing is left behind. */
int conn_tear_down(void **state);

#endif
