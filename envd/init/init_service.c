#include "envd/init/init_service.h"

#include "envd/host/metadata.h"
#include "envd/host/volumes.h"
#include "envd/limits.h"
#include "envd/snapshot/freezer.h"
#include "envd/init/init.h"
#include "lib/budget.h"
#include "lib/job.h"
#include "lib/json_writer.h"
#include "lib/log.h"

#define BODY_FIRST_BYTES 1024
#define AUDIT_BYTES_MAX 256

struct init_call {
	struct http_exchange *ex;
	struct sandbox *sandbox;
	struct turn turn;
	struct job clock_job;
	char *body;
	size_t body_len, body_capacity;
	struct share share; /* of that memory */
	bool is_counted; /* among the calls */
	struct arena arena;
	struct init_request request;
	int clock_status;
	struct metadata_check *check; /* NULL: none is under way */
	struct ca_install *ca_install; /* the same */
	bool is_checked; /* what the metadata service says was just taken over */
	bool has_waited, decided;
	/* From the authorisation on the call is completed and the workload thawed, whatever
	 * happens. */
	bool is_bound;
	struct freezer_call freezer_call;
	int status;
	const char *content_type;
	struct str text;
};

/* Of all requests, of all loops: bodies on their way. */
static struct budget bodies = {.max = INIT_BODIES_BYTES_MAX};
static _Thread_local size_t calls;

struct budget *init_bodies_budget(void)
{
	return &bodies;
}

static void drop_body(struct init_call *call)
{
	if (!call->body)
		return;
	wipe(call->body, call->body_len);
	free(call->body);
	share_release(&call->share);
	call->body = NULL;
	call->body_len = call->body_capacity = 0;
}

/* The call is over: secrets go, the next in line comes. */
static void finish(struct init_call *call)
{
	call->decided = true;
	drop_body(call);
	if (call->is_counted)
		calls--;
	call->is_counted = false;
	arena_release_wiped(&call->arena);
	call->request = (struct init_request){0};
	turn_leave(&call->sandbox->init_turns, &call->turn);
}

static void respond(struct init_call *call)
{
	struct http_exchange *ex = call->ex;
	bool is_held = call->is_bound;

	call->is_bound = false;
	finish(call);
	http_respond(ex, call->status, call->content_type, call->text);
	if (is_held)
		http_exchange_release(ex);
}

static void on_thawed(struct freezer_call *freezer_call)
{
	struct init_call *call = container_of(freezer_call, struct init_call, freezer_call);

	if (freezer_call->status < 0)
		log_error("envd", "the workload cannot be thawed",
			  LOG_S("error", errno_text(freezer_call->status)));
	respond(call);
}

static bool has_freezer(const struct init_call *call)
{
	return call->sandbox->freezer && call->sandbox->freezer->has_cgroups;
}

/* `text` is constant, or lives in the exchange's arena. */
static void answer(struct init_call *call, int status, const char *content_type, struct str text)
{
	call->status = status;
	call->content_type = content_type;
	call->text = text;
	if (!call->is_bound || !has_freezer(call)) {
		respond(call);
		return;
	}
	call->freezer_call = (struct freezer_call){0};
	freezer_start(call->sandbox->freezer, &call->freezer_call, FREEZER_THAW, true, on_thawed);
}

static void answer_done(struct init_call *call)
{
	http_response_header(call->ex, STR("Cache-Control"), STR("no-store"));
	answer(call, 204, NULL, STR(""));
}

static void complete(struct init_call *call)
{
	struct sandbox *sandbox = call->sandbox;

	sandbox->initialised = true;
	log_info("envd", "initialised", LOG_B("token", sandbox->access_token != NULL),
		 LOG_I("environment", sandbox->environment.count),
		 LOG_S("user", sandbox->default_user));
	if (sandbox->metadata && !call->is_checked)
		metadata_service_refresh(sandbox->metadata);
	answer_done(call);
}

/* What was applied before stays. */
static void answer_failure(struct init_call *call, int status, const char *what,
			   const struct err *err)
{
	const char *text = arena_printf(&call->ex->arena, "%s: %s", what, err->message);

	log_error("envd", "init failed", LOG_S("step", what), LOG_S("error", err->message));
	http_response_header(call->ex, STR("X-Content-Type-Options"), STR("nosniff"));
	answer(call, status, "text/plain; charset=utf-8", str_of(text ? text : what));
}

static void on_volumes_mounted(void *user, int status, const struct err *err)
{
	struct init_call *call = user;

	if (status == 0)
		complete(call);
	else
		answer_failure(call, 400, "failed to setup NFS volumes", err);
}

static void mount_volumes(struct init_call *call)
{
	const struct init_request *request = &call->request;

	if (request->volume_count && call->sandbox->volumes)
		volumes_mount(call->sandbox->volumes, request->volumes, request->volume_count,
			      request->lifecycle_id ? request->lifecycle_id : "",
			      on_volumes_mounted, call);
	else
		complete(call);
}

