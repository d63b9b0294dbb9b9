/* Input of commands over a real server (contract/envd.md 4.4): SendInput, StreamInput and
 * CloseStdin. */
#include "envd/app.h"
#include "envd/process/process_table.h"
#include "lib/http_server.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_service_lab.h"
#include "tests/support/wire_client.h"

static void case_039_input_and_its_end(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	size_t i;
	pid_t pid;

	service_open_shell(s, &c, "sha256sum; echo $?", ",\"stdin\":true");
	pid = service_wait_for_pid(s, &c);
	for (i = 0; i < 5; i++)
		service_expect(s, "SendInput", 200, "{}",
			       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}",
			       pid);
	service_expect(s, "SendInput", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"\"}}", pid);
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	service_read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[0]),
		   "f7f1c9d01ff8d1bf71d7adf7fd1467cf180c81a2c91109c9a7c280ba38161178  -\n0\n");
	service_expect_end(&seen, "exit status 0");
	service_forget(&seen);
	wire_close(&c);
	service_expect(s, "SendInput", 404, "not_found",
		       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
}

static void case_039_close_twice_then_write(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	pid_t pid;

	service_open_shell(s, &c, "cat; sleep 20", NULL); /* unset means a pipe */
	pid = service_wait_for_pid(s, &c);
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	service_expect(
		s, "SendInput", 400,
		"{\"code\":\"failed_precondition\",\"message\":\"error writing to stdin: stdin not "
		"enabled or closed\"}",
		"{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
	wire_close(&c);
}

static void case_038_no_stdin(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	pid_t pid;

	service_open_shell(s, &c, "cat; read -r x; echo $?; sleep 0.5", ",\"stdin\":false");
	pid = service_wait_for_pid(s, &c);
	service_expect(s, "SendInput", 400, "stdin not enabled or closed",
		       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	service_read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[0]), "1\n");
	service_forget(&seen);
	wire_close(&c);
}

static void conformance_150_read_without_stdin(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;

	service_open_stream(s, &c, "Start", NULL,
			    "{\"process\":{\"cmd\":\"bash\",\"args\":[\"-c\",\"read -p x "
			    "y\"]},\"stdin\":false}");
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "\"exitCode\":1");
	service_forget(&seen);
	wire_close(&c);
}

/* {"process":{"pid":N},"input":{"KIND":"<len bytes of 'a' in base64>"}} */
static struct str big_input(pid_t pid, const char *kind, size_t len)
{
	size_t encoded = (len + 2) / 3 * 4;
	char *text = xmalloc(encoded + 200);
	int used = sprintf(text, "{\"process\":{\"pid\":%d},\"input\":{\"%s\":\"", pid, kind);
	size_t i;

	assert_int_equal(len % 3, 0);
	for (i = 0; i < encoded; i += 4)
		memcpy(text + used + i, "YWFh", 4); /* aaa */
	memcpy(text + used + encoded, "\"}}", 4);
	return (struct str){text, (size_t)used + encoded + 3};
}

/* A SendInput on a connection of its own, whose answer is waited for by the caller. */
static void send_input(struct service *s, struct wire_client *input, struct str json)
{
	wire_open(input, &s->app.loop, http_server_port(s->app.server));
	wire_printf(input,
		    "POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: "
		    "application/json\r\nContent-Length: %zu\r\n\r\n",
		    json.len);
	wire_send_str(input, json);
}

static void case_040_input_larger_than_the_pipe(void **state)
{
	struct service *s = *state;
	struct wire_client c, input;
	struct wire_response r;
	struct seen seen;
	struct str json;
	pid_t pid;

	service_open_shell(s, &c, "echo ready; sleep 0.3; wc -c", NULL);
	pid = service_wait_for_pid(s, &c);
	service_wait_for(s, &c, "\"data\"");
	json = big_input(pid, "stdin", 6 * 1024 * 1024);
	send_input(s, &input, json);
	/* The end of stdin queues up behind what is still being written. */
	while (process_table_find(s->app.processes, pid)->input.count == 0)
		service_turn(s);
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	wire_read_response(&input, &r);
	if (r.status != 200)
		fail_msg("%.*s", (int)buf_length(&r.body), buf_data(&r.body));
	wire_response_fini(&r);
	service_read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[0]), "ready\n6291456\n");
	service_forget(&seen);
	free((char *)(uintptr_t)json.p);
	wire_close(&input);
	wire_close(&c);
}

