#include "envd/snapshot/filesystem_freeze.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/log.h"

/* linux/fs.h, which clashes with other headers; the numbers are ABI. */
#define FREEZE_REQUEST 0xC0045877UL
#define THAW_REQUEST 0xC0045878UL

/* libc's ioctl takes an int for the request in some libraries, which these do not fit. */
static int control(int fd, bool freeze)
{
	return syscall(SYS_ioctl, fd, freeze ? FREEZE_REQUEST : THAW_REQUEST, 0UL) < 0 ? -errno : 0;
}

const struct filesystem_freeze filesystem_freeze_root = {"/", control};

static int run(const struct filesystem_freeze *filesystem, bool freeze, int fine, struct err *err)
{
	auto_close int fd = open(filesystem->path, O_RDONLY | O_CLOEXEC);
	int status = fd < 0 ? -errno : filesystem->control(fd, freeze);

	if (status == 0 || (fd >= 0 && status == fine))
		return 0;
	return err_set_sys(err, err_kind_from_errno(status), status, "%s %s",
			   freeze ? "FIFREEZE" : "FITHAW", filesystem->path);
}

int filesystem_freeze(const struct filesystem_freeze *filesystem, struct err *err)
{
	int status;

	log_hold_files(true);
	status = run(filesystem, true, -EBUSY, err);
	if (status < 0)
		log_hold_files(false);
	return status;
}

int filesystem_thaw(const struct filesystem_freeze *filesystem, struct err *err)
{
	int status = run(filesystem, false, -EINVAL, err);

	if (status == 0)
		log_hold_files(false);
	return status;
}
