#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/relay/head.h"

struct fixture {
	struct arena arena;
	struct http_request request;
	struct host_name target;
	struct sandbox_entry entry;
	struct head_summary summary;
	struct head_request head;
	struct http_header items[HEAD_FIELDS_MAX];
	struct http_headers out;
};

static int set_up(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	arena_init(&f->arena, 256 * 1024);
	f->request.method = STR("GET");
	f->request.target = f->request.path = STR("/");
	f->request.authority = STR("3000-abc.d:80");
	f->entry = (struct sandbox_entry){.id = "abc", .mask_host = "", .traffic_token = ""};
	f->target.port = 3000;
	memcpy(f->target.id, "abc", 4);
	f->head = (struct head_request){
		.request = &f->request,
		.target = &f->target,
		.entry = &f->entry,
		.summary = &f->summary,
		.peer = "10.1.2.3:5555",
	};
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	arena_release(&f->arena);
	free(f);
	return 0;
}

static void add(struct fixture *f, const char *name, const char *value)
{
	assert_int_equal(
		http_headers_add(&f->request.headers, &f->arena, str_of(name), str_of(value)), 0);
}

/* The fields as "name: value|name: value". */
static const char *run(struct fixture *f)
{
	static char text[8192];
	size_t len = 0;

	head_summarise(&f->request, &f->summary);
	assert_int_equal(head_for_sandbox(&f->head, &f->arena, f->items, &f->out), 0);
	for (size_t i = 0; i < f->out.count; i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%.*s: %.*s",
					i ? "|" : "", (int)f->out.items[i].name.len,
					f->out.items[i].name.p, (int)f->out.items[i].value.len,
					f->out.items[i].value.p);
	return text;
}

static void s047_hop_by_hop_fields(void **state)
{
	struct fixture *f = *state;

	add(f, "host", "3000-abc.d:80");
	add(f, "X-One", "1");
	add(f, "Connection",
	    "keep-alive, X-One, , x-two,Authorization, Cookie, Host, Content-Length");
	add(f, "X-Two", "2");
	add(f, "X-Two", "3");
	add(f, "Authorization", "Bearer x");
	add(f, "Cookie", "a=b");
	add(f, "Content-Length", "5");
	add(f, "Keep-Alive", "timeout=5");
	add(f, "Proxy-Connection", "keep-alive");
	add(f, "Proxy-Authorization", "Basic secret");
	add(f, "Proxy-Authenticate", "Basic");
	add(f, "TE", "deflate, Trailers");
	add(f, "Trailer", "X-Sum");
	add(f, "Transfer-Encoding", "chunked");
	add(f, "Upgrade", "websocket");
	add(f, "HTTP2-Settings", "AAMAAABkAAQ");
	add(f, "Expect", "100-continue");
	add(f, "Accept", "*/*");
	assert_string_equal(run(f), "Host: 3000-abc.d:80|Authorization: Bearer x|Cookie: a=b|"
				    "Accept: */*|TE: trailers");
	assert_true(f->summary.has_length);
	f->head.expect_continue = true;
	assert_non_null(strstr(run(f), "|Expect: 100-continue"));
}

static void case_164_platform_fields_end_here(void **state)
{
	struct fixture *f = *state;

	add(f, "E2B-Traffic-Access-Token", "t");
	add(f, "e2b-sandbox-id", "abc");
	add(f, "Novita-Sandbox-Id", "abc");
	add(f, "NOVITA-SANDBOX-PORT", "1");
	add(f, "E2b-Sandbox-Port", "80");
	add(f, "E2b-Sandbox-Portx", "kept");
	add(f, "X-Access-Token", "kept");
	assert_string_equal(run(f),
			    "Host: 3000-abc.d:80|E2b-Sandbox-Portx: kept|X-Access-Token: kept");
	assert_int_equal(f->summary.traffic_tokens, 1);
	assert_true(str_equal(f->summary.traffic_token, STR("t")));
	assert_true(str_equal(f->summary.routing.e2b_id, STR("abc")));
	assert_true(str_equal(f->summary.routing.novita_port, STR("1")));
}

