#include "envd/cli/call.h"

#include "envd/limits.h"
#include "envd/rpc/binary.h"
#include "lib/json.h"

#define ERROR_BYTES_MAX (64 * 1024)

static void fail(struct call *call, const struct err *err)
{
	if (call->failed)
		return;
	call->failed = true;
	call->err = *err;
}

/* ---- errors ---- */

static enum err_kind kind_of_name(struct str name)
{
	for (int kind = ERR_CANCELED; kind <= ERR_UNAUTHENTICATED; kind++)
		if (str_equal(name, str_of(err_kind_name((enum err_kind)kind))))
			return (enum err_kind)kind;
	return ERR_UNKNOWN;
}

static enum err_kind kind_of_status(int status)
{
	for (int kind = ERR_INVALID_ARGUMENT; kind <= ERR_UNAUTHENTICATED; kind++)
		if (err_kind_http_status((enum err_kind)kind) == status)
			return (enum err_kind)kind;
	return status == 502 ? ERR_UNAVAILABLE : ERR_UNKNOWN;
}

static void read_object(const struct json_value *object, int http_status, struct err *err)
{
	const struct json_value *code = json_get(object, STR("code"));
	const struct json_value *message = json_get(object, STR("message"));
	struct str text = message ? json_string(message) : (struct str){NULL, 0};
	enum err_kind kind = code && json_type(code) == JSON_STRING
				     ? kind_of_name(json_string(code))
				     : kind_of_status(http_status);

	if (text.p)
		err_set(err, kind, "%.*s", (int)text.len, text.p);
	else
		err_set(err, kind, "status %d", http_status);
}

void call_read_error(struct str body, int http_status, struct err *err)
{
	const struct json_value *value;
	struct arena arena;
	struct err ignored;

	arena_init(&arena, 16 * ERROR_BYTES_MAX);
	if (json_parse(body, &arena, &value, &ignored) == 0 && json_type(value) == JSON_OBJECT)
		read_object(value, http_status, err);
	else
		err_set(err, kind_of_status(http_status),
			"status %d, and no word of envd: is the URL right?", http_status);
	arena_release(&arena);
}

/* {"error":{...},"metadata":{...}} */
static void read_end_of_stream(struct call *call, struct str payload)
{
	const struct json_value *value, *error;
	struct arena arena;
	struct err err;

	call->ended = true;
	arena_init(&arena, 16 * ERROR_BYTES_MAX);
	if (json_parse(payload, &arena, &value, &err) < 0) {
		err_wrap(&err, "the end of the stream cannot be read");
		fail(call, &err);
	} else {
		error = json_get(value, STR("error"));
		if (error && json_type(error) == JSON_OBJECT) {
			read_object(error, 500, &err);
			fail(call, &err);
		}
	}
	arena_release(&arena);
}

/* ---- receiving ---- */

static void take_message(struct call *call, struct str bytes)
{
	ProtobufCMessage *message;
	struct arena arena;
	struct err err;

	arena_init(&arena, RPC_ARENA_BYTES);
	if (binary_decode(call->output, bytes, &arena, &message, &err) < 0)
		fail(call, &err);
	else if (call->handler->on_message)
		call->handler->on_message(call, message);
	arena_release(&arena);
}

static void take_envelope(struct call *call)
{
	struct str payload = envelope_payload(&call->reader);
	unsigned flags = envelope_flags(&call->reader);
	struct err err;

	if (flags & ENVELOPE_COMPRESSED) {
		err_set(&err, ERR_INTERNAL, "a compressed answer, which was not asked for");
		fail(call, &err);
	} else if (flags & ENVELOPE_END_STREAM) {
		read_end_of_stream(call, payload);
	} else {
		take_message(call, payload);
	}
	envelope_next(&call->reader);
}

static void on_body(struct request *r, const char *data, size_t len)
{
	struct call *call = container_of(r, struct call, request);
	struct err err;

	if (call->failed || call->ended)
		return;
	if (call->kind == CALL_UNARY || r->status != 200) {
		if (buf_append(&call->body, data, len) == 0)
			return;
		err_set(&err, ERR_RESOURCE_EXHAUSTED, "the answer is too long");
		fail(call, &err);
		return;
	}
	while (len > 0 && !call->failed && !call->ended) {
		size_t taken;
		int status = envelope_feed(&call->reader, data, len, &taken, &err);

		if (status < 0) {
			fail(call, &err);
			break;
		}
		data += taken;
		len -= taken;
		if (status > 0)
			take_envelope(call);
	}
	if (call->failed && !call->ended)
		request_cancel(r);
}

