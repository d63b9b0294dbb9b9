/* The answer side of calls: encoding, framing, errors. */
#include "envd/limits.h"
#include "envd/rpc/base64.h"
#include "envd/rpc/binary.h"
#include "envd/rpc/call.h"
#include "envd/rpc/gzip.h"
#include "envd/rpc/json_encode.h"
#include "lib/job.h"
#include "lib/json_writer.h"
#include "lib/limits.h"

/*
 * Messages are encoded into memory that all calls of a loop share, and handed to the exchange in
 * one piece, which takes or copies them before it returns. A call borrows it, so that an answer
 * given from inside another one's callbacks has its own; what is kept is what a process's output
 * needs.
 */
static _Thread_local struct buf spare_output;
/* Large answers on their way to slow clients. */
static _Thread_local struct budget replies = {.max = RPC_REPLIES_BYTES_MAX};

struct budget *rpc_replies_budget(void)
{
	return &replies;
}

static void output_take(struct buf *out)
{
	*out = spare_output;
	out->max = RPC_REPLY_BYTES_MAX;
	buf_init(&spare_output, RPC_REPLY_BYTES_MAX);
}

static void output_release(struct buf *out)
{
	if (out->capacity > RPC_OUTPUT_KEPT_BYTES || spare_output.memory) {
		buf_fini(out);
		return;
	}
	buf_clear(out);
	spare_output = *out;
}

static int encode(const struct call *c, const ProtobufCMessage *message, struct buf *out,
		  struct err *err)
{
	int status = c->content.codec == RPC_JSON ? json_encode(message, out)
						  : binary_encode(message, out);

	if (status < 0)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "marshal message: %s",
			       status == -ENOSPC ? "it is too large" : "out of memory");
	return 0;
}

/* Starts an envelope at the end of `out`; end_envelope fills in what is known then. */
static int begin_envelope(struct buf *out, size_t *ret_at)
{
	char prefix[ENVELOPE_PREFIX_BYTES] = {0};

	*ret_at = buf_length(out);
	return buf_append(out, prefix, sizeof(prefix));
}

static void end_envelope(struct buf *out, size_t at, unsigned flags)
{
	envelope_write_prefix(buf_data(out) + at, flags,
			      buf_length(out) - at - ENVELOPE_PREFIX_BYTES);
}

static void write_detail(struct json_writer *w, const struct rpc_detail *detail)
{
	size_t len = base64_encoded_length(detail->bytes.len);
	auto_free char *text = xmalloc(len + 1);

	base64_encode((const uint8_t *)detail->bytes.p, detail->bytes.len, text);
	while (len > 0 && text[len - 1] == '=')
		len--;
	json_writer_object(w, NULL);
	json_writer_text(w, "type", detail->type);
	json_writer_text(w, "value", (struct str){text, len});
	json_writer_object_end(w);
}

/* The message may hold anything; a body that does not fit is not sent. `call` may be NULL. */
static void write_error(struct json_writer *w, const char *key, const struct rpc_call *call,
			const struct err *err)
{
	json_writer_object(w, key);
	json_writer_text(w, "code", str_of(err_kind_name(err->kind)));
	json_writer_text(w, "message", str_of(err->message));
	if (call && call->details_count > 0) {
		json_writer_array(w, "details");
		for (size_t i = 0; i < call->details_count; i++)
			write_detail(w, &call->details[i]);
		json_writer_array_end(w);
	}
	json_writer_object_end(w);
}

/* Fields of one name become one member with a list of values. */
static void write_metadata(struct json_writer *w, const struct http_headers *trailers)
{
	json_writer_object(w, "metadata");
	for (size_t i = 0; i < trailers->count; i++) {
		struct str name = trailers->items[i].name;
		bool first = true;

		for (size_t k = 0; k < i && first; k++)
			first = !str_equal_nocase(trailers->items[k].name, name);
		if (!first)
			continue;
		json_writer_key(w, name);
		json_writer_array(w, NULL);
		for (size_t k = i; k < trailers->count; k++)
			if (str_equal_nocase(trailers->items[k].name, name))
				json_writer_text(w, NULL, trailers->items[k].value);
		json_writer_array_end(w);
	}
	json_writer_object_end(w);
}

