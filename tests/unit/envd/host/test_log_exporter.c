/* The log on its way to the host's collector, which a server of this process plays
 * (contract/envd.md 1.8). */
#include <unistd.h>

#include <pthread.h>

#include "envd/host/log_exporter.h"
#include "envd/limits.h"
#include "lib/http_server.h"
#include "lib/json.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/talk.h"
#include "tests/support/turn.h"

#define LINES_MAX 64

struct fixture {
	struct loop loop;
	struct http_server *collector;
	unsigned port;
	struct log_exporter *exporter;
	struct buf body;
	int status; /* what the collector says; 0: nothing, ever */
	size_t count, wanted;
	char lines[LINES_MAX][4200]; /* the last ones */
	char target[64], content_type[64], host[64], connection[32];
	bool is_stopped;
	uint64_t lost; /* as the lines say that came */
};

/* ---- the collector ---- */

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct fixture *f = ex->user;

	assert_int_equal(buf_append(&f->body, data, len), 0);
}

/* Every line must be JSON by itself. */
static void take_line(struct fixture *f)
{
	const struct json_value *object;
	struct arena arena;
	struct err err;

	arena_init(&arena, 1 << 20);
	if (json_parse(buf_str(&f->body), &arena, &object, &err) < 0)
		fail_msg("%.*s: %s", (int)buf_length(&f->body), buf_data(&f->body), err.message);
	if (str_equal(json_string(json_get(object, STR("message"))),
		      STR("lines of the log could not be delivered"))) {
		f->lost += (uint64_t)json_int(json_get(object, STR("lines")));
	}
	arena_release(&arena);
	snprintf(f->lines[f->count++ % LINES_MAX], sizeof(f->lines[0]), "%.*s",
		 (int)buf_length(&f->body), buf_data(&f->body));
}

static void copy_header(const struct http_exchange *ex, struct str name, char *to, size_t size)
{
	struct str value = http_headers_get(&ex->request.headers, name);

	snprintf(to, size, "%.*s", (int)value.len, value.p ? value.p : "");
}

static void on_body_end(struct http_exchange *ex)
{
	struct fixture *f = ex->user;

	assert_true(str_equal(ex->request.method, STR("POST")));
	snprintf(f->target, sizeof(f->target), "%.*s", (int)ex->request.target.len,
		 ex->request.target.p);
	copy_header(ex, STR("Content-Type"), f->content_type, sizeof(f->content_type));
	copy_header(ex, STR("Host"), f->host, sizeof(f->host));
	copy_header(ex, STR("Connection"), f->connection, sizeof(f->connection));
	take_line(f);
	if (f->status)
		http_respond(ex, f->status, "text/plain", STR("so it is"));
}

static void on_closed(struct http_exchange *ex, int status)
{
}

static const struct http_exchange_handler collecting = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

static void collect(struct http_exchange *ex)
{
	struct fixture *f = ex->server_user;

	buf_clear(&f->body);
	http_exchange_set_handler(ex, &collecting, f);
	http_request_body_start(ex);
}

/* ---- each test ---- */

