#include "envd/cli/secure.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/err.h"

#define COMPLAINTS_BYTES 4096

extern char **environ;

static bool is_address(const char *host)
{
	struct in6_addr address;

	return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

/* In a group of its own: Ctrl-C is for us, and what we then have to say still goes this way. */
static int start(struct secure *secure, char **argv, int fd)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t signals;
	int status;

	sigemptyset(&signals);
	sigaddset(&signals, SIGPIPE);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	status = posix_spawn_file_actions_adddup2(&actions, fd, STDIN_FILENO);
	if (status == 0)
		status = posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
	if (status == 0)
		status = posix_spawn_file_actions_adddup2(&actions, secure->complaints,
							  STDERR_FILENO);
	posix_spawnattr_setsigdefault(&attributes, &signals);
	posix_spawnattr_setpgroup(&attributes, 0);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
	if (status == 0)
		status = posix_spawnp(&secure->pid, argv[0], &actions, &attributes, argv, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	if (status != 0)
		secure->pid = 0;
	return -status;
}

int secure_open(struct secure *secure, const struct target *target, int *ret_fd)
{
	bool is_v6 = strchr(target->host, ':');
	bool by_address = is_address(target->server_name);
	size_t size = strlen(target->host) + strlen(target->port) + 4;
	auto_free char *where = xmalloc(size);
	char *name = (char *)(uintptr_t)target->server_name;
	char *argv[] = {
		(char[]){"openssl"},
		(char[]){"s_client"},
		(char[]){"-quiet"},
		(char[]){"-no_ign_eof"},
		(char[]){"-nocommands"},
		(char[]){"-verify_quiet"},
		(char[]){"-verify_return_error"},
		(char[]){"-alpn"},
		(char[]){"http/1.1"},
		(char[]){"-connect"},
		where,
		by_address ? (char[]){"-verify_ip"} : (char[]){"-verify_hostname"},
		name,
		by_address ? (char[]){"-noservername"} : (char[]){"-servername"},
		by_address ? NULL : name,
		NULL,
	};
	int pair[2], status;

	*secure = (struct secure){.complaints = -1};
	snprintf(where, size, is_v6 ? "[%s]:%s" : "%s:%s", target->host, target->port);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	secure->complaints = memfd_create("complaints", MFD_CLOEXEC);
	status = secure->complaints < 0 ? -errno : start(secure, argv, pair[1]);
	close(pair[1]);
	if (status < 0) {
		secure_close(secure, NULL, 0);
		close(pair[0]);
		return status;
	}
	*ret_fd = pair[0];
	return 0;
}

/* "num=18:self-signed certificate": behind the number. "0A00010B:SSL routines:function:wrong
 * version number:file:line": the fourth of them. */
static void copy_field(const char *text, int field, char *to, size_t size)
{
	for (; field > 1 && strchr(text, ':'); field--)
		text = strchr(text, ':') + 1;
	snprintf(to, size, "%.*s", (int)strcspn(text, ":"), text);
}

/* Of all that it prints, what a person needs. */
static void choose_complaint(char *text, char *why, size_t size)
{
	enum { VERIFY, SYSTEM, LIBRARY };
	static const char *const marks[] = {
		[VERIFY] = "verify error:num=", [SYSTEM] = "errno=", [LIBRARY] = "error:"};
	char *rest = text, *line;
	size_t best = ARRAY_LENGTH(marks);

	while ((line = strsep(&rest, "\n"))) {
		for (size_t i = 0; i < best; i++) {
			const char *found = strstr(line, marks[i]);

			if (!found)
				continue;
			best = i;
			found += strlen(marks[i]);
			if (i == SYSTEM)
				snprintf(why, size, "%s", errno_text((int)strtol(found, NULL, 10)));
			else
				copy_field(found, i == VERIFY ? 2 : 4, why, size);
			break;
		}
	}
}

void secure_close(struct secure *secure, char *why, size_t size)
{
	char text[COMPLAINTS_BYTES + 1] = "";
	ssize_t len;

	if (secure->pid) {
		kill(secure->pid, SIGTERM);
		while (waitpid(secure->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	if (size) {
		*why = '\0';
		len = secure->complaints < 0 ? 0
					     : pread(secure->complaints, text, COMPLAINTS_BYTES, 0);
		if (len > 0)
			choose_complaint(text, why, size);
	}
	if (secure->complaints >= 0)
		close(secure->complaints);
	*secure = (struct secure){.complaints = -1};
}
