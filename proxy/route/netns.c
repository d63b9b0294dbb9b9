#include "proxy/route/netns.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "lib/thread.h"
#include "proxy/limits.h"

enum request_state { REQUEST_QUEUED, REQUEST_RUNNING, REQUEST_DONE };

struct netns_request {
	struct list_node node; /* in the queue */
	struct message done; /* tells the desk; closed once it has, or when it is cancelled */
	struct netns_helper *helper;
	enum request_state state;
	bool cancelled;
	int family, fd;
	void (*on_socket)(void *user, int fd);
	void *user;
	char path[ADDRESS_NETNS_PATH_BYTES];
};

/* Shared by a desk and its thread; who leaves last frees. */
struct netns_helper {
	struct netns_desk *desk; /* not to be touched once `closed` */
	struct list_node node; /* of those left behind */
	pthread_mutex_t lock; /* guards all down to `left_behind` */
	pthread_cond_t work;
	struct list_node queue;
	const struct netns_request *running;
	int64_t running_ms; /* since when */
	unsigned users;
	bool closed, left_behind;
	struct message returned; /* tells the desk that the thread takes no more requests */
	struct alarm watch; /* the desk's: whether it hangs */
	char stuck_path[ADDRESS_NETNS_PATH_BYTES]; /* the desk's, when left behind */
	int home; /* the thread's: the proxy's own namespace, which it must not enter ... */
	struct stat own;
	struct stat current; /* ... and where it is */
};

/* ---- the thread ---- */

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool skip_prefix(const char **path, const char *prefix)
{
	size_t len = strlen(prefix);

	if (strncmp(*path, prefix, len) != 0)
		return false;
	*path += len;
	return true;
}

static void skip_name(const char **path)
{
	*path += strcspn(*path, "/");
}

/* Made by the kernel, or by root in memory: opening it neither waits nor acts. */
static bool is_of_kernel(const char *path)
{
	if (skip_prefix(&path, "/run/netns/") || skip_prefix(&path, "/var/run/netns/"))
		return !strchr(path, '/');
	if (!skip_prefix(&path, "/proc/"))
		return false;
	skip_name(&path);
	if (skip_prefix(&path, "/task/"))
		skip_name(&path);
	return skip_prefix(&path, "/ns/") && !strchr(path, '/');
}

static int open_namespace(const char *path, struct stat *ret_stat)
{
	auto_close int handle = -1, fd = -1;
	struct statfs system;
	char again[40];

	/* Looks before it opens: a name may be that of a pipe, which waits, or of a device, which
	 * acts. */
	if (is_of_kernel(path))
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
	while (!helper->closed && !helper->left_behind) {
		if (list_is_empty(&helper->queue)) {
			go_home(helper);
			pthread_cond_wait(&helper->work, &helper->lock);
			continue;
		}
		request = container_of(helper->queue.next, struct netns_request, node);
		list_remove(&request->node);
		request->state = REQUEST_RUNNING;
		helper->running = request;
		helper->running_ms = monotonic_ms();
		pthread_mutex_unlock(&helper->lock);
		fd = helper->own.st_ino ? make_socket(helper, request) : -ENOTTY;
		pthread_mutex_lock(&helper->lock);
		helper->running = NULL;
		request->fd = fd;
		request->state = REQUEST_DONE;
		if (request->cancelled) {
			free_request(request);
			continue;
		}
		message_post(&request->done);
	}
	close_fd(&helper->home);
	if (!helper->closed)
		message_post(&helper->returned);
	leave(helper);
	return NULL;
}

/* ---- the desk ---- */

/* The desk has done with it. */
static void dismiss(struct netns_helper *helper)
{
	alarm_cancel(&helper->watch);
	message_close(&helper->returned);
	pthread_mutex_lock(&helper->lock);
	assert(list_is_empty(&helper->queue));
	helper->closed = true;
	pthread_cond_signal(&helper->work);
	leave(helper);
}

static void on_done(struct message *done)
{
	struct netns_request *request = container_of(done, struct netns_request, done);

	message_close(done);
	request->on_socket(request->user, request->fd);
	request->fd = -1;
	free_request(request);
}

/* It was left behind, and has come after all. */
static void on_returned(struct message *returned)
{
	struct netns_helper *helper = container_of(returned, struct netns_helper, returned);

	list_remove(&helper->node);
	helper->desk->stuck_count--;
	dismiss(helper);
}

static int start_thread(struct netns_helper *helper)
{
	pthread_t thread;
	int status = thread_start(&thread, 0, run, helper);

	if (status == 0)
		pthread_detach(thread);
	return status;
}

static void on_watch(struct alarm *watch);

static struct netns_helper *open_helper(struct netns_desk *desk)
{
	struct netns_helper *helper = xcalloc(1, sizeof(*helper));

