#include "proxy/route/dns_client.h"

#include <arpa/nameser.h>
#include <resolv.h>
#include <sys/random.h>

#include "lib/buf.h"
#include "lib/job.h"
#include "lib/limits.h"
#include "lib/stream_uv.h"

#define SERVERS_MAX MAXNS
#define PACKET_BYTES 4096
#define STREAM_BYTES_MAX (NS_INT16SZ + 65535)

struct dns_client {
	struct loop *loop;
	union address servers[SERVERS_MAX];
	size_t server_count; /* 0 until they have been read for the first time */
	bool fixed, reading, closed, starting;
	uint64_t read_ms;
	struct job job; /* reading the system's */
	union address read[SERVERS_MAX];
	size_t read_count;
	struct list_node urgent, waiting;
	size_t running, queries; /* queries: not freed yet */
	char packet[PACKET_BYTES];
};

/* A socket for one name server; its answers find the query as long as that wants them. */
struct attempt {
	uv_udp_t udp;
	struct dns_query *query;
	size_t server;
};

struct dns_query {
	struct list_node node; /* while it waits for its turn */
	struct dns_client *client;
	void (*on_answer)(void *user, int status, const struct dns_answer *answer);
	void *user;
	char name[DNS_NAME_BYTES];
	bool running;
	int type;
	union address servers[SERVERS_MAX]; /* as they were when it began */
	size_t server_count, step;
	bool failed[SERVERS_MAX];
	struct attempt *attempts[SERVERS_MAX];
	struct stream *stream; /* to ask by TCP, ... */
	size_t stream_server;
	struct buf received;
	struct dns_answer cut; /* ... and what UDP had room for */
	uv_timer_t timer;
	unsigned parts; /* timer, stream */
	unsigned char question[DNS_QUESTION_BYTES];
	size_t question_len;
};

/* ---- the end of it ---- */

static void release_client(struct dns_client *client)
{
	if (client->closed && !client->reading && client->queries == 0)
		free(client);
}

static void release_part(struct dns_query *query)
{
	struct dns_client *client = query->client;

	if (--query->parts)
		return;
	buf_fini(&query->received);
	free(query);
	client->queries--;
	release_client(client);
}

static void on_timer_closed(uv_handle_t *handle)
{
	release_part(container_of((uv_timer_t *)handle, struct dns_query, timer));
}

static void on_udp_closed(uv_handle_t *handle)
{
	free(container_of((uv_udp_t *)handle, struct attempt, udp));
}

static void close_sockets(struct dns_query *query)
{
	for (size_t i = 0; i < SERVERS_MAX; i++) {
		if (query->attempts[i])
			uv_close((uv_handle_t *)&query->attempts[i]->udp, on_udp_closed);
		query->attempts[i] = NULL;
	}
	if (query->stream)
		stream_close(query->stream, true);
	query->stream = NULL;
}

static void start_waiting(struct dns_client *client);

static void end(struct dns_query *query)
{
	query->client->running -= query->running;
	query->running = false;
	list_remove(&query->node);
	close_sockets(query);
	uv_close((uv_handle_t *)&query->timer, on_timer_closed);
}

static void finish(struct dns_query *query, int status, const struct dns_answer *answer)
{
	struct dns_client *client = query->client;

	end(query);
	query->on_answer(query->user, status, answer);
	start_waiting(client);
}

void dns_query_cancel(struct dns_query *query)
{
	struct dns_client *client = query->client;

	end(query);
	start_waiting(client);
}

/* ---- one kind of address after the other ---- */

static void take_step(struct dns_query *query);

static void begin(struct dns_query *query, int type)
{
	uint16_t id = 0;

	if (getrandom(&id, sizeof(id), GRND_NONBLOCK) < 0)
		id = (uint16_t)(uintptr_t)query;
	query->type = type;
	query->question_len = dns_question_write(query->name, type, id, query->question);
	query->step = 0;
	query->cut.count = 0;
	memset(query->failed, 0, sizeof(query->failed));
	take_step(query);
}

static void take_answer(struct dns_query *query, int status, const struct dns_answer *answer)
{
	if (status != -ENODATA) {
		finish(query, status, answer);
	} else if (query->type == ns_t_a) {
		close_sockets(query);
		begin(query, ns_t_aaaa);
	} else {
		finish(query, -ENOENT, answer);
	}
}

/* That one does not know, and the next is asked, unless that one was late and the next is asked already. */
static void server_failed(struct dns_query *query, size_t server, bool is_late)
{
	static const struct dns_answer nothing;
	bool all = true;

	query->failed[server] = true;
	for (size_t i = 0; i < query->server_count; i++)
		all = all && query->failed[i];
	if (all)
		finish(query, -EAGAIN, &nothing);
	else if (!is_late)
		take_step(query);
}

static bool is_late(const struct dns_query *query, size_t server)
{
	return server != (query->step - 1) % query->server_count;
}

