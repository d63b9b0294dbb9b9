/* The route /init over a real HTTP server (contract/envd.md 2.3), and what of it is logged. */
#include "envd/app.h"
#include "envd/filesystem/user.h"
#include "envd/init/init_service.h"
#include "envd/limits.h"
#include "tests/support/agent.h"
#include "tests/support/cmocka.h"
#include "tests/support/talk.h"
#include "tests/support/turn.h"

static struct talk_answer init(struct agent *f, const char *body)
{
	return agent_request(f, "POST", "/init", "", body);
}

static void conformance_043_empty_init(void **state)
{
	struct agent *f = *state;
	struct talk_answer answer = init(f, "");

	assert_int_equal(answer.status, 204);
	agent_assert_header(&answer, "X-Envd-Version", ENVD_PROTOCOL_VERSION);
	agent_assert_header(&answer, "Cache-Control", "no-store");
	assert_true(f->app.sandbox.initialised);
	assert_int_equal(agent_request(f, "POST", "/init", "", NULL).status, 204);
}

static void conformance_031_malformed_init_names_the_version(void **state)
{
	struct agent *f = *state;
	struct talk_answer answer = init(f, "{\"accessToken\":");

	assert_int_equal(answer.status, 400);
	agent_assert_header(&answer, "X-Envd-Version", ENVD_PROTOCOL_VERSION);
	agent_assert_header(&answer, "Vary", "Origin");
	agent_assert_body(&answer, "");
	assert_false(f->app.sandbox.initialised);
}

static void init_sets_and_guards_the_token(void **state)
{
	struct agent *f = *state;
	struct talk_answer answer;

	assert_int_equal(init(f, "{\"accessToken\":\"one\",\"envVars\":{\"A\":\"1\"}}").status,
			 204);
	assert_true(sandbox_token_matches(&f->app.sandbox, STR("one")));
	answer = init(f, "{\"accessToken\":\"two\",\"envVars\":{\"B\":\"2\"}}");
	assert_int_equal(answer.status, 401);
	agent_assert_header(&answer, "Content-Type", "text/plain; charset=utf-8");
	agent_assert_header(&answer, "X-Envd-Version", ENVD_PROTOCOL_VERSION);
	agent_assert_body(&answer, "access token validation failed");
	answer = init(f, "{}");
	assert_int_equal(answer.status, 401);
	agent_assert_body(&answer, "access token reset not authorized");
	assert_true(sandbox_token_matches(&f->app.sandbox, STR("one")));
	assert_string_equal(environment_get(&f->app.sandbox.environment, "A"), "1");
	assert_null(environment_get(&f->app.sandbox.environment, "B"));
	assert_int_equal(init(f, "{\"accessToken\":\"one\"}").status, 204);
}

static void case_142_the_newest_init_wins(void **state)
{
	struct agent *f = *state;

	agent_clock_now = INT64_C(1700000002000000000);
	assert_int_equal(
		init(f, "{\"timestamp\":\"2023-11-14T22:13:22Z\",\"envVars\":{\"A\":\"new\"}}")
			.status,
		204);
	assert_int_equal(init(f,
			      "{\"timestamp\":\"2023-11-14T22:13:21Z\",\"envVars\":{\"A\":\"old\"},"
			      "\"accessToken\":\"x\"}")
				 .status,
			 204);
	assert_string_equal(environment_get(&f->app.sandbox.environment, "A"), "new");
	assert_null(f->app.sandbox.access_token);
	assert_int_equal(init(f, "{\"envVars\":{\"B\":\"2\"}}").status, 204);
	assert_null(environment_get(&f->app.sandbox.environment, "A"));
	assert_string_equal(environment_get(&f->app.sandbox.environment, "B"), "2");
	assert_int_equal(agent_clock_set_calls, 0);
}

static void init_sets_a_clock_that_is_off(void **state)
{
	struct agent *f = *state;

	agent_clock_now = INT64_C(1600000000000000000);
	assert_int_equal(
		init(f, "{\"timestamp\":\"2023-11-14T22:13:20.5Z\",\"envVars\":{\"A\":\"1\"}}")
			.status,
		204);
	assert_int_equal(agent_clock_set_calls, 1);
	assert_int_equal(agent_clock_set_to, INT64_C(1700000000500000000));
	assert_string_equal(environment_get(&f->app.sandbox.environment, "A"), "1");
	/* A clock that cannot be set is logged and hinders nothing. */
	agent_clock_set_result = -EPERM;
	assert_int_equal(
		init(f, "{\"timestamp\":\"2023-11-14T22:13:21Z\",\"envVars\":{\"A\":\"2\"}}")
			.status,
		204);
	assert_int_equal(agent_clock_set_calls, 2);
	assert_string_equal(environment_get(&f->app.sandbox.environment, "A"), "2");
	assert_non_null(strstr(f->log, "operation not permitted"));
	/* Standalone, the machine's clock is nobody's to set. */
	f->app.sandbox.is_standalone = true;
	assert_int_equal(
		init(f, "{\"timestamp\":\"2023-11-14T22:13:22Z\",\"envVars\":{\"A\":\"3\"}}")
			.status,
		204);
	assert_int_equal(agent_clock_set_calls, 2);
}

