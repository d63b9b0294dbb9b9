#include "proxy/admin/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/limits.h"

/* A socket that nobody listens on any more may be replaced, nothing else. */
static int remove_dead_socket(const struct sockaddr_un *address, socklen_t len)
{
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	struct stat st;

	if (fd < 0)
		return -errno;
	/* Connecting to any other file is refused just the same. */
	if (lstat(address->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return -EADDRINUSE;
	if (connect(fd, (const struct sockaddr *)address, len) == 0 || errno != ECONNREFUSED)
		return -EADDRINUSE;
	return unlink(address->sun_path) < 0 ? -errno : 0;
}

int unix_socket_listen(const char *path, int *ret_fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int status;

	if (fd < 0)
		return -errno;
	if (!*path || strlen(path) >= sizeof(address.sun_path))
		return -EINVAL;
	memcpy(address.sun_path, path, strlen(path) + 1);
	status = bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
	if (status == -EADDRINUSE) {
		status = remove_dead_socket(&address, sizeof(address));
		if (status == 0 && bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
			status = -errno;
	}
	if (status < 0)
		return status;
	if (chmod(path, 0660) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
		return -errno;
	*ret_fd = take_fd(&fd);
	return 0;
}
