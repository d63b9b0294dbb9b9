/* Downloads that are sent uncopied for the most part: while the file changes, and while clients are
 * slow or leave. */
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/download_body.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"
#include "tests/support/held.h"
#include "tests/support/site.h"

/* More than what is copied at the end of a file, unless this machine's network is set up for much,
 * and no whole number of pages. */
static size_t large_bytes;

/* Eight bytes that tell where they are from, in one of two generations; none of them is zero. */
static uint64_t word_at(size_t index, unsigned generation)
{
	return ((index * 2 + generation) * 0x9E3779B97F4A7C15) | 0x0101010101010101;
}

static char byte_at(size_t offset, unsigned generation)
{
	return (char)(word_at(offset / 8, generation) >> offset % 8 * 8);
}

static void fill_file(int fd, size_t from, size_t len, unsigned generation)
{
	static uint64_t block[(1 << 20) / 8];

	assert_true(from % 8 == 0);
	for (size_t at = from; at < from + len; at += sizeof(block)) {
		size_t piece = size_min(sizeof(block), from + len - at);

		for (size_t i = 0; i < sizeof(block) / 8; i++)
			block[i] = word_at(at / 8 + i, generation);
		assert_int_equal(pwrite(fd, block, piece, (off_t)at), piece);
	}
}

