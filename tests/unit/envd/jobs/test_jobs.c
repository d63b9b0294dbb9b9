/* Jobs on a real loop: their life, what is kept, a table that is closed in the middle, and that
 * nothing is left of either. */
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "envd/jobs/job_reader.h"
#include "envd/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/jobs_lab.h"
#include "tests/support/turn.h"

/* It runs, or has ended already: machines may be slow. */
static bool has_begun(void *user)
{
	return ((struct background_job *)user)->record.state != JOB_PENDING;
}

static bool has_output(void *user)
{
	return ((struct background_job *)user)->extents[JOB_STDOUT].end > 0;
}

static void a_job_runs_and_ends(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = jobs_lab_start(lab, "echo out; exit 3", 0);

	assert_int_equal(job->record.state, JOB_PENDING);
	jobs_lab_run_to_end(lab, job);
	assert_int_equal(job->record.state, JOB_FAILED);
	assert_int_equal(job->record.exit.code, 3);
	assert_int_equal(job->extents[JOB_STDOUT].end, 4);
	assert_true(job->record.exit.peak_rss_bytes > 0);
	assert_null(job->run);
	assert_int_equal(lab->table->running_count, 0);
	assert_int_equal(lab->table->ended_count, 1);
}

/* Whatever becomes of its keeper and of envd, it cannot have run without a trace. */
static void a_command_has_written_down_its_birth(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = jobs_lab_start(lab, "exit 0", 0);
	struct job_status status;
	struct timespec now;
	int64_t now_ms;

	clock_gettime(CLOCK_BOOTTIME, &now);
	now_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
	jobs_lab_run_to_end(lab, job);
	assert_int_equal(job_store_read_status(&lab->table->store, job->record.id, &status), 0);
	assert_int_equal(status.birth.pid, job->record.pid);
	assert_in_range(status.birth.born_ms, now_ms, now_ms + 60000);
}

static void time_limits_and_stops(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *limited = jobs_lab_start(lab, "sleep 60", 100),
			      *stopped = jobs_lab_start(lab, "sleep 60", 0),
			      *forced = jobs_lab_start(
				      lab, "trap '' TERM; echo; while :; do sleep 0.1; done", 0);

	/* While it is PENDING. */
	job_life_stop(stopped, false, 5000);
	lab_run_until_true(&lab->processes, has_output, forced);
	job_life_stop(forced, false, 60000);
	job_life_stop(forced, true, 0);
	jobs_lab_run_to_end(lab, limited);
	jobs_lab_run_to_end(lab, stopped);
	jobs_lab_run_to_end(lab, forced);
	assert_int_equal(limited->record.failure, JOB_FAILURE_TIME_LIMIT);
	assert_int_equal(stopped->record.state, JOB_CANCELLED);
	assert_int_equal(stopped->record.exit.signal, SIGTERM);
	assert_int_equal(forced->record.state, JOB_CANCELLED);
	assert_int_equal(forced->record.exit.signal, SIGKILL);
}

/* Its keeper has begun by then, so that a stop finds somebody to stop. */
static void a_stop_right_after_the_start_reaches_it(void **state)
{
	struct jobs_lab *lab = *state;

	for (int i = 0; i < 20; i++) {
		struct background_job *job = jobs_lab_start(lab, "sleep 60", 0);

		lab_run_until_true(&lab->processes, has_begun, job);
		job_life_stop(job, i % 2, 30000);
		jobs_lab_run_to_end(lab, job);
		assert_int_equal(job->record.state, JOB_CANCELLED);
	}
}

static size_t count_folders(const struct jobs_lab *lab)
{
	DIR *directory = opendir(lab->directory);
	struct dirent *entry;
	size_t count = 0;

	while ((entry = readdir(directory)))
		count += entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
	closedir(directory);
	return count;
}

static bool has_two_folders(void *user)
{
	return count_folders(user) == 2;
}

static void the_oldest_are_dropped(void **state)
{
	struct jobs_lab *lab = *state;
	char first[JOB_ID_BYTES];
	struct background_job *job = NULL;

	lab->table->settings.ended_max = 2;
	for (int i = 0; i < 4; i++) {
		job = jobs_lab_start(lab, "exit 0", 0);
		jobs_lab_run_to_end(lab, job);
		if (i == 0)
			memcpy(first, job->record.id, sizeof(first));
	}
	assert_int_equal(lab->table->ended_count, 2);
	assert_null(job_table_find(lab->table, str_of(first)));
	assert_ptr_equal(job_table_find(lab->table, str_of(job->record.id)), job);
	lab_run_until_true(&lab->processes, has_two_folders, lab);
	/* By what they take; the last one stays, or nobody could ever have seen it. */
	lab->table->settings.ended_bytes = 1;
	job = jobs_lab_start(lab, "head -c 100000 /dev/zero", 0);
	jobs_lab_run_to_end(lab, job);
	assert_int_equal(lab->table->ended_count, 1);
	assert_true(lab->table->stored_bytes >= 100000);
}

