#include "proxy/sources/redis_url.h"

#define PORT_DEFAULT 6379
/* Redis has 16 unless configured otherwise. */
#define DB_MAX 65535

static int wrong(struct err *err, const char *what)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "%s", what);
}

/* Percent-decodes; refuses what would not fit and NUL. */
static int decode(struct str text, char *ret_text, size_t size)
{
	size_t len = 0;

	for (size_t i = 0; i < text.len; i++) {
		int c = (unsigned char)text.p[i];

		if (c == '%') {
			int high = i + 2 < text.len ? hex_digit(text.p[i + 1]) : -1;
			int low = i + 2 < text.len ? hex_digit(text.p[i + 2]) : -1;

			if (high < 0 || low < 0)
				return -EINVAL;
			c = high << 4 | low;
			i += 2;
		}
		if (c == 0 || len + 1 >= size)
			return -EINVAL;
		ret_text[len++] = (char)c;
	}
	ret_text[len] = '\0';
	return 0;
}

/* Cuts "user:password@" off the front of *rest. */
static int take_credentials(struct str *rest, struct redis_url *url, struct err *err)
{
	struct str end = *rest, user;
	const char *slash = memchr(rest->p, '/', rest->len), *at = NULL, *colon;

	if (slash)
		end.len = (size_t)(slash - rest->p);
	for (size_t i = 0; i < end.len; i++)
		if (end.p[i] == '@')
			at = end.p + i;
	if (!at)
		return 0;
	user = (struct str){rest->p, (size_t)(at - rest->p)};
	colon = memchr(user.p, ':', user.len);
	if (!colon)
		return wrong(err, "before the @ of a Redis URL stands user:password or :password");
	user.len = (size_t)(colon - user.p);
	if (decode(user, url->user, sizeof(url->user)) < 0 ||
	    decode((struct str){colon + 1, (size_t)(at - colon - 1)}, url->password,
		   sizeof(url->password)) < 0)
		return wrong(err,
			     "the user or password of the Redis URL is too long or badly encoded");
	rest->len -= (size_t)(at + 1 - rest->p);
	rest->p = at + 1;
	return 0;
}

static int read_db(struct str text, struct redis_url *url, struct err *err)
{
	uint64_t db;

	if (str_to_u64(text, DB_MAX, &db) < 0)
		return wrong(err, "the database of a Redis URL is a number");
	url->db = (unsigned)db;
	return 0;
}

static int copy(struct str text, char *ret_text, size_t size)
{
	if (text.len == 0 || text.len >= size)
		return -EINVAL;
	for (size_t i = 0; i < text.len; i++)
		if (text.p[i] <= ' ' || text.p[i] == 0x7f)
			return -EINVAL;
	memcpy(ret_text, text.p, text.len);
	ret_text[text.len] = '\0';
	return 0;
}

static int read_unix(struct str rest, struct redis_url *url, struct err *err)
{
	static const struct str prefix = STR("?db=");
	const char *query = memchr(rest.p, '?', rest.len);

	if (query) {
		struct str db = {query, rest.len - (size_t)(query - rest.p)};
		int status = -EINVAL;

		if (str_starts_with(db, prefix))
			status = read_db((struct str){db.p + prefix.len, db.len - prefix.len}, url,
					 err);
		else
			wrong(err, "a unix Redis URL takes ?db=N and nothing else");
		if (status < 0)
			return status;
		rest.len = (size_t)(query - rest.p);
	}
	if (rest.len == 0 || rest.p[0] != '/' || copy(rest, url->path, sizeof(url->path)) < 0)
		return wrong(err, "a unix Redis URL needs the absolute path of a socket");
	return 0;
}

static bool is_host(struct str host)
{
	for (size_t i = 0; i < host.len; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%",
			    host.p[i]))
			return false;
	return host.len > 0;
}

static int read_tcp(struct str rest, struct redis_url *url, struct err *err)
{
	const char *slash = memchr(rest.p, '/', rest.len);
	struct str host = rest, port = {0};
	uint64_t number = PORT_DEFAULT;
	const char *end;

	if (slash) {
		struct str db = {slash + 1, rest.len - (size_t)(slash + 1 - rest.p)};

		host.len = (size_t)(slash - rest.p);
		if (db.len > 0 && read_db(db, url, err) < 0)
			return -EINVAL;
	}
	if (host.len > 0 && host.p[0] == '[') {
		end = memchr(host.p, ']', host.len);
		if (!end)
			return wrong(err, "the host of the Redis URL has no closing bracket");
		port = (struct str){end + 1, host.len - (size_t)(end + 1 - host.p)};
		host = (struct str){host.p + 1, (size_t)(end - host.p - 1)};
	} else {
		end = memchr(host.p, ':', host.len);
		if (end) {
			port = (struct str){end, host.len - (size_t)(end - host.p)};
			host.len = (size_t)(end - host.p);
		}
	}
	if (port.len > 0 &&
	    (port.p[0] != ':' ||
	     str_to_u64((struct str){port.p + 1, port.len - 1}, 65535, &number) < 0 || number == 0))
		return wrong(err, "the port of the Redis URL is not one");
	if (!is_host(host) || copy(host, url->host, sizeof(url->host)) < 0)
		return wrong(err, "the host of the Redis URL is neither an address nor a name");
	url->port = (unsigned)number;
	return 0;
}

int redis_url_parse(struct str text, struct redis_url *ret_url, struct err *err)
{
	static const struct str tcp = STR("redis://"), local = STR("unix://");
	bool is_local = str_starts_with(text, local);
	struct str rest;
	int status;

	memset(ret_url, 0, sizeof(*ret_url));
	if (str_starts_with(text, STR("rediss://")))
		return wrong(
			err,
			"rediss:// is not spoken here: use a unix socket, a private network or "
			"a TLS tunnel");
	if (!is_local && !str_starts_with(text, tcp))
		return wrong(err, "a Redis URL begins with redis:// or unix://");
	rest = is_local ? (struct str){text.p + local.len, text.len - local.len}
			: (struct str){text.p + tcp.len, text.len - tcp.len};
	status = take_credentials(&rest, ret_url, err);
	if (status == 0)
		status = is_local ? read_unix(rest, ret_url, err) : read_tcp(rest, ret_url, err);
	if (status < 0)
		wipe(ret_url, sizeof(*ret_url));
	return status;
}
