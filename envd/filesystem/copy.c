#include "envd/filesystem/copy.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/directory.h"
#include "envd/filesystem/file_error.h"

#define COPY_BUFFER_BYTES (128 * 1024)
#define COPY_STEP_BYTES (1 << 30)
#define XATTR_BYTES 65536

int copy_write_all(int to, const char *data, size_t len, int64_t offset)
{
	while (len) {
		ssize_t put = pwrite(to, data, len, offset);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return put < 0 ? -errno : -EIO;
		data += put;
		len -= (size_t)put;
		offset += put;
	}
	return 0;
}

static int64_t copy_by_hand(int from, int64_t from_start, int to, int64_t to_start, int64_t done,
			    int64_t len)
{
	auto_free char *buffer = xmalloc(COPY_BUFFER_BYTES);

	while (done < len) {
		ssize_t got = pread(from, buffer, size_min(COPY_BUFFER_BYTES, (size_t)(len - done)),
				    from_start + done);
		int status;

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		status = copy_write_all(to, buffer, (size_t)got, to_start + done);
		if (status < 0)
			return status;
		done += got;
	}
	return done;
}

int64_t copy_content(int from, int to, int64_t len)
{
	return copy_content_at(from, 0, to, 0, len);
}

int64_t copy_content_at(int from, int64_t from_start, int to, int64_t to_start, int64_t len)
{
	int64_t done = 0;

	while (done < len) {
		int64_t from_offset = from_start + done, to_offset = to_start + done;
		ssize_t copied = (ssize_t)syscall(
			SYS_copy_file_range, from, &from_offset, to, &to_offset,
			size_min(COPY_STEP_BYTES, (size_t)(len - done)), 0);

		if (copied > 0) {
			done += copied;
			continue;
		}
		if (copied < 0 && errno == EINTR)
			continue;
		if (copied < 0 &&
		    (errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EFBIG))
			return -errno;
		/* Across file systems, virtual files that claim to be empty, old kernels. */
		return copy_by_hand(from, from_start, to, to_start, done, len);
	}
	return done;
}

static bool is_unsupported(int sys)
{
	return sys == EOPNOTSUPP || sys == EPERM || sys == ENODATA || sys == EINVAL ||
	       sys == ENOSYS;
}

/* What the target's file system does not keep is dropped, as by other copying tools. */
static int copy_attributes(int from, int to)
{
	auto_free char *names = NULL, *value = NULL;
	ssize_t size = flistxattr(from, NULL, 0);

	if (size <= 0)
		return 0;
	names = xmalloc(XATTR_BYTES);
	value = xmalloc(XATTR_BYTES);
	size = flistxattr(from, names, XATTR_BYTES);
	for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1) {
		ssize_t len = fgetxattr(from, names + at, value, XATTR_BYTES);

		if (len >= 0 && fsetxattr(to, names + at, value, (size_t)len, 0) < 0 &&
		    !is_unsupported(errno))
			return -errno;
	}
	return 0;
}

/* Owner before mode, because chown clears set-id bits; times last. */
static int copy_facts(int from, int to, const struct stat *st)
{
	struct timespec times[2] = {st->st_atim, st->st_mtim};
	int status;

	if (geteuid() == 0 && fchown(to, st->st_uid, st->st_gid) < 0)
		return -errno;
	status = copy_attributes(from, to);
	if (status < 0)
		return status;
	if (fchmod(to, st->st_mode & 07777) < 0 || futimens(to, times) < 0)
		return -errno;
	return 0;
}

