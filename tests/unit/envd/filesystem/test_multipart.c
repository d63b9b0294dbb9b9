#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "envd/filesystem/multipart.h"

/* What came out, as text: "[name|filename]content." for each part. */
static char log_text[8192];
static size_t log_len;

static void note(const char *text, size_t len)
{
	assert_true(log_len + len < sizeof(log_text));
	memcpy(log_text + log_len, text, len);
	log_len += len;
	log_text[log_len] = '\0';
}

static int on_part(void *user, const struct multipart_part *part, struct err *err)
{
	(void)user;
	if (str_equal(part->name, STR("refuse")))
		return err_set(err, ERR_INVALID_ARGUMENT, "refused");
	note("[", 1);
	note(part->name.p, part->name.len);
	if (part->filename.p) {
		note("|", 1);
		note(part->filename.p, part->filename.len);
	}
	note("]", 1);
	return 0;
}

static int on_data(void *user, const char *data, size_t len, struct err *err)
{
	(void)user;
	(void)err;
	assert_true(len > 0);
	note(data, len);
	return 0;
}

static int on_part_end(void *user, struct err *err)
{
	(void)user;
	(void)err;
	note(".", 1);
	return 0;
}

static const struct multipart_events events = {on_part, on_data, on_part_end};

/* Feeds a body in two pieces, and in pieces of `step`. */
static int feed(const char *body, size_t len, size_t split, size_t step, struct err *err)
{
	struct multipart m;
	int status;

	log_len = 0;
	log_text[0] = '\0';
	status = multipart_init(&m, STR("multipart/form-data; boundary=XyZ"), &events, NULL, err);
	if (step) {
		for (size_t at = 0; at < len && status == 0; at += step)
			status = multipart_feed(&m, body + at, size_min(step, len - at), err);
	} else {
		status = multipart_feed(&m, body, split, err);
		if (status == 0)
			status = multipart_feed(&m, body + split, len - split, err);
	}
	if (status == 0)
		status = multipart_finish(&m, err);
	multipart_fini(&m);
	return status;
}

static void check(const char *body, size_t len, const char *want)
{
	struct err err;

	for (size_t split = 0; split <= len; split++) {
		assert_int_equal(feed(body, len, split, 0, &err), 0);
		assert_string_equal(log_text, want);
	}
	for (size_t step = 1; step < 9; step++) {
		assert_int_equal(feed(body, len, 0, step, &err), 0);
		assert_string_equal(log_text, want);
	}
}

#define CHECK(body, want) check((body), sizeof(body) - 1, (want))

static void check_error(const char *body, const char *want)
{
	size_t len = strlen(body);
	struct err err;

	for (size_t split = 0; split <= len; split++) {
		assert_true(feed(body, len, split, 0, &err) < 0);
		assert_string_equal(err.message, want);
	}
}

#define PART "Content-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\n"

static void case_089_split_at_every_byte(void **state)
{
	(void)state;
	CHECK("--XyZ\r\n" PART "hello\r\n--XyZ--\r\n", "[file|a.txt]hello.");
	CHECK("--XyZ\r\n" PART "\r\n--XyZ--", "[file|a.txt].");
	CHECK("--XyZ\r\n" PART "--XyZ--", "[file|a.txt].");
	CHECK("preamble\r\n--XyZ \t\r\n" PART "x\r\n--XyZ\r\n" PART
	      "y\r\n--XyZ--epilogue\r\n--XyZ\r\n",
	      "[file|a.txt]x.[file|a.txt]y.");
	CHECK("--XyZ--\r\n", "");
	CHECK("--XyZ\r\n\r\nno header\r\n--XyZ--", "[]no header.");
	/* Near misses of the delimiter are content. */
	CHECK("--XyZ\r\n" PART "\r\n--Xy\r\r\n--XyZa\r\n--XyZ-\n\r\r\n-\r\n\r\n--XyZ--",
	      "[file|a.txt]\r\n--Xy\r\r\n--XyZa\r\n--XyZ-\n\r\r\n-\r\n.");
	CHECK("--XyZ\r\n" PART "--Xylophone\r\n--XyZ--", "[file|a.txt]--Xylophone.");
	CHECK("--XyZ\r\n" PART "--XyZylophone\r\n--XyZ--", "[file|a.txt]--XyZylophone.");
	CHECK("--XyZ\r\n" PART "--XyZ-ylophone\r\n--XyZ--", "[file|a.txt]--XyZ-ylophone.");
}