static void case_042_broken_pipe(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	char message[200];
	size_t i;
	pid_t pid;

	service_open_shell(s, &c, "exec <&-; echo ready; sleep 0.7; exit 6", NULL);
	pid = service_wait_for_pid(s, &c);
	service_wait_for(s, &c, "\"data\"");
	snprintf(message, sizeof(message),
		 "{\"code\":\"failed_precondition\",\"message\":\"error writing to stdin: error "
		 "writing "
		 "to stdin of process '%d': write |1: broken pipe\"}",
		 pid);
	for (i = 0; i < 10; i++)
		service_expect(s, "SendInput", 400, message,
			       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}",
			       pid);
	service_read_stream(&c, &seen);
	service_expect_end(&seen, "\"exitCode\":6");
	service_forget(&seen);
	wire_close(&c);
}

/* Input waits for a program that never reads; killing it answers the waiting call. */
static void case_042_input_pending_at_the_end(void **state)
{
	struct service *s = *state;
	struct wire_client c, input;
	struct wire_response r;
	struct str json;
	pid_t pid;

	service_open_shell(s, &c, "sleep 20", NULL);
	pid = service_wait_for_pid(s, &c);
	json = big_input(pid, "stdin", 300 * 1024);
	send_input(s, &input, json);
	while (process_table_find(s->app.processes, pid)->input.count == 0)
		service_turn(s);
	service_expect(s, "SendSignal", 200, "{}", "{\"process\":{\"pid\":%d},\"signal\":9}", pid);
	wire_read_response(&input, &r);
	/* Which of the two comes first is the kernel's choice: the broken pipe or the exit. */
	assert_true(r.status == 404 || r.status == 400);
	assert_non_null(memmem(buf_data(&r.body), buf_length(&r.body),
			       r.status == 404 ? "not_found" : "broken pipe", 9));
	wire_response_fini(&r);
	free((char *)(uintptr_t)json.p);
	wire_close(&input);
	wire_close(&c);
}

static void leave_by_reset(struct wire_client *c)
{
	wire_reset(c);
}

static void leave_orderly(struct wire_client *c)
{
	wire_close(c);
}

static void (*const ways_to_leave[])(struct wire_client *c) = {leave_by_reset, leave_orderly};

/* A client that leaves takes its waiting input with it; others are not held up by it. */
static void input_of_a_client_that_left_is_dropped(void **state)
{
	struct service *s = *state;
	struct wire_client c, input;
	struct process *process;
	struct str json;
	pid_t pid;

	service_open_shell(s, &c, "sleep 20", NULL);
	pid = service_wait_for_pid(s, &c);
	process = process_table_find(s->app.processes, pid);
	json = big_input(pid, "stdin", 300 * 1024);
	for (size_t i = 0; i < ARRAY_LENGTH(ways_to_leave); i++) {
		send_input(s, &input, json);
		while (process->input.count == 0)
			service_turn(s);
		ways_to_leave[i](&input);
		while (process->input.count > 0)
			service_turn(s);
	}
	/* Its end came with the request. */
	send_input(s, &input, json);
	wire_shutdown(&input);
	while (!input.eof)
		wire_poll(&input);
	assert_int_equal(buf_length(&input.received), 0);
	assert_int_equal(process->input.count, 0);
	wire_close(&input);
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	free((char *)(uintptr_t)json.p);
	wire_close(&c);
}

