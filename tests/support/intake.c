#include "tests/support/intake.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/path.h"
#include "tests/support/cmocka.h"

struct intake intake;

bool intake_am_root(void)
{
	return geteuid() == 0;
}

const char *intake_at(const char *relative)
{
	return path_join(intake.folder.path, relative, &intake.arena);
}

void intake_write_bytes(const char *path, const void *data, size_t len)
{
	folder_write(path, data, len);
}

void intake_write_text(const char *relative, const char *text)
{
	folder_write_text(intake_at(relative), text);
}

int intake_setup(void **state)
{
	(void)state;
	arena_init(&intake.arena, 64 * 1024 * 1024);
	folder_open(&intake.folder);
	folder_make_accounts(&intake.folder, "", "/home");
	assert_int_equal(mkdir(intake_at("home"), 0755), 0);
	if (intake_am_root())
		assert_int_equal(chown(intake_at("home"), 4242, 4243), 0);
	intake.request = (struct receive_request){.sandbox = &intake.sandbox,
						  .user_name = "self",
						  .content_type = STR("application/octet-stream"),
						  .length = -1};
	return 0;
}

int intake_teardown(void **state)
{
	(void)state;
	umount2(intake_at("m"), MNT_DETACH);
	folder_close(&intake.folder);
	arena_release(&intake.arena);
	return 0;
}

int intake_post_pieces(const char *path, const void *body, size_t len, size_t piece)
{
	int status;

	intake.request.path = path ? str_of(path) : (struct str){NULL, 0};
	status = receive_begin(&intake.receive, &intake.request, &intake.arena, &intake.err);
	for (size_t done = 0; done < len && status == 0; done += piece)
		status = receive_feed(&intake.receive, (const char *)body + done,
				      size_min(piece, len - done), &intake.err);
	if (status == 0)
		status = receive_finish(&intake.receive, &intake.err);
	receive_abort(&intake.receive);
	return status;
}

int intake_post(const char *path, const char *body)
{
	return intake_post_pieces(path, body, strlen(body), 7);
}

void intake_check_bytes(const char *path, const void *want, size_t len)
{
	folder_check(path, want, len);
}

void intake_check_text(const char *relative, const char *want)
{
	folder_check_text(intake_at(relative), want);
}

bool intake_exists(const char *relative)
{
	return folder_has(intake_at(relative));
}

size_t intake_count_entries(const char *relative)
{
	return folder_count(intake_at(relative));
}

void intake_mount_small(const char *options)
{
	folder_make(intake_at("m"));
	folder_mount_small(intake_at("m"), options);
}

void intake_check_refused(enum err_kind kind, const char *message)
{
	assert_int_equal(intake.err.kind, kind);
	assert_string_equal(intake.err.message, message);
}

int intake_before_all(void **state)
{
	static size_t count;

	umask(022);
	count = folder_count("/proc/self/fd");
	*state = &count;
	return 0;
}

int intake_after_all(void **state)
{
	assert_int_equal(folder_count("/proc/self/fd"), *(size_t *)*state);
	return 0;
}
