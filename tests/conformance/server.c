/*
 * The service that connectconformance calls, on envd's own rpc and HTTP code: every call says what
 * the answer must be, and is told what the server saw of it. The runner writes how the server
 * should be to standard input, reads the port from standard output, and ends it with SIGTERM.
 *
 * google.protobuf.Any is replaced by a message of our own (install.sh). Its binary form is
 * type_url and value. For the JSON form, which shows the fields of the message inside beside
 * "@type", `value` is left out and those fields are set instead.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <unistd.h>

#include "conformance/server_compat.pb-c.h"
#include "conformance/service.pb-c.h"
#include "envd/rpc/call.h"
#include "lib/http_server.h"
#include "lib/json.h"

#define SERVICE "/connectrpc.conformance.v1.ConformanceService/"
#define TYPES "connectrpc.conformance.v1."
#define LARGEST_MESSAGE (64 * 1024 * 1024)

int receive_limit_bytes = LARGEST_MESSAGE;

/* The three kinds of unary requests and those of client streams have the same fields. */
typedef Conformance__UnaryRequest unary_request;

struct work {
	struct rpc_call *call;
	struct arena memory;
	uv_timer_t timer;
	const Conformance__UnaryResponseDefinition *unary;
	const Conformance__StreamResponseDefinition *stream;
	const ProtobufCMessage **requests;
	size_t requests_count, requests_room;
	struct http_headers trailers;
	struct rpc_detail detail;
	size_t sent; /* messages of a stream */
	bool waited; /* for the next of them */
	bool ended;
};

static void *need(void *memory)
{
	if (!memory)
		abort();
	return memory;
}

/* ---- What was seen ---- */

static Conformance__Header *header_of(struct work *w, const struct http_headers *headers, size_t at)
{
	Conformance__Header *header = need(arena_new(&w->memory, Conformance__Header));
	struct str name = headers->items[at].name;

	conformance__header__init(header);
	header->name = need(arena_strndup(&w->memory, name.p, name.len));
	header->value = need(arena_alloc_array(&w->memory, headers->count, sizeof(char *)));
	for (size_t i = at; i < headers->count; i++) {
		if (str_equal_nocase(headers->items[i].name, name))
			header->value[header->n_value++] = need(
				arena_strndup(&w->memory, headers->items[i].value.p,
					      headers->items[i].value.len));
	}
	return header;
}

static bool is_first_of_its_name(const struct http_headers *headers, size_t at)
{
	for (size_t i = 0; i < at; i++) {
		if (str_equal_nocase(headers->items[i].name, headers->items[at].name))
			return false;
	}
	return true;
}

static size_t pack(struct work *w, const ProtobufCMessage *message, uint8_t **ret_bytes)
{
	*ret_bytes = need(arena_alloc(&w->memory, protobuf_c_message_get_packed_size(message)));
	return protobuf_c_message_pack(message, *ret_bytes);
}

static Conformance__Any *any_of(struct work *w, const ProtobufCMessage *message, bool json)
{
	Conformance__Any *any = need(arena_new(&w->memory, Conformance__Any));

	conformance__any__init(any);
	any->type_url = need(arena_printf(&w->memory, "type.googleapis.com/" TYPES "%s",
					  message->descriptor->short_name));
	if (!json) {
		any->value.len = pack(w, message, &any->value.data);
	} else if (w->call->method->kind == RPC_SERVER_STREAM) {
		const Conformance__ServerStreamRequest *request = (const void *)message;

		any->stream_definition = request->response_definition;
		any->request_data = request->request_data;
	} else {
		const unary_request *request = (const void *)message;

		any->response_definition = request->response_definition;
		any->request_data = request->request_data;
	}
	return any;
}

