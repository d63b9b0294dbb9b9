#include "envd/host/metadata_http.h"

#include <arpa/inet.h>

#include "lib/http_client.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "lib/stream_uv.h"

enum step { STEP_TOKEN, STEP_CONTENT, STEP_OVER };

struct metadata_lookup {
	struct loop *loop;
	struct sockaddr_in address;
	unsigned step_ms;
	uv_timer_t timer;
	struct later later; /* for what fails at once */
	enum step step;
	struct stream *stream; /* while connecting */
	struct http_client *client;
	struct buf body;
	bool is_complete; /* the answer of this step */
	char *token;
	int status;
	bool is_closing;
	unsigned parts; /* timer, connection */
	void (*on_done)(void *user, int status, const struct metadata *metadata);
	void *user;
};

static void release_part(struct metadata_lookup *lookup)
{
	if (--lookup->parts)
		return;
	buf_fini(&lookup->body);
	free(lookup->token);
	free(lookup);
}

static void on_timer_closed(uv_handle_t *handle)
{
	release_part(container_of((uv_timer_t *)handle, struct metadata_lookup, timer));
}

void metadata_lookup_close(struct metadata_lookup *lookup)
{
	if (lookup->is_closing)
		return;
	lookup->is_closing = true;
	later_cancel(&lookup->later);
	uv_close((uv_handle_t *)&lookup->timer, on_timer_closed);
	if (lookup->stream)
		stream_close(lookup->stream, true);
	if (lookup->client)
		http_client_close(lookup->client, true);
}

static void finish(struct metadata_lookup *lookup, int status, const struct metadata *metadata)
{
	if (lookup->is_closing)
		return;
	lookup->on_done(lookup->user, status, metadata);
	metadata_lookup_close(lookup);
}

static void on_later(struct later *later)
{
	struct metadata_lookup *lookup = container_of(later, struct metadata_lookup, later);

	finish(lookup, lookup->status, NULL);
}

static void fail_later(struct metadata_lookup *lookup, int status)
{
	lookup->status = status;
	later_call(lookup->loop, &lookup->later);
}

static void on_timer(uv_timer_t *timer)
{
	finish(container_of(timer, struct metadata_lookup, timer), -ETIMEDOUT, NULL);
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

static void read_content(struct metadata_lookup *lookup)
{
	const struct json_value *object;
	struct metadata metadata;
	struct arena arena;
	struct err err;
	int status;

	arena_init(&arena, METADATA_ARENA_BYTES);
	status = json_parse(buf_str(&lookup->body), &arena, &object, &err);
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

static int take_token(struct metadata_lookup *lookup)
{
	struct str token = str_trim(buf_str(&lookup->body));

	/* It goes into a header of the second request. */
	if (token.len > METADATA_TOKEN_BYTES_MAX || !is_field_text(token))
		return -EBADMSG;
	lookup->token = xstrndup(token.p, token.len);
	return 0;
}

static void start_step(struct metadata_lookup *lookup);

/* The connection of a step is gone. */
static void step_over(struct metadata_lookup *lookup, int status)
{
	if (!lookup->is_closing && !lookup->is_complete) {
		finish(lookup, status < 0 ? status : -ECONNRESET, NULL);
	} else if (!lookup->is_closing && lookup->step == STEP_TOKEN) {
		status = take_token(lookup);
		if (status < 0) {
			finish(lookup, status, NULL);
		} else {
			lookup->step = STEP_CONTENT;
			start_step(lookup);
		}
	} else if (!lookup->is_closing) {
		lookup->step = STEP_OVER;
		read_content(lookup);
	}
	release_part(lookup);
}

/* ---- a connection ---- */

static void on_response(struct http_client *c, const struct http_response *response)
{
	/* The status is not looked at (contract/envd.md 1.9). */
	(void)c;
	(void)response;
}

static void on_body(struct http_client *c, const char *data, size_t len)
{
	struct metadata_lookup *lookup = http_client_user(c);

	if (!lookup->is_closing && buf_append(&lookup->body, data, len) < 0)
		finish(lookup, -EBADMSG, NULL);
}

static void on_body_end(struct http_client *c, const struct http_headers *trailers)
{
	struct metadata_lookup *lookup = http_client_user(c);

	(void)trailers;
	lookup->is_complete = true;
}

static void on_client_closed(struct http_client *c, int status)
{
	struct metadata_lookup *lookup = http_client_user(c);

	lookup->client = NULL;
	step_over(lookup, status);
}

static const struct http_client_handler handler = {
	.on_response = on_response,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_client_closed,
};

static void send_request(struct metadata_lookup *lookup)
{
	char host[INET_ADDRSTRLEN] = "";
	struct http_header items[3] = {{STR("Host"), {NULL, 0}}};
	struct http_client_request request = {
		.headers = {.items = items, .capacity = ARRAY_LENGTH(items)},
		.length = HTTP_LENGTH_NONE,
	};

	inet_ntop(AF_INET, &lookup->address.sin_addr, host, sizeof(host));
	items[0].value = str_of(host);
	if (lookup->step == STEP_TOKEN) {
		request.method = STR("PUT");
		request.target = STR("/latest/api/token");
		request.length = 0;
		items[1] = (struct http_header){STR("X-metadata-token-ttl-seconds"), STR("60")};
		request.headers.count = 2;
	} else {
		request.method = STR("GET");
		request.target = STR("/");
		items[1] = (struct http_header){STR("X-metadata-token"), str_of(lookup->token)};
		items[2] = (struct http_header){STR("Accept"), STR("application/json")};
		request.headers.count = 3;
	}
	/* A failure comes as on_closed. */
	if (http_client_send(lookup->client, &request) == 0)
		(void)http_client_end(lookup->client, NULL);
}

static void on_stream_closed(struct stream *stream)
{
	struct metadata_lookup *lookup = stream->user;

	lookup->stream = NULL;
	step_over(lookup, lookup->status);
}

static const struct stream_events connecting = {.on_closed = on_stream_closed};

static void on_connected(struct stream *stream, int status)
{
	struct metadata_lookup *lookup = stream->user;

	if (status < 0) {
		lookup->status = status;
		stream_close(stream, true);
		return;
	}
	lookup->stream = NULL;
	lookup->client = http_client_open(lookup->loop, stream, &handler, lookup);
	send_request(lookup);
}

static void start_step(struct metadata_lookup *lookup)
{
	int status;

	lookup->is_complete = false;
	buf_clear(&lookup->body);
	uv_timer_start(&lookup->timer, on_timer, lookup->step_ms, 0);
	status = stream_uv_connect(lookup->loop, (const struct sockaddr *)&lookup->address, on_connected,
				   &lookup->stream);
	if (status < 0) {
		fail_later(lookup, status);
		return;
	}
	lookup->parts++;
	lookup->stream->user = lookup;
	lookup->stream->events = &connecting;
}

struct metadata_lookup *metadata_lookup_open(struct loop *loop, const struct sockaddr_in *address,
					     unsigned step_ms,
					     void (*on_done)(void *user, int status,
							     const struct metadata *metadata),
					     void *user)
{
	struct metadata_lookup *lookup = xcalloc(1, sizeof(*lookup));

	*lookup = (struct metadata_lookup){
		.loop = loop,
		.address = *address,
		.step_ms = step_ms,
		.parts = 1,
		.on_done = on_done,
		.user = user,
	};
	buf_init(&lookup->body, METADATA_BYTES_MAX);
	later_init(&lookup->later, on_later);
	uv_timer_init(&loop->uv, &lookup->timer);
	start_step(lookup);
	return lookup;
}
