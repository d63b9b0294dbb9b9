#include "proxy/wake/wake.h"

#include "lib/log.h"
#include "proxy/limits.h"

/* Shared by those who are told it; counted under the lock. */
struct wake_result {
	unsigned references;
	struct wake_verdict verdict;
};

struct wake_flight {
	struct list_node node; /* in wake.flights, oldest first */
	struct list_node waiters; /* under the lock, like their number */
	size_t waiting;
	struct wake_request request;
	uint64_t deadline_ms;
	struct wake_call *call; /* while the waker is being asked */
	bool asked;
	/* Of the catalog when the waker said yes: a sandbox that pauses after this pauses again. */
	uint64_t answered_revision;
};

struct wake {
	struct loop *loop;
	struct catalog *catalog;
	struct wake_options options;
	struct catalog_listener listener;
	struct message poke; /* a flight has begun, or the catalog has changed */
	struct alarm alarm; /* the first deadline */
	size_t calls, unknown_calls; /* the one includes the other, here and below */
	struct list_node open_calls;
	struct wake_counters counters;
	/* Guards what follows, and everything that is said above to be under the lock. */
	pthread_mutex_t lock;
	struct list_node flights; /* only the loop removes one */
	size_t flight_count, unknown_count, waiting;
};

static const char *const outcome_names[WAKE_OUTCOMES] = {
	[WAKE_LOOK_AGAIN] = "look_again", [WAKE_NOT_FOUND] = "not_found",
	[WAKE_DENIED] = "denied",	  [WAKE_TRANSITIONING] = "transitioning",
	[WAKE_LIMITED] = "limited",	  [WAKE_UNAVAILABLE] = "unavailable",
	[WAKE_TIMEOUT] = "timeout",
};

const char *wake_outcome_name(enum wake_outcome outcome)
{
	return outcome_names[outcome];
}

const struct wake_counters *wake_counters(const struct wake *wake)
{
	return &wake->counters;
}

size_t wake_waiting(struct wake *wake)
{
	size_t waiting;

	pthread_mutex_lock(&wake->lock);
	waiting = wake->waiting;
	pthread_mutex_unlock(&wake->lock);
	return waiting;
}

/* ---- waiters, on their workers ---- */

/* The credentials of known sandboxes are empty: who joins has shown them. */
static bool is_shared(const struct wake_request *a, const struct wake_request *b)
{
	return strcmp(a->id, b->id) == 0 && a->is_unknown == b->is_unknown &&
	       str_equal_constant_time(str_of(a->traffic_token), str_of(b->traffic_token)) &&
	       str_equal_constant_time(str_of(a->envd_token), str_of(b->envd_token));
}

/* Under the lock. */
static struct wake_flight *find_flight(struct wake *wake, const struct wake_request *request)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &wake->flights) {
		struct wake_flight *f = container_of(node, struct wake_flight, node);

		if (is_shared(&f->request, request))
			return f;
	}
	return NULL;
}

void wake_request_init(struct wake_request *request, const struct catalog_record *record,
		       unsigned port)
{
	*request = (struct wake_request){.port = port};
	snprintf(request->id, sizeof(request->id), "%s", record->entry.id);
	snprintf(request->lifecycle_id, sizeof(request->lifecycle_id), "%s",
		 record->entry.lifecycle_id);
}

static struct wake_flight *flight_new(struct wake *wake, const struct wake_request *request)
{
	struct wake_flight *f = xcalloc(1, sizeof(*f));

	f->request = *request;
	list_init(&f->waiters);
	list_append(&wake->flights, &f->node);
	wake->flight_count++;
	wake->unknown_count += f->request.is_unknown;
	return f;
}

/* Under the lock. Some of what is left is for other clients. */
static bool is_full(const struct wake *wake, const struct wake_request *request, size_t of_client)
{
	return wake->flight_count >= PROXY_WAKE_FLIGHTS_MAX ||
	       of_client >= PROXY_CLIENT_PARTS * (PROXY_WAKE_FLIGHTS_MAX - wake->flight_count) ||
	       (request->is_unknown && wake->unknown_count >= PROXY_WAKE_UNKNOWN_FLIGHTS_MAX);
}

