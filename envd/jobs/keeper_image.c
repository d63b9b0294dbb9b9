#include "envd/jobs/keeper_image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif
#define FILE_NAME "keeper"

__asm__(".pushsection .rodata\n"
	".globl keeper_image_begin\n"
	"keeper_image_begin:\n"
	"\t.incbin \"" KEEPER_PATH "\"\n"
	".globl keeper_image_end\n"
	"keeper_image_end:\n"
	"\t.byte 0\n"
	".popsection\n");

extern const char keeper_image_begin[], keeper_image_end[];

static int write_image(int fd)
{
	const char *at = keeper_image_begin;

	while (at < keeper_image_end) {
		ssize_t written = write(fd, at, (size_t)(keeper_image_end - at));

		if (written < 0 && errno != EINTR)
			return -errno;
		at += written > 0 ? written : 0;
	}
	return 0;
}

/* The file that is executed must not be open for writing. */
static int open_file(const char *directory)
{
	char path[4096], temporary[4096];
	auto_close int fd = -1;
	int status;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", directory, FILE_NAME) >= sizeof(path) ||
	    (size_t)snprintf(temporary, sizeof(temporary), "%s/.%s", directory, FILE_NAME) >=
		    sizeof(temporary))
		return -ENAMETOOLONG;
	(void)unlink(temporary);
	fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
	if (fd < 0)
		return -errno;
	status = write_image(fd);
	if (status < 0)
		return status;
	close_fd(&fd);
	if (rename(temporary, path) < 0)
		return -errno;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : take_fd(&fd);
}

static int open_memory(void)
{
	auto_close int fd = memfd_create("envd-job", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
	int status;

	if (fd < 0 && errno == EINVAL) /* older kernels do not know the last of these */
		fd = memfd_create("envd-job", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	status = write_image(fd);
	if (status == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
		status = -errno;
	return status < 0 ? status : take_fd(&fd);
}

int keeper_image_open(const char *directory)
{
	int fd = open_memory();

	return fd < 0 ? open_file(directory) : fd;
}
