/* The first-come, first-served lock of /init. */
#include "envd/init/turn.h"
#include "tests/support/cmocka.h"

#define WAITERS_MAX 4

struct taker {
	struct turn turn;
	bool leave_at_once;
};

static struct turn_queue queue;
static struct loop loop;
static char order[64];
static struct taker takers[WAITERS_MAX + 2];

static void on_granted(struct turn *turn)
{
	struct taker *taker = container_of(turn, struct taker, turn);
	size_t len = strlen(order);

	order[len] = (char)('0' + (taker - takers));
	order[len + 1] = '\0';
	if (taker->leave_at_once)
		turn_leave(&queue, turn);
}

static int setup(void **state)
{
	loop_init(&loop);
	turn_queue_init(&queue, &loop, WAITERS_MAX);
	memset(takers, 0, sizeof(takers));
	order[0] = '\0';
	return 0;
}

static int teardown(void **state)
{
	turn_queue_fini(&queue);
	loop_fini(&loop);
	return 0;
}

static void take(size_t index)
{
	assert_int_equal(turn_take(&queue, &takers[index].turn, on_granted), 0);
}

static void waiters_come_in_order(void **state)
{
	for (size_t i = 1; i <= 3; i++)
		takers[i].leave_at_once = true;
	take(0);
	take(2);
	take(1);
	take(3);
	assert_string_equal(order, "0");
	turn_leave(&queue, &takers[0].turn);
	/* Handed over from the loop, and nobody slips in between. */
	assert_string_equal(order, "0");
	take(4);
	assert_string_equal(order, "0");
	loop_run(&loop);
	assert_string_equal(order, "02134");
	turn_leave(&queue, &takers[4].turn);
	takers[5].leave_at_once = true;
	take(5);
	assert_string_equal(order, "021345");
}

static void conformance_042_a_waiter_that_left_never_gets_it(void **state)
{
	take(0);
	take(1);
	take(2);
	turn_leave(&queue, &takers[1].turn);
	turn_leave(&queue, &takers[1].turn);
	turn_leave(&queue, &takers[0].turn);
	loop_run(&loop);
	assert_string_equal(order, "02");
	turn_leave(&queue, &takers[2].turn);
}

static void leaving_between_release_and_hand_over(void **state)
{
	take(0);
	take(1);
	turn_leave(&queue, &takers[0].turn);
	turn_leave(&queue, &takers[1].turn);
	loop_run(&loop);
	assert_string_equal(order, "0");
	take(2);
	assert_string_equal(order, "02");
	turn_leave(&queue, &takers[2].turn);
}

static void the_queue_is_bounded(void **state)
{
	for (size_t i = 0; i <= WAITERS_MAX; i++)
		take(i);
	assert_int_equal(turn_take(&queue, &takers[WAITERS_MAX + 1].turn, on_granted), -EAGAIN);
	assert_int_equal(takers[WAITERS_MAX + 1].turn.state, TURN_NONE);
	for (size_t i = 0; i <= WAITERS_MAX; i++)
		turn_leave(&queue, &takers[i].turn);
	loop_run(&loop);
	assert_string_equal(order, "0");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(waiters_come_in_order),
		TEST(conformance_042_a_waiter_that_left_never_gets_it),
		TEST(leaving_between_release_and_hand_over),
		TEST(the_queue_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
