/* What a client is told that made a mistake, or met a file in a state that does not let it: never
 * that we failed. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "envd/filesystem/download.h"
#include "envd/filesystem/file_error.h"
#include "envd/filesystem/list.h"
#include "envd/filesystem/operations.h"
#include "tests/support/cmocka.h"
#include "tests/support/intake.h"
#include "tests/support/refusal.h"

static int download(const char *path)
{
	struct download_request request = {
		.sandbox = &intake.sandbox, .user_name = "self", .path = str_of(path)};
	struct download download;
	int status = download_open(&download, &request, &intake.arena, &intake.err);

	if (status == 0)
		download_close(&download);
	return status;
}

static void case_199_every_errno_of_a_file_has_a_kind(void **state)
{
	static const struct {
		enum err_kind kind;
		int sys[16];
	} table[] = {
		{ERR_INVALID_ARGUMENT,
		 {EINVAL, ENAMETOOLONG, ENOTDIR, EISDIR, ELOOP, E2BIG, EILSEQ, ENXIO, ENODEV,
		  ESPIPE}},
		{ERR_PERMISSION_DENIED, {EACCES, EPERM, EROFS}},
		{ERR_ALREADY_EXISTS, {EEXIST}},
		{ERR_NOT_FOUND, {ESRCH}},
		{ERR_FAILED_PRECONDITION,
		 {ETXTBSY, EBUSY, ENOTEMPTY, EXDEV, EMLINK, ENODATA, ENOKEY, EOPNOTSUPP, ENOSYS,
		  EPIPE}},
		{ERR_OUT_OF_RANGE, {EFBIG, EOVERFLOW, ERANGE}},
		{ERR_ABORTED, {EAGAIN, ESTALE, EDEADLK}},
		{ERR_UNAVAILABLE, {ENOTCONN, EHOSTDOWN, ECONNABORTED, ETIMEDOUT}},
		{ERR_RESOURCE_EXHAUSTED, {ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, ENOBUFS}},
		{ERR_INTERNAL, {EIO, ENOENT, EBADF, EFAULT}},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++)
		for (size_t at = 0; at < ARRAY_LENGTH(table[i].sys) && table[i].sys[at]; at++) {
			assert_int_equal(file_error_kind(table[i].sys[at]), table[i].kind);
			assert_int_equal(file_error_kind(-table[i].sys[at]), table[i].kind);
			assert_string_not_equal(errno_text(table[i].sys[at]),
						"unexpected system error");
		}
}

static void case_199_loops_of_links(void **state)
{
	struct list_result list;
	struct entry entry;
	struct user self = {
		.name = "self", .home = intake.folder.path, .uid = geteuid(), .gid = getegid()};

	(void)state;
	assert_int_equal(symlink("b", intake_at("a")), 0);
	assert_int_equal(symlink("a", intake_at("b")), 0);
	static const char *const paths[] = {"a", "a/below"};
	for (size_t i = 0; i < ARRAY_LENGTH(paths); i++) {
		assert_true(download(intake_at(paths[i])) < 0);
		assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
		assert_true(intake_post(intake_at(paths[i]), "x") < 0);
		assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
		assert_true(operation_make_directory(intake_at(paths[i]), &self, &intake.arena,
						     &entry, &intake.err) < 0);
		assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
		assert_true(list_directory(intake_at(paths[i]), 1, &intake.arena, &list,
					   &intake.err) < 0);
		assert_int_equal(intake.err.kind, ERR_FAILED_PRECONDITION);
	}
	assert_true(operation_stat(intake_at("a/below"), &intake.arena, &entry, &intake.err) < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	assert_true(operation_remove(intake_at("a/below"), &self, &intake.arena, &intake.err) < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	intake_write_text("f", "x");
	assert_true(operation_move(intake_at("f"), intake_at("a/below"), &self, true, &intake.arena,
				   &entry, &intake.err) < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
}

static void case_199_virtual_files_that_say_no(void **state)
{
	(void)state;
	/* At 0 there is nothing mapped: EIO, which is no broken disk here. */
	assert_true(download("/proc/self/mem") < 0);
	assert_int_equal(intake.err.kind, ERR_FAILED_PRECONDITION);
	assert_non_null(strstr(intake.err.message, "input/output error"));
	assert_true(intake_post("/proc/self/mem", "x") < 0);
	assert_int_equal(intake.err.kind, ERR_FAILED_PRECONDITION);
	assert_true(intake_post("/proc/self/oom_score_adj", "not a number") < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
}

static void case_199_a_program_that_runs(void **state)
{
	char ready;
	int fds[2];
	pid_t child;

	(void)state;
	assert_int_equal(
		system(arena_printf(&intake.arena, "cp /bin/sleep '%s'", intake_at("prog"))), 0);
	/* The pipe closes when the program has taken this one's place. */
	assert_int_equal(pipe(fds), 0);
	child = fork();
	if (child == 0) {
		fcntl(fds[1], F_SETFD, FD_CLOEXEC);
		execl(intake_at("prog"), "sleep", "60", NULL);
		_exit(1);
	}
	close(fds[1]);
	assert_int_equal(read(fds[0], &ready, 1), 0);
	close(fds[0]);
	assert_true(intake_post(intake_at("prog"), "x") < 0);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(intake.err.kind, ERR_FAILED_PRECONDITION);
	assert_non_null(strstr(intake.err.message, "text file busy"));
}

