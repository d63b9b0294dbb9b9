/*
 * What goes to a job that runs, as one thing of a kind at a time: WriteStdin appends to the stored
 * input, whose length is the truth about what was taken, and the keeper hands it on from there;
 * Resize writes a terminal's size into the status file, where the keeper reads it, also one that an
 * earlier envd has started.
 */
#include "envd/jobs/jobs_service_internal.h"

/* ---- WriteStdin ---- */

struct write_call {
	struct jobs_work work;
	struct job_input_write write;
	int status;
};

static void store_input(struct jobs_work *work)
{
	struct write_call *write = container_of(work, struct write_call, work);

	write->status = job_input_store(&work->job->table->store, work->job->record.id,
					&write->write);
}

static void reply_write(struct write_call *write)
{
	Jobs__WriteStdinResponse response = JOBS__WRITE_STDIN_RESPONSE__INIT;
	struct rpc_call *call = write->work.call;

	switch (write->status) {
	case 0:
		response.taken = write->write.taken;
		response.closed = write->write.is_closed;
		rpc_reply(call, &response.base);
		break;
	case -ERANGE:
		rpc_fail_kind(call, ERR_OUT_OF_RANGE,
			      "the offset is beyond the %llu bytes that were taken",
			      (unsigned long long)write->write.taken);
		break;
	case -EPIPE:
		rpc_fail_kind(call, ERR_FAILED_PRECONDITION,
			      "the job does not read its stdin any more");
		break;
	case -ESHUTDOWN:
		rpc_fail_kind(call, ERR_FAILED_PRECONDITION, "the job does not run");
		break;
	case -EBADF:
		rpc_fail_kind(call, ERR_FAILED_PRECONDITION, "stdin was closed after %llu bytes",
			      (unsigned long long)write->write.taken);
		break;
	case -ENOSPC:
	case -EDQUOT:
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED,
			      "the disk is full; %llu bytes were taken",
			      (unsigned long long)write->write.taken);
		break;
	default:
		rpc_fail_kind(call, ERR_INTERNAL, "the input cannot be stored: %s",
			      errno_text(write->status));
		break;
	}
}

static void on_input_stored(struct jobs_work *work)
{
	struct write_call *write = container_of(work, struct write_call, work);

	work->job->is_writing = false;
	job_disk_note_write(work->job->table, write->status);
	reply_write(write);
}

void jobs_write_stdin(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__WriteStdinRequest *request = (const Jobs__WriteStdinRequest *)message;
	struct background_job *job = jobs_find(call, request->id);
	struct write_call *write;

	if (!job)
		return;
	if (job->record.stdin_mode != JOB_STDIN_PIPE) {
		rpc_fail_kind(call, ERR_FAILED_PRECONDITION,
			      "the job was created without a stdin to write to");
		return;
	}
	if (job->record.state == JOB_PENDING) {
		rpc_fail_kind(call, ERR_FAILED_PRECONDITION, "the job does not run");
		return;
	}
	/* Two at once would be two clients that do not know of each other, or one that did not
	 * wait. */
	if (job->is_writing) {
		rpc_fail_kind(call, ERR_ABORTED,
			      "another write is being stored; ask again from where it ends");
		return;
	}
	write = jobs_new_state(call, sizeof(*write));
	if (!write)
		return;
	write->work = (struct jobs_work){
		.call = call, .job = job, .fn = store_input, .answer = on_input_stored};
	write->write = (struct job_input_write){
		.offset = request->offset,
		.data = {(const char *)request->data.data, request->data.len},
		.closes = request->close,
		.has_ended = job->record.state != JOB_RUNNING,
	};
	job->is_writing = jobs_work_run(&write->work);
}

/* ---- Resize ---- */

struct resize_call {
	struct jobs_work work;
	struct terminal_size size;
	int status;
};

static void store_size(struct jobs_work *work)
{
	struct resize_call *resize = container_of(work, struct resize_call, work);
	uint16_t size[4] = {resize->size.cols, resize->size.rows, 0, 0};

	_Static_assert(offsetof(struct job_status_agent, rows) ==
			       offsetof(struct job_status_agent, cols) + sizeof(uint16_t),
		       "one after the other");
	resize->status = job_store_tell_keeper(&work->job->table->store, work->job->record.id,
					       offsetof(struct job_status_agent, cols), size,
					       sizeof(size));
	job_store_wake_keeper(&work->job->table->store, work->job->record.id);
}

static void on_size_stored(struct jobs_work *work)
{
	struct resize_call *resize = container_of(work, struct resize_call, work);
	Jobs__ResizeResponse response = JOBS__RESIZE_RESPONSE__INIT;
	struct background_job *job = work->job;

	job->is_resizing = false;
	if (resize->status < 0) {
		rpc_fail_kind(work->call, ERR_INTERNAL, "the size cannot be stored: %s",
			      errno_text(resize->status));
		return;
	}
	job->record.size = resize->size;
	background_job_save(job);
	background_job_publish(job);
	response.job = jobs_make_job(work->call->arena, job);
	jobs_reply(work->call, &response.base, response.job);
}

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
	resize = jobs_new_state(call, sizeof(*resize));
	if (!resize)
		return;
	resize->work = (struct jobs_work){
		.call = call, .job = job, .fn = store_size, .answer = on_size_stored};
	resize->size = terminal_size_from(terminal->cols, terminal->rows, job->record.size);
	job->is_resizing = jobs_work_run(&resize->work);
}
