/* process.Process over a real server, in JSON as the SDKs speak it (contract/envd.md 4.4). */
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include "envd/app.h"
#include "envd/process/process_service.h"
#include "envd/process/process_table.h"
#include "envd/rpc/base64.h"
#include "lib/http_server.h"
#include "lib/job.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/wire_client.h"

struct service {
	struct app app;
	bool server_stopped, table_stopped;
};

static void dispatch(struct http_exchange *ex)
{
	size_t i;

	for (i = 0; i < PROCESS_SERVICE_METHODS; i++) {
		if (str_equal(ex->request.path, str_of(process_service_methods[i].path))) {
			rpc_dispatch(ex, &process_service_methods[i], ex->server_user, NULL);
			return;
		}
	}
	http_respond_error(ex, 404, "no such method");
}

static int setup(void **state)
{
	struct service *s = xcalloc(1, sizeof(*s));
	struct http_server_config server = {.dispatch = dispatch,
					    .user = &s->app,
					    .idle_timeout_ms = HTTP_IDLE_TIMEOUT_MS,
					    .connections_max = 1024};
	struct process_table_config table = {.loop = &s->app.loop, .sandbox = &s->app.sandbox};

	signal(SIGPIPE, SIG_IGN);
	log_init(LOG_ERROR, LOG_TEXT, -1);
	json_init();
	loop_init(&s->app.loop);
	sandbox_init(&s->app.sandbox, &s->app.loop);
	s->app.processes = process_table_new(&table);
	assert_int_equal(http_server_listen(&s->app.loop, &server, "127.0.0.1", 0, &s->app.server), 0);
	*state = s;
	return 0;
}

static void on_server_stopped(void *user)
{
	((struct service *)user)->server_stopped = true;
}

static void on_table_stopped(struct process_table *table, void *user)
{
	((struct service *)user)->table_stopped = true;
}

static int teardown(void **state)
{
	struct service *s = *state;

	http_server_stop(s->app.server, on_server_stopped, s);
	http_server_abort(s->app.server);
	process_table_stop(s->app.processes, 0, on_table_stopped, s);
	loop_run(&s->app.loop);
	assert_true(s->server_stopped);
	assert_true(s->table_stopped);
	process_table_free(s->app.processes);
	sandbox_fini(&s->app.sandbox);
	loop_fini(&s->app.loop);
	free(s);
	return 0;
}

/* ---- talking ---- */

static void turn(struct service *s)
{
	uv_run(&s->app.loop.uv, UV_RUN_NOWAIT);
}

static void send_stream_head(struct service *s, struct wire_client *c, const char *method,
			     const char *headers)
{
	wire_open(c, &s->app.loop, http_server_port(s->app.server));
	wire_printf(c,
		    "POST /process.Process/%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
		    "Content-Type: application/connect+json\r\n%s",
		    method, headers ? headers : "");
}

static void send_envelope(struct wire_client *c, struct str json)
{
	unsigned char prefix[5] = {0, (unsigned char)(json.len >> 24), (unsigned char)(json.len >> 16),
				   (unsigned char)(json.len >> 8), (unsigned char)json.len};

	wire_send(c, prefix, sizeof(prefix));
	wire_send_str(c, json);
}

/* A server stream: one request message. */
static void open_stream(struct service *s, struct wire_client *c, const char *method,
			const char *headers, const char *json)
{
	send_stream_head(s, c, method, headers);
	wire_printf(c, "Content-Length: %zu\r\n\r\n", strlen(json) + 5);
	send_envelope(c, str_of(json));
}

static void open_shell(struct service *s, struct wire_client *c, const char *script,
		       const char *more)
{
	char json[4096];

	snprintf(json, sizeof(json), "{\"process\":{\"cmd\":\"sh\",\"args\":[\"-c\",\"%s\"]}%s}",
		 script, more ? more : "");
	open_stream(s, c, "Start", NULL, json);
}

struct wanted {
	struct wire_client *client;
	const char *text;
};

static const char *find_text(struct wire_client *c, const char *text)
{
	return memmem(buf_str(&c->received).p, buf_length(&c->received), text, strlen(text));
}

static bool has_come(void *user)
{
	struct wanted *wanted = user;

	wire_poll(wanted->client);
	return find_text(wanted->client, wanted->text) != NULL;
}

static void wait_for(struct service *s, struct wire_client *c, const char *text)
{
	struct wanted wanted = {c, text};

	wire_wait(&s->app.loop, has_come, &wanted);
}

/* The pid of the start event. */
static pid_t wait_for_pid(struct service *s, struct wire_client *c)
{
	static const char start[] = "{\"event\":{\"start\":{\"pid\":";

	wait_for(s, c, start);
	wait_for(s, c, "}}}");
	return (pid_t)atoi(find_text(c, start) + sizeof(start) - 1);
}

static void call(struct service *s, const char *method, struct str json, struct wire_response *r)
{
	struct wire_client c;

	wire_open(&c, &s->app.loop, http_server_port(s->app.server));
	wire_printf(&c,
		    "POST /process.Process/%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
		    "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
		    method, json.len);
	wire_send_str(&c, json);
	wire_read_response(&c, r);
	wire_close(&c);
}

/* A unary call whose answer has this status and contains this text. */
static void expect(struct service *s, const char *method, int status, const char *text,
		   const char *format, ...) PRINTF_LIKE(5, 6);
