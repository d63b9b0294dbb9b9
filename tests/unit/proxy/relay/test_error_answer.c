#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/relay/error_answer.h"

struct fixture {
	struct arena arena;
	struct http_request request;
	struct buf body;
};

static int set_up(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	arena_init(&f->arena, 64 * 1024);
	buf_init(&f->body, 64 * 1024);
	f->request.method = STR("GET");
	f->request.path = STR("/");
	f->request.authority = STR("3000-abc.d");
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	arena_release(&f->arena);
	buf_fini(&f->body);
	free(f);
	return 0;
}

static void add(struct fixture *f, const char *name, const char *value)
{
	assert_int_equal(
		http_headers_add(&f->request.headers, &f->arena, str_of(name), str_of(value)), 0);
}

/* The ten cases of contract/proxy.md 1.6, and what lies between them. */
static void s006_json_or_html(void **state)
{
	static const char browser[] = "Mozilla/5.0 (X11; Linux) Chrome/120.0";
	static const struct {
		const char *user_agent, *accept, *mode, *requested_with;
		bool html;
	} rows[] = {
		{"curl/8.0", "*/*", NULL, NULL, false},
		{browser, "text/html,*/*;q=0.8", "navigate", NULL, true},
		{browser, "*/*", "cors", NULL, false},
		{browser, "application/json", NULL, NULL, false},
		{browser, "text/html, application/json", NULL, NULL, true},
		{browser, "*/*", "websocket", NULL, false},
		{browser, "*/*", NULL, "XMLHttpRequest", false},
		{browser, "text/html", "navigate", "XMLHttpRequest", true},
		{NULL, "text/html", NULL, NULL, false},
		{"MOZILLA/5.0", "TEXT/HTML", "NAVIGATE", NULL, true},
		{browser, "*/*", NULL, NULL, true},
		{browser, NULL, NULL, NULL, true},
		{browser, "*/*", "no-cors", NULL, false},
		{browser, "text/html", "same-origin", NULL, false},
		{browser, "text/html", NULL, "", true},
		{browser, "Application/JSON;q=0.1", NULL, NULL, false},
		{"python-requests/2.31", "text/html", NULL, NULL, false},
		{"Opera/9.80", "text/html", NULL, NULL, true},
		{"like MSIE 6", "text/html", NULL, NULL, true},
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		f->request.headers = (struct http_headers){0};
		if (rows[i].user_agent)
			add(f, "user-agent", rows[i].user_agent);
		if (rows[i].accept)
			add(f, "ACCEPT", rows[i].accept);
		if (rows[i].mode)
			add(f, "Sec-Fetch-Mode", rows[i].mode);
		if (rows[i].requested_with)
			add(f, "X-Requested-With", rows[i].requested_with);
		if (error_answer_wants_html(&f->request.headers) != rows[i].html)
			fail_msg("row %zu", i);
	}
	/* Two Accept fields are one list. */
	f->request.headers = (struct http_headers){0};
	add(f, "User-Agent", browser);
	add(f, "Accept", "application/json");
	add(f, "Accept", "text/html");
	assert_true(error_answer_wants_html(&f->request.headers));
}

static void check_body(struct fixture *f, const struct error_answer *answer, bool html,
		       const char *expected)
{
	buf_clear(&f->body);
	assert_int_equal(error_answer_body(answer, &f->request, html, &f->body), 0);
	assert_int_equal(buf_append(&f->body, "", 1), 0);
	assert_string_equal(buf_data(&f->body), expected);
}

static void bodies_for_programs(void **state)
{
	struct fixture *f = *state;
	struct error_answer answer = {.cause = ERROR_NOT_FOUND, .sandbox_id = "abc", .port = 3000};

	check_body(
		f, &answer, false,
		"{\"sandboxId\":\"abc\",\"message\":\"The sandbox was not found\",\"code\":502}");
	answer.cause = ERROR_PORT_CLOSED;
	check_body(f, &answer, false,
		   "{\"sandboxId\":\"abc\",\"message\":\"The sandbox is running but port is not "
		   "open\","
		   "\"port\":3000,\"code\":502}");
	answer.cause = ERROR_LIMIT;
	answer.connection_limit = 7;
	check_body(f, &answer, false,
		   "{\"sandboxId\":\"abc\",\"message\":\"Too many connections to the sandbox "
		   "(limit: 7)\","
		   "\"code\":429,\"connectionLimit\":7}");
	answer.cause = ERROR_INTERNAL_PATH;
	f->request.path = STR("/<init>\"\\\xff&");
	check_body(f, &answer, false,
		   "{\"message\":\"This endpoint is reserved for the control plane\","
		   "\"path\":\"/\\u003cinit\\u003e\\\"\\\\\xef\xbf\xbd\\u0026\",\"code\":404}");
	answer = (struct error_answer){
		.cause = ERROR_BAD_REQUEST, .status = 431, .detail = "too much"};
	check_body(f, &answer, false, "{\"message\":\"too much\",\"code\":431}");
	assert_int_equal(error_answer_status(&answer), 431);
}

static void s006_pages_are_escaped_and_whole(void **state)
{
	struct fixture *f = *state;

	f->request.path = STR("/<script>alert('1')</script>&\"\xff\n");
	f->request.authority = STR("<b>.d");
	for (int i = 0; i < ERROR_CAUSES; i++) {
		struct error_answer answer = {
			.cause = (enum error_cause)i, .sandbox_id = "abc", .port = 80};
		struct str page;

		buf_clear(&f->body);
		assert_int_equal(error_answer_body(&answer, &f->request, true, &f->body), 0);
		page = buf_str(&f->body);
		assert_true(str_starts_with(page, STR("<html")));
		assert_true(str_ends_with(page, STR("</html>")));
		assert_true(str_is_utf8(page));
		assert_int_equal(buf_append(&f->body, "", 1), 0);
		assert_null(strstr(buf_data(&f->body), "<script"));
		assert_null(strstr(buf_data(&f->body), "<b>"));
	}
}

static void every_cause_is_described(void **state)
{
	struct fixture *f = *state;

	for (int i = 0; i < ERROR_CAUSES; i++) {
		struct error_answer answer = {.cause = (enum error_cause)i};
		int status = error_answer_status(&answer);

		assert_true(status >= 400 && status < 600);
		assert_non_null(error_cause_name(answer.cause));
		buf_clear(&f->body);
		assert_int_equal(error_answer_body(&answer, &f->request, false, &f->body), 0);
		for (int j = 0; j < i; j++)
			assert_string_not_equal(error_cause_name(answer.cause),
						error_cause_name((enum error_cause)j));
	}
}

static void a_long_path_is_cut(void **state)
{
	struct fixture *f = *state;
	struct error_answer answer = {.cause = ERROR_INTERNAL_PATH};
	static char path[40000];

	memset(path, '<', sizeof(path));
	f->request.path = (struct str){path, sizeof(path)};
	for (int html = 0; html < 2; html++) {
		buf_clear(&f->body);
		assert_int_equal(error_answer_body(&answer, &f->request, html, &f->body), 0);
		assert_true(buf_length(&f->body) < 8192);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(s006_json_or_html),
		TEST(bodies_for_programs),
		TEST(s006_pages_are_escaped_and_whole),
		TEST(every_cause_is_described),
		TEST(a_long_path_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
