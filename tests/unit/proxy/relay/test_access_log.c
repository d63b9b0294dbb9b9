/* When lines of the access log reach their descriptor: soon, whatever delays the writing of those
 * before. */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "proxy/relay/access_log.h"
#include "tests/support/cmocka.h"
#include "tests/support/turn.h"

#define PATIENCE_MS 20000

struct lab {
	struct loop loop;
	struct access_sink sink;
	struct access_log log;
	int in, out;
	char text[4096];
	size_t len;
};

static void open_lab(struct lab *lab)
{
	int ends[2];

	memset(lab, 0, sizeof(*lab));
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	lab->in = ends[0];
	lab->out = ends[1];
	assert_int_equal(fcntl(lab->in, F_SETFL, O_NONBLOCK), 0);
	loop_init(&lab->loop);
	access_sink_open(&lab->sink, lab->out);
	access_log_open(&lab->log, &lab->loop, &lab->sink);
}

static void close_lab(struct lab *lab)
{
	access_log_close(&lab->log);
	loop_run(&lab->loop);
	loop_fini(&lab->loop);
	access_sink_close(&lab->sink);
	close(lab->in);
	close(lab->out);
}

static void log_path(struct lab *lab, const char *path)
{
	struct access_entry entry = {
		.method = STR("GET"),
		.host = STR("1-abc.test"),
		.path = str_of(path),
		.end = "complete",
		.peer = "10.0.0.1:1",
	};

	access_log_write(&lab->log, &entry);
}

/* What has come out, as a string. */
static bool has_come(struct lab *lab, const char *path)
{
	ssize_t n = read(lab->in, lab->text + lab->len, sizeof(lab->text) - 1 - lab->len);

	if (n > 0)
		lab->len += (size_t)n;
	return strstr(lab->text, path) != NULL;
}

static void wait_for_path(struct lab *lab, const char *path)
{
	uint64_t end = uv_hrtime() / 1000000 + PATIENCE_MS;

	while (!has_come(lab, path)) {
		if (uv_hrtime() / 1000000 >= end)
			fail_msg("no line for %s came, but: %s", path, lab->text);
		turn_loop(&lab->loop);
	}
}

#define run_until(lab, flag, value) TURN_UNTIL(&(lab)->loop, *(flag) == (value))

static void lines_come_without_another_request(void **state)
{
	struct lab lab;

	open_lab(&lab);
	log_path(&lab, "/first");
	wait_for_path(&lab, "/first");
	log_path(&lab, "/second");
	wait_for_path(&lab, "/second");
	close_lab(&lab);
}

static void a_line_that_comes_while_a_slow_write_runs_is_not_left_behind(void **state)
{
	struct lab lab;

	open_lab(&lab);
	pthread_mutex_lock(&lab.sink.lock); /* another worker's write is slow */
	log_path(&lab, "/first");
	run_until(&lab, &lab.log.busy, true);
	log_path(&lab, "/second");
	assert_true(alarm_is_set(&lab.log.alarm));
	TURN_UNTIL(&lab.loop, !alarm_is_set(&lab.log.alarm)); /* its time comes and goes */
	assert_true(lab.log.busy);
	pthread_mutex_unlock(&lab.sink.lock);
	wait_for_path(&lab, "/first");
	wait_for_path(&lab, "/second");
	close_lab(&lab);
}

static void closing_waits_for_a_slow_write_and_loses_nothing(void **state)
{
	struct lab lab;

	open_lab(&lab);
	pthread_mutex_lock(&lab.sink.lock);
	log_path(&lab, "/first");
	run_until(&lab, &lab.log.busy, true);
	log_path(&lab, "/second");
	access_log_close(&lab.log);
	pthread_mutex_unlock(&lab.sink.lock);
	loop_run(&lab.loop);
	assert_true(has_come(&lab, "/first"));
	assert_true(has_come(&lab, "/second"));
	assert_int_equal(counter_read(&lab.log.dropped), 0);
	close_lab(&lab);
}

