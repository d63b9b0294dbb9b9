/* process.Process over a real server, in JSON as the SDKs speak it (contract/envd.md 4.4): Start,
 * List, Connect and what is told at the end. */
#include <semaphore.h>

#include "envd/app.h"
#include "envd/limits.h"
#include "envd/process/process_table.h"
#include "lib/http_server.h"
#include "lib/job.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_service_lab.h"
#include "tests/support/turn.h"
#include "tests/support/wire_client.h"

static void conformance_132_events_in_order(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;

	service_open_shell(s, &c, "echo hello; echo oops >&2; exit 3", NULL);
	service_read_stream(&c, &seen);
	assert_int_equal(seen.response.status, 200);
	assert_str(wire_header(&seen.response, "Content-Type"), "application/connect+json");
	service_expect_end(
		&seen,
		"{\"event\":{\"end\":{\"exitCode\":3,\"exited\":true,\"status\":\"exit status "
		"3\",\"error\":\"exit status 3\"}}}");
	assert_str(buf_str(&seen.output[0]), "hello\n");
	assert_str(buf_str(&seen.output[1]), "oops\n");
	service_forget(&seen);
	wire_close(&c);
	service_open_shell(s, &c, "true", NULL);
	service_read_stream(&c, &seen);
	service_expect_end(&seen,
			   "{\"event\":{\"end\":{\"exited\":true,\"status\":\"exit status 0\"}}}");
	service_forget(&seen);
	wire_close(&c);
	service_open_shell(s, &c, "kill -9 $$", NULL);
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "{\"event\":{\"end\":{\"exitCode\":-1,\"status\":\"signal: "
				  "killed\",\"error\":\"signal: killed\"}}}");
	service_forget(&seen);
	wire_close(&c);
}

static void case_015_errors_before_the_first_event(void **state)
{
	struct service *s = *state;

	service_expect_stream_error(
		s, "Start", "{\"process\":{\"cmd\":\"ls\",\"cwd\":\"/nope\"}}",
		"{\"error\":{\"code\":\"invalid_argument\",\"message\":\"cwd '/nope' does "
		"not exist\"}}");
	service_expect_stream_error(s, "Start",
				    "{\"process\":{\"cmd\":\"ls\",\"envs\":{\"A=B\":\"\"}}}",
				    "\"code\":\"invalid_argument\"");
	service_expect_stream_error(s, "Start", "{\"process\":{\"cmd\":\"a\\u0000b\"}}",
				    "\"code\":\"invalid_argument\"");
	sandbox_set_default_user(&s->app.sandbox, "no-such-user");
	service_expect_stream_error(
		s, "Start", "{\"process\":{\"cmd\":\"ls\"}}",
		"\"code\":\"unauthenticated\",\"message\":\"invalid default user: "
		"'no-such-user'\"");
	sandbox_set_default_user(&s->app.sandbox, "");
	service_expect_stream_error(
		s, "Start", "{\"process\":{\"cmd\":\"ls\"}}",
		"\"code\":\"unauthenticated\",\"message\":\"no user specified\"");
}

static void an_empty_command_starts_and_ends(void **state)
{
	static const char *const requests[] = {"{}", "{\"process\":{}}",
					       "{\"process\":{\"cmd\":\"\"}}"};
	struct service *s = *state;
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(requests); i++) {
		struct wire_client c;
		struct seen seen;

		service_open_stream(s, &c, "Start", NULL, requests[i]);
		service_read_stream(&c, &seen);
		service_expect_end(&seen, "\"exitCode\":127");
		service_forget(&seen);
		wire_close(&c);
	}
}

static bool has_begun_or_ended(void *user)
{
	static const char output[] = "\"stdout\":\"YQo=\""; /* a */
	struct wire_client *c = user;

	wire_poll(c);
	return c->eof ||
	       memmem(buf_data(&c->received), buf_length(&c->received), output, strlen(output));
}

