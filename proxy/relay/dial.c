#include "proxy/relay/dial.h"

#include <sys/socket.h>

#include "lib/log.h"
#include "lib/stream_uv.h"

struct dial {
	struct upstream_pool *pool;
	const struct dial_handler *handler;
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

static void finish(struct dial *dial, enum error_cause cause)
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
	struct dial *dial = container_of(later, struct dial, later);

	dial->handler->on_failed(dial->user, dial->cause);
}

static void connect_next(struct dial *dial);
static void on_retry(uv_timer_t *timer);
static void on_connect_timeout(uv_timer_t *timer);

static void drop_stream(struct dial *dial)
{
	if (dial->stream)
		stream_close(dial->stream, true);
	dial->stream = NULL;
}

/* One address did not answer: the next one, or a pause before the next round, or the end. */
static void attempt_failed(struct dial *dial, int error)
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
	counter_add(&dial->pool->retries);
	uv_timer_start(&dial->timer, on_retry, waits_ms[dial->attempt], 0);
	dial->attempt++;
}

static void on_stream_connected(struct stream *stream, int status)
{
	struct dial *dial = stream->user;

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
	attempt_failed(container_of(timer, struct dial, timer), -ETIMEDOUT);
}

static void connect_next(struct dial *dial)
{
	uint64_t now = loop_now_ms(dial->pool->loop);
	uint64_t left = dial->deadline_ms > now ? dial->deadline_ms - now : 0;
	int status;

	counter_add(&dial->pool->dials);
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
	connect_next(container_of(timer, struct dial, timer));
}

/* The port where the one that the client named really is. */
static unsigned real_port(const struct dial *dial)
{
	const struct sandbox_entry *entry = &dial->record->entry;

	return dial->port == ENVD_PORT && entry->envd_port ? entry->envd_port : dial->port;
}

/* Keeps an address that may be dialled; remembers why one may not. */
static void consider(struct dial *dial, const union address *address,
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

static void start_round(struct dial *dial, enum address_verdict verdict)
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

static void close_timer(struct dial *dial);

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
	struct dial *dial = container_of(request, struct dial, resolve);
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
	struct dial *dial = container_of(timer, struct dial, timer);

	uv_cancel((uv_req_t *)&dial->resolve); /* its callback still comes */
	finish(dial, ERROR_UPSTREAM_UNREACHABLE);
}

static void on_start(uv_timer_t *timer);

static void start_resolving(struct dial *dial)
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
	start_resolving(container_of(timer, struct dial, timer));
}

struct dial *dial_open(struct upstream_pool *pool, const struct dial_handler *handler, void *user)
{
	struct dial *dial = xcalloc(1, sizeof(*dial));

	dial->pool = pool;
	dial->handler = handler;
	dial->user = user;
	uv_timer_init(&pool->loop->uv, &dial->timer);
	later_init(&dial->later, on_failed_at_once);
	return dial;
}

void dial_start(struct dial *dial, struct catalog_record *record, unsigned port)
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
	free(container_of(handle, struct dial, timer));
}

static void close_timer(struct dial *dial)
{
	uv_close((uv_handle_t *)&dial->timer, on_timer_closed);
}

void dial_close(struct dial *dial)
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
