/* Real namespaces, made by children that unshare: needs root, and says so where it has not. */
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proxy/route/netns.h"
#include "tests/support/cmocka.h"
#include "tests/support/turn.h"

#ifndef SIOCGSKNS
#define SIOCGSKNS 0x894C
#endif

#define SOCKETS 2000

struct space {
	pid_t pid;
	char path[64];
};

struct wish {
	struct netns_request *request;
	unsigned answers;
	int fd;
};

static int open_space(struct space *ret_space)
{
	int ready[2];
	char byte;

	if (pipe(ready) < 0)
		return -errno;
	ret_space->pid = fork();
	if (ret_space->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (unshare(CLONE_NEWNET) < 0 || write(ready[1], "y", 1) != 1)
			_exit(1);
		pause();
		_exit(0);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1) {
		close(ready[0]);
		waitpid(ret_space->pid, NULL, 0);
		return -EPERM;
	}
	close(ready[0]);
	snprintf(ret_space->path, sizeof(ret_space->path), "/proc/%d/ns/net", (int)ret_space->pid);
	return 0;
}

static void close_space(struct space *space)
{
	kill(space->pid, SIGKILL);
	waitpid(space->pid, NULL, 0);
}

static void on_socket(void *user, int fd)
{
	struct wish *wish = user;

	wish->answers++;
	wish->fd = fd;
}

static int get(struct netns_desk *desk, const char *path, int family)
{
	struct wish wish = {0};

	assert_int_equal(netns_ask(desk, str_of(path), family, on_socket, &wish, &wish.request), 0);
	TURN_UNTIL(desk->loop, wish.answers);
	assert_int_equal(wish.answers, 1);
	return wish.fd;
}

static void close_desk(struct netns_desk *desk, struct loop *loop)
{
	netns_desk_close(desk);
	loop_run(loop);
	loop_fini(loop);
}

/* Which namespace a socket belongs to, by the inode. */
static bool is_in(int fd, const char *path)
{
	int space = ioctl(fd, SIOCGSKNS);
	char link[64], wanted[64], name[64];
	ssize_t len, wanted_len;

	assert_true(space >= 0);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", space);
	len = readlink(name, link, sizeof(link));
	wanted_len = readlink(path, wanted, sizeof(wanted));
	close(space);
	return len > 0 && len == wanted_len && memcmp(link, wanted, (size_t)len) == 0;
}

static void sockets_are_where_they_belong(void **state)
{
	struct space a, b;
	struct netns_desk desk;
	struct loop loop;

	(void)state;
	if (open_space(&a) < 0) {
		print_message("no network namespaces here\n");
		skip();
	}
	assert_int_equal(open_space(&b), 0);
	loop_init(&loop);
	netns_desk_open(&desk, &loop);
	for (int i = 0; i < 20; i++) {
		const char *path = i % 3 ? a.path : b.path;
		int fd = get(&desk, path, i % 2 ? AF_INET : AF_INET6);

		assert_true(fd >= 0);
		assert_true(is_in(fd, path));
		close(fd);
	}
	assert_int_equal(get(&desk, "/proc/self/ns/net", AF_INET), -ELOOP);
	assert_int_equal(get(&desk, "/proc/self/ns/mnt", AF_INET), -ENOTTY);
	assert_int_equal(get(&desk, "/dev/null", AF_INET), -ENOTTY);
	assert_int_equal(get(&desk, "/", AF_INET), -ENOTTY);
	assert_int_equal(get(&desk, "/nowhere", AF_INET), -ENOENT);
	/* The loop's own thread has never left. */
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_true(is_in(fd, "/proc/self/ns/net"));
	close(fd);
	close_desk(&desk, &loop);
	close_space(&a);
	close_space(&b);
}

