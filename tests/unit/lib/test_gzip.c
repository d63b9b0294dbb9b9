#include <zlib.h>

#include "lib/buf.h"
#include "lib/gzip.h"
#include "tests/support/cmocka.h"

#define HEADER_BYTES 10 /* as RFC 1952 has it, without any of what may be in it */

static int sink(void *user, const char *data, size_t len)
{
	return buf_append(user, data, len);
}

static int refuse(void *user, const char *data, size_t len)
{
	(void)user;
	(void)data;
	(void)len;
	return -EPROTO;
}

static size_t compress_bytes(const char *data, size_t len, char *out, size_t size)
{
	z_stream stream = {0};

	assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
			 Z_OK);
	stream.next_in = (unsigned char *)data;
	stream.avail_in = (unsigned)len;
	stream.next_out = (unsigned char *)out;
	stream.avail_out = (unsigned)size;
	assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
	deflateEnd(&stream);
	return size - stream.avail_out;
}

static int inflate_pieces(const char *packed, size_t len, size_t step, struct buf *out)
{
	struct gzip_reader *reader = gzip_reader_new();
	int status = 0;

	buf_clear(out);
	for (size_t at = 0; at < len && status == 0; at += step)
		status = gzip_reader_feed(reader, packed + at, size_min(step, len - at), sink, out);
	if (status == 0)
		status = gzip_reader_finish(reader);
	gzip_reader_free(reader);
	return status;
}

static void any_split_gives_the_same_text(void **state)
{
	static char text[200000];
	char packed[4096];
	struct buf out;
	size_t len;

	(void)state;
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = (char)('a' + i / 1000 % 26);
	buf_init(&out, 1 << 20);
	len = compress_bytes(text, sizeof(text), packed, sizeof(packed));
	for (size_t step = 1; step <= len; step++) {
		assert_int_equal(inflate_pieces(packed, len, step, &out), 0);
		assert_int_equal(buf_length(&out), sizeof(text));
		assert_memory_equal(buf_data(&out), text, sizeof(text));
	}
	buf_fini(&out);
}

static void members_in_a_row_are_one_text(void **state)
{
	char packed[256];
	struct buf out;
	size_t len;

	(void)state;
	buf_init(&out, 1024);
	len = compress_bytes("one", 3, packed, sizeof(packed));
	len += compress_bytes("", 0, packed + len, sizeof(packed) - len);
	len += compress_bytes("two", 3, packed + len, sizeof(packed) - len);
	for (size_t step = 1; step <= len; step++) {
		assert_int_equal(inflate_pieces(packed, len, step, &out), 0);
		assert_str(buf_str(&out), "onetwo");
	}
	buf_fini(&out);
}

static void what_is_wrong_is_told_apart(void **state)
{
	struct gzip_reader *reader = gzip_reader_new();
	char packed[256];
	struct buf out;
	size_t len;

	(void)state;
	buf_init(&out, 1024);
	len = compress_bytes("some text", 9, packed, sizeof(packed));
	assert_int_equal(inflate_pieces("", 0, 1, &out), -ENODATA);
	assert_int_equal(inflate_pieces("plain text", 10, 3, &out), -EBADMSG);
	for (size_t cut = 1; cut < len; cut++)
		assert_int_equal(inflate_pieces(packed, cut, 2, &out),
				 cut < HEADER_BYTES ? -ENOMSG : -EPIPE);
	assert_int_equal(gzip_reader_feed(reader, packed, len, refuse, NULL), -EPROTO);
	packed[len] = 'x';
	packed[len + 1] = 'y';
	assert_int_equal(inflate_pieces(packed, len + 2, 5, &out), -EILSEQ);
	packed[len - 5] ^= 1; /* the checksum */
	assert_int_equal(inflate_pieces(packed, len, 5, &out), -EILSEQ);
	gzip_reader_free(reader);
	gzip_reader_free(NULL);
	buf_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_split_gives_the_same_text),
		cmocka_unit_test(members_in_a_row_are_one_text),
		cmocka_unit_test(what_is_wrong_is_told_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
