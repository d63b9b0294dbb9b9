/* Jobs on disk: files, extents, caps, input by offsets, lines that match. */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "envd/jobs/job_search.h"
#include "envd/jobs/job_store.h"
#include "envd/limits.h"
#include "lib/json.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"

#define ID "1testjob"

struct place {
	struct job_store store;
	struct job_files files;
	struct job_record record;
	char directory[64];
};

static void save_record(struct place *place)
{
	struct buf text;

	buf_init(&text, 2 * JOB_RECORD_BYTES_MAX);
	assert_int_equal(job_record_write(&place->record, &text), 0);
	assert_int_equal(job_store_save(&place->store, ID, buf_str(&text)), 0);
	buf_fini(&text);
}

static int setup(void **state)
{
	static const char *const argv[] = {"true"};
	struct job_record record = {
		.id = ID,
		.name = "",
		.client_key = "",
		.argv = argv,
		.argc = 1,
		.cwd = "",
		.user_name = "",
		.message = "",
		.webhook_url = "",
		.webhook_key = "",
		.state = JOB_PENDING,
		.stdin_mode = JOB_STDIN_PIPE,
		.output_mode = JOB_OUTPUT_SPLIT,
	};
	struct place *place = xcalloc(1, sizeof(*place));
	char path[80];
	struct err err;

	log_init(LOG_ERROR, LOG_TEXT, -1);
	strcpy(place->directory, "/tmp/job-store-XXXXXX");
	assert_non_null(mkdtemp(place->directory));
	snprintf(path, sizeof(path), "%s/a/jobs", place->directory);
	job_store_init(&place->store, path);
	assert_false(job_store_exists(&place->store));
	assert_int_equal(job_store_open(&place->store, &err), 0);
	assert_int_equal(job_store_create(&place->store, &record, &place->files, &err), 0);
	place->record = record;
	*state = place;
	return 0;
}

static int teardown(void **state)
{
	struct place *place = *state;
	char command[128];

	job_files_close(&place->files);
	job_store_remove(&place->store, ID);
	job_store_fini(&place->store);
	snprintf(command, sizeof(command), "rm -rf %s", place->directory);
	free(place);
	return system(command);
}

static void write_output(struct place *place, enum job_stream stream, const char *text)
{
	assert_int_equal(write(place->files.outputs[stream], text, strlen(text)), strlen(text));
}

static void a_second_store_is_refused(void **state)
{
	struct place *place = *state;
	struct job_store other;
	struct err err;

	job_store_init(&other, place->store.directory);
	assert_true(job_store_exists(&other));
	assert_true(job_store_open(&other, &err) < 0);
	assert_int_equal(err.kind, ERR_UNAVAILABLE);
	assert_non_null(strstr(err.message, "another envd"));
	job_store_fini(&other);
}

static void extents_and_caps(void **state)
{
	struct place *place = *state;
	struct job_extent extents[JOB_STREAMS];
	char block[4096];
	uint64_t stored;

	memset(block, 'x', sizeof(block));
	for (int i = 0; i < 256; i++)
		assert_int_equal(write(place->files.outputs[JOB_STDOUT], block, sizeof(block)),
				 sizeof(block));
	write_output(place, JOB_STDERR, "hello");
	job_store_extents(&place->store, ID, extents, &stored);
	assert_int_equal(extents[JOB_STDOUT].oldest, 0);
	assert_int_equal(extents[JOB_STDOUT].end, 1 << 20);
	assert_int_equal(extents[JOB_STDERR].end, 5);
	assert_int_equal(job_store_cap(&place->store, ID, JOB_STDOUT, 2 << 20), 0);
	assert_int_equal(job_store_cap(&place->store, ID, JOB_STDERR, 2 << 20), 0);
	job_store_extents(&place->store, ID, extents, &stored);
	assert_int_equal(extents[JOB_STDOUT].oldest, 0);
	if (job_store_cap(&place->store, ID, JOB_STDOUT, 300000) < 0)
		skip(); /* no holes here */
	job_store_extents(&place->store, ID, extents, &stored);
	assert_true(extents[JOB_STDOUT].oldest <= (1 << 20) - 300000);
	assert_true(extents[JOB_STDOUT].oldest > (1 << 20) - 300000 - 65536);
	assert_int_equal(extents[JOB_STDOUT].end, 1 << 20);
	assert_true(stored < 400000);
	assert_int_equal(extents[JOB_STDERR].oldest, 0);
}

