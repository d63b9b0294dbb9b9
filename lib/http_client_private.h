/*
 * The inside of http_client, shared by its two halves: http_client.c (life, answers, the loop's
 * side) and http_client_send.c (the request). As in http_conn, everything is told from run(); calls
 * from elsewhere set flags and have it run later.
 */
#ifndef LIB_HTTP_CLIENT_PRIVATE_H
#define LIB_HTTP_CLIENT_PRIVATE_H

#include "lib/http_client.h"
#include "lib/http_parse.h"
#include "lib/stall_clock.h"

struct http_client {
	struct loop *loop;
	struct stream *stream;
	const struct http_client_handler *handler;
	void *user;
	struct later later;
	struct alarm alarm; /* against a server that takes nothing, or whose refusal does not end */
	struct arena arena;
	struct share heads; /* what of the arena counts, and where */
	struct http_parser parser;
	struct http_response response;
	struct str upgrade; /* what was asked for */
	struct str head; /* of the request, until it is sent */
	struct buf held; /* arrived while paused, or instead of a response */
	int64_t length; /* of the request */
	uint64_t sent; /* body bytes */
	uint64_t written;
	struct stall_clock stall;
	size_t unread; /* bytes behind what is being told right now */
	unsigned interims;
	uint64_t refusing_until_ms;
	struct str refusal; /* in the arena */
	int broken; /* negative errno of the stream */
	int write_error; /* the same of the writing side alone: the answer may still come */
	int status; /* for on_closed */
	bool begun, request_ended, chunked, to_head, wants_continue, keep_alive;
	bool got_bytes, response_done, tunnel, end_told;
	bool paused, reading, eof, shut, stray;
	bool refusing; /* what came is no response to an upgrade: words, if the end follows */
	bool full, full_told; /* the stream is / the user was told */
	bool busy, closing, close_wanted, reset_wanted, detached;
};

/* Looks at the client again from the loop. */
void http_client_poke(struct http_client *c);

/* http_client_send.c: sends a head that is still waiting for body bytes. */
void http_client_flush_head(struct http_client *c);

#endif
