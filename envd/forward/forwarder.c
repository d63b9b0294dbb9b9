#include "envd/forward/forwarder.h"

#include <sys/socket.h>
#include <unistd.h>

#include "envd/forward/forward_connection.h"
#include "envd/forward/tcp_listeners.h"
#include "envd/limits.h"
#include "lib/descriptors.h"
#include "lib/err.h"
#include "lib/hash_table.h"
#include "lib/limits.h"
#include "lib/log.h"

struct forwarder {
	struct forwarder_settings settings;
	struct alarm look;
	uint64_t interval_ms;
	uint64_t fresh_until_ms; /* something was started not long before */
	struct tcp_listeners listeners;
	int scan_status; /* of the last one, so that a failure is told once */
	unsigned round;
	struct list_node forwards;
	struct hash_table by_port;
	size_t ports_max, connections_max;
	struct forward_connections connections;
	size_t open_handles;
	bool has_newcomers; /* the last look saw listeners that the one before it had not */
	bool has_address, is_closing;
};

struct forward {
	struct list_node node;
	struct hash_node by_port;
	struct forwarder *forwarder;
	uv_tcp_t tcp;
	unsigned port;
	unsigned round; /* of the last scan that saw it */
	unsigned families, seen_families; /* FORWARD_TO_... */
	uint64_t not_before_ms; /* when it may be listened for */
	bool is_listening;
	bool is_waiting; /* a connection is in the kernel's queue, and there is no room for it */
};

static void free_when_closed(struct forwarder *f)
{
	if (!f->is_closing || f->open_handles || f->connections.count)
		return;
	tcp_listeners_close(&f->listeners);
	free(f);
}

/* ---- one port ---- */

/* A server that hangs, or has very many clients, does not shut out the others. */
static bool has_room(const struct forwarder *f, unsigned port)
{
	size_t count = f->connections.count;

	return count < f->connections_max ||
	       (count < f->connections_max +
				f->connections_max / FORWARD_CONNECTIONS_RESERVE_PART &&
		forward_connections_to(&f->connections, port) < FORWARD_CONNECTIONS_PORT_MIN);
}

static void accept_one(struct forward *forward)
{
	struct forwarder *f = forward->forwarder;

	if (!has_room(f, forward->port)) {
		forward->is_waiting = true;
		return;
	}
	forward->is_waiting = false;
	forward_connection_accept(&f->connections, (uv_stream_t *)&forward->tcp, forward->port,
				  forward->families);
}

static void on_connection(uv_stream_t *stream, int status)
{
	struct forward *forward = container_of((uv_tcp_t *)stream, struct forward, tcp);

	if (status == 0)
		accept_one(forward);
}

static void on_listener_closed(uv_handle_t *handle)
{
	struct forward *forward = container_of((uv_tcp_t *)handle, struct forward, tcp);
	struct forwarder *f = forward->forwarder;

	free(forward);
	f->open_handles--;
	free_when_closed(f);
}

static int start_listening(struct forward *forward)
{
	struct forwarder *f = forward->forwarder;
	struct forwarder_settings own = f->settings;
	unsigned flags = 0;
	int status;

	if (own.address.any.sa_family == AF_INET6) {
		own.address.v6.sin6_port = htons((uint16_t)forward->port);
		flags = UV_TCP_IPV6ONLY;
	} else {
		own.address.v4.sin_port = htons((uint16_t)forward->port);
	}
	status = uv_tcp_bind(&forward->tcp, &own.address.any, flags);
	if (status < 0)
		return status;
	return uv_listen((uv_stream_t *)&forward->tcp, LISTEN_BACKLOG, on_connection);
}

static void remove_forward(struct forward *forward)
{
	struct forwarder *f = forward->forwarder;

	if (forward->is_listening)
		log_info("port-forwarder", "forwarding ended", LOG_I("port", forward->port));
	list_remove(&forward->node);
	hash_table_remove(&f->by_port, &forward->by_port);
	uv_close((uv_handle_t *)&forward->tcp, on_listener_closed);
}

