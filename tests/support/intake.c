#include "tests/support/intake.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/path.h"
#include "tests/support/cmocka.h"

struct intake intake;

bool intake_am_root(void)
{
	return geteuid() == 0;
}

const char *intake_at(const char *relative)
{
	return path_join(intake.root, relative, &intake.arena);
}

void intake_write_bytes(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, len), len);
	close(fd);
}

void intake_write_text(const char *relative, const char *text)
{
	intake_write_bytes(intake_at(relative), text, strlen(text));
}

int intake_setup(void **state)
{
	char text[512];

	(void)state;
	arena_init(&intake.arena, 64 * 1024 * 1024);
	memcpy(intake.root, "/tmp/test_receive.XXXXXX", 25);
	assert_non_null(mkdtemp(intake.root));
	assert_int_equal(chmod(intake.root, 0755), 0);
	snprintf(intake.passwd, sizeof(intake.passwd), "%s/passwd", intake.root);
	snprintf(intake.group, sizeof(intake.group), "%s/group", intake.root);
	snprintf(text, sizeof(text), "self:x:%u:%u::%s:/bin/sh\nuser:x:4242:4243::%s/home:/bin/sh\n",
		 (unsigned)geteuid(), (unsigned)getegid(), intake.root, intake.root);
	intake_write_bytes(intake.passwd, text, strlen(text));
	intake_write_bytes(intake.group, "user:x:4243:\n", 13);
	user_set_files(intake.passwd, intake.group);
	assert_int_equal(mkdir(intake_at("home"), 0755), 0);
	if (intake_am_root())
		assert_int_equal(chown(intake_at("home"), 4242, 4243), 0);
	intake.request = (struct receive_request){.sandbox = &intake.sandbox,
						  .user_name = "self",
						  .content_type = STR("application/octet-stream"),
						  .length = -1};
	return 0;
}

int intake_teardown(void **state)
{
	char command[128];

	(void)state;
	user_set_files(NULL, NULL);
	umount2(intake_at("m"), MNT_DETACH);
	snprintf(command, sizeof(command), "rm -rf '%s'", intake.root);
	assert_int_equal(system(command), 0); /* lint-ok: a test's own folder */
	arena_release(&intake.arena);
	return 0;
}

int intake_post_pieces(const char *path, const void *body, size_t len, size_t piece)
{
	int status;

	intake.request.path = path ? str_of(path) : (struct str){NULL, 0};
	status = receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err);
	for (size_t done = 0; done < len && status == 0; done += piece)
		status = receive_feed(&intake.receive, (const char *)body + done,
				      size_min(piece, len - done), &intake.err);
	if (status == 0)
		status = receive_finish(&intake.receive, &intake.err);
	receive_abort(&intake.receive);
	return status;
}

int intake_post(const char *path, const char *body)
{
	return intake_post_pieces(path, body, strlen(body), 7);
}

void intake_check_bytes(const char *path, const void *want, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *got = malloc(len + 1);
	size_t have = 0;
	ssize_t piece;

	assert_true(fd >= 0);
	assert_non_null(got);
	while ((piece = read(fd, got + have, len + 1 - have)) > 0)
		have += (size_t)piece;
	assert_int_equal(have, len);
	assert_memory_equal(got, want, len);
	free(got);
	close(fd);
}

void intake_check_text(const char *relative, const char *want)
{
	intake_check_bytes(intake_at(relative), want, strlen(want));
}

bool intake_exists(const char *relative)
{
	struct stat st;

	return lstat(intake_at(relative), &st) == 0;
}

size_t intake_count_entries(const char *relative)
{
	DIR *directory = opendir(intake_at(relative));
	size_t count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 2;
}

void intake_mount_small(const char *options)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		skip();
	assert_int_equal(mkdir(intake_at("m"), 0755), 0);
	assert_int_equal(mount("tmpfs", intake_at("m"), "tmpfs", 0, options), 0);
}

void intake_check_refused(enum err_kind kind, const char *message)
{
	assert_int_equal(intake.err.kind, kind);
	assert_string_equal(intake.err.message, message);
}

static int count_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

int intake_before_all(void **state)
{
	static int count;

	umask(022);
	count = count_descriptors();
	*state = &count;
	return 0;
}

int intake_after_all(void **state)
{
	assert_int_equal(count_descriptors(), *(int *)*state);
	return 0;
}
