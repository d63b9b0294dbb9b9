#include "envd/cli/transfer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/name.h"
#include "envd/cli/print.h"
#include "lib/gzip.h"
#include "lib/json.h"
#include "lib/limits.h"

#define CHUNK_BYTES (256 * 1024)
#define ANSWER_BYTES_MAX (64 * 1024)
#define ANSWER_ARENA_BYTES (1024 * 1024)
/* Zeros that fill so much of a file are not written. */
#define HOLE_BYTES 4096
/* Somebody who waits longer than this wants to know how long it will take. */
#define PROGRESS_AFTER_MS 1000
#define PROGRESS_PERIOD_MS 200
#define PROGRESS_NAME_CHARACTERS 30

struct progress {
	const char *name, *label;
	uint64_t done, total; /* total 0: unknown */
	int64_t began_ms, shown_ms;
	bool wanted, shown;
};

struct transfer {
	struct request request;
	struct progress progress;
	struct buf answer; /* to an upload, or an error */
	struct err *err;
	int fd;
	int sys; /* errno of a failure here */
	bool failed;
	bool is_sparse; /* down, into a file: holes stay holes */
	char *chunk;
	struct gzip_writer *gzip; /* up, of a file with holes; `packed` has room for a chunk */
	char *packed;
	uv_signal_t signals[3];
	bool watches; /* signals */
	int signal; /* that came; 0: none */
};

/* ---- progress ---- */

static void progress_init(struct progress *p, const char *name, uint64_t total)
{
	*p = (struct progress){.name = name, .total = total, .began_ms = monotonic_ms()};
	p->wanted = isatty(STDERR_FILENO) == 1;
	p->label = strrchr(name, '/') && strrchr(name, '/')[1] ? strrchr(name, '/') + 1 : name;
}

/* The bytes of the first characters. */
static size_t visible_part(const char *text)
{
	size_t used = 0;

	for (int i = 0; i < PROGRESS_NAME_CHARACTERS && text[used]; i++)
		used += name_visible(text + used);
	return used;
}

static void show(struct progress *p, int64_t now_ms)
{
	char done[PRINT_TEXT_BYTES], total[PRINT_TEXT_BYTES], speed[PRINT_TEXT_BYTES];
	uint64_t elapsed = (uint64_t)(now_ms - p->began_ms) + 1;
	FILE *file = fdopen(dup(STDERR_FILENO), "w");
	auto_free char *quoted = NULL;

	if (!file)
		return;
	p->shown = true;
	p->shown_ms = now_ms;
	fputs("\r\033[K", file);
	/* A line that does not fit would not be written over. */
	quoted = name_quote(p->label);
	fprintf(file, "%.*s  %s", (int)visible_part(quoted), quoted, print_size(p->done, done));
	if (p->total)
		fprintf(file, " of %s  %llu %%", print_size(p->total, total),
			(unsigned long long)(p->done * 100 / p->total));
	fprintf(file, "  %s/s", print_size(p->done * 1000 / elapsed, speed));
	fclose(file);
}

static void progress_add(struct progress *p, size_t len)
{
	int64_t now_ms;

	p->done += len;
	if (!p->wanted)
		return;
	now_ms = monotonic_ms();
	if (now_ms - p->began_ms >= PROGRESS_AFTER_MS && now_ms - p->shown_ms >= PROGRESS_PERIOD_MS)
		show(p, now_ms);
}

static void progress_end(struct progress *p)
{
	if (!p->shown)
		return;
	show(p, monotonic_ms());
	dprintf(STDERR_FILENO, "\n");
}

/* ---- both ways ---- */

static void fail_here(struct transfer *t, int sys)
{
	t->sys = sys ? sys : EIO;
	request_cancel(&t->request);
}

static void on_signal_closed(uv_handle_t *handle)
{
	(void)handle;
}

