/* What a session waits for, and until when. One alarm, never moved later: it rings early and looks
 * again. */
#include "lib/log.h"
#include "proxy/front/http2_private.h"

static void earlier(uint64_t *deadline, uint64_t other)
{
	if (other < *deadline)
		*deadline = other;
}

/* ---- single streams ---- */

static uint64_t head_deadline(const struct http2_stream *x)
{
	return x->dispatched || x->bad || x->gone ? UINT64_MAX
						  : x->ex.started_ms + x->session->timeouts->head;
}

static uint64_t body_deadline(const struct http2_stream *x)
{
	if (x->request_complete || !x->started || x->paused || x->ended || x->tunnel || x->gone ||
	    x->ex.closed || x->ex.no_body_timeout)
		return UINT64_MAX;
	return x->last_read_ms + x->session->timeouts->body_idle;
}

/* The client opens no window for what waits (S83). */
static uint64_t stall_deadline(struct http2_stream *x)
{
	return stall_clock_deadline(&x->stall, x->given, buf_length(&x->out),
				    loop_now_ms(x->session->loop),
				    x->session->timeouts->write_stall);
}

static uint64_t streams_deadline(struct http2_session *s)
{
	uint64_t deadline = UINT64_MAX;
	struct list_node *node;

	LIST_FOR_EACH (node, &s->streams) {
		struct http2_stream *x = container_of(node, struct http2_stream, node);

		earlier(&deadline, head_deadline(x));
		earlier(&deadline, body_deadline(x));
		earlier(&deadline, stall_deadline(x));
	}
	return deadline;
}

static void end_overdue_streams(struct http2_session *s, uint64_t now)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &s->streams) {
		struct http2_stream *x = container_of(node, struct http2_stream, node);

		if (now >= head_deadline(x)) {
			/* Nothing else can come before its end. */
			http2_refuse(s, NGHTTP2_PROTOCOL_ERROR, "the message head took too long");
		} else if (now >= stall_deadline(x)) {
			log_info("http2", "client takes nothing of a response",
				 LOG_S("peer", s->peer));
			http2_stream_reset(x, NGHTTP2_CANCEL);
			http2_stream_close(x, -ETIMEDOUT);
		} else if (now >= body_deadline(x)) {
			http2_stream_time_out(x);
		}
	}
}

/* ---- the session ---- */

static uint64_t ping_deadline(const struct http2_session *s)
{
	if (s->stream_count == 0)
		return UINT64_MAX;
	return s->pinged_ms ? s->pinged_ms + s->timeouts->ping_wait
			    : s->last_read_ms + s->timeouts->ping_silence;
}

static uint64_t idle_deadline(const struct http2_session *s)
{
	if (!s->greeted)
		return s->opened_ms + s->timeouts->head;
	if (s->stream_count || !s->idle_since_ms)
		return UINT64_MAX;
	return s->idle_since_ms +
	       (s->served ? s->config->idle_timeout_ms : s->timeouts->first_byte);
}

static uint64_t rest_deadline(const struct http2_session *s)
{
	uint64_t since = s->idle_since_ms > s->last_read_ms ? s->idle_since_ms : s->last_read_ms;

	if (!s->greeted || !s->idle_since_ms || s->draining || s->failed || s->full ||
	    s->restless || s->block.folded)
		return UINT64_MAX;
	return since + s->timeouts->rest;
}

static uint64_t drain_deadline(const struct http2_session *s)
{
	uint64_t limit = s->timeouts->drain;

	if (!s->draining || s->drained)
		return UINT64_MAX;
	if (s->noticed)
		return s->drain_since_ms + HTTP2_DRAIN_NOTICE_MS;
	limit = http_server_stopping_since_ms(s->guest.server) + limit -
		size_min(limit / 3, HTTP2_DRAIN_LEFT_MS);
	if (!s->before_drain)
		earlier(&limit, s->drain_since_ms + s->timeouts->drain_quiet);
	return limit;
}

static uint64_t write_deadline(struct http2_session *s)
{
	return stall_clock_deadline(&s->stall, s->written, stream_queued(s->stream),
				    loop_now_ms(s->loop), s->timeouts->write_stall);
}

