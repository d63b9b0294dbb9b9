/* Jobs on a real loop: their life, what is kept, a table that is closed in the middle, and that nothing is
 * left of either. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/jobs/job_life.h"
#include "envd/jobs/job_reader.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

struct jobs_lab {
	struct process_lab processes;
	struct job_table *table;
	struct job_table_settings settings;
	char directory[96];
};

static bool is_loaded(void *user)
{
	return ((struct jobs_lab *)user)->table->is_loaded;
}

static void open_table(struct jobs_lab *lab)
{
	lab->table = job_table_new(&lab->settings);
	job_table_open(lab->table);
	lab_run_until_true(&lab->processes, is_loaded, lab);
}

static void close_table(struct jobs_lab *lab)
{
	job_table_close(lab->table);
	while (lab->table->live > 0)
		uv_run(&lab->processes.loop.uv, UV_RUN_ONCE);
	uv_run(&lab->processes.loop.uv, UV_RUN_NOWAIT);
	job_table_free(lab->table);
}

static int setup(void **state)
{
	struct jobs_lab *lab = xcalloc(1, sizeof(*lab));

	json_init();
	lab_open(&lab->processes, NULL);
	snprintf(lab->directory, sizeof(lab->directory), "%s/jobs", lab->processes.directory);
	lab->settings = (struct job_table_settings){
		.loop = &lab->processes.loop,
		.sandbox = &lab->processes.sandbox,
		.spawn = &lab->processes.table->spawn_settings,
		.reaper = &lab->processes.table->reaper,
		.directory = lab->directory,
	};
	open_table(lab);
	*state = lab;
	return 0;
}

static int teardown(void **state)
{
	struct jobs_lab *lab = *state;

	close_table(lab);
	lab_close(&lab->processes);
	free(lab);
	return 0;
}

static struct background_job *start(struct jobs_lab *lab, const char *script, uint64_t wall_time_ms)
{
	const char *argv[] = {"sh", "-c", script};
	struct job_spec spec = {
		.record = {.name = "", .client_key = "", .argv = argv, .argc = 3, .cwd = "/", .user_name = "root",
			   .message = "", .webhook_url = "", .webhook_key = "", .wall_time_ms = wall_time_ms,
			   .output_bytes = 1 << 20, .stop_grace_ms = 1000, .stdin_mode = JOB_STDIN_NONE,
			   .output_mode = JOB_OUTPUT_SPLIT},
		.user_name = "root",
	};
	struct background_job *job;
	struct err err;

	if (job_life_create(lab->table, &spec, &job, &err) < 0)
		fail_msg("%s", err.message);
	return job;
}

/* It runs, or has ended already: machines may be slow. */
static bool has_begun(void *user)
{
	return ((struct background_job *)user)->record.state != JOB_PENDING;
}

static bool has_output(void *user)
{
	return ((struct background_job *)user)->extents[JOB_STDOUT].end > 0;
}

static bool has_ended(void *user)
{
	return job_state_is_end(((struct background_job *)user)->record.state);
}

static void run_to_end(struct jobs_lab *lab, struct background_job *job)
{
	lab_run_until_true(&lab->processes, has_ended, job);
}

static void a_job_runs_and_ends(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = start(lab, "echo out; exit 3", 0);

	assert_int_equal(job->record.state, JOB_PENDING);
	run_to_end(lab, job);
	assert_int_equal(job->record.state, JOB_FAILED);
	assert_int_equal(job->record.exit.code, 3);
	assert_int_equal(job->extents[JOB_STDOUT].end, 4);
	assert_true(job->record.exit.peak_rss_bytes > 0);
	assert_null(job->run);
	assert_int_equal(lab->table->running_count, 0);
	assert_int_equal(lab->table->ended_count, 1);
}

