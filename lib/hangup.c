#include "lib/hangup.h"

#include <sys/epoll.h>
#include <unistd.h>

/* Told at one go before other events get their turn. */
#define BATCH 64

void hangup_init(struct hangup *hangup, void (*fn)(struct hangup *hangup, bool reset))
{
	hangup->fn = fn;
	hangup->fd = -1;
}

/* One at a time: what is told of one may end the watch of another. */
static bool tell_one(struct loop *loop)
{
	struct epoll_event event;
	struct hangup *hangup;

	if (epoll_wait(loop->hangup_fd, &event, 1, 0) != 1)
		return false;
	hangup = event.data.ptr;
	if (event.events & EPOLLERR) {
		hangup_forget(loop, hangup);
		hangup->fn(hangup, true);
		return true;
	}
	/* A reset is still told. That both directions have ended in order is no news. */
	if (hangup->ends) {
		event.events = EPOLLET;
		epoll_ctl(loop->hangup_fd, EPOLL_CTL_MOD, hangup->fd, &event);
		hangup->ends = false;
		hangup->fn(hangup, false);
	}
	return true;
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct loop *loop = LOOP_OF(poll);

	(void)status;
	(void)events;
	for (unsigned i = 0; i < BATCH && tell_one(loop); i++)
		;
}

int hangup_open(struct loop *loop)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);
	int status;

	if (fd < 0)
		return -errno;
	status = uv_poll_init(&loop->uv, &loop->hangup_poll, fd);
	if (status < 0) {
		close(fd);
		return status;
	}
	loop->hangup_fd = fd;
	loop->hangups = 0;
	uv_poll_start(&loop->hangup_poll, UV_READABLE, on_poll);
	uv_unref((uv_handle_t *)&loop->hangup_poll);
	return 0;
}

void hangup_watch(struct loop *loop, struct hangup *hangup, int fd, bool ends)
{
	struct epoll_event event = {.events = EPOLLET | (ends ? EPOLLRDHUP : 0),
				    .data.ptr = hangup};

	if (hangup->fd >= 0 || fd < 0)
		return;
	if (epoll_ctl(loop->hangup_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		return;
	hangup->fd = fd;
	hangup->ends = ends;
	if (loop->hangups++ == 0)
		uv_ref((uv_handle_t *)&loop->hangup_poll);
}

void hangup_forget(struct loop *loop, struct hangup *hangup)
{
	if (hangup->fd < 0)
		return;
	epoll_ctl(loop->hangup_fd, EPOLL_CTL_DEL, hangup->fd, NULL);
	hangup->fd = -1;
	if (--loop->hangups == 0)
		uv_unref((uv_handle_t *)&loop->hangup_poll);
}

void hangup_close(struct loop *loop)
{
	uv_close((uv_handle_t *)&loop->hangup_poll, NULL);
	close_fd(&loop->hangup_fd);
}
