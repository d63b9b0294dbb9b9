/* The root file system and huge pages, over HTTP (contract/envd.md 2.10, 2.11). */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "envd/snapshot/collapse.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/snapshot_lab.h"

static struct {
	int result;
	unsigned freezes, thaws;
	struct stat seen;
	pthread_mutex_t lock; /* held by a test to keep a call inside the kernel */
} fake_kernel = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int fake_control(int fd, bool freeze)
{
	pthread_mutex_lock(&fake_kernel.lock);
	fstat(fd, &fake_kernel.seen);
	if (freeze)
		fake_kernel.freezes++;
	else
		fake_kernel.thaws++;
	pthread_mutex_unlock(&fake_kernel.lock);
	return fake_kernel.result;
}

static void use_fake_kernel(struct snapshot_lab *f)
{
	static const struct filesystem_freeze filesystem = {"/", fake_control};

	fake_kernel.result = 0;
	fake_kernel.freezes = fake_kernel.thaws = 0;
	f->agent.app.snapshot.filesystem = &filesystem;
}

static void check_filesystem_call(struct snapshot_lab *f, const char *target, const char *call,
				  int fine)
{
	struct talk_answer answer;
	struct stat root;
	char body[128];

	use_fake_kernel(f);
	answer = post(f, target, "");
	assert_int_equal(answer.status, 204);
	agent_assert_header(&answer, "Cache-Control", "no-store");
	agent_assert_body(&answer, "");
	assert_int_equal(stat("/", &root), 0);
	assert_int_equal(fake_kernel.seen.st_ino, root.st_ino);
	assert_int_equal(fake_kernel.seen.st_dev, root.st_dev);
	fake_kernel.result = fine;
	assert_status(f, target, "", 204);
	fake_kernel.result = -EPERM;
	answer = post(f, target, "");
	assert_int_equal(answer.status, 500);
	agent_assert_header(&answer, "Content-Type", "application/json; charset=utf-8");
	snprintf(body, sizeof(body),
		 "{\"code\":500,\"message\":\"%s /: operation not permitted\"}\n", call);
	agent_assert_body(&answer, body);
}

static void conformance_128_the_root_file_system_freezes(void **state)
{
	check_filesystem_call(*state, "/fsfreeze", "FIFREEZE", -EBUSY);
	assert_int_equal(fake_kernel.freezes, 3);
	assert_int_equal(fake_kernel.thaws, 0);
}

static void conformance_129_the_root_file_system_thaws(void **state)
{
	check_filesystem_call(*state, "/fsthaw", "FITHAW", -EINVAL);
	assert_int_equal(fake_kernel.freezes, 0);
	assert_int_equal(fake_kernel.thaws, 3);
}

/* One holds, two wait; the freeze that waits is forgotten with its client, the thaw is not. */
static void filesystem_calls_take_turns(void **state)
{
	struct snapshot_lab *f = *state;
	struct turn_queue *queue = &f->agent.app.snapshot.filesystem_turns;
	struct talk first, freeze, thaw;

	use_fake_kernel(f);
	pthread_mutex_lock(&fake_kernel.lock);
	post_later(f, &first, "/fsfreeze");
	talk_wait(&f->agent.app.loop, turns_are_busy, queue);
	post_later(f, &freeze, "/fsfreeze");
	wait_for_waiters(f, queue, 1);
	post_later(f, &thaw, "/fsthaw");
	wait_for_waiters(f, queue, 2);
	talk_close(&freeze);
	wait_for_waiters(f, queue, 1);
	talk_close(&thaw);
	assert_int_equal(fake_kernel.freezes, 0);
	/* All of this while the kernel keeps the first one. */
	pthread_mutex_unlock(&fake_kernel.lock);
	talk_read_all(&first);
	assert_int_equal(talk_parse(&first).status, 204);
	talk_wait(&f->agent.app.loop, turns_are_free, queue);
	assert_int_equal(fake_kernel.freezes, 1);
	assert_int_equal(fake_kernel.thaws, 1);
	talk_close(&first);
}

static bool has_private_mounts;

struct writer {
	char path[128];
	atomic_int thread;
	atomic_bool done;
	int result;
};

static void *write_slowly(void *user)
{
	struct writer *writer = user;
	int fd;

	atomic_store(&writer->thread, (int)syscall(SYS_gettid));
	fd = open(writer->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	writer->result = fd < 0 ? -errno : (int)write(fd, "x", 1);
	if (fd >= 0)
		close(fd);
	atomic_store(&writer->done, true);
	return NULL;
}

static bool is_written(void *user)
{
	struct writer *writer = user;

	return atomic_load(&writer->done);
}

/* Waits in the kernel for its file system. */
static bool is_stuck(void *user)
{
	struct writer *writer = user;
	char path[64], text[512];
	ssize_t len = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&writer->thread));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		len = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	text[len > 0 ? len : 0] = '\0';
	return strstr(text, ") D ") != NULL;
}