static struct json_writer writer_to(struct buf *out)
{
	struct json_writer w;

	json_writer_init(&w, out);
	w.html_safe = true;
	return w;
}

static int write_end_stream(struct buf *out, const struct rpc_call *call, const struct err *err)
{
	struct json_writer w = writer_to(out);
	size_t at;
	int status = begin_envelope(out, &at);

	if (status < 0)
		return status;
	json_writer_object(&w, NULL);
	if (err)
		write_error(&w, "error", call, err);
	if (call && call->trailers)
		write_metadata(&w, call->trailers);
	json_writer_object_end(&w);
	if (json_writer_status(&w) == 0)
		end_envelope(out, at, ENVELOPE_END_STREAM);
	return json_writer_status(&w);
}

static int write_unary_error(struct buf *out, const struct rpc_call *call, const struct err *err)
{
	struct json_writer w = writer_to(out);

	write_error(&w, NULL, call, err);
	return json_writer_status(&w);
}

/* What every answer of that path says to an old client, except unary errors (contract/envd.md
 * 5.3). */
static void add_legacy_header(const struct call *c)
{
	if (c->base.legacy_client &&
	    str_starts_with(str_of(c->base.method->path), STR("/filesystem.Filesystem/")))
		http_response_header(c->base.exchange, STR("X-E2B-Legacy-SDK"), STR("true"));
}

static int begin_stream(struct http_exchange *ex, const struct rpc_content *content)
{
	/* Never with a charset: some clients compare it as a whole (contract/sdk.md 0.2). */
	http_response_header(ex, STR("Content-Type"),
			     content->codec == RPC_JSON ? STR("application/connect+json")
							: STR("application/connect+proto"));
	http_response_header(ex, STR("Connect-Accept-Encoding"), STR("gzip"));
	http_response_header_unbuffered(ex);
	return http_response_begin(ex, 200, HTTP_LENGTH_CHUNKED);
}

static int begin_call_stream(struct call *c)
{
	if (c->begun)
		return 0;
	c->begun = true;
	add_legacy_header(c);
	return begin_stream(c->base.exchange, &c->content);
}

static int write_output(struct http_exchange *ex, struct buf *out, bool last)
{
	struct iovec piece = {buf_data(out), buf_length(out)};

	return last ? http_response_finish(ex, &piece, 1) : http_response_write(ex, &piece, 1);
}

/* Unary answers have no place of their own for trailing metadata. */
static void add_trailers(const struct call *c)
{
	const struct http_headers *trailers = c->base.trailers;

	for (size_t i = 0; trailers && i < trailers->count; i++) {
		const struct http_header *field = &trailers->items[i];
		char *name = arena_printf(c->base.arena, "Trailer-%.*s", (int)field->name.len,
					  field->name.p);

		if (name)
			http_response_header(c->base.exchange, str_of(name), field->value);
	}
}

/* `call` may be NULL. */
static void send_error(struct http_exchange *ex, const struct rpc_content *content, bool begun,
		       const struct rpc_call *call, const struct err *err)
{
	struct buf out;
	int status;

	output_take(&out);
	if (content->streaming) {
		status = begun ? 0 : begin_stream(ex, content);
		if (status >= 0)
			status = write_end_stream(&out, call, err);
		if (status >= 0)
			status = write_output(ex, &out, true);
	} else {
		status = write_unary_error(&out, call, err);
		if (status >= 0)
			http_respond(ex, err_kind_http_status(err->kind), "application/json",
				     buf_str(&out));
	}
	output_release(&out);
	if (status == -ENOMEM)
		http_exchange_abort(ex);
}

