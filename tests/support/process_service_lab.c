#include "tests/support/process_service_lab.h"

#include <signal.h>

#include "envd/process/process_service.h"
#include "envd/process/process_table.h"
#include "envd/rpc/base64.h"
#include "lib/http_server.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static void dispatch(struct http_exchange *ex)
{
	const struct app *app = ex->server_user;
	size_t i;

	for (i = 0; i < PROCESS_SERVICE_METHODS; i++) {
		if (str_equal(ex->request.path, str_of(process_service_methods[i].path))) {
			rpc_dispatch(ex, &process_service_methods[i], app->processes, NULL);
			return;
		}
	}
	http_respond_error(ex, 404, "no such method");
}

int service_setup(void **state)
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
	sandbox_set_default_user(&s->app.sandbox, lab_user_name());
	s->app.processes = process_table_new(&table);
	assert_int_equal(http_server_listen(&s->app.loop, &server, "127.0.0.1", 0, &s->app.server),
			 0);
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

int service_teardown(void **state)
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

void service_turn(struct service *s)
{
	uv_run(&s->app.loop.uv, UV_RUN_NOWAIT);
}

void service_send_stream_head(struct service *s, struct wire_client *c, const char *method,
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
	unsigned char prefix[5] = {0, (unsigned char)(json.len >> 24),
				   (unsigned char)(json.len >> 16), (unsigned char)(json.len >> 8),
				   (unsigned char)json.len};

	wire_send(c, prefix, sizeof(prefix));
	wire_send_str(c, json);
}

void service_open_stream(struct service *s, struct wire_client *c, const char *method,
			 const char *headers, const char *json)
{
	service_send_stream_head(s, c, method, headers);
	wire_printf(c, "Content-Length: %zu\r\n\r\n", strlen(json) + 5);
	send_envelope(c, str_of(json));
}

void service_open_shell(struct service *s, struct wire_client *c, const char *script,
			const char *more)
{
	char json[4096];

	snprintf(json, sizeof(json), "{\"process\":{\"cmd\":\"sh\",\"args\":[\"-c\",\"%s\"]}%s}",
		 script, more ? more : "");
	service_open_stream(s, c, "Start", NULL, json);
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

void service_wait_for(struct service *s, struct wire_client *c, const char *text)
{
	struct wanted wanted = {c, text};

	wire_wait(&s->app.loop, has_come, &wanted);
}

pid_t service_wait_for_pid(struct service *s, struct wire_client *c)
{
	static const char start[] = "{\"event\":{\"start\":{\"pid\":";

	service_wait_for(s, c, start);
	service_wait_for(s, c, "}}}");
	return (pid_t)atoi(find_text(c, start) + sizeof(start) - 1);
}

void service_call(struct service *s, const char *method, struct str json, struct wire_response *r)
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

void service_expect(struct service *s, const char *method, int status, const char *text,
		    const char *format, ...)
{
	struct wire_response r;
	char json[4096];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(json, sizeof(json), format, arguments);
	va_end(arguments);
	service_call(s, method, str_of(json), &r);
	if (r.status != status ||
	    !memmem(buf_data(&r.body), buf_length(&r.body), text, strlen(text)))
		fail_msg("%s %s: %d %.*s", method, json, r.status, (int)buf_length(&r.body),
			 buf_data(&r.body));
	wire_response_fini(&r);
}

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

void service_read_stream(struct wire_client *c, struct seen *seen)
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

void service_forget(struct seen *seen)
{
	size_t i;

	wire_response_fini(&seen->response);
	for (i = 0; i < 3; i++)
		buf_fini(&seen->output[i]);
}

void service_expect_end(struct seen *seen, const char *end)
{
	assert_int_equal(seen->starts, 1);
	assert_non_null(strstr(seen->first, "\"start\""));
	assert_int_equal(seen->ends, 1);
	assert_non_null(strstr(seen->end, end));
	assert_string_equal(seen->last, "{}");
	assert_true(seen->response.complete);
}

void service_expect_stream_error(struct service *s, const char *method, const char *json,
				 const char *error)
{
	struct wire_client c;
	struct seen seen;

	service_open_stream(s, &c, method, NULL, json);
	service_read_stream(&c, &seen);
	assert_int_equal(seen.response.status, 200);
	assert_str(wire_header(&seen.response, "Content-Type"), "application/connect+json");
	assert_int_equal(seen.starts + seen.data + seen.ends, 0);
	assert_int_equal(seen.end_streams, 1);
	if (!strstr(seen.last, error))
		fail_msg("%s does not contain %s", seen.last, error);
	service_forget(&seen);
	wire_close(&c);
}
