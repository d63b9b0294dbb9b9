/* Memory refused at every point of a download and of a join: an error that says so, or the whole content;
 * nothing half done, nothing left open. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/compose.h"
#include "envd/filesystem/download.h"
#include "envd/filesystem/path.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/torture.h"

#define CONTENT_BYTES 300000 /* more than a download reads ahead */

static char root[64], passwd[96], group[96], large[96];
static struct sandbox sandbox;

static void write_file(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, len), len);
	close(fd);
}

static void write_below(const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/d/%s", root, name);
	write_file(path, text, strlen(text));
}

static void check_below(const char *name, const char *want)
{
	char path[128], text[64] = "";
	int fd;

	snprintf(path, sizeof(path), "%s/d/%s", root, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(fd >= 0, want != NULL);
	if (fd < 0)
		return;
	assert_true(read(fd, text, sizeof(text) - 1) >= 0);
	close(fd);
	assert_string_equal(text, want);
}

static size_t count_entries(const char *path)
{
	DIR *directory = opendir(path);
	size_t count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 2;
}

static int set_up(void **state)
{
	static char content[CONTENT_BYTES];
	char text[512];

	(void)state;
	memcpy(root, "/tmp/test_torture.XXXXXX", 25);
	assert_non_null(mkdtemp(root));
	assert_int_equal(chmod(root, 0755), 0);
	snprintf(passwd, sizeof(passwd), "%s/passwd", root);
	snprintf(group, sizeof(group), "%s/group", root);
	snprintf(large, sizeof(large), "%s/large", root);
	snprintf(text, sizeof(text), "self:x:%u:%u::%s/d:/bin/sh\n", (unsigned)geteuid(),
		 (unsigned)getegid(), root);
	write_file(passwd, text, strlen(text));
	write_file(group, "", 0);
	for (size_t i = 0; i < sizeof(content); i++)
		content[i] = (char)(i * 31 >> 3);
	write_file(large, content, sizeof(content));
	snprintf(text, sizeof(text), "%s/d", root);
	assert_int_equal(mkdir(text, 0755), 0);
	user_set_files(passwd, group);
	return 0;
}

static int tear_down(void **state)
{
	char command[128];

	(void)state;
	user_set_files(NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	assert_int_equal(system(command), 0); /* lint-ok: a test's own folder */
	return 0;
}

static size_t descriptors(void)
{
	return count_entries("/proc/self/fd");
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
	char body[512], directory[96];
	struct arena arena;
	struct err err;
	int status;

	snprintf(directory, sizeof(directory), "%s/d", root);
	write_below("one", "1");
	write_below("two", "22");
	write_below("whole", "old");
	snprintf(body, sizeof(body),
		 "{\"source_paths\":[\"%s/one\",\"%s/two\"],\"destination\":\"%s/whole\"}", directory,
		 directory, directory);
	request.body = str_of(body);
	arena_init(&arena, 16 * 1024 * 1024);
	status = compose_begin(&compose, &request, &arena, &err);
	if (status == 0)
		do
			status = compose_step(&compose, &err);
		while (status == 1);
	if (status == 0) {
		check_below("whole", "122");
		check_below("one", NULL);
		check_below("two", NULL);
		assert_int_equal(count_entries(directory), 1);
	} else {
		assert_true(torture_refused());
		assert_true(*err.message);
		check_below("whole", "old");
		check_below("one", "1");
		check_below("two", "22");
		assert_int_equal(count_entries(directory), 3);
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
		cmocka_unit_test_setup_teardown(joining_without_memory_leaves_all_as_it_was_or_is_whole,
						set_up, tear_down),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