static void expect(struct service *s, const char *method, int status, const char *text,
		   const char *format, ...)
{
	struct wire_response r;
	char json[4096];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(json, sizeof(json), format, arguments);
	va_end(arguments);
	call(s, method, str_of(json), &r);
	if (r.status != status || !memmem(buf_data(&r.body), buf_length(&r.body), text, strlen(text)))
		fail_msg("%s %s: %d %.*s", method, json, r.status, (int)buf_length(&r.body),
			 buf_data(&r.body));
	wire_response_fini(&r);
}

/* A finished stream taken apart. */
struct seen {
	struct wire_response response;
	size_t starts, ends, data, end_streams, keepalives;
	char first[256], last[1024]; /* the first message, the end of stream */
	char end[256];
	struct buf output[3]; /* stdout, stderr, pty */
	int pid;
};

static void take_output(struct seen *seen, const char *json, size_t len)
{
	static const char *const names[] = {"\"stdout\":\"", "\"stderr\":\"", "\"pty\":\""};
	size_t i;

	for (i = 0; i < 3; i++) {
		const char *at = memmem(json, len, names[i], strlen(names[i])), *end;
		char *room;
		size_t used;

		if (!at)
			continue;
		at += strlen(names[i]);
		end = memchr(at, '"', len - (size_t)(at - json));
		assert_int_equal(buf_reserve(&seen->output[i], (size_t)(end - at), &room), 0);
		used = (size_t)base64_decode((struct str){at, (size_t)(end - at)}, room);
		buf_commit(&seen->output[i], used);
	}
}

static void read_stream(struct wire_client *c, struct seen *seen)
{
	struct str rest;
	size_t i;

	memset(seen, 0, sizeof(*seen));
	for (i = 0; i < 3; i++)
		buf_init(&seen->output[i], 512 * 1024 * 1024);
	wire_read_response(c, &seen->response);
	rest = buf_str(&seen->response.body);
	while (rest.len >= 5) {
		const unsigned char *prefix = (const unsigned char *)rest.p;
		size_t len = (size_t)prefix[1] << 24 | (size_t)prefix[2] << 16 |
			     (size_t)prefix[3] << 8 | prefix[4];
		const char *json = rest.p + 5;

		assert_true(len + 5 <= rest.len);
		if (!seen->first[0])
			snprintf(seen->first, sizeof(seen->first), "%.*s", (int)len, json);
		assert_int_equal(seen->end_streams, 0); /* nothing after it */
		if (prefix[0] & 2) {
			seen->end_streams++;
			snprintf(seen->last, sizeof(seen->last), "%.*s", (int)len, json);
		} else if (memmem(json, len, "\"data\"", 6)) {
			assert_int_equal(seen->ends, 0);
			seen->data++;
			take_output(seen, json, len);
		} else if (memmem(json, len, "\"start\"", 7)) {
			seen->starts++;
			seen->pid = atoi((char *)memmem(json, len, "\"pid\":", 6) + 6);
		} else if (memmem(json, len, "\"end\"", 5)) {
			seen->ends++;
			snprintf(seen->end, sizeof(seen->end), "%.*s", (int)len, json);
		} else if (memmem(json, len, "\"keepalive\"", 11)) {
			seen->keepalives++;
		}
		rest.p += len + 5;
		rest.len -= len + 5;
	}
	assert_int_equal(rest.len, 0);
}

static void forget(struct seen *seen)
{
	size_t i;

	wire_response_fini(&seen->response);
	for (i = 0; i < 3; i++)
		buf_fini(&seen->output[i]);
}

static void expect_end(struct seen *seen, const char *end)
{
	assert_int_equal(seen->starts, 1);
	assert_non_null(strstr(seen->first, "\"start\""));
	assert_int_equal(seen->ends, 1);
	assert_non_null(strstr(seen->end, end));
	assert_string_equal(seen->last, "{}");
	assert_true(seen->response.complete);
}

/* ---- Start ---- */

static void conformance_132_events_in_order(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;

	open_shell(s, &c, "echo hello; echo oops >&2; exit 3", NULL);
	read_stream(&c, &seen);
	assert_int_equal(seen.response.status, 200);
	assert_str(wire_header(&seen.response, "Content-Type"), "application/connect+json");
	expect_end(&seen, "{\"event\":{\"end\":{\"exitCode\":3,\"exited\":true,\"status\":\"exit status "
			  "3\",\"error\":\"exit status 3\"}}}");
	assert_str(buf_str(&seen.output[0]), "hello\n");
	assert_str(buf_str(&seen.output[1]), "oops\n");
	forget(&seen);
	wire_close(&c);
	open_shell(s, &c, "true", NULL);
	read_stream(&c, &seen);
	expect_end(&seen, "{\"event\":{\"end\":{\"exited\":true,\"status\":\"exit status 0\"}}}");
	forget(&seen);
	wire_close(&c);
	open_shell(s, &c, "kill -9 $$", NULL);
	read_stream(&c, &seen);
	expect_end(&seen, "{\"event\":{\"end\":{\"exitCode\":-1,\"status\":\"signal: "
			  "killed\",\"error\":\"signal: killed\"}}}");
	forget(&seen);
	wire_close(&c);
}

