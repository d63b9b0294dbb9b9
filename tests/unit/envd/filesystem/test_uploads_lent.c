/* Uploads so large and fast that jobs receive them from the socket themselves: every byte in its
 * place, and where a body ends, however it ends. A real server on a thread of its own, blocking
 * sockets here. */
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/gzip.h"
#include "tests/support/cmocka.h"
#include "tests/support/site.h"

#define LARGE_BYTES (12 * FILE_UPLOAD_CHUNK_BYTES + 12345)

static const char *head(const char *path, size_t len, const char *headers)
{
	return site_post_head(path, "application/octet-stream", len, headers);
}

/* Pieces from single bytes to more than sockets hold, so that a job finds much, little or
 * nothing. */
static void send_in_pieces(int fd, const char *bytes, size_t len, unsigned seed)
{
	for (size_t done = 0, piece; done < len; done += piece) {
		seed = seed * 1103515245 + 12345;
		piece = size_min((size_t)1 << (seed >> 16) % 24, len - done);
		assert_true(site_send_all(fd, bytes + done, piece));
	}
}

static void uploads_arrive_whatever_their_pace(void **state)
{
	static const size_t sizes[] = {
		FILE_UPLOAD_CHUNK_BYTES,
		FILE_UPLOAD_CHUNK_BYTES + 1,
		FILE_UPLOAD_CHUNK_BYTES + 2,
		2 * FILE_UPLOAD_CHUNK_BYTES,
		LARGE_BYTES,
		5 * LARGE_BYTES,
	};

	(void)state;
	for (unsigned i = 0; i < 3 * ARRAY_LENGTH(sizes); i++) {
		size_t len = sizes[i % ARRAY_LENGTH(sizes)];
		char *bytes = site_make_bytes(len, i);
		int fd = site_connect_server();
		struct answer answer;

		site_send_text(fd, head(site_at("f"), len, NULL));
		send_in_pieces(fd, bytes, len, i);
		site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
		assert_int_equal(answer.status, 200);
		site_check_file("f", bytes, len);
		free(bytes);
		arena_release(&site.arena);
	}
}

static void what_follows_a_body_is_the_next_request(void **state)
{
	char *bytes = site_make_bytes(LARGE_BYTES, 1), *all;
	struct answer answer;
	const char *first, *second;
	size_t len;
	int fd;

	(void)state;
	first = arena_printf(&site.arena,
			     "POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: "
			     "application/octet-stream\r\n"
			     "Content-Length: %d\r\n\r\n",
			     site_encode(site_at("first")), LARGE_BYTES);
	second = head(site_at("second"), LARGE_BYTES, NULL);
	len = strlen(first) + strlen(second) + 2 * (size_t)LARGE_BYTES;
	all = malloc(len);
	assert_non_null(all);
	memcpy(all, first, strlen(first));
	memcpy(all + strlen(first), bytes, LARGE_BYTES);
	memcpy(all + strlen(first) + LARGE_BYTES, second, strlen(second));
	memcpy(all + len - LARGE_BYTES, bytes, LARGE_BYTES);
	fd = site_connect_server();
	assert_true(site_send_all(fd, all, len));
	/* The end of its direction is no end of ours. */
	shutdown(fd, SHUT_WR);
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 200);
	assert_non_null(strstr(answer.body, "HTTP/1.1 200 OK"));
	site_check_file("first", bytes, LARGE_BYTES);
	site_check_file("second", bytes, LARGE_BYTES);
	free(all);
	free(bytes);
}

/* At many points, in order and not; nothing of it stays, and what was there does. */
static void a_client_that_leaves_in_the_middle_leaves_nothing(void **state)
{
	const struct linger hard = {.l_onoff = 1};
	char *bytes = site_make_bytes(LARGE_BYTES, 2);

	(void)state;
	site_write_bytes("old", "as it was", 9);
	for (size_t len = 0; len < LARGE_BYTES; len += 400009) {
		int fd = site_connect_server();

		site_send_text(fd, head(site_at(len % 2 ? "old" : "new"), LARGE_BYTES, NULL));
		assert_true(site_send_all(fd, bytes, len));
		if (len % 3)
			assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)),
					 0);
		close(fd);
	}
	site_wait_until(site_is_at_rest, 0);
	site_check_file("old", "as it was", 9);
	assert_int_equal(folder_count(site.folder.path), 1);
	free(bytes);
}

struct sent_gzip {
	char *data;
	size_t len;
};

static struct sent_gzip compress_bytes(const char *bytes, size_t len)
{
	struct sent_gzip sent = {.data = malloc(len + len / 100 + 1000)};
	struct gzip_writer *writer = gzip_writer_new(true);
	struct str input = {bytes, len};
	bool has_ended = false;

	assert_non_null(sent.data);
	assert_non_null(writer);
	while (!has_ended)
		sent.len += gzip_writer_write(writer, &input, true, sent.data + sent.len, 65536,
					      &has_ended);
	gzip_writer_free(writer);
	return sent;
}

/* What jobs receive goes through the same codings and forms. */
static void compressed_bodies_and_forms_are_received_so(void **state)
{
	char *bytes = site_make_bytes(LARGE_BYTES, 3);
	struct sent_gzip sent = compress_bytes(bytes, LARGE_BYTES);
	struct answer answer;
	const char *part;
	int fd;

	(void)state;
	assert_true(sent.len > 8 * FILE_UPLOAD_CHUNK_BYTES);
	answer = site_post(site_at("f"), sent.data, sent.len, "Content-Encoding: gzip\r\n");
	assert_int_equal(answer.status, 200);
	site_check_file("f", bytes, LARGE_BYTES);
	/* Broken in its last bytes, which the job does not get. */
	sent.data[sent.len - 8] ^= 1;
	answer = site_post(site_at("f"), sent.data, sent.len, "Content-Encoding: gzip\r\n");
	assert_int_equal(answer.status, 400);
	site_check_file("f", bytes, LARGE_BYTES);
	part = arena_printf(
		&site.arena,
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%s\"\r\n\r\n",
		site_at("form"));
	fd = site_connect_server();
	site_send_text(fd, site_post_head(NULL, "multipart/form-data; boundary=b",
					  2 * (strlen(part) + LARGE_BYTES) + 2 + 9 + 1, NULL));
	site_send_text(fd, part);
	assert_true(site_send_all(fd, bytes, LARGE_BYTES));
	part = arena_printf(
		&site.arena,
		"\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%s\"\r\n\r\n",
		site_at("form2"));
	site_send_text(fd, part);
	assert_true(site_send_all(fd, bytes, LARGE_BYTES));
	site_send_text(fd, "\r\n--b--\r\n");
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 200);
	site_check_file("form", bytes, LARGE_BYTES);
	site_check_file("form2", bytes, LARGE_BYTES);
	free(sent.data);
	free(bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, site_setup, site_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(uploads_arrive_whatever_their_pace),
		TEST(what_follows_a_body_is_the_next_request),
		TEST(a_client_that_leaves_in_the_middle_leaves_nothing),
		TEST(compressed_bodies_and_forms_are_received_so),
	};

	return cmocka_run_group_tests(tests, site_start_thread, NULL);
}
