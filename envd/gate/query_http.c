#include "envd/gate/query_http.h"

#include "lib/err.h"

static void refuse(struct http_exchange *ex, const char *message)
{
	http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
	http_respond(ex, 400, "text/plain; charset=utf-8", str_of(message ? message : ""));
}

bool query_read(struct http_exchange *ex, const char *name, struct str *ret_value)
{
	int count = http_query_get(ex->request.query, str_of(name), &ex->arena, ret_value);

	if (count < 0) {
		http_respond_error(ex, 500, "query: %s", errno_text(count));
		return false;
	}
	if (count <= 1)
		return true;
	refuse(ex, arena_printf(&ex->arena,
				"Invalid format for parameter %s: multiple values for single "
				"value parameter '%s'\n",
				name, name));
	return false;
}

static int parse(struct str text, int64_t *ret_value)
{
	bool is_negative = text.len && *text.p == '-';
	uint64_t magnitude;
	int status;

	if (text.len && (*text.p == '-' || *text.p == '+'))
		text = (struct str){text.p + 1, text.len - 1};
	status = str_to_u64(text, (uint64_t)INT64_MAX + is_negative, &magnitude);
	if (status < 0)
		return status;
	*ret_value = is_negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
	return 0;
}

bool query_read_integer(struct http_exchange *ex, const char *name, int64_t *ret_value,
			bool *ret_given)
{
	struct str text;
	int status;

	if (!query_read(ex, name, &text))
		return false;
	*ret_given = text.p != NULL;
	if (!text.p)
		return true;
	status = parse(text, ret_value);
	if (status == 0)
		return true;
	refuse(ex, arena_printf(&ex->arena,
				"Invalid format for parameter %s: error binding string parameter: "
				"strconv.ParseInt: parsing \"%.*s\": %s\n",
				name, (int)size_min(text.len, 64), text.p,
				status == -ERANGE ? "value out of range" : "invalid syntax"));
	return false;
}
