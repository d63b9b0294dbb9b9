#include "envd/filesystem/metadata.h"

#include "envd/limits.h"

static const struct str prefix = {"x-metadata-", sizeof("x-metadata-") - 1};

static bool is_metadata(struct str name)
{
	return name.len > prefix.len && str_equal_nocase((struct str){name.p, prefix.len}, prefix);
}

static const char *lower_key(struct str name, struct arena *arena)
{
	char *key = arena_strndup(arena, name.p + prefix.len, name.len - prefix.len);

	for (char *at = key; at && *at; at++)
		if (*at >= 'A' && *at <= 'Z')
			*at = (char)(*at + ('a' - 'A'));
	return key;
}

/* The offset of the first byte that is not printable ASCII, or -1. */
static int find_unprintable(struct str text)
{
	for (size_t i = 0; i < text.len; i++)
		if (text.p[i] < 0x20 || text.p[i] > 0x7E)
			return (int)i;
	return -1;
}

static bool is_known(const struct entry_metadata *items, size_t count, const char *key)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(items[i].key, key) == 0)
			return true;
	return false;
}

static int check(const struct entry_metadata *item, struct err *err)
{
	int at = find_unprintable(str_of(item->key));

	if (at >= 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "invalid metadata: metadata key contains "
			       "non-printable-ASCII byte 0x%02x at offset %d",
			       (unsigned char)item->key[at], at);
	at = find_unprintable(str_of(item->value));
	if (at >= 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "invalid metadata: metadata value for key "
			       "\"%s\" contains non-printable-ASCII byte 0x%02x at offset %d",
			       item->key, (unsigned char)item->value[at], at);
	if (strlen(item->key) > FILE_METADATA_KEY_BYTES_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "invalid metadata: metadata key \"%s\" exceeds "
			       "%d bytes",
			       item->key, FILE_METADATA_KEY_BYTES_MAX);
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct entry_metadata *left = a, *right = b;

	return strcmp(left->key, right->key);
}

int metadata_collect(const struct metadata_field *fields, size_t field_count, struct arena *arena,
		     struct entry_metadata **ret_metadata, size_t *ret_count, struct err *err)
{
	struct entry_metadata *items = arena_alloc_array(arena, field_count, sizeof(*items));
	size_t count = 0, total = 0;
	int status;

	for (size_t i = 0; items && i < field_count; i++) {
		struct entry_metadata *item = &items[count];

		if (!is_metadata(fields[i].name))
			continue;
		item->key = lower_key(fields[i].name, arena);
		item->value = arena_str(arena, fields[i].value).p;
		if (!item->key || !item->value)
			return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "metadata");
		if (is_known(items, count, item->key))
			continue;
		status = check(item, err);
		if (status < 0)
			return status;
		total += sizeof(ENTRY_METADATA_PREFIX) - 1 + strlen(item->key) +
			 fields[i].value.len;
		count++;
	}
	if (!items)
		return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "metadata");
	if (total > FILE_METADATA_BYTES_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "invalid metadata: total metadata size %zu "
			       "exceeds %d bytes",
			       total, FILE_METADATA_BYTES_MAX);
	if (count)
		qsort(items, count, sizeof(*items), compare);
	*ret_metadata = items;
	*ret_count = count;
	return 0;
}
