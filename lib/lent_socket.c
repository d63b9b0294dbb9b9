#include "lib/lent_socket.h"

#include <unistd.h>

#include "lib/limits.h"

void lent_socket_begin(struct lent_socket *lent, int fd)
{
	*lent = (struct lent_socket){.fd = fd};
}

void lent_socket_end(struct lent_socket *lent)
{
	close_fd(&lent->fd);
}

void lent_socket_use(struct lent_socket *lent)
{
	lent->is_blocked = false;
	if (lent->until_ms == 0)
		lent->until_ms = monotonic_ms() + LENT_SOCKET_JOB_MS;
}

bool lent_socket_goes_on(const struct lent_socket *lent, const struct job *job)
{
	return !lent->is_blocked && !job_is_awaited(job) && monotonic_ms() < lent->until_ms;
}

size_t lent_socket_receive(struct lent_socket *lent, char *room, size_t size)
{
	ssize_t got;

	lent_socket_use(lent);
	do
		got = read(lent->fd, room, size);
	while (got < 0 && errno == EINTR);
	lent->is_blocked = got <= 0;
	return got > 0 ? (size_t)got : 0;
}
