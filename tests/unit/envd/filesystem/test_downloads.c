/* Downloads over the wire: errors, ranges, conditions, encodings, names, and clients that leave. */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "envd/filesystem/path.h"
#include "envd/limits.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/site.h"

static void conformance_061_download_errors(void **state)
{
	struct answer answer;
	int fd;

	(void)state;
	site_write_bytes("f", "x", 1);
	answer = site_get(site.folder.path, NULL);
	site_check_error(&answer, 400,
			 arena_printf(&site.arena, "path '%s' is a directory", site.folder.path));
	answer = site_get(site_at("none"), NULL);
	site_check_error(&answer, 404,
			 arena_printf(&site.arena, "path '%s' does not exist", site_at("none")));
	site_check_header(&answer, "Content-Disposition", NULL);
	answer = site_get(site_at("f/x"), NULL);
	site_check_error(&answer, 400,
			 arena_printf(&site.arena,
				      "error checking if path exists '%s': stat %s: not a "
				      "directory",
				      site_at("f/x"), site_at("f/x")));
	answer = site_get("~other", NULL);
	site_check_error(&answer, 400,
			 "error expanding and resolving path '~other': failed to expand path '' "
			 "for user 'root': cannot expand user-specific home dir");
	answer = site_get(site_at("f"), "Accept-Encoding: br, identity;q=0\r\n");
	site_check_error(&answer, 406,
			 "error parsing Accept-Encoding: no acceptable encoding found, supported: "
			 "[gzip]");
	answer = site_get(site_at("f"),
			  "Accept-Encoding: gzip; q=1,*; q=0\r\nRange: bytes=0-4\r\n");
	site_check_error(&answer, 406,
			 "identity encoding not acceptable for Range or conditional request");
	site_check_header(&answer, "Vary", "Accept-Encoding");
	fd = site_connect_server();
	site_send_text(fd, arena_printf(&site.arena,
					"GET /files?path=%s&username= HTTP/1.1\r\nHost: x\r\n"
					"Connection: close\r\n\r\n",
					site_encode(site_at("f"))));
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	site_check_error(&answer, 401, "error looking up user '': user: unknown user ");
	fd = site_connect_server();
	site_send_text(fd,
		       "GET /files?path=%2Fa%00b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	site_check_error(&answer, 400, "error expanding and resolving path '/a': invalid NUL byte");
	fd = site_connect_server();
	site_send_text(fd,
		       "GET /files?path=a&path=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 400);
	assert_string_equal(answer.body,
			    "Invalid format for parameter path: multiple values for single "
			    "value parameter 'path'\n");
}

/* What a gzip body holds; NULL when it is not a whole one. */
static const char *gunzip(const struct answer *answer, size_t *ret_len)
{
	z_stream stream = {.next_in = (unsigned char *)answer->body, .avail_in = (uInt)answer->len};
	size_t capacity = 1 << 20, used = 0;
	char *out = malloc(capacity + 1), *copy;
	int status = Z_OK;

	assert_non_null(out);
	assert_int_equal(inflateInit2(&stream, 15 + 16), Z_OK);
	while (status == Z_OK) {
		if (used == capacity) {
			capacity *= 2;
			out = realloc(out, capacity + 1);
			assert_non_null(out);
		}
		stream.next_out = (unsigned char *)out + used;
		stream.avail_out = (uInt)(capacity - used);
		status = inflate(&stream, Z_NO_FLUSH);
		used = capacity - stream.avail_out;
	}
	inflateEnd(&stream);
	copy = status == Z_STREAM_END && stream.avail_in == 0
		       ? arena_strndup(&site.arena, out, used)
		       : NULL;
	free(out);
	*ret_len = used;
	return copy;
}

static void check_gzip(struct answer *answer, const void *want, size_t len)
{
	const char *content;
	size_t have;

	assert_int_equal(answer->status, 200);
	site_check_header(answer, "Content-Encoding", "gzip");
	site_check_header(answer, "Transfer-Encoding", "chunked");
	site_check_header(answer, "Content-Length", NULL);
	site_check_header(answer, "Last-Modified", NULL);
	site_check_header(answer, "Accept-Ranges", NULL);
	site_check_header(answer, "Vary", "Accept-Encoding");
	site_unchunk(answer);
	content = gunzip(answer, &have);
	assert_non_null(content);
	assert_int_equal(have, len);
	assert_memory_equal(content, want, len);
}

#define DIGITS "0123456789"

/* 2001-09-09T01:46:40Z */
#define MODIFIED 1000000000
#define MODIFIED_TEXT "Sun, 09 Sep 2001 01:46:40 GMT"

static const char *write_dated(void)
{
	const struct timespec times[2] = {{.tv_sec = MODIFIED}, {.tv_sec = MODIFIED, .tv_nsec = 5}};

	site_write_bytes("f.txt", DIGITS, 10);
	assert_int_equal(utimensat(AT_FDCWD, site_at("f.txt"), times, 0), 0);
	return site_at("f.txt");
}

static void conformance_062_case_102_one_range(void **state)
{
	static const struct {
		const char *range, *content_range, *body;
		int status;
	} table[] = {
		{"bytes=2-4", "bytes 2-4/10", "234", 206},
		{"bytes=0-0", "bytes 0-0/10", "0", 206},
		{"bytes=5-9", "bytes 5-9/10", "56789", 206},
		{"bytes=5-", "bytes 5-9/10", "56789", 206},
		{"bytes=-3", "bytes 7-9/10", "789", 206},
		{"bytes=-30", "bytes 0-9/10", DIGITS, 206},
		{"bytes=8-99", "bytes 8-9/10", "89", 206},
		{"bytes= 3 - 4 ", "bytes 3-4/10", "34", 206},
		{"bytes=20-,1-2", "bytes 1-2/10", "12", 206},
		{"bytes=,,7-7,", "bytes 7-7/10", "7", 206},
		{"bytes=0-99999999999999999999", "bytes 0-9/10", DIGITS, 206},
		{"bytes=0-,0-", NULL, DIGITS, 200},
		{"bytes=", NULL, DIGITS, 200},
		{"bytes=10-", "bytes */10", "invalid range: failed to overlap\n", 416},
		{"bytes=9999-", "bytes */10", "invalid range: failed to overlap\n", 416},
		{"bytes=10-,-0", "bytes */10", "invalid range: failed to overlap\n", 416},
		{"bytes=4-2", NULL, "invalid range\n", 416},
		{"bytes=a-b", NULL, "invalid range\n", 416},
		{"bytes=3", NULL, "invalid range\n", 416},
		{"bytes=--3", NULL, "invalid range\n", 416},
		{"bytes=-", NULL, "invalid range\n", 416},
		{"bytes=0-1,x", NULL, "invalid range\n", 416},
		{"lines=0-1", NULL, "invalid range\n", 416},
		{"", NULL, DIGITS, 200},
	};
	const char *path = write_dated();

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct answer answer = site_get(
			path, arena_printf(&site.arena, "Range: %s\r\n", table[i].range));

		if (answer.status != table[i].status)
			fail_msg("%s: %d", table[i].range, answer.status);
		assert_string_equal(answer.body, table[i].body);
		site_check_header(&answer, "Content-Range", table[i].content_range);
		site_check_header(&answer, "Content-Length",
				  arena_printf(&site.arena, "%zu", strlen(table[i].body)));
		site_check_header(&answer, "Vary", "Accept-Encoding");
		site_check_header(&answer, "Content-Type", "text/plain; charset=utf-8");
		site_check_header(&answer, "Content-Disposition", "inline; filename=f.txt");
		site_check_header(&answer, "Accept-Ranges", answer.status == 416 ? NULL : "bytes");
		site_check_header(&answer, "Last-Modified",
				  answer.status == 416 ? NULL : MODIFIED_TEXT);
	}
}

static void case_102_several_ranges(void **state)
{
	const char *path = write_dated(), *type, *boundary, *want;
	struct answer answer = site_get(path, "Range: bytes=5-6,0-1, -1\r\n");

	(void)state;
	assert_int_equal(answer.status, 206);
	site_check_header(&answer, "Content-Range", NULL);
	type = strstr(answer.head, "Content-Type: multipart/byteranges; boundary=");
	assert_non_null(type);
	boundary = arena_strndup(&site.arena, type + 45, strcspn(type + 45, "\r"));
	want = arena_printf(&site.arena,
			    "--%s\r\nContent-Range: bytes 5-6/10\r\nContent-Type: text/plain; "
			    "charset=utf-8\r\n\r\n56"
			    "\r\n--%s\r\nContent-Range: bytes 0-1/10\r\nContent-Type: text/plain; "
			    "charset=utf-8\r\n\r\n01"
			    "\r\n--%s\r\nContent-Range: bytes 9-9/10\r\nContent-Type: text/plain; "
			    "charset=utf-8\r\n\r\n9"
			    "\r\n--%s--\r\n",
			    boundary, boundary, boundary, boundary);
	assert_string_equal(answer.body, want);
	site_check_header(&answer, "Content-Length",
			  arena_printf(&site.arena, "%zu", strlen(want)));
}

static void case_102_ranges_of_a_large_file(void **state)
{
	size_t len = 3000000;
	char *bytes = site_make_bytes(len, 11);
	const char *body;
	struct answer answer;

	(void)state;
	site_write_bytes("f", bytes, len);
	answer = site_get(site_at("f"),
			  "Range: bytes=1000000-1999999\r\nAccept-Encoding: gzip\r\n");
	assert_int_equal(answer.status, 206);
	site_check_header(&answer, "Content-Encoding", NULL);
	assert_int_equal(answer.len, 1000000);
	assert_memory_equal(answer.body, bytes + 1000000, answer.len);
	answer = site_get(site_at("f"), "Range: bytes=65530-65550\r\n");
	assert_int_equal(answer.len, 21);
	assert_memory_equal(answer.body, bytes + 65530, 21);
	/* Backwards: the start comes last. */
	answer = site_get(site_at("f"), "Range: bytes=2000000-2999999, 0-999999\r\n");
	assert_int_equal(answer.status, 206);
	body = memmem(answer.body, answer.len, "\r\n\r\n", 4);
	assert_memory_equal(body + 4, bytes + 2000000, 1000000);
	body = memmem(body + 4 + 1000000, 500, "\r\n\r\n", 4);
	assert_memory_equal(body + 4, bytes, 1000000);
	free(bytes);
}

static void case_102_conditions(void **state)
{
	static const struct {
		const char *headers;
		int status;
	} table[] = {
		{"If-Modified-Since: " MODIFIED_TEXT "\r\n", 304},
		{"If-Modified-Since: Sun, 09 Sep 2001 01:46:41 GMT\r\n", 304},
		{"If-Modified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n", 200},
		{"If-Modified-Since: Sunday, 09-Sep-01 01:46:40 GMT\r\n", 304},
		{"If-Modified-Since: Sun Sep  9 01:46:40 2001\r\n", 304},
		{"If-Modified-Since: yesterday\r\n", 200},
		{"If-Modified-Since: " MODIFIED_TEXT " x\r\n", 200},
		{"If-None-Match: *\r\n", 304},
		{"If-None-Match: \"a\", W/\"b\"\r\n", 200},
		{"If-None-Match: \"a\"\r\nIf-Modified-Since: " MODIFIED_TEXT "\r\n", 200},
		{"If-Match: *\r\n", 200},
		{"If-Match: \"a\"\r\n", 412},
		{"If-Unmodified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n", 412},
		{"If-Unmodified-Since: " MODIFIED_TEXT "\r\n", 200},
		{"If-Unmodified-Since: never\r\n", 200},
		{"If-Match: *\r\nIf-Unmodified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n", 200},
		{"Range: bytes=1-2\r\nIf-Range: " MODIFIED_TEXT "\r\n", 206},
		{"Range: bytes=1-2\r\nIf-Range: Sun, 09 Sep 2001 01:46:41 GMT\r\n", 200},
		{"Range: bytes=1-2\r\nIf-Range: \"tag\"\r\n", 200},
		{"Range: bytes=1-2\r\nIf-Modified-Since: " MODIFIED_TEXT "\r\n", 304},
		{"Range: bytes=99-\r\nIf-Match: \"a\"\r\n", 412},
	};
	const char *path = write_dated();

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct answer answer = site_get(path, table[i].headers);

		if (answer.status != table[i].status)
			fail_msg("%s: %d", table[i].headers, answer.status);
		site_check_header(&answer, "Last-Modified", MODIFIED_TEXT);
		site_check_header(&answer, "Vary", "Accept-Encoding");
		site_check_header(&answer, "Content-Encoding", NULL);
		if (answer.status == 304 || answer.status == 412) {
			assert_int_equal(answer.len, 0);
			site_check_header(&answer, "Content-Type", NULL);
			site_check_header(&answer, "Content-Length",
					  answer.status == 412 ? "0" : NULL);
		}
		if (answer.status == 200)
			assert_string_equal(answer.body, DIGITS);
	}
}

