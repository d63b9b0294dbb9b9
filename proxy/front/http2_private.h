/*
 * Shared by the files of an HTTP/2 session, for no one else:
 *
 *   http2_session.c   the connection: how it begins, runs and ends
 *   http2_input.c     what comes in
 *   http2_past.c      which streams are over, and how they ended
 *   http2_output.c    what goes out: frames joined into one write per turn of the loop
 *   http2_exchange.c  one stream: what its handler may do, and ...
 *   http2_stream.c    ... what it is told
 *   http2_request.c   from header fields to a request
 *   http2_wait.c      what is waited for, and for how long
 *   http2_memory.c    where nghttp2 keeps it all (no part of the session; see its header)
 *
 * The key of a WebSocket and its answer are made in lib/tls/websocket_key.c.
 *
 * Handlers are called from run() (http2_session.c) and while bytes are being read, never from
 * inside a call of theirs: what a handler asks for is noted, its stream marked, and done when run()
 * comes to it. nghttp2 may not be entered twice, so `busy` says when frames can only be queued.
 */
#ifndef PROXY_FRONT_HTTP2_PRIVATE_H
#define PROXY_FRONT_HTTP2_PRIVATE_H

#include <nghttp2/nghttp2.h>

#include "lib/limits.h"
#include "lib/stall_clock.h"
#include "proxy/front/http2.h"
#include "proxy/front/http2_budget.h"
#include "proxy/limits.h"

#define HTTP2_PIECES_MAX 16
/* Small pieces of DATA are joined up to this before they are handed on. */
#define HTTP2_ROOM_BYTES 4096

/* Streams that are over and still remembered. */
#define HTTP2_PAST_MAX 64
#define HTTP2_PREFACE_BYTES 24

enum http2_state {
	HTTP2_SERVING,
	HTTP2_LINGER, /* our direction ended; waiting for the client's end */
	HTTP2_CLOSING, /* until the stream is closed */
};

struct http2_stream;

/* A part of the next write: of the session's own buffer, or of a stream's. */
struct http2_piece {
	const char *p; /* NULL: own, at `offset` */
	size_t offset, len;
};

struct http2_session {
	struct http_server_guest guest;
	struct http2_counters *counters;
	const struct http_server_config *config;
	const struct http_server_timeouts *timeouts;
	struct loop *loop;
	struct stream *stream;
	nghttp2_session *nghttp2; /* not to be touched while the block is folded */
	struct http2_block block;
	struct later later;
	struct alarm alarm;
	struct list_node streams; /* all that nghttp2 knows, and ... */
	struct list_node marked; /* ... those that something is to be done about */
	size_t stream_count;
	size_t asking; /* of them: requests, not heads that may yet become some, without an end */
	struct buf own; /* frames for the next write */
	struct http2_piece *pieces; /* HTTP2_PIECES_MAX, lent while frames are gathered */
	size_t piece_count, gathered;
	/* The frame being read: its header so far, what is left of it (of the preface, at
	 * first). */
	unsigned char frame[9];
	uint8_t frame_len;
	size_t skip;
	bool reset_unread; /* a RST_STREAM has come that nghttp2 has not seen yet */
	char *room; /* lent while bytes are being read */
	size_t room_len;
	struct http2_stream *room_of;
	size_t ahead; /* held bytes that the connection's window does not count */
	struct share bodies; /* of the client's, when `roomy` */
	size_t head_bytes; /* memory of the streams' heads, as it was when these had been read */
	struct http2_budget resets, control;
	uint32_t past[HTTP2_PAST_MAX]; /* streams that are over, see http2_past.c; a ring */
	uint32_t past_count, newest_id;
	uint64_t opened_ms, last_read_ms, pinged_ms, since_ms; /* since: in this state */
	uint64_t idle_since_ms; /* 0: at work */
	uint64_t drain_since_ms; /* draining without the requests of before or, later, noticed */
	size_t before_drain; /* requests that were open when it began */
	uint64_t written;
	struct stall_clock stall;
	int broken; /* negative errno of the stream */
	uint8_t state;
	bool busy, full, eof, shut, reset_wanted;
	bool greeted; /* the client's SETTINGS came */
	bool settled; /* ours went out */
	bool served; /* a request has come */
	bool known; /* ... and its exchange says that the client is */
	bool asked; /* ... since it was last looked whether the session rests */
	bool failed; /* what comes is not read any more */
	bool restless; /* folding was of no use */
	bool roomy; /* more may be under way than at first */
	/* To be ended in an orderly way; first and second step of GOAWAY. */
	bool draining, noticed, drained;
	char peer[64];
};

/* What arrives of a head before it is a request. */
struct http2_head {
	struct str method, scheme, authority, path, protocol, host;
	size_t bytes, fields;
	size_t cookies, cookie_bytes;
	size_t trailer_bytes;
	bool too_large;
};

