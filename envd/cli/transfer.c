#include "envd/cli/transfer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/print.h"
#include "lib/limits.h"

#define CHUNK_BYTES (256 * 1024)
#define ERROR_BYTES_MAX (64 * 1024)
/* Somebody who waits longer than this wants to know how long it will take. */
#define PROGRESS_AFTER_MS 1000
#define PROGRESS_PERIOD_MS 200

struct progress {
	const char *name;
	uint64_t done, total; /* total 0: unknown */
	int64_t began_ms, shown_ms;
	bool wanted, shown;
};

struct transfer {
	struct request request;
	struct progress progress;
	struct buf error;
	struct err *err;
	int fd;
	int sys; /* errno of a failure here */
	bool failed;
	char *chunk;
};

/* ---- progress ---- */

static void progress_init(struct progress *p, const char *name, uint64_t total)
{
	*p = (struct progress){.name = name, .total = total, .began_ms = monotonic_ms()};
	p->wanted = isatty(STDERR_FILENO) == 1;
}

static void show(struct progress *p, int64_t now_ms)
{
	char done[PRINT_TEXT_BYTES], total[PRINT_TEXT_BYTES], speed[PRINT_TEXT_BYTES];
	uint64_t elapsed = (uint64_t)(now_ms - p->began_ms) + 1;
	FILE *file = fdopen(dup(STDERR_FILENO), "w");

	if (!file)
		return;
	p->shown = true;
	p->shown_ms = now_ms;
	fputs("\r\033[K", file);
	print_safe(file, p->name);
	fprintf(file, "  %s", print_size(p->done, done));
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

static void on_done(struct request *r, const struct err *lost)
{
	struct transfer *t = container_of(r, struct transfer, request);

	t->failed = true;
	if (t->sys)
		err_set_sys(t->err, ERR_INTERNAL, t->sys, "%s", t->progress.name);
	else if (lost)
		*t->err = *lost;
	else if (r->status != 200)
		call_read_error(buf_str(&t->error), r->status, t->err);
	else
		t->failed = false;
}

static int path_of(struct target *target, const char *remote, struct buf *b)
{
	int status = buf_append_str(b, STR("/files?path="));

	if (status == 0)
		status = request_escape(b, remote, true);
	if (status == 0 && target->user) {
		status = buf_append_str(b, STR("&username="));
		if (status == 0)
			status = request_escape(b, target->user, false);
	}
	return status == 0 ? buf_append(b, "", 1) : status;
}

static int run(struct transfer *t, struct target *target, const struct request_handler *handler,
	       const char *method, const char *remote, const char *type, int64_t length)
{
	struct buf path;

	buf_init(&path, HTTP_TARGET_BYTES_MAX);
	buf_init(&t->error, ERROR_BYTES_MAX);
	if (path_of(target, remote, &path) < 0) {
		buf_fini(&path);
		return err_set(t->err, ERR_INVALID_ARGUMENT, "the path is too long");
	}
	request_open(&t->request, target, handler, method, buf_data(&path), type, length);
	target_run(target);
	progress_end(&t->progress);
	buf_fini(&path);
	buf_fini(&t->error);
	return t->failed ? -EPROTO : 0;
}

static void keep_error(struct transfer *t, const char *data, size_t len)
{
	if (buf_append(&t->error, data, len) < 0)
		fail_here(t, EMSGSIZE);
}

/* ---- up ---- */

static void on_upload_body(struct request *r, const char *data, size_t len)
{
	keep_error(container_of(r, struct transfer, request), data, len);
}

static void on_upload_room(struct request *r)
{
	struct transfer *t = container_of(r, struct transfer, request);
	int status = 0;

	while (status == 0) {
		ssize_t len = read(t->fd, t->chunk, CHUNK_BYTES);

		if (len < 0 && errno == EINTR)
			continue;
		if (len < 0) {
			fail_here(t, errno);
			return;
		}
		/* A file that shrinks meanwhile ends the request short, which is a failure. */
		if (len == 0) {
			if (t->progress.total && t->progress.done < t->progress.total)
				fail_here(t, ENODATA);
			else
				request_end(r);
			return;
		}
		/* ... and one that grows is sent as long as it was. */
		if (t->progress.total)
			len = (ssize_t)size_min((size_t)len, t->progress.total - t->progress.done);
		if (len == 0) {
			request_end(r);
			return;
		}
		status = request_write(r, &(struct iovec){t->chunk, (size_t)len}, 1);
		progress_add(&t->progress, (size_t)len);
	}
}

int transfer_upload(struct target *target, const char *local, const char *remote, struct err *err)
{
	static const struct request_handler handler = {
		.on_body = on_upload_body, .on_room = on_upload_room, .on_done = on_done};
	auto_close int fd = local ? open(local, O_RDONLY | O_CLOEXEC) : dup(STDIN_FILENO);
	auto_free char *chunk = xmalloc(CHUNK_BYTES);
	struct transfer t = {.err = err, .fd = fd, .chunk = chunk};
	int64_t length = HTTP_LENGTH_CHUNKED;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local ? local : "stdin");
	if (S_ISDIR(st.st_mode))
		return err_set(err, ERR_INVALID_ARGUMENT, "%s is a directory (use -r)", local);
	if (local && S_ISREG(st.st_mode))
		length = st.st_size;
	progress_init(&t.progress, local ? local : "stdin", length > 0 ? (uint64_t)length : 0);
	return run(&t, target, &handler, "POST", remote, "application/octet-stream", length);
}

/* ---- down ---- */

static void on_download_response(struct request *r, const struct http_response *response)
{
	struct transfer *t = container_of(r, struct transfer, request);

	if (response->length > 0)
		t->progress.total = (uint64_t)response->length;
}

static void on_download_body(struct request *r, const char *data, size_t len)
{
	struct transfer *t = container_of(r, struct transfer, request);

	if (t->sys)
		return;
	if (r->status != 200)
		keep_error(t, data, len);
	else if (!print_bytes(t->fd, data, len))
		fail_here(t, errno);
	else
		progress_add(&t->progress, len);
}

static int receive(struct target *target, const char *remote, int fd, struct err *err)
{
	static const struct request_handler handler = {.on_response = on_download_response,
						       .on_body = on_download_body,
						       .on_done = on_done};
	struct transfer t = {.err = err, .fd = fd};

	progress_init(&t.progress, remote, 0);
	return run(&t, target, &handler, "GET", remote, NULL, HTTP_LENGTH_NONE);
}

/* A device or a pipe is written to, and never replaced by a file. */
static bool is_special(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

int transfer_download(struct target *target, const char *remote, const char *local, mode_t mode,
		      struct err *err)
{
	auto_free char *temporary = NULL;
	auto_close int fd = -1;
	mode_t mask;
	int status;

	if (!local)
		return receive(target, remote, STDOUT_FILENO, err);
	if (is_special(local)) {
		fd = open(local, O_WRONLY | O_CLOEXEC);
		return fd < 0 ? err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local)
			      : receive(target, remote, fd, err);
	}
	temporary = xmalloc(strlen(local) + sizeof(".XXXXXX"));
	memcpy(temporary, local, strlen(local));
	memcpy(temporary + strlen(local), ".XXXXXX", sizeof(".XXXXXX"));
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local);
	mask = umask(0);
	umask(mask);
	status = receive(target, remote, fd, err);
	if (status == 0 && (fchmod(fd, mode & 0777 & ~mask) < 0 || rename(temporary, local) < 0))
		status = err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local);
	if (status < 0)
		unlink(temporary);
	return status;
}
