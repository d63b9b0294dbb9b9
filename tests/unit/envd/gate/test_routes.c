/* Routes, gates, cross-origin rules and the small endpoints, over a real HTTP server
 * (contract/envd.md 2.1 to 2.4, 3). */
#include "envd/app.h"
#include "envd/filesystem/user.h"
#include "envd/gate/signature_http.h"
#include "lib/json.h"
#include "lib/log.h"
#include "tests/support/agent.h"
#include "tests/support/cmocka.h"
#include "tests/support/talk.h"

#define TOKEN_BODY \
	"{\"code\":401,\"message\":\"unauthorized access, please provide a valid access " \
	"token or method signing if supported\"}\n"

static void set_token(struct agent *f, const char *token)
{
	sandbox_set_access_token(&f->app.sandbox, str_of(token));
}

static void health_is_open_and_empty(void **state)
{
	struct agent *f = *state;
	struct talk_answer answer;

	set_token(f, "secret");
	answer = agent_request(f, "GET", "/health", "", NULL);
	assert_int_equal(answer.status, 204);
	agent_assert_header(&answer, "Cache-Control", "no-store");
	agent_assert_header(&answer, "Content-Type", "");
	agent_assert_header(&answer, "Content-Length", NULL);
	agent_assert_header(&answer, "Vary", "Origin");
	agent_assert_body(&answer, "");
}

static void environment_is_sorted_and_html_safe(void **state)
{
	const struct environment_pair pairs[] = {{STR("Z"), STR("<a&b>")},
						 {STR("A"), STR("\"x\"\n\xff")}};
	struct agent *f = *state;
	struct environment *env = &f->app.sandbox.environment;
	struct talk_answer answer = agent_request(f, "GET", "/envs", "", NULL);

	assert_int_equal(answer.status, 200);
	agent_assert_header(&answer, "Content-Type", "application/json");
	agent_assert_header(&answer, "Cache-Control", "no-store");
	agent_assert_body(&answer, "{}\n");
	environment_set_internal(env, "E2B_SANDBOX", "false");
	environment_replace_user(env, pairs, ARRAY_LENGTH(pairs));
	answer = agent_request(f, "GET", "/envs", "", NULL);
	agent_assert_body(&answer, "{\"A\":\"\\\"x\\\"\\n\xef\xbf\xbd\",\"E2B_SANDBOX\":\"false\","
				   "\"Z\":\"\\u003ca\\u0026b\\u003e\"}\n");
}

static void metrics_are_read_in_a_job(void **state)
{
	struct agent *f = *state;
	struct talk_answer answer = agent_request(f, "GET", "/metrics", "", NULL);

	assert_int_equal(answer.status, 200);
	agent_assert_header(&answer, "Content-Type", "application/json");
	agent_assert_header(&answer, "Cache-Control", "no-store");
	assert_true(str_starts_with(answer.body, STR("{\"ts\":")));
	assert_true(str_ends_with(answer.body, STR("}\n")));
	assert_true(f->app.sandbox.metrics_before.total > 0);
}

static void metrics_survive_a_client_that_leaves(void **state)
{
	struct agent *f = *state;
	static const char text[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

	f->talking = true;
	talk_open(&f->talk, &f->app.loop, f->server);
	talk_send(&f->talk, text, sizeof(text) - 1);
	close_fd(&f->talk.fd);
}

static void unknown_paths_are_404_and_never_redirected(void **state)
{
	static const char *const paths[] = {
		"/",
		"/health/",
		"//health",
		"/./health",
		"/HEALTH",
		"/%68ealth",
		"/init/",
		"/x",
		"/process.Process/Nothing",
		"/process.Process",
		"/filesystem.Filesystem/Stat/",
		"/files/",
		"//files",
		"/files/?path=/x",
	};
	struct agent *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(paths); i++) {
		struct talk_answer answer = agent_request(f, "POST", paths[i], "", "{}");

		if (answer.status != 404)
			fail_msg("%s: %d", paths[i], answer.status);
		agent_assert_header(&answer, "Content-Type", "text/plain; charset=utf-8");
		agent_assert_header(&answer, "X-Content-Type-Options", "nosniff");
		agent_assert_header(&answer, "Vary", "Origin");
		agent_assert_header(&answer, "Location", NULL);
		agent_assert_body(&answer, "404 page not found\n");
	}
}

