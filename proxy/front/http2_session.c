/* The connection: how a session begins, runs and ends. */
#include "lib/log.h"
#include "proxy/front/http2_private.h"

/* Turns that handlers get at one go, before others get theirs. */
#define ROUNDS_MAX 8

static void enter(struct http2_session *s, enum http2_state state)
{
	s->state = (uint8_t)state;
	s->since_ms = loop_now_ms(s->loop);
	if (state == HTTP2_LINGER && !s->shut)
		stream_shutdown(s->stream);
}

void http2_poke(struct http2_session *s)
{
	if (!s->busy && s->state != HTTP2_CLOSING)
		later_call(s->loop, &s->later);
}

void http2_mark(struct http2_stream *x)
{
	if (!x->session)
		return;
	if (list_is_empty(&x->mark))
		list_append(&x->session->marked, &x->mark);
	http2_poke(x->session);
}

/* ---- the end of things ---- */

static void on_stream_closed(struct stream *stream)
{
	struct http2_session *s = stream->user;

	buf_fini(&s->own);
	http_server_leave(&s->guest);
	free(s);
}

/* Handlers are told, and may do with other streams of the session what they like. */
static void drop_streams(struct http2_session *s, int status)
{
	while (!list_is_empty(&s->streams)) {
		struct http2_stream *x = container_of(s->streams.next, struct http2_stream, node);

		x->gone = true;
		http2_stream_close(x, status);
		http2_stream_drop(x);
	}
}

void http2_close(struct http2_session *s, int status, bool reset)
{
	if (s->state == HTTP2_CLOSING)
		return;
	enter(s, HTTP2_CLOSING);
	http2_rouse(s);
	drop_streams(s, status);
	share_release(&s->bodies);
	nghttp2_session_del(s->nghttp2);
	s->nghttp2 = NULL;
	http2_block_close(&s->block);
	later_cancel(&s->later);
	alarm_cancel(&s->alarm);
	stream_close(s->stream, reset);
}

void http2_refuse(struct http2_session *s, uint32_t code, const char *why)
{
	if (s->failed)
		return;
	s->failed = true;
	if (code == NGHTTP2_ENHANCE_YOUR_CALM) {
		counter_add(&s->counters->calmed);
		log_info("http2", "ending a connection", LOG_S("reason", why),
			 LOG_S("peer", s->peer));
	} else {
		log_debug("http2", "ending a connection", LOG_S("reason", why),
			  LOG_S("peer", s->peer));
	}
	nghttp2_session_terminate_session(s->nghttp2, code);
	http2_poke(s);
}

bool http2_spend_reset(struct http2_session *s)
{
	if (http2_budget_spend(&s->resets, s->last_read_ms, HTTP2_RESETS_BURST, HTTP2_RESETS_PER_S))
		return true;
	http2_refuse(s, NGHTTP2_ENHANCE_YOUR_CALM, "too many requests that come to nothing");
	return false;
}

void http2_drain(struct http2_session *s)
{
	struct list_node *node;

	if (s->draining || s->state != HTTP2_SERVING)
		return;
	s->draining = true;
	s->drain_since_ms = loop_now_ms(s->loop);
	LIST_FOR_EACH (node, &s->streams)
		container_of(node, struct http2_stream, node)->before_drain = true;
	s->before_drain = s->stream_count;
	http2_poke(s);
}

void http2_give_notice(struct http2_session *s)
{
	if (s->noticed || s->state != HTTP2_SERVING)
		return;
	s->noticed = true;
	s->drain_since_ms = loop_now_ms(s->loop);
	nghttp2_submit_shutdown_notice(s->nghttp2);
	http2_poke(s);
}

void http2_finish_drain(struct http2_session *s)
{
	if (s->drained || s->state != HTTP2_SERVING)
		return;
	s->noticed = s->drained = true;
	nghttp2_submit_goaway(s->nghttp2, NGHTTP2_FLAG_NONE,
			      nghttp2_session_get_last_proc_stream_id(s->nghttp2), NGHTTP2_NO_ERROR,
			      NULL, 0);
	http2_poke(s);
}

