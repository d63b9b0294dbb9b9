#include "proxy/catalog/sandbox_json.h"

#include "lib/json_writer.h"

int sandbox_json_write(struct buf *b, const struct catalog_record *record)
{
	const struct sandbox_entry *e = &record->entry;
	int active = atomic_load(&record->lifecycle->active);
	struct json_writer w;

	json_writer_init(&w, b);
	json_writer_object(&w, NULL);
	json_writer_text(&w, "id", str_of(e->id));
	json_writer_text(&w, "state", str_of(sandbox_state_name(e->state)));
	json_writer_text(&w, "address", str_of(e->address));
	json_writer_uint(&w, "envd_port", e->envd_port ? e->envd_port : ENVD_PORT);
	json_writer_text(&w, "lifecycle_id", str_of(e->lifecycle_id));
	json_writer_bool(&w, "private", *e->traffic_token);
	json_writer_text(&w, "mask_request_host", str_of(e->mask_host));
	json_writer_text(&w, "auto_resume", e->auto_resume ? STR("any") : STR("off"));
	json_writer_bool(&w, "envd_secure", *e->envd_token_hash);
	json_writer_int(&w, "connection_limit", e->connection_limit);
	json_writer_int(&w, "active", active > 0 ? active : 0);
	json_writer_uint(&w, "revision", record->revision);
	json_writer_object_end(&w);
	return json_writer_status(&w);
}

int sandbox_json_write_settings(struct buf *b, const struct sandbox_entry *e)
{
	struct json_writer w;

	json_writer_init(&w, b);
	json_writer_text(&w, "state", str_of(sandbox_state_name(e->state)));
	json_writer_uint(&w, "envd_port", e->envd_port ? e->envd_port : ENVD_PORT);
	json_writer_int(&w, "connection_limit", e->connection_limit);
	json_writer_text(&w, "auto_resume", e->auto_resume ? STR("any") : STR("off"));
	json_writer_text(&w, "traffic_access_token", str_of(e->traffic_token));
	json_writer_text(&w, "envd_access_token_sha256", str_of(e->envd_token_hash));
	json_writer_text(&w, "mask_request_host", str_of(e->mask_host));
	return json_writer_status(&w);
}

static int wrong_type(struct str key, const char *wanted, struct err *err)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "%.*s must be %s", (int)size_min(key.len, 64),
		       key.p, wanted);
}

static int read_text(const struct json_value *value, struct str key, struct arena *arena,
		     const char **ret_text, bool *ret_has, struct err *err)
{
	struct str text;

	*ret_has = true;
	*ret_text = "";
	if (json_type(value) == JSON_NULL)
		return 0;
	if (json_type(value) != JSON_STRING)
		return wrong_type(key, "a string", err);
	text = json_string(value);
	*ret_text = arena_strndup(arena, text.p, text.len);
	return *ret_text ? 0 : err_set(err, ERR_RESOURCE_EXHAUSTED, "out of memory");
}

static int read_number(const struct json_value *value, struct str key, int64_t least, int64_t most,
		       int64_t unset, int64_t *ret_number, bool *ret_has, struct err *err)
{
	*ret_has = true;
	*ret_number = unset;
	if (json_type(value) == JSON_NULL)
		return 0;
	if (json_type(value) != JSON_INT)
		return wrong_type(key, "an integer", err);
	*ret_number = json_int(value);
	if (*ret_number < least || *ret_number > most)
		return err_set(err, ERR_INVALID_ARGUMENT, "%.*s must be within %lld and %lld",
			       (int)key.len, key.p, (long long)least, (long long)most);
	return 0;
}

static int read_state(const struct json_value *value, struct sandbox_patch *patch, struct err *err)
{
	patch->has.state = true;
	if (json_type(value) != JSON_STRING ||
	    sandbox_state_parse(json_string(value), &patch->state) < 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "state must be running, pausing, paused, resuming or stopping");
	return 0;
}

static int read_auto_resume(const struct json_value *value, struct sandbox_patch *patch,
			    struct err *err)
{
	struct str text = json_string(value);