static int store_input(struct place *place, uint64_t offset, const char *data, bool closes,
		       uint64_t *taken)
{
	struct job_input_write write = {.offset = offset, .data = str_of(data), .closes = closes};
	int status = job_input_store(&place->store, ID, &write);

	*taken = write.taken;
	return status;
}

static void input_by_offsets(void **state)
{
	struct place *place = *state;
	struct job_status status;
	uint64_t taken;

	assert_int_equal(store_input(place, 0, "abc", false, &taken), 0);
	assert_int_equal(taken, 3);
	assert_int_equal(store_input(place, 1, "bcde", false, &taken), 0);
	assert_int_equal(taken, 5);
	assert_int_equal(store_input(place, 6, "g", false, &taken), -ERANGE);
	assert_int_equal(store_input(place, UINT64_MAX, "g", false, &taken), -ERANGE);
	assert_int_equal(store_input(place, 0, "ab", false, &taken), 0);
	assert_int_equal(taken, 5);
	/* A close that does not come with the end is none. */
	assert_int_equal(store_input(place, 0, "ab", true, &taken), 0);
	assert_int_equal(job_store_read_status(&place->store, ID, &status), 0);
	assert_false(status.agent.is_input_closed);
	assert_int_equal(store_input(place, 5, "", true, &taken), 0);
	assert_int_equal(job_store_read_status(&place->store, ID, &status), 0);
	assert_true(status.agent.is_input_closed);
	assert_int_equal(store_input(place, 5, "", true, &taken), 0);
	assert_int_equal(store_input(place, 3, "de", false, &taken), 0);
	assert_int_equal(store_input(place, 5, "f", false, &taken), -EBADF);
}

static void input_that_nobody_reads_is_bounded(void **state)
{
	struct place *place = *state;
	struct job_status_fed fed = {.fed = 0};
	size_t len = 8 * 1024 * 1024;
	char *block = xcalloc(1, len + 1);
	uint64_t taken = 0, at = 0;

	memset(block, 'i', len);
	while (at < (uint64_t)JOB_STDIN_BYTES_MAX) {
		assert_int_equal(store_input(place, at, block, false, &taken), 0);
		assert_int_equal(taken, at + len);
		at = taken;
	}
	assert_int_equal(store_input(place, at, "more", false, &taken), 0);
	assert_int_equal(taken, at);
	/* The keeper has handed some on. */
	fed.fed = 2;
	assert_int_equal(pwrite(place->files.status, &fed, sizeof(fed), JOB_STATUS_FED_AT),
			 sizeof(fed));
	assert_int_equal(store_input(place, at, "more", false, &taken), 0);
	assert_int_equal(taken, at + 2);
	fed.is_broken = 1;
	assert_int_equal(pwrite(place->files.status, &fed, sizeof(fed), JOB_STATUS_FED_AT),
			 sizeof(fed));
	assert_int_equal(store_input(place, at + 2, "re", false, &taken), -EPIPE);
	free(block);
}

