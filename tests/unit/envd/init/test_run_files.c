/* The files below /run/e2b (contract/envd.md 1.3). */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/init/run_files.h"
#include "tests/support/cmocka.h"

static char folder[] = "/tmp/test_run_files.XXXXXX";
static char inner[128], path[160];

static int setup(void **state)
{
	memcpy(strrchr(folder, '.'), ".XXXXXX", 7);
	umask(022);
	if (!mkdtemp(folder))
		return -1;
	snprintf(inner, sizeof(inner), "%s/a/b", folder);
	snprintf(path, sizeof(path), "%s/file", inner);
	return 0;
}

static int teardown(void **state)
{
	char parent[128];

	snprintf(parent, sizeof(parent), "%s/a", folder);
	unlink(path);
	rmdir(inner);
	rmdir(parent);
	return rmdir(folder);
}

static void assert_content(const char *wanted)
{
	char text[64] = "";
	int fd = open(path, O_RDONLY);

	assert_true(fd >= 0);
	assert_true(read(fd, text, sizeof(text) - 1) >= 0);
	close(fd);
	assert_string_equal(text, wanted);
}

static void folders_are_made_and_the_text_is_exact(void **state)
{
	struct stat status;

	assert_int_equal(run_files_write(inner, "file", "true", 0444), 0);
	assert_content("true");
	assert_int_equal(stat(path, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0444);
	assert_int_equal(stat(inner, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0755);
	chmod(path, 0644);
	assert_int_equal(run_files_write(inner, "file", "no", 0444), 0);
	assert_content("no");
}

static void links_are_not_followed(void **state)
{
	char target[160];

	assert_int_equal(run_files_write(inner, "file", "x", 0644), 0);
	assert_int_equal(unlink(path), 0);
	snprintf(target, sizeof(target), "%s/target", folder);
	assert_int_equal(symlink(target, path), 0);
	assert_int_equal(run_files_write(inner, "file", "x", 0644), -ELOOP);
	assert_int_equal(access(target, F_OK), -1);
}

static void failures_are_told(void **state)
{
	char below_file[256];
	char *long_path = xcalloc(1, 8192);

	assert_int_equal(run_files_write(inner, "file", "x", 0644), 0);
	snprintf(below_file, sizeof(below_file), "%s/more", path);
	assert_int_equal(run_files_write(below_file, "file", "x", 0644), -ENOTDIR);
	memset(long_path, 'x', 8191);
	long_path[0] = '/';
	assert_int_equal(run_files_write(long_path, "file", "x", 0644), -ENAMETOOLONG);
	free(long_path);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(folders_are_made_and_the_text_is_exact),
		TEST(links_are_not_followed),
		TEST(failures_are_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
