/* Lookups over two loops: the sources' and a worker's. Everything runs on one thread, loop by
 * loop. */
#include "proxy/limits.h"
#include "proxy/sources/lookup.h"
#include "tests/support/cmocka.h"

struct lab {
	struct loop main, worker;
	struct lookups *lookups;
	struct source first, second;
	struct lookup *at_first, *at_second; /* the last one asked */
	unsigned first_asked, second_asked;
};

struct request {
	struct lookup_waiter waiter;
	unsigned answers;
	enum lookup_answer answer;
	struct request *cancels; /* another one, when the answer comes */
};

static struct lab lab;

static void ask_first(struct source *source, struct lookup *lookup)
{
	(void)source;
	lab.at_first = lookup;
	lab.first_asked++;
}

static void ask_second(struct source *source, struct lookup *lookup)
{
	(void)source;
	lab.at_second = lookup;
	lab.second_asked++;
}

static void on_answer(struct lookup_waiter *waiter, enum lookup_answer answer)
{
	struct request *request = container_of(waiter, struct request, waiter);

	request->answers++;
	request->answer = answer;
	if (request->cancels)
		lookup_cancel(&request->cancels->waiter);
}

static void turn(struct loop *loop)
{
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	uv_run(&loop->uv, UV_RUN_NOWAIT);
}

static void open_lab(void)
{
	memset(&lab, 0, sizeof(lab));
	loop_init(&lab.main);
	loop_init(&lab.worker);
	lab.lookups = lookups_open(&lab.main);
	lab.first.ask = ask_first;
	lab.second.ask = ask_second;
	assert_false(lookups_have_source(lab.lookups));
	lookups_add(lab.lookups, &lab.first);
	lookups_add(lab.lookups, &lab.second);
	assert_true(lookups_have_source(lab.lookups));
}

static void close_lab(void)
{
	loop_run(&lab.worker);
	loop_fini(&lab.worker);
	lookups_close(lab.lookups);
	loop_run(&lab.main);
	loop_fini(&lab.main);
}

/* As one more of a client that waits for so many already. */
static void ask_as(struct request *request, const char *id, size_t of_client)
{
	*request = (struct request){.waiter = {.on_answer = on_answer, .of_client = of_client}};
	lookup_ask(lab.lookups, &lab.worker, str_of(id), &request->waiter);
}

static void ask(struct request *request, const char *id)
{
	ask_as(request, id, 0);
}

static void assert_answer(const struct request *request, enum lookup_answer answer)
{
	assert_int_equal(request->answers, 1);
	assert_int_equal(request->answer, answer);
}

static void sources_are_asked_in_order(void **state)
{
	struct request request;

	(void)state;
	open_lab();
	ask(&request, "abc");
	turn(&lab.main);
	assert_string_equal(lab.at_first->id, "abc");
	assert_int_equal(lab.second_asked, 0);
	lookup_answer(lab.at_first, LOOKUP_ABSENT);
	assert_int_equal(lab.second_asked, 1);
	lookup_answer(lab.at_second, LOOKUP_FOUND);
	assert_int_equal(request.answers, 0); /* never from inside */
	turn(&lab.worker);
	assert_answer(&request, LOOKUP_FOUND);
	assert_int_equal(lookups_count(lab.lookups, LOOKUP_FOUND), 1);
	close_lab();
}

/* contract/proxy.md S1: "nobody knows" and "no such sandbox" are two answers. */
static void s001_one_that_cannot_say_makes_it_unknown(void **state)
{
	struct request request;

	(void)state;
	open_lab();
	ask(&request, "abc");
	turn(&lab.main);
	lookup_answer(lab.at_first, LOOKUP_UNAVAILABLE);
	lookup_answer(lab.at_second, LOOKUP_ABSENT);
	turn(&lab.worker);
	assert_answer(&request, LOOKUP_UNAVAILABLE);
	ask(&request, "abc");
	turn(&lab.main);
	lookup_answer(lab.at_first, LOOKUP_UNAVAILABLE);
	lookup_answer(lab.at_second, LOOKUP_FOUND);
	turn(&lab.worker);
	assert_answer(&request, LOOKUP_FOUND);
	ask(&request, "abc");
	turn(&lab.main);
	lookup_answer(lab.at_first, LOOKUP_ABSENT);
	lookup_answer(lab.at_second, LOOKUP_ABSENT);
	turn(&lab.worker);
	assert_answer(&request, LOOKUP_ABSENT);
	close_lab();
}

