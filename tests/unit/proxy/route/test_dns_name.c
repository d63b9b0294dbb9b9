#include "proxy/route/dns_name.h"

#include <arpa/nameser.h>

#include "tests/support/cmocka.h"

static void templates(void **state)
{
	static const struct {
		const char *template, *id, *name; /* NULL: no name */
	} rows[] = {
		{"{id}.sandboxes.svc.cluster.local", "i1abc", "i1abc.sandboxes.svc.cluster.local"},
		{"{id}.sandboxes.svc.cluster.local.", "i1abc", "i1abc.sandboxes.svc.cluster.local."},
		{"sandbox-{id}-0.ns.svc", "a", "sandbox-a-0.ns.svc"},
		{"{id}", "a", "a"},
		{"a.{id}", "b", "a.b"},
		{"prefix-{id}.test", "0123456789012345678901234567890123456789012345678901234567890123456789", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct dns_template template;
		char name[DNS_NAME_BYTES];
		struct err err;

		if (dns_template_parse(str_of(rows[i].template), &template, &err) < 0)
			fail_msg("%s: %s", rows[i].template, err.message);
		if (!rows[i].name)
			assert_int_equal(dns_template_expand(&template, rows[i].id, name), -ENAMETOOLONG);
		else
			assert_int_equal(dns_template_expand(&template, rows[i].id, name), 0);
		if (rows[i].name)
			assert_string_equal(name, rows[i].name);
	}
}

static void templates_that_are_none(void **state)
{
	static const char *const rows[] = {"",	   "id",	 "{id",	      "id}",	   "{ID}.x",   "{id}.{id}", "{id}..x",
					   ".{id}", "{id}x y",	 "{id}:80",   "{id}/x",	   "%s{id}",   "{id}.x..",  "{}.{id}",
					   "{id}.\xc3\xa4"};
	char large[600];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct dns_template template;
		struct err err;

		if (dns_template_parse(str_of(rows[i]), &template, &err) == 0)
			fail_msg("%s is accepted", rows[i]);
	}
	for (size_t len = 1; len < 500; len++) {
		struct dns_template template;
		struct err err;

		memset(large, 'a', sizeof(large));
		memcpy(large + len, "{id}", 5);
		assert_int_equal(dns_template_parse(str_of(large), &template, &err) == 0, len + 1 <= 63);
	}
}

/* The name of every question here: "a.test". */
#define ASKED "\1a\4test\0"

static void questions(void **state)
{
	static const char wanted[] = "\x12\x34\1\0\0\1\0\0\0\0\0\0" ASKED "\0\x1c\0\1";
	unsigned char message[DNS_QUESTION_BYTES];
	struct dns_template template = {0};
	char name[DNS_NAME_BYTES];

	(void)state;
	assert_int_equal(dns_question_write("a.test", ns_t_aaaa, 0x1234, message), sizeof(wanted) - 1);
	assert_memory_equal(message, wanted, sizeof(wanted) - 1);
	assert_int_equal(dns_question_write("a.test.", ns_t_aaaa, 0x1234, message), sizeof(wanted) - 1);
	/* The longest there is. */
	memset(template.before, 'a', 250);
	for (size_t i = 63; i < 250; i += 64)
		template.before[i] = '.';
	assert_int_equal(dns_template_expand(&template, "bcd", name), 0);
	assert_int_equal(dns_question_write(name, ns_t_a, 0, message), sizeof(message));
}

static void answers(void **state)
{
#define HEAD(flags, count) "\x12\x34" flags "\0\1\0" count "\0\0\0\0" ASKED "\0\1\0\1"
#define RECORD(type, ttl, data) "\xc0\x0c\0" type "\0\1\0\0\0" ttl "\0\4" data
	static const struct {
		const char *message;
		size_t len;
		int status;
		size_t count;
		unsigned ttl_s;
	} rows[] = {
#define ROW(text, ...) {text, sizeof(text) - 1, __VA_ARGS__}
		ROW(HEAD("\x81\x80", "\2") RECORD("\1", "\x9", "abcd") RECORD("\1", "\5", "efgh"), 0, 2, 5),
		ROW(HEAD("\x81\x80", "\0"), -ENODATA, 0, 0),
		ROW(HEAD("\x81\x83", "\0"), -ENOENT, 0, 0),
		ROW(HEAD("\x81\x82", "\0"), -EAGAIN, 0, 0),
		ROW(HEAD("\x81\x85", "\0"), -EAGAIN, 0, 0),
		/* An alias, and a record of another kind. */
		ROW(HEAD("\x81\x80", "\2") RECORD("\5", "\1", "\2ab\0") RECORD("\1", "\7", "abcd"), 0, 1, 7),
		/* Cut, in the middle of a record or where one ends. */
		ROW(HEAD("\x83\x80", "\2") RECORD("\1", "\7", "abcd"), -EMSGSIZE, 0, 0),
		ROW(HEAD("\x83\x80", "\1") RECORD("\1", "\7", "abcd"), -EMSGSIZE, 1, 7),
		ROW(HEAD("\x81\x80", "\2") RECORD("\1", "\7", "abcd"), -EAGAIN, 0, 0),
		/* Not an answer, not to us, not to this, not even a message. */
		ROW(HEAD("\x01\x80", "\0"), -EBADMSG, 0, 0),
		ROW("\x12\x35\x81\x80\0\1\0\0\0\0\0\0" ASKED "\0\1\0\1", -EBADMSG, 0, 0),
		ROW("\x12\x34\x81\x80\0\1\0\0\0\0\0\0\1b\4test\0\0\1\0\1", -EBADMSG, 0, 0),
		ROW("\x12\x34\x81\x80\0\1\0\0\0\0\0\0" ASKED "\0\x1c\0\1", -EBADMSG, 0, 0),
		ROW("\x12\x34\x81\x80\0\0\0\0\0\0\0\0", -EBADMSG, 0, 0),
		ROW("\x12\x34\x81", -EBADMSG, 0, 0),
		ROW("", -EBADMSG, 0, 0),
		/* The question may come back in other letters, or be left out by who did not understand it. */
		ROW("\x12\x34\x81\x80\0\1\0\0\0\0\0\0\1A\4tEST\0\0\1\0\1", -ENODATA, 0, 0),
		ROW("\x12\x34\x81\x81\0\0\0\0\0\0\0\0", -EAGAIN, 0, 0),
	};
	unsigned char question[DNS_QUESTION_BYTES];
	size_t len = dns_question_write("a.test", ns_t_a, 0x1234, question);

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct dns_answer answer;
		int status = dns_answer_read((const unsigned char *)rows[i].message, rows[i].len, question,
					     len, &answer);

		if (status != rows[i].status || answer.count != rows[i].count)
			fail_msg("row %zu: %d with %zu addresses", i, status, answer.count);
		assert_int_equal(answer.ttl_s, rows[i].ttl_s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(templates),
		cmocka_unit_test(templates_that_are_none),
		cmocka_unit_test(questions),
		cmocka_unit_test(answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
