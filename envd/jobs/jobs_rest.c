/*
 * GET /jobs/{id}/stdout and /jobs/{id}/stderr: the stored output as it is, for curl and browsers.
 *
 * A Range is answered with 206; what of it the cap has dropped is left out, and Content-Range says
 * so. With ?follow=1 (or =true) the answer goes on until the job has ended. Job-Oldest-Offset and
 * Job-End-Offset say what there is, Job-Start-Offset where the body begins, Job-State in which
 * state the job is.
 */
#include <fcntl.h>
#include <unistd.h>

#include "envd/filesystem/range.h"
#include "envd/jobs/job_reader.h"
#include "envd/jobs/jobs_service.h"
#include "envd/limits.h"
#include "lib/limits.h"

struct rest {
	struct job_reader reader;
	struct job work;
	struct job_listener waiter;
	struct http_exchange *ex;
	struct job_table *table;
	struct job_extent extent;
	enum job_stream stream;
	int status;
	bool is_head, follows, has_reader;
};

static const char *const state_names[] = {
	[JOB_PENDING] = "pending", [JOB_RUNNING] = "running",	  [JOB_COMPLETED] = "completed",
	[JOB_FAILED] = "failed",   [JOB_CANCELLED] = "cancelled",
};

/* ---- the reader ---- */

static int on_data(struct job_reader *reader, enum job_stream stream, uint64_t offset,
		   struct str bytes)
{
	struct rest *rest = container_of(reader, struct rest, reader);
	struct iovec piece = {.iov_base = (void *)(uintptr_t)bytes.p, .iov_len = bytes.len};
	int status = http_response_write(rest->ex, &piece, 1);

	return status == HTTP_FULL ? JOB_READER_FULL : status;
}

static int on_lend(struct job_reader *reader)
{
	return http_response_lend(container_of(reader, struct rest, reader)->ex);
}

static void on_sent(struct job_reader *reader, uint64_t offset, size_t len)
{
	http_response_take_back(container_of(reader, struct rest, reader)->ex, len);
}

/* What was promised cannot be delivered, and there is no way to say so but this. */
static int on_gap(struct job_reader *reader, enum job_stream stream, uint64_t offset)
{
	http_exchange_abort(container_of(reader, struct rest, reader)->ex);
	return -ECONNABORTED;
}

static void on_end(struct job_reader *reader, int status)
{
	struct rest *rest = container_of(reader, struct rest, reader);

	if (status < 0)
		http_exchange_abort(rest->ex);
	else
		http_response_end(rest->ex, NULL);
}

static const struct job_reader_ops reader_ops = {
	.on_data = on_data,
	.on_lend = on_lend,
	.on_sent = on_sent,
	.on_gap = on_gap,
	.on_end = on_end,
};

static void on_reader_freed(struct job_reader *reader)
{
	http_exchange_release(container_of(reader, struct rest, reader)->ex);
}

/* ---- the answer ---- */

static void add_number(struct http_exchange *ex, struct str name, uint64_t number)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
	http_response_header_copy(ex, name, str_of(text));
}

static void refuse_range(struct rest *rest)
{
	char text[64];

	snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)rest->extent.end);
	http_response_header_copy(rest->ex, STR("Content-Range"), str_of(text));
	http_respond_error(rest->ex, 416, "nothing of the range is stored");
}

/* What is sent: [*start, *end). The status; 416 when there is nothing. */
static int choose_part(struct rest *rest, uint64_t *start, uint64_t *end)
{
	struct str value = http_headers_get(&rest->ex->request.headers, STR("Range"));
	struct range ranges[RANGES_MAX];
	size_t count = 0;

	*start = rest->extent.oldest;
	*end = rest->extent.end;
	/* Another unit than bytes is to be ignored (RFC 9110 section 14.2). */
	if (!str_starts_with(value, STR("bytes=")))
		return 200;
	/* Which version of the output its client has, it cannot know from here (RFC 9110
	 * section 13.1.5). */
	if (http_headers_get(&rest->ex->request.headers, STR("If-Range")).len)
		return 200;
	switch (range_parse(value, (int64_t)rest->extent.end, ranges, &count)) {
	case RANGE_WHOLE:
		return 200;
	case RANGE_PARTS:
		break;
	case RANGE_OUTSIDE:
	case RANGE_INVALID:
		return 416;
	}
	/* One part; who asks for several gets everything, as RFC 9110 section 14.2 allows. */
	if (count != 1)
		return 200;
	if ((uint64_t)ranges[0].end <= rest->extent.oldest)
		return 416;
	if ((uint64_t)ranges[0].start > *start)
		*start = (uint64_t)ranges[0].start;
	*end = (uint64_t)ranges[0].end;
	return 206;
}