static Conformance__ConformancePayload__RequestInfo *info_of(struct work *w, bool json)
{
	const struct http_headers *headers = &w->call->exchange->request.headers;
	Conformance__ConformancePayload__RequestInfo *info = need(
		arena_new(&w->memory, Conformance__ConformancePayload__RequestInfo));

	conformance__conformance_payload__request_info__init(info);
	info->request_headers = need(arena_alloc_array(&w->memory, headers->count, sizeof(void *)));
	for (size_t i = 0; i < headers->count; i++) {
		if (is_first_of_its_name(headers, i))
			info->request_headers[info->n_request_headers++] = header_of(w, headers, i);
	}
	if (w->call->timeout_ms > 0) {
		info->opt_timeout_ms_case =
			CONFORMANCE__CONFORMANCE_PAYLOAD__REQUEST_INFO__OPT_TIMEOUT_MS_TIMEOUT_MS;
		info->timeout_ms = (int64_t)w->call->timeout_ms;
	}
	info->requests = need(arena_alloc_array(&w->memory, w->requests_count, sizeof(void *)));
	for (size_t i = 0; i < w->requests_count; i++)
		info->requests[info->n_requests++] = any_of(w, w->requests[i], json);
	return info;
}

static bool is_json(const struct work *w)
{
	return call_of(w->call)->content.codec == RPC_JSON;
}

/* ---- What is answered ---- */

static void add_metadata(struct work *w, Conformance__Header **headers, size_t headers_count,
			 Conformance__Header **trailers, size_t trailers_count)
{
	for (size_t i = 0; i < headers_count; i++) {
		for (size_t k = 0; k < headers[i]->n_value; k++)
			http_response_header_copy(w->call->exchange, str_of(headers[i]->name),
						  str_of(headers[i]->value[k]));
	}
	for (size_t i = 0; i < trailers_count; i++) {
		for (size_t k = 0; k < trailers[i]->n_value; k++) {
			if (http_headers_add(&w->trailers, &w->memory, str_of(trailers[i]->name),
					     str_of(trailers[i]->value[k])) < 0)
				need(NULL);
		}
	}
	w->call->trailers = &w->trailers;
}

/* The request goes into the details of an error that comes in place of the first message. */
static void fail(struct work *w, const Conformance__Error *error, bool with_info)
{
	struct err err;
	uint8_t *bytes;

	if (with_info) {
		size_t len = pack(w, &info_of(w, false)->base, &bytes);

		w->detail = (struct rpc_detail){STR(TYPES "ConformancePayload.RequestInfo"),
						{(char *)bytes, len}};
		w->call->details = &w->detail;
		w->call->details_count = 1;
	}
	err_set(&err, (enum err_kind)error->code, "%s",
		error->opt_message_case == CONFORMANCE__ERROR__OPT_MESSAGE_MESSAGE ? error->message
										   : "");
	rpc_fail(w->call, &err);
}

static Conformance__ConformancePayload *payload_of(struct work *w, ProtobufCBinaryData data,
						   bool with_info)
{
	Conformance__ConformancePayload *payload = need(
		arena_new(&w->memory, Conformance__ConformancePayload));

	conformance__conformance_payload__init(payload);
	payload->data = data;
	if (with_info)
		payload->request_info = info_of(w, is_json(w));
	return payload;
}

static void answer_unary(struct work *w)
{
	Conformance__UnaryResponse response = CONFORMANCE__UNARY_RESPONSE__INIT;
	const Conformance__UnaryResponseDefinition *definition = w->unary;
	ProtobufCBinaryData data = {0, NULL};

	if (definition)
		add_metadata(w, definition->response_headers, definition->n_response_headers,
			     definition->response_trailers, definition->n_response_trailers);
	if (definition &&
	    definition->response_case == CONFORMANCE__UNARY_RESPONSE_DEFINITION__RESPONSE_ERROR) {
		fail(w, definition->error, true);
		return;
	}
	if (definition && definition->response_case ==
				  CONFORMANCE__UNARY_RESPONSE_DEFINITION__RESPONSE_RESPONSE_DATA)
		data = definition->response_data;
	/* Every kind of response is one payload. */
	response.payload = payload_of(w, data, true);
	rpc_reply(w->call, &response.base);
}

static void on_timer(uv_timer_t *timer);

