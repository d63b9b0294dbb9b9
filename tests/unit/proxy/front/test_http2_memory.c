/* Blocks of pages, folded and unfolded; sessions that rest, and everything that may wake one. */
#include <sys/mman.h>

#include "proxy/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/http2_lab.h"

#define PAGE_BYTES 4096
/* As nghttp2 1.52 asks for them. */
static const size_t usual_sizes[] = {2928, 1024, 1024, 4096, 16394};

struct block {
	struct http2_block block;
	nghttp2_mem memory;
	unsigned char *pieces[ARRAY_LENGTH(usual_sizes)];
};

static struct http2_pool *pool;

static int set_up_pool(void **state)
{
	(void)state;
	pool = http2_pool_new();
	return 0;
}

static int tear_down_pool(void **state)
{
	(void)state;
	http2_pool_free(pool);
	return 0;
}

static void open_block(struct block *b, struct http2_pool *from)
{
	http2_block_open(&b->block, from);
	b->memory = http2_block_memory(&b->block);
	for (size_t i = 0; i < ARRAY_LENGTH(usual_sizes); i++) {
		b->pieces[i] = i % 2 ? b->memory.calloc(1, usual_sizes[i], b->memory.mem_user_data)
				     : b->memory.malloc(usual_sizes[i], b->memory.mem_user_data);
		assert_non_null(b->pieces[i]);
		assert_int_equal((uintptr_t)b->pieces[i] % 16, 0);
	}
	http2_block_seal(&b->block);
}

static void close_block(struct block *b)
{
	for (size_t i = 0; i < ARRAY_LENGTH(usual_sizes); i++)
		b->memory.free(b->pieces[i], b->memory.mem_user_data);
	http2_block_close(&b->block);
}

static bool is_in_block(const struct block *b, const void *pointer)
{
	const char *p = pointer, *pages = b->block.pages;

	return pages && p >= pages && p < pages + b->block.used;
}

static size_t resident_pages(const struct block *b)
{
	unsigned char resident[16] = {0};
	size_t pages = (b->block.used + PAGE_BYTES - 1) / PAGE_BYTES, count = 0;

	assert_true(pages <= sizeof(resident));
	assert_int_equal(mincore(b->block.pages, pages * PAGE_BYTES, resident), 0);
	for (size_t i = 0; i < pages; i++)
		count += resident[i] & 1;
	return count;
}

static void what_a_session_begins_with_lies_in_its_block(void **state)
{
	struct block b;
	void *later;

	(void)state;
	open_block(&b, pool);
	for (size_t i = 0; i < ARRAY_LENGTH(usual_sizes); i++)
		assert_true(is_in_block(&b, b.pieces[i]));
	later = b.memory.malloc(1024, b.memory.mem_user_data);
	assert_false(is_in_block(&b, later));
	later = b.memory.realloc(later, 2048, b.memory.mem_user_data);
	assert_non_null(later);
	b.memory.free(later, b.memory.mem_user_data);
	close_block(&b);
}

static void every_byte_is_back_where_it_was(void **state)
{
	static unsigned char before[ARRAY_LENGTH(usual_sizes)][16394];
	struct block b;
	unsigned seed = 1, folded = 0;

	(void)state;
	open_block(&b, pool);
	for (int round = 0; round < 200; round++) {
		for (size_t i = 0; i < ARRAY_LENGTH(usual_sizes); i++) {
			unsigned char *piece = b.pieces[i];

			/* Now few, now many; the first and the last byte among them. */
			if (round % 20 == 0)
				memset(piece, 0, usual_sizes[i]);
			for (int change = 0; change < round % 20; change++) {
				seed = seed * 1103515245 + 12345;
				piece[(seed >> 8) % usual_sizes[i]] = (unsigned char)(seed >> 24);
			}
			piece[0] = (unsigned char)round;
			piece[usual_sizes[i] - 1] = (unsigned char)(round / 2);
			memcpy(before[i], piece, usual_sizes[i]);
		}
		if (http2_block_fold(&b.block)) {
			assert_int_equal(resident_pages(&b), 0);
			assert_false(http2_block_fold(&b.block));
			folded++;
		}
		http2_block_unfold(&b.block);
		http2_block_unfold(&b.block);
		for (size_t i = 0; i < ARRAY_LENGTH(usual_sizes); i++)
			assert_memory_equal(before[i], b.pieces[i], usual_sizes[i]);
	}
	assert_true(folded > 50 && folded < 200);
	close_block(&b);
}

