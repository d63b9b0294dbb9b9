#include "proxy/wake/wake_hook.h"

#include "lib/http_call.h"
#include "lib/json_writer.h"
#include "lib/log.h"
#include "proxy/catalog/sandbox_json.h"
#include "proxy/limits.h"

#define REQUEST_BYTES_MAX 4096
#define ANSWER_ARENA_BYTES (1024 * 1024)

struct wake_hook {
	struct waker waker;
	struct loop *loop;
	struct catalog *catalog;
	char *host; /* for the resolver: without brackets */
	char *authority; /* for the Host field */
	char *target;
	char *authorization; /* NULL: none */
	union address literal; /* sa_family 0: `host` is a name */
	unsigned port;
	size_t questions; /* open ones keep the hook */
	bool closed;
};

/* One call on its way. */
struct question {
	struct wake_hook *hook;
	struct wake_call *call; /* NULL once it was answered or cancelled */
	struct later later;
	struct alarm alarm; /* the deadline while the name is resolved */
	uv_getaddrinfo_t resolve;
	union address addresses[PROXY_RESOLVED_MAX];
	size_t address_count;
	struct http_call *http; /* NULL: not yet */
	unsigned retry_after_s;
	bool resolving;
};

static void release_hook(struct wake_hook *hook)
{
	if (!hook->closed || hook->questions)
		return;
	if (hook->authorization)
		wipe(hook->authorization, strlen(hook->authorization));
	free(hook->authorization);
	free(hook->host);
	free(hook->authority);
	free(hook->target);
	free(hook);
}

static void free_question(struct question *q)
{
	struct wake_hook *hook = q->hook;

	free(q);
	hook->questions--;
	release_hook(hook);
}

/* Nothing calls the waker's user any more; the question is gone, unless its name is being
 * resolved. */
static void drop(struct question *q)
{
	q->call = NULL;
	later_cancel(&q->later);
	alarm_cancel(&q->alarm);
	if (q->http)
		http_call_close(q->http);
	if (q->resolving)
		uv_cancel((uv_req_t *)&q->resolve); /* its callback still comes, and frees */
	else
		free_question(q);
}

static void finish(struct question *q, const struct wake_verdict *verdict)
{
	struct wake_call *call = q->call;

	drop(q);
	wake_call_finish(call, verdict);
}

/* The hook is out of order, which its owner should know. */
static void fail(struct question *q, enum wake_outcome outcome, const char *reason)
{
	const struct wake_verdict verdict = {.outcome = outcome, .retry_after_s = q->retry_after_s};

	log_error("wake", "the wake-up hook failed", LOG_S("sandbox", q->call->request.id),
		  LOG_S("reason", reason),
		  LOG_I("status", q->http ? http_call_status(q->http) : 0));
	finish(q, &verdict);
}

/* ---- the answer ---- */

/* Whoever else may have put it there meanwhile is right. Changes are made on this loop alone. */
static bool publish_new(struct question *q, struct sandbox_patch *patch, struct err *err)
{
	const char *id = q->call->request.id;
	struct catalog_record *record;
	struct sandbox_entry entry;

	if (catalog_find(q->hook->catalog, str_of(id), &record) == 0) {
		catalog_record_release(record);
		return true;
	}
	sandbox_entry_init(&entry, id);
	entry.origin = SANDBOX_FROM_HOOK; /* what a shared catalog says of it later is newer */
	sandbox_patch_apply(&entry, patch);
	return catalog_put(q->hook->catalog, &entry, "", NULL, err) == 0;
}

