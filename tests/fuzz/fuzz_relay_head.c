/*
 * Request heads on their way through: what our parser accepts, the relay rewrites and our writer
 * sends is one request again, with the same target and body, one Host, framing of our own, and none
 * of the fields that have to stay behind.
 *
 * Input: a byte of choices, then a request head.
 */
#include "lib/http_parse.h"
#include "lib/http_write.h"
#include "proxy/relay/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
	if (!condition)
		abort();
}

static bool parse(struct arena *arena, const char *text, size_t len,
		  struct http_request *ret_request)
{
	struct http_parser parser;
	struct str body;
	size_t used;

	memset(ret_request, 0, sizeof(*ret_request));
	http_parser_init_request(&parser, arena, ret_request);
	return http_parser_next(&parser, text, len, &used, &body) == HTTP_PARSE_HEAD;
}

static size_t count_of(const struct http_request *request, const char *name)
{
	return http_headers_count(&request->headers, str_of(name));
}

static void check(const struct http_request *before, const struct http_request *after,
		  bool forwarded, bool masked)
{
	static const char *const stay[] = {
		"E2b-Traffic-Access-Token",
		"E2b-Sandbox-Id",
		"E2b-Sandbox-Port",
		"Novita-Sandbox-Id",
		"Novita-Sandbox-Port",
		"Forwarded",
		"Keep-Alive",
		"Proxy-Connection",
		"Proxy-Authorization",
		"Upgrade",
		"HTTP2-Settings",
		"Trailer",
	};

	must(str_equal(before->method, after->method));
	must(str_equal(before->path, after->path));
	must((before->query.p == NULL) == (after->query.p == NULL));
	must(str_equal(before->query, after->query));
	must(before->length == after->length);
	must(after->minor == 1 && !after->keep_alive);
	must(count_of(after, "Host") == 1);
	must(count_of(after, "Connection") == 1);
	must(count_of(after, "Content-Length") + count_of(after, "Transfer-Encoding") <= 1);
	for (size_t i = 0; i < ARRAY_LENGTH(stay); i++)
		must(count_of(after, stay[i]) == 0);
	must(count_of(after, "X-Forwarded-For") == (forwarded ? 1 : 0));
	must(count_of(after, "X-Forwarded-Proto") == (forwarded ? 1 : 0));
	must(count_of(after, "X-Forwarded-Host") == (forwarded || masked ? 1 : 0));
	/* Naming it in Connection does not take it away. */
	must(count_of(after, "Authorization") == count_of(before, "Authorization"));
	must(count_of(after, "Cookie") == count_of(before, "Cookie"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sandbox_entry entry = {.mask_host = ""};
	struct host_name target = {.port = 3000, .id = "abc", .id_len = 3};
	struct http_header items[HEAD_FIELDS_MAX];
	struct http_framing framing = {.connection = STR("close")};
	struct http_request before, after;
	struct head_summary summary;
	struct http_headers fields;
	struct arena arena;
	struct str head, path;

	if (size < 1)
		return 0;
	arena_init(&arena, 4 * HTTP_EXCHANGE_ARENA_BYTES);
	if (data[0] & 1)
		entry.mask_host = "localhost:${PORT}";
	if (!parse(&arena, (const char *)data + 1, size - 1, &before))
		goto out;
	if (!before.authority.len)
		goto out; /* who names no host is not relayed */
	head_summarise(&before, &summary);
	path = head_target(&before, false, &arena);
	must(path.len > 0 && path.p[0] == '/');
	must(head_for_sandbox(&(struct head_request){.request = &before,
						     .target = &target,
						     .entry = &entry,
						     .summary = &summary,
						     .peer = "10.0.0.1:5000",
						     .forwarded_fields = data[0] & 2},
			      &arena, items, &fields) == 0);
	framing.length = before.length;
	must(http_write_request_head(&arena, before.method, path, &fields, &framing, &head) == 0);
	if (fields.count > HTTP_HEADERS_MAX - 3 || head.len > HTTP_HEAD_BYTES_MAX - 1024)
		goto out; /* with what was added it may be more than our own parser takes */
	must(parse(&arena, head.p, head.len, &after));
	check(&before, &after, data[0] & 2, data[0] & 1);
out:
	arena_release(&arena);
	return 0;
}
