#include "envd/init/run_files.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "envd/init/text_file.h"

int run_files_write(const char *directory, const char *name, const char *text, mode_t mode)
{
	auto_close int directory_fd = -1;
	auto_close int fd = -1;
	char path[PATH_MAX];
	int status = snprintf(path, sizeof(path), "%s/%s", directory, name);

	if (status < 0 || status >= (int)sizeof(path))
		return -ENAMETOOLONG;
	status = text_file_make_folders(path);
	if (status < 0)
		return status;
	directory_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory_fd < 0)
		return -errno;
	fd = openat(directory_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
		    mode);
	if (fd < 0)
		return -errno;
	return text_file_write(fd, text, strlen(text));
}