/* Publishes what the body says of the sandbox. False with the reason in err. */
static bool publish(struct question *q, struct str text, struct arena *arena, struct err *err)
{
	const struct wake_request *request = &q->call->request;
	struct sandbox_patch patch;

	if (sandbox_json_read(text, arena, &patch, err) < 0)
		return false;
	if (sandbox_patch_says(&patch, address) && !*patch.values.address) {
		err_set(err, ERR_INVALID_ARGUMENT, "the address is empty");
		return false;
	}
	if (sandbox_patch_is_empty(&patch))
		return true; /* {} */
	if (!sandbox_patch_says(&patch, state))
		sandbox_patch_set_state(&patch, SANDBOX_RUNNING);
	if (request->is_unknown)
		return publish_new(q, &patch, err);
	if (catalog_edit(q->hook->catalog, str_of(request->id), request->lifecycle_id,
			 sandbox_patch_apply, &patch, NULL, err) == 0)
		return true;
	/* Somebody was faster: what the catalog says now counts. */
	return err->kind == ERR_FAILED_PRECONDITION || err->kind == ERR_NOT_FOUND;
}

/* At most `size` - 1 bytes, cut before a character rather than inside it. */
static void copy_text(struct str text, char *ret_text, size_t size)
{
	size_t len = size_min(text.len, size - 1);

	while (len < text.len && len > 0 && ((unsigned char)text.p[len] & 0xc0) == 0x80)
		len--;
	memcpy(ret_text, text.p, len);
	ret_text[len] = '\0';
}

static void read_message(struct question *q, struct arena *arena, struct wake_verdict *verdict)
{
	const struct json_value *object, *message;
	struct err err;

	if (json_parse(http_call_answer(q->http), arena, &object, &err) < 0)
		return;
	message = json_get(object, STR("message"));
	if (message && json_type(message) == JSON_STRING)
		copy_text(json_string(message), verdict->text, sizeof(verdict->text));
}

static void take_answer(struct question *q)
{
	struct wake_verdict verdict = {.outcome = WAKE_LOOK_AGAIN,
				       .retry_after_s = q->retry_after_s};
	const char *failure = NULL;
	struct arena arena;
	struct err err;

	arena_init(&arena, ANSWER_ARENA_BYTES);
	switch (http_call_status(q->http)) {
	case 403:
		verdict.outcome = WAKE_DENIED;
		break;
	case 404:
	case 410:
		verdict.outcome = WAKE_NOT_FOUND;
		break;
	case 409:
		verdict.outcome = WAKE_TRANSITIONING;
		break;
	case 429:
		verdict.outcome = WAKE_LIMITED;
		read_message(q, &arena, &verdict);
		break;
	default:
		if (http_call_status(q->http) / 100 != 2)
			failure = "an answer that means nothing here";
		else if (str_trim(http_call_answer(q->http)).len &&
			 !publish(q, http_call_answer(q->http), &arena, &err))
			failure = err.message;
	}
	if (failure)
		fail(q, WAKE_UNAVAILABLE, failure);
	else
		finish(q, &verdict);
	arena_release_wiped(&arena);
}

static void on_response(struct http_call *http, const struct http_response *response)
{
	struct question *q = http_call_user(http);
	struct str retry_after = http_headers_get(&response->headers, STR("Retry-After"));
	uint64_t seconds;

	if (str_to_u64(str_trim(retry_after), PROXY_WAKE_RETRY_AFTER_S_MAX, &seconds) == 0)
		q->retry_after_s = (unsigned)seconds;
}

static void on_call_done(struct http_call *http, int status)
{
	struct question *q = http_call_user(http);

	if (status == 0 || (status == -EMSGSIZE && http_call_status(http) / 100 != 2))
		take_answer(q); /* a refusal may come with a page: what matters is the status */
	else if (status == -EMSGSIZE)
		fail(q, WAKE_UNAVAILABLE, "the answer is too large");
	else if (status == -ETIMEDOUT)
		fail(q, WAKE_TIMEOUT, "no answer in time");
	else if (status == -EPROTO)
		fail(q, WAKE_UNAVAILABLE, "the answer is not HTTP");
	else
		fail(q, WAKE_UNAVAILABLE,
		     http_call_is_connected(http) ? "the connection was lost" : "no connection");
}

/* ---- the question ---- */

