#include "envd/watch/watcher_inotify.h"

#include <fcntl.h>
#include <inotifytools/inotifytools.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The library opens one descriptor; it is among the lowest that were free. */
#define DESCRIPTORS_LOOKED_AT 64
#define NAME_BITS 32
/* What the library reads in one go. */
#define READ_BYTES_MAX (4096 * sizeof(struct inotify_event))

/* Global like the library it describes. */
static struct {
	int fd;
	uint32_t names; /* given so far */
	size_t stale;
	bool is_open, is_drained;
} instance = {.fd = -1};

/* "./" and, for each bit of the number, "./" or ".//": all lead here, and no two are equal. */
static const char *new_name(char name[3 * NAME_BITS + 3])
{
	uint32_t number = instance.names++;
	size_t used = 2;

	memcpy(name, "./", 2);
	for (int bit = 0; bit < NAME_BITS; bit++, number >>= 1) {
		name[used++] = '.';
		name[used++] = '/';
		if (number & 1)
			name[used++] = '/';
	}
	name[used] = '\0';
	return name;
}

static int library_error(void)
{
	int error = inotifytools_error();

	return error > 0 ? -error : -EIO;
}

int watcher_inotify_open(void)
{
	bool was_open[DESCRIPTORS_LOOKED_AT];
	struct inotify_event *leftover;
	int fd;

	for (fd = 0; fd < DESCRIPTORS_LOOKED_AT; fd++)
		was_open[fd] = fcntl(fd, F_GETFD) >= 0;
	if (!inotifytools_initialize())
		return library_error();
	instance.is_open = true;
	for (fd = 0; fd < DESCRIPTORS_LOOKED_AT; fd++)
		if (!was_open[fd] && fcntl(fd, F_GETFD) >= 0)
			break;
	if (fd == DESCRIPTORS_LOOKED_AT)
		return -EMFILE;
	instance.fd = fd;
	instance.stale = 0;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
		return -errno;
	/* The library's buffer outlives its instance. Nothing is watched yet, so all of this is
	 * old. */
	do {
		leftover = inotifytools_next_events(0, 1);
	} while (leftover);
	return 0;
}

void watcher_inotify_close(void)
{
	if (instance.is_open)
		inotifytools_cleanup();
	instance.is_open = false;
	instance.fd = -1;
}

int watcher_inotify_fd(void)
{
	return instance.fd;
}

int watcher_inotify_add_here(uint32_t mask)
{
	char name[3 * NAME_BITS + 3];
	const char *known;
	int wd;

	new_name(name);
	if (!inotifytools_watch_file(name, (int)mask))
		return library_error();
	wd = inotifytools_wd_from_filename(name);
	if (wd < 0)
		return -EIO;
	/* Watched before under another name: that entry is the one the library finds by the number.
	 * (To count its entries it visits all of them.) */
	known = inotifytools_filename_from_wd(wd);
	if (!known || strcmp(known, name) != 0)
		instance.stale++;
	return wd;
}

void watcher_inotify_remove(int wd)
{
	if (!inotifytools_remove_watch_by_wd(wd))
		instance.stale++;
}

bool watcher_inotify_next(struct watcher_inotify_event *ret_event)
{
	/* One event at a time and no waiting: the other ways of calling this spin or block. */
	const struct inotify_event *event = inotifytools_next_events(0, 1);

	instance.is_drained = !event;
	if (!event)
		return false;
	if (event->mask & IN_IGNORED)
		instance.stale++;
	*ret_event = (struct watcher_inotify_event){
		.wd = event->wd,
		.mask = event->mask,
		.cookie = event->cookie,
		.name = event->len ? str_of(event->name) : (struct str){NULL, 0},
		.size = sizeof(*event) + event->len,
	};
	return true;
}

size_t watcher_inotify_waiting(void)
{
	int bytes = 0;

	if (ioctl(instance.fd, FIONREAD, &bytes) < 0 || bytes < 0)
		bytes = 0;
	return (size_t)bytes + (instance.is_drained ? 0 : READ_BYTES_MAX);
}

size_t watcher_inotify_stale(void)
{
	return instance.stale;
}

static int read_limit(const char *path)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[32];
	ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof(text));
	uint64_t value;

	while (len > 0 && text[len - 1] == '\n')
		len--;
	if (len <= 0 || str_to_u64((struct str){text, (size_t)len}, INT32_MAX, &value) < 0)
		return 0;
	return (int)value;
}

/* A user namespace may have a lower one of its own. (The library would read the machine's, by way
 * of stdio.) */
static int lower_limit(const char *of_machine, const char *of_namespace)
{
	int machine = read_limit(of_machine), own = read_limit(of_namespace);

	return machine > 0 && (own <= 0 || machine < own) ? machine : own;
}

int watcher_inotify_watches_max(void)
{
	return lower_limit("/proc/sys/fs/inotify/max_user_watches",
			   "/proc/sys/user/max_inotify_watches");
}

int watcher_inotify_instances_max(void)
{
	return lower_limit("/proc/sys/fs/inotify/max_user_instances",
			   "/proc/sys/user/max_inotify_instances");
}
