/*
 * Resize: the size is written into the status file, where the keeper reads it, also one that an
 * earlier envd has started. One at a time for each job, in a job of the pool.
 */
#include "envd/jobs/jobs_service_internal.h"

struct resize_call {
	struct job work;
	struct rpc_call *call;
	struct background_job *job;
	struct terminal_size size;
	int status;
};

static void store(struct job *work)
{
	struct resize_call *resize = container_of(work, struct resize_call, work);
	uint16_t size[4] = {resize->size.cols, resize->size.rows, 0, 0};

	_Static_assert(offsetof(struct job_status_agent, rows) ==
			       offsetof(struct job_status_agent, cols) + sizeof(uint16_t),
		       "one after the other");
	resize->status = job_store_tell_keeper(&resize->job->table->store, resize->job->record.id,
					       offsetof(struct job_status_agent, cols), size,
					       sizeof(size));
	job_store_wake_keeper(&resize->job->table->store, resize->job->record.id);
}

static void reply(struct resize_call *resize)
{
	Jobs__ResizeResponse response = JOBS__RESIZE_RESPONSE__INIT;
	struct rpc_call *call = resize->call;

	if (resize->status < 0) {
		rpc_fail_kind(call, ERR_INTERNAL, "the size cannot be stored: %s",
			      errno_text(resize->status));
		return;
	}
	response.job = jobs_make_job(call->arena, resize->job);
	if (response.job)
		rpc_reply(call, &response.base);
	else
		jobs_fail_no_memory(call);
}

static void on_stored(struct job *work)
{
	struct resize_call *resize = container_of(work, struct resize_call, work);
	struct background_job *job = resize->job;
	struct rpc_call *call = resize->call;

	job->is_resizing = false;
	if (resize->status == 0) {
		job->record.size = resize->size;
		background_job_save(job);
		background_job_publish(job);
	}
	reply(resize);
	background_job_release(job);
	rpc_call_release(call);
}

static const struct rpc_handler handler = {.on_closed = NULL};

void jobs_resize(struct rpc_call *call, const ProtobufCMessage *message)
{
	static const Jobs__Terminal none = JOBS__TERMINAL__INIT;
	const Jobs__ResizeRequest *request = (const Jobs__ResizeRequest *)message;
	struct background_job *job = jobs_find(call, request->id);
	struct resize_call *resize;
	const Jobs__Terminal *terminal = request->terminal ? request->terminal : &none;

	if (!job)
		return;
	if (!job->record.has_terminal || job->record.state != JOB_RUNNING) {
		rpc_fail_kind(call, ERR_FAILED_PRECONDITION,
			      job->record.has_terminal ? "the job does not run"
						       : "the job has no terminal");
		return;
	}
	/* Which of two was the last would depend on the pool. */
	if (job->is_resizing) {
		rpc_fail_kind(call, ERR_ABORTED, "another size is being stored; ask again");
		return;
	}
	resize = arena_new(call->arena, struct resize_call);
	if (!resize) {
		jobs_fail_no_memory(call);
		return;
	}
	resize->call = call;
	resize->job = job;
	resize->size = terminal_size_from(terminal->cols, terminal->rows, job->record.size);
	rpc_call_set_handler(call, &handler, resize);
	if (job_run(call->loop, &resize->work, JOB_FILES, store, on_stored) < 0) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too much work is queued");
		return;
	}
	job->is_resizing = true;
	background_job_hold(job);
	rpc_call_hold(call);
}
