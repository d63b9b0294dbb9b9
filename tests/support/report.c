/*
 * A program for tests of spawning: says on stdout, one `name: value` line each, what it was born
 * with. With arguments it prints only the lines named.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base.h"

extern char **environ;

static char **wanted;

static void say(const char *name, const char *value)
{
	char **each;

	if (*wanted) {
		for (each = wanted; *each && strcmp(*each, name) != 0; each++)
			;
		if (!*each)
			return;
	}
	printf("%s: %s\n", name, value);
}

static void say_number(const char *name, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);
	say(name, text);
}

static void say_ids(void)
{
	uid_t real, effective, saved;
	gid_t real_group, effective_group, saved_group, groups[256];
	char text[4096] = "";
	int count = getgroups(256, groups), i;

	getresuid(&real, &effective, &saved);
	getresgid(&real_group, &effective_group, &saved_group);
	snprintf(text, sizeof(text), "%u %u %u", real, effective, saved);
	say("uid", text);
	snprintf(text, sizeof(text), "%u %u %u", real_group, effective_group, saved_group);
	say("gid", text);
	text[0] = '\0';
	for (i = 0; i < count; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%u", i ? " " : "",
			 groups[i]);
	say("groups", text);
}

static void say_lines_of(const char *path, const char *prefix)
{
	char line[1024];
	FILE *file = fopen(path, "re");

	while (file && fgets(line, sizeof(line), file)) {
		char *colon = strchr(line, ':');

		line[strcspn(line, "\n")] = '\0';
		if (!colon || strncmp(line, prefix, strlen(prefix)) != 0)
			continue;
		*colon = '\0';
		say(line, colon + 1 + strspn(colon + 1, " \t"));
	}
	if (file)
		fclose(file);
}

static void say_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	char text[4096] = "";
	struct dirent *entry;

	while (directory && (entry = readdir(directory))) {
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory))
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s",
				 text[0] ? " " : "", entry->d_name);
	}
	say("fds", text);
	if (directory)
		closedir(directory);
}

static void say_first_line(const char *name, const char *path)
{
	char line[1024] = "";
	FILE *file = fopen(path, "re");

	if (file && !fgets(line, sizeof(line), file))
		line[0] = '\0';
	if (file)
		fclose(file);
	line[strcspn(line, "\n")] = '\0';
	say(name, line);
}

static void say_reopening(const char *name, const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	say(name, fd < 0 ? strerror(errno) : "ok");
	if (fd >= 0)
		close(fd);
}

static void say_cgroup(void)
{
	char line[1024];
	FILE *file = fopen("/proc/self/cgroup", "re");

	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "0::", 3) == 0)
			say("cgroup", line + 3);
	}
	if (file)
		fclose(file);
}

int main(int argc, char **argv)
{
	char text[4096];
	struct rlimit limit;
	struct stat about;
	mode_t mask;
	int fd;
	char **entry;

	wanted = argv + 1;
	say_ids();
	say_number("pid", getpid());
	say_number("sid", getsid(0));
	say_number("pgid", getpgrp());
	fd = open("/dev/tty", O_RDWR | O_CLOEXEC);
	say("ctty", fd < 0 ? "none" : ttyname(0) ? ttyname(0) : "unnamed");
	if (fd >= 0) {
		say_number("foreground", tcgetpgrp(fd));
		close(fd);
	}
	say_lines_of("/proc/self/status", "SigBlk");
	say_lines_of("/proc/self/status", "SigIgn");
	say_lines_of("/proc/self/status", "NoNewPrivs");
	say_descriptors();
	say_first_line("oom_score_adj", "/proc/self/oom_score_adj");
	errno = 0;
	say_number("nice", getpriority(PRIO_PROCESS, 0));
	say_number("ioprio", syscall(SYS_ioprio_get, 1, 0));
	getrlimit(RLIMIT_NOFILE, &limit);
	say_number("nofile", (long)limit.rlim_cur);
	mask = umask(0);
	snprintf(text, sizeof(text), "%04o", mask);
	say("umask", text);
	say("cwd", getcwd(text, sizeof(text)) ? text : strerror(errno));
	say_cgroup();
	if (fstat(0, &about) == 0 && isatty(0)) {
		snprintf(text, sizeof(text), "%u %04o", about.st_uid, about.st_mode & 07777);
		say("slave", text);
	}
	say_reopening("reopen_stdout", "/dev/stdout", O_WRONLY);
	say_reopening("reopen_stderr", "/dev/stderr", O_WRONLY);
	say_reopening("reopen_stdin", "/dev/stdin", O_RDONLY | O_NONBLOCK);
	for (entry = environ; *entry; entry++)
		say("env", *entry);
	return 0;
}
