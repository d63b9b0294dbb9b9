#include "lib/file_send.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "lib/limits.h"

static bool is_not_possible(int error)
{
	return error == EINVAL || error == ENOSYS || error == EPERM || error == EOPNOTSUPP;
}

/* A slow file holds its thread for no longer than a fast one. */
static void follow_pace(struct file_send *send, size_t sent, int64_t took_ms)
{
	if (took_ms > FILE_SEND_MS)
		send->piece_bytes = size_max(sent * FILE_SEND_MS / (size_t)took_ms,
					     FILE_SEND_BYTES_MIN);
	else if (sent == send->piece_bytes)
		send->piece_bytes = size_min(send->piece_bytes * 2, FILE_SEND_BYTES);
}

ssize_t file_send(struct file_send *send, int file, int64_t offset, size_t len)
{
	int64_t began_ms = monotonic_ms();
	off_t at = (off_t)offset;
	size_t sent = 0;

	if (send->piece_bytes == 0)
		send->piece_bytes = FILE_SEND_BYTES_FIRST;
	lent_socket_use(&send->socket);
	len = size_min(len, send->piece_bytes);
	while (sent < len) {
		ssize_t got = sendfile(send->socket.fd, file, &at, len - sent);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			send->socket.is_blocked = true;
		else if (got < 0 && sent == 0)
			return is_not_possible(errno) ? -ENOSYS : -errno;
		if (got <= 0)
			break;
		sent += (size_t)got;
	}
	follow_pace(send, sent, monotonic_ms() - began_ms);
	return (ssize_t)sent;
}

/* The last of three numbers: the least, the usual and the most. */
static int64_t read_most(const char *path)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	long long most;
	char text[128];
	ssize_t got;

	if (fd < 0)
		return -errno;
	got = read(fd, text, sizeof(text) - 1);
	if (got < 0)
		return -errno;
	text[got] = '\0';
	return sscanf(text, "%*d %*d %lld", &most) == 1 && most >= 0 && most <= INT32_MAX ? most
											  : -EINVAL;
}

int64_t file_send_tail(void)
{
	int64_t sender = read_most("/proc/sys/net/ipv4/tcp_wmem");
	int64_t receiver = read_most("/proc/sys/net/ipv4/tcp_rmem");

	if (sender < 0 || receiver < 0)
		return sender < 0 ? sender : receiver;
	return sender + receiver + FILE_SEND_TAIL_BYTES;
}