static void time_limits_and_stops(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *limited = start(lab, "sleep 60", 100), *stopped = start(lab, "sleep 60", 0),
			      *forced = start(lab, "trap '' TERM; echo; while :; do sleep 0.1; done", 0);

	/* While it is PENDING. */
	job_life_stop(stopped, false, 5000);
	lab_run_until_true(&lab->processes, has_output, forced);
	job_life_stop(forced, false, 60000);
	job_life_stop(forced, true, 0);
	run_to_end(lab, limited);
	run_to_end(lab, stopped);
	run_to_end(lab, forced);
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
		struct background_job *job = start(lab, "sleep 60", 0);

		lab_run_until_true(&lab->processes, has_begun, job);
		job_life_stop(job, i % 2, 30000);
		run_to_end(lab, job);
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
		job = start(lab, "exit 0", 0);
		run_to_end(lab, job);
		if (i == 0)
			memcpy(first, job->record.id, sizeof(first));
	}
	assert_int_equal(lab->table->ended_count, 2);
	assert_null(job_table_find(lab->table, str_of(first)));
	assert_ptr_equal(job_table_find(lab->table, str_of(job->record.id)), job);
	lab_run_until_true(&lab->processes, has_two_folders, lab);
	/* By what they take; the last one stays, or nobody could ever have seen it. */
	lab->table->settings.ended_bytes = 1;
	job = start(lab, "head -c 100000 /dev/zero", 0);
	run_to_end(lab, job);
	assert_int_equal(lab->table->ended_count, 1);
	assert_true(lab->table->stored_bytes >= 100000);
}

