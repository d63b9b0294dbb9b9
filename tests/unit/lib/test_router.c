/* Which row of a table answers a request, and bodies that are collected for it. */
#include <unistd.h>

#include "lib/http_server.h"
#include "lib/router.h"
#include "tests/support/cmocka.h"
#include "tests/support/talk.h"

#define BODY_MAX 64

struct fixture {
	struct loop loop;
	struct http_server *server;
	struct talk talk;
	bool is_stopped;
	char *kept; /* a body that its function took */
	size_t kept_len;
};

static struct budget bodies;

static void serve_plain(struct http_exchange *ex, const struct route_call *call)
{
	char text[256];

	snprintf(text, sizeof(text), "%.*s %.*s|%.*s", (int)ex->request.method.len,
		 ex->request.method.p, (int)call->parameters[0].len,
		 call->parameters[0].p ? call->parameters[0].p : "", (int)call->parameters[1].len,
		 call->parameters[1].p ? call->parameters[1].p : "");
	http_respond(ex, 200, "text/plain", str_of(text));
}

static void serve_body(struct http_exchange *ex, const struct route_call *call)
{
	http_respond(ex, 200, "text/plain", buf_str(call->body));
}

static void serve_kept(struct http_exchange *ex, const struct route_call *call)
{
	struct fixture *f = ex->server_user;

	f->kept = buf_detach(call->body, &f->kept_len);
	http_respond(ex, 204, NULL, STR(""));
}

static const struct route routes[] = {
	{"GET", "/a", serve_plain, .is_open = true},
	{"PUT", "/a", serve_body, BODY_MAX},
	{"GET", "/a/{x}", serve_plain},
	{"GET", "/a/{x}/b/{y}", serve_plain},
	{"POST", "/keep", serve_kept, BODY_MAX},
};

static struct router router = {.routes = routes, .count = ARRAY_LENGTH(routes)};

static void dispatch(struct http_exchange *ex)
{
	struct route_call call;
	const struct route *route = router_find(&router, &ex->request, &call);
	const char *allowed;

	if (route) {
		router_serve(&router, route, ex, &call);
		return;
	}
	allowed = router_allowed(&router, ex);
	http_respond(ex, allowed ? 405 : 404, "text/plain", str_of(allowed ? allowed : "none"));
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));
	const struct http_server_config config = {.dispatch = dispatch, .user = f};

	alarm(120);
	loop_init(&f->loop);
	router.bodies = NULL;
	assert_int_equal(http_server_listen(&f->loop, &config, "127.0.0.1", 0, &f->server), 0);
	*state = f;
	return 0;
}

static void on_stopped(void *user)
{
	((struct fixture *)user)->is_stopped = true;
}

static bool is_stopped(void *user)
{
	return ((struct fixture *)user)->is_stopped;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	http_server_stop(f->server, on_stopped, f);
	http_server_abort(f->server);
	talk_wait(&f->loop, is_stopped, f);
	loop_run(&f->loop);
	loop_fini(&f->loop);
	free(f->kept);
	free(f);
	return 0;
}

static void assert_answer(struct fixture *f, const char *head, const char *body, int status,
			  const char *wanted)
{
	struct talk_answer answer = talk_request(&f->talk, &f->loop, f->server, head, str_of(body));

	assert_int_equal(answer.status, status);
	if (wanted)
		assert_true(str_equal(answer.body, str_of(wanted)));
	talk_close(&f->talk);
}

#define HEAD(line) line " HTTP/1.1\r\nHost: x\r\n"

static void a_row_is_found_by_method_and_path(void **state)
{
	struct fixture *f = *state;

	assert_answer(f, HEAD("GET /a"), "", 200, "GET |");
	assert_answer(f, HEAD("GET /a?q=/b"), "", 200, "GET |");
	assert_answer(f, HEAD("GET /a/one"), "", 200, "GET one|");
	assert_answer(f, HEAD("GET /a/%2f/b/tw%20o"), "", 200, "GET %2f|tw%20o");
	assert_answer(f, HEAD("GET /a/"), "", 200, "GET |"); /* an empty segment */
	assert_answer(f, HEAD("GET /a//b/"), "", 200, "GET |");
}