/* Who ends its direction behind the request still gets the answer that needs no waiting. */
static void input_of_a_half_closing_client(void **state)
{
	struct service *s = *state;
	struct wire_client c, input;
	struct wire_response r;
	char body[200];
	pid_t pid;
	int len;

	service_open_shell(s, &c, "head -c 5; sleep 20", NULL);
	pid = service_wait_for_pid(s, &c);
	len = snprintf(body, sizeof(body),
		       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
	send_input(s, &input, (struct str){body, (size_t)len});
	wire_shutdown(&input);
	wire_read_response(&input, &r);
	assert_int_equal(r.status, 200);
	wire_response_fini(&r);
	wire_close(&input);
	service_wait_for(s, &c, "aGVsbG8=");
	wire_close(&c);
}

static void case_067_wrong_channel(void **state)
{
	struct service *s = *state;
	struct wire_client c, p;
	pid_t pid;

	service_open_shell(s, &c, "sleep 20", NULL);
	pid = service_wait_for_pid(s, &c);
	service_expect(s, "SendInput", 400,
		       "{\"code\":\"failed_precondition\",\"message\":\"error writing to tty: tty "
		       "not assigned "
		       "to process — input should be written to the stdin, not the tty\"}",
		       "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"eAo=\"}}", pid);
	service_expect(s, "SendInput", 501, "\"message\":\"invalid input type ",
		       "{\"process\":{\"pid\":%d}}", pid);
	service_expect(s, "SendInput", 501, "\"message\":\"invalid input type ",
		       "{\"process\":{\"pid\":%d},\"input\":{}}", pid);
	service_open_shell(s, &p, "echo ready; cat; exit 5", ",\"pty\":{}");
	pid = service_wait_for_pid(s, &p);
	service_wait_for(s, &p, "\"pty\"");
	service_expect(s, "SendInput", 400,
		       "{\"code\":\"failed_precondition\",\"message\":\"error writing to stdin: "
		       "tty assigned to "
		       "process — input should be written to the pty, not the stdin\"}",
		       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"eAo=\"}}", pid);
	service_expect(s, "CloseStdin", 400,
		       "{\"code\":\"failed_precondition\",\"message\":\"error closing stdin: "
		       "cannot close stdin "
		       "for PTY process — send Ctrl+D (0x04) instead\"}",
		       "{\"process\":{\"pid\":%d}}", pid);
	/* 0x04 ends cat, 0x03 interrupts. */
	service_expect(s, "SendInput", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"BA==\"}}", pid);
	service_wait_for(s, &p, "exit status 5");
	wire_close(&p);
	service_open_shell(s, &p, "echo ready; exec sleep 20", ",\"pty\":{}");
	pid = service_wait_for_pid(s, &p);
	service_wait_for(s, &p, "\"pty\"");
	service_expect(s, "SendInput", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"Aw==\"}}", pid);
	service_wait_for(s, &p, "signal: interrupt");
	wire_close(&c);
	wire_close(&p);
}

static void case_062_large_paste(void **state)
{
	struct service *s = *state;
	struct wire_client c, other;
	struct wire_response r;
	struct seen seen;
	struct str json;
	pid_t pid;

	service_open_shell(s, &c, "stty raw -echo; echo ready; sleep 0.3; head -c 262143 | wc -c",
			   ",\"pty\":{\"size\":{\"cols\":80,\"rows\":24}}");
	pid = service_wait_for_pid(s, &c);
	service_wait_for(s, &c, "\"pty\"");
	json = big_input(pid, "pty", 262143);
	service_call(s, "SendInput", json, &r);
	assert_int_equal(r.status, 200);
	wire_response_fini(&r);
	service_open_shell(s, &other, "echo meanwhile", NULL);
	service_read_stream(&other, &seen);
	service_expect_end(&seen, "exit status 0");
	service_forget(&seen);
	wire_close(&other);
	service_read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[2]), "ready\n262143\n");
	service_forget(&seen);
	free((char *)(uintptr_t)json.p);
	wire_close(&c);
}

