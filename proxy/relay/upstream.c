#include "proxy/relay/upstream.h"

#include <sys/socket.h>

#include "lib/log.h"
#include "lib/stream_uv.h"

#define SWEEP_PERIOD_MS 500

struct upstream_group {
	struct list_node node; /* in the pool */
	struct lifecycle *lifecycle;
	struct list_node users;
	struct list_node idle; /* newest first */
};

struct upstream_dial {
	struct upstream_pool *pool;
	const struct upstream_dial_handler *handler;
	void *user;
	struct catalog_record *record; /* borrowed: the user's */
	unsigned port;
	uv_timer_t timer;
	struct later later; /* reports what failed at once */
	uv_getaddrinfo_t resolve;
	struct stream *stream; /* while connecting */
	union address addresses[PROXY_RESOLVED_MAX];
	size_t address_count, address_at;
	uint64_t deadline_ms;
	unsigned attempt; /* finished rounds over all addresses */
	enum error_cause cause;
	bool starting, closing;
	bool resolving;	     /* the request is under way, perhaps for nobody any more */
	bool wants_resolved; /* its result is for the current round */
};

struct idle_connection {
	struct list_node in_group, in_pool;
	struct upstream_pool *pool;
	struct upstream_group *group;
	struct stream *stream;
	unsigned port;
	uint64_t expires_ms;
};

static void count(_Atomic uint64_t *counter)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

static void set_idle_count(struct upstream_pool *pool, size_t idle_count)
{
	pool->idle_count = idle_count;
	atomic_store_explicit(&pool->idle_now, idle_count, memory_order_relaxed);
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
	lifecycle->worker_data[pool->worker] = group;
	return group;
}