static void case_139_slashes_are_answered_directly(void **state)
{
	static const char *const methods[] = {"GET", "POST", "DELETE", "PUT"};
	struct agent *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(methods); i++)
		assert_int_equal(agent_request(f, methods[i], "/health/", "", NULL).status, 404);
}

static void case_138_wrong_methods_name_the_right_ones(void **state)
{
	static const struct {
		const char *method, *path, *allow;
	} table[] = {
		{"POST", "/health", "GET"},	   {"HEAD", "/health", "GET"},
		{"DELETE", "/metrics", "GET"},	   {"GET", "/init", "POST"},
		{"OPTIONS", "/health", "GET"},	   {"GET", "/freeze", "POST"},
		{"DELETE", "/files", "GET, POST"},
	};
	struct agent *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct talk_answer answer = agent_request(f, table[i].method, table[i].path, "",
							  NULL);

		if (answer.status != 405)
			fail_msg("%s %s: %d", table[i].method, table[i].path, answer.status);
		agent_assert_header(&answer, "Allow", table[i].allow);
		if (strcmp(table[i].method, "HEAD") != 0) {
			agent_assert_header(&answer, "Content-Type",
					    "application/json; charset=utf-8");
			agent_assert_body(&answer,
					  "{\"code\":405,\"message\":\"method not allowed\"}\n");
		}
	}
}

static void conformance_174_upgrade_is_refused_in_order(void **state)
{
	static const struct {
		const char *headers;
		int status;
		const char *text;
	} table[] = {
		{"", 500, "live upgrade is not supported by this envd\n"},
		{"X-Envd-Upgrade-Bin:\r\n", 500, "live upgrade is not supported by this envd\n"},
		{"X-Envd-Upgrade-Bin: /usr/bin/envd.next\r\n", 500,
		 "live upgrade is not supported by this envd\n"},
		{"X-Envd-Upgrade-Bin: /tmp/envd\r\n", 400, "unsupported upgrade target\n"},
		{"X-Envd-Upgrade-Bin: /usr/bin/../bin/envd.next\r\n", 400,
		 "unsupported upgrade target\n"},
	};
	struct agent *f = *state;
	struct talk_answer answer = agent_request(f, "POST", "/upgrade", table[3].headers, "");

	assert_int_equal(answer.status, 409);
	agent_assert_body(&answer, "envd not initialized\n");
	assert_int_equal(agent_request(f, "POST", "/init", "", "{}").status, 204);
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		answer = agent_request(f, "POST", "/upgrade", table[i].headers, "a program");
		assert_int_equal(answer.status, table[i].status);
		agent_assert_body(&answer, table[i].text);
		agent_assert_header(&answer, "Content-Type", "text/plain; charset=utf-8");
		agent_assert_header(&answer, "X-Envd-Handover", NULL);
	}
	set_token(f, "secret");
	answer = agent_request(f, "POST", "/upgrade", "", "");
	assert_int_equal(answer.status, 401);
}

