#include "envd/snapshot/snapshot_service.h"

#include "envd/limits.h"
#include "envd/snapshot/collapse.h"
#include "lib/json_writer.h"
#include "lib/log.h"

#define ANSWER_BYTES_MAX 1024

void snapshot_service_init(struct snapshot_service *service, struct loop *loop,
			   const char *cgroup_root)
{
	*service = (struct snapshot_service){.filesystem = &filesystem_freeze_root,
					     .maps = "/proc/self/maps"};
	freezer_init(&service->freezer, loop, cgroup_root);
	turn_queue_init(&service->filesystem_turns, loop, FREEZE_WAITERS_MAX);
}

void snapshot_service_close(struct snapshot_service *service)
{
	freezer_close(&service->freezer);
}

void snapshot_service_fini(struct snapshot_service *service)
{
	freezer_fini(&service->freezer);
	turn_queue_fini(&service->filesystem_turns);
}

static void forbid_caching(struct http_exchange *ex)
{
	http_response_header(ex, STR("Cache-Control"), STR("no-store"));
}

static void answer_done(struct http_exchange *ex)
{
	forbid_caching(ex);
	http_respond(ex, 204, NULL, STR(""));
}

static void answer_given_up(struct http_exchange *ex)
{
	http_respond(ex, 503, NULL, STR(""));
}

static void refuse_load(struct http_exchange *ex)
{
	http_respond_error(ex, 503, "too much work is waiting");
}

static void refuse_memory(struct http_exchange *ex)
{
	http_respond_error(ex, 431, "the request's head needs too much memory");
}

/* `write` writes one object of what it is given. */
static void answer_json(struct http_exchange *ex,
			void (*write)(struct json_writer *w, const void *result),
			const void *result)
{
	struct json_writer w;
	struct buf body;

	buf_init(&body, ANSWER_BYTES_MAX);
	json_writer_init(&w, &body);
	json_writer_object(&w, NULL);
	write(&w, result);
	if (json_writer_end_line(&w) < 0) {
		http_respond_error(ex, 500, "the answer needs too much memory");
	} else {
		forbid_caching(ex);
		http_respond(ex, 200, "application/json", buf_str(&body));
	}
	buf_fini(&body);
}

static void refuse_parameter(struct http_exchange *ex, const char *name, const char *reason)
{
	const char *message = arena_printf(&ex->arena, "Invalid format for parameter %s: %s\n",
					   name, reason);

	http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
	http_respond(ex, 400, "text/plain; charset=utf-8", str_of(message ? message : ""));
}

/* False when it has answered. */
static bool read_parameter(struct http_exchange *ex, const char *name, struct str *ret_value)
{
	int count = http_query_get(ex->request.query, str_of(name), &ex->arena, ret_value);
	const char *reason;

	if (count >= 0 && count <= 1)
		return true;
	reason = arena_printf(&ex->arena, "multiple values for single value parameter '%s'", name);
	if (count < 0)
		refuse_memory(ex);
	else
		refuse_parameter(ex, name, reason ? reason : "multiple values");
	return false;
}

static int parse_integer(struct str text, int64_t *ret_value)
{
	bool is_negative = text.len && *text.p == '-';
	uint64_t value;
	int status;

	if (text.len && (*text.p == '-' || *text.p == '+')) {
		text.p++;
		text.len--;
	}
	status = str_to_u64(text, INT64_MAX, &value);
	if (status == 0)
		*ret_value = is_negative ? -(int64_t)value : (int64_t)value;
	return status;
}

static bool read_integer(struct http_exchange *ex, const char *name, int64_t *ret_value)
{
	struct str text;
	const char *reason;
	int status;

	*ret_value = 0;
	if (!read_parameter(ex, name, &text))
		return false;
	if (!text.p)
		return true;
	status = parse_integer(text, ret_value);
	if (status == 0)
		return true;
	reason = arena_printf(
		&ex->arena,
		"error binding string parameter: strconv.ParseInt: parsing \"%.*s\": %s",
		(int)text.len, text.p, status == -ERANGE ? "value out of range" : "invalid syntax");
	refuse_parameter(ex, name, reason ? reason : "invalid syntax");
	return false;
}

