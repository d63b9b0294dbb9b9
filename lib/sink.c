#include "lib/sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* -1 for what cannot be opened anew. */
static int reopen(int fd, mode_t mode)
{
	char path[40];

	if (!S_ISFIFO(mode) && !S_ISCHR(mode))
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void sink_open(struct sink *sink, int fd)
{
	struct stat status = {0};
	bool is_open = fd >= 0 && fstat(fd, &status) == 0;

	sink->own_fd = is_open ? reopen(fd, status.st_mode) : -1;
	sink->fd = sink->own_fd >= 0 ? sink->own_fd : fd;
	sink->is_socket = S_ISSOCK(status.st_mode);
	sink->is_file = S_ISREG(status.st_mode);
	sink->may_block = is_open && !sink->is_file && !sink->is_socket &&
			  !(fcntl(sink->fd, F_GETFL) & O_NONBLOCK);
}

void sink_close(struct sink *sink)
{
	close_fd(&sink->own_fd);
	sink->fd = -1;
}

ssize_t sink_put(const struct sink *sink, const char *text, size_t len)
{
	struct pollfd room = {.fd = sink->fd, .events = POLLOUT};
	ssize_t done;

	if (sink->may_block) {
		if (poll(&room, 1, 0) != 1 || !(room.revents & POLLOUT))
			return room.revents ? -EPIPE : -EAGAIN;
		len = size_min(len, 4096); /* PIPE_BUF: room for one byte is room for so many */
	}
	done = sink->is_socket ? send(sink->fd, text, len, MSG_DONTWAIT | MSG_NOSIGNAL)
			       : write(sink->fd, text, len);
	return done > 0 ? done : done < 0 ? -errno : -EAGAIN;
}
