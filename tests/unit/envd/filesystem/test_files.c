/* Whole requests: a real server on a thread of its own, blocking sockets here. */
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/files.h"
#include "envd/filesystem/staging.h"
#include "envd/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/site.h"

static void case_090_empty_files_both_ways(void **state)
{
	struct answer answer;

	(void)state;
	answer = site_post(site_at("f"), "", 0, NULL);
	assert_int_equal(answer.status, 200);
	assert_string_equal(answer.body, arena_printf(&site.arena,
						      "[{\"name\":\"f\",\"path\":\"%s\",\"type\":"
						      "\"file\"}]",
						      site_at("f")));
	site_check_file("f", "", 0);
	answer = site_get(site_at("f"), NULL);
	assert_int_equal(answer.status, 200);
	assert_int_equal(answer.len, 0);
	site_check_header(&answer, "Content-Length", "0");
	site_check_header(&answer, "Content-Type", "text/plain; charset=utf-8");
	answer = site_get(site_at("f"), "Accept-Encoding: gzip\r\nRange: bytes=0-4\r\n");
	assert_int_equal(answer.status, 200);
	assert_int_equal(answer.len, 0);
	answer = site_get(site_at("f"), "Accept-Encoding: gzip\r\n");
	assert_int_equal(answer.status, 200);
	site_check_header(&answer, "Content-Encoding", "gzip");
	site_unchunk(&answer);
	assert_int_equal(answer.len, 20); /* header, an empty block, trailer */
}

static void files_of_every_size_round_trip(void **state)
{
	static const size_t sizes[] = {1,      4095,   65535,  65536,	65537,	 262143,
				       262144, 262145, 600000, 5000000, 20000000};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
		char *bytes = site_make_bytes(sizes[i], (unsigned)i);
		struct answer answer = site_post(site_at("f.bin"), bytes, sizes[i], NULL);

		assert_int_equal(answer.status, 200);
		site_check_file("f.bin", bytes, sizes[i]);
		answer = site_get(site_at("f.bin"), NULL);
		assert_int_equal(answer.status, 200);
		site_check_header(&answer, "Content-Type", "application/octet-stream");
		site_check_header(&answer, "Vary", "Accept-Encoding");
		site_check_header(&answer, "Accept-Ranges", "bytes");
		site_check_header(&answer, "Content-Length",
				  arena_printf(&site.arena, "%zu", sizes[i]));
		assert_int_equal(answer.len, sizes[i]);
		assert_memory_equal(answer.body, bytes, sizes[i]);
		free(bytes);
		arena_release(&site.arena);
	}
}

static void case_084_chunked_bodies_and_forms(void **state)
{
	char *bytes = site_make_bytes(3000000, 9), chunk_head[32];
	struct answer answer;
	const char *part;
	int fd;

	(void)state;
	fd = site_connect_server();
	site_send_text(
		fd,
		arena_printf(
			&site.arena,
			"POST /files?path=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
			"Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n"
			"Expect: 100-continue\r\n\r\n",
			site_encode(site_at("chunked"))));
	site_wait_readable(fd);
	assert_int_equal(read(fd, chunk_head, sizeof(chunk_head)), 25);
	assert_memory_equal(chunk_head, "HTTP/1.1 100 Continue\r\n\r\n", 25);
	for (size_t done = 0, len; done < 3000000; done += len) {
		len = size_min(1 + done / 7, 3000000 - done);
		snprintf(chunk_head, sizeof(chunk_head), "%zx\r\n", len);
		site_send_text(fd, chunk_head);
		assert_true(site_send_all(fd, bytes + done, len));
		site_send_text(fd, "\r\n");
	}
	site_send_text(fd, "0\r\n\r\n");
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 200);
	site_check_file("chunked", bytes, 3000000);

	part = arena_printf(&site.arena,
			    "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%s\""
			    "\r\n\r\n",
			    site_at("dir/form"));
	fd = site_connect_server();
	site_send_text(fd,
		       site_post_head(NULL, "multipart/form-data; boundary=b",
				      strlen(part) + 3000000 + 9, "X-Metadata-Purpose: test\r\n"));
	site_send_text(fd, part);
	assert_true(site_send_all(fd, bytes, 3000000));
	site_send_text(fd, "\r\n--b--\r\n");
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 200);
	site_check_file("dir/form", bytes, 3000000);
	if (getxattr(site_at("dir/form"), "user.e2b.purpose", chunk_head, sizeof(chunk_head)) == 4)
		assert_string_equal(answer.body,
				    arena_printf(&site.arena,
						 "[{\"metadata\":{\"purpose\":\"test\"},\"name\":"
						 "\"form\",\"path\":\"%s\",\"type\":\"file\"}]",
						 site_at("dir/form")));
	free(bytes);
}

