/* Alarms of a loop: when they ring, in which order, and what may happen to them meanwhile. */
#include <unistd.h>

#include "lib/loop.h"
#include "tests/support/cmocka.h"

#define CROWD 2000

struct bell {
	struct alarm alarm;
	struct loop *loop;
	char name;
	int again; /* how often it sets itself anew, at once */
	struct bell *cancels; /* when it rings */
	uint64_t rang_ms;
};

static char order[64];
static size_t rang;

static void ring(struct alarm *alarm)
{
	struct bell *bell = container_of(alarm, struct bell, alarm);

	assert_false(alarm_is_set(alarm));
	bell->rang_ms = loop_now_ms(bell->loop);
	if (rang < sizeof(order) - 1)
		order[rang] = bell->name;
	rang++;
	if (bell->again-- > 0)
		alarm_set(bell->loop, alarm, 0);
	if (bell->cancels)
		alarm_cancel(&bell->cancels->alarm);
}

static void init_bell(struct bell *bell, struct loop *loop, char name)
{
	*bell = (struct bell){.loop = loop, .name = name};
	alarm_init(&bell->alarm, ring);
}

static int setup(void **state)
{
	struct loop *loop = xcalloc(1, sizeof(*loop));

	alarm(120);
	loop_init(loop);
	memset(order, 0, sizeof(order));
	rang = 0;
	*state = loop;
	return 0;
}

static int teardown(void **state)
{
	loop_fini(*state);
	free(*state);
	return 0;
}

static void alarms_ring_once_in_the_order_they_are_due(void **state)
{
	struct loop *loop = *state;
	struct bell a, b, c;
	uint64_t began = loop_now_ms(loop);

	init_bell(&a, loop, 'a');
	init_bell(&b, loop, 'b');
	init_bell(&c, loop, 'c');
	alarm_set(loop, &a.alarm, 30);
	alarm_set(loop, &b.alarm, 5);
	alarm_set(loop, &c.alarm, 30); /* at the same time: as they were set */
	assert_false(loop_is_empty(loop));
	assert_string_equal(order, "");
	loop_run(loop);
	assert_string_equal(order, "bac");
	assert_true(a.rang_ms >= began + 30 && b.rang_ms >= began + 5);
	assert_true(loop_is_empty(loop));
}

static void an_alarm_that_is_set_again_rings_at_the_new_time_alone(void **state)
{
	struct loop *loop = *state;
	struct bell a, b;

	init_bell(&a, loop, 'a');
	init_bell(&b, loop, 'b');
	alarm_set(loop, &a.alarm, 1);
	alarm_set(loop, &b.alarm, 10);
	alarm_set(loop, &a.alarm, 20); /* later */
	loop_run(loop);
	assert_string_equal(order, "ba");
	alarm_set(loop, &a.alarm, 3600 * 1000);
	alarm_set(loop, &a.alarm, 1); /* sooner */
	loop_run(loop);
	assert_string_equal(order, "baa");
}

static void an_alarm_that_is_to_ring_within_a_time_stays_as_it_is_if_it_does(void **state)
{
	struct loop *loop = *state;
	struct bell a;

	init_bell(&a, loop, 'a');
	alarm_set_within(loop, &a.alarm, 3600 * 1000);
	alarm_set_within(loop, &a.alarm, 1);
	alarm_set_within(loop, &a.alarm, 3600 * 1000);
	loop_run(loop);
	assert_string_equal(order, "a");
}

static void a_cancelled_alarm_keeps_nothing(void **state)
{
	struct loop *loop = *state;
	struct bell *a = xcalloc(1, sizeof(*a)), b;

	init_bell(a, loop, 'a');
	init_bell(&b, loop, 'b');
	alarm_cancel(&a->alarm); /* was never set */
	alarm_set(loop, &a->alarm, 1);
	assert_true(alarm_is_set(&a->alarm));
	alarm_cancel(&a->alarm);
	assert_false(alarm_is_set(&a->alarm));
	free(a);
	assert_true(loop_is_empty(loop));
	loop_run(loop);
	assert_int_equal(rang, 0);

	/* By one that rings before it. */
	a = xcalloc(1, sizeof(*a));
	init_bell(a, loop, 'a');
	b.cancels = a;
	alarm_set(loop, &b.alarm, 1);
	alarm_set(loop, &a->alarm, 1);
	loop_run(loop);
	assert_string_equal(order, "b");
	free(a);
}

/* Or a loop that has an alarm of 0 ms would never look at its sockets again. */
static void what_is_set_while_others_ring_waits_for_the_next_turn(void **state)
{
	struct loop *loop = *state;
	struct bell a, b;

	init_bell(&a, loop, 'a');
	init_bell(&b, loop, 'b');
	a.again = 2;
	alarm_set(loop, &a.alarm, 0);
	alarm_set(loop, &b.alarm, 0);
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	assert_string_equal(order, "ab");
	loop_run(loop);
	assert_string_equal(order, "abaa");
}