static void on_ca_installed(void *user, int status, const struct err *err)
{
	struct init_call *call = user;

	call->ca_install = NULL;
	if (status == 0)
		mount_volumes(call);
	else
		answer_failure(call, status == -ECANCELED ? 503 : 400,
			       "failed to install CA bundle", err);
}

static void apply(struct init_call *call)
{
	struct sandbox *sandbox = call->sandbox;
	const struct init_request *request = &call->request;
	struct ca_install *install;

	init_apply(sandbox, request);
	if (sandbox->is_standalone) {
		if (request->hyperloop_address || request->ca_bundle || request->volume_count)
			log_info("envd",
				 "this machine's files are left alone, as envd is standalone");
		complete(call);
		return;
	}
	if (request->hyperloop_address)
		hyperloop_set(&sandbox->hyperloop, request->hyperloop_address,
			      &sandbox->environment);
	if (!request->ca_bundle) {
		mount_volumes(call);
		return;
	}
	install = ca_bundle_install(&sandbox->ca_bundle, request->ca_bundle, on_ca_installed, call);
	if (install) /* otherwise the call may be gone */
		call->ca_install = install;
}

static void set_clock(struct job *job)
{
	struct init_call *call = container_of(job, struct init_call, clock_job);

	call->clock_status = call->sandbox->clock->set_ns(call->request.timestamp_ns);
}

/* The client may be gone; a request that has come this far is completed all the same. */
static void on_clock_set(struct job *job)
{
	struct init_call *call = container_of(job, struct init_call, clock_job);

	if (call->clock_status < 0)
		log_error("envd", "the clock cannot be set",
			  LOG_S("error", errno_text(call->clock_status)));
	else
		log_info("envd", "the clock was set");
	apply(call);
}

static bool start_setting_clock(struct init_call *call)
{
	const struct sandbox *sandbox = call->sandbox;

	if (!call->request.has_timestamp || sandbox->is_standalone ||
	    !clock_is_off(sandbox->clock->now_ns(), call->request.timestamp_ns))
		return false;
	if (job_run(sandbox->loop, &call->clock_job, JOB_QUICK, set_clock, on_clock_set) < 0) {
		log_error("envd", "the clock cannot be set",
			  LOG_S("error", "too much work is waiting"));
		return false;
	}
	return true;
}

/* Authorised: what the request asks for, if it is not outdated. */
static void proceed(struct init_call *call)
{
	if (!init_is_current(call->sandbox, &call->request)) {
		log_info("envd", "init ignored", LOG_S("reason", "a newer one was applied"));
		answer_done(call);
		return;
	}
	if (!start_setting_clock(call))
		apply(call);
}

/* In the exchange's arena; NULL: there is no memory. */
static const char *write_audit(struct arena *arena, const struct freeze_audit_result *audit)
{
	const char *text = NULL;
	struct json_writer w;
	struct buf out;

	buf_init(&out, AUDIT_BYTES_MAX);
	json_writer_init(&w, &out);
	json_writer_object(&w, NULL);
	json_writer_uint(&w, "visited", audit->visited);
	json_writer_uint(&w, "frozen", audit->frozen);
	json_writer_uint(&w, "escaped", audit->escaped);
	json_writer_uint(&w, "violations", audit->violations);
	json_writer_bool(&w, "truncated", audit->truncated);
	json_writer_object_end(&w);
	if (json_writer_status(&w) == 0)
		text = arena_str(arena, buf_str(&out)).p;
	buf_fini(&out);
	return text;
}

static void on_audited(struct freezer_call *freezer_call)
{
	struct init_call *call = container_of(freezer_call, struct init_call, freezer_call);
	const char *text;

	if (freezer_call->status == 1) {
		text = write_audit(&call->ex->arena, &freezer_call->audit);
		if (text)
			http_response_header(call->ex, STR("X-Envd-Freeze-Audit"), str_of(text));
	}
	proceed(call);
}

/* Looks at a freeze before anything is thawed, then goes on. */
static void bind_call(struct init_call *call)
{
	call->is_bound = call->ex->client_is_known = true;
	http_exchange_hold(call->ex);
	if (has_freezer(call) && call->sandbox->freezer->audit_is_due)
		freezer_start(call->sandbox->freezer, &call->freezer_call, FREEZER_AUDIT, true,
			      on_audited);
	else
		proceed(call);
}

static void authorise(struct init_call *call, enum init_metadata metadata)
{
	switch (init_authorise(call->sandbox, &call->request, metadata)) {
	case INIT_AUTHORISED:
		bind_call(call);
		break;
	case INIT_TOKEN_WRONG:
		answer(call, 401, "text/plain; charset=utf-8",
		       STR("access token validation failed"));
		break;
	case INIT_RESET_NOT_AUTHORISED:
		answer(call, 401, "text/plain; charset=utf-8",
		       STR("access token reset not authorized"));
		break;
	}
}

static void on_checked(void *user, int status, const struct metadata *metadata, bool is_kept);