static int control_really(int fd, bool freeze)
{
	return filesystem_freeze_root.control(fd, freeze);
}

static void conformance_130_a_real_file_system(void **state)
{
	struct snapshot_lab *f = *state;
	char folder[64] = "/tmp/envd-ext4-XXXXXX", command[512], path[128];
	static struct filesystem_freeze filesystem;
	struct writer writer = {0};
	pthread_t thread;
	int log_fd;

	if (!has_private_mounts)
		skip();
	assert_non_null(mkdtemp(folder));
	snprintf(command, sizeof(command),
		 "cd %s && truncate -s 16M image && mkfs.ext4 -q image && mkdir m && mount -o loop "
		 "image m "
		 "&& echo old > m/file",
		 folder);
	if (system(command) != 0) {
		snprintf(command, sizeof(command), "rm -rf %s", folder);
		assert_int_equal(system(command), 0);
		skip();
	}
	snprintf(path, sizeof(path), "%s/m", folder);
	filesystem = (struct filesystem_freeze){path, control_really};
	f->agent.app.snapshot.filesystem = &filesystem;
	/* The log is a file there, the worst case. */
	snprintf(command, sizeof(command), "%s/m/log", folder);
	log_fd = open(command, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	assert_true(log_fd >= 0);
	log_set_hook(NULL, NULL);
	log_init(LOG_DEBUG, LOG_JSON, log_fd);

	assert_status(f, "/fsfreeze", "", 204);
	assert_status(f, "/fsfreeze", "", 204);
	snprintf(writer.path, sizeof(writer.path), "%s/m/new", folder);
	assert_int_equal(pthread_create(&thread, NULL, write_slowly, &writer), 0);
	talk_wait(&f->agent.app.loop, is_stuck, &writer);
	/* Reading works, and envd answers, logs and all. */
	snprintf(command, sizeof(command), "grep -q old %s/m/file", folder);
	assert_int_equal(system(command), 0);
	for (int i = 0; i < 20; i++)
		assert_status(f, "/freeze", "", 204);
	assert_status(f, "/init", "", 204);
	assert_false(atomic_load(&writer.done));

	assert_status(f, "/fsthaw", "", 204);
	talk_wait(&f->agent.app.loop, is_written, &writer);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(writer.result, 1);
	assert_status(f, "/fsthaw", "", 204);
	log_init(LOG_DEBUG, LOG_JSON, -1);
	close(log_fd);
	snprintf(command, sizeof(command),
		 "grep -q 'lines dropped' %s/m/log && cd / && umount %s/m && rm -rf %s", folder,
		 folder, folder);
	assert_int_equal(system(command), 0);
}

static void conformance_131_which_regions_are_looked_at(void **state)
{
	static const struct {
		const char *line;
		bool fits;
	} table[] = {
		{"7f0000000000-7f0000400000 rw-p 00000000 00:00 0 ", true},
		{"7f0000000000-7f0000400000 rw-p 00000000 00:00 0", true},
		{"7f0000000000-7f0000400000 rwxp 00000000 00:00 0 ", true},
		{"7f0000000000-7f0000400000 r--p 00000000 00:00 0 ", false},
		{"7f0000000000-7f0000400000 ---p 00000000 00:00 0 ", false},
		{"7f0000000000-7f0000400000 -w-p 00000000 00:00 0 ", false},
		{"7f0000000000-7f0000400000 rw-p 00000000 00:00 0                          [heap]",
		 false},
		{"7f0000000000-7f0000400000 rw-p 00000000 00:00 0                          [stack]",
		 false},
		{"7f0000000000-7f0000400000 rw-p 00001000 fe:00 1234                       "
		 "/usr/bin/envd",
		 false},
		{"7f0000000000-7f0000400000 rw-s 00000000 00:01 77                         "
		 "/dev/zero (deleted)",
		 false},
		{"nonsense", false},
		{"", false},
	};
	uintptr_t start, end;

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++)
		if (collapse_parse_region(str_of(table[i].line), &start, &end) != table[i].fits)
			fail_msg("%s", table[i].line);
	assert_true(collapse_parse_region(str_of(table[0].line), &start, &end));
	assert_true(start == (uintptr_t)0x7f0000000000 && end == (uintptr_t)0x7f0000400000);
}

static void conformance_131_the_split_stays_in_bounds(void **state)
{
	static const struct {
		size_t fine;
		int64_t grown;
		size_t collapsed, already_huge;
	} table[] = {
		{8, 8 << 21, 8, 0},	  {8, 3 << 21, 3, 5}, {8, 100 << 21, 8, 0},
		{8, -(5 << 21), 0, 8},	  {8, 0, 0, 8},	      {0, 4 << 21, 0, 0},
		{1, (1 << 21) - 1, 0, 1},
	};

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct collapse_result result = {0};

		collapse_split(&result, table[i].fine, table[i].grown);
		assert_int_equal(result.collapsed, table[i].collapsed);
		assert_int_equal(result.already_huge, table[i].already_huge);
	}
}

