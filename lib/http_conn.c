#include "lib/http_conn.h"

#include <sys/ioctl.h>

#include "lib/counter.h"
#include "lib/limits.h"
#include "lib/log.h"

static void sort_in(struct http_conn *c)
{
	struct http_conn_shared *shared = c->shared;
	struct list_node *list = &shared->conns;

	if (c->state != HTTP_CONN_CLOSING && !c->known)
		list = &shared->strangers;
	else if (c->state != HTTP_CONN_CLOSING && c->state != HTTP_CONN_EXCHANGE)
		list = &shared->idle;
	list_remove(&c->node);
	list_append(list, &c->node);
}

void http_conn_get_to_know(struct http_conn *c)
{
	if (c->known || !c->exchange->ex.client_is_known)
		return;
	c->known = true;
	sort_in(c);
}

void http_conn_enter(struct http_conn *c, enum http_conn_state state)
{
	c->state = (uint8_t)state;
	c->since_ms = loop_now_ms(c->shared->loop);
	sort_in(c);
	if (state == HTTP_CONN_LINGER && !c->shut)
		stream_shutdown(c->stream);
	if (state == HTTP_CONN_DISCARD)
		c->discarded = 0;
}

/* From now on it may be the client that is waited for, so the alarm has to be looked at. */
static void become_full(struct http_conn *c)
{
	if (!c->full)
		http_conn_poke(c);
	c->full = true;
}

int http_conn_send(struct http_conn *c, const struct iovec *pieces, size_t count)
{
	int status = stream_write(c->stream, pieces, count);

	if (status < 0)
		return status;
	for (size_t i = 0; i < count; i++)
		c->written += pieces[i].iov_len;
	if (status == STREAM_FULL)
		become_full(c);
	return status == STREAM_FULL ? HTTP_FULL : 0;
}

int http_conn_lend(struct http_conn *c)
{
	int fd = stream_lend(c->stream);

	if (fd == -EAGAIN)
		become_full(c);
	return fd;
}

void http_conn_take_back(struct http_conn *c, uint64_t sent)
{
	c->written += sent;
	stream_take_back(c->stream);
}

void http_conn_poke(struct http_conn *c)
{
	if (!c->busy && c->state != HTTP_CONN_CLOSING)
		later_call(c->shared->loop, &c->later);
}

/* Only this loop counts, so that the number need not be changed by a locked instruction. */
void http_conn_count(struct http_conn_shared *shared, int change)
{
	_Atomic uint64_t *open = shared->config.connections_open;

	shared->count += (size_t)(ssize_t)change;
	if (open)
		counter_set(open, counter_read(open) + (uint64_t)(int64_t)change);
}

/* ---- the end of things ---- */

static void free_conn(struct http_conn *c)
{
	struct http_conn_shared *shared = c->shared;

	list_remove(&c->node);
	http_conn_count(shared, -1);
	free(c);
	shared->on_gone(shared);
}

static void on_stream_closed(struct stream *s)
{
	free_conn(s->user);
}

void http_conn_close_exchange(struct http_conn *c, int status)
{
	struct http_exchange *ex = c->exchange ? &c->exchange->ex : NULL;

	if (!ex || ex->closed)
		return;
	ex->closed = true;
	if (!c->exchange->dispatched)
		return;
	if (ex->handler->on_closed)
		ex->handler->on_closed(ex, status);
	if (c->shared->config.on_finished)
		c->shared->config.on_finished(ex, status);
}

void http_conn_drop_exchange(struct http_conn *c)
{
	struct http_conn_exchange *x = c->exchange;

	if (!x)
		return;
	assert(x->ex.closed);
	c->exchange = NULL;
	x->conn = NULL;
	http_exchange_release(&x->ex);
}

void http_conn_close(struct http_conn *c, int status, bool reset)
{
	if (c->state == HTTP_CONN_CLOSING)
		return;
	http_conn_enter(c, HTTP_CONN_CLOSING);
	http_conn_close_exchange(c, status);
	http_conn_drop_exchange(c);
	later_cancel(&c->later);
	alarm_cancel(&c->alarm);
	buf_reset(&c->held);
	stream_close(c->stream, reset);
}

static void on_handed_over(struct later *later)
{
	free_conn(container_of(later, struct http_conn, later));
}

/* The stream is somebody else's from here on; the connection goes without it, as soon as its own
 * frames are left. */
