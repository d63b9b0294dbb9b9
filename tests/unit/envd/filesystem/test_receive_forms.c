/* Forms, metadata and compressed bodies of uploads. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <zlib.h>

#include "envd/filesystem/receive.h"
#include "tests/support/cmocka.h"
#include "tests/support/intake.h"

static void conformance_072_metadata_is_replaced_as_a_whole(void **state)
{
	static const struct metadata_field first[] = {
		{{"X-Metadata-B", 12}, {"2", 1}},	    {{"x-metadata-a", 12}, {"1", 1}},
		{{"X-METADATA-A", 12}, {"ignored", 7}},	    {{"X-Metadata-", 11}, {"empty", 5}},
		{{"Content-Type", 12}, {"text/plain", 10}},
	};
	static const struct metadata_field second[] = {{{"X-Metadata-c", 12}, {"3", 1}}};
	char value[8];

	(void)state;
	intake_write_text("f", "old");
	if (setxattr(intake_at("f"), "user.e2b.old", "x", 1, 0) < 0)
		skip();
	assert_int_equal(setxattr(intake_at("f"), "user.foreign", "kept", 4, 0), 0);
	intake.request.fields = first;
	intake.request.field_count = ARRAY_LENGTH(first);
	assert_int_equal(intake_post(intake_at("f"), "x"), 0);
	assert_int_equal(intake.receive.files[0].metadata_count, 2);
	assert_string_equal(intake.receive.files[0].metadata[0].key, "a");
	assert_string_equal(intake.receive.files[0].metadata[0].value, "1");
	assert_string_equal(intake.receive.files[0].metadata[1].key, "b");
	assert_true(getxattr(intake_at("f"), "user.e2b.old", value, sizeof(value)) < 0);
	intake.request.fields = second;
	intake.request.field_count = 1;
	assert_int_equal(intake_post(intake_at("f"), "y"), 0);
	assert_int_equal(intake.receive.files[0].metadata_count, 1);
	assert_string_equal(intake.receive.files[0].metadata[0].key, "c");
	/* New files have it from the moment they are seen. */
	assert_int_equal(intake_post(intake_at("new"), "y"), 0);
	assert_int_equal(getxattr(intake_at("new"), "user.e2b.c", value, sizeof(value)), 1);
	intake.request.field_count = 0;
	assert_int_equal(intake_post(intake_at("f"), "z"), 0);
	assert_int_equal(intake.receive.files[0].metadata_count, 0);
	assert_int_equal(getxattr(intake_at("f"), "user.foreign", value, sizeof(value)), 4);
}

static void case_096_a_file_system_without_attributes(void **state)
{
	static const struct metadata_field fields[] = {{{"X-Metadata-c", 12}, {"3", 1}}};

	(void)state;
	intake.request.fields = fields;
	intake.request.field_count = 1;
	if (access("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", W_OK) < 0)
		skip();
	/* sysfs takes the write and keeps no metadata: none is claimed. */
	char text[32];
	int fd = open("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan",
		      O_RDONLY | O_CLOEXEC);
	ssize_t len = read(fd, text, sizeof(text) - 1);

	close(fd);
	assert_true(len > 0);
	text[len] = '\0';
	assert_int_equal(
		intake_post("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", text),
		0);
	assert_int_equal(intake.receive.files[0].metadata_count, 0);
}

static void conformance_075_metadata_is_validated(void **state)
{
	char name[300] = "X-Metadata-", value[4200];
	struct metadata_field field = {{name, 0}, {value, 0}};

	(void)state;
	intake.request.fields = &field;
	intake.request.field_count = 1;
	memset(name + 11, 'k', 247);
	memset(value, 'v', sizeof(value));
	field.name.len = 11 + 247;
	field.value.len = 1;
	assert_true(intake_post(intake_at("f"), "x") < 0);
	assert_non_null(strstr(intake.err.message, "invalid metadata: metadata key \"kkk"));
	assert_non_null(strstr(intake.err.message, " exceeds 246 bytes"));
	field.name.len = 12;
	field.value.len = 4096 - 9;
	assert_true(intake_post(intake_at("f"), "x") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "invalid metadata: total metadata size 4097 exceeds 4096 bytes");
	value[3] = (char)0x80;
	field.value.len = 5;
	assert_true(intake_post(intake_at("f"), "x") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "invalid metadata: metadata value for key \"k\" contains "
			     "non-printable-ASCII byte 0x80 at offset 3");
	name[14] = (char)0x80;
	field.name.len = 16;
	assert_true(intake_post(intake_at("f"), "x") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "invalid metadata: metadata key contains non-printable-ASCII "
			     "byte 0x80 at offset 3");
	assert_false(intake_exists("f"));
}

