/*
 * GET /files: one job opens the file, decides how to answer and makes the start of the body, which
 * is all of a small one; then jobs make a chunk each, one ahead of what the client has taken. A
 * client that stops reading stops the jobs. In a crowd no memory is held for what a job that waits
 * for its turn will make. When the client leaves, such a job is taken back. Of a large file jobs
 * send most of it themselves, uncopied, and the end comes in chunks again (file_send.h).
 */
#include "envd/filesystem/content_type.h"
#include "envd/filesystem/file_error.h"
#include "envd/filesystem/files.h"
#include "envd/filesystem/files_answer.h"
#include "envd/filesystem/path.h"
#include "envd/limits.h"
#include "lib/descriptors.h"
#include "lib/job.h"
#include "lib/limits.h"
#include "lib/log.h"

struct chunk {
	char *data; /* heap, made by the job that first needs it */
	size_t capacity;
	size_t len; /* made and not yet written; 0: free */
};

struct get {
	struct job job;
	struct arena arena; /* the open job's; what it made is borrowed by all below */
	struct http_exchange *ex;
	struct download_request request;
	struct files_answer_request answer_request;
	struct files_answer answer;
	struct download download;
	struct download_body body;
	struct err err;
	int status; /* of the job that ran last */
	struct chunk chunks[2];
	unsigned next; /* the chunk to be written next; the other one follows */
	unsigned reading;
	unsigned pieces; /* see files_piece_class */
	struct file_send send;
	size_t send_most; /* in one go */
	uint64_t sent; /* by the last job */
	bool has_begun; /* the file has been open */
	bool is_working; /* a job has the download */
	bool is_full; /* the client is behind */
	bool at_end; /* of the body */
	bool may_be_compressed; /* counted as such */
	bool is_compressed_small;
	bool is_closed; /* the exchange is */
};

/* Downloads of this thread's loop whose client would like gzip, which costs memory for each. */
static _Thread_local size_t compressions;

/* All but the file. */
static void release(struct get *get)
{
	for (size_t i = 0; i < ARRAY_LENGTH(get->chunks); i++)
		free(get->chunks[i].data);
	lent_socket_end(&get->send.socket);
	download_body_fini(&get->body);
	arena_release(&get->arena);
	if (get->may_be_compressed)
		compressions--;
	if (get->has_begun)
		files_transfer_ended();
	http_exchange_release(get->ex);
}

static void close_file(struct job *job)
{
	struct get *get = container_of(job, struct get, job);

	download_close(&get->download);
}

static void on_file_closed(struct job *job)
{
	free(container_of(job, struct get, job));
}

/* The last close of a deleted file frees its blocks, so that is a job, too. */
static void finish(struct get *get)
{
	struct loop *loop = get->ex->loop;

	if (!get->is_closed || get->is_working)
		return;
	release(get);
	if (get->download.fd >= 0 &&
	    job_run(loop, &get->job, JOB_FILES, close_file, on_file_closed) == 0)
		return;
	download_close(&get->download);
	free(get);
}

static void pump(struct get *get);

static void read_chunk(struct job *job)
{
	struct get *get = container_of(job, struct get, job);
	struct chunk *chunk = &get->chunks[get->reading];
	ssize_t got;

	if (!chunk->data)
		chunk->data = xmalloc(chunk->capacity);
	got = download_body_read(&get->body, chunk->data, chunk->capacity, &get->at_end);
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
		/* That its client has left is no news. */
		if (get->status != -EPIPE && get->status != -ECONNRESET)
			log_warn("files", "download broke off",
				 LOG_S("error", errno_text(get->status)));
		http_exchange_abort(get->ex);
		return;
	}
	pump(get);
}

static void size_chunk(struct chunk *chunk, size_t capacity)
{
	if (chunk->capacity == capacity)
		return;
	free_ptr(&chunk->data);
	chunk->capacity = capacity;
}

/* The job, when it is its turn, makes memory for what it needs. */
static void drop_empty_chunks(struct get *get)
{
	for (size_t i = 0; i < ARRAY_LENGTH(get->chunks); i++)
		if (get->chunks[i].len == 0)
			free_ptr(&get->chunks[i].data);
}

static int run_piece(struct get *get, void (*fn)(struct job *job), void (*done)(struct job *job))
{
	return job_run(get->ex->loop, &get->job, files_piece_class(&get->pieces), fn, done);
}

