#include "envd/init/init.h"

#include "envd/init/clock.h"
#include "lib/digest.h"
#include "lib/json.h"

/* One request being read. */
struct reading {
	struct arena *arena;
	struct init_request *request;
	struct err *err;
	const struct json_value *token;
};

static int refuse(struct reading *r, const char *field, const char *wanted)
{
	return err_set(r->err, ERR_INVALID_ARGUMENT, "%s: %s expected", field, wanted);
}

static int refuse_memory(struct reading *r)
{
	err_set(r->err, ERR_RESOURCE_EXHAUSTED, "the body needs too much memory");
	return -ENOMEM;
}

/* *ret_text stays as it is when the value is null or empty. */
static int read_text(struct reading *r, const struct json_value *value, const char *field,
		     const char **ret_text)
{
	struct str text;

	if (json_type(value) == JSON_NULL)
		return 0;
	if (json_type(value) != JSON_STRING)
		return refuse(r, field, "a string");
	text = json_string(value);
	if (!text.len)
		return 0;
	*ret_text = arena_strndup(r->arena, text.p, text.len);
	return *ret_text ? 0 : refuse_memory(r);
}

static int read_environment(struct reading *r, const struct json_value *value)
{
	struct init_request *request = r->request;
	size_t count;

	if (json_type(value) == JSON_NULL)
		return 0;
	if (json_type(value) != JSON_OBJECT)
		return refuse(r, "envVars", "an object");
	count = json_length(value);
	request->environment = arena_alloc_array(r->arena, count, sizeof(*request->environment));
	if (!request->environment)
		return refuse_memory(r);
	for (size_t i = 0; i < count; i++) {
		struct environment_pair *pair = &request->environment[i];
		const struct json_value *entry = json_entry(value, i, &pair->name);

		if (json_type(entry) == JSON_NULL)
			pair->value = STR("");
		else if (json_type(entry) == JSON_STRING)
			pair->value = json_string(entry);
		else
			return refuse(r, "envVars", "an object of strings");
	}
	request->environment_count = count;
	request->has_environment = true;
	return 0;
}

static int read_token(struct reading *r, const struct json_value *value)
{
	if (json_type(value) == JSON_NULL)
		return 0;
	if (json_type(value) != JSON_STRING || !json_string(value).len)
		return refuse(r, "accessToken", "a string that is not empty");
	r->token = value;
	return 0;
}

static int read_timestamp(struct reading *r, const struct json_value *value)
{
	if (json_type(value) == JSON_NULL)
		return 0;
	if (json_type(value) != JSON_STRING ||
	    clock_parse_timestamp(json_string(value), &r->request->timestamp_ns) < 0)
		return refuse(r, "timestamp", "an RFC 3339 time");
	r->request->has_timestamp = true;
	return 0;
}

static int read_default_user(struct reading *r, const struct json_value *value)
{
	return read_text(r, value, "defaultUser", &r->request->default_user);
}

static int read_default_workdir(struct reading *r, const struct json_value *value)
{
	return read_text(r, value, "defaultWorkdir", &r->request->default_workdir);
}

static int read_hyperloop_address(struct reading *r, const struct json_value *value)
{
	return read_text(r, value, "hyperloopIP", &r->request->hyperloop_address);
}

static int read_ca_bundle(struct reading *r, const struct json_value *value)
{
	return read_text(r, value, "caBundle", &r->request->ca_bundle);
}

static int read_volume(struct reading *r, const struct json_value *value,
		       struct init_volume *volume)
{
	const struct json_value *target, *path;
	int status;

	*volume = (struct init_volume){.target = "", .path = ""};
	if (json_type(value) != JSON_OBJECT)
		return refuse(r, "volumeMounts", "an array of objects");
	target = json_get_nocase(value, STR("nfs_target"));
	path = json_get_nocase(value, STR("path"));
	status = target ? read_text(r, target, "nfs_target", &volume->target) : 0;
	if (status == 0 && path)
		status = read_text(r, path, "path", &volume->path);
	if (status < 0)
		return status;
	/* Neither may be taken for an option of mount. */
	if (volume->path[0] != '/' || volume->target[0] == '-' || !volume->target[0])
		return refuse(r, "volumeMounts", "nfs_target, and path as an absolute path");
	return 0;
}

static int read_volume_mounts(struct reading *r, const struct json_value *value)
{
	struct init_request *request = r->request;
	size_t count;

	if (json_type(value) == JSON_NULL)
		return 0;
	if (json_type(value) != JSON_ARRAY)
		return refuse(r, "volumeMounts", "an array");
	count = json_length(value);
	request->volumes = arena_alloc_array(r->arena, count, sizeof(*request->volumes));
	if (!request->volumes)
		return refuse_memory(r);
	for (size_t i = 0; i < count; i++) {
		int status = read_volume(r, json_at(value, i), &request->volumes[i]);

		if (status < 0)
			return status;
	}
	request->volume_count = count;
	return 0;
}

/* Has a meaning for volumeMounts alone. */
static int read_lifecycle_id(struct reading *r, const struct json_value *value)
{
	return read_text(r, value, "lifecycleID", &r->request->lifecycle_id);
}

/* Key names count without their case, as the host software's own parser has it. */
static const struct field {
	struct str name;
	int (*read)(struct reading *r, const struct json_value *value);
} fields[] = {
	{{"envVars", 7}, read_environment},
	{{"accessToken", 11}, read_token},
	{{"timestamp", 9}, read_timestamp},
	{{"defaultUser", 11}, read_default_user},
	{{"defaultWorkdir", 14}, read_default_workdir},
	{{"hyperloopIP", 11}, read_hyperloop_address},
	{{"caBundle", 8}, read_ca_bundle},
	{{"volumeMounts", 12}, read_volume_mounts},
	{{"lifecycleID", 11}, read_lifecycle_id},
};

