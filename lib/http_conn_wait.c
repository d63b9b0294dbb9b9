/* What a connection waits for: which bytes it reads, and until when. */
#include "lib/http_conn.h"
#include "lib/limits.h"

static bool wants_bytes(const struct http_conn *c)
{
	const struct http_conn_exchange *x = c->exchange;

	if (c->eof)
		return false;
	if (c->state != HTTP_CONN_EXCHANGE)
		return true;
	if (x->body_lent || (x->started && x->paused && (!x->request_complete || x->tunnel)))
		return false;
	/* Going on to read is how a client that leaves is noticed. */
	return buf_length(&c->held) < HTTP_EARLY_BYTES_MAX;
}

void http_conn_update_reading(struct http_conn *c)
{
	bool wanted = wants_bytes(c);

	if (wanted == c->reading)
		return;
	c->reading = wanted;
	if (!wanted) {
		stream_read_stop(c->stream);
		return;
	}
	c->last_read_ms = loop_now_ms(c->shared->loop);
	if (stream_read_start(c->stream) < 0) {
		c->broken = -EIO;
		http_conn_poke(c);
	}
}

static uint64_t state_deadline(const struct http_conn *c)
{
	const struct http_server_timeouts *t = &c->shared->timeouts;
	const struct http_conn_exchange *x = c->exchange;
	uint64_t last = c->since_ms > c->last_read_ms ? c->since_ms : c->last_read_ms;

	switch ((enum http_conn_state)c->state) {
	case HTTP_CONN_IDLE:
		last = c->since_ms +
		       (c->served ? c->shared->config.idle_timeout_ms : t->first_byte);
		return c->shared->stopping && c->shared->stop_idle_ms < last
			       ? c->shared->stop_idle_ms
			       : last;
	case HTTP_CONN_READ_HEAD:
		return c->since_ms + t->head;
	case HTTP_CONN_EXCHANGE:
		if (x->request_complete || !x->started || x->paused || x->body_lent ||
		    x->ex.no_body_timeout)
			return UINT64_MAX;
		return last + t->body_idle;
	case HTTP_CONN_DISCARD:
	case HTTP_CONN_LINGER:
		return last + t->linger < c->since_ms + t->linger_total
			       ? last + t->linger
			       : c->since_ms + t->linger_total;
	case HTTP_CONN_CLOSING:
		break;
	}
	return UINT64_MAX;
}

static uint64_t stall_deadline(struct http_conn *c)
{
	return stall_clock_deadline(&c->stall, c->written, stream_queued(c->stream),
				    loop_now_ms(c->shared->loop), c->shared->timeouts.write_stall);
}

void http_conn_update_alarm(struct http_conn *c)
{
	uint64_t stall = stall_deadline(c), deadline = state_deadline(c);

	/* While the last answer is still going out, lingering has not begun. */
	if (stall < deadline || (stall != UINT64_MAX && c->state == HTTP_CONN_LINGER))
		deadline = stall;
	if (deadline != UINT64_MAX)
		alarm_set_within(c->shared->loop, &c->alarm,
				 loop_wait_ms(c->shared->loop, deadline));
}

enum http_conn_lateness http_conn_overdue(struct http_conn *c)
{
	const struct loop *loop = c->shared->loop;
	uint64_t stall = stall_deadline(c);

	if (loop_is_past(loop, stall))
		return HTTP_CONN_WRITE_STALLED;
	if (c->state == HTTP_CONN_LINGER && stall != UINT64_MAX)
		return HTTP_CONN_NOT_OVERDUE;
	return loop_is_past(loop, state_deadline(c)) ? HTTP_CONN_STATE_OVERDUE
						     : HTTP_CONN_NOT_OVERDUE;
}
