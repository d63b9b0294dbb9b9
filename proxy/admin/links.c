#include "proxy/admin/links.h"

#include "lib/json_writer.h"
#include "proxy/limits.h"
#include "proxy/route/access.h"

struct wanted {
	int64_t port, seconds;
	struct str path, base;
};

static int bad(struct err *err, const char *what)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "%s", what);
}

/* Bytes that may stand in a URL as they are. */
static bool is_url_text(struct str text)
{
	for (size_t i = 0; i < text.len; i++)
		if (text.p[i] <= ' ' || text.p[i] >= 0x7f || strchr("\"#<>\\^`{|}", text.p[i]))
			return false;
	return true;
}

static int read_number(const struct json_value *value, int64_t most, int64_t *ret_number)
{
	if (json_type(value) != JSON_INT || json_int(value) < 1 || json_int(value) > most)
		return -EINVAL;
	*ret_number = json_int(value);
	return 0;
}

static int read_entry(struct str key, const struct json_value *value, struct wanted *wanted,
		      struct err *err)
{
	if (str_equal(key, STR("port")))
		return read_number(value, 65535, &wanted->port) < 0 || wanted->port == ENVD_PORT
			       ? bad(err, "port must be within 1 and 65535, and not envd's")
			       : 0;
	if (str_equal(key, STR("seconds")))
		return read_number(value, PROXY_LINK_SECONDS_MAX, &wanted->seconds) < 0
			       ? bad(err, "seconds must be within 1 and a week")
			       : 0;
	if (str_equal(key, STR("path"))) {
		wanted->path = json_string(value);
		return wanted->path.len == 0 || wanted->path.p[0] != '/' ||
				       wanted->path.len > PROXY_LINK_PATH_BYTES_MAX ||
				       !is_url_text(wanted->path)
			       ? bad(err, "path must begin with / and hold what stands in a URL, "
					  "no fragment")
			       : 0;
	}
	if (str_equal(key, STR("base"))) {
		wanted->base = json_string(value);
		return access_is_origin(wanted->base)
			       ? 0
			       : bad(err, "base must be http(s)://domain[:port]");
	}
	return err_set(err, ERR_INVALID_ARGUMENT, "unknown key \"%.*s\"",
		       (int)size_min(key.len, 64), key.p);
}

static int read_wanted(struct str text, struct arena *arena, struct wanted *wanted, struct err *err)
{
	const struct json_value *object;
	int status = json_parse(text, arena, &object, err);

	*wanted = (struct wanted){.seconds = PROXY_LINK_SECONDS, .path = STR("/")};
	if (status < 0)
		return status;
	if (json_type(object) != JSON_OBJECT)
		return bad(err, "the body must be a JSON object");
	for (size_t i = 0; i < json_length(object) && status == 0; i++) {
		struct str key = {0};
		const struct json_value *value = json_entry(object, i, &key);

		status = read_entry(key, value, wanted, err);
	}
	if (status == 0 && !wanted->port)
		return bad(err, "port is missing");
	return status;
}

static int write_link(const struct catalog_record *record, const struct wanted *wanted,
		      const char *credential, int64_t expiry, struct arena *arena, struct buf *b)
{
	struct str base = wanted->base;
	const char *colon = base.p ? (const char *)memchr(base.p, ':', base.len) : NULL;
	size_t scheme = colon ? (size_t)(colon - base.p) + 3 : 0;
	char *parameter = arena_printf(arena, "%s=%s", ACCESS_PARAMETER, credential);
	char *path = parameter ? arena_printf(
					 arena, "%.*s%c%s", (int)wanted->path.len, wanted->path.p,
					 memchr(wanted->path.p, '?', wanted->path.len) ? '&' : '?',
					 parameter)
			       : NULL;
	char *url = NULL;
	struct json_writer w;

	if (!path)
		return -ENOMEM;
	if (base.p) {
		url = arena_printf(arena, "%.*s%lld-%s.%.*s%s", (int)scheme, base.p,
				   (long long)wanted->port, record->entry.id,
				   (int)(base.len - scheme), base.p + scheme, path);
		if (!url)
			return -ENOMEM;
	}
	json_writer_init(&w, b);
	json_writer_object(&w, NULL);
	json_writer_int(&w, "port", wanted->port);
	json_writer_int(&w, "expires_at", expiry);
	json_writer_text(&w, "parameter", str_of(parameter));
	json_writer_text(&w, "path", str_of(path));
	if (url)
		json_writer_text(&w, "url", str_of(url));
	return json_writer_end_line(&w);
}

int links_write(const struct catalog_record *record, struct str text, int64_t now,
		struct arena *arena, struct buf *b, struct err *err)
{
	struct access_scope scope = {
		.token = str_of(record->entry.traffic_token),
		.id = str_of(record->entry.id),
	};
	char credential[ACCESS_TEXT_BYTES];
	struct wanted wanted;
	int status = read_wanted(text, arena, &wanted, err);

	if (status < 0)
		return status;
	if (!*record->entry.traffic_token)
		return err_set(err, ERR_FAILED_PRECONDITION,
			       "the sandbox's ports are public: no link is needed");
	scope.port = (unsigned)wanted.port;
	access_sign(ACCESS_LINK, &scope, now + wanted.seconds, credential);
	status = write_link(record, &wanted, credential, now + wanted.seconds, arena, b);
	wipe(credential, sizeof(credential));
	return status < 0 ? err_set(err, ERR_RESOURCE_EXHAUSTED, "out of memory") : 0;
}