/* Under the lock. */
static void release_result(struct wake_result *result)
{
	if (--result->references == 0)
		free(result);
}

static void on_told(struct message *told)
{
	struct wake_waiter *waiter = container_of(told, struct wake_waiter, told);
	struct wake *wake = waiter->wake;
	struct wake_result *result = waiter->result;

	message_close(told);
	waiter->on_woken(waiter, &result->verdict);
	pthread_mutex_lock(&wake->lock);
	release_result(result);
	pthread_mutex_unlock(&wake->lock);
}

int wake_join(struct wake *wake, struct loop *loop, struct wake_waiter *waiter,
	      const struct wake_request *request, enum sandbox_state state)
{
	struct wake_flight *f;
	bool is_new = false;
	int status = 0;

	if (!wake || (!wake->options.waker && (request->is_unknown || state == SANDBOX_PAUSED)))
		return -ENOTSUP;
	assert(!message_is_open(&waiter->told));
	pthread_mutex_lock(&wake->lock);
	f = find_flight(wake, request);
	if (!f && is_full(wake, request, waiter->of_client)) {
		status = -EAGAIN;
	} else if (f && f->waiting >= wake->options.waiters_max) {
		status = -EBUSY;
	} else {
		is_new = !f;
		if (is_new)
			f = flight_new(wake, request);
		message_open(&waiter->told, loop, on_told);
		waiter->wake = wake;
		waiter->flight = f;
		waiter->result = NULL;
		list_append(&f->waiters, &waiter->node);
		f->waiting++;
		wake->waiting++;
	}
	pthread_mutex_unlock(&wake->lock);
	if (is_new)
		message_post(&wake->poke);
	return status;
}

void wake_leave(struct wake_waiter *waiter)
{
	struct wake *wake = waiter->wake;
	bool was_last = false;

	if (!message_is_open(&waiter->told))
		return;
	pthread_mutex_lock(&wake->lock);
	list_remove(&waiter->node);
	if (waiter->flight) {
		was_last = --waiter->flight->waiting == 0;
		wake->waiting--;
	} else {
		release_result(waiter->result);
	}
	pthread_mutex_unlock(&wake->lock);
	message_close(&waiter->told);
	if (was_last)
		message_post(&wake->poke);
}

/* ---- flights, on the loop ---- */

/* Tells all who wait, and forgets the flight; a call that is under way goes on without it. */
static void end_flight(struct wake *wake, struct wake_flight *f, const struct wake_verdict *verdict)
{
	struct wake_result *result = xcalloc(1, sizeof(*result));

	result->verdict = *verdict;
	result->references = 1;
	counter_add(&wake->counters.outcomes[verdict->outcome]);
	log_debug("wake", "over", LOG_S("sandbox", f->request.id),
		  LOG_S("outcome", wake_outcome_name(verdict->outcome)));
	pthread_mutex_lock(&wake->lock);
	list_remove(&f->node);
	wake->flight_count--;
	wake->unknown_count -= f->request.is_unknown;
	wake->waiting -= f->waiting;
	while (!list_is_empty(&f->waiters)) {
		struct wake_waiter *waiter = container_of(f->waiters.next, struct wake_waiter,
							  node);

		list_remove(&waiter->node);
		waiter->flight = NULL;
		waiter->result = result;
		result->references++;
		message_post(&waiter->told);
	}
	release_result(result);
	pthread_mutex_unlock(&wake->lock);
	if (f->call)
		f->call->flight = NULL;
	wipe(&f->request, sizeof(f->request));
	free(f);
}

static void end_flight_as(struct wake *wake, struct wake_flight *f, enum wake_outcome outcome)
{
	const struct wake_verdict verdict = {.outcome = outcome};

	end_flight(wake, f, &verdict);
}