static void drop_group_if_empty(struct upstream_pool *pool, struct upstream_group *group)
{
	if (!list_is_empty(&group->users) || !list_is_empty(&group->idle))
		return;
	group->lifecycle->worker_data[pool->worker] = NULL;
	list_remove(&group->node);
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
	struct stream *stream = idle->stream;

	list_remove(&idle->in_group);
	list_remove(&idle->in_pool);
	set_idle_count(idle->pool, idle->pool->idle_count - 1);
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

static void expire(struct list_node *list, uint64_t now)
{
	while (!list_is_empty(list)) {
		struct idle_connection *idle =
			container_of(list->next, struct idle_connection, in_pool);

		if (idle->expires_ms > now)
			return;
		discard_idle(idle, false);
	}
}

static void on_pool_timer(uv_timer_t *timer)
{
	struct upstream_pool *pool = container_of(timer, struct upstream_pool, timer);
	uint64_t now = loop_now_ms(pool->loop);

	expire(&pool->idle_envd, now);
	expire(&pool->idle_user, now);
	if (pool->idle_count == 0) {
		uv_timer_stop(&pool->timer);
		pool->timer_running = false;
	}
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

	LIST_FOR_EACH_SAFE(node, following, &group->idle) {
		struct idle_connection *idle = container_of(node, struct idle_connection, in_group);
		struct stream *stream;

		if (idle->port != port)
			continue;
		stream = unlink_idle(idle);
		stream->events = NULL;
		if (!check || is_alive(stream)) {
			count(&pool->reused);
			return stream;
		}
		stream_close(stream, true);
	}
	return NULL;
}

void upstream_put_idle(struct upstream_pool *pool, struct upstream_user *user, unsigned port,
		       struct stream *stream)
{
	struct idle_connection *idle;
	bool envd = port == ENVD_PORT;

	stream->events = NULL;
	if (pool->closing || !user->group || lifecycle_has_ended(user->group->lifecycle) ||
	    pool->idle_max == 0) {
		stream_close(stream, false);
		return;
	}
	if (pool->idle_count >= pool->idle_max) {
		struct list_node *list =
			list_is_empty(&pool->idle_user) ? &pool->idle_envd : &pool->idle_user;

		discard_idle(container_of(list->next, struct idle_connection, in_pool), false);
	}
	if (stream_read_start(stream) < 0) {
		stream_close(stream, true);
		return;
	}
	idle = xcalloc(1, sizeof(*idle));
	idle->pool = pool;
	idle->group = user->group;
	idle->stream = stream;
	idle->port = port;
	idle->expires_ms = loop_now_ms(pool->loop) +
			   (envd ? PROXY_UPSTREAM_IDLE_MS : PROXY_USER_UPSTREAM_IDLE_MS);
	list_prepend(&user->group->idle, &idle->in_group);
	list_append(envd ? &pool->idle_envd : &pool->idle_user, &idle->in_pool);
	set_idle_count(pool, pool->idle_count + 1);
	stream->events = &idle_events;
	stream->user = idle;
	if (!pool->timer_running) {
		pool->timer_running = true;
		uv_timer_start(&pool->timer, on_pool_timer, SWEEP_PERIOD_MS, SWEEP_PERIOD_MS);
	}
}

/* ---- the pool ---- */

void upstream_pool_open(struct upstream_pool *pool, struct loop *loop, size_t worker,
			const struct address_guard *guard, size_t idle_max)
{
	memset(pool, 0, sizeof(*pool));
	pool->loop = loop;
	pool->worker = worker;
	pool->guard = guard;
	pool->idle_max = idle_max;
	list_init(&pool->groups);
	list_init(&pool->idle_envd);
	list_init(&pool->idle_user);
	uv_timer_init(&loop->uv, &pool->timer);
	uv_unref((uv_handle_t *)&pool->timer);
}

static void discard_all(struct list_node *list)
{
	while (!list_is_empty(list))
		discard_idle(container_of(list->next, struct idle_connection, in_pool), false);
}

void upstream_pool_close(struct upstream_pool *pool)
{
	if (pool->closing)
		return;
	pool->closing = true;
	discard_all(&pool->idle_envd);
	discard_all(&pool->idle_user);
	uv_close((uv_handle_t *)&pool->timer, NULL);
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
		discard_idle(container_of(group->idle.next, struct idle_connection, in_group), true);
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
	LIST_FOR_EACH_SAFE(node, following, &pool->groups) {
		struct upstream_group *group = container_of(node, struct upstream_group, node);

		if (lifecycle_has_ended(group->lifecycle)) {
			list_remove(node);
			list_append(&ended, node);
		}
	}
	while (!list_is_empty(&ended)) {
		struct upstream_group *group = container_of(ended.next, struct upstream_group, node);

		list_remove(&group->node);
		list_append(&pool->groups, &group->node);
		end_group(pool, group);
	}
}

/* ---- dialling ---- */

static const unsigned waits_ms[] = PROXY_DIAL_WAITS_MS;

static enum error_cause cause_of(int error)
{
	switch (error) {
	case -ETIMEDOUT:
		return ERROR_UPSTREAM_TIMEOUT;
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -ENETDOWN:
	case -EHOSTDOWN:
	case UV_EAI_NONAME:
	case UV_EAI_NODATA:
	case UV_EAI_FAIL:
	case UV_EAI_AGAIN:
		return ERROR_UPSTREAM_UNREACHABLE;
	case -EMFILE:
	case -ENFILE:
	case -ENOBUFS:
	case -ENOMEM:
	case -EADDRNOTAVAIL:
	case -EAGAIN:
		return ERROR_OVERLOADED;
	default:
		return ERROR_PORT_CLOSED;
	}
}

static void finish(struct upstream_dial *dial, enum error_cause cause)
{
	uv_timer_stop(&dial->timer);
	dial->wants_resolved = false;
	dial->cause = cause;
	if (dial->starting)
		later_call(dial->pool->loop, &dial->later);
	else
		dial->handler->on_failed(dial->user, cause);
}

static void on_failed_at_once(struct later *later)
{
	struct upstream_dial *dial = container_of(later, struct upstream_dial, later);

	dial->handler->on_failed(dial->user, dial->cause);
}

static void connect_next(struct upstream_dial *dial);
static void on_retry(uv_timer_t *timer);
static void on_connect_timeout(uv_timer_t *timer);

static void drop_stream(struct upstream_dial *dial)
{
	if (dial->stream)
		stream_close(dial->stream, true);
	dial->stream = NULL;
}

/* One address did not answer: the next one, or a pause before the next round, or the end. */
static void attempt_failed(struct upstream_dial *dial, int error)
{
	uint64_t now = loop_now_ms(dial->pool->loop);

	drop_stream(dial);
	if (++dial->address_at < dial->address_count && now < dial->deadline_ms) {
		connect_next(dial);
		return;
	}
	dial->address_at = 0;
	if (dial->attempt >= ARRAY_LENGTH(waits_ms) || now >= dial->deadline_ms) {
		finish(dial, cause_of(error));
		return;
	}
	count(&dial->pool->retries);
	uv_timer_start(&dial->timer, on_retry, waits_ms[dial->attempt], 0);
	dial->attempt++;
}

static void on_stream_connected(struct stream *stream, int status)
{
	struct upstream_dial *dial = stream->user;

	if (status < 0) {
		attempt_failed(dial, status);
		return;
	}
	uv_timer_stop(&dial->timer);
	dial->stream = NULL;
	stream->user = NULL;
	dial->handler->on_connected(dial->user, stream);
}

static void on_connect_timeout(uv_timer_t *timer)
{
	attempt_failed(container_of(timer, struct upstream_dial, timer), -ETIMEDOUT);
}

static void connect_next(struct upstream_dial *dial)
{
	uint64_t now = loop_now_ms(dial->pool->loop);
	uint64_t left = dial->deadline_ms > now ? dial->deadline_ms - now : 0;
	int status;

	count(&dial->pool->dials);
	uv_timer_start(&dial->timer, on_connect_timeout,
		       left > PROXY_DIAL_LAST_MS ? left : PROXY_DIAL_LAST_MS, 0);
	status = stream_uv_connect(dial->pool->loop, &dial->addresses[dial->address_at].any,
				   on_stream_connected, &dial->stream);
	if (status < 0) {
		dial->stream = NULL;
		attempt_failed(dial, status);
		return;
	}
	dial->stream->user = dial;
	dial->stream->events = NULL;
}

static void on_retry(uv_timer_t *timer)
{
	connect_next(container_of(timer, struct upstream_dial, timer));
}

/* The port where the one that the client named really is. */
static unsigned real_port(const struct upstream_dial *dial)
{
	const struct sandbox_entry *entry = &dial->record->entry;

	return dial->port == ENVD_PORT && entry->envd_port ? entry->envd_port : dial->port;
}

/* Keeps an address that may be dialled; remembers why one may not. */
static void consider(struct upstream_dial *dial, const union address *address,
		     enum address_verdict *verdict)
{
	union address *kept = &dial->addresses[dial->address_count];

	if (dial->address_count >= PROXY_RESOLVED_MAX)
		return;
	*kept = *address;
	address_set_port(kept, real_port(dial));
	*verdict = address_guard_check(dial->pool->guard, kept, dial->record->entry.trusted);
	if (*verdict == ADDRESS_OK)
		dial->address_count++;
}

static void start_round(struct upstream_dial *dial, enum address_verdict verdict)
{
	if (dial->address_count > 0) {
		connect_next(dial);
		return;
	}
	log_error("upstream", "address refused", LOG_S("sandbox", dial->record->entry.id),
		  LOG_S("address", dial->record->entry.address),
		  LOG_S("reason", address_verdict_text(verdict)));
	finish(dial, ERROR_ADDRESS_REFUSED);
}

static void close_timer(struct upstream_dial *dial);

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
	struct upstream_dial *dial = container_of(request, struct upstream_dial, resolve);
	enum address_verdict verdict = ADDRESS_FAMILY;

	dial->resolving = false;
	if (dial->closing) {
		uv_freeaddrinfo(found);
		close_timer(dial);
		return;
	}
	if (!dial->wants_resolved) { /* the time was up before */
		uv_freeaddrinfo(found);
		return;
	}
	dial->wants_resolved = false;
	if (status < 0) {
		finish(dial, cause_of(status));
		return;
	}
	for (struct addrinfo *at = found; at; at = at->ai_next) {
		union address address = {0};

		if (at->ai_family != AF_INET && at->ai_family != AF_INET6)
			continue;
		memcpy(&address, at->ai_addr, size_min(at->ai_addrlen, sizeof(address)));
		consider(dial, &address, &verdict);
	}
	uv_freeaddrinfo(found);
	start_round(dial, verdict);
}

