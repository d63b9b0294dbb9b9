#include "envd/rpc/rpc.h"

#include "envd/rpc/call.h"
#include "lib/limits.h"

static void pump(struct call *c);

/* The message's memory, once neither the call nor a holder looks at it. */
static void free_message(struct call *c)
{
	c->message = NULL;
	arena_release(&c->message_arena);
}

static void free_request(struct call *c)
{
	buf_reset(&c->body);
	buf_reset(&c->pending);
	envelope_reader_fini(&c->reader);
}

static void on_deadline_closed(uv_handle_t *handle)
{
	struct call *c = container_of((uv_timer_t *)handle, struct call, deadline);

	http_exchange_release(c->base.exchange);
}

static void close_deadline(struct call *c)
{
	if (!c->deadline_open)
		return;
	c->deadline_open = false;
	uv_close((uv_handle_t *)&c->deadline, on_deadline_closed);
}

static void on_deadline(uv_timer_t *timer)
{
	struct call *c = container_of(timer, struct call, deadline);

	close_deadline(c);
	if (c->state == CALL_STARTED && c->base.handler && c->base.handler->on_deadline)
		c->base.handler->on_deadline(&c->base);
	else
		rpc_fail_kind(&c->base, ERR_DEADLINE_EXCEEDED, "context deadline exceeded");
}

static void open_deadline(struct call *c)
{
	uint64_t now = loop_now_ms(c->base.loop);

	uv_timer_init(&c->base.loop->uv, &c->deadline);
	c->deadline_open = true;
	http_exchange_hold(c->base.exchange);
	uv_timer_start(&c->deadline, on_deadline,
		       c->base.deadline_ms > now ? c->base.deadline_ms - now : 0, 0);
}

/* The handler is called; what it was called with stays until the call is closed. */
static void start(struct call *c)
{
	c->state = CALL_STARTED;
	c->started = true;
	if (c->base.method->kind != RPC_CLIENT_STREAM)
		free_request(c);
	if (c->base.method->kind != RPC_UNARY)
		c->base.exchange->no_body_timeout = true;
	c->base.method->start(&c->base, c->message);
}

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

/* Unary */

static void on_unary_body(struct call *c, const char *data, size_t len)
{
	int status = buf_append(&c->body, data, len);

	if (status == -ENOSPC)
		rpc_fail_kind(&c->base, ERR_RESOURCE_EXHAUSTED,
			      "message size is larger than configured max %d", RPC_MESSAGE_BYTES_MAX);
	else if (status < 0)
		rpc_fail_kind(&c->base, ERR_RESOURCE_EXHAUSTED, "no memory for the message");
}

static void on_unary_body_end(struct call *c)
{
	struct err err;

	if (request_decode(c, buf_str(&c->body), c->gzip, &err) < 0)
		rpc_fail(&c->base, &err);
	else
		start(c);
}

/* Server streams: exactly one envelope */

static void on_single_body(struct call *c, const char *data, size_t len)
{
	struct err err;
	size_t taken;
	int status;

	while (len > 0 && c->state == CALL_READING) {
		if (c->message) {
			rpc_fail_kind(&c->base, ERR_UNIMPLEMENTED, "unary request has multiple messages");
			return;
		}
		status = envelope_feed(&c->reader, data, len, &taken, &err);
		if (status > 0)
			status = request_decode_envelope(c, &err);
		if (status < 0) {
			rpc_fail(&c->base, &err);
			return;
		}
		data += taken;
		len -= taken;
	}
}

static void on_single_body_end(struct call *c)
{
	struct err err;

	if (!envelope_is_between(&c->reader)) {
		envelope_set_truncated(&c->reader, &err);
		rpc_fail(&c->base, &err);
	} else if (!c->message) {
		rpc_fail_kind(&c->base, ERR_UNIMPLEMENTED, "unary request has zero messages");
	} else {
		start(c);
	}
}

/* Client streams: one message for each rpc_next */

static void deliver(struct call *c)
{
	struct err err;

	if (request_decode_envelope(c, &err) < 0) {
		break_stream(c, &err);
		return;
	}
	c->wanted = false;
	c->pumping = true;
	if (c->base.handler && c->base.handler->on_message)
		c->base.handler->on_message(&c->base, c->message);
	c->pumping = false;
	free_message(c);
}

/* Feeds until the handler has enough; returns how many bytes were used. */
static size_t feed_stream(struct call *c, const char *data, size_t len)
{
	struct err err;
	size_t used = 0, taken;

	while (used < len && c->wanted && c->state == CALL_STARTED) {
		int status = envelope_feed(&c->reader, data + used, len - used, &taken, &err);

		used += taken;
		if (status > 0) {
			deliver(c);
		} else if (status < 0) {
			break_stream(c, &err);
			return len;
		}
	}
	return c->state == CALL_STARTED && !c->broken ? used : len;
}