/* "bytes=N-" from the end of a log that grows: nothing yet, but soon. */
static bool is_at_end(const struct rest *rest)
{
	struct str value = http_headers_get(&rest->ex->request.headers, STR("Range"));
	uint64_t start;

	if (!str_starts_with(value, STR("bytes=")) || !str_ends_with(value, STR("-")))
		return false;
	value = str_trim((struct str){value.p + 6, value.len - 7});
	return str_to_u64(value, INT64_MAX, &start) == 0 && start == rest->extent.end;
}

static bool open_reader(struct rest *rest, uint64_t start, uint64_t end)
{
	struct job_reader_stream *stream = &rest->reader.streams[rest->stream];

	rest->reader.ops = &reader_ops;
	rest->reader.on_free = on_reader_freed;
	rest->reader.follows = rest->follows;
	rest->reader.bytes_left = UINT64_MAX;
	/* What follows has no length, which a body that is sent so must have. */
	rest->reader.may_send = !rest->follows && rest->ex->can_lend &&
				job_state_is_end(rest->reader.job->record.state);
	rest->reader.piece_bytes = rest->reader.may_send ? FILE_SEND_BYTES : JOB_READ_BYTES;
	stream->is_wanted = true;
	stream->offset = start;
	stream->until = rest->follows ? UINT64_MAX : end;
	if (job_reader_open(&rest->reader) < 0)
		return false;
	rest->has_reader = true;
	http_exchange_hold(rest->ex);
	return true;
}

static void send_answer(struct rest *rest)
{
	struct http_exchange *ex = rest->ex;
	uint64_t start, end;
	int status = choose_part(rest, &start, &end);
	char text[96];

	if (status == 416 && rest->follows && is_at_end(rest)) {
		start = rest->extent.end;
		status = 200;
	}
	http_response_header(ex, STR("Accept-Ranges"), STR("bytes"));
	add_number(ex, STR("Job-Oldest-Offset"), rest->extent.oldest);
	add_number(ex, STR("Job-End-Offset"), rest->extent.end);
	http_response_header(ex, STR("Job-State"),
			     str_of(state_names[rest->reader.job->record.state]));
	http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
	http_response_header(ex, STR("Cache-Control"), STR("no-store"));
	if (status == 416) {
		refuse_range(rest);
		return;
	}
	http_response_header(ex, STR("Content-Type"), STR("text/plain; charset=utf-8"));
	if (status == 206) {
		/* Of a stream that goes on, where it ends is not known: then it is no part of
		 * anything. */
		if (rest->follows)
			status = 200;
		snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)start,
			 (unsigned long long)end - 1, (unsigned long long)rest->extent.end);
		if (!rest->follows)
			http_response_header_copy(ex, STR("Content-Range"), str_of(text));
	}
	add_number(ex, STR("Job-Start-Offset"), start);
	if (!rest->is_head && !open_reader(rest, start, end)) {
		http_respond_error(ex, 503, "too many readers");
		return;
	}
	if (rest->follows) {
		ex->no_body_timeout = true;
		http_response_header_unbuffered(ex);
	}
	if (http_response_begin(ex, status,
				rest->follows ? HTTP_LENGTH_CHUNKED : (int64_t)(end - start)) < 0)
		return;
	if (rest->is_head)
		http_response_end(ex, NULL);
}

static void look(struct job *work)
{
	struct rest *rest = container_of(work, struct rest, work);
	int fd = job_store_open_file(&rest->table->store, rest->reader.job->record.id,
				     job_stream_name(rest->stream), O_RDONLY);

	rest->status = fd < 0 ? fd : job_extent_of(fd, &rest->extent);
	close_fd(&fd);
}

