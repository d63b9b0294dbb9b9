#include "proxy/relay/upstream.h"

#include <sys/socket.h>

#include "proxy/limits.h"

#define SWEEP_PERIOD_MS 500

struct upstream_group {
	struct list_node node; /* in the pool */
	struct lifecycle *lifecycle;
	struct list_node users;
	struct list_node idle; /* newest first */
};

struct idle_connection {
	struct list_node in_group, in_pool;
	struct upstream_pool *pool;
	struct upstream_group *group; /* NULL: not kept, but left to end */
	struct stream *stream;
	unsigned port;
	uint64_t expires_ms;
};

static void set_idle_count(struct upstream_pool *pool, size_t idle_count)
{
	pool->idle_count = idle_count;
	counter_set(&pool->idle_now, idle_count);
}

static struct upstream_group *group_of(struct upstream_pool *pool, struct lifecycle *lifecycle)
{
	struct upstream_group *group = lifecycle->worker_data[pool->worker];

	if (group)
		return group;
	group = xcalloc(1, sizeof(*group));
	group->lifecycle = lifecycle;
	lifecycle_hold(lifecycle);
	list_init(&group->users);
	list_init(&group->idle);
	list_append(&pool->groups, &group->node);
	counter_add(&pool->groups_now);
	lifecycle->worker_data[pool->worker] = group;
	return group;
}

static void drop_group_if_empty(struct upstream_pool *pool, struct upstream_group *group)
{
	if (!list_is_empty(&group->users) || !list_is_empty(&group->idle))
		return;
	group->lifecycle->worker_data[pool->worker] = NULL;
	list_remove(&group->node);
	counter_take(&pool->groups_now);
	lifecycle_release(group->lifecycle);
	free(group);
}

void upstream_join(struct upstream_pool *pool, struct lifecycle *lifecycle,
		   struct upstream_user *user)
{
	struct upstream_group *group = group_of(pool, lifecycle);

	user->group = group;
	list_append(&group->users, &user->node);
}

void upstream_leave(struct upstream_pool *pool, struct upstream_user *user)
{
	struct upstream_group *group = user->group;

	if (!group)
		return;
	user->group = NULL;
	list_remove(&user->node);
	drop_group_if_empty(pool, group);
}

/* ---- idle connections ---- */

/* Out of the lists; the stream is the caller's again. */
static struct stream *unlink_idle(struct idle_connection *idle)
{
	struct upstream_pool *pool = idle->pool;
	struct stream *stream = idle->stream;

	list_remove(&idle->in_group);
	list_remove(&idle->in_pool);
	if (idle->group)
		set_idle_count(pool, pool->idle_count - 1);
	else
		pool->ending_count--;
	free(idle);
	return stream;
}

static void discard_idle(struct idle_connection *idle, bool reset)
{
	struct upstream_pool *pool = idle->pool;
	struct upstream_group *group = idle->group;
	struct stream *stream = unlink_idle(idle);

	stream->events = NULL;
	stream_close(stream, reset);
	if (group)
		drop_group_if_empty(pool, group);
}

/* Bytes nobody asked for must never become the answer to the next request. */
static void on_idle_read(struct stream *stream, const char *data, size_t len)
{
	(void)data;
	(void)len;
	discard_idle(stream->user, true);
}

static void on_idle_end(struct stream *stream, int status)
{
	discard_idle(stream->user, status < 0);
}

static const struct stream_events idle_events = {
	.on_read = on_idle_read,
	.on_end = on_idle_end,
};

static struct idle_connection *oldest(struct list_node *list)
{
	return container_of(list->next, struct idle_connection, in_pool);
}

/* A server that was told of the end and did not come to it gets a reset, which keeps no ports. */
static void expire(struct list_node *list, uint64_t now)
{
	while (!list_is_empty(list) && oldest(list)->expires_ms <= now)
		discard_idle(oldest(list), !oldest(list)->group);
}

static void on_sweep(struct alarm *sweep)
{
	struct upstream_pool *pool = container_of(sweep, struct upstream_pool, sweep);
	uint64_t now = loop_now_ms(pool->loop);

	expire(&pool->idle_envd, now);
	expire(&pool->idle_user, now);
	expire(&pool->ending, now);
	if (pool->idle_count + pool->ending_count)
		alarm_set(pool->loop, sweep, SWEEP_PERIOD_MS);
}

/* The kernel may know of an end that the loop has not come to yet. */
static bool is_alive(const struct stream *stream)
{
	int fd = stream_fd(stream);
	char byte;

	return fd < 0 || (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
			  (errno == EAGAIN || errno == EWOULDBLOCK));
}

struct stream *upstream_take_idle(struct upstream_pool *pool, struct upstream_user *user,
				  unsigned port, bool check)
{
	struct upstream_group *group = user->group;
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &group->idle) {
		struct idle_connection *idle = container_of(node, struct idle_connection, in_group);
		struct stream *stream;

		if (idle->port != port)
			continue;
		stream = unlink_idle(idle);
		stream->events = NULL;
		if (!check || is_alive(stream)) {
			counter_add(&pool->reused);
			return stream;
		}
		stream_close(stream, true);
	}
	return NULL;
}

