/* Memory refused at every point of a download and of a join: an error that says so, or the whole
 * content; nothing half done, nothing left open. */
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/compose.h"
#include "envd/filesystem/download.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"
#include "tests/support/torture.h"

#define CONTENT_BYTES 300000 /* more than a download reads ahead */

static struct folder folder;
static char large[96], directory[96];
static struct sandbox sandbox;

static const char *below(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return path;
}

static int set_up(void **state)
{
	static char content[CONTENT_BYTES];

	(void)state;
	folder_open(&folder);
	folder_make_accounts(&folder, "/d", "/d");
	snprintf(directory, sizeof(directory), "%s/d", folder.path);
	assert_int_equal(mkdir(directory, 0755), 0);
	for (size_t i = 0; i < sizeof(content); i++)
		content[i] = (char)(i * 31 >> 3);
	snprintf(large, sizeof(large), "%s/large", folder.path);
	folder_write(large, content, sizeof(content));
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	folder_close(&folder);
	return 0;
}

static size_t descriptors(void)
{
	return folder_count("/proc/self/fd");
}

/* ---- downloads ---- */

static void read_all(struct download *download)
{
	char piece[65536];
	int64_t offset = 0;
	ssize_t len;

	while ((len = download_read(download, offset, piece, sizeof(piece))) > 0) {
		for (ssize_t i = 0; i < len; i++)
			if (piece[i] != (char)((size_t)(offset + i) * 31 >> 3))
				fail_msg("byte %lld is wrong", (long long)(offset + i));
		offset += len;
	}
	assert_int_equal(len, 0);
	assert_int_equal(offset, CONTENT_BYTES);
}

static void download(void *user)
{
	size_t *failures = user;
	struct download_request request = {
		.sandbox = &sandbox, .user_name = "self", .path = str_of(large)};
	struct download download;
	struct arena arena;
	struct err err;

	arena_init(&arena, 16 * 1024 * 1024);
	if (download_open(&download, &request, &arena, &err) == 0) {
		read_all(&download);
		download_close(&download);
	} else {
		assert_true(torture_refused());
		assert_true(*err.message);
		++*failures;
	}
	arena_release(&arena);
}

static void a_download_without_memory_fails_or_is_whole(void **state)
{
	size_t before = descriptors(), failures = 0;

	(void)state;
	assert_true(torture(download, &failures) > 1);
	assert_true(failures > 0);
	assert_int_equal(descriptors(), before);
}

/* ---- joining ---- */

static void compose(void *user)
{
	size_t *failures = user;
	struct compose_request request = {.sandbox = &sandbox, .user_name = "self"};
	struct compose compose;
	char body[512];
	struct arena arena;
	struct err err;
	int status;

	folder_write_text(below("one"), "1");
	folder_write_text(below("two"), "22");
	folder_write_text(below("whole"), "old");
	snprintf(body, sizeof(body),
		 "{\"source_paths\":[\"%s/one\",\"%s/two\"],\"destination\":\"%s/whole\"}",
		 directory, directory, directory);
	request.body = str_of(body);
	arena_init(&arena, 16 * 1024 * 1024);
	status = compose_begin(&compose, &request, &arena, &err);
	if (status == 0)
		do
			status = compose_step(&compose, &err);
		while (status == 1);
	if (status == 0) {
		folder_check_text(below("whole"), "122");
		folder_check_text(below("one"), NULL);
		folder_check_text(below("two"), NULL);
		assert_int_equal(folder_count(directory), 1);
	} else {
		assert_true(torture_refused());
		assert_true(*err.message);
		folder_check_text(below("whole"), "old");
		folder_check_text(below("one"), "1");
		folder_check_text(below("two"), "22");
		assert_int_equal(folder_count(directory), 3);
		++*failures;
	}
	arena_release(&arena);
}

static void joining_without_memory_leaves_all_as_it_was_or_is_whole(void **state)
{
	size_t before = descriptors(), failures = 0;

	(void)state;
	assert_true(torture(compose, &failures) > 2);
	assert_true(failures > 0);
	assert_int_equal(descriptors(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_download_without_memory_fails_or_is_whole, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(
			joining_without_memory_leaves_all_as_it_was_or_is_whole, set_up, tear_down),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
