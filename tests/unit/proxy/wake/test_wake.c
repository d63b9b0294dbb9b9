#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/limits.h"
#include "proxy/wake/wake.h"
#include "tests/support/turn.h"

/* One loop plays worker and main thread; the waker is the test itself. */
struct bench {
	struct loop loop;
	struct catalog *catalog;
	struct wake *wake;
	struct waker waker;
	struct wake_call *calls[PROXY_WAKE_CALLS_MAX + 8];
	size_t call_count, cancelled, cancelled_at_end;
	uv_timer_t alarm; /* nothing may take for ever */
};

struct client {
	struct wake_waiter waiter;
	struct wake_verdict verdict;
	unsigned told;
	struct client *leaves_too; /* when this one is told */
};

static void start(struct waker *waker, struct wake_call *call)
{
	struct bench *b = container_of(waker, struct bench, waker);

	b->calls[b->call_count++] = call;
}

static void cancel(struct waker *waker, struct wake_call *call)
{
	(void)call;
	container_of(waker, struct bench, waker)->cancelled++;
}

static void on_alarm(uv_timer_t *timer)
{
	(void)timer;
	abort();
}

static int set_up(void **state)
{
	struct bench *b = xcalloc(1, sizeof(*b));
	struct wake_options options = {.waker = &b->waker, .timeout_ms = 60000, .waiters_max = 3};

	b->waker = (struct waker){start, cancel};
	loop_init(&b->loop);
	b->catalog = catalog_new(1, 4096, 64);
	b->wake = wake_open(&b->loop, b->catalog, &options);
	uv_timer_init(&b->loop.uv, &b->alarm);
	uv_timer_start(&b->alarm, on_alarm, TURN_DEADLINE_MS, 0);
	*state = b;
	return 0;
}

static int tear_down(void **state)
{
	struct bench *b = *state;

	assert_int_equal(wake_waiting(b->wake), 0);
	wake_close(b->wake);
	assert_int_equal(b->cancelled, b->cancelled_at_end);
	uv_close((uv_handle_t *)&b->alarm, NULL);
	loop_run(&b->loop);
	loop_fini(&b->loop);
	catalog_free(b->catalog);
	free(b);
	return 0;
}

static void on_woken(struct wake_waiter *waiter, const struct wake_verdict *verdict)
{
	struct client *c = container_of(waiter, struct client, waiter);

	c->told++;
	c->verdict = *verdict;
	if (c->leaves_too)
		wake_leave(&c->leaves_too->waiter);
}

static struct catalog_record *put(struct bench *b, const char *id, enum sandbox_state sandbox_state)
{
	struct catalog_record *record;
	struct sandbox_entry entry;
	struct err err;

	sandbox_entry_init(&entry, id);
	entry.state = sandbox_state;
	entry.address = "10.0.0.1";
	entry.auto_resume = true;
	assert_int_equal(catalog_put(b->catalog, &entry, "", &record, &err), 0);
	return record;
}

static int join_record(struct wake *wake, struct loop *loop, struct client *c,
		       const struct catalog_record *record)
{
	struct wake_request request;

	wake_request_init(&request, record, 80);
	return wake_join(wake, loop, &c->waiter, &request, record->entry.state);
}

static int join(struct bench *b, struct client *c, const char *id, enum sandbox_state sandbox_state)
{
	struct catalog_record *record;
	int status;

	if (catalog_find(b->catalog, str_of(id), &record) < 0)
		record = put(b, id, sandbox_state);
	c->waiter.on_woken = on_woken;
	status = join_record(b->wake, &b->loop, c, record);
	catalog_record_release(record);
	return status;
}

static void turn(struct bench *b)
{
	for (int i = 0; i < 5; i++)
		uv_run(&b->loop.uv, UV_RUN_NOWAIT);
}

