/* One stream of a session: its life as an exchange, and what comes from the client. */
#include "lib/log.h"
#include "proxy/front/http2_private.h"

static const struct http_exchange_handler no_handler;

struct http2_stream *http2_stream_new(struct http2_session *s, int32_t id)
{
	struct http2_stream *x = xcalloc(1, sizeof(*x));
	struct http_exchange *ex = &x->ex;

	x->session = s;
	x->id = id;
	x->window = HTTP2_STREAM_WINDOW_BYTES;
	x->last_read_ms = loop_now_ms(s->loop);
	list_init(&x->mark);
	list_append(&s->streams, &x->node);
	s->stream_count++;
	buf_init(&x->in, HTTP2_STREAM_WINDOW_BYTES_MAX + LOOP_SCRATCH_BYTES);
	buf_init(&x->out, SIZE_MAX / 2);
	http_exchange_begin(ex, s->stream->peer);
	ex->loop = s->loop;
	ex->ops = &http2_exchange_ops;
	ex->is_http2 = true;
	ex->handler = &no_handler;
	ex->server_user = s->config->user;
	memcpy(ex->peer, s->peer, sizeof(ex->peer));
	ex->security = s->stream->security;
	ex->started_ms = loop_now_ms(s->loop);
	ex->holds = 1; /* the session's */
	return x;
}

/* ---- endings ---- */

void http2_stream_reset(struct http2_stream *x, uint32_t code)
{
	if (x->reset_sent || x->gone)
		return;
	x->reset_sent = true;
	nghttp2_submit_rst_stream(x->session->nghttp2, NGHTTP2_FLAG_NONE, x->id, code);
}

void http2_stream_close(struct http2_stream *x, int status)
{
	struct http_exchange *ex = &x->ex;
	const struct http_server_config *config = x->session->config;

	if (ex->closed)
		return;
	ex->closed = true;
	if (!x->dispatched)
		return;
	x->session->asking--;
	if (ex->handler->on_closed)
		ex->handler->on_closed(ex, status);
	if (config->on_finished)
		config->on_finished(ex, status);
}

/* Held bytes count as taken for the connection: its window is everybody's. */
static void settle_window(struct http2_stream *x)
{
	struct http2_session *s = x->session;

	if (x->owed && s->state == HTTP2_SERVING)
		nghttp2_session_consume_connection(s->nghttp2, x->owed);
	s->ahead -= x->ahead;
	x->owed = x->ahead = 0;
}

void http2_stream_drop(struct http2_stream *x)
{
	struct http2_session *s = x->session;

	assert(x->ex.closed);
	settle_window(x);
	if (s->room_of == x)
		s->room_of = NULL;
	list_remove(&x->mark);
	list_remove(&x->node);
	s->stream_count--;
	s->head_bytes -= x->head_bytes;
	if (x->before_drain && --s->before_drain == 0 && !s->noticed)
		s->drain_since_ms = loop_now_ms(s->loop);
	x->session = NULL;
	http_exchange_release(&x->ex);
}

/* ---- the request ---- */

void http2_stream_refuse_head(struct http2_stream *x)
{
	struct http2_session *s = x->session;

	assert(!x->dispatched);
	counter_add(&s->counters->heads_refused);
	if (http2_spend_reset(s))
		http2_stream_reset(x, NGHTTP2_REFUSED_STREAM);
	http2_stream_close(x, -EDQUOT);
	s->head_bytes -= x->head_bytes;
	x->head_bytes = 0;
	x->head = (struct http2_head){0};
	x->ex.request = (struct http_request){0};
	arena_release(&x->ex.arena);
}

static void send_error(struct http2_stream *x, int status, const char *reason)
{
	struct http_exchange *ex = &x->ex;
	struct http_headers *headers = &ex->response_headers;
	const struct http_header *field = &x->session->config->error_field;
	char body[256];
	int len = snprintf(body, sizeof(body), "{\"code\":%d,\"message\":\"%s\"}\n", status,
			   reason);
	struct iovec piece = {.iov_base = body, .iov_len = (size_t)len};

	/* The reasons are constants; nothing in them needs escaping. */
	x->speaking = true;
	headers->count = 0;
	if (http_headers_add(headers, &ex->arena, STR("Content-Type"),
			     STR("application/json; charset=utf-8")) < 0 ||
	    http_headers_add(headers, &ex->arena, STR("X-Content-Type-Options"), STR("nosniff")) <
		    0 ||
	    (field->name.len &&
	     http_headers_add(headers, &ex->arena, field->name, field->value) < 0) ||
	    http_response_begin(ex, status, len) < 0 || http_response_finish(ex, &piece, 1) < 0)
		http2_stream_reset(x, NGHTTP2_INTERNAL_ERROR);
	x->speaking = false;
}

