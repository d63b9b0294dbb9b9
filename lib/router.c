#include "lib/router.h"

/* A body on its way. Lives in the exchange's arena. */
struct collection {
	const struct route *route;
	struct route_call call;
	struct buf body;
	struct share share;
	bool is_over; /* answered, or handed over */
};

/* ---- finding ---- */

static bool path_fits(struct str pattern, struct str path, struct route_call *ret_call)
{
	struct str wanted, segment;
	size_t parameters = 0;

	for (;;) {
		bool is_wanted = str_split(&pattern, '/', &wanted);

		if (is_wanted != str_split(&path, '/', &segment))
			return false;
		if (!is_wanted)
			return true;
		if (str_starts_with(wanted, STR("{")))
			ret_call->parameters[parameters++] = segment;
		else if (!str_equal(wanted, segment))
			return false;
	}
}

const struct route *router_find(const struct router *router, const struct http_request *request,
				struct route_call *ret_call)
{
	for (size_t i = 0; i < router->count; i++) {
		*ret_call = (struct route_call){0};
		if (str_equal(request->method, str_of(router->routes[i].method)) &&
		    path_fits(str_of(router->routes[i].path), request->path, ret_call))
			return &router->routes[i];
	}
	return NULL;
}

const char *router_allowed(const struct router *router, struct http_exchange *ex)
{
	const char *allowed = NULL;
	struct route_call ignored;

	for (size_t i = 0; i < router->count; i++) {
		const struct route *route = &router->routes[i];

		if (!path_fits(str_of(route->path), ex->request.path, &ignored))
			continue;
		allowed = allowed ? arena_printf(&ex->arena, "%s, %s", allowed, route->method)
				  : route->method;
		if (!allowed)
			return NULL;
	}
	return allowed;
}

/* ---- serving ---- */

static void drop_body(struct collection *c)
{
	buf_fini_wiped(&c->body);
	share_release(&c->share);
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct collection *c = ex->user;

	if (c->is_over)
		return;
	if (share_take(&c->share, len) && buf_append(&c->body, data, len) == 0)
		return;
	c->is_over = true;
	if (buf_length(&c->body) + len > c->route->body_bytes_max)
		http_respond_error(ex, 413, "the body is larger than %zu bytes",
				   c->route->body_bytes_max);
	else
		http_respond_error(ex, 503, "too many requests with large bodies at once");
	drop_body(c);
}

static void on_closed(struct http_exchange *ex, int status)
{
	(void)status;
	drop_body(ex->user);
}

static void on_body_end(struct http_exchange *ex);

static const struct http_exchange_handler collecting = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

/* The function may answer later, with a handler of its own; the body is not kept for that. */
static void on_body_end(struct http_exchange *ex)
{
	struct collection *c = ex->user;

	if (c->is_over)
		return;
	c->is_over = true;
	c->call.body = &c->body;
	http_exchange_hold(ex);
	c->route->serve(ex, &c->call);
	drop_body(c);
	http_exchange_release(ex);
}

void router_serve(const struct router *router, const struct route *route, struct http_exchange *ex,
		  const struct route_call *call)
{
	struct collection *c;

	if (!route->body_bytes_max) {
		route->serve(ex, call);
		return;
	}
	if (ex->request.length > 0 && (uint64_t)ex->request.length > route->body_bytes_max) {
		http_respond_error(ex, 413, "the body is larger than %zu bytes",
				   route->body_bytes_max);
		return;
	}
	c = arena_new(&ex->arena, struct collection);
	if (!c) {
		http_respond_error(ex, 431, "the request's head needs too much memory");
		return;
	}
	c->route = route;
	c->call = *call;
	buf_init(&c->body, route->body_bytes_max);
	if (router->bodies)
		share_init(&c->share, router->bodies, router->body_exempt_bytes);
	http_exchange_set_handler(ex, &collecting, c);
	http_request_body_start(ex);
}
