#include "envd/gate/cors_http.h"

/* Which response fields a page's script may read. */
#define EXPOSED_HEADERS \
	"Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, Cache-Control, " \
	"X-Content-Type-Options"
#define PREFLIGHT_SECONDS "7200"

static bool is_allowed_method(struct str method)
{
	static const char *const allowed[] = {"HEAD",  "GET",	 "POST",   "PUT",
					      "PATCH", "DELETE", "OPTIONS"};

	for (size_t i = 0; i < ARRAY_LENGTH(allowed); i++)
		if (str_equal(method, str_of(allowed[i])))
			return true;
	return false;
}

static void answer_preflight(struct http_exchange *ex, struct str method)
{
	const struct http_headers *headers = &ex->request.headers;

	http_response_header(
		ex, STR("Vary"),
		STR("Origin, Access-Control-Request-Method, Access-Control-Request-Headers"));
	if (http_headers_get(headers, STR("Origin")).len && is_allowed_method(method)) {
		http_response_header(ex, STR("Access-Control-Allow-Origin"), STR("*"));
		http_response_header(ex, STR("Access-Control-Allow-Methods"), method);
		for (size_t i = 0; i < headers->count; i++) {
			const struct http_header *header = &headers->items[i];

			if (str_equal_nocase(header->name, STR("Access-Control-Request-Headers")) &&
			    header->value.len)
				http_response_header(ex, STR("Access-Control-Allow-Headers"),
						     header->value);
		}
		http_response_header(ex, STR("Access-Control-Max-Age"), STR(PREFLIGHT_SECONDS));
	}
	http_respond(ex, 204, NULL, STR(""));
}

bool cors_apply(struct http_exchange *ex)
{
	const struct http_headers *headers = &ex->request.headers;
	struct str method = http_headers_get(headers, STR("Access-Control-Request-Method"));

	if (str_equal(ex->request.method, STR("OPTIONS")) && method.len) {
		answer_preflight(ex, method);
		return true;
	}
	http_response_header(ex, STR("Vary"), STR("Origin"));
	if (http_headers_get(headers, STR("Origin")).len) {
		http_response_header(ex, STR("Access-Control-Allow-Origin"), STR("*"));
		http_response_header(ex, STR("Access-Control-Expose-Headers"),
				     STR(EXPOSED_HEADERS));
	}
	return false;
}