static void unwatch_signals(struct transfer *t)
{
	for (size_t i = 0; t->watches && i < ARRAY_LENGTH(t->signals); i++)
		uv_close((uv_handle_t *)&t->signals[i], on_signal_closed);
	t->watches = false;
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct transfer *t = handle->data;

	t->signal = number;
	fail_here(t, EINTR);
}

/* What ends this program must not leave half a file behind. One that was ignored at the start stays
 * so. */
static void watch_signals(struct transfer *t, struct loop *loop)
{
	static const int numbers[ARRAY_LENGTH(t->signals)] = {SIGINT, SIGTERM, SIGHUP};

	for (size_t i = 0; i < ARRAY_LENGTH(t->signals); i++) {
		struct sigaction before;

		uv_signal_init(&loop->uv, &t->signals[i]);
		t->signals[i].data = t;
		if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
			uv_signal_start(&t->signals[i], on_signal, numbers[i]);
	}
	t->watches = true;
}

static void on_done(struct request *r, const struct err *lost)
{
	struct transfer *t = container_of(r, struct transfer, request);

	t->failed = true;
	unwatch_signals(t);
	if (t->sys)
		err_set_sys(t->err, t->sys == EPIPE ? ERR_UNKNOWN : err_kind_from_errno(t->sys),
			    t->sys, "%s", t->progress.name);
	else if (lost)
		*t->err = *lost;
	else if (r->status != 200)
		call_read_error(buf_str(&t->answer), r->status, t->err);
	else
		t->failed = false;
}

static int path_of(struct target *target, const char *remote, struct buf *b)
{
	auto_free char *shown = name_to_wire(remote);
	int status = buf_append_str(b, STR("/files?path="));

	if (status == 0)
		status = request_escape(b, shown, true);
	if (status == 0 && target->user) {
		status = buf_append_str(b, STR("&username="));
		if (status == 0)
			status = request_escape(b, target->user, false);
	}
	return status == 0 ? buf_append(b, "", 1) : status;
}

static int run(struct transfer *t, struct target *target, const struct request_handler *handler,
	       const char *method, const char *remote, struct request_body body)
{
	struct buf path;

	buf_init(&path, HTTP_TARGET_BYTES_MAX);
	if (path_of(target, remote, &path) < 0) {
		buf_fini(&path);
		return err_set(t->err, ERR_INVALID_ARGUMENT, "the path is too long");
	}
	request_open(&t->request, target, handler, method, buf_data(&path), body);
	target_run(target);
	progress_end(&t->progress);
	buf_fini(&path);
	return t->failed ? -EPROTO : 0;
}

static void keep_answer(struct transfer *t, const char *data, size_t len)
{
	if (buf_append(&t->answer, data, len) < 0)
		fail_here(t, EMSGSIZE);
}

/* ---- up ---- */

static void on_upload_body(struct request *r, const char *data, size_t len)
{
	keep_answer(container_of(r, struct transfer, request), data, len);
}

/* Sends `len` bytes of the chunk, `is_last` when there are no more. As request_write. */
static int send_chunk(struct transfer *t, size_t len, bool is_last)
{
	struct str input = {t->chunk, len};
	bool has_ended = false;
	int status = 0;

	if (!t->gzip)
		return len ? request_write(&t->request, &(struct iovec){t->chunk, len}, 1) : 0;
	while (status >= 0 && !has_ended && (input.len || is_last)) {
		size_t packed = gzip_writer_write(t->gzip, &input, is_last, t->packed, CHUNK_BYTES,
						  &has_ended);
		int result = packed ? request_write(&t->request, &(struct iovec){t->packed, packed},
						    1)
				    : 0;

		status = result ? result : status;
	}
	return status;
}