/* A sandbox that ends takes its namespace with it, also when the last socket was for it. */
static void nothing_is_kept_alive(void **state)
{
	char space_link[64], helper_link[64], name[96];
	struct space a;
	struct netns_desk desk;
	struct loop loop;
	bool inside = true;
	ssize_t len;

	(void)state;
	if (open_space(&a) < 0)
		skip();
	len = readlink(a.path, space_link, sizeof(space_link));
	assert_true(len > 0);
	loop_init(&loop);
	netns_desk_open(&desk, &loop);
	close(get(&desk, a.path, AF_INET));
	for (int tries = 0; inside && tries < 5000; tries++) {
		DIR *threads = opendir("/proc/self/task");
		struct dirent *thread;

		inside = false;
		while ((thread = readdir(threads))) {
			snprintf(name, sizeof(name), "/proc/self/task/%.20s/ns/net",
				 thread->d_name);
			inside |= readlink(name, helper_link, sizeof(helper_link)) == len &&
				  memcmp(helper_link, space_link, (size_t)len) == 0;
		}
		closedir(threads);
		usleep(1000);
	}
	assert_false(inside);
	close_desk(&desk, &loop);
	close_space(&a);
}

static void cancelled_at_any_time(void **state)
{
	struct wish wishes[200] = {0};
	struct space a;
	struct netns_desk desk;
	struct loop loop;
	size_t answered = 0;

	(void)state;
	if (open_space(&a) < 0)
		skip();
	loop_init(&loop);
	netns_desk_open(&desk, &loop);
	for (size_t i = 0; i < ARRAY_LENGTH(wishes); i++)
		assert_int_equal(netns_ask(&desk, str_of(a.path), AF_INET, on_socket, &wishes[i],
					   &wishes[i].request),
				 0);
	/* Queued, running and done ones. */
	for (size_t i = 0; i < ARRAY_LENGTH(wishes); i += 2)
		netns_cancel(wishes[i].request);
	while (answered < ARRAY_LENGTH(wishes) / 2) {
		turn_loop(&loop);
		answered = 0;
		for (size_t i = 0; i < ARRAY_LENGTH(wishes); i++)
			answered += wishes[i].answers;
	}
	for (size_t i = 0; i < ARRAY_LENGTH(wishes); i++) {
		assert_int_equal(wishes[i].answers, i % 2);
		if (i % 2)
			close(wishes[i].fd);
	}
	close_desk(&desk, &loop);
	close_space(&a);
}

/* What it costs, for the record: alternating between two namespaces, which is the dearest. */
static void cost(void **state)
{
	struct wish *wishes = xcalloc(SOCKETS, sizeof(*wishes));
	struct space a, b;
	struct netns_desk desk;
	struct loop loop;
	struct timespec before, after;

	(void)state;
	if (open_space(&a) < 0) {
		free(wishes);
		skip();
	}
	assert_int_equal(open_space(&b), 0);
	loop_init(&loop);
	netns_desk_open(&desk, &loop);
	close(get(&desk, a.path, AF_INET));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	for (size_t i = 0; i < SOCKETS; i += 100) {
		for (size_t j = i; j < i + 100; j++)
			assert_int_equal(netns_ask(&desk, str_of(j % 2 ? a.path : b.path), AF_INET,
						   on_socket, &wishes[j], &wishes[j].request),
					 0);
		TURN_UNTIL(&loop, wishes[i + 99].answers);
		for (size_t j = i; j < i + 100; j++) {
			assert_true(wishes[j].fd >= 0);
			close(wishes[j].fd);
		}
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	print_message("%.1f us of CPU a socket, closing it included\n",
		      ((double)(after.tv_sec - before.tv_sec) * 1e6 +
		       (double)(after.tv_nsec - before.tv_nsec) / 1e3) /
			      SOCKETS);
	close_desk(&desk, &loop);
	close_space(&a);
	close_space(&b);
	free(wishes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sockets_are_where_they_belong),
		cmocka_unit_test(nothing_is_kept_alive),
		cmocka_unit_test(cancelled_at_any_time),
		cmocka_unit_test(cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
