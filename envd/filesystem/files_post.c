/*
 * POST /files: one job makes the checks and opens what can be opened before the body flows; then
 * the body is collected into chunks (read straight into them when its length is known), and a job
 * takes a chunk through the content coding and the form into files. Where it can it has the socket,
 * too, and goes on with what the client sends meanwhile, which saves fast clients the way through
 * the loop; else the next chunk fills. Two full chunks pause the client, and in a crowd one that
 * waits for its turn does. When the client leaves, what waits is taken back.
 */
#include "envd/filesystem/files.h"
#include "envd/filesystem/path.h"
#include "envd/filesystem/receive.h"
#include "envd/limits.h"
#include "lib/budget.h"
#include "lib/descriptors.h"
#include "lib/job.h"
#include "lib/lent_socket.h"
#include "lib/log.h"

/* Every path of the arena twice, each byte a \uXXXX at worst. */
#define POST_ANSWER_BYTES_MAX (13 * (size_t)UPLOAD_ARENA_BYTES)
/* What one read may bring on top of an almost full chunk. */
#define CHUNK_BYTES_MAX (FILE_UPLOAD_CHUNK_BYTES + 2 * FILE_CHUNK_BYTES)

/* What there is of an upload from its first job on. */
struct intake {
	struct arena arena; /* the jobs'; the loop's when none runs */
	struct share share; /* of the arena */
	struct receive receive;
};

struct post {
	struct job job;
	struct http_exchange *ex;
	struct receive_request request;
	struct intake *intake; /* NULL: the first job waits */
	struct err err;
	int status; /* of the job that ran last */
	struct buf chunks[2];
	struct lent_socket socket; /* the job's, beside its chunk */
	size_t piece_bytes; /* to be received at once */
	uint64_t left, received; /* of what it may receive */
	struct alarm rest; /* until it is looked at whether the client has stalled */
	uint64_t seen; /* of the body, at the last of these looks */
	unsigned filling; /* the other one is with the job */
	unsigned pieces; /* see files_piece_class */
	bool is_last; /* the job has the body's end */
	bool is_working; /* a job runs */
	bool is_receiving; /* receive_begin was successful, receive_abort not yet called */
	bool is_paused;
	bool has_ended; /* the body */
	bool is_answered;
	bool is_closed; /* the exchange */
};

/* What all uploads keep of the files they bring, of all loops. */
static struct budget names = {.max = UPLOADS_ARENA_BYTES_MAX};

struct budget *files_names_budget(void)
{
	return &names;
}

static void free_post(struct post *post)
{
	if (post->intake) {
		arena_release(&post->intake->arena);
		free(post->intake);
		files_transfer_ended();
	}
	free(post);
}

static void abort_receiving(struct job *job)
{
	struct post *post = container_of(job, struct post, job);

	receive_abort(&post->intake->receive);
}

static void on_aborted(struct job *job)
{
	free_post(container_of(job, struct post, job));
}

/* The client left, or has its answer. Dropping staged content frees blocks, so that is a job. */
static void finish(struct post *post)
{
	struct loop *loop = post->ex->loop;

	if (!post->is_closed || post->is_working)
		return;
	alarm_cancel(&post->rest);
	http_exchange_release(post->ex);
	lent_socket_end(&post->socket);
	buf_reset(&post->chunks[0]);
	buf_reset(&post->chunks[1]);
	if (post->is_receiving &&
	    job_run(loop, &post->job, JOB_FILES, abort_receiving, on_aborted) == 0)
		return;
	if (post->is_receiving)
		receive_abort(&post->intake->receive);
	free_post(post);
}

static void write_file(struct json_writer *w, const struct received_file *file, struct arena *arena)
{
	json_writer_object(w, NULL);
	if (file->metadata_count) {
		json_writer_object(w, "metadata");
		for (size_t i = 0; i < file->metadata_count; i++) {
			json_writer_key(w, str_of(file->metadata[i].key));
			json_writer_text(w, NULL, str_of(file->metadata[i].value));
		}
		json_writer_object_end(w);
	}
	files_write_entry(w, path_show(file->path, arena));
	json_writer_object_end(w);
}

