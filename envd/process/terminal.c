#include "envd/process/terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif
#ifndef IUTF8
#define IUTF8 0040000
#endif

/* TIOCGPTPEER needs no path, so it works without a mounted /dev/pts; kernels before 4.13 lack it. */
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

int terminal_open(struct terminal_size size, uid_t uid, int *ret_master, int *ret_slave)
{
	auto_close int master = -1, slave = -1;
	struct termios settings;
	int flags, status;

	master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0)
		return -errno;
	if (unlockpt(master) < 0)
		return -errno;
	slave = open_slave(master);
	if (slave < 0) {
		status = slave;
		slave = -1;
		return status;
	}
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

int terminal_resize(int master, struct terminal_size size)
{
	struct winsize window = {.ws_col = size.cols, .ws_row = size.rows};

	return ioctl(master, TIOCSWINSZ, &window) < 0 ? -errno : 0;
}