/* What waits for the freezer; in the exchange's arena, held until the freezer is done with it. */
struct freezer_exchange {
	struct freezer_call call;
	struct http_exchange *ex;
	struct snapshot_service *service;
	struct log_flush flush;
};

static void on_freeze_closed(struct http_exchange *ex, int status)
{
	struct freezer_exchange *freezing = ex->user;

	freezer_cancel(&freezing->call);
}

static const struct http_exchange_handler freeze_handler = {.on_closed = on_freeze_closed};

static const char *mode_name(const struct freeze_result *result)
{
	return result->mode == FREEZE_HIERARCHY ? "hierarchy" : "legacy";
}

static void write_freeze(struct json_writer *w, const void *result)
{
	const struct freeze_result *freeze = result;

	json_writer_uint(w, "allowlisted", freeze->allowlisted);
	json_writer_uint(w, "failed", freeze->failed);
	json_writer_uint(w, "frozen", freeze->frozen);
	json_writer_text(w, "mode", str_of(mode_name(freeze)));
	json_writer_uint(w, "notFrozen", freeze->not_frozen);
	json_writer_uint(w, "preFrozen", freeze->pre_frozen);
	json_writer_uint(w, "requested", freeze->requested);
	json_writer_int(w, "sweepMs", freeze->sweep_ms);
	json_writer_bool(w, "truncated", freeze->truncated);
	json_writer_uint(w, "unobservable", freeze->unobservable);
	json_writer_uint(w, "visited", freeze->visited);
	json_writer_int(w, "waitMs", freeze->wait_ms);
}

static void log_freeze(const struct freezer_call *call)
{
	if (!call->freezer->has_cgroups) {
		log_warn("freeze", "there are no cgroups to freeze");
		return;
	}
	const struct freeze_result *result = &call->frozen;

	LOG_AT(result->failed || result->not_frozen ? LOG_WARN : LOG_INFO, "freeze",
	       "workload frozen", LOG_S("mode", mode_name(result)),
	       LOG_I("requested", result->requested), LOG_I("frozen", result->frozen),
	       LOG_I("not_frozen", result->not_frozen), LOG_I("failed", result->failed),
	       LOG_I("sweep_ms", result->sweep_ms), LOG_I("wait_ms", result->wait_ms));
}

static void answer_frozen(struct log_flush *flush)
{
	struct freezer_exchange *freezing = container_of(flush, struct freezer_exchange, flush);
	struct http_exchange *ex = freezing->ex;

	if (freezing->call.request.wait_ms <= 0)
		answer_done(ex);
	else
		answer_json(ex, write_freeze, &freezing->call.frozen);
	http_exchange_release(ex);
}

/* `answer` comes once the log is out: at once, or from the loop. */
static void flush_log(const struct snapshot_service *service, struct log_flush *flush,
		      void (*answer)(struct log_flush *flush))
{
	if (!service->exporter || !log_exporter_flush(service->exporter, flush, answer))
		answer(flush);
}

static void on_frozen(struct freezer_call *call)
{
	struct freezer_exchange *freezing = container_of(call, struct freezer_exchange, call);
	struct http_exchange *ex = freezing->ex;

	if (call->status == 0) {
		log_freeze(call);
		flush_log(freezing->service, &freezing->flush, answer_frozen);
		return;
	}
	if (call->status == -EAGAIN)
		refuse_load(ex);
	else
		answer_given_up(ex);
	http_exchange_release(ex);
}