static void write_large(const char *name)
{
	auto_close int fd = open(site_at(name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	fill_file(fd, 0, large_bytes, 0);
}

/* One download, as its client sees it. */
struct fetch {
	int fd;
	size_t offset; /* in the file */
	size_t got; /* of the body */
	size_t news; /* bytes of the second generation */
	size_t zeros_from; /* behind it, zeros may stand */
	bool was_reset;
};

static void begin_fetch(struct fetch *fetch, const char *name, const char *headers)
{
	const int room = 1 << 20;
	char head[2048];
	size_t len = 0;

	*fetch = (struct fetch){.fd = site_connect_server(), .zeros_from = SIZE_MAX};
	/* So that little is on its way, however much this machine's network is set up for. */
	assert_int_equal(setsockopt(fetch->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
	site_send_text(
		fetch->fd,
		arena_printf(
			&site.arena,
			"GET /files?path=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n",
			site_encode(site_at(name)), headers ? headers : ""));
	/* The head and nothing behind it. */
	while (len < 4 || memcmp(head + len - 4, "\r\n\r\n", 4) != 0) {
		assert_true(len < sizeof(head) - 1);
		site_wait_readable(fetch->fd);
		assert_int_equal(read(fetch->fd, head + len, 1), 1);
		len++;
	}
	head[len] = '\0';
	if (!strstr(head, headers ? "HTTP/1.1 206 " : "HTTP/1.1 200 "))
		fail_msg("%s", head);
}

static bool is_old(const char *bytes, size_t len, size_t offset)
{
	static uint64_t words[(1 << 18) / 8 + 2];

	assert_true(len <= 1 << 18);
	for (size_t i = 0; i < len / 8 + 2; i++)
		words[i] = word_at(offset / 8 + i, 0);
	return memcmp(bytes, (const char *)words + offset % 8, len) == 0;
}

static void check_byte(struct fetch *fetch, char byte)
{
	size_t at = fetch->offset + fetch->got++;

	if (byte == byte_at(at, 0))
		return;
	if (byte == byte_at(at, 1))
		fetch->news++;
	else if (byte || at < fetch->zeros_from)
		fail_msg("byte %zu is %d", at, byte);
}

/* Up to so many bytes; false when the answer has ended. */
static bool take(struct fetch *fetch, size_t most)
{
	static char block[1 << 18];

	while (most > 0) {
		ssize_t got;

		site_wait_readable(fetch->fd);
		got = read(fetch->fd, block, size_min(most, sizeof(block)));
		fetch->was_reset = got < 0;
		if (got <= 0)
			return false;
		if (is_old(block, (size_t)got, fetch->offset + fetch->got))
			fetch->got += (size_t)got;
		else
			for (ssize_t i = 0; i < got; i++)
				check_byte(fetch, block[i]);
		most -= (size_t)got;
	}
	return true;
}

static void expect_whole(struct fetch *fetch, size_t len)
{
	while (take(fetch, 1 << 20))
		;
	close(fetch->fd);
	assert_false(fetch->was_reset);
	assert_int_equal(fetch->got, len);
}

static void a_large_file_and_ranges_of_it_are_whole(void **state)
{
	const size_t ranges[][2] = {
		{0, large_bytes},
		{1, large_bytes},
		{4096, 30000000},
		{12345, large_bytes - 1},
		{large_bytes - 100, large_bytes},
		{large_bytes / 2, large_bytes},
	};
	struct fetch fetch;

	write_large("f");
	begin_fetch(&fetch, "f", NULL);
	expect_whole(&fetch, large_bytes);
	assert_int_equal(fetch.news, 0);
	for (size_t i = 0; i < ARRAY_LENGTH(ranges); i++) {
		begin_fetch(&fetch, "f",
			    arena_printf(&site.arena, "Range: bytes=%zu-%zu\r\n", ranges[i][0],
					 ranges[i][1] - 1));
		fetch.offset = ranges[i][0];
		expect_whole(&fetch, ranges[i][1] - ranges[i][0]);
	}
}

/* A few bytes at a time, then all at once, and again. */
static void a_client_that_takes_in_fits_gets_it_whole(void **state)
{
	struct fetch fetch;

	write_large("f");
	begin_fetch(&fetch, "f", NULL);
	for (int i = 0; i < 20 && take(&fetch, 1000) && take(&fetch, (size_t)i << 17); i++)
		assert_int_equal(usleep(1000), 0);
	expect_whole(&fetch, large_bytes);
}

static void case_103_a_large_file_that_is_cut_breaks_the_download_off(void **state)
{
	/* Before, within and behind what is on its way when it is cut, at the edges of pages and
	 * between. */
	const size_t ends[] = {0,	1,	  1000000,  1048576,	    2097152 + 4095,
			       5000001, 12000000, 24000123, large_bytes - 1};
	struct fetch fetch;
	int fd;

	write_large("f");
	fd = open(site_at("f"), O_RDWR | O_CLOEXEC);
	for (size_t i = 0; i < ARRAY_LENGTH(ends); i++)
		for (size_t before = 1000; before <= 8000000; before += 7999000) {
			begin_fetch(&fetch, "f", NULL);
			assert_true(take(&fetch, before));
			assert_int_equal(truncate(site_at("f"), (off_t)ends[i]), 0);
			fetch.zeros_from = ends[i];
			while (take(&fetch, 1 << 20))
				;
			close(fetch.fd);
			assert_true(fetch.was_reset);
			assert_true(fetch.got < large_bytes);
			fill_file(fd, ends[i] / 8 * 8, large_bytes - ends[i] / 8 * 8, 0);
		}
	close(fd);
}

static void case_103_growth_and_deletion_are_not_seen(void **state)
{
	struct fetch fetch;

	for (int i = 0; i < 3; i++) {
		write_large("f");
		begin_fetch(&fetch, "f", NULL);
		assert_true(take(&fetch, 1000));
		assert_int_equal(truncate(site_at("f"), large_bytes + 5000), 0);
		if (i == 1)
			assert_int_equal(unlink(site_at("f")), 0);
		if (i == 2) {
			write_large("other");
			assert_int_equal(rename(site_at("other"), site_at("f")), 0);
		}
		expect_whole(&fetch, large_bytes);
		assert_int_equal(fetch.news, 0);
	}
}

/* A mixture, of the announced length. */
static void a_file_that_is_overwritten_comes_old_or_new(void **state)
{
	struct fetch fetch;
	int fd;

	write_large("f");
	fd = open(site_at("f"), O_RDWR | O_CLOEXEC);
	begin_fetch(&fetch, "f", NULL);
	assert_true(take(&fetch, 1000));
	fill_file(fd, 0, large_bytes, 1);
	expect_whole(&fetch, large_bytes);
	assert_true(fetch.news > 0);
	/* Cut and written again: a mixture, or broken off. */
	write_large("f");
	begin_fetch(&fetch, "f", NULL);
	assert_true(take(&fetch, 1000));
	assert_int_equal(ftruncate(fd, 0), 0);
	fill_file(fd, 0, large_bytes, 1);
	close(fd);
	while (take(&fetch, 1 << 20))
		;
	close(fetch.fd);
	assert_true(fetch.was_reset ? fetch.got < large_bytes : fetch.got == large_bytes);
}

/* The client's and the server's end of each connection, and the file. */
static bool are_stuck(size_t count)
{
	return folder_count("/proc/self/fd") == site.descriptors + 3 * count;
}

/* Or it is copied, as under tests/support/old_kernel. */
static bool can_send(void)
{
	return sendfile(-1, -1, NULL, 1) < 0 && errno == EBADF;
}

/* A client that takes nothing costs no descriptor and no memory beyond what it had when it was
 * stuck. */
static void case_104_stuck_clients_of_large_files_hold_little(void **state)
{
	enum { COUNT = 60 };
	struct linger hard = {.l_onoff = 1};
	struct fetch fetches[COUNT], whole;
	size_t before = held_bytes();

	write_large("f");
	for (size_t i = 0; i < COUNT; i++)
		begin_fetch(&fetches[i], "f", NULL);
	site_wait_until(are_stuck, COUNT);
	for (size_t i = 0; i < COUNT; i++)
		assert_true(take(&fetches[i], 100000));
	/* Another one is served meanwhile. */
	begin_fetch(&whole, "f", NULL);
	expect_whole(&whole, large_bytes);
	site_wait_until(are_stuck, COUNT);
	if (can_send() && (int64_t)large_bytes > file_send_tail() + (16 << 20))
		site_wait_until(held_at_most, before + (size_t)COUNT * 64 * 1024);
	for (size_t i = 0; i < COUNT; i++) {
		/* Some leave, some end their direction, some go on. */
		if (i % 3 == 0)
			setsockopt(fetches[i].fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		if (i % 20 == 1)
			expect_whole(&fetches[i], large_bytes);
		else
			close(fetches[i].fd);
	}
	site_wait_until(site_is_at_rest, 0);
}

static void clients_that_leave_in_the_middle_leave_nothing(void **state)
{
	struct fetch fetch;

	write_large("f");
	for (size_t i = 0; i < 60; i++) {
		begin_fetch(&fetch, "f", NULL);
		assert_true(take(&fetch, i * 300000 + 1));
		if (i % 2)
			setsockopt(fetch.fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1},
				   sizeof(struct linger));
		close(fetch.fd);
	}
	site_wait_until(site_is_at_rest, 0);
}

static void what_is_not_plain_is_copied(void **state)
{
	struct download download = {.fd = 0, .length = 100};
	struct download_part parts[2] = {{.offset = 10, .end = 90}, {.offset = 0, .end = 5}};
	struct download_body body = {
		.download = &download, .parts = parts, .part_count = 1, .tail = 30};

	assert_int_equal(download_body_sendable(&body), 50);
	body.done = 49;
	assert_int_equal(download_body_sendable(&body), 1);
	body.done = 50;
	assert_int_equal(download_body_sendable(&body), 0);
	body.done = 80;
	assert_int_equal(download_body_sendable(&body), 0);
	body.done = 0;
	body.tail = -1;
	assert_int_equal(download_body_sendable(&body), 0);
	body.tail = 30;
	body.part = 1;
	assert_int_equal(download_body_sendable(&body), 0);
	body.part = 0;
	body.part_count = 2;
	assert_int_equal(download_body_sendable(&body), 0);
	body.part_count = 1;
	parts[0].text = STR("x");
	assert_int_equal(download_body_sendable(&body), 0);
	parts[0].text = STR("");
	parts[0].end = -1;
	assert_int_equal(download_body_sendable(&body), 0);
	parts[0].end = 90;
	download.fd = -1;
	assert_int_equal(download_body_sendable(&body), 0);
	download.fd = 0;
	body.gzip = gzip_writer_new(true);
	assert_int_equal(download_body_sendable(&body), 0);
	download_body_fini(&body);
	assert_int_equal(download_body_sendable(&body), 50);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, site_setup, site_teardown)

int main(void)
{
	int64_t tail = file_send_tail();
	const struct CMUnitTest tests[] = {
		TEST(a_large_file_and_ranges_of_it_are_whole),
		TEST(a_client_that_takes_in_fits_gets_it_whole),
		TEST(case_103_a_large_file_that_is_cut_breaks_the_download_off),
		TEST(case_103_growth_and_deletion_are_not_seen),
		TEST(a_file_that_is_overwritten_comes_old_or_new),
		TEST(case_104_stuck_clients_of_large_files_hold_little),
		TEST(clients_that_leave_in_the_middle_leave_nothing),
		TEST(what_is_not_plain_is_copied),
	};

	large_bytes = (size_t)(tail > 0 && tail < 64 << 20 ? tail : 16 << 20) + (20 << 20) + 1237;
	return cmocka_run_group_tests(tests, site_start_thread, NULL);
}