static void binary_content_is_exact(void **state)
{
	static const char body[] = "--XyZ\r\n" PART "a\0b\xFF\r\n--XyZ--";
	struct err err;

	(void)state;
	for (size_t split = 0; split < sizeof(body); split++) {
		assert_int_equal(feed(body, sizeof(body) - 1, split, 0, &err), 0);
		assert_int_equal(log_len, sizeof("[file|a.txt]a\0b\xFF.") - 1);
		assert_memory_equal(log_text, "[file|a.txt]a\0b\xFF.", log_len);
	}
}

static void case_089_names_in_every_spelling(void **state)
{
	(void)state;
	CHECK("--XyZ\r\ncontent-disposition:form-data;name=file;filename=plain\r\n\r\n\r\n--XyZ--",
	      "[file|plain].");
	CHECK("--XyZ\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\r\n--XyZ--",
	      "[file].");
	CHECK("--XyZ\r\nContent-Disposition: form-data; name=\"file\"; "
	      "filename=\"\"\r\n\r\n\r\n--XyZ--",
	      "[file|].");
	CHECK("--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"d/e/\xC3\xA4 "
	      "f.txt\"\r\n"
	      "Content-Type: text/plain\r\n\r\n\r\n--XyZ--",
	      "[file|d/e/\xC3\xA4 f.txt].");
	CHECK("--XyZ\r\nContent-Disposition: form-data; name=\"file\"; "
	      "filename=\"a\\\"b\\\\c\\d%22\"\r\n"
	      "\r\n\r\n--XyZ--",
	      "[file|a\"b\\c\\d%22].");
	CHECK("--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"; "
	      "filename*=UTF-8''%e2%82%ac%20rates\r\n\r\n\r\n--XyZ--",
	      "[file|\xE2\x82\xAC rates].");
	/* What cannot be decoded is as if it were not there. */
	CHECK("--XyZ\r\nContent-Disposition: form-data; name=\"file\"; "
	      "filename*=iso-8859-1''%e4.txt; "
	      "filename=\"x.txt\"\r\n\r\n\r\n--XyZ--",
	      "[file|x.txt].");
	CHECK("--XyZ\r\nContent-Disposition: form-data; name=\"file\"; filename*0*=utf-8''%61; "
	      "filename*1=\"b;c\"; filename*3=lost\r\n\r\n\r\n--XyZ--",
	      "[file|ab;c].");
	CHECK("--XyZ\r\nContent-Disposition: form-data;\r\n "
	      "name=\"file\";\r\n\tfilename=\"f\"\r\n\r\n\r\n"
	      "--XyZ--",
	      "[file|f].");
	CHECK("--XyZ\r\nContent-Disposition: attachment; name=\"file\"; "
	      "filename=\"f\"\r\n\r\nx\r\n--XyZ--",
	      "[]x.");
	CHECK("--XyZ\r\nX-Other: a:b\r\nContent-Disposition : form-data; name=other; "
	      "filename=undefined ;\r\n"
	      "\r\nx\r\n--XyZ--",
	      "[other|undefined]x.");
}