static void case_164_own_cookies_and_parameters_end_here(void **state)
{
	struct fixture *f = *state;

	add(f, "Cookie", "a=b;  sandbox-access=v1.1.aa; c=\"d\"");
	add(f, "cookie", "__Host-sandbox-access=v1.1.aa");
	add(f, "Cookie", "sandbox-accessx=kept; xsandbox-access=kept");
	assert_string_equal(run(f), "Host: 3000-abc.d:80|Cookie: a=b; c=\"d\"|"
				    "Cookie: sandbox-accessx=kept; xsandbox-access=kept");
	f->request.target = STR("/p?a=%20&sandbox_access=x&b");
	f->request.path = STR("/p");
	f->request.query = STR("a=%20&sandbox_access=x&b");
	assert_true(str_equal(head_target(&f->request, true, &f->arena), STR("/p?a=%20&b")));
	/* What is public has no such parameter: this one is the app's. */
	assert_true(str_equal(head_target(&f->request, false, &f->arena), f->request.target));
	add(f, "Referer", "https://3000-abc.d/?sandbox_access=v1.1.aa");
	assert_non_null(strstr(run(f), "Referer"));
	f->entry.traffic_token = "t";
	assert_null(strstr(run(f), "Referer"));
	f->request.query = STR("sandbox_access=x");
	assert_true(str_equal(head_target(&f->request, true, &f->arena), STR("/p")));
}

static void case_163_s092_forwarded_fields(void **state)
{
	struct fixture *f = *state;

	add(f, "X-Forwarded-For", "6.6.6.6");
	add(f, "Forwarded", "for=6.6.6.6");
	add(f, "X-Forwarded-Proto", "gopher");
	add(f, "X-Forwarded-Host", "evil");
	add(f, "Via", "1.1 front");
	assert_string_equal(run(f), "Host: 3000-abc.d:80|Via: 1.1 front");
	f->head.forwarded_fields = true;
	assert_string_equal(run(f), "Host: 3000-abc.d:80|Via: 1.1 front|X-Forwarded-For: 10.1.2.3|"
				    "X-Forwarded-Proto: http|X-Forwarded-Host: 3000-abc.d:80");
	f->head.peer = "[fd00::1]:99";
	assert_non_null(strstr(run(f), "|X-Forwarded-For: fd00::1|"));
}

static void s068_what_the_sandbox_sees_as_host(void **state)
{
	struct fixture *f = *state;

	f->entry.mask_host = "${PORT}.localhost:${PORT}";
	assert_string_equal(run(f), "Host: 3000.localhost:3000|X-Forwarded-Host: 3000-abc.d:80");
	f->target.port = 49983; /* envd is never masked */
	assert_string_equal(run(f), "Host: 3000-abc.d:80");
	f->entry.mask_host = "";
	f->target.port = 3000;
	f->request.authority = STR("sandbox.d.e:81");
	f->target.domain = STR("d.e:81");
	assert_string_equal(run(f), "Host: 3000-abc.d.e:81");
	f->entry.mask_host = "plain";
	assert_string_equal(run(f), "Host: plain|X-Forwarded-Host: sandbox.d.e:81");
}

static void s048_upgrade_tokens(void **state)
{
	static const struct {
		const char *asked, *kept;
	} rows[] = {
		{"websocket", "websocket"},
		{"WebSocket, foo/2", "WebSocket, foo/2"},
		{"h2c", NULL},
		{"H2C, websocket", "websocket"},
		{"foo,h2c,bar , TLS/1.2, HTTP/2.0, h2", "foo, bar"},
		{"", NULL},
		{" , ", NULL},
		{"h2cx", "h2cx"},
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct str kept = head_upgrade(str_of(rows[i].asked), &f->arena);

		if (!rows[i].kept)
			assert_null(kept.p);
		else
			assert_true(str_equal(kept, str_of(rows[i].kept)));
	}
}

static void targets_in_origin_form(void **state)
{
	static const struct {
		const char *target, *path, *query, *expected;
	} rows[] = {
		{"/a?b", "/a", "b", "/a?b"},
		{"//a", "//a", NULL, "//a"},
		{"http://h/a?b=%zz;", "/a", "b=%zz;", "/a?b=%zz;"},
		{"http://h", "", NULL, "/"},
		{"http://h?x", "", "x", "/?x"},
		{"http://h/", "/", NULL, "/"},
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		f->request.target = str_of(rows[i].target);
		f->request.path = str_of(rows[i].path);
		f->request.query = str_of(rows[i].query);
		assert_true(str_equal(head_target(&f->request, false, &f->arena),
				      str_of(rows[i].expected)));
	}
}