static void open_collector(struct fixture *f)
{
	const struct http_server_config config = {.dispatch = collect, .user = f};

	assert_int_equal(http_server_listen(&f->loop, &config, "127.0.0.1", f->port, &f->collector),
			 0);
	f->port = http_server_port(f->collector);
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	json_init();
	log_init(LOG_ERROR, LOG_JSON, -1);
	alarm(120);
	loop_init(&f->loop);
	buf_init(&f->body, 1 << 20);
	f->status = 204;
	open_collector(f);
	f->exporter = log_exporter_new(&f->loop);
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

static void close_collector(struct fixture *f)
{
	f->is_stopped = false;
	http_server_stop(f->collector, on_stopped, f);
	http_server_abort(f->collector);
	talk_wait(&f->loop, is_stopped, f);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	close_collector(f);
	log_exporter_close(f->exporter);
	loop_run(&f->loop);
	loop_fini(&f->loop);
	buf_fini(&f->body);
	free(f);
	return 0;
}

static void set_target(struct fixture *f, const char *path)
{
	char address[128];

	snprintf(address, sizeof(address), "http://127.0.0.1:%u%s", f->port, path);
	log_exporter_set_target(f->exporter, address, "sbx\"1", "tpl");
}

static bool has_wanted(void *user)
{
	const struct fixture *f = user;

	return f->count >= f->wanted;
}

static void wait_for(struct fixture *f, size_t count)
{
	f->wanted = count;
	talk_wait(&f->loop, has_wanted, f);
}

static bool is_at_rest(void *user)
{
	return log_exporter_is_at_rest(((struct fixture *)user)->exporter);
}

static const char *line_at(struct fixture *f, size_t index)
{
	assert_true(index < f->count);
	return f->lines[index % LINES_MAX];
}

static void assert_holds(struct fixture *f, size_t index, const char *text)
{
	if (!strstr(line_at(f, index), text))
		fail_msg("%s is not in %s", text, line_at(f, index));
}

/* ---- tests ---- */

static void lines_wait_until_it_is_known_where_to(void **state)
{
	struct fixture *f = *state;

	log_info("process", "first", LOG_I("pid", 7), LOG_S("odd", "\"\n"));
	log_warn("envd", "second");
	log_debug("envd", "of no interest");
	set_target(f, "/logs?a=b");
	log_error("envd", "third");
	wait_for(f, 3);
	talk_wait(&f->loop, is_at_rest, f);
	assert_int_equal(f->count, 3);
	assert_holds(f, 0, "\"message\":\"first\",\"pid\":7,");
	assert_holds(f, 0, ",\"instanceID\":\"sbx\\\"1\",\"envID\":\"tpl\"}");
	assert_holds(f, 1, "\"second\"");
	assert_holds(f, 2, "\"third\"");
	assert_string_equal(f->target, "/logs?a=b");
	assert_string_equal(f->content_type, "application/json");
	assert_string_equal(f->connection, "close");
	assert_non_null(strstr(f->host, "127.0.0.1:"));
	/* Another sandbox from now on. */
	log_exporter_set_target(f->exporter, "http://127.0.0.1:1/", "", "");
	set_target(f, "");
	log_info("envd", "fourth");
	wait_for(f, 4);
	assert_string_equal(f->target, "/");
}

static void nothing_is_kept_where_there_is_no_collector(void **state)
{
	static const char *const addresses[] = {
		"",
		"https://127.0.0.1/",
		"http://",
		"http://localhost:1/",
		"127.0.0.1",
		"http://127.0.0.1:0/",
		"http://127.0.0.1:99999/",
		"http://127.0.0.1:1/ x",
		"http://[::1/",
		"http://1.2.3.4.5/",
		"http://127.0.0.1:80\r\nX: y/",
		"http://[1234567890123456789012345678901234567890123456789012]/",
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(addresses); i++) {
		set_target(f, "/");
		log_info("envd", "lost");
		log_exporter_set_target(f->exporter, addresses[i], "a", "b");
		assert_false(log_enabled(LOG_INFO));
	}
	f->count = 0;
	talk_wait(&f->loop, is_at_rest, f);
	set_target(f, "/");
	log_info("envd", "the only one");
	f->wanted = 1;
	talk_wait(&f->loop, has_wanted, f);
}

static void what_is_refused_is_dropped_and_counted(void **state)
{
	struct fixture *f = *state;

	f->status = 503;
	set_target(f, "/");
	log_info("envd", "one");
	log_info("envd", "two");
	wait_for(f, 3); /* the third tells of the first */
	talk_wait(&f->loop, is_at_rest, f);
	assert_int_equal(f->count, 3);
	assert_holds(f, 2, "\"lines\":1,\"error\":\"refused by the collector\"");
}

/* Three attempts for the first, in three quarters of a second; the second's begin a second
 * later. */
static bool the_second_line_is_the_first_to_come(struct fixture *f)
{
	uint64_t began;

	close_collector(f);
	f->count = 0;
	set_target(f, "/");
	log_info("envd", "lost");
	log_info("envd", "kept");
	began = uv_hrtime();
	do
		turn_loop(&f->loop);
	while (uv_hrtime() - began < 1200000000);
	open_collector(f);
	talk_wait(&f->loop, is_at_rest, f);
	return f->count == 2 && strstr(line_at(f, 0), "\"kept\"");
}

static void a_collector_that_is_not_there_is_tried_a_few_times(void **state)
{
	struct fixture *f = *state;

	/* Where the machine stalls, both may be lost, or none. */
	for (int tries = 0; !the_second_line_is_the_first_to_come(f); tries++) {
		assert_true(tries < 5);
		log_exporter_close(f->exporter);
		f->exporter = log_exporter_new(&f->loop);
	}
	assert_holds(f, 1, "could not be delivered");
}

static void a_silent_collector_delays_nobody_and_costs_no_memory(void **state)
{
	struct fixture *f = *state;
	const size_t count = 20000;
	char text[1500];
	uint64_t began;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	f->status = 0;
	set_target(f, "/");
	log_info("envd", "the one it is silent about");
	wait_for(f, 1);
	began = uv_hrtime();
	for (size_t i = 0; i < count; i++)
		log_info("envd", "one of many", LOG_I("number", i), LOG_S("text", text));
	assert_true((uv_hrtime() - began) / 1000000 < 20000);
	/* It answers again; the newest lines are there, and what was lost is counted. */
	f->count = 0;
	f->status = 204;
	close_collector(f);
	open_collector(f);
	talk_wait(&f->loop, is_at_rest, f);
	assert_true(f->count > 100);
	assert_true(f->count * sizeof(text) <= LOG_EXPORT_BYTES_MAX + 4096);
	assert_true(f->lost > 0);
	/* What was under way was tried again. */
	assert_int_equal(f->count - 2 + f->lost, count);
}

static void *log_much(void *user)
{
	for (int i = 0; i < 200; i++)
		log_info("process", "from another thread", LOG_I("number", i));
	return NULL;
}

static void lines_come_from_any_thread(void **state)
{
	struct fixture *f = *state;
	pthread_t threads[4];

	set_target(f, "/");
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, log_much, NULL), 0);
	wait_for(f, 800);
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		pthread_join(threads[i], NULL);
	talk_wait(&f->loop, is_at_rest, f);
	assert_int_equal(f->count, 800);
}

