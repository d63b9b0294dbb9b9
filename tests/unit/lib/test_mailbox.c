/* Messages from any thread to a loop's: which are delivered, in which order, and how they end. */
#include <stdatomic.h>
#include <unistd.h>

#include "lib/loop.h"
#include "lib/thread.h"
#include "tests/support/cmocka.h"

#define POSTERS 3
#define CROWD 2000
#define ROUNDS 2000

struct word {
	struct message message;
	char name;
	int again; /* how often it posts itself anew when it is delivered */
	struct word *closes; /* then, itself included */
	int value; /* what the poster has written */
};

static char order[64];
static size_t delivered;

static void on_word(struct message *message)
{
	struct word *word = container_of(message, struct word, message);

	if (delivered < sizeof(order) - 1)
		order[delivered] = word->name;
	delivered++;
	if (word->again-- > 0)
		message_post(message);
	if (word->closes)
		message_close(&word->closes->message);
}

static void open_word(struct word *word, struct loop *loop, char name)
{
	*word = (struct word){.name = name};
	message_open(&word->message, loop, on_word);
}

static int setup(void **state)
{
	struct loop *loop = xcalloc(1, sizeof(*loop));

	alarm(120);
	loop_init(loop);
	memset(order, 0, sizeof(order));
	delivered = 0;
	*state = loop;
	return 0;
}

static int teardown(void **state)
{
	loop_fini(*state);
	free(*state);
	return 0;
}

static void messages_are_delivered_in_the_order_of_posting(void **state)
{
	struct loop *loop = *state;
	struct word a, b, c;

	open_word(&a, loop, 'a');
	open_word(&b, loop, 'b');
	open_word(&c, loop, 'c');
	message_post(&b.message);
	message_post(&c.message);
	message_post(&a.message);
	assert_string_equal(order, ""); /* with no caller below */
	c.closes = &c;
	a.closes = &a;
	b.closes = &b;
	loop_run(loop);
	assert_string_equal(order, "bca");
}

static void a_message_that_waits_is_not_posted_twice(void **state)
{
	struct loop *loop = *state;
	struct word a;

	open_word(&a, loop, 'a');
	message_post(&a.message);
	message_post(&a.message);
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	assert_string_equal(order, "a");
	message_post(&a.message); /* it may go again now */
	a.closes = &a;
	loop_run(loop);
	assert_string_equal(order, "aa");
}

static void what_is_posted_while_others_are_delivered_waits_for_the_next_turn(void **state)
{
	struct loop *loop = *state;
	struct word a, b;

	open_word(&a, loop, 'a');
	open_word(&b, loop, 'b');
	a.again = 2;
	message_post(&a.message);
	message_post(&b.message);
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	assert_string_equal(order, "ab");
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	assert_string_equal(order, "aba");
	b.closes = &a;
	message_close(&b.message);
	a.closes = &a;
	loop_run(loop);
	assert_string_equal(order, "abaa");
}

static void an_open_message_keeps_the_loop_and_a_closed_one_does_not(void **state)
{
	struct loop *loop = *state;
	struct word a;

	assert_true(loop_is_empty(loop));
	open_word(&a, loop, 'a');
	assert_false(loop_is_empty(loop));
	assert_true(uv_loop_alive(&loop->uv));
	message_close(&a.message);
	message_close(&a.message); /* nothing happens */
	assert_true(loop_is_empty(loop));
	assert_false(uv_loop_alive(&loop->uv));
	message_post(&a.message); /* nor here */
	loop_run(loop);
	assert_string_equal(order, "");
}

static void a_closed_message_is_not_delivered_any_more(void **state)
{
	struct loop *loop = *state;
	struct word a, b, c;

	open_word(&a, loop, 'a');
	open_word(&b, loop, 'b');
	open_word(&c, loop, 'c');
	message_post(&a.message);
	message_post(&b.message);
	message_post(&c.message);
	message_close(&a.message); /* before the loop has seen any of them, ... */
	message_post(&a.message); /* (nor is it posted again) */
	b.closes = &c; /* ... and by one that is delivered before */
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	assert_string_equal(order, "b");
	message_close(&b.message);
	loop_run(loop);
	assert_string_equal(order, "b");
}

static void free_itself(struct message *message)
{
	struct word *word = container_of(message, struct word, message);

	delivered++;
	message_close(message);
	free(word);
}

static void a_message_may_free_itself(void **state)
{
	struct loop *loop = *state;
	struct word *a = xcalloc(1, sizeof(*a));

	message_open(&a->message, loop, free_itself);
	message_post(&a->message);
	loop_run(loop);
	assert_int_equal(delivered, 1);
}

/* ---- other threads ---- */

struct poster {
	pthread_t thread;
	struct word words[CROWD];
	size_t next; /* to be delivered */
};

static struct poster posters[POSTERS];

static void *post_all(void *user)
{
	struct poster *poster = user;

	for (int i = 0; i < CROWD; i++) {
		poster->words[i].value = i + 1;
		message_post(&poster->words[i].message);
	}
	return NULL;
}

static void on_word_of_poster(struct message *message)
{
	struct word *word = container_of(message, struct word, message);
	struct poster *poster = &posters[(size_t)word->name];

	assert_ptr_equal(word, &poster->words[poster->next]);
	assert_int_equal(word->value, poster->next + 1);
	poster->next++;
	message_close(message);
}

static void several_threads_post_and_each_is_heard_in_its_order(void **state)
{
	struct loop *loop = *state;

	memset(posters, 0, sizeof(posters));
	for (size_t i = 0; i < POSTERS; i++) {
		for (size_t j = 0; j < CROWD; j++) {
			posters[i].words[j].name = (char)i;
			message_open(&posters[i].words[j].message, loop, on_word_of_poster);
		}
		assert_int_equal(thread_start(&posters[i].thread, 0, post_all, &posters[i]), 0);
	}
	loop_run(loop); /* until all are closed */
	for (size_t i = 0; i < POSTERS; i++) {
		assert_int_equal(posters[i].next, CROWD);
		pthread_join(posters[i].thread, NULL);
	}
}

