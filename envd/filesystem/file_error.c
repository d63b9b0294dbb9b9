#include "envd/filesystem/file_error.h"

#include <sys/vfs.h>

/* linux/magic.h, man 2 statfs. */
static const unsigned long virtual_file_systems[] = {
	0x9FA0 /* proc */,	     0x62656572 /* sysfs */,   0x0027E0EB /* cgroup */,
	0x63677270 /* cgroup2 */,    0x64626720 /* debugfs */, 0x74726163 /* tracefs */,
	0x73636673 /* securityfs */, 0xCAFE4A11 /* bpf */,     0x62656570 /* configfs */,
	0xDE5E81E4 /* efivarfs */,   0x6165676C /* pstore */,
};

bool file_is_virtual(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) < 0)
		return false;
	for (size_t i = 0; i < ARRAY_LENGTH(virtual_file_systems); i++)
		if ((unsigned long)fs.f_type == virtual_file_systems[i])
			return true;
	return false;
}

enum err_kind file_error_kind(int sys)
{
	switch (sys < 0 ? -sys : sys) {
	case ENOENT:
		/* Of a path that the client named it is told as such; here it comes from file
		 * systems that cannot make what is asked for. */
		return ERR_INTERNAL;
	case EAGAIN:
		/* Somebody has a lease, or a lock that the kernel enforces. */
		return ERR_ABORTED;
	case ENOSYS:
	case EOPNOTSUPP:
		/* This file system cannot; we can. */
		return ERR_FAILED_PRECONDITION;
	case ETIMEDOUT:
		/* A network file system's server. */
		return ERR_UNAVAILABLE;
	default:
		return err_kind_from_errno(sys);
	}
}

enum err_kind file_error_kind_of(int fd, int sys)
{
	enum err_kind kind = file_error_kind(sys);

	return kind == ERR_INTERNAL && file_is_virtual(fd) ? ERR_FAILED_PRECONDITION : kind;
}
