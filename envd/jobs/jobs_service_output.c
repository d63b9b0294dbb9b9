/* Output: a reader of the stored output whose client is a call. */
#include "envd/jobs/job_reader.h"
#include "envd/jobs/jobs_service_internal.h"
#include "envd/limits.h"

struct output_call {
	struct job_reader reader;
	struct jobs_keepalive keepalive;
	struct rpc_call *call;
};

static void fill(Jobs__OutputResponse *response, enum job_stream stream,
		 const struct job_extent *extent)
{
	response->stream = stream == JOB_STDOUT ? JOBS__STREAM__STREAM_STDOUT
						: JOBS__STREAM__STREAM_STDERR;
	response->oldest_offset = extent->oldest;
	response->end_offset = extent->end;
}

static int send_message(struct output_call *output, Jobs__OutputResponse *response,
			enum job_stream stream)
{
	int status;

	fill(response, stream, &output->reader.extent);
	output->keepalive.sent_ms = loop_now_ms(output->call->loop);
	status = rpc_send(output->call, &response->base);
	return status == RPC_FULL ? JOB_READER_FULL : status;
}

static int on_data(struct job_reader *reader, enum job_stream stream, uint64_t offset,
		   struct str bytes)
{
	Jobs__OutputResponse response = JOBS__OUTPUT_RESPONSE__INIT;

	response.offset = offset;
	response.data = (ProtobufCBinaryData){bytes.len, (uint8_t *)(uintptr_t)bytes.p};
	return send_message(container_of(reader, struct output_call, reader), &response, stream);
}

static int on_gap(struct job_reader *reader, enum job_stream stream, uint64_t offset)
{
	Jobs__OutputResponse response = JOBS__OUTPUT_RESPONSE__INIT;

	response.offset = offset;
	response.gap = true;
	return send_message(container_of(reader, struct output_call, reader), &response, stream);
}

static void send_end(struct output_call *output)
{
	Jobs__OutputResponse response = JOBS__OUTPUT_RESPONSE__INIT;
	const struct job_reader *reader = &output->reader;
	enum job_stream stream = reader->streams[JOB_STDOUT].is_wanted ? JOB_STDOUT : JOB_STDERR;
	struct arena arena;

	arena_init(&arena, JOBS_MESSAGE_ARENA_BYTES);
	fill(&response, stream, &reader->streams[stream].extent);
	response.offset = reader->streams[stream].offset;
	response.job = jobs_make_job(&arena, reader->job);
	if (response.job)
		rpc_send_last(output->call, &response.base);
	else
		jobs_fail_no_memory(output->call);
	arena_release(&arena);
}

/* Deleted or dropped before its files were opened; once they are, they can be read to their end. */
static bool has_missed_it(const struct job_reader *reader)
{
	for (int i = 0; i < JOB_STREAMS; i++)
		if (reader->streams[i].is_wanted && reader->streams[i].fd >= 0)
			return false;
	return reader->job->is_removed;
}

static void on_end(struct job_reader *reader, int status)
{
	struct output_call *output = container_of(reader, struct output_call, reader);
	struct rpc_call *call = output->call;

	/* Only what has ended goes, so all was sent, and how it ended is known. */
	if (status == 0 || status == -ENOENT)
		status = has_missed_it(reader) ? -ENOENT : 0;
	switch (status) {
	case 0:
		send_end(output);
		break;
	case -ERANGE:
		rpc_fail_kind(call, ERR_OUT_OF_RANGE, "the offset is beyond the end of the output");
		break;
	case -ESHUTDOWN:
		jobs_fail_closed(call);
		break;
	case -ENOENT:
		rpc_fail_kind(call, ERR_NOT_FOUND, "job %s was deleted", reader->job->record.id);
		break;
	case -EAGAIN:
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too much work is queued");
		break;
	default:
		rpc_fail_kind(call, ERR_INTERNAL, "the output cannot be read: %s",
			      errno_text(status));
		break;
	}
}

static const struct job_reader_ops ops = {.on_data = on_data, .on_gap = on_gap, .on_end = on_end};

static void on_free(struct job_reader *reader)
{
	rpc_call_release(container_of(reader, struct output_call, reader)->call);
}

static void on_keepalive(struct jobs_keepalive *keepalive)
{
	Jobs__OutputResponse response = JOBS__OUTPUT_RESPONSE__INIT;

	response.keepalive = true;
	(void)rpc_send(keepalive->call, &response.base);
}

static void on_drained(struct rpc_call *call)
{
	struct output_call *output = call->user;

	job_reader_drained(&output->reader);
}

static void on_closed(struct rpc_call *call, int status)
{
	struct output_call *output = call->user;

	jobs_keepalive_close(&output->keepalive);
	job_reader_close(&output->reader);
}

static const struct rpc_handler handler = {.on_drained = on_drained, .on_closed = on_closed};

static void choose_streams(struct job_reader *reader, const Jobs__OutputRequest *request)
{
	bool is_merged = reader->job->record.output_mode == JOB_OUTPUT_MERGED;
	struct job_reader_stream *streams = reader->streams;

	streams[JOB_STDOUT].is_wanted = request->stream != JOBS__STREAM__STREAM_STDERR;
	streams[JOB_STDERR].is_wanted = request->stream != JOBS__STREAM__STREAM_STDOUT &&
					!is_merged;
	streams[JOB_STDOUT].offset = request->stdout_offset;
	streams[JOB_STDERR].offset = request->stderr_offset;
	streams[JOB_STDOUT].until = streams[JOB_STDERR].until = UINT64_MAX;
}

void jobs_output(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__OutputRequest *request = (const Jobs__OutputRequest *)message;
	struct background_job *job = jobs_find(call, request->id);
	struct output_call *output;

	if (!job)
		return;
	if ((int)request->stream < 0 || request->stream > JOBS__STREAM__STREAM_BOTH) {
		rpc_fail_kind(call, ERR_INVALID_ARGUMENT, "unknown stream %d",
			      (int)request->stream);
		return;
	}
	output = jobs_new_state(call, sizeof(*output));
	if (!output)
		return;
	output->call = call;
	output->reader.ops = &ops;
	output->reader.on_free = on_free;
	output->reader.job = job;
	output->reader.follows = request->follow;
	output->reader.checks_offset = !request->follow;
	output->reader.bytes_left = request->max_bytes ? request->max_bytes : UINT64_MAX;
	output->reader.piece_bytes = JOB_RPC_READ_BYTES;
	choose_streams(&output->reader, request);
	if (job_reader_open(&output->reader) < 0) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too many readers (%d)",
			      JOB_READERS_MAX);
		return;
	}
	rpc_call_hold(call);
	jobs_keepalive_open(&output->keepalive, call, on_keepalive);
	rpc_call_set_handler(call, &handler, output);
	rpc_drop_message(call);
}
