/*
 * A server with one HTTP/2 connection on a memory stream, a client session (nghttp2's) at its other
 * end that records, and a handler that only records: the tests act on the exchanges themselves.
 */
#ifndef TESTS_SUPPORT_HTTP2_LAB_H
#define TESTS_SUPPORT_HTTP2_LAB_H

#include <nghttp2/nghttp2.h>

#include "proxy/front/http2.h"
#include "tests/support/long_waits.h"
#include "tests/support/stream_mem.h"

#define HTTP2_LAB_STREAMS 512

/* What the client saw of one stream, by (id - 1) / 2. */
struct http2_seen {
	char status[4];
	struct buf fields; /* "name: value\n" of the response, then of its trailers behind "--\n" */
	struct buf body;
	struct buf interim; /* statuses, blank separated */
	bool ended, closed, reset;
	uint32_t code; /* of the closing */
};

/* What the server's handler saw of one exchange, in order of dispatch. */
struct http2_heard {
	struct http_exchange *ex; /* NULL once closed */
	struct buf body;
	size_t ends, drains, closed;
	int status;
};

struct http2_lab {
	struct loop loop;
	struct http_server *server;
	struct stream_mem *m;
	struct http2_pool *pool;
	struct http2_counters counters;
	nghttp2_session *client;
	struct http2_seen seen[HTTP2_LAB_STREAMS];
	struct http2_heard heard[HTTP2_LAB_STREAMS];
	size_t dispatched, refused, goaways;
	uint32_t goaway_code, streams_max, connect_protocol;
	int32_t goaway_last;
	int32_t data_id; /* whose DATA came last ... */
	size_t turns; /* ... and how often that was another's than before */
	size_t pings, pings_answered;
	bool stopped, broken;
	bool start; /* the handler wants bodies at once ... */
	bool answer; /* ... or answers "hello" */
	bool mute; /* what the server sends does not reach the client ... */
	bool mute_at_first; /* ... for the next lab that is opened, from its beginning */
	bool windows_by_hand; /* the client session opens no window by itself */
	bool windows_by_hand_at_first; /* the same for the next lab */
	struct stream_peer *peer_at_first; /* whose the connection is to be */
};

extern struct http2_lab lab;

void http2_lab_open(struct http_server_config config, const nghttp2_settings_entry *settings,
		    size_t count);
int http2_lab_set_up(void **state);
/* With these waits, and a client whose streams begin with this window. */
void http2_lab_open_with(struct http_server_timeouts timeouts, uint32_t window);
/* With waits that nobody sees the end of. */
int http2_lab_set_up_patient(void **state);
/* Ends everything and checks that nothing is left behind. */
int http2_lab_tear_down(void **state);
/* Begins the server's orderly end; lab.stopped tells when it is over. */
void http2_lab_stop(void);
void http2_lab_stop_gently(unsigned idle_ms);
/* Moves bytes both ways until nothing moves any more. */
void http2_lab_settle(void);
/* The same until `condition`, for what takes time; fails after twenty seconds. UV_RUN_ONCE would
 * not do: it runs the timer that makes the condition true, and then waits for another event. */
#define HTTP2_LAB_WAIT(condition) \
	do { \
		uint64_t wait_until_ = uv_hrtime() + 20000000000u; \
		while (!(condition)) { \
			assert_true(uv_hrtime() < wait_until_); \
			uv_run(&lab.loop.uv, UV_RUN_NOWAIT); \
			http2_lab_settle(); \
			uv_sleep(1); \
		} \
	} while (0)

/* A request of "name: value\n" lines, pseudo-header fields included, sent as written; `with_body`:
 * DATA is for the test. Returns the stream's id. */
int32_t http2_lab_ask(const char *fields, bool with_body);
/* The usual GET of a path. */
int32_t http2_lab_get(const char *path);
/* A DATA frame, as far as the window goes. */
void http2_lab_send(int32_t id, const void *data, size_t len, bool last);
/* Bytes as written, past the client session. */
void http2_lab_raw(const void *bytes, size_t len);
void http2_lab_frame(size_t len, uint8_t type, uint8_t flags, int32_t id, const void *payload);
struct http2_seen *http2_lab_seen(int32_t id);
bool http2_lab_has_field(int32_t id, const char *line);

#endif
