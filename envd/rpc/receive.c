/* From body bytes to started calls and delivered messages, for the three kinds of methods. */
#include "envd/limits.h"
#include "envd/rpc/call.h"
#include "lib/job.h"

/* Decoding away from the loop. Until it is done, body, reader and message_arena are the job's. */
struct decode_job {
	struct job job;
	struct call *call;
	struct str bytes;
	bool compressed;
	int status;
	struct err err;
};

/* A client stream that cannot be read on. */
static void break_stream(struct call *c, const struct err *err)
{
	const struct rpc_handler *handler = c->base.handler;

	c->broken = true;
	c->wanted = false;
	if (handler && handler->on_message_error)
		handler->on_message_error(&c->base, err);
	else
		rpc_fail(&c->base, err);
}

static void deliver(struct call *c)
{
	envelope_next(&c->reader);
	share_release(&c->receive_share);
	if (c->base.handler && c->base.handler->on_message)
		c->base.handler->on_message(&c->base, c->message);
	rpc_drop_message(&c->base);
}

void receive_start(struct call *c)
{
	c->state = CALL_STARTED;
	c->started = true;
	if (c->base.method->kind != RPC_CLIENT_STREAM)
		call_drop_received(c);
	if (c->base.method->kind != RPC_UNARY)
		c->base.exchange->no_body_timeout = true;
	c->base.method->start(&c->base, c->message);
}

static void finish_decoding(struct call *c, int status, const struct err *err)
{
	if (c->base.method->kind == RPC_CLIENT_STREAM) {
		if (status < 0)
			break_stream(c, err);
		else
			deliver(c);
	} else if (status < 0) {
		rpc_fail(&c->base, err);
	} else {
		receive_start(c);
	}
}

static void decode_in_pool(struct job *job)
{
	struct decode_job *d = container_of(job, struct decode_job, job);

	d->status = request_decode(d->call, d->bytes, d->compressed, &d->err);
}

static void on_decoded(struct job *job)
{
	struct decode_job *d = container_of(job, struct decode_job, job);
	struct call *c = d->call;

	c->decoding = false;
	if (c->state >= CALL_ANSWERED)
		call_drop_received(c);
	else
		finish_decoding(c, d->status, &d->err);
	rpc_call_release(&c->base);
	free(d);
}

/* One message's bytes, which stay where they are until it is decoded: at once when that takes next
 * to no time, else in the pool. What compressed bytes become is not known before. */
static void decode(struct call *c, struct str bytes, bool compressed)
{
	struct decode_job *d;
	struct err err;
	int status;

	if (!compressed && bytes.len <= RPC_DECODE_INLINE_BYTES) {
		status = request_decode(c, bytes, false, &err);
		finish_decoding(c, status, &err);
		return;
	}
	d = xcalloc(1, sizeof(*d));
	*d = (struct decode_job){.call = c, .bytes = bytes, .compressed = compressed};
	if (job_run(c->base.loop, &d->job, JOB_COMPUTE, decode_in_pool, on_decoded) < 0) {
		free(d);
		err_set(&err, ERR_RESOURCE_EXHAUSTED, "too many operations are waiting");
		finish_decoding(c, -EAGAIN, &err);
		return;
	}
	c->decoding = true;
	rpc_call_hold(&c->base);
}

/* Unary */

static void unary_body(struct call *c, const char *data, size_t len)
{
	struct err err;
	int status;

	if (!share_take(&c->receive_share, len)) {
		request_set_crowded(&err);
		rpc_fail(&c->base, &err);
		return;
	}
	status = buf_append(&c->body, data, len);
	if (status == -ENOSPC)
		rpc_fail_kind(&c->base, ERR_RESOURCE_EXHAUSTED,
			      "message size is larger than configured max %d",
			      RPC_MESSAGE_BYTES_MAX);
	else if (status < 0)
		rpc_fail_kind(&c->base, ERR_RESOURCE_EXHAUSTED, "no memory for the message");
}

/* Streams */

static int feed_reader(struct call *c, const char *data, size_t len, size_t *ret_taken,
		       struct err *err)
{
	int status = envelope_feed(&c->reader, data, len, ret_taken, err);

	/* What has come with one read and is not kept is no matter. */
	if (status >= 0 && !share_take(&c->receive_share, *ret_taken))
		return request_set_crowded(err);
	return status;
}

/* Server streams: exactly one envelope */

static void single_body(struct call *c, const char *data, size_t len)
{
	struct err err;
	size_t taken;
	int status;

	if (len == 0)
		return;
	if (!c->complete) {
		status = feed_reader(c, data, len, &taken, &err);
		if (status < 0) {
			rpc_fail(&c->base, &err);
			return;
		}
		c->complete = status > 0;
		len -= taken;
	}
	if (len > 0)
		rpc_fail_kind(&c->base, ERR_UNIMPLEMENTED, "unary request has multiple messages");
}

