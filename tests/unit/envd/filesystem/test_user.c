#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/filesystem/user.h"

static struct arena arena;
static struct err err;
static char directory[64], passwd[96], group[96];

static void write_file(const char *path, const char *text, size_t len)
{
	FILE *stream = fopen(path, "w");

	assert_non_null(stream);
	assert_int_equal(fwrite(text, 1, len, stream), len);
	assert_int_equal(fclose(stream), 0);
}

static void write_text(const char *path, const char *text)
{
	write_file(path, text, strlen(text));
}

static int setup(void **state)
{
	(void)state;
	arena_init(&arena, 4 * 1024 * 1024);
	strcpy(directory, "/tmp/test_user.XXXXXX");
	assert_non_null(mkdtemp(directory));
	snprintf(passwd, sizeof(passwd), "%s/passwd", directory);
	snprintf(group, sizeof(group), "%s/group", directory);
	user_set_files(passwd, group);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	user_set_files(NULL, NULL);
	unlink(passwd);
	unlink(group);
	rmdir(directory);
	arena_release(&arena);
	return 0;
}

static void lookup_reads_the_files_each_time(void **state)
{
	struct user user;

	(void)state;
	write_text(passwd, "root:x:0:0:root:/root:/bin/bash\n");
	write_text(group, "root:x:0:\n");
	assert_int_equal(user_lookup("ada", &arena, &user, &err), -ENOENT);
	assert_int_equal(err.kind, ERR_NOT_FOUND);
	assert_string_equal(err.message, "user: unknown user ada");
	write_text(passwd,
		   "root:x:0:0:root:/root:/bin/bash\nada:x:1001:1002:A. L.:/home/ada:/bin/sh");
	write_text(group, "docker:x:50:bob,ada\nada:x:1002:ada\nx:x:60:adam\nwheel:x:70:ada,bob");
	assert_int_equal(user_lookup("ada", &arena, &user, &err), 0);
	assert_string_equal(user.name, "ada");
	assert_string_equal(user.home, "/home/ada");
	assert_string_equal(user.shell, "/bin/sh");
	assert_int_equal(user.uid, 1001);
	assert_int_equal(user.gid, 1002);
	assert_int_equal(user.group_count, 3);
	assert_int_equal(user.groups[0], 1002);
	assert_int_equal(user.groups[1], 50);
	assert_int_equal(user.groups[2], 70);
}

static void malformed_lines_are_skipped(void **state)
{
	static const char text[] = "+:x:1:1:::\n-bad:x:1:1::/:/\n:x:5:5::/:/\n#c:x:1:1::/:/\n"
				   "few:x:1:1\nmany:x:1:1:g:/:/bin/sh:more\nneg:x:-1:1::/:/\n"
				   "hex:x:0x1:1::/:/\nhuge:x:4294967295:1::/:/\n"
				   "nul\0:x:1:1::/:/\nok:x:4294967294:1::relative:\n";
	static const char *bad[] = {"+",    "-bad", "",	   "#c",   "few",
				    "many", "neg",  "hex", "huge", "nul"};
	struct user user;

	(void)state;
	write_file(passwd, text, sizeof(text) - 1);
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		assert_int_equal(user_lookup(bad[i], &arena, &user, &err), -ENOENT);
	assert_int_equal(user_lookup("ok", &arena, &user, &err), 0);
	assert_int_equal(user.uid, 4294967294u);
	assert_string_equal(user.home, "/");
	assert_int_equal(user.group_count, 1);
}

static void long_lines_are_skipped(void **state)
{
	size_t len = 3 * USER_LINE_BYTES_MAX;
	char *text = malloc(len + 200);
	struct user user;

	(void)state;
	assert_non_null(text);
	memset(text, 'a', len);
	strcpy(text + len, ":x:1:1::/:/\nada:x:9:9::/home/ada:/bin/sh\n");
	write_text(passwd, text);
	assert_int_equal(user_lookup("ada", &arena, &user, &err), 0);
	assert_int_equal(user.uid, 9);
	/* Every offset of a line against the end of the buffer. */
	for (size_t pad = USER_LINE_BYTES_MAX - 80; pad < USER_LINE_BYTES_MAX + 80; pad += 7) {
		memset(text, 'a', pad);
		strcpy(text + pad, "\nada:x:9:9::/home/ada:/bin/sh\nbob:x:8:8::/b:/");
		write_text(passwd, text);
		assert_int_equal(user_lookup("ada", &arena, &user, &err), 0);
		assert_int_equal(user_lookup("bob", &arena, &user, &err), 0);
		assert_int_equal(user.uid, 8);
	}
	free(text);
}

static void case_016_no_passwd_file_still_knows_root(void **state)
{
	struct user user;
	struct user_names *names;

	(void)state;
	assert_int_equal(user_lookup("root", &arena, &user, &err), 0);
	assert_int_equal(user.uid, 0);
	assert_int_equal(user.gid, 0);
	assert_true(user.home[0] == '/');
	assert_int_equal(user_lookup("ada", &arena, &user, &err), -ENOENT);
	assert_string_equal(err.message, "user: unknown user ada");
	names = user_names_load(&arena);
	assert_non_null(names);
	assert_string_equal(user_names_user(names, 0), "root");
	assert_string_equal(user_names_group(names, 0), "0");
	/* With a file, root is what the file says. */
	write_text(passwd, "ada:x:1:1::/:/\n");
	assert_int_equal(user_lookup("root", &arena, &user, &err), -ENOENT);
}

