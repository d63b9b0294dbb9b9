#include "envd/sandbox/run_files.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

static int make_directories(const char *directory)
{
	char path[PATH_MAX];
	int len = snprintf(path, sizeof(path), "%s", directory);

	if (len < 0 || len >= (int)sizeof(path))
		return -ENAMETOOLONG;
	for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
		if (slash)
			*slash = '\0';
		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return -errno;
		if (!slash)
			return 0;
		*slash = '/';
	}
}

static int write_all(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t put = write(fd, text, len);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		text += put;
		len -= (size_t)put;
	}
	return 0;
}

int run_files_write(const char *directory, const char *name, const char *text, mode_t mode)
{
	auto_close int directory_fd = -1;
	auto_close int fd = -1;
	int status = make_directories(directory);

	if (status < 0)
		return status;
	directory_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory_fd < 0)
		return -errno;
	fd = openat(directory_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	return write_all(fd, text, strlen(text));
}
