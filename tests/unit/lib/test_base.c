#include "tests/support/cmocka.h"

#include <fcntl.h>
#include <unistd.h>

#include "lib/list.h"

#define NONE ((struct str){NULL, 0})

static void equality_ignores_case_only_where_it_says_so(void **state)
{
	(void)state;
	assert_true(str_equal(STR("Abc"), STR("Abc")));
	assert_false(str_equal(STR("Abc"), STR("abc")));
	assert_false(str_equal(STR("Abc"), STR("Abcd")));
	assert_true(str_equal(NONE, STR("")));
	assert_true(str_equal_nocase(STR("Content-LENGTH"), STR("content-length")));
	assert_false(str_equal_nocase(STR("@"), STR("`"))); /* 0x40 and 0x60 differ by 32 too */
	assert_false(str_equal_nocase(STR("["), STR("{")));
	assert_false(str_equal_nocase(STR("\xC4"), STR("\xE4"))); /* ASCII only */
	assert_true(str_equal_nocase(NONE, NONE));
}

static bool is_letter_pair(unsigned a, unsigned b)
{
	return a == b || ((a ^ b) == 0x20 && (a | 0x20) >= 'a' && (a | 0x20) <= 'z');
}

/* Every pair of bytes, at every place of texts of every length that is read in its own way. */
static void case_is_ignored_alike_at_every_place(void **state)
{
	char a[20], b[20];

	(void)state;
	for (size_t len = 1; len <= sizeof(a); len++)
		for (size_t at = 0; at < len; at++)
			for (unsigned pair = 0; pair < 65536; pair++) {
				memcpy(a, "Abcdefghij-0123456789", len);
				memcpy(b, "aBCDEFGHIJ-0123456789", len);
				a[at] = (char)(pair & 255);
				b[at] = (char)(pair >> 8);
				if (str_equal_nocase((struct str){a, len}, (struct str){b, len}) !=
				    is_letter_pair(pair & 255, pair >> 8))
					fail_msg("length %zu, byte %zu: %u", len, at, pair);
			}
}

static void prefixes_and_suffixes(void **state)
{
	(void)state;
	assert_true(str_starts_with(STR("/files"), STR("/")));
	assert_true(str_starts_with(STR("/files"), STR("")));
	assert_false(str_starts_with(STR("/"), STR("/files")));
	assert_true(str_ends_with(STR("a.gz"), STR(".gz")));
	assert_false(str_ends_with(STR("gz"), STR(".gz")));
	assert_true(str_ends_with(STR(""), STR("")));
	assert_true(str_starts_with(NONE, NONE));
}

static void trimming_takes_blanks_and_tabs_alone(void **state)
{
	(void)state;
	assert_str(str_trim(STR(" \t a b\t ")), "a b");
	assert_str(str_trim(STR("\r\n")), "\r\n");
	assert_int_equal(str_trim(STR(" \t ")).len, 0);
	assert_int_equal(str_trim(NONE).len, 0);
}

static void splitting_yields_every_piece_once(void **state)
{
	struct str rest = STR("a,,b,");
	struct str piece;

	(void)state;
	assert_true(str_split(&rest, ',', &piece));
	assert_str(piece, "a");
	assert_true(str_split(&rest, ',', &piece));
	assert_str(piece, "");
	assert_true(str_split(&rest, ',', &piece));
	assert_str(piece, "b");
	assert_true(str_split(&rest, ',', &piece));
	assert_str(piece, "");
	assert_false(str_split(&rest, ',', &piece));
	assert_false(str_split(&rest, ',', &piece));

	rest = STR("");
	assert_true(str_split(&rest, ',', &piece));
	assert_int_equal(piece.len, 0);
	assert_false(str_split(&rest, ',', &piece));

	rest = NONE;
	assert_false(str_split(&rest, ',', &piece));
}

static void token_lists(void **state)
{
	(void)state;
	assert_true(str_list_has_token(STR("keep-alive, Upgrade"), STR("upgrade")));
	assert_true(str_list_has_token(STR(",, close ,"), STR("close")));
	assert_false(str_list_has_token(STR("closed, xclose"), STR("close")));
	assert_false(str_list_has_token(STR("not close"), STR("close")));
	assert_false(str_list_has_token(NONE, STR("close")));
}

