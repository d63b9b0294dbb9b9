#include "proxy/catalog/lifecycle.h"

#include <sys/random.h>

/* Of an id that is made up. */
#define RANDOM_BYTES 16

void lifecycle_hold(struct lifecycle *lifecycle)
{
	atomic_fetch_add_explicit(&lifecycle->references, 1, memory_order_relaxed);
}

void lifecycle_release(struct lifecycle *lifecycle)
{
	if (atomic_fetch_sub_explicit(&lifecycle->references, 1, memory_order_acq_rel) == 1)
		free(lifecycle);
}

struct lifecycle *lifecycle_new(size_t worker_count, const char *id)
{
	size_t use = sizeof(struct lifecycle) + worker_count * sizeof(void *);
	size_t text = use + worker_count * sizeof(struct lifecycle_use);
	size_t len = *id ? strnlen(id, LIFECYCLE_ID_BYTES_MAX) : 2 * RANDOM_BYTES;
	struct lifecycle *l = xcalloc(1, text + len + 1);

	l->use = (struct lifecycle_use *)(void *)((char *)l + use);
	l->id = (char *)l + text;
	l->began_ms = (uint64_t)monotonic_ms();
	atomic_init(&l->references, 1);
	atomic_init(&l->ended, false);
	atomic_init(&l->active, 0);
	l->worker_count = worker_count;
	if (*id) {
		memcpy(l->id, id, len);
	} else {
		unsigned char random[RANDOM_BYTES];

		if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
			abort(); /* cannot happen for 16 bytes once the kernel's pool is ready */
		for (size_t i = 0; i < sizeof(random); i++)
			snprintf(l->id + 2 * i, 3, "%02x", random[i]);
	}
	return l;
}

void lifecycle_leave(struct lifecycle *lifecycle)
{
	int before = atomic_fetch_sub_explicit(&lifecycle->active, 1, memory_order_relaxed);

	assert(before > 0);
	(void)before;
}

/* Loops read the clock once a turn, and may lag a little behind. */
static uint64_t age(uint64_t now_ms, uint64_t stamp_ms)
{
	return now_ms > stamp_ms ? now_ms - stamp_ms : 0;
}

/* Before the stamps of that worker (lifecycle_close_use). */
static uint64_t read_open(const _Atomic uint64_t *open)
{
	return atomic_load_explicit(open, memory_order_acquire);
}

void lifecycle_read_activity(const struct lifecycle *lifecycle, uint64_t now_ms,
			     struct lifecycle_activity *ret_activity)
{
	uint64_t request_ms = lifecycle->began_ms, tunnel_ms = lifecycle->began_ms;

	*ret_activity = (struct lifecycle_activity){0};
	for (size_t i = 0; i < lifecycle->worker_count; i++) {
		const struct lifecycle_use *use = &lifecycle->use[i];
		uint64_t request, tunnel;

		ret_activity->unanswered += read_open(&use->unanswered);
		ret_activity->streams += read_open(&use->streams);
		ret_activity->tunnels += read_open(&use->tunnels);
		request = counter_read(&use->request_ms);
		tunnel = counter_read(&use->tunnel_ms);
		request_ms = request > request_ms ? request : request_ms;
		tunnel_ms = tunnel > tunnel_ms ? tunnel : tunnel_ms;
	}
	ret_activity->request_idle_ms = age(now_ms, request_ms);
	ret_activity->tunnel_idle_ms = age(now_ms, tunnel_ms);
}

uint64_t lifecycle_idle_ms(const struct lifecycle_activity *activity, enum tunnel_activity tunnels)
{
	if (activity->unanswered > 0 || (tunnels == TUNNEL_ACTIVITY_OPEN && activity->tunnels > 0))
		return 0;
	return tunnels != TUNNEL_ACTIVITY_NONE &&
			       activity->tunnel_idle_ms < activity->request_idle_ms
		       ? activity->tunnel_idle_ms
		       : activity->request_idle_ms;
}

int tunnel_activity_parse(struct str name, enum tunnel_activity *ret_tunnels)
{
	static const struct str names[] = {STR("none"), STR("bytes"), STR("open")};

	for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
		if (str_equal(name, names[i])) {
			*ret_tunnels = (enum tunnel_activity)i;
			return 0;
		}
	return -EINVAL;
}