static void on_upload_room(struct request *r)
{
	struct transfer *t = container_of(r, struct transfer, request);
	struct progress *p = &t->progress;
	int status = 0;

	while (status == 0) {
		/* A file that grows meanwhile is sent as long as it was. */
		size_t most = p->total ? size_min(CHUNK_BYTES, p->total - p->done) : CHUNK_BYTES;
		ssize_t len = most ? read(t->fd, t->chunk, most) : 0;

		if (len < 0 && errno == EINTR)
			continue;
		/* ... and one that shrinks ends the request short, which is a failure. */
		if (len < 0 || (len == 0 && most && p->total)) {
			fail_here(t, len < 0 ? errno : ENODATA);
			return;
		}
		status = send_chunk(t, (size_t)len, len == 0);
		if (len == 0) {
			request_end(r);
			return;
		}
		progress_add(p, (size_t)len);
	}
}

/* [{"name":...,"type":...,"path":...}] (contract/envd.md 2.6) */
static char *read_path(struct str answer)
{
	const struct json_value *value, *path;
	struct arena arena;
	struct err ignored;
	char *result = NULL;

	arena_init(&arena, ANSWER_ARENA_BYTES);
	if (json_parse(answer, &arena, &value, &ignored) == 0 && json_type(value) == JSON_ARRAY &&
	    json_length(value) == 1 && (path = json_get(json_at(value, 0), STR("path"))) &&
	    json_type(path) == JSON_STRING)
		result = xstrndup(json_string(path).p, json_string(path).len);
	arena_release(&arena);
	return result;
}

/* Not only stored in less than its size, as file systems that compress have it. */
static bool has_holes(int fd, const struct stat *st)
{
	bool result = S_ISREG(st->st_mode) && st->st_blocks * 512 < st->st_size &&
		      lseek(fd, 0, SEEK_HOLE) < st->st_size;

	return lseek(fd, 0, SEEK_SET) == 0 && result;
}

int transfer_upload(struct target *target, const char *local, const char *remote,
		    struct transfer_uploaded *ret_uploaded, struct err *err)
{
	static const struct request_handler handler = {
		.on_body = on_upload_body, .on_room = on_upload_room, .on_done = on_done};
	auto_close int fd = local ? open(local, O_RDONLY | O_CLOEXEC) : dup(STDIN_FILENO);
	auto_free char *chunk = xmalloc(CHUNK_BYTES);
	auto_free char *packed = xmalloc(CHUNK_BYTES);
	struct transfer t = {.err = err, .fd = fd, .chunk = chunk, .packed = packed};
	struct request_body body = {"application/octet-stream", NULL, HTTP_LENGTH_CHUNKED};
	struct stat st;
	int status;

	*ret_uploaded = (struct transfer_uploaded){.mode = 0666};
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set_sys(err, err_kind_from_errno(errno), errno, "%s",
				   local ? local : "stdin");
	if (S_ISDIR(st.st_mode))
		return err_set(err, ERR_INVALID_ARGUMENT, "%s is a directory",
			       local ? local : "stdin");
	if (local && S_ISREG(st.st_mode)) {
		ret_uploaded->mode = st.st_mode & 0777;
		ret_uploaded->has_holes = has_holes(fd, &st);
		body.length = st.st_size;
	}
	progress_init(&t.progress, local ? local : "stdin",
		      body.length > 0 ? (uint64_t)body.length : 0);
	if (ret_uploaded->has_holes && (t.gzip = gzip_writer_new(false))) {
		body.length = HTTP_LENGTH_CHUNKED;
		body.coding = "gzip";
	}
	buf_init(&t.answer, ANSWER_BYTES_MAX);
	status = run(&t, target, &handler, "POST", remote, body);
	if (status == 0)
		ret_uploaded->path = read_path(buf_str(&t.answer));
	buf_fini(&t.answer);
	gzip_writer_free(t.gzip);
	return status;
}

/* ---- down ---- */

static void on_download_response(struct request *r, const struct http_response *response)
{
	struct transfer *t = container_of(r, struct transfer, request);

	if (response->length > 0)
		t->progress.total = (uint64_t)response->length;
}

static bool is_zero(const char *data, size_t len)
{
	return !*data && memcmp(data, data + 1, len - 1) == 0;
}