/* Machines begin with 1970, and are told the time later. */
static void age_is_counted_by_a_clock_that_nobody_sets(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *first = jobs_lab_start(lab, "exit 0", 0);
	char id[JOB_ID_BYTES];

	jobs_lab_run_to_end(lab, first);
	memcpy(id, first->record.id, sizeof(id));
	first->record.exit.ended_ms = 1000;
	jobs_lab_run_to_end(lab, jobs_lab_start(lab, "exit 0", 0));
	assert_ptr_equal(job_table_find(lab->table, str_of(id)), first);
	/* And ends in the future, when it is set back. */
	first->record.exit.ended_ms = wall_clock_ms() + 1000 * (int64_t)JOBS_ENDED_AGE_S;
	first->record.ended_steady_ms -= 1000 * (int64_t)JOBS_ENDED_AGE_S + 1000;
	jobs_lab_run_to_end(lab, jobs_lab_start(lab, "exit 0", 0));
	assert_null(job_table_find(lab->table, str_of(id)));
}

struct deletion {
	struct jobs_lab *lab;
	int told, status;
	bool was_stored; /* when it was told */
};

static void on_removed(void *user, int status)
{
	struct deletion *deletion = user;

	deletion->told++;
	deletion->status = status;
	deletion->was_stored = count_folders(deletion->lab) > 0;
}

static bool is_told(void *user)
{
	return ((struct deletion *)user)->told > 0;
}

static void who_deletes_a_job_is_told_when_it_is_gone_for_good(void **state)
{
	struct jobs_lab *lab = *state;
	struct deletion deletion = {.lab = lab};
	struct background_job *job = jobs_lab_start(lab, "exit 0", 0);

	jobs_lab_run_to_end(lab, job);
	background_job_delete(job, on_removed, &deletion);
	assert_int_equal(deletion.told, 0);
	lab_run_until_true(&lab->processes, is_told, &deletion);
	assert_int_equal(deletion.status, 0);
	assert_false(deletion.was_stored);
	/* The next envd finds none, also when this one ends at once. */
	job = jobs_lab_start(lab, "exit 0", 0);
	jobs_lab_run_to_end(lab, job);
	background_job_remove(job);
	jobs_lab_close_table(lab);
	jobs_lab_open_table(lab);
	assert_int_equal(lab->table->count, 0);
}