static void ask(struct wake *wake, struct wake_flight *f)
{
	struct wake_call *call;

	if (wake->calls >= PROXY_WAKE_CALLS_MAX ||
	    (f->request.is_unknown && wake->unknown_calls >= PROXY_WAKE_UNKNOWN_CALLS_MAX))
		return; /* looked at again when one is over */
	call = xcalloc(1, sizeof(*call));
	call->wake = wake;
	call->flight = f;
	call->request = f->request;
	call->started_ms = loop_now_ms(wake->loop);
	call->deadline_ms = f->deadline_ms;
	f->call = call;
	f->asked = true;
	list_append(&wake->open_calls, &call->node);
	wake->calls++;
	wake->unknown_calls += f->request.is_unknown;
	wake->options.waker->start(wake->options.waker, call);
}

/* Whether what was asked about is not what the catalog has now: an answer to that is none any
 * more. */
static bool is_overtaken(struct wake *wake, const struct wake_flight *f)
{
	struct catalog_record *record;
	bool overtaken;

	if (catalog_find(wake->catalog, str_of(f->request.id), &record) < 0)
		return !f->request.is_unknown;
	overtaken = f->request.is_unknown || record->entry.state == SANDBOX_RUNNING ||
		    strcmp(record->entry.lifecycle_id, f->request.lifecycle_id) != 0;
	catalog_record_release(record);
	return overtaken;
}

/* What the catalog says now decides; the flight may be gone afterwards. */
static void look(struct wake *wake, struct wake_flight *f)
{
	struct catalog_record *record;
	bool is_over;

	if (catalog_find(wake->catalog, str_of(f->request.id), &record) < 0) {
		if (!f->request.is_unknown || (f->asked && !f->call))
			end_flight_as(wake, f, WAKE_LOOK_AGAIN);
		else if (!f->asked)
			ask(wake, f);
		return;
	}
	if (f->request.is_unknown) { /* known now: all is decided anew */
		catalog_record_release(record);
		end_flight_as(wake, f, WAKE_LOOK_AGAIN);
		return;
	}
	switch (record->entry.state) {
	case SANDBOX_RUNNING:
	case SANDBOX_STOPPING:
		end_flight_as(wake, f, WAKE_LOOK_AGAIN);
		break;
	case SANDBOX_PAUSING:
	case SANDBOX_RESUMING:
		break;
	case SANDBOX_PAUSED:
		/* It has paused again since, or another life has taken its place while it was asked
		 * about. */
		is_over = f->asked && !f->call &&
			  (record->revision > f->answered_revision ||
			   strcmp(record->entry.lifecycle_id, f->request.lifecycle_id) != 0);
		if (!wake->options.waker || !record->entry.auto_resume || is_over) {
			end_flight_as(wake, f, WAKE_LOOK_AGAIN);
		} else if (!f->asked) {
			/* The life that is over now, if it was still being paused before. */
			snprintf(f->request.lifecycle_id, sizeof(f->request.lifecycle_id), "%s",
				 record->entry.lifecycle_id);
			ask(wake, f);
		}
		break;
	}
	catalog_record_release(record);
}

static bool is_abandoned(struct wake *wake, const struct wake_flight *f)
{
	bool abandoned;

	pthread_mutex_lock(&wake->lock);
	abandoned = f->waiting == 0;
	pthread_mutex_unlock(&wake->lock);
	return abandoned;
}

/* New ones are only added at the end, by workers; those are looked at next time. */
static struct wake_flight *next_flight(struct wake *wake, struct list_node *after)
{
	struct list_node *next;

	pthread_mutex_lock(&wake->lock);
	next = after->next;
	pthread_mutex_unlock(&wake->lock);
	return next == &wake->flights ? NULL : container_of(next, struct wake_flight, node);
}