static void case_089_broken_bodies_are_errors(void **state)
{
	(void)state;
	check_error("", "multipart: unexpected EOF");
	check_error("nothing", "multipart: unexpected EOF");
	check_error("--XyZ", "multipart: unexpected EOF");
	check_error("--XyZ\r\n" PART "hello", "multipart: unexpected EOF");
	check_error("--XyZ\r\n" PART "hello\r\n--XyZ", "multipart: unexpected EOF");
	check_error("--XyZ\r\n" PART "hello\r\n--XyZ-", "multipart: unexpected EOF");
	check_error("--XyZ\r\n" PART "hello\r\n--XyZ\r\n", "multipart: unexpected EOF");
	check_error("--XyZ\r\nContent-Disposition: form-data", "multipart: unexpected EOF");
	check_error("--XyZ  x\r\n", "multipart: bytes behind a boundary");
	check_error("--XyZ\rx\r\n", "multipart: boundary line without line end");
	check_error("--XyZ\r\nContent-Disposition: form-data; name=\"x\r\n\r\nx\r\n--XyZ--",
		    "multipart: malformed Content-Disposition header");
	check_error(
		"--XyZ\r\nContent-Disposition: form-data; name=file; filename*=latin''%41\r\n\r\n"
		"--XyZ--",
		"multipart: malformed Content-Disposition header");
	check_error(
		"--XyZ\r\nContent-Disposition: form-data; name=file; filename*=utf-8''a%00b\r\n\r\n"
		"--XyZ--",
		"multipart: file name with a NUL byte");
	check_error("--XyZ\r\nContent-Disposition: form-data; name=refuse\r\n\r\n--XyZ--",
		    "refused");
}

#define QUOTED \
	"--XyZ\r\nContent-Disposition: form-data; name=file\r\nContent-Transfer-Encoding: " \
	"Quoted-Printable\r\n\r\n"

static void case_199_quoted_printable_parts_are_decoded(void **state)
{
	(void)state;
	CHECK(QUOTED "\r\n--XyZ--", "[file].");
	CHECK(QUOTED "caf=C3=A9 =3d =\r\nin one line\r\nnext  \t\r\nlast\nbare \t\r\n--XyZ--",
	      "[file]caf\xC3\xA9 = in one line\r\nnext\r\nlast\nbare.");
	/* A '=' that escapes nothing, and one at the very end. */
	CHECK(QUOTED "1=+1 =A =zz =4g=\r\n--XyZ--", "[file]1=+1 =A =zz =4g.");
	CHECK(QUOTED "soft=  \t\r\nend=4\r\n--XyZ--", "[file]softend=4.");
	CHECK(QUOTED "--=\r\n--XyZ\r\n" PART "a=3Db\r\n--XyZ--", "[file]--.[file|a.txt]a=3Db.");
	CHECK("--XyZ\r\nContent-Disposition: form-data; name=file\r\nContent-Transfer-Encoding: "
	      "base64\r\n\r\n"
	      "aGk=\r\n--XyZ--",
	      "[file]aGk=.");
	check_error(QUOTED "bell \x07\r\n--XyZ--",
		    "multipart: quotedprintable: invalid unescaped byte in body 0x07");
	check_error(QUOTED "a= b\r\n--XyZ--",
		    "multipart: quotedprintable: invalid byte after = 0x62");
	check_error(QUOTED "a=\rb\r\n--XyZ--",
		    "multipart: quotedprintable: invalid byte after = 0x62");
}