/* It rings in time while another one keeps the loop going, and the loop ends without it. */
static void the_loop_does_not_go_on_for_an_idle_alarm(void **state)
{
	struct loop *loop = *state;
	struct bell idle, late, usual;
	uint64_t began = loop_now_ms(loop);

	init_bell(&idle, loop, 'i');
	alarm_init_idle(&idle.alarm, ring);
	init_bell(&late, loop, 'l');
	alarm_init_idle(&late.alarm, ring);
	init_bell(&usual, loop, 'u');
	alarm_set(loop, &idle.alarm, 5);
	alarm_set(loop, &late.alarm, 3600 * 1000);
	loop_run(loop);
	assert_string_equal(order, "");
	assert_false(loop_is_empty(loop));

	alarm_set(loop, &usual.alarm, 20);
	loop_run(loop);
	assert_string_equal(order, "iu");
	assert_true(usual.rang_ms >= began + 20);

	/* The last one that was waited for does not come. */
	alarm_set(loop, &usual.alarm, 3600 * 1000);
	alarm_cancel(&usual.alarm);
	loop_run(loop);
	assert_true(alarm_is_set(&late.alarm));
	alarm_cancel(&late.alarm);
	assert_true(loop_is_empty(loop));
}

static void ring_differently(struct alarm *alarm)
{
	order[rang++] = '!';
	(void)alarm;
}

static void an_alarm_may_be_set_to_call_something_else(void **state)
{
	struct loop *loop = *state;
	struct bell a = {.loop = loop, .name = 'a'};

	alarm_call(loop, &a.alarm, ring, 3600 * 1000);
	assert_int_equal(alarm_left_ms(&a.alarm), 3600 * 1000);
	alarm_call(loop, &a.alarm, ring_differently, 1);
	assert_int_equal(alarm_left_ms(&a.alarm), 1);
	loop_run(loop);
	assert_string_equal(order, "!");
	alarm_set(loop, &a.alarm, 0); /* the same as the last time */
	assert_int_equal(alarm_left_ms(&a.alarm), 0);
	alarm_call(loop, &a.alarm, ring, 0);
	loop_run(loop);
	assert_string_equal(order, "!a");
}

static void free_itself(struct alarm *alarm)
{
	rang++;
	free(container_of(alarm, struct bell, alarm));
}

static void an_alarm_may_free_itself(void **state)
{
	struct loop *loop = *state;
	struct bell *a = xcalloc(1, sizeof(*a));

	alarm_init(&a->alarm, free_itself);
	alarm_set(loop, &a->alarm, 1);
	loop_run(loop);
	assert_int_equal(rang, 1);
}

static uint64_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 33;
}

static uint64_t last_due, last_sequence;
static size_t crowd_rang;

static void check_order(struct alarm *alarm)
{
	assert_true(alarm->due_ms > last_due ||
		    (alarm->due_ms == last_due && alarm->sequence > last_sequence));
	last_due = alarm->due_ms;
	last_sequence = alarm->sequence;
	crowd_rang++;
}

static void a_crowd_that_is_set_moved_and_cancelled_at_random_keeps_its_order(void **state)
{
	struct loop *loop = *state;
	struct alarm *crowd = xcalloc(CROWD, sizeof(*crowd));
	uint64_t seed = 7;
	size_t left = 0;

	last_due = last_sequence = crowd_rang = 0;
	for (size_t i = 0; i < CROWD; i++)
		alarm_init(&crowd[i], check_order);
	for (size_t i = 0; i < 8 * CROWD; i++) {
		struct alarm *one = &crowd[next_random(&seed) % CROWD];

		if (next_random(&seed) % 4)
			alarm_set(loop, one, next_random(&seed) % 20);
		else
			alarm_cancel(one);
	}
	for (size_t i = 0; i < CROWD; i++)
		left += alarm_is_set(&crowd[i]);
	assert_true(left > CROWD / 2 && left < CROWD);
	assert_int_equal(loop->alarms.count, left);
	loop_run(loop);
	assert_int_equal(crowd_rang, left);
	assert_true(loop->alarms.capacity <= 64); /* its memory is gone with it */
	free(crowd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(alarms_ring_once_in_the_order_they_are_due),
		TEST(an_alarm_that_is_set_again_rings_at_the_new_time_alone),
		TEST(an_alarm_that_is_to_ring_within_a_time_stays_as_it_is_if_it_does),
		TEST(a_cancelled_alarm_keeps_nothing),
		TEST(what_is_set_while_others_ring_waits_for_the_next_turn),
		TEST(the_loop_does_not_go_on_for_an_idle_alarm),
		TEST(an_alarm_may_be_set_to_call_something_else),
		TEST(an_alarm_may_free_itself),
		TEST(a_crowd_that_is_set_moved_and_cancelled_at_random_keeps_its_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