static void conformance_088_a_form_without_files_is_an_empty_list(void **state)
{
	struct answer answer;
	int fd = site_connect_server();

	(void)state;
	site_send_text(fd, site_post_head(NULL, "multipart/form-data; boundary=b", 7, NULL));
	site_send_text(fd, "--b--\r\n");
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 200);
	assert_string_equal(answer.body, "[]");
}

static struct answer compose(const char *body, size_t len)
{
	struct answer answer;
	int fd = site_connect_server();

	site_send_text(
		fd, arena_printf(&site.arena,
				 "POST /files/compose HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
				 "Content-Length: %zu\r\n\r\n",
				 len));
	site_send_all(fd, body, len);
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	return answer;
}

/* Others hold what there is: that is told as a load, and who needs little is served. */
static void what_composing_takes_has_a_sum(void **state)
{
	static const char small[] = "{\"source_paths\":[\"/none\"],\"destination\":\"/x/y\"}";
	static char body[512 * 1024];
	struct share hog;
	struct answer answer;
	size_t len = (size_t)snprintf(body, sizeof(body), "{\"source_paths\":[\"/none\"");

	(void)state;
	for (size_t i = 0; i < 20000; i++)
		len += (size_t)snprintf(body + len, sizeof(body) - len, ",\"/none%zu\"", i);
	len += (size_t)snprintf(body + len, sizeof(body) - len, "],\"destination\":\"/x/y\"}");
	share_init(&hog, files_compose_budget(), 0);
	assert_true(share_take(&hog, COMPOSE_ARENAS_BYTES_MAX));
	answer = compose(body, len);
	site_check_error(&answer, 503,
			 "other requests to compose files take all the memory there is for them "
			 "(96 MiB)");
	site_check_header(&answer, "Retry-After", "1");
	assert_int_equal(compose(small, strlen(small)).status, 404);
	share_release(&hog);
	assert_int_not_equal(compose(body, len).status, 503);
	assert_int_equal(files_compose_budget()->used, 0);
}

static void conformance_100_composed_files_can_be_downloaded(void **state)
{
	size_t len = 3000000;
	char *bytes = site_make_bytes(len, 21);
	const char *body;
	struct answer answer;

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(site_post(site_at(arena_printf(&site.arena, "p%d", i)),
					   bytes + 1000000 * i, 1000000, NULL)
					 .status,
				 200);
	body = arena_printf(
		&site.arena,
		"{\"source_paths\":[\"%s/p0\",\"%s/p1\",\"%s/p2\"],\"destination\":\"%s/<f>\"}",
		site.folder.path, site.folder.path, site.folder.path, site.folder.path);
	answer = compose(body, strlen(body));
	assert_int_equal(answer.status, 200);
	site_check_header(&answer, "Content-Type", "application/json");
	assert_string_equal(answer.body, arena_printf(&site.arena,
						      "{\"name\":\"\\u003cf\\u003e\",\"path\":\"%s/"
						      "\\u003cf\\u003e\",\"type\":\"file\"}\n",
						      site.folder.path));
	answer = site_get(site_at("<f>"), NULL);
	assert_int_equal(answer.len, len);
	assert_memory_equal(answer.body, bytes, len);
	assert_int_equal(folder_count(site.folder.path), 1);
	answer = compose(body, strlen(body));
	site_check_error(
		&answer, 404,
		arena_printf(&site.arena, "source file not found: %s/p0", site.folder.path));
	answer = compose("", 0);
	assert_int_equal(answer.status, 400);
	answer = compose(bytes, 2000000);
	assert_true(answer.was_reset || answer.status == 413);
	site_wait_until(site_is_at_rest, 0);
	free(bytes);
}

