#include "lib/loop.h"

#include "lib/hangup.h"
#include "lib/job.h"
#include "lib/limits.h"

static void run_later(struct loop *loop)
{
	struct list_node batch;

	/* Detached first: a call may queue itself again, and that one waits for the next round. */
	list_init(&batch);
	list_splice(&batch, &loop->later);
	while (!list_is_empty(&batch)) {
		struct later *later = container_of(batch.next, struct later, node);

		list_remove(&later->node);
		later->fn(later);
	}
	if (list_is_empty(&loop->later))
		uv_idle_stop(&loop->later_idle);
}

static void on_prepare(uv_prepare_t *handle)
{
	container_of(handle, struct loop, later_prepare)->asked_ms = uv_now(handle->loop);
	run_later(container_of(handle, struct loop, later_prepare));
}

static void on_idle(uv_idle_t *handle)
{
	(void)handle; /* its presence alone makes the loop poll instead of sleep */
}

static void on_check(uv_check_t *handle)
{
	struct loop *loop = container_of(handle, struct loop, look_check);

	/* Of the moment before the kernel was asked: who is stopped while it waits for an answer
	 * gets none when it goes on (EINTR), however long that was. */
	loop->looked_ms = loop->asked_ms;
}

void loop_init(struct loop *loop)
{
	int status = uv_loop_init(&loop->uv);

	if (status == 0)
		status = hangup_open(loop);
	if (status == 0)
		status = mailbox_open(loop);
	if (status < 0) {
		fprintf(stderr, "event loop: %s\n", uv_strerror(status));
		abort();
	}
	list_init(&loop->later);
	alarms_open(loop);
	job_open(loop);
	loop->scratch = xmalloc(LOOP_SCRATCH_BYTES);
	uv_prepare_init(&loop->uv, &loop->later_prepare);
	uv_prepare_start(&loop->later_prepare, on_prepare);
	uv_unref((uv_handle_t *)&loop->later_prepare);
	uv_idle_init(&loop->uv, &loop->later_idle);
	loop->looked_ms = uv_now(&loop->uv);
	uv_check_init(&loop->uv, &loop->look_check);
	uv_check_start(&loop->look_check, on_check);
	uv_unref((uv_handle_t *)&loop->look_check);
}

void loop_run(struct loop *loop)
{
	uv_run(&loop->uv, UV_RUN_DEFAULT);
}

static void count_foreign(uv_handle_t *handle, void *user)
{
	size_t *count = user;
	const struct loop *loop = loop_of(handle);

	if (handle != (const uv_handle_t *)&loop->later_prepare &&
	    handle != (const uv_handle_t *)&loop->later_idle &&
	    handle != (const uv_handle_t *)&loop->look_check &&
	    handle != (const uv_handle_t *)&loop->alarms.timer &&
	    handle != (const uv_handle_t *)&loop->hangup_poll &&
	    handle != (const uv_handle_t *)&loop->mailbox.async)
		(*count)++;
}

bool loop_is_empty(struct loop *loop)
{
	size_t foreign = 0;

	uv_walk(&loop->uv, count_foreign, &foreign);
	return foreign == 0 && loop->hangups == 0 && loop->jobs_running == 0 &&
	       list_is_empty(&loop->later) &&
	       loop->alarms.count == alarm_is_set(&loop->jobs_look) && loop->mailbox.open == 0;
}

void loop_fini(struct loop *loop)
{
	int status;

	assert(loop_is_empty(loop));
	uv_close((uv_handle_t *)&loop->later_prepare, NULL);
	uv_close((uv_handle_t *)&loop->later_idle, NULL);
	uv_close((uv_handle_t *)&loop->look_check, NULL);
	hangup_close(loop);
	mailbox_close(loop);
	job_close(loop);
	alarms_close(loop);
	uv_run(&loop->uv, UV_RUN_DEFAULT);
	status = uv_loop_close(&loop->uv);
	assert(status == 0);
	(void)status;
	free(loop->scratch);
}

uint64_t loop_now_ms(struct loop *loop)
{
	return uv_now(&loop->uv);
}

bool loop_is_past(const struct loop *loop, uint64_t due_ms)
{
	return uv_now(&loop->uv) >= due_ms && loop->looked_ms >= due_ms;
}

uint64_t loop_wait_ms(const struct loop *loop, uint64_t due_ms)
{
	uint64_t now = uv_now(&loop->uv);

	return due_ms > now ? due_ms - now : LOOP_LOOK_AGAIN_MS;
}

void later_init(struct later *later, void (*fn)(struct later *later))
{
	list_init(&later->node);
	later->fn = fn;
}

void later_call(struct loop *loop, struct later *later)
{
	if (!list_is_empty(&later->node))
		return;
	list_append(&loop->later, &later->node);
	uv_idle_start(&loop->later_idle, on_idle);
}

void later_cancel(struct later *later)
{
	list_remove(&later->node);
}