static void expect_stream_error(struct service *s, const char *method, const char *json,
				const char *error)
{
	struct wire_client c;
	struct seen seen;

	open_stream(s, &c, method, NULL, json);
	read_stream(&c, &seen);
	assert_int_equal(seen.response.status, 200);
	assert_str(wire_header(&seen.response, "Content-Type"), "application/connect+json");
	assert_int_equal(seen.starts + seen.data + seen.ends, 0);
	assert_int_equal(seen.end_streams, 1);
	if (!strstr(seen.last, error))
		fail_msg("%s does not contain %s", seen.last, error);
	forget(&seen);
	wire_close(&c);
}

static void case_015_errors_before_the_first_event(void **state)
{
	struct service *s = *state;

	expect_stream_error(s, "Start", "{\"process\":{\"cmd\":\"ls\",\"cwd\":\"/nope\"}}",
			    "{\"error\":{\"code\":\"invalid_argument\",\"message\":\"cwd '/nope' does "
			    "not exist\"}}");
	expect_stream_error(s, "Start", "{\"process\":{\"cmd\":\"ls\",\"envs\":{\"A=B\":\"\"}}}",
			    "\"code\":\"invalid_argument\"");
	expect_stream_error(s, "Start", "{\"process\":{\"cmd\":\"a\\u0000b\"}}",
			    "\"code\":\"invalid_argument\"");
	sandbox_set_default_user(&s->app.sandbox, "no-such-user");
	expect_stream_error(s, "Start", "{\"process\":{\"cmd\":\"ls\"}}",
			    "\"code\":\"unauthenticated\",\"message\":\"invalid default user: "
			    "'no-such-user'\"");
	sandbox_set_default_user(&s->app.sandbox, "");
	expect_stream_error(s, "Start", "{\"process\":{\"cmd\":\"ls\"}}",
			    "\"code\":\"unauthenticated\",\"message\":\"no user specified\"");
}

static void an_empty_command_starts_and_ends(void **state)
{
	static const char *const requests[] = {"{}", "{\"process\":{}}", "{\"process\":{\"cmd\":\"\"}}"};
	struct service *s = *state;
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(requests); i++) {
		struct wire_client c;
		struct seen seen;

		open_stream(s, &c, "Start", NULL, requests[i]);
		read_stream(&c, &seen);
		expect_end(&seen, "\"exitCode\":127");
		forget(&seen);
		wire_close(&c);
	}
}

static void case_046_timeout_on_the_wire(void **state)
{
	struct service *s = *state;
	struct wire_client c, other;
	struct seen seen;
	char json[64];
	int pid;

	open_stream(s, &c, "Start", "Connect-Timeout-Ms: 300\r\n",
		    "{\"process\":{\"cmd\":\"sh\",\"args\":[\"-c\",\"echo a; sleep 20\"]}}");
	pid = wait_for_pid(s, &c);
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", pid);
	open_stream(s, &other, "Connect", NULL, json);
	read_stream(&c, &seen);
	assert_int_equal(seen.starts, 1);
	assert_int_equal(seen.ends, 0);
	assert_str(buf_str(&seen.output[0]), "a\n");
	assert_string_equal(seen.last, "{\"error\":{\"code\":\"deadline_exceeded\",\"message\":\"context "
				       "deadline exceeded\"}}");
	forget(&seen);
	wire_close(&c);
	read_stream(&other, &seen);
	expect_end(&seen, "signal: killed");
	forget(&seen);
	wire_close(&other);
}

static void case_049_deadline_of_connect_ends_only_the_stream(void **state)
{
	struct service *s = *state;
	struct wire_client c, other;
	struct seen seen;
	char json[64];

	open_shell(s, &c, "sleep 20", NULL);
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", wait_for_pid(s, &c));
	open_stream(s, &other, "Connect", "Connect-Timeout-Ms: 100\r\n", json);
	read_stream(&other, &seen);
	assert_non_null(strstr(seen.last, "deadline_exceeded"));
	forget(&seen);
	wire_close(&other);
	expect(s, "List", 200, "sleep 20", "{}");
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

		open_shell(s, &c, "cat", ",\"tag\":\"t30\"");
		pid = wait_for_pid(s, &c);
		if (i % 2)
			snprintf(selector, sizeof(selector), "\"process\":{\"pid\":%d}", pid);
		else
			snprintf(selector, sizeof(selector), "\"process\":{\"tag\":\"t30\"}");
		snprintf(json, sizeof(json), "\"pid\":%d,\"tag\":\"t30\"", pid);
		expect(s, "List", 200, json, "{}");
		snprintf(json, sizeof(json), "{%s}", selector);
		open_stream(s, &other, "Connect", NULL, json);
		assert_int_equal(wait_for_pid(s, &other), pid);
		expect(s, "SendInput", 200, "{}", "{%s,\"input\":{\"stdin\":\"aGVsbG8K\"}}", selector);
		wait_for(s, &other, "aGVsbG8K");
		expect(s, "SendSignal", 200, "{}", "{%s,\"signal\":\"SIGNAL_SIGTERM\"}", selector);
		read_stream(&other, &seen);
		expect_end(&seen, "signal: terminated");
		forget(&seen);
		wire_close(&other);
		read_stream(&c, &seen);
		expect_end(&seen, "signal: terminated");
		assert_str(buf_str(&seen.output[0]), "hello\n");
		forget(&seen);
		wire_close(&c);
		expect(s, "List", 200, "{}", "{}");
	}
}

