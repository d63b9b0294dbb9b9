/* Hundreds of transfers at once that do not move: what they cost, and that others do not notice. */
#include <dirent.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/held.h"
#include "tests/support/site.h"
#include "tests/support/valgrind.h"

#define CROWD 500
/* A transfer beside its chunks: connection, exchange, parser, paths. */
#define TRANSFER_BYTES (16 * 1024)

/* In unnamed files, of which nobody else here makes any. */
static uint64_t staged_bytes(void)
{
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	uint64_t sum = 0;

	assert_non_null(directory);
	while ((entry = readdir(directory))) {
		struct stat st;

		if (entry->d_name[0] != '.' &&
		    fstat((int)strtol(entry->d_name, NULL, 10), &st) == 0 && S_ISREG(st.st_mode) &&
		    st.st_nlink == 0)
			sum += (uint64_t)st.st_size;
	}
	closedir(directory);
	return sum;
}

static bool is_staged_at_least(size_t bytes)
{
	return staged_bytes() >= bytes;
}

/* What a transfer's chunk may hold that came when there were `others`. */
static size_t share_beside(size_t others, size_t most)
{
	return size_min(most, FILE_TRANSFERS_BYTES / 2 / (others + 1));
}

static int crowd_before_all(void **state)
{
	struct rlimit files;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	return site_start_thread(state);
}

static void check_others_are_served(void)
{
	struct answer answer;

	site_write_bytes("other", "x", 1);
	answer = site_get(site_at("other"), NULL);
	assert_int_equal(answer.status, 200);
	assert_memory_equal(answer.body, "x", 1);
}

static void close_hard(int fd)
{
	const struct linger hard = {.l_onoff = 1};

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
	close(fd);
}

static void case_104_five_hundred_slow_downloads_stay_small(void **state)
{
	size_t before = held_bytes(), chunks = 0;
	static int fds[CROWD];
	struct rlimit files;
	char byte;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	if (files.rlim_cur < 4 * CROWD)
		skip(); /* two sockets and a file each */
	site_write_bytes("f", "", 0);
	assert_int_equal(truncate(site_at("f"), (off_t)1 << 30), 0);
	for (size_t i = 0; i < CROWD; i++) {
		fds[i] = site_connect_server();
		site_send_text(fds[i],
			       arena_printf(&site.arena,
					    "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n\r\n",
					    site_encode(site_at("f"))));
		chunks += 2 * share_beside(i, FILE_CHUNK_BYTES);
	}
	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < CROWD; i++) {
			site_wait_readable(fds[i]);
			assert_int_equal(read(fds[i], &byte, 1), 1);
		}
	check_others_are_served();
	assert_true(held_at_most(before + chunks + CROWD * TRANSFER_BYTES));
	for (size_t i = 0; i < CROWD; i++)
		close_hard(fds[i]);
	site_wait_until(site_is_at_rest, 0);
}

/* As many as have chunks of full size, and all of it is on disk. */
static void uploads_that_stall_hold_no_written_chunk(void **state)
{
	size_t len = 2 * FILE_UPLOAD_CHUNK_BYTES, before;
	char *bytes = site_make_bytes(len, 11);
	int fds[FILE_TRANSFERS_BYTES / 2 / FILE_UPLOAD_CHUNK_BYTES];

	(void)state;
	before = held_bytes();
	for (size_t i = 0; i < ARRAY_LENGTH(fds); i++) {
		fds[i] = site_connect_server();
		site_send_text(
			fds[i],
			arena_printf(&site.arena,
				     "POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: "
				     "application/octet-stream\r\nContent-Length: %zu\r\n\r\n",
				     site_encode(site_at(arena_printf(&site.arena, "up%zu", i))),
				     2 * len));
		assert_true(site_send_all(fds[i], bytes, len));
	}
	site_wait_until(is_staged_at_least, ARRAY_LENGTH(fds) * len);
	check_others_are_served();
	site_wait_until(held_at_most, before + ARRAY_LENGTH(fds) * (FILE_UPLOAD_CHUNK_BYTES / 8 +
								    TRANSFER_BYTES));
	for (size_t i = 0; i < ARRAY_LENGTH(fds); i++)
		close_hard(fds[i]);
	site_wait_until(site_is_at_rest, 0);
	assert_int_equal(folder_count(site.folder.path), 1);
	free(bytes);
}