static void a_table_that_is_closed_leaves_jobs_to_the_next(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = start(lab, "sleep 0.3; exit 9", 0), *quick = start(lab, "exit 1", 0);
	char id[JOB_ID_BYTES], quick_id[JOB_ID_BYTES];

	memcpy(id, job->record.id, sizeof(id));
	memcpy(quick_id, quick->record.id, sizeof(quick_id));
	lab_run_until_true(&lab->processes, has_begun, job);
	run_to_end(lab, quick);
	close_table(lab);
	open_table(lab);
	job = job_table_find(lab->table, str_of(id));
	quick = job_table_find(lab->table, str_of(quick_id));
	assert_non_null(job);
	assert_non_null(quick);
	assert_int_equal(quick->record.exit.code, 1);
	run_to_end(lab, job);
	assert_int_equal(job->record.exit.code, 9);
	/* Its keeper was ours to collect, and nobody did. */
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

static void a_table_may_close_while_jobs_start(void **state)
{
	struct jobs_lab *lab = *state;

	for (int i = 0; i < 8; i++)
		(void)start(lab, "sleep 0.2", 0);
	close_table(lab);
	open_table(lab);
	while (lab->table->running_count > 0)
		uv_run(&lab->processes.loop.uv, UV_RUN_ONCE);
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

static int on_data(struct job_reader *reader, enum job_stream stream, uint64_t offset, struct str bytes)
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

static const struct job_reader_ops reader_ops = {.on_data = on_data, .on_gap = on_gap, .on_end = on_end};

static void open_reader(struct reading *reading, struct background_job *job)
{
	*reading = (struct reading){
		.reader = {.ops = &reader_ops, .on_free = on_free, .job = job, .follows = true,
			   .bytes_left = UINT64_MAX, .piece_bytes = 4096,
			   .streams = {{.is_wanted = true, .until = UINT64_MAX}, {.fd = -1}}},
	};
	assert_int_equal(job_reader_open(&reading->reader), 0);
}

static void readers_follow_to_the_end(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = start(lab, "for i in 1 2 3; do printf $i; sleep 0.05; done", 0);
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
	struct background_job *job = start(lab, "sleep 0.2", 0);
	struct reading reading;

	open_reader(&reading, job);
	lab_run_until_true(&lab->processes, has_begun, job);
	job_table_close(lab->table);
	assert_true(reading.has_ended);
	assert_int_equal(reading.status, -ESHUTDOWN);
	job_reader_close(&reading.reader);
	lab_run_until(&lab->processes, &reading.is_free);
	while (lab->table->live > 0)
		uv_run(&lab->processes.loop.uv, UV_RUN_ONCE);
	job_table_free(lab->table);
	open_table(lab);
	while (lab->table->running_count > 0)
		uv_run(&lab->processes.loop.uv, UV_RUN_ONCE);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

/* ---- replays of what is there ---- */

#define SEQUENCE_BYTES 728895 /* of seq 1 120000 */

/* A reader whose client takes as much as it likes, every other time nothing. */
struct replay {
	struct job_reader reader;
	struct jobs_lab *lab;
	char *want; /* the whole file, as it was */
	size_t want_len, offset, gaps, piped, copied;
	void (*on_piece)(struct replay *replay); /* may be NULL */
	off_t hole_end; /* 0: none to be made */
	size_t takes; /* of a pipe in one go; 0: all */
	struct later drain;
	bool has_ended, is_free, is_full;
	int status;
};

static char *output_path(struct jobs_lab *lab, const struct background_job *job, char path[256])
{
	snprintf(path, 256, "%s/%s/stdout", lab->directory, job->record.id);
	return path;
}

static void check_bytes(struct replay *replay, uint64_t offset, const char *bytes, size_t len)
{
	assert_int_equal(offset, replay->offset);
	assert_true(offset + len <= replay->want_len);
	assert_memory_equal(bytes, replay->want + offset, len);
	replay->offset += len;
}

static int on_replay_data(struct job_reader *reader, enum job_stream stream, uint64_t offset, struct str bytes)
{
	struct replay *replay = container_of(reader, struct replay, reader);

	check_bytes(replay, offset, bytes.p, bytes.len);
	replay->copied += bytes.len;
	if (replay->on_piece)
		replay->on_piece(replay);
	later_call(&replay->lab->processes.loop, &replay->drain);
	return JOB_READER_FULL;
}

static ssize_t on_replay_pipe(struct job_reader *reader, enum job_stream stream, uint64_t offset, int pipe, size_t len)
{
	struct replay *replay = container_of(reader, struct replay, reader);
	size_t wanted = replay->takes ? size_min(replay->takes, len) : len;
	char *bytes = xmalloc(len);

	if (replay->is_full) {
		assert_int_equal(read(pipe, bytes, wanted), wanted);
		check_bytes(replay, offset, bytes, wanted);
		replay->piped += wanted;
		if (replay->on_piece)
			replay->on_piece(replay);
	} else {
		wanted = 0; /* every other time */
	}
	free(bytes);
	replay->is_full = !replay->is_full;
	if (wanted < len)
		later_call(&replay->lab->processes.loop, &replay->drain);
	return (ssize_t)wanted;
}

static int on_replay_gap(struct job_reader *reader, enum job_stream stream, uint64_t offset)
{
	struct replay *replay = container_of(reader, struct replay, reader);

	assert_int_equal(offset, replay->offset);
	assert_true(reader->extent.oldest > offset);
	replay->offset = reader->extent.oldest;
	replay->gaps++;
	return 0;
}

static void on_replay_end(struct job_reader *reader, int status)
{
	struct replay *replay = container_of(reader, struct replay, reader);

	replay->has_ended = true;
	replay->status = status;
}

static void on_replay_free(struct job_reader *reader)
{
	container_of(reader, struct replay, reader)->is_free = true;
}

static void on_replay_drained(struct later *later)
{
	struct replay *replay = container_of(later, struct replay, drain);
	char path[256];

	/* Not before it is gone, of one that is deleted in the middle. */
	if (replay->reader.job->is_removed && access(output_path(replay->lab, replay->reader.job, path), F_OK) == 0)
		later_call(&replay->lab->processes.loop, later);
	else
		job_reader_drained(&replay->reader);
}

static const struct job_reader_ops replay_ops = {
	.on_data = on_replay_data,
	.on_pipe = on_replay_pipe,
	.on_gap = on_replay_gap,
	.on_end = on_replay_end,
};

/* Of a job that has ended; the caller may change it, and opens the reader. */
static void prepare_replay(struct replay *replay, struct jobs_lab *lab, struct background_job *job)
{
	auto_close int fd = -1;
	char path[256];

	*replay = (struct replay){
		.lab = lab,
		.reader = {.ops = &replay_ops, .on_free = on_replay_free, .job = job, .may_pipe = true,
			   .bytes_left = UINT64_MAX, .piece_bytes = JOB_READ_BYTES,
			   .streams = {{.is_wanted = true, .until = UINT64_MAX}, {.fd = -1}}},
	};
	later_init(&replay->drain, on_replay_drained);
	replay->want_len = job->extents[JOB_STDOUT].end;
	replay->want = xmalloc(replay->want_len);
	fd = open(output_path(lab, job, path), O_RDONLY | O_CLOEXEC);
	assert_int_equal(pread(fd, replay->want, replay->want_len, 0), replay->want_len);
}

static void finish_replay(struct replay *replay)
{
	lab_run_until(&replay->lab->processes, &replay->has_ended);
	assert_int_equal(replay->status, 0);
	job_reader_close(&replay->reader);
	lab_run_until(&replay->lab->processes, &replay->is_free);
	free(replay->want);
}

/* None of its bytes is zero. */
static struct background_job *run_talkative_job(struct jobs_lab *lab)
{
	struct background_job *job = start(lab, "seq 1 120000", 0);

	run_to_end(lab, job);
	assert_int_equal(job->extents[JOB_STDOUT].end, SEQUENCE_BYTES);
	return job;
}

/* Or it is copied, as under tests/support/old_kernel. */
static bool can_splice(void)
{
	return splice(-1, NULL, -1, NULL, 1, 0) < 0 && errno == EBADF;
}

static void an_ended_job_is_replayed_through_pipes(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = run_talkative_job(lab);
	static const uint64_t edges[][2] = {
		{0, UINT64_MAX}, {0, 1}, {4095, 4097}, {65535, 65537}, {262143, 262145}, {1, SEQUENCE_BYTES - 1},
		{SEQUENCE_BYTES - 1, SEQUENCE_BYTES}, {SEQUENCE_BYTES, UINT64_MAX}, {12345, 600001},
	};
	struct replay replay;

	for (size_t i = 0; i < ARRAY_LENGTH(edges); i++) {
		uint64_t end = edges[i][1] < SEQUENCE_BYTES ? edges[i][1] : SEQUENCE_BYTES;

		prepare_replay(&replay, lab, job);
		replay.takes = i % 2 ? 50000 : 0;
		replay.reader.streams[JOB_STDOUT].offset = replay.offset = edges[i][0];
		replay.reader.streams[JOB_STDOUT].until = edges[i][1];
		assert_int_equal(job_reader_open(&replay.reader), 0);
		finish_replay(&replay);
		assert_int_equal(replay.offset, end);
		assert_int_equal(can_splice() ? replay.piped : replay.copied, end - edges[i][0]);
		assert_int_equal(can_splice() ? replay.copied : replay.piped, 0);
	}
}

static void many_readers_copy_small_pieces(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = run_talkative_job(lab);
	struct replay replay;

	lab->table->reader_count += JOB_READS_BYTES / JOB_READ_BYTES;
	prepare_replay(&replay, lab, job);
	assert_int_equal(job_reader_open(&replay.reader), 0);
	finish_replay(&replay);
	lab->table->reader_count -= JOB_READS_BYTES / JOB_READ_BYTES;
	assert_int_equal(replay.copied, SEQUENCE_BYTES);
}

static void delete_job(struct replay *replay)
{
	if (!replay->reader.job->is_removed)
		background_job_remove(replay->reader.job);
}

static void a_job_that_is_deleted_is_replayed_to_its_end(void **state)
{
	struct jobs_lab *lab = *state;
	struct replay replay;

	for (int may_pipe = 0; may_pipe < 2; may_pipe++) {
		prepare_replay(&replay, lab, run_talkative_job(lab));
		replay.reader.may_pipe = may_pipe;
		replay.on_piece = delete_job;
		assert_int_equal(job_reader_open(&replay.reader), 0);
		finish_replay(&replay);
		assert_int_equal(replay.offset, SEQUENCE_BYTES);
	}
}

struct puncher {
	pthread_t thread;
	const char *path;
	int error;
	_Atomic bool is_wanted;
};

/* As the cap does, 64 KiB further each time. */
static void *punch(void *arg)
{
	struct puncher *puncher = arg;
	auto_close int fd = open(puncher->path, O_RDWR | O_CLOEXEC);

	while (!puncher->is_wanted)
		sched_yield();
	for (off_t end = 64 * 1024; end < SEQUENCE_BYTES && puncher->error == 0; end += 64 * 1024) {
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, end) < 0)
			puncher->error = errno;
		sched_yield();
	}
	return NULL;
}

static struct puncher puncher;

static void start_punching(struct replay *replay)
{
	puncher.is_wanted = true;
}

/* The reader of a job that runs: what it reads while the cap holds is right or a gap, and never zeros. */
static void a_hole_is_never_read_as_output(void **state)
{
	static const size_t piece_bytes[] = {4096, 10000, 65536, JOB_READ_BYTES};
	struct jobs_lab *lab = *state;
	struct replay replay;
	char path[256];

	for (size_t i = 0; i < ARRAY_LENGTH(piece_bytes); i++) {
		struct background_job *job = run_talkative_job(lab);

		prepare_replay(&replay, lab, job);
		replay.reader.may_pipe = false;
		replay.reader.piece_bytes = piece_bytes[i];
		replay.on_piece = start_punching;
		puncher.path = output_path(lab, job, path);
		puncher.is_wanted = false;
		assert_int_equal(pthread_create(&puncher.thread, NULL, punch, &puncher), 0);
		assert_int_equal(job_reader_open(&replay.reader), 0);
		finish_replay(&replay);
		assert_int_equal(pthread_join(puncher.thread, NULL), 0);
		assert_int_equal(puncher.error, 0);
		assert_int_equal(replay.offset, SEQUENCE_BYTES);
	}
}

/* ... and at every place where a hole can end, while the reader stands before, at or behind it. */
static void punch_once(struct replay *replay)
{
	char path[256];
	auto_close int fd = -1;

	if (replay->hole_end == 0)
		return;
	fd = open(output_path(replay->lab, replay->reader.job, path), O_RDWR | O_CLOEXEC);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, replay->hole_end), 0);
	replay->hole_end = 0;
}