static void case_035_list_after_the_end(void **state)
{
	struct service *s = *state;
	size_t i;

	for (i = 0; i < 30; i++) {
		struct wire_client c;
		struct seen seen;

		open_shell(s, &c, "exit 0", NULL);
		read_stream(&c, &seen);
		forget(&seen);
		wire_close(&c);
		expect(s, "List", 200, "{}", "{}");
	}
}

static void list_shows_what_was_asked_for(void **state)
{
	struct service *s = *state;
	struct wire_client c;

	open_stream(s, &c, "Start", NULL,
		    "{\"process\":{\"cmd\":\"sleep\",\"args\":[\"20\"],\"envs\":{\"A\":\"1\"},\"cwd\":\"/"
		    "tmp\"},\"tag\":\"\",\"pty\":{\"size\":{\"cols\":80,\"rows\":24}}}");
	wait_for_pid(s, &c);
	expect(s, "List", 200,
	       "{\"processes\":[{\"config\":{\"cmd\":\"sleep\",\"args\":[\"20\"],\"envs\":{\"A\":\"1\"},"
	       "\"cwd\":\"/tmp\"},\"pid\":",
	       "{}");
	expect(s, "List", 200, "\"tag\":\"\"", "{}");
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
		open_stream(s, &processes[i], "Start", NULL, json);
		pids[i] = wait_for_pid(s, &processes[i]);
	}
	sem_init(&gate, 0, 0);
	for (size_t i = 0; i < ARRAY_LENGTH(busy); i++)
		assert_int_equal(job_run(&s->app.loop, &busy[i], JOB_COMPUTE, wait_at_gate, on_let_go), 0);
	wire_open(&list, &s->app.loop, http_server_port(s->app.server));
	wire_printf(&list, "POST /process.Process/List HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
			   "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
	/* Threads are taken, so the list waits; others are answered. */
	for (size_t i = 0; i < ARRAY_LENGTH(processes); i++) {
		expect(s, "SendSignal", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}", pids[i]);
		wait_for(s, &processes[i], "signal: killed");
		wire_close(&processes[i]);
	}
	expect(s, "List", 200, "{}", "{}");
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

		open_shell(s, &c, "exec yes", i % 2 ? ",\"pty\":{}" : NULL);
		pid = wait_for_pid(s, &c);
		wait_for(s, &c, "\"data\"");
		wire_reset(&c);
		expect(s, "List", 200, "yes", "{}");
		expect(s, "SendSignal", 200, "{}", "{\"process\":{\"pid\":%d},\"signal\":9}", pid);
		expect(s, "List", 200, "{}", "{}");
	}
}

static void case_009_clients_leave_at_any_moment(void **state)
{
	struct service *s = *state;
	size_t i, round;

	for (i = 0; i < 40; i++) {
		struct wire_client c;

		open_shell(s, &c, "yes | head -n 1000000", i % 3 ? NULL : ",\"pty\":{}");
		for (round = 0; round < i; round++)
			turn(s);
		wire_reset(&c);
	}
	expect(s, "List", 200, "", "{}");
}

/* ---- Connect ---- */

static void conformance_135_exit_by_pid(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	char json[64];

	open_shell(s, &c, "echo x; exit 7", NULL);
	read_stream(&c, &seen);
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", seen.pid);
	forget(&seen);
	wire_close(&c);
	open_stream(s, &c, "Connect", NULL, json);
	read_stream(&c, &seen);
	expect_end(&seen, "\"exitCode\":7");
	assert_int_equal(seen.data, 0);
	forget(&seen);
	wire_close(&c);
}

static void conformance_136_exit_by_tag(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	int pid;

	open_shell(s, &c, "exit 8", ",\"tag\":\"build\"");
	read_stream(&c, &seen);
	pid = seen.pid;
	forget(&seen);
	wire_close(&c);
	open_stream(s, &c, "Connect", NULL, "{\"process\":{\"tag\":\"build\"}}");
	read_stream(&c, &seen);
	expect_end(&seen, "\"exitCode\":8");
	assert_int_equal(seen.pid, pid);
	forget(&seen);
	wire_close(&c);
}

static void conformance_137_unknown(void **state)
{
	struct service *s = *state;

	expect_stream_error(s, "Connect", "{\"process\":{\"pid\":4000000000}}",
			    "{\"error\":{\"code\":\"not_found\",\"message\":\"process with pid 4000000000 "
			    "not found\"}}");
	expect_stream_error(s, "Connect", "{\"process\":{\"tag\":\"x\"}}",
			    "\"process with tag x not found\"");
	expect_stream_error(s, "Connect", "{\"process\":{}}",
			    "\"code\":\"unimplemented\",\"message\":\"invalid input type "
			    "*process.ProcessSelector\"");
	expect_stream_error(s, "Connect", "{}", "\"code\":\"unimplemented\"");
}