static void conformance_056_case_102_encodings(void **state)
{
	static const struct {
		const char *accept, *more;
		int status;
		bool is_gzip;
	} table[] = {
		{"gzip", "", 200, true},
		{"GZIP", "", 200, true},
		{"gzip, deflate, br", "", 200, true},
		{"*, identity;q=0", "", 200, true},
		{"gzip;q=0", "", 200, false},
		{"br", "", 200, false},
		{"*", "", 200, false},
		{"gzip;q=0.5, identity", "", 200, false},
		{"identity;q=0", "", 406, false},
		{"*;q=0", "", 406, false},
		{"gzip; q=1,*; q=0", "Range: bytes=0-4\r\n", 406, false},
		{"gzip, identity;q=0", "If-None-Match: *\r\n", 406, false},
		{"gzip, identity;q=0", "If-Modified-Since: x\r\n", 406, false},
		{"gzip, identity;q=0", "If-Range: x\r\n", 406, false},
		{"gzip, deflate", "Range: bytes=1-3\r\n", 206, false},
		{"gzip", "If-None-Match: *\r\n", 304, false},
		{"gzip", "If-Match: *\r\n", 200, true},
	};
	const char *path = write_dated();

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct answer answer = site_get(path, arena_printf(&site.arena,
								   "Accept-Encoding: %s\r\n%s",
								   table[i].accept, table[i].more));

		if (answer.status != table[i].status)
			fail_msg("%s %s: %d", table[i].accept, table[i].more, answer.status);
		if (table[i].is_gzip)
			check_gzip(&answer, DIGITS, 10);
		else
			site_check_header(&answer, "Content-Encoding", NULL);
		if (answer.status == 406)
			site_check_error(&answer, 406,
					 table[i].more[0]
						 ? "identity encoding not acceptable for Range "
						   "or conditional request"
						 : "error parsing Accept-Encoding: no acceptable "
						   "encoding found, supported: [gzip]");
	}
}