static void on_stop(struct http_server_guest *guest)
{
	http2_drain(container_of(guest, struct http2_session, guest));
}

/* What the client asks from now on it may ask again elsewhere. */
static void on_yield(struct http_server_guest *guest)
{
	struct http2_session *s = container_of(guest, struct http2_session, guest);

	if (s->state == HTTP2_CLOSING)
		return;
	http2_rouse(s);
	if (s->state == HTTP2_SERVING && !s->failed) {
		http2_finish_drain(s);
		http2_flush(s);
	}
	if (http2_is_taking(s))
		http_server_rest(guest, s->known);
	else
		http2_close(s, -EMFILE, false);
}

static void on_abort(struct http_server_guest *guest)
{
	struct http2_session *s = container_of(guest, struct http2_session, guest);

	s->reset_wanted = true;
	http2_poke(s);
}

/* ---- what nghttp2 reports while it writes ---- */

/* No request waits for anything, though some may not be cleared away yet. */
static bool is_all_answered(const struct http2_session *s)
{
	const struct list_node *node;

	LIST_FOR_EACH (node, &s->streams) {
		const struct http2_stream *x = container_of(node, struct http2_stream, node);

		if (!x->gone && !(x->end_sent && x->request_complete))
			return false;
	}
	return true;
}

static int on_frame_sent(nghttp2_session *nghttp2, const nghttp2_frame *frame, void *user)
{
	struct http2_session *s = user;
	struct http2_stream *x;

	switch (frame->hd.type) {
	case NGHTTP2_HEADERS:
	case NGHTTP2_DATA:
		if (!(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
			break;
		x = http2_find(s, frame->hd.stream_id);
		if (x) {
			x->end_sent = true;
			http2_mark(x);
		}
		/* In one write with the end of the last answer, the notice is there before the
		 * client asks anything more: no request crosses it. */
		if (s->draining && !s->noticed && is_all_answered(s))
			http2_give_notice(s);
		break;
	case NGHTTP2_GOAWAY:
		/* The answer to this says that all requests that crossed the notice are here.
		 * Clients that take the notice for the end stumble over it, and lose what comes
		 * along with it. */
		if (s->noticed && !s->drained && !is_all_answered(s))
			nghttp2_submit_ping(nghttp2, NGHTTP2_FLAG_NONE, http2_drain_mark);
		break;
	case NGHTTP2_RST_STREAM:
		/* Of nghttp2's own accord: the client broke a rule. What it provokes counts like
		 * what it does itself. */
		if (frame->rst_stream.error_code == NGHTTP2_PROTOCOL_ERROR ||
		    frame->rst_stream.error_code == NGHTTP2_FLOW_CONTROL_ERROR ||
		    frame->rst_stream.error_code == NGHTTP2_STREAM_CLOSED ||
		    frame->rst_stream.error_code == NGHTTP2_FRAME_SIZE_ERROR)
			http2_spend_reset(s);
		break;
	default:
		break;
	}
	return 0;
}

/* An answer that cannot be sent must not be waited for. */
static int on_frame_not_sent(nghttp2_session *nghttp2, const nghttp2_frame *frame, int error,
			     void *user)
{
	struct http2_stream *x;

	(void)nghttp2;
	(void)error;
	if (frame->hd.type != NGHTTP2_HEADERS)
		return 0;
	x = http2_find(user, frame->hd.stream_id);
	if (x) {
		x->abort_wanted = true;
		http2_mark(x);
	}
	return 0;
}

static int on_stream_gone(nghttp2_session *nghttp2, int32_t id, uint32_t code, void *user)
{
	struct http2_stream *x = http2_find(user, id);

	(void)nghttp2;
	if (!x) {
		http2_past_add(user, id, HTTP2_RESET_BY_US);
		return 0;
	}
	http2_past_add(user, id,
		       x->client_reset		      ? HTTP2_RESET_BY_CLIENT
		       : x->request_complete && !code ? HTTP2_ENDED
						      : HTTP2_RESET_BY_US);
	x->gone = true;
	if (code == NGHTTP2_NO_ERROR && x->end_sent)
		x->status = 0;
	else
		x->status = code == NGHTTP2_NO_ERROR || x->client_reset ? -ECONNRESET : -EPROTO;
	http2_mark(x);
	return 0;
}

/* ---- the loop's side ---- */

/* True when the session is over. */
static bool end_if_due(struct http2_session *s)
{
	if (s->state == HTTP2_CLOSING)
		return true;
	if (s->reset_wanted) {
		/* The client may try again what was not begun. */
		if (s->state == HTTP2_SERVING && !s->failed) {
			http2_finish_drain(s);
			http2_flush(s);
		}
		http2_close(s, -ECONNABORTED, true);
	} else if (s->broken) {
		http2_close(s, s->broken, true);
	} else if (s->state == HTTP2_LINGER && s->eof && s->shut) {
		http2_close(s, 0, false);
	} else if (s->state == HTTP2_SERVING && s->eof) {
		http2_close(s, -ECONNRESET, false);
	}
	return s->state == HTTP2_CLOSING;
}

static void step_streams(struct http2_session *s)
{
	s->busy = true;
	while (!list_is_empty(&s->marked)) {
		struct http2_stream *x = container_of(s->marked.next, struct http2_stream, mark);

		list_remove(&x->mark);
		http2_stream_step(x);
	}
	s->busy = false;
}

static void watch_idleness(struct http2_session *s)
{
	bool idle = s->stream_count == 0;

	if (idle && !s->idle_since_ms)
		s->idle_since_ms = loop_now_ms(s->loop);
	else if (!idle)
		s->idle_since_ms = 0;
}

/* Heads that never end are no work. */
static void watch_rest(struct http2_session *s)
{
	bool rests = s->guest.idle_since_ms;

	if (s->asking)
		http_server_work(&s->guest);
	else if (!rests || s->asked)
		http_server_rest(&s->guest, s->known);
	s->asked = false;
}

static void run(struct http2_session *s)
{
	assert(!s->busy);
	http2_rouse(s);
	if (end_if_due(s))
		return;
	if (s->state == HTTP2_SERVING) {
		for (int round = 0; round < ROUNDS_MAX; round++) {
			step_streams(s);
			http2_flush(s);
			if (list_is_empty(&s->marked))
				break;
		}
		if (!list_is_empty(&s->marked))
			http2_poke(s);
		watch_idleness(s);
		/* While a request may be on its way, the notice comes with its answer, or when time
		 * is up. */
		if (s->draining && s->stream_count == 0 && !http_server_is_waiting(s->guest.server))
			http2_give_notice(s);
		/* nghttp2 takes the notice for the last word; more requests may be on their way. */
		if (!s->full && !s->broken && (s->failed || s->drained || !s->noticed) &&
		    !nghttp2_session_want_read(s->nghttp2) &&
		    !nghttp2_session_want_write(s->nghttp2)) {
			/* GOAWAY is on its way, and what was to be answered is. */
			s->busy = true;
			drop_streams(s, -EPROTO);
			s->busy = false;
			enter(s, HTTP2_LINGER);
		}
	}
	if (end_if_due(s))
		return;
	watch_rest(s);
	http2_update_alarm(s);
}

static void on_read(struct stream *stream, const char *data, size_t len)
{
	struct http2_session *s = stream->user;

	s->last_read_ms = loop_now_ms(s->loop);
	s->pinged_ms = 0;
	http2_rouse(s);
	http2_read(s, data, len);
	run(s);
}

static void on_end(struct stream *stream, int status)
{
	struct http2_session *s = stream->user;

	s->eof = true;
	if (status < 0 && !s->broken)
		s->broken = status;
	run(s);
}

static void on_drained(struct stream *stream)
{
	struct http2_session *s = stream->user;

	s->full = false;
	run(s);
}

static void on_shut(struct stream *stream)
{
	struct http2_session *s = stream->user;

	s->shut = true;
	run(s);
}

static void on_later(struct later *later)
{
	run(container_of(later, struct http2_session, later));
}

static const struct stream_events events = {
	.on_read = on_read,
	.on_end = on_end,
	.on_drained = on_drained,
	.on_shut = on_shut,
	.on_closed = on_stream_closed,
};

/* ---- the beginning ---- */

static nghttp2_session *new_nghttp2(struct http2_session *s)
{
	nghttp2_mem memory = http2_block_memory(&s->block);
	nghttp2_session_callbacks *callbacks;
	nghttp2_session *nghttp2 = NULL;
	nghttp2_option *option;

	if (nghttp2_session_callbacks_new(&callbacks) < 0)
		return NULL;
	if (nghttp2_option_new(&option) < 0) {
		nghttp2_session_callbacks_del(callbacks);
		return NULL;
	}
	http2_input_set_callbacks(callbacks);
	http2_output_set_callbacks(callbacks);
	nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_sent);
	nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_frame_not_sent);
	nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_gone);
	nghttp2_option_set_no_auto_window_update(option, 1);
	nghttp2_option_set_max_continuations(option, HTTP2_CONTINUATIONS_MAX);
	nghttp2_option_set_max_send_header_block_length(option, 4 * HTTP_HEAD_BYTES_MAX);
	nghttp2_option_set_server_fallback_rfc7540_priorities(option, 1);
	if (nghttp2_session_server_new3(&nghttp2, callbacks, s, option, &memory) < 0)
		nghttp2 = NULL;
	http2_block_seal(&s->block);
	nghttp2_option_del(option);
	nghttp2_session_callbacks_del(callbacks);
	return nghttp2;
}