static void case_046_timeout_on_the_wire(void **state)
{
	struct service *s = *state;
	struct wire_client c, other;
	struct seen seen;
	char json[64];
	int pid;

	/* More time where the machine is too slow to begin in it. */
	for (unsigned ms = 300;; ms *= 4) {
		snprintf(json, sizeof(json), "Connect-Timeout-Ms: %u\r\n", ms);
		service_open_stream(
			s, &c, "Start", json,
			"{\"process\":{\"cmd\":\"sh\",\"args\":[\"-c\",\"echo a; sleep 20\"]}}");
		wire_wait(&s->app.loop, has_begun_or_ended, &c);
		if (!c.eof)
			break;
		wire_close(&c);
		assert_true(ms < 10000);
	}
	pid = service_wait_for_pid(s, &c);
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", pid);
	service_open_stream(s, &other, "Connect", NULL, json);
	service_read_stream(&c, &seen);
	assert_int_equal(seen.starts, 1);
	assert_int_equal(seen.ends, 0);
	assert_str(buf_str(&seen.output[0]), "a\n");
	assert_string_equal(seen.last,
			    "{\"error\":{\"code\":\"deadline_exceeded\",\"message\":\"context "
			    "deadline exceeded\"}}");
	service_forget(&seen);
	wire_close(&c);
	service_read_stream(&other, &seen);
	service_expect_end(&seen, "signal: killed");
	service_forget(&seen);
	wire_close(&other);
}

static void case_049_deadline_of_connect_ends_only_the_stream(void **state)
{
	struct service *s = *state;
	struct wire_client c, other;
	struct seen seen;
	char json[64];

	service_open_shell(s, &c, "sleep 20", NULL);
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", service_wait_for_pid(s, &c));
	service_open_stream(s, &other, "Connect", "Connect-Timeout-Ms: 100\r\n", json);
	service_read_stream(&other, &seen);
	assert_non_null(strstr(seen.last, "deadline_exceeded"));
	service_forget(&seen);
	wire_close(&other);
	service_expect(s, "List", 200, "sleep 20", "{}");
	wire_close(&c);
}

/* What the client does the moment it hears of the process works. */
static void case_030_registered_before_it_is_told(void **state)
{
	struct service *s = *state;
	size_t i;

	for (i = 0; i < 10; i++) {
		char selector[64], json[128];
		struct wire_client c, other;
		struct seen seen;
		pid_t pid;

		service_open_shell(s, &c, "cat", ",\"tag\":\"t30\"");
		pid = service_wait_for_pid(s, &c);
		if (i % 2)
			snprintf(selector, sizeof(selector), "\"process\":{\"pid\":%d}", pid);
		else
			snprintf(selector, sizeof(selector), "\"process\":{\"tag\":\"t30\"}");
		snprintf(json, sizeof(json), "\"pid\":%d,\"tag\":\"t30\"", pid);
		service_expect(s, "List", 200, json, "{}");
		snprintf(json, sizeof(json), "{%s}", selector);
		service_open_stream(s, &other, "Connect", NULL, json);
		assert_int_equal(service_wait_for_pid(s, &other), pid);
		service_expect(s, "SendInput", 200, "{}", "{%s,\"input\":{\"stdin\":\"aGVsbG8K\"}}",
			       selector);
		service_wait_for(s, &other, "aGVsbG8K");
		service_expect(s, "SendSignal", 200, "{}", "{%s,\"signal\":\"SIGNAL_SIGTERM\"}",
			       selector);
		service_read_stream(&other, &seen);
		service_expect_end(&seen, "signal: terminated");
		service_forget(&seen);
		wire_close(&other);
		service_read_stream(&c, &seen);
		service_expect_end(&seen, "signal: terminated");
		assert_str(buf_str(&seen.output[0]), "hello\n");
		service_forget(&seen);
		wire_close(&c);
		service_expect(s, "List", 200, "{}", "{}");
	}
}

static void case_035_list_after_the_end(void **state)
{
	struct service *s = *state;
	size_t i;

	for (i = 0; i < 30; i++) {
		struct wire_client c;
		struct seen seen;

		service_open_shell(s, &c, "exit 0", NULL);
		service_read_stream(&c, &seen);
		service_forget(&seen);
		wire_close(&c);
		service_expect(s, "List", 200, "{}", "{}");
	}
}