static void finish(struct bench *b, size_t call, enum wake_outcome outcome, const char *text)
{
	struct wake_verdict verdict = {.outcome = outcome};

	snprintf(verdict.text, sizeof(verdict.text), "%s", text);
	wake_call_finish(b->calls[call], &verdict);
	turn(b);
}

static void s026_one_flight_whose_end_all_are_told(void **state)
{
	struct client clients[4] = {0};
	struct bench *b = *state;

	for (size_t i = 0; i < 3; i++)
		assert_int_equal(join(b, &clients[i], "abc", SANDBOX_PAUSED), 0);
	assert_int_equal(join(b, &clients[3], "abc", SANDBOX_PAUSED), -EBUSY);
	assert_int_equal(wake_waiting(b->wake), 3);
	turn(b);
	assert_int_equal(b->call_count, 1);
	assert_string_equal(b->calls[0]->request.id, "abc");
	assert_int_equal(b->calls[0]->request.port, 80);
	finish(b, 0, WAKE_LIMITED, "no room");
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(clients[i].told, 1);
		assert_int_equal(clients[i].verdict.outcome, WAKE_LIMITED);
		assert_string_equal(clients[i].verdict.text, "no room");
	}
	/* The next one begins anew. */
	assert_int_equal(join(b, &clients[0], "abc", SANDBOX_PAUSED), 0);
	turn(b);
	assert_int_equal(b->call_count, 2);
	finish(b, 1, WAKE_DENIED, "");
	assert_int_equal(clients[0].told, 2);
}

static void s020_leaving_at_every_moment(void **state)
{
	struct client clients[3] = {0};
	struct bench *b = *state;

	wake_leave(&clients[0].waiter); /* never joined */
	/* Before the loop has looked: nobody is asked. */
	assert_int_equal(join(b, &clients[0], "abc", SANDBOX_PAUSED), 0);
	wake_leave(&clients[0].waiter);
	turn(b);
	assert_int_equal(b->call_count, 0);
	/* While the waker works: the call goes on, and others join it. */
	assert_int_equal(join(b, &clients[0], "abc", SANDBOX_PAUSED), 0);
	turn(b);
	wake_leave(&clients[0].waiter);
	wake_leave(&clients[0].waiter);
	turn(b);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(join(b, &clients[i], "abc", SANDBOX_PAUSED), 0);
	/* When the verdict is there and not yet told. */
	clients[0].leaves_too = &clients[2];
	finish(b, 0, WAKE_NOT_FOUND, "");
	assert_int_equal(b->call_count, 1);
	assert_int_equal(clients[0].told + clients[1].told, 2);
	assert_int_equal(clients[2].told, 0);
}

static void s028_the_waker_says_yes_and_the_catalog_follows(void **state)
{
	struct bench *b = *state;
	struct client client = {0};

	assert_int_equal(join(b, &client, "abc", SANDBOX_PAUSED), 0);
	turn(b);
	finish(b, 0, WAKE_LOOK_AGAIN, "");
	assert_int_equal(client.told, 0);
	catalog_record_release(put(b, "abc", SANDBOX_RESUMING));
	turn(b);
	assert_int_equal(client.told, 0);
	catalog_record_release(put(b, "abc", SANDBOX_RUNNING));
	turn(b);
	assert_int_equal(client.told, 1);
	assert_int_equal(client.verdict.outcome, WAKE_LOOK_AGAIN);
	assert_int_equal(b->call_count, 1);
}

static void s029_paused_again_after_the_answer(void **state)
{
	struct bench *b = *state;
	struct client client = {0};

	assert_int_equal(join(b, &client, "abc", SANDBOX_PAUSED), 0);
	turn(b);
	finish(b, 0, WAKE_LOOK_AGAIN, "");
	catalog_record_release(put(b, "abc", SANDBOX_PAUSED));
	turn(b);
	assert_int_equal(client.told,
			 1); /* who looks again finds it paused, and may ask once more */
	assert_int_equal(b->call_count, 1);
}