static void one_question_and_a_second_round_for_who_came_late(void **state)
{
	struct request early[10], late[10], other;
	struct lookup *abc;

	(void)state;
	open_lab();
	for (size_t i = 0; i < 10; i++)
		ask(&early[i], "abc");
	turn(&lab.main);
	assert_int_equal(lab.first_asked, 1);
	abc = lab.at_first;
	for (size_t i = 0; i < 10; i++)
		ask(&late[i], "abc");
	ask(&other, "other");
	turn(&lab.main);
	assert_int_equal(lab.first_asked, 2);
	assert_string_equal(lab.at_first->id, "other");
	lookup_answer(lab.at_first, LOOKUP_FOUND);
	lookup_answer(abc, LOOKUP_ABSENT);
	lookup_answer(lab.at_second, LOOKUP_ABSENT);
	turn(&lab.worker);
	assert_answer(&other, LOOKUP_FOUND);
	for (size_t i = 0; i < 10; i++) {
		assert_answer(&early[i], LOOKUP_ABSENT);
		assert_int_equal(late[i].answers, 0);
	}
	turn(&lab.main);
	assert_int_equal(lab.first_asked, 3);
	lookup_answer(lab.at_first, LOOKUP_FOUND);
	turn(&lab.worker);
	for (size_t i = 0; i < 10; i++)
		assert_answer(&late[i], LOOKUP_FOUND);
	close_lab();
}

/* What was found is found for those who came late, too. */
static void found_is_for_all(void **state)
{
	struct request early, late;

	(void)state;
	open_lab();
	ask(&early, "abc");
	turn(&lab.main);
	ask(&late, "abc");
	lookup_answer(lab.at_first, LOOKUP_FOUND);
	turn(&lab.worker);
	assert_answer(&early, LOOKUP_FOUND);
	assert_answer(&late, LOOKUP_FOUND);
	turn(&lab.main);
	assert_int_equal(lab.first_asked, 1);
	close_lab();
}

/* contract/proxy.md S20: at every step of the way. */
static void s020_who_leaves_is_not_answered(void **state)
{
	struct request request, other;

	(void)state;
	open_lab();
	request = (struct request){0};
	lookup_cancel(&request.waiter); /* who has never asked, as where there is no source */
	ask(&request, "abc");
	lookup_cancel(&request.waiter);
	lookup_cancel(&request.waiter);
	turn(&lab.main);
	assert_int_equal(lab.first_asked, 0);
	ask(&request, "abc");
	turn(&lab.main);
	lookup_cancel(&request.waiter);
	lookup_answer(lab.at_first, LOOKUP_FOUND);
	ask(&request, "abc");
	turn(&lab.main);
	lookup_answer(lab.at_first, LOOKUP_FOUND);
	lookup_cancel(&request.waiter); /* answered, not yet told */
	turn(&lab.worker);
	assert_int_equal(request.answers, 0);
	/* By one whose answer comes at the same time. */
	ask(&request, "abc");
	ask(&other, "abc");
	request.cancels = &other;
	turn(&lab.main);
	lookup_answer(lab.at_first, LOOKUP_FOUND);
	turn(&lab.worker);
	assert_answer(&request, LOOKUP_FOUND);
	assert_int_equal(other.answers, 0);
	close_lab();
}

static void numbers_are_bounded(void **state)
{
	struct request *requests = xcalloc(PROXY_LOOKUPS_MAX + 1, sizeof(*requests));
	struct request *same = xcalloc(PROXY_LOOKUP_WAITERS_MAX, sizeof(*same));
	size_t overloaded = 0;
	char id[16];

	(void)state;
	open_lab();
	for (size_t i = 0; i <= PROXY_LOOKUPS_MAX; i++) {
		snprintf(id, sizeof(id), "i%zu", i);
		ask(&requests[i], id);
	}
	turn(&lab.worker);
	assert_answer(&requests[PROXY_LOOKUPS_MAX], LOOKUP_OVERLOADED);
	for (size_t i = 0; i < PROXY_LOOKUP_WAITERS_MAX; i++)
		ask(&same[i], "i5");
	turn(&lab.worker);
	for (size_t i = 0; i < PROXY_LOOKUP_WAITERS_MAX; i++)
		overloaded += same[i].answers == 1 && same[i].answer == LOOKUP_OVERLOADED;
	assert_int_equal(overloaded, PROXY_LOOKUPS_MAX);
	for (size_t i = 0; i < PROXY_LOOKUPS_MAX; i++)
		lookup_cancel(&requests[i].waiter);
	for (size_t i = 0; i < PROXY_LOOKUP_WAITERS_MAX; i++)
		lookup_cancel(&same[i].waiter);
	close_lab();
	free(requests);
	free(same);
}

