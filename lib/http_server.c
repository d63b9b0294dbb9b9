#include "lib/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/http_conn.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "lib/stream_uv.h"

/* Accepted at one go before other events get their turn. */
#define ACCEPT_BATCH 64
/* Descriptors may come free outside this server, so a pause for want of them also ends by
 * itself. */
#define ACCEPT_RETRY_MS 100

struct http_server {
	struct http_conn_shared shared;
	uv_poll_t poll;
	struct alarm retry;
	struct later later;
	int fd;
	int reserve; /* a descriptor to let in whom there is no room for, and say so */
	uint64_t full_since_ms;
	struct http_server_totals totals;
	uint64_t told_yield_ms, told_pause_ms, told_full_ms; /* when the log has last said so */
	unsigned port;
	bool accepting;
	bool is_open; /* `poll` is */
	struct list_node guests; /* those at work; and, longest idle first, ... */
	struct list_node idle_guests; /* ... those without a request; and ... */
	struct list_node stranger_guests; /* ... those of whose client nothing is known yet */
	void (*stopped)(void *user);
	void *stopped_user;
};

static struct http_server *of(struct http_conn_shared *shared)
{
	return container_of(shared, struct http_server, shared);
}

static void finish_stop(struct http_server *server)
{
	if (!server->shared.stopping || server->shared.count || server->is_open)
		return;
	later_cancel(&server->later);
	if (server->stopped)
		server->stopped(server->stopped_user);
	free(server);
}

static void on_later(struct later *later)
{
	finish_stop(container_of(later, struct http_server, later));
}

static void on_poll(uv_poll_t *poll, int status, int events);

/* What clients can make happen at will is said once in a while. */
static bool may_tell(const struct http_server *server, uint64_t *told_ms)
{
	uint64_t now = loop_now_ms(server->shared.loop);

	if (*told_ms && now - *told_ms < HTTP_EVICT_REPORT_MS)
		return false;
	*told_ms = now;
	return true;
}

static void tell_that_some_go(struct http_server *server)
{
	if (may_tell(server, &server->told_yield_ms))
		log_warn("http", "connections without a request make room for others",
			 LOG_I("connections", server->shared.count),
			 LOG_I("max", server->shared.config.connections_max));
}

/* The one that has been idle for longest goes, if that is long enough. */
static bool yield_one(struct http_server *server, const struct list_node *conns,
		      const struct list_node *guests)
{
	uint64_t now = loop_now_ms(server->shared.loop);
	struct http_conn *conn = http_conn_longest_idle(conns);
	struct http_server_guest *guest = list_is_empty(guests)
						  ? NULL
						  : container_of(guests->next,
								 struct http_server_guest, node);

	if (conn && guest && conn->since_ms <= guest->idle_since_ms)
		guest = NULL;
	if (guest && now - guest->idle_since_ms >= HTTP_EVICT_IDLE_MS) {
		http_server_work(guest); /* ending is the last work it has */
		guest->on_yield(guest);
	} else if (!guest && conn && now - conn->since_ms >= HTTP_EVICT_IDLE_MS) {
		http_conn_close(conn, -EMFILE, false);
	} else {
		return false;
	}
	server->totals.evicted++;
	tell_that_some_go(server);
	return true;
}

/* Who only keeps a connection open must not keep others out, least of all who has asked nothing
 * yet. True when one goes. */
static bool make_room(struct http_server *server)
{
	return yield_one(server, &server->shared.strangers, &server->stranger_guests) ||
	       yield_one(server, &server->shared.idle, &server->idle_guests);
}

/* Says that there is no room. What the client has sent is taken first: closing with bytes that were
 * not read is a reset, which could overtake the answer. */
static void turn_away(const struct http_server *server, int fd)
{
	static const struct str usual = STR(
		"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n"
		"Retry-After: 1\r\nConnection: close\r\nContent-Length: 21\r\n\r\n"
		"too many connections\n");
	const struct http_server_config *config = &server->shared.config;
	struct str answer = config->full_answer.len ? config->full_answer : usual;
	char taken[4096];

	if (!config->on_accept) {
		for (size_t i = 0; i < HTTP_EARLY_BYTES_MAX / sizeof(taken); i++)
			if (recv(fd, taken, sizeof(taken), MSG_DONTWAIT) <= 0)
				break;
		(void)send(fd, answer.p, answer.len, MSG_DONTWAIT | MSG_NOSIGNAL);
		shutdown(fd, SHUT_WR);
	}
	close(fd);
}