struct http2_stream {
	struct http_exchange ex;
	struct http2_session *session; /* NULL once it has let go */
	struct list_node node, mark;
	int32_t id;
	struct http2_head head;
	size_t head_bytes; /* counted in the session's */
	struct buf in; /* body bytes that the handler does not take now */
	size_t ahead, owed; /* of them: not counted, counted by the connection's window */
	size_t window, taken; /* what the client may send; taken since it last grew */
	struct buf out; /* body bytes that are not framed yet */
	const struct iovec *direct; /* the same, still with the handler */
	size_t direct_skip, direct_len;
	struct http_headers trailers;
	int64_t length; /* of the response */
	struct str websocket_key; /* as sent to the server */
	uint64_t given; /* to `out`, ever */
	struct stall_clock stall;
	uint64_t last_read_ms;
	int status; /* how the stream ended, when `gone` */
	bool dispatched, bad;
	bool started, paused;
	bool request_complete, end_told;
	bool continued;
	bool begun, ended, end_sent;
	bool bodyless, tunnel, deferred, full;
	bool client_reset, gone, abort_wanted, reset_sent;
	bool before_drain; /* counted there */
	bool speaking; /* we answer ourselves, after the handler was told that it is over */
};

/* http2_session.c */
/* Has run() look at the stream. */
void http2_mark(struct http2_stream *x);
/* Has run() look at the session. */
void http2_poke(struct http2_session *s);
/* GOAWAY with that code; nothing more is read. */
void http2_refuse(struct http2_session *s, uint32_t code, const char *why);
/* Counts a request that comes to nothing by the client's doing; false when that was one too
 * many. */
bool http2_spend_reset(struct http2_session *s);
/* Ends the session now; exchanges still open are told `status`. */
void http2_close(struct http2_session *s, int status, bool reset);
/* Two steps: no new requests, please; and no new requests. Some clients give up their open requests
 * at the first, whatever it says. So it waits for a moment when there are none: for those that were
 * open before as long as the stop may take, for later ones not so long, or a busy client would
 * never go. */
void http2_drain(struct http2_session *s);
void http2_give_notice(struct http2_session *s);
void http2_finish_drain(struct http2_session *s);

static inline struct http2_stream *http2_find(struct http2_session *s, int32_t id)
{
	return nghttp2_session_get_stream_user_data(s->nghttp2, id);
}

/* http2_input.c */
void http2_read(struct http2_session *s, const char *data, size_t len);
void http2_input_set_callbacks(nghttp2_session_callbacks *callbacks);
/* What the PING carries whose answer tells that the client knows of the end. */
extern const uint8_t http2_drain_mark[8];

/* http2_past.c */
enum http2_ending { HTTP2_ENDED, HTTP2_RESET_BY_CLIENT, HTTP2_RESET_BY_US };
void http2_past_add(struct http2_session *s, int32_t id, enum http2_ending ending);
/* The client has reset one that was reset here: no frame of it can be under way any more. */
void http2_past_reset(struct http2_session *s, int32_t id);
/* HEADERS or DATA have come for a stream that is not open. The error that makes of the connection,
 * or NGHTTP2_NO_ERROR when it may happen to an honest client. */
uint32_t http2_past_judge(const struct http2_session *s, int32_t id);

/* http2_output.c */
/* What nghttp2 has for the client goes out, as far as the stream takes it. Not while busy. */
void http2_flush(struct http2_session *s);
void http2_output_set_callbacks(nghttp2_session_callbacks *callbacks);
/* nghttp2 had asked for body bytes when there were none; now there are. */
void http2_wake_body(struct http2_stream *x);
/* For nghttp2_data_provider. */
ssize_t http2_read_body(nghttp2_session *nghttp2, int32_t id, uint8_t *buf, size_t len,
			uint32_t *flags, nghttp2_data_source *source, void *user);

/* http2_exchange.c */
extern const struct http_exchange_ops http2_exchange_ops;

/* http2_stream.c */
struct http2_stream *http2_stream_new(struct http2_session *s, int32_t id);
/* The head is complete. */
void http2_stream_dispatch(struct http2_stream *x);
/* Body bytes; taken, held or thrown away. */
void http2_stream_receive(struct http2_stream *x, const char *data, size_t len);
/* The body is complete. */
void http2_stream_receive_end(struct http2_stream *x);
/* What is due; the stream may be freed. */
void http2_stream_step(struct http2_stream *x);
/* The handler's last callback, once. */
void http2_stream_close(struct http2_stream *x, int status);
/* Nobody knows it any more. */
void http2_stream_drop(struct http2_stream *x);
void http2_stream_reset(struct http2_stream *x, uint32_t code);
/* No memory may be had for its head; what there is goes at once. */
void http2_stream_refuse_head(struct http2_stream *x);
/* The client owes body bytes and sends none: it is told, and the handler. */
void http2_stream_time_out(struct http2_stream *x);

/* http2_request.c */
/* One field of the head; false when the head is out of all proportion. Trailers are not for
 * this. */
bool http2_request_add(struct http2_stream *x, nghttp2_rcbuf *name, nghttp2_rcbuf *value) NODISCARD;
/* One field of the trailers; false when they are too large. */
bool http2_request_add_trailer(struct http2_stream *x, nghttp2_rcbuf *name,
			       nghttp2_rcbuf *value) NODISCARD;
/* Makes the request of it. 0, or the status to answer and the reason. */
int http2_request_finish(struct http2_stream *x, const char **ret_reason) NODISCARD;

/* http2_wait.c */
/* Something happens: a session that rests does not any more. Before anything of nghttp2's is
 * called. */
void http2_rouse(struct http2_session *s);
/* Rings: what is overdue ends. */
void http2_on_alarm(struct alarm *alarm);
/* Makes sure the alarm rings no later than the next deadline. */
void http2_update_alarm(struct http2_session *s);
/* Something is on its way to the client, which has taken of it not long ago. */
bool http2_is_taking(struct http2_session *s);

#endif