static void s032_removed_and_asked_for_nothing(void **state)
{
	struct bench *b = *state;
	struct client client = {0};
	struct err err;

	assert_int_equal(join(b, &client, "abc", SANDBOX_PAUSED), 0);
	turn(b);
	assert_int_equal(catalog_remove(b->catalog, STR("abc"), "", &err), 0);
	turn(b);
	assert_int_equal(client.told, 1);
	finish(b, 0, WAKE_DENIED, ""); /* nobody is left to care */
	assert_int_equal(client.told, 1);
}

static void unknown_ones_are_asked_about_by_credentials(void **state)
{
	struct wake_request request = {.id = "new", .port = 80, .is_unknown = true};
	struct client clients[3] = {0};
	struct bench *b = *state;

	for (size_t i = 0; i < 3; i++) {
		clients[i].waiter.on_woken = on_woken;
		snprintf(request.traffic_token, sizeof(request.traffic_token), "%s",
			 i < 2 ? "a" : "b");
		assert_int_equal(
			wake_join(b->wake, &b->loop, &clients[i].waiter, &request, SANDBOX_PAUSED),
			0);
	}
	turn(b);
	assert_int_equal(b->call_count, 2);
	assert_string_equal(b->calls[0]->request.traffic_token, "a");
	finish(b, 0, WAKE_DENIED, "");
	assert_int_equal(clients[0].told + clients[1].told, 2);
	assert_int_equal(clients[2].told, 0); /* its token may be right */
	finish(b, 1, WAKE_LOOK_AGAIN, "");
	assert_int_equal(clients[2].told, 1);
	/* It becomes known while the waker is at it. */
	assert_int_equal(wake_join(b->wake, &b->loop, &clients[0].waiter, &request, SANDBOX_PAUSED),
			 0);
	turn(b);
	catalog_record_release(put(b, "new", SANDBOX_PAUSED));
	turn(b);
	assert_int_equal(clients[0].told, 2);
	finish(b, 2, WAKE_DENIED, "");
}

static void bounds_on_sandboxes_and_calls(void **state)
{
	static struct client clients[PROXY_WAKE_FLIGHTS_MAX + 1];
	struct bench *b = *state;
	char id[16];

	for (size_t i = 0; i <= PROXY_WAKE_FLIGHTS_MAX; i++) {
		snprintf(id, sizeof(id), "s%zu", i);
		assert_int_equal(join(b, &clients[i], id, SANDBOX_PAUSED),
				 i < PROXY_WAKE_FLIGHTS_MAX ? 0 : -EAGAIN);
	}
	turn(b);
	assert_int_equal(b->call_count, PROXY_WAKE_CALLS_MAX);
	finish(b, 0, WAKE_NOT_FOUND, "");
	assert_int_equal(b->call_count, PROXY_WAKE_CALLS_MAX + 1);
	for (size_t i = 0; i < PROXY_WAKE_FLIGHTS_MAX; i++)
		wake_leave(&clients[i].waiter);
	turn(b);
	b->cancelled_at_end = PROXY_WAKE_CALLS_MAX;
}

static void case_181_one_client_leaves_some_for_others(void **state)
{
	static struct client clients[PROXY_WAKE_FLIGHTS_MAX], other, same;
	struct bench *b = *state;
	size_t joined = 0;
	char id[16];

	for (size_t i = 0; i < PROXY_WAKE_FLIGHTS_MAX; i++) {
		snprintf(id, sizeof(id), "s%zu", i);
		clients[i].waiter.of_client = i;
		joined += join(b, &clients[i], id, SANDBOX_PAUSED) == 0;
	}
	assert_in_range(joined, PROXY_WAKE_FLIGHTS_MAX * 2 / 3, PROXY_WAKE_FLIGHTS_MAX * 2 / 3 + 1);
	assert_int_equal(join(b, &other, "other", SANDBOX_PAUSED), 0);
	same.waiter.of_client = PROXY_WAKE_FLIGHTS_MAX;
	assert_int_equal(join(b, &same, "other", SANDBOX_PAUSED), 0);
	turn(b);
	for (size_t i = 0; i < PROXY_WAKE_FLIGHTS_MAX; i++)
		wake_leave(&clients[i].waiter);
	wake_leave(&other.waiter);
	wake_leave(&same.waiter);
	turn(b);
	b->cancelled_at_end = PROXY_WAKE_CALLS_MAX;
}

