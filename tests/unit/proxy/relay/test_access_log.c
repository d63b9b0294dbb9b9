/* When lines of the access log reach their descriptor: soon, whatever delays the writing of those before. */
#include <fcntl.h>
#include <unistd.h>

#include "proxy/relay/access_log.h"
#include "tests/support/cmocka.h"

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
		assert_true(uv_hrtime() / 1000000 < end);
		uv_run(&lab->loop.uv, UV_RUN_NOWAIT);
		usleep(1000);
	}
}

static void run_until(struct lab *lab, const bool *flag, bool value)
{
	uint64_t end = uv_hrtime() / 1000000 + PATIENCE_MS;

	while (*flag != value) {
		assert_true(uv_hrtime() / 1000000 < end);
		uv_run(&lab->loop.uv, UV_RUN_NOWAIT);
		usleep(1000);
	}
}

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
	assert_true(lab.log.armed);
	run_until(&lab, &lab.log.armed, false); /* its time comes and goes */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_come_without_another_request),
		cmocka_unit_test(a_line_that_comes_while_a_slow_write_runs_is_not_left_behind),
		cmocka_unit_test(closing_waits_for_a_slow_write_and_loses_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
