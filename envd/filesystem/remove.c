#include "envd/filesystem/remove.h"

#include <fcntl.h>
#include <unistd.h>

#include "envd/filesystem/directory.h"
#include "envd/filesystem/file_error.h"

/* How often directories may turn out to have been filled again meanwhile before we give up. */
#define REFILLS_MAX 1000

struct removal {
	struct arena *arena;
	int fd; /* of the directory being emptied */
	struct directory_id *ancestors;
	size_t depth, capacity;
	unsigned refills;
	struct directory_reader reader;
};

/* 0: gone. -ENOTEMPTY: a directory that has something in it. */
static int remove_one(int directory, const char *name)
{
	if (unlinkat(directory, name, 0) == 0 || errno == ENOENT)
		return 0;
	/* Directories: EISDIR on Linux; EPERM where POSIX was followed; a failing rmdir tells. */
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	if (unlinkat(directory, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	if (errno == EEXIST)
		return -ENOTEMPTY;
	return errno == ENOTDIR ? -EPERM : -errno;
}

static int push(struct removal *removal, const struct stat *st)
{
	if (removal->depth == removal->capacity) {
		size_t capacity = removal->capacity ? removal->capacity * 2 : 32;
		struct directory_id *ancestors = arena_alloc_array(removal->arena, capacity,
								   sizeof(*ancestors));

		if (!ancestors)
			return -ENOMEM;
		if (removal->depth)
			memcpy(ancestors, removal->ancestors, removal->depth * sizeof(*ancestors));
		removal->ancestors = ancestors;
		removal->capacity = capacity;
	}
	removal->ancestors[removal->depth++] = directory_id_of(st);
	return 0;
}

static int descend(struct removal *removal, const char *name)
{
	auto_close int child = directory_open(removal->fd, name);
	struct stat st;
	int status;

	if (child == -ENOENT)
		return 0;
	if (child < 0)
		return child;
	if (fstat(removal->fd, &st) < 0)
		return -errno;
	status = push(removal, &st);
	if (status < 0)
		return status;
	close_fd(&removal->fd);
	removal->fd = take_fd(&child);
	directory_reader_init(&removal->reader, removal->fd);
	return 0;
}

/* The emptied child is removed when the parent is read again from its start. */
static int ascend(struct removal *removal)
{
	int status = directory_ascend(&removal->fd, removal->ancestors[removal->depth - 1]);

	if (status < 0)
		return status;
	removal->depth--;
	directory_reader_init(&removal->reader, removal->fd);
	return 0;
}

/* Empties removal->fd. Names are removed as they are read; a directory with content is entered at
 * once, and its parent read anew afterwards. */
static int empty(struct removal *removal)
{
	bool returned = false; /* to a directory whose child we have just emptied */
	const char *name;
	int status;

	directory_reader_init(&removal->reader, removal->fd);
	for (;;) {
		status = directory_reader_next(&removal->reader, &name);
		if (status < 0 && status != -ENOENT)
			return status;
		if (status <= 0 && removal->depth == 0)
			return 0;
		if (status <= 0) {
			status = ascend(removal);
			/* Somebody else removed or moved what we were in: begin again at the
			 * top. */
			if (status == -ENOENT || status == -ESTALE)
				return 0;
			returned = true;
		} else {
			status = remove_one(removal->fd, name);
			if (status == -ENOTEMPTY) {
				if (returned && ++removal->refills > REFILLS_MAX)
					return -ENOTEMPTY;
				status = descend(removal, name);
			}
			returned = false;
		}
		if (status < 0)
			return status;
	}
}

static int remove_whole(struct removal *removal, int directory, const char *name)
{
	for (unsigned attempt = 0; attempt < REFILLS_MAX; attempt++) {
		int status = remove_one(directory, name);

		if (status != -ENOTEMPTY)
			return status;
		removal->fd = directory_open(directory, name);
		if (removal->fd < 0)
			return removal->fd == -ENOENT ? 0 : removal->fd;
		removal->depth = 0;
		status = empty(removal);
		close_fd(&removal->fd);
		if (status < 0)
			return status;
	}
	return -ENOTEMPTY;
}

int remove_tree(int directory, const char *name, const char *path, struct arena *arena,
		struct err *err)
{
	struct removal removal = {.arena = arena, .fd = -1};
	int status = remove_whole(&removal, directory, name);

	return status < 0 ? err_set_sys(err, file_error_kind(status), status, "unlinkat %s", path)
			  : 0;
}
