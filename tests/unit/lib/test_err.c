#include "tests/support/cmocka.h"

#include "lib/err.h"

static void kinds_have_names_and_statuses(void **state)
{
	static const struct {
		enum err_kind kind;
		const char *name;
		int status;
	} expected[] = {
		{ERR_CANCELED, "canceled", 499},
		{ERR_UNKNOWN, "unknown", 500},
		{ERR_INVALID_ARGUMENT, "invalid_argument", 400},
		{ERR_DEADLINE_EXCEEDED, "deadline_exceeded", 504},
		{ERR_NOT_FOUND, "not_found", 404},
		{ERR_ALREADY_EXISTS, "already_exists", 409},
		{ERR_PERMISSION_DENIED, "permission_denied", 403},
		{ERR_RESOURCE_EXHAUSTED, "resource_exhausted", 429},
		{ERR_FAILED_PRECONDITION, "failed_precondition", 400},
		{ERR_ABORTED, "aborted", 409},
		{ERR_OUT_OF_RANGE, "out_of_range", 400},
		{ERR_UNIMPLEMENTED, "unimplemented", 501},
		{ERR_INTERNAL, "internal", 500},
		{ERR_UNAVAILABLE, "unavailable", 503},
		{ERR_DATA_LOSS, "data_loss", 500},
		{ERR_UNAUTHENTICATED, "unauthenticated", 401},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(expected); i++) {
		assert_int_equal(expected[i].kind, (int)i + 1);
		assert_string_equal(err_kind_name(expected[i].kind), expected[i].name);
		assert_int_equal(err_kind_http_status(expected[i].kind), expected[i].status);
	}
	assert_string_equal(err_kind_name((enum err_kind)17), "unknown");
	assert_int_equal(err_kind_http_status((enum err_kind) - 1), 500);
}

static void filling_returns_what_the_caller_returns(void **state)
{
	struct err err = {0};

	(void)state;
	assert_int_equal(err_set(&err, ERR_NOT_FOUND, "process with pid %d not found", 7), -EPROTO);
	assert_int_equal(err.kind, ERR_NOT_FOUND);
	assert_int_equal(err.sys, 0);
	assert_string_equal(err.message, "process with pid 7 not found");

	assert_int_equal(err_set_sys(&err, ERR_NOT_FOUND, ENOENT, "stat %s", "/x"), -ENOENT);
	assert_int_equal(err.sys, ENOENT);
	assert_string_equal(err.message, "stat /x: no such file or directory");
	/* Either sign is the same. */
	assert_int_equal(err_set_sys(&err, ERR_NOT_FOUND, -ENOENT, "stat %s", "/x"), -ENOENT);
	assert_int_equal(err.sys, ENOENT);
	assert_true(err_set_sys(&err, ERR_INTERNAL, 0, "odd") < 0);

	err_wrap(&err, "error in %s", "x");
	assert_string_equal(err.message, "error in x: odd: success");
	assert_int_equal(err.kind, ERR_INTERNAL);
}

/* Whatever the length of what stands before, a cut message is whole characters. */
static void long_messages_are_cut_between_characters(void **state)
{
	static char text[3 * ERR_MESSAGE_BYTES];
	static const char *const characters[] = {"a", "\xC3\xA4", "\xE2\x82\xAC",
						 "\xF0\x9F\x98\x80"};

	(void)state;
	for (size_t c = 0; c < ARRAY_LENGTH(characters); c++) {
		for (size_t lead = 0; lead < 8; lead++) {
			struct err err;
			size_t len = lead;

			memset(text, 'x', lead);
			while (len < sizeof(text) - 8) {
				memcpy(text + len, characters[c], strlen(characters[c]));
				len += strlen(characters[c]);
			}
			text[len] = '\0';
			err_set(&err, ERR_INTERNAL, "%s", text);
			len = strlen(err.message);
			assert_true(len >= ERR_MESSAGE_BYTES - 4 && len < ERR_MESSAGE_BYTES);
			assert_true(str_is_utf8(str_of(err.message)));
			err_wrap(&err, "%.*s", (int)lead, "wrapped!");
			assert_true(strlen(err.message) < ERR_MESSAGE_BYTES);
			assert_true(str_is_utf8(str_of(err.message)));
			err_set_sys(&err, ERR_INTERNAL, ENOENT, "%s", text);
			assert_true(str_is_utf8(str_of(err.message)));
		}
	}
}

static void bytes_that_are_no_utf8_do_not_confuse_the_cut(void **state)
{
	char text[2 * ERR_MESSAGE_BYTES];
	struct err err;

	(void)state;
	for (int byte = 0x80; byte < 0x100; byte++) {
		memset(text, byte, sizeof(text) - 1);
		text[sizeof(text) - 1] = '\0';
		err_set(&err, ERR_INTERNAL, "%s", text);
		assert_true(strlen(err.message) >= ERR_MESSAGE_BYTES - 5);
	}
}

static void errnos_have_kinds_and_lower_case_texts(void **state)
{
	(void)state;
	assert_int_equal(err_kind_from_errno(0), ERR_OK);
	assert_int_equal(err_kind_from_errno(-ENOENT), ERR_NOT_FOUND);
	assert_int_equal(err_kind_from_errno(ENOENT), ERR_NOT_FOUND);
	assert_int_equal(err_kind_from_errno(EACCES), ERR_PERMISSION_DENIED);
	assert_int_equal(err_kind_from_errno(ENOSPC), ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(err_kind_from_errno(ENOSYS), ERR_UNIMPLEMENTED);
	assert_int_equal(err_kind_from_errno(EIO), ERR_INTERNAL);
	assert_int_equal(err_kind_from_errno(99999), ERR_INTERNAL);
	assert_string_equal(errno_text(ENOENT), "no such file or directory");
	assert_string_equal(errno_text(-ENOENT), "no such file or directory");
	assert_string_equal(errno_text(-4095), "end of file");
	for (int sys = 0; sys < 200; sys++) {
		const char *text = errno_text(sys);

		assert_true(strlen(text) > 3);
		assert_true(text[0] >= 'a' && text[0] <= 'z');
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kinds_have_names_and_statuses),
		cmocka_unit_test(filling_returns_what_the_caller_returns),
		cmocka_unit_test(long_messages_are_cut_between_characters),
		cmocka_unit_test(bytes_that_are_no_utf8_do_not_confuse_the_cut),
		cmocka_unit_test(errnos_have_kinds_and_lower_case_texts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