/* Nothing of it is held but blanks, and not too many. */
static void case_199_quoted_printable_lines_of_any_length(void **state)
{
	size_t len = 300000;
	char *content = malloc(len);
	struct multipart m;
	struct err err;

	(void)state;
	assert_non_null(content);
	memset(content, ' ', len);
	assert_int_equal(
		multipart_init(&m, STR("multipart/form-data; boundary=XyZ"), &events, NULL, &err),
		0);
	assert_int_equal(multipart_feed(&m, QUOTED, sizeof(QUOTED) - 1, &err), 0);
	log_len = 0;
	assert_int_equal(multipart_feed(&m, content, QUOTED_PRINTABLE_BLANKS_MAX, &err), 0);
	assert_int_equal(multipart_feed(&m, "x", 1, &err), 0);
	assert_int_equal(log_len, QUOTED_PRINTABLE_BLANKS_MAX + 1);
	assert_true(multipart_feed(&m, content, len, &err) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_string_equal(err.message, "multipart: quotedprintable: too many blanks in a row");
	multipart_fini(&m);
	free(content);
}

static void case_199_bare_line_feeds_are_the_clients_mistake(void **state)
{
	struct err err;
	static const char *const bodies[] = {
		"--XyZ\nContent-Disposition: form-data; name=file\n\nhello\n--XyZ--\n",
		"--XyZ\r\nContent-Disposition: form-data; name=file\n\nhello\n--XyZ--\n",
		"--XyZ\r\n\nhello\r\n--XyZ--\r\n",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(bodies); i++) {
		check_error(bodies[i], "multipart: lines end in LF, not in CR LF");
		assert_true(feed(bodies[i], strlen(bodies[i]), 0, 1, &err) < 0);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	}
	/* In content they are content. */
	CHECK("--XyZ\r\n" PART "a\n\n--XyZ\n\nb\r\n--XyZ--", "[file|a.txt]a\n\n--XyZ\n\nb.");
}

static void part_headers_are_bounded(void **state)
{
	size_t len = MULTIPART_HEADERS_BYTES_MAX + 100;
	char *body = malloc(len);
	struct err err;

	(void)state;
	assert_non_null(body);
	memset(body, 'a', len);
	memcpy(body, "--XyZ\r\n", 7);
	assert_true(feed(body, len, 0, 1000, &err) < 0);
	assert_string_equal(err.message, "multipart: part header too large");
	free(body);
}

static void boundaries_come_from_the_content_type(void **state)
{
	static const struct {
		const char *type, *error;
	} table[] = {
		{"multipart/form-data; boundary=abc", NULL},
		{"Multipart/Form-Data; charset=utf-8; Boundary=\"a b:c\"", NULL},
		{"multipart/mixed; boundary=abc", NULL},
		{"multipart/form-data", "no multipart boundary param in Content-Type"},
		{"multipart/form-data; boundary", "no multipart boundary param in Content-Type"},
		{"multipart/form-data; boundary=",
		 "multipart: boundary is empty, too long or has control "
		 "characters"},
		{"multipart/related; boundary=abc",
		 "request Content-Type isn't multipart/form-data"},
		{"multipart/form-data; boundary=\"a\rb\"",
		 "multipart: boundary is empty, too long or has "
		 "control characters"},
	};
	char longest[300] = "multipart/form-data; boundary=";
	struct multipart m;
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		int status = multipart_init(&m, str_of(table[i].type), &events, NULL, &err);

		assert_int_equal(status < 0, table[i].error != NULL);
		if (table[i].error)
			assert_string_equal(err.message, table[i].error);
		multipart_fini(&m);
	}
	memset(longest + strlen(longest), 'x', MULTIPART_BOUNDARY_BYTES_MAX + 1);
	assert_true(multipart_init(&m, str_of(longest), &events, NULL, &err) < 0);
	longest[strlen(longest) - 1] = '\0';
	assert_int_equal(multipart_init(&m, str_of(longest), &events, NULL, &err), 0);
	multipart_fini(&m);
}

static void large_content_passes_through(void **state)
{
	size_t len = 100000;
	char *content = malloc(len);
	struct multipart m;
	struct err err;

	(void)state;
	assert_non_null(content);
	memset(content, '\r', len);
	assert_int_equal(
		multipart_init(&m, STR("multipart/form-data; boundary=XyZ"), &events, NULL, &err),
		0);
	assert_int_equal(multipart_feed(&m, "preamble", 8, &err), 0);
	assert_int_equal(multipart_feed(&m, content, len, &err), 0);
	assert_int_equal(buf_length(&m.headers), 0);
	multipart_fini(&m);
	free(content);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_089_split_at_every_byte),
		cmocka_unit_test(binary_content_is_exact),
		cmocka_unit_test(case_089_names_in_every_spelling),
		cmocka_unit_test(case_089_broken_bodies_are_errors),
		cmocka_unit_test(case_199_quoted_printable_parts_are_decoded),
		cmocka_unit_test(case_199_quoted_printable_lines_of_any_length),
		cmocka_unit_test(case_199_bare_line_feeds_are_the_clients_mistake),
		cmocka_unit_test(part_headers_are_bounded),
		cmocka_unit_test(boundaries_come_from_the_content_type),
		cmocka_unit_test(large_content_passes_through),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