static void a_gap_is_told_wherever_a_hole_ends(void **state)
{
	struct jobs_lab *lab = *state;
	struct replay replay;

	for (off_t end = 64 * 1024; end < SEQUENCE_BYTES; end += 64 * 1024) {
		prepare_replay(&replay, lab, run_talkative_job(lab));
		replay.reader.may_pipe = false;
		replay.reader.piece_bytes = 4096;
		replay.on_piece = punch_once;
		replay.hole_end = end;
		assert_int_equal(job_reader_open(&replay.reader), 0);
		finish_replay(&replay);
		assert_int_equal(replay.offset, SEQUENCE_BYTES);
		/* Two pieces were read before. */
		assert_int_equal(replay.gaps, 1);
		assert_true(replay.copied >= SEQUENCE_BYTES - (size_t)end + 4096);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_job_runs_and_ends),
		TEST(time_limits_and_stops),
		TEST(a_stop_right_after_the_start_reaches_it),
		TEST(the_oldest_are_dropped),
		TEST(a_table_that_is_closed_leaves_jobs_to_the_next),
		TEST(a_table_may_close_while_jobs_start),
		TEST(readers_follow_to_the_end),
		TEST(readers_are_told_when_the_table_closes),
		TEST(an_ended_job_is_replayed_through_pipes),
		TEST(many_readers_copy_small_pieces),
		TEST(a_job_that_is_deleted_is_replayed_to_its_end),
		TEST(a_hole_is_never_read_as_output),
		TEST(a_gap_is_told_wherever_a_hole_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