static int read_fields(struct reading *r, const struct json_value *object)
{
	bool seen[ARRAY_LENGTH(fields)] = {false};

	for (size_t i = 0; i < json_length(object); i++) {
		struct str key;
		const struct json_value *value = json_entry(object, i, &key);

		for (size_t f = 0; f < ARRAY_LENGTH(fields); f++) {
			int status;

			if (!str_equal_nocase(key, fields[f].name))
				continue;
			if (seen[f])
				return err_set(r->err, ERR_INVALID_ARGUMENT, "%s is given twice",
					       fields[f].name.p);
			seen[f] = true;
			status = fields[f].read(r, value);
			if (status < 0)
				return status;
		}
	}
	return 0;
}

/*
 * Skips one string of text that is known to be JSON; `at` is behind its opening quote. Returns the
 * index of the closing quote.
 */
static size_t string_end(struct str json, size_t at, bool *ret_escaped)
{
	*ret_escaped = false;
	while (at < json.len && json.p[at] != '"') {
		if (json.p[at] == '\\') {
			*ret_escaped = true;
			at++;
		}
		at++;
	}
	return size_min(at, json.len);
}

static size_t skip_blanks(struct str json, size_t at)
{
	while (at < json.len && (json.p[at] == ' ' || json.p[at] == '\t' || json.p[at] == '\r' ||
				 json.p[at] == '\n'))
		at++;
	return at;
}

/*
 * The token as it stands in the body. A token spelled with an escape, or under a key spelled with
 * one, is refused (contract/envd.md 2.4 step 2), so what is looked for is plain text.
 */
static bool find_plain_token(struct str json, struct str *ret_token)
{
	unsigned depth = 0;
	size_t at = 0;

	while (at < json.len) {
		char c = json.p[at++];
		bool key_escaped, escaped;
		struct str key;
		size_t end;

		if (c == '{' || c == '[')
			depth++;
		if (c == '}' || c == ']')
			depth--;
		if (c != '"')
			continue;
		end = string_end(json, at, &key_escaped);
		key = (struct str){json.p + at, end - at};
		at = skip_blanks(json, end + 1);
		if (depth != 1 || at >= json.len || json.p[at] != ':' ||
		    !str_equal_nocase(key, STR("accessToken")))
			continue;
		at = skip_blanks(json, at + 1);
		if (at >= json.len || json.p[at] != '"')
			return false;
		end = string_end(json, at + 1, &escaped);
		*ret_token = (struct str){json.p + at + 1, end - at - 1};
		return !escaped;
	}
	return false;
}

int init_parse(struct str body, struct arena *arena, struct init_request *ret_request,
	       struct err *err)
{
	struct reading r = {.arena = arena, .request = ret_request, .err = err};
	const struct json_value *object;
	struct str plain;
	int status;

	*ret_request = (struct init_request){0};
	if (!body.len)
		return 0;
	status = json_parse(body, arena, &object, err);
	if (status < 0) {
		/* The parser's message quotes what it found. */
		snprintf(err->message, sizeof(err->message), "body: not JSON");
		return status;
	}
	if (json_type(object) == JSON_NULL)
		return 0;
	if (json_type(object) != JSON_OBJECT)
		return refuse(&r, "body", "an object");
	status = read_fields(&r, object);
	if (status < 0 || !r.token)
		return status;
	if (!find_plain_token(body, &plain) ||
	    !str_equal_constant_time(plain, json_string(r.token)))
		return refuse(&r, "accessToken", "a string without escapes");
	ret_request->token = json_string(r.token);
	return 0;
}

bool init_is_trusted(const struct sandbox *sandbox, const struct init_request *request)
{
	return request->token.p && sandbox_token_matches(sandbox, request->token);
}

enum init_metadata init_compare_hash(const struct init_request *request, const char *hash)
{
	char wanted[2 * DIGEST_SHA512_BYTES + 1];
	bool is_same;

	if (!hash[0])
		return INIT_METADATA_NONE;
	digest_sha512_hex(request->token.p ? request->token : STR(""), wanted);
	is_same = str_equal_constant_time(str_of(hash), str_of(wanted));
	wipe(wanted, sizeof(wanted));
	return is_same ? INIT_METADATA_MATCHES : INIT_METADATA_DIFFERS;
}

enum init_verdict init_authorise(const struct sandbox *sandbox, const struct init_request *request,
				 enum init_metadata metadata)
{
	if (init_is_trusted(sandbox, request))
		return INIT_AUTHORISED;
	switch (metadata) {
	case INIT_METADATA_MATCHES:
		return INIT_AUTHORISED;
	case INIT_METADATA_NONE:
		if (!sandbox->access_token)
			return INIT_AUTHORISED;
		break;
	case INIT_METADATA_DIFFERS:
		break;
	}
	return request->token.p ? INIT_TOKEN_WRONG : INIT_RESET_NOT_AUTHORISED;
}

bool init_is_current(struct sandbox *sandbox, const struct init_request *request)
{
	if (!request->has_timestamp)
		return true;
	if (request->timestamp_ns < sandbox->newest_init_ns)
		return false;
	sandbox->newest_init_ns = request->timestamp_ns;
	return true;
}

void init_apply(struct sandbox *sandbox, const struct init_request *request)
{
	if (request->has_environment)
		environment_replace_user(&sandbox->environment, request->environment,
					 request->environment_count);
	sandbox_set_access_token(sandbox, request->token);
	if (request->default_user)
		sandbox_set_default_user(sandbox, request->default_user);
	if (request->default_workdir)
		sandbox_set_default_workdir(sandbox, request->default_workdir);
}
