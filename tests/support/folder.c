#include "tests/support/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/user.h"
#include "tests/support/cmocka.h"

void folder_open(struct folder *folder)
{
	*folder = (struct folder){.path = "/tmp/test_folder.XXXXXX"};
	assert_non_null(mkdtemp(folder->path));
	assert_int_equal(chmod(folder->path, 0755), 0);
}

void folder_close(struct folder *folder)
{
	char command[128];

	if (*folder->passwd)
		user_set_files(NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder->path);
	assert_int_equal(system(command), 0); /* lint-ok: a test's own folder */
}

void folder_make_accounts(struct folder *folder, const char *home_of_self, const char *home_of_user)
{
	char text[512];

	snprintf(folder->passwd, sizeof(folder->passwd), "%s/passwd", folder->path);
	snprintf(folder->group, sizeof(folder->group), "%s/group", folder->path);
	snprintf(text, sizeof(text), "self:x:%u:%u::%s%s:/bin/sh\nuser:x:4242:4243::%s%s:/bin/sh\n",
		 (unsigned)geteuid(), (unsigned)getegid(), folder->path, home_of_self, folder->path,
		 home_of_user);
	folder_write_text(folder->passwd, text);
	folder_write_text(folder->group, "user:x:4243:\n");
	user_set_files(folder->passwd, folder->group);
}

void folder_write(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, len), len);
	close(fd);
}

void folder_write_text(const char *path, const char *text)
{
	folder_write(path, text, strlen(text));
}

void folder_check(const char *path, const void *want, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	char piece[4096];
	ssize_t got;

	assert_true(fd >= 0);
	while ((got = read(fd, piece, sizeof(piece))) > 0) {
		assert_true((size_t)got <= len - have);
		assert_memory_equal(piece, (const char *)want + have, (size_t)got);
		have += (size_t)got;
	}
	assert_int_equal(got, 0);
	assert_int_equal(have, len);
	close(fd);
}

void folder_check_text(const char *path, const char *want)
{
	if (want)
		folder_check(path, want, strlen(want));
	else
		assert_false(folder_has(path));
}

bool folder_has(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

void folder_make(const char *path)
{
	assert_int_equal(mkdir(path, 0755), 0);
}

void folder_make_link(const char *target, const char *path)
{
	assert_int_equal(symlink(target, path), 0);
}

void folder_mount_small(const char *path, const char *options)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		skip();
	assert_int_equal(mount("tmpfs", path, "tmpfs", 0, options), 0);
}

size_t folder_count(const char *path)
{
	DIR *directory = opendir(path);
	size_t count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 2;
}
