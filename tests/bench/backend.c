/*
 * The server behind the proxies that are compared: answers every request head with the same small
 * response over keep-alive connections, as cheaply as one thread can, and ends the connection where
 * it is asked to. Prints its port. Requests have no bodies.
 */
#include "lib/base.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static const char answer[] =
	"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";

static void serve(int fd)
{
	char buffer[16384];
	ssize_t len = recv(fd, buffer, sizeof(buffer), 0);

	if (len <= 0) {
		close(fd);
		return;
	}
	/* A head that is split over two packets does not happen with this traffic. */
	for (ssize_t i = 3; i < len; i++)
		if (memcmp(buffer + i - 3, "\r\n\r\n", 4) == 0 &&
		    send(fd, answer, sizeof(answer) - 1, MSG_NOSIGNAL) < 0)
			break;
	if (memmem(buffer, (size_t)len, "onnection: close\r\n", 18) ||
	    memmem(buffer, (size_t)len, "HTTP/1.0\r\n", 10))
		close(fd);
}

int main(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	int poll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 1024) < 0 ||
	    getsockname(listener, (struct sockaddr *)&address, &len) < 0)
		return 1;
	printf("%d\n", ntohs(address.sin_port));
	fflush(NULL);
	epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
	for (;;) {
		struct epoll_event ready[64];
		int count = epoll_wait(poll, ready, ARRAY_LENGTH(ready), -1);

		for (int i = 0; i < count; i++) {
			int fd = ready[i].data.fd;
			int on = 1;

			if (fd != listener) {
				serve(fd);
				continue;
			}
			fd = accept(listener, NULL, NULL);
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
			event = (struct epoll_event){.events = EPOLLIN, .data.fd = fd};
			epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
		}
	}
}
