#include "tests/support/conn_lab.h"

#include "tests/support/cmocka.h"

struct conn_lab conn;

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	assert_ptr_equal(ex, conn.ex);
	assert_true(len > 0);
	conn.body_calls++;
	assert_int_equal(buf_append(&conn.body, data, len), 0);
}

static void on_body_end(struct http_exchange *ex)
{
	(void)ex;
	conn.ends++;
}

static void on_drained(struct http_exchange *ex)
{
	(void)ex;
	conn.drains++;
}

static void on_closed(struct http_exchange *ex, int status)
{
	assert_true(ex->closed);
	conn.closed++;
	conn.status = status;
	conn.ex = NULL;
}

const struct http_exchange_handler conn_recorder = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static void dispatch(struct http_exchange *ex)
{
	conn.ex = ex;
	conn.dispatched++;
	assert_ptr_equal(ex->server_user, &conn);
	http_exchange_set_handler(ex, &conn_recorder, &conn);
	if (conn.start)
		http_request_body_start(ex);
	if (conn.respond_in_dispatch)
		http_respond(ex, 200, "text/plain", STR("hello"));
}

void conn_on_stopped(void *user)
{
	*(bool *)user = true;
}

void conn_settle(void)
{
	stream_mem_settle(&conn.loop);
}

void conn_feed(const char *text)
{
	stream_mem_feed(conn.m, text, strlen(text));
	conn_settle();
}

void conn_expect_output(const char *text)
{
	if (!str_equal(stream_mem_output(conn.m), str_of(text)))
		fail_msg("got \"%.*s\"\nnot \"%s\"", (int)buf_length(&conn.m->output),
			 buf_length(&conn.m->output) ? buf_data(&conn.m->output) : "", text);
	buf_clear(&conn.m->output);
}

bool conn_output_has(const char *text)
{
	struct str output = stream_mem_output(conn.m);

	return memmem(output.p, output.len, text, strlen(text)) != NULL;
}

void conn_open_with(struct http_server_config config)
{
	memset(&conn, 0, sizeof(conn));
	buf_init(&conn.body, SIZE_MAX / 2);
	loop_init(&conn.loop);
	config.dispatch = dispatch;
	config.user = &conn;
	conn.server = http_server_new(&conn.loop, &config);
	conn.m = stream_mem_new(&conn.loop);
	http_server_adopt(conn.server, &conn.m->stream, "10.0.0.1:55000");
	conn_settle();
}

int conn_set_up(void **state)
{
	(void)state;
	conn_open_with((struct http_server_config){.send_date = false});
	return 0;
}

int conn_tear_down(void **state)
{
	(void)state;
	if (!conn.stopped) {
		http_server_stop(conn.server, conn_on_stopped, &conn.stopped);
		http_server_abort(conn.server);
	}
	conn_settle();
	assert_true(conn.stopped);
	assert_true(conn.m->close_told);
	assert_int_equal(conn.closed, conn.dispatched);
	stream_mem_free(conn.m);
	buf_fini(&conn.body);
	loop_fini(&conn.loop);
	return 0;
}