void snapshot_service_freeze(struct http_exchange *ex, struct snapshot_service *service)
{
	struct freezer_exchange *freezing = arena_new(&ex->arena, struct freezer_exchange);
	struct str mode;
	int64_t cgroups_max, wait_ms;

	if (!freezing) {
		refuse_memory(ex);
		return;
	}
	if (!read_parameter(ex, "mode", &mode) || !read_integer(ex, "maxCgroups", &cgroups_max) ||
	    !read_integer(ex, "maxWaitMs", &wait_ms))
		return;
	*freezing = (struct freezer_exchange){.ex = ex, .service = service};
	freezing->call.request.mode = str_equal(mode, STR("hierarchy")) && !service->is_standalone
					      ? FREEZE_HIERARCHY
					      : FREEZE_LEGACY;
	freezing->call.request.cgroups_max = freeze_clamp_cgroups(cgroups_max);
	freezing->call.request.wait_ms = wait_ms;
	ex->abort_on_eof = true;
	http_exchange_set_handler(ex, &freeze_handler, freezing);
	http_exchange_hold(ex);
	freezer_start(&service->freezer, &freezing->call, FREEZER_FREEZE, false, on_frozen);
}

static void on_closed(struct http_exchange *ex, int status)
{
}

/* For what is completed also when its client has left. */
static const struct http_exchange_handler patient_handler = {.on_closed = on_closed};

static void on_thawed(struct freezer_call *call)
{
	struct freezer_exchange *thawing = container_of(call, struct freezer_exchange, call);
	struct http_exchange *ex = thawing->ex;

	if (call->status == 0) {
		if (call->freezer->has_cgroups)
			log_info("freeze", "workload thawed",
				 LOG_I("cgroups", call->thawed.thawed));
		answer_done(ex);
	} else if (call->status == -EAGAIN) {
		refuse_load(ex);
	} else {
		http_respond_error(
			ex, 500, "thaw: %zu cgroups could not be thawed%s", call->thawed.failed,
			call->thawed.truncated ? ", and there are too many to look at all" : "");
	}
	http_exchange_release(ex);
}

void snapshot_service_unfreeze(struct http_exchange *ex, struct snapshot_service *service)
{
	struct freezer_exchange *thawing = arena_new(&ex->arena, struct freezer_exchange);

	if (!thawing) {
		refuse_memory(ex);
		return;
	}
	*thawing = (struct freezer_exchange){.ex = ex};
	http_exchange_set_handler(ex, &patient_handler, thawing);
	http_exchange_hold(ex);
	freezer_start(&service->freezer, &thawing->call, FREEZER_THAW, false, on_thawed);
}

/* A freeze or thaw of the file system. */
struct filesystem_call {
	struct job job;
	struct turn turn;
	struct http_exchange *ex;
	struct snapshot_service *service;
	struct log_flush flush;
	bool freezes;
	struct err err;
	int status;
};

static void run_filesystem_call(struct job *job)
{
	struct filesystem_call *call = container_of(job, struct filesystem_call, job);
	const struct filesystem_freeze *filesystem = call->service->filesystem;

	call->status = call->freezes ? filesystem_freeze(filesystem, &call->err)
				     : filesystem_thaw(filesystem, &call->err);
}

static void finish_filesystem_call(struct filesystem_call *call)
{
	turn_leave(&call->service->filesystem_turns, &call->turn);
	http_exchange_release(call->ex);
}

static void answer_filesystem_frozen(struct log_flush *flush)
{
	struct filesystem_call *call = container_of(flush, struct filesystem_call, flush);

	answer_done(call->ex);
	http_exchange_release(call->ex);
}

static void on_filesystem_call_run(struct job *job)
{
	struct filesystem_call *call = container_of(job, struct filesystem_call, job);

	log_info("freeze", call->freezes ? "file system frozen" : "file system thawed",
		 LOG_B("success", call->status == 0));
	if (call->freezes && call->status == 0) {
		turn_leave(&call->service->filesystem_turns, &call->turn);
		flush_log(call->service, &call->flush, answer_filesystem_frozen);
		return;
	}
	if (call->status < 0)
		http_respond_error(call->ex, 500, "%s", call->err.message);
	else
		answer_done(call->ex);
	finish_filesystem_call(call);
}