static int copy_regular(int from_directory, const char *from_name, int to_directory,
			const char *to_name)
{
	auto_close int from = openat(from_directory, from_name,
				     O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	auto_close int to = -1;
	struct stat st;
	int64_t copied;

	if (from < 0 || fstat(from, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ESTALE;
	to = openat(to_directory, to_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
		    0600);
	if (to < 0)
		return -errno;
	copied = copy_content(from, to, st.st_size);
	if (copied < 0)
		return (int)copied;
	return copy_facts(from, to, &st);
}

/* Undoes the umask. By descriptor, because a chmod by name would follow a link put in its place;
 * best effort, as it needs /proc. */
static void set_special_mode(int directory, const char *name, mode_t mode)
{
	auto_close int fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	char path[32];
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || S_ISLNK(st.st_mode))
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (chmod(path, mode) < 0)
		return;
}

/* Links, FIFOs, sockets and devices. */
static int copy_special(int from_directory, const char *from_name, const struct stat *st,
			int to_directory, const char *to_name)
{
	struct timespec times[2] = {st->st_atim, st->st_mtim};
	char target[PATH_MAX];
	ssize_t len;

	if (S_ISLNK(st->st_mode)) {
		len = readlinkat(from_directory, from_name, target, sizeof(target) - 1);
		if (len < 0)
			return -errno;
		target[len] = '\0';
		if (symlinkat(target, to_directory, to_name) < 0)
			return -errno;
	} else if (mknodat(to_directory, to_name, st->st_mode, st->st_rdev) < 0) {
		return -errno;
	}
	if (geteuid() == 0 &&
	    fchownat(to_directory, to_name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (!S_ISLNK(st->st_mode))
		set_special_mode(to_directory, to_name, st->st_mode & 07777);
	return utimensat(to_directory, to_name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

/* A directory being copied; its own facts are set when its content is complete. */
struct level {
	struct directory_id from_parent, to_parent;
	int64_t offset; /* where the parent's reading goes on */
};

struct copying {
	struct arena *arena;
	int from, to;
	struct level *levels;
	size_t depth, capacity;
	struct directory_reader reader;
};

static int push(struct copying *copying)
{
	struct stat from, to;

	if (copying->depth == copying->capacity) {
		size_t capacity = copying->capacity ? copying->capacity * 2 : 32;
		struct level *levels = arena_alloc_array(copying->arena, capacity, sizeof(*levels));

		if (!levels)
			return -ENOMEM;
		if (copying->depth)
			memcpy(levels, copying->levels, copying->depth * sizeof(*levels));
		copying->levels = levels;
		copying->capacity = capacity;
	}
	if (fstat(copying->from, &from) < 0 || fstat(copying->to, &to) < 0)
		return -errno;
	copying->levels[copying->depth++] = (struct level){
		directory_id_of(&from), directory_id_of(&to), copying->reader.offset};
	return 0;
}

static int open_pair(int from_directory, const char *from_name, int to_directory,
		     const char *to_name, int *ret_from, int *ret_to)
{
	auto_close int from = directory_open(from_directory, from_name);
	int to;

	if (from < 0)
		return from;
	if (mkdirat(to_directory, to_name, 0700) < 0)
		return -errno;
	to = directory_open(to_directory, to_name);
	if (to < 0)
		return to;
	*ret_from = take_fd(&from);
	*ret_to = to;
	return 0;
}

static int descend(struct copying *copying, const char *name)
{
	auto_close int from = -1, to = -1;
	int status = open_pair(copying->from, name, copying->to, name, &from, &to);

	if (status < 0)
		return status;
	status = push(copying);
	if (status < 0)
		return status;
	close_fd(&copying->from);
	close_fd(&copying->to);
	copying->from = take_fd(&from);
	copying->to = take_fd(&to);
	directory_reader_init(&copying->reader, copying->from);
	return 0;
}

static int finish_directory(struct copying *copying)
{
	struct stat st;

	return fstat(copying->from, &st) < 0 ? -errno : copy_facts(copying->from, copying->to, &st);
}

static int ascend(struct copying *copying)
{
	const struct level *level = &copying->levels[copying->depth - 1];
	int status = directory_ascend(&copying->from, level->from_parent);

	if (status == 0)
		status = directory_ascend(&copying->to, level->to_parent);
	if (status == 0)
		status = directory_reader_seek(&copying->reader, copying->from, level->offset);
	copying->depth--;
	return status;
}

static int copy_entry(struct copying *copying, const char *name)
{
	struct stat st;

	if (fstatat(copying->from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (S_ISDIR(st.st_mode))
		return descend(copying, name);
	if (S_ISREG(st.st_mode))
		return copy_regular(copying->from, name, copying->to, name);
	return copy_special(copying->from, name, &st, copying->to, name);
}

/* Everything below the open pair, then the pair's own facts. */
static int copy_levels(struct copying *copying)
{
	const char *name;
	int status;

	directory_reader_init(&copying->reader, copying->from);
	for (;;) {
		status = directory_reader_next(&copying->reader, &name);
		if (status == 1) {
			status = copy_entry(copying, name);
		} else if (status == 0) {
			status = finish_directory(copying);
			if (status < 0 || copying->depth == 0)
				return status;
			status = ascend(copying);
		}
		if (status < 0)
			return status;
	}
}

int copy_tree(int from_directory, const char *from_name, int to_directory, const char *to_name,
	      const char *path, struct arena *arena, struct err *err)
{
	struct copying copying = {.arena = arena, .from = -1, .to = -1};
	struct stat st;
	int status;

	if (fstatat(from_directory, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		status = -errno;
	} else if (S_ISREG(st.st_mode)) {
		status = copy_regular(from_directory, from_name, to_directory, to_name);
	} else if (!S_ISDIR(st.st_mode)) {
		status = copy_special(from_directory, from_name, &st, to_directory, to_name);
	} else {
		status = open_pair(from_directory, from_name, to_directory, to_name, &copying.from,
				   &copying.to);
		if (status == 0)
			status = copy_levels(&copying);
		close_fd(&copying.from);
		close_fd(&copying.to);
	}
	return status < 0 ? err_set_sys(err, file_error_kind(status), status, "copy %s", path) : 0;
}