/* Those who wait in the kernel's queue. */
static void turn_away_waiting(struct http_server *server)
{
	size_t count = 0;

	close_fd(&server->reserve);
	while (count < ACCEPT_BATCH) {
		int fd = accept4(server->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0)
			break;
		turn_away(server, fd);
		count++;
	}
	server->reserve = fcntl(server->fd, F_DUPFD_CLOEXEC, 0);
	server->totals.turned_away += count;
	if (count && may_tell(server, &server->told_full_ms))
		log_warn("http", "no room for new connections", LOG_I("turned_away", count),
			 LOG_I("connections", server->shared.count));
}

static void resume_accepting(struct http_server *server)
{
	if (server->fd < 0 || server->accepting || server->shared.stopping ||
	    server->shared.count >= server->shared.config.connections_max)
		return;
	server->accepting = uv_poll_start(&server->poll, UV_READABLE, on_poll) == 0;
}

static void wait_for_room(struct http_server *server);

static void on_retry(struct alarm *alarm)
{
	struct http_server *server = container_of(alarm, struct http_server, retry);

	resume_accepting(server);
	if (!server->accepting && !server->shared.stopping)
		wait_for_room(server);
}

static void wait_for_room(struct http_server *server)
{
	uint64_t now = loop_now_ms(server->shared.loop);

	if (!server->full_since_ms)
		server->full_since_ms = now;
	if (!make_room(server) && now - server->full_since_ms >= HTTP_QUEUE_PATIENCE_MS)
		turn_away_waiting(server);
	alarm_set(server->shared.loop, &server->retry, ACCEPT_RETRY_MS);
}

static void pause_accepting(struct http_server *server)
{
	server->accepting = false;
	uv_poll_stop(&server->poll);
	wait_for_room(server);
}

static void on_gone(struct http_conn_shared *shared)
{
	struct http_server *server = of(shared);

	resume_accepting(server);
	if (shared->stopping && shared->count == 0)
		later_call(shared->loop, &server->later);
}

static void format_peer(const struct sockaddr_storage *address, char *ret_text, size_t size)
{
	char host[INET6_ADDRSTRLEN] = "";

	if (address->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)address;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		snprintf(ret_text, size, "%s:%u", host, ntohs(in->sin_port));
	} else if (address->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;

		if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
			inet_ntop(AF_INET, &in6->sin6_addr.s6_addr[12], host, sizeof(host));
			snprintf(ret_text, size, "%s:%u", host, ntohs(in6->sin6_port));
		} else {
			inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
			snprintf(ret_text, size, "[%s]:%u", host, ntohs(in6->sin6_port));
		}
	} else {
		snprintf(ret_text, size, address->ss_family == AF_UNIX ? "local" : "unknown");
	}
}

/* False when accepting should stop for now. */
static bool accept_one(struct http_server *server)
{
	const struct http_server_config *config = &server->shared.config;
	struct sockaddr_storage address;
	socklen_t address_len = sizeof(address);
	struct stream *stream;
	char peer[64];
	int fd = accept4(server->fd, (struct sockaddr *)&address, &address_len,
			 SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0) {
		int error = errno;

		if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
			if (may_tell(server, &server->told_pause_ms))
				log_warn("http", "accepting pauses", LOG_I("errno", error),
					 LOG_I("connections", server->shared.count));
			pause_accepting(server);
		}
		/* What else goes wrong concerns that one connection. */
		return error == ECONNABORTED || error == EINTR || error == EPROTO;
	}
	server->full_since_ms = 0;
	if (stream_uv_open_tcp(server->shared.loop, fd, &stream) < 0) {
		close(fd);
		return true;
	}
	format_peer(&address, peer, sizeof(peer));
	if (config->identify)
		stream->peer = config->identify(config->identify_user, (struct sockaddr *)&address);
	if (config->on_accept)
		config->on_accept(server, stream, peer);
	else
		http_conn_open(&server->shared, stream, peer);
	if (server->shared.count < server->shared.config.connections_max)
		return true;
	pause_accepting(server);
	return false;
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct http_server *server = container_of(poll, struct http_server, poll);

	(void)events;
	if (status < 0)
		return;
	for (unsigned i = 0; i < ACCEPT_BATCH && server->accepting; i++)
		if (!accept_one(server))
			break;
}

static int parse_address(const char *address, unsigned port, struct sockaddr_storage *ret_address,
			 socklen_t *ret_len)
{
	struct sockaddr_in *in = (struct sockaddr_in *)ret_address;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret_address;

	memset(ret_address, 0, sizeof(*ret_address));
	if (port > 65535)
		return -EINVAL;
	if (inet_pton(AF_INET, address, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)port);
		*ret_len = sizeof(*in);
		return 0;
	}
	if (inet_pton(AF_INET6, address, &in6->sin6_addr) == 1) {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons((uint16_t)port);
		*ret_len = sizeof(*in6);
		return 0;
	}
	return -EINVAL;
}