static void begin_asking(struct http2_stream *x)
{
	x->dispatched = x->session->asked = true;
	x->session->asking++;
}

static void refuse(struct http2_stream *x, int status, const char *reason)
{
	struct http_request *r = &x->ex.request;
	const struct http_server_config *config = x->session->config;

	log_debug("http2", "bad request", LOG_I("status", status), LOG_S("reason", reason),
		  LOG_S("peer", x->session->peer));
	/* What is missing is empty rather than absent. */
	r->method = r->method.p ? r->method : STR("");
	r->target = r->target.p ? r->target : x->head.path.p ? x->head.path : STR("");
	r->path = r->path.p ? r->path : STR("");
	r->authority = r->authority.p	     ? r->authority
		       : x->head.authority.p ? x->head.authority
					     : STR("");
	r->expect_continue = false;
	r->length = HTTP_LENGTH_NONE;
	r->upgrade = (struct str){NULL, 0};
	x->bad = true;
	if (!config->on_bad_request) {
		send_error(x, status, reason);
		return;
	}
	begin_asking(x);
	config->on_bad_request(&x->ex, status, reason);
}

void http2_stream_dispatch(struct http2_stream *x)
{
	struct http2_session *s = x->session;
	const char *reason;
	int status = http2_request_finish(x, &reason);

	s->served = true;
	if (status) {
		if (http2_spend_reset(s))
			refuse(x, status, reason);
		return;
	}
	counter_add(&s->counters->requests);
	begin_asking(x);
	s->config->dispatch(&x->ex);
	s->known |= x->ex.client_is_known;
}

/* ---- the request's body ---- */

static bool is_flowing(const struct http2_stream *x)
{
	return x->started && !x->paused && !x->ex.closed && !x->gone && !x->abort_wanted &&
	       !(x->ended && !x->tunnel);
}

/* For uploads that are not small, and for those that nobody takes: others on the connection go
 * on. */
static void make_roomy(struct http2_session *s)
{
	if (s->roomy ||
	    !share_take(&s->bodies, HTTP2_CONNECTION_WINDOW_BYTES + HTTP2_HELD_BYTES_MAX))
		return;
	s->roomy = true;
	nghttp2_session_set_local_window_size(s->nghttp2, NGHTTP2_FLAG_NONE, 0,
					      HTTP2_CONNECTION_WINDOW_BYTES);
}

/* A client whose bytes keep being taken may have more of them under way: distance costs no
 * speed. */
static void grow_window(struct http2_stream *x, size_t len)
{
	x->taken += len;
	if (x->taken < x->window || x->window >= HTTP2_STREAM_WINDOW_BYTES_MAX)
		return;
	x->taken = 0;
	make_roomy(x->session);
	x->window = size_min(2 * x->window, HTTP2_STREAM_WINDOW_BYTES_MAX);
	nghttp2_session_set_local_window_size(x->session->nghttp2, NGHTTP2_FLAG_NONE, x->id,
					      (int32_t)x->window);
}

static void hand_on(struct http2_stream *x, const char *data, size_t len)
{
	x->ex.received += len;
	http2_budget_earn(&x->session->control, len * 1000 / HTTP2_CONTROL_PER_BYTES);
	if (x->ex.handler->on_body)
		x->ex.handler->on_body(&x->ex, data, len);
	if (x->gone)
		return;
	nghttp2_session_consume_stream(x->session->nghttp2, x->id, len);
	grow_window(x, len);
}

static void hold(struct http2_stream *x, const char *data, size_t len)
{
	struct http2_session *s = x->session;

	if (buf_append(&x->in, data, len) < 0) {
		x->abort_wanted = true;
		http2_mark(x);
		nghttp2_session_consume_connection(s->nghttp2, len);
		return;
	}
	if (s->ahead + len > HTTP2_HELD_BYTES_FIRST)
		make_roomy(s);
	if (s->ahead + len <= (s->roomy ? HTTP2_HELD_BYTES_MAX : HTTP2_HELD_BYTES_FIRST)) {
		nghttp2_session_consume_connection(s->nghttp2, len);
		x->ahead += len;
		s->ahead += len;
	} else {
		x->owed += len;
	}
}