static void case_142_large_bodies_are_refused(void **state)
{
	struct agent *f = *state;
	size_t len = INT64_C(50) * 1024 * 1024;
	char *body = xmalloc(len + 1);
	struct talk_answer answer;

	answer = agent_request(f, "POST", "/init", "Content-Length: 52428800\r\n", NULL);
	assert_int_equal(answer.status, 413);
	agent_assert_header(&answer, "X-Envd-Version", ENVD_PROTOCOL_VERSION);
	/* Chunked: the size shows only on the way. */
	memset(body, ' ', len);
	body[len] = '\0';
	memcpy(body, "1000000\r\n", 9);
	f->talking = true;
	talk_close(&f->talk);
	answer = talk_request(&f->talk, &f->app.loop, f->server,
			      "POST /init HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
			      (struct str){body, 8 * 1024 * 1024});
	assert_int_equal(answer.status, 413);
	assert_int_equal(init_bodies_budget()->used, 0);
	free(body);
}

/* Whoever sends large bodies, slowly, does not keep the host's out, which is small. */
static void bodies_have_a_sum_and_small_ones_pass(void **state)
{
	static char body[64 * 1024];
	struct agent *f = *state;
	struct talk_answer answer;
	struct share hog;

	share_init(&hog, init_bodies_budget(), 0);
	assert_true(share_take(&hog, INIT_BODIES_BYTES_MAX));
	memset(body, ' ', sizeof(body) - 1);
	answer = init(f, body);
	assert_int_equal(answer.status, 503);
	agent_assert_header(&answer, "Retry-After", "1");
	memcpy(body, "{}", 2);
	body[INIT_EXEMPT_BYTES / 2] = '\0';
	assert_int_equal(init(f, body).status, 204);
	share_release(&hog);
	assert_int_equal(init_bodies_budget()->used, 0);
}

static void on_held(struct turn *turn)
{
}

static bool is_free(void *user)
{
	const struct turn_queue *queue = user;

	return !queue->holder && list_is_empty(&queue->waiting);
}

/* The server sees the requests in order; the first holds the turn until the test lets it go. */
static void case_142_parallel_inits_queue_and_those_who_leave_are_forgotten(void **state)
{
	enum { CLIENTS = 20 };
	struct agent *f = *state;
	struct talk talks[CLIENTS];
	struct turn holder = {0};
	struct turn_queue *queue = &f->app.sandbox.init_turns;
	char text[256], body[128];

	assert_int_equal(turn_take(queue, &holder, on_held), 0);
	for (size_t i = 0; i < CLIENTS; i++) {
		int len = snprintf(body, sizeof(body), "{\"envVars\":{\"LAST\":\"%zu\"}}", i);

		talk_open(&talks[i], &f->app.loop, f->server);
		len = snprintf(text, sizeof(text),
			       "POST /init HTTP/1.1\r\nHost: x\r\nConnection: "
			       "close\r\nContent-Length: %d\r\n\r\n%s",
			       len, body);
		talk_send(&talks[i], text, (size_t)len);
		TURN_UNTIL(&f->app.loop, queue->waiting_count >= i + 1);
	}
	/* The last two lose patience. */
	close_fd(&talks[CLIENTS - 1].fd);
	close_fd(&talks[CLIENTS - 2].fd);
	assert_null(environment_get(&f->app.sandbox.environment, "LAST"));
	turn_leave(queue, &holder);
	for (size_t i = 0; i < CLIENTS - 2; i++) {
		talk_read_all(&talks[i]);
		assert_int_equal(talk_parse(&talks[i]).status, 204);
	}
	talk_wait(&f->app.loop, is_free, queue);
	assert_string_equal(environment_get(&f->app.sandbox.environment, "LAST"), "17");
	for (size_t i = 0; i < CLIENTS; i++)
		talk_close(&talks[i]);
}

static void case_027_nothing_secret_is_logged(void **state)
{
	struct agent *f = *state;

	init(f, "{\"accessToken\":\"s3cr3t\",\"envVars\":{\"TOKEN\":\"s3cr3t\"}}");
	init(f, "{\"accessToken\":\"s3cr3t-wrong\"}");
	init(f, "{\"accessToken\":\"s3cr3t\\u0041\"}");
	init(f, "{\"s3cr3t\":\"s3cr3t");
	agent_request(f, "GET", "/envs", "X-Access-Token: s3cr3t\r\n", NULL);
	agent_request(f, "GET", "/files?signature=s3cr3t", "", NULL);
	agent_request(f, "GET", "/files", "X-Access-Token: s3cr3t-wrong\r\n", NULL);
	agent_request(f, "GET", "/files?path=/x", "Authorization: Basic czNjcjN0OnMzY3IzdA==\r\n",
		      NULL);
	assert_null(strstr(f->log, "s3cr3t"));
	assert_non_null(strstr(f->log, "\"path\":\"/files\",\"status\":401"));
	assert_non_null(strstr(f->log, "initialised"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, agent_setup, agent_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_043_empty_init),
		TEST(conformance_031_malformed_init_names_the_version),
		TEST(init_sets_and_guards_the_token),
		TEST(case_142_the_newest_init_wins),
		TEST(init_sets_a_clock_that_is_off),
		TEST(case_142_large_bodies_are_refused),
		TEST(bodies_have_a_sum_and_small_ones_pass),
		TEST(case_142_parallel_inits_queue_and_those_who_leave_are_forgotten),
		TEST(case_027_nothing_secret_is_logged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
