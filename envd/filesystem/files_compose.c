/*
 * POST /files/compose: the body is collected, one job reads and checks it, and further jobs copy a
 * piece each. A client that leaves before the end has changed nothing.
 */
#include "envd/filesystem/compose.h"
#include "envd/filesystem/files.h"
#include "envd/filesystem/path.h"
#include "envd/limits.h"
#include "lib/budget.h"
#include "lib/descriptors.h"
#include "lib/job.h"
#include "lib/log.h"

/* Every byte of a path as \uXXXX at worst, twice. */
#define ANSWER_BYTES_MAX (16 * 1024 * 1024)

struct join {
	struct job job;
	struct arena arena; /* the jobs'; the loop's when none runs */
	struct http_exchange *ex;
	struct compose_request request;
	struct compose compose;
	struct err err;
	struct buf body;
	struct share share, arena_share;
	int status; /* of the job that ran last */
	bool is_begun; /* compose has something to abort */
	bool is_working;
	bool is_answered;
	bool is_closed; /* the exchange */
};

/* Bodies of all requests, of all loops. */
static struct budget bodies = {.max = COMPOSE_BODIES_BYTES_MAX};
static struct budget arenas = {.max = COMPOSE_ARENAS_BYTES_MAX};

struct budget *files_compose_bodies_budget(void)
{
	return &bodies;
}

struct budget *files_compose_budget(void)
{
	return &arenas;
}

static void drop_body(struct join *join)
{
	buf_reset(&join->body);
	share_release(&join->share);
}

static void free_join(struct join *join)
{
	struct http_exchange *ex = join->ex;

	drop_body(join);
	arena_release(&join->arena);
	free(join);
	http_exchange_release(ex);
}

static void drop_work(struct job *job)
{
	compose_abort(&container_of(job, struct join, job)->compose);
}

static void on_dropped(struct job *job)
{
	free_join(container_of(job, struct join, job));
}

static void finish(struct join *join)
{
	if (!join->is_closed || join->is_working)
		return;
	if (join->is_begun &&
	    job_run(join->ex->loop, &join->job, JOB_FILES, drop_work, on_dropped) == 0)
		return;
	if (join->is_begun)
		compose_abort(&join->compose);
	free_join(join);
}

static void fail(struct join *join)
{
	join->is_answered = true;
	if (join->arena_share.refused)
		err_set(&join->err, ERR_RESOURCE_EXHAUSTED,
			"other requests to compose files take all the memory "
			"there is for them (%d MiB)",
			COMPOSE_ARENAS_BYTES_MAX >> 20);
	files_fail(join->ex, &join->err);
}

static int write_answer(struct buf *body, const char *path)
{
	struct json_writer w;

	files_open_writer(&w, body);
	json_writer_object(&w, NULL);
	files_write_entry(&w, path);
	return json_writer_end_line(&w);
}

static void answer(struct join *join)
{
	struct buf body;

	buf_init(&body, ANSWER_BYTES_MAX);
	join->is_answered = true;
	if (write_answer(&body, path_show(join->compose.path, &join->arena)) < 0) {
		err_set_sys(&join->err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "answer");
		fail(join);
	} else
		http_respond(join->ex, 200, "application/json", buf_str(&body));
	buf_fini(&body);
}

static void step(struct job *job)
{
	struct join *join = container_of(job, struct join, job);

	join->status = compose_step(&join->compose, &join->err);
	join->is_begun = join->status == 1;
}

static void on_step(struct job *job)
{
	struct join *join = container_of(job, struct join, job);

	join->is_working = false;
	if (join->is_closed) {
		finish(join);
	} else if (join->status < 0) {
		fail(join);
	} else if (join->status == 0) {
		answer(join);
	} else if (job_run(join->ex->loop, &join->job, JOB_BULK, step, on_step) < 0) {
		err_set(&join->err, ERR_UNAVAILABLE, "too much work is queued");
		fail(join);
	} else {
		join->is_working = true;
	}
}

static void begin(struct job *job)
{
	struct join *join = container_of(job, struct join, job);

	join->status = descriptors_check(&join->err);
	if (join->status == 0)
		join->status = compose_begin(&join->compose, &join->request, &join->arena,
					     &join->err);
	join->is_begun = join->status == 0;
	if (join->status == 0)
		join->status = 1;
}

static void on_begun(struct job *job)
{
	struct join *join = container_of(job, struct join, job);

	drop_body(join);
	on_step(job);
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct join *join = ex->user;

	if (join->is_answered)
		return;
	if (!share_take(&join->share, len)) {
		err_set(&join->err, ERR_UNAVAILABLE, "too many compose requests at once");
		fail(join);
	} else if (buf_append(&join->body, data, len) < 0) {
		join->is_answered = true;
		http_respond_error(ex, 413, "the body is larger than %d bytes",
				   COMPOSE_BODY_BYTES_MAX);
	}
}

static void on_body_end(struct http_exchange *ex)
{
	struct join *join = ex->user;

	if (join->is_answered)
		return;
	join->request.body = buf_str(&join->body);
	if (job_run(ex->loop, &join->job, JOB_BULK, begin, on_begun) < 0) {
		err_set(&join->err, ERR_UNAVAILABLE, "too much work is queued");
		fail(join);
		return;
	}
	join->is_working = true;
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct join *join = ex->user;

	join->is_closed = true;
	if (status < 0 && !join->is_answered)
		log_info("files", "compose broke off", LOG_S("error", errno_text(status)));
	finish(join);
}

static const struct http_exchange_handler handler = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

void files_compose(struct http_exchange *ex, struct sandbox *sandbox)
{
	struct join *join = xcalloc(1, sizeof(*join));

	/* Copies: /init may change the defaults while a job reads them. */
	join->ex = ex;
	join->request = (struct compose_request){
		.sandbox = sandbox,
		.user_name = arena_strdup(&ex->arena, sandbox->default_user),
		.default_workdir = sandbox->default_workdir
					   ? arena_strdup(&ex->arena, sandbox->default_workdir)
					   : NULL,
	};
	share_init(&join->arena_share, &arenas, COMPOSE_ARENA_EXEMPT_BYTES);
	arena_init_shared(&join->arena, COMPOSE_ARENA_BYTES, &join->arena_share);
	buf_init(&join->body, COMPOSE_BODY_BYTES_MAX);
	share_init(&join->share, &bodies, COMPOSE_BODY_FREE_BYTES);
	http_exchange_hold(ex);
	http_exchange_set_handler(ex, &handler, join);
	if (!join->request.user_name ||
	    (sandbox->default_workdir && !join->request.default_workdir)) {
		err_set_sys(&join->err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "compose");
		fail(join);
		return;
	}
	http_request_body_start(ex);
}