static void case_099_a_client_that_leaves_changes_nothing_or_all(void **state)
{
	struct linger hard = {.l_onoff = 1};
	const char *body;
	struct stat st;

	(void)state;
	site_write_bytes("part", "", 0);
	assert_int_equal(truncate(site_at("part"), 100000000), 0);
	body = arena_printf(&site.arena,
			    "{\"source_paths\":[\"%s/part\",\"%s/part\"],\"destination\":\"%s/f\"}",
			    site.folder.path, site.folder.path, site.folder.path);
	for (int round = 0; round < 3; round++) {
		int fd = site_connect_server();

		site_write_bytes("f", "old", 3);
		site_send_text(
			fd,
			arena_printf(
				&site.arena,
				"POST /files/compose HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n"
				"\r\n%.*s",
				strlen(body), round == 0 ? 10 : (int)strlen(body), body));
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		if (round == 2)
			poll(NULL, 0, 10);
		close(fd);
		/* Connections are accepted in turn. */
		assert_int_equal(site_get(site_at("none"), NULL).status, 404);
		site_wait_until(site_is_at_rest, 0);
		assert_int_equal(stat(site_at("f"), &st), 0);
		assert_true(st.st_size == (st.st_size == 3 ? 3 : 200000000));
		assert_int_equal(folder_count(site.folder.path), st.st_size == 3 ? 2 : 1);
		if (st.st_size != 3) {
			site_write_bytes("part", "", 0);
			assert_int_equal(truncate(site_at("part"), 100000000), 0);
		}
	}
}

static void case_101_two_hundred_fifos_do_not_hold_anything(void **state)
{
	int connections[200];
	struct answer answer;

	(void)state;
	assert_int_equal(mkfifo(site_at("fifo"), 0600), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		connections[i] = site_connect_server();
		if (i & 1)
			site_send_text(connections[i],
				       arena_printf(&site.arena,
						    "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n"
						    "Connection: close\r\n\r\n",
						    site_encode(site_at("fifo"))));
		else
			site_send_text(connections[i],
				       site_post_head(site_at("fifo"), "application/octet-stream",
						      100, NULL));
	}
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		site_read_to_end(connections[i], &answer, ANSWER_BYTES_MAX);
		site_check_error(&answer, 400,
				 arena_printf(&site.arena,
					      i & 1 ? "path '%s' is not a regular file"
						    : "path is not a regular file: %s",
					      site_at("fifo")));
	}
	answer = site_get("/dev/zero", NULL);
	assert_int_equal(answer.status, 400);
	answer = site_get("/dev/tty", NULL);
	assert_int_equal(answer.status, 400);
}

static void files_of_proc_are_read_to_their_end(void **state)
{
	struct answer answer = site_get("/proc/self/status", NULL);

	(void)state;
	assert_int_equal(answer.status, 200);
	assert_non_null(strstr(answer.body, "nonvoluntary_ctxt_switches:"));
	answer = site_get("/proc/self/cmdline", NULL);
	assert_int_equal(answer.status, 200);
	assert_true(answer.len > 0);
	/* Longer than what is read ahead, so its length is not known. */
	answer = site_get("/proc/kallsyms", NULL);
	if (answer.status == 200 && strstr(answer.head, "chunked")) {
		site_unchunk(&answer);
		assert_true(answer.len > 65536);
		assert_true(answer.body[answer.len - 1] == '\n');
	}
	/* sysfs says 4096 whatever there is. */
	answer = site_get("/sys/kernel/mm/transparent_hugepage/enabled", NULL);
	if (answer.status == 200)
		assert_true(answer.len > 0 && answer.len < 200);
}