/* Both directions are full at once: neither waits for the other. */
static void case_045_echoing_filter(void **state)
{
	struct service *s = *state;
	struct wire_client c, input;
	struct wire_response r;
	struct seen seen;
	struct str json;
	pid_t pid;

	service_open_shell(s, &c, "cat", NULL);
	pid = service_wait_for_pid(s, &c);
	json = big_input(pid, "stdin", 9 * 1024 * 1024);
	send_input(s, &input, json);
	while (process_table_find(s->app.processes, pid)->input.count == 0) {
		service_turn(s);
		wire_poll(&c);
	}
	/* The input has its answer only because somebody reads the output meanwhile. */
	while (process_table_find(s->app.processes, pid)->input.count > 0)
		wire_poll(&c);
	wire_read_response(&input, &r);
	if (r.status != 200)
		fail_msg("%.*s", (int)buf_length(&r.body), buf_data(&r.body));
	wire_response_fini(&r);
	wire_close(&input);
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	service_read_stream(&c, &seen);
	assert_int_equal(buf_length(&seen.output[0]), 9 * 1024 * 1024);
	service_expect_end(&seen, "exit status 0");
	service_forget(&seen);
	free((char *)(uintptr_t)json.p);
	wire_close(&c);
}

/* ---- StreamInput ---- */

static void append_envelope(struct buf *b, const char *format, ...) PRINTF_LIKE(2, 3);

static void append_envelope(struct buf *b, const char *format, ...)
{
	char json[512];
	va_list arguments;
	int len;
	unsigned char prefix[5] = {0};

	va_start(arguments, format);
	len = vsnprintf(json, sizeof(json), format, arguments);
	va_end(arguments);
	prefix[3] = (unsigned char)(len >> 8);
	prefix[4] = (unsigned char)len;
	assert_int_equal(buf_append(b, prefix, 5), 0);
	assert_int_equal(buf_append(b, json, (size_t)len), 0);
}

static void stream_input(struct service *s, struct buf *messages, const char *expected)
{
	struct wire_client c;
	struct wire_response r;

	service_send_stream_head(s, &c, "StreamInput", NULL);
	wire_printf(&c, "Content-Length: %zu\r\n\r\n", buf_length(messages));
	wire_send_str(&c, buf_str(messages));
	wire_read_response(&c, &r);
	assert_int_equal(r.status, 200);
	if (!memmem(buf_data(&r.body), buf_length(&r.body), expected, strlen(expected)))
		fail_msg("%.*s", (int)buf_length(&r.body) - 5, buf_data(&r.body) + 5);
	wire_response_fini(&r);
	wire_close(&c);
	buf_fini(messages);
	buf_init(messages, SIZE_MAX / 2);
}

static void case_043_keystrokes_in_order(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	struct buf messages;
	pid_t pid;
	size_t i;

	buf_init(&messages, SIZE_MAX / 2);
	service_open_shell(s, &c, "cat", NULL);
	pid = service_wait_for_pid(s, &c);
	append_envelope(&messages, "{\"start\":{\"process\":{\"pid\":%d}}}", pid);
	for (i = 0; i < 30000; i++) {
		static const char *const letters[] = {"YQ==", "Yg==", "Yw=="};

		append_envelope(&messages, "{\"data\":{\"input\":{\"stdin\":\"%s\"}}}",
				letters[i % 3]);
		if (i % 1000 == 0)
			append_envelope(&messages, "{\"keepalive\":{}}");
	}
	stream_input(s, &messages, "{}");
	for (i = 0; i < 20; i++)
		service_expect(s, "SendInput", 200, "{}",
			       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"eHl6\"}}", pid);
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	service_read_stream(&c, &seen);
	assert_int_equal(buf_length(&seen.output[0]), 30060);
	for (i = 0; i < 30000; i++)
		assert_int_equal(buf_data(&seen.output[0])[i], "abc"[i % 3]);
	for (i = 0; i < 60; i++)
		assert_int_equal(buf_data(&seen.output[0])[30000 + i], "xyz"[i % 3]);
	service_forget(&seen);
	wire_close(&c);
	buf_fini(&messages);
}