static void hand_over(struct http_conn *c, struct str *in)
{
	struct stream *stream = c->stream;
	struct str early = *in;

	str_skip(in, in->len);
	http_conn_enter(c, HTTP_CONN_CLOSING);
	stream_read_stop(stream);
	stream->events = NULL;
	c->shared->on_http2(c->shared, stream, c->peer, early);
	alarm_cancel(&c->alarm);
	buf_reset(&c->held);
	later_cancel(&c->later);
	later_init(&c->later, on_handed_over);
	later_call(c->shared->loop, &c->later);
}

/* A stranger that has sent all of a request is being served; others, whose request has not come, or
 * has been answered, or lacks the rest of its body, go. */
static bool has_request(struct http_conn *c)
{
	uint64_t now = loop_now_ms(c->shared->loop),
		 stall = stall_clock_deadline(&c->stall, c->written, stream_queued(c->stream), now,
					      c->shared->timeouts.yield_stall);

	return (stall != UINT64_MAX && now < stall) ||
	       (c->state == HTTP_CONN_EXCHANGE &&
		(c->exchange->request_complete || c->exchange->tunnel));
}

struct http_conn *http_conn_longest_idle(const struct list_node *conns)
{
	struct list_node *node;

	LIST_FOR_EACH (node, conns) {
		struct http_conn *c = container_of(node, struct http_conn, node);

		if (!has_request(c))
			return c;
	}
	return NULL;
}

void http_conn_finish(struct http_conn *c)
{
	if (c->eof && stream_queued(c->stream) == 0)
		http_conn_close(c, 0, false);
	else
		http_conn_enter(c, HTTP_CONN_LINGER);
}

/* ---- requests that cannot be read ---- */

static void refuse_head(struct http_conn *c, int status, const char *reason)
{
	struct http_conn_exchange *x = c->exchange;
	struct http_request *r = &x->ex.request;

	log_debug("http", "bad request", LOG_I("status", status), LOG_S("reason", reason),
		  LOG_S("peer", c->peer));
	/* What was not reached is empty rather than absent. */
	r->method = r->method.p ? r->method : STR("");
	r->target = r->target.p ? r->target : STR("");
	r->path = r->path.p ? r->path : STR("");
	r->authority = r->authority.p ? r->authority : STR("");
	r->keep_alive = r->expect_continue = false;
	r->length = HTTP_LENGTH_NONE;
	r->upgrade = (struct str){NULL, 0};
	if (!c->shared->config.on_bad_request) {
		http_conn_send_error(c, status, reason);
		http_conn_close_exchange(c, -EPROTO);
		http_conn_drop_exchange(c);
		http_conn_enter(c, HTTP_CONN_LINGER);
		return;
	}
	x->bad = x->dispatched = x->request_complete = true;
	http_conn_enter(c, HTTP_CONN_EXCHANGE);
	c->shared->config.on_bad_request(&x->ex, status, reason);
}

/* ---- the states; each step returns true when something moved ---- */

enum preface { PREFACE_NO, PREFACE_PERHAPS, PREFACE_YES };

/* Whether a connection begins as HTTP/2 does (RFC 9113 section 3.4). */
static enum preface look_for_preface(const struct http_conn *c, struct str in)
{
	static const struct str preface = {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24};

	if (!c->shared->on_http2 || c->served || c->blanks ||
	    memcmp(in.p, preface.p, size_min(in.len, preface.len)) != 0)
		return PREFACE_NO;
	return in.len < preface.len ? PREFACE_PERHAPS : PREFACE_YES;
}

static bool step_idle(struct http_conn *c, struct str *in)
{
	enum preface preface = look_for_preface(c, *in);

	if (preface == PREFACE_YES) {
		hand_over(c, in);
		return false;
	}
	if (preface == PREFACE_PERHAPS && in->len && !c->eof)
		return false;
	/* A blank line or two after a body are an old client's mistake (RFC 9112 section 2.2). */
	while (in->len && c->blanks < 2 * HTTP_LEADING_CRLF_MAX &&
	       in->p[0] == (c->blanks & 1 ? '\n' : '\r')) {
		str_skip(in, 1);
		c->blanks++;
	}
	if (in->len == 0) {
		if (c->eof)
			http_conn_finish(c);
		else if (c->shared->stopping &&
			 loop_now_ms(c->shared->loop) >= c->shared->stop_idle_ms)
			stream_queued(c->stream) ? http_conn_enter(c, HTTP_CONN_LINGER)
						 : http_conn_close(c, 0, false);
		return false;
	}
	c->exchange = http_conn_exchange_new(c);
	http_conn_enter(c, HTTP_CONN_READ_HEAD);
	if (c->blanks & 1) {
		refuse_head(c, 400, "malformed blank line");
		return true;
	}
	c->blanks = 0;
	return true;
}

