/*
 * One continuous life of a sandbox at one address: from start or resume to pause or end. What
 * belongs to it, and how much it is used.
 *
 * *Activity* is recorded here and nowhere else, so that an idle timeout can be driven from it
 * (contract/proxy.md S30, S33): each worker writes its own slot, plainly, and only when a
 * millisecond has passed; whoever wants to know adds up. Times are of the monotonic clock, so that
 * a host whose clock is set, or that was suspended, makes no sandbox idle.
 *
 * Bytes are what goes between client and sandbox, in either direction: heads and bodies, and
 * everything in a tunnel, a WebSocket's pings included. TCP's keep-alive is none. A request counts
 * until its answer has begun, however long that takes, because somebody waits for it; afterwards
 * only its bytes do, so a forgotten event stream that says nothing lets its sandbox rest.
 */
#ifndef PROXY_CATALOG_LIFECYCLE_H
#define PROXY_CATALOG_LIFECYCLE_H

#include <stdatomic.h>

#include "lib/base.h"
#include "lib/counter.h"

#define LIFECYCLE_ID_BYTES_MAX 255

/* One worker's part; only that worker writes. */
struct lifecycle_use {
	_Atomic uint64_t request_ms, tunnel_ms; /* when a byte last went; 0: never */
	_Atomic uint64_t unanswered, streams, tunnels; /* open ones */
};

struct lifecycle {
	atomic_uint references;
	atomic_bool ended;
	atomic_int active; /* requests and tunnels being served, over all workers */
	size_t worker_count;
	uint64_t began_ms;
	struct lifecycle_use *use; /* slot i is worker i's, as in worker_data */
	char *id; /* with the rest: those that ended stay in the change feed for a while */
	void *worker_data[]; /* slot i is worker i's alone */
};

/* With one reference; "" makes an id up. */
struct lifecycle *lifecycle_new(size_t worker_count, const char *id) NODISCARD;
void lifecycle_hold(struct lifecycle *lifecycle);
void lifecycle_release(struct lifecycle *lifecycle);
/* One exchange less. */
void lifecycle_leave(struct lifecycle *lifecycle);
static inline bool lifecycle_has_ended(const struct lifecycle *lifecycle)
{
	return atomic_load_explicit(&lifecycle->ended, memory_order_acquire);
}

/* A byte went at `now_ms`. */
static inline void lifecycle_touch(_Atomic uint64_t *stamp, uint64_t now_ms)
{
	if (counter_read(stamp) != now_ms)
		counter_set(stamp, now_ms);
}

/* One less is open. Whoever sees that sees what was noted before it, too: a long request that has
 * just ended is no long rest. */
static inline void lifecycle_close_use(_Atomic uint64_t *open)
{
	atomic_store_explicit(open, counter_read(open) - 1, memory_order_release);
}

/* What the workers have noted together. */
struct lifecycle_activity {
	uint64_t request_idle_ms, tunnel_idle_ms; /* since the last byte, or since it began */
	uint64_t unanswered, streams, tunnels;
};

/* Whether tunnels keep a sandbox busy: never, by their bytes, or as long as they are open. */
enum tunnel_activity { TUNNEL_ACTIVITY_NONE, TUNNEL_ACTIVITY_BYTES, TUNNEL_ACTIVITY_OPEN };

void lifecycle_read_activity(const struct lifecycle *lifecycle, uint64_t now_ms,
			     struct lifecycle_activity *ret_activity);
/* For how long nothing has happened; 0 while it is busy. */
uint64_t lifecycle_idle_ms(const struct lifecycle_activity *activity, enum tunnel_activity tunnels);
/* "none", "bytes", "open"; -EINVAL for any other name. */
int tunnel_activity_parse(struct str name, enum tunnel_activity *ret_tunnels) NODISCARD;

#endif