static void s041_trailers(void **state)
{
	struct http_header items[] = {
		{STR("Grpc-Status"), STR("0")},	      {STR("Content-Length"), STR("5")},
		{STR("Transfer-Encoding"), STR("x")}, {STR("Host"), STR("h")},
		{STR("Set-Cookie"), STR("a=b")},      {STR("Authorization"), STR("x")},
		{STR("Connection"), STR("close")},    {STR("X-Sum"), STR("7")},
	};
	const struct http_headers trailers = {items, ARRAY_LENGTH(items), ARRAY_LENGTH(items)};
	const struct http_headers head = {0};
	struct http_header kept[HTTP_TRAILERS_MAX];
	struct http_headers passed;

	(void)state;
	head_trailers(&trailers, &head, kept, &passed);
	assert_int_equal(passed.count, 2);
	assert_true(str_equal(passed.items[0].name, STR("Grpc-Status")));
	assert_true(str_equal(passed.items[1].name, STR("X-Sum")));
}

/* RFC 9110 section 6.5.1, what this proxy and the platform say, and what Connection named. */
static void case_184_case_186_fields_that_may_not_trail(void **state)
{
	static const char *const refused[] = {"content-length",
					      "Transfer-Encoding",
					      "Host",
					      "Connection",
					      "Upgrade",
					      "Trailer",
					      "TE",
					      "Keep-Alive",
					      "Proxy-Connection",
					      "Expect",
					      "Max-Forwards",
					      "Pragma",
					      "Range",
					      "If-Match",
					      "If-None-Match",
					      "If-Modified-Since",
					      "If-Unmodified-Since",
					      "If-Range",
					      "Cache-Control",
					      "Authorization",
					      "Proxy-Authorization",
					      "Proxy-Authenticate",
					      "WWW-Authenticate",
					      "Cookie",
					      "Set-Cookie",
					      "Age",
					      "Date",
					      "Expires",
					      "Location",
					      "Retry-After",
					      "Vary",
					      "Warning",
					      "Content-Encoding",
					      "Content-Type",
					      "Content-Range",
					      "X-Proxy-Error",
					      "E2b-Sandbox-Id",
					      "E2b-Sandbox-Port",
					      "Novita-Sandbox-Id",
					      "Novita-Sandbox-Port",
					      "E2b-Traffic-Access-Token",
					      "X-Access-Token",
					      "Forwarded",
					      "X-Forwarded-For",
					      "X-Forwarded-Host",
					      "X-Forwarded-Proto",
					      "HTTP2-Settings",
					      "X-Hop"};
	static const char *const passing[] = {"Grpc-Status",   "ETag",	"Content-Digest",
					      "Server-Timing", "X-Sum", "Authentication-Info"};
	struct http_header named = {STR("Connection"), STR("close, x-hop")};
	const struct http_headers head = {&named, 1, 1};
	struct http_header kept[HTTP_TRAILERS_MAX];
	struct http_headers passed;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(refused) + ARRAY_LENGTH(passing); i++) {
		bool passes = i >= ARRAY_LENGTH(refused);
		struct http_header item = {
			str_of(passes ? passing[i - ARRAY_LENGTH(refused)] : refused[i]), STR("1")};
		const struct http_headers trailers = {&item, 1, 1};

		head_trailers(&trailers, &head, kept, &passed);
		if (passed.count != passes)
			fail_msg("%.*s", (int)item.name.len, item.name.p);
	}
}

static void s058_as_many_fields_as_there_may_be(void **state)
{
	struct fixture *f = *state;

	for (int i = 0; i < HTTP_HEADERS_MAX; i++)
		add(f, "X-Field", "1");
	f->head.forwarded_fields = f->head.expect_continue = true;
	f->summary.te_trailers = true;
	assert_int_equal(head_for_sandbox(&f->head, &f->arena, f->items, &f->out), 0);
	assert_int_equal(f->out.count, HTTP_HEADERS_MAX + 6);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(s047_hop_by_hop_fields),
		TEST(case_164_platform_fields_end_here),
		TEST(case_164_own_cookies_and_parameters_end_here),
		TEST(case_163_s092_forwarded_fields),
		TEST(s068_what_the_sandbox_sees_as_host),
		TEST(s048_upgrade_tokens),
		TEST(targets_in_origin_form),
		TEST(s041_trailers),
		TEST(case_184_case_186_fields_that_may_not_trail),
		TEST(s058_as_many_fields_as_there_may_be),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