static void a_table_that_is_closed_leaves_jobs_to_the_next(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = jobs_lab_start(lab, "sleep 0.3; exit 9", 0),
			      *quick = jobs_lab_start(lab, "exit 1", 0);
	char id[JOB_ID_BYTES], quick_id[JOB_ID_BYTES];

	memcpy(id, job->record.id, sizeof(id));
	memcpy(quick_id, quick->record.id, sizeof(quick_id));
	lab_run_until_true(&lab->processes, has_begun, job);
	jobs_lab_run_to_end(lab, quick);
	jobs_lab_close_table(lab);
	jobs_lab_open_table(lab);
	job = job_table_find(lab->table, str_of(id));
	quick = job_table_find(lab->table, str_of(quick_id));
	assert_non_null(job);
	assert_non_null(quick);
	assert_int_equal(quick->record.exit.code, 1);
	jobs_lab_run_to_end(lab, job);
	assert_int_equal(job->record.exit.code, 9);
	/* Its keeper was ours to collect, and nobody did. */
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

/* The keeper, which is this program's child, is nobody's to collect but ours. */
static bool is_over(void *user)
{
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	return !((struct background_job *)user)->run;
}

/* Also where the kernel has no pidfds, and the file is all that tells of the keeper. */
static void a_job_whose_folder_is_gone_ends_with_its_keeper(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = jobs_lab_start(lab, "exec sleep 600", 0);
	char id[JOB_ID_BYTES], path[sizeof(lab->directory) + JOB_ID_BYTES + sizeof("/status")];

	memcpy(id, job->record.id, sizeof(id));
	lab_run_until_true(&lab->processes, has_begun, job);
	jobs_lab_close_table(lab);
	jobs_lab_open_table(lab);
	job = job_table_find(lab->table, str_of(id));
	assert_non_null(job);
	assert_int_equal(job->record.state, JOB_RUNNING);
	snprintf(path, sizeof(path), "%s/%s/status", lab->directory, id);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(kill(job->record.pid, SIGKILL), 0);
	lab_run_until_true(&lab->processes, is_over, job);
	assert_int_equal(job->record.state, JOB_FAILED);
	assert_int_equal(job->record.failure, JOB_FAILURE_LOST);
}

static void a_table_may_close_while_jobs_start(void **state)
{
	struct jobs_lab *lab = *state;

	for (int i = 0; i < 8; i++)
		(void)jobs_lab_start(lab, "sleep 0.2", 0);
	jobs_lab_close_table(lab);
	jobs_lab_open_table(lab);
	TURN_UNTIL(&lab->processes.loop, lab->table->running_count == 0);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

/* ---- readers ---- */

struct reading {
	struct job_reader reader;
	char text[256];
	size_t len;
	bool has_ended, is_free;
	int status;
};

static int on_data(struct job_reader *reader, enum job_stream stream, uint64_t offset,
		   struct str bytes)
{
	struct reading *reading = container_of(reader, struct reading, reader);

	assert_int_equal(offset, reading->len);
	assert_true(reading->len + bytes.len < sizeof(reading->text));
	memcpy(reading->text + reading->len, bytes.p, bytes.len);
	reading->len += bytes.len;
	return 0;
}

static int on_gap(struct job_reader *reader, enum job_stream stream, uint64_t offset)
{
	fail_msg("no gap was to be expected");
	return 0;
}

static void on_end(struct job_reader *reader, int status)
{
	struct reading *reading = container_of(reader, struct reading, reader);

	reading->has_ended = true;
	reading->status = status;
}

static void on_free(struct job_reader *reader)
{
	container_of(reader, struct reading, reader)->is_free = true;
}

static const struct job_reader_ops reader_ops = {
	.on_data = on_data, .on_gap = on_gap, .on_end = on_end};

static void open_reader(struct reading *reading, struct background_job *job)
{
	*reading = (struct reading){
		.reader = {.ops = &reader_ops,
			   .on_free = on_free,
			   .job = job,
			   .follows = true,
			   .bytes_left = UINT64_MAX,
			   .piece_bytes = 4096,
			   .streams = {{.is_wanted = true, .until = UINT64_MAX}, {.fd = -1}}},
	};
	assert_int_equal(job_reader_open(&reading->reader), 0);
}

static void readers_follow_to_the_end(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = jobs_lab_start(
		lab, "for i in 1 2 3; do printf $i; sleep 0.05; done", 0);
	struct reading whole, gone;

	open_reader(&whole, job);
	open_reader(&gone, job);
	lab_run_until_true(&lab->processes, has_begun, job);
	job_reader_close(&gone.reader);
	lab_run_until(&lab->processes, &gone.is_free);
	assert_false(gone.has_ended);
	lab_run_until(&lab->processes, &whole.has_ended);
	assert_int_equal(whole.status, 0);
	assert_int_equal(whole.len, 3);
	assert_memory_equal(whole.text, "123", 3);
	job_reader_close(&whole.reader);
	lab_run_until(&lab->processes, &whole.is_free);
}

static void readers_are_told_when_the_table_closes(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = jobs_lab_start(lab, "sleep 0.2", 0);
	struct reading reading;

	open_reader(&reading, job);
	lab_run_until_true(&lab->processes, has_begun, job);
	jobs_close(lab->table);
	assert_true(reading.has_ended);
	assert_int_equal(reading.status, -ESHUTDOWN);
	job_reader_close(&reading.reader);
	lab_run_until(&lab->processes, &reading.is_free);
	TURN_UNTIL(&lab->processes.loop, lab->table->live == 0);
	jobs_free(lab->table);
	jobs_lab_open_table(lab);
	TURN_UNTIL(&lab->processes.loop, lab->table->running_count == 0);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, jobs_lab_set_up, jobs_lab_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(a_job_runs_and_ends),
		TEST(a_command_has_written_down_its_birth),
		TEST(time_limits_and_stops),
		TEST(a_stop_right_after_the_start_reaches_it),
		TEST(the_oldest_are_dropped),
		TEST(age_is_counted_by_a_clock_that_nobody_sets),
		TEST(who_deletes_a_job_is_told_when_it_is_gone_for_good),
		TEST(a_table_that_is_closed_leaves_jobs_to_the_next),
		TEST(a_job_whose_folder_is_gone_ends_with_its_keeper),
		TEST(a_table_may_close_while_jobs_start),
		TEST(readers_follow_to_the_end),
		TEST(readers_are_told_when_the_table_closes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