/* A client that has asked about many asks about no more, though others may; and still waits for
 * what others ask. */
static void case_181_one_client_leaves_some_for_others(void **state)
{
	struct request *requests = xcalloc(PROXY_LOOKUPS_MAX, sizeof(*requests));
	struct request other = {0}, same = {0};
	size_t answered = 0;
	char id[16];

	(void)state;
	open_lab();
	for (size_t i = 0; i < PROXY_LOOKUPS_MAX; i++) {
		snprintf(id, sizeof(id), "i%zu", i);
		ask_as(&requests[i], id, i);
	}
	ask(&other, "other");
	ask_as(&same, "other", PROXY_LOOKUPS_MAX);
	turn(&lab.worker);
	for (size_t i = 0; i < PROXY_LOOKUPS_MAX; i++)
		answered += requests[i].answers == 1 && requests[i].answer == LOOKUP_OVERLOADED;
	assert_in_range(answered, PROXY_LOOKUPS_MAX / 3 - 1, PROXY_LOOKUPS_MAX / 3 + 1);
	assert_int_equal(other.answers, 0);
	assert_int_equal(same.answers, 0);
	for (size_t i = 0; i < PROXY_LOOKUPS_MAX; i++)
		lookup_cancel(&requests[i].waiter);
	lookup_cancel(&other.waiter);
	lookup_cancel(&same.waiter);
	close_lab();
	free(requests);
}

static struct stream_peer client;
static unsigned over;

static void on_over(struct stream_peer *peer)
{
	assert_ptr_equal(peer, &client);
	over++;
}

static void ask_for_client(struct request *request, const char *id)
{
	*request = (struct request){
		.waiter = {.on_answer = on_answer, .client = &client, .on_over = on_over}};
	lookup_ask(lab.lookups, &lab.worker, str_of(id), &request->waiter);
}

/* Else whoever asks for ids that nobody knows, and leaves, keeps all the room without a count. */
static void case_181_what_a_client_has_left_behind_is_still_its_own(void **state)
{
	struct request request, other;

	(void)state;
	open_lab();
	over = 0;
	/* No source has been asked yet: nothing is left. */
	ask_for_client(&request, "abc");
	assert_false(lookup_cancel(&request.waiter));
	turn(&lab.main);
	assert_int_equal(lab.first_asked, 0);
	/* A source is: until it has answered. */
	ask_for_client(&request, "abc");
	turn(&lab.main);
	assert_int_equal(lab.first_asked, 1);
	assert_true(lookup_cancel(&request.waiter));
	assert_false(lookup_cancel(&request.waiter));
	assert_int_equal(over, 0);
	/* Once, also where others join and leave. */
	ask_for_client(&other, "abc");
	assert_false(lookup_cancel(&other.waiter));
	lookup_answer(lab.at_first, LOOKUP_ABSENT);
	assert_int_equal(over, 0);
	lookup_answer(lab.at_second, LOOKUP_ABSENT);
	assert_int_equal(over, 1);
	/* Somebody else waits for it: it is no longer this client's alone. */
	ask_for_client(&request, "abc");
	ask(&other, "abc");
	turn(&lab.main);
	assert_false(lookup_cancel(&request.waiter));
	lookup_answer(lab.at_first, LOOKUP_FOUND);
	turn(&lab.worker);
	assert_answer(&other, LOOKUP_FOUND);
	assert_int_equal(over, 1);
	/* One that has been left, and waits to be asked again for others who have left, too. */
	ask_for_client(&request, "abc");
	turn(&lab.main);
	assert_true(lookup_cancel(&request.waiter));
	ask_for_client(&other, "abc");
	lookup_answer(lab.at_first, LOOKUP_ABSENT);
	lookup_answer(lab.at_second, LOOKUP_ABSENT);
	assert_int_equal(over, 1);
	assert_false(lookup_cancel(&other.waiter));
	assert_int_equal(over, 2);
	turn(&lab.main);
	assert_int_equal(lab.first_asked, 3);
	close_lab();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sources_are_asked_in_order),
		cmocka_unit_test(s001_one_that_cannot_say_makes_it_unknown),
		cmocka_unit_test(one_question_and_a_second_round_for_who_came_late),
		cmocka_unit_test(found_is_for_all),
		cmocka_unit_test(s020_who_leaves_is_not_answered),
		cmocka_unit_test(numbers_are_bounded),
		cmocka_unit_test(case_181_one_client_leaves_some_for_others),
		cmocka_unit_test(case_181_what_a_client_has_left_behind_is_still_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