static struct forward *add_forward(struct forwarder *f, unsigned port)
{
	struct forward *forward = xcalloc(1, sizeof(*forward));

	forward->forwarder = f;
	forward->port = port;
	forward->not_before_ms = loop_now_ms(f->settings.loop) + FORWARD_SETTLE_MS;
	uv_tcp_init(&f->settings.loop->uv, &forward->tcp);
	f->open_handles++;
	list_append(&f->forwards, &forward->node);
	hash_table_insert(&f->by_port, &forward->by_port, hash_number(port));
	return forward;
}

/* A handle that failed to listen is of no more use; its successor inherits what was seen. */
static void retry_later(struct forward *forward, int status)
{
	struct forwarder *f = forward->forwarder;
	struct forward *successor = add_forward(f, forward->port);

	log_debug("port-forwarder", "cannot forward", LOG_I("port", forward->port),
		  LOG_S("error", errno_text(status)));
	if (status == -EADDRNOTAVAIL)
		f->has_address = false;
	successor->round = forward->round;
	successor->families = forward->families;
	successor->not_before_ms = loop_now_ms(f->settings.loop) + FORWARD_RETRY_MS;
	remove_forward(forward);
}

static void settle(struct forward *forward)
{
	int status;

	forward->families = forward->seen_families;
	forward->seen_families = 0;
	if (forward->is_listening ||
	    loop_now_ms(forward->forwarder->settings.loop) < forward->not_before_ms)
		return;
	status = start_listening(forward);
	if (status < 0) {
		retry_later(forward, status);
		return;
	}
	forward->is_listening = true;
	log_info("port-forwarder", "forwarding", LOG_I("port", forward->port));
}

/* ---- looking ---- */

static struct forward *find(const struct forwarder *f, unsigned port)
{
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, &f->by_port, hash_number(port)) {
		struct forward *forward = container_of(node, struct forward, by_port);

		if (forward->port == port)
			return forward;
	}
	return NULL;
}

static void on_loopback(void *user, int family, unsigned port)
{
	struct forwarder *f = user;
	struct forward *forward = find(f, port);

	if (!forward) {
		if (port == f->settings.own_port || f->by_port.count >= f->ports_max)
			return;
		forward = add_forward(f, port);
		f->has_newcomers = true;
	}
	forward->round = f->round;
	forward->seen_families |= family == AF_INET6 ? FORWARD_TO_IPV6 : FORWARD_TO_IPV4;
}

static void scan(struct forwarder *f)
{
	struct list_node *node, *following;
	int status;

	f->round++;
	f->has_newcomers = false;
	f->listeners.buffer = f->settings.loop->scratch;
	f->listeners.buffer_len = LOOP_SCRATCH_BYTES;
	status = tcp_listeners_scan(&f->listeners);
	if (status < 0 && status != f->scan_status)
		log_warn("port-forwarder", "listening sockets cannot be looked at",
			 LOG_S("error", errno_text(status)));
	f->scan_status = status;
	LIST_FOR_EACH_SAFE (node, following, &f->forwards) {
		struct forward *forward = container_of(node, struct forward, node);

		if (forward->round == f->round)
			settle(forward);
		else if (status == 0)
			remove_forward(forward);
	}
}

static bool find_address(struct forwarder *f)
{
	const struct sockaddr *address = &f->settings.address.any;
	socklen_t len = address->sa_family == AF_INET6 ? sizeof(f->settings.address.v6)
						       : sizeof(f->settings.address.v4);
	auto_close int fd = -1;

	if (f->has_address)
		return true;
	fd = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	f->has_address = fd >= 0 && bind(fd, address, len) == 0;
	return f->has_address;
}

