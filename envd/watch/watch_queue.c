#include "envd/watch/watch_queue.h"

#include "envd/filesystem/path.h"
#include "envd/limits.h"

/* In the first byte, beside the type. */
#define HAS_ENTRY 0x80

/* What is of one size in a struct entry; its texts follow, each with its NUL: path, permissions,
 * owner, group, the target of a link, then keys and values. */
struct fixed {
	int64_t size, modified_s;
	uint32_t modified_ns, mode, metadata_count;
	uint8_t type;
	bool has_modified, is_link;
};

void watch_queue_init(struct watch_queue *queue)
{
	buf_init(&queue->bytes, WATCHER_BYTES_MAX + WATCH_BATCH_ARENA_BYTES);
	queue->count = 0;
}

void watch_queue_clear(struct watch_queue *queue)
{
	buf_reset(&queue->bytes);
	queue->count = 0;
}

/* ---- in ---- */

static int put_text(struct buf *b, const char *text)
{
	return buf_append(b, text ? text : "", text ? strlen(text) + 1 : 1);
}

static int put_entry(struct buf *b, const struct entry *entry)
{
	struct fixed fixed = {
		.size = entry->size,
		.modified_s = entry->modified.tv_sec,
		.modified_ns = (uint32_t)entry->modified.tv_nsec,
		.mode = entry->mode,
		.metadata_count = (uint32_t)entry->metadata_count,
		.type = (uint8_t)entry->type,
		.has_modified = entry->has_modified,
		.is_link = entry->symlink_target != NULL,
	};
	const char *texts[] = {entry->path, entry->permissions, entry->owner, entry->group,
			       entry->symlink_target};
	int status = buf_append(b, &fixed, sizeof(fixed));

	for (size_t i = 0; i < ARRAY_LENGTH(texts) - !fixed.is_link && status == 0; i++)
		status = put_text(b, texts[i]);
	for (size_t i = 0; i < entry->metadata_count && status == 0; i++) {
		status = put_text(b, entry->metadata[i].key);
		if (status == 0)
			status = put_text(b, entry->metadata[i].value);
	}
	return status;
}

static int put_event(struct buf *b, const struct watch_event *event)
{
	unsigned char head = (unsigned char)(event->type | (event->entry ? HAS_ENTRY : 0));
	int status = buf_append(b, &head, 1);

	if (status == 0)
		status = put_text(b, event->name);
	return status == 0 && event->entry ? put_entry(b, event->entry) : status;
}

int watch_queue_add(struct watch_queue *queue, const struct watch_batch *batch)
{
	size_t length = buf_length(&queue->bytes);
	int status = 0;

	for (size_t i = 0; i < batch->count && status == 0; i++)
		status = put_event(&queue->bytes, &batch->events[i]);
	if (status < 0) {
		/* Nothing has been taken from its front, so it ends where it did. */
		queue->bytes.end = queue->bytes.start + length;
		return status;
	}
	queue->count += batch->count;
	return 0;
}

/* ---- out ---- */

static const char *get_text(const char **at)
{
	const char *text = *at;

	*at += strlen(text) + 1;
	return text;
}

static struct entry *get_entry(const char **at, struct arena *arena)
{
	struct entry *entry = arena_new(arena, struct entry);
	struct fixed fixed;

	if (!entry)
		return NULL;
	memcpy(&fixed, *at, sizeof(fixed));
	*at += sizeof(fixed);
	entry->path = get_text(at);
	entry->name = path_base(entry->path);
	entry->type = (enum entry_type)fixed.type;
	entry->mode = fixed.mode;
	entry->size = fixed.size;
	entry->permissions = get_text(at);
	entry->owner = get_text(at);
	entry->group = get_text(at);
	entry->modified = (struct timespec){fixed.modified_s, fixed.modified_ns};
	entry->has_modified = fixed.has_modified;
	entry->symlink_target = fixed.is_link ? get_text(at) : NULL;
	entry->metadata_count = fixed.metadata_count;
	entry->metadata = arena_alloc_array(arena, fixed.metadata_count, sizeof(*entry->metadata));
	if (!entry->metadata)
		return NULL;
	for (size_t i = 0; i < fixed.metadata_count; i++) {
		entry->metadata[i].key = get_text(at);
		entry->metadata[i].value = get_text(at);
	}
	return entry;
}

static int get_event(const char **at, struct watch_event *event, struct arena *arena)
{
	unsigned char head = (unsigned char)*(*at)++;

	event->type = (enum watch_record_type)(head & ~HAS_ENTRY);
	event->name = get_text(at);
	event->entry = head & HAS_ENTRY ? get_entry(at, arena) : NULL;
	return head & HAS_ENTRY && !event->entry ? -ENOMEM : 0;
}

int watch_queue_take(struct watch_queue *queue, struct watch_batch **ret_batch)
{
	struct watch_batch *batch = watch_batch_new(WATCHER_ANSWER_ARENA_BYTES);
	const char *at = buf_data(&queue->bytes);
	size_t count = queue->count;
	int status = 0;

	batch->packed = queue->bytes; /* the texts stay where they are */
	watch_queue_init(queue);
	batch->events = arena_alloc_array(&batch->arena, count, sizeof(*batch->events));
	if (!batch->events)
		status = -ENOMEM;
	while (status == 0 && batch->count < count)
		status = get_event(&at, &batch->events[batch->count++], &batch->arena);
	if (status < 0) {
		watch_batch_free(batch);
		return status;
	}
	*ret_batch = batch;
	return 0;
}
