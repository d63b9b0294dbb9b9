#include "envd/filesystem/upload.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/file_error.h"
#include "envd/filesystem/lease.h"
#include "envd/limits.h"
#include "lib/log.h"

/* How often the target may be found changed under our hands before we give up. */
#define ATTEMPTS_MAX 8
#define XATTR_LIST_BYTES 65536
#define KEPT_METADATA_BYTES_MAX (256 * 1024)

struct metadata {
	const struct entry_metadata *items;
	size_t count;
};

static int fail_at(struct err *err, int sys, const char *what, const char *call, const char *path)
{
	sys = sys < 0 ? -sys : sys;
	return err_set_sys(err, file_error_kind(sys), sys, "%s: %s %s", what, call, path);
}

static int write_failed(const struct upload *upload, int fd, int status, struct err *err)
{
	fail_at(err, status, "error writing file", "write", upload->path);
	err->kind = file_error_kind_of(fd, status);
	return status;
}

static int no_space(const struct upload *upload, struct err *err)
{
	if (upload->request_length > 0)
		err_set(err, ERR_RESOURCE_EXHAUSTED,
			"attempted to write %lld bytes: not enough disk space available",
			(long long)upload->request_length);
	else
		err_set(err, ERR_RESOURCE_EXHAUSTED, "not enough disk space available");
	err->sys = ENOSPC;
	return -ENOSPC;
}

static bool is_no_space(int status)
{
	return status == -ENOSPC || status == -EDQUOT;
}

static int open_failed(const struct upload *upload, int status, struct err *err)
{
	struct statvfs fs;

	if (!is_no_space(status))
		return fail_at(err, status, "error opening file", "open", upload->path);
	if (fstatvfs(upload->place.directory, &fs) == 0 && fs.f_files && fs.f_ffree)
		return no_space(upload, err);
	return fail_at(err, status, "not enough inodes available", "open", upload->path);
}

/* The owner's rule of the header. Changing him takes set-id bits and capabilities away; where he
 * stays, what the kernel would do if the user wrote himself: set-id bits go. */
static int take_ownership(const struct upload *upload, int fd, struct err *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return fail_at(err, errno, "error getting file info", "stat", upload->path);
	if (geteuid() == 0 && !place_protects(&upload->place, upload->user, &st) &&
	    !file_is_virtual(fd)) {
		int status = place_give(fd, upload->user);

		if (status < 0)
			return fail_at(err, status, "error changing file ownership", "chown",
				       upload->path);
		if (status == 0)
			return 0;
	}
	if (st.st_mode & (S_ISUID | S_ISGID) && upload->user->uid != 0 &&
	    fchmod(fd, st.st_mode & 0777) < 0)
		return fail_at(err, errno, "error changing file mode", "chmod", upload->path);
	return 0;
}

static bool contains(const struct metadata *metadata, const char *key)
{
	for (size_t i = 0; i < metadata->count; i++)
		if (strcmp(metadata->items[i].key, key) == 0)
			return true;
	return false;
}

static int drop_others(const struct metadata *metadata, int fd)
{
	static const char prefix[] = ENTRY_METADATA_PREFIX;
	auto_free char *names = NULL;
	ssize_t size = flistxattr(fd, NULL, 0);

	if (size <= 0)
		return size < 0 ? -errno : 0;
	names = xmalloc(XATTR_LIST_BYTES);
	size = flistxattr(fd, names, XATTR_LIST_BYTES);
	for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1)
		if (strncmp(names + at, prefix, sizeof(prefix) - 1) == 0 &&
		    !contains(metadata, names + at + sizeof(prefix) - 1) &&
		    fremovexattr(fd, names + at) < 0 && errno != ENODATA)
			return -errno;
	return 0;
}

static int set_metadata(const struct metadata *metadata, int fd)
{
	int status = drop_others(metadata, fd);

	for (size_t i = 0; i < metadata->count && status == 0; i++) {
		const struct entry_metadata *item = &metadata->items[i];
		char name[sizeof(ENTRY_METADATA_PREFIX) + FILE_METADATA_KEY_BYTES_MAX];

		snprintf(name, sizeof(name), "%s%s", ENTRY_METADATA_PREFIX, item->key);
		if (fsetxattr(fd, name, item->value, strlen(item->value), 0) < 0)
			status = -errno;
	}
	return status;
}

static int write_metadata(const struct upload *upload, int fd, struct err *err)
{
	const struct metadata metadata = {upload->metadata, upload->metadata_count};
	int status = set_metadata(&metadata, fd);

	if (status == 0 || status == -EOPNOTSUPP || status == -ENOSYS)
		return 0;
	/* Virtual file systems refuse it in ways of their own, and nothing was asked of them. */
	if (upload->in_place && !upload->metadata_count)
		return 0;
	if (is_no_space(status))
		return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status,
				   "not enough space for file metadata: %s", upload->path);
	return fail_at(err, status, "error writing file metadata", "setxattr", upload->path);
}