void http2_stream_receive(struct http2_stream *x, const char *data, size_t len)
{
	struct http2_session *s = x->session;

	x->last_read_ms = s->last_read_ms;
	if (x->ex.closed || x->gone || (x->ended && !x->tunnel)) {
		nghttp2_session_consume(s->nghttp2, x->id, len);
		return;
	}
	if (!is_flowing(x) || buf_length(&x->in)) {
		hold(x, data, len);
		return;
	}
	nghttp2_session_consume_connection(s->nghttp2, len);
	hand_on(x, data, len);
}

void http2_stream_receive_end(struct http2_stream *x)
{
	x->request_complete = true;
	http2_mark(x);
}

/* True when something was told. */
static bool tell_held(struct http2_stream *x)
{
	struct http2_session *s = x->session;
	size_t len = size_min(buf_length(&x->in), LOOP_SCRATCH_BYTES),
	       owed = size_min(len, x->owed);

	if (len == 0 || !is_flowing(x))
		return false;
	x->owed -= owed;
	x->ahead -= len - owed;
	s->ahead -= len - owed;
	nghttp2_session_consume_connection(s->nghttp2, owed);
	hand_on(x, buf_data(&x->in), len);
	buf_consume(&x->in, len);
	if (buf_length(&x->in) == 0)
		buf_reset(&x->in);
	return true;
}

/* ---- what is due ---- */

static bool step(struct http2_stream *x)
{
	struct http_exchange *ex = &x->ex;

	/* Once its end is framed, the answer does not need the stream any more. */
	if (x->gone && (ex->closed || x->status < 0 || x->ended || x->abort_wanted)) {
		http2_stream_close(x, x->abort_wanted ? -ECONNABORTED : x->status);
		http2_stream_drop(x);
		return false;
	}
	if (x->gone) {
		/* The last bytes of a known length were framed with the end, and their maker waits
		 * for room before it says that these were all. */
		if (!x->full)
			return false;
		x->full = false;
		if (ex->handler->on_drained)
			ex->handler->on_drained(ex);
		return true;
	}
	if (x->abort_wanted && !ex->closed) {
		http2_stream_reset(x, x->tunnel ? NGHTTP2_CANCEL : NGHTTP2_INTERNAL_ERROR);
		http2_stream_close(x, -ECONNABORTED);
		return false;
	}
	if (x->ended && x->end_sent && (!x->tunnel || x->end_told)) {
		/* The answer is complete; what is left of the question is not wanted. */
		if (!x->request_complete)
			http2_stream_reset(x, NGHTTP2_NO_ERROR);
		http2_stream_close(x, 0);
		return false;
	}
	if (ex->closed)
		return false;
	if (x->tunnel && ex->forget_head)
		http_exchange_forget_head(ex);
	if (x->out.memory && buf_length(&x->out) == 0)
		buf_reset(&x->out);
	if (x->full && buf_length(&x->out) <= HTTP2_STREAM_LOW_MARK_BYTES) {
		x->full = false;
		if (!x->ended && ex->handler->on_drained) {
			ex->handler->on_drained(ex);
			return true;
		}
	}
	if (tell_held(x))
		return true;
	if (x->request_complete && is_flowing(x) && !x->end_told && buf_length(&x->in) == 0 &&
	    (!ex->request.upgrade.p || x->tunnel)) {
		x->end_told = true;
		if (ex->handler->on_body_end)
			ex->handler->on_body_end(ex);
		return true;
	}
	return false;
}

void http2_stream_step(struct http2_stream *x)
{
	if (step(x))
		http2_mark(x);
}

void http2_stream_time_out(struct http2_stream *x)
{
	bool begun = x->begun;

	log_info("http2", "the request body took too long", LOG_S("peer", x->session->peer));
	http2_stream_close(x, -ETIMEDOUT);
	if (begun) {
		http2_stream_reset(x, NGHTTP2_CANCEL);
		return;
	}
	/* The handler is done with; the answer is ours. */
	send_error(x, 408, "the request body took too long");
}
