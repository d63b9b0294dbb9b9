#include "envd/forward/forward_connection.h"

#include <netinet/in.h>

#include "lib/err.h"
#include "lib/log.h"
#include "lib/pump.h"
#include "lib/stream_uv.h"

struct connection {
	struct list_node node;
	struct forward_connections *all;
	struct stream *client, *server;
	struct pump pump; /* once both are connected, it has them */
	unsigned port;
	unsigned families; /* not tried yet */
	bool is_relaying, is_closing;
};

static void on_over(struct connection *c)
{
	struct forward_connections *all = c->all;

	list_remove(&c->node);
	free(c);
	all->count--;
	all->on_over(all);
}

static void on_pump_closed(struct pump *pump)
{
	on_over(container_of(pump, struct connection, pump));
}

static void connect_next(struct connection *c);

static void close_connection(struct connection *c)
{
	if (c->is_relaying) {
		pump_close(&c->pump);
		return;
	}
	if (c->is_closing)
		return;
	c->is_closing = true;
	if (c->server)
		stream_close(c->server, true);
	stream_close(c->client, true);
}

static void on_client_closed(struct stream *stream)
{
	struct connection *c = stream->user;

	c->client = NULL;
	if (!c->server)
		on_over(c);
}

static void on_server_closed(struct stream *stream)
{
	struct connection *c = stream->user;

	c->server = NULL;
	if (!c->client)
		on_over(c);
	else if (!c->is_closing)
		connect_next(c);
}

static const struct stream_events client_events = {.on_closed = on_client_closed};
static const struct stream_events server_events = {.on_closed = on_server_closed};

static void on_connected(struct stream *stream, int status)
{
	struct connection *c = stream->user;

	if (status < 0) {
		log_debug("port-forwarder", "the server cannot be reached", LOG_I("port", c->port),
			  LOG_S("error", errno_text(status)));
		stream_close(stream, true); /* then the next family */
		return;
	}
	c->is_relaying = true;
	pump_start(&c->pump, c->client, c->server, on_pump_closed);
}

static void connect_next(struct connection *c)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)c->port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
				  .sin6_port = htons((uint16_t)c->port),
				  .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	unsigned family = c->families & FORWARD_TO_IPV4 ? FORWARD_TO_IPV4 : c->families;
	const struct sockaddr *address = family == FORWARD_TO_IPV4 ? (const struct sockaddr *)&v4
								   : (const struct sockaddr *)&v6;

	if (!family || stream_uv_connect(c->all->loop, address, on_connected, &c->server) < 0) {
		close_connection(c);
		return;
	}
	c->families &= ~family;
	c->server->user = c;
	c->server->events = &server_events;
}

void forward_connections_init(struct forward_connections *all, struct loop *loop,
			      void (*over)(struct forward_connections *connections))
{
	*all = (struct forward_connections){.loop = loop, .on_over = over};
	list_init(&all->list);
}

void forward_connection_accept(struct forward_connections *all, uv_stream_t *listener,
			       unsigned port, unsigned families)
{
	struct connection *c;
	struct stream *client;

	if (stream_uv_accept(all->loop, listener, &client) < 0)
		return; /* it has gone already */
	stream_uv_keep_alive(stream_fd(client));
	c = xcalloc(1, sizeof(*c));
	c->all = all;
	c->port = port;
	c->families = families;
	c->client = client;
	client->user = c;
	client->events = &client_events;
	list_append(&all->list, &c->node);
	all->count++;
	connect_next(c);
}

size_t forward_connections_to(const struct forward_connections *all, unsigned port)
{
	const struct list_node *node;
	size_t count = 0;

	LIST_FOR_EACH (node, &all->list)
		count += container_of(node, struct connection, node)->port == port;
	return count;
}

void forward_connections_close(struct forward_connections *all)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &all->list)
		close_connection(container_of(node, struct connection, node));
}