static void on_resolve_timeout(uv_timer_t *timer)
{
	struct upstream_dial *dial = container_of(timer, struct upstream_dial, timer);

	uv_cancel((uv_req_t *)&dial->resolve); /* its callback still comes */
	finish(dial, ERROR_UPSTREAM_UNREACHABLE);
}

static void on_start(uv_timer_t *timer);

static void start_resolving(struct upstream_dial *dial)
{
	static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	int status;

	if (dial->resolving) { /* an answer that nobody waits for is still on its way */
		uv_timer_start(&dial->timer, on_start, 1, 0);
		return;
	}
	uv_timer_start(&dial->timer, on_resolve_timeout, PROXY_DIAL_TIMEOUT_MS, 0);
	status = uv_getaddrinfo(&dial->pool->loop->uv, &dial->resolve, on_resolved,
				dial->record->entry.address, NULL, &hints);
	if (status < 0) {
		finish(dial, cause_of(status));
		return;
	}
	dial->resolving = dial->wants_resolved = true;
}

static void on_start(uv_timer_t *timer)
{
	start_resolving(container_of(timer, struct upstream_dial, timer));
}

struct upstream_dial *upstream_dial_open(struct upstream_pool *pool,
					 const struct upstream_dial_handler *handler, void *user)
{
	struct upstream_dial *dial = xcalloc(1, sizeof(*dial));

	dial->pool = pool;
	dial->handler = handler;
	dial->user = user;
	uv_timer_init(&pool->loop->uv, &dial->timer);
	later_init(&dial->later, on_failed_at_once);
	return dial;
}