bool http2_is_taking(struct http2_session *s)
{
	uint64_t now = loop_now_ms(s->loop),
		 stall = stall_clock_deadline(&s->stall, s->written, stream_queued(s->stream), now,
					      s->timeouts->yield_stall);

	return stall != UINT64_MAX && now < stall;
}

static uint64_t linger_deadline(const struct http2_session *s)
{
	uint64_t last = s->since_ms > s->last_read_ms ? s->since_ms : s->last_read_ms;
	uint64_t deadline = s->since_ms + s->timeouts->linger_total;

	earlier(&deadline, last + s->timeouts->linger);
	return deadline;
}

static void end_overdue(struct http2_session *s, uint64_t now)
{
	uint64_t write = write_deadline(s);

	if (now >= write) {
		log_info("http2", "client takes nothing, closing", LOG_S("peer", s->peer));
		http2_close(s, -ETIMEDOUT, true);
		return;
	}
	if (s->state == HTTP2_LINGER) {
		if (write == UINT64_MAX && now >= linger_deadline(s))
			http2_close(s, 0, false);
		return;
	}
	if (now >= ping_deadline(s)) {
		if (s->pinged_ms) {
			log_info("http2", "client gives no sign of life, closing",
				 LOG_S("peer", s->peer));
			counter_add(&s->counters->lost);
			http2_close(s, -ETIMEDOUT, true);
			return;
		}
		s->pinged_ms = now;
		nghttp2_submit_ping(s->nghttp2, NGHTTP2_FLAG_NONE, NULL);
	}
	if (now >= drain_deadline(s)) {
		if (s->noticed)
			http2_finish_drain(s);
		else
			http2_give_notice(s);
	}
	if (now >= idle_deadline(s))
		http2_refuse(s, s->greeted ? NGHTTP2_NO_ERROR : NGHTTP2_PROTOCOL_ERROR, "idle");
	end_overdue_streams(s, now);
}

void http2_rouse(struct http2_session *s)
{
	if (s->block.folded)
		counter_take(&s->counters->resting);
	http2_block_unfold(&s->block);
	s->restless = false;
}

void http2_on_alarm(struct alarm *alarm)
{
	struct http2_session *s = container_of(alarm, struct http2_session, alarm);

	if (s->state == HTTP2_SERVING && loop_now_ms(s->loop) >= rest_deadline(s) &&
	    loop_now_ms(s->loop) < idle_deadline(s)) {
		if (http2_block_fold(&s->block))
			counter_add(&s->counters->resting);
		else
			s->restless = true;
		http2_update_alarm(s);
		return;
	}
	http2_rouse(s);
	s->busy = true;
	end_overdue(s, loop_now_ms(s->loop));
	s->busy = false;
	http2_poke(s);
}

/*
 * Waits of streams begin all the time, and none can be over before the shortest of their timeouts.
 * So an alarm that is set for no later than that need not know of each; it looks at all when it
 * rings.
 */
static uint64_t next_look(struct http2_session *s)
{
	uint64_t deadline = loop_now_ms(s->loop);

	if (s->stream_count == 0)
		return UINT64_MAX;
	deadline += size_min(size_min(s->timeouts->body_idle, s->timeouts->write_stall),
			     s->timeouts->head);
	if (!alarm_is_set(&s->alarm))
		earlier(&deadline, streams_deadline(s));
	return deadline;
}

void http2_update_alarm(struct http2_session *s)
{
	uint64_t deadline = write_deadline(s), now = loop_now_ms(s->loop);

	if (s->state == HTTP2_LINGER) {
		if (deadline == UINT64_MAX)
			deadline = linger_deadline(s);
	} else {
		earlier(&deadline, ping_deadline(s));
		earlier(&deadline, idle_deadline(s));
		earlier(&deadline, rest_deadline(s));
		earlier(&deadline, drain_deadline(s));
		earlier(&deadline, next_look(s));
	}
	if (deadline == UINT64_MAX || (alarm_is_set(&s->alarm) && s->alarm.due_ms <= deadline))
		return;
	alarm_set(s->loop, &s->alarm, deadline > now ? deadline - now : 0);
}