/* Who leaves meanwhile gives up the turn at once, and the service's answer is there for who comes
 * next: hosts give each attempt 50 ms, and send another one right away (contract/envd.md 1.15). */
static void check_token(struct init_call *call)
{
	if (call->ex->peer_ended) {
		answer(call, 503, NULL, STR("")); /* as if it had left while waiting for its turn */
		return;
	}
	call->ex->abort_on_eof = true;
	call->check = metadata_service_check(call->sandbox->metadata, on_checked, call);
}

static void on_checked(void *user, int status, const struct metadata *metadata, bool is_kept)
{
	struct init_call *call = user;
	enum init_metadata found = status < 0 ? INIT_METADATA_NONE
					      : init_compare_hash(&call->request,
								  metadata->token_hash);

	call->check = NULL;
	if (is_kept && found == INIT_METADATA_DIFFERS) {
		/* It may be from before a pause. */
		check_token(call);
		return;
	}
	call->ex->abort_on_eof = false;
	call->is_checked = status == 0;
	if (status < 0)
		log_warn("envd", "the metadata service does not answer",
			 LOG_S("error", errno_text(status)));
	authorise(call, found);
}

static void on_turn(struct turn *turn)
{
	struct init_call *call = container_of(turn, struct init_call, turn);
	const struct sandbox *sandbox = call->sandbox;
	struct err err;

	/* Its sender has given up and sent another one, which is in the queue behind it. */
	if (call->has_waited && call->ex->peer_ended) {
		answer(call, 503, NULL, STR(""));
		return;
	}
	if (init_parse((struct str){call->body, call->body_len}, &call->arena, &call->request,
		       &err) < 0) {
		log_info("envd", "init refused", LOG_S("reason", err.message));
		answer(call, err.kind == ERR_RESOURCE_EXHAUSTED ? 413 : 400, NULL, STR(""));
		return;
	}
	drop_body(call);
	if (sandbox->metadata && !init_is_trusted(sandbox, &call->request))
		check_token(call);
	else
		authorise(call, INIT_METADATA_NONE);
}

static void refuse_size(struct init_call *call)
{
	finish(call);
	http_respond_error(call->ex, 413, "the body is larger than %d bytes", INIT_BODY_BYTES_MAX);
}

static void refuse_load(struct init_call *call)
{
	finish(call);
	http_respond_error(call->ex, 503, "too many init requests at once");
}

/* Not a buf: one that grows leaves its old memory, secrets included, to the allocator. */
static bool reserve(struct init_call *call, size_t needed)
{
	size_t capacity = size_max(call->body_capacity, BODY_FIRST_BYTES);
	char *body;

	while (capacity < needed)
		capacity *= 2;
	if (capacity == call->body_capacity)
		return true;
	if (!share_take(&call->share, capacity - call->body_capacity))
		return false;
	body = malloc(capacity);
	if (!body)
		return false;
	if (call->body) {
		memcpy(body, call->body, call->body_len);
		wipe(call->body, call->body_len);
		free(call->body);
	}
	call->body = body;
	call->body_capacity = capacity;
	return true;
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct init_call *call = ex->user;

	if (call->decided)
		return;
	if (len > INIT_BODY_BYTES_MAX - call->body_len) {
		refuse_size(call);
		return;
	}
	if (!reserve(call, call->body_len + len)) {
		refuse_load(call);
		return;
	}
	memcpy(call->body + call->body_len, data, len);
	call->body_len += len;
}

static void on_body_end(struct http_exchange *ex)
{
	struct init_call *call = ex->user;

	if (call->decided)
		return;
	if (turn_take(&call->sandbox->init_turns, &call->turn, on_turn) < 0)
		refuse_load(call);
	else
		call->has_waited = call->turn.state == TURN_WAITING;
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct init_call *call = ex->user;

	if (call->check)
		metadata_check_leave(call->check);
	if (call->ca_install)
		ca_install_cancel(call->ca_install);
	else if (!call->is_bound && !call->decided)
		finish(call);
}

static const struct http_exchange_handler handler = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

void init_service_post(struct http_exchange *ex, struct sandbox *sandbox, const char *version)
{
	struct init_call *call = arena_new(&ex->arena, struct init_call);

	http_response_header(ex, STR("X-Envd-Version"), str_of(version));
	if (!call) {
		http_respond_error(ex, 431, "the request's head needs too much memory");
		return;
	}
	call->ex = ex;
	call->sandbox = sandbox;
	arena_init(&call->arena, INIT_ARENA_BYTES);
	if (ex->request.length > INIT_BODY_BYTES_MAX) {
		refuse_size(call);
		return;
	}
	calls++;
	call->is_counted = true;
	share_init(&call->share, &bodies,
		   share_exempt(INIT_EXEMPT_BYTES_MAX, calls, BODY_FIRST_BYTES, INIT_EXEMPT_BYTES));
	http_exchange_set_handler(ex, &handler, call);
	http_request_body_start(ex);
}
