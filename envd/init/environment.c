#include "envd/init/environment.h"

#define CAPACITY_FIRST 8

void environment_init(struct environment *env)
{
	*env = (struct environment){0};
}

static void wipe_text(char *text)
{
	wipe(text, strlen(text));
	free(text);
}

static void drop_entry(struct environment_entry *entry)
{
	free(entry->name);
	wipe_text(entry->value);
}

void environment_fini(struct environment *env)
{
	for (size_t i = 0; i < env->count; i++)
		drop_entry(&env->entries[i]);
	free(env->entries);
	*env = (struct environment){0};
}

/* The index of `name`, or where it would have to be inserted. */
static size_t find_index(const struct environment *env, const char *name, bool *ret_found)
{
	size_t low = 0, high = env->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(env->entries[middle].name, name);

		if (order == 0) {
			*ret_found = true;
			return middle;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	*ret_found = false;
	return low;
}

static void reserve(struct environment *env, size_t count)
{
	size_t capacity = size_max(env->capacity, CAPACITY_FIRST);

	while (capacity < count)
		capacity *= 2;
	if (capacity == env->capacity)
		return;
	env->entries = xrealloc(env->entries, capacity * sizeof(*env->entries));
	env->capacity = capacity;
}

void environment_set_internal(struct environment *env, const char *name, const char *value)
{
	bool found;
	size_t at = find_index(env, name, &found);
	struct environment_entry *entry;

	if (found) {
		entry = &env->entries[at];
		wipe_text(entry->value);
		entry->value = xstrdup(value);
		entry->internal = true;
		return;
	}
	reserve(env, env->count + 1);
	entry = &env->entries[at];
	memmove(entry + 1, entry, (env->count - at) * sizeof(*entry));
	*entry = (struct environment_entry){
		.name = xstrdup(name), .value = xstrdup(value), .internal = true};
	env->count++;
}

static void clear_user(struct environment *env)
{
	size_t kept = 0;

	for (size_t i = 0; i < env->count; i++) {
		if (env->entries[i].internal)
			env->entries[kept++] = env->entries[i];
		else
			drop_entry(&env->entries[i]);
	}
	env->count = kept;
	if (!kept) {
		free(env->entries);
		environment_init(env);
	}
}

struct numbered_entry {
	struct environment_entry entry;
	size_t order;
};

/* Internal entries first among equals, then the one given last. */
static int compare_numbered(const void *left, const void *right)
{
	const struct numbered_entry *a = left, *b = right;
	int order = strcmp(a->entry.name, b->entry.name);

	if (order)
		return order;
	if (a->entry.internal != b->entry.internal)
		return a->entry.internal ? -1 : 1;
	return a->order < b->order ? 1 : -1;
}

void environment_replace_user(struct environment *env, const struct environment_pair *pairs,
			      size_t count)
{
	size_t total, kept = 0;
	struct numbered_entry *all;

	clear_user(env);
	if (!count)
		return;
	total = env->count + count;
	all = xcalloc(total, sizeof(*all));
	for (size_t i = 0; i < env->count; i++)
		all[i].entry = env->entries[i];
	for (size_t i = 0; i < count; i++) {
		struct numbered_entry *added = &all[env->count + i];

		added->order = i;
		added->entry.name = xstrndup(pairs[i].name.p, pairs[i].name.len);
		added->entry.value = xstrndup(pairs[i].value.p, pairs[i].value.len);
	}
	qsort(all, total, sizeof(*all), compare_numbered);
	reserve(env, total);
	for (size_t i = 0; i < total; i++) {
		if (kept && !strcmp(env->entries[kept - 1].name, all[i].entry.name))
			drop_entry(&all[i].entry);
		else
			env->entries[kept++] = all[i].entry;
	}
	env->count = kept;
	free(all);
}

const char *environment_get(const struct environment *env, const char *name)
{
	bool found;
	size_t at = find_index(env, name, &found);

	return found ? env->entries[at].value : NULL;
}