/* Each of them in the midst of a delivery. */
static void it_can_be_closed_at_any_time(void **state)
{
	struct fixture *f = *state;

	for (unsigned turns = 0; turns < 12; turns++) {
		set_target(f, "/");
		log_info("envd", "under way");
		for (unsigned i = 0; i < turns; i++)
			uv_run(&f->loop.uv, UV_RUN_NOWAIT);
		log_exporter_close(f->exporter);
		f->exporter = log_exporter_new(&f->loop);
	}
}

/* ---- before a freeze ---- */

struct waiter {
	struct log_flush flush;
	struct fixture *f;
	size_t there; /* lines that had come */
	bool is_done;
};

static void on_flushed(struct log_flush *flush)
{
	struct waiter *waiter = container_of(flush, struct waiter, flush);

	assert_false(waiter->is_done);
	waiter->is_done = true;
	waiter->there = waiter->f->count;
}

static bool is_flushed(void *user)
{
	return ((struct waiter *)user)->is_done;
}

static bool flush(struct fixture *f, struct waiter *waiter)
{
	*waiter = (struct waiter){.f = f};
	return log_exporter_flush(f->exporter, &waiter->flush, on_flushed);
}

static void a_flush_ends_when_all_is_there_and_not_before(void **state)
{
	struct fixture *f = *state;
	struct waiter first, second;

	assert_false(flush(f, &first));
	log_info("envd", "nobody knows where to");
	assert_false(flush(f, &first));
	set_target(f, "/");
	talk_wait(&f->loop, is_at_rest, f);
	assert_false(flush(f, &first));
	f->count = 0;
	for (int i = 0; i < 10; i++)
		log_info("envd", "before a freeze", LOG_I("number", i));
	assert_true(flush(f, &first));
	log_info("freeze", "the freeze itself");
	assert_true(flush(f, &second));
	talk_wait(&f->loop, is_flushed, &first);
	talk_wait(&f->loop, is_flushed, &second);
	assert_int_equal(first.there, 11);
	assert_int_equal(second.there, 11);
	assert_false(flush(f, &first));
}