static void a_block_full_of_something_is_not_folded(void **state)
{
	struct block b;

	(void)state;
	open_block(&b, pool);
	memset(b.pieces[4], 'x', HTTP2_FOLDED_BYTES_MAX);
	assert_false(http2_block_fold(&b.block));
	assert_int_equal(b.pieces[4][HTTP2_FOLDED_BYTES_MAX - 1], 'x');
	close_block(&b);
}

static void blocks_are_zeroed_for_the_next_one(void **state)
{
	struct block b;

	(void)state;
	for (int round = 0; round < 3; round++) {
		open_block(&b, pool);
		for (size_t i = 0; i < b.block.used; i++)
			assert_int_equal(b.block.pages[i], 0);
		for (size_t i = 0; i < ARRAY_LENGTH(usual_sizes); i++)
			memset(b.pieces[i], 'x', round == 1 ? 8 : usual_sizes[i]);
		/* One is closed while it is folded. */
		assert_int_equal(http2_block_fold(&b.block), round == 1);
		if (round == 1)
			http2_block_close(&b.block);
		else
			close_block(&b);
	}
}

static void many_blocks_do_not_meet(void **state)
{
	static struct block blocks[300];

	(void)state;
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < ARRAY_LENGTH(blocks); i++) {
			open_block(&blocks[i], pool);
			memset(blocks[i].pieces[0], (int)i, 200);
			memset(blocks[i].pieces[4], (int)i + 1, 200);
			assert_true(http2_block_fold(&blocks[i].block));
		}
		for (size_t i = 0; i < ARRAY_LENGTH(blocks); i++) {
			/* In another order than they were opened in. */
			size_t at = (i * 7 + (size_t)round) % ARRAY_LENGTH(blocks);

			http2_block_unfold(&blocks[at].block);
			assert_int_equal(blocks[at].pieces[0][199], (unsigned char)at);
			assert_int_equal(blocks[at].pieces[4][0], (unsigned char)(at + 1));
			close_block(&blocks[at]);
		}
	}
}

static void pieces_that_grow_or_find_no_room_come_from_malloc(void **state)
{
	struct http2_block block;
	nghttp2_mem memory;
	char *piece, *moved, *large, *small;

	(void)state;
	http2_block_open(&block, pool);
	memory = http2_block_memory(&block);
	piece = memory.realloc(NULL, 16394, memory.mem_user_data);
	memset(piece, 'a', 16394);
	large = memory.malloc(16394, memory.mem_user_data);
	small = memory.malloc(100, memory.mem_user_data);
	assert_int_equal(block.used, 16400);
	moved = memory.realloc(piece, 40000, memory.mem_user_data);
	assert_ptr_not_equal(piece, moved);
	assert_int_equal(moved[16393], 'a');
	memory.free(moved, memory.mem_user_data);
	memory.free(large, memory.mem_user_data);
	memory.free(small, memory.mem_user_data);
	http2_block_close(&block);
}

static void without_a_pool_all_is_malloc(void **state)
{
	struct block b;

	(void)state;
	open_block(&b, NULL);
	assert_false(http2_block_fold(&b.block));
	http2_block_unfold(&b.block);
	close_block(&b);
}

/* ---- sessions that rest ---- */

static void open_that_rests(unsigned idle_ms)
{
	struct http_server_timeouts timeouts = long_waits;

	timeouts.rest = 1;
	http2_lab_open(
		(struct http_server_config){.timeouts = &timeouts, .idle_timeout_ms = idle_ms},
		NULL, 0);
	lab.answer = true;
}

static int set_up_session(void **state)
{
	(void)state;
	open_that_rests(0);
	return 0;
}

static void rest(void)
{
	HTTP2_LAB_WAIT(counter_read(&lab.counters.resting) == 1);
}

static void expect_answer(const char *path)
{
	int32_t id = http2_lab_get(path);

	http2_lab_settle();
	assert_string_equal(http2_lab_seen(id)->status, "200");
	assert_str(buf_str(&http2_lab_seen(id)->body), "hello");
	assert_false(lab.broken);
}

static void a_session_that_rested_serves_as_before(void **state)
{
	(void)state;
	rest();
	for (int i = 0; i < 20; i++) {
		char path[32];

		/* Header fields that both sides have in their tables by now, and new ones. */
		snprintf(path, sizeof(path), "/path/%d", i / 2);
		expect_answer(path);
		rest();
	}
	assert_int_equal(lab.dispatched, 20);
	assert_int_equal(lab.goaways, 0);
}