static void case_137_preflight_needs_no_token(void **state)
{
	struct agent *f = *state;
	struct talk_answer answer;

	set_token(f, "secret");
	answer = agent_request(
		f, "OPTIONS", "/process.Process/Start",
		"Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n"
		"Access-Control-Request-Headers: x-access-token,connect-timeout-ms\r\n",
		NULL);
	assert_int_equal(answer.status, 204);
	agent_assert_header(&answer, "Access-Control-Allow-Origin", "*");
	agent_assert_header(&answer, "Access-Control-Allow-Methods", "POST");
	agent_assert_header(&answer, "Access-Control-Allow-Headers",
			    "x-access-token,connect-timeout-ms");
	agent_assert_header(&answer, "Access-Control-Max-Age", "7200");
	agent_assert_header(&answer, "Access-Control-Allow-Credentials", NULL);
	agent_assert_header(
		&answer, "Vary",
		"Origin, Access-Control-Request-Method, Access-Control-Request-Headers");
	agent_assert_body(&answer, "");
	answer = agent_request(f, "OPTIONS", "/files",
			       "Origin: x\r\nAccess-Control-Request-Method: DELETE\r\n", NULL);
	assert_int_equal(answer.status, 204);
	agent_assert_header(&answer, "Access-Control-Allow-Methods", "DELETE");
	agent_assert_header(&answer, "Access-Control-Allow-Headers", NULL);
	/* Without origin, or with an odd method, the answer allows nothing. */
	answer = agent_request(f, "OPTIONS", "/files", "Access-Control-Request-Method: GET\r\n",
			       NULL);
	assert_int_equal(answer.status, 204);
	agent_assert_header(&answer, "Access-Control-Allow-Origin", NULL);
	answer = agent_request(f, "OPTIONS", "/files",
			       "Origin: x\r\nAccess-Control-Request-Method: TRACE\r\n", NULL);
	assert_int_equal(answer.status, 204);
	agent_assert_header(&answer, "Access-Control-Allow-Methods", NULL);
	/* No preflight: an ordinary request. */
	answer = agent_request(f, "OPTIONS", "/envs", "Origin: x\r\n", NULL);
	assert_int_equal(answer.status, 401);
	answer = agent_request(f, "OPTIONS", "/envs", "X-Access-Token: secret\r\n", NULL);
	assert_int_equal(answer.status, 405);
}

static void case_137_every_answer_may_be_read_by_a_page(void **state)
{
	static const struct {
		const char *method, *path;
		int status;
	} table[] = {
		{"GET", "/health", 204}, {"GET", "/envs", 401},	  {"GET", "/nothing", 401},
		{"PUT", "/init", 401},	 {"PUT", "/health", 401},
	};
	struct agent *f = *state;
	struct talk_answer answer;

	set_token(f, "secret");
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		answer = agent_request(f, table[i].method, table[i].path,
				       "Origin: https://page.example\r\n", NULL);
		if (answer.status != table[i].status)
			fail_msg("%s %s: %d", table[i].method, table[i].path, answer.status);
		agent_assert_header(&answer, "Vary", "Origin");
		agent_assert_header(&answer, "Access-Control-Allow-Origin", "*");
		agent_assert_header(&answer, "Access-Control-Expose-Headers",
				    "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, "
				    "Cache-Control, "
				    "X-Content-Type-Options");
	}
	answer = agent_request(f, "GET", "/health", "", NULL);
	agent_assert_header(&answer, "Access-Control-Allow-Origin", NULL);
}

