/* Records: both ways, damage, copies, how an end is judged; webhooks' places and signatures. */
#include <signal.h>

#include "envd/jobs/job_record.h"
#include "envd/jobs/job_webhook.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/torture.h"

static const char *const words[] = {"sh", "-c", "echo \"\xc3\xa4\"\n"};

static struct job_record sample(void)
{
	struct job_record record = {
		.id = "1abcdefghjkmnpqrstvw",
		.sequence = UINT64_MAX,
		.boot_id = "6f0b8a5e-0000-1111-2222-333344445555",
		.name = "a \"name\"",
		.client_key = "key",
		.argv = words,
		.argc = 3,
		.cwd = "/tmp",
		.user_name = "user",
		.has_terminal = true,
		.size = {80, 24},
		.limits = {.memory_bytes = 1ULL << 40, .pids = 5, .cpu_millis = 1500},
		.wall_time_ms = 1000,
		.output_bytes = 1 << 20,
		.not_enforced = CGROUP_LIMIT_CPU,
		.stop_grace_ms = 0,
		.stdin_mode = JOB_STDIN_PIPE,
		.output_mode = JOB_OUTPUT_MERGED,
		.webhook_url = "http://h/",
		.webhook_key = "secret",
		.state = JOB_FAILED,
		.failure = JOB_FAILURE_SIGNAL,
		.message = "",
		.pid = 4711,
		.created_ms = 1,
		.exit = {.code = -1,
			 .signal = SIGSEGV,
			 .core_dumped = true,
			 .user_us = 2,
			 .system_us = 3,
			 .peak_rss_bytes = 4,
			 .started_ms = 5,
			 .ended_ms = 6},
		.has_exit = true,
		.place = {.kind = CGROUP_PTY, .number = 8, .lasting_mark = 9},
		.output_incomplete = true,
		.webhook_attempts = 2,
	};

	return record;
}

static void assert_same(const struct job_record *a, const struct job_record *b)
{
	assert_string_equal(a->id, b->id);
	assert_true(a->sequence == b->sequence);
	assert_string_equal(a->boot_id, b->boot_id);
	assert_string_equal(a->name, b->name);
	assert_string_equal(a->client_key, b->client_key);
	assert_int_equal(a->argc, b->argc);
	for (size_t i = 0; i < a->argc; i++)
		assert_string_equal(a->argv[i], b->argv[i]);
	assert_string_equal(a->cwd, b->cwd);
	assert_string_equal(a->user_name, b->user_name);
	assert_int_equal(a->size.cols, b->size.cols);
	assert_int_equal(a->size.rows, b->size.rows);
	assert_true(a->limits.memory_bytes == b->limits.memory_bytes);
	assert_int_equal(a->limits.cpu_millis, b->limits.cpu_millis);
	assert_int_equal(a->stdin_mode, b->stdin_mode);
	assert_int_equal(a->output_mode, b->output_mode);
	assert_string_equal(a->webhook_url, b->webhook_url);
	assert_string_equal(a->webhook_key, b->webhook_key);
	assert_int_equal(a->state, b->state);
	assert_int_equal(a->failure, b->failure);
	assert_int_equal(a->pid, b->pid);
	assert_int_equal(a->exit.code, b->exit.code);
	assert_int_equal(a->exit.signal, b->exit.signal);
	assert_int_equal(a->exit.core_dumped, b->exit.core_dumped);
	assert_true(a->exit.ended_ms == b->exit.ended_ms);
	assert_int_equal(a->place.kind, b->place.kind);
	assert_true(a->place.lasting_mark == b->place.lasting_mark);
	assert_int_equal(a->output_incomplete, b->output_incomplete);
	assert_int_equal(a->webhook_attempts, b->webhook_attempts);
}

static void what_is_written_reads_the_same(void **state)
{
	struct job_record record = sample(), read, copy;
	struct arena arena;
	struct buf b;

	(void)state;
	buf_init(&b, 1 << 20);
	arena_init(&arena, 1 << 20);
	assert_int_equal(job_record_write(&record, &b), 0);
	assert_int_equal(job_record_read(buf_str(&b), &arena, &read), 0);
	assert_same(&record, &read);
	assert_int_equal(job_record_copy(&read, &copy), 0);
	arena_release(&arena);
	assert_same(&record, &copy);
	job_record_fini(&copy);
	buf_fini(&b);
}

/* Cut anywhere, or one bit wrong anywhere: not accepted, whatever it would have said. */
static void damage_is_noticed(void **state)
{
	struct job_record record = sample(), read;
	struct arena arena;
	struct buf b;

	(void)state;
	buf_init(&b, 1 << 20);
	assert_int_equal(job_record_write(&record, &b), 0);
	for (size_t at = 0; at < buf_length(&b); at++) {
		arena_init(&arena, 1 << 20);
		assert_int_equal(job_record_read((struct str){buf_data(&b), at}, &arena, &read),
				 -EBADMSG);
		buf_data(&b)[at] ^= 4;
		assert_int_equal(job_record_read(buf_str(&b), &arena, &read), -EBADMSG);
		buf_data(&b)[at] ^= 4;
		arena_release(&arena);
	}
	buf_fini(&b);
}