static void answer_stream(struct work *w)
{
	const Conformance__StreamResponseDefinition *definition = w->stream;

	while (definition && w->sent < definition->n_response_data && !w->ended) {
		Conformance__ServerStreamResponse response =
			CONFORMANCE__SERVER_STREAM_RESPONSE__INIT;

		if (definition->response_delay_ms > 0 && !w->waited) {
			uv_timer_start(&w->timer, on_timer, definition->response_delay_ms, 0);
			return;
		}
		w->waited = false;
		response.payload = payload_of(w, definition->response_data[w->sent], w->sent == 0);
		w->sent++;
		if (rpc_send(w->call, &response.base) != 0)
			return; /* on_drained comes, or on_closed */
	}
	if (definition && definition->error)
		fail(w, definition->error, w->sent == 0);
	else
		rpc_finish(w->call);
}

static void on_timer(uv_timer_t *timer)
{
	struct work *w = container_of(timer, struct work, timer);

	w->waited = true;
	if (w->call->method->kind == RPC_SERVER_STREAM)
		answer_stream(w);
	else
		answer_unary(w);
}

static void begin_unary(struct work *w)
{
	if (w->unary && w->unary->response_delay_ms > 0)
		uv_timer_start(&w->timer, on_timer, w->unary->response_delay_ms, 0);
	else
		answer_unary(w);
}

/* ---- The methods ---- */

static void on_timer_closed(uv_handle_t *handle)
{
	struct work *w = container_of((uv_timer_t *)handle, struct work, timer);

	arena_release(&w->memory);
	rpc_call_release(w->call);
}

static void on_closed(struct rpc_call *call, int status)
{
	struct work *w = call->user;

	w->ended = true;
	uv_close((uv_handle_t *)&w->timer, on_timer_closed);
}

static void on_drained(struct rpc_call *call)
{
	answer_stream(call->user);
}

static void add_request(struct work *w, const ProtobufCMessage *message)
{
	if (w->requests_count == w->requests_room) {
		const ProtobufCMessage **more;

		w->requests_room = w->requests_room ? w->requests_room * 2 : 8;
		more = need(arena_alloc_array(&w->memory, w->requests_room, sizeof(*more)));
		if (w->requests_count > 0)
			memcpy(more, w->requests, w->requests_count * sizeof(*more));
		w->requests = more;
	}
	w->requests[w->requests_count++] = message;
}

static void *allocate(void *memory, size_t size)
{
	return need(arena_alloc(memory, size));
}

static void ignore_free(void *memory, void *pointer)
{
}

static void on_message(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct work *w = call->user;
	ProtobufCAllocator allocator = {allocate, ignore_free, &w->memory};
	uint8_t *bytes;
	size_t len = pack(w, message, &bytes);

	/* What is given lives until we return. */
	message = need(protobuf_c_message_unpack(message->descriptor, &allocator, len, bytes));
	if (w->requests_count == 0)
		w->unary = ((const Conformance__ClientStreamRequest *)(const void *)message)
				   ->response_definition;
	add_request(w, message);
	rpc_next(call);
}

static void on_message_end(struct rpc_call *call)
{
	begin_unary(call->user);
}

