#include "proxy/sources/dns_client.h"

#include <ares.h>
#include <arpa/nameser.h>

#include "lib/job.h"
#include "proxy/limits.h"
#include "proxy/sources/dns_name.h"

/* What asks: name servers as they were when it was made. Replaced now and then, and freed when its
 * last question is answered. */
struct resolver {
	struct dns_client *client;
	struct list_node node; /* in `retired` */
	ares_channel ares;
	struct alarm alarm;
	struct list_node watches;
	size_t running;
	unsigned parts; /* watches, until their handles are closed, and itself */
};

struct dns_client {
	struct loop *loop;
	union address server;
	bool has_server, is_reading, is_closed;
	uint64_t read_ms;
	struct job job;
	struct resolver *resolver, *next; /* next: made by the job */
	struct list_node retired; /* resolvers that still have questions on their way */
	struct list_node urgent, waiting;
	size_t running, resolvers; /* resolvers: those that are not freed yet */
	struct later turn;
};

/* A socket of c-ares. */
struct watch {
	uv_poll_t poll;
	struct list_node node;
	struct resolver *resolver;
	ares_socket_t fd;
};

struct dns_query {
	struct list_node node; /* while it waits for its turn */
	struct dns_client *client;
	struct resolver *resolver; /* once it is on its way */
	void (*on_answer)(void *user, int status,
			  const struct dns_answer *answer); /* NULL: cancelled */
	void *user;
	int type;
	char name[DNS_NAME_BYTES];
};

/* ---- sockets and time of c-ares ---- */

static void release_client(struct dns_client *client)
{
	if (!client->is_closed || client->is_reading || client->resolvers > 0)
		return;
	ares_library_cleanup();
	free(client);
}

static void release_part(struct resolver *resolver)
{
	struct dns_client *client = resolver->client;

	if (--resolver->parts)
		return;
	free(resolver);
	client->resolvers--;
	release_client(client);
}

static void on_watch_closed(uv_handle_t *handle)
{
	struct watch *watch = container_of((uv_poll_t *)handle, struct watch, poll);

	release_part(watch->resolver);
	free(watch);
}

static void start_turn(struct dns_client *client);

/* c-ares has asked, or read: when does it want to be called again? */
static void plan(struct resolver *resolver)
{
	struct timeval left;

	if (ares_timeout(resolver->ares, NULL, &left))
		alarm_set(resolver->client->loop, &resolver->alarm,
			  (uint64_t)left.tv_sec * 1000 + (uint64_t)left.tv_usec / 1000 + 1);
	else
		alarm_cancel(&resolver->alarm);
}

static void process(struct resolver *resolver, ares_socket_t readable, ares_socket_t writable)
{
	ares_process_fd(resolver->ares, readable, writable);
	plan(resolver);
	/* There may be room for others, or the resolver may be free to go: not from inside
	 * c-ares. */
	start_turn(resolver->client);
}

static void on_alarm(struct alarm *alarm)
{
	process(container_of(alarm, struct resolver, alarm), ARES_SOCKET_BAD, ARES_SOCKET_BAD);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
	struct watch *watch = container_of(poll, struct watch, poll);

	if (status < 0) /* the error is read like anything else */
		events = UV_READABLE;
	process(watch->resolver, events & UV_READABLE ? watch->fd : ARES_SOCKET_BAD,
		events & UV_WRITABLE ? watch->fd : ARES_SOCKET_BAD);
}

static struct watch *find_watch(struct resolver *resolver, ares_socket_t fd)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &resolver->watches) {
		struct watch *watch = container_of(node, struct watch, node);

		if (watch->fd == fd)
			return watch;
	}
	return NULL;
}

static struct watch *add_watch(struct resolver *resolver, ares_socket_t fd)
{
	struct watch *watch = xcalloc(1, sizeof(*watch));

	if (uv_poll_init(&resolver->client->loop->uv, &watch->poll, fd) < 0) {
		free(watch); /* the question will not be answered in time */
		return NULL;
	}
	watch->resolver = resolver;
	watch->fd = fd;
	list_append(&resolver->watches, &watch->node);
	resolver->parts++;
	return watch;
}

/* Neither: c-ares closes it now. */
static void on_socket(void *user, ares_socket_t fd, int wants_read, int wants_write)
{
	struct resolver *resolver = user;
	struct watch *watch = find_watch(resolver, fd);

	if (!wants_read && !wants_write) {
		if (!watch)
			return;
		list_remove(&watch->node);
		uv_close((uv_handle_t *)&watch->poll, on_watch_closed);
		return;
	}
	if (!watch)
		watch = add_watch(resolver, fd);
	if (watch)
		uv_poll_start(&watch->poll,
			      (wants_read ? UV_READABLE : 0) | (wants_write ? UV_WRITABLE : 0),
			      on_ready);
}