static void fail(struct post *post);

static void answer(struct post *post)
{
	struct receive *receive = &post->intake->receive;
	struct json_writer w;
	struct buf body;

	buf_init(&body, POST_ANSWER_BYTES_MAX);
	files_open_writer(&w, &body);
	json_writer_array(&w, NULL);
	for (size_t i = 0; i < receive->file_count && w.status == 0; i++)
		write_file(&w, &receive->files[i], &post->intake->arena);
	json_writer_array_end(&w);
	post->is_answered = true;
	if (w.status < 0) {
		err_set_sys(&post->err, ERR_RESOURCE_EXHAUSTED, w.status, "answer");
		fail(post);
	} else
		http_respond(post->ex, 200, "text/plain; charset=utf-8", buf_str(&body));
	buf_fini(&body);
}

static void fail(struct post *post)
{
	post->is_answered = true;
	if (post->intake && post->intake->share.refused)
		err_set(&post->err, ERR_RESOURCE_EXHAUSTED,
			"the files of other uploads take all the memory "
			"there is for their names (%d MiB)",
			UPLOADS_ARENA_BYTES_MAX >> 20);
	else if (post->intake && post->intake->arena.refused) {
		http_respond_error(post->ex, 413,
				   "the names of the files of one upload take more than %d MiB",
				   UPLOAD_ARENA_BYTES >> 20);
		return;
	}
	files_fail(post->ex, &post->err);
}

/* What the client sends meanwhile, through the memory of the chunk: a part of it, which stays in
 * the cache. */
static int receive_more(struct post *post, struct buf *chunk)
{
	int status = 0;

	while (status == 0 && post->left && lent_socket_goes_on(&post->socket, &post->job)) {
		size_t len = size_min(post->piece_bytes, post->left);
		char *room;

		buf_clear(chunk);
		if (buf_reserve(chunk, len, &room) < 0)
			break;
		len = lent_socket_receive(&post->socket, room, len);
		post->left -= len;
		post->received += len;
		if (len)
			status = receive_feed(&post->intake->receive, room, len, &post->err);
	}
	return status;
}

static void receive_chunk(struct job *job)
{
	struct post *post = container_of(job, struct post, job);
	struct receive *receive = &post->intake->receive;
	struct buf *chunk = &post->chunks[post->filling ^ 1];

	post->status = 0;
	lent_socket_use(&post->socket);
	if (buf_length(chunk))
		post->status = receive_feed(receive, buf_data(chunk), buf_length(chunk),
					    &post->err);
	if (post->status == 0 && post->socket.fd >= 0)
		post->status = receive_more(post, chunk);
	if (post->status == 0 && post->is_last)
		post->status = receive_finish(receive, &post->err);
	if (post->status == 0 && !post->is_last)
		return;
	receive_abort(receive);
	post->is_receiving = false;
}

static void submit(struct post *post, bool with_socket);

static void watch_for_rest(struct post *post)
{
	post->seen = post->ex->received;
	alarm_set(post->ex->loop, &post->rest, UPLOAD_REST_MS);
}

/* The client has stalled: what came is written, also where it fills no chunk, and what has been
 * written need not be kept for it. Not before, since new memory costs more than the writing where a
 * host has to find each page of it. */
static void give_back(struct alarm *alarm)
{
	struct post *post = container_of(alarm, struct post, rest);

	/* After a job it is looked again. */
	if (post->is_working || post->is_answered)
		return;
	if (post->ex->received != post->seen) {
		watch_for_rest(post);
		return;
	}
	if (buf_length(&post->chunks[post->filling])) {
		submit(post, false);
		return;
	}
	for (size_t i = 0; i < ARRAY_LENGTH(post->chunks); i++)
		buf_reset(&post->chunks[i]);
}

static void pause_client(struct post *post)
{
	if (post->is_paused)
		return;
	post->is_paused = true;
	http_request_body_pause(post->ex);
}