/* What cannot be delivered now is tried once, and stays for later. */
static void a_flush_does_not_wait_for_a_collector_that_is_gone(void **state)
{
	struct fixture *f = *state;
	struct waiter waiter;
	uint64_t took_ms = UINT64_MAX;

	close_collector(f);
	set_target(f, "/");
	/* Where the machine stalls, it takes longer: one in five attempts has to do. */
	for (int tries = 0; tries < 5 && took_ms >= LOG_EXPORT_FLUSH_MS; tries++) {
		uint64_t began;

		log_info("envd", "left over");
		began = uv_hrtime();
		do /* refused meanwhile, and its next attempt is some way off */
			turn_loop(&f->loop);
		while (uv_hrtime() - began < 50000000);
		began = uv_hrtime();
		if (flush(f, &waiter))
			talk_wait(&f->loop, is_flushed, &waiter);
		took_ms = (uv_hrtime() - began) / 1000000;
	}
	assert_true(took_ms < LOG_EXPORT_FLUSH_MS);
	f->count = 0;
	log_info("envd", "the last");
	open_collector(f);
	/* And now it is there: nobody waits for the pause to end. */
	assert_true(flush(f, &waiter));
	talk_wait(&f->loop, is_flushed, &waiter);
	assert_true(waiter.there > 0);
	assert_holds(f, f->count - 1, "\"the last\"");
}

static void a_flush_gives_a_silent_collector_its_time_and_no_more(void **state)
{
	struct fixture *f = *state;
	struct waiter first, second;
	uint64_t began = uv_hrtime();

	f->status = 0;
	set_target(f, "/");
	log_info("envd", "the one it is silent about");
	wait_for(f, 1);
	assert_true(flush(f, &first));
	while (uv_hrtime() - began < 50000000)
		turn_loop(&f->loop);
	/* Each has its own. */
	assert_true(flush(f, &second));
	talk_wait(&f->loop, is_flushed, &first);
	assert_true((uv_hrtime() - began) / 1000000 >= LOG_EXPORT_FLUSH_MS - 1);
	talk_wait(&f->loop, is_flushed, &second);
	assert_true((uv_hrtime() - began) / 1000000 < LOG_EXPORT_REQUEST_MS);
	assert_false(log_exporter_is_at_rest(f->exporter));
}

static void a_flush_ends_with_the_exporter_or_its_collector(void **state)
{
	struct fixture *f = *state;
	struct waiter waiter;

	f->status = 0;
	set_target(f, "/");
	log_info("envd", "one");
	assert_true(flush(f, &waiter));
	log_exporter_set_target(f->exporter, "", "", "");
	assert_true(waiter.is_done);
	set_target(f, "/");
	log_info("envd", "two");
	assert_true(flush(f, &waiter));
	log_exporter_close(f->exporter);
	assert_true(waiter.is_done);
	f->exporter = log_exporter_new(&f->loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(lines_wait_until_it_is_known_where_to, setup,
						teardown),
		cmocka_unit_test_setup_teardown(nothing_is_kept_where_there_is_no_collector, setup,
						teardown),
		cmocka_unit_test_setup_teardown(what_is_refused_is_dropped_and_counted, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_collector_that_is_not_there_is_tried_a_few_times,
						setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_silent_collector_delays_nobody_and_costs_no_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(lines_come_from_any_thread, setup, teardown),
		cmocka_unit_test_setup_teardown(it_can_be_closed_at_any_time, setup, teardown),
		cmocka_unit_test_setup_teardown(a_flush_ends_when_all_is_there_and_not_before,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_flush_does_not_wait_for_a_collector_that_is_gone,
						setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_flush_gives_a_silent_collector_its_time_and_no_more, setup, teardown),
		cmocka_unit_test_setup_teardown(a_flush_ends_with_the_exporter_or_its_collector,
						setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