static void slots_that_are_torn_are_not_there(void **state)
{
	struct place *place = *state;
	struct job_status_end end = {
		.magic = JOB_STATUS_END_MAGIC, .exited = 1, .code = 3, .ended_ms = 9};
	struct job_record record = {.exit = {.code = 0}};
	struct job_status status;

	assert_int_equal(job_store_read_status(&place->store, ID, &status), 0);
	assert_false(job_status_apply_end(&status, &record));
	end.checksum = job_status_checksum(&end, sizeof(end));
	assert_int_equal(pwrite(place->files.status, &end, sizeof(end) - 1, JOB_STATUS_END_AT),
			 sizeof(end) - 1);
	assert_int_equal(job_store_read_status(&place->store, ID, &status), 0);
	assert_int_equal(status.end.magic, 0);
	assert_int_equal(pwrite(place->files.status, &end, sizeof(end), JOB_STATUS_END_AT),
			 sizeof(end));
	assert_int_equal(job_store_read_status(&place->store, ID, &status), 0);
	assert_true(job_status_apply_end(&status, &record));
	assert_int_equal(record.exit.code, 3);
	assert_true(record.has_exit);
	assert_int_equal(job_status_keeper(place->files.status), 0);
}

/* ---- the order of the streams ---- */

#define RUNS_MAX 40000

struct runs {
	struct {
		enum job_stream stream;
		uint64_t len;
	} items[RUNS_MAX];
	size_t count;
};

static void add_run(struct runs *runs, enum job_stream stream, uint64_t len)
{
	if (len == 0)
		return;
	if (runs->count == 0 || runs->items[runs->count - 1].stream != stream) {
		assert_true(runs->count < RUNS_MAX);
		runs->items[runs->count].stream = stream;
		runs->items[runs->count++].len = 0;
	}
	runs->items[runs->count - 1].len += len;
}

/* As a reader goes through it. */
static void read_runs(const struct place *place, struct runs *runs)
{
	int fd = job_store_open_file(&place->store, ID, "order", O_RDONLY);
	uint64_t at[JOB_STREAMS] = {0, 0};
	struct job_mark mark;

	runs->count = 0;
	assert_true(fd >= 0);
	while (job_order_find(fd, at, &mark)) {
		enum job_stream second = mark.first == JOB_STDOUT ? JOB_STDERR : JOB_STDOUT;

		add_run(runs, mark.first, mark.ends[mark.first] - at[mark.first]);
		add_run(runs, second, mark.ends[second] - at[second]);
		memcpy(at, mark.ends, sizeof(at));
	}
	close(fd);
}

static void the_order_of_the_streams_is_kept(void **state)
{
	struct place *place = *state;
	struct job_order order = {.count = 0};
	struct runs *wanted = xcalloc(1, sizeof(*wanted)), *found = xcalloc(1, sizeof(*found));
	uint64_t ends[JOB_STREAMS] = {0, 0};
	unsigned seed = 7;

	for (int i = 0; i < 3000; i++) {
		unsigned dice = (unsigned)rand_r(&seed);
		enum job_stream first = dice & 1 ? JOB_STDERR : JOB_STDOUT;
		enum job_stream second = first == JOB_STDOUT ? JOB_STDERR : JOB_STDOUT;
		uint64_t one = dice >> 1 & 3, two = dice >> 3 & 3;

		add_run(wanted, first, one);
		add_run(wanted, second, two);
		ends[first] += one;
		ends[second] += two;
		job_order_note(&order, &place->store, ID, ends, first);
		/* Another envd goes on. */
		if (i % 97 == 0)
			order = (struct job_order){.count = 0};
	}
	read_runs(place, found);
	assert_int_equal(found->count, wanted->count);
	assert_memory_equal(found->items, wanted->items, found->count * sizeof(found->items[0]));
	free(wanted);
	free(found);
}

static void the_order_is_bounded_and_every_byte_stays(void **state)
{
	struct place *place = *state;
	struct job_order order = {.count = 0};
	struct runs *found = xcalloc(1, sizeof(*found));
	uint64_t ends[JOB_STREAMS] = {0, 0}, sums[JOB_STREAMS] = {0, 0};
	struct stat about;
	size_t i;
	int fd;

	/* Two marks at least for every four. */
	for (i = 0; i < 4 * JOB_ORDER_MARKS_MAX; i++) {
		ends[i % 2]++;
		job_order_note(&order, &place->store, ID, ends, JOB_STDOUT);
	}
	read_runs(place, found);
	for (i = 0; i < found->count; i++)
		sums[found->items[i].stream] += found->items[i].len;
	assert_memory_equal(sums, ends, sizeof(sums));
	assert_true(found->count > JOB_ORDER_MARKS_MAX / 2);
	fd = job_store_open_file(&place->store, ID, "order", O_RDONLY);
	assert_int_equal(fstat(fd, &about), 0);
	assert_true(about.st_size <= 16 * JOB_ORDER_MARKS_MAX);
	close(fd);
	free(found);
}

