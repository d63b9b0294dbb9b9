#include "proxy/relay/clients.h"

#include <pthread.h>
#include <sys/random.h>

#include "lib/list.h"
#include "proxy/limits.h"

#define BUCKETS 4096

/* What the table knows a client by. */
struct network {
	uint64_t prefix; /* an IPv4 address, or the upper half of one of IPv6 */
	unsigned char family; /* 4 or 6 */
};

struct client {
	struct stream_peer peer;
	struct clients *clients;
	struct list_node node;
	struct network network;
	/* Exchanges, and in the upper half everything else that needs the client. It becomes 0
	 * under the lock alone, because clients are found under it. */
	_Atomic uint64_t holds;
	atomic_size_t waits; /* requests that wait for a source, or for their sandbox to run */
	_Atomic uint64_t refusals; /* exchanges that are open only to be told */
};

struct clients {
	struct budget heads, bodies;
	atomic_size_t exchanges;
	size_t exchanges_max;
	_Atomic uint64_t refused[CLIENT_BOUNDS];
	const struct option_list *load_balancers;
	uint64_t secret; /* nobody can tell which bucket an address is in */
	pthread_mutex_t lock;
	struct list_node table[BUCKETS];
	size_t count;
	uint64_t heads_refused; /* of clients that are gone */
};

#define EXCHANGE UINT64_C(1)
#define OTHER (UINT64_C(1) << 32)

static size_t exchanges_of(uint64_t holds)
{
	return (size_t)(uint32_t)holds;
}

static struct client *of(struct stream_peer *peer)
{
	return container_of(peer, struct client, peer);
}

struct clients *clients_new(size_t exchanges_max, const struct option_list *load_balancers)
{
	struct clients *clients = xcalloc(1, sizeof(*clients));

	clients->heads.max = PROXY_HEADS_BYTES_MAX;
	clients->bodies.max = PROXY_BODIES_BYTES_MAX;
	clients->exchanges_max = exchanges_max;
	clients->load_balancers = load_balancers;
	if (getrandom(&clients->secret, sizeof(clients->secret), 0) != sizeof(clients->secret))
		abort(); /* cannot happen for 8 bytes once the kernel's pool is ready */
	pthread_mutex_init(&clients->lock, NULL);
	for (size_t i = 0; i < BUCKETS; i++)
		list_init(&clients->table[i]);
	return clients;
}

void clients_free(struct clients *clients)
{
	assert(clients->count == 0);
	pthread_mutex_destroy(&clients->lock);
	free(clients);
}

/* ---- addresses ---- */

