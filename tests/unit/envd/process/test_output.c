/* The log between reading and readers, and UTF-8 boundaries. */
#include "envd/limits.h"
#include "envd/process/output_log.h"
#include "tests/support/cmocka.h"

static struct str text_at(const struct output_log *log, uint64_t position,
			  enum output_stream expected)
{
	enum output_stream stream;
	struct str bytes;

	assert_true(output_log_peek(log, position, &stream, &bytes));
	assert_int_equal(stream, expected);
	return bytes;
}

static void an_empty_log_holds_no_memory(void **state)
{
	struct output_log log;
	enum output_stream stream;
	struct str bytes;

	output_log_init(&log);
	assert_int_equal(log.memory, 0);
	assert_false(output_log_peek(&log, 0, &stream, &bytes));
	output_log_append(&log, OUTPUT_STDOUT, STR("abc"));
	assert_true(log.memory > 0);
	output_log_trim(&log, 3);
	assert_int_equal(log.memory, 0);
	assert_int_equal(log.start, 3);
	output_log_skip(&log, 10);
	assert_int_equal(log.end, 13);
	output_log_append(&log, OUTPUT_STDERR, STR("x"));
	assert_str(text_at(&log, 13, OUTPUT_STDERR), "x");
	output_log_fini(&log);
	assert_int_equal(log.memory, 0);
}

static void neighbours_of_one_stream_are_joined(void **state)
{
	struct output_log log;
	size_t i;

	output_log_init(&log);
	for (i = 0; i < 400; i++)
		output_log_append(&log, OUTPUT_STDOUT, STR("ab"));
	output_log_append(&log, OUTPUT_STDERR, STR("error"));
	output_log_append(&log, OUTPUT_STDOUT, STR("more"));
	assert_int_equal(text_at(&log, 0, OUTPUT_STDOUT).len, 800);
	assert_int_equal(text_at(&log, 799, OUTPUT_STDOUT).len, 1);
	assert_str(text_at(&log, 800, OUTPUT_STDERR), "error");
	assert_str(text_at(&log, 802, OUTPUT_STDERR), "ror");
	assert_str(text_at(&log, 805, OUTPUT_STDOUT), "more");
	assert_int_equal(log.end, 809);
	/* Trimming in the middle of a block keeps it. */
	output_log_trim(&log, 803);
	assert_str(text_at(&log, 803, OUTPUT_STDERR), "or");
	output_log_trim(&log, 809);
	assert_int_equal(log.memory, 0);
	output_log_fini(&log);
}

/* A hundred thousand tiny pieces come out as a few large ones. */
static void many_small_pieces_become_few(void **state)
{
	struct output_log log;
	uint64_t position = 0;
	enum output_stream stream;
	struct str bytes;
	size_t i, blocks = 0;

	output_log_init(&log);
	for (i = 0; i < 100000; i++)
		output_log_append(&log, OUTPUT_STDOUT, STR("x"));
	for (; output_log_peek(&log, position, &stream, &bytes); blocks++)
		position += bytes.len;
	assert_int_equal(position, 100000);
	assert_in_range(blocks, 2, 9);
	output_log_fini(&log);
}

static void the_bound_counts_what_is_really_taken(void **state)
{
	struct output_log log;
	char piece[100];
	size_t pieces = 0;

	memset(piece, 'x', sizeof(piece));
	output_log_init(&log);
	/* The worst mixture: streams alternate, so nothing can be joined. */
	while (output_log_has_room(&log)) {
		output_log_append(&log, pieces % 2 ? OUTPUT_STDOUT : OUTPUT_STDERR,
				  (struct str){piece, sizeof(piece)});
		pieces++;
	}
	assert_in_range(log.memory, PROCESS_LOG_BYTES / 2, PROCESS_LOG_BYTES);
	assert_true(pieces > 20);
	output_log_fini(&log);
}

static void blocks_part_between_characters(void **state)
{
	struct output_log log;
	uint64_t position = 0;
	enum output_stream stream;
	struct str bytes;
	size_t i, blocks = 0;

	output_log_init(&log);
	output_log_append(&log, OUTPUT_STDOUT, STR("x"));
	for (i = 0; i < 20000; i++)
		output_log_append(&log, OUTPUT_STDOUT, STR("\xf0\x9f\x98\x80"));
	while (output_log_peek(&log, position, &stream, &bytes)) {
		assert_true(str_is_utf8(bytes));
		assert_true(bytes.len <= PROCESS_READ_BYTES);
		position += bytes.len;
		blocks++;
	}
	assert_int_equal(position, 80001);
	assert_true(blocks > 1);
	output_log_fini(&log);
}

static void partial_tails(void **state)
{
	static const struct {
		const char *bytes;
		size_t tail;
	} rows[] = {
		{"", 0},
		{"abc", 0},
		{"ab\xc3", 1},
		{"ab\xc3\xbc", 0},
		{"\xe2\x82", 2},
		{"\xe2", 1},
		{"\xe2\x82\xac", 0},
		{"\xf0\x9f\x98", 3},
		{"\xf0\x9f", 2},
		{"a\xf0", 1},
		{"\xf0\x9f\x98\x80", 0},
		{"\x80\x80\x80\x80", 0}, /* can never become anything */
		{"\xff", 0},
		{"\xc0", 0},
		{"\xf8\x80", 0},
		{"\xc3\xbc\x80", 0},
	};
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(rows); i++)
		assert_int_equal(utf8_partial_tail(str_of(rows[i].bytes)), rows[i].tail);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_log_holds_no_memory),
		cmocka_unit_test(neighbours_of_one_stream_are_joined),
		cmocka_unit_test(many_small_pieces_become_few),
		cmocka_unit_test(the_bound_counts_what_is_really_taken),
		cmocka_unit_test(blocks_part_between_characters),
		cmocka_unit_test(partial_tails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
