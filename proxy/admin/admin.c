#include "proxy/admin/admin.h"

#include <time.h>

#include "lib/http_server.h"
#include "lib/log.h"
#include "lib/router.h"
#include "proxy/admin/activity.h"
#include "proxy/admin/certificates.h"
#include "proxy/admin/links.h"
#include "proxy/admin/unix_socket.h"
#include "proxy/admin/watch.h"
#include "proxy/limits.h"

#define METRICS_BYTES_MAX (256 * 1024)
#define SANDBOX_BYTES_MAX (16 * 1024)

struct admin {
	struct admin_config config;
	struct loop *loop;
	struct http_server *server;
	struct watches watches;
	struct activity_reports activity;
	bool draining;
	void (*closed)(void *user);
	void *closed_user;
};

static struct admin *admin_of(const struct http_exchange *ex)
{
	return ex->server_user;
}

/* ---- answers ---- */

static int status_of(const struct err *err)
{
	/* A condition of the caller's that does not hold is a conflict, not a bad request. */
	return err->kind == ERR_FAILED_PRECONDITION ? 409 : err_kind_http_status(err->kind);
}

static void respond_err(struct http_exchange *ex, const struct err *err)
{
	http_respond_error(ex, status_of(err), "%s", err->message);
}

/* With what was written; `written` says whether all of it was. */
static void respond_json(struct http_exchange *ex, int status, struct buf *body, int written)
{
	if (written == 0)
		http_respond(ex, status, "application/json", buf_str(body));
	else
		http_respond_error(ex, 500, "out of memory");
	buf_fini(body);
}

static void respond_record(struct http_exchange *ex, int status,
			   const struct catalog_record *record)
{
	struct json_writer w;
	struct buf body;
	int written;

	buf_init(&body, SANDBOX_BYTES_MAX);
	json_writer_init(&w, &body);
	sandbox_json_write(&w, NULL, record);
	written = json_writer_status(&w);
	respond_json(ex, status, &body, written < 0 ? written : buf_append_str(&body, STR("\n")));
}

/* ---- sandboxes ---- */

/* The "lifecycle_id" a change is bound to; "" when to none. NULL after an answer was given. */
static const char *expected_lifecycle(struct http_exchange *ex)
{
	struct str value;
	int count = http_query_get(ex->request.query, STR("lifecycle_id"), &ex->arena, &value);
	const char *expected;

	if (count == 0)
		return "";
	expected = count == 1 ? arena_strndup(&ex->arena, value.p, value.len) : NULL;
	if (!expected)
		http_respond_error(ex, 400, "lifecycle_id must be given once");
	return expected;
}

/* An address that would never be dialled is better refused while somebody looks. */
static bool address_allows(struct admin *admin, struct http_exchange *ex,
			   const struct sandbox_patch *patch)
{
	union address address;
	enum address_verdict verdict;

	if (!sandbox_patch_says(patch, address) ||
	    address_parse(str_of(patch->values.address), &address) < 0)
		return true;
	verdict = address_guard_check(admin->config.guard, &address, false);
	if (verdict == ADDRESS_OK)
		return true;
	http_respond_error(ex, 400, "address %s is %s", patch->values.address,
			   address_verdict_text(verdict));
	return false;
}

/* A change on its way; its texts are in the exchange's arena. */
struct change {
	struct record_change change;
	struct http_exchange *ex;
	struct sandbox_entry entry;
	struct sandbox_patch patch;
};

static void log_change(const struct record_change *change)
{
	static const char *const events[][2] = {
		[RECORD_PUT] = {"sandbox put", "shared sandbox put"},
		[RECORD_PATCH] = {"sandbox changed", "shared sandbox changed"},
		[RECORD_REMOVE] = {"sandbox removed", "shared sandbox removed"},
	};
	const char *event = events[change->kind][change->is_shared];

	if (!change->record)
		log_info("admin", event, LOG_STR("sandbox", change->id));
	else
		log_info("admin", event, LOG_STR("sandbox", change->id),
			 LOG_S("state", sandbox_state_name(change->record->entry.state)),
			 LOG_S("lifecycle", change->record->entry.lifecycle_id));
}

static void on_changed(struct record_change *record_change, int status, const struct err *err)
{
	struct change *change = container_of(record_change, struct change, change);
	bool is_new = record_change->kind == RECORD_PUT && record_change->is_new;

	if (status == 0)
		log_change(record_change);
	if (status < 0)
		respond_err(change->ex, err);
	else if (record_change->record)
		respond_record(change->ex, is_new ? 201 : 200, record_change->record);
	else
		http_respond(change->ex, 204, NULL, (struct str){0});
	http_exchange_release(change->ex);
	free(change);
}