/* ---- making resolvers ---- */

static void set_server(ares_channel ares, const union address *server)
{
	struct ares_addr_port_node node = {.family = server->any.sa_family};
	uint16_t port;

	if (server->any.sa_family == AF_INET6) {
		memcpy(&node.addr.addr6, &server->v6.sin6_addr, sizeof(node.addr.addr6));
		port = server->v6.sin6_port;
	} else {
		node.addr.addr4 = server->v4.sin_addr;
		port = server->v4.sin_port;
	}
	node.udp_port = node.tcp_port = ntohs(port);
	ares_set_servers_ports(ares, &node);
}

static bool has_several_servers(ares_channel ares)
{
	struct ares_addr_port_node *servers = NULL;
	bool several;

	if (ares_get_servers_ports(ares, &servers) != ARES_SUCCESS)
		return false;
	several = servers && servers->next;
	ares_free_data(servers);
	return several;
}

/* Several servers get a step each; the only one is asked again, for twice as long. */
static void open_ares(struct resolver *resolver)
{
	struct ares_options options = {
		.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES,
		.timeout = PROXY_DNS_STEP_MS,
		.sock_state_cb = on_socket,
		.sock_state_cb_data = resolver,
	};
	const int given = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES |
			  ARES_OPT_SOCK_STATE_CB;

	for (options.tries = 1; options.tries <= 2; options.tries++) {
		if (ares_init_options(&resolver->ares, &options, given) != ARES_SUCCESS) {
			resolver->ares = NULL;
			return;
		}
		if (resolver->client->has_server)
			set_server(resolver->ares, &resolver->client->server);
		if (options.tries == 2 || has_several_servers(resolver->ares))
			return;
		ares_destroy(resolver->ares);
	}
}

static void on_read(struct job *job)
{
	open_ares(container_of(job, struct dns_client, job)->next);
}

/* Nothing is on its way there any more; must not be called from inside c-ares. */
static void free_resolver(struct resolver *resolver)
{
	ares_destroy(resolver->ares);
	alarm_cancel(&resolver->alarm);
	release_part(resolver);
}

static void on_read_done(struct job *job)
{
	struct dns_client *client = container_of(job, struct dns_client, job);
	struct resolver *made = client->next, *old = client->resolver;

	client->next = NULL;
	client->is_reading = false;
	client->read_ms = loop_now_ms(client->loop);
	if (made->ares && !client->is_closed) {
		alarm_init(&made->alarm, on_alarm);
		made->parts = 1;
		client->resolvers++;
		client->resolver = made;
		if (old)
			list_append(&client->retired, &old->node);
		start_turn(client);
		return;
	}
	if (made->ares)
		ares_destroy(made->ares);
	free(made);
	release_client(client);
}

static void read_servers(struct dns_client *client)
{
	uint64_t now = loop_now_ms(client->loop);
	struct resolver *made;

	if (client->is_reading ||
	    (client->resolver &&
	     (client->has_server || now < client->read_ms + PROXY_DNS_SERVERS_MS)))
		return;
	made = xcalloc(1, sizeof(*made));
	made->client = client;
	list_init(&made->watches);
	client->next = made;
	client->is_reading = job_run(client->loop, &client->job, JOB_FILES, on_read,
				     on_read_done) == 0;
	if (!client->is_reading)
		free(made);
}

/* ---- answers ---- */

static void take_address(struct dns_answer *answer, sa_family_t family, const void *bytes, int ttl)
{
	union address *address = &answer->addresses[answer->count];
	uint32_t ttl_s = ttl < 0 ? 0 : (uint32_t)ttl; /* RFC 2181 section 8 */

	address->any.sa_family = family;
	if (family == AF_INET)
		memcpy(&address->v4.sin_addr, bytes, sizeof(address->v4.sin_addr));
	else
		memcpy(&address->v6.sin6_addr, bytes, sizeof(address->v6.sin6_addr));
	if (answer->count++ == 0 || ttl_s < answer->ttl_s)
		answer->ttl_s = ttl_s;
}

static int read_reply(int type, const unsigned char *reply, int len, struct dns_answer *answer)
{
	struct ares_addrttl v4[DNS_ANSWER_ADDRESSES_MAX];
	struct ares_addr6ttl v6[DNS_ANSWER_ADDRESSES_MAX];
	int count = DNS_ANSWER_ADDRESSES_MAX;
	int status = type == ns_t_a ? ares_parse_a_reply(reply, len, NULL, v4, &count)
				    : ares_parse_aaaa_reply(reply, len, NULL, v6, &count);

	for (int i = 0; status == ARES_SUCCESS && i < count; i++) {
		if (type == ns_t_a)
			take_address(answer, AF_INET, &v4[i].ipaddr, v4[i].ttl);
		else
			take_address(answer, AF_INET6, &v6[i].ip6addr, v6[i].ttl);
	}
	return status == ARES_SUCCESS && answer->count == 0 ? ARES_ENODATA : status;
}