static void send_call_error(struct call *c, const struct err *err)
{
	if (!c->content.streaming)
		add_trailers(c);
	send_error(c->base.exchange, &c->content, c->begun, &c->base, err);
}

void reply_rejection(struct http_exchange *ex, const struct rpc_content *content,
		     const struct err *err)
{
	send_error(ex, content, false, NULL, err);
}

static const char *unary_content_type(const struct call *c)
{
	if (c->content.codec == RPC_BINARY)
		return "application/proto";
	return c->content.charset ? "application/json; charset=utf-8" : "application/json";
}

void reply_continue(struct call *c)
{
	struct http_exchange *ex = c->base.exchange;
	int status = 0;

	while (status == 0 && buf_length(&c->reply) > 0) {
		size_t len = size_min(buf_length(&c->reply), STREAM_HIGH_MARK_BYTES);
		struct iovec piece = {buf_data(&c->reply), len};

		status = http_response_write(ex, &piece, 1);
		if (status >= 0)
			buf_consume(&c->reply, len);
	}
	if (status < 0 || buf_length(&c->reply) > 0)
		return;
	reply_stop(c);
	http_response_end(ex, NULL);
}

void reply_stop(struct call *c)
{
	buf_fini(&c->reply);
	share_release(&c->reply_share);
}

/* At the client's pace, so that the exchange does not copy what the client does not take yet. */
static int reply_in_pieces(struct call *c, struct buf *out, struct err *err)
{
	struct http_exchange *ex = c->base.exchange;

	share_init(&c->reply_share, &replies, 0);
	if (!share_take(&c->reply_share, buf_length(out)))
		return err_set(
			err, ERR_RESOURCE_EXHAUSTED,
			"other calls' clients have not taken their large answers yet, try again");
	c->reply = *out;
	buf_init(out, 0);
	http_response_header(ex, STR("Content-Type"), str_of(unary_content_type(c)));
	if (http_response_begin(ex, 200, (int64_t)buf_length(&c->reply)) >= 0)
		reply_continue(c);
	return 0;
}

static bool is_worth_packing(const struct call *c, const struct buf *out)
{
	return c->takes_gzip && buf_length(out) >= RPC_GZIP_BYTES_MIN;
}

int rpc_encode_ahead(struct rpc_call *call, const ProtobufCMessage *message, struct err *err)
{
	struct call *c = call_of(call);
	int status;

	buf_init(&c->encoded, RPC_REPLY_BYTES_MAX);
	status = encode(c, message, &c->encoded, err);
	if (status < 0)
		buf_fini(&c->encoded);
	else if (is_worth_packing(c, &c->encoded))
		c->encoded_is_gzip = gzip_deflate(&c->encoded);
	return status;
}

static int send_unary(struct call *c, struct buf *out, bool is_gzip, struct err *err)
{
	struct http_exchange *ex = c->base.exchange;

	http_response_header(ex, STR("Accept-Encoding"), STR("gzip"));
	if (is_gzip)
		http_response_header(ex, STR("Content-Encoding"), STR("gzip"));
	add_legacy_header(c);
	add_trailers(c);
	if (buf_length(out) > STREAM_HIGH_MARK_BYTES)
		return reply_in_pieces(c, out, err);
	http_respond(ex, 200, unary_content_type(c), buf_str(out));
	return 0;
}

/* A large answer that was encoded on the loop, on its way through the pool. In the call's arena. */
struct packing {
	struct job job;
	struct call *call;
	struct buf content;
	struct share share; /* of the plain text and what may become of it */
	bool is_gzip;
};

static void pack(struct job *job)
{
	struct packing *packing = container_of(job, struct packing, job);

	packing->is_gzip = gzip_deflate(&packing->content);
}