static void on_filesystem_turn(struct turn *turn)
{
	struct filesystem_call *call = container_of(turn, struct filesystem_call, turn);

	if (job_run(call->ex->loop, &call->job, JOB_QUICK, run_filesystem_call,
		    on_filesystem_call_run) == 0)
		return;
	refuse_load(call->ex);
	finish_filesystem_call(call);
}

static void on_filesystem_call_closed(struct http_exchange *ex, int status)
{
	struct filesystem_call *call = ex->user;

	if (call->freezes && call->turn.state == TURN_WAITING)
		finish_filesystem_call(call);
}

static const struct http_exchange_handler filesystem_handler = {
	.on_closed = on_filesystem_call_closed};

static void start_filesystem_call(struct http_exchange *ex, struct snapshot_service *service,
				  bool freezes)
{
	struct filesystem_call *call;

	if (service->is_standalone) {
		http_respond_error(ex, 403, "not in standalone mode");
		return;
	}
	call = arena_new(&ex->arena, struct filesystem_call);
	if (!call) {
		refuse_memory(ex);
		return;
	}
	*call = (struct filesystem_call){.ex = ex, .service = service, .freezes = freezes};
	ex->abort_on_eof = freezes;
	http_exchange_set_handler(ex, &filesystem_handler, call);
	http_exchange_hold(ex);
	if (turn_take(&service->filesystem_turns, &call->turn, on_filesystem_turn) < 0) {
		refuse_load(ex);
		http_exchange_release(ex);
	}
}

void snapshot_service_freeze_filesystem(struct http_exchange *ex, struct snapshot_service *service)
{
	start_filesystem_call(ex, service, true);
}

void snapshot_service_thaw_filesystem(struct http_exchange *ex, struct snapshot_service *service)
{
	start_filesystem_call(ex, service, false);
}

struct collapse_call {
	struct job job;
	struct http_exchange *ex;
	const char *maps;
	atomic_bool is_cancelled;
	struct collapse_result result;
	int status;
};

static void run_collapse(struct job *job)
{
	struct collapse_call *call = container_of(job, struct collapse_call, job);

	call->status = collapse_memory(call->maps, &call->is_cancelled, &call->result);
}

static void write_collapse(struct json_writer *w, const void *result)
{
	const struct collapse_result *collapse = result;

	json_writer_uint(w, "alreadyHuge", collapse->already_huge);
	json_writer_uint(w, "chunks", collapse->chunks);
	json_writer_uint(w, "collapsed", collapse->collapsed);
	json_writer_int(w, "elapsedMs", collapse->elapsed_ms);
	json_writer_uint(w, "regions", collapse->regions);
	json_writer_uint(w, "skipped", collapse->skipped);
}

static void on_collapsed(struct job *job)
{
	struct collapse_call *call = container_of(job, struct collapse_call, job);
	struct http_exchange *ex = call->ex;

	if (call->status < 0)
		http_respond_error(ex, 500, "collapse: %s", errno_text(call->status));
	else
		answer_json(ex, write_collapse, &call->result);
	http_exchange_release(ex);
}

static void on_collapse_closed(struct http_exchange *ex, int status)
{
	struct collapse_call *call = ex->user;

	atomic_store(&call->is_cancelled, true);
}

static const struct http_exchange_handler collapse_handler = {.on_closed = on_collapse_closed};

void snapshot_service_collapse(struct http_exchange *ex, struct snapshot_service *service)
{
	struct collapse_call *call = arena_new(&ex->arena, struct collapse_call);

	if (!call) {
		refuse_memory(ex);
		return;
	}
	*call = (struct collapse_call){.ex = ex, .maps = service->maps};
	ex->abort_on_eof = true;
	if (job_run(ex->loop, &call->job, JOB_COMPUTE, run_collapse, on_collapsed) < 0) {
		refuse_load(ex);
		return;
	}
	http_exchange_set_handler(ex, &collapse_handler, call);
	http_exchange_hold(ex);
}