static void paths_are_compared_as_they_were_sent(void **state)
{
	static const char *const unknown[] = {
		HEAD("GET /"),	    HEAD("GET //a"),	  HEAD("GET /A"),	 HEAD("GET /a/x/"),
		HEAD("GET /a/x/b"), HEAD("GET /a/x/c/y"), HEAD("GET /a/x/b/y/"), HEAD("GET /%61"),
	};

	for (size_t i = 0; i < ARRAY_LENGTH(unknown); i++)
		assert_answer(*state, unknown[i], "", 404, "none");
}

static void a_wrong_method_is_told_which_there_are(void **state)
{
	struct fixture *f = *state;

	assert_answer(f, HEAD("DELETE /a"), "", 405, "GET, PUT");
	assert_answer(f, HEAD("PUT /a/x"), "", 405, "GET");
	assert_answer(f, HEAD("HEAD /a/x"), "", 405, "");
}

static void a_body_comes_whole(void **state)
{
	struct fixture *f = *state;
	char largest[BODY_MAX + 1] = "";

	memset(largest, 'b', BODY_MAX);
	assert_answer(f, HEAD("PUT /a") "Content-Length: 3\r\n", "abc", 200, "abc");
	assert_answer(f, HEAD("PUT /a") "Content-Length: 0\r\n", "", 200, "");
	assert_answer(f, HEAD("PUT /a"), "", 200, "");
	assert_answer(f, HEAD("PUT /a") "Content-Length: 64\r\n", largest, 200, largest);
	assert_answer(f, HEAD("PUT /a") "Transfer-Encoding: chunked\r\n",
		      "1\r\nx\r\n2\r\nyz\r\n0\r\n\r\n", 200, "xyz");
}

static void a_body_that_is_too_large_is_refused(void **state)
{
	struct fixture *f = *state;

	/* By what it says of itself, and by what comes. */
	assert_answer(f, HEAD("PUT /a") "Content-Length: 65\r\n", "", 413, NULL);
	assert_answer(f, HEAD("PUT /a") "Transfer-Encoding: chunked\r\n",
		      "41\r\n01234567890123456789012345678901234567890123456789012345678901234\r\n0"
		      "\r\n\r\n",
		      413, NULL);
}

static bool bodies_are_held(void *user)
{
	return atomic_load(&bodies.used) == 8;
}

static bool bodies_are_given_back(void *user)
{
	return atomic_load(&bodies.used) == 0;
}

static void bodies_share_what_there_is(void **state)
{
	static const char begun[] = HEAD("PUT /a") "Content-Length: 20\r\n\r\n012345678901";
	struct fixture *f = *state;
	struct talk slow;

	bodies = (struct budget){.max = 10};
	router.bodies = &bodies;
	router.body_exempt_bytes = 4;
	talk_open(&slow, &f->loop, f->server);
	talk_send(&slow, begun, sizeof(begun) - 1);
	talk_wait(&f->loop, bodies_are_held, NULL);
	assert_answer(f, HEAD("PUT /a") "Content-Length: 4\r\n", "free", 200, "free");
	assert_answer(f, HEAD("PUT /a") "Content-Length: 8\r\n", "too much", 503, NULL);
	talk_close(&slow);
	talk_wait(&f->loop, bodies_are_given_back, NULL);
}

static void a_function_may_keep_the_body(void **state)
{
	struct fixture *f = *state;

	assert_answer(f, HEAD("POST /keep") "Content-Length: 4\r\n", "mine", 204, "");
	assert_int_equal(f->kept_len, 4);
	assert_memory_equal(f->kept, "mine", 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_row_is_found_by_method_and_path),
		TEST(paths_are_compared_as_they_were_sent),
		TEST(a_wrong_method_is_told_which_there_are),
		TEST(a_body_comes_whole),
		TEST(a_body_that_is_too_large_is_refused),
		TEST(bodies_share_what_there_is),
		TEST(a_function_may_keep_the_body),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