static int greet(struct http2_session *s)
{
	static const nghttp2_settings_entry settings[] = {
		/* What the client sees is HTTP2_STREAMS_MAX; see http2_output.c. */
		{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS,
		 2 * HTTP2_STREAMS_MAX + HTTP2_RESETS_BURST},
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, HTTP2_STREAM_WINDOW_BYTES},
		{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_HEAD_BYTES_MAX},
		{NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL, 1},
		{NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
	};

	if (nghttp2_submit_settings(s->nghttp2, NGHTTP2_FLAG_NONE, settings,
				    ARRAY_LENGTH(settings)) < 0 ||
	    nghttp2_session_set_local_window_size(s->nghttp2, NGHTTP2_FLAG_NONE, 0,
						  HTTP2_CONNECTION_WINDOW_BYTES_FIRST) < 0)
		return -ENOMEM;
	return 0;
}

void http2_open(struct http_server *server, struct stream *stream, const char *peer,
		struct str early, struct http2_pool *pool, struct http2_counters *counters)
{
	struct http2_session *s = xcalloc(1, sizeof(*s));

	s->counters = counters;
	s->config = http_server_config_of(server);
	s->timeouts = http_server_timeouts_of(server);
	s->loop = http_server_loop(server);
	s->stream = stream;
	s->guest.on_stop = on_stop;
	s->guest.on_yield = on_yield;
	s->guest.on_abort = on_abort;
	s->skip = HTTP2_PREFACE_BYTES;
	s->opened_ms = s->last_read_ms = loop_now_ms(s->loop);
	snprintf(s->peer, sizeof(s->peer), "%s", peer);
	share_init(&s->bodies, stream->peer ? &stream->peer->bodies : NULL, 0);
	list_init(&s->streams);
	list_init(&s->marked);
	buf_init(&s->own, SIZE_MAX / 2);
	later_init(&s->later, on_later);
	alarm_init(&s->alarm, http2_on_alarm);
	stream->events = &events;
	stream->user = s;
	counter_add(&counters->sessions);
	http_server_enter(server, &s->guest);
	enter(s, HTTP2_SERVING);
	http2_block_open(&s->block, pool);
	s->nghttp2 = new_nghttp2(s);
	if (!s->nghttp2 || greet(s) < 0 || stream_read_start(stream) < 0) {
		http2_close(s, -ENOMEM, true);
		return;
	}
	if (early.len)
		http2_read(s, early.p, early.len);
	if (http_server_is_stopping(server))
		http2_drain(s);
	run(s);
}
