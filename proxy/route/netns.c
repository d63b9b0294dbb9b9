#include "proxy/route/netns.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "lib/limits.h"

enum request_state { REQUEST_QUEUED, REQUEST_RUNNING, REQUEST_DONE };

struct netns_request {
	struct list_node node; /* in the queue or among the done */
	enum request_state state;
	bool cancelled;
	int family, fd;
	void (*on_socket)(void *user, int fd);
	void *user;
	char path[ADDRESS_NETNS_PATH_BYTES];
};

/* Shared by a desk and its thread; who leaves last frees. */
struct netns_helper {
	pthread_mutex_t lock; /* guards all but `wake` and what says otherwise */
	pthread_cond_t work;
	struct list_node queue, done;
	unsigned users;
	bool closed;
	uv_async_t wake;    /* the desk's, not to be touched once `closed` */
	int home;	     /* the thread's: the proxy's own namespace, which it must not enter ... */
	struct stat own;
	struct stat current; /* ... and where it is */
};

/* ---- the thread ---- */

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Nothing but namespaces, or nothing that somebody else than root has put there. */
static bool is_safe_to_open(const char *path)
{
	return strncmp(path, "/proc/", 6) == 0 ? strstr(path, "/ns/") != NULL
					       : strncmp(path, "/run/netns/", 11) == 0;
}

static int open_namespace(const char *path, struct stat *ret_stat)
{
	auto_close int handle = -1, fd = -1;
	struct statfs system;
	char again[40];

	/* Looks before it opens: a name may be that of a pipe, which waits, or of a device, which acts. */
	if (is_safe_to_open(path))
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	else
		handle = open(path, O_PATH | O_CLOEXEC);
	if ((fd < 0 && handle < 0) || fstatfs(fd < 0 ? handle : fd, &system) < 0)
		return -errno;
	if (system.f_type != NSFS_MAGIC)
		return -ENOTTY;
	if (fd < 0) {
		snprintf(again, sizeof(again), "/proc/self/fd/%d", handle);
		fd = open(again, O_RDONLY | O_CLOEXEC);
	}
	if (fd < 0 || fstat(fd, ret_stat) < 0)
		return -errno;
	return take_fd(&fd);
}

static int enter(struct netns_helper *helper, const char *path)
{
	struct stat wanted;
	auto_close int fd = open_namespace(path, &wanted);

	if (fd < 0)
		return fd;
	if (same_file(&wanted, &helper->own))
		return -ELOOP;
	if (same_file(&wanted, &helper->current))
		return 0;
	if (setns(fd, CLONE_NEWNET) < 0)
		return errno == EINVAL ? -ENOTTY : -errno; /* another kind of namespace */
	helper->current = wanted;
	return 0;
}

/* Whoever stays in a namespace keeps it alive, with all its interfaces. */
static void go_home(struct netns_helper *helper)
{
	if (!same_file(&helper->current, &helper->own) && setns(helper->home, CLONE_NEWNET) == 0)
		helper->current = helper->own;
}