static bool start_reading(struct get *get)
{
	unsigned into;

	/* Asked first: the chunks are the job's while it works. */
	if (get->is_working || get->at_end)
		return true;
	/* The chunk to be written next, or the one behind it. */
	into = get->chunks[get->next].len ? get->next ^ 1 : get->next;
	if (get->chunks[into].len)
		return true;
	/* It follows the share that transfers have right now. */
	size_chunk(&get->chunks[into], files_chunk_bytes(FILE_CHUNK_BYTES));
	get->reading = into;
	if (run_piece(get, read_chunk, on_chunk) < 0)
		return false;
	get->is_working = true;
	return true;
}

static void send_piece(struct job *job)
{
	struct get *get = container_of(job, struct get, job);
	ssize_t sent;

	get->status = 0;
	get->sent = 0;
	do {
		sent = download_body_send(&get->body, get->send_most, &get->send);
		if (sent < 0) {
			get->status = (int)sent;
			return;
		}
		get->sent += (uint64_t)sent;
	} while (lent_socket_goes_on(&get->send.socket, job) &&
		 download_body_sendable(&get->body) > 0);
	if (get->send.socket.is_blocked)
		read_chunk(job);
}

static void on_sent(struct job *job)
{
	struct get *get = container_of(job, struct get, job);

	lent_socket_end(&get->send.socket);
	http_response_take_back(get->ex, get->sent);
	if (get->status == -ENOSYS) {
		get->body.tail = -1;
		get->status = 0;
	}
	on_chunk(job);
}

/* What is in front of it has gone out, and the client is not behind. */
static bool start_sending(struct get *get)
{
	int fd = http_response_lend(get->ex);

	if (fd == -EAGAIN) {
		get->is_full = true;
		return true;
	}
	if (fd < 0) {
		get->body.tail = -1;
		return true;
	}
	/* With a few bytes to wait with. */
	size_chunk(&get->chunks[get->next], FILE_SEND_WAIT_BYTES);
	size_chunk(&get->chunks[get->next ^ 1], 0);
	get->reading = get->next;
	lent_socket_begin(&get->send.socket, fd);
	get->send_most = files_chunk_bytes(FILE_SEND_BYTES);
	if (run_piece(get, send_piece, on_sent) < 0) {
		lent_socket_end(&get->send.socket);
		http_response_take_back(get->ex, 0);
		return false;
	}
	get->is_working = true;
	return true;
}

/* Starts to make or send what comes next, if it is time for that. */
static bool go_on(struct get *get)
{
	if (get->is_working || download_body_sendable(&get->body) == 0)
		return start_reading(get);
	if (get->chunks[0].len || get->chunks[1].len || get->is_full)
		return true;
	return start_sending(get) && (get->is_working || get->is_full || start_reading(get));
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
	while (!get->is_closed && !get->is_full &&
	       !(get->is_working && get->reading == get->next) && get->chunks[get->next].len) {
		struct chunk *chunk = &get->chunks[get->next];

		/* The next chunk is made while this one is being sent. */
		if (!go_on(get)) {
			http_exchange_abort(get->ex);
			return;
		}
		if (write_piece(get, chunk->data, chunk->len) < 0)
			return;
		chunk->len = 0;
		get->next ^= 1;
	}
	if (get->is_closed)
		return;
	if (!go_on(get)) {
		http_exchange_abort(get->ex);
		return;
	}
	if (job_waits(&get->job) && files_are_crowded())
		drop_empty_chunks(get);
	if (!get->is_working && get->at_end && !get->chunks[0].len && !get->chunks[1].len &&
	    !get->is_full)
		http_response_end(get->ex, NULL);
}

static void add_headers(struct get *get)
{
	struct http_exchange *ex = get->ex;
	const struct files_answer *answer = &get->answer;
	const char *disposition = content_disposition(path_base(get->download.path), &ex->arena);
	bool is_content = answer->status == 200 || answer->status == 206;
	char date[32];

	if (answer->varies) {
		http_headers_remove(&ex->response_headers, STR("Vary"));
		http_response_header(ex, STR("Vary"), STR("Accept-Encoding"));
	}
	if (answer->status == 406)
		return;
	if (disposition)
		http_response_header(ex, STR("Content-Disposition"), str_of(disposition));
	if (answer->tells_modified) {
		http_format_date(get->download.modified, date);
		http_response_header_copy(ex, STR("Last-Modified"), str_of(date));
	}
	if (answer->content_range)
		http_response_header(ex, STR("Content-Range"), str_of(answer->content_range));
	if (!is_content)
		return;
	http_response_header(ex, STR("Content-Type"), str_of(answer->content_type));
	if (answer->is_compressed)
		http_response_header(ex, STR("Content-Encoding"), STR("gzip"));
	else if (get->download.length >= 0)
		http_response_header(ex, STR("Accept-Ranges"), STR("bytes"));
}