static void conformance_057_conformance_084_gzip_answers(void **state)
{
	static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 131072, 1000000, 20000000};
	char *text = malloc(20000000), *noise = site_make_bytes(2000000, 3);
	struct answer answer;

	(void)state;
	assert_non_null(text);
	for (size_t i = 0; i < 20000000; i++)
		text[i] = "some text that is written again and again, "[i % 43] + (i % 4001 == 0);
	for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
		site_write_bytes("f.txt", text, sizes[i]);
		answer = site_get(site_at("f.txt"), "Accept-Encoding: gzip\r\n");
		site_check_header(&answer, "Content-Type", "text/plain; charset=utf-8");
		check_gzip(&answer, text, sizes[i]);
	}
	/* Not by content, in the reference. */
	site_write_bytes("text", text, 100);
	answer = site_get(site_at("text"), "Accept-Encoding: gzip\r\n");
	site_check_header(&answer, "Content-Type", "application/octet-stream");
	check_gzip(&answer, text, 100);
	/* What does not shrink is sent as it is, unless the client insists. */
	site_write_bytes("f", noise, 2000000);
	answer = site_get(site_at("f"), "Accept-Encoding: gzip\r\n");
	site_check_header(&answer, "Content-Encoding", NULL);
	site_check_header(&answer, "Content-Length", "2000000");
	assert_memory_equal(answer.body, noise, 2000000);
	answer = site_get(site_at("f"), "Accept-Encoding: gzip, identity;q=0\r\n");
	check_gzip(&answer, noise, 2000000);
	site_write_bytes("f", noise, 1000);
	answer = site_get(site_at("f"), "Accept-Encoding: gzip\r\n");
	check_gzip(&answer, noise, 1000);
	free(text);
	free(noise);
}