static void case_141_the_gate_cannot_be_dodged(void **state)
{
	static const struct {
		const char *headers, *query;
		int status;
	} table[] = {
		{"", "", 401},
		{"X-Access-Token: Secret\r\n", "", 401},
		{"X-Access-Token: secretsecret\r\n", "", 401},
		{"X-Access-Token: sec ret\r\n", "", 401},
		{"X-Access-Token:\r\n", "", 401},
		{"X-Access-Token: secret\r\n", "", 200},
		{"X-Access-Token:   secret \r\n", "", 200},
		{"x-access-token: secret\r\n", "", 200},
		{"X-Access-Token: secret\r\nX-Access-Token: secret\r\n", "", 200},
		{"X-Access-Token: secret\r\nX-Access-Token: other\r\n", "", 401},
		{"X-Access-Token: other\r\nX-Access-Token: secret\r\n", "", 401},
		{"X-Access-Token: secret\r\nx-access-token:\r\n", "", 401},
		{"", "?X-Access-Token=secret", 401},
		{"Authorization: Bearer secret\r\n", "", 401},
	};
	static const char *const paths[] = {"/envs",
					    "/process.Process/Start",
					    "/filesystem.Filesystem/Stat",
					    "/files/compose",
					    "/freeze",
					    "/nothing"};
	struct agent *f = *state;
	struct talk_answer answer;
	char path[256];

	set_token(f, "secret");
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		snprintf(path, sizeof(path), "/envs%s", table[i].query);
		answer = agent_request(f, "GET", path, table[i].headers, NULL);
		if (answer.status != table[i].status)
			fail_msg("row %zu: %d", i, answer.status);
		if (answer.status == 401)
			agent_assert_body(&answer, TOKEN_BODY);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(paths); i++) {
		/* A body is announced and never sent: nobody waits for it. */
		answer = agent_request(f, "POST", paths[i],
				       "Content-Type: application/json\r\nContent-Length: 100\r\n",
				       NULL);
		assert_int_equal(answer.status, 401);
		agent_assert_body(&answer, TOKEN_BODY);
	}
	sandbox_set_access_token(&f->app.sandbox, (struct str){NULL, 0});
	assert_int_equal(agent_request(f, "GET", "/envs", "", NULL).status, 200);
	assert_int_equal(agent_request(f, "GET", "/envs", "X-Access-Token: any\r\n", NULL).status,
			 200);
}

static void conformance_006_conformance_008_files_have_their_own_gate(void **state)
{
	static const char *const methods[] = {"GET", "POST"};
	struct agent *f = *state;
	struct talk_answer answer;

	set_token(f, "secret");
	for (size_t i = 0; i < ARRAY_LENGTH(methods); i++) {
		answer = agent_request(f, methods[i], "/files?path=/x", "", NULL);
		assert_int_equal(answer.status, 401);
		agent_assert_body(
			&answer,
			"{\"code\":401,\"message\":\"missing signature query parameter\"}\n");
		answer = agent_request(f, methods[i], "/files?path=/x&signature=v1_x",
				       "X-Access-Token: other\r\n", NULL);
		assert_int_equal(answer.status, 401);
		agent_assert_body(&answer, "{\"code\":401,\"message\":\"access token present in "
					   "header but does not match\"}\n");
		answer = agent_request(f, methods[i], "/files?path=/x",
				       "X-Access-Token: secret\r\nX-Access-Token: x\r\n", NULL);
		assert_int_equal(answer.status, 401);
		answer = agent_request(f, methods[i], "/files?path=/x&signature=v1_x", "", NULL);
		assert_int_equal(answer.status, 401);
		agent_assert_body(&answer, "{\"code\":401,\"message\":\"invalid signature\"}\n");
	}
}

static const char *escape(const char *text, char *out)
{
	char *at = out;

	for (; *text; text++)
		at += snprintf(at, 4, "%%%02X", (unsigned char)*text);
	*at = '\0';
	return out;
}

/* GET or POST /files with a signature for it, for root, and what the query says besides. */
static struct talk_answer request_signed(struct agent *f, const char *method, const char *path,
					 const int64_t *expiration, const char *more,
					 const char *body)
{
	const struct signature_subject subject = {
		.path = str_of(path),
		.user_name = STR("root"),
		.operation = strcmp(method, "GET") == 0 ? "read" : "write",
		.expires = expiration != NULL,
		.expiration = expiration ? *expiration : 0,
	};
	char signature[SIGNATURE_BYTES], escaped[3 * SIGNATURE_BYTES], target[1024], text[64] = "";

	signature_make(&subject, STR("secret"), signature);
	if (expiration)
		snprintf(text, sizeof(text), "&signature_expiration=%lld", (long long)*expiration);
	snprintf(target, sizeof(target), "/files?path=%s&username=root&signature=%s%s%s", path,
		 escape(signature, escaped), text, more);
	return agent_request(f, method, target,
			     body ? "Content-Type: application/octet-stream\r\n" : "", body);
}