/* Older kernels, and those without huge pages, say no to everything. */
static bool can_collapse(void)
{
	size_t size = 2 * COLLAPSE_WINDOW_BYTES;
	char *region = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t first = ((uintptr_t)region + COLLAPSE_WINDOW_BYTES - 1) &
			  ~(COLLAPSE_WINDOW_BYTES - 1);
	bool can;

	assert_true(region != MAP_FAILED);
	*(char *)first = 1;
	can = madvise((void *)first, COLLAPSE_WINDOW_BYTES, 25) == 0;
	munmap(region, size);
	return can;
}

static void conformance_131_sparse_memory_becomes_huge(void **state)
{
	enum { WINDOWS = 8 };
	struct snapshot_lab *f = *state;
	size_t size = (WINDOWS + 1) * COLLAPSE_WINDOW_BYTES;
	char *region = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *first, line[256], path[128], body[256];
	unsigned collapsed, huge, chunks, regions, skipped;
	long long elapsed;
	struct talk_answer answer;

	assert_true(region != MAP_FAILED);
	first = (char *)(((uintptr_t)region + COLLAPSE_WINDOW_BYTES - 1) &
			 ~(COLLAPSE_WINDOW_BYTES - 1));
	for (size_t i = 0; i < WINDOWS; i++)
		first[i * COLLAPSE_WINDOW_BYTES + 12345] = (char)(i + 1);
	/* Begins and ends a page off the windows: what is not whole is left alone. */
	snprintf(line, sizeof(line),
		 "%lx-%lx rw-p 00000000 00:00 0 \n%lx-%lx r--p 00000000 00:00 0 \n",
		 (unsigned long)first, (unsigned long)(first + WINDOWS * COLLAPSE_WINDOW_BYTES),
		 (unsigned long)first, (unsigned long)(first + WINDOWS * COLLAPSE_WINDOW_BYTES));
	cgroup_lab_write(&f->lab, "", "maps", line);
	snprintf(path, sizeof(path), "%s/maps", f->lab.root);
	f->agent.app.snapshot.maps = path;
	answer = post(f, "/collapse", "");
	assert_int_equal(answer.status, 200);
	agent_assert_header(&answer, "Content-Type", "application/json");
	snprintf(body, sizeof(body), "%.*s", (int)answer.body.len, answer.body.p);
	assert_int_equal(
		sscanf(body,
		       "{\"alreadyHuge\":%u,\"chunks\":%u,\"collapsed\":%u,\"elapsedMs\":%lld,"
		       "\"regions\":%u,\"skipped\":%u}\n",
		       &huge, &chunks, &collapsed, &elapsed, &regions, &skipped),
		6);
	assert_int_equal(regions, 1);
	assert_int_equal(chunks, WINDOWS);
	assert_int_equal(huge + collapsed + skipped, WINDOWS);
	if (can_collapse())
		assert_int_equal(collapsed, WINDOWS);
	for (size_t i = 0; i < WINDOWS; i++)
		assert_int_equal(first[i * COLLAPSE_WINDOW_BYTES + 12345], i + 1);
	/* Once more: there is nothing left to do. */
	if (skipped == 0) {
		answer = post(f, "/collapse", "");
		assert_true(str_starts_with(
			answer.body, STR("{\"alreadyHuge\":8,\"chunks\":8,\"collapsed\":0,")));
	}
	munmap(region, size);
}

static void conformance_131_what_cannot_be_read_is_an_error(void **state)
{
	struct snapshot_lab *f = *state;
	struct collapse_result result;
	atomic_bool cancelled = true;
	struct talk_answer answer;
	char path[128];

	f->agent.app.snapshot.maps = "/nonexistent/maps";
	answer = post(f, "/collapse", "");
	assert_int_equal(answer.status, 500);
	agent_assert_body(&answer,
			  "{\"code\":500,\"message\":\"collapse: no such file or directory\"}\n");
	cgroup_lab_write(&f->lab, "", "maps", "10000000-20000000 rw-p 00000000 00:00 0 \n");
	snprintf(path, sizeof(path), "%s/maps", f->lab.root);
	assert_int_equal(collapse_memory(path, &cancelled, &result), -ECANCELED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, snapshot_lab_setup, snapshot_lab_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_128_the_root_file_system_freezes),
		TEST(conformance_129_the_root_file_system_thaws),
		TEST(filesystem_calls_take_turns),
		TEST(conformance_130_a_real_file_system),
		TEST(conformance_131_which_regions_are_looked_at),
		TEST(conformance_131_the_split_stays_in_bounds),
		TEST(conformance_131_sparse_memory_becomes_huge),
		TEST(conformance_131_what_cannot_be_read_is_an_error),
	};

	/* Before there is any thread, so that all see the same mounts. */
	has_private_mounts = geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
			     mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