static struct change *change_new(struct http_exchange *ex, const struct route_call *call,
				 enum record_change_kind kind, const char *expected)
{
	struct change *change = xcalloc(1, sizeof(*change));

	change->ex = ex;
	change->change = (struct record_change){
		.kind = kind,
		.id = call->parameters[0],
		.expected = expected,
		.entry = &change->entry,
		.patch = &change->patch,
		.done = on_changed,
	};
	http_exchange_hold(ex);
	return change;
}

static void change_drop(struct change *change)
{
	http_exchange_release(change->ex);
	free(change);
}

/* What the body says. False when the request was answered. */
static bool read_patch(struct change *change, const struct route_call *call)
{
	struct http_exchange *ex = change->ex;
	struct err err;

	change->change.patch_json = buf_str(call->body);
	if (sandbox_json_read(change->change.patch_json, &ex->arena, &change->patch, &err) < 0) {
		respond_err(ex, &err);
		return false;
	}
	return address_allows(admin_of(ex), ex, &change->patch);
}

static void handle_change(struct http_exchange *ex, const struct route_call *call,
			  enum record_change_kind kind)
{
	const char *expected = expected_lifecycle(ex);
	struct change *change;
	char *id;

	if (!expected)
		return;
	id = arena_strndup(&ex->arena, call->parameters[0].p, call->parameters[0].len);
	if (!id) {
		http_exchange_abort(ex);
		return;
	}
	change = change_new(ex, call, kind, expected);
	if (kind != RECORD_REMOVE && !read_patch(change, call)) {
		change_drop(change);
		return;
	}
	change->change.id = str_of(id);
	sandbox_entry_init(&change->entry, id);
	if (kind == RECORD_PUT)
		sandbox_patch_apply(&change->entry, &change->patch);
	record_writer_change(admin_of(ex)->config.writer, &change->change);
}

static void handle_put(struct http_exchange *ex, const struct route_call *call)
{
	handle_change(ex, call, RECORD_PUT);
}

static void handle_patch(struct http_exchange *ex, const struct route_call *call)
{
	handle_change(ex, call, RECORD_PATCH);
}

static void handle_delete(struct http_exchange *ex, const struct route_call *call)
{
	handle_change(ex, call, RECORD_REMOVE);
}

static void handle_get(struct http_exchange *ex, const struct route_call *call)
{
	struct admin *admin = admin_of(ex);
	struct str id = call->parameters[0];
	struct catalog_record *record;

	if (catalog_find(admin->config.catalog, id, &record) < 0) {
		http_respond_error(ex, 404, "no such sandbox");
		return;
	}
	respond_record(ex, 200, record);
	catalog_record_release(record);
}

static void handle_links(struct http_exchange *ex, const struct route_call *call)
{
	struct admin *admin = admin_of(ex);
	struct catalog_record *record;
	struct buf body;
	struct err err;

	if (catalog_find(admin->config.catalog, call->parameters[0], &record) < 0) {
		http_respond_error(ex, 404, "no such sandbox");
		return;
	}
	buf_init(&body, SANDBOX_BYTES_MAX);
	http_response_header(ex, STR("Cache-Control"), STR("no-store"));
	if (links_write(record, buf_str(call->body), (int64_t)time(NULL), &ex->arena, &body, &err) <
	    0)
		respond_err(ex, &err);
	else
		http_respond(ex, 201, "application/json", buf_str(&body));
	buf_fini(&body);
	catalog_record_release(record);
}

static void handle_sandboxes(struct http_exchange *ex, const struct route_call *call)
{
	struct admin *admin = admin_of(ex);
	struct str query = ex->request.query, watch, revision;
	uint64_t from = 0;
	int watching, given;

	watching = http_query_get(query, STR("watch"), &ex->arena, &watch);
	given = http_query_get(query, STR("revision"), &ex->arena, &revision);
	if (given > 0 && str_to_u64(revision, UINT64_MAX, &from) < 0) {
		http_respond_error(ex, 400, "revision must be a number");
		return;
	}
	if (watching > 0 && !str_equal(watch, STR("0")) && !str_equal(watch, STR("false")))
		watches_follow(&admin->watches, ex, given > 0, from);
	else
		watches_list(&admin->watches, ex);
}

/* ---- the rest ---- */

