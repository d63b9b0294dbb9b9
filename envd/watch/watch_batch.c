#include "envd/watch/watch_batch.h"

#include "envd/filesystem/path.h"
#include "envd/limits.h"

static size_t count_events(struct str bytes, int *ret_status)
{
	struct watch_record record;
	size_t count = 0;

	while (count < WATCH_BATCH_EVENTS) {
		*ret_status = watch_record_take(&bytes, &record);
		if (*ret_status <= 0 || !watch_record_is_event(&record))
			break;
		count++;
	}
	return count;
}

static int add(struct watch_batch *batch, const struct watch_record *record)
{
	struct watch_event *event = &batch->events[batch->count];
	struct str path = arena_str(&batch->arena, record->text);

	if (!path.p)
		return -ENOMEM;
	event->type = record->type;
	event->path = path.p;
	event->name = path_show(path.p, &batch->arena);
	if (!event->name)
		return -ENOMEM;
	batch->count++;
	return 0;
}

struct watch_batch *watch_batch_new(size_t arena_bytes)
{
	struct watch_batch *batch = xcalloc(1, sizeof(*batch));

	arena_init(&batch->arena, arena_bytes);
	return batch;
}

int watch_batch_take(struct str *bytes, struct watch_batch **ret_batch)
{
	struct watch_record record;
	struct watch_batch *batch;
	int status = 0;
	size_t count = count_events(*bytes, &status);

	*ret_batch = NULL;
	if (count == 0)
		return status < 0 ? status : 0;
	batch = watch_batch_new(WATCH_BATCH_ARENA_BYTES);
	batch->events = arena_alloc_array(&batch->arena, count, sizeof(*batch->events));
	status = batch->events ? 0 : -ENOMEM;
	while (status == 0 && batch->count < count)
		status = watch_record_take(bytes, &record) == 1 ? add(batch, &record) : -EPROTO;
	if (status < 0) {
		watch_batch_free(batch);
		return status;
	}
	*ret_batch = batch;
	return 0;
}

static int fill_entry(struct watch_event *event, const char *root, struct user_names *names,
		      struct arena *arena)
{
	const char *path = strcmp(event->path, ".") == 0 ? root
							 : path_join(root, event->path, arena);
	struct entry *entry;
	struct stat st;

	if (!path)
		return -ENOMEM;
	if (lstat(path, &st) < 0)
		return 0;
	entry = arena_new(arena, struct entry);
	if (!entry || entry_fill(entry, path, &st, names, arena) < 0)
		return -ENOMEM;
	event->entry = entry;
	return 0;
}

int watch_batch_fill_entries(struct watch_batch *batch, const char *root)
{
	struct user_names *names = user_names_load(&batch->arena);
	int status = names ? 0 : -ENOMEM;

	for (size_t i = 0; i < batch->count && status == 0; i++) {
		struct watch_event *event = &batch->events[i];

		if (event->type != WATCH_RECORD_REMOVE && event->type != WATCH_RECORD_RENAME)
			status = fill_entry(event, root, names, &batch->arena);
	}
	return status;
}

void watch_batch_free(struct watch_batch *batch)
{
	if (!batch)
		return;
	arena_release(&batch->arena);
	buf_fini(&batch->packed);
	free(batch);
}