static void a_fifo_in_place_of_the_file_does_not_block(void **state)
{
	struct user user;

	(void)state;
	assert_int_equal(mkfifo(passwd, 0600), 0);
	assert_true(user_lookup("root", &arena, &user, &err) < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
}

static void conformance_164_unknown_ids_are_numbers(void **state)
{
	struct user_names *names;

	(void)state;
	write_text(
		passwd,
		"root:x:0:0::/root:/bin/sh\nb:x:30:30::/:/\na:x:20:20::/:/\nagain:x:20:1::/:/\n");
	write_text(group, "root:x:0:\nusers:x:100:\n");
	names = user_names_load(&arena);
	assert_non_null(names);
	for (int round = 0; round < 2; round++) {
		assert_string_equal(user_names_user(names, 0), "root");
		assert_string_equal(user_names_user(names, 20), "a");
		assert_string_equal(user_names_user(names, 30), "b");
		assert_string_equal(user_names_user(names, 4242), "4242");
		assert_string_equal(user_names_group(names, 100), "users");
		assert_string_equal(user_names_group(names, 4242), "4242");
	}
}

static void mode_bits_decide_what_a_user_may(void **state)
{
	gid_t groups[] = {100, 50};
	struct user user = {.uid = 1000, .gid = 100, .groups = groups, .group_count = 2};
	struct user root = {0};

	(void)state;
	assert_true(user_may(&user, 1000, 0, 0200, 2));
	assert_false(user_may(&user, 1000, 100, 0077, 2));
	assert_true(user_may(&user, 0, 50, 0020, 2));
	assert_false(user_may(&user, 0, 50, 0002, 2));
	assert_true(user_may(&user, 0, 0, 0002, 2));
	assert_false(user_may(&user, 0, 0, 0640, 2));
	assert_false(user_may(&user, 0, 0, 0002, 3));
	assert_true(user_may(&root, 1000, 1000, 0, 2));
}

/* In a child, which gives root's rights up. */
static int look_for_oneself(void)
{
	struct user user;
	char number[16];

	if (geteuid() == 0 &&
	    (setresgid(54321, 54321, 54321) < 0 || setresuid(54321, 54321, 54321) < 0))
		return 1;
	snprintf(number, sizeof(number), "%u", geteuid());
	if (setenv("HOME", "/home/of/mine", 1) < 0 || user_lookup(number, &arena, &user, &err) < 0)
		return 2;
	if (user.uid != geteuid() || user.gid != getegid() ||
	    strcmp(user.home, "/home/of/mine") != 0 || strcmp(user.name, number) != 0)
		return 3;
	/* Nobody else. */
	if (user_lookup("54322", &arena, &user, &err) != -ENOENT)
		return 4;
	setenv("HOME", "relative", 1);
	if (user_lookup(number, &arena, &user, &err) < 0 || strcmp(user.home, "/") != 0)
		return 5;
	return 0;
}

static void who_has_no_entry_is_known_by_number(void **state)
{
	int status;
	pid_t child;

	(void)state;
	write_text(passwd, "ada:x:1:1:ada:/home/ada:/bin/bash\n");
	write_text(group, "ada:x:1:\n");
	assert_int_equal(chmod(directory, 0755), 0);
	child = fork();
	if (child == 0)
		_exit(look_for_oneself());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void a_shortage_of_descriptors_is_not_the_agents_fault(void **state)
{
	struct rlimit before, none;
	struct user user;
	int status;

	(void)state;
	write_text(passwd, "ada:x:9:9::/home/ada:/bin/sh\n");
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = (struct rlimit){.rlim_max = before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	status = user_lookup("ada", &arena, &user, &err);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(status, -EMFILE);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
}

static void a_spent_budget_is_an_error_not_a_crash(void **state)
{
	struct user user;

	(void)state;
	write_text(passwd, "ada:x:9:9::/home/ada:/bin/sh\n");
	write_text(group, "g:x:1:ada\n");
	for (size_t budget = 0; budget < 4096; budget += 16) {
		struct arena small;
		struct user_names *names;
		int status;

		arena_init(&small, budget);
		status = user_lookup("ada", &small, &user, &err);
		if (status < 0)
			assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
		names = user_names_load(&small);
		if (names)
			assert_non_null(user_names_user(names, 77));
		arena_release(&small);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(lookup_reads_the_files_each_time, setup, teardown),
		cmocka_unit_test_setup_teardown(malformed_lines_are_skipped, setup, teardown),
		cmocka_unit_test_setup_teardown(long_lines_are_skipped, setup, teardown),
		cmocka_unit_test_setup_teardown(case_016_no_passwd_file_still_knows_root, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_fifo_in_place_of_the_file_does_not_block, setup,
						teardown),
		cmocka_unit_test_setup_teardown(conformance_164_unknown_ids_are_numbers, setup,
						teardown),
		cmocka_unit_test_setup_teardown(mode_bits_decide_what_a_user_may, setup, teardown),
		cmocka_unit_test_setup_teardown(who_has_no_entry_is_known_by_number, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_shortage_of_descriptors_is_not_the_agents_fault,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_spent_budget_is_an_error_not_a_crash, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
