#include "envd/jobs/job_poll.h"

struct job_poll {
	uv_poll_t handle;
	void (*fn)(void *user);
	void *user;
};

static void free_poll(uv_handle_t *handle)
{
	free(container_of((uv_poll_t *)handle, struct job_poll, handle));
}

static void on_ready(uv_poll_t *handle, int status, int events)
{
	struct job_poll *poll = container_of(handle, struct job_poll, handle);

	poll->fn(poll->user);
}

struct job_poll *job_poll_open(struct loop *loop, int fd, void (*fn)(void *user), void *user)
{
	struct job_poll *poll = xcalloc(1, sizeof(*poll));

	poll->fn = fn;
	poll->user = user;
	if (uv_poll_init(&loop->uv, &poll->handle, fd) < 0) {
		free(poll);
		return NULL;
	}
	uv_poll_start(&poll->handle, UV_READABLE, on_ready);
	return poll;
}

void job_poll_close(struct job_poll **poll)
{
	if (*poll)
		uv_close((uv_handle_t *)&(*poll)->handle, free_poll);
	*poll = NULL;
}
