#include "envd/process/input.h"

#include <fcntl.h>
#include <unistd.h>

#include "envd/limits.h"

/* A program that reads as fast as we write must not keep the loop for itself. */
#define WRITES_AT_ONCE 16

static void on_writable(uv_poll_t *poll, int status, int events);

void input_init(struct input *input, struct loop *loop)
{
	*input = (struct input){.loop = loop, .fd = -1, .poll_fd = -1};
	list_init(&input->writes);
}

void input_open(struct input *input, int fd, bool is_shared)
{
	input->fd = fd;
	input->is_shared = is_shared;
}

bool input_is_open(const struct input *input)
{
	return input->fd >= 0;
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct input *input = container_of(handle, struct input, poll);

	input->poll_is_open = input->poll_is_closing = false;
	if (input->is_awaited)
		input->on_closed(input);
}

static void close_descriptor(struct input *input)
{
	if (input->poll_is_open && !input->poll_is_closing) {
		input->poll_is_closing = true;
		uv_close((uv_handle_t *)&input->poll, on_poll_closed);
	}
	if (input->is_shared) {
		close_fd(&input->poll_fd);
		input->fd = -1;
	} else {
		close_fd(&input->fd);
	}
}

static void unlink_write(struct input_write *write)
{
	list_remove(&write->node);
	write->input->count--;
	write->input = NULL;
}

/* 0 or a negative errno when the write cannot be waited for. */
static int wait_until_writable(struct input *input)
{
	int fd = input->fd, status;

	if (!input->poll_is_open) {
		if (input->is_shared) {
			input->poll_fd = fcntl(input->fd, F_DUPFD_CLOEXEC, 3);
			if (input->poll_fd < 0)
				return -errno;
			fd = input->poll_fd;
		}
		status = uv_poll_init(&input->loop->uv, &input->poll, fd);
		if (status < 0)
			return status;
		input->poll_is_open = true;
	}
	return uv_poll_start(&input->poll, UV_WRITABLE, on_writable);
}

/* INPUT_DONE, 0 when there is more to write later, or a negative errno. */
static int try_write(struct input *input, struct input_write *request)
{
	int i;

	if (input->fd < 0)
		return -EBADF;
	if (request->closes) {
		close_descriptor(input);
		return INPUT_DONE;
	}
	for (i = 0; request->len > 0 && i < WRITES_AT_ONCE; i++) {
		ssize_t count = write(input->fd, request->data, request->len);

		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return errno == EAGAIN ? 0 : -errno;
		request->data += count;
		request->len -= (size_t)count;
	}
	return request->len == 0 ? INPUT_DONE : 0;
}

static void on_writable(uv_poll_t *poll, int status, int events)
{
	struct input *input = container_of(poll, struct input, poll);

	/* When the reader is gone libuv has stopped the handle; writing tells why. */
	while (!list_is_empty(&input->writes)) {
		struct input_write *request = container_of(input->writes.next, struct input_write,
							   node);
		int result = try_write(input, request);

		if (result == 0)
			result = wait_until_writable(input);
		if (result == 0)
			return;
		unlink_write(request);
		request->on_done(request, result == INPUT_DONE ? 0 : result);
	}
	if (input->poll_is_open && !input->poll_is_closing)
		uv_poll_stop(&input->poll);
}

int input_queue(struct input *input, struct input_write *request)
{
	int status;

	if (input->fd < 0)
		return -EBADF;
	if (input->count >= PROCESS_INPUTS_MAX)
		return -EAGAIN;
	if (list_is_empty(&input->writes)) {
		status = try_write(input, request);
		if (status == 0)
			status = wait_until_writable(input);
		if (status != 0)
			return status;
	}
	request->input = input;
	list_append(&input->writes, &request->node);
	input->count++;
	return 0;
}

void input_cancel(struct input_write *request)
{
	if (request->input)
		unlink_write(request);
}

bool input_close(struct input *input, int status)
{
	struct list_node failed;

	list_init(&failed);
	list_splice(&failed, &input->writes);
	close_descriptor(input);
	while (!list_is_empty(&failed)) {
		struct input_write *request = container_of(failed.next, struct input_write, node);

		unlink_write(request);
		request->on_done(request, status);
	}
	input->is_awaited = input->poll_is_open;
	return input->is_awaited;
}
