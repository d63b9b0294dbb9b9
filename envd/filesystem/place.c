#include "envd/filesystem/place.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "envd/filesystem/file_error.h"
#include "envd/limits.h"

/* RENAME_NOREPLACE of linux/fs.h. */
#define RENAME_WITHOUT_REPLACING 1u

/* The walk's own state; `rest` is what is still to be walked, without a leading '/'. */
struct walk {
	struct place *place;
	const struct user *user;
	unsigned flags;
	unsigned hops;
	size_t path_len; /* of place->path up to place->directory; 0 at the root */
	char rest[PATH_MAX];
};

void place_close(struct place *place)
{
	close_fd(&place->directory);
}

static int fail(struct walk *walk, int sys, struct err *err)
{
	bool making = walk->flags & PLACE_MAKE_PARENTS && !walk->place->has_parents;

	return err_set_sys(err, file_error_kind(sys), sys, "%sstat %s",
			   making ? "failed to stat directory: " : "", walk->place->path);
}

static int enter_root(struct walk *walk)
{
	struct place *place = walk->place;

	close_fd(&place->directory);
	place->directory = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	walk->path_len = 0;
	place->path[0] = '/';
	place->path[1] = '\0';
	return place->directory < 0 ? -errno : 0;
}

static int enter_parent(struct walk *walk)
{
	struct place *place = walk->place;
	auto_close int up = openat(place->directory, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (up < 0)
		return -errno;
	while (walk->path_len && place->path[--walk->path_len] != '/')
		;
	place->path[walk->path_len ? walk->path_len : 1] = '\0';
	close_fd(&place->directory);
	place->directory = take_fd(&up);
	return 0;
}

/* place->path becomes the current directory's path with `name` behind it. */
static int name_component(struct walk *walk, const char *name)
{
	size_t len = strlen(name);

	if (walk->path_len + 1 + len >= PATH_MAX)
		return -ENAMETOOLONG;
	walk->place->path[walk->path_len] = '/';
	memcpy(walk->place->path + walk->path_len + 1, name, len + 1);
	return 0;
}

/* Takes the next component off the rest; 1, or 0 when nothing is left. */
static int next_component(struct walk *walk, char *ret_name, bool *ret_is_last)
{
	char *at = walk->rest + strspn(walk->rest, "/");
	size_t len = strcspn(at, "/");
	char *following = at + len;

	following += strspn(following, "/");
	*ret_is_last = !following[0];
	if (!len)
		return 0;
	if (len > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(ret_name, at, len);
	ret_name[len] = '\0';
	memmove(walk->rest, following, strlen(following) + 1);
	return 1;
}

static int follow_link(struct walk *walk, const char *name, const struct stat *link)
{
	char target[PATH_MAX], rest[PATH_MAX];
	ssize_t len = readlinkat(walk->place->directory, name, target, sizeof(target));
	int printed;

	if (len < 0)
		return -errno;
	if (len == 0)
		return -ENOENT;
	if ((size_t)len == sizeof(target))
		return -ENAMETOOLONG;
	if (++walk->hops > SYMLINK_HOPS_MAX)
		return -ELOOP;
	target[len] = '\0';
	printed = snprintf(rest, sizeof(rest), "%s%s%s", target, walk->rest[0] ? "/" : "",
			   walk->rest);
	if (printed >= (int)sizeof(rest))
		return -ENAMETOOLONG;
	memcpy(walk->rest, rest, (size_t)printed + 1);
	if (walk->user && walk->user->uid != 0 && geteuid() == 0 && link->st_uid != 0)
		walk->place->is_guarded = true;
	walk->place->path[walk->path_len ? walk->path_len : 1] = '\0';
	return target[0] == '/' ? enter_root(walk) : 0;
}

/* Nobody but root can have put a name there. */
static bool is_roots_alone(int directory)
{
	struct stat st;

	return fstat(directory, &st) == 0 && st.st_uid == 0 && !(st.st_mode & S_IWOTH) &&
	       (!(st.st_mode & S_IWGRP) || st.st_gid == 0);
}

bool place_protects(const struct place *place, const struct user *user, const struct stat *st)
{
	if (user->uid == 0 || geteuid() != 0 || st->st_uid == user->uid)
		return false;
	return place->is_guarded ||
	       (S_ISREG(st->st_mode) && st->st_nlink > 1 && !is_roots_alone(place->directory));
}

bool place_may_open(const struct place *place, const struct user *user, const struct stat *st,
		    unsigned want)
{
	if (!place_protects(place, user, st))
		return true;
	return !place->is_out_of_reach && user_may(user, st->st_uid, st->st_gid, st->st_mode, want);
}

bool place_may_rename(const struct place *place, const struct user *user)
{
	struct stat directory;

	if (!place->is_guarded || !place->exists || place->st.st_uid == user->uid)
		return true;
	if (place->is_out_of_reach || fstat(place->directory, &directory) < 0 ||
	    !user_may(user, directory.st_uid, directory.st_gid, directory.st_mode, 3))
		return false;
	return !(directory.st_mode & S_ISVTX) || user->uid == directory.st_uid;
}

int place_rename_onto(int directory, const char *name, const struct place *place)
{
	/* Not every file system can leave what is there; then the check that was made has to do. */
	if (place->is_guarded && !place->exists) {
		if (syscall(SYS_renameat2, directory, name, place->directory, place->name,
			    RENAME_WITHOUT_REPLACING) == 0)
			return 0;
		if (errno != ENOSYS && errno != EINVAL)
			return -errno;
	}
	return renameat(directory, name, place->directory, place->name) < 0 ? -errno : 0;
}

static bool is_owner_fixed(int sys)
{
	return sys == EPERM || sys == EINVAL || sys == ENOSYS || sys == EOPNOTSUPP;
}

int place_give(int fd, const struct user *user)
{
	if (geteuid() != 0 || fchown(fd, user->uid, user->gid) == 0)
		return 0;
	return is_owner_fixed(errno) ? 1 : -errno;
}

int place_give_directory(const struct place *place, const char *name, const struct user *user)
{
	if (geteuid() != 0 ||
	    fchownat(place->directory, name, user->uid, user->gid, AT_SYMLINK_NOFOLLOW) == 0 ||
	    errno == ENOENT || is_owner_fixed(errno))
		return 0;
	return -errno;
}

/* Makes `name` in the current directory. Somebody else's being faster is fine. */
static int make_directory(struct walk *walk, const char *name, struct err *err)
{
	struct place *place = walk->place;
	int status;

	if (mkdirat(place->directory, name, 0755) < 0) {
		status = errno == EEXIST ? 0 : -errno;
		return status == 0
			       ? 0
			       : err_set_sys(err, file_error_kind(status), status,
					     "failed to create directory: mkdir %s", place->path);
	}
	status = place_give_directory(place, name, walk->user);
	return status == 0 ? 0
			   : err_set_sys(err, file_error_kind(status), status,
					 "failed to chown directory: chown %s", place->path);
}

/* The current directory is left for its child `name`, which fd and st are of. */
static void enter(struct walk *walk, int *fd, const struct stat *st)
{
	struct place *place = walk->place;

	if (place->is_guarded && !user_may(walk->user, st->st_uid, st->st_gid, st->st_mode, 1))
		place->is_out_of_reach = true;
	close_fd(&place->directory);
	place->directory = take_fd(fd);
	walk->path_len = strlen(place->path);
}

/* A component with others behind it: must become a directory. */
static int walk_through(struct walk *walk, const char *name, struct err *err)
{
	struct place *place = walk->place;
	auto_close int fd = -1;
	struct stat st;
	int status;

	fd = openat(place->directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && walk->flags & PLACE_MAKE_PARENTS) {
		place->exists = false;
		status = make_directory(walk, name, err);
		if (status < 0)
			return status;
		fd = openat(place->directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	}
	if (fd < 0 || fstat(fd, &st) < 0)
		return fail(walk, errno, err);
	if (S_ISLNK(st.st_mode)) {
		status = follow_link(walk, name, &st);
		return status < 0 ? fail(walk, status, err) : 0;
	}
	if (S_ISDIR(st.st_mode)) {
		enter(walk, &fd, &st);
		return 0;
	}
	if (walk->flags & PLACE_MAKE_PARENTS) {
		status = err_set(err, ERR_INVALID_ARGUMENT, "path is a file: %s", place->path);
		err->sys = ENOTDIR;
		return status;
	}
	return fail(walk, ENOTDIR, err);
}

/* 1: the place is found; 0: it was a link, the walk goes on. */
static int walk_last(struct walk *walk, const char *name, struct err *err)
{
	struct place *place = walk->place;
	int status;

	place->has_parents = true;
	place->exists = fstatat(place->directory, name, &place->st, AT_SYMLINK_NOFOLLOW) == 0;
	if (!place->exists && errno != ENOENT)
		return fail(walk, errno, err);
	if (place->exists && S_ISLNK(place->st.st_mode) && walk->flags & PLACE_FOLLOW) {
		status = follow_link(walk, name, &place->st);
		if (status < 0)
			return fail(walk, status, err);
		place->has_parents = false;
		return 0;
	}
	memcpy(place->name, name, strlen(name) + 1);
	return 1;
}

static int step(struct walk *walk, struct err *err)
{
	char name[NAME_MAX + 1];
	bool is_last;
	int status = next_component(walk, name, &is_last);

	if (status < 0) {
		char *at = walk->rest + strspn(walk->rest, "/");

		/* It names nothing, but it is what the error is about. */
		at[strcspn(at, "/")] = '\0';
		walk->place->has_parents = is_last;
		(void)name_component(walk, at);
		return fail(walk, status, err);
	}
	if (status == 0) {
		walk->place->name[0] = '\0';
		walk->place->exists = walk->place->has_parents = true;
		if (fstat(walk->place->directory, &walk->place->st) < 0)
			return fail(walk, errno, err);
		return 1;
	}
	if (strcmp(name, ".") == 0)
		return 0;
	status = strcmp(name, "..") == 0 ? enter_parent(walk) : name_component(walk, name);
	if (status < 0)
		return fail(walk, status, err);
	if (strcmp(name, "..") == 0)
		return 0;
	return is_last ? walk_last(walk, name, err) : walk_through(walk, name, err);
}

int place_find(const char *clean_path, const struct user *user, unsigned flags,
	       struct place *ret_place, struct err *err)
{
	struct walk walk = {.place = ret_place, .user = user, .flags = flags};
	int status;

	ret_place->directory = -1;
	ret_place->is_guarded = ret_place->is_out_of_reach = false;
	ret_place->exists = ret_place->has_parents = false;
	status = enter_root(&walk);
	if (status == 0 && strlen(clean_path) >= sizeof(walk.rest))
		status = -ENAMETOOLONG;
	if (status < 0) {
		place_close(ret_place);
		return fail(&walk, status, err);
	}
	memcpy(walk.rest, clean_path, strlen(clean_path) + 1);
	do
		status = step(&walk, err);
	while (status == 0);
	if (status < 0)
		place_close(ret_place);
	return status < 0 ? status : 0;
}
