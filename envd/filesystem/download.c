#include "envd/filesystem/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/content_type.h"
#include "envd/filesystem/file_error.h"
#include "envd/filesystem/lease.h"
#include "envd/filesystem/path.h"

static bool tells_no_size(int fd, const struct stat *st)
{
	return st->st_size == 0 || file_is_virtual(fd);
}

static int find_user(const struct download_request *request, struct arena *arena, struct user *user,
		     struct err *err)
{
	if (user_lookup(request->user_name, arena, user, err) < 0) {
		bool is_unknown = err->kind == ERR_NOT_FOUND;

		err_wrap(err, "error looking up user '%s'", request->user_name);
		if (is_unknown)
			err->kind = ERR_UNAUTHENTICATED;
		return -EPROTO;
	}
	return sandbox_check_user(request->sandbox, request->user_name, user->uid, err);
}

static int resolve(struct download *download, const struct download_request *request,
		   const struct user *user, struct arena *arena, struct err *err)
{
	const char *given = arena_strndup(arena, request->path.p, request->path.len);
	int status;

	if (!given)
		return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "download");
	if (strlen(given) != request->path.len)
		status = err_set(err, ERR_INVALID_ARGUMENT, "invalid NUL byte");
	else
		status = path_resolve(given, user, request->default_workdir, arena, &download->path,
				      err);
	if (status < 0) {
		err_wrap(err, "error expanding and resolving path '%s'", path_show(given, arena));
		err->kind = ERR_INVALID_ARGUMENT;
	}
	return status;
}

static int check_kind(const struct stat *st, const char *shown, struct err *err)
{
	if (S_ISDIR(st->st_mode))
		return err_set(err, ERR_INVALID_ARGUMENT, "path '%s' is a directory", shown);
	if (!S_ISREG(st->st_mode))
		return err_set(err, ERR_INVALID_ARGUMENT, "path '%s' is not a regular file", shown);
	return 0;
}

/* Looked at before it is opened, because opening a device can already do something. */
static int open_regular(struct download *download, struct stat *st, const char *shown,
			struct err *err)
{
	int status;

	if (stat(download->path, st) < 0) {
		if (errno == ENOENT)
			return err_set(err, ERR_NOT_FOUND, "path '%s' does not exist", shown);
		return err_set_sys(err, file_error_kind(errno), errno,
				   "error checking if path exists '%s': stat %s", shown, shown);
	}
	status = check_kind(st, shown, err);
	if (status < 0)
		return status;
	download->fd = lease_open(AT_FDCWD, download->path, O_RDONLY, 0);
	if (download->fd == -ENOENT)
		return err_set(err, ERR_NOT_FOUND, "path '%s' does not exist", shown);
	status = download->fd < 0 ? download->fd : fstat(download->fd, st) < 0 ? -errno : 0;
	if (status < 0)
		return err_set_sys(err, file_error_kind(status), status,
				   "error opening file '%s': open %s", shown, shown);
	return check_kind(st, shown, err);
}

static ssize_t read_some(int fd, char *buffer, size_t size)
{
	ssize_t got;

	do
		got = read(fd, buffer, size);
	while (got < 0 && errno == EINTR);
	return got < 0 ? -errno : got;
}

/* Reads until the buffer is full or the file ends; says which. */
static int read_start(struct download *download, size_t size, bool *ret_at_end)
{
	download->start = xmalloc(size);
	while (download->start_len < size) {
		ssize_t got = read_some(download->fd, download->start + download->start_len,
					size - download->start_len);

		if (got < 0)
			return (int)got;
		if (got == 0) {
			*ret_at_end = true;
			break;
		}
		download->start_len += (size_t)got;
	}
	return 0;
}

static int begin(struct download *download, const struct stat *st, const char *shown,
		 struct err *err)
{
	bool is_endless = tells_no_size(download->fd, st), at_end = false;
	size_t size = is_endless || st->st_size > DOWNLOAD_START_BYTES ? DOWNLOAD_START_BYTES
								       : (size_t)st->st_size;
	int status = read_start(download, size, &at_end);

	if (status < 0)
		return err_set_sys(err, file_error_kind_of(download->fd, status), status,
				   "error opening file '%s': read %s", shown, shown);
	download->length = at_end ? (int64_t)download->start_len : is_endless ? -1 : st->st_size;
	download->modified = st->st_mtim.tv_sec;
	download->name_content_type = content_type_of_path(download->path);
	download->content_type = download->name_content_type;
	if (!download->content_type)
		download->content_type = content_type_sniff(
			(struct str){download->start, download->start_len});
	if (download->length == (int64_t)download->start_len)
		close_fd(&download->fd);
	else
		posix_fadvise(download->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return 0;
}

int download_open(struct download *download, const struct download_request *request,
		  struct arena *arena, struct err *err)
{
	const char *shown;
	struct user user;
	struct stat st;
	int status;

	*download = (struct download){.fd = -1};
	status = find_user(request, arena, &user, err);
	if (status == 0)
		status = resolve(download, request, &user, arena, err);
	if (status < 0)
		return status;
	shown = path_show(download->path, arena);
	if (!shown)
		return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "download");
	status = open_regular(download, &st, shown, err);
	if (status == 0)
		status = begin(download, &st, shown, err);
	if (status < 0)
		download_close(download);
	return status;
}

void download_drop_start(struct download *download)
{
	download->start_len = 0;
	free_ptr(&download->start);
}

ssize_t download_read(struct download *download, int64_t offset, char *buffer, size_t size)
{
	ssize_t got;

	if (download->length >= 0) {
		if (offset >= download->length)
			return 0;
		size = size_min(size, (size_t)(download->length - offset));
	}
	if (offset < (int64_t)download->start_len) {
		size = size_min(size, download->start_len - (size_t)offset);
		memcpy(buffer, download->start + offset, size);
		return (ssize_t)size;
	}
	if (download->fd < 0)
		return 0;
	download_drop_start(download);
	if (download->length < 0)
		return read_some(download->fd, buffer, size);
	do
		got = pread(download->fd, buffer, size, offset);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	return got == 0 && size ? -EIO : got;
}

ssize_t download_send(struct download *download, int64_t offset, size_t len, struct file_send *send)
{
	ssize_t sent = file_send(send, download->fd, offset, len);
	struct stat st;

	download_drop_start(download);
	if (sent < 0)
		return sent;
	if (fstat(download->fd, &st) < 0)
		return -errno;
	return st.st_size < download->length || (sent == 0 && !send->socket.is_blocked) ? -EIO
											: sent;
}

void download_close(struct download *download)
{
	close_fd(&download->fd);
	free_ptr(&download->start);
}