static void send_content(struct get *get)
{
	const struct files_answer *answer = &get->answer;

	if (http_response_begin(get->ex, answer->status,
				answer->length < 0 ? HTTP_LENGTH_CHUNKED : answer->length) < 0)
		return;
	pump(get);
}

static void on_opened(struct job *job)
{
	struct get *get = container_of(job, struct get, job);
	const struct files_answer *answer = &get->answer;
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
	get->has_begun = true;
	files_transfer_started();
	add_headers(get);
	switch (answer->status) {
	case 304:
		if (http_response_begin(ex, 304, HTTP_LENGTH_NONE) == 0)
			http_response_end(ex, NULL);
		break;
	case 406:
		http_respond_error(ex, 406, "%s", answer->message);
		break;
	case 412:
		http_respond(ex, 412, NULL, STR(""));
		break;
	case 416:
		http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
		http_respond(ex, 416, "text/plain; charset=utf-8", str_of(answer->message));
		break;
	default:
		send_content(get);
		break;
	}
}

/* The start of the body, in a chunk of its own size. */
static int begin_body(struct get *get)
{
	const struct files_answer *answer = &get->answer;
	struct chunk *chunk = &get->chunks[0];
	ssize_t got;

	get->body.download = &get->download;
	get->body.parts = answer->parts;
	get->body.part_count = answer->part_count;
	get->body.tail = -1;
	if (get->ex->can_lend && get->download.length > FILE_SEND_FILE_BYTES_MIN)
		get->body.tail = file_send_tail();
	if (answer->is_compressed) {
		get->body.gzip = gzip_writer_new(get->is_compressed_small);
		if (!get->body.gzip)
			return -ENOMEM;
		get->body.is_small = get->is_compressed_small;
	}
	chunk->capacity = DOWNLOAD_START_BYTES;
	if (answer->length >= 0)
		chunk->capacity = size_min(chunk->capacity, size_max((size_t)answer->length, 1));
	chunk->data = xmalloc(chunk->capacity);
	got = download_body_read(&get->body, chunk->data, chunk->capacity, &get->at_end);
	if (got < 0)
		return (int)got;
	chunk->len = (size_t)got;
	if (get->at_end || (get->download.fd >= 0 && get->download.length >= 0))
		download_drop_start(&get->download);
	return 0;
}

static void open_file(struct job *job)
{
	struct get *get = container_of(job, struct get, job);

	get->status = descriptors_check(&get->err);
	if (get->status == 0)
		get->status = download_open(&get->download, &get->request, &get->arena, &get->err);
	if (get->status < 0)
		return;
	get->status = files_answer_plan(&get->answer_request, &get->download, &get->arena,
					&get->answer);
	if (get->status == 0 && get->answer.parts)
		get->status = begin_body(get);
	if (get->status < 0)
		err_set_sys(&get->err, file_error_kind_of(get->download.fd, get->status),
			    get->status, "error reading file '%s'",
			    path_show(get->download.path, &get->arena));
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
	get->is_working &= !job_cancel(&get->job);
	finish(get);
}

/* False when there are too many already. */
static bool choose_encoding(struct get *get)
{
	struct files_answer_request *request = &get->answer_request;

	request->headers = &get->ex->request.headers;
	request->encoding = accept_encoding_choose(
		http_headers_get(request->headers, STR("Accept-Encoding")),
		&request->takes_identity);
	if (request->encoding != ACCEPT_GZIP)
		return true;
	if (!request->takes_identity && compressions >= FILE_COMPRESSIONS_FORCED_MAX)
		return false;
	get->may_be_compressed = true;
	get->is_compressed_small = compressions >= FILE_COMPRESSIONS_LARGE_MAX;
	request->may_compress = compressions < FILE_COMPRESSIONS_MAX;
	compressions++;
	return true;
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
	get->download.fd = get->send.socket.fd = -1;
	get->request = (struct download_request){
		.sandbox = sandbox,
		.user_name = query.user_name,
		.default_workdir = query.default_workdir,
		.path = query.path,
	};
	arena_init(&get->arena, FILE_OPERATION_ARENA_BYTES);
	if (!choose_encoding(get)) {
		free(get);
		http_respond_error(ex, 503, "too many compressed downloads at once");
		return;
	}
	http_exchange_hold(ex);
	http_exchange_set_handler(ex, &handler, get);
	if (job_run(ex->loop, &get->job, JOB_BEGIN, open_file, on_opened) < 0)
		http_respond_error(ex, 503, "too much work is queued");
	else
		get->is_working = true;
}