	patch->has.auto_resume = true;
	patch->auto_resume = str_equal(text, STR("any"));
	if (json_type(value) != JSON_NULL && !patch->auto_resume && !str_equal(text, STR("off")))
		return err_set(err, ERR_INVALID_ARGUMENT, "auto_resume must be \"any\" or \"off\"");
	return 0;
}

int sandbox_json_read_key(struct str key, const struct json_value *value, struct arena *arena,
			  struct sandbox_patch *patch, struct err *err)
{
	int64_t number;
	int status;

	if (str_equal(key, STR("state")))
		return read_state(value, patch, err);
	if (str_equal(key, STR("address")))
		return read_text(value, key, arena, &patch->address, &patch->has.address, err);
	if (str_equal(key, STR("lifecycle_id")))
		return read_text(value, key, arena, &patch->lifecycle_id, &patch->has.lifecycle_id,
				 err);
	if (str_equal(key, STR("traffic_access_token")))
		return read_text(value, key, arena, &patch->traffic_token,
				 &patch->has.traffic_token, err);
	if (str_equal(key, STR("envd_access_token_sha256")))
		return read_text(value, key, arena, &patch->envd_token_hash,
				 &patch->has.envd_token_hash, err);
	if (str_equal(key, STR("auto_resume")))
		return read_auto_resume(value, patch, err);
	if (str_equal(key, STR("mask_request_host")))
		return read_text(value, key, arena, &patch->mask_host, &patch->has.mask_host, err);
	if (str_equal(key, STR("envd_port"))) {
		status = read_number(value, key, 1, 65535, 0, &number, &patch->has.envd_port, err);
		patch->envd_port = number == ENVD_PORT ? 0 : (unsigned)number;
		return status;
	}
	if (str_equal(key, STR("connection_limit"))) {
		status = read_number(value, key, CATALOG_NO_LIMIT, INT32_MAX, CATALOG_NO_LIMIT,
				     &number, &patch->has.connection_limit, err);
		patch->connection_limit = (int)number;
		return status;
	}
	return SANDBOX_JSON_UNKNOWN;
}

int sandbox_json_read(struct str text, struct arena *arena, struct sandbox_patch *ret_patch,
		      struct err *err)
{
	const struct json_value *object;
	int status = json_parse(text, arena, &object, err);

	memset(ret_patch, 0, sizeof(*ret_patch));
	if (status < 0)
		return status;
	if (json_type(object) != JSON_OBJECT)
		return err_set(err, ERR_INVALID_ARGUMENT, "the body must be a JSON object");
	for (size_t i = 0; i < json_length(object); i++) {
		struct str key = {0};
		const struct json_value *value = json_entry(object, i, &key);

		status = sandbox_json_read_key(key, value, arena, ret_patch, err);
		if (status == SANDBOX_JSON_UNKNOWN)
			return err_set(err, ERR_INVALID_ARGUMENT, "unknown key \"%.*s\"",
				       (int)size_min(key.len, 64), key.p);
		if (status < 0)
			return status;
	}
	return 0;
}

void sandbox_patch_apply(struct sandbox_entry *entry, void *user)
{
	const struct sandbox_patch *patch = user;

	if (patch->has.state)
		entry->state = patch->state;
	if (patch->has.address) {
		/* Trust was given to the address on the command line, not to another one. */
		entry->trusted = entry->trusted && strcmp(entry->address, patch->address) == 0;
		entry->address = patch->address;
	}
	if (patch->has.lifecycle_id)
		entry->lifecycle_id = patch->lifecycle_id;
	if (patch->has.traffic_token)
		entry->traffic_token = patch->traffic_token;
	if (patch->has.mask_host)
		entry->mask_host = patch->mask_host;
	if (patch->has.envd_token_hash)
		entry->envd_token_hash = patch->envd_token_hash;
	if (patch->has.auto_resume)
		entry->auto_resume = patch->auto_resume;
	if (patch->has.envd_port)
		entry->envd_port = patch->envd_port;
	if (patch->has.connection_limit)
		entry->connection_limit = patch->connection_limit;
}
