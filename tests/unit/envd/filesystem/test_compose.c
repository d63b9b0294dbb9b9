/* Joining files, as plain functions (contract/envd.md 2.7). */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/compose.h"
#include "envd/filesystem/path.h"
#include "envd/limits.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

static struct arena arena;
static struct err err;
static struct folder folder;
static struct sandbox sandbox;
static struct compose compose;

static const char *at(const char *relative)
{
	return path_join(folder.path, relative, &arena);
}

static int setup(void **state)
{
	(void)state;
	arena_init(&arena, 64 * 1024 * 1024);
	folder_open(&folder);
	folder_make_accounts(&folder, "/d", "/d");
	assert_int_equal(mkdir(at("d"), 0755), 0);
	memset(&sandbox, 0, sizeof(sandbox));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	umount2(at("d"), MNT_DETACH);
	folder_close(&folder);
	arena_release(&arena);
	return 0;
}

static int run_as(const char *name, const char *body)
{
	const struct compose_request request = {
		.sandbox = &sandbox, .user_name = name, .body = str_of(body)};
	int status = compose_begin(&compose, &request, &arena, &err);

	if (status == 0)
		do
			status = compose_step(&compose, &err);
		while (status == 1);
	assert_int_equal(compose.fd, -1);
	assert_int_equal(compose.from, -1);
	return status;
}

static int run(const char *body)
{
	return run_as("self", body);
}

static void check_refused(const char *body, enum err_kind kind, const char *message)
{
	assert_true(run(body) < 0);
	if (err.kind != kind || !strstr(err.message, message))
		fail_msg("%s: %d %s", body, err.kind, err.message);
}