#define PART(name) \
	"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" name "\"\r\n\r\n"

static int post_form(const char *path, const char *body)
{
	intake.request.content_type = STR("multipart/form-data; boundary=b");
	return intake_post_pieces(path, body, strlen(body), 5);
}

static void case_089_forms(void **state)
{
	const char *body;

	(void)state;
	body = arena_printf(&intake.arena,
			    PART("%s/n/a/1") "one\r\n" PART(
				    "%s/n/b/2") "two\r\n--b\r\n"
						"Content-Disposition: form-data; "
						"name=\"other\"\r\n\r\nskipped\r\n" PART(
							"%s/n/3") "\r\n--b--\r\n",
			    intake.folder.path, intake.folder.path, intake.folder.path);
	assert_int_equal(post_form(NULL, body), 0);
	assert_int_equal(intake.receive.file_count, 3);
	assert_string_equal(intake.receive.files[1].path, intake_at("n/b/2"));
	intake_check_text("n/a/1", "one");
	intake_check_text("n/b/2", "two");
	intake_check_text("n/3", "");
	/* Relative names are below the home. */
	assert_int_equal(post_form(NULL, PART("rel/x") "r\r\n--b--\r\n"), 0);
	intake_check_text("rel/x", "r");
	assert_int_equal(
		post_form(NULL,
			  "--b\r\nContent-Disposition: form-data; name=file; filename*=UTF-8''"
			  "%C3%A4.txt\r\n\r\nu\r\n--b--\r\n"),
		0);
	intake_check_text("\xC3\xA4.txt", "u");
	/* No file part at all. */
	assert_int_equal(
		post_form(NULL, "--b\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n--b--"),
		0);
	assert_int_equal(intake.receive.file_count, 0);
	assert_int_equal(post_form(NULL, "--b--\r\n"), 0);
	assert_int_equal(intake.receive.file_count, 0);
}

static void conformance_083_the_path_of_the_query_wins(void **state)
{
	(void)state;
	assert_int_equal(post_form(intake_at("q"), PART("undefined") "query\r\n--b--\r\n"), 0);
	intake_check_text("q", "query");
	assert_int_equal(post_form(intake_at("q"), PART("/elsewhere/x") "again\r\n--b--\r\n"), 0);
	intake_check_text("q", "again");
	assert_int_equal(post_form(intake_at("q"),
				   "--b\r\nContent-Disposition: form-data; name=file\r\n\r\nbare"
				   "\r\n--b--\r\n"),
			 0);
	intake_check_text("q", "bare");
	/* Also when it is given and empty: then it is the home, which is a directory. */
	assert_true(post_form("", PART("x") "x\r\n--b--\r\n") < 0);
	intake_check_refused(
		ERR_INVALID_ARGUMENT,
		arena_printf(&intake.arena, "path is a directory: %s", intake.folder.path));
}

static void conformance_074_metadata_keys(void **state)
{
	static const struct metadata_field fields[] = {
		{{"X-Metadata-", 11}, {"empty", 5}},
		{{"X-METADATA-Key", 14}, {"first", 5}},
		{{"x-metadata-key", 14}, {"second", 6}},
		{{"X-Metadata-Other", 16}, {"", 0}},
		{{"X-Meta", 6}, {"no", 2}},
	};
	struct entry_metadata *metadata;
	size_t count;

	(void)state;
	assert_int_equal(metadata_collect(NULL, 0, &intake.arena, &metadata, &count, &intake.err),
			 0);
	assert_int_equal(count, 0);
	assert_int_equal(metadata_collect(fields, ARRAY_LENGTH(fields), &intake.arena, &metadata,
					  &count, &intake.err),
			 0);
	assert_int_equal(count, 2);
	assert_string_equal(metadata[0].key, "key");
	assert_string_equal(metadata[0].value, "first");
	assert_string_equal(metadata[1].key, "other");
	assert_string_equal(metadata[1].value, "");
}

