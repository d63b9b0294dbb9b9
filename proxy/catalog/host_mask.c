#include "proxy/catalog/host_mask.h"

#include "proxy/catalog/catalog.h"

static const struct str placeholder = STR("${PORT}");

/* The mask for that port (0: for all that have none of their own); {NULL, 0} when there is none,
 * empty when the port is exempt. */
static struct str find(const char *masks, unsigned port)
{
	struct str rest = str_of(masks), item, for_others = {0};

	while (str_split(&rest, ';', &item)) {
		const char *equals = memchr(item.p, '=', item.len);
		struct str number = {item.p, equals ? (size_t)(equals - item.p) : 0};

		if (!equals) {
			for_others = item;
		} else if (port && host_name_port(number) == port) {
			str_skip(&item, number.len + 1);
			return item;
		}
	}
	return for_others;
}

bool host_mask_covers(const char *masks, unsigned port)
{
	return *masks && port != ENVD_PORT && find(masks, port).len > 0;
}

/* Of a text of at most CATALOG_TEXT_BYTES_MAX, which gets no longer. */
static size_t expand(struct str mask, unsigned port, char ret_host[CATALOG_TEXT_BYTES_MAX + 1])
{
	size_t len = 0;

	while (mask.len && len < CATALOG_TEXT_BYTES_MAX) {
		if (str_starts_with(mask, placeholder)) {
			len += (size_t)snprintf(ret_host + len, CATALOG_TEXT_BYTES_MAX + 1 - len,
						"%u", port);
			str_skip(&mask, placeholder.len);
		} else {
			ret_host[len++] = mask.p[0];
			str_skip(&mask, 1);
		}
	}
	return size_min(len, CATALOG_TEXT_BYTES_MAX);
}

static struct str without_suffix(struct str text, struct str suffix)
{
	if (str_ends_with(text, suffix))
		text.len -= suffix.len;
	return text;
}

struct str host_mask_apply(const char *masks, unsigned port, struct arena *arena)
{
	char host[CATALOG_TEXT_BYTES_MAX + 1];
	struct str expanded = {host, expand(find(masks, port), port, host)};

	/* A browser does not say "localhost:80", and servers that compare Origin with Host expect
	 * the same of both. */
	return arena_str(arena, without_suffix(expanded, STR(":80")));
}

/* ---- what may be said ---- */

static bool is_name(struct str name)
{
	for (size_t i = 0; i < name.len; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._",
			    name.p[i]))
			return false;
	return name.len > 0 && name.p[0] != '.';
}

/* NAME, IPv4 or [IPv6], and perhaps a port. */
static bool is_host(struct str host)
{
	struct str name = host_name_without_port(host), inner;
	union address address;

	if (name.len < host.len &&
	    !host_name_port((struct str){host.p + name.len + 1, host.len - name.len - 1}))
		return false;
	if (name.len < 2 || name.p[0] != '[')
		return is_name(name);
	inner = (struct str){name.p + 1, name.len - 2};
	return name.p[name.len - 1] == ']' && address_parse(inner, &address) == 0 &&
	       address.any.sa_family == AF_INET6;
}

static int refuse(struct str item, const char *reason, struct err *err)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "mask \"%.*s\": %s", (int)size_min(item.len, 64),
		       item.p, reason);
}

static int check_item(struct str item, const char *masks, struct err *err)
{
	const char *equals = memchr(item.p, '=', item.len);
	struct str number = {item.p, equals ? (size_t)(equals - item.p) : 0};
	unsigned port = host_name_port(number);
	char host[CATALOG_TEXT_BYTES_MAX + 1];
	struct str mask = item;

	if (equals) {
		if (!port)
			return refuse(item, "before \"=\" stands a port from 1 to 65535", err);
		if (port == ENVD_PORT)
			return refuse(item, "the port of envd is never masked", err);
		str_skip(&mask, number.len + 1);
	}
	if (find(masks, equals ? port : 0).p != mask.p)
		return refuse(item,
			      equals ? "this port has another mask already"
				     : "there is another one for all ports",
			      err);
	if (equals && !mask.len)
		return 0;
	if (!is_host((struct str){host, expand(mask, 65535, host)}))
		return refuse(item,
			      "a mask is HOST or HOST:PORT, in which ${PORT} stands for the port",
			      err);
	return 0;
}

int host_mask_check(const char *masks, struct err *err)
{
	struct str rest = str_of(masks), item;

	if (strlen(masks) > CATALOG_TEXT_BYTES_MAX)
		return refuse(rest, "too long", err);
	while (*masks && str_split(&rest, ';', &item)) {
		int status = check_item(item, masks, err);

		if (status < 0)
			return status;
	}
	return 0;
}

/* ---- the server's own page ---- */

static bool is_end_of_origin(struct str rest)
{
	return rest.len == 0 || rest.p[0] == '/' || rest.p[0] == '?' || rest.p[0] == '#';
}

static bool equals_lowered(struct str text, struct str other)
{
	if (!str_equal_nocase(text, other))
		return false;
	for (size_t i = 0; i < text.len; i++)
		if (text.p[i] >= 'A' && text.p[i] <= 'Z')
			return false;
	return true;
}

static size_t origin_of(struct str url, struct str scheme, struct str host)
{
	size_t len = scheme.len + host.len;

	return str_starts_with(url, scheme) && url.len >= len && host.len > 0 &&
			       equals_lowered((struct str){url.p + scheme.len, host.len}, host) &&
			       is_end_of_origin((struct str){url.p + len, url.len - len})
		       ? len
		       : 0;
}

size_t host_mask_own_origin(struct str url, struct str authority, bool secure)
{
	struct str host = without_suffix(authority, STR(":"));
	size_t len = origin_of(url, STR("https://"), without_suffix(host, STR(":443")));

	return len || secure ? len
			     : origin_of(url, STR("http://"), without_suffix(host, STR(":80")));
}

size_t host_mask_masked_origin(struct str url, struct str host)
{
	size_t len = origin_of(url, STR("http://"), host);

	return len ? len : origin_of(url, STR("https://"), host);
}