static void case_044_odd_input_streams(void **state)
{
	struct service *s = *state;
	struct wire_client c, d;
	struct buf messages;
	pid_t first, second;

	buf_init(&messages, SIZE_MAX / 2);
	service_open_shell(s, &c, "cat", NULL);
	first = service_wait_for_pid(s, &c);
	service_open_shell(s, &d, "cat", NULL);
	second = service_wait_for_pid(s, &d);
	append_envelope(&messages, "{\"data\":{\"input\":{\"stdin\":\"YQ==\"}}}");
	stream_input(s, &messages, "\"code\":\"invalid_argument\"");
	stream_input(s, &messages, "{}"); /* empty */
	append_envelope(&messages, "{\"keepalive\":{}}");
	stream_input(s, &messages, "{}");
	append_envelope(&messages, "{}");
	stream_input(s, &messages, "\"code\":\"unimplemented\",\"message\":\"invalid event type ");
	append_envelope(&messages, "{\"start\":{}}");
	stream_input(s, &messages, "\"code\":\"unimplemented\"");
	append_envelope(&messages, "{\"start\":{\"process\":{\"pid\":4000000000}}}");
	stream_input(s, &messages, "\"code\":\"not_found\"");
	append_envelope(&messages, "{\"start\":{\"process\":{\"pid\":%d}}}", first);
	append_envelope(&messages, "{\"data\":{}}");
	stream_input(s, &messages, "\"code\":\"unimplemented\"");
	/* A second start switches. */
	append_envelope(&messages, "{\"start\":{\"process\":{\"pid\":%d}}}", first);
	append_envelope(&messages, "{\"data\":{\"input\":{\"stdin\":\"Zmlyc3Q=\"}}}");
	append_envelope(&messages, "{\"start\":{\"process\":{\"pid\":%d}}}", second);
	append_envelope(&messages, "{\"data\":{\"input\":{\"stdin\":\"c2Vjb25k\"}}}");
	stream_input(s, &messages, "{}");
	service_wait_for(s, &c, "\"Zmlyc3Q=\"");
	service_wait_for(s, &d, "\"c2Vjb25k\"");
	/* Not JSON. */
	append_envelope(&messages, "nonsense");
	stream_input(s, &messages, "\"code\":\"unknown\",\"message\":\"error streaming input: ");
	wire_close(&c);
	wire_close(&d);
	buf_fini(&messages);
}

/* The stream's data waits for the program, and goes on when it reads. */
static void stream_input_waits_for_the_program(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	struct buf messages;
	char *data = xmalloc(400 * 1024);
	pid_t pid;
	size_t i;

	buf_init(&messages, SIZE_MAX / 2);
	service_open_shell(s, &c, "sleep 0.3; wc -c", NULL);
	pid = service_wait_for_pid(s, &c);
	append_envelope(&messages, "{\"start\":{\"process\":{\"pid\":%d}}}", pid);
	for (i = 0; i < 3; i++) {
		int len = sprintf(data, "{\"data\":{\"input\":{\"stdin\":\"");
		unsigned char prefix[5] = {0};
		size_t at;

		for (at = 0; at < 200000; at += 4)
			memcpy(data + len + at, "YWFh", 4);
		memcpy(data + len + at, "\"}}}", 4);
		at += (size_t)len + 4;
		prefix[2] = (unsigned char)(at >> 16);
		prefix[3] = (unsigned char)(at >> 8);
		prefix[4] = (unsigned char)at;
		assert_int_equal(buf_append(&messages, prefix, 5), 0);
		assert_int_equal(buf_append(&messages, data, at), 0);
	}
	stream_input(s, &messages, "{}");
	service_expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	service_read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[0]), "450000\n");
	service_forget(&seen);
	wire_close(&c);
	buf_fini(&messages);
	free(data);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, service_setup, service_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_039_input_and_its_end),
		TEST(case_039_close_twice_then_write),
		TEST(case_038_no_stdin),
		TEST(conformance_150_read_without_stdin),
		TEST(case_040_input_larger_than_the_pipe),
		TEST(case_042_broken_pipe),
		TEST(case_042_input_pending_at_the_end),
		TEST(input_of_a_client_that_left_is_dropped),
		TEST(input_of_a_half_closing_client),
		TEST(case_067_wrong_channel),
		TEST(case_062_large_paste),
		TEST(case_045_echoing_filter),
		TEST(case_043_keystrokes_in_order),
		TEST(case_044_odd_input_streams),
		TEST(stream_input_waits_for_the_program),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