/* ---- by TCP ---- */

static void stream_failed(struct dns_query *query)
{
	uv_timer_stop(&query->timer);
	/* Some addresses are better than none. */
	if (query->cut.count > 0)
		take_answer(query, 0, &query->cut);
	else
		server_failed(query, query->stream_server, false);
}

static void on_stream_read(struct stream *stream, const char *data, size_t len)
{
	struct dns_query *query = stream->user;
	const unsigned char *received;
	struct dns_answer answer;
	size_t wanted;
	int status;

	if (buf_append(&query->received, data, len) < 0) {
		stream_close(stream, true);
		return;
	}
	received = (const unsigned char *)buf_data(&query->received);
	if (buf_length(&query->received) < NS_INT16SZ)
		return;
	wanted = ns_get16(received);
	if (buf_length(&query->received) < NS_INT16SZ + wanted)
		return;
	status = dns_answer_read(received + NS_INT16SZ, wanted, query->question, query->question_len,
				 &answer);
	if (status == 0 || status == -ENOENT || status == -ENODATA)
		take_answer(query, status, &answer);
	else
		stream_close(stream, true);
}

static void on_stream_end(struct stream *stream, int status)
{
	(void)status;
	stream_close(stream, true);
}

static void on_stream_closed(struct stream *stream)
{
	struct dns_query *query = stream->user;
	bool failed = query->running && query->stream == stream;

	if (query->stream == stream)
		query->stream = NULL;
	if (failed)
		stream_failed(query);
	release_part(query);
}

static const struct stream_events stream_events = {
	.on_read = on_stream_read,
	.on_end = on_stream_end,
	.on_closed = on_stream_closed,
};

static void on_connected(struct stream *stream, int status)
{
	struct dns_query *query = stream->user;
	unsigned char length[NS_INT16SZ];
	const struct iovec pieces[] = {
		{.iov_base = length, .iov_len = sizeof(length)},
		{.iov_base = query->question, .iov_len = query->question_len},
	};

	ns_put16((unsigned)query->question_len, length);
	if (status < 0 || stream_write(stream, pieces, ARRAY_LENGTH(pieces)) < 0 ||
	    stream_read_start(stream) < 0)
		stream_close(stream, true);
}

static void on_timer(uv_timer_t *timer);

static void ask_by_tcp(struct dns_query *query, size_t server)
{
	if (query->stream) /* another one has said the same */
		return;
	query->stream_server = server;
	buf_clear(&query->received);
	if (stream_uv_connect(query->client->loop, &query->servers[server].any, on_connected,
			      &query->stream) < 0) {
		query->stream = NULL;
		stream_failed(query);
		return;
	}
	query->stream->user = query;
	query->stream->events = &stream_events;
	query->parts++;
	uv_timer_start(&query->timer, on_timer, PROXY_DNS_TCP_MS, 0);
}

/* ---- by UDP ---- */

static void on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *ret_buf)
{
	struct attempt *attempt = container_of((uv_udp_t *)handle, struct attempt, udp);

	(void)wanted;
	*ret_buf = uv_buf_init(attempt->query->client->packet, PACKET_BYTES);
}

static void on_packet(uv_udp_t *udp, ssize_t len, const uv_buf_t *buf, const struct sockaddr *from,
		      unsigned flags)
{
	struct attempt *attempt = container_of(udp, struct attempt, udp);
	struct dns_query *query = attempt->query;
	struct dns_answer answer;
	int status;

	if (query->stream || query->failed[attempt->server])
		return;
	if (len < 0) /* nobody is there */
		server_failed(query, attempt->server, is_late(query, attempt->server));
	if (len <= 0 || !from || (flags & UV_UDP_PARTIAL))
		return;
	status = dns_answer_read((const unsigned char *)buf->base, (size_t)len, query->question,
				 query->question_len, &answer);
	switch (status) {
	case -EBADMSG: /* somebody else's, or made up */
		break;
	case -EMSGSIZE:
		query->cut = answer;
		ask_by_tcp(query, attempt->server);
		break;
	case -EAGAIN:
		server_failed(query, attempt->server, is_late(query, attempt->server));
		break;
	default:
		take_answer(query, status, &answer);
		break;
	}
}

static int open_attempt(struct dns_query *query, size_t server)
{
	struct attempt *attempt;
	int status;

	if (query->attempts[server])
		return 0;
	attempt = xcalloc(1, sizeof(*attempt));
	attempt->query = query;
	attempt->server = server;
	status = uv_udp_init(&query->client->loop->uv, &attempt->udp);
	if (status < 0) {
		free(attempt);
		return status;
	}
	query->attempts[server] = attempt;
	status = uv_udp_connect(&attempt->udp, &query->servers[server].any);
	return status < 0 ? status : uv_udp_recv_start(&attempt->udp, on_alloc, on_packet);
}

