#include "envd/boot/machine.h"

#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/err.h"
#include "lib/log.h"

#define PROC_MAGIC 0x9fa0
#define HOST_NAME_DEFAULT "sandbox"
#define HOST_NAME_BYTES_MAX 64
#define DESCRIPTORS_SOFT 1024
#define DESCRIPTORS_HARD (1024 * 1024)
#define TERMINAL_GROUP "5"
/* What systemd gives the agent in other images (contract/envd.md 1.4). */
#define NICE_OF_AGENT (-20)
#define IO_PRIORITY_REALTIME_4 ((1 << 13) | 4)
#define IO_PRIORITY_WHO_PROCESS 1
#define OOM_SCORE_OF_AGENT "-1000"

struct mount_point {
	const char *path, *type;
	unsigned long flags;
	const char *options;
};

/* In this order: some lie within others. */
static const struct mount_point mount_points[] = {
	{"/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
	{"/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
	{"/dev", "devtmpfs", MS_NOSUID, "mode=0755"},
	{"/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
	 "gid=" TERMINAL_GROUP ",mode=0620,ptmxmode=0666"},
	{"/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
	{"/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755"},
	{"/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
	{"/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC,
	 "nsdelegate,memory_recursiveprot"},
};

static void report(const char *what, const char *path, int sys)
{
	log_warn("machine", what, LOG_S("path", path), LOG_S("reason", errno_text(sys)));
}

bool machine_is_bare(void)
{
	struct statfs about;

	if (getpid() != 1)
		return false;
	return statfs("/proc", &about) < 0 || (uint64_t)about.f_type != PROC_MAGIC;
}

/* ---- file systems ---- */

static bool is_mount_point(const char *path)
{
	char parent[64];
	struct stat here, above;

	snprintf(parent, sizeof(parent), "%s/..", path);
	return stat(path, &here) == 0 && stat(parent, &above) == 0 && here.st_dev != above.st_dev;
}

static void mount_one(const struct mount_point *point)
{
	int status;

	if (mkdir(point->path, 0755) < 0 && errno != EEXIST)
		report("cannot make a mount point", point->path, errno);
	/* An earlier stage of the boot, or the kernel itself, may have done it. */
	if (is_mount_point(point->path))
		return;
	status = mount(point->type, point->path, point->type, point->flags, point->options);
	/* An older kernel does not know every option. */
	if (status < 0 && errno == EINVAL && point->options)
		status = mount(point->type, point->path, point->type, point->flags, NULL);
	if (status < 0 && errno != EBUSY)
		report("cannot mount", point->path, errno);
}

/* Those that the kernel does not make, and that shells and scripts take for granted. */
static void link_devices(void)
{
	static const char *const links[][2] = {
		{"/proc/self/fd", "/dev/fd"},
		{"/proc/self/fd/0", "/dev/stdin"},
		{"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"},
	};

	for (size_t i = 0; i < ARRAY_LENGTH(links); i++)
		if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST)
			report("cannot make a link", links[i][1], errno);
}

/* A kernel that found no /dev/console has started us with no descriptors, and what stands in for
 * them goes nowhere. */
static void open_console(void)
{
	auto_close int console = -1;

	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		struct stat about;

		if (fstat(fd, &about) == 0 && (about.st_mode & S_IFMT) != 0)
			continue;
		if (console < 0)
			console = open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC);
		if (console >= 0)
			dup2(console, fd);
	}
}

static int write_text(const char *path, const char *text)
{
	auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static struct str read_text(const char *path, char *text, size_t size)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len = fd >= 0 ? read(fd, text, size) : -1;

	return len > 0 ? (struct str){text, (size_t)len} : (struct str){0};
}

/* ---- settings ---- */

/* Never lowers what the image or the kernel's command line asked for. */
static void raise_setting(const char *path, unsigned long long wanted)
{
	char text[32] = "";
	int status;

	read_text(path, text, sizeof(text) - 1);
	if (strtoull(text, NULL, 10) >= wanted)
		return;
	snprintf(text, sizeof(text), "%llu", wanted);
	status = write_text(path, text);
	if (status < 0)
		report("cannot raise a limit", path, status);
}

/* The kernel's first process has the limits of a small machine of long ago. */
static void raise_limits(void)
{
	const struct rlimit descriptors = {.rlim_cur = DESCRIPTORS_SOFT,
					   .rlim_max = DESCRIPTORS_HARD};

	raise_setting("/proc/sys/fs/inotify/max_user_watches", INOTIFY_WATCHES_MIN);
	raise_setting("/proc/sys/fs/inotify/max_user_instances", INOTIFY_INSTANCES_MIN);
	raise_setting("/proc/sys/fs/inotify/max_queued_events", INOTIFY_QUEUE_MIN);
	if (setrlimit(RLIMIT_NOFILE, &descriptors) < 0)
		report("cannot raise a limit", "descriptors", errno);
}

static void report_priority(const char *of, int status)
{
	/* Containers are seldom allowed to; that is no fault of theirs. */
	if (status < 0 && status != -EPERM && status != -EACCES)
		report("cannot raise the priority", of, status);
}

void machine_take_precedence(void)
{
	report_priority("cpu", setpriority(PRIO_PROCESS, 0, NICE_OF_AGENT) < 0 ? -errno : 0);
	report_priority("io", syscall(SYS_ioprio_set, IO_PRIORITY_WHO_PROCESS, 0,
				      IO_PRIORITY_REALTIME_4) < 0
				      ? -errno
				      : 0);
	report_priority("memory", write_text("/proc/self/oom_score_adj", OOM_SCORE_OF_AGENT));
}

struct str machine_parse_host_name(struct str text)
{
	while (text.len > 0) {
		const char *end = memchr(text.p, '\n', text.len);
		struct str line = {text.p, end ? (size_t)(end - text.p) : text.len};
		size_t used = line.len + (end ? 1 : 0);

		while (line.len > 0 && (unsigned char)line.p[line.len - 1] <= ' ')
			line.len--;
		while (line.len > 0 && (unsigned char)*line.p <= ' ') {
			line.p++;
			line.len--;
		}
		if (line.len > 0 && *line.p != '#')
			return line.len <= HOST_NAME_BYTES_MAX ? line : (struct str){0};
		str_skip(&text, used);
	}
	return (struct str){0};
}

/* The image's file, else what the kernel was told, else a name of our own. */
static void set_host_name(void)
{
	char text[512];
	struct str name = machine_parse_host_name(read_text("/etc/hostname", text, sizeof(text)));
	struct utsname now;

	if (name.len == 0) {
		if (uname(&now) == 0 && *now.nodename && strcmp(now.nodename, "(none)") != 0)
			return;
		name = STR(HOST_NAME_DEFAULT);
	}
	if (sethostname(name.p, name.len) < 0)
		report("cannot set", "hostname", errno);
}

/* The kernel adds the address by itself. */
static void bring_up_loopback(void)
{
	auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq request = {.ifr_name = "lo"};

	if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &request) < 0) {
		report("cannot bring up", "lo", errno);
		return;
	}
	request.ifr_flags |= IFF_UP;
	if (ioctl(fd, SIOCSIFFLAGS, &request) < 0)
		report("cannot bring up", "lo", errno);
}