static void conformance_009_to_conformance_014_signed_urls(void **state)
{
	struct agent *f = *state;
	char directory[] = "/tmp/test_routes.XXXXXX", path[64], want[160];
	int64_t now = f->app.sandbox.clock->now_ns() / 1000000000, later = now + 3600,
		earlier = later - 7200, never = INT64_MAX;
	struct talk_answer answer;

	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/f", directory);
	/* conformance_009: without a token nothing needs to be signed. */
	assert_int_equal(request_signed(f, "GET", "/nowhere", NULL, "", NULL).status, 404);
	set_token(f, "secret");
	answer = request_signed(f, "POST", path, NULL, "", "Hello, World!");
	assert_int_equal(answer.status, 200);
	answer = request_signed(f, "GET", path, &later, "", NULL);
	assert_int_equal(answer.status, 200);
	agent_assert_body(&answer, "Hello, World!");
	assert_int_equal(request_signed(f, "GET", path, &never, "", NULL).status, 200);
	/* What reads does not write, nor another path. */
	snprintf(want, sizeof(want), "/files?path=%s", path);
	assert_int_equal(agent_request(f, "GET", want, "", NULL).status, 401);
	answer = request_signed(f, "GET", path, &earlier, "", NULL);
	assert_int_equal(answer.status, 401);
	agent_assert_body(&answer, "{\"code\":401,\"message\":\"signature is already expired\"}\n");
	/* conformance_014: signed without the expiration that is sent. */
	answer = request_signed(f, "GET", path, NULL, "&signature_expiration=9999999999", NULL);
	assert_int_equal(answer.status, 401);
	agent_assert_body(&answer, "{\"code\":401,\"message\":\"invalid signature\"}\n");
	/* conformance_013 */
	answer = request_signed(f, "GET", "/tmp/there/is/none", &later, "", NULL);
	assert_int_equal(answer.status, 404);
	agent_assert_body(
		&answer,
		"{\"code\":404,\"message\":\"path '/tmp/there/is/none' does not exist\"}\n");
	/* A header decides alone, right or wrong. */
	assert_int_equal(agent_request(f, "GET", want, "X-Access-Token: secret\r\n", NULL).status,
			 200);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(directory), 0);
}

static void odd_expirations_are_refused_first(void **state)
{
	static const struct {
		const char *query, *body;
	} table[] = {
		{"signature_expiration=x",
		 "Invalid format for parameter signature_expiration: error binding string "
		 "parameter: strconv.ParseInt: parsing \"x\": invalid syntax\n"},
		{"signature_expiration=",
		 "Invalid format for parameter signature_expiration: error binding string "
		 "parameter: strconv.ParseInt: parsing \"\": invalid syntax\n"},
		{"signature_expiration=99999999999999999999",
		 "Invalid format for parameter signature_expiration: error binding string "
		 "parameter: "
		 "strconv.ParseInt: parsing \"99999999999999999999\": value out of range\n"},
		{"signature=a&signature=a",
		 "Invalid format for parameter signature: multiple values for single "
		 "value parameter 'signature'\n"},
	};
	struct agent *f = *state;

	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
			char target[256];
			struct talk_answer answer;

			snprintf(target, sizeof(target), "/files?path=/x&%s", table[i].query);
			answer = agent_request(f, "GET", target, "", NULL);
			assert_int_equal(answer.status, 400);
			agent_assert_body(&answer, table[i].body);
		}
		set_token(f, "secret");
	}
}

static void use_accounts(const char *directory)
{
	static char passwd[256], group[256];
	FILE *file;

	snprintf(passwd, sizeof(passwd), "%s/passwd", directory);
	snprintf(group, sizeof(group), "%s/group", directory);
	file = fopen(passwd, "w");
	assert_non_null(file);
	fputs("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n", file);
	fclose(file);
	file = fopen(group, "w");
	assert_non_null(file);
	fputs("root:x:0:\nuser:x:1000:\n", file);
	fclose(file);
	user_set_files(passwd, group);
}