static void respond_catalog(struct admin *admin, struct http_exchange *ex)
{
	struct catalog *catalog = admin->config.catalog;
	struct json_writer w;
	struct buf body;

	buf_init(&body, SANDBOX_BYTES_MAX);
	json_writer_init(&w, &body);
	json_writer_object(&w, NULL);
	json_writer_bool(&w, "complete", catalog_is_complete(catalog));
	json_writer_uint(&w, "count", catalog_count(catalog));
	json_writer_uint(&w, "revision", catalog_revision(catalog));
	respond_json(ex, 200, &body, json_writer_end_line(&w));
}

static void handle_put_catalog(struct http_exchange *ex, const struct route_call *call)
{
	struct admin *admin = admin_of(ex);
	const struct json_value *object, *complete;
	struct err err;

	if (json_parse(buf_str(call->body), &ex->arena, &object, &err) < 0) {
		respond_err(ex, &err);
		return;
	}
	complete = json_get(object, STR("complete"));
	if (!complete || json_type(complete) != JSON_BOOL || json_length(object) != 1) {
		http_respond_error(ex, 400, "the body must be {\"complete\": true or false}");
		return;
	}
	catalog_set_complete(admin->config.catalog, json_bool(complete));
	respond_catalog(admin, ex);
}

static void handle_get_catalog(struct http_exchange *ex, const struct route_call *call)
{
	respond_catalog(admin_of(ex), ex);
}

static void handle_activity(struct http_exchange *ex, const struct route_call *call)
{
	activity_reports_answer(&admin_of(ex)->activity, ex);
}

static void handle_reload(struct http_exchange *ex, const struct route_call *call)
{
	certificates_reload(admin_of(ex)->config.certificates, ex);
}

static void handle_metrics(struct http_exchange *ex, const struct route_call *call)
{
	struct admin *admin = admin_of(ex);
	struct buf text;

	buf_init(&text, METRICS_BYTES_MAX);
	if (admin->config.write_metrics(&text, admin->config.user) == 0)
		http_respond(ex, 200, "text/plain; version=0.0.4", buf_str(&text));
	else
		http_respond_error(ex, 500, "out of memory");
	buf_fini(&text);
}

static void handle_health(struct http_exchange *ex, const struct route_call *call)
{
	struct admin *admin = admin_of(ex);

	http_respond(ex, admin->draining ? 503 : 200, "text/plain; charset=utf-8",
		     admin->draining ? STR("draining\n") : STR("healthy\n"));
}

/* A page that a browser shows may not use the API, not even under a name that its owner has
 * pointed at this machine. */
static bool comes_from_page(const struct http_request *request)
{
	static const struct host_name_headers none;
	struct host_name target;
	struct str site = http_headers_get(&request->headers, STR("Sec-Fetch-Site"));

	/* Images and the like come without an Origin; "none" is what a person typed. */
	if (http_headers_get(&request->headers, STR("Origin")).p ||
	    (site.p && !str_equal_nocase(site, STR("none"))))
		return true;
	/* "localhost" and IP literals cannot be re-pointed; they are what is "unrouted" here. */
	return host_name_route(request->authority, &none, &target) != HOST_NAME_UNROUTED ||
	       target.domain.p;
}

static bool is_authorized(const struct admin *admin, const struct http_request *request)
{
	struct str given = http_headers_get(&request->headers, STR("Authorization"));

	if (!*admin->config.token)
		return !comes_from_page(request);
	if (given.len < 7 || !str_equal_nocase((struct str){given.p, 7}, STR("Bearer ")) ||
	    http_headers_count(&request->headers, STR("Authorization")) != 1)
		return false;
	return str_equal_constant_time(str_trim((struct str){given.p + 7, given.len - 7}),
				       str_of(admin->config.token));
}

#define BODY PROXY_ADMIN_BODY_BYTES_MAX
static const struct route routes[] = {
	{"GET", "/health", handle_health, .is_open = true},
	{"HEAD", "/health", handle_health, .is_open = true},
	{"GET", "/sandboxes", handle_sandboxes},
	{"GET", "/sandboxes/{id}", handle_get},
	{"HEAD", "/sandboxes/{id}", handle_get},
	{"PUT", "/sandboxes/{id}", handle_put, BODY},
	{"PATCH", "/sandboxes/{id}", handle_patch, BODY},
	{"DELETE", "/sandboxes/{id}", handle_delete},
	{"POST", "/sandboxes/{id}/links", handle_links, BODY},
	{"GET", "/activity", handle_activity},
	{"GET", "/catalog", handle_get_catalog},
	{"PUT", "/catalog", handle_put_catalog, BODY},
	{"POST", "/certificates/reload", handle_reload},
	{"GET", "/metrics", handle_metrics},
	{"HEAD", "/metrics", handle_metrics},
};
#undef BODY