void machine_boot(void)
{
	for (size_t i = 0; i < ARRAY_LENGTH(mount_points); i++)
		mount_one(&mount_points[i]);
	open_console();
	link_devices();
	raise_limits();
	machine_take_precedence();
	set_host_name();
	bring_up_loopback();
	/* From the hypervisor, too: an orderly end instead of the kernel's immediate one. */
	if (reboot(RB_DISABLE_CAD) < 0)
		report("cannot take over", "Ctrl-Alt-Del", errno);
	log_info("machine", "booted");
}

/* ---- the end ---- */

/* Collects children until there is none, until `pid` (0: all) was among them, or until the time is
 * over. */
static void collect(pid_t pid, unsigned within_ms)
{
	int64_t until = monotonic_ms() + within_ms;
	sigset_t child;

	/* Blocked, it stays pending and cannot be missed between the look and the wait. */
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	pthread_sigmask(SIG_BLOCK, &child, NULL);
	for (;;) {
		int64_t left = until - monotonic_ms();
		struct timespec wait = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
		pid_t ended;

		while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
			if (ended == pid)
				return;
		if (ended < 0 || left <= 0)
			return;
		sigtimedwait(&child, NULL, &wait);
	}
}

void machine_end_others(unsigned grace_ms)
{
	/* Anybody else would end processes that are not its own. */
	if (getpid() != 1)
		return;
	kill(-1, SIGTERM);
	kill(-1, SIGCONT); /* those that are stopped would not notice */
	collect(0, grace_ms);
	kill(-1, SIGKILL);
	collect(0, SHUTDOWN_KILLED_MS);
}

bool machine_restarts_by_keyboard(struct str command_line)
{
	const struct str wanted = STR("reboot=k");

	for (size_t i = 0; i + wanted.len <= command_line.len; i++)
		if ((i == 0 || command_line.p[i - 1] == ' ') &&
		    memcmp(command_line.p + i, wanted.p, wanted.len) == 0)
			return true;
	return false;
}

/* In a child, because a network file system whose server is gone never lets go of whoever writes
 * to it. The journal of a root file system is closed by making it read-only. */
static void write_out_file_systems(void)
{
	/* Not libc's fork: lib/job.h. */
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);

	if (pid == 0) {
		sync();
		(void)mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
		_exit(EXIT_SUCCESS);
	}
	if (pid > 0)
		collect(pid, SHUTDOWN_SYNC_MS);
}

void machine_power_off(bool restart)
{
	char text[4096];

	machine_end_others(MACHINE_STOP_GRACE_MS);
	if (!restart)
		restart = machine_restarts_by_keyboard(
			read_text("/proc/cmdline", text, sizeof(text)));
	write_out_file_systems();
	reboot(restart ? RB_AUTOBOOT : RB_POWER_OFF);
	/* Refused: in a process namespace, say. */
	_exit(EXIT_FAILURE);
}