static void single_body_end(struct call *c)
{
	bool compressed;
	struct err err;

	if (c->complete && request_check_envelope(c, &compressed, &err) == 0) {
		decode(c, envelope_payload(&c->reader), compressed);
		return;
	}
	if (!c->complete && envelope_is_between(&c->reader))
		err_set(&err, ERR_UNIMPLEMENTED, "unary request has zero messages");
	else if (!c->complete)
		envelope_set_truncated(&c->reader, &err);
	rpc_fail(&c->base, &err);
}

/* Client streams: one message for each rpc_next */

static void take_envelope(struct call *c)
{
	bool compressed;
	struct err err;

	c->wanted = false;
	if (request_check_envelope(c, &compressed, &err) < 0)
		break_stream(c, &err);
	else
		decode(c, envelope_payload(&c->reader), compressed);
}

static bool is_reading(const struct call *c)
{
	return c->state == CALL_STARTED && !c->broken;
}

/* Feeds until the handler has enough; returns how many bytes were used. */
static size_t feed_stream(struct call *c, const char *data, size_t len)
{
	struct err err;
	size_t used = 0, taken;

	c->pumping = true;
	while (used < len && c->wanted && is_reading(c)) {
		int status = feed_reader(c, data + used, len - used, &taken, &err);

		used += taken;
		if (status > 0)
			take_envelope(c);
		else if (status < 0)
			break_stream(c, &err);
	}
	c->pumping = false;
	return used;
}

static void stream_body(struct call *c, const char *data, size_t len)
{
	size_t used = 0;

	if (buf_length(&c->pending) == 0)
		used = feed_stream(c, data, len);
	if (!is_reading(c) || (c->wanted && used == len))
		return;
	/* At most one read's bytes are kept: nothing more comes while paused. */
	http_request_body_pause(c->base.exchange);
	if (buf_append(&c->pending, data + used, len - used) < 0)
		rpc_fail_kind(&c->base, ERR_RESOURCE_EXHAUSTED, "no memory for the message");
}

static void stream_end(struct call *c)
{
	struct err err;

	c->wanted = false;
	if (!envelope_is_between(&c->reader)) {
		envelope_set_truncated(&c->reader, &err);
		break_stream(c, &err);
	} else if (c->base.handler && c->base.handler->on_message_end) {
		c->base.handler->on_message_end(&c->base);
	}
}

void receive_pump(struct later *later)
{
	struct call *c = container_of(later, struct call, pump_later);
	size_t used;

	if (!is_reading(c) || !c->wanted || c->decoding)
		return;
	used = feed_stream(c, buf_data(&c->pending), buf_length(&c->pending));
	if (!is_reading(c))
		return;
	buf_consume(&c->pending, used);
	if (buf_length(&c->pending) == 0)
		buf_reset(&c->pending);
	if (!c->wanted)
		return;
	if (c->body_ended) {
		stream_end(c);
	} else if (c->body_started) {
		http_request_body_resume(c->base.exchange);
	} else {
		c->body_started = true;
		http_request_body_start(c->base.exchange);
	}
}

void rpc_next(struct rpc_call *call)
{
	struct call *c = call_of(call);

	assert(call->method->kind == RPC_CLIENT_STREAM);
	if (!is_reading(c))
		return;
	c->wanted = true;
	if (!c->pumping)
		later_call(c->base.loop, &c->pump_later);
}

void receive_body(struct call *c, const char *data, size_t len)
{
	if (c->state >= CALL_ANSWERED)
		return;
	switch (c->base.method->kind) {
	case RPC_UNARY:
		unary_body(c, data, len);
		break;
	case RPC_SERVER_STREAM:
		single_body(c, data, len);
		break;
	case RPC_CLIENT_STREAM:
		stream_body(c, data, len);
		break;
	}
}

void receive_body_end(struct call *c)
{
	c->body_ended = true;
	if (c->state >= CALL_ANSWERED)
		return;
	switch (c->base.method->kind) {
	case RPC_UNARY:
		decode(c, buf_str(&c->body), c->gzip && buf_length(&c->body) > 0);
		break;
	case RPC_SERVER_STREAM:
		single_body_end(c);
		break;
	case RPC_CLIENT_STREAM:
		/* A waiting handler hears of it from the loop: the body may have ended inside the
		 * call that started it. */
		if (c->wanted)
			later_call(c->base.loop, &c->pump_later);
		break;
	}
}