static void basic_users_must_exist(void **state)
{
	static const struct {
		const char *value;
		int status;
	} table[] = {
		{"Basic dXNlcjo=", 204}, /* user: */
		{"basic cm9vdDp4OnkK", 204}, /* root:x:y */
		{"Basic bm9ib2R5MTo=", 401}, /* nobody1: */
		{"Basic Og==", 401}, /* : */
		{"Basic dXNlcg==", 204}, /* user, no colon: ignored */
		{"Basic !!!", 204}, /* not base64: ignored */
		{"Bearer dXNlcjo=", 204}, /* another scheme: ignored */
		{"Basic", 204},
		{"Basic cm9vdAB4Og==", 401}, /* root NUL x */
	};
	struct agent *f = *state;
	char directory[] = "/tmp/test_routes.XXXXXX", headers[256];
	struct talk_answer answer;

	assert_non_null(mkdtemp(directory));
	use_accounts(directory);
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		snprintf(headers, sizeof(headers), "Authorization: %s\r\n", table[i].value);
		answer = agent_request(f, "GET", "/health", headers, NULL);
		if (answer.status != table[i].status)
			fail_msg("%s: %d", table[i].value, answer.status);
	}
	answer = agent_request(f, "GET", "/health", "Authorization: Basic bm9ib2R5MTo=\r\n", NULL);
	agent_assert_header(&answer, "Content-Type", "application/json");
	agent_assert_header(&answer, "WWW-Authenticate", NULL);
	agent_assert_body(
		&answer,
		"{\"code\":\"unauthenticated\",\"message\":\"invalid username: 'nobody1'\"}");
	/* Standalone as an ordinary user, nobody else can be acted as. */
	f->app.sandbox.is_standalone = true;
	f->app.sandbox.only_user = xstrdup("user");
	f->app.sandbox.only_uid = 1000;
	assert_int_equal(
		agent_request(f, "GET", "/health", "Authorization: Basic dXNlcjo=\r\n", NULL)
			.status,
		204);
	answer = agent_request(f, "GET", "/health", "Authorization: Basic cm9vdDo=\r\n", NULL);
	assert_int_equal(answer.status, 403);
	agent_assert_body(&answer,
			  "{\"code\":\"permission_denied\",\"message\":\"envd runs as user 'user' "
			  "(standalone): cannot act as 'root'\"}");
}

static void case_136_garbage_is_answered_in_json(void **state)
{
	struct agent *f = *state;
	struct talk_answer answer;
	static const char text[] = "GET /health HTTP/1.1\r\nHost: x\r\nBad Name: x\r\n\r\n";

	f->talking = true;
	talk_open(&f->talk, &f->app.loop, f->server);
	talk_send(&f->talk, text, sizeof(text) - 1);
	talk_read_all(&f->talk);
	answer = talk_parse(&f->talk);
	assert_int_equal(answer.status, 400);
	agent_assert_header(&answer, "Content-Type", "application/json; charset=utf-8");
	assert_true(str_starts_with(answer.body, STR("{\"code\":400,\"message\":\"")));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, agent_setup, agent_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(health_is_open_and_empty),
		TEST(environment_is_sorted_and_html_safe),
		TEST(metrics_are_read_in_a_job),
		TEST(metrics_survive_a_client_that_leaves),
		TEST(unknown_paths_are_404_and_never_redirected),
		TEST(case_139_slashes_are_answered_directly),
		TEST(case_138_wrong_methods_name_the_right_ones),
		TEST(conformance_174_upgrade_is_refused_in_order),
		TEST(case_137_preflight_needs_no_token),
		TEST(case_137_every_answer_may_be_read_by_a_page),
		TEST(case_141_the_gate_cannot_be_dodged),
		TEST(conformance_006_conformance_008_files_have_their_own_gate),
		TEST(conformance_009_to_conformance_014_signed_urls),
		TEST(odd_expirations_are_refused_first),
		TEST(basic_users_must_exist),
		TEST(case_136_garbage_is_answered_in_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
