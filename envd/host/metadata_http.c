#include "envd/host/metadata_http.h"

#include <arpa/inet.h>

#include "envd/limits.h"
#include "lib/http_call.h"
#include "lib/json.h"

enum step { STEP_TOKEN, STEP_CONTENT };

struct metadata_lookup {
	struct loop *loop;
	struct sockaddr_in address;
	unsigned step_ms;
	enum step step;
	struct http_call *call;
	char *token;
	void (*on_done)(void *user, int status, const struct metadata *metadata);
	void *user;
};

static void free_lookup(struct metadata_lookup *lookup)
{
	if (lookup->token)
		wipe(lookup->token, strlen(lookup->token));
	free(lookup->token);
	free(lookup);
}

void metadata_lookup_close(struct metadata_lookup *lookup)
{
	http_call_close(lookup->call);
	free_lookup(lookup);
}

static void finish(struct metadata_lookup *lookup, int status, const struct metadata *metadata)
{
	void (*on_done)(void *user, int status, const struct metadata *metadata) = lookup->on_done;
	void *user = lookup->user;

	free_lookup(lookup);
	on_done(user, status, metadata);
}

/* ---- the answers ---- */

/* A missing key is an empty text. */
static const char *text_of(const struct json_value *object, struct str key, struct arena *arena,
			   int *status)
{
	const struct json_value *value = json_get_nocase(object, key);
	const char *text;

	if (!value || json_type(value) == JSON_NULL)
		return "";
	if (json_type(value) != JSON_STRING) {
		*status = -EBADMSG;
		return "";
	}
	text = arena_strndup(arena, json_string(value).p, json_string(value).len);
	if (!text)
		*status = -ENOMEM;
	return text;
}

static void read_content(struct metadata_lookup *lookup, struct str text)
{
	const struct json_value *object;
	struct metadata metadata;
	struct arena arena;
	struct err err;
	int status;

	arena_init(&arena, METADATA_ARENA_BYTES);
	status = json_parse(text, &arena, &object, &err);
	if (status < 0 || json_type(object) != JSON_OBJECT) {
		status = -EBADMSG;
	} else {
		metadata.sandbox_id = text_of(object, STR("instanceID"), &arena, &status);
		metadata.template_id = text_of(object, STR("envID"), &arena, &status);
		metadata.log_address = text_of(object, STR("address"), &arena, &status);
		metadata.token_hash = text_of(object, STR("accessTokenHash"), &arena, &status);
	}
	finish(lookup, status, status < 0 ? NULL : &metadata);
	arena_release_wiped(&arena);
}

static bool is_field_text(struct str text)
{
	for (size_t i = 0; i < text.len; i++) {
		if ((unsigned char)text.p[i] < 0x20 || text.p[i] == 0x7f)
			return false;
	}
	return text.len > 0;
}

static int take_token(struct metadata_lookup *lookup, struct str text)
{
	struct str token = str_trim(text);

	/* It goes into a header of the second request. */
	if (token.len > METADATA_TOKEN_BYTES_MAX || !is_field_text(token))
		return -EBADMSG;
	lookup->token = xstrndup(token.p, token.len);
	return 0;
}

/* ---- the questions ---- */

static void start_step(struct metadata_lookup *lookup);

/* The status of an answer is not looked at (contract/envd.md 1.9). */
static void on_step_done(struct http_call *call, int status)
{
	struct metadata_lookup *lookup = http_call_user(call);

	if (status == 0 && lookup->step == STEP_CONTENT) {
		read_content(lookup, http_call_answer(call));
		return;
	}
	if (status == 0)
		status = take_token(lookup, http_call_answer(call));
	if (status < 0) {
		finish(lookup, status == -EMSGSIZE ? -EBADMSG : status, NULL);
		return;
	}
	lookup->step = STEP_CONTENT;
	start_step(lookup);
}

static void start_step(struct metadata_lookup *lookup)
{
	static const struct http_call_handler handler = {.on_done = on_step_done};
	const struct sockaddr *address = (const struct sockaddr *)&lookup->address;
	char host[INET_ADDRSTRLEN] = "";
	struct http_header items[3] = {{STR("Host"), {NULL, 0}}};
	struct http_call_settings settings = {
		.addresses = &address,
		.address_count = 1,
		.deadline_ms = lookup->step_ms,
		.headers = items,
		.answer_bytes_max = METADATA_BYTES_MAX,
		.user = lookup,
	};

	inet_ntop(AF_INET, &lookup->address.sin_addr, host, sizeof(host));
	items[0].value = str_of(host);
	if (lookup->step == STEP_TOKEN) {
		settings.method = STR("PUT");
		settings.target = STR("/latest/api/token");
		settings.is_empty_body = true;
		items[1] = (struct http_header){STR("X-metadata-token-ttl-seconds"), STR("60")};
		settings.header_count = 2;
	} else {
		settings.method = STR("GET");
		settings.target = STR("/");
		items[1] = (struct http_header){STR("X-metadata-token"), str_of(lookup->token)};
		items[2] = (struct http_header){STR("Accept"), STR("application/json")};
		settings.header_count = 3;
	}
	lookup->call = http_call_open(lookup->loop, &settings, &handler);
}

struct metadata_lookup *metadata_lookup_open(
	struct loop *loop, const struct sockaddr_in *address, unsigned step_ms,
	void (*on_done)(void *user, int status, const struct metadata *metadata), void *user)
{
	struct metadata_lookup *lookup = xcalloc(1, sizeof(*lookup));

	*lookup = (struct metadata_lookup){
		.loop = loop,
		.address = *address,
		.step_ms = step_ms,
		.on_done = on_done,
		.user = user,
	};
	start_step(lookup);
	return lookup;
}
