/*
 * GET /files: one job opens the file and reads its start, which is all of a small one; then jobs read
 * a chunk each, one ahead of what the client has taken. A client that stops reading stops the jobs.
 */
#include "envd/filesystem/accept_encoding.h"
#include "envd/filesystem/content_type.h"
#include "envd/filesystem/download.h"
#include "envd/filesystem/files.h"
#include "envd/filesystem/path.h"
#include "lib/job.h"
#include "lib/limits.h"
#include "lib/log.h"

struct chunk {
	char *data; /* heap, made when first needed */
	size_t capacity;
	size_t len; /* read and not yet written; 0: free */
};

struct get {
	struct job job;
	struct arena arena; /* the open job's */
	struct http_exchange *ex;
	struct download_request request;
	struct download download;
	struct err err;
	int status; /* of the job that ran last */
	struct chunk chunks[2];
	unsigned next; /* the chunk to be written next; the other one follows */
	unsigned reading;
	bool is_working; /* a job has the download */
	bool is_full;    /* the client is behind */
	bool at_end;     /* of the file */
	bool is_closed;  /* the exchange is */
};

static void free_get(struct get *get)
{
	struct http_exchange *ex = get->ex;

	for (size_t i = 0; i < ARRAY_LENGTH(get->chunks); i++)
		free(get->chunks[i].data);
	arena_release(&get->arena);
	free(get);
	files_transfer_ended();
	http_exchange_release(ex);
}

static void close_file(struct job *job)
{
	struct get *get = container_of(job, struct get, job);

	download_close(&get->download);
}

static void on_file_closed(struct job *job)
{
	free_get(container_of(job, struct get, job));
}

/* The last close of a deleted file frees its blocks, so that is a job, too. */
static void finish(struct get *get)
{
	if (!get->is_closed || get->is_working)
		return;
	if (get->download.fd >= 0 &&
	    job_run(get->ex->loop, &get->job, JOB_FILES, close_file, on_file_closed) == 0)
		return;
	download_close(&get->download);
	free_get(get);
}

static void pump(struct get *get);

static void read_chunk(struct job *job)
{
	struct get *get = container_of(job, struct get, job);
	struct chunk *chunk = &get->chunks[get->reading];
	ssize_t got = download_read(&get->download, chunk->data, chunk->capacity);

	get->status = got < 0 ? (int)got : 0;
	chunk->len = got > 0 ? (size_t)got : 0;
}

static void on_chunk(struct job *job)
{
	struct get *get = container_of(job, struct get, job);

	get->is_working = false;
	if (get->is_closed) {
		finish(get);
		return;
	}
	if (get->status < 0) {
		log_warn("files", "download broke off", LOG_S("error", errno_text(get->status)));
		http_exchange_abort(get->ex);
		return;
	}
	if (get->chunks[get->reading].len == 0)
		get->at_end = true;
	pump(get);
}

/* A free chunk follows the share that transfers have right now. */
static void size_chunk(struct chunk *chunk)
{
	size_t capacity = files_chunk_bytes();

	if (chunk->capacity == capacity)
		return;
	free(chunk->data);
	chunk->data = xmalloc(capacity);
	chunk->capacity = capacity;
}

static bool start_reading(struct get *get)
{
	/* The chunk to be written next, or the one behind it. */
	unsigned into = get->chunks[get->next].len ? get->next ^ 1 : get->next;

	if (get->is_working || get->at_end || get->chunks[into].len)
		return true;
	size_chunk(&get->chunks[into]);
	get->reading = into;
	if (job_run(get->ex->loop, &get->job, JOB_BULK, read_chunk, on_chunk) < 0)
		return false;
	get->is_working = true;
	return true;
}

static int write_piece(struct get *get, const char *data, size_t len)
{
	struct iovec piece = {.iov_base = (void *)data, .iov_len = len};
	int status = http_response_write(get->ex, &piece, 1);

	get->is_full = status == HTTP_FULL;
	return status;
}

