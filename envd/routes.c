#include "envd/routes.h"

#include "envd/app.h"
#include "envd/filesystem/files.h"
#include "envd/filesystem/filesystem_service.h"
#include "envd/jobs/jobs_service.h"
#include "envd/limits.h"
#include "envd/numbers.h"
#include "envd/process/process_service.h"
#include "envd/rpc/rpc.h"
#include "envd/gate/auth_http.h"
#include "envd/gate/cors_http.h"
#include "envd/init/init_service.h"
#include "envd/init/sandbox_service.h"
#include "envd/snapshot/snapshot_service.h"
#include "lib/descriptors.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "lib/router.h"

static struct app *app_of(const struct http_exchange *ex)
{
	return ex->server_user;
}

static void serve_health(struct http_exchange *ex, const struct route_call *call)
{
	sandbox_service_health(ex, &app_of(ex)->sandbox);
}

static void serve_metrics(struct http_exchange *ex, const struct route_call *call)
{
	sandbox_service_metrics(ex, &app_of(ex)->sandbox, numbers_write);
}

static void serve_environment(struct http_exchange *ex, const struct route_call *call)
{
	sandbox_service_environment(ex, &app_of(ex)->sandbox);
}

static void serve_init(struct http_exchange *ex, const struct route_call *call)
{
	init_service_post(ex, &app_of(ex)->sandbox, ENVD_PROTOCOL_VERSION);
}

static void serve_upgrade(struct http_exchange *ex, const struct route_call *call)
{
	sandbox_service_upgrade(ex, &app_of(ex)->sandbox);
}

static void serve_freeze(struct http_exchange *ex, const struct route_call *call)
{
	snapshot_service_freeze(ex, &app_of(ex)->snapshot);
}

static void serve_unfreeze(struct http_exchange *ex, const struct route_call *call)
{
	snapshot_service_unfreeze(ex, &app_of(ex)->snapshot);
}

static void serve_filesystem_freeze(struct http_exchange *ex, const struct route_call *call)
{
	snapshot_service_freeze_filesystem(ex, &app_of(ex)->snapshot);
}

static void serve_filesystem_thaw(struct http_exchange *ex, const struct route_call *call)
{
	snapshot_service_thaw_filesystem(ex, &app_of(ex)->snapshot);
}

static void serve_collapse(struct http_exchange *ex, const struct route_call *call)
{
	snapshot_service_collapse(ex, &app_of(ex)->snapshot);
}

static void serve_download(struct http_exchange *ex, const struct route_call *call)
{
	if (auth_pass_files(ex, &app_of(ex)->sandbox))
		files_get(ex, &app_of(ex)->sandbox);
}

static void serve_upload(struct http_exchange *ex, const struct route_call *call)
{
	if (auth_pass_files(ex, &app_of(ex)->sandbox))
		files_post(ex, &app_of(ex)->sandbox);
}

static void serve_compose(struct http_exchange *ex, const struct route_call *call)
{
	files_compose(ex, &app_of(ex)->sandbox);
}

/* Open is what needs no token, or has a check of its own. */
static const struct route routes[] = {
	{"GET", "/health", serve_health, .is_open = true},
	{"GET", "/metrics", serve_metrics},
	{"POST", "/init", serve_init, .is_open = true},
	{"GET", "/envs", serve_environment},
	{"GET", "/files", serve_download, .is_open = true},
	{"POST", "/files", serve_upload, .is_open = true},
	{"POST", "/files/compose", serve_compose},
	{"POST", "/freeze", serve_freeze},
	{"POST", "/unfreeze", serve_unfreeze},
	{"POST", "/fsfreeze", serve_filesystem_freeze},
	{"POST", "/fsthaw", serve_filesystem_thaw},
	{"POST", "/collapse", serve_collapse},
	{"POST", "/upgrade", serve_upgrade},
};

static const struct router router = {.routes = routes, .count = ARRAY_LENGTH(routes)};

static void *filesystem_of(struct app *app)
{
	return &app->filesystem;
}

static void *jobs_of(struct app *app)
{
	return &app->jobs_service;
}

static void *processes_of(struct app *app)
{
	return app->processes;
}

/* One RPC service: its methods sorted by path, and what they work on. */
struct service {
	const struct rpc_method *methods;
	size_t count;
	void *(*of)(struct app *app);
};

static const struct service services[] = {
	{filesystem_service_methods, FILESYSTEM_SERVICE_METHODS, filesystem_of},
	{jobs_service_methods, JOBS_SERVICE_METHODS, jobs_of},
	{process_service_methods, PROCESS_SERVICE_METHODS, processes_of},
};