static int make_socket(struct netns_helper *helper, const struct netns_request *request)
{
	int status = enter(helper, request->path), fd;

	if (status < 0)
		return status;
	fd = socket(request->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

static void free_request(struct netns_request *request)
{
	close_fd(&request->fd);
	free(request);
}

/* Under the lock, which it gives up. */
static void leave(struct netns_helper *helper)
{
	bool last = --helper->users == 0;

	pthread_mutex_unlock(&helper->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&helper->lock);
	pthread_cond_destroy(&helper->work);
	free(helper);
}

static void *run(void *user)
{
	struct netns_helper *helper = user;
	struct netns_request *request;
	int fd;

	/* Without /proc nothing is known to be another namespace, and nothing is entered. */
	helper->home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (helper->home < 0 || fstat(helper->home, &helper->own) < 0)
		memset(&helper->own, 0, sizeof(helper->own));
	helper->current = helper->own;
	pthread_mutex_lock(&helper->lock);
	while (!helper->closed) {
		if (list_is_empty(&helper->queue)) {
			go_home(helper);
			pthread_cond_wait(&helper->work, &helper->lock);
			continue;
		}
		request = container_of(helper->queue.next, struct netns_request, node);
		list_remove(&request->node);
		request->state = REQUEST_RUNNING;
		pthread_mutex_unlock(&helper->lock);
		fd = helper->own.st_ino ? make_socket(helper, request) : -ENOTTY;
		pthread_mutex_lock(&helper->lock);
		request->fd = fd;
		request->state = REQUEST_DONE;
		if (request->cancelled) {
			free_request(request);
			continue;
		}
		list_append(&helper->done, &request->node);
		if (!helper->closed)
			uv_async_send(&helper->wake);
	}
	close_fd(&helper->home);
	leave(helper);
	return NULL;
}

/* ---- the desk ---- */

static void on_wake(uv_async_t *async)
{
	struct netns_helper *helper = container_of(async, struct netns_helper, wake);
	struct netns_request *request;

	for (;;) {
		pthread_mutex_lock(&helper->lock);
		request = NULL;
		if (!list_is_empty(&helper->done)) {
			request = container_of(helper->done.next, struct netns_request, node);
			list_remove(&request->node);
		}
		pthread_mutex_unlock(&helper->lock);
		if (!request)
			return;
		/* May ask again, or cancel another one of the list. */
		request->on_socket(request->user, request->fd);
		request->fd = -1;
		free_request(request);
	}
}

static int start_thread(struct netns_helper *helper)
{
	sigset_t all, before;
	pthread_t thread;
	int status;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	status = -pthread_create(&thread, NULL, run, helper);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (status == 0)
		pthread_detach(thread);
	return status;
}

static void on_wake_closed(uv_handle_t *handle)
{
	struct netns_helper *helper = container_of((uv_async_t *)handle, struct netns_helper, wake);

	pthread_mutex_lock(&helper->lock);
	leave(helper);
}

static struct netns_helper *open_helper(struct loop *loop)
{
	struct netns_helper *helper = xcalloc(1, sizeof(*helper));

	pthread_mutex_init(&helper->lock, NULL);
	pthread_cond_init(&helper->work, NULL);
	list_init(&helper->queue);
	list_init(&helper->done);
	uv_async_init(&loop->uv, &helper->wake, on_wake);
	helper->users = 2;
	helper->home = -1;
	if (start_thread(helper) == 0)
		return helper;
	helper->users = 1;
	uv_close((uv_handle_t *)&helper->wake, on_wake_closed);
	return NULL;
}

void netns_desk_open(struct netns_desk *desk, struct loop *loop)
{
	desk->loop = loop;
	desk->helper = NULL;
}

void netns_desk_close(struct netns_desk *desk)
{
	struct netns_helper *helper = desk->helper;

	if (!helper)
		return;
	desk->helper = NULL;
	pthread_mutex_lock(&helper->lock);
	assert(list_is_empty(&helper->queue) && list_is_empty(&helper->done));
	helper->closed = true;
	pthread_cond_signal(&helper->work);
	pthread_mutex_unlock(&helper->lock);
	uv_close((uv_handle_t *)&helper->wake, on_wake_closed);
}

struct netns_request *netns_ask(struct netns_desk *desk, struct str path, int family,
				void (*on_socket)(void *user, int fd), void *user)
{
	struct netns_request *request;

	if (!desk->helper)
		desk->helper = open_helper(desk->loop);
	if (!desk->helper)
		return NULL;
	request = xcalloc(1, sizeof(*request));
	request->fd = -1;
	request->family = family;
	request->on_socket = on_socket;
	request->user = user;
	memcpy(request->path, path.p, size_min(path.len, sizeof(request->path) - 1));
	pthread_mutex_lock(&desk->helper->lock);
	list_append(&desk->helper->queue, &request->node);
	pthread_cond_signal(&desk->helper->work);
	pthread_mutex_unlock(&desk->helper->lock);
	return request;
}

void netns_cancel(struct netns_desk *desk, struct netns_request *request)
{
	pthread_mutex_lock(&desk->helper->lock);
	list_remove(&request->node);
	if (request->state == REQUEST_RUNNING)
		request->cancelled = true; /* the thread frees it */
	else
		free_request(request);
	pthread_mutex_unlock(&desk->helper->lock);
}
