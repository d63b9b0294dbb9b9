/* How envd-watch starts, and its loop: events come in, records go out, until standard input
 * ends. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "envd/limits.h"
#include "envd/watch/watcher.h"

#define EXIT_USAGE 2
/* Records of one flush and one more. */
#define OUTPUT_BYTES_MAX (64 * 1024)

static const char usage[] = "usage: envd-watch PATH [recursive] [network] [exclude NAME...]\n"
			    "Watches a directory for envd and writes records to standard output "
			    "until standard input ends.\n";

/* The library writes its doubts to standard error, where nobody looks. */
static void silence_library(void)
{
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

	if (fd >= 0) {
		dup2(fd, STDERR_FILENO);
		close(fd);
	}
}

static bool parse(struct watcher *watcher, int argc, char **argv)
{
	if (argc < 2 || argv[1][0] != '/')
		return false;
	for (int i = 2; i < argc; i++) {
		if (strcmp(argv[i], "recursive") == 0) {
			watcher->recursive = true;
		} else if (strcmp(argv[i], "network") == 0) {
			watcher->network = true;
		} else if (strcmp(argv[i], "exclude") == 0) {
			watcher->excluded = argv + i + 1;
			watcher->excluded_count = (size_t)(argc - i - 1);
			break;
		} else {
			return false;
		}
	}
	return true;
}

static const char *working_directory(struct watcher *watcher)
{
	char *path = NULL, *found;
	size_t size = 128;

	do {
		size *= 2;
		path = xrealloc(path, size);
		found = getcwd(path, size);
	} while (!found && errno == ERANGE);
	/* Removed meanwhile, or out of reach from this process's root. */
	if (!found || path[0] != '/')
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, found ? ENOENT : errno, "getcwd");
	return path;
}

/* A link as the root of a recursive watch is refused, as is everything that is no directory; a
 * plain watch follows it (contract/envd.md 4.6). */
static void find_root(struct watcher *watcher, const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, errno, "lstat");
	if (watcher->recursive && S_ISLNK(st.st_mode))
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, ENOTDIR, "lstat");
	/* As realpath would say, without its stack of several pages. */
	if (chdir(path) < 0)
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, errno, "chdir");
	watcher->path = working_directory(watcher);
	if (chdir("/") < 0)
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, errno, "chdir /");
}

/* envd asks, or is gone. */
static void hear(struct watcher *watcher)
{
	char ignored[64];
	ssize_t len = read(STDIN_FILENO, ignored, sizeof(ignored));

	if (len == 0 || (len < 0 && errno != EINTR && errno != EAGAIN))
		_exit(EXIT_SUCCESS);
	if (len <= 0)
		return;
	watcher->is_asked = true;
	watcher->asked_left = watcher_inotify_waiting();
}

int main(int argc, char **argv)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN};
	struct watcher watcher = {.open_fd = -1, .is_quiet = true};

	if (!parse(&watcher, argc, argv)) {
		if (write(STDERR_FILENO, usage, sizeof(usage) - 1) < 0)
			return EXIT_FAILURE;
		return EXIT_USAGE;
	}
	sigaction(SIGPIPE, &ignore, NULL);
	silence_library();
	buf_init(&watcher.output, OUTPUT_BYTES_MAX);
	buf_init(&watcher.name, WATCH_RECORD_TEXT_MAX);
	tree_init(&watcher.tree, WATCH_ENTRIES_MAX);
	if (chdir("/") < 0)
		watcher_fail(&watcher, WATCH_CAUSE_SYSTEM, errno, "chdir /");
	find_root(&watcher, argv[1]);
	watcher_arm(&watcher);
	watcher.is_quiet = false;
	watcher_report_plain(&watcher, WATCH_RECORD_READY);
	for (;;) {
		struct pollfd fds[] = {
			{.fd = watcher_inotify_fd(), .events = POLLIN},
			{.fd = STDIN_FILENO, .events = POLLIN},
		};

		watcher_flush(&watcher);
		if (poll(fds, ARRAY_LENGTH(fds), watcher.is_behind ? 0 : -1) < 0 && errno != EINTR)
			watcher_fail(&watcher, WATCH_CAUSE_SYSTEM, errno, "poll");
		if (fds[1].revents)
			hear(&watcher);
		if (fds[0].revents || watcher.is_behind || watcher.is_asked)
			watcher_take_events(&watcher);
	}
}