static void conformance_142_a_new_start_with_the_same_tag(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	int first;

	open_shell(s, &c, "exit 1", ",\"tag\":\"same\"");
	read_stream(&c, &seen);
	first = seen.pid;
	forget(&seen);
	wire_close(&c);
	open_shell(s, &c, "exit 2", ",\"tag\":\"other\"");
	read_stream(&c, &seen);
	forget(&seen);
	wire_close(&c);
	open_shell(s, &c, "exit 3", ",\"tag\":\"same\"");
	read_stream(&c, &seen);
	forget(&seen);
	wire_close(&c);
	assert_null(process_table_find_exit(s->app.processes, first));
	open_stream(s, &c, "Connect", NULL, "{\"process\":{\"tag\":\"same\"}}");
	read_stream(&c, &seen);
	expect_end(&seen, "\"exitCode\":3");
	forget(&seen);
	wire_close(&c);
	open_stream(s, &c, "Connect", NULL, "{\"process\":{\"tag\":\"other\"}}");
	read_stream(&c, &seen);
	expect_end(&seen, "\"exitCode\":2");
	forget(&seen);
	wire_close(&c);
}

/* Several tags at once: each is found, the newest of equal ones first. */
static void tags_are_searched_properly(void **state)
{
	struct service *s = *state;
	struct wire_client a, b, c, d;
	pid_t newest;
	char text[64];

	open_shell(s, &a, "sleep 20", ",\"tag\":\"a\"");
	wait_for_pid(s, &a);
	open_shell(s, &b, "sleep 20", ",\"tag\":\"b\"");
	wait_for_pid(s, &b);
	open_shell(s, &c, "sleep 20", ",\"tag\":\"a\"");
	newest = wait_for_pid(s, &c);
	open_stream(s, &d, "Connect", NULL, "{\"process\":{\"tag\":\"a\"}}");
	assert_int_equal(wait_for_pid(s, &d), newest);
	expect(s, "SendSignal", 200, "{}", "{\"process\":{\"tag\":\"b\"},\"signal\":9}");
	snprintf(text, sizeof(text), "\"pid\":%d", newest);
	expect(s, "List", 200, text, "{}");
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

	open_shell(s, &c, "(i=0; while [ $i -lt 15 ]; do sleep 0.05; echo t; i=$((i+1)); done) & exit 4",
		   NULL);
	pid = wait_for_pid(s, &c);
	while (process_table_find(s->app.processes, pid))
		turn(s);
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", pid);
	open_stream(s, &late, "Connect", NULL, json);
	read_stream(&late, &seen);
	expect_end(&seen, "\"exitCode\":4");
	forget(&seen);
	wire_close(&late);
	expect(s, "SendSignal", 404, "not_found", "{\"process\":{\"pid\":%d},\"signal\":9}", pid);
	read_stream(&c, &seen);
	expect_end(&seen, "\"exitCode\":4");
	forget(&seen);
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

	open_shell(s, &c, "stty raw -echo; echo ready; head -n 1; seq 1 5000",
		   ",\"pty\":{\"size\":{\"cols\":80,\"rows\":24}}");
	pid = wait_for_pid(s, &c);
	wait_for(s, &c, "\"data\"");
	snprintf(json, sizeof(json), "{\"process\":{\"pid\":%d}}", pid);
	for (i = 0; i < VIEWERS; i++)
		open_stream(s, &viewers[i], "Connect", NULL, json);
	for (i = 0; i < VIEWERS; i++)
		wait_for_pid(s, &viewers[i]);
	expect(s, "SendInput", 200, "{}", "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"eAo=\"}}", pid);
	read_stream(&viewers[0], &first);
	expect_end(&first, "exit status 0");
	assert_true(buf_length(&first.output[2]) > 20000);
	for (i = 1; i < VIEWERS; i++) {
		read_stream(&viewers[i], &seen);
		expect_end(&seen, "exit status 0");
		assert_true(str_equal(buf_str(&first.output[2]), buf_str(&seen.output[2])));
		forget(&seen);
		wire_close(&viewers[i]);
	}
	forget(&first);
	wire_close(&viewers[0]);
	wire_close(&c);
}

/* ---- input ---- */

static void case_039_input_and_its_end(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	size_t i;
	pid_t pid;

	open_shell(s, &c, "sha256sum; echo $?", ",\"stdin\":true");
	pid = wait_for_pid(s, &c);
	for (i = 0; i < 5; i++)
		expect(s, "SendInput", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
	expect(s, "SendInput", 200, "{}", "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"\"}}", pid);
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[0]),
		   "f7f1c9d01ff8d1bf71d7adf7fd1467cf180c81a2c91109c9a7c280ba38161178  -\n0\n");
	expect_end(&seen, "exit status 0");
	forget(&seen);
	wire_close(&c);
	expect(s, "SendInput", 404, "not_found",
	       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
}

static void case_039_close_twice_then_write(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	pid_t pid;

	open_shell(s, &c, "cat; sleep 20", NULL); /* unset means a pipe */
	pid = wait_for_pid(s, &c);
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	expect(s, "SendInput", 400,
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

	open_shell(s, &c, "cat; read -r x; echo $?; sleep 0.5", ",\"stdin\":false");
	pid = wait_for_pid(s, &c);
	expect(s, "SendInput", 400, "stdin not enabled or closed",
	       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[0]), "1\n");
	forget(&seen);
	wire_close(&c);
}

