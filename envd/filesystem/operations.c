#include "envd/filesystem/operations.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "envd/filesystem/copy.h"
#include "envd/filesystem/file_error.h"
#include "envd/filesystem/path.h"
#include "envd/filesystem/place.h"
#include "envd/filesystem/remove.h"

static int out_of_budget(struct err *err)
{
	return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "entry");
}

static int fill_entry(const char *path, const struct stat *st, struct arena *arena,
		      struct entry *ret_entry, struct err *err)
{
	struct user_names *names = user_names_load(arena);

	if (!names || entry_fill(ret_entry, path, st, names, arena) < 0)
		return out_of_budget(err);
	return 0;
}

int operation_stat(const char *path, struct arena *arena, struct entry *ret_entry, struct err *err)
{
	struct stat st;

	if (lstat(path, &st) == 0)
		return fill_entry(path, &st, arena, ret_entry, err);
	if (errno == ENOENT)
		return err_set_sys(err, ERR_NOT_FOUND, errno, "file not found: lstat %s", path);
	return err_set_sys(err, file_error_kind(errno), errno, "error getting file info: lstat %s",
			   path);
}

/* An existing path in MakeDir's way. */
static int report_existing(const char *path, struct err *err)
{
	struct stat st;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return err_set(err, ERR_ALREADY_EXISTS, "directory already exists: %s", path);
	return err_set(err, ERR_INVALID_ARGUMENT,
		       "path already exists but it is not a directory: %s", path);
}

static int make_last(struct place *place, const struct user *user, const char *path,
		     struct err *err)
{
	int status;

	if (mkdirat(place->directory, place->name, 0755) < 0) {
		if (errno == EEXIST)
			return report_existing(path, err);
		return err_set_sys(err, file_error_kind(errno), errno,
				   "failed to create directory: mkdir %s", path);
	}
	status = place_give_directory(place, place->name, user);
	return status == 0 ? 0
			   : err_set_sys(err, file_error_kind(status), status,
					 "failed to chown directory: chown %s", path);
}

int operation_make_directory(const char *path, const struct user *user, struct arena *arena,
			     struct entry *ret_entry, struct err *err)
{
	struct place place;
	struct stat st;
	int status;

	if (stat(path, &st) == 0)
		return report_existing(path, err);
	if (errno != ENOENT && errno != ENOTDIR)
		return err_set_sys(err, file_error_kind(errno), errno,
				   "error getting file info: stat %s", path);
	status = place_find(path, user, PLACE_MAKE_PARENTS, &place, err);
	if (status < 0)
		return status;
	status = place.exists ? report_existing(path, err) : make_last(&place, user, path, err);
	place_close(&place);
	return status < 0 ? status : operation_stat(path, arena, ret_entry, err);
}

static int find_source(const char *source, const char *destination, const struct user *user,
		       struct place *ret_place, struct err *err)
{
	int status = place_find(source, user, 0, ret_place, err);

	if (status == 0 && ret_place->exists)
		return 0;
	if (status == 0)
		place_close(ret_place);
	if (status == 0 || err->sys == ENOENT)
		return err_set_sys(err, ERR_NOT_FOUND, ENOENT,
				   "source file not found: rename %s %s", source, destination);
	return err_set_sys(err, file_error_kind(status), status, "error renaming: rename %s %s",
			   source, destination);
}

/* Everything about one move; `temporary` is the copy's name in the destination's directory. */
struct move {
	struct place from, to;
	const char *source, *destination;
	bool may_copy;
	char temporary[40];
	struct arena *arena;
};

static int pick_temporary_name(char *name, size_t size)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return -EIO;
	snprintf(name, size, ".envd-move.%016llx", (unsigned long long)random);
	return 0;
}

static int cross(struct move *move, struct err *err)
{
	const struct place *from = &move->from, *to = &move->to;
	struct err ignored;
	int status = pick_temporary_name(move->temporary, sizeof(move->temporary));

	if (status < 0)
		return err_set_sys(err, ERR_INTERNAL, status, "random");
	status = copy_tree(from->directory, from->name, to->directory, move->temporary,
			   move->source, move->arena, err);
	if (status == 0) {
		status = place_rename_onto(to->directory, move->temporary, to);
		if (status < 0)
			err_set_sys(err, file_error_kind(status), status, "rename %s %s",
				    move->source, move->destination);
	}
	if (status < 0) {
		if (remove_tree(to->directory, move->temporary, move->destination, move->arena,
				&ignored) < 0)
			err_wrap(err, "(the incomplete copy %s could not be removed)",
				 move->temporary);
		return status;
	}
	return remove_tree(from->directory, from->name, move->source, move->arena, err);
}

static int rename_place(struct move *move, struct err *err)
{
	const struct place *from = &move->from, *to = &move->to;
	int status;

	if (to->exists && S_ISDIR(to->st.st_mode))
		return err_set_sys(err, file_error_kind(EEXIST), EEXIST,
				   "error renaming: rename %s %s", move->source, move->destination);
	status = place_rename_onto(from->directory, from->name, to);
	if (status == 0)
		return 0;
	if (status == -EXDEV && move->may_copy) {
		status = cross(move, err);
		if (status < 0)
			err_wrap(err, "error renaming");
		return status;
	}
	if (status == -ENOENT)
		return err_set_sys(err, ERR_NOT_FOUND, ENOENT,
				   "source file not found: rename %s %s", move->source,
				   move->destination);
	return err_set_sys(err, file_error_kind(status), status, "error renaming: rename %s %s",
			   move->source, move->destination);
}

int operation_move(const char *source, const char *destination, const struct user *user,
		   bool may_copy, struct arena *arena, struct entry *ret_entry, struct err *err)
{
	struct move move = {
		.source = source, .destination = destination, .may_copy = may_copy, .arena = arena};
	int status;

	if (strcmp(source, "/") == 0 || strcmp(destination, "/") == 0)
		return err_set(err, ERR_INVALID_ARGUMENT, "cannot move %s to %s", source,
			       destination);
	if (path_is_within(destination, source) && strcmp(source, destination) != 0)
		return err_set_sys(err, ERR_INVALID_ARGUMENT, EINVAL,
				   "error renaming: rename %s %s", source, destination);
	status = find_source(source, destination, user, &move.from, err);
	if (status < 0)
		return status;
	status = place_find(destination, user, PLACE_MAKE_PARENTS, &move.to, err);
	if (status == 0) {
		if (place_may_rename(&move.from, user) && place_may_rename(&move.to, user))
			status = rename_place(&move, err);
		else
			status = err_set_sys(err, ERR_PERMISSION_DENIED, EACCES,
					     "error renaming: rename %s %s", source, destination);
		place_close(&move.to);
	}
	place_close(&move.from);
	return status < 0 ? status : operation_stat(destination, arena, ret_entry, err);
}

int operation_remove(const char *path, const struct user *user, struct arena *arena,
		     struct err *err)
{
	struct place place;
	int status;

	if (strcmp(path, "/") == 0)
		return err_set(err, ERR_INVALID_ARGUMENT, "refusing to remove /");
	status = place_find(path, user, 0, &place, err);
	if (status < 0 && err->sys == ENOENT)
		return 0;
	if (status == 0) {
		if (!place.exists)
			status = 0;
		else if (place_may_rename(&place, user))
			status = remove_tree(place.directory, place.name, path, arena, err);
		else
			status = err_set_sys(err, ERR_PERMISSION_DENIED, EACCES, "unlinkat %s",
					     path);
		place_close(&place);
	}
	if (status < 0)
		err_wrap(err, "error removing file or directory");
	return status;
}