static void on_look(struct alarm *alarm)
{
	struct forwarder *f = container_of(alarm, struct forwarder, look);

	if (!find_address(f))
		return; /* whatever is started next wakes us up again */
	scan(f);
	if (f->settings.is_busy(f->settings.user))
		f->interval_ms = loop_now_ms(f->settings.loop) < f->fresh_until_ms
					 ? FORWARD_SCAN_FRESH_MS
					 : FORWARD_SCAN_MS;
	else
		f->interval_ms *= 2;
	if (f->by_port.count && f->interval_ms > FORWARD_SCAN_SERVING_MS_MAX)
		f->interval_ms = FORWARD_SCAN_SERVING_MS_MAX;
	if (f->has_newcomers)
		alarm_set(f->settings.loop, alarm, FORWARD_SETTLE_MS);
	else if (f->interval_ms <= FORWARD_SCAN_IDLE_MS_MAX)
		alarm_set(f->settings.loop, alarm, f->interval_ms);
}

void forwarder_wake(struct forwarder *f)
{
	if (f->is_closing)
		return;
	f->fresh_until_ms = loop_now_ms(f->settings.loop) + FORWARD_FRESH_MS;
	if (alarm_is_set(&f->look) && f->interval_ms == FORWARD_SCAN_FRESH_MS)
		return;
	f->interval_ms = FORWARD_SCAN_FRESH_MS;
	alarm_set(f->settings.loop, &f->look, f->interval_ms);
}

/* ---- connections ---- */

/* There is room again. */
static void on_connection_over(struct forward_connections *connections)
{
	struct forwarder *f = container_of(connections, struct forwarder, connections);
	struct list_node *node;

	if (f->is_closing) {
		free_when_closed(f);
		return;
	}
	LIST_FOR_EACH (node, &f->forwards) {
		struct forward *forward = container_of(node, struct forward, node);

		if (forward->is_waiting && has_room(f, forward->port)) {
			accept_one(forward);
			return;
		}
	}
}

/* ---- all of it ---- */

bool forwarder_parse_address(const char *text, struct forwarder_settings *settings)
{
	return uv_ip4_addr(text, 0, &settings->address.v4) == 0 ||
	       uv_ip6_addr(text, 0, &settings->address.v6) == 0;
}

/* A quarter of the share for sockets that listen; a connection takes two. */
static void share_descriptors(struct forwarder *f)
{
	size_t share = descriptors_share(DESCRIPTORS_PARTS_FORWARDED), most;

	f->ports_max = size_min(FORWARD_PORTS_MAX, share / 4);
	most = (share - f->ports_max) / 2;
	f->connections_max = size_min(FORWARD_CONNECTIONS_MAX,
				      most - most / (FORWARD_CONNECTIONS_RESERVE_PART + 1));
}

struct forwarder *forwarder_new(const struct forwarder_settings *settings)
{
	struct forwarder *f = xcalloc(1, sizeof(*f));

	f->settings = *settings;
	share_descriptors(f);
	f->listeners = (struct tcp_listeners){.fd = -1, .on_loopback = on_loopback, .user = f};
	list_init(&f->forwards);
	forward_connections_init(&f->connections, settings->loop, on_connection_over);
	alarm_init(&f->look, on_look);
	/* Servers may be there already; one look finds them, and nothing runs yet that starts
	 * more. */
	f->interval_ms = FORWARD_SCAN_IDLE_MS_MAX;
	alarm_set(settings->loop, &f->look, 0);
	return f;
}

void forwarder_close(struct forwarder *f)
{
	struct list_node *node, *following;

	f->is_closing = true;
	alarm_cancel(&f->look);
	LIST_FOR_EACH_SAFE (node, following, &f->forwards)
		remove_forward(container_of(node, struct forward, node));
	forward_connections_close(&f->connections);
	free_when_closed(f);
}

size_t forwarder_port_count(const struct forwarder *f)
{
	return f->by_port.count;
}

size_t forwarder_connection_count(const struct forwarder *f)
{
	return f->connections.count;
}

bool forwarder_is_asleep(const struct forwarder *f)
{
	return !alarm_is_set(&f->look);
}