static int write_question(const struct wake_request *request, struct buf *b)
{
	struct json_writer w;

	json_writer_init(&w, b);
	json_writer_object(&w, NULL);
	json_writer_text(&w, "sandboxId", str_of(request->id));
	json_writer_uint(&w, "port", request->port);
	if (!request->is_unknown)
		json_writer_text(&w, "lifecycleId", str_of(request->lifecycle_id));
	if (*request->traffic_token)
		json_writer_text(&w, "trafficAccessToken", str_of(request->traffic_token));
	if (*request->envd_token)
		json_writer_text(&w, "envdAccessToken", str_of(request->envd_token));
	json_writer_object_end(&w);
	return json_writer_status(&w);
}

static uint64_t left_ms(const struct question *q)
{
	uint64_t now = loop_now_ms(q->hook->loop);

	return q->call->deadline_ms > now ? q->call->deadline_ms - now : 0;
}

static void on_alarm(struct alarm *alarm)
{
	fail(container_of(alarm, struct question, alarm), WAKE_TIMEOUT, "no answer in time");
}

static void open_call(struct question *q, struct str text)
{
	static const struct http_call_handler handler = {.on_response = on_response,
							 .on_done = on_call_done};
	struct wake_hook *hook = q->hook;
	const struct sockaddr *addresses[PROXY_RESOLVED_MAX];
	const struct iovec body = {(void *)(uintptr_t)text.p, text.len};
	const struct http_header headers[4] = {
		{STR("Host"), str_of(hook->authority)},
		{STR("Content-Type"), STR("application/json")},
		{STR("Accept"), STR("application/json")},
		{STR("Authorization"), str_of(hook->authorization)},
	};
	const struct http_call_settings settings = {
		.addresses = addresses,
		.address_count = q->address_count,
		.connect_ms = PROXY_WAKE_CONNECT_MS,
		.deadline_ms = size_max(left_ms(q), 1),
		.method = STR("POST"),
		.target = str_of(hook->target),
		.headers = headers,
		.header_count = hook->authorization ? 4 : 3,
		.body = &body,
		.body_count = 1,
		.answer_bytes_max = PROXY_WAKE_ANSWER_BYTES_MAX,
		.user = q,
	};

	for (size_t i = 0; i < q->address_count; i++) {
		address_set_port(&q->addresses[i], hook->port);
		addresses[i] = &q->addresses[i].any;
	}
	alarm_cancel(&q->alarm);
	q->http = http_call_open(hook->loop, &settings, &handler);
}

static void ask(struct question *q)
{
	struct buf text;

	buf_init(&text, REQUEST_BYTES_MAX);
	if (write_question(&q->call->request, &text) < 0)
		fail(q, WAKE_UNAVAILABLE, "out of memory");
	else
		open_call(q, buf_str(&text));
	buf_fini_wiped(&text); /* it may hold tokens */
}

static void on_resolved(uv_getaddrinfo_t *resolve, int status, struct addrinfo *found)
{
	struct question *q = container_of(resolve, struct question, resolve);

	for (struct addrinfo *at = found;
	     status == 0 && at && q->address_count < PROXY_RESOLVED_MAX; at = at->ai_next) {
		union address *address = &q->addresses[q->address_count];

		if (at->ai_family != AF_INET && at->ai_family != AF_INET6)
			continue;
		memcpy(address, at->ai_addr, size_min(at->ai_addrlen, sizeof(*address)));
		q->address_count++;
	}
	uv_freeaddrinfo(found);
	q->resolving = false;
	if (!q->call)
		free_question(q);
	else if (status < 0)
		fail(q, WAKE_UNAVAILABLE, "its name cannot be resolved");
	else
		ask(q);
}

static void on_later(struct later *later)
{
	static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct question *q = container_of(later, struct question, later);

	if (q->hook->literal.any.sa_family != AF_UNSPEC) {
		q->addresses[q->address_count++] = q->hook->literal;
		ask(q);
	} else if (uv_getaddrinfo(&q->hook->loop->uv, &q->resolve, on_resolved, q->hook->host, NULL,
				  &hints) < 0) {
		fail(q, WAKE_UNAVAILABLE, "its name cannot be resolved");
	} else {
		q->resolving = true;
	}
}

