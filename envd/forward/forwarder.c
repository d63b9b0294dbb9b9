#include "envd/forward/forwarder.h"

#include <sys/socket.h>
#include <unistd.h>

#include "envd/forward/forward_connection.h"
#include "envd/forward/tcp_listeners.h"
#include "envd/limits.h"
#include "lib/descriptors.h"
#include "lib/err.h"
#include "lib/limits.h"
#include "lib/log.h"

#define PORT_BUCKETS 64

struct forwarder {
	struct forwarder_settings settings;
	uv_timer_t timer;
	uint64_t interval_ms;
	uint64_t fresh_until_ms; /* something was started not long before */
	struct tcp_listeners listeners;
	int scan_status; /* of the last one, so that a failure is told once */
	unsigned round;
	struct list_node ports[PORT_BUCKETS];
	size_t port_count, ports_max, connections_max;
	struct forward_connections connections;
	size_t open_handles;
	bool has_newcomers; /* the last look saw listeners that the one before it had not */
	bool has_address, is_closing;
};

struct forward {
	struct list_node node;
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
	f->port_count--;
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
	f->port_count++;
	list_append(&f->ports[port % PORT_BUCKETS], &forward->node);
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
	const struct list_node *head = &f->ports[port % PORT_BUCKETS];
	struct list_node *node;

	LIST_FOR_EACH (node, head) {
		struct forward *forward = container_of(node, struct forward, node);

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
		if (port == f->settings.own_port || f->port_count >= f->ports_max)
			return;
		forward = add_forward(f, port);
		f->has_newcomers = true;
	}
	forward->round = f->round;
	forward->seen_families |= family == AF_INET6 ? FORWARD_TO_IPV6 : FORWARD_TO_IPV4;
}

static void scan(struct forwarder *f)
{
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
	for (size_t i = 0; i < PORT_BUCKETS; i++) {
		struct list_node *node, *following;

		LIST_FOR_EACH_SAFE (node, following, &f->ports[i]) {
			struct forward *forward = container_of(node, struct forward, node);

			if (forward->round == f->round)
				settle(forward);
			else if (status == 0)
				remove_forward(forward);
		}
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

static void on_timer(uv_timer_t *timer)
{
	struct forwarder *f = container_of(timer, struct forwarder, timer);

	if (!find_address(f))
		return; /* whatever is started next wakes us up again */
	scan(f);
	if (f->settings.is_busy(f->settings.user))
		f->interval_ms = loop_now_ms(f->settings.loop) < f->fresh_until_ms
					 ? FORWARD_SCAN_FRESH_MS
					 : FORWARD_SCAN_MS;
	else
		f->interval_ms *= 2;
	if (f->port_count && f->interval_ms > FORWARD_SCAN_SERVING_MS_MAX)
		f->interval_ms = FORWARD_SCAN_SERVING_MS_MAX;
	if (f->has_newcomers)
		uv_timer_start(timer, on_timer, FORWARD_SETTLE_MS, 0);
	else if (f->interval_ms <= FORWARD_SCAN_IDLE_MS_MAX)
		uv_timer_start(timer, on_timer, f->interval_ms, 0);
}

void forwarder_wake(struct forwarder *f)
{
	if (f->is_closing)
		return;
	f->fresh_until_ms = loop_now_ms(f->settings.loop) + FORWARD_FRESH_MS;
	if (uv_is_active((uv_handle_t *)&f->timer) && f->interval_ms == FORWARD_SCAN_FRESH_MS)
		return;
	f->interval_ms = FORWARD_SCAN_FRESH_MS;
	uv_timer_start(&f->timer, on_timer, f->interval_ms, 0);
}

/* ---- connections ---- */

/* There is room again. */
static void on_connection_over(struct forward_connections *connections)
{
	struct forwarder *f = container_of(connections, struct forwarder, connections);

	if (f->is_closing) {
		free_when_closed(f);
		return;
	}
	for (size_t i = 0; i < PORT_BUCKETS; i++) {
		struct list_node *node;

		LIST_FOR_EACH (node, &f->ports[i]) {
			struct forward *forward = container_of(node, struct forward, node);

			if (forward->is_waiting && has_room(f, forward->port)) {
				accept_one(forward);
				return;
			}
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
	for (size_t i = 0; i < PORT_BUCKETS; i++)
		list_init(&f->ports[i]);
	forward_connections_init(&f->connections, settings->loop, on_connection_over);
	uv_timer_init(&settings->loop->uv, &f->timer);
	f->open_handles = 1;
	/* Servers may be there already; one look finds them, and nothing runs yet that starts
	 * more. */
	f->interval_ms = FORWARD_SCAN_IDLE_MS_MAX;
	uv_timer_start(&f->timer, on_timer, 0, 0);
	return f;
}

static void on_timer_closed(uv_handle_t *handle)
{
	struct forwarder *f = container_of((uv_timer_t *)handle, struct forwarder, timer);

	f->open_handles--;
	free_when_closed(f);
}

void forwarder_close(struct forwarder *f)
{
	f->is_closing = true;
	for (size_t i = 0; i < PORT_BUCKETS; i++) {
		struct list_node *node, *following;

		LIST_FOR_EACH_SAFE (node, following, &f->ports[i])
			remove_forward(container_of(node, struct forward, node));
	}
	forward_connections_close(&f->connections);
	uv_close((uv_handle_t *)&f->timer, on_timer_closed);
}

size_t forwarder_port_count(const struct forwarder *f)
{
	return f->port_count;
}

size_t forwarder_connection_count(const struct forwarder *f)
{
	return f->connections.count;
}

bool forwarder_is_asleep(const struct forwarder *f)
{
	return !uv_is_active((const uv_handle_t *)&f->timer);
}