static void resume_client(struct post *post)
{
	if (!post->is_paused)
		return;
	post->is_paused = false;
	http_request_body_resume(post->ex);
}

static void go_on(struct post *post)
{
	size_t waiting = buf_length(&post->chunks[post->filling]);
	bool was_cut_off = post->received && !post->socket.is_blocked && post->left &&
			   !files_are_crowded();

	/* Paused: it was full, which may be less than what is full now that others have ended. */
	if (post->has_ended || was_cut_off || (waiting && post->is_paused) ||
	    waiting >= files_chunk_bytes(FILE_UPLOAD_CHUNK_BYTES)) {
		submit(post, !post->has_ended);
		return;
	}
	resume_client(post);
	watch_for_rest(post);
}

static void take_socket_back(struct post *post)
{
	if (post->socket.fd < 0)
		return;
	lent_socket_end(&post->socket);
	http_request_body_take_back(post->ex, post->received);
}

static void on_received(struct job *job)
{
	struct post *post = container_of(job, struct post, job);

	post->is_working = false;
	buf_clear(&post->chunks[post->filling ^ 1]);
	take_socket_back(post);
	if (post->is_closed)
		finish(post);
	else if (post->status < 0)
		fail(post);
	else if (post->is_last)
		answer(post);
	else
		go_on(post);
}

static void refuse(struct post *post)
{
	err_set(&post->err, ERR_UNAVAILABLE, "too much work is queued");
	fail(post);
}

/* Not in a crowd, where it waits long and would hold a descriptor more. */
static void lend_socket(struct post *post)
{
	int fd = -1;

	post->piece_bytes = files_chunk_bytes(FILE_CHUNK_BYTES);
	if (post->ex->can_lend && !files_are_crowded())
		fd = http_request_body_lend(post->ex, &post->left);
	lent_socket_begin(&post->socket, fd);
}

/* Hands the chunk that fills to a job, with the socket if what it brings is next. None runs. */
static void submit(struct post *post, bool with_socket)
{
	enum job_class class = files_piece_class(&post->pieces);

	post->filling ^= 1;
	post->is_last = post->has_ended;
	post->left = post->received = 0;
	if (with_socket)
		lend_socket(post);
	if (job_run(post->ex->loop, &post->job, class, receive_chunk, on_received) < 0) {
		take_socket_back(post);
		refuse(post);
		return;
	}
	post->is_working = true;
	/* Thousands may wait, with one chunk each. */
	if (job_waits(&post->job) && files_are_crowded())
		pause_client(post);
	else
		resume_client(post);
}

/* It may be full already, now that there are more transfers: then it is after this. */
static size_t room_of(const struct buf *chunk)
{
	size_t most = files_chunk_bytes(FILE_UPLOAD_CHUNK_BYTES), used = buf_length(chunk);

	return most > used + FILE_CHUNK_BYTES_LEAST ? most - used : FILE_CHUNK_BYTES_LEAST;
}

/* The rest of the chunk, so that nothing is copied on its way from the socket to the file. */
static char *on_body_room(struct http_exchange *ex, size_t *ret_len)
{
	struct post *post = ex->user;
	struct buf *chunk = &post->chunks[post->filling];
	size_t used = buf_length(chunk), most = used + room_of(chunk);
	char *room;

	if (post->is_answered)
		return NULL;
	if ((uint64_t)ex->request.length - ex->received < most - used)
		most = used + (size_t)((uint64_t)ex->request.length - ex->received);
	if (most == used || buf_reserve(chunk, most - used, &room) < 0)
		return NULL;
	*ret_len = size_min(most - used, FILE_CHUNK_BYTES);
	return room;
}

