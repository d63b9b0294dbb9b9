#include "envd/snapshot/path_list.h"

#include "envd/limits.h"

#define CAPACITY_FIRST 16

void path_list_init(struct path_list *list)
{
	*list = (struct path_list){0};
}

void path_list_clear(struct path_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->paths[i]);
	list->count = list->bytes = 0;
}

void path_list_fini(struct path_list *list)
{
	path_list_clear(list);
	free(list->paths);
	*list = (struct path_list){0};
}

static int insert_at(struct path_list *list, size_t index, const char *path)
{
	size_t cost = strlen(path) + 1 + sizeof(char *);
	char *copy;

	if (list->bytes + cost > CGROUP_PATHS_BYTES_MAX)
		return -ENOMEM;
	if (list->count == list->capacity) {
		size_t capacity = list->capacity ? list->capacity * 2 : CAPACITY_FIRST;
		char **paths = realloc(list->paths, capacity * sizeof(*paths));

		if (!paths)
			return -ENOMEM;
		list->paths = paths;
		list->capacity = capacity;
	}
	copy = strdup(path);
	if (!copy)
		return -ENOMEM;
	memmove(list->paths + index + 1, list->paths + index,
		(list->count - index) * sizeof(*list->paths));
	list->paths[index] = copy;
	list->count++;
	list->bytes += cost;
	return 0;
}

/* Where the path is, or would have to be. */
static size_t find_index(const struct path_list *list, const char *path, bool *ret_found)
{
	size_t low = 0, high = list->count;

	*ret_found = false;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(list->paths[middle], path);

		if (order == 0) {
			*ret_found = true;
			return middle;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int path_list_append(struct path_list *list, const char *path)
{
	return insert_at(list, list->count, path);
}

int path_list_insert(struct path_list *list, const char *path)
{
	bool found;
	size_t index = find_index(list, path, &found);

	return found ? 0 : insert_at(list, index, path);
}

bool path_list_has(const struct path_list *list, const char *path)
{
	bool found;

	find_index(list, path, &found);
	return found;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void path_list_sort(struct path_list *list)
{
	if (list->count)
		qsort(list->paths, list->count, sizeof(*list->paths), compare);
}

void path_list_filter(struct path_list *list, bool (*keep)(void *user, const char *path),
		      void *user)
{
	size_t kept = 0;

	for (size_t i = 0; i < list->count; i++) {
		char *path = list->paths[i];

		if (keep(user, path)) {
			list->paths[kept++] = path;
			continue;
		}
		list->bytes -= strlen(path) + 1 + sizeof(char *);
		free(path);
	}
	list->count = kept;
}