static void case_089_broken_forms(void **state)
{
	(void)state;
	intake_write_text("f", "old");
	assert_true(
		post_form(NULL,
			  "--b\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--b--") <
		0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "error getting multipart custom part file name: filename not "
			     "found in Content-Disposition header");
	assert_true(post_form(intake_at("f"), PART("x") "cut off") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT, "error reading form: multipart: unexpected EOF");
	intake_check_text("f", "old");
	assert_true(post_form(intake_at("f"), PART("x") "a\r\n--b  broken") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "error reading form: multipart: bytes behind a boundary");
	intake_check_text("f", "old");
	intake.request.content_type = STR("multipart/form-data");
	assert_true(intake_post_pieces(intake_at("f"), "", 0, 1) < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "error parsing multipart form: no multipart boundary param in "
			     "Content-Type");
	intake.request.content_type = STR("multipart/related; boundary=b");
	assert_true(intake_post_pieces(intake_at("f"), "", 0, 1) < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "error parsing multipart form: request Content-Type isn't "
			     "multipart/form-data");
}

static void conformance_087_the_same_target_twice(void **state)
{
	const char *body;

	(void)state;
	assert_true(post_form(intake_at("f"),
			      PART("a") "first\r\n" PART("b") "second\r\n--b--\r\n") < 0);
	intake_check_refused(
		ERR_INVALID_ARGUMENT,
		arena_printf(&intake.arena,
			     "you cannot upload multiple files to the same path '%s' in one "
			     "upload request, only the first specified file was uploaded",
			     intake_at("f")));
	intake_check_text("f", "first");
	body = arena_printf(&intake.arena,
			    PART("%s/1") "1\r\n" PART("%s/2") "2\r\n" PART("%s/3") "3\r\n" PART(
				    "%s//1") "4\r\n--b--\r\n",
			    intake.folder.path, intake.folder.path, intake.folder.path,
			    intake.folder.path);
	assert_true(post_form(NULL, body) < 0);
	intake_check_refused(
		ERR_INVALID_ARGUMENT,
		arena_printf(&intake.arena,
			     "you cannot upload multiple files to the same path '%s' in one "
			     "upload request, only the first specified file was uploaded, "
			     "also the following files were uploaded: %s, %s",
			     intake_at("1"), intake_at("2"), intake_at("3")));
	intake_check_text("1", "1");
}

static size_t compress_text(const char *text, size_t len, char *out, size_t size)
{
	z_stream stream = {0};

	assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
			 Z_OK);
	stream.next_in = (unsigned char *)text;
	stream.avail_in = (unsigned)len;
	stream.next_out = (unsigned char *)out;
	stream.avail_out = (unsigned)size;
	assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
	deflateEnd(&stream);
	return size - stream.avail_out;
}

