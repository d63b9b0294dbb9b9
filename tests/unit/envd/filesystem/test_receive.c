#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <zlib.h>

#include "envd/filesystem/path.h"
#include "envd/filesystem/receive.h"

static struct arena arena;
static struct err err;
static char root[64], passwd[96], group[96];
static struct sandbox sandbox;
static struct receive_request request;
static struct receive receive;

static bool am_root(void)
{
	return geteuid() == 0;
}

static const char *at(const char *relative)
{
	return path_join(root, relative, &arena);
}

static void write_bytes(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, len), len);
	close(fd);
}

static void write_text(const char *relative, const char *text)
{
	write_bytes(at(relative), text, strlen(text));
}

static int setup(void **state)
{
	char text[512];

	(void)state;
	arena_init(&arena, 64 * 1024 * 1024);
	memcpy(root, "/tmp/test_receive.XXXXXX", 25);
	assert_non_null(mkdtemp(root));
	assert_int_equal(chmod(root, 0755), 0);
	snprintf(passwd, sizeof(passwd), "%s/passwd", root);
	snprintf(group, sizeof(group), "%s/group", root);
	snprintf(text, sizeof(text), "self:x:%u:%u::%s:/bin/sh\nuser:x:4242:4243::%s/home:/bin/sh\n",
		 (unsigned)geteuid(), (unsigned)getegid(), root, root);
	write_bytes(passwd, text, strlen(text));
	write_bytes(group, "user:x:4243:\n", 13);
	user_set_files(passwd, group);
	assert_int_equal(mkdir(at("home"), 0755), 0);
	if (am_root())
		assert_int_equal(chown(at("home"), 4242, 4243), 0);
	request = (struct receive_request){
		.sandbox = &sandbox, .user_name = "self", .content_type = STR("application/octet-stream"),
		.length = -1};
	return 0;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	user_set_files(NULL, NULL);
	umount2(at("m"), MNT_DETACH);
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	assert_int_equal(system(command), 0); /* lint-ok: a test's own folder */
	arena_release(&arena);
	return 0;
}

/* One whole request, fed in pieces. */
static int post_pieces(const char *path, const void *body, size_t len, size_t piece)
{
	int status;

	request.path = path ? str_of(path) : (struct str){NULL, 0};
	status = receive_begin(&receive, &request, &arena, &err);
	for (size_t done = 0; done < len && status == 0; done += piece)
		status = receive_feed(&receive, (const char *)body + done, size_min(piece, len - done), &err);
	if (status == 0)
		status = receive_finish(&receive, &err);
	receive_abort(&receive);
	return status;
}

static int post(const char *path, const char *body)
{
	return post_pieces(path, body, strlen(body), 7);
}

static void check_bytes(const char *path, const void *want, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *got = malloc(len + 1);
	size_t have = 0;
	ssize_t piece;

	assert_true(fd >= 0);
	assert_non_null(got);
	while ((piece = read(fd, got + have, len + 1 - have)) > 0)
		have += (size_t)piece;
	assert_int_equal(have, len);
	assert_memory_equal(got, want, len);
	free(got);
	close(fd);
}

static void check_text(const char *relative, const char *want)
{
	check_bytes(at(relative), want, strlen(want));
}

static bool exists(const char *relative)
{
	struct stat st;

	return lstat(at(relative), &st) == 0;
}

static size_t count_entries(const char *relative)
{
	DIR *directory = opendir(at(relative));
	size_t count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 2;
}

static void mount_small(const char *options)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		skip();
	assert_int_equal(mkdir(at("m"), 0755), 0);
	assert_int_equal(mount("tmpfs", at("m"), "tmpfs", 0, options), 0);
}

static char *make_bytes(size_t len, unsigned seed)
{
	char *bytes = malloc(len);

	assert_non_null(bytes);
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1103515245 + 12345;
		bytes[i] = (char)(seed >> 16);
	}
	return bytes;
}

