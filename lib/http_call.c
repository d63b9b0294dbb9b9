#include "lib/http_call.h"

#include <netinet/in.h>
#include <sys/un.h>

#include "lib/limits.h"
#include "lib/stream_uv.h"

struct http_call {
	struct loop *loop;
	const struct http_call_handler *handler;
	void *user;
	struct arena arena; /* of all that was given */
	struct sockaddr_storage *addresses;
	size_t address_count, address_at;
	uint64_t connect_ms;
	uint64_t deadline_at_ms; /* UINT64_MAX: none */
	const struct http_call_security *security;
	const char *reason;
	bool keep_alive, is_streamed;
	struct http_client_request request;
	struct iovec body;
	struct buf answer;
	struct alarm alarm; /* the deadline, or when the next address is tried */
	struct later begin;
	struct stream *stream; /* while connecting, and while it is made secure */
	struct http_client *client;
	int response_status;
	int status; /* why it failed, as far as that is known */
	bool is_securing, is_connected, is_complete;
	bool is_over; /* nobody is called any more */
	unsigned parts; /* its owner until the end, and the connection */
};

static void release_part(struct http_call *call)
{
	if (--call->parts)
		return;
	buf_fini_wiped(&call->answer);
	arena_release_wiped(&call->arena);
	free(call);
}

void http_call_close(struct http_call *call)
{
	if (call->is_over)
		return;
	call->is_over = true;
	later_cancel(&call->begin);
	alarm_cancel(&call->alarm);
	if (call->stream)
		stream_close(call->stream, true);
	if (call->client)
		http_client_close(call->client, !call->response_status);
	release_part(call);
}

static void finish(struct http_call *call, int status)
{
	if (call->is_over)
		return;
	/* Closed first: what the callback releases may be all that its owner has. */
	call->parts++;
	http_call_close(call);
	call->handler->on_done(call, status);
	release_part(call);
}

/* ---- time ---- */

/* At the deadline, or after `first_ms` if that is earlier. */
static void start_alarm(struct http_call *call, uint64_t first_ms)
{
	uint64_t now = loop_now_ms(call->loop), wait;

	if (call->deadline_at_ms == UINT64_MAX && first_ms == UINT64_MAX) {
		alarm_cancel(&call->alarm);
		return;
	}
	wait = call->deadline_at_ms > now ? call->deadline_at_ms - now : 0;
	alarm_set(call->loop, &call->alarm, wait < first_ms ? wait : first_ms);
}

static void on_alarm(struct alarm *alarm)
{
	struct http_call *call = container_of(alarm, struct http_call, alarm);

	if (call->is_securing || loop_now_ms(call->loop) >= call->deadline_at_ms) {
		finish(call, -ETIMEDOUT);
	} else if (call->stream) {
		call->status = -ETIMEDOUT;
		stream_close(call->stream, true); /* and then the next address */
	}
}

void http_call_set_deadline(struct http_call *call, uint64_t deadline_ms)
{
	if (call->is_over)
		return;
	call->deadline_at_ms = deadline_ms ? loop_now_ms(call->loop) + deadline_ms : UINT64_MAX;
	start_alarm(call, UINT64_MAX);
}

/* ---- the answer ---- */

static void on_response(struct http_client *c, const struct http_response *response)
{
	struct http_call *call = http_client_user(c);

	if (call->is_over)
		return;
	call->response_status = response->status;
	if (call->handler->on_response)
		call->handler->on_response(call, response);
}

static void on_body(struct http_client *c, const char *data, size_t len)
{
	struct http_call *call = http_client_user(c);
	int status;

	if (call->is_over)
		return;
	if (call->handler->on_body) {
		call->handler->on_body(call, data, len);
		return;
	}
	status = buf_append(&call->answer, data, len);
	if (status < 0)
		finish(call, status == -ENOSPC ? -EMSGSIZE : status);
}

/* The connection has served its purpose, whether or not the server wants the rest of the
 * request. */
static void on_body_end(struct http_client *c, const struct http_headers *trailers)
{
	struct http_call *call = http_client_user(c);

	(void)trailers;
	call->is_complete = true;
	http_client_close(c, false);
}