/* What trace-context tests of the W3C call valid and not. */
static void a_traceparent_is_one_or_is_not_logged(void **state)
{
#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define PARENT "b7ad6b7169203331"
	static const struct {
		const char *text;
		size_t shown; /* 0: it is none */
	} rows[] = {
		{"00-" TRACE "-" PARENT "-01", 55},
		{"00-" TRACE "-" PARENT "-00", 55},
		{"00-" TRACE "-" PARENT "-ff", 55},
		{"01-" TRACE "-" PARENT "-01", 55},
		{"cc-" TRACE "-" PARENT "-01-what-the-future-will-be-like", 55},
		{"cc-" TRACE "-" PARENT "-01-", 55},
		{"", 0},
		{"00", 0},
		{"00-" TRACE "-" PARENT "-0", 0},
		{"00-" TRACE "-" PARENT "-01-", 0},
		{"00-" TRACE "-" PARENT "-01-more", 0},
		{"cc-" TRACE "-" PARENT "-01.more", 0},
		{"cc-" TRACE "-" PARENT "-011", 0},
		{"ff-" TRACE "-" PARENT "-01", 0},
		{"0G-" TRACE "-" PARENT "-01", 0},
		{"00-0AF7651916cd43dd8448eb211c80319c-" PARENT "-01", 0},
		{"00-00000000000000000000000000000000-" PARENT "-01", 0},
		{"00-" TRACE "-0000000000000000-01", 0},
		{"00-" TRACE "-b7ad6b716920333\"-01", 0},
		{"00-" TRACE "-" PARENT "-0\n", 0},
		{"00_" TRACE "-" PARENT "-01", 0},
		{"00-" TRACE "_" PARENT "-01", 0},
		{"00-" TRACE "-" PARENT "_01", 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct str found = access_log_traceparent(str_of(rows[i].text));

		if (found.len != rows[i].shown || (found.len && found.p != rows[i].text))
			fail_msg("%s", rows[i].text);
	}
}

/* A line that went out in part ends in its own file, or not at all, and never in the next one. */
static void what_is_left_of_a_line_does_not_begin_the_next_file(void **state)
{
	struct lab lab;
	int second[2], former;
	char text[4096];
	ssize_t len;

	(void)state;
	open_lab(&lab);
	assert_int_equal(pipe2(second, O_CLOEXEC | O_NONBLOCK), 0);
	assert_int_equal(buf_append_str(&lab.sink.rest, STR("rest of a line\n")), 0);
	former = access_sink_replace(&lab.sink, second[1]);
	assert_int_equal(former, lab.out);
	assert_true(has_come(&lab, "rest of a line\n"));
	assert_int_equal(counter_read(&lab.sink.dropped), 0);
	/* Nobody reads the pipe any more, so nothing more goes in there. */
	signal(SIGPIPE, SIG_IGN);
	close(second[0]);
	assert_int_equal(buf_append_str(&lab.sink.rest, STR("lost\n")), 0);
	assert_int_equal(access_sink_replace(&lab.sink, lab.out), second[1]);
	assert_int_equal(counter_read(&lab.sink.dropped), 1);
	log_path(&lab, "/next");
	wait_for_path(&lab, "/next");
	lab.text[lab.len] = '\0';
	assert_null(strstr(lab.text, "lost"));
	len = read(lab.in, text, sizeof(text));
	assert_true(len <= 0);
	close(second[1]);
	close_lab(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_come_without_another_request),
		cmocka_unit_test(a_line_that_comes_while_a_slow_write_runs_is_not_left_behind),
		cmocka_unit_test(closing_waits_for_a_slow_write_and_loses_nothing),
		cmocka_unit_test(a_traceparent_is_one_or_is_not_logged),
		cmocka_unit_test(what_is_left_of_a_line_does_not_begin_the_next_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