static void start(struct waker *waker, struct wake_call *call)
{
	struct wake_hook *hook = container_of(waker, struct wake_hook, waker);
	struct question *q = xcalloc(1, sizeof(*q));

	q->hook = hook;
	q->call = call;
	call->backend = q;
	hook->questions++;
	alarm_init(&q->alarm, on_alarm);
	alarm_set(hook->loop, &q->alarm, left_ms(q));
	later_init(&q->later, on_later);
	later_call(hook->loop, &q->later);
	log_info("wake", "asking", LOG_S("sandbox", call->request.id),
		 LOG_S("lifecycle", call->request.lifecycle_id));
}

static void cancel(struct waker *waker, struct wake_call *call)
{
	(void)waker;
	drop(call->backend);
}

/* ---- the URL ---- */

static int parse_authority(struct wake_hook *hook, struct str authority)
{
	const char *colon = NULL;
	struct str host = authority;
	uint64_t port = 80;

	for (size_t i = 0; i < authority.len; i++) {
		if (authority.p[i] == ':')
			colon = authority.p + i;
		else if (authority.p[i] == ']')
			colon = NULL;
		else if (authority.p[i] <= ' ' || authority.p[i] == '@' || authority.p[i] >= 0x7f)
			return -EINVAL;
	}
	if (colon) {
		struct str text = {colon + 1, (size_t)(authority.p + authority.len - colon - 1)};

		host.len = (size_t)(colon - authority.p);
		if (str_to_u64(text, 65535, &port) < 0 || port == 0)
			return -EINVAL;
	}
	if (host.len == 0)
		return -EINVAL;
	if (address_parse(host, &hook->literal) < 0) {
		if (host.p[0] == '[')
			return -EINVAL;
		hook->literal.any.sa_family = AF_UNSPEC;
	}
	hook->port = (unsigned)port;
	hook->host = xstrndup(host.p, host.len);
	hook->authority = xstrndup(authority.p, authority.len);
	return 0;
}

static int parse_url(struct wake_hook *hook, struct str url)
{
	static const struct str scheme = STR("http://");
	struct str rest, authority;

	if (!str_starts_with(url, scheme))
		return -EINVAL;
	rest = (struct str){url.p + scheme.len, url.len - scheme.len};
	authority = rest;
	while (authority.len && memchr(authority.p, '/', authority.len))
		authority.len = (size_t)((const char *)memchr(authority.p, '/', authority.len) -
					 authority.p);
	for (size_t i = authority.len; i < rest.len; i++)
		if (rest.p[i] <= ' ' || rest.p[i] >= 0x7f || rest.p[i] == '#')
			return -EINVAL;
	hook->target = rest.len > authority.len
			       ? xstrndup(rest.p + authority.len, rest.len - authority.len)
			       : xstrdup("/");
	return parse_authority(hook, authority);
}

int wake_hook_open(struct loop *loop, const struct wake_hook_config *config,
		   struct wake_hook **ret_hook, struct err *err)
{
	struct wake_hook *hook = xcalloc(1, sizeof(*hook));

	hook->waker = (struct waker){.start = start, .cancel = cancel};
	hook->loop = loop;
	hook->catalog = config->catalog;
	if (*config->token) {
		size_t size = strlen(config->token) + sizeof("Bearer ");

		hook->authorization = xmalloc(size);
		snprintf(hook->authorization, size, "Bearer %s", config->token);
	}
	if (parse_url(hook, str_of(config->url)) < 0) {
		wake_hook_close(hook);
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "%sthe wake-up hook must be given as "
			       "http://host[:port]/path",
			       str_starts_with(str_of(config->url), STR("https://"))
				       ? "https:// is not spoken here (use this machine, a private "
					 "network or "
					 "a TLS tunnel): "
				       : "");
	}
	*ret_hook = hook;
	return 0;
}

struct waker *wake_hook_waker(struct wake_hook *hook)
{
	return &hook->waker;
}

void wake_hook_close(struct wake_hook *hook)
{
	hook->closed = true;
	release_hook(hook);
}
