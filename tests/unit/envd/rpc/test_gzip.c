#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <zlib.h>

#include <cmocka.h>

#include "envd/rpc/gzip.h"

#define MAX_BYTES (100 * 1024)

static size_t deflate_gzip(const char *data, size_t len, char *out, size_t room)
{
	z_stream z = {.next_in = (unsigned char *)data,
		      .avail_in = (unsigned)len,
		      .next_out = (unsigned char *)out,
		      .avail_out = (unsigned)room};

	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
			 Z_OK);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return room - z.avail_out;
}

static char plain[2 * MAX_BYTES], packed[2 * MAX_BYTES];

static int inflate_bytes(size_t len, size_t max, size_t *ret_len, struct err *err)
{
	struct share share = {0};
	struct buf out;
	int status;

	buf_init(&out, max);
	status = gzip_inflate((struct str){packed, len}, &out, &share, err);
	*ret_len = buf_length(&out);
	if (status == 0)
		assert_memory_equal(buf_data(&out), plain, *ret_len);
	buf_fini(&out);
	return status;
}

static void fill(void)
{
	uint32_t seed = 7;

	for (size_t i = 0; i < sizeof(plain); i++)
		plain[i] = "abcdefgh"[(seed = seed * 1664525 + 1013904223) >> 29];
}

static void texts_of_every_size_come_back(void **state)
{
	static const size_t sizes[] = {0, 1, 100, 32767, 32768, 32769, MAX_BYTES - 1, MAX_BYTES};
	struct err err;
	size_t len;

	fill();
	for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
		size_t n = deflate_gzip(plain, sizes[i], packed, sizeof(packed));

		if (inflate_bytes(n, MAX_BYTES, &len, &err) < 0)
			fail_msg("%zu: %s", sizes[i], err.message);
		assert_int_equal(len, sizes[i]);
	}
}

static void bombs_end_at_the_bound(void **state)
{
	char *zeros = xcalloc(1, 64 * 1024 * 1024);
	struct err err;
	size_t len, n;

	n = deflate_gzip(zeros, 64 * 1024 * 1024, packed, sizeof(packed));
	assert_true(inflate_bytes(n, MAX_BYTES, &len, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(len, MAX_BYTES);
	fill();
	n = deflate_gzip(plain, MAX_BYTES + 1, packed, sizeof(packed));
	assert_true(inflate_bytes(n, MAX_BYTES, &len, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	free(zeros);
}

static void members_in_a_row_are_one_text(void **state)
{
	struct err err;
	size_t len, n;

	fill();
	n = deflate_gzip(plain, 1000, packed, sizeof(packed));
	n += deflate_gzip(plain + 1000, 500, packed + n, sizeof(packed) - n);
	assert_int_equal(inflate_bytes(n, MAX_BYTES, &len, &err), 0);
	assert_int_equal(len, 1500);
}

static void damage_is_refused(void **state)
{
	struct err err;
	size_t len, n;

	fill();
	n = deflate_gzip(plain, 1000, packed, sizeof(packed));
	for (size_t cut = 0; cut < n; cut++) {
		assert_true(inflate_bytes(cut, MAX_BYTES, &len, &err) < 0);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	}
	packed[n - 6] ^= 1;
	assert_true(inflate_bytes(n, MAX_BYTES, &len, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	packed[n - 6] ^= 1;
	packed[n] = 'x';
	assert_true(inflate_bytes(n + 1, MAX_BYTES, &len, &err) < 0);
	memcpy(packed, "{\"a\":1}", 7);
	assert_true(inflate_bytes(7, MAX_BYTES, &len, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_of_every_size_come_back),
		cmocka_unit_test(bombs_end_at_the_bound),
		cmocka_unit_test(members_in_a_row_are_one_text),
		cmocka_unit_test(damage_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
