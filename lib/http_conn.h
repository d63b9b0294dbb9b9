/*
 * One HTTP/1.x connection of a server: reads requests one at a time, gives each to the dispatcher
 * as an exchange, and keeps the connection's rules: pipelining, half-close, bodies nobody wanted,
 * lingering close, timeouts.
 *
 * Everything happens in run(): events of the stream and the alarm enter there, and what a handler
 * asks for from elsewhere is a flag plus a deferred run. So no callback is ever made from inside a
 * call of its receiver, and states change in one place.
 *
 * http_conn.c has the loop's side and a connection's beginning, requests and end, http_conn_body.c
 * the bytes behind a request head, http_conn_response.c what a handler may do, and http_conn_wait.c
 * what is waited for.
 *
 * An idle connection holds no buffer and no exchange. It has one alarm that is never moved later:
 * it rings early and looks again.
 */
#ifndef LIB_HTTP_CONN_H
#define LIB_HTTP_CONN_H

#include "lib/budget.h"
#include "lib/http_parse.h"
#include "lib/http_server.h"
#include "lib/stall_clock.h"

enum http_conn_state {
	HTTP_CONN_IDLE, /* between requests */
	HTTP_CONN_READ_HEAD, /* the first byte of a request has come */
	HTTP_CONN_EXCHANGE, /* dispatched; also a tunnel */
	HTTP_CONN_DISCARD, /* answered; the rest of the body is thrown away */
	HTTP_CONN_LINGER, /* last answer sent, our direction ended; waiting for the client's end */
	HTTP_CONN_CLOSING, /* until the stream is closed, or the loop has nothing of it any more */
};

/* What all connections of a server have in common; embedded in it. */
struct http_conn_shared {
	struct loop *loop;
	struct http_server_config config;
	struct http_server_timeouts timeouts;
	struct list_node conns; /* those at work; and, each longest in its state first, ... */
	struct list_node idle; /* ... those without a request; and ... */
	struct list_node strangers; /* ... all whose client is not known */
	size_t count;
	bool stopping;
	uint64_t stop_began_ms; /* stopping */
	uint64_t stop_idle_ms; /* stopping: until then connections may rest between requests */
	char date[32];
	uint64_t date_until_ms;
	void (*on_gone)(struct http_conn_shared *shared); /* a connection has been freed */
	/* Takes over a stream that begins with HTTP/2's preface; NULL: nobody does. */
	void (*on_http2)(struct http_conn_shared *shared, struct stream *stream, const char *peer,
			 struct str early);
};

struct http_conn_exchange;

struct http_conn {
	struct http_conn_shared *shared;
	struct list_node node;
	struct stream *stream;
	struct http_conn_exchange *exchange;
	struct later later;
	struct alarm alarm;
	struct buf held; /* bytes that cannot be used yet */
	const struct str *in; /* within run(): bytes that are not used yet */
	uint64_t since_ms; /* in this state */
	uint64_t last_read_ms; /* last arrival, or progress of a body */
	size_t progress; /* bytes that came since then */
	uint64_t written; /* bytes given to the stream, for the write stall */
	struct stall_clock stall;
	uint64_t discarded;
	int broken; /* negative errno of the stream */
	uint8_t state; /* enum http_conn_state; only http_conn_enter writes it */
	uint8_t blanks;
	bool busy, reading, eof, left, shut, full, served, reset_wanted;
	bool known; /* a request of it was (config.knows_clients) */
	char peer[64];
};

struct http_conn_exchange {
	struct http_exchange ex;
	struct http_conn *conn; /* NULL once the connection has let go of it */
	struct http_parser parser;
	struct str head; /* of the response, until it is sent */
	int64_t length; /* of the response */
	bool dispatched;
	bool started, paused; /* the handler wants body bytes / not now */
	bool request_complete, end_told;
	bool continued; /* 100 was sent */
	bool begun, ended; /* the response */
	bool finishing; /* the last chunk goes with the last of the body */
	bool bodyless, chunked, tunnel, keep_alive;
	bool full; /* the handler was told HTTP_FULL */
	bool lent; /* a job sends */
	bool body_lent; /* a job receives */
	bool hung_up; /* the client has ended its direction meanwhile */
	bool bad; /* could not be parsed */
	bool abort_wanted;
};

/* One connection more, or one less (-1). */
void http_conn_count(struct http_conn_shared *shared, int change);
void http_conn_open(struct http_conn_shared *shared, struct stream *stream, const char *peer);
/* Of the idle ones, or of the strangers, the one that has had no request for longest, or NULL.
 * Whose answer is still on its way has one, as long as the client takes of it. */
struct http_conn *http_conn_longest_idle(const struct list_node *conns);
/* The exchange may have said that its client is known. */
void http_conn_get_to_know(struct http_conn *c);
/* Looks at the connection again from the loop; for flags set from outside. */
void http_conn_poke(struct http_conn *c);
/* How many of the bytes that came have not been used. */
size_t http_conn_unused(const struct http_conn *c);
/* The client has ended its direction while it is not being read: notes whether it is gone with
 * it. */
void http_conn_hung_up(struct http_conn *c);
/* Writes to the stream and keeps the books. 0, HTTP_FULL or a negative errno. */
int http_conn_send(struct http_conn *c, const struct iovec *pieces, size_t count);
/* The same as stream_lend, and what was sent so. */
int http_conn_lend(struct http_conn *c);
void http_conn_take_back(struct http_conn *c, uint64_t sent);
/* For the steps within run(). */
void http_conn_enter(struct http_conn *c, enum http_conn_state state);
/* The exchange's last callback, once; and the connection's hold on it. */
void http_conn_close_exchange(struct http_conn *c, int status);
void http_conn_drop_exchange(struct http_conn *c);
/* Ends the connection now. An exchange still open is told `status`. */
void http_conn_close(struct http_conn *c, int status, bool reset);
/* Ends it in order: what is queued goes out first, and the client gets to see it. */
void http_conn_finish(struct http_conn *c);

/* http_conn_body.c: the steps of two states, true when something moved. `in` is what came and what
 * of it is still unused. */
bool http_conn_step_exchange(struct http_conn *c, struct str *in);
bool http_conn_step_discard(struct http_conn *c, struct str *in);
/* Ends an exchange whose body is broken, which its handler learns; the client gets an answer if
 * none has begun. */
void http_conn_refuse_body(struct http_conn *c, int error, int status, const char *reason);
/* For stream_events.on_room. */
char *http_conn_room(struct stream *s, size_t *ret_len);

/* http_conn_wait.c */
enum http_conn_lateness {
	HTTP_CONN_NOT_OVERDUE,
	HTTP_CONN_WRITE_STALLED, /* the client takes nothing */
	HTTP_CONN_STATE_OVERDUE, /* what the state waits for has not come */
};
/* Starts or stops reading, as the state wants. */
void http_conn_update_reading(struct http_conn *c);
/* Makes sure the alarm rings no later than the next deadline. */
void http_conn_update_alarm(struct http_conn *c);
enum http_conn_lateness http_conn_overdue(struct http_conn *c);

/* http_conn_response.c */
struct http_conn_exchange *http_conn_exchange_new(struct http_conn *c);
/* Sends a head that is still waiting for body bytes. */
void http_conn_flush_head(struct http_conn_exchange *x);
/* An answer made without a handler, to a request that cannot be read. */
void http_conn_send_error(struct http_conn *c, int status, const char *reason);

#endif
