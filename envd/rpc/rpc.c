#include "envd/rpc/rpc.h"

#include "envd/limits.h"
#include "envd/rpc/call.h"

static void on_deadline(struct alarm *alarm)
{
	struct call *c = container_of(alarm, struct call, deadline);

	if (c->state == CALL_STARTED && c->base.handler && c->base.handler->on_deadline)
		c->base.handler->on_deadline(&c->base);
	else
		rpc_fail_kind(&c->base, ERR_DEADLINE_EXCEEDED, "context deadline exceeded");
}

static void set_deadline(struct call *c)
{
	uint64_t now = loop_now_ms(c->base.loop);

	alarm_set(c->base.loop, &c->deadline,
		  c->base.deadline_ms > now ? c->base.deadline_ms - now : 0);
}

/* What it is called with stays until the call is closed, or rpc_drop_message. */
void call_start(struct call *c)
{
	c->state = CALL_STARTED;
	c->started = true;
	if (c->base.method->kind != RPC_CLIENT_STREAM)
		receive_stop(c);
	if (c->base.method->kind != RPC_UNARY)
		c->base.exchange->no_body_timeout = true;
	c->base.method->start(&c->base, c->message);
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	receive_body(ex->user, data, len);
}

static void on_body_end(struct http_exchange *ex)
{
	receive_body_end(ex->user);
}

static void on_drained(struct http_exchange *ex)
{
	struct call *c = ex->user;

	if (c->state == CALL_ANSWERED && buf_length(&c->reply) > 0)
		reply_continue(c);
	else if (c->state == CALL_STARTED && c->base.handler && c->base.handler->on_drained)
		c->base.handler->on_drained(&c->base);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct call *c = ex->user;

	c->state = CALL_CLOSED;
	alarm_cancel(&c->deadline);
	receive_stop(c);
	receive_end();
	reply_stop(c);
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

static struct call *call_new(struct http_exchange *ex, const struct rpc_method *method,
			     void *service, const char *user_name,
			     const struct rpc_content *content)
{
	struct call *c = arena_new(&ex->arena, struct call);

	if (!c)
		return NULL;
	c->base = (struct rpc_call){
		.method = method,
		.exchange = ex,
		.loop = ex->loop,
		.arena = &ex->arena,
		.service = service,
		.user_name = user_name,
	};
	c->content = *content;
	alarm_init(&c->deadline, on_deadline);
	receive_init(c);
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

void rpc_dispatch(struct http_exchange *ex, const struct rpc_method *method, void *service,
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
	c = call_new(ex, method, service, user_name, &content);
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
		set_deadline(c);
	ex->abort_on_eof = method->kind == RPC_SERVER_STREAM;
	if (method->kind == RPC_CLIENT_STREAM)
		call_start(c); /* the body begins to flow at rpc_next */
	else
		http_request_body_start(ex);
}

void rpc_reject(struct http_exchange *ex, const struct err *err)
{
	struct rpc_content content = {.codec = RPC_JSON};

	if (!request_content(ex, &content))
		content.streaming = false;
	reply_rejection(ex, &content, err);
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
	if (--c->holds == 0 && c->state == CALL_CLOSED) {
		receive_free_message(c);
		buf_fini(&c->encoded);
	}
	http_exchange_release(call->exchange);
}

bool rpc_call_is_closed(const struct rpc_call *call)
{
	return container_of((struct rpc_call *)call, struct call, base)->state >= CALL_ANSWERED;
}

void rpc_drop_message(struct rpc_call *call)
{
	receive_free_message(call_of(call));
}

void rpc_fail(struct rpc_call *call, const struct err *err)
{
	struct call *c = call_of(call);

	if (c->state >= CALL_ANSWERED)
		return;
	c->state = CALL_ANSWERED;
	alarm_cancel(&c->deadline);
	receive_stop(c);
	reply_error(c, err);
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
	alarm_cancel(&c->deadline);
	receive_stop(c);
	status = c->base.method->kind == RPC_UNARY ? reply_message(c, message, &err)
						   : reply_stream_message(c, message, true, &err);
	if (status < 0 && err.kind != ERR_OK)
		reply_error(c, &err);
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
	alarm_cancel(&c->deadline);
	reply_stream_end(c);
}

void rpc_next(struct rpc_call *call)
{
	assert(call->method->kind == RPC_CLIENT_STREAM);
	receive_next(call_of(call));
}