static void numbers(void **state)
{
	uint64_t value = 7;

	(void)state;
	assert_int_equal(str_to_u64(STR("0"), 10, &value), 0);
	assert_int_equal(value, 0);
	assert_int_equal(str_to_u64(STR("0010"), 10, &value), 0);
	assert_int_equal(value, 10);
	assert_int_equal(str_to_u64(STR("11"), 10, &value), -ERANGE);
	assert_int_equal(value, 10); /* untouched on failure */
	assert_int_equal(str_to_u64(STR("18446744073709551615"), UINT64_MAX, &value), 0);
	assert_true(value == UINT64_MAX);
	value = 7;
	assert_int_equal(str_to_u64(STR("18446744073709551616"), UINT64_MAX, &value), -ERANGE);
	assert_int_equal(str_to_u64(STR("99999999999999999999999999"), UINT64_MAX, &value),
			 -ERANGE);
	assert_int_equal(str_to_u64(STR("99999999999999999999999999x"), UINT64_MAX, &value),
			 -EINVAL);
	assert_int_equal(value, 7);
	assert_int_equal(str_to_u64(STR(""), 10, &value), -EINVAL);
	assert_int_equal(str_to_u64(NONE, 10, &value), -EINVAL);
	assert_int_equal(str_to_u64(STR("+1"), 10, &value), -EINVAL);
	assert_int_equal(str_to_u64(STR("-0"), 10, &value), -EINVAL);
	assert_int_equal(str_to_u64(STR(" 1"), 10, &value), -EINVAL);
	assert_int_equal(str_to_u64(STR("1 "), 10, &value), -EINVAL);
	assert_int_equal(str_to_u64(STR("0x1"), 10, &value), -EINVAL);
	assert_int_equal(str_to_u64((struct str){"1\0", 2}, 10, &value), -EINVAL);
}

static void hexadecimal_digits(void **state)
{
	static const char digits[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";

	(void)state;
	for (int i = 0; i < 16; i++) {
		assert_int_equal(hex_digit(digits[i]), i);
		assert_int_equal(hex_digit(upper[i]), i);
	}
	for (int c = 0; c < 256; c++)
		assert_int_equal(hex_digit((char)c) >= 0, c && strchr("0123456789abcdefABCDEF", c));
}

static void secrets_are_compared_right(void **state)
{
	(void)state;
	assert_true(str_equal_constant_time(STR("token"), STR("token")));
	assert_false(str_equal_constant_time(STR("token"), STR("tokem")));
	assert_false(str_equal_constant_time(STR("token"), STR("tok")));
	assert_false(str_equal_constant_time(STR("tok"), STR("token")));
	assert_false(
		str_equal_constant_time(STR("toktok"), STR("tok"))); /* the shorter one repeats */
	assert_false(str_equal_constant_time(STR("a"), STR("")));
	assert_false(str_equal_constant_time(STR("\x01"), STR("")));
	assert_false(str_equal_constant_time(STR(""), STR("a")));
	assert_true(str_equal_constant_time(STR(""), NONE));
}

static void utf8(void **state)
{
	static const char *const good[] = {"",
					   "plain",
					   "\xC2\x80",
					   "\xDF\xBF",
					   "\xE0\xA0\x80",
					   "\xED\x9F\xBF",
					   "\xEE\x80\x80",
					   "\xEF\xBF\xBF",
					   "\xF0\x90\x80\x80",
					   "\xF4\x8F\xBF\xBF",
					   "a\xC3\xA4z"};
	static const char *const bad[] = {"\x80", /* a continuation alone */
					  "\xC0\x80", /* overlong NUL */
					  "\xC1\xBF", /* overlong */
					  "\xE0\x9F\xBF", /* overlong */
					  "\xF0\x8F\xBF\xBF", /* overlong */
					  "\xED\xA0\x80", /* surrogate */
					  "\xED\xBF\xBF", /* surrogate */
					  "\xF4\x90\x80\x80", /* beyond U+10FFFF */
					  "\xF5\x80\x80\x80",
					  "\xFF",
					  "\xC2",
					  "\xE2\x82",
					  "\xF0\x9F\x98",
					  "\xC2z",
					  "\xE2\x82z",
					  "ab\xF0\x9F\x98\xC2"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(good); i++)
		assert_true(str_is_utf8(str_of(good[i])));
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		assert_false(str_is_utf8(str_of(bad[i])));
	/* The check stops at the given length, whatever follows in memory. */
	assert_false(str_is_utf8((struct str){"\xE2\x82\xAC", 2}));
	assert_true(str_is_utf8((struct str){"\xE2\x82\xAC", 3}));
	assert_true(str_is_utf8((struct str){"a\0b", 3}));
}

static void descriptors_close_once_and_keep_errno(void **state)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int copy = fd;

	(void)state;
	assert_true(fd >= 0);
	errno = EXDEV;
	close_fd(&fd);
	assert_int_equal(errno, EXDEV);
	assert_int_equal(fd, -1);
	assert_int_equal(fcntl(copy, F_GETFD), -1);
	close_fd(&fd);
	assert_int_equal(fd, -1);
}

