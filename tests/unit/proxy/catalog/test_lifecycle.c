#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <cmocka.h>

#include "proxy/catalog/lifecycle.h"

static struct lifecycle_activity activity_of(const struct lifecycle *l, uint64_t later_ms)
{
	struct lifecycle_activity activity;

	lifecycle_read_activity(l, l->began_ms + later_ms, &activity);
	return activity;
}

static void s030_workers_are_added_up(void **state)
{
	struct lifecycle *l = lifecycle_new(3, "");
	struct lifecycle_activity a;

	(void)state;
	assert_int_equal(strlen(l->id), 32);
	a = activity_of(l, 500);
	assert_int_equal(lifecycle_idle_ms(&a, TUNNEL_ACTIVITY_OPEN), 500); /* since it began */
	lifecycle_touch(&l->use[0].request_ms, l->began_ms + 100);
	lifecycle_touch(&l->use[2].request_ms, l->began_ms + 300);
	lifecycle_touch(&l->use[1].tunnel_ms, l->began_ms + 400);
	counter_add(&l->use[0].streams);
	counter_add(&l->use[1].streams);
	counter_add(&l->use[1].tunnels);
	a = activity_of(l, 1000);
	assert_int_equal(a.request_idle_ms, 700);
	assert_int_equal(a.tunnel_idle_ms, 600);
	assert_int_equal(a.streams, 2);
	assert_int_equal(a.tunnels, 1);
	assert_int_equal(lifecycle_idle_ms(&a, TUNNEL_ACTIVITY_NONE), 700);
	assert_int_equal(lifecycle_idle_ms(&a, TUNNEL_ACTIVITY_BYTES), 600);
	assert_int_equal(lifecycle_idle_ms(&a, TUNNEL_ACTIVITY_OPEN), 0);
	counter_add(&l->use[2].unanswered);
	a = activity_of(l, 1000);
	assert_int_equal(lifecycle_idle_ms(&a, TUNNEL_ACTIVITY_NONE), 0);
	lifecycle_release(l);
}

static void s033_a_clock_that_lags_makes_no_age(void **state)
{
	struct lifecycle *l = lifecycle_new(1, "given");
	struct lifecycle_activity a;

	(void)state;
	assert_string_equal(l->id, "given");
	lifecycle_touch(&l->use[0].request_ms, l->began_ms + 50);
	a = activity_of(l, 40);
	assert_int_equal(a.request_idle_ms, 0);
	lifecycle_read_activity(l, l->began_ms - 1, &a);
	assert_int_equal(a.tunnel_idle_ms, 0);
	lifecycle_release(l);
}

struct worker {
	struct lifecycle *lifecycle;
	_Atomic uint64_t
		begun; /* requests, one after the other; each ends at its number in milliseconds */
	atomic_bool over;
};

static void *serve_requests(void *user)
{
	struct worker *worker = user;
	struct lifecycle_use *use = &worker->lifecycle->use[0];

	for (uint64_t number = 1; !atomic_load(&worker->over); number++) {
		counter_add(&use->unanswered);
		atomic_store(&worker->begun, number);
		lifecycle_touch(&use->request_ms, worker->lifecycle->began_ms + number);
		lifecycle_close_use(&use->unanswered);
	}
	return NULL;
}

/* A host pauses what rests: the end of a long request, seen while the worker notes it, is no rest
 * since its beginning. */
static void s030_a_request_that_ends_just_now_is_no_long_rest(void **state)
{
	enum { READS = 3 * 1000 * 1000 };
	struct worker worker = {.lifecycle = lifecycle_new(1, "")};
	size_t wrong = 0;
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, serve_requests, &worker), 0);
	for (size_t i = 0; i < READS; i++) {
		uint64_t begun = atomic_load(&worker.begun);
		struct lifecycle_activity a = activity_of(worker.lifecycle, begun);

		/* Nobody waits: so that one is over. */
		wrong += a.unanswered == 0 && a.request_idle_ms > 0;
	}
	atomic_store(&worker.over, true);
	pthread_join(thread, NULL);
	assert_int_equal(wrong, 0);
	lifecycle_release(worker.lifecycle);
}

static void policies(void **state)
{
	enum tunnel_activity policy;

	(void)state;
	assert_int_equal(tunnel_activity_parse(STR("none"), &policy), 0);
	assert_int_equal(policy, TUNNEL_ACTIVITY_NONE);
	assert_int_equal(tunnel_activity_parse(STR("open"), &policy), 0);
	assert_int_equal(policy, TUNNEL_ACTIVITY_OPEN);
	assert_int_equal(tunnel_activity_parse(STR("bytes"), &policy), 0);
	assert_int_equal(policy, TUNNEL_ACTIVITY_BYTES);
	assert_true(tunnel_activity_parse(STR("Open"), &policy) < 0);
	assert_true(tunnel_activity_parse((struct str){0}, &policy) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(s030_workers_are_added_up),
		cmocka_unit_test(s033_a_clock_that_lags_makes_no_age),
		cmocka_unit_test(s030_a_request_that_ends_just_now_is_no_long_rest),
		cmocka_unit_test(policies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