static void finish(struct dns_query *query, int status, const struct dns_answer *answer)
{
	query->resolver->running--;
	query->client->running--;
	if (query->on_answer)
		query->on_answer(query->user, status, answer);
	free(query);
}

static void on_reply(void *user, int status, int timeouts, unsigned char *reply, int len);

static void ask(struct dns_query *query, int type)
{
	query->type = type;
	ares_query(query->resolver->ares, query->name, ns_c_in, type, on_reply, query);
}

/* Once, also from inside ares_query. */
static void on_reply(void *user, int status, int timeouts, unsigned char *reply, int len)
{
	struct dns_query *query = user;
	struct dns_answer answer = {0};

	(void)timeouts;
	if (status == ARES_SUCCESS && query->on_answer)
		status = read_reply(query->type, reply, len, &answer);
	switch (query->on_answer ? status : ARES_ECANCELLED) {
	case ARES_SUCCESS:
		finish(query, 0, &answer);
		break;
	case ARES_ENOTFOUND:
		finish(query, -ENOENT, &answer);
		break;
	case ARES_ENODATA:
		if (query->type == ns_t_a)
			ask(query, ns_t_aaaa);
		else
			finish(query, -ENOENT, &answer);
		break;
	default:
		finish(query, -EAGAIN, &answer);
		break;
	}
}

/* ---- whose turn it is ---- */

static struct dns_query *next_waiting(struct dns_client *client)
{
	struct list_node *list = list_is_empty(&client->urgent) ? &client->waiting
								: &client->urgent;

	return list_is_empty(list) ? NULL : container_of(list->next, struct dns_query, node);
}

static void free_retired(struct dns_client *client)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &client->retired) {
		struct resolver *resolver = container_of(node, struct resolver, node);

		if (resolver->running > 0)
			continue;
		list_remove(node);
		free_resolver(resolver);
	}
}

static void on_turn(struct later *turn)
{
	struct dns_client *client = container_of(turn, struct dns_client, turn);
	struct resolver *resolver = client->resolver;
	struct dns_query *query;

	free_retired(client);
	while (resolver && client->running < PROXY_DNS_QUESTIONS_MAX &&
	       (query = next_waiting(client))) {
		list_remove(&query->node);
		query->resolver = resolver;
		resolver->running++;
		client->running++;
		ask(query, ns_t_a);
	}
	if (resolver)
		plan(resolver);
}

static void start_turn(struct dns_client *client)
{
	later_call(client->loop, &client->turn);
}

struct dns_query *dns_client_ask(struct dns_client *client, const char *name, bool is_urgent,
				 void (*on_answer)(void *user, int status,
						   const struct dns_answer *answer),
				 void *user)
{
	struct dns_query *query = xcalloc(1, sizeof(*query));

	query->client = client;
	query->on_answer = on_answer;
	query->user = user;
	snprintf(query->name, sizeof(query->name), "%s", name);
	list_append(is_urgent ? &client->urgent : &client->waiting, &query->node);
	read_servers(client);
	start_turn(client);
	return query;
}

/* One that is on its way keeps its turn until c-ares is done with it. */
void dns_query_cancel(struct dns_query *query)
{
	query->on_answer = NULL;
	if (query->resolver)
		return;
	list_remove(&query->node);
	free(query);
}

/* ---- the whole ---- */

struct dns_client *dns_client_open(struct loop *loop, const union address *server)
{
	struct dns_client *client;

	if (ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS)
		abort(); /* out of memory, as everywhere */
	client = xcalloc(1, sizeof(*client));
	client->loop = loop;
	client->has_server = server;
	if (server)
		client->server = *server;
	list_init(&client->retired);
	list_init(&client->urgent);
	list_init(&client->waiting);
	later_init(&client->turn, on_turn);
	return client;
}

void dns_client_close(struct dns_client *client)
{
	assert(list_is_empty(&client->urgent) && list_is_empty(&client->waiting));
	if (client->resolver)
		list_append(&client->retired, &client->resolver->node);
	client->resolver = NULL;
	/* Cancelled questions end with their resolvers. */
	while (!list_is_empty(&client->retired)) {
		struct resolver *resolver = container_of(client->retired.next, struct resolver,
							 node);

		list_remove(&resolver->node);
		free_resolver(resolver);
	}
	later_cancel(&client->turn);
	client->is_closed = true;
	release_client(client);
}
