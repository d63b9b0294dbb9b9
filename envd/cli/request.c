#include "envd/cli/request.h"

#include <netdb.h>
#include <unistd.h>

#include "lib/stream_uv.h"

#define REQUEST_ARENA_BYTES (64 * 1024)

static void finish(struct later *later)
{
	struct request *r = container_of(later, struct request, later);
	char why[256];

	/* What is known about a connection that did not come about is better than that it did not. */
	secure_close(&r->secure, why, sizeof(why));
	if (r->failed && !r->status && *why && r->err.kind == ERR_UNAVAILABLE)
		err_set(&r->err, ERR_UNAVAILABLE, "%s: %s", r->target->url, why);
	arena_release(&r->arena);
	r->handler->on_done(r, r->complete && !r->failed ? NULL : &r->err);
}

static void end(struct request *r)
{
	later_call(&r->target->loop, &r->later);
}

static void fail(struct request *r, enum err_kind kind, int status, const char *what)
{
	if (r->failed)
		return;
	r->failed = true;
	err_set_sys(&r->err, kind, status, "%s%s%s", r->target->url, *what ? ": " : "", what);
}

/* ---- the answer ---- */

static void on_response(struct http_client *c, const struct http_response *response)
{
	struct request *r = http_client_user(c);

	r->status = response->status;
	if (r->handler->on_response)
		r->handler->on_response(r, response);
}

static void on_body(struct http_client *c, const char *data, size_t len)
{
	struct request *r = http_client_user(c);

	r->handler->on_body(r, data, len);
}

static void on_body_end(struct http_client *c, const struct http_headers *trailers)
{
	struct request *r = http_client_user(c);

	(void)trailers;
	r->complete = true;
	http_client_close(c, false);
}

static void on_drained(struct http_client *c)
{
	struct request *r = http_client_user(c);

	if (r->handler->on_room)
		r->handler->on_room(r);
}

static void on_closed(struct http_client *c, int status)
{
	struct request *r = http_client_user(c);

	r->client = NULL;
	if (!r->complete)
		fail(r, ERR_UNAVAILABLE, status < 0 ? status : -ECONNRESET, "the connection was lost");
	end(r);
}

static const struct http_client_handler client_handler = {
	.on_response = on_response,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

/* ---- connecting ---- */

static void connect_next(struct request *r, int status);

static void on_stream_closed(struct stream *s)
{
	struct request *r = s->user;

	r->stream = NULL;
	connect_next(r, r->err.sys ? -r->err.sys : -ECONNREFUSED);
}

static const struct stream_events connecting_events = {.on_closed = on_stream_closed};

static void send_request(struct request *r, struct stream *s)
{
	r->client = http_client_open(&r->target->loop, s, &client_handler, r);
	/* What goes wrong here comes back as on_closed. */
	(void)http_client_send(r->client, &r->head);
	if (r->head.length == HTTP_LENGTH_NONE)
		(void)http_client_end(r->client, NULL);
	else if (r->handler->on_room)
		r->handler->on_room(r);
}

static void on_connected(struct stream *s, int status)
{
	struct request *r = s->user;

	if (status < 0) {
		r->err.sys = -status;
		stream_close(s, true);
		return;
	}
	r->stream = NULL;
	stream_uv_keep_alive(stream_fd(s));
	send_request(r, s);
}

static void connect_securely(struct later *later)
{
	struct request *r = container_of(later, struct request, begin);
	struct stream *s;
	int fd, status;

	if (r->failed) {
		end(r);
		return;
	}
	status = secure_open(&r->secure, r->target, &fd);
	if (status == 0) {
		status = stream_uv_open_pipe(&r->target->loop, fd, &s);
		if (status < 0)
			close(fd);
	}
	if (status == 0) {
		send_request(r, s);
		return;
	}
	fail(r, ERR_UNAVAILABLE, status,
	     status == -ENOENT ? "https needs the program openssl, which is not here" : "openssl");
	end(r);
}

static void connect_next(struct request *r, int status)
{
	while (r->next_address && !r->failed) {
		const struct addrinfo *address = r->next_address;

		r->next_address = address->ai_next;
		status = stream_uv_connect(&r->target->loop, address->ai_addr, on_connected, &r->stream);
		if (status < 0)
			continue;
		r->stream->user = r;
		r->stream->events = &connecting_events;
		return;
	}
	fail(r, ERR_UNAVAILABLE, status, "");
	end(r);
}

static void add_field(struct request *r, struct str name, struct str value)
{
	if (r->head.target.p && http_headers_add(&r->head.headers, &r->arena, name, value) < 0)
		r->head.target = (struct str){NULL, 0};
}

void request_open(struct request *r, struct target *target, const struct request_handler *handler,
		  const char *method, const char *path, struct request_body body)
{
	*r = (struct request){.target = target, .handler = handler, .secure = {.complaints = -1}};
	arena_init(&r->arena, REQUEST_ARENA_BYTES);
	later_init(&r->later, finish);
	later_init(&r->begin, connect_securely);
	r->next_address = target->addresses;
	r->head.method = str_of(method);
	r->head.length = body.length;
	r->head.target = arena_str(&r->arena, str_of(path));
	for (size_t i = 0; i < target->fields.count; i++)
		add_field(r, target->fields.items[i].name, target->fields.items[i].value);
	if (body.type)
		add_field(r, STR("Content-Type"), str_of(body.type));
	if (body.coding)
		add_field(r, STR("Content-Encoding"), str_of(body.coding));
	if (!r->head.target.p) {
		fail(r, ERR_INVALID_ARGUMENT, ENAMETOOLONG, "the request");
		end(r);
		return;
	}
	if (target->is_secure)
		later_call(&target->loop, &r->begin);
	else
		connect_next(r, -EADDRNOTAVAIL);
}

int request_write(struct request *r, const struct iovec *pieces, size_t count)
{
	return r->client ? http_client_write(r->client, pieces, count) : -ENOTCONN;
}

void request_end(struct request *r)
{
	if (r->client)
		(void)http_client_end(r->client, NULL);
}

void request_pause(struct request *r)
{
	if (r->client)
		http_client_pause(r->client);
}

void request_resume(struct request *r)
{
	if (r->client)
		http_client_resume(r->client);
}

void request_cancel(struct request *r)
{
	if (r->failed || r->complete)
		return;
	r->failed = true;
	err_set(&r->err, ERR_CANCELED, "canceled");
	if (r->client)
		http_client_close(r->client, true);
	else if (r->stream)
		stream_close(r->stream, true);
}

int request_escape(struct buf *b, const char *text, bool keep_slash)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
			     strchr("-._~", c) || (keep_slash && c == '/');
		int status = plain ? buf_append(b, text, 1) : buf_printf(b, "%%%02X", c);

		if (status < 0)
			return status;
	}
	return 0;
}
