#include "envd/cli/request.h"

#include <netdb.h>

#include "lib/limits.h"
#include "lib/tls/tls_client.h"

static void fail(struct request *r, enum err_kind kind, int status, const char *what)
{
	if (r->failed)
		return;
	r->failed = true;
	err_set_sys(&r->err, kind, status, "%s%s%s", r->target->url, *what ? ": " : "", what);
}

/* ---- the answer ---- */

static void on_response(struct http_call *call, const struct http_response *response)
{
	struct request *r = http_call_user(call);

	r->status = response->status;
	if (r->handler->on_response)
		r->handler->on_response(r, response);
}

static void on_body(struct http_call *call, const char *data, size_t len)
{
	struct request *r = http_call_user(call);

	r->handler->on_body(r, data, len);
}

static void on_room(struct http_call *call)
{
	struct request *r = http_call_user(call);

	if (r->handler->on_room)
		r->handler->on_room(r);
}

static void end(struct request *r)
{
	r->handler->on_done(r, r->failed ? &r->err : NULL);
}

static void on_call_done(struct http_call *call, int status)
{
	struct request *r = http_call_user(call);
	const char *reason = http_call_reason(call);

	r->call = NULL;
	if (status == -ENAMETOOLONG)
		fail(r, ERR_INVALID_ARGUMENT, status, "the request");
	else if (status < 0)
		fail(r, ERR_UNAVAILABLE, status,
		     http_call_is_connected(call) ? "the connection was lost" : "");
	if (*reason)
		err_set(&r->err, ERR_UNAVAILABLE, "%s: %s", r->target->url, reason);
	end(r);
}

static const struct http_call_handler call_handler = {
	.on_response = on_response,
	.on_body = on_body,
	.on_room = on_room,
	.on_done = on_call_done,
};

/* ---- asking ---- */

static void on_cancelled(struct later *later)
{
	end(container_of(later, struct request, later));
}

static size_t collect_addresses(const struct target *target,
				const struct sockaddr *addresses[HTTP_CALL_ADDRESSES_MAX])
{
	size_t count = 0;

	for (const struct addrinfo *at = target->addresses; at && count < HTTP_CALL_ADDRESSES_MAX;
	     at = at->ai_next)
		addresses[count++] = at->ai_addr;
	return count;
}

void request_open(struct request *r, struct target *target, const struct request_handler *handler,
		  const char *method, const char *path, struct request_body body)
{
	const struct sockaddr *addresses[HTTP_CALL_ADDRESSES_MAX];
	struct http_call_settings settings = {
		.addresses = addresses,
		.address_count = collect_addresses(target, addresses),
		.security = target->tls ? tls_client_security(target->tls) : NULL,
		.keep_alive = true,
		.method = str_of(method),
		.target = str_of(path),
		.length = body.length,
		.is_empty_body = body.length == 0,
		.user = r,
	};
	struct http_header *headers = xcalloc(target->fields.count + 2, sizeof(*headers));

	*r = (struct request){.target = target, .handler = handler};
	later_init(&r->later, on_cancelled);
	for (size_t i = 0; i < target->fields.count; i++)
		headers[settings.header_count++] = target->fields.items[i];
	if (body.type)
		headers[settings.header_count++] = (struct http_header){STR("Content-Type"),
									str_of(body.type)};
	if (body.coding)
		headers[settings.header_count++] = (struct http_header){STR("Content-Encoding"),
									str_of(body.coding)};
	settings.headers = headers;
	r->call = http_call_open(&target->loop, &settings, &call_handler);
	free(headers);
}

bool request_is_connected(const struct request *r)
{
	return r->call && http_call_is_connected(r->call);
}

int request_write(struct request *r, const struct iovec *pieces, size_t count)
{
	return r->call ? http_call_write(r->call, pieces, count) : -ENOTCONN;
}

void request_end(struct request *r)
{
	if (r->call)
		http_call_end(r->call);
}

void request_pause(struct request *r)
{
	if (r->call)
		http_call_pause(r->call);
}

void request_resume(struct request *r)
{
	if (r->call)
		http_call_resume(r->call);
}

void request_cancel(struct request *r)
{
	if (!r->call)
		return;
	http_call_close(take_ptr(&r->call));
	r->failed = true;
	err_set(&r->err, ERR_CANCELED, "canceled");
	later_call(&r->target->loop, &r->later);
}

int request_escape(struct buf *b, const char *text, bool keep_slash)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
			     (c >= 'a' && c <= 'z') || strchr("-._~", c) ||
			     (keep_slash && c == '/');
		int status = plain ? buf_append(b, text, 1) : buf_printf(b, "%%%02X", c);

		if (status < 0)
			return status;
	}
	return 0;
}
