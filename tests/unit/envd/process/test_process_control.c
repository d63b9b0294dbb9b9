/* Sizes, signals and keepalives over a real server (contract/envd.md 4.4). */
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "envd/app.h"
#include "envd/process/process_table.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_service_lab.h"
#include "tests/support/wire_client.h"

/* What clients without a terminal of their own send, and what does not fit. */
static const struct {
	const char *size;
	unsigned cols, rows; /* 0: nothing was said */
} odd_sizes[] = {
	{"{}", 0, 0},
	{"{\"cols\":0,\"rows\":0}", 0, 0},
	{"{\"cols\":81}", 81, 0},
	{"{\"rows\":25}", 0, 25},
	{"{\"cols\":70000,\"rows\":26}", 65535, 26},
	{"{\"cols\":65535,\"rows\":65536}", 65535, 65535},
	{"{\"cols\":4294967295,\"rows\":1}", 65535, 1},
};

static void case_059_case_174_any_size_at_the_start(void **state)
{
	struct service *s = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(odd_sizes); i++) {
		struct wire_client c;
		struct seen seen;
		char pty[128], expected[32];

		snprintf(pty, sizeof(pty), ",\"pty\":{\"size\":%s}", odd_sizes[i].size);
		snprintf(expected, sizeof(expected), "%u %u\r\n",
			 odd_sizes[i].rows ? odd_sizes[i].rows : 24,
			 odd_sizes[i].cols ? odd_sizes[i].cols : 80);
		service_open_shell(s, &c, "stty size", pty);
		service_read_stream(&c, &seen);
		service_expect_end(&seen, "exit status 0");
		assert_true(str_equal(buf_str(&seen.output[2]), str_of(expected)));
		service_forget(&seen);
		wire_close(&c);
	}
}

static void case_059_case_174_any_size_later(void **state)
{
	struct service *s = *state;
	unsigned cols = 133, rows = 37;
	struct process *process;
	struct wire_client c;
	pid_t pid;

	service_open_shell(s, &c, "exec sleep 20",
			   ",\"pty\":{\"size\":{\"cols\":133,\"rows\":37}}");
	pid = service_wait_for_pid(s, &c);
	process = process_table_find(s->app.processes, pid);
	for (size_t i = 0; i < ARRAY_LENGTH(odd_sizes); i++) {
		struct winsize size;

		cols = odd_sizes[i].cols ? odd_sizes[i].cols : cols;
		rows = odd_sizes[i].rows ? odd_sizes[i].rows : rows;
		service_expect(s, "Update", 200, "{}",
			       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":%s}}", pid,
			       odd_sizes[i].size);
		assert_int_equal(ioctl(process->terminal_fd, TIOCGWINSZ, &size), 0);
		assert_int_equal(size.ws_col, cols);
		assert_int_equal(size.ws_row, rows);
	}
	service_expect(s, "Update", 200, "{}", "{\"process\":{\"pid\":%d},\"pty\":{}}", pid);
	service_expect(s, "Update", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	/* No number of this field at all. */
	service_expect(s, "Update", 400, "\"code\":\"invalid_argument\"",
		       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":{\"cols\":-1}}}", pid);
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
	service_expect(s, "Update", 400,
		       "{\"code\":\"invalid_argument\",\"message\":\"error resizing tty: tty not "
		       "assigned to "
		       "process\"}",
		       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":{\"cols\":100,\"rows\":50}}}",
		       pid);
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
		TEST(case_059_case_174_any_size_at_the_start),
		TEST(case_059_case_174_any_size_later),
		TEST(case_058_resize_on_the_wire),
		TEST(case_055_signals),
		TEST(case_029_only_tracked_pids),
		TEST(case_056_kill_with_a_stalled_client),
		TEST(case_070_keepalive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