static const struct router router = {.routes = routes, .count = ARRAY_LENGTH(routes)};

static void refuse_id(struct http_exchange *ex)
{
	http_respond_error(ex, 400, "a sandbox id is [a-z0-9]+, at most %d bytes",
			   HOST_NAME_ID_BYTES_MAX);
}

static void refuse(struct http_exchange *ex)
{
	const char *allowed = router_allowed(&router, ex);

	if (allowed) {
		http_response_header(ex, STR("Allow"), str_of(allowed));
		http_respond_error(ex, 405, "method not allowed, only %s", allowed);
	} else if (str_starts_with(ex->request.path, STR("/sandboxes/"))) {
		refuse_id(ex); /* one with a slash in it */
	} else {
		http_respond_error(ex, 404, "no such resource");
	}
}

/* Of all paths the one parameter is a sandbox. */
static bool names_a_sandbox(const struct route_call *call)
{
	return !call->parameters[0].p || host_name_is_id(call->parameters[0]);
}

static void dispatch(struct http_exchange *ex)
{
	struct admin *admin = admin_of(ex);
	struct route_call call;
	const struct route *route = router_find(&router, &ex->request, &call);

	/* However a body is made, there is room to say what is wrong with it. */
	ex->arena.budget = PROXY_ADMIN_ARENA_BYTES;
	if (!(route && route->is_open) && !is_authorized(admin, &ex->request)) {
		if (*admin->config.token)
			http_response_header(ex, STR("WWW-Authenticate"), STR("Bearer"));
		http_respond_error(ex, *admin->config.token ? 401 : 403,
				   *admin->config.token
					   ? "the admin token is missing or wrong"
					   : "not for web pages or foreign host names");
	} else if (!route) {
		refuse(ex);
	} else if (!names_a_sandbox(&call)) {
		refuse_id(ex);
	} else {
		router_serve(&router, route, ex, &call);
	}
}

static int listen_on(struct loop *loop, const struct http_server_config *server,
		     const struct admin_config *config, struct http_server **ret_server)
{
	auto_close int fd = config->socket;
	int status = 0;

	if (fd < 0 && str_starts_with(str_of(config->address), STR("unix:")))
		status = unix_socket_listen(config->address + 5, &fd);
	else if (fd < 0)
		return http_server_listen(loop, server, config->address, config->port, ret_server);
	if (status == 0)
		status = http_server_listen_on(loop, server, fd, ret_server);
	if (status == 0)
		(void)take_fd(&fd);
	return status;
}

int admin_open(struct loop *loop, const struct admin_config *config, struct admin **ret_admin,
	       struct err *err)
{
	struct admin *admin = xcalloc(1, sizeof(*admin));
	const struct http_server_config server = {
		.dispatch = dispatch,
		.user = admin,
		.connections_max = PROXY_ADMIN_CONNECTIONS_MAX,
		.send_date = true,
	};
	union address listener;
	int status;

	admin->config = *config;
	admin->loop = loop;
	status = listen_on(loop, &server, config, &admin->server);
	if (status < 0) {
		free(admin);
		return err_set_sys(err, ERR_UNAVAILABLE, status,
				   "listen on %s port %u for the admin API", config->address,
				   config->port);
	}
	if (address_parse(str_of(config->address), &listener) == 0) {
		address_set_port(&listener, http_server_port(admin->server));
		address_guard_add_listener(config->guard, &listener);
	}
	watches_open(&admin->watches, loop, config->catalog);
	activity_reports_open(&admin->activity, loop, config->catalog);
	*ret_admin = admin;
	return 0;
}

unsigned admin_port(const struct admin *admin)
{
	return http_server_port(admin->server);
}

int admin_socket(const struct admin *admin)
{
	return http_server_fd(admin->server);
}

void admin_set_draining(struct admin *admin)
{
	admin->draining = true;
}

static void on_stopped(void *user)
{
	struct admin *admin = user;

	admin->server = NULL;
	admin->closed(admin->closed_user);
}

void admin_close(struct admin *admin, unsigned idle_ms, void (*closed)(void *user), void *user)
{
	admin->closed = closed;
	admin->closed_user = user;
	watches_close(&admin->watches);
	activity_reports_close(&admin->activity);
	http_server_stop_gently(admin->server, idle_ms, on_stopped, admin);
}

void admin_abort(struct admin *admin)
{
	if (admin->server)
		http_server_abort(admin->server);
}

void admin_free(struct admin *admin)
{
	free(admin);
}