static void case_088_a_reset_or_short_body_keeps_the_old(void **state)
{
	size_t len = 1000000;
	char *bytes = site_make_bytes(len, 4);
	struct linger hard = {.l_onoff = 1};

	(void)state;
	assert_int_equal(mkdir(site_at("d"), 0755), 0);
	site_write_bytes("d/f", "old", 3);
	for (int round = 0; round < 6; round++) {
		bool is_form = round & 1, is_new = round >= 4;
		const char *path = site_at(is_new ? "d/new" : "d/f");
		int fd = site_connect_server();

		site_send_text(fd, site_post_head(path,
						  is_form ? "multipart/form-data; boundary=b"
							  : "application/octet-stream",
						  2 * len, NULL));
		if (is_form)
			site_send_text(fd,
				       "--b\r\nContent-Disposition: form-data; name=file\r\n\r\n");
		assert_true(site_send_all(fd, bytes, len));
		if (round == 2)
			assert_int_equal(shutdown(fd, SHUT_WR), 0);
		else if (round != 3)
			assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)),
					 0);
		if (round == 2) {
			struct answer answer;

			/* A client that ends early may be told so, never that all is well. */
			site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
			assert_true(answer.status == 0 || answer.status >= 400);
		} else {
			close(fd);
		}
		/* The upload's descriptors go when the server has noticed; the connection's too. */
		site_wait_until(site_is_at_rest, 0);
		site_check_file("d/f", "old", 3);
		assert_int_equal(folder_count(site_at("d")), 1);
	}
	free(bytes);
}

static bool is_held_back(size_t unused)
{
	(void)unused;
	return __atomic_load_n(&site.app.loop.hangups, __ATOMIC_RELAXED) > 0;
}

static bool is_published(size_t size)
{
	struct stat st;

	return stat(site_at("f"), &st) == 0 && (size_t)st.st_size == size;
}

/* A client that is faster than the disk: the first file of its form waits for its turn, and what
 * comes behind it fills both chunks. */
static void an_upload_that_is_held_back_leaves_no_descriptor(void **state)
{
	size_t len = 2 * FILE_UPLOAD_CHUNK_BYTES + FILE_CHUNK_BYTES;
	char *bytes = site_make_bytes(len, 5);
	struct staging_turn turn;
	struct stat st;
	int fd;

	(void)state;
	site_write_bytes("f", "old", 3);
	assert_int_equal(stat(site_at("f"), &st), 0);
	staging_turn_take(&turn, &st);
	fd = site_connect_server();
	site_send_text(
		fd, site_post_head(site_at("f"), "multipart/form-data; boundary=b", 2 * len, NULL));
	site_send_text(
		fd, "--b\r\nContent-Disposition: form-data; name=file\r\n\r\nnewer\r\n--b\r\n\r\n");
	assert_true(site_send_all(fd, bytes, len));
	site_wait_until(is_held_back, 0);
	staging_turn_end(&turn, STAGING_UNCHANGED);
	site_wait_until(is_published, 5);
	close(fd);
	site_wait_until(site_is_at_rest, 0);
	free(bytes);
}

static void case_088_a_truncated_form_is_an_error(void **state)
{
	struct answer answer;
	int fd = site_connect_server();
	const char *body = "--b\r\nContent-Disposition: form-data; name=file\r\n\r\nhalf of it";

	(void)state;
	site_write_bytes("f", "old", 3);
	site_send_text(fd, site_post_head(site_at("f"), "multipart/form-data; boundary=b",
					  strlen(body), NULL));
	site_send_text(fd, body);
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	site_check_error(&answer, 400, "error reading form: multipart: unexpected EOF");
	site_check_file("f", "old", 3);
}

struct uploader {
	pthread_t thread;
	const char *request;
	int status;
};

static void *upload_it(void *argument)
{
	struct uploader *uploader = argument;
	char head[256] = "";
	int fd = site_connect_server();

	if (site_send_all(fd, uploader->request, strlen(uploader->request)) &&
	    read(fd, head, 255) > 12)
		uploader->status = (int)strtol(head + 9, NULL, 10);
	close(fd);
	return NULL;
}