static void on_drained(struct http_client *c)
{
	struct http_call *call = http_client_user(c);

	if (!call->is_over && call->handler->on_room)
		call->handler->on_room(call);
}

static void on_client_closed(struct http_client *c, int status)
{
	struct http_call *call = http_client_user(c);

	call->client = NULL;
	finish(call, call->is_complete ? 0 : status < 0 ? status : -ECONNRESET);
	release_part(call);
}

static const struct http_client_handler client_handler = {
	.on_response = on_response,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_client_closed,
};

/* ---- the request ---- */

static void send_request(struct http_call *call, struct stream *stream)
{
	int status;

	start_alarm(call, UINT64_MAX);
	call->is_connected = true;
	call->client = http_client_open(call->loop, stream, &client_handler, call);
	status = http_client_send(call->client, &call->request);
	if (status == -ENOMEM) {
		finish(call, status);
		return;
	}
	/* What else fails comes as on_closed, or the server has answered before it stopped
	 * reading. */
	if (call->is_streamed) {
		if (call->handler->on_room)
			call->handler->on_room(call);
		return;
	}
	if (status >= 0 && call->body.iov_len)
		status = http_client_write(call->client, &call->body, 1);
	if (status >= 0)
		(void)http_client_end(call->client, NULL);
}

static void connect_next(struct http_call *call);

static void on_stream_closed(struct stream *stream)
{
	struct http_call *call = stream->user;

	call->stream = NULL;
	if (!call->is_over)
		connect_next(call);
	release_part(call);
}

static const struct stream_events connecting = {.on_closed = on_stream_closed};

/* A failure is final: the next address is the same server's. */
static void on_secured(struct stream *stream, int status)
{
	struct http_call *call = stream->user;

	call->is_securing = false;
	if (status < 0) {
		call->reason = call->security->reason(stream);
		stream_close(stream, false); /* the server hears why */
		finish(call, status);
		return;
	}
	call->stream = NULL;
	send_request(call, stream);
}

static void secure(struct http_call *call, struct stream *carrier)
{
	struct stream *stream;
	int status = call->security->open(call->security, carrier, on_secured, call, &stream);

	if (status == 0) {
		call->stream = stream;
		call->is_securing = true;
		start_alarm(call, call->security->timeout_ms);
	}
	call->stream->user = call;
	call->stream->events = &connecting;
	if (status < 0)
		finish(call, status);
}

static void on_connected(struct stream *stream, int status)
{
	struct http_call *call = stream->user;

	if (status < 0) {
		call->status = status;
		stream_close(stream, true);
		return;
	}
	if (call->keep_alive)
		stream_uv_keep_alive(stream_fd(stream));
	if (call->security) {
		secure(call, stream);
		return;
	}
	call->stream = NULL;
	send_request(call, stream);
}

static void connect_next(struct http_call *call)
{
	while (call->address_at < call->address_count) {
		const struct sockaddr_storage *address = &call->addresses[call->address_at++];
		int status = stream_uv_connect(call->loop, (const struct sockaddr *)address,
					       on_connected, &call->stream);

		if (status < 0) {
			call->status = status;
			call->stream = NULL;
			continue;
		}
		call->parts++;
		call->stream->user = call;
		call->stream->events = &connecting;
		/* One that does not answer leaves time for the next. */
		start_alarm(call, call->connect_ms && call->address_at < call->address_count
					  ? call->connect_ms
					  : UINT64_MAX);
		return;
	}
	finish(call, call->status);
}

static void on_begin(struct later *later)
{
	struct http_call *call = container_of(later, struct http_call, begin);

	if (call->request.target.p)
		connect_next(call);
	else
		finish(call, -ENAMETOOLONG);
}

static size_t address_size(const struct sockaddr *address)
{
	switch (address->sa_family) {
	case AF_INET:
		return sizeof(struct sockaddr_in);
	case AF_INET6:
		return sizeof(struct sockaddr_in6);
	default:
		return sizeof(struct sockaddr_un);
	}
}