static void made_up_ids_leave_room_for_known_ones(void **state)
{
	static struct client clients[PROXY_WAKE_UNKNOWN_FLIGHTS_MAX + 1], known;
	struct wake_request request = {.port = 80, .is_unknown = true};
	struct bench *b = *state;

	for (size_t i = 0; i <= PROXY_WAKE_UNKNOWN_FLIGHTS_MAX; i++) {
		snprintf(request.id, sizeof(request.id), "u%zu", i);
		clients[i].waiter.on_woken = on_woken;
		assert_int_equal(
			wake_join(b->wake, &b->loop, &clients[i].waiter, &request, SANDBOX_PAUSED),
			i < PROXY_WAKE_UNKNOWN_FLIGHTS_MAX ? 0 : -EAGAIN);
	}
	turn(b);
	assert_int_equal(b->call_count, PROXY_WAKE_UNKNOWN_CALLS_MAX);
	assert_int_equal(join(b, &known, "abc", SANDBOX_PAUSED), 0);
	turn(b);
	assert_int_equal(b->call_count, PROXY_WAKE_UNKNOWN_CALLS_MAX + 1);
	finish(b, PROXY_WAKE_UNKNOWN_CALLS_MAX, WAKE_DENIED, "");
	assert_int_equal(known.told, 1);
	finish(b, 0, WAKE_NOT_FOUND, "");
	assert_int_equal(clients[0].told, 1);
	assert_int_equal(b->call_count, PROXY_WAKE_UNKNOWN_CALLS_MAX + 2);
	for (size_t i = 1; i < PROXY_WAKE_UNKNOWN_FLIGHTS_MAX; i++)
		wake_leave(&clients[i].waiter);
	turn(b);
	b->cancelled_at_end = PROXY_WAKE_UNKNOWN_CALLS_MAX;
}

static void without_a_waker_only_changes_are_waited_for(void **state)
{
	struct bench *b = *state;
	struct wake_options options = {.timeout_ms = 1, .waiters_max = 3};
	struct wake *wake = wake_open(&b->loop, b->catalog, &options);
	struct client client = {0};
	struct catalog_record *record = put(b, "abc", SANDBOX_PAUSED);

	assert_int_equal(join_record(NULL, &b->loop, &client, record), -ENOTSUP);
	client.waiter.on_woken = on_woken;
	assert_int_equal(join_record(wake, &b->loop, &client, record), -ENOTSUP);
	catalog_record_release(record);
	record = put(b, "abc", SANDBOX_RESUMING);
	assert_int_equal(join_record(wake, &b->loop, &client, record), 0);
	catalog_record_release(record);
	TURN_UNTIL(&b->loop, client.told);
	assert_int_equal(client.verdict.outcome, WAKE_TRANSITIONING);
	wake_close(wake);
	turn(b);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(s026_one_flight_whose_end_all_are_told),
		TEST(s020_leaving_at_every_moment),
		TEST(s028_the_waker_says_yes_and_the_catalog_follows),
		TEST(s029_paused_again_after_the_answer),
		TEST(s032_removed_and_asked_for_nothing),
		TEST(unknown_ones_are_asked_about_by_credentials),
		TEST(bounds_on_sandboxes_and_calls),
		TEST(case_181_one_client_leaves_some_for_others),
		TEST(made_up_ids_leave_room_for_known_ones),
		TEST(without_a_waker_only_changes_are_waited_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