static void conformance_086_parallel_uploads_into_new_directories(void **state)
{
	struct uploader uploaders[64];

	(void)state;
	for (int round = 0; round < 5; round++) {
		struct answer answer;

		for (size_t i = 0; i < ARRAY_LENGTH(uploaders); i++) {
			const char *path = site_at(
				arena_printf(&site.arena, "p%d/a/b/c/f%zu", round, i));

			uploaders[i].status = 0;
			uploaders[i].request = arena_printf(
				&site.arena, "%sx",
				site_post_head(path, "application/octet-stream", 1, NULL));
		}
		for (size_t i = 0; i < ARRAY_LENGTH(uploaders); i++)
			assert_int_equal(pthread_create(&uploaders[i].thread, NULL, upload_it,
							&uploaders[i]),
					 0);
		for (size_t i = 0; i < ARRAY_LENGTH(uploaders); i++) {
			pthread_join(uploaders[i].thread, NULL);
			assert_int_equal(uploaders[i].status, 200);
		}
		assert_int_equal(
			folder_count(site_at(arena_printf(&site.arena, "p%d/a/b/c", round))),
			ARRAY_LENGTH(uploaders));
		answer = site_call("Remove",
				   arena_printf(&site.arena, "{\"path\":\"%s\"}",
						site_at(arena_printf(&site.arena, "p%d", round))));
		assert_int_equal(answer.status, 200);
	}
}

static void case_095_an_upload_is_there_after_its_answer(void **state)
{
	(void)state;
	for (int i = 0; i < 300; i++) {
		char text[32];
		struct answer answer;

		snprintf(text, sizeof(text), "number %d", i);
		answer = site_post(site_at(i % 3 ? "same" : arena_printf(&site.arena, "new%d", i)),
				   text, strlen(text), NULL);
		assert_int_equal(answer.status, 200);
		site_check_file(i % 3 ? "same" : arena_printf(&site.arena, "new%d", i), text,
				strlen(text));
	}
}

static void errors_come_before_the_body_and_reach_the_client(void **state)
{
	size_t len = 3000000;
	char *bytes = site_make_bytes(len, 7);
	struct answer answer;

	(void)state;
	/* More than what is read and thrown away: the answer comes all the same. */
	answer = site_post(site.folder.path, bytes, len, NULL);
	site_check_error(&answer, 400,
			 arena_printf(&site.arena, "path is a directory: %s", site.folder.path));
	answer = site_post(site.folder.path, bytes, 100, NULL);
	site_check_error(&answer, 400,
			 arena_printf(&site.arena, "path is a directory: %s", site.folder.path));
	answer = site_post(site_at("f"), bytes, 100, "Content-Encoding: br\r\n");
	site_check_error(&answer, 400,
			 "error decompressing request body: unsupported Content-Encoding: br, "
			 "supported: [gzip]");
	answer = site_post(site_at("f"), bytes, 100, "Content-Encoding: gzip\r\n");
	site_check_error(&answer, 400,
			 "error decompressing request body: failed to create gzip reader: gzip: "
			 "invalid header");
	free(bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, site_setup, site_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_090_empty_files_both_ways),
		TEST(files_of_every_size_round_trip),
		TEST(case_084_chunked_bodies_and_forms),
		TEST(conformance_088_a_form_without_files_is_an_empty_list),
		TEST(conformance_100_composed_files_can_be_downloaded),
		TEST(what_composing_takes_has_a_sum),
		TEST(case_099_a_client_that_leaves_changes_nothing_or_all),
		TEST(case_101_two_hundred_fifos_do_not_hold_anything),
		TEST(files_of_proc_are_read_to_their_end),
		TEST(case_088_a_reset_or_short_body_keeps_the_old),
		TEST(an_upload_that_is_held_back_leaves_no_descriptor),
		TEST(case_088_a_truncated_form_is_an_error),
		TEST(conformance_086_parallel_uploads_into_new_directories),
		TEST(case_095_an_upload_is_there_after_its_answer),
		TEST(errors_come_before_the_body_and_reach_the_client),
	};

	return cmocka_run_group_tests(tests, site_start_thread, NULL);
}
