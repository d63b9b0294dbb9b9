#include "envd/cli/target.h"

#include <netdb.h>

#include "envd/rpc/base64.h"
#include "lib/tls/tls_client.h"

#define PORT_DEFAULT "49983"
#define URL_DEFAULT "http://127.0.0.1:" PORT_DEFAULT
#define TARGET_ARENA_BYTES (256 * 1024)

void target_init(struct target *target)
{
	*target = (struct target){0};
	loop_init(&target->loop);
	arena_init(&target->arena, TARGET_ARENA_BYTES);
}

static const char *from_environment(const char *given, const char *name)
{
	const char *value = given ? given : getenv(name);

	return value && *value ? value : NULL;
}

static bool is_plain(struct str s)
{
	for (size_t i = 0; i < s.len; i++)
		if ((unsigned char)s.p[i] <= ' ' || (unsigned char)s.p[i] >= 0x7f)
			return false;
	return s.len > 0;
}

/* `what`: what the user calls it. */
static int add_field(struct target *target, struct str name, const char *what, struct str value,
		     struct err *err)
{
	if (!is_plain(value))
		return err_set(
			err, ERR_INVALID_ARGUMENT,
			"%s: blanks, control characters and what is not ASCII cannot be sent",
			what);
	if (http_headers_add(&target->fields, &target->arena, name, value) < 0)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "%s is too long", what);
	return 0;
}

/* "Basic <user>:", as the SDKs have it (contract/sdk.md 1.2). */
static int add_user(struct target *target, struct err *err)
{
	char *plain = arena_printf(&target->arena, "%s:", target->user);
	size_t len = plain ? strlen(plain) : 0;
	char *text = plain ? arena_alloc(&target->arena,
					 sizeof("Basic ") + base64_encoded_length(len))
			   : NULL;

	if (!text)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "the user's name is too long");
	memcpy(text, "Basic ", 6);
	base64_encode(plain, len, text + 6);
	/* The blank is ours. */
	if (http_headers_add(&target->fields, &target->arena, STR("Authorization"), str_of(text)) <
	    0)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "the user's name is too long");
	return 0;
}

static int add_fields(struct target *target, struct err *err)
{
	const char *token = from_environment(NULL, "ENVD_ACCESS_TOKEN");
	int status = http_headers_add(&target->fields, &target->arena, STR("Host"),
				      target->authority);

	if (status < 0)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "the URL is too long");
	if (target->user && (status = add_user(target, err)) < 0)
		return status;
	if (token && (status = add_field(target, STR("X-Access-Token"), "ENVD_ACCESS_TOKEN",
					 str_of(token), err)) < 0)
		return status;
	if (!target->sandbox)
		return 0;
	status = add_field(target, STR("E2b-Sandbox-Id"), "the sandbox's id",
			   str_of(target->sandbox), err);
	return status < 0 ? status
			  : add_field(target, STR("E2b-Sandbox-Port"), "its port",
				      STR(PORT_DEFAULT), err);
}

static bool is_port(const char *text)
{
	size_t len = strlen(text);

	return len >= 1 && len <= 5 && strspn(text, "0123456789") == len &&
	       strtol(text, NULL, 10) >= 1 && strtol(text, NULL, 10) <= 65535;
}

/* "host", "host:port", "[v6]:port" into two texts. */
static int split_authority(struct target *target, struct str authority, const char **ret_host,
			   const char **ret_port, struct err *err)
{
	struct str host = authority, port = {NULL, 0};
	const char *colon = authority.len ? memchr(authority.p, ':', authority.len) : NULL;

	if (authority.len && authority.p[0] == '[') {
		const char *end = memchr(authority.p, ']', authority.len);

		if (!end)
			return err_set(err, ERR_INVALID_ARGUMENT, "the URL's host lacks a ']'");
		host = (struct str){authority.p + 1, (size_t)(end - authority.p) - 1};
		colon = end + 1 < authority.p + authority.len ? end + 1 : NULL;
		if (colon && *colon != ':')
			return err_set(err, ERR_INVALID_ARGUMENT, "the URL's port is not a number");
	} else if (colon) {
		host.len = (size_t)(colon - authority.p);
	}
	if (colon)
		port = (struct str){colon + 1, (size_t)(authority.p + authority.len - colon) - 1};
	*ret_host = arena_strndup(&target->arena, host.p, host.len);
	*ret_port = colon		? arena_strndup(&target->arena, port.p, port.len)
		    : target->is_secure ? "443"
					: "80";
	if (!host.len || !*ret_host || !*ret_port || !is_plain(authority) ||
	    memchr(authority.p, '@', authority.len))
		return err_set(err, ERR_INVALID_ARGUMENT, "the URL names no host");
	if (!is_port(*ret_port))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "%s: the port is no number from 1 to 65535", target->url);
	return 0;
}

/* The host and port of http://host:port/ and of what else people write. */
static int read_url(struct target *target, struct err *err)
{
	struct str rest = str_of(target->url);

	target->is_secure = str_starts_with(rest, STR("https://"));
	if (target->is_secure || str_starts_with(rest, STR("http://"))) {
		str_skip(&rest, target->is_secure ? 8 : 7);
	} else if (strstr(target->url, "://")) {
		return err_set(err, ERR_INVALID_ARGUMENT, "%s is not an http:// or https:// URL",
			       target->url);
	}
	if (rest.len && rest.p[rest.len - 1] == '/')
		rest.len--;
	if (rest.len && memchr(rest.p, '/', rest.len))
		return err_set(err, ERR_INVALID_ARGUMENT, "%s: only a host can be given, no path",
			       target->url);
	target->authority = rest;
	return split_authority(target, rest, &target->host, &target->port, err);
}

int target_open(struct target *target, struct err *err)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	int status;

	target->url = from_environment(target->url, "ENVD_URL");
	target->sandbox = from_environment(target->sandbox, "ENVD_SANDBOX");
	target->user = from_environment(target->user, "ENVD_USER");
	if (!target->url)
		target->url = URL_DEFAULT;
	status = read_url(target, err);
	if (status == 0)
		status = add_fields(target, err);
	if (status == 0 && target->is_secure)
		status = tls_client_new(target->host, &target->tls, err);
	if (status < 0)
		return status;
	/* Every name below localhost is this machine (RFC 6761 section 6.3), whatever the resolver
	 * says. */
	if (str_ends_with(str_of(target->host), STR(".localhost")))
		target->host = "localhost";
	status = getaddrinfo(target->host, target->port, &hints, &target->addresses);
	if (status == EAI_NONAME)
		return err_set(err, ERR_UNAVAILABLE, "%s: there is no host of that name",
			       target->url);
	if (status == EAI_AGAIN)
		return err_set(err, ERR_UNAVAILABLE, "%s: no name server answers", target->url);
	if (status != 0)
		return err_set(err, ERR_UNAVAILABLE, "%s: %s", target->url,
			       status == EAI_SYSTEM ? errno_text(errno) : gai_strerror(status));
	return 0;
}

void target_run(struct target *target)
{
	loop_run(&target->loop);
}

void target_fini(struct target *target)
{
	if (target->addresses)
		freeaddrinfo(target->addresses);
	arena_release_wiped(&target->arena);
	loop_fini(&target->loop);
	if (target->tls)
		tls_client_free(target->tls);
}
