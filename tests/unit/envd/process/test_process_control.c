/* Sizes, signals and keepalives over a real server (contract/envd.md 4.4). */
#include <signal.h>
#include <unistd.h>

#include "envd/app.h"
#include "envd/process/process_table.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_service_lab.h"
#include "tests/support/wire_client.h"

static void case_059_impossible_sizes(void **state)
{
	static const char *const sizes[] = {
		"{\"cols\":0,\"rows\":0}", "{\"cols\":65536,\"rows\":24}", "{\"cols\":80}",
		"{\"cols\":4294967295,\"rows\":1}", "{}"};
	struct service *s = *state;
	struct wire_client c;
	char json[256];
	size_t i;
	pid_t pid;

	service_open_shell(s, &c, "stty size; exec sleep 20",
			   ",\"pty\":{\"size\":{\"cols\":65535,\"rows\":65535}}");
	pid = service_wait_for_pid(s, &c);
	service_wait_for(s, &c, "NjU1MzUgNjU1MzUNCg=="); /* 65535 65535 */
	for (i = 0; i < ARRAY_LENGTH(sizes); i++) {
		snprintf(json, sizeof(json), "{\"process\":{\"cmd\":\"true\"},\"pty\":{\"size\":%s}}",
			 sizes[i]);
		service_expect_stream_error(s, "Start", json, "\"code\":\"invalid_argument\"");
		service_expect(s, "Update", 400, "\"code\":\"invalid_argument\"",
			       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":%s}}", pid, sizes[i]);
	}
	service_expect(s, "Update", 200, "{}", "{\"process\":{\"pid\":%d},\"pty\":{}}", pid);
	service_expect(s, "Update", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	wire_close(&c);
}

static void case_058_resize_on_the_wire(void **state)
{
	struct service *s = *state;
	struct wire_client c, pipe;
	struct seen seen;
	pid_t pid;

	service_open_shell(
		s, &c, "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.02; done",
		",\"pty\":{}");
	pid = service_wait_for_pid(s, &c);
	service_wait_for(s, &c, "\"pty\"");
	service_expect(s, "Update", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":{\"cols\":100,\"rows\":50}}}",
		       pid);
	service_read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[2]), "ready\r\n50 100\r\n");
	service_forget(&seen);
	wire_close(&c);
	service_expect(s, "Update", 404, "not_found",
		       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":{\"cols\":100,\"rows\":50}}}",
		       pid);
	service_open_shell(s, &pipe, "sleep 20", NULL);
	pid = service_wait_for_pid(s, &pipe);
	service_expect(
		s, "Update", 400,
		"{\"code\":\"invalid_argument\",\"message\":\"error resizing tty: tty not assigned to "
		"process\"}",
		"{\"process\":{\"pid\":%d},\"pty\":{\"size\":{\"cols\":100,\"rows\":50}}}", pid);
	wire_close(&pipe);
}

static void case_055_signals(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	pid_t pid;

	service_open_shell(s, &c, "sleep 20", NULL);
	pid = service_wait_for_pid(s, &c);
	service_expect(s, "SendSignal", 501, "invalid signal: SIGNAL_UNSPECIFIED",
		       "{\"process\":{\"pid\":%d}}", pid);
	service_expect(s, "SendSignal", 501, "invalid signal: 2",
		       "{\"process\":{\"pid\":%d},\"signal\":2}", pid);
	service_expect(s, "SendSignal", 501, "invalid signal: 99",
		       "{\"process\":{\"pid\":%d},\"signal\":99}", pid);
	service_expect(s, "SendSignal", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}", pid);
	assert_int_equal(kill(pid, 0), -1);
	service_expect(s, "SendSignal", 404, "process with pid",
		       "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}", pid);
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "signal: killed");
	service_forget(&seen);
	wire_close(&c);
	service_expect(s, "SendSignal", 404, "not_found",
		       "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGTERM\"}", pid);
	service_expect(s, "SendSignal", 501, "invalid input type *process.ProcessSelector",
		       "{\"signal\":9}");
}

/* Somebody else's process is not ours to signal, whatever its number. */
static void case_029_only_tracked_pids(void **state)
{
	struct service *s = *state;

	service_expect(s, "SendSignal", 404, "not_found", "{\"process\":{\"pid\":%d},\"signal\":9}",
		       getpid());
	service_expect(s, "SendSignal", 404, "not_found", "{\"process\":{\"pid\":1},\"signal\":9}");
	service_expect(s, "SendSignal", 404, "not_found", "{\"process\":{\"pid\":0},\"signal\":9}");
}

/* A client that stops reading does not hold up the kill, and still finds its end. */
static void case_056_kill_with_a_stalled_client(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	struct process *process;
	pid_t pid;

	service_open_shell(s, &c, "exec yes", NULL);
	pid = service_wait_for_pid(s, &c);
	process = process_table_find(s->app.processes, pid);
	while (!process->output.paused)
		service_turn(s);
	service_expect(s, "SendSignal", 200, "{}", "{\"process\":{\"pid\":%d},\"signal\":9}", pid);
	service_expect(s, "List", 200, "{}", "{}");
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "signal: killed");
	service_forget(&seen);
	wire_close(&c);
}

static void case_070_keepalive(void **state)
{
	struct service *s = *state;
	uint64_t began = uv_hrtime();
	struct wire_client c;
	struct seen seen;
	pid_t pid;

	service_open_stream(s, &c, "Start", "Keepalive-Ping-Interval: 1\r\n",
			    "{\"process\":{\"cmd\":\"sleep\",\"args\":[\"1000\"]}}");
	pid = service_wait_for_pid(s, &c);
	service_wait_for(s, &c, "\"keepalive\"");
	service_expect(s, "SendSignal", 200, "{}", "{\"process\":{\"pid\":%d},\"signal\":9}", pid);
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "signal: killed");
	assert_true(seen.keepalives >= 1 && seen.keepalives <= (uv_hrtime() - began) / 1000000000);
	service_forget(&seen);
	wire_close(&c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, service_setup, service_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_059_impossible_sizes),
		TEST(case_058_resize_on_the_wire),
		TEST(case_055_signals),
		TEST(case_029_only_tracked_pids),
		TEST(case_056_kill_with_a_stalled_client),
		TEST(case_070_keepalive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