static void conformance_077_raw_uploads_are_stored(void **state)
{
	struct stat st;

	(void)state;
	assert_int_equal(post(at("f.txt"), "Hello, World!"), 0);
	check_text("f.txt", "Hello, World!");
	assert_int_equal(receive.file_count, 1);
	assert_string_equal(receive.files[0].path, at("f.txt"));
	assert_int_equal(receive.files[0].metadata_count, 0);
	assert_int_equal(stat(at("f.txt"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
	assert_int_equal(st.st_nlink, 1);
	request.content_type = STR("Application/Octet-Stream; charset=x");
	assert_int_equal(post(at("f.txt"), "y"), 0);
	check_text("f.txt", "y");
}

static void conformance_080_raw_uploads_overwrite(void **state)
{
	(void)state;
	write_text("f.txt", "old");
	assert_int_equal(post(at("f.txt"), "a longer text than before"), 0);
	check_text("f.txt", "a longer text than before");
	assert_int_equal(post(at("f.txt"), "x"), 0);
	check_text("f.txt", "x");
}

static void conformance_085_modes_and_owners_of_what_is_made(void **state)
{
	struct stat st;

	(void)state;
	if (!am_root())
		skip();
	request.user_name = "user";
	assert_int_equal(post(at("home/d/f"), "Hello, World!"), 0);
	assert_int_equal(stat(at("home/d/f"), &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0644);
	assert_int_equal(st.st_size, 13);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
	assert_true(st.st_mtim.tv_sec > 0);
	assert_int_equal(stat(at("home/d"), &st), 0);
	assert_int_equal(st.st_mode, S_IFDIR | 0755);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
}

static void conformance_078_missing_parents_are_made(void **state)
{
	struct stat st;

	(void)state;
	request.user_name = am_root() ? "user" : "self";
	assert_int_equal(post(at("home/a/b/c/f"), "x"), 0);
	assert_int_equal(stat(at("home/a/b"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(st.st_uid, am_root() ? 4242 : geteuid());
	assert_int_equal(stat(at("home/a/b/c/f"), &st), 0);
	assert_int_equal(st.st_uid, am_root() ? 4242 : geteuid());
	assert_int_equal(st.st_gid, am_root() ? 4243 : getegid());
	if (am_root()) {
		assert_int_equal(post("rel/f", "relative"), 0);
		check_text("home/rel/f", "relative");
		assert_int_equal(post("~/g", "tilde"), 0);
		check_text("home/g", "tilde");
	}
}

static void check_refused(enum err_kind kind, const char *message)
{
	assert_int_equal(err.kind, kind);
	assert_string_equal(err.message, message);
}

static void case_091_wrong_targets_are_client_errors(void **state)
{
	char component[300], longest[5000];

	(void)state;
	write_text("file", "x");
	assert_true(post(at("home"), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, arena_printf(&arena, "path is a directory: %s", at("home")));
	assert_true(post("", "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, arena_printf(&arena, "path is a directory: %s", root));
	assert_true(post("/", "x") < 0);
	assert_true(post(at("new/"), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, arena_printf(&arena, "path is a directory: %s", at("new")));
	assert_false(exists("new"));
	assert_true(post(at("file/x"), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, arena_printf(&arena, "error ensuring directories: path is a "
							 "file: %s", at("file")));
	memset(component, 'c', 256);
	component[256] = '\0';
	assert_true(post(at(component), "x") < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	check_refused(ERR_INVALID_ARGUMENT,
		      arena_printf(&arena, "error getting file info: stat %s: file name too long", at(component)));
	assert_true(post(at(arena_printf(&arena, "%s/x", component)), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, arena_printf(&arena, "error ensuring directories: failed to stat "
							 "directory: stat %s: file name too long", at(component)));
	memset(longest, 'l', sizeof(longest) - 1);
	longest[0] = '/';
	longest[sizeof(longest) - 1] = '\0';
	assert_true(post(longest, "x") < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_true(post("~other/x", "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, "error resolving path: failed to expand path '' for user "
					    "'self': cannot expand user-specific home dir");
	request.user_name = "nobody-here";
	assert_true(post(at("file"), "y") < 0);
	check_refused(ERR_UNAUTHENTICATED, "error looking up user 'nobody-here': user: unknown user "
					   "nobody-here");
	check_text("file", "x");
}

static void conformance_079_raw_uploads_need_a_path(void **state)
{
	(void)state;
	assert_true(post(NULL, "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, "path query parameter is required for raw body upload");
}

static void conformance_082_other_content_types_are_refused(void **state)
{
	static const char *const types[] = {"application/json", "text/plain", ""};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(types); i++) {
		request.content_type = str_of(types[i]);
		assert_true(post(at("file"), "y") < 0);
		check_refused(ERR_INVALID_ARGUMENT,
			      arena_printf(&arena, "unsupported content type: %s, expected multipart/form-"
						   "data or application/octet-stream", types[i]));
	}
	assert_false(exists("file"));
}

static void case_091_read_only_mounts(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	mount_small("size=64k");
	write_text("m/f", "old");
	assert_int_equal(mount(NULL, at("m"), NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	assert_true(post(at("m/f"), "x") < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	assert_true(post(at("m/new"), "x") < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	assert_true(post(at("m/d/new"), "x") < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	assert_non_null(strstr(err.message, "read-only file system"));
	check_text("m/f", "old");
}

static void case_101_special_files_are_refused_at_once(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)state;
	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	assert_true(post(at("fifo"), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT,
		      arena_printf(&arena, "path is not a regular file: %s", at("fifo")));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", root);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_true(post(at("socket"), "x") < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	assert_true(post("/dev/null", "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, "path is not a regular file: /dev/null");
	assert_int_equal(symlink("fifo", at("link")), 0);
	assert_true(post(at("link"), "x") < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	close(fd);
}

static void conformance_065_proc_cannot_hold_new_files(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	assert_true(post("/proc/invalid-filename", "x") < 0);
	check_refused(ERR_INTERNAL, "error opening file: open "
		      "/proc/invalid-filename: no such file or directory");
}

static void conformance_063_proc_cannot_hold_new_directories(void **state)
{
	(void)state;
	assert_true(post("/proc/invalid/not-real/x", "x") < 0);
	check_refused(ERR_INTERNAL, "error ensuring directories: failed to create directory: mkdir "
				    "/proc/invalid: no such file or directory");
}

static void case_087_virtual_files_are_written_through(void **state)
{
	char old[32], text[32];
	int fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
	ssize_t len;

	(void)state;
	assert_true(fd >= 0);
	len = read(fd, old, sizeof(old));
	assert_true(len > 0);
	close(fd);
	snprintf(text, sizeof(text), "/proc/%d/oom_score_adj", (int)getpid());
	assert_int_equal(post(text, "777"), 0);
	check_bytes("/proc/self/oom_score_adj", "777\n", 4);
	assert_true(post(text, "not a number") < 0);
	assert_int_equal(err.kind, ERR_INTERNAL);
	assert_non_null(strstr(err.message, "error writing file: write "));
	if (am_root())
		write_bytes("/proc/self/oom_score_adj", old, (size_t)len);
}

static void conformance_070_cgroup_files_are_written_through(void **state)
{
	static const char *const places[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	char directory[128], file[160];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
		snprintf(directory, sizeof(directory), "%s/test_receive_%d", places[i], (int)getpid());
		if (mkdir(directory, 0755) < 0)
			continue;
		snprintf(file, sizeof(file), "%s/cgroup.max.depth", directory);
		if (access(file, W_OK) == 0) {
			request.user_name = "user";
			assert_int_equal(post(file, "7"), 0);
			check_bytes(file, "7\n", 2);
			rmdir(directory);
			return;
		}
		rmdir(directory);
	}
	skip();
}

static void case_090_empty_files(void **state)
{
	struct stat st;

	(void)state;
	assert_int_equal(post(at("f"), ""), 0);
	assert_int_equal(stat(at("f"), &st), 0);
	assert_int_equal(st.st_size, 0);
	write_text("f", "full");
	assert_int_equal(post(at("f"), ""), 0);
	check_text("f", "");
}

static void case_087_a_full_disk_takes_a_replacement(void **state)
{
	const size_t mib = 1 << 20;
	char *old = make_bytes(mib, 1), *new = make_bytes(mib, 2);
	struct stat before, after;

	(void)state;
	if (!am_root())
		skip();
	mount_small("size=1m");
	for (int round = 0; round < 3; round++) {
		write_bytes(at("m/f"), old, mib);
		assert_int_equal(stat(at("m/f"), &before), 0);
		/* The length known, not known, and in a form. */
		request.length = round == 0 ? (int64_t)mib : -1;
		assert_int_equal(post_pieces(at("m/f"), new, mib, 100000), 0);
		check_bytes(at("m/f"), new, mib);
		assert_int_equal(stat(at("m/f"), &after), 0);
		assert_int_equal(before.st_ino, after.st_ino);
	}
	free(old);
	free(new);
}

static void conformance_067_a_smaller_replacement_on_a_full_disk(void **state)
{
	char *old = make_bytes(65536, 1);

	(void)state;
	if (!am_root())
		skip();
	mount_small("size=64k");
	write_bytes(at("m/f"), old, 65536);
	assert_int_equal(post(at("m/f"), "small"), 0);
	check_text("m/f", "small");
	free(old);
}

static void conformance_066_no_space_is_told_with_the_length(void **state)
{
	char body[16384] = "";

	(void)state;
	if (!am_root())
		skip();
	mount_small("size=8k");
	request.length = sizeof(body);
	assert_true(post_pieces(at("m/f"), body, sizeof(body), 5000) < 0);
	check_refused(ERR_RESOURCE_EXHAUSTED, "attempted to write 16384 bytes: not enough disk space "
					      "available");
	assert_false(exists("m/f"));
	request.length = -1;
	assert_true(post_pieces(at("m/f"), body, sizeof(body), 5000) < 0);
	check_refused(ERR_RESOURCE_EXHAUSTED, "not enough disk space available");
	assert_int_equal(count_entries("m"), 0);
}

static void case_086_a_replacement_that_cannot_fit_keeps_the_old(void **state)
{
	char *body = make_bytes(200000, 1);

	(void)state;
	if (!am_root())
		skip();
	mount_small("size=128k");
	write_text("m/f", "old");
	request.length = 200000;
	assert_true(post_pieces(at("m/f"), body, 200000, 30000) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	check_text("m/f", "old");
	/* Of unknown length: what the old file frees is not worth losing it. */
	request.length = -1;
	assert_true(post_pieces(at("m/f"), body, 200000, 30000) < 0);
	check_text("m/f", "old");
	assert_int_equal(count_entries("m"), 1);
	free(body);
}

static void conformance_069_no_inodes_are_told_apart(void **state)
{
	(void)state;
	if (!am_root())
		skip();
	mount_small("size=1m,nr_inodes=2");
	write_text("m/f", "old");
	assert_true(post(at("m/new"), "x") < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_string_equal(err.message, arena_printf(&arena, "not enough inodes available: open %s: no "
							      "space left on device", at("m/new")));
	/* Without an inode to stage in, an existing file is written in place. */
	assert_int_equal(post(at("m/f"), "new"), 0);
	check_text("m/f", "new");
}

static void conformance_068_new_file_on_a_full_disk(void **state)
{
	char *old = make_bytes(65536, 1);

	(void)state;
	if (!am_root())
		skip();
	mount_small("size=64k");
	write_bytes(at("m/f"), old, 65536);
	assert_true(post(at("m/new"), "x") < 0);
	assert_non_null(strstr(err.message, "not enough disk space available"));
	assert_false(exists("m/new"));
	free(old);
}

static void case_088_an_interrupted_upload_changes_nothing(void **state)
{
	char *body = make_bytes(1 << 20, 3);

	(void)state;
	write_text("home/f", "old");
	for (int round = 0; round < 2; round++) {
		const char *path = at(round ? "home/new" : "home/f");

		request.path = str_of(path);
		assert_int_equal(receive_begin(&receive, &request, &arena, &err), 0);
		assert_int_equal(receive_feed(&receive, body, 1 << 20, &err), 0);
		check_text("home/f", "old");
		assert_int_equal(count_entries("home"), 1);
		receive_abort(&receive);
		check_text("home/f", "old");
		assert_int_equal(count_entries("home"), 1);
	}
	free(body);
}

static void case_088_inode_mode_and_links_stay(void **state)
{
	struct stat before, after;

	(void)state;
	write_text("home/script", "#!/bin/sh\nexit 1\n");
	assert_int_equal(chmod(at("home/script"), 0755), 0);
	if (am_root())
		assert_int_equal(chown(at("home/script"), 4242, 4243), 0);
	assert_int_equal(link(at("home/script"), at("home/other")), 0);
	assert_int_equal(symlink("script", at("home/link")), 0);
	assert_int_equal(stat(at("home/script"), &before), 0);
	request.user_name = am_root() ? "user" : "self";
	assert_int_equal(post(at("home/link"), "#!/bin/sh\nexit 2\n"), 0);
	assert_int_equal(stat(at("home/script"), &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	assert_int_equal(after.st_mode & 07777, 0755);
	assert_int_equal(after.st_nlink, 2);
	check_text("home/other", "#!/bin/sh\nexit 2\n");
	assert_int_equal(lstat(at("home/link"), &after), 0);
	assert_true(S_ISLNK(after.st_mode));
	assert_string_equal(receive.files[0].path, at("home/link"));
}

static void conformance_089_the_owner_becomes_the_user(void **state)
{
	struct stat st;

	(void)state;
	if (!am_root())
		skip();
	write_text("home/script", "old");
	assert_int_equal(chmod(at("home/script"), 04755), 0);
	request.user_name = "user";
	assert_int_equal(post(at("home/script"), "new"), 0);
	assert_int_equal(stat(at("home/script"), &st), 0);
	assert_int_equal(st.st_uid, 4242);
	assert_int_equal(st.st_gid, 4243);
	assert_int_equal(st.st_mode & 07777, 0755);
}

static void conformance_090_dangling_links_create_their_target(void **state)
{
	(void)state;
	assert_int_equal(symlink("later", at("home/link")), 0);
	assert_int_equal(post(at("home/link"), "made"), 0);
	check_text("home/later", "made");
	assert_int_equal(symlink("loop", at("home/loop")), 0);
	assert_true(post(at("home/loop"), "x") < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
}

static void case_092_links_do_not_reach_other_peoples_files(void **state)
{
	struct stat st;

	(void)state;
	if (!am_root())
		skip();
	assert_int_equal(mkdir(at("etc"), 0755), 0);
	write_text("etc/shadow", "secret");
	write_text("etc/motd", "open");
	assert_int_equal(chmod(at("etc/motd"), 0666), 0);
	assert_int_equal(symlink("../etc/shadow", at("home/s")), 0);
	assert_int_equal(symlink("../etc/motd", at("home/o")), 0);
	assert_int_equal(symlink("../etc", at("home/d")), 0);
	assert_int_equal(symlink("../etc/new", at("home/n")), 0);
	assert_int_equal(link(at("etc/shadow"), at("home/hard")), 0);
	assert_int_equal(lchown(at("home/s"), 4242, 4243), 0);
	assert_int_equal(lchown(at("home/o"), 4242, 4243), 0);
	assert_int_equal(lchown(at("home/d"), 4242, 4243), 0);
	assert_int_equal(lchown(at("home/n"), 4242, 4243), 0);
	request.user_name = "user";
	static const char *const refused[] = {"home/s", "home/d/shadow", "home/d/new", "home/d/x/new",
					      "home/n", "home/hard"};
	for (size_t i = 0; i < ARRAY_LENGTH(refused); i++) {
		assert_true(post(at(refused[i]), "pwned") < 0);
		assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
		assert_int_equal(stat(at("etc/shadow"), &st), 0);
		assert_int_equal(st.st_uid, 0);
		check_text("etc/shadow", "secret");
	}
	/* Nor does a link of root's to a single file, which may have been moved to where it is. */
	assert_int_equal(lchown(at("home/s"), 0, 0), 0);
	assert_true(post(at("home/s"), "pwned") < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	check_text("etc/shadow", "secret");
	assert_int_equal(count_entries("etc"), 2);
	/* He could write this himself, so it is written, and not given to him. */
	assert_int_equal(post(at("home/o"), "written"), 0);
	check_text("etc/motd", "written");
	assert_int_equal(stat(at("etc/motd"), &st), 0);
	assert_int_equal(st.st_uid, 0);
	/* Named directly, the reference's rule holds: root's rights; but the system keeps its file. */
	assert_int_equal(post(at("etc/motd"), "direct"), 0);
	assert_int_equal(stat(at("etc/motd"), &st), 0);
	assert_int_equal(st.st_uid, 0);
}

static void case_092_shared_directories_keep_owner_and_mode(void **state)
{
	struct stat st;

	(void)state;
	if (!am_root())
		skip();
	assert_int_equal(mkdir(at("tmp"), 0755), 0);
	assert_int_equal(chmod(at("tmp"), 01777), 0);
	request.user_name = "user";
	assert_int_equal(post(at("tmp/x"), "x"), 0);
	assert_int_equal(stat(at("tmp"), &st), 0);
	assert_int_equal(st.st_uid, 0);
	assert_int_equal(st.st_mode & 07777, 01777);
	assert_int_equal(stat(at("tmp/x"), &st), 0);
	assert_int_equal(st.st_uid, 4242);
}

static void conformance_072_metadata_is_replaced_as_a_whole(void **state)
{
	static const struct metadata_field first[] = {
		{{"X-Metadata-B", 12}, {"2", 1}}, {{"x-metadata-a", 12}, {"1", 1}},
		{{"X-METADATA-A", 12}, {"ignored", 7}}, {{"X-Metadata-", 11}, {"empty", 5}},
		{{"Content-Type", 12}, {"text/plain", 10}},
	};
	static const struct metadata_field second[] = {{{"X-Metadata-c", 12}, {"3", 1}}};
	char value[8];

	(void)state;
	write_text("f", "old");
	if (setxattr(at("f"), "user.e2b.old", "x", 1, 0) < 0)
		skip();
	assert_int_equal(setxattr(at("f"), "user.foreign", "kept", 4, 0), 0);
	request.fields = first;
	request.field_count = ARRAY_LENGTH(first);
	assert_int_equal(post(at("f"), "x"), 0);
	assert_int_equal(receive.files[0].metadata_count, 2);
	assert_string_equal(receive.files[0].metadata[0].key, "a");
	assert_string_equal(receive.files[0].metadata[0].value, "1");
	assert_string_equal(receive.files[0].metadata[1].key, "b");
	assert_true(getxattr(at("f"), "user.e2b.old", value, sizeof(value)) < 0);
	request.fields = second;
	request.field_count = 1;
	assert_int_equal(post(at("f"), "y"), 0);
	assert_int_equal(receive.files[0].metadata_count, 1);
	assert_string_equal(receive.files[0].metadata[0].key, "c");
	/* New files have it from the moment they are seen. */
	assert_int_equal(post(at("new"), "y"), 0);
	assert_int_equal(getxattr(at("new"), "user.e2b.c", value, sizeof(value)), 1);
	request.field_count = 0;
	assert_int_equal(post(at("f"), "z"), 0);
	assert_int_equal(receive.files[0].metadata_count, 0);
	assert_int_equal(getxattr(at("f"), "user.foreign", value, sizeof(value)), 4);
}

static void case_096_a_file_system_without_attributes(void **state)
{
	static const struct metadata_field fields[] = {{{"X-Metadata-c", 12}, {"3", 1}}};

	(void)state;
	request.fields = fields;
	request.field_count = 1;
	if (access("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", W_OK) < 0)
		skip();
	/* sysfs takes the write and keeps no metadata: none is claimed. */
	char text[32];
	int fd = open("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", O_RDONLY | O_CLOEXEC);
	ssize_t len = read(fd, text, sizeof(text) - 1);

	close(fd);
	assert_true(len > 0);
	text[len] = '\0';
	assert_int_equal(post("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan", text), 0);
	assert_int_equal(receive.files[0].metadata_count, 0);
}

static void conformance_075_metadata_is_validated(void **state)
{
	char name[300] = "X-Metadata-", value[4200];
	struct metadata_field field = {{name, 0}, {value, 0}};

	(void)state;
	request.fields = &field;
	request.field_count = 1;
	memset(name + 11, 'k', 247);
	memset(value, 'v', sizeof(value));
	field.name.len = 11 + 247;
	field.value.len = 1;
	assert_true(post(at("f"), "x") < 0);
	assert_non_null(strstr(err.message, "invalid metadata: metadata key \"kkk"));
	assert_non_null(strstr(err.message, " exceeds 246 bytes"));
	field.name.len = 12;
	field.value.len = 4096 - 9;
	assert_true(post(at("f"), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, "invalid metadata: total metadata size 4097 exceeds 4096 bytes");
	value[3] = (char)0x80;
	field.value.len = 5;
	assert_true(post(at("f"), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, "invalid metadata: metadata value for key \"k\" contains "
					    "non-printable-ASCII byte 0x80 at offset 3");
	name[14] = (char)0x80;
	field.name.len = 16;
	assert_true(post(at("f"), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, "invalid metadata: metadata key contains non-printable-ASCII "
					    "byte 0x80 at offset 3");
	assert_false(exists("f"));
}

#define PART(name) "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" name "\"\r\n\r\n"

static int post_form(const char *path, const char *body)
{
	request.content_type = STR("multipart/form-data; boundary=b");
	return post_pieces(path, body, strlen(body), 5);
}

static void case_089_forms(void **state)
{
	const char *body;

	(void)state;
	body = arena_printf(&arena, PART("%s/n/a/1") "one\r\n" PART("%s/n/b/2") "two\r\n--b\r\n"
			    "Content-Disposition: form-data; name=\"other\"\r\n\r\nskipped\r\n"
			    PART("%s/n/3") "\r\n--b--\r\n", root, root, root);
	assert_int_equal(post_form(NULL, body), 0);
	assert_int_equal(receive.file_count, 3);
	assert_string_equal(receive.files[1].path, at("n/b/2"));
	check_text("n/a/1", "one");
	check_text("n/b/2", "two");
	check_text("n/3", "");
	/* Relative names are below the home. */
	assert_int_equal(post_form(NULL, PART("rel/x") "r\r\n--b--\r\n"), 0);
	check_text("rel/x", "r");
	assert_int_equal(post_form(NULL, "--b\r\nContent-Disposition: form-data; name=file; filename*=UTF-8''"
					 "%C3%A4.txt\r\n\r\nu\r\n--b--\r\n"), 0);
	check_text("\xC3\xA4.txt", "u");
	/* No file part at all. */
	assert_int_equal(post_form(NULL, "--b\r\nContent-Disposition: form-data; name=x\r\n\r\n\r\n--b--"), 0);
	assert_int_equal(receive.file_count, 0);
	assert_int_equal(post_form(NULL, "--b--\r\n"), 0);
	assert_int_equal(receive.file_count, 0);
}

static void conformance_083_the_path_of_the_query_wins(void **state)
{
	(void)state;
	assert_int_equal(post_form(at("q"), PART("undefined") "query\r\n--b--\r\n"), 0);
	check_text("q", "query");
	assert_int_equal(post_form(at("q"), PART("/elsewhere/x") "again\r\n--b--\r\n"), 0);
	check_text("q", "again");
	assert_int_equal(post_form(at("q"), "--b\r\nContent-Disposition: form-data; name=file\r\n\r\nbare"
					    "\r\n--b--\r\n"), 0);
	check_text("q", "bare");
	/* Also when it is given and empty: then it is the home, which is a directory. */
	assert_true(post_form("", PART("x") "x\r\n--b--\r\n") < 0);
	check_refused(ERR_INVALID_ARGUMENT, arena_printf(&arena, "path is a directory: %s", root));
}

static void conformance_074_metadata_keys(void **state)
{
	static const struct metadata_field fields[] = {
		{{"X-Metadata-", 11}, {"empty", 5}}, {{"X-METADATA-Key", 14}, {"first", 5}},
		{{"x-metadata-key", 14}, {"second", 6}}, {{"X-Metadata-Other", 16}, {"", 0}},
		{{"X-Meta", 6}, {"no", 2}},
	};
	struct entry_metadata *metadata;
	size_t count;

	(void)state;
	assert_int_equal(metadata_collect(NULL, 0, &arena, &metadata, &count, &err), 0);
	assert_int_equal(count, 0);
	assert_int_equal(metadata_collect(fields, ARRAY_LENGTH(fields), &arena, &metadata, &count, &err), 0);
	assert_int_equal(count, 2);
	assert_string_equal(metadata[0].key, "key");
	assert_string_equal(metadata[0].value, "first");
	assert_string_equal(metadata[1].key, "other");
	assert_string_equal(metadata[1].value, "");
}

static void case_089_broken_forms(void **state)
{
	(void)state;
	write_text("f", "old");
	assert_true(post_form(NULL, "--b\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--b--") < 0);
	check_refused(ERR_INVALID_ARGUMENT, "error getting multipart custom part file name: filename not "
					    "found in Content-Disposition header");
	assert_true(post_form(at("f"), PART("x") "cut off") < 0);
	check_refused(ERR_INTERNAL, "error reading form: multipart: unexpected EOF");
	check_text("f", "old");
	assert_true(post_form(at("f"), PART("x") "a\r\n--b  broken") < 0);
	check_refused(ERR_INTERNAL, "error reading form: multipart: bytes behind a boundary");
	check_text("f", "old");
	request.content_type = STR("multipart/form-data");
	assert_true(post_pieces(at("f"), "", 0, 1) < 0);
	check_refused(ERR_INTERNAL, "error parsing multipart form: no multipart boundary param in "
				    "Content-Type");
	request.content_type = STR("multipart/related; boundary=b");
	assert_true(post_pieces(at("f"), "", 0, 1) < 0);
	check_refused(ERR_INTERNAL, "error parsing multipart form: request Content-Type isn't "
				    "multipart/form-data");
}

static void conformance_087_the_same_target_twice(void **state)
{
	const char *body;

	(void)state;
	assert_true(post_form(at("f"), PART("a") "first\r\n" PART("b") "second\r\n--b--\r\n") < 0);
	check_refused(ERR_INVALID_ARGUMENT,
		      arena_printf(&arena, "you cannot upload multiple files to the same path '%s' in one "
					   "upload request, only the first specified file was uploaded",
				   at("f")));
	check_text("f", "first");
	body = arena_printf(&arena, PART("%s/1") "1\r\n" PART("%s/2") "2\r\n" PART("%s/3") "3\r\n"
			    PART("%s//1") "4\r\n--b--\r\n", root, root, root, root);
	assert_true(post_form(NULL, body) < 0);
	check_refused(ERR_INVALID_ARGUMENT,
		      arena_printf(&arena, "you cannot upload multiple files to the same path '%s' in one "
					   "upload request, only the first specified file was uploaded, "
					   "also the following files were uploaded: %s, %s",
				   at("1"), at("2"), at("3")));
	check_text("1", "1");
}

static size_t compress_text(const char *text, size_t len, char *out, size_t size)
{
	z_stream stream = {0};

	assert_int_equal(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
	stream.next_in = (unsigned char *)text;
	stream.avail_in = (unsigned)len;
	stream.next_out = (unsigned char *)out;
	stream.avail_out = (unsigned)size;
	assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
	deflateEnd(&stream);
	return size - stream.avail_out;
}

static void case_094_compressed_bodies(void **state)
{
	char *zeros = calloc(1, 10 << 20);
	char packed[65536];
	size_t len, one;
	struct stat st;

	(void)state;
	assert_non_null(zeros);
	request.content_encoding = STR("GZIP;q=1.0");
	len = compress_text("compressed", 10, packed, sizeof(packed));
	for (size_t piece = 1; piece <= len; piece++) {
		assert_int_equal(post_pieces(at("f"), packed, len, piece), 0);
		check_text("f", "compressed");
	}
	/* Two members are one text. */
	one = len;
	len += compress_text(" twice", 6, packed + len, sizeof(packed) - len);
	assert_int_equal(post_pieces(at("f"), packed, len, 3), 0);
	check_text("f", "compressed twice");
	/* Everything that is wrong keeps the old content. */
	assert_true(post_pieces(at("f"), "not gzip at all", 15, 4) < 0);
	check_refused(ERR_INVALID_ARGUMENT, "error decompressing request body: failed to create gzip "
					    "reader: gzip: invalid header");
	assert_true(post_pieces(at("f"), "", 0, 4) < 0);
	check_refused(ERR_INVALID_ARGUMENT, "error decompressing request body: failed to create gzip "
					    "reader: EOF");
	for (size_t cut = 1; cut < one; cut++) {
		assert_true(post_pieces(at("f"), packed, cut, 7) < 0);
		check_refused(ERR_INVALID_ARGUMENT, "error decompressing request body: unexpected EOF");
	}
	packed[one] = 'x';
	assert_true(post_pieces(at("f"), packed, one + 1, 7) < 0);
	assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	packed[one - 6] ^= 1;
	assert_true(post_pieces(at("f"), packed, one, 7) < 0);
	check_refused(ERR_INVALID_ARGUMENT, "error decompressing request body: gzip: invalid data");
	check_text("f", "compressed twice");
	request.content_encoding = STR("br");
	assert_true(post(at("f"), "x") < 0);
	check_refused(ERR_INVALID_ARGUMENT, "error decompressing request body: unsupported "
					    "Content-Encoding: br, supported: [gzip]");
	request.content_encoding = STR("identity");
	assert_int_equal(post(at("f"), "plain"), 0);
	/* A small body that becomes large, and a form. */
	request.content_encoding = STR("gzip");
	len = compress_text(zeros, 10 << 20, packed, sizeof(packed));
	assert_int_equal(post_pieces(at("f"), packed, len, 1000), 0);
	assert_int_equal(stat(at("f"), &st), 0);
	assert_int_equal(st.st_size, 10 << 20);
	free(zeros);
}

static void conformance_076_compressed_forms(void **state)
{
	char packed[512];
	const char *form = PART("x") "in a form\r\n--b--\r\n";
	size_t len = compress_text(form, strlen(form), packed, sizeof(packed));

	(void)state;
	request.content_encoding = STR("gzip");
	request.content_type = STR("multipart/form-data; boundary=b");
	for (size_t piece = 1; piece < 20; piece++) {
		assert_int_equal(post_pieces(at("f"), packed, len, piece), 0);
		check_text("f", "in a form");
	}
	assert_true(post_pieces(at("f"), packed, len - 9, 10) < 0);
	check_text("f", "in a form");
}

static void conformance_081_compressed_raw_bodies(void **state)
{
	char packed[256];
	size_t len = compress_text("raw", 3, packed, sizeof(packed));

	(void)state;
	request.content_encoding = STR("gzip");
	assert_int_equal(post_pieces(at("f"), packed, len, 100), 0);
	check_text("f", "raw");
}

static void conformance_059_content_encodings(void **state)
{
	static const struct {
		const char *coding;
		bool is_gzip;
	} table[] = {{NULL, false}, {"", false}, {"identity", false}, {"gzip", true}, {"GZIP", true},
		     {"Gzip", true}, {"gzip;q=1.0", true}, {" gzip ; q=1", true}};
	char packed[256];
	size_t len = compress_text("text", 4, packed, sizeof(packed));

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		request.content_encoding = str_of(table[i].coding);
		if (table[i].is_gzip)
			assert_int_equal(post_pieces(at("f"), packed, len, 10), 0);
		else
			assert_int_equal(post(at("f"), "text"), 0);
		check_text("f", "text");
	}
}

static void conformance_073_metadata_of_a_form_is_on_every_file(void **state)
{
	static const struct metadata_field fields[] = {{{"X-Metadata-k", 12}, {"v", 1}}};
	const char *body;
	char value[8];

	(void)state;
	request.fields = fields;
	request.field_count = 1;
	body = arena_printf(&arena, PART("%s/1") "1\r\n" PART("%s/2") "2\r\n--b--\r\n", root, root);
	assert_int_equal(post_form(NULL, body), 0);
	assert_int_equal(receive.file_count, 2);
	if (getxattr(at("1"), "user.e2b.k", value, sizeof(value)) < 0)
		skip();
	assert_int_equal(getxattr(at("2"), "user.e2b.k", value, sizeof(value)), 1);
	assert_int_equal(receive.files[1].metadata_count, 1);
}

/* Makes the kernel refuse a call, as a file system or an older kernel would: when the argument has all
 * bits of `mask`. For a child process alone. */
static void refuse_call(unsigned number, unsigned argument, unsigned mask, unsigned sys)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 (unsigned)offsetof(struct seccomp_data, args) + 8 * argument),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, mask, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | sys),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = {ARRAY_LENGTH(filter), filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
		_exit(77);
}

/* Runs `body` in a child, which says with its exit status which of its checks failed. */
static void in_child(int (*body)(void))
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0)
		_exit(body());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

static bool has_text(const char *relative, const char *want)
{
	char text[256];
	int fd = open(at(relative), O_RDONLY | O_CLOEXEC);
	ssize_t len = fd >= 0 ? read(fd, text, sizeof(text)) : -1;

	close(fd);
	return len == (ssize_t)strlen(want) && memcmp(text, want, (size_t)len) == 0;
}

/* Begins, feeds and lets go. */
static int interrupt_upload(const char *relative)
{
	int status;

	request.path = str_of(at(relative));
	status = receive_begin(&receive, &request, &arena, &err);
	if (status == 0)
		status = receive_feed(&receive, "part", 4, &err);
	receive_abort(&receive);
	return status;
}

static int without_unnamed_files(void)
{
	struct stat st;

	refuse_call(SYS_openat, 2, O_TMPFILE, EOPNOTSUPP);
	if (post(at("home/new"), "new content") < 0 || !has_text("home/new", "new content"))
		return 1;
	if (post(at("home/f"), "overwritten") < 0 || !has_text("home/f", "overwritten"))
		return 2;
	if (stat(at("home/f"), &st) < 0 || (am_root() && (st.st_uid != 4242 || st.st_gid != 4243)))
		return 3;
	/* What was not there before does not stay half. */
	if (interrupt_upload("home/half") < 0 || exists("home/half"))
		return 4;
	/* The documented loss. */
	if (interrupt_upload("home/f") < 0 || !has_text("home/f", "part"))
		return 5;
	return 0;
}

static void case_088_in_place_where_files_cannot_be_unnamed(void **state)
{
	(void)state;
	write_text("home/f", "old");
	request.user_name = am_root() ? "user" : "self";
	in_child(without_unnamed_files);
}

static int without_links(void)
{
	struct stat st;

	refuse_call(SYS_linkat, 4, 0, EXDEV);
	if (post(at("home/new"), "new content") < 0 || !has_text("home/new", "new content"))
		return 1;
	if (stat(at("home/new"), &st) < 0 || (am_root() && st.st_uid != 4242) ||
	    (st.st_mode & 07777) != 0644)
		return 2;
	if (interrupt_upload("home/half") < 0 || exists("home/half"))
		return 3;
	return 0;
}

static void case_088_where_unnamed_files_cannot_be_linked(void **state)
{
	(void)state;
	request.user_name = am_root() ? "user" : "self";
	in_child(without_links);
}

static int without_copying_in_the_kernel(void)
{
	char *bytes = make_bytes(300000, 8);
	int fd;

	refuse_call(SYS_copy_file_range, 5, 0, EXDEV);
	if (post_pieces(at("home/f"), bytes, 300000, 70000) < 0)
		return 1;
	fd = open(at("home/f"), O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < 300000; i++) {
		char c;

		if (pread(fd, &c, 1, (off_t)i) != 1 || c != bytes[i])
			return 2;
	}
	close(fd);
	free(bytes);
	return 0;
}

static void case_087_copied_by_hand_across_file_systems(void **state)
{
	(void)state;
	write_text("home/f", "old");
	in_child(without_copying_in_the_kernel);
}

static uint32_t read_events(int fd, char *names, size_t size)
{
	char buffer[8192] __attribute__((aligned(8)));
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	uint32_t all = 0;
	size_t used = 0;

	names[0] = '\0';
	while (poll(&ready, 1, 0) > 0) {
		ssize_t len = read(fd, buffer, sizeof(buffer));

		for (ssize_t i = 0; i < len;) {
			struct inotify_event *event = (void *)(buffer + i);

			all = all << 12 | event->mask;
			used += (size_t)snprintf(names + used, size - used, "%s:%x ",
						 event->len ? event->name : "", event->mask);
			i += (ssize_t)(sizeof(*event) + event->len);
		}
	}
	return all;
}

static void case_088_watchers_see_an_in_place_write(void **state)
{
	int fd;
	char seen[1024];

	(void)state;
	/* An ordinary user can stage in the watched directory alone, which shows. */
	if (!am_root())
		skip();
	fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	assert_true(inotify_add_watch(fd, at("home"), IN_CREATE | IN_MODIFY | IN_DELETE | IN_ATTRIB |
						      IN_MOVED_FROM | IN_MOVED_TO) >= 0);
	assert_int_equal(post(at("home/f"), "new file"), 0);
	read_events(fd, seen, sizeof(seen));
	assert_string_equal(seen, "f:100 f:4 f:2 ");
	assert_int_equal(post(at("home/f"), "overwritten"), 0);
	read_events(fd, seen, sizeof(seen));
	assert_string_equal(seen, "f:4 f:2 ");
	close(fd);
}

struct writer {
	pthread_t thread;
	char fill;
	const char *path;
	int status;
};

#define RACE_BYTES 300000

static void *write_it(void *argument)
{
	struct writer *writer = argument;
	struct receive_request own = request;
	struct receive own_receive;
	struct arena own_arena;
	struct err own_err;
	char *body = malloc(RACE_BYTES);

	memset(body, writer->fill, RACE_BYTES);
	arena_init(&own_arena, 1 << 22);
	own.path = str_of(writer->path);
	writer->status = receive_begin(&own_receive, &own, &own_arena, &own_err);
	if (writer->status == 0)
		writer->status = receive_feed(&own_receive, body, RACE_BYTES, &own_err);
	if (writer->status == 0)
		writer->status = receive_finish(&own_receive, &own_err);
	receive_abort(&own_receive);
	arena_release(&own_arena);
	free(body);
	return NULL;
}

static void case_088_parallel_uploads_of_one_file_are_one_of_them(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct writer writers[4];
		char *want = malloc(RACE_BYTES), got;
		int fd;

		assert_non_null(want);
		for (size_t i = 0; i < ARRAY_LENGTH(writers); i++) {
			writers[i].fill = (char)('a' + i);
			writers[i].path = at("home/deep/f");
			assert_int_equal(pthread_create(&writers[i].thread, NULL, write_it, &writers[i]), 0);
		}
		for (size_t i = 0; i < ARRAY_LENGTH(writers); i++) {
			pthread_join(writers[i].thread, NULL);
			assert_int_equal(writers[i].status, 0);
		}
		fd = open(at("home/deep/f"), O_RDONLY | O_CLOEXEC);
		assert_int_equal(read(fd, &got, 1), 1);
		close(fd);
		memset(want, got, RACE_BYTES);
		check_bytes(at("home/deep/f"), want, RACE_BYTES);
		free(want);
		if (round & 1)
			assert_int_equal(unlink(at("home/deep/f")), 0);
	}
}

static void case_096_renames_of_the_path_while_uploading(void **state)
{
	(void)state;
	/* The target moves away, or the whole directory goes, between begin and finish. */
	write_text("home/f", "old");
	request.path = str_of(at("home/f"));
	assert_int_equal(receive_begin(&receive, &request, &arena, &err), 0);
	assert_int_equal(receive_feed(&receive, "new", 3, &err), 0);
	assert_int_equal(rename(at("home/f"), at("home/moved")), 0);
	assert_int_equal(receive_finish(&receive, &err), 0);
	receive_abort(&receive);
	check_text("home/moved", "old");
	check_text("home/f", "new");
	request.path = str_of(at("home/d/f"));
	assert_int_equal(receive_begin(&receive, &request, &arena, &err), 0);
	assert_int_equal(receive_feed(&receive, "new", 3, &err), 0);
	assert_int_equal(rmdir(at("home/d")), 0);
	assert_int_equal(receive_finish(&receive, &err), 0);
	receive_abort(&receive);
	check_text("home/d/f", "new");
	/* Something else stands there now. */
	request.path = str_of(at("home/g"));
	assert_int_equal(receive_begin(&receive, &request, &arena, &err), 0);
	assert_int_equal(mkdir(at("home/g"), 0755), 0);
	assert_true(receive_finish(&receive, &err) < 0);
	receive_abort(&receive);
	check_refused(ERR_INVALID_ARGUMENT, arena_printf(&arena, "path is a directory: %s", at("home/g")));
	request.path = str_of(at("home/h"));
	assert_int_equal(receive_begin(&receive, &request, &arena, &err), 0);
	assert_int_equal(symlink("f", at("home/h")), 0);
	assert_int_equal(receive_feed(&receive, "linked", 6, &err), 0);
	assert_int_equal(receive_finish(&receive, &err), 0);
	receive_abort(&receive);
	check_text("home/f", "linked");
}

static void case_097_hostile_names_are_written(void **state)
{
	static const char *const names[] = {"a\nb", "quote\"'", "x;y", " lead", "-rf", "#?&+%", "a%2Fb",
					    "\xC3\xA4\xE6\x97\xA5\xF0\x9F\x99\x82", "\xFF\xFE"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
		assert_int_equal(post(path_join(at("home"), names[i], &arena), names[i]), 0);
		check_bytes(path_join(at("home"), names[i], &arena), names[i], strlen(names[i]));
		/* By the name a listing shows. */
		assert_int_equal(post(path_show(path_join(at("home"), names[i], &arena), &arena), "again"), 0);
		check_bytes(path_join(at("home"), names[i], &arena), "again", 5);
	}
	assert_int_equal(count_entries("home"), ARRAY_LENGTH(names));
}

static void standalone_envd_acts_as_one_user_alone(void **state)
{
	struct sandbox only = {.only_user = (char *)"self", .only_uid = geteuid()};

	(void)state;
	request.sandbox = &only;
	request.user_name = "user";
	if (geteuid() == 4242)
		skip();
	assert_true(post(at("home/f"), "x") < 0);
	assert_int_equal(err.kind, ERR_PERMISSION_DENIED);
	request.user_name = "self";
	assert_int_equal(post(at("f"), "x"), 0);
}

static int count_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

static int before_all(void **state)
{
	static int count;

	umask(022);
	count = count_descriptors();
	*state = &count;
	return 0;
}

static int after_all(void **state)
{
	assert_int_equal(count_descriptors(), *(int *)*state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(conformance_077_raw_uploads_are_stored, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_063_proc_cannot_hold_new_directories, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_082_other_content_types_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_079_raw_uploads_need_a_path, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_085_modes_and_owners_of_what_is_made, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_080_raw_uploads_overwrite, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_078_missing_parents_are_made, setup, teardown),
		cmocka_unit_test_setup_teardown(case_091_wrong_targets_are_client_errors, setup, teardown),
		cmocka_unit_test_setup_teardown(case_091_read_only_mounts, setup, teardown),
		cmocka_unit_test_setup_teardown(case_101_special_files_are_refused_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_065_proc_cannot_hold_new_files, setup, teardown),
		cmocka_unit_test_setup_teardown(case_087_virtual_files_are_written_through, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_070_cgroup_files_are_written_through, setup, teardown),
		cmocka_unit_test_setup_teardown(case_090_empty_files, setup, teardown),
		cmocka_unit_test_setup_teardown(case_087_a_full_disk_takes_a_replacement, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_067_a_smaller_replacement_on_a_full_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_066_no_space_is_told_with_the_length, setup, teardown),
		cmocka_unit_test_setup_teardown(case_086_a_replacement_that_cannot_fit_keeps_the_old, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_069_no_inodes_are_told_apart, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_068_new_file_on_a_full_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(case_088_an_interrupted_upload_changes_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(case_088_inode_mode_and_links_stay, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_089_the_owner_becomes_the_user, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_090_dangling_links_create_their_target, setup, teardown),
		cmocka_unit_test_setup_teardown(case_092_links_do_not_reach_other_peoples_files, setup, teardown),
		cmocka_unit_test_setup_teardown(case_092_shared_directories_keep_owner_and_mode, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_072_metadata_is_replaced_as_a_whole, setup, teardown),
		cmocka_unit_test_setup_teardown(case_096_a_file_system_without_attributes, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_075_metadata_is_validated, setup, teardown),
		cmocka_unit_test_setup_teardown(case_089_forms, setup, teardown),
		cmocka_unit_test_setup_teardown(case_089_broken_forms, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_074_metadata_keys, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_083_the_path_of_the_query_wins, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_087_the_same_target_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(case_094_compressed_bodies, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_081_compressed_raw_bodies, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_076_compressed_forms, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_059_content_encodings, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_073_metadata_of_a_form_is_on_every_file, setup, teardown),
		cmocka_unit_test_setup_teardown(case_088_in_place_where_files_cannot_be_unnamed, setup, teardown),
		cmocka_unit_test_setup_teardown(case_088_where_unnamed_files_cannot_be_linked, setup, teardown),
		cmocka_unit_test_setup_teardown(case_087_copied_by_hand_across_file_systems, setup, teardown),
		cmocka_unit_test_setup_teardown(case_088_watchers_see_an_in_place_write, setup, teardown),
		cmocka_unit_test_setup_teardown(case_088_parallel_uploads_of_one_file_are_one_of_them, setup, teardown),
		cmocka_unit_test_setup_teardown(case_096_renames_of_the_path_while_uploading, setup, teardown),
		cmocka_unit_test_setup_teardown(case_097_hostile_names_are_written, setup, teardown),
		cmocka_unit_test_setup_teardown(standalone_envd_acts_as_one_user_alone, setup, teardown),
	};

	return cmocka_run_group_tests(tests, before_all, after_all);
}