static void list_shows_what_was_asked_for(void **state)
{
	struct service *s = *state;
	struct wire_client c;

	service_open_stream(s, &c, "Start", NULL,
			    "{\"process\":{\"cmd\":\"sleep\",\"args\":[\"20\"],\"envs\":{\"A\":"
			    "\"1\"},\"cwd\":\"/"
			    "tmp\"},\"tag\":\"\",\"pty\":{\"size\":{\"cols\":80,\"rows\":24}}}");
	service_wait_for_pid(s, &c);
	service_expect(s, "List", 200,
		       "{\"processes\":[{\"config\":{\"cmd\":\"sleep\",\"args\":[\"20\"],\"envs\":{"
		       "\"A\":\"1\"},"
		       "\"cwd\":\"/tmp\"},\"pid\":",
		       "{}");
	service_expect(s, "List", 200, "\"tag\":\"\"", "{}");
	wire_close(&c);
}

static sem_t gate;

static void wait_at_gate(struct job *job)
{
	sem_wait(&gate);
}

static void on_let_go(struct job *job)
{
}

/* The loop serves others while a list of much is encoded, and what is listed may end meanwhile. */
static void a_large_list_is_encoded_in_the_pool(void **state)
{
	struct service *s = *state;
	struct job busy[JOB_COMPUTE_MAX] = {0};
	struct wire_client processes[3], list;
	struct wire_response r;
	char *json = xmalloc(RPC_ENCODE_INLINE_BYTES);
	pid_t pids[3];
	size_t early;

	snprintf(json, RPC_ENCODE_INLINE_BYTES,
		 "{\"process\":{\"cmd\":\"sleep\",\"args\":[\"20\"],\"envs\":{\"A\":\"%0*d\"}}}",
		 RPC_ENCODE_INLINE_BYTES * 2 / 5, 7);
	for (size_t i = 0; i < ARRAY_LENGTH(processes); i++) {
		service_open_stream(s, &processes[i], "Start", NULL, json);
		pids[i] = service_wait_for_pid(s, &processes[i]);
	}
	sem_init(&gate, 0, 0);
	for (size_t i = 0; i < ARRAY_LENGTH(busy); i++)
		assert_int_equal(
			job_run(&s->app.loop, &busy[i], JOB_COMPUTE, wait_at_gate, on_let_go), 0);
	wire_open(&list, &s->app.loop, http_server_port(s->app.server));
	wire_printf(&list, "POST /process.Process/List HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
			   "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
	/* Threads are taken, so the list waits; others are answered. */
	for (size_t i = 0; i < ARRAY_LENGTH(processes); i++) {
		service_expect(s, "SendSignal", 200, "{}",
			       "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}", pids[i]);
		service_wait_for(s, &processes[i], "signal: killed");
		wire_close(&processes[i]);
	}
	service_expect(s, "List", 200, "{}", "{}");
	wire_poll(&list);
	early = buf_length(&list.received);
	for (size_t i = 0; i < ARRAY_LENGTH(busy); i++)
		sem_post(&gate);
	assert_int_equal(early, 0);
	wire_read_response(&list, &r);
	assert_int_equal(r.status, 200);
	assert_true(buf_length(&r.body) > 3 * (size_t)RPC_ENCODE_INLINE_BYTES * 2 / 5);
	wire_response_fini(&r);
	wire_close(&list);
	/* The list needed one of the threads; the others' jobs are still here. */
	TURN_UNTIL(&s->app.loop, s->app.loop.jobs_running == 0);
	sem_destroy(&gate);
	free(json);
}

static void conformance_134_client_leaves_a_flood(void **state)
{
	struct service *s = *state;
	size_t i;

	for (i = 0; i < 10; i++) {
		struct wire_client c;
		pid_t pid;

		service_open_shell(s, &c, "exec yes", i % 2 ? ",\"pty\":{}" : NULL);
		pid = service_wait_for_pid(s, &c);
		service_wait_for(s, &c, "\"data\"");
		wire_reset(&c);
		service_expect(s, "List", 200, "yes", "{}");
		service_expect(s, "SendSignal", 200, "{}",
			       "{\"process\":{\"pid\":%d},\"signal\":9}", pid);
		service_expect(s, "List", 200, "{}", "{}");
	}
}

static void case_009_clients_leave_at_any_moment(void **state)
{
	struct service *s = *state;
	size_t i, round;

	for (i = 0; i < 40; i++) {
		struct wire_client c;

		service_open_shell(s, &c, "yes | head -n 1000000", i % 3 ? NULL : ",\"pty\":{}");
		for (round = 0; round < i; round++)
			service_turn(s);
		wire_reset(&c);
	}
	service_expect(s, "List", 200, "", "{}");
}

/* ---- Connect ---- */

static void conformance_135_exit_by_pid(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	char json[64];

	service_open_shell(s, &c, "echo x; exit 7", NULL);
	service_read_stream(&c, &seen);
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", seen.pid);
	service_forget(&seen);
	wire_close(&c);
	service_open_stream(s, &c, "Connect", NULL, json);
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "\"exitCode\":7");
	assert_int_equal(seen.data, 0);
	service_forget(&seen);
	wire_close(&c);
}

