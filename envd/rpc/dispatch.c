/* From an exchange of HTTP to a call, and what the exchange tells afterwards. */
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

	call_end(c, CALL_CLOSED);
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
	alarm_init(&c->deadline, on_deadline);
	later_init(&c->pump_later, receive_pump);
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
		receive_start(c); /* the body begins to flow at rpc_next */
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