static bool step_read_head(struct http_conn *c, struct str *in)
{
	struct http_conn_exchange *x = c->exchange;
	struct str body;
	size_t used;

	switch (http_parser_next(&x->parser, in->p, in->len, &used, &body)) {
	case HTTP_PARSE_MORE:
		str_skip(in, used);
		if (c->eof)
			http_conn_close(c, -ECONNRESET, false);
		return false;
	case HTTP_PARSE_HEAD:
		str_skip(in, used);
		x->dispatched = true;
		http_conn_enter(c, HTTP_CONN_EXCHANGE);
		x->request_complete = http_parser_is_complete(&x->parser);
		x->ex.peer_ended = c->eof;
		c->shared->config.dispatch(&x->ex);
		if (c->exchange == x)
			http_conn_get_to_know(c);
		return true;
	case HTTP_PARSE_BODY:
	case HTTP_PARSE_END:
	case HTTP_PARSE_ERROR:
		break;
	}
	if (x->ex.heads.refused) {
		x->ex.request = (struct http_request){0};
		arena_release(&x->ex.arena);
		if (x->ex.client)
			refuse_head(c, 429,
				    "the message heads of this client are too large together");
		else
			refuse_head(c, 503,
				    "requests of others take all the memory there is for them");
	} else {
		refuse_head(c, x->parser.status, x->parser.reason);
	}
	return true;
}

static bool step_linger(struct http_conn *c, struct str *in)
{
	str_skip(in, in->len);
	if (c->eof && c->shut)
		http_conn_close(c, 0, false);
	return false;
}

static bool step(struct http_conn *c, struct str *in)
{
	if (c->state != HTTP_CONN_CLOSING && c->reset_wanted) {
		http_conn_close(c, -ECONNABORTED, true);
		return false;
	}
	if (c->state != HTTP_CONN_CLOSING && c->left) {
		http_conn_close(c, -ECONNRESET, false);
		return false;
	}
	if (c->state != HTTP_CONN_CLOSING && c->broken) {
		http_conn_close(c, c->broken, true);
		return false;
	}
	if (c->exchange && c->exchange->abort_wanted) {
		http_conn_close(c, -ECONNABORTED, true);
		return false;
	}
	switch ((enum http_conn_state)c->state) {
	case HTTP_CONN_IDLE:
		return step_idle(c, in);
	case HTTP_CONN_READ_HEAD:
		return step_read_head(c, in);
	case HTTP_CONN_EXCHANGE:
		return http_conn_step_exchange(c, in);
	case HTTP_CONN_DISCARD:
		return http_conn_step_discard(c, in);
	case HTTP_CONN_LINGER:
		return step_linger(c, in);
	case HTTP_CONN_CLOSING:
		break;
	}
	return false;
}

/* ---- the loop's side ---- */

size_t http_conn_unused(const struct http_conn *c)
{
	return c->in ? c->in->len : buf_length(&c->held);
}

static void run(struct http_conn *c, const char *data, size_t len)
{
	struct str in = {data ? data : "", len};
	bool from_held = buf_length(&c->held) > 0;
	size_t before;

	assert(!c->busy);
	if (c->state == HTTP_CONN_CLOSING)
		return;
	c->busy = true;
	if (from_held) {
		if (buf_append(&c->held, data, len) < 0)
			c->reset_wanted = true;
		in = buf_str(&c->held);
	}
	before = in.len;
	c->in = &in;
	while (step(c, &in))
		;
	c->in = NULL;
	c->busy = false;
	if (c->state == HTTP_CONN_CLOSING)
		return;
	if (from_held)
		buf_consume(&c->held, before - in.len);
	else if (in.len && buf_append(&c->held, in.p, in.len) < 0)
		c->broken = -ENOMEM;
	if (c->held.memory && buf_length(&c->held) == 0)
		buf_reset(&c->held);
	if (c->exchange && c->exchange->head.len)
		http_conn_flush_head(c->exchange);
	if (c->exchange && c->exchange->tunnel && c->exchange->ex.forget_head)
		http_exchange_forget_head(&c->exchange->ex);
	if (c->broken)
		http_conn_poke(c);
	http_conn_update_reading(c);
	http_conn_update_alarm(c);
}

