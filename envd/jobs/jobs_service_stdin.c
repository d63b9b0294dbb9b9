/*
 * WriteStdin: appends to the stored input, whose length is the truth about what was taken; the
 * keeper hands it on from there. One write of a job at a time, in a job of the pool.
 */
#include <unistd.h>

#include "envd/jobs/job_input.h"
#include "envd/jobs/jobs_service_internal.h"

struct write_call {
	struct job_input_write write;
	struct job work;
	struct rpc_call *call;
	struct background_job *job;
	int status;
};

static void store(struct job *work)
{
	struct write_call *write = container_of(work, struct write_call, work);

	write->status = job_input_store(&write->job->table->store, write->job->record.id,
					&write->write);
}

static void reply(struct write_call *write)
{
	Jobs__WriteStdinResponse response = JOBS__WRITE_STDIN_RESPONSE__INIT;
	struct rpc_call *call = write->call;

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

static void on_stored(struct job *work)
{
	struct write_call *write = container_of(work, struct write_call, work);
	struct rpc_call *call = write->call;

	write->job->is_writing = false;
	job_notice_write_error(write->job->table, write->status);
	reply(write);
	background_job_release(write->job);
	rpc_call_release(call);
}

static const struct rpc_handler handler = {.on_closed = NULL};

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
	write = arena_new(call->arena, struct write_call);
	if (!write) {
		jobs_fail_no_memory(call);
		return;
	}
	write->call = call;
	write->job = job;
	write->write = (struct job_input_write){
		.offset = request->offset,
		.data = {(const char *)request->data.data, request->data.len},
		.closes = request->close,
		.has_ended = job->record.state != JOB_RUNNING,
	};
	rpc_call_set_handler(call, &handler, write);
	if (job_run(call->loop, &write->work, JOB_FILES, store, on_stored) < 0) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too much work is queued");
		return;
	}
	job->is_writing = true;
	background_job_hold(job);
	rpc_call_hold(call);
}
