#include "tests/support/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	abort();
}

void tcp_pair(int ret_fds[2])
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(listener >= 0, "socket");
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0, "bind");
	must(listen(listener, 1) == 0, "listen");
	must(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "getsockname");
	ret_fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(ret_fds[0] >= 0, "socket");
	must(connect(ret_fds[0], (struct sockaddr *)&address, len) == 0, "connect");
	ret_fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	must(ret_fds[1] >= 0, "accept");
	close(listener);
}

size_t read_fully(int fd, char *data, size_t len)
{
	size_t done = 0;

	while (done < len) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		ssize_t got;

		must(poll(&ready, 1, 10000) > 0, "waiting for bytes");
		got = read(fd, data + done, len - done);
		if (got < 0 && errno == EAGAIN)
			continue;
		must(got >= 0, "read");
		if (got == 0)
			break;
		done += (size_t)got;
	}
	return done;
}

void make_nonblocking(int fd)
{
	must(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
}