static int take(struct buf *chunk, const char *data, size_t len)
{
	if (chunk->memory && data == chunk->memory + chunk->end) {
		buf_commit(chunk, len);
		return 0;
	}
	return buf_append(chunk, data, len);
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct post *post = ex->user;
	struct buf *chunk = &post->chunks[post->filling];

	if (post->is_answered)
		return;
	while (len && !post->is_answered) {
		size_t piece = size_min(len, FILE_CHUNK_BYTES);

		chunk = &post->chunks[post->filling];
		if (take(chunk, data, piece) < 0) {
			refuse(post);
			return;
		}
		data += piece;
		len -= piece;
		if (buf_length(chunk) < files_chunk_bytes(FILE_UPLOAD_CHUNK_BYTES))
			continue;
		if (!post->is_working)
			submit(post, len == 0);
		else
			pause_client(post);
	}
	if (!post->is_answered)
		ex->body_read_max = room_of(&post->chunks[post->filling]);
}

static void on_body_end(struct http_exchange *ex)
{
	struct post *post = ex->user;

	post->has_ended = true;
	if (!post->is_working && !post->is_answered)
		submit(post, false);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct post *post = ex->user;

	post->is_closed = true;
	if (status < 0 && !post->is_answered)
		log_info("files", "upload broke off", LOG_S("error", errno_text(status)),
			 LOG_I("received", ex->received));
	post->is_working &= !job_cancel(&post->job);
	finish(post);
}

static const struct http_exchange_handler handler = {
	.on_body_room = on_body_room,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

static void begin(struct job *job)
{
	struct post *post = container_of(job, struct post, job);
	struct intake *intake = xcalloc(1, sizeof(*intake));

	post->intake = intake;
	share_init(&intake->share, &names, UPLOAD_ARENA_EXEMPT_BYTES);
	arena_init_shared(&intake->arena, UPLOAD_ARENA_BYTES, &intake->share);
	post->status = descriptors_check(&post->err);
	if (post->status == 0)
		post->status = receive_begin(&intake->receive, &post->request, &intake->arena,
					     &post->err);
	if (post->status < 0)
		receive_abort(&intake->receive);
	else
		post->is_receiving = true;
}

static void on_begun(struct job *job)
{
	struct post *post = container_of(job, struct post, job);

	post->is_working = false;
	files_transfer_started();
	if (post->is_closed)
		finish(post);
	else if (post->status < 0)
		fail(post);
	else {
		post->ex->body_read_max = FILE_CHUNK_BYTES_MIN;
		watch_for_rest(post);
		http_request_body_start(post->ex);
	}
}

static bool collect_fields(struct http_exchange *ex, struct receive_request *request)
{
	const struct http_headers *headers = &ex->request.headers;
	struct metadata_field *fields = arena_alloc_array(&ex->arena, headers->count,
							  sizeof(*fields));

	if (!fields) {
		http_respond_error(ex, 431, "the request's head needs too much memory");
		return false;
	}
	for (size_t i = 0; i < headers->count; i++)
		fields[i] = (struct metadata_field){headers->items[i].name,
						    headers->items[i].value};
	request->fields = fields;
	request->field_count = headers->count;
	return true;
}

void files_post(struct http_exchange *ex, struct sandbox *sandbox)
{
	struct receive_request request = {.sandbox = sandbox};
	struct files_query query;
	struct post *post;

	if (!files_read_query(ex, sandbox, &query) || !collect_fields(ex, &request))
		return;
	request.user_name = query.user_name;
	request.default_workdir = query.default_workdir;
	request.path = query.path;
	request.content_type = http_headers_get(&ex->request.headers, STR("Content-Type"));
	request.content_encoding = http_headers_get(&ex->request.headers, STR("Content-Encoding"));
	request.length = ex->request.length == HTTP_LENGTH_NONE ? 0
			 : ex->request.length < 0		? -1
								: ex->request.length;
	post = xcalloc(1, sizeof(*post));
	post->ex = ex;
	post->socket.fd = -1;
	post->request = request;
	buf_init(&post->chunks[0], CHUNK_BYTES_MAX);
	buf_init(&post->chunks[1], CHUNK_BYTES_MAX);
	alarm_init(&post->rest, give_back);
	http_exchange_hold(ex);
	http_exchange_set_handler(ex, &handler, post);
	if (job_run(ex->loop, &post->job, JOB_BEGIN, begin, on_begun) < 0)
		refuse(post);
	else
		post->is_working = true;
}