	helper->desk = desk;
	pthread_mutex_init(&helper->lock, NULL);
	pthread_cond_init(&helper->work, NULL);
	list_init(&helper->node);
	list_init(&helper->queue);
	message_open(&helper->returned, desk->loop, on_returned);
	alarm_init(&helper->watch, on_watch);
	helper->users = 2;
	helper->home = -1;
	if (start_thread(helper) == 0)
		return helper;
	helper->users = 1;
	dismiss(helper);
	return NULL;
}

/* ---- those that hang ---- */

static void on_watch(struct alarm *watch)
{
	struct netns_helper *helper = container_of(watch, struct netns_helper, watch), *next;
	struct netns_desk *desk = helper->desk;
	bool idle, stuck;

	pthread_mutex_lock(&helper->lock);
	idle = !helper->running && list_is_empty(&helper->queue);
	stuck = helper->running && monotonic_ms() >= helper->running_ms + PROXY_NETNS_STUCK_MS;
	pthread_mutex_unlock(&helper->lock);
	if (idle)
		return;
	alarm_set(desk->loop, watch, PROXY_NETNS_STUCK_MS);
	if (!stuck || desk->stuck_count == PROXY_NETNS_STUCK_MAX)
		return;
	next = open_helper(desk);
	if (!next)
		return;
	pthread_mutex_lock(&helper->lock);
	helper->left_behind = true;
	pthread_cond_signal(&helper->work); /* it may have come in this very moment */
	if (helper->running)
		memcpy(helper->stuck_path, helper->running->path, sizeof(helper->stuck_path));
	pthread_mutex_lock(&next->lock);
	list_splice(&next->queue, &helper->queue);
	for (struct list_node *node = next->queue.next; node != &next->queue; node = node->next)
		container_of(node, struct netns_request, node)->helper = next;
	pthread_cond_signal(&next->work);
	pthread_mutex_unlock(&next->lock);
	pthread_mutex_unlock(&helper->lock);
	alarm_cancel(watch);
	list_append(&desk->stuck, &helper->node);
	desk->stuck_count++;
	desk->helpers[NETNS_OTHER_LANE] = next;
	alarm_set(desk->loop, &next->watch, PROXY_NETNS_STUCK_MS);
}

static bool is_stuck_at(const struct netns_desk *desk, struct str path)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &desk->stuck)
		if (str_equal(str_of(container_of(node, struct netns_helper, node)->stuck_path),
			      path))
			return true;
	return false;
}

/* ---- the desk ---- */

void netns_desk_open(struct netns_desk *desk, struct loop *loop)
{
	*desk = (struct netns_desk){.loop = loop};
	list_init(&desk->stuck);
}

void netns_desk_close(struct netns_desk *desk)
{
	for (size_t lane = 0; lane < NETNS_LANES; lane++)
		if (desk->helpers[lane])
			dismiss(desk->helpers[lane]);
	while (!list_is_empty(&desk->stuck)) {
		struct list_node *node = desk->stuck.next;

		list_remove(node);
		dismiss(container_of(node, struct netns_helper, node));
	}
	netns_desk_open(desk, desk->loop);
}

int netns_ask(struct netns_desk *desk, struct str path, int family,
	      void (*on_socket)(void *user, int fd), void *user, struct netns_request **ret_request)
{
	struct netns_request *request;
	struct netns_helper *helper;
	size_t lane;

	if (is_stuck_at(desk, path))
		return -ETIMEDOUT;
	request = xcalloc(1, sizeof(*request));
	memcpy(request->path, path.p, size_min(path.len, sizeof(request->path) - 1));
	lane = is_of_kernel(request->path) ? NETNS_KERNEL_LANE : NETNS_OTHER_LANE;
	if (!desk->helpers[lane])
		desk->helpers[lane] = open_helper(desk);
	helper = desk->helpers[lane];
	if (!helper) {
		free(request);
		return -EAGAIN;
	}
	request->helper = helper;
	request->fd = -1;
	request->family = family;
	request->on_socket = on_socket;
	request->user = user;
	message_open(&request->done, desk->loop, on_done);
	pthread_mutex_lock(&helper->lock);
	list_append(&helper->queue, &request->node);
	pthread_cond_signal(&helper->work);
	pthread_mutex_unlock(&helper->lock);
	if (lane == NETNS_OTHER_LANE && !alarm_is_set(&helper->watch))
		alarm_set(desk->loop, &helper->watch, PROXY_NETNS_STUCK_MS);
	*ret_request = request;
	return 0;
}

void netns_cancel(struct netns_request *request)
{
	struct netns_helper *helper = request->helper;

	message_close(&request->done);
	pthread_mutex_lock(&helper->lock);
	list_remove(&request->node);
	if (request->state == REQUEST_RUNNING)
		request->cancelled = true; /* the thread frees it */
	else
		free_request(request);
	pthread_mutex_unlock(&helper->lock);
}
