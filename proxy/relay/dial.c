#include "proxy/relay/dial.h"

#include <sys/socket.h>

#include "lib/log.h"
#include "lib/stream_uv.h"
#include "proxy/limits.h"

struct dial {
	struct upstream_pool *pool;
	const struct dial_handler *handler;
	void *user;
	struct catalog_record *record; /* borrowed: the user's */
	unsigned port;
	struct alarm alarm;
	struct later later; /* reports what failed at once */
	uv_getaddrinfo_t resolve;
	struct stream *stream; /* while connecting */
	struct str netns; /* path of the namespace to dial from, in the record; {NULL, 0}: ours */
	struct netns_request *socket; /* while one is being made in there */
	union address addresses[PROXY_RESOLVED_MAX];
	size_t address_count, address_at;
	uint64_t deadline_ms;
	unsigned attempt; /* finished rounds over all addresses */
	bool refused; /* somebody was there in this round and said no */
	enum error_cause cause;
	bool starting, closing;
	bool resolving; /* the request is under way, perhaps for nobody any more */
	bool wants_resolved; /* its time is not over */
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
	alarm_cancel(&dial->alarm);
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
static void on_retry(struct alarm *alarm);
static void on_connect_timeout(struct alarm *alarm);

static void drop_stream(struct dial *dial)
{
	if (dial->socket)
		netns_cancel(dial->socket);
	dial->socket = NULL;
	if (dial->stream)
		stream_close(dial->stream, true);
	dial->stream = NULL;
}

/* One address did not answer: the next one, or a pause before the next round, or the end. */
static void attempt_failed(struct dial *dial, int error)
{
	uint64_t now = loop_now_ms(dial->pool->loop);

	drop_stream(dial);
	dial->refused |= error == -ECONNREFUSED;
	if (++dial->address_at < dial->address_count && now < dial->deadline_ms) {
		connect_next(dial);
		return;
	}
	dial->address_at = 0;
	if (dial->attempt >= ARRAY_LENGTH(waits_ms) || now >= dial->deadline_ms) {
		/* Of several addresses the last need not be the one that says most. */
		finish(dial, dial->refused ? ERROR_PORT_CLOSED : cause_of(error));
		return;
	}
	dial->refused = false;
	counter_add(&dial->pool->retries);
	alarm_call(dial->pool->loop, &dial->alarm, on_retry, waits_ms[dial->attempt]);
	dial->attempt++;
}

static void on_stream_connected(struct stream *stream, int status)
{
	struct dial *dial = stream->user;

	if (status < 0) {
		attempt_failed(dial, status);
		return;
	}
	alarm_cancel(&dial->alarm);
	dial->stream = NULL;
	stream->user = NULL;
	dial->handler->on_connected(dial->user, stream);
}

static void on_connect_timeout(struct alarm *alarm)
{
	attempt_failed(container_of(alarm, struct dial, alarm), -ETIMEDOUT);
}

/* `fd`: a socket made elsewhere, or -1. */
static void connect_with(struct dial *dial, int fd)
{
	/* A request follows at once. */
	int status = stream_uv_connect_to_write(dial->pool->loop, fd,
						&dial->addresses[dial->address_at].any,
						on_stream_connected, &dial->stream);

	if (status < 0) {
		dial->stream = NULL;
		attempt_failed(dial, status);
		return;
	}
	dial->stream->user = dial;
	dial->stream->events = NULL;
}

/* Whoever can name addresses could fill the log. */
static bool may_complain(struct dial *dial)
{
	uint64_t now = loop_now_ms(dial->pool->loop);

	if (dial->pool->complained_ms && now < dial->pool->complained_ms + PROXY_COMPLAINTS_MS)
		return false;
	dial->pool->complained_ms = now;
	return true;
}

static void complain_refused(struct dial *dial, const char *address, const char *reason)
{
	counter_add(&dial->pool->refused);
	if (may_complain(dial))
		log_error("upstream", "address refused", LOG_S("sandbox", dial->record->entry.id),
			  LOG_S("address", dial->record->entry.address), LOG_S("dialled", address),
			  LOG_S("reason", reason));
}

static void on_socket(void *user, int fd)
{
	struct dial *dial = user;

	dial->socket = NULL;
	switch (fd) {
	case -ELOOP:
		complain_refused(dial, "", "the proxy's own network namespace");
		finish(dial, ERROR_ADDRESS_REFUSED);
		return;
	case -ENOTTY:
		complain_refused(dial, "", "not a network namespace");
		finish(dial, ERROR_ADDRESS_REFUSED);
		return;
	case -EMFILE:
	case -ENFILE:
		attempt_failed(dial, fd);
		return;
	default:
		break;
	}
	if (fd >= 0) {
		connect_with(dial, fd);
		return;
	}
	/* Not there (any more), or no right to go in. */
	if (may_complain(dial))
		log_warn("upstream", "namespace not entered",
			 LOG_S("sandbox", dial->record->entry.id),
			 LOG_S("address", dial->record->entry.address),
			 LOG_S("reason", errno_text(fd)));
	attempt_failed(dial, -ENETUNREACH);
}

static void connect_next(struct dial *dial)
{
	uint64_t now = loop_now_ms(dial->pool->loop);
	uint64_t left = dial->deadline_ms > now ? dial->deadline_ms - now : 0;
	int status;

	/* One that does not answer leaves time for the next. */
	left /= dial->address_count - dial->address_at;
	counter_add(&dial->pool->dials);
	alarm_call(dial->pool->loop, &dial->alarm, on_connect_timeout,
		   left > PROXY_DIAL_LAST_MS ? left : PROXY_DIAL_LAST_MS);
	if (!dial->netns.p) {
		connect_with(dial, -1);
		return;
	}
	status = netns_ask(&dial->pool->netns, dial->netns,
			   dial->addresses[dial->address_at].any.sa_family, on_socket, dial,
			   &dial->socket);
	if (status < 0) {
		dial->socket = NULL;
		attempt_failed(dial, status);
	}
}

static void on_retry(struct alarm *alarm)
{
	connect_next(container_of(alarm, struct dial, alarm));
}

/* The port where the one that the client named really is. */
static unsigned real_port(const struct dial *dial)
{
	const struct sandbox_entry *entry = &dial->record->entry;

	return dial->port == ENVD_PORT && entry->envd_port ? entry->envd_port : dial->port;
}

/* Keeps an address that may be dialled, and says why one may not: names can be made to lead
 * anywhere. */
static void consider(struct dial *dial, const union address *address)
{
	union address *kept = &dial->addresses[dial->address_count];
	char text[ADDRESS_TEXT_BYTES];
	enum address_verdict verdict;

	if (dial->address_count >= PROXY_RESOLVED_MAX)
		return;
	*kept = *address;
	address_set_port(kept, real_port(dial));
	if (dial->netns.p)
		verdict = address_guard_check_inside(dial->pool->guard, kept);
	else
		verdict = address_guard_check(dial->pool->guard, kept, dial->record->entry.trusted);
	if (verdict == ADDRESS_OK) {
		dial->address_count++;
		return;
	}
	address_format(kept, text, sizeof(text));
	complain_refused(dial, text, address_verdict_text(verdict));
}

static void start_round(struct dial *dial)
{
	if (dial->address_count > 0)
		connect_next(dial);
	else
		finish(dial, ERROR_ADDRESS_REFUSED);
}

/* `netns:PATH[,ADDRESS]` */
static void start_inside(struct dial *dial)
{
	union address address;

	if (address_parse_netns(str_of(dial->record->entry.address), &dial->netns, &address) < 0) {
		finish(dial, ERROR_ADDRESS_REFUSED); /* the catalog takes no such record */
		return;
	}
	if (address.any.sa_family != AF_UNSPEC) {
		consider(dial, &address);
	} else {
		address.v4 = (struct sockaddr_in){.sin_family = AF_INET,
						  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		consider(dial, &address);
		address.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6,
						   .sin6_addr = IN6ADDR_LOOPBACK_INIT};
		consider(dial, &address);
	}
	start_round(dial);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
	struct dial *dial = container_of(request, struct dial, resolve);

	dial->resolving = false;
	if (dial->closing) {
		uv_freeaddrinfo(found);
		free(dial);
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
		consider(dial, &address);
	}
	uv_freeaddrinfo(found);
	start_round(dial);
}

static void on_resolve_timeout(struct alarm *alarm)
{
	struct dial *dial = container_of(alarm, struct dial, alarm);

	uv_cancel((uv_req_t *)&dial->resolve); /* its callback still comes */
	finish(dial, ERROR_UPSTREAM_UNREACHABLE);
}

static void start_resolving(struct dial *dial)
{
	static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	int status;

	alarm_call(dial->pool->loop, &dial->alarm, on_resolve_timeout, PROXY_DIAL_TIMEOUT_MS);
	status = uv_getaddrinfo(&dial->pool->loop->uv, &dial->resolve, on_resolved,
				dial->record->entry.address, NULL, &hints);
	if (status < 0) {
		finish(dial, cause_of(status));
		return;
	}
	dial->resolving = dial->wants_resolved = true;
}

static void start(struct dial *dial)
{
	const union address *literal = &dial->record->address;

	dial->starting = true;
	if (address_is_netns(str_of(dial->record->entry.address))) {
		start_inside(dial);
	} else if (literal->any.sa_family == AF_UNSPEC) {
		start_resolving(dial);
	} else {
		consider(dial, literal);
		start_round(dial);
	}
	dial->starting = false;
}

struct dial *dial_open(struct upstream_pool *pool, const struct dial_handler *handler, void *user,
		       struct catalog_record *record, unsigned port)
{
	struct dial *dial = xcalloc(1, sizeof(*dial));

	dial->pool = pool;
	dial->handler = handler;
	dial->user = user;
	dial->record = record;
	dial->port = port;
	dial->deadline_ms = loop_now_ms(pool->loop) + PROXY_DIAL_TIMEOUT_MS;
	later_init(&dial->later, on_failed_at_once);
	start(dial);
	return dial;
}

const union address *dial_address(const struct dial *dial)
{
	if (dial->address_count == 0)
		return NULL;
	return &dial->addresses[size_min(dial->address_at, dial->address_count - 1)];
}

void dial_close(struct dial *dial)
{
	dial->closing = true;
	dial->wants_resolved = false;
	alarm_cancel(&dial->alarm);
	later_cancel(&dial->later);
	drop_stream(dial);
	if (dial->resolving)
		uv_cancel((uv_req_t *)&dial->resolve); /* its callback frees */
	else
		free(dial);
}
