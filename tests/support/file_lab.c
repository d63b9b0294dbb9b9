#include "tests/support/file_lab.h"

#include <unistd.h>

#include "envd/filesystem/path.h"

struct file_lab files;

int file_lab_setup(void **state)
{
	(void)state;
	arena_init(&files.arena, 256 * 1024 * 1024);
	folder_open(&files.folder);
	files.self = (struct user){
		.name = "self", .home = files.folder.path, .uid = geteuid(), .gid = getegid()};
	return 0;
}

int file_lab_teardown(void **state)
{
	(void)state;
	folder_close(&files.folder);
	arena_release(&files.arena);
	return 0;
}

const char *at(const char *relative)
{
	return path_join(files.folder.path, relative, &files.arena);
}

bool am_root(void)
{
	return geteuid() == 0;
}
