#include "envd/host/log_delivery_http.h"

#include <arpa/inet.h>

#include "envd/limits.h"
#include "lib/http_call.h"
#include "lib/json_writer.h"

#define HTTP_PORT 80
/* Two ids, of which every byte may become an escape. */
#define SUFFIX_BYTES_MAX (16 * METADATA_BYTES_MAX)
/* The closing brace and the newline of a line; the suffix brings its own brace. */
#define LINE_END_BYTES 2

struct log_delivery {
	struct http_call *call;
	void (*on_done)(void *user, int status);
	void *user;
};

/* ---- where to ---- */

static bool is_target_text(struct str text)
{
	for (size_t i = 0; i < text.len; i++)
		if ((unsigned char)text.p[i] <= 0x20 || (unsigned char)text.p[i] >= 0x7f)
			return false;
	return true;
}

static int port_of(struct str text, uint64_t *ret_port)
{
	return str_to_u64((struct str){text.p + 1, text.len - 1}, UINT16_MAX, ret_port);
}

/* An address, in brackets if it is one of version 6, and perhaps ":" and a port. */
static bool parse_authority(struct str authority, struct sockaddr_storage *ret_address)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)ret_address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ret_address;
	bool is_v6 = authority.len > 0 && authority.p[0] == '[';
	const char *end = is_v6 ? memchr(authority.p, ']', authority.len)
				: memchr(authority.p, ':', authority.len);
	size_t host_len = end ? (size_t)(end - authority.p) : authority.len;
	struct str rest;
	char host[INET6_ADDRSTRLEN];
	uint64_t port = HTTP_PORT;

	if (is_v6 && !end)
		return false;
	rest = (struct str){authority.p + host_len + is_v6, authority.len - host_len - is_v6};
	if (rest.len > 0 && (rest.p[0] != ':' || port_of(rest, &port) < 0 || port == 0))
		return false;
	if (host_len - is_v6 >= sizeof(host))
		return false;
	snprintf(host, sizeof(host), "%.*s", (int)(host_len - is_v6), authority.p + is_v6);
	memset(ret_address, 0, sizeof(*ret_address));
	if (is_v6) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)port);
		return inet_pton(AF_INET6, host, &v6->sin6_addr) == 1;
	}
	v4->sin_family = AF_INET;
	v4->sin_port = htons((uint16_t)port);
	return inet_pton(AF_INET, host, &v4->sin_addr) == 1;
}

static void clear_target(struct log_target *target)
{
	free(take_ptr(&target->authority));
	free(take_ptr(&target->path));
}

static bool set_address(struct log_target *target, struct str address)
{
	static const char scheme[] = "http://";
	struct str rest = address, authority;
	const char *slash;

	if (address.len > LOG_EXPORT_ADDRESS_BYTES_MAX || !is_target_text(address) ||
	    address.len < strlen(scheme) || strncasecmp(address.p, scheme, strlen(scheme)) != 0)
		return false;
	str_skip(&rest, strlen(scheme));
	slash = memchr(rest.p, '/', rest.len);
	authority = (struct str){rest.p, slash ? (size_t)(slash - rest.p) : rest.len};
	if (!parse_authority(authority, &target->address))
		return false;
	target->authority = xstrndup(authority.p, authority.len);
	target->path = slash ? xstrndup(slash, rest.len - authority.len) : xstrdup("/");
	return true;
}

static int set_ids(struct log_target *target, const char *sandbox_id, const char *template_id)
{
	struct json_writer w;

	buf_clear(&target->suffix);
	json_writer_init(&w, &target->suffix);
	w.needs_comma = true; /* it ends an object that has members */
	json_writer_text(&w, "instanceID", str_of(sandbox_id));
	json_writer_text(&w, "envID", str_of(template_id));
	json_writer_object_end(&w);
	return json_writer_status(&w);
}

void log_target_init(struct log_target *target)
{
	*target = (struct log_target){0};
	buf_init(&target->suffix, SUFFIX_BYTES_MAX);
}

void log_target_fini(struct log_target *target)
{
	clear_target(target);
	buf_fini(&target->suffix);
}

int log_target_set(struct log_target *target, const char *address, const char *sandbox_id,
		   const char *template_id)
{
	int status;

	clear_target(target);
	if (!set_address(target, str_of(address)))
		return -EINVAL;
	status = set_ids(target, sandbox_id, template_id);
	if (status < 0)
		clear_target(target);
	return status;
}

/* ---- one delivery ---- */

void log_delivery_close(struct log_delivery *delivery)
{
	http_call_close(delivery->call);
	free(delivery);
}

/* What else the collector has to say is of no interest. */
static void finish(struct log_delivery *delivery, int status)
{
	void (*on_done)(void *user, int status) = delivery->on_done;
	void *user = delivery->user;

	/* First, as the next one may begin in the callback. */
	log_delivery_close(delivery);
	on_done(user, status);
}

static void on_response(struct http_call *call, const struct http_response *response)
{
	finish(http_call_user(call),
	       response->status >= 200 && response->status < 300 ? 0 : -EPERM);
}

static void on_call_done(struct http_call *call, int status)
{
	finish(http_call_user(call), status);
}

struct log_delivery *log_delivery_open(struct loop *loop, const struct log_target *target,
				       struct str line, void (*on_done)(void *user, int status),
				       void *user)
{
	static const struct http_call_handler handler = {
		.on_response = on_response,
		.on_done = on_call_done,
	};
	struct log_delivery *delivery = xcalloc(1, sizeof(*delivery));
	const struct sockaddr *address = (const struct sockaddr *)&target->address;
	const struct iovec pieces[] = {
		{.iov_base = (void *)(uintptr_t)line.p, .iov_len = line.len - LINE_END_BYTES},
		{.iov_base = (void *)(uintptr_t)buf_data(&target->suffix),
		 .iov_len = buf_length(&target->suffix)},
	};
	const struct http_header headers[] = {
		{STR("Host"), str_of(target->authority)},
		{STR("Content-Type"), STR("application/json")},
	};
	const struct http_call_settings settings = {
		.addresses = &address,
		.address_count = 1,
		.deadline_ms = LOG_EXPORT_REQUEST_MS,
		.method = STR("POST"),
		.target = str_of(target->path),
		.headers = headers,
		.header_count = ARRAY_LENGTH(headers),
		.body = pieces,
		.body_count = ARRAY_LENGTH(pieces),
		.user = delivery,
	};

	delivery->on_done = on_done;
	delivery->user = user;
	delivery->call = http_call_open(loop, &settings, &handler);
	return delivery;
}