static void make_room(struct upstream_pool *pool)
{
	if (pool->idle_count + pool->ending_count < pool->idle_max)
		return;
	if (!list_is_empty(&pool->ending))
		discard_idle(oldest(&pool->ending), true);
	else if (!list_is_empty(&pool->idle_user))
		discard_idle(oldest(&pool->idle_user), false);
	else
		discard_idle(oldest(&pool->idle_envd), false);
}

/* Watches the connection; NULL when that cannot be, and it is closed. */
static struct idle_connection *adopt(struct upstream_pool *pool, struct stream *stream,
				     struct list_node *list, uint64_t wait_ms)
{
	struct idle_connection *idle;

	stream->events = NULL;
	make_room(pool);
	if (stream_read_start(stream) < 0) {
		stream_close(stream, true);
		return NULL;
	}
	idle = xcalloc(1, sizeof(*idle));
	idle->pool = pool;
	idle->stream = stream;
	idle->expires_ms = loop_now_ms(pool->loop) + wait_ms;
	list_init(&idle->in_group);
	list_append(list, &idle->in_pool);
	stream->events = &idle_events;
	stream->user = idle;
	if (!alarm_is_set(&pool->sweep))
		alarm_set(pool->loop, &pool->sweep, SWEEP_PERIOD_MS);
	return idle;
}

void upstream_put_idle(struct upstream_pool *pool, struct upstream_user *user, unsigned port,
		       struct stream *stream)
{
	struct idle_connection *idle;
	bool envd = port == ENVD_PORT;

	if (pool->closing || !user->group || lifecycle_has_ended(user->group->lifecycle) ||
	    pool->idle_max == 0) {
		stream->events = NULL;
		stream_close(stream, false);
		return;
	}
	idle = adopt(pool, stream, envd ? &pool->idle_envd : &pool->idle_user,
		     envd ? PROXY_UPSTREAM_IDLE_MS : PROXY_USER_UPSTREAM_IDLE_MS);
	if (!idle)
		return;
	idle->group = user->group;
	idle->port = port;
	list_prepend(&user->group->idle, &idle->in_group);
	set_idle_count(pool, pool->idle_count + 1);
}

void upstream_put_ending(struct upstream_pool *pool, struct stream *stream)
{
	if (pool->closing || pool->idle_max == 0) {
		stream->events = NULL;
		stream_close(stream, false);
		return;
	}
	if (adopt(pool, stream, &pool->ending, PROXY_UPSTREAM_ENDING_MS))
		pool->ending_count++;
}

/* ---- the pool ---- */

void upstream_pool_open(struct upstream_pool *pool, struct loop *loop, size_t worker,
			const struct address_guard *guard, size_t idle_max)
{
	memset(pool, 0, sizeof(*pool));
	pool->loop = loop;
	pool->worker = worker;
	pool->guard = guard;
	netns_desk_open(&pool->netns, loop);
	pool->idle_max = idle_max;
	list_init(&pool->groups);
	list_init(&pool->idle_envd);
	list_init(&pool->idle_user);
	list_init(&pool->ending);
	alarm_init(&pool->sweep, on_sweep);
}

static void discard_all(struct list_node *list)
{
	while (!list_is_empty(list))
		discard_idle(oldest(list), false);
}

void upstream_pool_close(struct upstream_pool *pool)
{
	if (pool->closing)
		return;
	pool->closing = true;
	discard_all(&pool->idle_envd);
	discard_all(&pool->idle_user);
	discard_all(&pool->ending);
	netns_desk_close(&pool->netns);
	alarm_cancel(&pool->sweep);
}

static void end_group(struct upstream_pool *pool, struct upstream_group *group)
{
	struct upstream_user guard = {.group = group};
	struct list_node told;

	/* Keeps the group while its members leave. */
	list_init(&told);
	list_splice(&told, &group->users);
	list_append(&group->users, &guard.node);
	while (!list_is_empty(&group->idle))
		discard_idle(container_of(group->idle.next, struct idle_connection, in_group),
			     true);
	while (!list_is_empty(&told)) {
		struct list_node *node = told.next;

		list_remove(node);
		list_append(&group->users, node);
		container_of(node, struct upstream_user, node)
			->on_ended(container_of(node, struct upstream_user, node));
	}
	upstream_leave(pool, &guard);
}

void upstream_pool_sweep(struct upstream_pool *pool)
{
	struct list_node *node, *following;
	struct list_node ended;

	list_init(&ended);
	LIST_FOR_EACH_SAFE (node, following, &pool->groups) {
		struct upstream_group *group = container_of(node, struct upstream_group, node);

		if (lifecycle_has_ended(group->lifecycle)) {
			list_remove(node);
			list_append(&ended, node);
		}
	}
	while (!list_is_empty(&ended)) {
		struct upstream_group *group = container_of(ended.next, struct upstream_group,
							    node);

		list_remove(&group->node);
		list_append(&pool->groups, &group->node);
		end_group(pool, group);
	}
}