static void conformance_136_exit_by_tag(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	int pid;

	service_open_shell(s, &c, "exit 8", ",\"tag\":\"build\"");
	service_read_stream(&c, &seen);
	pid = seen.pid;
	service_forget(&seen);
	wire_close(&c);
	service_open_stream(s, &c, "Connect", NULL, "{\"process\":{\"tag\":\"build\"}}");
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "\"exitCode\":8");
	assert_int_equal(seen.pid, pid);
	service_forget(&seen);
	wire_close(&c);
}

static void conformance_137_unknown(void **state)
{
	struct service *s = *state;

	service_expect_stream_error(
		s, "Connect", "{\"process\":{\"pid\":4000000000}}",
		"{\"error\":{\"code\":\"not_found\",\"message\":\"process with pid 4000000000 "
		"not found\"}}");
	service_expect_stream_error(s, "Connect", "{\"process\":{\"tag\":\"x\"}}",
				    "\"process with tag x not found\"");
	service_expect_stream_error(s, "Connect", "{\"process\":{}}",
				    "\"code\":\"unimplemented\",\"message\":\"invalid input type "
				    "*process.ProcessSelector\"");
	service_expect_stream_error(s, "Connect", "{}", "\"code\":\"unimplemented\"");
}

static void conformance_142_a_new_start_with_the_same_tag(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	int first;

	service_open_shell(s, &c, "exit 1", ",\"tag\":\"same\"");
	service_read_stream(&c, &seen);
	first = seen.pid;
	service_forget(&seen);
	wire_close(&c);
	service_open_shell(s, &c, "exit 2", ",\"tag\":\"other\"");
	service_read_stream(&c, &seen);
	service_forget(&seen);
	wire_close(&c);
	service_open_shell(s, &c, "exit 3", ",\"tag\":\"same\"");
	service_read_stream(&c, &seen);
	service_forget(&seen);
	wire_close(&c);
	assert_null(process_table_find_exit(s->app.processes, first));
	service_open_stream(s, &c, "Connect", NULL, "{\"process\":{\"tag\":\"same\"}}");
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "\"exitCode\":3");
	service_forget(&seen);
	wire_close(&c);
	service_open_stream(s, &c, "Connect", NULL, "{\"process\":{\"tag\":\"other\"}}");
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "\"exitCode\":2");
	service_forget(&seen);
	wire_close(&c);
}

