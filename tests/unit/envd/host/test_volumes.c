/*
 * Volumes, and the programs that envd runs for itself. `mount` and `umount` are scripts that write
 * down what they are asked; where they do mount something, it is in a mount namespace of this
 * process.
 */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/host/volumes.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

struct fixture {
	struct process_lab lab;
	struct tools tools;
	struct volumes *volumes;
	char log[128], path[128], second[128];
	bool done;
	unsigned calls;
	int status;
	struct err err;
	struct tool_result result;
	char output[TOOL_OUTPUT_BYTES];
	char *old_path;
};

static void write_script(struct fixture *f, const char *name, const char *script)
{
	char path[160];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", f->lab.directory, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	assert_true(fd >= 0);
	assert_true(dprintf(fd, "#!/bin/sh\necho \"$(basename $0) $*\" >> %s\n%s\n", f->log,
			    script) > 0);
	close(fd);
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));
	char path[256];

	lab_open(&f->lab, NULL);
	f->tools = (struct tools){
		.loop = &f->lab.loop,
		.sandbox = &f->lab.sandbox,
		.spawn = &f->lab.table->spawn_settings,
		.reaper = &f->lab.table->reaper,
	};
	tools_init(&f->tools);
	f->volumes = volumes_new(&f->tools);
	snprintf(f->log, sizeof(f->log), "%s/log", f->lab.directory);
	snprintf(f->path, sizeof(f->path), "%s/a b/vol", f->lab.directory);
	snprintf(f->second, sizeof(f->second), "%s/second", f->lab.directory);
	f->old_path = xstrdup(getenv("PATH"));
	snprintf(path, sizeof(path), "%s:/usr/bin:/bin", f->lab.directory);
	setenv("PATH", path, 1);
	write_script(f, "mount", "exit 0");
	write_script(f, "umount", "exit 0");
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	volumes_close(f->volumes);
	tools_stop(&f->tools);
	setenv("PATH", f->old_path, 1);
	free(f->old_path);
	lab_close(&f->lab);
	free(f);
	return 0;
}

static void on_done(void *user, int status, const struct err *err)
{
	struct fixture *f = user;

	f->calls++;
	f->done = true;
	f->status = status;
	if (err)
		f->err = *err;
}

static void start(struct fixture *f, const char *path, const char *lifecycle_id)
{
	const struct init_volume volume = {.target = "10.0.0.1:/export", .path = path};

	f->done = false;
	volumes_mount(f->volumes, &volume, 1, lifecycle_id, on_done, f);
}

static int mount_one(struct fixture *f, const char *path, const char *lifecycle_id)
{
	start(f, path, lifecycle_id);
	lab_run_until(&f->lab, &f->done);
	return f->status;
}

/* What was asked since the last time. */
static void assert_log(struct fixture *f, const char *wanted)
{
	char text[4096] = "";
	int fd = open(f->log, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		assert_true(read(fd, text, sizeof(text) - 1) >= 0);
		close(fd);
		assert_int_equal(unlink(f->log), 0);
	}
	assert_string_equal(text, wanted);
}

static const char *mount_line(struct fixture *f, const char *path)
{
	static char line[1024];

	snprintf(line, sizeof(line),
		 "mount -v -t nfs -o "
		 "fg,hard,sync,rsize=1048576,wsize=1048576,mountproto=tcp,mountport=2049,"
		 "proto=tcp,port=2049,nfsvers=3,noacl,noac,lookupcache=none 10.0.0.1:/export %s\n",
		 path);
	return line;
}

static void conformance_040_when_to_mount(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	assert_int_equal(mount_one(f, f->path, ""), 0);
	assert_log(f, mount_line(f, f->path));
	assert_int_equal(stat(f->path, &st), 0);
	assert_true(S_ISDIR(st.st_mode));
	assert_int_equal(mount_one(f, f->path, ""), 0);
	assert_log(f, "");
	assert_int_equal(mount_one(f, f->path, "abc"), 0);
	assert_log(f, mount_line(f, f->path));
	assert_int_equal(mount_one(f, f->path, "abc"), 0);
	assert_log(f, "");
	assert_int_equal(mount_one(f, f->path, "other"), 0);
	assert_log(f, mount_line(f, f->path));
	assert_int_equal(mount_one(f, f->path, ""), 0);
	assert_log(f, mount_line(f, f->path));
	assert_int_equal(mount_one(f, f->second, "abc"), 0);
	assert_log(f, mount_line(f, f->second));
}

static void a_stale_mount_is_taken_away_first(void **state)
{
	struct fixture *f = *state;
	char wanted[2048];

	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		skip();
	assert_int_equal(mkdir(f->second, 0755), 0);
	assert_int_equal(mount("tmpfs", f->second, "tmpfs", 0, NULL), 0);
	write_script(f, "umount",
		     "[ $1 = --lazy ] && exec /bin/umount -l \"$2\"; echo busy; exit 1");
	assert_int_equal(mount_one(f, f->second, "abc"), 0);
	snprintf(wanted, sizeof(wanted), "umount --force %s\numount --lazy %s\n%s", f->second,
		 f->second, mount_line(f, f->second));
	assert_log(f, wanted);
	/* One that cannot be taken away is a failure. */
	assert_int_equal(mount("tmpfs", f->second, "tmpfs", 0, NULL), 0);
	write_script(f, "umount", "echo busy >&2; exit 32");
	assert_true(mount_one(f, f->second, "def") < 0);
	snprintf(wanted, sizeof(wanted), "failed to unmount NFS at \"%s\": exit status 32\nbusy",
		 f->second);
	assert_string_equal(f->err.message, wanted);
	assert_true(volumes_must_mount(f->volumes, f->second, "abc"));
	assert_int_equal(umount2(f->second, MNT_DETACH), 0);
}