static void on_packed(struct job *job)
{
	struct packing *packing = container_of(job, struct packing, job);
	struct call *c = packing->call;
	struct err err;

	share_release(&packing->share);
	if (c->state != CALL_CLOSED && send_unary(c, &packing->content, packing->is_gzip, &err) < 0)
		send_call_error(c, &err);
	buf_fini(&packing->content);
	rpc_call_release(&c->base);
}

/* False: it has to go out as it is. */
static bool pack_in_pool(struct call *c, struct buf *out)
{
	struct packing *packing = arena_new(c->base.arena, struct packing);

	if (!packing)
		return false;
	*packing = (struct packing){.call = c, .content = *out};
	share_init(&packing->share, &replies, 0);
	if (!share_take(&packing->share, 2 * buf_length(out)))
		return false;
	if (job_run(c->base.loop, &packing->job, JOB_COMPUTE, pack, on_packed) < 0) {
		share_release(&packing->share);
		return false;
	}
	rpc_call_hold(&c->base);
	buf_init(out, 0);
	return true;
}

/* A unary answer. A large one goes on with reply_continue, whenever the exchange has drained. */
static int send_message(struct call *c, const ProtobufCMessage *message, struct err *err)
{
	struct buf out = c->encoded;
	bool is_gzip = c->encoded_is_gzip, is_ahead = buf_length(&out) > 0;
	int status = 0;

	if (is_ahead) {
		buf_init(&c->encoded, 0);
	} else {
		output_take(&out);
		status = encode(c, message, &out, err);
	}
	if (status == 0 && !is_ahead && is_worth_packing(c, &out)) {
		if (buf_length(&out) <= RPC_GZIP_INLINE_BYTES)
			is_gzip = gzip_deflate(&out);
		else if (pack_in_pool(c, &out))
			return 0;
	}
	if (status == 0)
		status = send_unary(c, &out, is_gzip, err);
	output_release(&out);
	return status;
}

/* `last` adds the end of the stream. Negative with err filled when the message cannot be encoded,
 * negative with err->kind ERR_OK when the exchange refused. */
static int send_stream_message(struct call *c, const ProtobufCMessage *message, bool last,
			       struct err *err)
{
	struct buf out;
	size_t at;
	int status;

	output_take(&out);
	err->kind = ERR_OK;
	status = begin_envelope(&out, &at);
	if (status < 0)
		err_set(err, ERR_RESOURCE_EXHAUSTED, "marshal message: out of memory");
	else
		status = encode(c, message, &out, err);
	if (status == 0) {
		end_envelope(&out, at, 0);
		status = last ? write_end_stream(&out, &c->base, NULL) : 0;
	}
	if (status == 0)
		status = begin_call_stream(c);
	if (status >= 0)
		status = write_output(c->base.exchange, &out, last);
	output_release(&out);
	return status;
}

void rpc_fail(struct rpc_call *call, const struct err *err)
{
	struct call *c = call_of(call);

	if (c->state >= CALL_ANSWERED)
		return;
	call_end(c, CALL_ANSWERED);
	send_call_error(c, err);
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
	call_end(c, CALL_ANSWERED);
	status = c->base.method->kind == RPC_UNARY ? send_message(c, message, &err)
						   : send_stream_message(c, message, true, &err);
	if (status < 0 && err.kind != ERR_OK)
		send_call_error(c, &err);
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
	status = send_stream_message(c, message, false, &err);
	if (status < 0 && err.kind != ERR_OK)
		rpc_fail(call, &err);
	return status;
}

void rpc_finish(struct rpc_call *call)
{
	struct call *c = call_of(call);
	struct buf out;
	int status;

	assert(call->method->kind == RPC_SERVER_STREAM);
	if (c->state != CALL_STARTED)
		return;
	call_end(c, CALL_ANSWERED);
	output_take(&out);
	status = write_end_stream(&out, call, NULL);
	if (status == 0)
		status = begin_call_stream(c);
	if (status >= 0)
		status = write_output(call->exchange, &out, true);
	output_release(&out);
	if (status == -ENOMEM)
		http_exchange_abort(call->exchange);
}
