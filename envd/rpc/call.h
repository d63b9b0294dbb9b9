/*
 * The inside of an rpc_call, shared by the files of envd/rpc alone. Each of them calls those before
 * it: rpc.c has the call's life, which is its state, its holders and its memory; request.c reads
 * headers and decodes; reply.c answers, with a message or an error; receive.c turns the body into
 * messages and calls the method and its handler; dispatch.c makes the call of an exchange and hands
 * on what that tells.
 *
 * Memory: the call lies in the exchange's arena. A decoded message lies in message_arena, which a
 * client stream empties after each message and the others when the call is closed and nobody holds
 * it, or before that at rpc_drop_message. Buffers of the request end with its decoding, so a stream
 * that rests costs about 2 KiB besides its connection. All calls of a loop share one budget for
 * received and decoded messages, and one for answers that wait for slow clients (envd/limits.h).
 */
#ifndef ENVD_RPC_CALL_H
#define ENVD_RPC_CALL_H

#include "envd/rpc/envelope.h"
#include "envd/rpc/rpc.h"
#include "lib/budget.h"

enum rpc_codec { RPC_JSON, RPC_BINARY };

struct rpc_content {
	enum rpc_codec codec;
	bool streaming; /* the content type of streams: errors go into the body */
	bool charset; /* was given, and is given back */
};

enum call_state {
	CALL_READING, /* the handler has not been called */
	CALL_STARTED,
	CALL_ANSWERED, /* the end of the answer is written; nothing more is sent */
	CALL_CLOSED,
};

struct call {
	/* rpc.c */
	struct rpc_call base;
	struct rpc_content content;
	enum call_state state;
	unsigned holds;
	struct arena message_arena;
	struct share message_share; /* of message_arena */
	struct share receive_share; /* of body, or reader */
	struct alarm deadline;

	/* request.c */
	bool gzip; /* the request may hold compressed messages */
	bool takes_gzip; /* the client, as a unary answer */

	/* reply.c */
	bool begun; /* the head of a stream's response is written */
	bool encoded_is_gzip; /* `encoded` */
	struct buf encoded; /* by rpc_encode_ahead; empty when that was not called */
	struct buf reply; /* what the client has not taken yet of a large unary answer */
	struct share reply_share;

	/* receive.c */
	const ProtobufCMessage *message;
	struct buf body; /* unary */
	struct envelope_reader reader; /* streams */
	bool started; /* the handler was called, so it is told of the end */
	bool complete; /* server stream: the one envelope is */
	bool decoding; /* in the pool, which has the buffers and the message's arena until then */
	/* Client streams. */
	bool wanted; /* rpc_next was called, no message delivered yet */
	bool pumping; /* who feeds looks at `wanted` itself */
	bool body_started, body_ended;
	bool broken; /* nothing more is delivered */
	struct buf pending; /* arrived with the message before, not asked for yet */
	struct later pump_later;
};

static inline struct call *call_of(struct rpc_call *base)
{
	return container_of(base, struct call, base);
}

/* rpc.c */

/* NULL: no memory. The caller initialises `deadline` and `pump_later`, whose functions are his. */
struct call *call_new(struct http_exchange *ex, const struct rpc_method *method, void *service,
		      const char *user_name, const struct rpc_content *content);
/* Nothing is received any more; the buffers' memory is given back as soon as nobody works on it. */
void call_drop_received(struct call *c);
/* The answer is on its way, or the exchange is over: there is no deadline and nothing is received
 * any more. CALL_CLOSED once, as the last state. */
void call_end(struct call *c, enum call_state state);

/* request.c */

/* False for a content type that is none of ours. */
bool request_content(const struct http_exchange *ex, struct rpc_content *ret_content);
/* Everything the headers say, into the call; err is filled for what is malformed. */
int request_read_headers(struct call *c, struct err *err) NODISCARD;
/* The memory for messages is with other calls. */
int request_set_crowded(struct err *err);
/* One message's bytes into c->message. Any thread, if no other has the call's message. */
int request_decode(struct call *c, struct str bytes, bool compressed, struct err *err) NODISCARD;
/* Whether the flags of c->reader's complete envelope may be. */
int request_check_envelope(const struct call *c, bool *ret_compressed, struct err *err) NODISCARD;

/* reply.c, with what rpc.h has for sending and failing */

/* An error for an exchange of that content that has no call. */
void reply_rejection(struct http_exchange *ex, const struct rpc_content *content,
		     const struct err *err);
/* More of a large unary answer, whenever the exchange has drained. */
void reply_continue(struct call *c);
/* Nothing is sent any more. */
void reply_stop(struct call *c);

/* receive.c, with rpc_next */

/* Calls the method: for client streams at once, for others with the message, which comes of itself
 * when the body is complete. What it is called with stays until the call is closed, or
 * rpc_drop_message. */
void receive_start(struct call *c);
void receive_body(struct call *c, const char *data, size_t len);
void receive_body_end(struct call *c);
/* From the loop, after rpc_next: first what has already come, then the wire. */
void receive_pump(struct later *later);

#endif