static void case_094_compressed_bodies(void **state)
{
	char *zeros = calloc(1, 10 << 20);
	char packed[65536];
	size_t len, one;
	struct stat st;

	(void)state;
	assert_non_null(zeros);
	intake.request.content_encoding = STR("GZIP;q=1.0");
	len = compress_text("compressed", 10, packed, sizeof(packed));
	for (size_t piece = 1; piece <= len; piece++) {
		assert_int_equal(intake_post_pieces(intake_at("f"), packed, len, piece), 0);
		intake_check_text("f", "compressed");
	}
	/* Two members are one text. */
	one = len;
	len += compress_text(" twice", 6, packed + len, sizeof(packed) - len);
	assert_int_equal(intake_post_pieces(intake_at("f"), packed, len, 3), 0);
	intake_check_text("f", "compressed twice");
	/* Everything that is wrong keeps the old content. */
	assert_true(intake_post_pieces(intake_at("f"), "not gzip at all", 15, 4) < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "error decompressing request body: failed to create gzip "
			     "reader: gzip: invalid header");
	assert_true(intake_post_pieces(intake_at("f"), "", 0, 4) < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "error decompressing request body: failed to create gzip "
			     "reader: EOF");
	for (size_t cut = 1; cut < one; cut++) {
		assert_true(intake_post_pieces(intake_at("f"), packed, cut, 7) < 0);
		intake_check_refused(
			ERR_INVALID_ARGUMENT,
			cut < 10 ? "error decompressing request body: failed to create gzip "
				   "reader: unexpected EOF"
				 : "error decompressing request body: unexpected EOF");
	}
	packed[one] = 'x';
	assert_true(intake_post_pieces(intake_at("f"), packed, one + 1, 7) < 0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	packed[one - 6] ^= 1;
	assert_true(intake_post_pieces(intake_at("f"), packed, one, 7) < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT,
			     "error decompressing request body: gzip: invalid data");
	intake_check_text("f", "compressed twice");
	intake.request.content_encoding = STR("br");
	assert_true(intake_post(intake_at("f"), "x") < 0);
	intake_check_refused(ERR_INVALID_ARGUMENT, "error decompressing request body: unsupported "
						   "Content-Encoding: br, supported: [gzip]");
	intake.request.content_encoding = STR("identity");
	assert_int_equal(intake_post(intake_at("f"), "plain"), 0);
	/* A small body that becomes large, and a form. */
	intake.request.content_encoding = STR("gzip");
	len = compress_text(zeros, 10 << 20, packed, sizeof(packed));
	assert_int_equal(intake_post_pieces(intake_at("f"), packed, len, 1000), 0);
	assert_int_equal(stat(intake_at("f"), &st), 0);
	assert_int_equal(st.st_size, 10 << 20);
	free(zeros);
}

static void conformance_076_compressed_forms(void **state)
{
	char packed[512];
	const char *form = PART("x") "in a form\r\n--b--\r\n";
	size_t len = compress_text(form, strlen(form), packed, sizeof(packed));

	(void)state;
	intake.request.content_encoding = STR("gzip");
	intake.request.content_type = STR("multipart/form-data; boundary=b");
	for (size_t piece = 1; piece < 20; piece++) {
		assert_int_equal(intake_post_pieces(intake_at("f"), packed, len, piece), 0);
		intake_check_text("f", "in a form");
	}
	assert_true(intake_post_pieces(intake_at("f"), packed, len - 9, 10) < 0);
	intake_check_text("f", "in a form");
}

static void conformance_081_compressed_raw_bodies(void **state)
{
	char packed[256];
	size_t len = compress_text("raw", 3, packed, sizeof(packed));

	(void)state;
	intake.request.content_encoding = STR("gzip");
	assert_int_equal(intake_post_pieces(intake_at("f"), packed, len, 100), 0);
	intake_check_text("f", "raw");
}

static void conformance_059_content_encodings(void **state)
{
	static const struct {
		const char *coding;
		bool is_gzip;
	} table[] = {{NULL, false},  {"", false},    {"identity", false},  {"gzip", true},
		     {"GZIP", true}, {"Gzip", true}, {"gzip;q=1.0", true}, {" gzip ; q=1", true}};
	char packed[256];
	size_t len = compress_text("text", 4, packed, sizeof(packed));

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		intake.request.content_encoding = str_of(table[i].coding);
		if (table[i].is_gzip)
			assert_int_equal(intake_post_pieces(intake_at("f"), packed, len, 10), 0);
		else
			assert_int_equal(intake_post(intake_at("f"), "text"), 0);
		intake_check_text("f", "text");
	}
}

static void conformance_073_metadata_of_a_form_is_on_every_file(void **state)
{
	static const struct metadata_field fields[] = {{{"X-Metadata-k", 12}, {"v", 1}}};
	const char *body;
	char value[8];

	(void)state;
	intake.request.fields = fields;
	intake.request.field_count = 1;
	body = arena_printf(&intake.arena, PART("%s/1") "1\r\n" PART("%s/2") "2\r\n--b--\r\n",
			    intake.folder.path, intake.folder.path);
	assert_int_equal(post_form(NULL, body), 0);
	assert_int_equal(intake.receive.file_count, 2);
	if (getxattr(intake_at("1"), "user.e2b.k", value, sizeof(value)) < 0)
		skip();
	assert_int_equal(getxattr(intake_at("2"), "user.e2b.k", value, sizeof(value)), 1);
	assert_int_equal(intake.receive.files[1].metadata_count, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, intake_setup, intake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_072_metadata_is_replaced_as_a_whole),
		TEST(case_096_a_file_system_without_attributes),
		TEST(conformance_075_metadata_is_validated),
		TEST(case_089_forms),
		TEST(case_089_broken_forms),
		TEST(conformance_074_metadata_keys),
		TEST(conformance_083_the_path_of_the_query_wins),
		TEST(conformance_087_the_same_target_twice),
		TEST(case_094_compressed_bodies),
		TEST(conformance_081_compressed_raw_bodies),
		TEST(conformance_076_compressed_forms),
		TEST(conformance_059_content_encodings),
		TEST(conformance_073_metadata_of_a_form_is_on_every_file),
	};

	return cmocka_run_group_tests(tests, intake_before_all, intake_after_all);
}