static int beyond_what_a_process_may(void)
{
	struct rlimit size = {100000, 100000}, none;
	char body[200000] = "";

	signal(SIGXFSZ, SIG_IGN);
	if (setrlimit(RLIMIT_FSIZE, &size) < 0)
		return 1;
	if (intake_post_pieces(intake_at("large"), body, sizeof(body), 50000) >= 0 ||
	    intake.err.kind != ERR_OUT_OF_RANGE || intake_exists("large"))
		return 2;
	/* The hard limit stays: valgrind keeps descriptors of its own above it. */
	if (getrlimit(RLIMIT_NOFILE, &none) < 0)
		return 3;
	none.rlim_cur = 0;
	if (setrlimit(RLIMIT_NOFILE, &none) < 0)
		return 3;
	if (download(intake_at("f")) >= 0 || intake.err.kind != ERR_RESOURCE_EXHAUSTED)
		return 4;
	if (intake_post(intake_at("f"), "x") >= 0 || intake.err.kind != ERR_RESOURCE_EXHAUSTED)
		return 5;
	return 0;
}

static void case_199_limits_of_the_process(void **state)
{
	(void)state;
	intake_write_text("f", "x");
	refusal_in_child(beyond_what_a_process_may);
}

static int take_lease(const char *relative)
{
	int fd = open(intake_at(relative), O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_SETLEASE, F_WRLCK), 0);
	return fd;
}

static void *give_lease_up(void *argument)
{
	sigset_t set;
	int number;

	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	if (sigwait(&set, &number) == 0)
		fcntl(*(int *)argument, F_SETLEASE, F_UNLCK);
	return NULL;
}

static void case_199_a_lease_is_waited_for(void **state)
{
	pthread_t thread;
	int fd;

	(void)state;
	intake_write_text("f", "content");
	fd = take_lease("f");
	assert_int_equal(pthread_create(&thread, NULL, give_lease_up, &fd), 0);
	assert_int_equal(download(intake_at("f")), 0);
	pthread_join(thread, NULL);
	close(fd);
	fd = take_lease("f");
	assert_int_equal(pthread_create(&thread, NULL, give_lease_up, &fd), 0);
	assert_int_equal(intake_post(intake_at("f"), "new"), 0);
	pthread_join(thread, NULL);
	close(fd);
	intake_check_text("f", "new");
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

struct reader {
	pthread_t thread;
	int64_t waited_ms;
	enum err_kind kind;
};

static void *read_it(void *argument)
{
	struct download_request request = {
		.sandbox = &intake.sandbox, .user_name = "self", .path = intake.request.path};
	struct reader *reader = argument;
	struct download download;
	int64_t start = now_ms();
	struct arena arena;
	struct err err = {.kind = ERR_OK};

	arena_init(&arena, 1 << 22);
	if (download_open(&download, &request, &arena, &err) == 0)
		download_close(&download);
	arena_release(&arena);
	reader->waited_ms = now_ms() - start;
	reader->kind = err.kind;
	return NULL;
}

static void case_199_a_lease_that_is_kept_holds_few(void **state)
{
	struct reader readers[10];
	size_t waited = 0;
	int fd;

	(void)state;
	intake_write_text("f", "content");
	fd = take_lease("f");
	intake.request.path = str_of(intake_at("f"));
	for (size_t i = 0; i < ARRAY_LENGTH(readers); i++)
		assert_int_equal(pthread_create(&readers[i].thread, NULL, read_it, &readers[i]), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(readers); i++) {
		pthread_join(readers[i].thread, NULL);
		assert_int_equal(readers[i].kind, ERR_ABORTED);
		waited += readers[i].waited_ms >= FILE_LEASE_WAIT_MS;
	}
	assert_in_range(waited, 1, FILE_LEASE_WAITS_MAX);
	assert_int_equal(err_kind_http_status(ERR_ABORTED), 409);
	close(fd);
	/* Nobody is counted as waiting any more. */
	assert_int_equal(download(intake_at("f")), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, intake_setup, intake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_199_every_errno_of_a_file_has_a_kind),
		TEST(case_199_loops_of_links),
		TEST(case_199_virtual_files_that_say_no),
		TEST(case_199_a_program_that_runs),
		TEST(case_199_limits_of_the_process),
		TEST(case_199_a_lease_is_waited_for),
		TEST(case_199_a_lease_that_is_kept_holds_few),
	};
	sigset_t set;

	/* That a lease is wanted back; a thread waits for it. */
	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return cmocka_run_group_tests(tests, intake_before_all, intake_after_all);
}