void upstream_dial_start(struct upstream_dial *dial, struct catalog_record *record, unsigned port)
{
	const union address *literal = &record->address;
	enum address_verdict verdict = ADDRESS_FAMILY;

	assert(!dial->closing);
	dial->record = record;
	dial->port = port;
	uv_timer_stop(&dial->timer);
	later_cancel(&dial->later);
	drop_stream(dial);
	dial->wants_resolved = false;
	dial->address_count = dial->address_at = 0;
	dial->attempt = 0;
	dial->deadline_ms = loop_now_ms(dial->pool->loop) + PROXY_DIAL_TIMEOUT_MS;
	dial->starting = true;
	if (literal->any.sa_family == AF_UNSPEC) {
		start_resolving(dial);
	} else {
		consider(dial, literal, &verdict);
		start_round(dial, verdict);
	}
	dial->starting = false;
}

static void on_timer_closed(uv_handle_t *handle)
{
	free(container_of(handle, struct upstream_dial, timer));
}

static void close_timer(struct upstream_dial *dial)
{
	uv_close((uv_handle_t *)&dial->timer, on_timer_closed);
}

void upstream_dial_close(struct upstream_dial *dial)
{
	if (dial->closing)
		return;
	dial->closing = true;
	dial->wants_resolved = false;
	uv_timer_stop(&dial->timer);
	later_cancel(&dial->later);
	drop_stream(dial);
	if (dial->resolving)
		uv_cancel((uv_req_t *)&dial->resolve); /* the timer follows in its callback */
	else
		close_timer(dial);
}