/* Looks at what stands at the path now, before anything is written. */
static int find_target(struct upload *upload, struct err *err)
{
	struct place *place = &upload->place;
	int status = place_find(upload->path, upload->user, PLACE_FOLLOW | PLACE_MAKE_PARENTS,
				place, err);

	if (status < 0) {
		err_wrap(err, "%s",
			 place->has_parents ? "error getting file info"
					    : "error ensuring directories");
		return status;
	}
	if (place->exists && S_ISDIR(place->st.st_mode))
		status = err_set(err, ERR_INVALID_ARGUMENT, "path is a directory: %s",
				 upload->path);
	else if (place->exists && !S_ISREG(place->st.st_mode))
		status = err_set(err, ERR_INVALID_ARGUMENT, "path is not a regular file: %s",
				 upload->path);
	else if (place->exists && !place_may_open(place, upload->user, &place->st, 2))
		status = fail_at(err, EACCES, "error opening file", "open", upload->path);
	if (status < 0)
		place_close(place);
	return status;
}

/* The file at the place, whatever it is by now, if the user may write to it; never through a link,
 * never waiting for a FIFO. */
static int open_target(const struct upload *upload, struct stat *ret_st)
{
	auto_close int fd = lease_open(upload->place.directory, upload->place.name,
				       O_WRONLY | O_NOFOLLOW, 0);

	if (fd < 0)
		return fd;
	if (fstat(fd, ret_st) < 0 || !S_ISREG(ret_st->st_mode))
		return -ELOOP;
	return place_may_open(&upload->place, upload->user, ret_st, 2) ? take_fd(&fd) : -EACCES;
}

static int create_target(const struct upload *upload)
{
	int fd = openat(upload->place.directory, upload->place.name,
			O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);

	return fd < 0 ? -errno : fd;
}

static int begin_existing(struct upload *upload, struct err *err)
{
	/* Shows what writing would fail with, and is closed at once: a file that is held open for
	 * writing cannot be executed. */
	struct stat st;
	auto_close int probe = open_target(upload, &st);
	int staged;

	if (probe < 0)
		return open_failed(upload, probe, err);
	staged = staging_open(&upload->place, STAGING_TO_COPY);
	if (staged >= 0) {
		upload->fd = staged;
		return 0;
	}
	upload->in_place = true;
	if (take_ownership(upload, probe, err) < 0)
		return -EPROTO;
	/* Virtual files have nothing to be cut, and some say so. */
	if (st.st_size && ftruncate(probe, 0) < 0 && !file_is_virtual(probe))
		return open_failed(upload, -errno, err);
	upload->fd = take_fd(&probe);
	return 0;
}

/* What we have made. */
static int give(const struct upload *upload, int fd, struct err *err)
{
	int status = place_give(fd, upload->user);

	return status < 0 ? fail_at(err, status, "error changing file ownership", "chown",
				    upload->path)
			  : 0;
}

static int begin_new(struct upload *upload, struct err *err)
{
	int fd = staging_open(&upload->place, STAGING_TO_LINK);

	upload->fd = fd;
	if (fd >= 0)
		return 0;
	if (is_no_space(fd) || fd == -EROFS || fd == -EACCES || fd == -EPERM)
		return open_failed(upload, fd, err);
	upload->in_place = true;
	upload->fd = create_target(upload);
	if (upload->fd < 0)
		return open_failed(upload, upload->fd, err);
	upload->is_new = true;
	return give(upload, upload->fd, err);
}

int upload_begin(struct upload *upload, struct err *err)
{
	int status;

	upload->fd = -1;
	upload->in_place = upload->is_new = upload->is_direct = false;
	upload->written = 0;
	status = find_target(upload, err);
	if (status < 0)
		return status;
	status = upload->place.exists ? begin_existing(upload, err) : begin_new(upload, err);
	if (status < 0)
		upload_abort(upload);
	return status;
}

/* Nothing was there before, so nothing stays; unless it is not as we left it, and somebody else has
 * written. */
static void empty_again(const struct upload *upload)
{
	struct stat st;

	if (fstat(upload->fd, &st) == 0 && st.st_size == upload->written &&
	    ftruncate(upload->fd, 0) < 0)
		log_warn("files", "a part of an upload that broke off stays",
			 LOG_S("error", errno_text(errno)));
}

static void end_direct(struct upload *upload, bool is_complete)
{
	if (!upload->is_direct)
		return;
	if (staging_direct_resume(&upload->direct) == 0 && !is_complete)
		empty_again(upload);
	staging_direct_pause(&upload->direct);
	staging_direct_end(&upload->direct);
	upload->is_direct = false;
}