static int compare_method(const void *key, const void *element)
{
	const struct str *path = key;
	const struct rpc_method *method = element;
	int order = strncmp(path->p, method->path, path->len);

	return order ? order : -(method->path[path->len] != '\0');
}

static const struct rpc_method *find_method(struct str path, const struct service **ret_service)
{
	for (size_t i = 0; i < ARRAY_LENGTH(services); i++) {
		const struct rpc_method *method = bsearch(
			&path, services[i].methods, services[i].count, sizeof(struct rpc_method),
			compare_method);

		*ret_service = &services[i];
		if (method)
			return method;
	}
	return NULL;
}

static void refuse_path(struct http_exchange *ex)
{
	http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
	http_respond(ex, 404, "text/plain; charset=utf-8", STR("404 page not found\n"));
}

/* No route for this method: either the path has others, or it is unknown. */
static void refuse_method(struct http_exchange *ex)
{
	const char *allowed = router_allowed(&router, ex);

	if (!allowed) {
		refuse_path(ex);
		return;
	}
	http_response_header(ex, STR("Allow"), str_of(allowed));
	http_respond_error(ex, 405, "method not allowed");
}

static void serve(struct http_exchange *ex, const char *user_name)
{
	struct app *app = app_of(ex);
	const struct service *service;
	const struct rpc_method *method = find_method(ex->request.path, &service);
	const struct route *route;
	struct route_call call;

	if (method) {
		rpc_dispatch(ex, method, service->of(app), user_name);
		return;
	}
	route = router_find(&router, &ex->request, &call);
	if (route)
		router_serve(&router, route, ex, &call);
	else if (str_starts_with(ex->request.path, STR(JOBS_REST_PREFIX)))
		jobs_rest_serve(ex, app->jobs);
	else
		refuse_method(ex);
}

static void dispatch(struct http_exchange *ex)
{
	struct app *app = app_of(ex);
	struct route_call call;
	const struct route *route = router_find(&router, &ex->request, &call);
	const struct service *service;
	const struct rpc_method *method;
	const char *user_name;
	struct str name;

	if (cors_apply(ex))
		return;
	if (!(route && route->is_open) && !auth_pass_token(ex, &app->sandbox))
		return;
	if (!auth_basic_name(ex, &name)) {
		serve(ex, NULL);
		return;
	}
	method = find_method(ex->request.path, &service);
	if (method && method->looks_user_up) {
		user_name = auth_take_name(ex, name);
		if (user_name)
			rpc_dispatch(ex, method, service->of(app), user_name);
		return;
	}
	auth_check_user(ex, &app->sandbox, name, serve);
}

static void on_bad_request(struct http_exchange *ex, int status, const char *reason)
{
	http_response_header(ex, STR("Vary"), STR("Origin"));
	http_respond_error(ex, status, "%s", reason);
}

static void on_finished(struct http_exchange *ex, int status)
{
	const struct http_request *request = &ex->request;
	/* What hosts ask all day is of no interest while it goes well. */
	bool is_routine = ex->status < 400 && (str_equal(request->path, STR("/health")) ||
					       str_equal(request->path, STR("/metrics")));

	if (status < 0) {
		log_info("http", "request cut", LOG_STR("method", request->method),
			 LOG_STR("path", request->path), LOG_S("reason", errno_text(status)),
			 LOG_I("received", ex->received), LOG_I("sent", ex->sent),
			 LOG_S("peer", ex->peer));
		return;
	}
	LOG_AT(is_routine ? LOG_DEBUG : LOG_INFO, "http", "request",
	       LOG_STR("method", request->method), LOG_STR("path", request->path),
	       LOG_I("status", ex->status), LOG_I("ms", loop_now_ms(ex->loop) - ex->started_ms),
	       LOG_I("received", ex->received), LOG_I("sent", ex->sent), LOG_S("peer", ex->peer));
}

struct http_server_config routes_server_config(struct app *app)
{
	return (struct http_server_config){
		.dispatch = dispatch,
		.on_bad_request = on_bad_request,
		.on_finished = on_finished,
		.user = app,
		.idle_timeout_ms = HTTP_IDLE_TIMEOUT_MS,
		.connections_max = size_min(HTTP_CONNECTIONS_MAX,
					    descriptors_share(DESCRIPTORS_PARTS_CONNECTIONS)),
		.knows_clients = true,
	};
}
