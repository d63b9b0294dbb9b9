/* What an exchange makes of the bytes behind its request head: a body, a tunnel, or what nobody
 * wants. */
#include "lib/http_conn.h"
#include "lib/limits.h"

void http_conn_refuse_body(struct http_conn *c, int error, int status, const char *reason)
{
	bool begun = c->exchange->begun;

	http_conn_close_exchange(c, error);
	http_conn_drop_exchange(c);
	if (begun) {
		http_conn_close(c, error, true);
		return;
	}
	http_conn_send_error(c, status, reason);
	http_conn_enter(c, HTTP_CONN_LINGER);
}

static bool step_tunnel(struct http_conn *c, struct str *in)
{
	struct http_conn_exchange *x = c->exchange;
	struct str piece = *in;

	if (!x->started || x->paused)
		return false;
	if (piece.len) {
		str_skip(in, piece.len);
		x->ex.received += piece.len;
		if (x->ex.handler->on_body)
			x->ex.handler->on_body(&x->ex, piece.p, piece.len);
		return true;
	}
	if (c->eof && !x->end_told) {
		x->end_told = true;
		if (x->ex.handler->on_body_end)
			x->ex.handler->on_body_end(&x->ex);
		return true;
	}
	return false;
}

static bool step_body(struct http_conn *c, struct str *in)
{
	struct http_conn_exchange *x = c->exchange;
	char room[HTTP_PARSE_ROOM_BYTES];
	struct str body;
	size_t used;

	switch (http_parser_next_joined(&x->parser, in->p, in->len, room, sizeof(room), &used,
					&body)) {
	case HTTP_PARSE_MORE:
		str_skip(in, used);
		if (c->eof)
			http_conn_close(c, -ECONNRESET, false);
		return false;
	case HTTP_PARSE_BODY:
		str_skip(in, used);
		x->ex.received += body.len;
		if (x->ex.handler->on_body)
			x->ex.handler->on_body(&x->ex, body.p, body.len);
		return true;
	case HTTP_PARSE_END:
		str_skip(in, used);
		x->request_complete = true;
		return true;
	case HTTP_PARSE_HEAD:
	case HTTP_PARSE_ERROR:
		break;
	}
	http_conn_refuse_body(c, -EPROTO, x->parser.status, x->parser.reason);
	return true;
}

/* True when the client has ended its direction and what came cannot be the whole body. */
static bool is_cut_short(const struct http_conn *c, size_t waiting)
{
	const struct http_exchange *ex = &c->exchange->ex;

	return c->eof && ex->request.length >= 0 &&
	       ex->received + waiting < (uint64_t)ex->request.length;
}

static void finish_exchange(struct http_conn *c)
{
	struct http_conn_exchange *x = c->exchange;

	http_conn_close_exchange(c, 0);
	http_conn_get_to_know(c);
	c->served = true;
	if (x->keep_alive && !x->request_complete) {
		http_conn_enter(c, HTTP_CONN_DISCARD);
		return;
	}
	if (x->keep_alive) {
		http_conn_drop_exchange(c);
		http_conn_enter(c, HTTP_CONN_IDLE);
		return;
	}
	http_conn_drop_exchange(c);
	http_conn_enter(c, HTTP_CONN_LINGER);
}

bool http_conn_step_exchange(struct http_conn *c, struct str *in)
{
	struct http_conn_exchange *x = c->exchange;
	bool flowing;

	if (x->ended && (!x->tunnel || x->end_told) && !c->full) {
		finish_exchange(c);
		return true;
	}
	if (x->full && !c->full) {
		x->full = false;
		if (!x->ended && x->ex.handler->on_drained) {
			x->ex.handler->on_drained(&x->ex);
			return true;
		}
	}
	if (x->tunnel)
		return step_tunnel(c, in);
	flowing = x->started && !x->paused && !x->ended;
	if (!x->request_complete) {
		if (flowing)
			return step_body(c, in);
		if (is_cut_short(c, in->len))
			http_conn_close(c, -ECONNRESET, false);
		return false;
	}
	if (flowing && !x->end_told && !x->ex.request.upgrade.p) {
		x->end_told = true;
		x->ex.request_trailers = x->parser.trailers;
		if (x->ex.handler->on_body_end)
			x->ex.handler->on_body_end(&x->ex);
		return true;
	}
	if (c->eof && x->ex.abort_on_eof)
		http_conn_close(c, -ECONNRESET, false);
	return false;
}

bool http_conn_step_discard(struct http_conn *c, struct str *in)
{
	struct str body;
	size_t used;

	switch (http_parser_next(&c->exchange->parser, in->p, in->len, &used, &body)) {
	case HTTP_PARSE_MORE:
		str_skip(in, used);
		c->discarded += used;
		if (c->eof || c->discarded > HTTP_DISCARD_BYTES_MAX) {
			http_conn_drop_exchange(c);
			http_conn_finish(c);
		}
		return false;
	case HTTP_PARSE_BODY:
		str_skip(in, used);
		c->discarded += used;
		if (c->discarded <= HTTP_DISCARD_BYTES_MAX)
			return true;
		break;
	case HTTP_PARSE_END:
		str_skip(in, used);
		http_conn_drop_exchange(c);
		http_conn_enter(c, HTTP_CONN_IDLE);
		return true;
	case HTTP_PARSE_HEAD:
	case HTTP_PARSE_ERROR:
		break;
	}
	http_conn_drop_exchange(c);
	http_conn_enter(c, HTTP_CONN_LINGER);
	return true;
}

/* As much as can be used or kept of what is next. What comes with a request's head waits with it
 * for its turn. */
static size_t wanted(const struct http_conn *c)
{
	const struct http_conn_exchange *x = c->exchange;
	size_t held = buf_length(&c->held);
	bool is_early;

	switch ((enum http_conn_state)c->state) {
	case HTTP_CONN_IDLE:
	case HTTP_CONN_READ_HEAD:
		return HTTP_EARLY_BYTES_MAX;
	case HTTP_CONN_EXCHANGE:
		is_early = !x->started || (x->request_complete && !x->tunnel);
		if (is_early && held < HTTP_EARLY_BYTES_MAX)
			return HTTP_EARLY_BYTES_MAX - held;
		if (x->ex.body_read_max)
			return size_min(x->ex.body_read_max, LOOP_SCRATCH_BYTES);
		break;
	case HTTP_CONN_DISCARD:
	case HTTP_CONN_LINGER:
	case HTTP_CONN_CLOSING:
		break;
	}
	return LOOP_SCRATCH_BYTES;
}

/* Past the head, a body of known length is all that can come next, as far as that goes. */
static char *body_room(struct http_conn *c, size_t *ret_len)
{
	struct http_conn_exchange *x = c->exchange;
	struct http_exchange *ex = x ? &x->ex : NULL;
	uint64_t left;
	char *room;

	if (c->state != HTTP_CONN_EXCHANGE || !ex->handler->on_body_room || !x->started ||
	    x->paused || x->ended || x->tunnel || x->request_complete || ex->request.length <= 0 ||
	    buf_length(&c->held))
		return NULL;
	left = (uint64_t)ex->request.length - ex->received;
	room = ex->handler->on_body_room(ex, ret_len);
	*ret_len = (size_t)(room && left < *ret_len ? left : *ret_len);
	return room;
}

char *http_conn_room(struct stream *s, size_t *ret_len)
{
	struct http_conn *c = s->user;
	char *room = body_room(c, ret_len);

	if (room)
		return room;
	*ret_len = wanted(c);
	return s->loop->scratch;
}