/* Blocks of zeros are stepped over; what is behind the last byte written is made at the end. */
static bool write_sparse(struct transfer *t, const char *data, size_t len)
{
	uint64_t at = t->progress.done;

	while (len > 0) {
		size_t run = 0, piece;
		bool hole = false;

		for (; run < len; run += piece) {
			piece = size_min(len - run, HOLE_BYTES - (size_t)((at + run) % HOLE_BYTES));
			hole = is_zero(data + run, piece);
			if (hole)
				break;
		}
		if (run &&
		    (lseek(t->fd, (off_t)at, SEEK_SET) < 0 || !print_bytes(t->fd, data, run)))
			return false;
		run += hole ? piece : 0;
		at += run;
		data += run;
		len -= run;
	}
	return true;
}

static void on_download_body(struct request *r, const char *data, size_t len)
{
	struct transfer *t = container_of(r, struct transfer, request);

	if (t->sys || !len)
		return;
	if (r->status != 200)
		keep_answer(t, data, len);
	else if (!(t->is_sparse ? write_sparse(t, data, len) : print_bytes(t->fd, data, len)))
		fail_here(t, errno);
	else
		progress_add(&t->progress, len);
}

static int receive(struct transfer *t, struct target *target, const char *remote)
{
	static const struct request_handler handler = {.on_response = on_download_response,
						       .on_body = on_download_body,
						       .on_done = on_done};
	int status;

	progress_init(&t->progress, remote, 0);
	buf_init(&t->answer, ANSWER_BYTES_MAX);
	status = run(t, target, &handler, "GET", remote,
		     (struct request_body){.length = HTTP_LENGTH_NONE});
	buf_fini(&t->answer);
	if (status == 0 && t->is_sparse && ftruncate(t->fd, (off_t)t->progress.done) < 0)
		status = err_set_sys(t->err, err_kind_from_errno(errno), errno, "%s", remote);
	return status;
}

/* A device or a pipe is written to, and never replaced by a file. */
static bool is_special(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

mode_t transfer_local_mode(mode_t mode)
{
	mode_t mask = umask(0);

	umask(mask);
	return mode & 0777 & ~mask;
}

/* In the same directory, with a name of its own, however long the other is. */
static char *temporary_name(const char *path)
{
	static const char name[] = ".envd-XXXXXX";
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) + 1 : 0;
	char *result = xmalloc(len + sizeof(name));

	memcpy(result, path, len);
	memcpy(result + len, name, sizeof(name));
	return result;
}

static int receive_file(struct target *target, const char *remote, const char *local, mode_t mode,
			struct err *err)
{
	auto_free char *temporary = temporary_name(local);
	auto_close int fd = mkostemp(temporary, O_CLOEXEC);
	struct transfer t = {.err = err, .fd = fd, .is_sparse = true};
	int status;

	if (fd < 0)
		return err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local);
	watch_signals(&t, &target->loop);
	status = receive(&t, target, remote);
	if (status == 0 &&
	    (fchmod(fd, transfer_local_mode(mode)) < 0 || rename(temporary, local) < 0))
		status = err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local);
	if (status < 0)
		unlink(temporary);
	if (t.signal) {
		/* Whoever waits for us shall see what it was. */
		sigaction(t.signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
		raise(t.signal);
	}
	return status;
}

int transfer_download(struct target *target, const char *remote, const char *local, mode_t mode,
		      struct err *err)
{
	auto_close int fd = -1;
	char real[PATH_MAX];

	if (!local)
		return receive(&(struct transfer){.err = err, .fd = STDOUT_FILENO}, target, remote);
	if (!is_special(local)) {
		/* A link stays one, as with cp. */
		struct stat st;
		bool is_link = lstat(local, &st) == 0 && S_ISLNK(st.st_mode) &&
			       realpath(local, real);

		return receive_file(target, remote, is_link ? real : local, mode, err);
	}
	fd = open(local, O_WRONLY | O_CLOEXEC);
	return fd < 0 ? err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local)
		      : receive(&(struct transfer){.err = err, .fd = fd}, target, remote);
}
