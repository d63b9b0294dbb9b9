#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "envd/rpc/envelope.h"

static const char three[] = "\x00\x00\x00\x00\x05hello\x01\x00\x00\x00\x00\x02\x00\x00\x00\x02{}";
#define THREE_LEN (sizeof(three) - 1)

/* Feeds `len` bytes from memory of that size and notes what comes out as "flags:payload;". */
static void feed(struct envelope_reader *r, const char *data, size_t len, struct buf *seen)
{
	char *tight = xmalloc(len + !len);
	size_t used = 0, taken;
	struct err err;

	memcpy(tight, data, len);
	while (used < len) {
		int status = envelope_feed(r, tight + used, len - used, &taken, &err);

		assert_true(status >= 0);
		assert_true(taken > 0);
		used += taken;
		if (status > 0) {
			struct str payload = envelope_payload(r);

			assert_int_equal(buf_printf(seen, "%u:%.*s;", envelope_flags(r),
						    (int)payload.len, payload.p),
					 0);
			envelope_next(r);
		}
	}
	free(tight);
}

static void every_pair_of_cuts_gives_the_same(void **state)
{
	for (size_t first = 0; first <= THREE_LEN; first++) {
		for (size_t second = first; second <= THREE_LEN; second++) {
			struct envelope_reader r;
			struct buf seen;

			buf_init(&seen, 4096);
			envelope_reader_init(&r, 100);
			feed(&r, three, first, &seen);
			feed(&r, three + first, second - first, &seen);
			feed(&r, three + second, THREE_LEN - second, &seen);
			assert_true(str_equal(buf_str(&seen), STR("0:hello;1:;2:{};")));
			assert_true(envelope_is_between(&r));
			envelope_reader_fini(&r);
			buf_fini(&seen);
		}
	}
}

static void byte_by_byte(void **state)
{
	struct envelope_reader r;
	struct buf seen;

	buf_init(&seen, 4096);
	envelope_reader_init(&r, 100);
	for (size_t i = 0; i < THREE_LEN; i++)
		feed(&r, three + i, 1, &seen);
	assert_true(str_equal(buf_str(&seen), STR("0:hello;1:;2:{};")));
	envelope_reader_fini(&r);
	buf_fini(&seen);
}

static void an_announced_size_is_refused_before_it_is_stored(void **state)
{
	struct envelope_reader r;
	struct err err;
	size_t taken;

	envelope_reader_init(&r, 5);
	assert_true(envelope_feed(&r, "\0\0\0\0\6", 5, &taken, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_string_equal(err.message, "message size 6 is larger than configured max 5");
	assert_null(r.payload.memory);
	envelope_reader_fini(&r);
	envelope_reader_init(&r, 64 * 1024 * 1024);
	assert_true(envelope_feed(&r, "\0\xFF\xFF\xFF\xFF", 5, &taken, &err) < 0);
	envelope_reader_fini(&r);
}

static void memory_follows_what_has_arrived(void **state)
{
	struct envelope_reader r;
	struct err err;
	size_t taken;

	envelope_reader_init(&r, 64 * 1024 * 1024);
	assert_int_equal(envelope_feed(&r, "\0\3\xFF\xFF\xFFx", 6, &taken, &err), 0);
	assert_true(r.payload.capacity <= 4096);
	envelope_reader_fini(&r);
}

static void truncation_is_described(void **state)
{
	struct envelope_reader r;
	struct err err;
	size_t taken;

	envelope_reader_init(&r, 100);
	assert_true(envelope_is_between(&r));
	assert_int_equal(envelope_feed(&r, "\0\0", 2, &taken, &err), 0);
	assert_false(envelope_is_between(&r));
	envelope_set_truncated(&r, &err);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_non_null(strstr(err.message, "protocol error: incomplete envelope: "));
	assert_int_equal(envelope_feed(&r, "\0\0\11abc", 6, &taken, &err), 0);
	envelope_set_truncated(&r, &err);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_non_null(strstr(err.message, "promised 9 bytes in enveloped message, got 3 bytes"));
	envelope_reader_fini(&r);
}

static void prefixes_are_big_endian(void **state)
{
	char prefix[ENVELOPE_PREFIX_BYTES];

	envelope_write_prefix(prefix, 2, 0x01020304);
	assert_memory_equal(prefix, "\2\1\2\3\4", 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_pair_of_cuts_gives_the_same),
		cmocka_unit_test(byte_by_byte),
		cmocka_unit_test(an_announced_size_is_refused_before_it_is_stored),
		cmocka_unit_test(memory_follows_what_has_arrived),
		cmocka_unit_test(truncation_is_described),
		cmocka_unit_test(prefixes_are_big_endian),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