static void a_session_with_a_request_does_not_rest(void **state)
{
	uint64_t until;
	int32_t id;

	(void)state;
	lab.answer = false;
	rest();
	id = http2_lab_get("/slow");
	until = uv_hrtime() + 20000000;
	while (uv_hrtime() < until)
		uv_run(&lab.loop.uv, UV_RUN_NOWAIT);
	assert_int_equal(counter_read(&lab.counters.resting), 0);
	http_respond(lab.heard[0].ex, 200, NULL, STR("at last"));
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "at last");
	rest();
}

static void a_ping_is_answered_and_the_session_rests_again(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++) {
		rest();
		assert_int_equal(nghttp2_submit_ping(lab.client, NGHTTP2_FLAG_NONE, NULL), 0);
		http2_lab_settle();
		assert_int_equal(lab.pings_answered, i + 1);
	}
	expect_answer("/after");
}

static void settings_while_it_rests_count(void **state)
{
	static const nghttp2_settings_entry smaller[] = {
		{NGHTTP2_SETTINGS_HEADER_TABLE_SIZE, 0},
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 3},
	};
	int32_t id;

	(void)state;
	expect_answer("/before");
	rest();
	assert_int_equal(nghttp2_submit_settings(lab.client, NGHTTP2_FLAG_NONE, smaller, 2), 0);
	http2_lab_settle();
	rest();
	lab.windows_by_hand = true;
	id = http2_lab_get("/after");
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "hello");
}

static void a_stop_finds_it_resting(void **state)
{
	(void)state;
	expect_answer("/before");
	rest();
	http2_lab_stop();
	http2_lab_settle();
	HTTP2_LAB_WAIT(lab.goaways > 0);
	assert_int_equal(lab.goaway_code, NGHTTP2_NO_ERROR);
	stream_mem_feed_eof(lab.m);
	http2_lab_settle();
	assert_true(lab.stopped);
	assert_false(lab.m->reset);
}

static void an_abort_finds_it_resting(void **state)
{
	(void)state;
	expect_answer("/before");
	rest();
	http2_lab_stop();
	http_server_abort(lab.server);
	http2_lab_settle();
	assert_true(lab.stopped);
	assert_true(lab.m->reset);
}

static void the_clients_end_finds_it_resting(void **state)
{
	(void)state;
	expect_answer("/before");
	rest();
	stream_mem_feed_eof(lab.m);
	http2_lab_settle();
	assert_true(lab.m->close_told);
	assert_int_equal(counter_read(&lab.counters.resting), 0);
}

static void nonsense_finds_it_resting(void **state)
{
	(void)state;
	rest();
	http2_lab_frame(8, NGHTTP2_PING, 0, 1, "12345678");
	http2_lab_settle();
	assert_int_equal(lab.goaways, 1);
	assert_int_equal(lab.goaway_code, NGHTTP2_PROTOCOL_ERROR);
}

static int set_up_idle_end(void **state)
{
	(void)state;
	open_that_rests(100);
	return 0;
}

static void its_idle_end_comes_while_it_rests(void **state)
{
	(void)state;
	expect_answer("/before");
	/* On a machine that is very busy both times may be over at once. */
	HTTP2_LAB_WAIT(counter_read(&lab.counters.resting) == 1 || lab.goaways > 0);
	HTTP2_LAB_WAIT(lab.goaways > 0);
	assert_int_equal(lab.goaway_code, NGHTTP2_NO_ERROR);
	assert_int_equal(counter_read(&lab.counters.resting), 0);
}

#define POOL_TEST(test) cmocka_unit_test_setup_teardown(test, set_up_pool, tear_down_pool)
#define SESSION_TEST(test) \
	cmocka_unit_test_setup_teardown(test, set_up_session, http2_lab_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		POOL_TEST(what_a_session_begins_with_lies_in_its_block),
		POOL_TEST(every_byte_is_back_where_it_was),
		POOL_TEST(a_block_full_of_something_is_not_folded),
		POOL_TEST(blocks_are_zeroed_for_the_next_one),
		POOL_TEST(many_blocks_do_not_meet),
		POOL_TEST(pieces_that_grow_or_find_no_room_come_from_malloc),
		POOL_TEST(without_a_pool_all_is_malloc),
		SESSION_TEST(a_session_that_rested_serves_as_before),
		SESSION_TEST(a_session_with_a_request_does_not_rest),
		SESSION_TEST(a_ping_is_answered_and_the_session_rests_again),
		SESSION_TEST(settings_while_it_rests_count),
		SESSION_TEST(a_stop_finds_it_resting),
		SESSION_TEST(an_abort_finds_it_resting),
		SESSION_TEST(the_clients_end_finds_it_resting),
		SESSION_TEST(nonsense_finds_it_resting),
		cmocka_unit_test_setup_teardown(its_idle_end_comes_while_it_rests, set_up_idle_end,
						http2_lab_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
