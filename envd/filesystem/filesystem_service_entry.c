#include "envd/filesystem/filesystem_service_entry.h"

/* Encoding only reads what the generated structs point to. */
#define TEXT(text) ((char *)(uintptr_t)(text))

static int fill_metadata(Filesystem__EntryInfo *info, const struct entry *entry,
			 struct arena *arena)
{
	size_t count = entry->metadata_count;
	Filesystem__EntryInfo__MetadataEntry *items;

	if (!count)
		return 0;
	items = arena_alloc_array(arena, count, sizeof(*items));
	info->metadata = arena_alloc_array(arena, count, sizeof(*info->metadata));
	if (!items || !info->metadata)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		filesystem__entry_info__metadata_entry__init(&items[i]);
		items[i].key = TEXT(entry->metadata[i].key);
		items[i].value = TEXT(entry->metadata[i].value);
		info->metadata[i] = &items[i];
	}
	info->n_metadata = count;
	return 0;
}

static int fill_time(Filesystem__EntryInfo *info, const struct entry *entry, struct arena *arena)
{
	if (!entry->has_modified)
		return 0;
	info->modified_time = arena_new(arena, Google__Protobuf__Timestamp);
	if (!info->modified_time)
		return -ENOMEM;
	google__protobuf__timestamp__init(info->modified_time);
	info->modified_time->seconds = entry->modified.tv_sec;
	info->modified_time->nanos = (int32_t)entry->modified.tv_nsec;
	return 0;
}

Filesystem__EntryInfo *filesystem_service_entry(const struct entry *entry, bool is_legacy,
						struct arena *arena)
{
	Filesystem__EntryInfo *info = arena_new(arena, Filesystem__EntryInfo);

	if (!info)
		return NULL;
	filesystem__entry_info__init(info);
	info->name = TEXT(entry->name);
	info->path = TEXT(entry->path);
	info->type = (Filesystem__FileType)entry->type;
	if (is_legacy)
		return info;
	info->size = entry->size;
	info->mode = entry->mode;
	info->permissions = TEXT(entry->permissions);
	info->owner = TEXT(entry->owner);
	info->group = TEXT(entry->group);
	if (entry->symlink_target) {
		info->opt_symlink_target_case =
			FILESYSTEM__ENTRY_INFO__OPT_SYMLINK_TARGET_SYMLINK_TARGET;
		info->symlink_target = TEXT(entry->symlink_target);
	}
	if (fill_time(info, entry, arena) < 0 || fill_metadata(info, entry, arena) < 0)
		return NULL;
	return info;
}