/* Writes what is there, reads ahead, ends. */
static void pump(struct get *get)
{
	struct download *download = &get->download;

	while (!get->is_closed && !get->is_full && get->chunks[get->next].len &&
	       !(get->is_working && get->reading == get->next)) {
		struct chunk *chunk = &get->chunks[get->next];

		/* The next chunk is read while this one is being sent. */
		if (!start_reading(get)) {
			http_exchange_abort(get->ex);
			return;
		}
		if (write_piece(get, chunk->data, chunk->len) < 0)
			return;
		chunk->len = 0;
		get->next ^= 1;
	}
	if (!get->is_working && download->length >= 0 && download->offset == download->length)
		get->at_end = true;
	if (get->is_closed)
		return;
	if (!start_reading(get)) {
		http_exchange_abort(get->ex);
		return;
	}
	if (get->at_end && !get->is_working && !get->chunks[0].len && !get->chunks[1].len && !get->is_full)
		http_response_end(get->ex, NULL);
}

static void add_headers(struct get *get)
{
	struct http_exchange *ex = get->ex;
	const char *disposition = content_disposition(path_base(get->download.path), &ex->arena);
	char date[32];

	if (disposition)
		http_response_header(ex, STR("Content-Disposition"), str_of(disposition));
	http_response_header(ex, STR("Content-Type"), str_of(get->download.content_type));
	if (get->download.modified) {
		http_format_date(get->download.modified, date);
		http_response_header_copy(ex, STR("Last-Modified"), str_of(date));
	}
}

static bool has_condition(const struct http_headers *headers)
{
	static const struct str names[] = {{"Range", 5}, {"If-Modified-Since", 17},
					   {"If-None-Match", 13}, {"If-Range", 8}};

	for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
		if (http_headers_get(headers, names[i]).len)
			return true;
	return false;
}

/* False when it has refused. Compressing is never done, so a client must accept the file as it is. */
static bool negotiate(struct http_exchange *ex)
{
	bool is_identity;
	enum accept_encoding choice = accept_encoding_choose(
		http_headers_get(&ex->request.headers, STR("Accept-Encoding")), &is_identity);

	if (choice == ACCEPT_NONE) {
		http_respond_error(ex, 406, "error parsing Accept-Encoding: no acceptable encoding found, "
					    "supported: [gzip]");
		return false;
	}
	http_headers_remove(&ex->response_headers, STR("Vary"));
	http_response_header(ex, STR("Vary"), STR("Accept-Encoding"));
	if (is_identity)
		return true;
	if (has_condition(&ex->request.headers))
		http_respond_error(ex, 406, "identity encoding not acceptable for Range or conditional "
					    "request");
	else
		http_respond_error(ex, 501, "gzip answers are not supported yet");
	return false;
}

static void on_opened(struct job *job)
{
	struct get *get = container_of(job, struct get, job);
	struct download *download = &get->download;
	struct http_exchange *ex = get->ex;

	get->is_working = false;
	if (get->is_closed) {
		finish(get);
		return;
	}
	if (get->status < 0) {
		files_fail(ex, &get->err);
		return;
	}
	if (!negotiate(ex))
		return;
	add_headers(get);
	if (http_response_begin(ex, 200, download->length < 0 ? HTTP_LENGTH_CHUNKED : download->length) < 0)
		return;
	if (download->start_len && write_piece(get, download->start, download->start_len) < 0)
		return;
	free_ptr(&download->start);
	pump(get);
}

static void open_file(struct job *job)
{
	struct get *get = container_of(job, struct get, job);

	get->status = download_open(&get->download, &get->request, &get->arena, &get->err);
}

static void on_drained(struct http_exchange *ex)
{
	struct get *get = ex->user;

	get->is_full = false;
	pump(get);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct get *get = ex->user;

	(void)status;
	get->is_closed = true;
	finish(get);
}

static const struct http_exchange_handler handler = {
	.on_drained = on_drained,
	.on_closed = on_closed,
};

void files_get(struct http_exchange *ex, struct sandbox *sandbox)
{
	struct files_query query;
	struct get *get;

	if (!files_read_query(ex, sandbox, &query))
		return;
	get = xcalloc(1, sizeof(*get));
	get->ex = ex;
	get->download.fd = -1;
	get->request = (struct download_request){
		.sandbox = sandbox,
		.user_name = query.user_name,
		.default_workdir = query.default_workdir,
		.path = query.path,
	};
	arena_init(&get->arena, FILE_OPERATION_ARENA_BYTES);
	files_transfer_started();
	http_exchange_hold(ex);
	http_exchange_set_handler(ex, &handler, get);
	if (job_run(ex->loop, &get->job, JOB_FILES, open_file, on_opened) < 0)
		http_respond_error(ex, 503, "too much work is queued");
	else
		get->is_working = true;
}