static size_t steps_of(const struct dns_query *query)
{
	return query->server_count > 1 ? query->server_count : 2;
}

/* Each server gets a second; the last step what is left. */
static uint64_t wait_of(const struct dns_query *query)
{
	uint64_t others_ms = (steps_of(query) - 1) * PROXY_DNS_STEP_MS;

	return query->step + 1 < steps_of(query) ? PROXY_DNS_STEP_MS : PROXY_DNS_MS - others_ms;
}

static void take_step(struct dns_query *query)
{
	static const struct dns_answer nothing;
	uv_buf_t question = uv_buf_init((char *)query->question, (unsigned)query->question_len);
	size_t server;

	while (query->step < steps_of(query) && query->failed[query->step % query->server_count])
		query->step++;
	if (query->step >= steps_of(query)) {
		finish(query, -EAGAIN, &nothing);
		return;
	}
	server = query->step % query->server_count;
	uv_timer_start(&query->timer, on_timer, wait_of(query), 0);
	query->step++;
	if (open_attempt(query, server) < 0 ||
	    uv_udp_try_send(&query->attempts[server]->udp, &question, 1, NULL) < 0)
		server_failed(query, server, false);
}

static void on_timer(uv_timer_t *timer)
{
	struct dns_query *query = container_of(timer, struct dns_query, timer);

	if (!query->running)
		start_waiting(query->client);
	else if (query->stream)
		stream_close(query->stream, true);
	else
		take_step(query);
}

/* ---- whose turn it is ---- */

static struct dns_query *next_waiting(struct dns_client *client)
{
	struct list_node *list = list_is_empty(&client->urgent) ? &client->waiting : &client->urgent;

	return list_is_empty(list) ? NULL : container_of(list->next, struct dns_query, node);
}

static void start_waiting(struct dns_client *client)
{
	struct dns_query *query;

	if (client->starting) /* one that began has ended at once */
		return;
	client->starting = true;
	while (client->server_count > 0 && client->running < PROXY_DNS_QUESTIONS_MAX &&
	       (query = next_waiting(client))) {
		list_remove(&query->node);
		client->running++;
		query->running = true;
		memcpy(query->servers, client->servers, sizeof(query->servers));
		query->server_count = client->server_count;
		begin(query, ns_t_a);
	}
	client->starting = false;
}

/* ---- the system's name servers ---- */

static void on_read(struct job *job)
{
	struct dns_client *client = container_of(job, struct dns_client, job);
	struct __res_state state = {0};

	client->read_count = 0;
	if (res_ninit(&state) < 0)
		return;
	for (int i = 0; i < state.nscount && i < SERVERS_MAX; i++) {
		union address *server = &client->read[client->read_count];

		memset(server, 0, sizeof(*server));
		if (state.nsaddr_list[i].sin_family == AF_INET)
			server->v4 = state.nsaddr_list[i];
		else if (state._u._ext.nsaddrs[i])
			server->v6 = *state._u._ext.nsaddrs[i];
		client->read_count += server->any.sa_family != AF_UNSPEC;
	}
	res_nclose(&state);
}

static void on_read_done(struct job *job)
{
	struct dns_client *client = container_of(job, struct dns_client, job);

	client->reading = false;
	if (client->closed) {
		release_client(client);
		return;
	}
	client->read_ms = loop_now_ms(client->loop);
	if (client->read_count > 0) {
		memcpy(client->servers, client->read, sizeof(client->servers));
		client->server_count = client->read_count;
	}
	start_waiting(client);
}

static void read_servers(struct dns_client *client)
{
	uint64_t now = loop_now_ms(client->loop);

	if (client->fixed || client->reading ||
	    (client->server_count > 0 && now < client->read_ms + PROXY_DNS_SERVERS_MS))
		return;
	client->reading = job_run(client->loop, &client->job, JOB_FILES, on_read, on_read_done) == 0;
}

/* ---- the whole ---- */

struct dns_client *dns_client_open(struct loop *loop, const union address *server)
{
	struct dns_client *client = xcalloc(1, sizeof(*client));

	client->loop = loop;
	list_init(&client->urgent);
	list_init(&client->waiting);
	if (server) {
		client->servers[0] = *server;
		client->server_count = 1;
		client->fixed = true;
	}
	return client;
}

void dns_client_close(struct dns_client *client)
{
	assert(list_is_empty(&client->urgent) && list_is_empty(&client->waiting) && !client->running);
	client->closed = true;
	release_client(client);
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
	query->parts = 1;
	snprintf(query->name, sizeof(query->name), "%s", name);
	buf_init(&query->received, STREAM_BYTES_MAX);
	uv_timer_init(&client->loop->uv, &query->timer);
	uv_timer_start(&query->timer, on_timer, 0, 0); /* never from inside this call */
	list_append(is_urgent ? &client->urgent : &client->waiting, &query->node);
	client->queries++;
	read_servers(client);
	return query;
}