/* ---- patterns ---- */

static int scan_for(struct place *place, struct job_scan *scan, const char *text)
{
	struct job_pattern pattern = {.is_compiled = false};
	struct job_scan_source source;
	struct err err;
	int status;

	assert_int_equal(job_pattern_check(text, &err), 0);
	assert_int_equal(job_pattern_compile(&pattern, text, &err), 0);
	job_scan_open(&source, &place->store, ID);
	status = job_scan_run(scan, &pattern, &source);
	job_scan_close(&source);
	job_pattern_fini(&pattern);
	return status;
}

static void lines_are_found_once_they_are_there(void **state)
{
	struct place *place = *state;
	struct job_scan scan = {.is_wanted = {true, true}};
	char long_line[JOB_LINE_BYTES_MAX + 100];

	write_output(place, JOB_STDOUT, "one\ntwo\nrea");
	assert_int_equal(scan_for(place, &scan, "^ready$"), 0);
	write_output(place, JOB_STDERR, "err\n");
	write_output(place, JOB_STDOUT, "dy");
	assert_int_equal(scan_for(place, &scan, "^ready$"), 1);
	assert_string_equal(scan.line, "ready");
	assert_int_equal(scan.line_offset, 8);
	write_output(place, JOB_STDOUT, "\n");
	write_output(place, JOB_STDERR, "port 80\n");
	assert_int_equal(scan_for(place, &scan, "port [0-9]+"), 1);
	assert_int_equal(scan.line_offset, 4);
	/* A line without end does not need memory without end. */
	memset(long_line, 'z', sizeof(long_line) - 1);
	long_line[sizeof(long_line) - 1] = '\0';
	write_output(place, JOB_STDOUT, long_line);
	write_output(place, JOB_STDOUT, "needle\n");
	assert_int_equal(scan_for(place, &scan, "needle"), 1);
	assert_int_equal(scan_for(place, &scan, "nothing"), 0);
}

