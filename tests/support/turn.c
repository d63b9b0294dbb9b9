#include "tests/support/turn.h"

#include <poll.h>

#include "tests/support/cmocka.h"

/* Also for handles that the round has opened, of which the kernel hears in the next one only. */
#define REST_MS 5

static void do_nothing(struct later *later)
{
}

void turn_loop(struct loop *loop)
{
	struct pollfd events = {.fd = uv_backend_fd(&loop->uv), .events = POLLIN};
	struct later alive;
	int timeout_ms;

	/* A loop with nothing but handles that do not keep it running would not even look at
	 * these. */
	later_init(&alive, do_nothing);
	later_call(loop, &alive);
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	later_cancel(&alive);
	timeout_ms = uv_backend_timeout(&loop->uv);
	if (timeout_ms < 0 || timeout_ms > REST_MS || !uv_loop_alive(&loop->uv))
		timeout_ms = REST_MS;
	poll(&events, 1, timeout_ms);
}

static void show_handle(uv_handle_t *handle, void *unused)
{
	uv_os_fd_t fd = -1;

	(void)unused;
	uv_fileno(handle, &fd);
	print_error("    %s, descriptor %d%s%s\n", uv_handle_type_name(handle->type), fd,
		    uv_is_active(handle) ? ", active" : "",
		    uv_is_closing(handle) ? ", closing" : "");
}

void turn_gave_up(const struct loop *loop, const char *what, const char *file, int line)
{
	print_error("%s:%d: waited too long for: %s\n", file, line, what);
	print_error("  the loop has open:\n");
	uv_walk((uv_loop_t *)&loop->uv, show_handle, NULL);
	_fail(file, line);
	abort(); /* cmocka has left by a jump */
}