static int copy_addresses(struct http_call *call, const struct http_call_settings *settings)
{
	size_t count = size_min(settings->address_count, HTTP_CALL_ADDRESSES_MAX);

	call->addresses = arena_alloc_array(&call->arena, count, sizeof(*call->addresses));
	if (count && !call->addresses)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		memcpy(&call->addresses[i], settings->addresses[i],
		       address_size(settings->addresses[i]));
	call->address_count = count;
	return 0;
}

static int copy_headers(struct http_call *call, const struct http_call_settings *settings)
{
	for (size_t i = 0; i < settings->header_count; i++) {
		struct str name = arena_str(&call->arena, settings->headers[i].name);
		struct str value = arena_str(&call->arena, settings->headers[i].value);
		int status = name.p && value.p ? http_headers_add(&call->request.headers,
								  &call->arena, name, value)
					       : -ENOMEM;

		if (status < 0)
			return status;
	}
	return 0;
}

static int copy_body(struct http_call *call, const struct http_call_settings *settings)
{
	size_t total = 0;
	char *at;

	for (size_t i = 0; i < settings->body_count; i++)
		total += settings->body[i].iov_len;
	if (!settings->body_count) {
		call->is_streamed = settings->length != 0 && settings->length != HTTP_LENGTH_NONE;
		call->request.length = call->is_streamed	 ? settings->length
				       : settings->is_empty_body ? 0
								 : HTTP_LENGTH_NONE;
		return 0;
	}
	call->request.length = (int64_t)total;
	at = arena_alloc(&call->arena, total + 1);
	if (!at)
		return -ENOMEM;
	call->body = (struct iovec){.iov_base = at, .iov_len = total};
	for (size_t i = 0; i < settings->body_count; i++) {
		memcpy(at, settings->body[i].iov_base, settings->body[i].iov_len);
		at += settings->body[i].iov_len;
	}
	return 0;
}

struct http_call *http_call_open(struct loop *loop, const struct http_call_settings *settings,
				 const struct http_call_handler *handler)
{
	struct http_call *call = xcalloc(1, sizeof(*call));
	struct str method;

	call->loop = loop;
	call->handler = handler;
	call->user = settings->user;
	call->connect_ms = settings->connect_ms;
	call->security = settings->security;
	call->reason = "";
	call->keep_alive = settings->keep_alive;
	call->deadline_at_ms = settings->deadline_ms ? loop_now_ms(loop) + settings->deadline_ms
						     : UINT64_MAX;
	call->status = -EADDRNOTAVAIL;
	call->parts = 1;
	arena_init(&call->arena, HTTP_CALL_ARENA_BYTES);
	buf_init(&call->answer, settings->answer_bytes_max);
	method = arena_str(&call->arena, settings->method);
	call->request.method = method;
	/* Without a target it is refused once the loop goes on. */
	if (method.p && copy_addresses(call, settings) == 0 && copy_headers(call, settings) == 0 &&
	    copy_body(call, settings) == 0)
		call->request.target = arena_str(&call->arena, settings->target);
	alarm_init(&call->alarm, on_alarm);
	start_alarm(call, UINT64_MAX);
	later_init(&call->begin, on_begin);
	later_call(loop, &call->begin);
	return call;
}

void *http_call_user(const struct http_call *call)
{
	return call->user;
}

int http_call_status(const struct http_call *call)
{
	return call->response_status;
}

bool http_call_is_connected(const struct http_call *call)
{
	return call->is_connected;
}

const char *http_call_reason(const struct http_call *call)
{
	return call->reason;
}

struct str http_call_answer(const struct http_call *call)
{
	return buf_str(&call->answer);
}

int http_call_write(struct http_call *call, const struct iovec *pieces, size_t count)
{
	return call->client ? http_client_write(call->client, pieces, count) : -ENOTCONN;
}

void http_call_end(struct http_call *call)
{
	if (call->client)
		(void)http_client_end(call->client, NULL);
}

void http_call_pause(struct http_call *call)
{
	if (call->client)
		http_client_pause(call->client);
}

void http_call_resume(struct http_call *call)
{
	if (call->client)
		http_client_resume(call->client);
}