/* The address's bits, an IPv4 one in the place where IPv6 has it. */
static bool unpack(const struct sockaddr *address, unsigned char ret_bytes[16])
{
	static const unsigned char v4_in_v6[12] = {[10] = 0xFF, [11] = 0xFF};

	if (address->sa_family == AF_INET6) {
		memcpy(ret_bytes, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr,
		       16);
		return true;
	}
	if (address->sa_family != AF_INET)
		return false;
	memcpy(ret_bytes, v4_in_v6, sizeof(v4_in_v6));
	memcpy(ret_bytes + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
	return true;
}

static bool is_v4(const unsigned char bytes[16])
{
	static const unsigned char v4_in_v6[12] = {[10] = 0xFF, [11] = 0xFF};

	return memcmp(bytes, v4_in_v6, sizeof(v4_in_v6)) == 0;
}

static struct network network_of(const unsigned char bytes[16])
{
	struct network network = {.family = is_v4(bytes) ? 4 : 6};

	if (network.family == 4)
		memcpy(&network.prefix, bytes + 12, 4);
	else
		memcpy(&network.prefix, bytes, 8);
	return network;
}

/* ADDRESS or ADDRESS/BITS. */
static bool parse_network(struct str text, unsigned char ret_bytes[16], unsigned *ret_bits)
{
	struct str address = text;
	union address parsed;
	uint64_t bits, most;

	for (size_t i = 0; i < text.len; i++)
		if (text.p[i] == '/')
			address.len = i < address.len ? i : address.len;
	if (address_parse(address, &parsed) < 0 || !unpack(&parsed.any, ret_bytes))
		return false;
	most = parsed.any.sa_family == AF_INET ? 32 : 128;
	bits = most;
	if (address.len < text.len &&
	    str_to_u64((struct str){text.p + address.len + 1, text.len - address.len - 1}, most,
		       &bits) < 0)
		return false;
	*ret_bits = (unsigned)(bits + 128 - most);
	return true;
}

bool clients_is_network(struct str text)
{
	unsigned char bytes[16];
	unsigned bits;

	return parse_network(text, bytes, &bits);
}

static bool are_equal(const unsigned char *a, const unsigned char *b, unsigned bits)
{
	unsigned char mask = (unsigned char)(0xFF00 >> bits % 8);

	return memcmp(a, b, bits / 8) == 0 &&
	       (bits % 8 == 0 || ((a[bits / 8] ^ b[bits / 8]) & mask) == 0);
}

static bool is_load_balancer(const struct clients *clients, const unsigned char bytes[16])
{
	unsigned char network[16];
	unsigned bits;

	for (size_t i = 0; i < clients->load_balancers->count; i++)
		if (parse_network(str_of(clients->load_balancers->items[i]), network, &bits) &&
		    are_equal(bytes, network, bits))
			return true;
	return false;
}

/* ---- the table ---- */

static struct list_node *bucket_of(struct clients *clients, struct network network)
{
	uint64_t hash = (network.prefix ^ clients->secret) * 0x9E3779B97F4A7C15u;

	hash ^= hash >> 32;
	hash *= clients->secret | 1;
	return &clients->table[(hash >> 32) % BUCKETS];
}

/* Under the lock. */
static struct client *find(struct list_node *bucket, struct network network)
{
	struct list_node *node;

	LIST_FOR_EACH (node, bucket) {
		struct client *client = container_of(node, struct client, node);

		if (client->network.family == network.family &&
		    client->network.prefix == network.prefix)
			return client;
	}
	return NULL;
}

static void release(struct client *client, uint64_t hold)
{
	struct clients *clients = client->clients;
	uint64_t holds = atomic_load_explicit(&client->holds, memory_order_relaxed);
	bool last;

	while (holds != hold)
		if (atomic_compare_exchange_weak_explicit(&client->holds, &holds, holds - hold,
							  memory_order_release,
							  memory_order_relaxed))
			return;
	pthread_mutex_lock(&clients->lock);
	last = atomic_fetch_sub(&client->holds, hold) == hold;
	if (last) {
		list_remove(&client->node);
		clients->count--;
		clients->heads_refused += atomic_load(&client->peer.heads.refused);
	}
	pthread_mutex_unlock(&clients->lock);
	if (!last)
		return;
	assert(atomic_load(&client->peer.heads.used) == 0 &&
	       atomic_load(&client->peer.bodies.used) == 0);
	free(client);
}

static void on_gone(struct stream_peer *peer)
{
	release(of(peer), OTHER);
}

static struct client *add(struct clients *clients, struct list_node *bucket, struct network network)
{
	struct client *client = xcalloc(1, sizeof(*client));

	client->clients = clients;
	client->network = network;
	client->peer.on_gone = on_gone;
	client->peer.heads.max = PROXY_CLIENT_HEADS_BYTES_MAX;
	client->peer.heads.parent = &clients->heads;
	client->peer.bodies.max = PROXY_CLIENT_BODIES_BYTES_MAX;
	client->peer.bodies.parent = &clients->bodies;
	list_append(bucket, &client->node);
	clients->count++;
	return client;
}

struct stream_peer *clients_identify(void *user, const struct sockaddr *address)
{
	struct clients *clients = user;
	unsigned char bytes[16];
	struct network network;
	struct list_node *bucket;
	struct client *client;

	if (!unpack(address, bytes) || is_load_balancer(clients, bytes))
		return NULL;
	network = network_of(bytes);
	bucket = bucket_of(clients, network);
	pthread_mutex_lock(&clients->lock);
	client = find(bucket, network);
	if (!client)
		client = add(clients, bucket, network);
	atomic_fetch_add(&client->holds, OTHER);
	pthread_mutex_unlock(&clients->lock);
	return &client->peer;
}

/* ---- exchanges ---- */

static void count_refusal(struct clients *clients, enum client_bound bound)
{
	atomic_fetch_add_explicit(&clients->refused[bound], 1, memory_order_relaxed);
}

static enum client_bound refuse(struct clients *clients, struct client *client,
				enum client_bound bound)
{
	atomic_fetch_sub_explicit(&clients->exchanges, 1, memory_order_relaxed);
	if (client) {
		/* It still needs the client. */
		atomic_fetch_add_explicit(&client->holds, OTHER - EXCHANGE, memory_order_relaxed);
		atomic_fetch_add_explicit(&client->refusals, 1, memory_order_relaxed);
	}
	count_refusal(clients, bound);
	return bound;
}

enum client_bound clients_enter(struct clients *clients, struct stream_peer *peer)
{
	size_t all = atomic_fetch_add_explicit(&clients->exchanges, 1, memory_order_relaxed);
	size_t left = all < clients->exchanges_max ? clients->exchanges_max - all : 0;
	struct client *client = peer ? of(peer) : NULL;
	uint64_t holds = 0;

	if (client)
		holds = atomic_fetch_add_explicit(&client->holds, EXCHANGE, memory_order_relaxed);
	if (left == 0)
		return refuse(clients, client, CLIENT_BOUND_ALL);
	if (exchanges_of(holds) >= PROXY_CLIENT_PARTS * left)
		return refuse(clients, client, CLIENT_BOUND_CLIENT);
	return CLIENT_BOUND_NONE;
}

void clients_leave(struct clients *clients, struct stream_peer *peer, enum client_bound bound)
{
	if (bound == CLIENT_BOUND_NONE)
		atomic_fetch_sub_explicit(&clients->exchanges, 1, memory_order_relaxed);
	if (!peer)
		return;
	if (bound != CLIENT_BOUND_NONE)
		atomic_fetch_sub_explicit(&of(peer)->refusals, 1, memory_order_relaxed);
	release(of(peer), bound == CLIENT_BOUND_NONE ? EXCHANGE : OTHER);
}

bool clients_allow_sandbox(struct clients *clients, size_t exchanges)
{
	/* This one is among all. */
	size_t others = atomic_load_explicit(&clients->exchanges, memory_order_relaxed) - 1;

	if (exchanges <= clients->exchanges_max - size_min(others, clients->exchanges_max))
		return true;
	count_refusal(clients, CLIENT_BOUND_SANDBOX);
	return false;
}

size_t clients_wait(struct stream_peer *peer)
{
	if (!peer)
		return 0;
	atomic_fetch_add_explicit(&of(peer)->holds, OTHER, memory_order_relaxed);
	return atomic_fetch_add_explicit(&of(peer)->waits, 1, memory_order_relaxed);
}

void clients_wait_over(struct stream_peer *peer)
{
	if (!peer)
		return;
	atomic_fetch_sub_explicit(&of(peer)->waits, 1, memory_order_relaxed);
	release(of(peer), OTHER);
}

bool clients_is_flooding(const struct stream_peer *peer)
{
	return peer && atomic_load_explicit(&container_of(peer, struct client, peer)->refusals,
					    memory_order_relaxed) >= PROXY_REFUSALS_OPEN_MAX;
}

/* ---- numbers ---- */

void clients_totals(struct clients *clients, struct clients_totals *ret_totals)
{
	uint64_t heads;

	memset(ret_totals, 0, sizeof(*ret_totals));
	pthread_mutex_lock(&clients->lock);
	heads = clients->heads_refused;
	ret_totals->clients = clients->count;
	for (size_t i = 0; i < BUCKETS; i++) {
		const struct list_node *node;

		LIST_FOR_EACH (node, &clients->table[i])
			heads += atomic_load(
				&container_of(node, struct client, node)->peer.heads.refused);
	}
	pthread_mutex_unlock(&clients->lock);
	ret_totals->exchanges = atomic_load(&clients->exchanges);
	ret_totals->exchanges_max = clients->exchanges_max;
	ret_totals->heads_bytes = atomic_load(&clients->heads.used);
	ret_totals->bodies_bytes = atomic_load(&clients->bodies.used);
	for (size_t i = 0; i < CLIENT_BOUNDS; i++)
		ret_totals->exchanges_refused[i] = atomic_load(&clients->refused[i]);
	ret_totals->heads_refused[CLIENT_BOUND_CLIENT] = heads;
	ret_totals->heads_refused[CLIENT_BOUND_ALL] = atomic_load(&clients->heads.refused);
}
