#include "envd/filesystem/list.h"

#include <fcntl.h>
#include <unistd.h>

#include "envd/filesystem/directory.h"
#include "envd/filesystem/file_error.h"
#include "envd/filesystem/path.h"
#include "envd/filesystem/place.h"
#include "envd/limits.h"

/* One directory on the way down: its entries, and the next one to emit. */
struct level {
	struct directory_id id;
	const char *path;
	struct entry **entries;
	const char **names; /* the bytes, for opening */
	size_t count, next;
};

struct listing {
	struct arena *arena;
	struct user_names *names;
	struct entry **entries;
	size_t count, capacity, count_max;
	size_t found; /* emitted or waiting in a level */
	struct level *levels;
	size_t depth, levels_capacity;
	uint32_t depth_max;
	struct directory_reader reader;
};

/* Doubles an array in the arena when it is full. */
static void *grow(struct arena *arena, void *items, size_t count, size_t *capacity, size_t size)
{
	size_t larger = *capacity ? *capacity * 2 : 64;
	void *moved;

	if (count < *capacity)
		return items;
	moved = arena_alloc_array(arena, larger, size);
	if (moved && count)
		memcpy(moved, items, count * size);
	if (moved)
		*capacity = larger;
	return moved;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* All names of the directory, sorted. A reading error after some names keeps these. */
static int read_names(struct listing *listing, struct level *level, int fd)
{
	size_t capacity = 0;
	const char *name;

	directory_reader_init(&listing->reader, fd);
	while (directory_reader_next(&listing->reader, &name) == 1) {
		if (++listing->found > listing->count_max)
			return -E2BIG;
		level->names = grow(listing->arena, level->names, level->count, &capacity,
				    sizeof(*level->names));
		if (!level->names)
			return -ENOMEM;
		level->names[level->count] = arena_strdup(listing->arena, name);
		if (!level->names[level->count++])
			return -ENOMEM;
	}
	if (level->count)
		qsort(level->names, level->count, sizeof(*level->names), compare_names);
	return 0;
}

/* The facts of all entries, while the descriptor is at hand. Vanished names are dropped. */
static int read_entries(struct listing *listing, struct level *level, int fd)
{
	size_t kept = 0;

	level->entries = arena_alloc_array(listing->arena, level->count, sizeof(*level->entries));
	if (!level->entries)
		return -ENOMEM;
	for (size_t i = 0; i < level->count; i++) {
		struct entry *entry;
		const char *path;
		struct stat st;

		if (fstatat(fd, level->names[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		entry = arena_new(listing->arena, struct entry);
		path = path_join(level->path, level->names[i], listing->arena);
		if (!entry || !path ||
		    entry_fill(entry, path, &st, listing->names, listing->arena) < 0)
			return -ENOMEM;
		level->names[kept] = level->names[i];
		level->entries[kept++] = entry;
	}
	level->count = kept;
	return 0;
}

static int push_level(struct listing *listing, int fd, const char *path)
{
	struct level *level;
	struct stat st;
	int status;

	if (fstat(fd, &st) < 0)
		return -errno;
	listing->levels = grow(listing->arena, listing->levels, listing->depth,
			       &listing->levels_capacity, sizeof(*listing->levels));
	if (!listing->levels)
		return -ENOMEM;
	level = &listing->levels[listing->depth];
	*level = (struct level){.id = directory_id_of(&st), .path = path};
	status = read_names(listing, level, fd);
	if (status == 0)
		status = read_entries(listing, level, fd);
	if (status == 0)
		listing->depth++;
	return status;
}

static int emit(struct listing *listing, struct entry *entry)
{
	listing->entries = grow(listing->arena, listing->entries, listing->count,
				&listing->capacity, sizeof(*listing->entries));
	if (!listing->entries)
		return -ENOMEM;
	listing->entries[listing->count++] = entry;
	return 0;
}

/* Back to the nearest ancestor that is still where it was; the entries of directories that were
 * moved away meanwhile are already known, what lies below them is left out. */
static void pop_level(struct listing *listing, int *fd)
{
	listing->depth--;
	if (listing->depth && directory_ascend(fd, listing->levels[listing->depth - 1].id) < 0)
		close_fd(fd);
}

static int descend(struct listing *listing, int *fd, struct level *level, size_t at)
{
	auto_close int child = -1;
	const char *path;
	int status;

	if (*fd < 0 || listing->depth >= listing->depth_max ||
	    level->entries[at]->type != ENTRY_DIRECTORY || level->entries[at]->symlink_target)
		return 0;
	child = directory_open(*fd, level->names[at]);
	if (child < 0)
		return 0;
	path = path_join(level->path, level->names[at], listing->arena);
	/* `level` may move with the array. */
	status = path ? push_level(listing, child, path) : -ENOMEM;
	if (status < 0)
		return status == -ENOMEM || status == -E2BIG ? status : 0;
	close_fd(fd);
	*fd = take_fd(&child);
	return 0;
}

static int walk(struct listing *listing, int *fd, const char *path)
{
	int status = push_level(listing, *fd, path);

	while (status == 0 && listing->depth) {
		struct level *level = &listing->levels[listing->depth - 1];
		size_t at = level->next++;

		if (at >= level->count) {
			pop_level(listing, fd);
			continue;
		}
		status = emit(listing, level->entries[at]);
		if (status == 0)
			status = descend(listing, fd, level, at);
	}
	return status;
}

/* The root as the contract has it: links resolved to their end. */
static int open_root(const char *path, int *ret_fd, struct err *err)
{
	struct place place;
	int status = place_find(path, NULL, PLACE_FOLLOW, &place, err);
	int fd;

	if (status < 0 && err->sys == ELOOP)
		return err_set(err, ERR_FAILED_PRECONDITION,
			       "cyclic symlink or chain >%d links at \"%s\"", SYMLINK_HOPS_MAX,
			       path);
	if (status < 0 && err->sys == ENOENT)
		return err_set_sys(err, ERR_NOT_FOUND, ENOENT, "path not found: lstat %s", path);
	if (status < 0) {
		err_wrap(err, "error resolving symlink");
		return status;
	}
	if (!place.exists) {
		status = err_set_sys(err, ERR_NOT_FOUND, ENOENT, "path not found: lstat %s",
				     place.path);
	} else if (!S_ISDIR(place.st.st_mode)) {
		status = err_set(err, ERR_INVALID_ARGUMENT, "path is not a directory: %s",
				 place.path);
	} else {
		fd = directory_open(place.directory, place.name[0] ? place.name : ".");
		if (fd < 0)
			status = err_set_sys(err, file_error_kind(fd), fd,
					     "error reading directory %s: open %s", place.path,
					     place.path);
		else
			*ret_fd = fd;
	}
	place_close(&place);
	return status;
}

/* -E2BIG and -ENOMEM without an error set. */
static int list(struct listing *listing, const char *path, uint32_t depth,
		struct list_result *ret_result, struct err *err)
{
	auto_close int fd = -1;
	int status = open_root(path, &fd, err);

	if (status < 0)
		return status;
	listing->depth_max = depth ? depth : 1;
	listing->names = user_names_load(listing->arena);
	status = listing->names ? walk(listing, &fd, path) : -ENOMEM;
	if (status < 0 && status != -E2BIG && status != -ENOMEM)
		return err_set_sys(err, file_error_kind(status), status,
				   "error reading directory %s", path);
	*ret_result = (struct list_result){listing->entries, listing->count};
	return status;
}

int list_directory_short(const char *path, uint32_t depth, struct arena *arena,
			 struct list_result *ret_result, struct err *err)
{
	struct listing listing = {.arena = arena, .count_max = LIST_SHORT_ENTRIES_MAX};
	size_t budget = arena->budget;
	int status;

	arena->budget = size_min(budget, arena->used + FILE_OPERATION_ARENA_BYTES);
	status = list(&listing, path, depth, ret_result, err);
	arena->budget = budget;
	return status == -ENOMEM ? -E2BIG : status;
}

int list_directory(const char *path, uint32_t depth, struct arena *arena,
		   struct list_result *ret_result, struct err *err)
{
	struct listing listing = {.arena = arena, .count_max = LIST_DIRECTORY_ENTRIES_MAX};
	int status = list(&listing, path, depth, ret_result, err);

	if (status == -E2BIG)
		return err_set(err, ERR_RESOURCE_EXHAUSTED,
			       "directory %s has more than %d entries at this depth", path,
			       LIST_DIRECTORY_ENTRIES_MAX);
	if (status == -ENOMEM)
		return err_set(err, ERR_RESOURCE_EXHAUSTED,
			       "listing of %s is too large, use a smaller depth", path);
	return status;
}