static void on_stream_body(struct call *c, const char *data, size_t len)
{
	size_t used = 0;

	if (buf_length(&c->pending) == 0)
		used = feed_stream(c, data, len);
	if (c->state != CALL_STARTED || c->broken || (c->wanted && used == len))
		return;
	/* At most one read's bytes are kept: nothing more comes while paused. */
	http_request_body_pause(c->base.exchange);
	if (buf_append(&c->pending, data + used, len - used) < 0)
		rpc_fail_kind(&c->base, ERR_RESOURCE_EXHAUSTED, "no memory for the message");
}

static void end_stream(struct call *c)
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

/* From the loop, after rpc_next: first what has already come, then the wire. */
static void pump(struct call *c)
{
	size_t used;

	if (c->state != CALL_STARTED || !c->wanted)
		return; /* answered meanwhile */
	used = feed_stream(c, buf_data(&c->pending), buf_length(&c->pending));
	if (c->state != CALL_STARTED || c->broken)
		return;
	buf_consume(&c->pending, used);
	if (buf_length(&c->pending) == 0)
		buf_reset(&c->pending);
	if (!c->wanted)
		return;
	if (c->body_ended)
		end_stream(c);
	else if (c->body_started)
		http_request_body_resume(c->base.exchange);
	else {
		c->body_started = true;
		http_request_body_start(c->base.exchange);
	}
}

static void on_pump_later(struct later *later)
{
	pump(container_of(later, struct call, pump_later));
}

/* The exchange */

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct call *c = ex->user;

	if (c->state > CALL_STARTED)
		return;
	switch (c->base.method->kind) {
	case RPC_UNARY:
		on_unary_body(c, data, len);
		break;
	case RPC_SERVER_STREAM:
		on_single_body(c, data, len);
		break;
	case RPC_CLIENT_STREAM:
		on_stream_body(c, data, len);
		break;
	}
}

static void on_body_end(struct http_exchange *ex)
{
	struct call *c = ex->user;

	c->body_ended = true;
	if (c->state > CALL_STARTED)
		return;
	switch (c->base.method->kind) {
	case RPC_UNARY:
		on_unary_body_end(c);
		break;
	case RPC_SERVER_STREAM:
		on_single_body_end(c);
		break;
	case RPC_CLIENT_STREAM:
		/* Also here a waiting handler hears of it from the loop: the body may have ended inside
		 * the call that started it. */
		if (c->wanted)
			later_call(c->base.loop, &c->pump_later);
		break;
	}
}

static void on_drained(struct http_exchange *ex)
{
	struct call *c = ex->user;

	if (c->state == CALL_STARTED && c->base.handler && c->base.handler->on_drained)
		c->base.handler->on_drained(&c->base);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct call *c = ex->user;

	c->state = CALL_CLOSED;
	close_deadline(c);
	later_cancel(&c->pump_later);
	free_request(c);
	/* Held across the callback, in which the last holder may let go. */
	rpc_call_hold(&c->base);
	if (c->started && c->base.handler && c->base.handler->on_closed)
		c->base.handler->on_closed(&c->base, status);
	rpc_call_release(&c->base);
}

static const struct http_exchange_handler exchange_handler = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static struct call *call_new(struct http_exchange *ex, const struct rpc_method *method, void *app,
			     const char *user_name, const struct rpc_content *content)
{
	struct call *c = arena_new(&ex->arena, struct call);

	if (!c)
		return NULL;
	c->base = (struct rpc_call){
		.method = method,
		.exchange = ex,
		.loop = ex->loop,
		.arena = &ex->arena,
		.app = app,
		.user_name = user_name,
	};
	c->content = *content;
	arena_init(&c->message_arena, RPC_ARENA_BYTES);
	buf_init(&c->body, RPC_MESSAGE_BYTES_MAX);
	buf_init(&c->pending, RPC_MESSAGE_BYTES_MAX);
	envelope_reader_init(&c->reader, RPC_MESSAGE_BYTES_MAX);
	later_init(&c->pump_later, on_pump_later);
	return c;
}

static void refuse_content_type(struct http_exchange *ex, enum rpc_kind kind)
{
	http_response_header(ex, STR("Accept-Post"),
			     kind == RPC_UNARY
				     ? STR("application/json, application/json; charset=utf-8, "
					   "application/proto")
				     : STR("application/connect+json, application/connect+json; "
					   "charset=utf-8, application/connect+proto"));
	http_respond(ex, 415, NULL, STR(""));
}

