#include "lib/process/terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "lib/limits.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif
#ifndef IUTF8
#define IUTF8 0040000
#endif

#define MASTER_PATH "/dev/ptmx"

/* TIOCGPTPEER needs no path, so it works without a mounted /dev/pts; kernels before 4.13 lack
 * it. */
static int open_slave(int master)
{
	char path[32];
	unsigned number;
	int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);

	if (slave >= 0 || (errno != EINVAL && errno != ENOTTY))
		return slave < 0 ? -errno : slave;
	if (ioctl(master, TIOCGPTN, &number) < 0)
		return -errno;
	snprintf(path, sizeof(path), "/dev/pts/%u", number);
	slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	return slave < 0 ? -errno : slave;
}

/* The device looks for the file system beside it, so that its own open fails when that is
 * missing. */
static const char *missing_path(int sys)
{
	if ((sys == ENOENT || sys == ENODEV) && access(MASTER_PATH, F_OK) == 0)
		return "/dev/pts";
	return MASTER_PATH;
}

int terminal_open(struct terminal_size size, uid_t uid, int *ret_master, int *ret_slave,
		  const char **ret_what)
{
	auto_close int master = -1, slave = -1;
	struct termios settings;
	int flags, status;

	master = open(MASTER_PATH, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0) {
		status = -errno;
		*ret_what = missing_path(-status);
		return status;
	}
	*ret_what = MASTER_PATH;
	if (unlockpt(master) < 0)
		return -errno;
	*ret_what = "/dev/pts";
	slave = open_slave(master);
	if (slave < 0) {
		status = slave;
		slave = -1;
		return status;
	}
	*ret_what = "terminal";
	status = terminal_resize(master, size);
	if (status < 0)
		return status;
	/* So that erasing a character in a line being typed erases all its bytes. */
	if (tcgetattr(slave, &settings) == 0) {
		settings.c_iflag |= IUTF8;
		(void)tcsetattr(slave, TCSANOW, &settings);
	}
	if (geteuid() == 0 && (fchown(slave, uid, (gid_t)-1) < 0 || fchmod(slave, 0620) < 0))
		return -errno;
	flags = fcntl(master, F_GETFL);
	if (flags < 0 || fcntl(master, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	*ret_master = take_fd(&master);
	*ret_slave = take_fd(&slave);
	return 0;
}

static uint16_t side_from(uint32_t wanted, uint16_t otherwise)
{
	if (wanted == 0)
		return otherwise;
	return wanted > TERMINAL_SIZE_MAX ? TERMINAL_SIZE_MAX : (uint16_t)wanted;
}

struct terminal_size terminal_size_from(uint32_t cols, uint32_t rows,
					struct terminal_size otherwise)
{
	return (struct terminal_size){side_from(cols, otherwise.cols),
				      side_from(rows, otherwise.rows)};
}

int terminal_resize(int master, struct terminal_size size)
{
	struct winsize window;

	if (ioctl(master, TIOCGWINSZ, &window) < 0)
		return -errno;
	if (size.cols)
		window.ws_col = size.cols;
	if (size.rows)
		window.ws_row = size.rows;
	return ioctl(master, TIOCSWINSZ, &window) < 0 ? -errno : 0;
}