static void on_done(struct request *r, const struct err *lost)
{
	struct call *call = container_of(r, struct call, request);
	struct err err;

	/* What envd said goes before how the connection ended. */
	if (lost && !call->ended) {
		fail(call, lost);
	} else if (r->status != 200 && !call->ended) {
		call_read_error(buf_str(&call->body), r->status, &err);
		fail(call, &err);
	} else if (call->kind == CALL_UNARY) {
		if (!call->failed)
			take_message(call, buf_str(&call->body));
	} else if (!call->ended) {
		err_set_sys(&err, ERR_UNAVAILABLE, ECONNRESET, "the stream was cut off");
		fail(call, &err);
	}
	buf_fini(&call->out);
	buf_fini(&call->body);
	envelope_reader_fini(&call->reader);
	call->handler->on_done(call, call->failed ? &call->err : NULL);
}

/* ---- sending ---- */

static void on_room(struct request *r)
{
	struct call *call = container_of(r, struct call, request);
	struct iovec piece = {buf_data(&call->out), buf_length(&call->out)};

	if (call->kind == CALL_CLIENT_STREAM) {
		if (call->handler->on_room)
			call->handler->on_room(call);
		return;
	}
	if (!piece.iov_len) {
		request_end(r);
		return;
	}
	if (request_write(r, &piece, 1) >= 0)
		request_end(r);
	buf_reset(&call->out);
}

static const struct request_handler request_handler = {
	.on_body = on_body,
	.on_room = on_room,
	.on_done = on_done,
};

static int pack(struct call *call, const ProtobufCMessage *message)
{
	char prefix[ENVELOPE_PREFIX_BYTES] = {0};
	size_t start = buf_length(&call->out);
	int status = 0;

	if (call->kind != CALL_UNARY)
		status = buf_append(&call->out, prefix, sizeof(prefix));
	if (status == 0)
		status = binary_encode(message, &call->out);
	if (status == 0 && call->kind != CALL_UNARY)
		envelope_write_prefix(buf_data(&call->out) + start, 0,
				      buf_length(&call->out) - start - sizeof(prefix));
	return status;
}

void call_open(struct call *call, struct target *target, enum call_kind kind, const char *path,
	       const ProtobufCMessage *input, const ProtobufCMessageDescriptor *output,
	       const struct call_handler *handler, void *user)
{
	const char *type = kind == CALL_UNARY ? "application/proto" : "application/connect+proto";
	int status;

	*call = (struct call){.handler = handler, .user = user, .output = output, .kind = kind};
	buf_init(&call->out, RPC_MESSAGE_BYTES_MAX);
	buf_init(&call->body, RPC_REPLY_BYTES_MAX);
	envelope_reader_init(&call->reader, RPC_REPLY_BYTES_MAX);
	status = input ? pack(call, input) : 0;
	if (status < 0) {
		err_set_sys(&call->err, ERR_INVALID_ARGUMENT, status, "the request");
		call->failed = true;
	}
	request_open(&call->request, target, &request_handler, "POST", path,
		     (struct request_body){.type = type,
					   .length = kind == CALL_CLIENT_STREAM
							     ? HTTP_LENGTH_CHUNKED
							     : (int64_t)buf_length(&call->out)});
	if (call->failed)
		request_cancel(&call->request);
}

int call_send(struct call *call, const ProtobufCMessage *message)
{
	int status = pack(call, message);
	struct iovec piece = {buf_data(&call->out), buf_length(&call->out)};

	if (status == 0)
		status = request_write(&call->request, &piece, 1);
	buf_clear(&call->out);
	return status;
}

void call_end(struct call *call)
{
	request_end(&call->request);
}

void call_pause(struct call *call)
{
	request_pause(&call->request);
}

void call_resume(struct call *call)
{
	request_resume(&call->request);
}

void call_cancel(struct call *call)
{
	request_cancel(&call->request);
}

/* ---- waiting for one answer ---- */

struct unary {
	struct call call;
	struct arena *arena;
	const ProtobufCMessageDescriptor *output;
	ProtobufCMessage *message;
	struct err *err;
	bool failed;
};

static void on_unary_done(struct call *call, const struct err *err)
{
	struct unary *unary = call->user;

	unary->failed = err != NULL;
	if (err)
		*unary->err = *err;
}

/* The message must outlive its callback, so it is made anew where it stays. */
static void on_unary_message(struct call *call, const ProtobufCMessage *message)
{
	struct unary *unary = call->user;
	struct err err;

	(void)message;
	if (binary_decode(unary->output, buf_str(&call->body), unary->arena, &unary->message,
			  &err) < 0)
		fail(call, &err);
}

int call_unary(struct target *target, const char *path, const ProtobufCMessage *input,
	       const ProtobufCMessageDescriptor *output, struct arena *arena,
	       ProtobufCMessage **ret_output, struct err *err)
{
	static const struct call_handler handler = {.on_message = on_unary_message,
						    .on_done = on_unary_done};
	struct unary unary = {.arena = arena, .output = output, .err = err};

	call_open(&unary.call, target, CALL_UNARY, path, input, output, &handler, &unary);
	target_run(target);
	if (unary.failed)
		return -EPROTO;
	if (ret_output)
		*ret_output = unary.message;
	return 0;
}