void rpc_dispatch(struct http_exchange *ex, const struct rpc_method *method, void *app,
		  const char *user_name)
{
	struct rpc_content content;
	struct call *c;
	struct err err;

	if (!str_equal(ex->request.method, STR("POST"))) {
		http_response_header(ex, STR("Allow"), STR("POST"));
		http_respond(ex, 405, NULL, STR(""));
		return;
	}
	if (!request_content(ex, &content) || content.streaming != (method->kind != RPC_UNARY)) {
		refuse_content_type(ex, method->kind);
		return;
	}
	c = call_new(ex, method, app, user_name, &content);
	if (!c) {
		http_exchange_abort(ex);
		return;
	}
	http_exchange_set_handler(ex, &exchange_handler, c);
	if (request_read_headers(c, &err) < 0) {
		rpc_fail(&c->base, &err);
		return;
	}
	if (method->kind == RPC_UNARY && ex->request.length > RPC_MESSAGE_BYTES_MAX) {
		rpc_fail_kind(&c->base, ERR_RESOURCE_EXHAUSTED,
			      "message size %lld is larger than configured max %d",
			      (long long)ex->request.length, RPC_MESSAGE_BYTES_MAX);
		return;
	}
	if (c->base.timeout_ms > 0)
		open_deadline(c);
	ex->abort_on_eof = method->kind == RPC_SERVER_STREAM;
	if (method->kind == RPC_CLIENT_STREAM)
		start(c); /* the body begins to flow at rpc_next */
	else
		http_request_body_start(ex);
}

void rpc_reject(struct http_exchange *ex, const struct err *err)
{
	struct rpc_content content = {.codec = RPC_JSON};

	if (!request_content(ex, &content))
		content.streaming = false;
	reply_error(ex, &content, false, err);
}

void rpc_call_set_handler(struct rpc_call *call, const struct rpc_handler *handler, void *user)
{
	call->handler = handler;
	call->user = user;
}

void rpc_call_hold(struct rpc_call *call)
{
	call_of(call)->holds++;
	http_exchange_hold(call->exchange);
}

void rpc_call_release(struct rpc_call *call)
{
	struct call *c = call_of(call);

	assert(c->holds > 0);
	if (--c->holds == 0 && c->state == CALL_CLOSED)
		free_message(c);
	http_exchange_release(call->exchange);
}

bool rpc_call_is_closed(const struct rpc_call *call)
{
	return container_of((struct rpc_call *)call, struct call, base)->state >= CALL_ANSWERED;
}

void rpc_drop_message(struct rpc_call *call)
{
	free_message(call_of(call));
}

void rpc_fail(struct rpc_call *call, const struct err *err)
{
	struct call *c = call_of(call);

	if (c->state >= CALL_ANSWERED)
		return;
	c->state = CALL_ANSWERED;
	close_deadline(c);
	free_request(c);
	reply_error(call->exchange, &c->content, c->begun, err);
}

void rpc_fail_kind(struct rpc_call *call, enum err_kind kind, const char *format, ...)
{
	va_list arguments;
	struct err err = {.kind = kind};
	int len;

	va_start(arguments, format);
	len = vsnprintf(err.message, sizeof(err.message), format, arguments);
	va_end(arguments);
	if (len < 0)
		err.message[0] = '\0';
	rpc_fail(call, &err);
}

/* The last thing of an answer, after which the call, and perhaps the exchange, is over. */
static void send_answer(struct call *c, const ProtobufCMessage *message)
{
	struct err err = {0};
	int status;

	rpc_call_hold(&c->base);
	c->state = CALL_ANSWERED;
	close_deadline(c);
	free_request(c);
	status = c->base.method->kind == RPC_UNARY ? reply_message(c, message, &err)
						   : reply_stream_message(c, message, true, &err);
	if (status < 0 && err.kind != ERR_OK)
		reply_error(c->base.exchange, &c->content, c->begun, &err);
	rpc_call_release(&c->base);
}

void rpc_reply(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct call *c = call_of(call);

	assert(call->method->kind != RPC_SERVER_STREAM);
	if (c->state == CALL_STARTED)
		send_answer(c, message);
}

void rpc_send_last(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct call *c = call_of(call);

	assert(call->method->kind == RPC_SERVER_STREAM);
	if (c->state == CALL_STARTED)
		send_answer(c, message);
}

int rpc_send(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct call *c = call_of(call);
	struct err err = {0};
	int status;

	assert(call->method->kind == RPC_SERVER_STREAM);
	if (c->state != CALL_STARTED)
		return -ECANCELED;
	status = reply_stream_message(c, message, false, &err);
	if (status < 0 && err.kind != ERR_OK)
		rpc_fail(call, &err);
	return status;
}

void rpc_finish(struct rpc_call *call)
{
	struct call *c = call_of(call);

	assert(call->method->kind == RPC_SERVER_STREAM);
	if (c->state != CALL_STARTED)
		return;
	c->state = CALL_ANSWERED;
	close_deadline(c);
	reply_stream_end(c);
}

void rpc_next(struct rpc_call *call)
{
	struct call *c = call_of(call);

	assert(call->method->kind == RPC_CLIENT_STREAM);
	if (c->state != CALL_STARTED || c->broken)
		return;
	c->wanted = true;
	if (!c->pumping)
		later_call(call->loop, &c->pump_later);
}
