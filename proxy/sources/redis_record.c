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

/* A text of E2B's; absent and null are "". */
static int read_text(const struct json_value *object, struct str key, struct arena *arena,
		     const char **ret_text, struct err *err)
{
	const struct json_value *value = json_get(object, key);
	struct str text;

	*ret_text = "";
	if (!value || json_type(value) == JSON_NULL)
		return 0;
	if (json_type(value) != JSON_STRING)
		return err_set(err, ERR_INVALID_ARGUMENT, "%.*s must be a string", (int)key.len,
			       key.p);
	text = json_string(value);
	*ret_text = arena_strndup(arena, text.p, text.len);
	return *ret_text ? 0 : err_set(err, ERR_RESOURCE_EXHAUSTED, "out of memory");
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
	sandbox_entry_init(ret_entry, id);
	ret_entry->origin = SANDBOX_FROM_REDIS;
	status = read_text(object, STR("orchestrator_ip"), arena, &ret_entry->address, err);
	if (status == 0)
		status = read_text(object, STR("execution_id"), arena, &ret_entry->lifecycle_id,
				   err);
	for (size_t i = 0; status == 0 && i < json_length(object); i++) {
		struct str key = {0};
		const struct json_value *entry = json_entry(object, i, &key);

		if (sandbox_json_read_key(key, entry, arena, &patch, err) < 0)
			status = -EINVAL;
	}
	if (status < 0)
		return status;
	sandbox_patch_apply(ret_entry, &patch);
	ret_entry->origin_version = redis_record_version(value);
	return 0;
}

int redis_record_write(struct buf *b, const struct sandbox_entry *entry, const char *started_at)
{
	int status = buf_append_str(b, STR("{\"orchestrator_id\":\"\",\"orchestrator_ip\":"));

	if (status == 0)
		status = json_write_string(b, str_of(entry->address), false);
	if (status == 0)
		status = buf_append_str(b, STR(",\"execution_id\":"));
	if (status == 0)
		status = json_write_string(b, str_of(entry->lifecycle_id), false);
	if (status == 0)
		status = buf_printf(b,
				    ",\"sandbox_started_at\":\"%s\","
				    "\"sandbox_max_length_in_hours\":0,",
				    started_at);
	if (status == 0)
		status = sandbox_json_write_settings(b, entry);
	return status < 0 ? status : buf_append_str(b, STR("}"));
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