static char *give_away(bool keep)
{
	auto_free char *text = xstrdup("text");

	return keep ? NULL : take_ptr(&text);
}

static int give_fd_away(int *ret_seen, bool keep)
{
	auto_close int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	*ret_seen = fd;
	return keep ? -1 : take_fd(&fd);
}

static void ownership_leaves_only_when_taken(void **state)
{
	char *text = give_away(false);
	int seen, fd;

	(void)state;
	assert_string_equal(text, "text");
	free(text);
	assert_null(give_away(true)); /* the leak checker sees what was not freed */
	assert_int_equal(give_fd_away(&seen, true), -1);
	assert_int_equal(fcntl(seen, F_GETFD), -1);
	fd = give_fd_away(&seen, false);
	assert_int_equal(fd, seen);
	assert_true(fcntl(fd, F_GETFD) >= 0);
	close_fd(&fd);
}

static void allocation_helpers_take_zero(void **state)
{
	char *text;
	void *memory;

	(void)state;
	memory = xmalloc(0);
	assert_non_null(memory);
	memory = xrealloc(memory, 0);
	assert_non_null(memory);
	free(memory);
	memory = xcalloc(0, 0);
	assert_non_null(memory);
	free(memory);
	text = xstrndup("abc", 2);
	assert_string_equal(text, "ab");
	free(text);
	text = xstrndup(NULL, 0);
	assert_string_equal(text, "");
	free(text);
}

static void wiping(void **state)
{
	char secret[8] = "secret!";
	static const char zeroes[8];

	(void)state;
	wipe(secret, 6);
	assert_memory_equal(secret, zeroes, 6);
	assert_int_equal(secret[6], '!');
	wipe(NULL, 0);
}

struct item {
	int number;
	struct list_node node;
};

static void check_order(const struct list_node *head, const char *expected)
{
	const struct list_node *node;
	char seen[16];
	size_t count = 0;

	LIST_FOR_EACH (node, head)
		seen[count++] = (char)('0' + container_of(node, const struct item, node)->number);
	seen[count] = '\0';
	assert_string_equal(seen, expected);
	/* The same backwards. */
	for (node = head->previous; node != head; node = node->previous)
		assert_int_equal(seen[--count],
				 '0' + container_of(node, const struct item, node)->number);
	assert_int_equal(count, 0);
}

static void lists(void **state)
{
	struct item items[5];
	struct list_node a, b, *node, *following;

	(void)state;
	list_init(&a);
	list_init(&b);
	assert_true(list_is_empty(&a));
	for (int i = 0; i < 5; i++) {
		items[i].number = i;
		list_init(&items[i].node);
	}
	list_append(&a, &items[1].node);
	list_append(&a, &items[2].node);
	list_prepend(&a, &items[0].node);
	check_order(&a, "012");
	list_remove(&items[1].node);
	check_order(&a, "02");
	list_remove(&items[1].node); /* twice is harmless */
	check_order(&a, "02");
	list_append(&b, &items[3].node);
	list_append(&b, &items[4].node);
	list_splice(&a, &b);
	check_order(&a, "0234");
	check_order(&b, "");
	list_splice(&a, &b);
	check_order(&a, "0234");
	list_splice(&b, &a);
	check_order(&b, "0234");
	LIST_FOR_EACH_SAFE (node, following, &b)
		if (container_of(node, struct item, node)->number % 2 == 0)
			list_remove(node);
	check_order(&b, "3");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equality_ignores_case_only_where_it_says_so),
		cmocka_unit_test(case_is_ignored_alike_at_every_place),
		cmocka_unit_test(prefixes_and_suffixes),
		cmocka_unit_test(trimming_takes_blanks_and_tabs_alone),
		cmocka_unit_test(splitting_yields_every_piece_once),
		cmocka_unit_test(token_lists),
		cmocka_unit_test(numbers),
		cmocka_unit_test(hexadecimal_digits),
		cmocka_unit_test(secrets_are_compared_right),
		cmocka_unit_test(utf8),
		cmocka_unit_test(descriptors_close_once_and_keep_errno),
		cmocka_unit_test(ownership_leaves_only_when_taken),
		cmocka_unit_test(allocation_helpers_take_zero),
		cmocka_unit_test(wiping),
		cmocka_unit_test(lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
