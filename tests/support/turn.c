#include "tests/support/turn.h"

#include <poll.h>

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

	/* A loop with nothing but handles that do not keep it running would not even look at these. */
	later_init(&alive, do_nothing);
	later_call(loop, &alive);
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	later_cancel(&alive);
	timeout_ms = uv_backend_timeout(&loop->uv);
	if (timeout_ms < 0 || timeout_ms > REST_MS || !uv_loop_alive(&loop->uv))
		timeout_ms = REST_MS;
	poll(&events, 1, timeout_ms);
}
