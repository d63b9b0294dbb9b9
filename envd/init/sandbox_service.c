#include "envd/init/sandbox_service.h"

#include "envd/init/metrics_http.h"
#include "envd/limits.h"
#include "lib/job.h"
#include "lib/json.h"
#include "lib/log.h"

#define METRICS_BYTES_MAX 1024
#define METRICS_TEXT_BYTES_MAX (64 * 1024)
#define UPGRADE_PROGRAM "/usr/bin/envd.next"
/* Every byte of the environment may become a six-byte escape. */
#define ENVIRONMENT_JSON_BYTES_MAX ((size_t)INIT_BODY_BYTES_MAX * 8)

static void forbid_caching(struct http_exchange *ex)
{
	http_response_header(ex, STR("Cache-Control"), STR("no-store"));
}

void sandbox_service_health(struct http_exchange *ex, struct sandbox *sandbox)
{
	forbid_caching(ex);
	http_response_header(ex, STR("Content-Type"), STR(""));
	http_respond(ex, 204, NULL, STR(""));
}

struct metrics_call {
	struct job job;
	struct http_exchange *ex;
	struct sandbox *sandbox;
	/* NULL: JSON is wanted. */
	void (*write_more)(struct prometheus *p, void *server_user);
	struct metrics_sample sample;
	int status;
};

static void read_metrics(struct job *job)
{
	struct metrics_call *call = container_of(job, struct metrics_call, job);

	call->status = metrics_read(&call->sample);
}

static int write_json(struct metrics_call *call, struct buf *body)
{
	int status = metrics_write_json(body, &call->sample, &call->sandbox->metrics_before);

	if (status == 0)
		call->sandbox->metrics_before = call->sample.cpu;
	return status;
}

static int write_text(struct metrics_call *call, struct buf *body)
{
	struct prometheus p = {.b = body};

	metrics_text_write(&p, &call->sample);
	call->write_more(&p, call->ex->server_user);
	return p.status;
}

static void answer_metrics(struct metrics_call *call)
{
	struct http_exchange *ex = call->ex;
	struct buf body;

	buf_init(&body, call->write_more ? METRICS_TEXT_BYTES_MAX : METRICS_BYTES_MAX);
	if (call->status == 0)
		call->status = call->write_more ? write_text(call, &body) : write_json(call, &body);
	if (call->status < 0)
		log_warn("envd", "metrics cannot be read",
			 LOG_S("error", errno_text(call->status)));
	forbid_caching(ex);
	http_response_header(ex, STR("Vary"), STR("Accept"));
	http_respond(ex, call->status < 0 ? 500 : 200,
		     call->write_more ? PROMETHEUS_CONTENT_TYPE : "application/json",
		     call->status < 0 ? STR("") : buf_str(&body));
	buf_fini(&body);
}

static void on_metrics_read(struct job *job)
{
	struct metrics_call *call = container_of(job, struct metrics_call, job);
	struct http_exchange *ex = call->ex;

	if (!ex->closed)
		answer_metrics(call);
	http_exchange_release(ex);
}

static void on_closed(struct http_exchange *ex, int status)
{
}

static const struct http_exchange_handler waiting_handler = {.on_closed = on_closed};

void sandbox_service_metrics(struct http_exchange *ex, struct sandbox *sandbox,
			     void (*write_more)(struct prometheus *p, void *server_user))
{
	struct metrics_call *call = arena_new(&ex->arena, struct metrics_call);

	if (!call) {
		http_respond_error(ex, 431, "the request's head needs too much memory");
		return;
	}
	call->ex = ex;
	call->sandbox = sandbox;
	if (metrics_text_is_wanted(&ex->request.headers))
		call->write_more = write_more;
	if (job_run(ex->loop, &call->job, JOB_QUICK, read_metrics, on_metrics_read) < 0) {
		http_respond_error(ex, 503, "too much work is waiting");
		return;
	}
	http_exchange_set_handler(ex, &waiting_handler, call);
	http_exchange_hold(ex);
}

static int write_environment(struct buf *b, const struct environment *env)
{
	int status = buf_append_str(b, STR("{"));

	for (size_t i = 0; i < env->count && status == 0; i++) {
		if (i)
			status = buf_append_str(b, STR(","));
		if (status == 0)
			status = json_write_string(b, str_of(env->entries[i].name), true);
		if (status == 0)
			status = buf_append_str(b, STR(":"));
		if (status == 0)
			status = json_write_string(b, str_of(env->entries[i].value), true);
	}
	return status < 0 ? status : buf_append_str(b, STR("}\n"));
}

void sandbox_service_environment(struct http_exchange *ex, struct sandbox *sandbox)
{
	struct buf body;

	buf_init(&body, ENVIRONMENT_JSON_BYTES_MAX);
	if (write_environment(&body, &sandbox->environment) < 0) {
		http_respond_error(ex, 507, "the environment needs too much memory");
	} else {
		forbid_caching(ex);
		http_respond(ex, 200, "application/json", buf_str(&body));
	}
	buf_fini(&body);
}

static void refuse_upgrade(struct http_exchange *ex, int status, struct str text)
{
	http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
	http_respond(ex, status, "text/plain; charset=utf-8", text);
}

void sandbox_service_upgrade(struct http_exchange *ex, struct sandbox *sandbox)
{
	struct str program = http_headers_get(&ex->request.headers, STR("X-Envd-Upgrade-Bin"));

	if (!sandbox->initialised)
		refuse_upgrade(ex, 409, STR("envd not initialized\n"));
	else if (program.len && !str_equal(program, STR(UPGRADE_PROGRAM)))
		refuse_upgrade(ex, 400, STR("unsupported upgrade target\n"));
	else
		refuse_upgrade(ex, 500, STR("live upgrade is not supported by this envd\n"));
}