static void on_looked(struct job *work)
{
	struct rest *rest = container_of(work, struct rest, work);
	struct http_exchange *ex = rest->ex;
	struct background_job *job = rest->reader.job;

	if (!ex->closed) {
		if (rest->status == 0)
			send_answer(rest);
		else if (rest->status == -ENOENT)
			http_respond_error(ex, 404, "job %s has no %s", job->record.id,
					   job_stream_name(rest->stream));
		else
			http_respond_error(ex, 500, "the output cannot be read: %s",
					   errno_text(rest->status));
	}
	background_job_release(job);
	http_exchange_release(ex);
}

/* ---- the request ---- */

static void on_drained(struct http_exchange *ex)
{
	struct rest *rest = ex->user;

	if (rest->has_reader)
		job_reader_drained(&rest->reader);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct rest *rest = ex->user;

	list_remove(&rest->waiter.node);
	if (rest->has_reader)
		job_reader_close(&rest->reader);
}

static const struct http_exchange_handler handler = {.on_drained = on_drained,
						     .on_closed = on_closed};

/* "{id}/stdout" */
static bool read_path(struct str path, struct str *ret_id, enum job_stream *ret_stream)
{
	str_skip(&path, sizeof(JOBS_REST_PREFIX) - 1);
	if (!str_split(&path, '/', ret_id))
		return false;
	*ret_stream = str_equal(path, STR("stderr")) ? JOB_STDERR : JOB_STDOUT;
	return str_equal(path, STR("stdout")) || str_equal(path, STR("stderr"));
}

static void find(struct rest *rest)
{
	struct http_exchange *ex = rest->ex;
	struct background_job *job;
	struct str id;

	if (!read_path(ex->request.path, &id, &rest->stream)) {
		http_respond_error(ex, 404, "there are /jobs/{id}/stdout and /jobs/{id}/stderr");
		return;
	}
	job = job_table_find(rest->table, id);
	if (!job && jobs_load_error(rest->table)) {
		http_respond_error(ex, 503, "%s", jobs_load_error(rest->table)->message);
		return;
	}
	if (!job) {
		http_respond_error(ex, 404, "job not found");
		return;
	}
	rest->reader.job = job;
	if (job_run(ex->loop, &rest->work, JOB_FILES, look, on_looked) < 0) {
		http_respond_error(ex, 503, "too much work is queued");
		return;
	}
	background_job_hold(job);
	http_exchange_hold(ex);
}

static void on_loaded(struct job_listener *waiter)
{
	list_remove(&waiter->node);
	find(container_of(waiter, struct rest, waiter));
}

void jobs_rest_serve(struct http_exchange *ex, struct job_table *table)
{
	struct str follow = {NULL, 0}, ignored;
	enum job_stream stream;
	struct rest *rest;

	if (!str_equal(ex->request.method, STR("GET")) &&
	    !str_equal(ex->request.method, STR("HEAD"))) {
		if (!read_path(ex->request.path, &ignored, &stream)) {
			http_respond_error(ex, 404,
					   "there are /jobs/{id}/stdout and /jobs/{id}/stderr");
			return;
		}
		http_response_header(ex, STR("Allow"), STR("GET, HEAD"));
		http_respond_error(ex, 405, "method not allowed");
		return;
	}
	rest = arena_new(&ex->arena, struct rest);
	if (!rest || table->is_closed ||
	    http_query_get(ex->request.query, STR("follow"), &ex->arena, &follow) < 0) {
		http_respond_error(ex, 503, "not now");
		return;
	}
	rest->ex = ex;
	rest->table = table;
	rest->is_head = str_equal(ex->request.method, STR("HEAD"));
	rest->follows = str_equal(follow, STR("1")) || str_equal(follow, STR("true"));
	rest->waiter.on_change = on_loaded;
	list_init(&rest->waiter.node);
	http_exchange_set_handler(ex, &handler, rest);
	if (jobs_are_loaded(table))
		find(rest);
	else
		jobs_wait_loaded(table, &rest->waiter);
}