static void look_at_all(struct wake *wake)
{
	uint64_t now = loop_now_ms(wake->loop), first = UINT64_MAX;
	struct wake_flight *f = next_flight(wake, &wake->flights), *following;

	for (; f; f = following) {
		following = next_flight(wake, &f->node);
		if (!f->deadline_ms)
			f->deadline_ms = now + wake->options.timeout_ms;
		if (is_abandoned(wake, f) && !f->call)
			end_flight_as(wake, f, WAKE_LOOK_AGAIN);
		else if (now >= f->deadline_ms)
			end_flight_as(wake, f, f->asked ? WAKE_TIMEOUT : WAKE_TRANSITIONING);
		else if (f->deadline_ms < first)
			first = f->deadline_ms; /* looked at below, or by the alarm */
	}
	for (f = next_flight(wake, &wake->flights); f; f = following) {
		following = next_flight(wake, &f->node);
		if (f->deadline_ms)
			look(wake, f);
	}
	if (first == UINT64_MAX)
		alarm_cancel(&wake->alarm);
	else
		alarm_set(wake->loop, &wake->alarm, first - now);
}

static void on_alarm(struct alarm *alarm)
{
	look_at_all(container_of(alarm, struct wake, alarm));
}

static void on_poke(struct message *poke)
{
	look_at_all(container_of(poke, struct wake, poke));
}

/* On whatever thread changed the catalog. */
static void on_catalog_change(struct catalog_listener *listener)
{
	message_post(&container_of(listener, struct wake, listener)->poke);
}

static void forget_call(struct wake_call *call)
{
	struct wake *wake = call->wake;

	list_remove(&call->node);
	wake->calls--;
	wake->unknown_calls -= call->request.is_unknown;
	wipe(&call->request, sizeof(call->request));
	free(call);
}

void wake_call_finish(struct wake_call *call, const struct wake_verdict *verdict)
{
	struct wake *wake = call->wake;
	struct wake_flight *f = call->flight;

	counter_add(&wake->counters.calls);
	counter_set(&wake->counters.calls_ms, counter_read(&wake->counters.calls_ms) +
						      loop_now_ms(wake->loop) - call->started_ms);
	if (f) {
		f->call = NULL;
		f->answered_revision = catalog_revision(wake->catalog);
		if (verdict->outcome != WAKE_LOOK_AGAIN && is_overtaken(wake, f))
			end_flight_as(wake, f, WAKE_LOOK_AGAIN);
		else if (verdict->outcome != WAKE_LOOK_AGAIN)
			end_flight(wake, f, verdict);
	}
	forget_call(call);
	/* One less: another flight may ask now. And the catalog may say already what it will. */
	message_post(&wake->poke);
}

struct wake *wake_open(struct loop *loop, struct catalog *catalog,
		       const struct wake_options *options)
{
	struct wake *wake = xcalloc(1, sizeof(*wake));

	wake->loop = loop;
	wake->catalog = catalog;
	wake->options = *options;
	pthread_mutex_init(&wake->lock, NULL);
	list_init(&wake->flights);
	list_init(&wake->open_calls);
	message_open(&wake->poke, loop, on_poke);
	alarm_init(&wake->alarm, on_alarm);
	wake->listener.notify = on_catalog_change;
	catalog_listen(catalog, &wake->listener);
	return wake;
}

void wake_close(struct wake *wake)
{
	struct wake_flight *f;

	catalog_unlisten(wake->catalog, &wake->listener);
	while (!list_is_empty(&wake->open_calls)) {
		struct wake_call *call = container_of(wake->open_calls.next, struct wake_call,
						      node);

		wake->options.waker->cancel(wake->options.waker, call);
		if (call->flight)
			call->flight->call = NULL;
		forget_call(call);
	}
	while ((f = next_flight(wake, &wake->flights)))
		end_flight_as(wake, f, WAKE_LOOK_AGAIN); /* nobody waits any more */
	message_close(&wake->poke);
	alarm_cancel(&wake->alarm);
	pthread_mutex_destroy(&wake->lock);
	free(wake);
}
