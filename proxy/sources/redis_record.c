#include "proxy/sources/redis_record.h"

#include "proxy/catalog/sandbox_json.h"

struct str redis_record_id(struct str key)
{
	static const struct str prefix = STR(REDIS_RECORD_PREFIX);
	struct str id;

	if (!str_starts_with(key, prefix))
		return (struct str){0};
	id = (struct str){key.p + prefix.len, key.len - prefix.len};
	return host_name_is_id(id) ? id : (struct str){0};
}

void redis_record_key(const char *id, char ret_key[REDIS_RECORD_KEY_BYTES])
{
	snprintf(ret_key, REDIS_RECORD_KEY_BYTES, "%s%s", REDIS_RECORD_PREFIX, id);
}

static int read_if_there(const struct json_value *object, const struct sandbox_field *field,
			 const char *key, struct arena *arena, struct sandbox_patch *patch,
			 struct err *err)
{
	const struct json_value *value = key ? json_get(object, str_of(key)) : NULL;

	return value ? sandbox_json_read_field(field, str_of(key), value, arena, patch, err) : 0;
}

int redis_record_read(struct str value, const char *id, struct arena *arena,
		      struct sandbox_entry *ret_entry, struct err *err)
{
	struct sandbox_patch patch = {0};
	const struct json_value *object;
	int status = json_parse(value, arena, &object, err);

	if (status < 0)
		return status;
	if (json_type(object) != JSON_OBJECT)
		return err_set(err, ERR_INVALID_ARGUMENT, "the value must be a JSON object");
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		if (f->reach != SANDBOX_FIELD_SET)
			continue;
		status = read_if_there(object, f, f->redis, arena, &patch, err);
		if (status == 0) /* ours has precedence */
			status = read_if_there(object, f, f->name, arena, &patch, err);
		if (status < 0)
			return status;
	}
	sandbox_entry_init(ret_entry, id);
	ret_entry->origin = SANDBOX_FROM_REDIS;
	sandbox_patch_apply(ret_entry, &patch);
	ret_entry->origin_version = redis_record_version(value);
	return 0;
}

int redis_record_write(struct buf *b, const struct sandbox_entry *entry, const char *started_at)
{
	struct json_writer w;

	json_writer_init(&w, b);
	json_writer_object(&w, NULL);
	json_writer_text(&w, "orchestrator_id", STR(""));
	json_writer_text(&w, "sandbox_started_at", str_of(started_at));
	json_writer_uint(&w, "sandbox_max_length_in_hours", 0);
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		if (f->reach == SANDBOX_FIELD_SET)
			sandbox_json_write_field(&w, f, f->redis ? f->redis : f->name, entry);
	json_writer_object_end(&w);
	return json_writer_status(&w);
}

uint64_t redis_record_version(struct str value)
{
	uint64_t hash = 0xcbf29ce484222325u ^ value.len;

	for (size_t i = 0; i < value.len; i++) {
		hash = (hash ^ (unsigned char)value.p[i]) * 0x9e3779b97f4a7c15u;
		hash ^= hash >> 32;
	}
	return hash | 1;
}