static void patterns_that_could_explode_are_refused(void **state)
{
	static const char *const bad[] = {
		"a{2}",
		"(a)\\1",
		"(((a{9}){9}){9})",
		/* In brackets a backslash is one. */
		"[\\]{200}",
		"([\\]{250}){250}",
		"\\[{9}",
		"[[:alpha:]]{9}",
		"[]]{9}",
		"[^]]{9}",
		"[]{2}]{9}",
		"(((((a+)+)+)+)+)+",
		"a+++++",
		"(((((a+)*b)+c)+|x)+|y)+",
	};
	static const char *const good[] = {
		"[{]\\{(a|b)+",	     "[]{2}]",	      "[^]{]", "[[:alpha:]{]",
		"a+b+c+d+e+f+(g+)+", "((((a+)+)+)+)", "(",
	};
	struct job_pattern pattern = {.is_compiled = false};
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		assert_int_equal(job_pattern_check(bad[i], &err), -EPROTO);
	for (size_t i = 0; i < ARRAY_LENGTH(good); i++)
		assert_int_equal(job_pattern_check(good[i], &err), 0);
	assert_true(job_pattern_compile(&pattern, "(", &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	job_pattern_fini(&pattern);
}

/* ---- what a killed envd and a killed keeper have left ---- */

static pid_t start_leader(struct place *place, struct child_birth *ret_birth)
{
	struct timespec now;
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		job_files_close(&place->files);
		setsid();
		for (;;)
			pause();
	}
	assert_true(pid > 0);
	clock_gettime(CLOCK_BOOTTIME, &now);
	*ret_birth = (struct child_birth){.pid = pid,
					  .born_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000};
	return pid;
}

static void load_one(struct place *place, struct job_found *ret_found, size_t *ret_count)
{
	struct job_found *found;

	job_files_close(&place->files);
	found = job_store_load(&place->store, NULL, ret_count);
	assert_true(*ret_count <= 1);
	if (*ret_count == 1)
		*ret_found = found[0];
	free(found);
}

static void a_job_that_never_ran_is_not_there(void **state)
{
	struct job_found found;
	size_t count;

	load_one(*state, &found, &count);
	assert_int_equal(count, 0);
}

static void a_command_that_began_without_its_keeper_is_lost_and_does_not_run_on(void **state)
{
	struct place *place = *state;
	struct child_birth birth;
	struct job_found found;
	size_t count;
	int status;
	pid_t leader = start_leader(place, &birth);

	job_store_boot_id(place->record.boot_id);
	save_record(place);
	assert_int_equal(pwrite(place->files.status, &birth, sizeof(birth), JOB_STATUS_BIRTH_AT),
			 sizeof(birth));
	load_one(place, &found, &count);
	assert_int_equal(count, 1);
	assert_int_equal(found.record.state, JOB_FAILED);
	assert_int_equal(found.record.failure, JOB_FAILURE_LOST);
	assert_non_null(strstr(found.record.message, "keeper was killed"));
	job_record_fini(&found.record);
	assert_int_equal(waitpid(leader, &status, 0), leader);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void who_has_the_number_of_a_lost_leader_is_left_alone(void **state)
{
	struct place *place = *state;
	struct child_birth birth;
	struct job_found found;
	size_t count;
	pid_t stranger = start_leader(place, &birth);

	job_store_boot_id(place->record.boot_id);
	save_record(place);
	birth.born_ms -= 3000;
	assert_int_equal(pwrite(place->files.status, &birth, sizeof(birth), JOB_STATUS_BIRTH_AT),
			 sizeof(birth));
	load_one(place, &found, &count);
	assert_int_equal(count, 1);
	assert_int_equal(found.record.failure, JOB_FAILURE_LOST);
	job_record_fini(&found.record);
	assert_int_equal(waitpid(stranger, NULL, WNOHANG), 0);
	kill(stranger, SIGKILL);
	assert_int_equal(waitpid(stranger, NULL, 0), stranger);
}

static void what_is_known_to_have_run_is_not_said_to_have_never_begun(void **state)
{
	struct place *place = *state;
	struct job_found found;
	size_t count;

	/* As after a power cut that the record has survived, and the status not. */
	strcpy(place->record.boot_id, "another-boot");
	place->record.state = JOB_RUNNING;
	save_record(place);
	load_one(place, &found, &count);
	assert_int_equal(count, 1);
	assert_int_equal(found.record.failure, JOB_FAILURE_LOST);
	assert_non_null(strstr(found.record.message, "machine was restarted"));
	job_record_fini(&found.record);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_second_store_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(extents_and_caps, setup, teardown),
		cmocka_unit_test_setup_teardown(input_by_offsets, setup, teardown),
		cmocka_unit_test_setup_teardown(input_that_nobody_reads_is_bounded, setup,
						teardown),
		cmocka_unit_test_setup_teardown(slots_that_are_torn_are_not_there, setup, teardown),
		cmocka_unit_test_setup_teardown(lines_are_found_once_they_are_there, setup,
						teardown),
		cmocka_unit_test_setup_teardown(the_order_of_the_streams_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(the_order_is_bounded_and_every_byte_stays, setup,
						teardown),
		cmocka_unit_test(patterns_that_could_explode_are_refused),
		cmocka_unit_test_setup_teardown(a_job_that_never_ran_is_not_there, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_command_that_began_without_its_keeper_is_lost_and_does_not_run_on, setup,
			teardown),
		cmocka_unit_test_setup_teardown(who_has_the_number_of_a_lost_leader_is_left_alone,
						setup, teardown),
		cmocka_unit_test_setup_teardown(
			what_is_known_to_have_run_is_not_said_to_have_never_begun, setup, teardown),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