static void conformance_150_read_without_stdin(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;

	open_stream(s, &c, "Start", NULL,
		    "{\"process\":{\"cmd\":\"bash\",\"args\":[\"-c\",\"read -p x y\"]},\"stdin\":false}");
	read_stream(&c, &seen);
	expect_end(&seen, "\"exitCode\":1");
	forget(&seen);
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

static void case_040_input_larger_than_the_pipe(void **state)
{
	struct service *s = *state;
	struct wire_client c, input;
	struct wire_response r;
	struct seen seen;
	struct str json;
	pid_t pid;

	open_shell(s, &c, "echo ready; sleep 0.3; wc -c", NULL);
	pid = wait_for_pid(s, &c);
	wait_for(s, &c, "\"data\"");
	json = big_input(pid, "stdin", 6 * 1024 * 1024);
	wire_open(&input, &s->app.loop, http_server_port(s->app.server));
	wire_printf(&input,
		    "POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: "
		    "application/json\r\nContent-Length: %zu\r\n\r\n",
		    json.len);
	wire_send_str(&input, json);
	/* The end of stdin queues up behind what is still being written. */
	while (process_table_find(s->app.processes, pid)->input.count == 0)
		turn(s);
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	wire_read_response(&input, &r);
	if (r.status != 200)
		fail_msg("%.*s", (int)buf_length(&r.body), buf_data(&r.body));
	wire_response_fini(&r);
	read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[0]), "ready\n6291456\n");
	forget(&seen);
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

	open_shell(s, &c, "exec <&-; echo ready; sleep 0.7; exit 6", NULL);
	pid = wait_for_pid(s, &c);
	wait_for(s, &c, "\"data\"");
	snprintf(message, sizeof(message),
		 "{\"code\":\"failed_precondition\",\"message\":\"error writing to stdin: error writing "
		 "to stdin of process '%d': write |1: broken pipe\"}",
		 pid);
	for (i = 0; i < 10; i++)
		expect(s, "SendInput", 400, message,
		       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
	read_stream(&c, &seen);
	expect_end(&seen, "\"exitCode\":6");
	forget(&seen);
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

	open_shell(s, &c, "sleep 20", NULL);
	pid = wait_for_pid(s, &c);
	json = big_input(pid, "stdin", 300 * 1024);
	wire_open(&input, &s->app.loop, http_server_port(s->app.server));
	wire_printf(&input,
		    "POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: "
		    "application/json\r\nContent-Length: %zu\r\n\r\n",
		    json.len);
	wire_send_str(&input, json);
	while (process_table_find(s->app.processes, pid)->input.count == 0)
		turn(s);
	expect(s, "SendSignal", 200, "{}", "{\"process\":{\"pid\":%d},\"signal\":9}", pid);
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

	open_shell(s, &c, "sleep 20", NULL);
	pid = wait_for_pid(s, &c);
	process = process_table_find(s->app.processes, pid);
	json = big_input(pid, "stdin", 300 * 1024);
	for (size_t i = 0; i < ARRAY_LENGTH(ways_to_leave); i++) {
		wire_open(&input, &s->app.loop, http_server_port(s->app.server));
		wire_printf(&input,
			    "POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: "
			    "application/json\r\nContent-Length: %zu\r\n\r\n",
			    json.len);
		wire_send_str(&input, json);
		while (process->input.count == 0)
			turn(s);
		ways_to_leave[i](&input);
		while (process->input.count > 0)
			turn(s);
	}
	/* Its end came with the request. */
	wire_open(&input, &s->app.loop, http_server_port(s->app.server));
	wire_printf(&input,
		    "POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: "
		    "application/json\r\nContent-Length: %zu\r\n\r\n",
		    json.len);
	wire_send_str(&input, json);
	wire_shutdown(&input);
	while (!input.eof)
		wire_poll(&input);
	assert_int_equal(buf_length(&input.received), 0);
	assert_int_equal(process->input.count, 0);
	wire_close(&input);
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
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

	open_shell(s, &c, "head -c 5; sleep 20", NULL);
	pid = wait_for_pid(s, &c);
	len = snprintf(body, sizeof(body), "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"aGVsbG8=\"}}", pid);
	wire_open(&input, &s->app.loop, http_server_port(s->app.server));
	wire_printf(&input,
		    "POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: "
		    "application/json\r\nContent-Length: %d\r\n\r\n%s",
		    len, body);
	wire_shutdown(&input);
	wire_read_response(&input, &r);
	assert_int_equal(r.status, 200);
	wire_response_fini(&r);
	wire_close(&input);
	wait_for(s, &c, "aGVsbG8=");
	wire_close(&c);
}