static void case_103_a_broken_gzip_answer_does_not_end_well(void **state)
{
	size_t len = 400000000, used = 0;
	char *piece = malloc(1 << 20);
	int fd;
	ssize_t got;

	(void)state;
	assert_non_null(piece);
	site_write_bytes("f", "text", 4);
	assert_int_equal(truncate(site_at("f"), (off_t)len), 0);
	fd = site_connect_server();
	site_send_text(
		fd,
		arena_printf(&site.arena,
			     "GET /files?path=%s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n"
			     "Connection: close\r\n\r\n",
			     site_encode(site_at("f"))));
	site_wait_readable(fd);
	assert_true(read(fd, piece, 1000) > 0);
	assert_int_equal(truncate(site_at("f"), 100000), 0);
	while ((got = read(fd, piece, 1 << 20)) > 0)
		used += (size_t)got;
	assert_true(got < 0); /* a reset: neither the gzip text nor the chunks have ended */
	assert_true(used < len);
	close(fd);
	free(piece);
}

static void gzip_for_many_at_once_stays_small(void **state)
{
	size_t len = 2000000;
	int connections[FILE_COMPRESSIONS_MAX + 20], waiting[FILE_COMPRESSIONS_FORCED_MAX + 5];
	size_t plain = 0, served = 0, refused = 0;
	char *text = calloc(1, len);

	(void)state;
	/* Half of it noise, so that a socket's buffers do not take it all. */
	assert_non_null(text);
	for (unsigned i = 0, seed = 1; i < len; i++)
		text[i] = (char)((seed = seed * 1103515245 + 12345) >> 20 & 15);
	site_write_bytes("f", text, len);
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		connections[i] = site_connect_server();
		site_send_text(connections[i],
			       arena_printf(&site.arena,
					    "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n"
					    "Connection: close\r\nAccept-Encoding: gzip\r\n\r\n",
					    site_encode(site_at("f"))));
	}
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		struct answer answer;

		site_read_to_end(connections[i], &answer, ANSWER_BYTES_MAX);
		if (strstr(answer.head, "Content-Encoding: gzip")) {
			check_gzip(&answer, text, len);
		} else {
			assert_int_equal(answer.len, len);
			assert_memory_equal(answer.body, text, len);
			plain++;
		}
	}
	assert_true(plain <= 20);
	site_wait_until(site_is_at_rest, 0);
	/* Who takes nothing else is refused beyond a number: these read nothing, so none is
	 * done. */
	site_write_bytes("f", "", 0);
	assert_int_equal(truncate(site_at("f"), (off_t)1 << 40), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(waiting); i++) {
		waiting[i] = site_connect_server();
		site_send_text(waiting[i],
			       arena_printf(&site.arena,
					    "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n"
					    "Accept-Encoding: gzip, identity;q=0\r\n\r\n",
					    site_encode(site_at("f"))));
	}
	for (size_t i = 0; i < ARRAY_LENGTH(waiting); i++) {
		char head[16] = "";

		site_wait_readable(waiting[i]);
		assert_true(read(waiting[i], head, 12) == 12);
		served += strcmp(head + 9, "200") == 0;
		refused += strcmp(head + 9, "503") == 0;
	}
	assert_int_equal(served, FILE_COMPRESSIONS_FORCED_MAX);
	assert_int_equal(refused, ARRAY_LENGTH(waiting) - FILE_COMPRESSIONS_FORCED_MAX);
	for (size_t i = 0; i < ARRAY_LENGTH(waiting); i++)
		close(waiting[i]);
	site_wait_until(site_is_at_rest, 0);
	free(text);
}

