/*
 * Waking sandboxes that sleep (contract/proxy.md 1.16, S26-S32). "Wake this sandbox" is a `struct
 * waker`, of which there is one implementation (wake/wake_hook.h asks the platform over HTTP);
 * this file is what stands between it and the requests of all workers:
 *
 * A *flight* is one attempt to get one sandbox running. Whoever needs the sandbox joins the flight
 * that is under way or begins one, and waits, in order of arrival, up to a number of waiters. The
 * flight looks at the catalog, and again after every change of it: while the sandbox is being
 * paused or resumed it waits, when it is paused it asks the waker, once; and when the catalog says
 * that the sandbox runs or is gone, or the waker says no, or the time is over, all its waiters are
 * told. So it makes no difference whether the waker's answer names the new address or somebody
 * changes the catalog.
 *
 * What the waker says no to may be over by then: if the sandbox runs, is another life, or has
 * become known, its waiters look again instead.
 *
 * A sandbox that the catalog does not know may be waited for as well, where platforms take sleeping
 * ones out of it: then the waker is asked at once, and all are told when it has answered.
 *
 * A waiter that leaves is forgotten at once. A flight that nobody waits for any more is given up if
 * the waker was not asked yet; otherwise the call goes on, since the platform has begun to work,
 * and what it answers is still published.
 *
 * Threads: the flights belong to the loop that wake_open was given; wake_join and wake_leave are
 * called by workers, and on_woken comes on the loop of the worker that joined.
 */
#ifndef PROXY_WAKE_WAKE_H
#define PROXY_WAKE_WAKE_H

#include "lib/counter.h"
#include "lib/loop.h"
#include "proxy/catalog/catalog.h"

#define WAKE_TEXT_BYTES_MAX 255

enum wake_outcome {
	WAKE_LOOK_AGAIN, /* the catalog knows more now */
	WAKE_NOT_FOUND, /* there is no such sandbox to be woken */
	WAKE_DENIED, /* it may not be woken */
	WAKE_TRANSITIONING, /* it was between states for too long, or the waker says so */
	WAKE_LIMITED, /* there is no room for it to run; `text` says which limit */
	WAKE_UNAVAILABLE, /* the waker did not answer, or not sensibly */
	WAKE_TIMEOUT,
	WAKE_OUTCOMES,
};

struct wake_verdict {
	enum wake_outcome outcome;
	unsigned retry_after_s; /* 0: nothing was said */
	char text[WAKE_TEXT_BYTES_MAX + 1]; /* of the waker, for people; "" = none. Valid UTF-8. */
};

/* What the waker is asked. */
struct wake_request {
	char id[HOST_NAME_ID_BYTES_MAX + 1];
	unsigned port; /* that the first waiter wants */
	char lifecycle_id[CATALOG_TEXT_BYTES_MAX + 1]; /* the one that was paused */
	/* The catalog does not know the sandbox, nor who may wake it: that is for the waker to
	 * judge, by the credentials that the client gave. Only waiters with the same ones share a
	 * flight. */
	bool is_unknown;
	char traffic_token[CATALOG_TEXT_BYTES_MAX + 1], envd_token[CATALOG_TEXT_BYTES_MAX + 1];
};

/* The request for a sandbox that the catalog knows. */
void wake_request_init(struct wake_request *request, const struct catalog_record *record,
		       unsigned port);

struct wake_call;

/* Embedded by an implementation. Everything happens on the loop of wake_open. */
struct waker {
	/* Asks, once. The call ends with wake_call_finish, later and exactly once, unless
	 * `cancel`ed. */
	void (*start)(struct waker *waker, struct wake_call *call);
	/* Stops at once; the call is not touched afterwards. */
	void (*cancel)(struct waker *waker, struct wake_call *call);
};

/* One question to the waker; it may outlive its flight. */
struct wake_call {
	struct list_node node;
	struct wake *wake;
	struct wake_flight *flight; /* NULL when that has ended without it */
	struct wake_request request;
	uint64_t started_ms;
	uint64_t deadline_ms; /* of the loop's clock: the waker answers by then, or fails */
	void *backend; /* the waker's own */
};

/* With WAKE_LOOK_AGAIN the sandbox runs, or will soon: a waker that knows more than that has
 * published it before. */
void wake_call_finish(struct wake_call *call, const struct wake_verdict *verdict);

struct wake_options {
	struct waker *waker; /* NULL: nobody; what is paused stays so */
	unsigned timeout_ms; /* of a flight */
	unsigned waiters_max; /* for one sandbox */
};

/* Plain numbers for metrics; only the loop of wake_open counts. */
struct wake_counters {
	_Atomic uint64_t calls, calls_ms; /* finished ones, and how long they took together */
	_Atomic uint64_t outcomes[WAKE_OUTCOMES]; /* of flights */
};

struct wake *wake_open(struct loop *loop, struct catalog *catalog,
		       const struct wake_options *options);
/* Cancels the calls; nobody waits any more. */
void wake_close(struct wake *wake);
const struct wake_counters *wake_counters(const struct wake *wake);
/* How many wait at the moment, over all workers. */
size_t wake_waiting(struct wake *wake);
const char *wake_outcome_name(enum wake_outcome outcome);

/* Embedded by whoever waits; zero at first. */
struct wake_waiter {
	struct list_node node; /* of the flight, under the wake's lock as the next two are */
	struct wake_flight *flight; /* NULL when the verdict is there */
	struct wake_result *result; /* then */
	struct message told; /* to the loop that joined; open while the waiter waits */
	size_t of_client; /* how many requests of the same client wait already; set by the caller */
	struct wake *wake;
	/* The waiter has left already and may join again. */
	void (*on_woken)(struct wake_waiter *waiter, const struct wake_verdict *verdict);
};

/* Waits for a sandbox that is in this state (when it is known). -EBUSY: too many wait for it
 * already; -EAGAIN: too many sandboxes are being woken, or what is left is for other clients;
 * -ENOTSUP: there is no waker (or `wake` is NULL), and the sandbox is not about to change by
 * itself. */
int wake_join(struct wake *wake, struct loop *loop, struct wake_waiter *waiter,
	      const struct wake_request *request, enum sandbox_state state) NODISCARD;
/* May be called when not waiting. */
void wake_leave(struct wake_waiter *waiter);

#endif