static void write_and_read(void *user)
{
	struct job_record record = sample(), read, copy;
	struct arena arena;
	struct buf b;
	int status;

	buf_init(&b, 1 << 20);
	arena_init(&arena, 1 << 20);
	status = job_record_write(&record, &b);
	if (status == 0)
		status = job_record_read(buf_str(&b), &arena, &read);
	if (status == 0)
		status = job_record_copy(&read, &copy);
	if (status == 0)
		job_record_fini(&copy);
	assert_true(status == 0 || (status == -ENOMEM && torture_refused()));
	arena_release(&arena);
	buf_fini(&b);
}

static void memory_may_run_out(void **state)
{
	(void)state;
	assert_true(torture(write_and_read, NULL) > 3);
}

static void judge(struct exit_record exit, bool stopped, enum job_state state,
		  enum job_failure failure)
{
	struct job_record record = sample();

	record.exit = exit;
	record.stop_requested_ms = stopped;
	job_record_settle(&record);
	assert_int_equal(record.state, state);
	assert_int_equal(record.failure, failure);
	assert_int_equal(record.exit.stopped, stopped);
}

static void ends_are_judged(void **state)
{
	const struct exit_record killed = {.code = -1, .signal = SIGKILL};
	struct exit_record exit = killed;

	(void)state;
	judge((struct exit_record){.exited = true}, false, JOB_COMPLETED, JOB_FAILURE_NONE);
	judge((struct exit_record){.exited = true, .code = 3}, false, JOB_FAILED,
	      JOB_FAILURE_EXIT_CODE);
	judge((struct exit_record){.exited = true}, true, JOB_CANCELLED, JOB_FAILURE_NONE);
	judge(killed, false, JOB_FAILED, JOB_FAILURE_SIGNAL);
	judge(killed, true, JOB_CANCELLED, JOB_FAILURE_NONE);
	exit.out_of_memory = true;
	judge(exit, false, JOB_FAILED, JOB_FAILURE_OUT_OF_MEMORY);
	exit.timed_out = true;
	judge(exit, false, JOB_FAILED, JOB_FAILURE_TIME_LIMIT);
	/* After its time, and by itself. */
	judge((struct exit_record){.exited = true, .timed_out = true}, false, JOB_COMPLETED,
	      JOB_FAILURE_NONE);
}

static void ids_are_words_of_their_own(void **state)
{
	(void)state;
	assert_true(job_id_is_valid(STR("1abc")));
	assert_false(job_id_is_valid(STR("")));
	assert_false(job_id_is_valid(STR("..")));
	assert_false(job_id_is_valid(STR("1/2")));
	assert_false(job_id_is_valid(STR("1ABC")));
	assert_false(job_id_is_valid(STR("123456789012345678901234")));
}

/* ---- webhooks ---- */

static void assert_target(const char *url, const char *host, const char *port,
			  const char *authority, const char *path)
{
	struct job_webhook_target target;

	assert_int_equal(job_webhook_parse(url, &target), 0);
	assert_string_equal(target.host, host);
	assert_string_equal(target.port, port);
	assert_true(str_equal(target.authority, str_of(authority)));
	assert_true(str_equal(target.path, str_of(path)));
}

static void urls(void **state)
{
	static const char *const bad[] = {
		"",
		"http://",
		"https://h/",
		"http:///x",
		"http://h:0/",
		"http://h:65536/",
		"http://h:x/",
		"ftp://h/",
		"http://u:p@h/",
		"http://h/a b",
		"http://h/\r\nX: y",
		"http://[::1",
		"http://[::1]x/",
		"http://h\x7f/",
		"http://h:/",
	};
	struct job_webhook_target target;

	(void)state;
	assert_target("http://h", "h", "80", "h", "");
	assert_target("http://h:8080/a/b?c=d#e", "h", "8080", "h:8080", "/a/b?c=d");
	assert_target("http://[::1]:81?x", "::1", "81", "[::1]:81", "?x");
	assert_target("http://10.0.0.1/@", "10.0.0.1", "80", "10.0.0.1", "/@");
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		if (job_webhook_parse(bad[i], &target) == 0)
			fail_msg("%s was taken", bad[i]);
}

static void signatures(void **state)
{
	char text[JOB_WEBHOOK_SIGNATURE_BYTES];

	(void)state;
	job_webhook_sign("key", 1700000000000, STR("{}"), text);
	assert_true(str_starts_with(str_of(text), STR("t=1700000000000,v1=")));
	assert_int_equal(strlen(text), strlen("t=1700000000000,v1=") + 64);
	/* printf '1700000000000.{}' | openssl dgst -sha256 -hmac key */
	assert_string_equal(text + strlen("t=1700000000000,v1="),
			    "36a72f4525d3323bd0f238fe82098164fb77b1e42288ff8e07b074c686178ad3");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_written_reads_the_same),
		cmocka_unit_test(damage_is_noticed),
		cmocka_unit_test(memory_may_run_out),
		cmocka_unit_test(ends_are_judged),
		cmocka_unit_test(ids_are_words_of_their_own),
		cmocka_unit_test(urls),
		cmocka_unit_test(signatures),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