static void case_067_wrong_channel(void **state)
{
	struct service *s = *state;
	struct wire_client c, p;
	pid_t pid;

	open_shell(s, &c, "sleep 20", NULL);
	pid = wait_for_pid(s, &c);
	expect(s, "SendInput", 400,
	       "{\"code\":\"failed_precondition\",\"message\":\"error writing to tty: tty not assigned "
	       "to process — input should be written to the stdin, not the tty\"}",
	       "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"eAo=\"}}", pid);
	expect(s, "SendInput", 501, "\"message\":\"invalid input type ", "{\"process\":{\"pid\":%d}}", pid);
	expect(s, "SendInput", 501, "\"message\":\"invalid input type ",
	       "{\"process\":{\"pid\":%d},\"input\":{}}", pid);
	open_shell(s, &p, "echo ready; cat; exit 5", ",\"pty\":{}");
	pid = wait_for_pid(s, &p);
	wait_for(s, &p, "\"pty\"");
	expect(s, "SendInput", 400,
	       "{\"code\":\"failed_precondition\",\"message\":\"error writing to stdin: tty assigned to "
	       "process — input should be written to the pty, not the stdin\"}",
	       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"eAo=\"}}", pid);
	expect(s, "CloseStdin", 400,
	       "{\"code\":\"failed_precondition\",\"message\":\"error closing stdin: cannot close stdin "
	       "for PTY process — send Ctrl+D (0x04) instead\"}",
	       "{\"process\":{\"pid\":%d}}", pid);
	/* 0x04 ends cat, 0x03 interrupts. */
	expect(s, "SendInput", 200, "{}", "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"BA==\"}}", pid);
	wait_for(s, &p, "exit status 5");
	wire_close(&p);
	open_shell(s, &p, "echo ready; exec sleep 20", ",\"pty\":{}");
	pid = wait_for_pid(s, &p);
	wait_for(s, &p, "\"pty\"");
	expect(s, "SendInput", 200, "{}", "{\"process\":{\"pid\":%d},\"input\":{\"pty\":\"Aw==\"}}", pid);
	wait_for(s, &p, "signal: interrupt");
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

	open_shell(s, &c, "stty raw -echo; echo ready; sleep 0.3; head -c 262143 | wc -c",
		   ",\"pty\":{\"size\":{\"cols\":80,\"rows\":24}}");
	pid = wait_for_pid(s, &c);
	wait_for(s, &c, "\"pty\"");
	json = big_input(pid, "pty", 262143);
	call(s, "SendInput", json, &r);
	assert_int_equal(r.status, 200);
	wire_response_fini(&r);
	open_shell(s, &other, "echo meanwhile", NULL);
	read_stream(&other, &seen);
	expect_end(&seen, "exit status 0");
	forget(&seen);
	wire_close(&other);
	read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[2]), "ready\n262143\n");
	forget(&seen);
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

	open_shell(s, &c, "cat", NULL);
	pid = wait_for_pid(s, &c);
	json = big_input(pid, "stdin", 9 * 1024 * 1024);
	wire_open(&input, &s->app.loop, http_server_port(s->app.server));
	wire_printf(&input,
		    "POST /process.Process/SendInput HTTP/1.1\r\nHost: x\r\nContent-Type: "
		    "application/json\r\nContent-Length: %zu\r\n\r\n",
		    json.len);
	wire_send_str(&input, json);
	while (process_table_find(s->app.processes, pid)->input.count == 0) {
		turn(s);
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
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	read_stream(&c, &seen);
	assert_int_equal(buf_length(&seen.output[0]), 9 * 1024 * 1024);
	expect_end(&seen, "exit status 0");
	forget(&seen);
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

	send_stream_head(s, &c, "StreamInput", NULL);
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
	open_shell(s, &c, "cat", NULL);
	pid = wait_for_pid(s, &c);
	append_envelope(&messages, "{\"start\":{\"process\":{\"pid\":%d}}}", pid);
	for (i = 0; i < 30000; i++) {
		static const char *const letters[] = {"YQ==", "Yg==", "Yw=="};

		append_envelope(&messages, "{\"data\":{\"input\":{\"stdin\":\"%s\"}}}", letters[i % 3]);
		if (i % 1000 == 0)
			append_envelope(&messages, "{\"keepalive\":{}}");
	}
	stream_input(s, &messages, "{}");
	for (i = 0; i < 20; i++)
		expect(s, "SendInput", 200, "{}",
		       "{\"process\":{\"pid\":%d},\"input\":{\"stdin\":\"eHl6\"}}", pid);
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	read_stream(&c, &seen);
	assert_int_equal(buf_length(&seen.output[0]), 30060);
	for (i = 0; i < 30000; i++)
		assert_int_equal(buf_data(&seen.output[0])[i], "abc"[i % 3]);
	for (i = 0; i < 60; i++)
		assert_int_equal(buf_data(&seen.output[0])[30000 + i], "xyz"[i % 3]);
	forget(&seen);
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
	open_shell(s, &c, "cat", NULL);
	first = wait_for_pid(s, &c);
	open_shell(s, &d, "cat", NULL);
	second = wait_for_pid(s, &d);
	append_envelope(&messages, "{\"data\":{\"input\":{\"stdin\":\"YQ==\"}}}");
	stream_input(s, &messages, "\"code\":\"invalid_argument\"");
	stream_input(s, &messages, "{}"); /* empty */
	append_envelope(&messages, "{\"keepalive\":{}}");
	stream_input(s, &messages, "{}");
	append_envelope(&messages, "{}");
	stream_input(s, &messages,
		     "\"code\":\"unimplemented\",\"message\":\"invalid event type ");
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
	wait_for(s, &c, "\"Zmlyc3Q=\"");
	wait_for(s, &d, "\"c2Vjb25k\"");
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
	open_shell(s, &c, "sleep 0.3; wc -c", NULL);
	pid = wait_for_pid(s, &c);
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
	expect(s, "CloseStdin", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[0]), "450000\n");
	forget(&seen);
	wire_close(&c);
	buf_fini(&messages);
	free(data);
}