static void the_first_failure_ends_the_batch(void **state)
{
	struct fixture *f = *state;
	const struct init_volume list[] = {{"10.0.0.1:/slow", f->path},
					   {"10.0.0.1:/bad", f->second}};
	char wanted[512];

	write_script(f, "mount",
		     "case \"$*\" in *slow*) sleep 100;; *) echo no such export; exit 32;; esac");
	volumes_mount(f->volumes, list, 2, "", on_done, f);
	lab_run_until(&f->lab, &f->done);
	assert_true(f->status < 0);
	snprintf(wanted, sizeof(wanted),
		 "failed to mount NFS at \"%s\": exit status 32\nno such export", f->second);
	assert_string_equal(f->err.message, wanted);
	lab_run_for(&f->lab, 50);
	assert_int_equal(f->calls, 1);
	write_script(f, "mount", "exit 0");
	assert_int_equal(mount_one(f, f->path, ""), 0);
	assert_int_equal(f->calls, 2);
}

static void a_batch_that_runs_is_not_disturbed(void **state)
{
	struct fixture *f = *state;

	write_script(f, "mount", "sleep 100");
	start(f, f->path, "");
	assert_false(f->done);
	start(f, f->second, "");
	assert_true(f->done);
	assert_int_equal(f->status, 0);
	assert_true(volumes_must_mount(f->volumes, f->second, ""));
	/* The end of envd, with a mount that hangs. */
	lab_run_for(&f->lab, 100);
	volumes_close(f->volumes);
	assert_int_equal(f->calls, 2);
	assert_true(f->status < 0);
	assert_string_equal(f->err.message, "envd is stopping");
	f->volumes = volumes_new(&f->tools);
}

static void without_mount_it_says_so(void **state)
{
	struct fixture *f = *state;
	char wanted[512];

	setenv("PATH", "/nowhere", 1);
	assert_true(mount_one(f, f->path, "") < 0);
	snprintf(wanted, sizeof(wanted), "failed to mount NFS at \"%s\": exit status 127\n",
		 f->path);
	assert_memory_equal(f->err.message, wanted, strlen(wanted));
}

static void mount_points_are_found_by_their_exact_path(void **state)
{
	struct fixture *f = *state;
	int fd = open(f->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	dprintf(fd, "22 1 0:20 / / rw - ext4 /dev/x rw\n23 22 0:21 / /a\\040b\\134c rw - nfs h:/x "
		    "rw\n");
	close(fd);
	assert_int_equal(volumes_is_mounted(f->log, "/a b\\c"), 1);
	assert_int_equal(volumes_is_mounted(f->log, "/"), 1);
	assert_int_equal(volumes_is_mounted(f->log, "/a b"), 0);
	assert_int_equal(volumes_is_mounted(f->log, "/a b\\cd"), 0);
	assert_int_equal(volumes_is_mounted("/nowhere", "/"), -ENOENT);
}

/* ---- tools ---- */

static void on_tool(void *user, const struct tool_result *result)
{
	struct fixture *f = user;

	f->done = true;
	f->status = result->status;
	snprintf(f->output, sizeof(f->output), "%s", result->output);
}

static void run_tool(struct fixture *f, const char *script, uint64_t timeout_ms)
{
	const char *const argv[] = {"sh", "-c", script, NULL};

	f->done = false;
	assert_non_null(tool_run(&f->tools, argv, timeout_ms, on_tool, f));
	lab_run_until(&f->lab, &f->done);
}

static void tools_tell_how_they_ended(void **state)
{
	struct fixture *f = *state;

	run_tool(f, "echo out; echo err >&2; exit 3", 10000);
	assert_int_equal(f->status, 3);
	assert_string_equal(f->output, "out\nerr");
	run_tool(f, "kill -9 $$", 10000);
	assert_int_equal(f->status, 128 + 9);
	assert_string_equal(f->output, "");
	run_tool(f, "while echo 0123456789; do :; done 2>/dev/null", 10000);
	assert_int_equal(strlen(f->output), TOOL_OUTPUT_BYTES - 1);
	run_tool(f, "sleep 100 & sleep 100", 50);
	assert_int_equal(f->status, -ETIMEDOUT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_040_when_to_mount),
		TEST(a_stale_mount_is_taken_away_first),
		TEST(the_first_failure_ends_the_batch),
		TEST(a_batch_that_runs_is_not_disturbed),
		TEST(without_mount_it_says_so),
		TEST(mount_points_are_found_by_their_exact_path),
		TEST(tools_tell_how_they_ended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