void upload_abort(struct upload *upload)
{
	struct stat ours, there;

	end_direct(upload, false);
	/* Ours alone: somebody else may have put his own file there meanwhile. */
	if (upload->is_new && upload->fd >= 0 && fstat(upload->fd, &ours) == 0 &&
	    fstatat(upload->place.directory, upload->place.name, &there, AT_SYMLINK_NOFOLLOW) ==
		    0 &&
	    ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
		unlinkat(upload->place.directory, upload->place.name, 0);
	close_fd(&upload->fd);
	place_close(&upload->place);
}

/* No space beside the old content: put what is staged in its place and go on there. */
static int make_room(struct upload *upload, struct err *err)
{
	auto_close int target = -1;
	struct staging_turn turn;
	struct stat st;
	int status;

	if (upload->in_place || !upload->place.exists)
		return no_space(upload, err);
	target = open_target(upload, &st);
	if (target < 0)
		return no_space(upload, err);
	if (!staging_would_fit(upload->fd, target, upload->remaining))
		return no_space(upload, err);
	status = take_ownership(upload, target, err);
	if (status < 0)
		return status;
	staging_turn_take(&turn, &st);
	status = staging_move(upload->fd, target);
	staging_turn_end(&turn, status);
	if (is_no_space(status))
		return no_space(upload, err);
	if (status == 0 && lseek(target, 0, SEEK_END) < 0)
		status = -errno;
	if (status < 0)
		return write_failed(upload, target, status, err);
	close_fd(&upload->fd);
	upload->fd = take_fd(&target);
	upload->in_place = true;
	return 0;
}

/* Before the first byte: where there is nothing that could be lost, copying it there at the end
 * would be in vain. Not worth it for little, of which nobody then sees a part either. */
static void try_direct(struct upload *upload)
{
	auto_close int target = -1;
	struct err ignored;
	struct stat st;

	if (upload->in_place || !upload->place.exists || upload->place.st.st_size > 0 ||
	    (upload->remaining >= 0 && upload->remaining <= UPLOAD_DIRECT_BYTES_MIN))
		return;
	target = open_target(upload, &st);
	if (target < 0 || !staging_direct_begin(&upload->direct, &st))
		return;
	/* Asked again now that no other upload writes there. */
	if (fstat(target, &st) < 0 || st.st_size > 0 ||
	    take_ownership(upload, target, &ignored) < 0) {
		staging_direct_end(&upload->direct);
		return;
	}
	close_fd(&upload->fd);
	upload->fd = take_fd(&target);
	upload->in_place = upload->is_direct = true;
}

static int write_all(struct upload *upload, const char *data, size_t len, struct err *err)
{
	while (len) {
		ssize_t put = write(upload->fd, data, len);
		int status = put < 0 ? -errno : put == 0 ? -EIO : 0;

		if (status == -EINTR)
			continue;
		if (is_no_space(status)) {
			status = make_room(upload, err);
			if (status < 0)
				return status;
			continue;
		}
		if (status < 0)
			return write_failed(upload, upload->fd, status, err);
		data += put;
		len -= (size_t)put;
		upload->written += put;
		if (upload->remaining > 0)
			upload->remaining -= size_min((size_t)put, (size_t)upload->remaining);
	}
	return 0;
}

int upload_write(struct upload *upload, const char *data, size_t len, struct err *err)
{
	int status;

	if (!upload->written && len)
		try_direct(upload);
	if (!upload->is_direct)
		return write_all(upload, data, len, err);
	status = staging_direct_resume(&upload->direct);
	if (status == 0)
		status = write_all(upload, data, len, err);
	else if (status < 0)
		write_failed(upload, upload->fd, status, err);
	staging_direct_pause(&upload->direct);
	/* What another upload has replaced by now need not be written. */
	return status < 0 ? status : 0;
}

/* Watchers of the directory have seen a create so far; they are to see the write, too. */
static void touch(const struct upload *upload)
{
	struct stat staged, linked;
	auto_close int fd = open_target(upload, &linked);

	if (fd < 0 || fstat(upload->fd, &staged) < 0 || staged.st_ino != linked.st_ino ||
	    staged.st_dev != linked.st_dev)
		return;
	if (geteuid() == 0 ? fchown(fd, staged.st_uid, staged.st_gid) : futimens(fd, NULL))
		return;
	/* To the size it has: no byte changes, but the kernel reports a modification. */
	if (ftruncate(fd, linked.st_size) < 0)
		return;
}

/* Where an unnamed file cannot be linked (no /proc and no right to do without, quota groups). */
static int create_copy(struct upload *upload, struct err *err)
{
	auto_close int target = create_target(upload);
	int status;

	if (target < 0)
		return target == -EEXIST ? target : open_failed(upload, target, err);
	status = staging_copy(upload->fd, target);
	if (is_no_space(status))
		no_space(upload, err);
	else if (status < 0)
		write_failed(upload, target, status, err);
	if (status == 0)
		status = give(upload, target, err);
	if (status == 0)
		status = write_metadata(upload, target, err);
	if (status < 0)
		unlinkat(upload->place.directory, upload->place.name, 0);
	else
		close_fd(&upload->fd);
	if (status == 0)
		upload->fd = take_fd(&target);
	return status;
}

/* -EEXIST and -ENOENT: somebody was faster. */
static int publish_new(struct upload *upload, struct err *err)
{
	int status = give(upload, upload->fd, err);

	if (status == 0)
		status = write_metadata(upload, upload->fd, err);
	if (status < 0)
		return status;
	status = staging_link(upload->fd, &upload->place);
	if (status == 0)
		touch(upload);
	else if (is_no_space(status))
		return open_failed(upload, status, err);
	else if (status != -EEXIST)
		status = create_copy(upload, err);
	return status;
}

/* Or all of it as it was. */
static int replace_metadata(const struct upload *upload, int target, struct err *err)
{
	struct entry_metadata *items = NULL;
	struct metadata before = {0};
	struct arena kept;
	int status;

	arena_init(&kept, KEPT_METADATA_BYTES_MAX);
	if (entry_read_metadata(target, &kept, &items, &before.count) < 0)
		before.count = 0;
	before.items = items;
	status = write_metadata(upload, target, err);
	if (status < 0 && set_metadata(&before, target) < 0)
		log_warn("files", "the old metadata of a file is lost");
	arena_release(&kept);
	return status;
}

/* The content last: whatever else does not fit leaves the old one. */
static int overwrite(struct upload *upload, int target, bool *ret_changed, struct err *err)
{
	int status = take_ownership(upload, target, err);

	if (status == 0)
		status = replace_metadata(upload, target, err);
	if (status < 0)
		return status;
	*ret_changed = true;
	status = staging_copy(upload->fd, target);
	if (is_no_space(status))
		status = staging_move(upload->fd, target);
	if (is_no_space(status))
		return no_space(upload, err);
	if (status < 0)
		return write_failed(upload, target, status, err);
	return 0;
}

/* What was written directly is there already, and has the size that it shall have. */
static int publish_direct(struct upload *upload, struct err *err)
{
	int status = staging_direct_resume(&upload->direct);
	struct stat st;

	if (status == 0) {
		if (fstat(upload->fd, &st) < 0 ||
		    (st.st_size > upload->written && ftruncate(upload->fd, upload->written) < 0))
			status = -errno;
		if (status == 0)
			status = replace_metadata(upload, upload->fd, err);
		else
			write_failed(upload, upload->fd, status, err);
	} else if (status < 0) {
		write_failed(upload, upload->fd, status, err);
	}
	staging_direct_pause(&upload->direct);
	return status < 0 ? status : 0;
}

/* -ENOENT and -ELOOP: it is gone, or something else by now. */
static int publish_existing(struct upload *upload, struct err *err)
{
	struct stat st;
	auto_close int target = open_target(upload, &st);
	struct staging_turn turn;
	bool has_changed = false;
	int status;

	if (target == -ENOENT || target == -ELOOP)
		return target;
	if (target < 0)
		return open_failed(upload, target, err);
	staging_turn_take(&turn, &st);
	status = overwrite(upload, target, &has_changed, err);
	staging_turn_end(&turn, has_changed ? status : STAGING_UNCHANGED);
	if (status < 0)
		return status;
	close_fd(&upload->fd);
	upload->fd = take_fd(&target);
	return 0;
}

static int publish_staged(struct upload *upload, struct err *err)
{
	int status = 0;

	for (unsigned attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
		status = upload->place.exists ? publish_existing(upload, err)
					      : publish_new(upload, err);
		if (status != -EEXIST && status != -ENOENT && status != -ELOOP)
			return status;
		place_close(&upload->place);
		status = find_target(upload, err);
		if (status < 0)
			return status;
	}
	return fail_at(err, EBUSY, "error opening file", "open", upload->path);
}

int upload_publish(struct upload *upload, struct arena *arena, struct entry_metadata **ret_metadata,
		   size_t *ret_count, struct err *err)
{
	int status = upload->is_direct	? publish_direct(upload, err)
		     : upload->in_place ? write_metadata(upload, upload->fd, err)
					: publish_staged(upload, err);

	if (status == 0)
		end_direct(upload, true);
	if (status == 0 && entry_read_metadata(upload->fd, arena, ret_metadata, ret_count) < 0)
		status = err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "metadata");
	if (status == 0)
		upload->is_new = false;
	upload_abort(upload);
	return status;
}
