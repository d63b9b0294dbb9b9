#include "proxy/catalog/sandbox_json.h"

/* ---- writing ---- */

void sandbox_json_write_field(struct json_writer *w, const struct sandbox_field *field,
			      const char *key, const struct sandbox_entry *entry)
{
	const void *member = sandbox_field_of(field, entry);
	unsigned port;
	char text[24];

	switch (field->kind) {
	case SANDBOX_FIELD_TEXT:
		json_writer_text(w, key, str_of(sandbox_field_text(field, entry)));
		break;
	case SANDBOX_FIELD_STATE:
		json_writer_text(w, key,
				 str_of(sandbox_state_name(*(const enum sandbox_state *)member)));
		break;
	case SANDBOX_FIELD_PORT:
		port = *(const unsigned *)member;
		json_writer_uint(w, key, port ? port : ENVD_PORT);
		break;
	case SANDBOX_FIELD_LIMIT:
		json_writer_int(w, key, *(const int *)member);
		break;
	case SANDBOX_FIELD_RESUME:
		json_writer_text(w, key, *(const bool *)member ? STR("any") : STR("off"));
		break;
	case SANDBOX_FIELD_FLAG:
		json_writer_bool(w, key, *(const bool *)member);
		break;
	case SANDBOX_FIELD_ORIGIN:
		json_writer_int(w, key, *(const enum sandbox_origin *)member);
		break;
	case SANDBOX_FIELD_VERSION:
		snprintf(text, sizeof(text), "%llu", (unsigned long long)*(const uint64_t *)member);
		json_writer_text(w, key, str_of(text));
		break;
	}
}

void sandbox_json_write(struct json_writer *w, const char *key, const struct catalog_record *record)
{
	const struct sandbox_entry *entry = &record->entry;
	int active = atomic_load(&record->lifecycle->active);

	json_writer_object(w, key);
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		if (f->reach < SANDBOX_FIELD_SHOWN)
			continue;
		if (f->shown)
			json_writer_bool(w, f->shown, *sandbox_field_text(f, entry));
		else
			sandbox_json_write_field(w, f, f->name, entry);
	}
	json_writer_int(w, "active", active > 0 ? active : 0);
	json_writer_uint(w, "revision", record->revision);
	json_writer_object_end(w);
}

/* ---- reading ---- */

static int wrong_type(struct str key, const char *wanted, struct err *err)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "%.*s must be %s", (int)size_min(key.len, 64),
		       key.p, wanted);
}

static int read_text(const struct sandbox_field *field, struct str key,
		     const struct json_value *value, struct arena *arena,
		     struct sandbox_entry *entry, struct err *err)
{
	struct str text = json_string(value);
	const char *copy;

	if (json_type(value) != JSON_STRING)
		return wrong_type(key, "a string", err);
	copy = arena_strndup(arena, text.p, text.len);
	return copy ? sandbox_field_parse(field, key, copy, entry, err)
		    : err_set(err, ERR_RESOURCE_EXHAUSTED, "out of memory");
}

/* Of something else than a string it says what is possible. */
static int read_word(const struct sandbox_field *field, struct str key,
		     const struct json_value *value, struct sandbox_entry *entry, struct err *err)
{
	return sandbox_field_parse(field, key,
				   json_type(value) == JSON_STRING ? json_string(value).p : "",
				   entry, err);
}

static int read_value(const struct sandbox_field *field, struct str key,
		      const struct json_value *value, struct arena *arena,
		      struct sandbox_entry *entry, struct err *err)
{
	void *member = sandbox_field_of(field, entry);
	int64_t number = json_int(value);

	if (json_type(value) == JSON_NULL && field->kind != SANDBOX_FIELD_STATE) {
		sandbox_field_unset(field, entry);
		return 0;
	}
	switch (field->kind) {
	case SANDBOX_FIELD_TEXT:
		return read_text(field, key, value, arena, entry, err);
	case SANDBOX_FIELD_STATE:
	case SANDBOX_FIELD_RESUME:
	case SANDBOX_FIELD_VERSION:
		return read_word(field, key, value, entry, err);
	case SANDBOX_FIELD_PORT:
	case SANDBOX_FIELD_LIMIT:
		if (json_type(value) != JSON_INT)
			return wrong_type(key, "an integer", err);
		return sandbox_field_set_number(field, key, number, entry, err);
	case SANDBOX_FIELD_FLAG:
		*(bool *)member = json_bool(value);
		break;
	case SANDBOX_FIELD_ORIGIN:
		if (json_type(value) == JSON_INT && number >= SANDBOX_FROM_DNS &&
		    number <= SANDBOX_FROM_COMMAND_LINE)
			*(enum sandbox_origin *)member = (enum sandbox_origin)number;
		break;
	}
	return 0;
}

int sandbox_json_read_field(const struct sandbox_field *field, struct str key,
			    const struct json_value *value, struct arena *arena,
			    struct sandbox_patch *patch, struct err *err)
{
	patch->says |= 1u << (field - sandbox_fields);
	return read_value(field, key, value, arena, &patch->values, err);
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
		const struct sandbox_field *field = sandbox_field_find(key);

		status = field ? sandbox_json_read_field(field, key, value, arena, ret_patch, err)
			       : sandbox_field_unknown(key, err);
		if (status < 0)
			return status;
	}
	return 0;
}

/* ---- patches ---- */

static bool says(const struct sandbox_patch *patch, const struct sandbox_field *field)
{
	return patch->says >> (field - sandbox_fields) & 1;
}

bool sandbox_patch_says_at(const struct sandbox_patch *patch, size_t offset)
{
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		if (f->offset == offset)
			return says(patch, f);
	return false;
}

void sandbox_patch_set_state(struct sandbox_patch *patch, enum sandbox_state state)
{
	const struct sandbox_field *field = sandbox_field_find(STR("state"));

	patch->says |= 1u << (field - sandbox_fields);
	patch->values.state = state;
}

void sandbox_patch_apply(struct sandbox_entry *entry, void *user)
{
	const struct sandbox_patch *patch = user;

	/* Trust was given to the address on the command line, not to another one. */
	if (sandbox_patch_says(patch, address) &&
	    strcmp(entry->address, patch->values.address) != 0)
		entry->trusted = false;
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		if (says(patch, f))
			sandbox_field_copy(f, &patch->values, entry);
}