/* Several tags at once: each is found, the newest of equal ones first. */
static void tags_are_searched_properly(void **state)
{
	struct service *s = *state;
	struct wire_client a, b, c, d;
	pid_t newest;
	char text[64];

	service_open_shell(s, &a, "sleep 20", ",\"tag\":\"a\"");
	service_wait_for_pid(s, &a);
	service_open_shell(s, &b, "sleep 20", ",\"tag\":\"b\"");
	service_wait_for_pid(s, &b);
	service_open_shell(s, &c, "sleep 20", ",\"tag\":\"a\"");
	newest = service_wait_for_pid(s, &c);
	service_open_stream(s, &d, "Connect", NULL, "{\"process\":{\"tag\":\"a\"}}");
	assert_int_equal(service_wait_for_pid(s, &d), newest);
	service_expect(s, "SendSignal", 200, "{}", "{\"process\":{\"tag\":\"b\"},\"signal\":9}");
	snprintf(text, sizeof(text), "\"pid\":%d", newest);
	service_expect(s, "List", 200, text, "{}");
	wire_close(&a);
	wire_close(&b);
	wire_close(&c);
	wire_close(&d);
}

/* The leader has ended, a child holds the pipe: whoever connects now sees the end. */
static void conformance_138_connect_while_draining(void **state)
{
	struct service *s = *state;
	struct wire_client c, late;
	struct seen seen;
	char json[64];
	pid_t pid;

	service_open_shell(
		s, &c,
		"(i=0; while [ $i -lt 15 ]; do sleep 0.05; echo t; i=$((i+1)); done) & exit 4",
		NULL);
	pid = service_wait_for_pid(s, &c);
	while (process_table_find(s->app.processes, pid))
		service_turn(s);
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", pid);
	service_open_stream(s, &late, "Connect", NULL, json);
	service_read_stream(&late, &seen);
	service_expect_end(&seen, "\"exitCode\":4");
	service_forget(&seen);
	wire_close(&late);
	service_expect(s, "SendSignal", 404, "not_found", "{\"process\":{\"pid\":%d},\"signal\":9}",
		       pid);
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "\"exitCode\":4");
	service_forget(&seen);
	wire_close(&c);
}

static void case_069_many_viewers_at_once(void **state)
{
	enum { VIEWERS = 20 };
	struct service *s = *state;
	struct wire_client c, viewers[VIEWERS];
	struct seen seen, first;
	char json[64];
	size_t i;
	pid_t pid;

	service_open_shell(s, &c, "stty raw -echo; echo ready; head -n 1; seq 1 5000",
			   ",\"pty\":{\"size\":{\"cols\":80,\"rows\":24}}");
	pid = service_wait_for_pid(s, &c);
	service_wait_for(s, &c, "\"data\"");
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", pid);
	for (i = 0; i < VIEWERS; i++)
		service_open_stream(s, &viewers[i], "Connect", NULL, json);
	for (i = 0; i < VIEWERS; i++)
		service_wait_for_pid(s, &viewers[i]);
	service_expect(s, "SendInput", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"eAo=\"}}", pid);
	service_read_stream(&viewers[0], &first);
	service_expect_end(&first, "exit status 0");
	assert_true(buf_length(&first.output[2]) > 20000);
	for (i = 1; i < VIEWERS; i++) {
		service_read_stream(&viewers[i], &seen);
		service_expect_end(&seen, "exit status 0");
		assert_true(str_equal(buf_str(&first.output[2]), buf_str(&seen.output[2])));
		service_forget(&seen);
		wire_close(&viewers[i]);
	}
	service_forget(&first);
	wire_close(&viewers[0]);
	wire_close(&c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, service_setup, service_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_132_events_in_order),
		TEST(case_015_errors_before_the_first_event),
		TEST(an_empty_command_starts_and_ends),
		TEST(case_046_timeout_on_the_wire),
		TEST(case_049_deadline_of_connect_ends_only_the_stream),
		TEST(case_030_registered_before_it_is_told),
		TEST(case_035_list_after_the_end),
		TEST(list_shows_what_was_asked_for),
		TEST(a_large_list_is_encoded_in_the_pool),
		TEST(conformance_134_client_leaves_a_flood),
		TEST(case_009_clients_leave_at_any_moment),
		TEST(conformance_135_exit_by_pid),
		TEST(conformance_136_exit_by_tag),
		TEST(conformance_137_unknown),
		TEST(conformance_142_a_new_start_with_the_same_tag),
		TEST(tags_are_searched_properly),
		TEST(conformance_138_connect_while_draining),
		TEST(case_069_many_viewers_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