static void on_alarm(struct alarm *alarm)
{
	struct http_conn *c = container_of(alarm, struct http_conn, alarm);

	c->busy = true;
	switch (http_conn_overdue(c)) {
	case HTTP_CONN_NOT_OVERDUE:
		break;
	case HTTP_CONN_WRITE_STALLED:
		log_info("http", "client takes nothing, closing", LOG_S("peer", c->peer));
		http_conn_close(c, -ETIMEDOUT, true);
		break;
	case HTTP_CONN_STATE_OVERDUE:
		if (c->state == HTTP_CONN_READ_HEAD)
			refuse_head(c, 408, "the request head took too long");
		else if (c->state == HTTP_CONN_EXCHANGE)
			http_conn_refuse_body(c, -ETIMEDOUT, 408, "the request body took too long");
		else
			http_conn_close(c, -ETIMEDOUT, false);
		break;
	}
	c->busy = false;
	run(c, NULL, 0);
}

static void on_read(struct stream *s, const char *data, size_t len)
{
	struct http_conn *c = s->user;

	/* A body makes progress by more than a byte now and then. */
	c->progress += len;
	if (c->state != HTTP_CONN_EXCHANGE || c->progress >= HTTP_BODY_PROGRESS_BYTES) {
		c->last_read_ms = loop_now_ms(c->shared->loop);
		c->progress = 0;
	}
	run(c, data, len);
}

static void on_end(struct stream *s, int status)
{
	struct http_conn *c = s->user;

	c->eof = true;
	c->reading = false;
	if (c->exchange)
		c->exchange->ex.peer_ended = true;
	if (status < 0)
		c->broken = status;
	else
		stream_read_stop(
			c->stream); /* from now on a reset is told, also if nothing is sent */
	run(c, NULL, 0);
}

/* Whether what has come, with what waits in the kernel, is less than the whole body: nothing more
 * does. A stream that is not just the socket may hold some as well. */
static bool is_cut_short(const struct http_conn *c)
{
	const struct http_exchange *ex = &c->exchange->ex;
	int waiting;

	return ex->request.length > 0 && stream_can_lend(c->stream) &&
	       ioctl(stream_fd(c->stream), FIONREAD, &waiting) == 0 &&
	       ex->received + buf_length(&c->held) + (uint64_t)waiting <
		       (uint64_t)ex->request.length;
}

/* Behind an end there may be the rest of the body in the kernel, but who is taken for gone with it
 * is gone without it. */
void http_conn_hung_up(struct http_conn *c)
{
	struct http_conn_exchange *x = c->exchange;

	if (c->state != HTTP_CONN_EXCHANGE || x->tunnel)
		return;
	/* How much has come is known when the job has ended. */
	x->hung_up = x->body_lent;
	c->left |= !x->body_lent && (x->ex.abort_on_eof || is_cut_short(c));
}

/* While an upload is held back, or received by a job. */
static void on_hangup(struct stream *s, bool reset)
{
	struct http_conn *c = s->user;

	if (reset)
		c->broken = -ECONNRESET;
	else
		http_conn_hung_up(c);
	run(c, NULL, 0);
}

static void on_drained(struct stream *s)
{
	struct http_conn *c = s->user;

	c->full = false;
	run(c, NULL, 0);
}

static void on_shut(struct stream *s)
{
	struct http_conn *c = s->user;

	c->shut = true;
	run(c, NULL, 0);
}

static void on_later(struct later *later)
{
	run(container_of(later, struct http_conn, later), NULL, 0);
}

static const struct stream_events events = {
	.on_room = http_conn_room,
	.on_read = on_read,
	.on_end = on_end,
	.on_hangup = on_hangup,
	.on_drained = on_drained,
	.on_shut = on_shut,
	.on_closed = on_stream_closed,
};

void http_conn_open(struct http_conn_shared *shared, struct stream *stream, const char *peer)
{
	struct http_conn *c = xcalloc(1, sizeof(*c));

	c->shared = shared;
	c->stream = stream;
	c->last_read_ms = loop_now_ms(shared->loop);
	c->known = !shared->config.knows_clients;
	snprintf(c->peer, sizeof(c->peer), "%s", peer);
	buf_init(&c->held, HTTP_EARLY_BYTES_MAX + 2 * LOOP_SCRATCH_BYTES);
	later_init(&c->later, on_later);
	alarm_init(&c->alarm, on_alarm);
	list_init(&c->node);
	http_conn_count(shared, 1);
	stream->events = &events;
	stream->user = c;
	http_conn_enter(c, HTTP_CONN_IDLE);
	run(c, NULL, 0);
}
