#include "lib/process/cgroup_file.h"

#include <fcntl.h>
#include <unistd.h>

int cgroup_file_write(int directory, const char *name, const char *text)
{
	auto_close int fd = openat(directory, name, O_WRONLY | O_CLOEXEC);
	ssize_t written;

	if (fd < 0)
		return -errno;
	written = write(fd, text, strlen(text));
	return written < 0 ? -errno : 0;
}

ssize_t cgroup_file_read(int directory, const char *name, char *text, size_t size)
{
	auto_close int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (fd < 0)
		return -errno;
	len = read(fd, text, size - 1);
	if (len < 0)
		return -errno;
	text[len] = '\0';
	return len;
}

void cgroup_file_enable(int directory, const char *const *controllers)
{
	for (; *controllers; controllers++)
		(void)cgroup_file_write(directory, "cgroup.subtree_control", *controllers);
}