static const struct rpc_handler handler = {
	.on_message = on_message,
	.on_message_end = on_message_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static struct work *work_new(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct work *w = need(arena_new(call->arena, struct work));

	w->call = call;
	arena_init(&w->memory, 16 * (size_t)LARGEST_MESSAGE);
	uv_timer_init(&call->loop->uv, &w->timer);
	rpc_call_hold(call);
	rpc_call_set_handler(call, &handler, w);
	if (message)
		add_request(w, message);
	return w;
}

static void start_unary(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct work *w = work_new(call, message);

	w->unary = ((const unary_request *)(const void *)message)->response_definition;
	begin_unary(w);
}

static void start_server_stream(struct rpc_call *call, const ProtobufCMessage *message)
{
	struct work *w = work_new(call, message);

	w->stream = ((const Conformance__ServerStreamRequest *)(const void *)message)
			    ->response_definition;
	if (w->stream)
		add_metadata(w, w->stream->response_headers, w->stream->n_response_headers,
			     w->stream->response_trailers, w->stream->n_response_trailers);
	answer_stream(w);
}

static void start_client_stream(struct rpc_call *call, const ProtobufCMessage *message)
{
	work_new(call, NULL);
	rpc_next(call);
}

static void start_unimplemented(struct rpc_call *call, const ProtobufCMessage *message)
{
	rpc_fail_kind(call, ERR_UNIMPLEMENTED, "it is not implemented");
}

static const struct rpc_method methods[] = {
	{SERVICE "Unary", RPC_UNARY, &conformance__unary_request__descriptor,
	 &conformance__unary_response__descriptor, start_unary},
	{SERVICE "IdempotentUnary", RPC_UNARY, &conformance__idempotent_unary_request__descriptor,
	 &conformance__idempotent_unary_response__descriptor, start_unary},
	{SERVICE "ServerStream", RPC_SERVER_STREAM, &conformance__server_stream_request__descriptor,
	 &conformance__server_stream_response__descriptor, start_server_stream},
	{SERVICE "ClientStream", RPC_CLIENT_STREAM, &conformance__client_stream_request__descriptor,
	 &conformance__client_stream_response__descriptor, start_client_stream},
	{SERVICE "Unimplemented", RPC_UNARY, &conformance__unimplemented_request__descriptor,
	 &conformance__unimplemented_response__descriptor, start_unimplemented},
};

static void dispatch(struct http_exchange *ex)
{
	for (size_t i = 0; i < ARRAY_LENGTH(methods); i++) {
		if (str_equal(ex->request.path, str_of(methods[i].path))) {
			rpc_dispatch(ex, &methods[i], NULL, NULL);
			return;
		}
	}
	http_respond_error(ex, 404, "not found");
}

/* ---- The program ---- */

static bool read_all(void *bytes, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = read(STDIN_FILENO, (char *)bytes + done, len - done);

		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

static bool read_order(void)
{
	Conformance__ServerCompatRequest *request;
	uint8_t bytes[64 * 1024];
	uint32_t len;

	if (!read_all(&len, sizeof(len)) || ntohl(len) > sizeof(bytes) ||
	    !read_all(bytes, ntohl(len)))
		return false;
	request = conformance__server_compat_request__unpack(NULL, ntohl(len), bytes);
	if (!request)
		return false;
	if (request->message_receive_limit > 0)
		receive_limit_bytes = (int)request->message_receive_limit;
	conformance__server_compat_request__free_unpacked(request, NULL);
	return true;
}

static bool tell_port(unsigned port)
{
	Conformance__ServerCompatResponse response = CONFORMANCE__SERVER_COMPAT_RESPONSE__INIT;
	char host[] = "127.0.0.1";
	uint8_t bytes[64];
	uint32_t len;

	response.host = host;
	response.port = port;
	len = (uint32_t)conformance__server_compat_response__pack(&response, bytes + sizeof(len));
	*(uint32_t *)(void *)bytes = htonl(len);
	return write(STDOUT_FILENO, bytes, sizeof(len) + len) == (ssize_t)(sizeof(len) + len);
}

static void on_stopped(void *user)
{
}

static void on_signal(uv_signal_t *signal, int number)
{
	struct http_server *server = signal->data;

	uv_close((uv_handle_t *)signal, NULL);
	http_server_stop(server, on_stopped, NULL);
	http_server_abort(server);
}

int main(void)
{
	struct http_server_config config = {.dispatch = dispatch};
	struct loop loop;
	uv_signal_t terminate;

	signal(SIGPIPE, SIG_IGN);
	json_init();
	loop_init(&loop);
	if (!read_order())
		return 2;
	if (http_server_listen(&loop, &config, "127.0.0.1", 0,
			       (struct http_server **)&terminate.data) < 0)
		return 1;
	uv_signal_init(&loop.uv, &terminate);
	uv_signal_start(&terminate, on_signal, SIGTERM);
	if (!tell_port(http_server_port(terminate.data)))
		return 1;
	loop_run(&loop);
	/* Nothing may be left, whatever the runner did. */
	loop_fini(&loop);
	return 0;
}