/* Also of what fills no chunk, whatever the client has sent before it: nothing comes to fill it. */
static void uploads_that_stall_are_written_to_their_last_byte(void **state)
{
	static const size_t lens[] = {1, 100 * 1000, FILE_UPLOAD_CHUNK_BYTES - 1,
				      3 * FILE_UPLOAD_CHUNK_BYTES + 5000};
	char *bytes = site_make_bytes(lens[3], 12);
	size_t sum = 0, before;
	int fds[ARRAY_LENGTH(lens)];

	(void)state;
	before = held_bytes();
	for (size_t i = 0; i < ARRAY_LENGTH(fds); i++) {
		fds[i] = site_connect_server();
		site_send_text(fds[i],
			       site_post_head(site_at(arena_printf(&site.arena, "up%zu", i)),
					      "application/octet-stream", lens[3] + 1, NULL));
		assert_true(site_send_all(fds[i], bytes, lens[i]));
		sum += lens[i];
	}
	site_wait_until(is_staged_at_least, sum);
	site_wait_until(held_at_most, before + ARRAY_LENGTH(fds) * TRANSFER_BYTES);
	/* It goes on as if nothing had been. */
	for (size_t i = 0; i < ARRAY_LENGTH(fds); i++) {
		struct answer answer;

		assert_true(site_send_all(fds[i], bytes + lens[i], lens[3] - lens[i]));
		assert_true(site_send_all(fds[i], "!", 1));
		site_read_to_end(fds[i], &answer, ANSWER_BYTES_MAX);
		assert_int_equal(answer.status, 200);
	}
	bytes = realloc(bytes, lens[3] + 1);
	bytes[lens[3]] = '!';
	for (size_t i = 0; i < ARRAY_LENGTH(fds); i++)
		site_check_file(arena_printf(&site.arena, "up%zu", i), bytes, lens[3] + 1);
	free(bytes);
}

enum { FORMS = 8, FORM_FILES = 1500 };
static int forms[FORMS];

static bool are_refused_at_least(size_t count)
{
	char byte;

	for (size_t i = 0; i < FORMS; i++)
		count -= count && recv(forms[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
	return count == 0;
}

/* What a form keeps are the paths of its files, for its answer; these are long. */
static void send_form(size_t form, size_t files)
{
	char deep[13 * 241 + 1] = "", name[240], part[sizeof(deep) + 256];

	memset(name, 'd', sizeof(name));
	for (size_t i = 0; i < 12; i++)
		snprintf(deep + strlen(deep), sizeof(deep) - strlen(deep), "%.*s/",
			 (int)sizeof(name), name);
	forms[form] = site_connect_server();
	site_send_text(forms[form],
		       site_post_head(NULL, "multipart/form-data; boundary=b", 1 << 30, NULL));
	for (size_t i = 0; i < files; i++) {
		int len = snprintf(part, sizeof(part),
				   "--b\r\nContent-Disposition: form-data; name=file; "
				   "filename=\"%s/%s%zu-%zu\"\r\n\r\nx\r\n",
				   site.folder.path, deep, form, i);

		if (!site_send_all(forms[form], part, (size_t)len))
			break;
	}
}

static bool is_refused(size_t form)
{
	char answer[13];

	return recv(forms[form], answer, sizeof(answer), MSG_PEEK | MSG_DONTWAIT) == sizeof(answer);
}

/* No other one is in its way, so it may not come again. */
static void names_in_one_form_have_a_limit(void **state)
{
	char answer[13];

	(void)state;
	NOT_UNDER_VALGRIND("thousands of long paths take long");
	send_form(0, MULTIPART_FILES_MAX);
	site_wait_until(is_refused, 0);
	assert_int_equal(recv(forms[0], answer, sizeof(answer), 0), sizeof(answer));
	assert_memory_equal(answer, "HTTP/1.1 413 ", sizeof(answer));
	close_hard(forms[0]);
	site_wait_until(site_is_at_rest, 0);
}

static void names_in_forms_of_all_uploads_have_a_sum(void **state)
{
	size_t before = held_bytes(), refused = 0;

	(void)state;
	NOT_UNDER_VALGRIND("malloc is valgrind's there, and thousands of long paths take long");
	for (size_t i = 0; i < FORMS; i++)
		send_form(i, FORM_FILES);
	site_wait_until(are_refused_at_least, 1);
	check_others_are_served();
	assert_true(held_at_most(
		before + UPLOADS_ARENA_BYTES_MAX +
		FORMS * (UPLOAD_ARENA_EXEMPT_BYTES + 2 * FILE_UPLOAD_CHUNK_BYTES + TRANSFER_BYTES) +
		UPLOAD_ARENA_BYTES));
	for (size_t i = 0; i < FORMS; i++) {
		char answer[13];

		if (recv(forms[i], answer, sizeof(answer), MSG_DONTWAIT) == sizeof(answer)) {
			assert_memory_equal(answer, "HTTP/1.1 503 ", sizeof(answer));
			refused++;
		}
		close_hard(forms[i]);
	}
	print_message("%zu of %d refused\n", refused, FORMS);
	assert_true(refused > 0 && refused < FORMS);
	site_wait_until(site_is_at_rest, 0);
	site_wait_until(held_at_most, before + UPLOAD_ARENA_BYTES);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, site_setup, site_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_104_five_hundred_slow_downloads_stay_small),
		TEST(uploads_that_stall_hold_no_written_chunk),
		TEST(uploads_that_stall_are_written_to_their_last_byte),
		TEST(names_in_one_form_have_a_limit),
		TEST(names_in_forms_of_all_uploads_have_a_sum),
	};

	return cmocka_run_group_tests(tests, crowd_before_all, NULL);
}