static void conformance_091_conformance_092_parts_become_one_file(void **state)
{
	struct stat st;

	(void)state;
	folder_write_text(at("d/1"), "Hello, ");
	folder_write_text(at("d/2"), "World");
	folder_write_text(at("d/3"), "!");
	assert_int_equal(run("{\"source_paths\":[\"1\",\"2\",\"~/3\"],\"destination\":\"f\"}"), 0);
	assert_string_equal(compose.path, at("d/f"));
	folder_check_text(at("d/f"), "Hello, World!");
	assert_int_equal(folder_count(at("d")), 1);
	assert_int_equal(stat(at("d/f"), &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0644);
}

/* conformance_093, conformance_094, conformance_095, conformance_096, conformance_097 */
static void conformance_093_to_conformance_097_refusals(void **state)
{
	static const struct {
		const char *body, *message;
		enum err_kind kind;
	} table[] = {
		{"", "invalid request body: ", ERR_INVALID_ARGUMENT},
		{"[]", "invalid request body: ", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\"", "invalid request body: ", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":\"a\",\"destination\":\"f\"}",
		 "invalid request body: ", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[1],\"destination\":\"f\"}",
		 "invalid request body: ", ERR_INVALID_ARGUMENT},
		{"{}", "source_paths must not be empty", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[],\"destination\":\"\"}", "source_paths must not be empty",
		 ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":null,\"destination\":\"f\"}", "source_paths must not be empty",
		 ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\"]}", "destination is required", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\"],\"destination\":\"\"}", "destination is required",
		 ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\"],\"destination\":\"~x/f\"}",
		 "error resolving destination path: ", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\"],\"destination\":\"f\",\"username\":\"none\"}",
		 "error looking up user 'none': user: unknown user none", ERR_UNAUTHENTICATED},
		{"{\"source_paths\":[\"~x/a\"],\"destination\":\"f\"}",
		 "error resolving source path \"~x/a\": ", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\",\"./f\"],\"destination\":\"f\"}",
		 "source path \"./f\" cannot be the same as destination", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\",\"link/f\"],\"destination\":\"f\"}",
		 "source path \"link/f\" cannot be the same as destination", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\",\"none\"],\"destination\":\"f\"}",
		 "source file not found: none", ERR_NOT_FOUND},
		{"{\"source_paths\":[\"a\",\"dir\"],\"destination\":\"f\"}",
		 "source path is not a regular file: dir", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"fifo\"],\"destination\":\"f\"}",
		 "source path is not a regular file: fifo", ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\"],\"destination\":\"dir\"}", "path is a directory",
		 ERR_INVALID_ARGUMENT},
		{"{\"source_paths\":[\"a\"],\"destination\":\"a/f\"}",
		 "error ensuring directories: ", ERR_INTERNAL},
	};

	(void)state;
	folder_write_text(at("d/a"), "part");
	folder_write_text(at("d/f"), "old");
	assert_int_equal(mkdir(at("d/dir"), 0755), 0);
	assert_int_equal(mkfifo(at("d/fifo"), 0600), 0);
	assert_int_equal(symlink(".", at("d/link")), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		if (strstr(table[i].message, "ensuring")) {
			assert_true(run(table[i].body) < 0);
			assert_non_null(strstr(err.message, table[i].message));
		} else {
			check_refused(table[i].body, table[i].kind, table[i].message);
		}
		folder_check_text(at("d/a"), "part");
		folder_check_text(at("d/f"), "old");
		assert_int_equal(folder_count(at("d")), 5);
	}
}

static void conformance_098_missing_parents_are_made(void **state)
{
	(void)state;
	folder_write_text(at("d/a"), "part");
	/* conformance_102: a single part; trailing garbage is ignored. */
	assert_int_equal(run("{\"Source_Paths\":[\"a\"],\"destination\":\"x/y/"
			     "z\",\"more\":{\"}\":\"\\\"}\"}}]garbage"),
			 0);
	folder_check_text(at("d/x/y/z"), "part");
	folder_check_text(at("d/a"), NULL);
}

static void conformance_099_order_is_kept(void **state)
{
	size_t len = 1 << 20;
	char *bytes = malloc(len), *got = malloc(10 * len);
	int fd;

	(void)state;
	assert_non_null(bytes);
	assert_non_null(got);
	for (int i = 0; i < 10; i++) {
		memset(bytes, 'a' + i, len);
		folder_write(at(arena_printf(&arena, "d/%d", i)), bytes, len);
	}
	assert_int_equal(run("{\"source_paths\":[\"0\",\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\","
			     "\"8\",\"9\"],"
			     "\"destination\":\"f\"}"),
			 0);
	fd = open(at("d/f"), O_RDONLY | O_CLOEXEC);
	assert_int_equal(read(fd, got, 10 * len), 10 * len);
	close(fd);
	for (size_t i = 0; i < 10 * len; i++)
		if (got[i] != (char)('a' + i / len))
			fail_msg("byte %zu is %c", i, got[i]);
	assert_int_equal(folder_count(at("d")), 1);
	free(bytes);
	free(got);
}

static void case_099_two_hundred_parts_over_an_existing_file(void **state)
{
	char *body = malloc(8192), *used = body, want[200 * 5 + 1] = "";

	(void)state;
	assert_non_null(body);
	folder_write_text(at("d/f"), "old content that is longer than nothing");
	assert_int_equal(chmod(at("d/f"), 0600), 0);
	used += sprintf(used, "{\"destination\":\"f\",\"source_paths\":[");
	for (int i = 0; i < 200; i++) {
		folder_write_text(at(arena_printf(&arena, "d/%d", i)),
				  arena_printf(&arena, "<%d>", i));
		used += sprintf(used, "%s\"%d\"", i ? "," : "", i);
		strcat(want, arena_printf(&arena, "<%d>", i));
	}
	strcpy(used, "]}");
	assert_int_equal(run(body), 0);
	folder_check_text(at("d/f"), want);
	assert_int_equal(folder_count(at("d")), 1);
	free(body);
}

static void a_part_may_come_twice_and_be_a_link(void **state)
{
	struct stat st;

	(void)state;
	folder_write_text(at("target"), "linked");
	folder_write_text(at("d/a"), "a");
	assert_int_equal(symlink("../target", at("d/link")), 0);
	assert_int_equal(symlink("../elsewhere", at("d/f")), 0);
	folder_write_text(at("elsewhere"), "untouched");
	assert_int_equal(run("{\"source_paths\":[\"a\",\"link\",\"a\"],\"destination\":\"f\"}"), 0);
	folder_check_text(at("d/f"), "alinkeda");
	/* Links are replaced and deleted themselves. */
	assert_int_equal(lstat(at("d/f"), &st), 0);
	assert_true(S_ISREG(st.st_mode));
	folder_check_text(at("elsewhere"), "untouched");
	folder_check_text(at("target"), "linked");
	assert_int_equal(folder_count(at("d")), 1);
}

static void a_part_that_is_replaced_meanwhile_stays(void **state)
{
	const struct compose_request request = {
		.sandbox = &sandbox,
		.user_name = "self",
		.body = STR("{\"source_paths\":[\"a\",\"b\"],\"destination\":\"f\"}")};

	(void)state;
	folder_write_text(at("d/a"), "a");
	folder_write_text(at("d/b"), "b");
	folder_write_text(at("d/f"), "old");
	assert_int_equal(compose_begin(&compose, &request, &arena, &err), 0);
	folder_write_text(at("d/new"), "new");
	assert_int_equal(rename(at("d/new"), at("d/b")), 0);
	assert_true(compose_step(&compose, &err) < 0);
	assert_non_null(strstr(err.message, "error opening source file "));
	folder_check_text(at("d/f"), "old");
	folder_check_text(at("d/a"), "a");
	folder_check_text(at("d/b"), "new");
	assert_int_equal(folder_count(at("d")), 3);
}

static void an_abandoned_one_changes_nothing(void **state)
{
	const struct compose_request request = {
		.sandbox = &sandbox,
		.user_name = "self",
		.body = STR("{\"source_paths\":[\"a\",\"a\",\"a\"],\"destination\":\"f\"}")};

	(void)state;
	folder_write_text(at("d/a"), "");
	assert_int_equal(truncate(at("d/a"), COMPOSE_STEP_BYTES + 1), 0);
	folder_write_text(at("d/f"), "old");
	assert_int_equal(compose_begin(&compose, &request, &arena, &err), 0);
	assert_int_equal(compose_step(&compose, &err), 1);
	assert_int_equal(compose_step(&compose, &err), 1);
	compose_abort(&compose);
	folder_check_text(at("d/f"), "old");
	assert_int_equal(folder_count(at("d")), 2);
}

static void case_099_a_full_disk_half_way(void **state)
{
	size_t len = 40000;
	char *bytes = calloc(1, len);

	(void)state;
	if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		skip();
	assert_int_equal(mount("tmpfs", at("d"), "tmpfs", 0, "size=128k"), 0);
	assert_non_null(bytes);
	folder_write(at("d/1"), bytes, len);
	folder_write(at("d/2"), bytes, len);
	folder_write_text(at("d/f"), "old");
	check_refused("{\"source_paths\":[\"1\",\"2\"],\"destination\":\"f\"}",
		      ERR_RESOURCE_EXHAUSTED, "not enough disk space available");
	assert_int_equal(err.sys, ENOSPC);
	folder_check_text(at("d/f"), "old");
	assert_int_equal(folder_count(at("d")), 3);
	/* conformance_101: a destination that cannot be made. */
	assert_int_equal(mount(NULL, at("d"), NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	assert_true(run("{\"source_paths\":[\"1\"],\"destination\":\"f\"}") < 0);
	folder_check_text(at("d/f"), "old");
	assert_int_equal(folder_count(at("d")), 3);
	free(bytes);
}

static void case_092_links_do_not_lead_to_others_files(void **state)
{
	struct stat st;

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_int_equal(chown(at("d"), 4242, 4243), 0);
	folder_write_text(at("secret"), "root's");
	assert_int_equal(chmod(at("secret"), 0600), 0);
	assert_int_equal(symlink("../secret", at("d/link")), 0);
	assert_int_equal(lchown(at("d/link"), 4242, 4243), 0);
	assert_true(run_as("user", "{\"source_paths\":[\"link\"],\"destination\":\"f\"}") < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	folder_check_text(at("d/f"), NULL);
	/* Nor to others' directories. */
	assert_int_equal(symlink("..", at("d/up")), 0);
	assert_int_equal(lchown(at("d/up"), 4242, 4243), 0);
	folder_write_text(at("d/a"), "a");
	assert_true(run_as("user", "{\"source_paths\":[\"a\"],\"destination\":\"up/secret\"}") < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	folder_check_text(at("secret"), "root's");
	folder_check_text(at("d/a"), "a");
	/* Nor by a hard link. */
	assert_int_equal(link(at("secret"), at("d/hard")), 0);
	assert_true(run_as("user", "{\"source_paths\":[\"hard\"],\"destination\":\"f\"}") < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	folder_check_text(at("d/f"), NULL);
	assert_int_equal(unlink(at("d/hard")), 0);
	assert_int_equal(run_as("user", "{\"source_paths\":[\"a\"],\"destination\":\"sub/f\"}"), 0);
	assert_int_equal(stat(at("d/sub/f"), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
	assert_int_equal(stat(at("d/sub"), &st), 0);
	assert_int_equal(st.st_uid, 4242);
}

static void case_176_new_names_and_links_of_roots(void **state)
{
	struct stat st;

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_int_equal(chown(at("d"), 4242, 4243), 0);
	folder_write_text(at("image"), "image");
	assert_int_equal(chmod(at("image"), 0600), 0);
	assert_int_equal(symlink("../image", at("d/link")), 0);
	assert_int_equal(symlink("..", at("d/up")), 0);
	assert_int_equal(lchown(at("d/up"), 4242, 4243), 0);
	/* Through his own link, and from where root's link leads. */
	assert_int_equal(run_as("user", "{\"source_paths\":[\"link\"],\"destination\":\"up/new\"}"),
			 0);
	folder_check_text(at("new"), "image");
	assert_int_equal(stat(at("new"), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	/* Over what is his own by now. */
	folder_write_text(at("d/a"), "a");
	assert_int_equal(run_as("user", "{\"source_paths\":[\"a\"],\"destination\":\"up/new\"}"),
			 0);
	folder_check_text(at("new"), "a");
}

static void long_names_and_files_of_proc(void **state)
{
	char name[256], body[600], text[64], comm[64] = "";
	int fd;

	(void)state;
	memset(name, 'n', 255);
	name[255] = '\0';
	folder_write_text(at("d/a"), "a");
	folder_write_text(at(arena_printf(&arena, "d/%s", name)), "old");
	snprintf(body, sizeof(body),
		 "{\"source_paths\":[\"a\",\"/proc/self/comm\"],\"destination\":\"%s\"}", name);
	assert_int_equal(run(body), 0);
	fd = open(at(arena_printf(&arena, "d/%s", name)), O_RDONLY | O_CLOEXEC);
	memset(text, 0, sizeof(text));
	assert_true(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	comm[0] = 'a';
	assert_true(read(fd, comm + 1, sizeof(comm) - 2) > 0);
	close(fd);
	assert_string_equal(text, comm);
	assert_int_equal(folder_count(at("d")), 1);
}

static bool has_text(const char *relative, const char *want)
{
	char text[64];
	int fd = open(at(relative), O_RDONLY | O_CLOEXEC);
	ssize_t len = fd >= 0 ? read(fd, text, sizeof(text)) : -1;

	close(fd);
	return len == (ssize_t)strlen(want) && memcmp(text, want, (size_t)len) == 0;
}

static int without_links(void)
{
	static const char body[] = "{\"source_paths\":[\"a\",\"b\"],\"destination\":\"f\"}";
	struct stat st;

	refusal_of_call(SYS_linkat, 4, 0, EXDEV);
	folder_write_text(at("d/a"), "a");
	folder_write_text(at("d/b"), "b");
	if (run_as(geteuid() == 0 ? "user" : "self", body) < 0 || !has_text("d/f", "ab"))
		return 1;
	if (stat(at("d/f"), &st) < 0 ||
	    (geteuid() == 0 && (st.st_uid != 4242 || st.st_gid != 4243)))
		return 2;
	if (folder_count(at("d")) != 1)
		return 3;
	/* Over what is there. */
	folder_write_text(at("d/a"), "A");
	folder_write_text(at("d/b"), "B");
	if (run_as(geteuid() == 0 ? "user" : "self", body) < 0 || !has_text("d/f", "AB"))
		return 4;
	return folder_count(at("d")) == 1 ? 0 : 5;
}

/* Quota groups, encrypted directories. */
static void case_099_where_unnamed_files_cannot_be_linked(void **state)
{
	(void)state;
	if (geteuid() == 0)
		assert_int_equal(chown(at("d"), 4242, 4243), 0);
	refusal_in_child(without_links);
}

static void a_directorys_default_acl_is_inherited(void **state)
{
	/* The kernel's form: a version, then tag, rights and id of each entry. */
	static const struct {
		uint32_t version;
		struct {
			uint16_t tag, rights;
			uint32_t id;
		} entries[5];
	} list = {2,
		  {{0x01, 7, UINT32_MAX},
		   {0x02, 6, 4244},
		   {0x04, 5, UINT32_MAX},
		   {0x10, 7, UINT32_MAX},
		   {0x20, 0, UINT32_MAX}}};

	(void)state;
	if (setxattr(at("d"), "system.posix_acl_default", &list, sizeof(list), 0) < 0)
		skip();
	for (int round = 0; round < 2; round++) {
		folder_write_text(at("d/a"), "a");
		assert_int_equal(run("{\"source_paths\":[\"a\"],\"destination\":\"f\"}"), 0);
		assert_true(getxattr(at("d/f"), "system.posix_acl_access", NULL, 0) > 0);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(conformance_091_conformance_092_parts_become_one_file),
		TEST(conformance_093_to_conformance_097_refusals),
		TEST(conformance_098_missing_parents_are_made),
		TEST(conformance_099_order_is_kept),
		TEST(case_099_two_hundred_parts_over_an_existing_file),
		TEST(a_part_may_come_twice_and_be_a_link),
		TEST(a_part_that_is_replaced_meanwhile_stays),
		TEST(an_abandoned_one_changes_nothing),
		TEST(case_092_links_do_not_lead_to_others_files),
		TEST(case_176_new_names_and_links_of_roots),
		TEST(long_names_and_files_of_proc),
		TEST(case_099_where_unnamed_files_cannot_be_linked),
		TEST(a_directorys_default_acl_is_inherited),
		/* Last: in a mount namespace of its own. */
		TEST(case_099_a_full_disk_half_way),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
