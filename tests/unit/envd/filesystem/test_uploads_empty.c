/* Uploads over a file that is there and empty: written directly, and still all or nothing. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/receive.h"
#include "tests/support/cmocka.h"
#include "tests/support/intake.h"

#define LARGE (2 * UPLOAD_DIRECT_BYTES_MIN)
#define PIECE 100000

static char pieces[26][PIECE];

/* One of several uploads at a time. */
struct other {
	struct receive_request request;
	struct receive receive;
	struct arena arena;
	struct err err;
};

static void begin(struct other *other, const char *relative, int64_t length)
{
	other->request = intake.request;
	other->request.path = str_of(intake_at(relative));
	other->request.length = length;
	arena_init(&other->arena, 1 << 22);
	assert_int_equal(
		receive_begin(&other->receive, &other->request, &other->arena, &other->err), 0);
}

static void feed(struct other *other, char letter)
{
	char *piece = pieces[letter - 'a'];

	memset(piece, letter, PIECE);
	assert_int_equal(receive_feed(&other->receive, piece, PIECE, &other->err), 0);
}

static int end(struct other *other, bool is_complete)
{
	int status = is_complete ? receive_finish(&other->receive, &other->err) : 0;

	receive_abort(&other->receive);
	arena_release(&other->arena);
	return status;
}

static off_t size_of(const char *relative)
{
	struct stat st;

	assert_int_equal(stat(intake_at(relative), &st), 0);
	return st.st_size;
}

/* What is there consists of these pieces. */
static void check(const char *relative, const char *letters)
{
	size_t len = strlen(letters);
	char *want = malloc(len * PIECE + 1);

	assert_non_null(want);
	for (size_t i = 0; i < len; i++)
		memset(want + i * PIECE, letters[i], PIECE);
	intake_check_bytes(intake_at(relative), want, len * PIECE);
	free(want);
}

static void case_200_an_empty_file_is_written_directly(void **state)
{
	struct stat before, after;
	struct other one;

	(void)state;
	if (intake_am_root())
		intake.request.user_name = "user";
	intake_write_text("home/f", "");
	assert_int_equal(chmod(intake_at("home/f"), 0600), 0);
	assert_int_equal(link(intake_at("home/f"), intake_at("home/other")), 0);
	if (intake_am_root())
		assert_int_equal(chown(intake_at("home/f"), 4242, 0), 0);
	assert_int_equal(stat(intake_at("home/f"), &before), 0);
	for (int known = 0; known < 2; known++) {
		assert_int_equal(truncate(intake_at("home/f"), 0), 0);
		begin(&one, "home/f", known ? LARGE : -1);
		/* As in other agents, readers see it grow. */
		feed(&one, 'a');
		assert_int_equal(size_of("home/f"), PIECE);
		feed(&one, 'b');
		assert_int_equal(size_of("home/other"), 2 * PIECE);
		assert_int_equal(end(&one, true), 0);
		check("home/f", "ab");
	}
	assert_int_equal(stat(intake_at("home/f"), &after), 0);
	assert_int_equal(after.st_ino, before.st_ino);
	assert_int_equal(after.st_mode, before.st_mode);
	assert_int_equal(after.st_nlink, 2);
	if (intake_am_root())
		assert_int_equal(after.st_gid, 4243);
}

static void case_200_case_088_an_interrupted_one_leaves_it_empty(void **state)
{
	struct other one;

	(void)state;
	intake_write_text("home/f", "");
	begin(&one, "home/f", -1);
	feed(&one, 'a');
	assert_int_equal(size_of("home/f"), PIECE);
	assert_int_equal(end(&one, false), 0);
	assert_int_equal(size_of("home/f"), 0);
	/* A form that ends too early. */
	intake.request.content_type = STR("multipart/form-data; boundary=b");
	assert_true(intake_post(intake_at("home/f"),
				"--b\r\nContent-Disposition: form-data; name=file\r\n\r\npart") <
		    0);
	assert_int_equal(intake.err.kind, ERR_INVALID_ARGUMENT);
	assert_int_equal(size_of("home/f"), 0);
	assert_int_equal(intake_count_entries("home"), 1);
}

static void case_200_what_is_small_is_seen_whole_or_not(void **state)
{
	struct other one;

	(void)state;
	intake_write_text("home/f", "");
	begin(&one, "home/f", 2 * PIECE);
	feed(&one, 'a');
	assert_int_equal(size_of("home/f"), 0);
	feed(&one, 'b');
	assert_int_equal(end(&one, true), 0);
	check("home/f", "ab");
}

