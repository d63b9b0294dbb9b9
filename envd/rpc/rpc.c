/* The life of a call: its state, who holds it, and the memory for what is received. */
#include "envd/rpc/rpc.h"

#include "envd/limits.h"
#include "envd/rpc/call.h"

/* Messages of all calls of a loop; jobs draw on it as well. */
static _Thread_local struct budget messages = {.max = RPC_MESSAGES_BYTES_MAX};

struct budget *rpc_messages_budget(void)
{
	return &messages;
}

static _Thread_local size_t calls;

/* A part for each of very many, of which half is for what is received and half for what is made of
 * it. */
static size_t exempt_bytes(void)
{
	return share_exempt(RPC_MESSAGES_EXEMPT_BYTES_MAX / 2, calls, RPC_MESSAGE_EXEMPT_BYTES_MIN,
			    RPC_MESSAGE_EXEMPT_BYTES);
}

static void init_memory(struct call *c)
{
	calls++;
	share_init(&c->message_share, &messages, exempt_bytes());
	share_init(&c->receive_share, &messages, exempt_bytes());
	arena_init_shared(&c->message_arena, RPC_ARENA_BYTES, &c->message_share);
	buf_init(&c->body, RPC_MESSAGE_BYTES_MAX);
	buf_init(&c->pending, RPC_MESSAGE_BYTES_MAX);
	envelope_reader_init(&c->reader, RPC_MESSAGE_BYTES_MAX);
}

struct call *call_new(struct http_exchange *ex, const struct rpc_method *method, void *service,
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
		.service = service,
		.user_name = user_name,
	};
	c->content = *content;
	init_memory(c);
	return c;
}

void call_drop_received(struct call *c)
{
	later_cancel(&c->pump_later);
	if (c->decoding)
		return; /* on_decoded comes back to it */
	buf_reset(&c->body);
	buf_reset(&c->pending);
	envelope_reader_fini(&c->reader);
	share_release(&c->receive_share);
}

void call_end(struct call *c, enum call_state state)
{
	c->state = state;
	alarm_cancel(&c->deadline);
	call_drop_received(c);
	if (state != CALL_CLOSED)
		return;
	assert(calls > 0);
	calls--;
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
		rpc_drop_message(call);
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
	struct call *c = call_of(call);

	c->message = NULL;
	arena_release(&c->message_arena);
}
