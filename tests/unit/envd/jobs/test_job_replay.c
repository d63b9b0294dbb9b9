/* Readers of what an ended job has left, sent by the pool and copied, while it is deleted and while
 * holes are made. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "envd/jobs/job_reader.h"
#include "envd/limits.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/jobs_lab.h"

#define SEQUENCE_BYTES 728895 /* of seq 1 120000 */

/* A reader whose client takes as much as it likes, every other time nothing. */
struct replay {
	struct job_reader reader;
	struct jobs_lab *lab;
	char *want; /* the whole file, as it was */
	size_t want_len, offset, gaps, sent, copied;
	int socket; /* the client's end of what was lent; -1 */
	void (*on_piece)(struct replay *replay); /* may be NULL */
	off_t hole_end; /* 0: none to be made */
	int room; /* of the client's socket; 0: as usual */
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

static int on_replay_data(struct job_reader *reader, enum job_stream stream, uint64_t offset,
			  struct str bytes)
{
	struct replay *replay = container_of(reader, struct replay, reader);

	check_bytes(replay, offset, bytes.p, bytes.len);
	replay->copied += bytes.len;
	if (replay->on_piece)
		replay->on_piece(replay);
	later_call(&replay->lab->processes.loop, &replay->drain);
	return JOB_READER_FULL;
}

/* Every other time the client is behind. */
static int on_replay_lend(struct job_reader *reader)
{
	struct replay *replay = container_of(reader, struct replay, reader);
	int fds[2];

	replay->is_full = !replay->is_full;
	if (replay->is_full) {
		later_call(&replay->lab->processes.loop, &replay->drain);
		return -EAGAIN;
	}
	assert_int_equal(replay->socket, -1);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
			 0);
	if (replay->room)
		assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &replay->room,
					    sizeof(replay->room)),
				 0);
	replay->socket = fds[1];
	return fds[0];
}

static void on_replay_sent(struct job_reader *reader, uint64_t offset, size_t len)
{
	struct replay *replay = container_of(reader, struct replay, reader);
	char *bytes = xmalloc(len + 1);
	ssize_t got;

	for (size_t have = 0; have <= len; have += (size_t)got) {
		got = read(replay->socket, bytes + have, len + 1 - have);
		assert_true(got >= 0);
		if (got == 0) {
			assert_int_equal(have, len);
			break;
		}
	}
	if (len > 0)
		check_bytes(replay, offset, bytes, len);
	free(bytes);
	close_fd(&replay->socket);
	replay->sent += len;
	if (replay->on_piece)
		replay->on_piece(replay);
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
	if (replay->reader.job->is_removed &&
	    access(output_path(replay->lab, replay->reader.job, path), F_OK) == 0)
		later_call(&replay->lab->processes.loop, later);
	else
		job_reader_drained(&replay->reader);
}