/* ---- Update and SendSignal ---- */

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

	open_shell(s, &c, "stty size; sleep 20", ",\"pty\":{\"size\":{\"cols\":65535,\"rows\":65535}}");
	pid = wait_for_pid(s, &c);
	wait_for(s, &c, "NjU1MzUgNjU1MzUNCg=="); /* 65535 65535 */
	for (i = 0; i < ARRAY_LENGTH(sizes); i++) {
		snprintf(json, sizeof(json), "{\"process\":{\"cmd\":\"true\"},\"pty\":{\"size\":%s}}",
			 sizes[i]);
		expect_stream_error(s, "Start", json, "\"code\":\"invalid_argument\"");
		expect(s, "Update", 400, "\"code\":\"invalid_argument\"",
		       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":%s}}", pid, sizes[i]);
	}
	expect(s, "Update", 200, "{}", "{\"process\":{\"pid\":%d},\"pty\":{}}", pid);
	expect(s, "Update", 200, "{}", "{\"process\":{\"pid\":%d}}", pid);
	wire_close(&c);
}

static void case_058_resize_on_the_wire(void **state)
{
	struct service *s = *state;
	struct wire_client c, pipe;
	struct seen seen;
	pid_t pid;

	open_shell(s, &c, "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.02; done",
		   ",\"pty\":{}");
	pid = wait_for_pid(s, &c);
	wait_for(s, &c, "\"pty\"");
	expect(s, "Update", 200, "{}",
	       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":{\"cols\":100,\"rows\":50}}}", pid);
	read_stream(&c, &seen);
	assert_str(buf_str(&seen.output[2]), "ready\r\n50 100\r\n");
	forget(&seen);
	wire_close(&c);
	expect(s, "Update", 404, "not_found",
	       "{\"process\":{\"pid\":%d},\"pty\":{\"size\":{\"cols\":100,\"rows\":50}}}", pid);
	open_shell(s, &pipe, "sleep 20", NULL);
	pid = wait_for_pid(s, &pipe);
	expect(s, "Update", 400,
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

	open_shell(s, &c, "sleep 20", NULL);
	pid = wait_for_pid(s, &c);
	expect(s, "SendSignal", 501, "invalid signal: SIGNAL_UNSPECIFIED", "{\"process\":{\"pid\":%d}}",
	       pid);
	expect(s, "SendSignal", 501, "invalid signal: 2", "{\"process\":{\"pid\":%d},\"signal\":2}", pid);
	expect(s, "SendSignal", 501, "invalid signal: 99", "{\"process\":{\"pid\":%d},\"signal\":99}",
	       pid);
	expect(s, "SendSignal", 200, "{}", "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}",
	       pid);
	assert_int_equal(kill(pid, 0), -1);
	expect(s, "SendSignal", 404, "process with pid",
	       "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGKILL\"}", pid);
	read_stream(&c, &seen);
	expect_end(&seen, "signal: killed");
	forget(&seen);
	wire_close(&c);
	expect(s, "SendSignal", 404, "not_found",
	       "{\"process\":{\"pid\":%d},\"signal\":\"SIGNAL_SIGTERM\"}", pid);
	expect(s, "SendSignal", 501, "invalid input type *process.ProcessSelector", "{\"signal\":9}");
}

/* Somebody else's process is not ours to signal, whatever its number. */
static void case_029_only_tracked_pids(void **state)
{
	struct service *s = *state;

	expect(s, "SendSignal", 404, "not_found", "{\"process\":{\"pid\":%d},\"signal\":9}", getpid());
	expect(s, "SendSignal", 404, "not_found", "{\"process\":{\"pid\":1},\"signal\":9}");
	expect(s, "SendSignal", 404, "not_found", "{\"process\":{\"pid\":0},\"signal\":9}");
}

/* A client that stops reading does not hold up the kill, and still finds its end. */
static void case_056_kill_with_a_stalled_client(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;
	struct process *process;
	pid_t pid;

	open_shell(s, &c, "exec yes", NULL);
	pid = wait_for_pid(s, &c);
	process = process_table_find(s->app.processes, pid);
	while (!process->output.paused)
		turn(s);
	expect(s, "SendSignal", 200, "{}", "{\"process\":{\"pid\":%d},\"signal\":9}", pid);
	expect(s, "List", 200, "{}", "{}");
	read_stream(&c, &seen);
	expect_end(&seen, "signal: killed");
	forget(&seen);
	wire_close(&c);
}

static void case_070_keepalive(void **state)
{
	struct service *s = *state;
	struct wire_client c;
	struct seen seen;

	open_stream(s, &c, "Start", "Keepalive-Ping-Interval: 1\r\n",
		    "{\"process\":{\"cmd\":\"sleep\",\"args\":[\"1.4\"]}}");
	read_stream(&c, &seen);
	expect_end(&seen, "exit status 0");
	assert_int_equal(seen.keepalives, 1);
	forget(&seen);
	wire_close(&c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

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
		TEST(case_059_impossible_sizes),
		TEST(case_058_resize_on_the_wire),
		TEST(case_055_signals),
		TEST(case_029_only_tracked_pids),
		TEST(case_056_kill_with_a_stalled_client),
		TEST(case_070_keepalive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