static void conformance_055_only_the_base_name_is_told(void **state)
{
	struct answer answer;

	(void)state;
	assert_int_equal(mkdir(site_at("a"), 0755), 0);
	assert_int_equal(mkdir(site_at("a/b"), 0755), 0);
	site_write_bytes("a/b/c.txt", "x", 1);
	answer = site_get(site_at("a/b/c.txt"), NULL);
	site_check_header(&answer, "Content-Disposition", "inline; filename=c.txt");
}

static void conformance_054_names_in_content_disposition(void **state)
{
	static const struct {
		const char *name, *want;
	} table[] = {
		{"test.txt", "inline; filename=test.txt"},
		{"presentation.pptx", "inline; filename=presentation.pptx"},
		{"archive.tar.gz", "inline; filename=archive.tar.gz"},
		{".env", "inline; filename=.env"},
		{"my document.pdf", "inline; filename=\"my document.pdf\""},
		{"file\"name.txt", "inline; filename=\"file\\\"name.txt\""},
		{"file\\name.txt", "inline; filename=\"file\\\\name.txt\""},
		{"\xE6\x96\x87\xE6\xA1\xA3.pdf", "inline; filename*=utf-8''%E6%96%87%E6%A1%A3.pdf"},
		{"a\r\nSet-Cookie: x", "inline; filename*=utf-8''a%0D%0ASet-Cookie%3A%20x"},
		{"\xFF\xFE", "inline; filename*=utf-8''%FF%FE"},
	};

	(void)state;
	assert_int_equal(mkdir(site_at("nested"), 0755), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		const char *relative = path_join("nested", table[i].name, &site.arena);
		struct answer answer;

		site_write_bytes(relative, "x", 1);
		answer = site_get(site_at(relative), NULL);
		assert_int_equal(answer.status, 200);
		site_check_header(&answer, "Content-Disposition", table[i].want);
	}
}