static void append(const char *relative, const char *text)
{
	int fd = open(intake_at(relative), O_WRONLY | O_APPEND | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void case_200_what_others_write_meanwhile_is_not_lost(void **state)
{
	struct other one;

	(void)state;
	intake_write_text("home/f", "");
	/* Before the first byte: it is not empty any more. */
	begin(&one, "home/f", -1);
	append("home/f", "a line");
	feed(&one, 'a');
	intake_check_text("home/f", "a line");
	assert_int_equal(end(&one, false), 0);
	intake_check_text("home/f", "a line");
	/* Behind what has been written. */
	assert_int_equal(truncate(intake_at("home/f"), 0), 0);
	begin(&one, "home/f", -1);
	feed(&one, 'a');
	append("home/f", "a line");
	assert_int_equal(end(&one, false), 0);
	assert_int_equal(size_of("home/f"), PIECE + 6);
	/* A complete one is all that there is. */
	assert_int_equal(truncate(intake_at("home/f"), 0), 0);
	begin(&one, "home/f", -1);
	feed(&one, 'a');
	append("home/f", "a line");
	assert_int_equal(end(&one, true), 0);
	check("home/f", "a");
}

static void case_200_case_088_of_two_uploads_one_is_there(void **state)
{
	struct other one, two;

	(void)state;
	for (int complete = 0; complete < 2; complete++) {
		/* The second publishes while the first goes on: it is the later one. */
		intake_write_text("home/f", "");
		begin(&one, "home/f", -1);
		feed(&one, 'a');
		begin(&two, "home/f", -1);
		feed(&two, 'x');
		assert_int_equal(size_of("home/f"), PIECE);
		assert_int_equal(end(&two, true), 0);
		check("home/f", "x");
		feed(&one, 'b');
		assert_int_equal(end(&one, complete), 0);
		check("home/f", "x");
		/* The first ends first. */
		assert_int_equal(truncate(intake_at("home/f"), 0), 0);
		begin(&one, "home/f", -1);
		begin(&two, "home/f", -1);
		feed(&one, 'a');
		feed(&two, 'x');
		feed(&one, 'b');
		assert_int_equal(end(&one, complete), 0);
		feed(&two, 'y');
		assert_int_equal(end(&two, true), 0);
		check("home/f", "xy");
	}
}

struct writer {
	pthread_t thread;
	char letter;
	const char *path;
	int status;
};

static void *write_it(void *argument)
{
	struct writer *writer = argument;
	struct receive_request request = intake.request;
	char *piece = malloc(PIECE);
	struct receive receive;
	struct arena arena;
	struct err err;

	memset(piece, writer->letter, PIECE);
	arena_init(&arena, 1 << 22);
	request.path = str_of(writer->path);
	writer->status = receive_begin(&receive, &request, &arena, &err);
	for (int i = 0; i < 5 && writer->status == 0; i++)
		writer->status = receive_feed(&receive, piece, PIECE, &err);
	if (writer->status == 0)
		writer->status = receive_finish(&receive, &err);
	receive_abort(&receive);
	arena_release(&arena);
	free(piece);
	return NULL;
}

static void case_200_case_088_parallel_uploads_of_an_empty_file(void **state)
{
	(void)state;
	for (int round = 0; round < 30; round++) {
		struct writer writers[4];
		char want[6] = "", got;
		int fd;

		intake_write_text("home/f", "");
		for (size_t i = 0; i < ARRAY_LENGTH(writers); i++) {
			writers[i].letter = (char)('a' + i);
			writers[i].path = intake_at("home/f");
			assert_int_equal(
				pthread_create(&writers[i].thread, NULL, write_it, &writers[i]), 0);
		}
		for (size_t i = 0; i < ARRAY_LENGTH(writers); i++) {
			pthread_join(writers[i].thread, NULL);
			assert_int_equal(writers[i].status, 0);
		}
		fd = open(intake_at("home/f"), O_RDONLY | O_CLOEXEC);
		assert_int_equal(read(fd, &got, 1), 1);
		close(fd);
		memset(want, got, 5);
		check("home/f", want);
	}
}

static void case_200_a_full_disk_leaves_it_empty(void **state)
{
	struct other one;
	int status = 0;

	(void)state;
	if (!intake_am_root())
		skip();
	intake_mount_small("size=1m");
	intake_write_text("m/f", "");
	begin(&one, "m/f", -1);
	memset(pieces[0], 'a', PIECE);
	for (int i = 0; i < 12 && status == 0; i++)
		status = receive_feed(&one.receive, pieces[0], PIECE, &one.err);
	assert_true(status < 0);
	assert_int_equal(one.err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_int_equal(one.err.sys, ENOSPC);
	assert_int_equal(end(&one, false), 0);
	assert_int_equal(size_of("m/f"), 0);
}

static void case_200_metadata_and_a_watcher(void **state)
{
	static const struct metadata_field fields[] = {{{"X-Metadata-Key", 14}, {"value", 5}}};
	char buffer[4096] __attribute__((aligned(8)));
	uint32_t seen = 0;
	struct other one;
	ssize_t len;
	int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

	(void)state;
	intake_write_text("home/f", "");
	assert_true(inotify_add_watch(fd, intake_at("home"), IN_ALL_EVENTS) >= 0);
	intake.request.fields = fields;
	intake.request.field_count = 1;
	begin(&one, "home/f", -1);
	feed(&one, 'a');
	assert_int_equal(receive_finish(&one.receive, &one.err), 0);
	assert_int_equal(one.receive.files[0].metadata_count, 1);
	assert_string_equal(one.receive.files[0].metadata[0].value, "value");
	assert_int_equal(end(&one, false), 0);
	check("home/f", "a");
	while ((len = read(fd, buffer, sizeof(buffer))) > 0)
		for (ssize_t i = 0; i < len;) {
			const struct inotify_event *event = (const void *)(buffer + i);

			if (event->len)
				assert_true(!strcmp(event->name, "f") || !intake_am_root());
			seen |= event->mask;
			i += (ssize_t)(sizeof(*event) + event->len);
		}
	assert_true(seen & IN_MODIFY);
	if (intake_am_root())
		assert_false(seen & (IN_CREATE | IN_DELETE | IN_MOVED_TO));
	close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, intake_setup, intake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_200_an_empty_file_is_written_directly),
		TEST(case_200_case_088_an_interrupted_one_leaves_it_empty),
		TEST(case_200_what_is_small_is_seen_whole_or_not),
		TEST(case_200_what_others_write_meanwhile_is_not_lost),
		TEST(case_200_case_088_of_two_uploads_one_is_there),
		TEST(case_200_case_088_parallel_uploads_of_an_empty_file),
		TEST(case_200_a_full_disk_leaves_it_empty),
		TEST(case_200_metadata_and_a_watcher),
	};

	return cmocka_run_group_tests(tests, intake_before_all, intake_after_all);
}
