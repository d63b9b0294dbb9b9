/*
 * What is written to a process: to its stdin pipe, or to its terminal. Writes are taken in order
 * and each is answered once the kernel has all its bytes, so a client's pace is the program's pace.
 * The bytes are borrowed from whoever asked; nothing is copied, and the queue is bounded by count.
 */
#ifndef ENVD_PROCESS_INPUT_H
#define ENVD_PROCESS_INPUT_H

#include "lib/list.h"
#include "lib/loop.h"

#define INPUT_DONE 1

struct input;

/* Embedded by its owner; the bytes must stay until on_done or input_cancel. */
struct input_write {
	struct list_node node;
	struct input *input; /* NULL: not queued */
	const char *data;
	size_t len;
	bool closes; /* instead of bytes: the end of stdin, once what is before it is written */
	/* 0; -EPIPE: nobody reads any more; -ESRCH: the process has ended; -EBADF: stdin was closed
	 * before this write's turn came. Never from within input_queue. */
	void (*on_done)(struct input_write *write, int status);
};

struct input {
	struct loop *loop;
	int fd; /* -1: there is none, or it is closed */
	bool is_shared; /* a terminal's master, which belongs to the output */
	struct list_node writes;
	size_t count;
	uv_poll_t poll; /* exists from the first write that had to wait */
	int poll_fd; /* a duplicate of a shared descriptor: libuv polls each only once */
	bool poll_is_open, poll_is_closing, is_awaited;
	/* After input_close, if that said so. */
	void (*on_closed)(struct input *input);
};

void input_init(struct input *input, struct loop *loop);
/* Non-blocking descriptor; owned from now on unless `is_shared`. */
void input_open(struct input *input, int fd, bool is_shared);
bool input_is_open(const struct input *input);
/* INPUT_DONE: all taken, on_done will not come. 0: queued, it will. -EPIPE, -EBADF: as for on_done.
 * -EAGAIN: too many are waiting already. */
int input_queue(struct input *input, struct input_write *write) NODISCARD;
/* Forgets a write that is queued; what the kernel has already taken of it stays there. */
void input_cancel(struct input_write *write);
/* Fails what is queued with `status` and closes. False: all is done; true: on_closed will come. */
bool input_close(struct input *input, int status);

#endif