static void download_types_follow_name_and_content(void **state)
{
	static const struct {
		const char *name, *content, *want;
	} table[] = {
		{"a.HTML", "x", "text/html; charset=utf-8"},
		{"a.json", "x", "application/json"},
		{"a.md", "# text", "text/plain; charset=utf-8"},
		{"page", "\n <!doctype html><p>", "text/html; charset=utf-8"},
		{"image", "\x89PNG\r\n\x1A\n....", "image/png"},
		{"binary", "\x01\x02\x03", "application/octet-stream"},
		{"dir.png/plain", "x", "text/plain; charset=utf-8"},
		{"document.pdf", "x", "application/pdf"},
	};

	(void)state;
	assert_int_equal(mkdir(site_at("dir.png"), 0755), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct answer answer;

		site_write_bytes(table[i].name, table[i].content, strlen(table[i].content));
		answer = site_get(site_at(table[i].name), NULL);
		site_check_header(&answer, "Content-Type", table[i].want);
		assert_non_null(strstr(answer.head, "\r\nLast-Modified: "));
	}
}

static void case_103_a_file_that_shrinks_breaks_the_download_off(void **state)
{
	size_t len = 30000000, used = 0;
	char *bytes = site_make_bytes(len, 5), *piece = malloc(1 << 20);
	struct answer answer;
	int fd;
	ssize_t got;

	(void)state;
	assert_non_null(piece);
	site_write_bytes("f", bytes, len);
	fd = site_connect_server();
	site_send_text(fd,
		       arena_printf(&site.arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n\r\n",
				    site_encode(site_at("f"))));
	site_wait_readable(fd);
	assert_true(read(fd, piece, 1000) > 0);
	assert_int_equal(truncate(site_at("f"), 1000000), 0);
	while ((got = read(fd, piece, 1 << 20)) > 0)
		used += (size_t)got;
	assert_true(got < 0); /* a reset, not an orderly end */
	assert_true(used < len);
	close(fd);
	/* Growth is not seen, deletion neither. */
	site_write_bytes("f", bytes, len);
	fd = site_connect_server();
	site_send_text(
		fd, arena_printf(&site.arena,
				 "GET /files?path=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
				 "\r\n",
				 site_encode(site_at("f"))));
	site_wait_readable(fd);
	assert_int_equal(truncate(site_at("f"), (off_t)len + 5000), 0);
	assert_int_equal(unlink(site_at("f")), 0);
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.len, len);
	assert_memory_equal(answer.body, bytes, len);
	free(bytes);
	free(piece);
}

static void case_104_abandoned_downloads_hold_nothing(void **state)
{
	size_t len = 20000000;
	struct linger hard = {.l_onoff = 1};
	char *bytes = site_make_bytes(len, 6), byte;
	int connections[50];
	struct answer answer;

	(void)state;
	site_write_bytes("f", bytes, len);
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		connections[i] = site_connect_server();
		site_send_text(connections[i],
			       arena_printf(&site.arena,
					    "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n\r\n",
					    site_encode(site_at("f"))));
	}
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		site_wait_readable(connections[i]);
		assert_int_equal(read(connections[i], &byte, 1), 1);
	}
	/* All are stuck; others are served. */
	site_write_bytes("other", "x", 1);
	answer = site_get(site_at("other"), NULL);
	assert_int_equal(answer.status, 200);
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		setsockopt(connections[i], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		close(connections[i]);
	}
	site_wait_until(site_is_at_rest, 0);
	free(bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, site_setup, site_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_061_download_errors),
		TEST(conformance_062_case_102_one_range),
		TEST(case_102_several_ranges),
		TEST(case_102_ranges_of_a_large_file),
		TEST(case_102_conditions),
		TEST(conformance_056_case_102_encodings),
		TEST(conformance_057_conformance_084_gzip_answers),
		TEST(case_103_a_broken_gzip_answer_does_not_end_well),
		TEST(gzip_for_many_at_once_stays_small),
		TEST(conformance_055_only_the_base_name_is_told),
		TEST(conformance_054_names_in_content_disposition),
		TEST(download_types_follow_name_and_content),
		TEST(case_103_a_file_that_shrinks_breaks_the_download_off),
		TEST(case_104_abandoned_downloads_hold_nothing),
	};

	return cmocka_run_group_tests(tests, site_start_thread, NULL);
}