static int open_listener(const char *address, unsigned port, bool reuse_port, int *ret_fd)
{
	struct sockaddr_storage storage;
	socklen_t len;
	int one = 1, status = parse_address(address, port, &storage, &len);
	auto_close int fd = -1;

	if (status < 0)
		return status;
	fd = socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    (reuse_port && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) < 0))
		return -errno;
	stream_uv_keep_alive(fd); /* accepted sockets inherit it */
	if (bind(fd, (struct sockaddr *)&storage, len) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
		return -errno;
	*ret_fd = take_fd(&fd);
	return 0;
}

static void on_preface(struct http_conn_shared *shared, struct stream *stream, const char *peer,
		       struct str early)
{
	shared->config.on_http2(of(shared), stream, peer, early);
}

static void fill(unsigned *timeout, unsigned usual)
{
	if (!*timeout)
		*timeout = usual;
}

static void fill_timeouts(struct http_server_timeouts *t)
{
	fill(&t->first_byte, HTTP_FIRST_BYTE_TIMEOUT_MS);
	fill(&t->head, HTTP_HEAD_TIMEOUT_MS);
	fill(&t->body_idle, HTTP_BODY_IDLE_TIMEOUT_MS);
	fill(&t->write_stall, HTTP_WRITE_STALL_TIMEOUT_MS);
	fill(&t->yield_stall, HTTP_EVICT_STALLED_MS);
	fill(&t->linger, HTTP_LINGER_TIMEOUT_MS);
	fill(&t->linger_total, HTTP_LINGER_TOTAL_MS);
	fill(&t->ping_silence, HTTP2_PING_SILENCE_MS);
	fill(&t->ping_wait, HTTP2_PING_WAIT_MS);
	fill(&t->drain, HTTP_DRAIN_MS);
	fill(&t->drain_quiet, HTTP2_DRAIN_QUIET_MS);
	fill(&t->rest, HTTP2_REST_MS);
}

struct http_server *http_server_new(struct loop *loop, const struct http_server_config *config)
{
	struct http_server *server = xcalloc(1, sizeof(*server));

	server->shared.loop = loop;
	server->shared.config = *config;
	server->shared.config.timeouts = NULL;
	if (!server->shared.config.connections_max)
		server->shared.config.connections_max = HTTP_CONNECTIONS_MAX;
	if (!server->shared.config.idle_timeout_ms)
		server->shared.config.idle_timeout_ms = HTTP_IDLE_TIMEOUT_MS;
	if (config->timeouts)
		server->shared.timeouts = *config->timeouts;
	fill_timeouts(&server->shared.timeouts);
	server->shared.on_gone = on_gone;
	server->shared.on_http2 = config->on_http2 ? on_preface : NULL;
	list_init(&server->guests);
	list_init(&server->idle_guests);
	list_init(&server->stranger_guests);
	list_init(&server->shared.conns);
	list_init(&server->shared.idle);
	list_init(&server->shared.strangers);
	later_init(&server->later, on_later);
	server->fd = server->reserve = -1;
	return server;
}

int http_server_listen_on(struct loop *loop, const struct http_server_config *config, int fd,
			  struct http_server **ret_server)
{
	struct http_server *server;
	struct sockaddr_storage storage;
	socklen_t len = sizeof(storage);
	int status;

	if (getsockname(fd, (struct sockaddr *)&storage, &len) < 0)
		return -errno;
	server = http_server_new(loop, config);
	status = uv_poll_init(&loop->uv, &server->poll, fd);
	if (status < 0) {
		free(server);
		return status;
	}
	alarm_init(&server->retry, on_retry);
	server->is_open = true;
	server->fd = fd;
	server->reserve = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (storage.ss_family == AF_INET)
		server->port = ntohs(((struct sockaddr_in *)&storage)->sin_port);
	else if (storage.ss_family == AF_INET6)
		server->port = ntohs(((struct sockaddr_in6 *)&storage)->sin6_port);
	resume_accepting(server);
	*ret_server = server;
	return 0;
}

int http_server_listen(struct loop *loop, const struct http_server_config *config,
		       const char *address, unsigned port, struct http_server **ret_server)
{
	auto_close int fd = -1;
	int status = open_listener(address, port, config->reuse_port, &fd);

	if (status == 0)
		status = http_server_listen_on(loop, config, fd, ret_server);
	if (status == 0)
		(void)take_fd(&fd);
	return status;
}

int http_server_fd(const struct http_server *server)
{
	return server->fd;
}

unsigned http_server_port(const struct http_server *server)
{
	return server->port;
}

