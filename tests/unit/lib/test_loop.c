#include "tests/support/cmocka.h"

#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "lib/loop.h"

struct call {
	struct later later;
	struct loop *loop;
	struct call *also;
	int ran, again;
	char name;
};

static char order[64];

static void remember(struct later *later)
{
	struct call *call = container_of(later, struct call, later);
	size_t len = strlen(order);

	call->ran++;
	if (len + 1 < sizeof(order)) {
		order[len] = call->name;
		order[len + 1] = '\0';
	}
	if (call->again-- > 0)
		later_call(call->loop, later);
	if (call->also)
		later_cancel(&call->also->later);
}

static void init_call(struct call *call, struct loop *loop, char name)
{
	*call = (struct call){.loop = loop, .name = name};
	later_init(&call->later, remember);
}

static int clear(void **state)
{
	(void)state;
	order[0] = '\0';
	return 0;
}

static void an_empty_loop_ends_at_once(void **state)
{
	struct loop loop;

	(void)state;
	loop_init(&loop);
	assert_true(loop_is_empty(&loop));
	loop_run(&loop);
	loop_run(&loop);
	loop_fini(&loop);
}

static void deferred_calls_run_once_in_order_and_keep_the_loop_alive(void **state)
{
	struct loop loop;
	struct call a, b;

	(void)state;
	loop_init(&loop);
	init_call(&a, &loop, 'a');
	init_call(&b, &loop, 'b');
	later_call(&loop, &b.later);
	later_call(&loop, &a.later);
	later_call(&loop, &b.later); /* asked twice, runs once, keeps its place */
	assert_false(loop_is_empty(&loop));
	assert_string_equal(order, ""); /* nothing runs inside later_call */
	loop_run(&loop);
	assert_string_equal(order, "ba");
	assert_true(loop_is_empty(&loop));
	later_call(&loop, &a.later);
	loop_run(&loop);
	assert_string_equal(order, "baa");
	loop_fini(&loop);
}

static void a_call_that_asks_again_lets_the_others_run_first(void **state)
{
	struct loop loop;
	struct call a, b;

	(void)state;
	loop_init(&loop);
	init_call(&a, &loop, 'a');
	init_call(&b, &loop, 'b');
	a.again = 3;
	later_call(&loop, &a.later);
	later_call(&loop, &b.later);
	loop_run(&loop);
	assert_string_equal(order, "abaaa");
	loop_fini(&loop);
}

static void a_cancelled_call_never_runs(void **state)
{
	struct loop loop;
	struct call a, b, c;

	(void)state;
	loop_init(&loop);
	init_call(&a, &loop, 'a');
	init_call(&b, &loop, 'b');
	init_call(&c, &loop, 'c');
	later_cancel(&a.later); /* not queued: harmless */
	later_call(&loop, &a.later);
	later_cancel(&a.later);
	assert_true(loop_is_empty(&loop));
	loop_run(&loop);
	assert_string_equal(order, "");

	/* Cancelled by a call of the same round. */
	b.also = &c;
	later_call(&loop, &b.later);
	later_call(&loop, &c.later);
	later_call(&loop, &a.later);
	loop_run(&loop);
	assert_string_equal(order, "ba");
	loop_fini(&loop);
}

/* Freed by its own call: the loop may not look at it afterwards (the sanitizer watches). */
static void free_self(struct later *later)
{
	free(container_of(later, struct call, later));
	strcat(order, "f"); // lint-ok: a short constant into a large array
}

static void a_call_may_free_itself(void **state)
{
	struct loop loop;

	(void)state;
	loop_init(&loop);
	for (int i = 0; i < 3; i++) {
		struct call *call = xcalloc(1, sizeof(*call));

		later_init(&call->later, free_self);
		later_call(&loop, &call->later);
	}
	loop_run(&loop);
	assert_string_equal(order, "fff");
	loop_fini(&loop);
}

struct ticker {
	uv_timer_t timer;
	struct call call;
	int left;
};

static void on_tick(uv_timer_t *timer)
{
	struct ticker *ticker = container_of(timer, struct ticker, timer);

	assert_ptr_equal(LOOP_OF(timer), ticker->call.loop);
	later_call(ticker->call.loop, &ticker->call.later);
	if (--ticker->left == 0)
		uv_close((uv_handle_t *)timer, NULL);
}

static void deferred_calls_of_a_callback_run_before_the_loop_sleeps(void **state)
{
	struct loop loop;
	struct ticker ticker = {.left = 3};

	(void)state;
	loop_init(&loop);
	init_call(&ticker.call, &loop, 't');
	uv_timer_init(&loop.uv, &ticker.timer);
	uv_timer_start(&ticker.timer, on_tick, 1, 1);
	assert_false(loop_is_empty(&loop));
	loop_run(&loop);
	assert_int_equal(ticker.call.ran, 3);
	loop_fini(&loop);
}