static const struct job_reader_ops replay_ops = {
	.on_data = on_replay_data,
	.on_lend = on_replay_lend,
	.on_sent = on_replay_sent,
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
		.socket = -1,
		.reader = {.ops = &replay_ops,
			   .on_free = on_replay_free,
			   .job = job,
			   .may_send = true,
			   .bytes_left = UINT64_MAX,
			   .piece_bytes = JOB_READ_BYTES,
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
	struct background_job *job = jobs_lab_start(lab, "seq 1 120000", 0);

	jobs_lab_run_to_end(lab, job);
	assert_int_equal(job->extents[JOB_STDOUT].end, SEQUENCE_BYTES);
	return job;
}

/* Or it is copied, as under tests/support/old_kernel. */
static bool can_send(void)
{
	return sendfile(-1, -1, NULL, 1) < 0 && errno == EBADF;
}

static void an_ended_job_is_replayed_uncopied(void **state)
{
	struct jobs_lab *lab = *state;
	struct background_job *job = run_talkative_job(lab);
	static const uint64_t edges[][2] = {
		{0, UINT64_MAX},
		{0, 1},
		{4095, 4097},
		{65535, 65537},
		{262143, 262145},
		{1, SEQUENCE_BYTES - 1},
		{SEQUENCE_BYTES - 1, SEQUENCE_BYTES},
		{SEQUENCE_BYTES, UINT64_MAX},
		{12345, 600001},
	};
	struct replay replay;

	for (size_t i = 0; i < 2 * ARRAY_LENGTH(edges); i++) {
		const uint64_t *edge = edges[i / 2];
		size_t len = (edge[1] < SEQUENCE_BYTES ? edge[1] : SEQUENCE_BYTES) - edge[0];

		prepare_replay(&replay, lab, job);
		/* Small ones are full before all of it has gone. */
		replay.room = i % 2 ? 20000 : 4 * SEQUENCE_BYTES;
		replay.reader.streams[JOB_STDOUT].offset = replay.offset = edge[0];
		replay.reader.streams[JOB_STDOUT].until = edge[1];
		assert_int_equal(job_reader_open(&replay.reader), 0);
		finish_replay(&replay);
		assert_int_equal(replay.offset, edge[0] + len);
		assert_int_equal(replay.sent + replay.copied, len);
		if (!can_send())
			assert_int_equal(replay.copied, len);
		else if (replay.room == 20000 && len > 200000)
			assert_true(replay.copied > 0 && replay.sent > 0);
		else if (len < 3)
			assert_int_equal(replay.sent, len);
	}
}

/* Descriptors have run out, for example. */
static int refuse_to_lend(struct job_reader *reader)
{
	container_of(reader, struct replay, reader)->gaps++;
	return -EMFILE;
}

static void what_is_not_lent_is_copied(void **state)
{
	struct job_reader_ops ops = replay_ops;
	struct jobs_lab *lab = *state;
	struct replay replay;

	ops.on_lend = refuse_to_lend;
	prepare_replay(&replay, lab, run_talkative_job(lab));
	replay.reader.ops = &ops;
	replay.reader.piece_bytes = FILE_SEND_BYTES;
	assert_int_equal(job_reader_open(&replay.reader), 0);
	finish_replay(&replay);
	assert_int_equal(replay.copied, SEQUENCE_BYTES);
	assert_int_equal(replay.gaps, 1); /* asked once */
}

static size_t count_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	size_t count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* A client that leaves while the pool sends. */
static int lend_and_leave(struct job_reader *reader)
{
	int fd = on_replay_lend(reader);

	if (fd >= 0)
		later_call(&container_of(reader, struct replay, reader)->lab->processes.loop,
			   &container_of(reader, struct replay, reader)->drain);
	return fd;
}

static void on_replay_leave(struct later *later)
{
	struct replay *replay = container_of(later, struct replay, drain);

	if (replay->is_full)
		job_reader_drained(&replay->reader);
	else
		job_reader_close(&replay->reader);
}

static void a_client_may_leave_while_the_pool_sends(void **state)
{
	struct job_reader_ops ops = replay_ops;
	struct jobs_lab *lab = *state;
	struct background_job *job = run_talkative_job(lab);
	struct replay replay;
	size_t before = count_descriptors();

	ops.on_lend = lend_and_leave;
	for (int i = 0; i < 20; i++) {
		prepare_replay(&replay, lab, job);
		replay.reader.ops = &ops;
		later_init(&replay.drain, on_replay_leave);
		assert_int_equal(job_reader_open(&replay.reader), 0);
		lab_run_until(&lab->processes, &replay.is_free);
		close_fd(&replay.socket);
		free(replay.want);
	}
	/* Others come and go here, but not as many as there were rounds. */
	assert_true(count_descriptors() < before + 10);
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

	for (int may_send = 0; may_send < 2; may_send++) {
		prepare_replay(&replay, lab, run_talkative_job(lab));
		replay.reader.may_send = may_send;
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

/* The reader of a job that runs: what it reads while the cap holds is right or a gap, and never
 * zeros. */
static void a_hole_is_never_read_as_output(void **state)
{
	static const size_t piece_bytes[] = {4096, 10000, 65536, JOB_READ_BYTES};
	struct jobs_lab *lab = *state;
	struct replay replay;
	char path[256];

	for (size_t i = 0; i < ARRAY_LENGTH(piece_bytes); i++) {
		struct background_job *job = run_talkative_job(lab);

		prepare_replay(&replay, lab, job);
		replay.reader.may_send = false;
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
	assert_int_equal(
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, replay->hole_end), 0);
	replay->hole_end = 0;
}

static void a_gap_is_told_wherever_a_hole_ends(void **state)
{
	struct jobs_lab *lab = *state;
	struct replay replay;

	for (off_t end = 64 * 1024; end < SEQUENCE_BYTES; end += 64 * 1024) {
		prepare_replay(&replay, lab, run_talkative_job(lab));
		replay.reader.may_send = false;
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
#define TEST(name) cmocka_unit_test_setup_teardown(name, jobs_lab_set_up, jobs_lab_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(an_ended_job_is_replayed_uncopied),
		TEST(what_is_not_lent_is_copied),
		TEST(a_client_may_leave_while_the_pool_sends),
		TEST(many_readers_copy_small_pieces),
		TEST(a_job_that_is_deleted_is_replayed_to_its_end),
		TEST(a_hole_is_never_read_as_output),
		TEST(a_gap_is_told_wherever_a_hole_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
