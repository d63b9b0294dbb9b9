/*
 * Remote procedure calls: the Connect protocol over HTTP/1.1 exchanges (contract/envd.md 4.1). One
 * struct rpc_call per request, made in the exchange's arena. Handlers see decoded generated structs
 * and answer with generated structs; codec (JSON or binary), framing, compression, deadlines and
 * error forms are settled here.
 *
 * Life: the handler is called once the one request message is complete (unary, server stream), or
 * once the head is (client stream; messages then come through `on_message`). It answers, then or
 * later, with rpc_reply (unary and client stream), or any number of rpc_send followed by rpc_finish
 * (server stream), or rpc_fail at any point before. on_closed is the last callback, exactly once
 * after the handler ran, also when the client left first; a handler whose work is still in flight
 * takes rpc_call_hold so that the call outlives it. After on_closed, sends are ignored.
 *
 * Served are JSON and binary messages under Connect's content types. gRPC and gRPC-Web, which the
 * reference's library also answers and no known client uses, get 415 like any other type. Unary
 * answers from RPC_GZIP_BYTES_MIN on are compressed for clients that say they take it; messages of
 * streams never are: clients take a compressed frame for an error (contract/sdk.md 1.1).
 *
 * The deadline of Connect-Timeout-Ms: by default the call is ended with deadline_exceeded when it
 * passes; a handler that sets on_deadline does that itself (Start kills its process first).
 */
#ifndef ENVD_RPC_RPC_H
#define ENVD_RPC_RPC_H

#include <protobuf-c/protobuf-c.h>

#include "lib/err.h"
#include "lib/http_exchange.h"

enum rpc_kind { RPC_UNARY, RPC_SERVER_STREAM, RPC_CLIENT_STREAM };

#define RPC_FULL 1

struct rpc_call;

struct rpc_handler {
	/* Client stream: one message, in the call's message arena: valid during the call only. Ask
	 * for the next with rpc_next (nothing more is read before that). */
	void (*on_message)(struct rpc_call *call, const ProtobufCMessage *message);
	/* Client stream: the client has sent all. */
	void (*on_message_end)(struct rpc_call *call);
	/* Client stream: the stream is broken (framing, decoding); answer with rpc_fail. NULL does
	 * that. */
	void (*on_message_error)(struct rpc_call *call, const struct err *err);
	/* After rpc_send had answered RPC_FULL. */
	void (*on_drained)(struct rpc_call *call);
	void (*on_deadline)(struct rpc_call *call);
	/* 0: the answer went out; negative errno: the client left or was cut. */
	void (*on_closed)(struct rpc_call *call, int status);
};

/* A detail of an error: a packed message and its full name. */
struct rpc_detail {
	struct str type, bytes;
};

struct rpc_method {
	const char *path; /* "/process.Process/Start" */
	enum rpc_kind kind;
	const ProtobufCMessageDescriptor *input, *output;
	/* `message` is NULL for client streams. */
	void (*start)(struct rpc_call *call, const ProtobufCMessage *message);
	/* It looks the user up itself and answers unauthenticated for an unknown one, so that this
	 * is not done twice. */
	bool looks_user_up;
};

struct rpc_call {
	const struct rpc_method *method;
	struct http_exchange *exchange;
	struct loop *loop;
	struct arena *arena; /* the exchange's: same life, loop thread only */
	/* What rpc_dispatch was given: what the methods of the service work on. */
	void *service;
	const struct rpc_handler *handler;
	void *user; /* the handler's */
	/* From Authorization: Basic; the name is already known to exist, except for methods that
	 * look it up themselves. NULL: none given. */
	const char *user_name;
	/* From Connect-Timeout-Ms; 0: no limit. */
	uint64_t timeout_ms;
	uint64_t deadline_ms; /* on loop_now_ms' clock; 0: none */
	unsigned keepalive_s; /* from Keepalive-Ping-Interval, clamped */
	bool legacy_client; /* User-Agent is exactly "connect-python" (contract/envd.md 5.3) */
	/* What the handler may set to go with the end of the answer: trailing metadata, and the
	 * details of an error. Borrowed until then. Leading metadata are the exchange's response
	 * fields, while nothing is sent. */
	const struct http_headers *trailers;
	const struct rpc_detail *details;
	size_t details_count;
};

/* Serves an exchange whose path was found in a method table. Parses headers, reads the message,
 * calls method->start. Sets the exchange's handler. Wrong verb or content type are answered
 * here. */
void rpc_dispatch(struct http_exchange *ex, const struct rpc_method *method, void *service,
		  const char *user_name);
/* An error for an RPC path before any rpc_call exists (authentication): HTTP status for unary
 * content types, end-of-stream envelope for streaming ones. */
void rpc_reject(struct http_exchange *ex, const struct err *err);

/* Before returning from `start`, if the call is not answered at once. */
void rpc_call_set_handler(struct rpc_call *call, const struct rpc_handler *handler, void *user);
void rpc_call_hold(struct rpc_call *call);
void rpc_call_release(struct rpc_call *call);
/* True as soon as nothing more will be sent: answered, failed or closed. */
bool rpc_call_is_closed(const struct rpc_call *call);
/* Unary and server streams: the message that `start` was given is not looked at any more. Its
 * memory otherwise stays until on_closed and the last release, which for a stream may be days. */
void rpc_drop_message(struct rpc_call *call);

/* Unary and client stream: the answer. */
void rpc_reply(struct rpc_call *call, const ProtobufCMessage *message);
/* A large answer is encoded before, in a job, so that the loop need not: the rpc_reply that follows
 * is given the same message and does not look at it again. Any thread, once, while the call is
 * held. */
int rpc_encode_ahead(struct rpc_call *call, const ProtobufCMessage *message,
		     struct err *err) NODISCARD;
/* Server stream: one message, flushed at once. 0, RPC_FULL, or a negative errno (call is
 * closing). */
int rpc_send(struct rpc_call *call, const ProtobufCMessage *message);
/* Server stream: the orderly end. */
void rpc_finish(struct rpc_call *call);
/* Server stream: the last message and the orderly end, in one write. */
void rpc_send_last(struct rpc_call *call, const ProtobufCMessage *message);
/* Any kind: the error in the form the content type wants. */
void rpc_fail(struct rpc_call *call, const struct err *err);
void rpc_fail_kind(struct rpc_call *call, enum err_kind kind, const char *format, ...)
	PRINTF_LIKE(3, 4);
/* Client stream: deliver the next message. */
void rpc_next(struct rpc_call *call);

/* What calls of this thread hold together: of messages, and of answers that clients have not
 * taken. */
struct budget *rpc_messages_budget(void);
struct budget *rpc_replies_budget(void);

#endif