static void a_loop_that_ran_empty_can_run_again(void **state)
{
	struct loop loop;
	struct ticker ticker = {0};

	(void)state;
	loop_init(&loop);
	loop_run(&loop);
	init_call(&ticker.call, &loop, 't');
	for (int run = 1; run <= 2; run++) {
		ticker.left = 2;
		uv_timer_init(&loop.uv, &ticker.timer);
		uv_timer_start(&ticker.timer, on_tick, 1, 1);
		loop_run(&loop);
		assert_true(loop_is_empty(&loop));
		assert_int_equal(ticker.call.ran, 2 * run);
	}
	loop_fini(&loop);
}

static void an_idle_loop_sleeps(void **state)
{
	struct loop loop;
	struct ticker ticker = {.left = 1};
	uint64_t began, used;

	(void)state;
	loop_init(&loop);
	init_call(&ticker.call, &loop, 't');
	uv_timer_init(&loop.uv, &ticker.timer);
	/* A deferred call must not leave the loop spinning until the timer ends it. */
	later_call(&loop, &ticker.call.later);
	uv_timer_start(&ticker.timer, on_tick, 300, 0);
	began = (uint64_t)clock();
	loop_run(&loop);
	used = (uint64_t)clock() - began;
	assert_true(used < CLOCKS_PER_SEC / 10);
	loop_fini(&loop);
}

/* ---- a poll that is broken off ---- */

#define DUE_MS 60

static struct {
	struct loop loop;
	uv_poll_t ready;
	uv_timer_t timer;
	uint64_t due_ms;
	int pipe[2];
	bool is_ready, was_ready_when_past;
} broken;

/* A stop while the kernel is asked: when it is over, the peer's byte is there, and the time as
 * well. */
static void stand_still(int number)
{
	uint64_t until = uv_hrtime() + 2 * DUE_MS * 1000000ull;

	(void)number;
	if (write(broken.pipe[1], "x", 1) != 1)
		abort();
	while (uv_hrtime() < until)
		;
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	broken.is_ready = true;
	uv_close((uv_handle_t *)poll, NULL);
}

static void on_due(uv_timer_t *timer)
{
	if (!loop_is_past(&broken.loop, broken.due_ms)) {
		uv_timer_start(timer, on_due, loop_wait_ms(&broken.loop, broken.due_ms), 0);
		return;
	}
	broken.was_ready_when_past = broken.is_ready;
	uv_close((uv_handle_t *)timer, NULL);
}

static void what_comes_while_a_poll_is_broken_off_is_looked_at_first(void **state)
{
	const struct sigaction action = {.sa_handler = stand_still};
	const struct itimerval soon = {.it_value.tv_usec = DUE_MS * 1000 / 4};
	struct sigaction before;

	(void)state;
	assert_int_equal(pipe(broken.pipe), 0);
	assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
	loop_init(&broken.loop);
	uv_poll_init(&broken.loop.uv, &broken.ready, broken.pipe[0]);
	uv_poll_start(&broken.ready, UV_READABLE, on_ready);
	uv_timer_init(&broken.loop.uv, &broken.timer);
	broken.due_ms = loop_now_ms(&broken.loop) + DUE_MS;
	uv_timer_start(&broken.timer, on_due, DUE_MS, 0);
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	loop_run(&broken.loop);
	assert_true(broken.is_ready);
	assert_true(broken.was_ready_when_past);
	assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
	close(broken.pipe[0]);
	close(broken.pipe[1]);
	loop_fini(&broken.loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(an_empty_loop_ends_at_once, clear),
		cmocka_unit_test_setup(deferred_calls_run_once_in_order_and_keep_the_loop_alive,
				       clear),
		cmocka_unit_test_setup(a_call_that_asks_again_lets_the_others_run_first, clear),
		cmocka_unit_test_setup(a_cancelled_call_never_runs, clear),
		cmocka_unit_test_setup(a_call_may_free_itself, clear),
		cmocka_unit_test_setup(deferred_calls_of_a_callback_run_before_the_loop_sleeps,
				       clear),
		cmocka_unit_test_setup(a_loop_that_ran_empty_can_run_again, clear),
		cmocka_unit_test_setup(an_idle_loop_sleeps, clear),
		cmocka_unit_test(what_comes_while_a_poll_is_broken_off_is_looked_at_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
