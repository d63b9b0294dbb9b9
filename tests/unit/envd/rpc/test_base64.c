#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "envd/rpc/base64.h"

/* Exactly as much memory as promised, so that the sanitizer sees a byte too many. */
static char *encode(const void *data, size_t len)
{
	size_t n = base64_encoded_length(len);
	char *tight = xmalloc(n + !n);
	char *text = xmalloc(n + 1);

	base64_encode(data, len, tight);
	memcpy(text, tight, n);
	text[n] = '\0';
	free(tight);
	return text;
}

static void check_encoded(const char *data, const char *expected)
{
	char *text = encode(data, strlen(data));

	assert_string_equal(text, expected);
	free(text);
}

static void known_texts(void **state)
{
	check_encoded("", "");
	check_encoded("f", "Zg==");
	check_encoded("fo", "Zm8=");
	check_encoded("foo", "Zm9v");
	check_encoded("foob", "Zm9vYg==");
	check_encoded("fooba", "Zm9vYmE=");
	check_encoded("foobar", "Zm9vYmFy");
	check_encoded("\xFB\xFF\xBF", "+/+/");
}

static void check_decoded(struct str text, const char *expected, size_t len)
{
	char *copy = xmalloc(text.len + !text.len);
	unsigned char *out = xmalloc(base64_decoded_bound(text.len) + 1);

	memcpy(copy, text.p, text.len);
	assert_int_equal(base64_decode((struct str){copy, text.len}, out), len);
	assert_memory_equal(out, expected, len);
	free(out);
	free(copy);
}

static void check_refused(struct str text)
{
	unsigned char *out = xmalloc(base64_decoded_bound(text.len) + 1);

	assert_int_equal(base64_decode(text, out), -EINVAL);
	free(out);
}

static void case_129_both_alphabets_and_optional_padding(void **state)
{
	check_decoded(STR(""), "", 0);
	check_decoded(STR("Zg=="), "f", 1);
	check_decoded(STR("Zg"), "f", 1);
	check_decoded(STR("Zm8="), "fo", 2);
	check_decoded(STR("Zm8"), "fo", 2);
	check_decoded(STR("+/+/"), "\xFB\xFF\xBF", 3);
	check_decoded(STR("-_-_"), "\xFB\xFF\xBF", 3);
	check_decoded(STR("AAA="), "\0\0", 2);
}

static void case_129_junk_is_refused(void **state)
{
	check_refused(STR("QUJD!!!"));
	check_refused(STR("QUJD!!!!"));
	check_refused(STR("Q"));
	check_refused(STR("QUJDQ"));
	check_refused(STR("="));
	check_refused(STR("===="));
	check_refused(STR("Z==="));
	check_refused(STR("Zg="));
	check_refused(STR("Zg==Zg=="));
	check_refused(STR("Zm 8"));
	check_refused(STR("Zm8=\n"));
	check_refused(STR("Zm\0 8"));
	check_refused(STR("Zm\xFF\xC3"));
}

static void every_length_comes_back(void **state)
{
	size_t most = 700;
	unsigned char *data = xmalloc(most);
	uint32_t seed = 1;

	for (size_t i = 0; i < most; i++)
		data[i] = (unsigned char)((seed = seed * 1664525 + 1013904223) >> 24);
	for (size_t len = 0; len <= most; len++) {
		unsigned char *tight = xmalloc(len + !len);
		char *text;
		size_t n = base64_encoded_length(len);

		memcpy(tight, data, len);
		text = encode(tight, len);
		check_decoded((struct str){text, n}, (const char *)data, len);
		for (size_t i = 0; i < n; i++)
			text[i] = text[i] == '+' ? '-' : text[i] == '/' ? '_' : text[i];
		while (n > 0 && text[n - 1] == '=')
			n--;
		check_decoded((struct str){text, n}, (const char *)data, len);
		free(text);
		free(tight);
	}
	free(data);
}

/* Wherever it stands, also in the part the wide instructions do. */
static void every_bad_byte_is_found_everywhere(void **state)
{
	char text[200];
	unsigned char out[160];

	for (size_t at = 0; at < sizeof(text); at += 7) {
		for (int c = 0; c < 256; c++) {
			bool good = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
				    (c >= '0' && c <= '9') || c == '+' || c == '/' || c == '-' ||
				    c == '_';

			memset(text, 'A', sizeof(text));
			text[at] = (char)c;
			if ((base64_decode((struct str){text, sizeof(text)}, out) >= 0) != good)
				fail_msg("byte %d at %zu", c, at);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_texts),
		cmocka_unit_test(case_129_both_alphabets_and_optional_padding),
		cmocka_unit_test(case_129_junk_is_refused),
		cmocka_unit_test(every_length_comes_back),
		cmocka_unit_test(every_bad_byte_is_found_everywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