void http_server_adopt(struct http_server *server, struct stream *stream, const char *peer)
{
	http_conn_open(&server->shared, stream, peer);
}

void http_server_adopt_http2(struct http_server *server, struct stream *stream, const char *peer)
{
	server->shared.config.on_http2(server, stream, peer, STR(""));
}

const struct http_server_config *http_server_config_of(const struct http_server *server)
{
	return &server->shared.config;
}

const struct http_server_timeouts *http_server_timeouts_of(const struct http_server *server)
{
	return &server->shared.timeouts;
}

struct loop *http_server_loop(const struct http_server *server)
{
	return server->shared.loop;
}

bool http_server_is_stopping(const struct http_server *server)
{
	return server->shared.stopping;
}

uint64_t http_server_stopping_since_ms(const struct http_server *server)
{
	return server->shared.stopping ? server->shared.stop_began_ms : 0;
}

bool http_server_is_waiting(const struct http_server *server)
{
	return server->shared.stopping &&
	       loop_now_ms(server->shared.loop) < server->shared.stop_idle_ms;
}

void http_server_enter(struct http_server *server, struct http_server_guest *guest)
{
	guest->server = server;
	list_append(&server->guests, &guest->node);
	http_conn_count(&server->shared, 1);
}

void http_server_rest(struct http_server_guest *guest, bool known)
{
	struct http_server *server = guest->server;

	guest->idle_since_ms = loop_now_ms(server->shared.loop);
	list_remove(&guest->node);
	list_append(known ? &server->idle_guests : &server->stranger_guests, &guest->node);
}

void http_server_work(struct http_server_guest *guest)
{
	guest->idle_since_ms = 0;
	list_remove(&guest->node);
	list_append(&guest->server->guests, &guest->node);
}

void http_server_leave(struct http_server_guest *guest)
{
	struct http_server *server = guest->server;

	list_remove(&guest->node);
	http_conn_count(&server->shared, -1);
	on_gone(&server->shared);
}

struct http_server_totals http_server_totals(const struct http_server *server)
{
	return server->totals;
}

size_t http_server_connections(const struct http_server *server)
{
	return server->shared.count;
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct http_server *server = container_of((uv_poll_t *)handle, struct http_server, poll);

	server->is_open = false;
	finish_stop(server);
}

/* Each may leave while it is told, and others with it. Nobody makes room any more, so none has to
 * be among those that rest. */
static void tell_guests(struct http_server *server, bool abort)
{
	struct list_node told;

	list_init(&told);
	list_splice(&server->guests, &server->idle_guests);
	list_splice(&server->guests, &server->stranger_guests);
	while (!list_is_empty(&server->guests)) {
		struct http_server_guest *guest = container_of(server->guests.next,
							       struct http_server_guest, node);

		list_remove(&guest->node);
		list_append(&told, &guest->node);
		if (abort)
			guest->on_abort(guest);
		else
			guest->on_stop(guest);
	}
	list_splice(&server->guests, &told);
}

static void poke_conns(const struct list_node *conns)
{
	struct list_node *node;

	LIST_FOR_EACH (node, conns)
		http_conn_poke(container_of(node, struct http_conn, node));
}

void http_server_stop(struct http_server *server, void (*stopped)(void *user), void *user)
{
	http_server_stop_gently(server, 0, stopped, user);
}

void http_server_stop_gently(struct http_server *server, unsigned idle_ms,
			     void (*stopped)(void *user), void *user)
{
	server->stopped = stopped;
	server->stopped_user = user;
	if (server->shared.stopping)
		return;
	server->shared.stopping = true;
	server->shared.stop_began_ms = loop_now_ms(server->shared.loop);
	server->shared.stop_idle_ms = server->shared.stop_began_ms + idle_ms;
	if (server->fd >= 0) {
		uv_close((uv_handle_t *)&server->poll, on_poll_closed);
		alarm_cancel(&server->retry);
		close_fd(&server->fd);
		close_fd(&server->reserve);
		server->accepting = false;
	}
	poke_conns(&server->shared.conns);
	poke_conns(&server->shared.idle);
	poke_conns(&server->shared.strangers);
	tell_guests(server, false);
	later_call(server->shared.loop, &server->later);
}

static void abort_conns(struct list_node *conns)
{
	struct list_node *node;

	LIST_FOR_EACH (node, conns) {
		struct http_conn *c = container_of(node, struct http_conn, node);

		c->reset_wanted = true;
		http_conn_poke(c);
	}
}

void http_server_abort(struct http_server *server)
{
	abort_conns(&server->shared.conns);
	abort_conns(&server->shared.idle);
	abort_conns(&server->shared.strangers);
	tell_guests(server, true);
}