static struct {
	struct message poke;
	atomic_int changes; /* that somebody has made */
	int seen;
	atomic_bool is_over;
} board;

static void *change(void *user)
{
	(void)user;
	for (int i = 0; i < CROWD; i++) {
		atomic_fetch_add_explicit(&board.changes, 1, memory_order_relaxed);
		message_post(&board.poke);
	}
	return NULL;
}

static void on_poke(struct message *poke)
{
	board.seen = atomic_load_explicit(&board.changes, memory_order_relaxed);
	if (board.seen == POSTERS * CROWD)
		message_close(poke);
}

static void no_poke_is_lost_that_follows_a_change(void **state)
{
	struct loop *loop = *state;
	pthread_t threads[POSTERS];

	memset(&board, 0, sizeof(board));
	message_open(&board.poke, loop, on_poke);
	for (size_t i = 0; i < POSTERS; i++)
		assert_int_equal(thread_start(&threads[i], 0, change, NULL), 0);
	loop_run(loop);
	assert_int_equal(board.seen, POSTERS * CROWD);
	for (size_t i = 0; i < POSTERS; i++)
		pthread_join(threads[i], NULL);
}

static void *poke_until_it_is_over(void *user)
{
	(void)user;
	while (!atomic_load(&board.is_over))
		message_post(&board.poke);
	return NULL;
}

static void on_poke_to_close(struct message *poke)
{
	if (++board.seen == ROUNDS)
		message_close(poke);
}

static void threads_may_post_while_their_receiver_closes(void **state)
{
	struct loop *loop = *state;
	pthread_t threads[POSTERS];
	size_t i;

	memset(&board, 0, sizeof(board));
	message_open(&board.poke, loop, on_poke_to_close);
	for (i = 0; i < POSTERS; i++)
		assert_int_equal(thread_start(&threads[i], 0, poke_until_it_is_over, NULL), 0);
	loop_run(loop);
	assert_int_equal(board.seen, ROUNDS);
	assert_true(loop_is_empty(loop));
	loop_run(loop); /* they still post, and nobody hears of it */
	assert_int_equal(board.seen, ROUNDS);
	atomic_store(&board.is_over, true);
	for (i = 0; i < POSTERS; i++)
		pthread_join(threads[i], NULL);
}

/* ---- replies ---- */

struct question {
	struct message request, reply; /* of the answering loop, of the asking one */
	int number, answer; /* each belongs to the side that is at work */
};

static struct {
	struct loop loop;
	pthread_t thread;
	struct message stop;
	struct question question;
} answering;

static void on_request(struct message *request)
{
	struct question *question = container_of(request, struct question, request);

	question->answer = 2 * question->number;
	message_post(&question->reply);
}

static void on_stop(struct message *stop)
{
	message_close(&answering.question.request);
	message_close(stop);
}

static void on_reply(struct message *reply)
{
	struct question *question = container_of(reply, struct question, reply);

	assert_int_equal(question->answer, 2 * question->number);
	if (question->number++ < ROUNDS) {
		message_post(&question->request);
		return;
	}
	message_close(reply);
	message_post(&answering.stop);
}

static void *answer(void *user)
{
	(void)user;
	loop_run(&answering.loop);
	return NULL;
}

static void a_reply_goes_to_the_loop_that_asked(void **state)
{
	struct loop *loop = *state;

	memset(&answering, 0, sizeof(answering));
	loop_init(&answering.loop);
	message_open(&answering.stop, &answering.loop, on_stop);
	message_open(&answering.question.request, &answering.loop, on_request);
	message_open(&answering.question.reply, loop, on_reply);
	assert_int_equal(thread_start(&answering.thread, 0, answer, NULL), 0);
	message_post(&answering.question.request);
	loop_run(loop);
	assert_int_equal(answering.question.number, ROUNDS + 1);
	pthread_join(answering.thread, NULL);
	loop_fini(&answering.loop);
}

/* The receiver ends its loop as soon as it has heard the last word; the poster may be in the middle
 * of its call still. */
static void *post_once(void *user)
{
	message_post(user);
	return NULL;
}

static void a_loop_may_end_at_once_after_the_last_message(void **state)
{
	(void)state;
	for (int i = 0; i < 200; i++) {
		struct loop *loop = xcalloc(1, sizeof(*loop));
		struct word *word = xcalloc(1, sizeof(*word));
		pthread_t thread;

		loop_init(loop);
		message_open(&word->message, loop, free_itself);
		assert_int_equal(thread_start(&thread, 0, post_once, &word->message), 0);
		loop_run(loop);
		loop_fini(loop);
		free(loop);
		pthread_join(thread, NULL);
	}
	assert_int_equal(delivered, 200);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(messages_are_delivered_in_the_order_of_posting),
		TEST(a_message_that_waits_is_not_posted_twice),
		TEST(what_is_posted_while_others_are_delivered_waits_for_the_next_turn),
		TEST(an_open_message_keeps_the_loop_and_a_closed_one_does_not),
		TEST(a_closed_message_is_not_delivered_any_more),
		TEST(a_message_may_free_itself),
		TEST(several_threads_post_and_each_is_heard_in_its_order),
		TEST(no_poke_is_lost_that_follows_a_change),
		TEST(threads_may_post_while_their_receiver_closes),
		TEST(a_reply_goes_to_the_loop_that_asked),
		TEST(a_loop_may_end_at_once_after_the_last_message),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
