/*
 * One RPC of a command: Connect's binary form (contract/envd.md 4.1), unary and streams in one
 * direction. A stream that ends without its end-of-stream envelope is an error, never an end.
 */
#ifndef ENVD_CLI_CALL_H
#define ENVD_CLI_CALL_H

#include <protobuf-c/protobuf-c.h>

#include "envd/cli/request.h"
#include "envd/rpc/envelope.h"

struct call;

struct call_handler {
	/* Valid during the call. */
	void (*on_message)(struct call *call, const ProtobufCMessage *message);
	/* Client streams: send the next with call_send, or call_end; also once connected. */
	void (*on_room)(struct call *call);
	/* The last callback; NULL: everything went well. */
	void (*on_done)(struct call *call, const struct err *err);
};

enum call_kind { CALL_UNARY, CALL_SERVER_STREAM, CALL_CLIENT_STREAM };

struct call {
	struct request request;
	const struct call_handler *handler;
	void *user; /* the handler's */
	const ProtobufCMessageDescriptor *output;
	enum call_kind kind;
	struct buf out; /* the request, packed */
	struct buf body; /* unary answers and errors */
	struct envelope_reader reader;
	struct err err;
	bool failed, ended; /* ended: end-of-stream came */
};

/* `input` is NULL for client streams. */
void call_open(struct call *call, struct target *target, enum call_kind kind, const char *path,
	       const ProtobufCMessage *input, const ProtobufCMessageDescriptor *output,
	       const struct call_handler *handler, void *user);
/* 0, STREAM_FULL (sent; wait for on_room), negative: it is over. */
int call_send(struct call *call, const ProtobufCMessage *message);
void call_end(struct call *call);
/* As request_pause. */
void call_pause(struct call *call);
void call_resume(struct call *call);
void call_cancel(struct call *call);

/* Calls and waits. The answer is in `arena`. Fills err with what envd said, or unavailable. */
int call_unary(struct target *target, const char *path, const ProtobufCMessage *input,
	       const ProtobufCMessageDescriptor *output, struct arena *arena,
	       ProtobufCMessage **ret_output, struct err *err) NODISCARD;

/* {"code":...,"message":...} of a failed request, in both forms that envd and the proxy have
 * (contract/envd.md 2.1 and 4.1); says at least the status. */
void call_read_error(struct str body, int http_status, struct err *err);

#endif
