#include "proxy/front/front.h"

#include "lib/http_server.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "lib/thread.h"
#include "lib/tls/tls_acceptor.h"
#include "lib/tls/tls_server.h"
#include "proxy/front/http2.h"
#include "proxy/front/heap_keeper.h"
#include "proxy/limits.h"

/* What the main thread asks of a worker. */
enum order { ORDER_NONE, ORDER_DRAIN, ORDER_ABORT };

struct listener {
	struct worker *worker;
	struct http_server *server; /* NULL: none, or stopped */
};

struct worker {
	struct front *front;
	struct loop loop;
	pthread_t thread;
	struct relay_context context;
	struct http2_counters http2;
	struct http2_pool *http2_pool;
	struct listener listeners[FRONT_LISTENERS];
	unsigned serving; /* those not stopped */
	struct tls_acceptor *acceptor; /* NULL: no TLS */
	struct message poke; /* the catalog has changed, or there is an order */
	uv_prepare_t turn;
	struct catalog_listener listener;
	atomic_int order;
	bool draining, aborted, started;
};

struct front {
	struct front_config config;
	unsigned ports[FRONT_LISTENERS];
	atomic_size_t running;
	atomic_uint drain_idle_ms;
	struct clients *clients;
	size_t count;
	struct worker workers[];
};

static void on_catalog_change(struct catalog_listener *listener)
{
	message_post(&container_of(listener, struct worker, listener)->poke);
}

/* The last exchange is over: everything that keeps the loop alive goes. */
static void close_rest(struct worker *w)
{
	catalog_unlisten(w->front->config.catalog, &w->listener);
	upstream_pool_close(&w->context.pool);
	access_log_close(&w->context.access_log);
	message_close(&w->poke);
	uv_close((uv_handle_t *)&w->turn, NULL);
}

static void on_server_stopped(void *user)
{
	struct listener *listener = user;

	listener->server = NULL;
	if (--listener->worker->serving == 0)
		close_rest(listener->worker);
}

static void stop_servers(struct worker *w)
{
	for (size_t i = 0; i < FRONT_LISTENERS; i++)
		if (w->listeners[i].server)
			http_server_stop_gently(w->listeners[i].server,
						atomic_load(&w->front->drain_idle_ms),
						on_server_stopped, &w->listeners[i]);
}

static void abort_servers(struct worker *w)
{
	for (size_t i = 0; i < FRONT_LISTENERS; i++)
		if (w->listeners[i].server)
			http_server_abort(w->listeners[i].server);
}

static void on_poke(struct message *poke)
{
	struct worker *w = container_of(poke, struct worker, poke);
	int order = atomic_load(&w->order);

	upstream_pool_sweep(&w->context.pool);
	if (order >= ORDER_DRAIN && !w->draining) {
		w->draining = true;
		stop_servers(w);
	}
	if (order == ORDER_ABORT && !w->aborted) {
		w->aborted = true;
		abort_servers(w);
	}
}

static void on_turn(uv_prepare_t *turn)
{
	heap_keeper_note(container_of(turn, struct worker, turn)->front->config.heap_keeper);
}

/* Descriptors that are neither a client's nor a sandbox's. */
#define DESCRIPTORS_RESERVED 64

/* An eighth of the descriptors for kept connections to sandboxes ... */
static size_t idle_max(const struct front_config *config)
{
	return size_min(PROXY_IDLE_UPSTREAMS_MAX, config->descriptors / 8) / config->workers;
}

/* ... and the rest for clients and, a second one for each, towards sandboxes. */
static size_t descriptors_left(const struct front_config *config)
{
	size_t taken = DESCRIPTORS_RESERVED + config->descriptors / 8;

	return config->descriptors > taken ? config->descriptors - taken : 0;
}

/* An operator that sets the number of clients knows how many of them rest. */
static size_t clients_max(const struct front_config *config)
{
	size_t rest = descriptors_left(config);

	return config->connections_max ? size_min(rest, config->connections_max) : rest / 2;
}

static size_t connections_max(const struct front_config *config)
{
	size_t listeners = 0;

	for (size_t i = 0; i < FRONT_LISTENERS; i++)
		listeners += config->listen[i].address != NULL;
	return size_max(
		size_min(HTTP_CONNECTIONS_MAX, clients_max(config) / config->workers / listeners),
		1);
}

/* One exchange may need one descriptor beside its client's. */
static size_t exchanges_max(const struct front_config *config)
{
	size_t rest = descriptors_left(config);
	size_t left = rest - size_min(clients_max(config), rest);

	return size_max(size_min(PROXY_EXCHANGES_MAX, size_max(left, rest / 4)), 1);
}

static void on_http2(struct http_server *server, struct stream *stream, const char *peer,
		     struct str early)
{
	struct relay_context *context = http_server_config_of(server)->user;
	struct worker *w = container_of(context, struct worker, context);

	http2_open(server, stream, peer, early, w->http2_pool, &w->http2);
}

/* A host is somebody's by its exact name, or a sandbox's. */
static void dispatch(struct http_exchange *ex)
{
	struct worker *w = container_of((struct relay_context *)ex->server_user, struct worker,
					context);
	struct host_entry *host = host_table_find(w->front->config.hosts, ex->request.authority);

	if (host)
		host->handler(ex, host);
	else
		relay_dispatch(ex);
}

static int listen_on(struct worker *w, const struct http_server_config *server,
		     enum front_listener which)
{
	struct front *front = w->front;
	const struct front_config *config = &front->config;
	auto_close int fd = config->take_socket ? config->take_socket(config->user, which) : -1;
	int status;

	if (fd < 0)
		return http_server_listen(&w->loop, server, config->listen[which].address,
					  front->ports[which], &w->listeners[which].server);
	status = http_server_listen_on(&w->loop, server, fd, &w->listeners[which].server);
	if (status == 0)
		(void)take_fd(&fd);
	return status;
}

static int open_listener(struct worker *w, enum front_listener which, struct err *err)
{
	struct front *front = w->front;
	const struct front_config *config = &front->config;
	const struct front_address *listen = &config->listen[which];
	const struct http_server_timeouts timeouts = {.drain = config->drain_ms};
	const struct http_server_config server = {
		.timeouts = &timeouts,
		.on_http2 = on_http2,
		.dispatch = dispatch,
		.on_bad_request = relay_bad_request,
		.on_accept = which == FRONT_TLS ? tls_acceptor_accept : NULL,
		.accept_user = w->acceptor,
		.knows_clients = true,
		.identify = clients_identify,
		.identify_user = front->clients,
		.user = &w->context,
		.idle_timeout_ms = HTTP_PROXY_IDLE_TIMEOUT_MS,
		.connections_max = connections_max(config),
		.error_field = {STR("X-Proxy-Error"), str_of(error_cause_name(ERROR_BAD_REQUEST))},
		.full_answer = error_answer_full(),
		.connections_open = &w->context.counters.connections,
		.reuse_port = true,
		.send_date = false, /* answers carry the date of who made them */
	};
	int status;

	w->listeners[which].worker = w;
	if (!listen->address)
		return 0;
	if (which == FRONT_TLS)
		tls_server_offer_http2(config->tls);
	status = listen_on(w, &server, which);
	if (status < 0)
		return err_set_sys(err, ERR_UNAVAILABLE, status, "listen on %s port %u",
				   listen->address, front->ports[which]);
	front->ports[which] = http_server_port(w->listeners[which].server);
	w->serving++;
	return 0;
}

/* After its loop has ended. */
static void finish_worker(struct worker *w)
{
	if (w->acceptor)
		tls_acceptor_free(w->acceptor);
	http2_pool_free(w->http2_pool);
	loop_fini(&w->loop);
}

/* What was opened of one whose listeners could not all be. */
static void on_unopened(void *user)
{
	(void)user;
}

static void undo_worker(struct worker *w)
{
	for (size_t i = 0; i < FRONT_LISTENERS; i++)
		if (w->listeners[i].server)
			http_server_stop(w->listeners[i].server, on_unopened, NULL);
	loop_run(&w->loop);
	finish_worker(w);
}

static int open_worker(struct worker *w, struct front *front, size_t index, struct err *err)
{
	const struct front_config *config = &front->config;
	int status = 0;

	w->front = front;
	loop_init(&w->loop);
	w->http2_pool = http2_pool_new();
	if (config->listen[FRONT_TLS].address)
		w->acceptor = tls_acceptor_new(&w->loop, config->tls, error_answer_plain_http());
	for (size_t i = 0; i < FRONT_LISTENERS && status == 0; i++)
		status = open_listener(w, (enum front_listener)i, err);
	if (status < 0) {
		undo_worker(w);
		return status;
	}
	w->context.loop = &w->loop;
	w->context.catalog = config->catalog;
	w->context.clients = front->clients;
	w->context.options = config->options;
	upstream_pool_open(&w->context.pool, &w->loop, index, config->guard, idle_max(config));
	w->context.lookups = config->lookups;
	access_log_open(&w->context.access_log, &w->loop, config->access_sink);
	w->context.wake = config->wake;
	message_open(&w->poke, &w->loop, on_poke);
	uv_prepare_init(&w->loop.uv, &w->turn);
	uv_prepare_start(&w->turn, on_turn);
	w->listener.notify = on_catalog_change;
	catalog_listen(config->catalog, &w->listener);
	return 0;
}

/* Of one that was opened and never started. */
static void close_worker(struct worker *w)
{
	stop_servers(w);
	loop_run(&w->loop);
	finish_worker(w);
}

static void add_listeners(const struct front *front)
{
	union address listener;

	for (size_t i = 0; i < FRONT_LISTENERS; i++) {
		const char *address = front->config.listen[i].address;

		if (!address || address_parse(str_of(address), &listener) < 0)
			continue;
		address_set_port(&listener, front->ports[i]);
		address_guard_add_listener(front->config.guard, &listener);
	}
}

int front_open(const struct front_config *config, struct front **ret_front, struct err *err)
{
	struct front *front;
	int status;

	assert(config->workers > 0 && config->workers <= PROXY_WORKERS_MAX);
	front = xcalloc(1, sizeof(*front) + config->workers * sizeof(struct worker));
	front->config = *config;
	front->clients = clients_new(exchanges_max(config), config->load_balancers);
	for (size_t i = 0; i < FRONT_LISTENERS; i++)
		front->ports[i] = config->listen[i].port;
	for (; front->count < config->workers; front->count++) {
		status = open_worker(&front->workers[front->count], front, front->count, err);
		if (status < 0) {
			while (front->count > 0)
				close_worker(&front->workers[--front->count]);
			clients_free(front->clients);
			free(front);
			return status;
		}
	}
	add_listeners(front);
	*ret_front = front;
	return 0;
}

unsigned front_port(const struct front *front, enum front_listener which)
{
	return front->ports[which];
}

static void *run_worker(void *user)
{
	struct worker *w = user;
	struct front *front = w->front;

	loop_run(&w->loop);
	if (atomic_fetch_sub(&front->running, 1) == 1)
		front->config.on_drained(front->config.user);
	return NULL;
}

static int start_thread(struct worker *w)
{
	int status = thread_start(&w->thread, 0, run_worker, w);

	w->started = status == 0;
	return status;
}

int front_start(struct front *front, struct err *err)
{
	atomic_store(&front->running, front->count);
	for (size_t i = 0; i < front->count; i++) {
		int status = start_thread(&front->workers[i]);

		if (status < 0)
			return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status, "start worker %zu",
					   i);
	}
	return 0;
}

static void order(struct front *front, int wanted)
{
	for (size_t i = 0; i < front->count; i++) {
		struct worker *w = &front->workers[i];

		atomic_store(&w->order, wanted);
		message_post(&w->poke);
	}
}

size_t front_sockets(const struct front *front, enum front_listener which, int *ret_fds, size_t max)
{
	size_t count = 0;

	for (size_t i = 0; i < front->count && count < max; i++) {
		const struct http_server *server = front->workers[i].listeners[which].server;

		if (server)
			ret_fds[count++] = http_server_fd(server);
	}
	return count;
}

void front_drain(struct front *front, unsigned idle_ms)
{
	atomic_store(&front->drain_idle_ms, idle_ms);
	order(front, ORDER_DRAIN);
}

void front_abort(struct front *front)
{
	order(front, ORDER_ABORT);
}

void front_close(struct front *front)
{
	for (size_t i = 0; i < front->count; i++) {
		struct worker *w = &front->workers[i];

		if (!w->started) {
			close_worker(w);
			continue;
		}
		pthread_join(w->thread, NULL);
		finish_worker(w);
	}
	clients_free(front->clients);
	free(front);
}

static void add_tls(const struct worker *w, struct front_totals *totals)
{
	const struct tls_counters *c;

	if (!w->acceptor)
		return;
	c = tls_acceptor_counters(w->acceptor);
	totals->tls_12 += counter_read(&c->handshakes_12);
	totals->tls_13 += counter_read(&c->handshakes_13);
	totals->tls_resumed += counter_read(&c->resumed);
	totals->tls_failed += counter_read(&c->failed);
	totals->tls_timed_out += counter_read(&c->timed_out);
	totals->tls_left += counter_read(&c->left);
	totals->tls_plain_http += counter_read(&c->plain_http);
}

void front_totals(const struct front *front, struct front_totals *ret_totals)
{
	memset(ret_totals, 0, sizeof(*ret_totals));
	if (front->config.access_sink)
		ret_totals->access_log_dropped = counter_read(&front->config.access_sink->dropped);
	clients_totals(front->clients, &ret_totals->clients);
	for (size_t i = 0; i < front->count; i++) {
		const struct relay_context *context = &front->workers[i].context;
		const struct relay_counters *c = &context->counters;

		ret_totals->requests += counter_read(&c->requests);
		ret_totals->http2_sessions += counter_read(&front->workers[i].http2.sessions);
		ret_totals->http2_requests += counter_read(&front->workers[i].http2.requests);
		ret_totals->http2_heads_refused += counter_read(
			&front->workers[i].http2.heads_refused);
		ret_totals->http2_shares_refused += counter_read(
			&front->workers[i].http2.shares_refused);
		ret_totals->http2_refused += counter_read(&front->workers[i].http2.refused);
		ret_totals->http2_calmed += counter_read(&front->workers[i].http2.calmed);
		ret_totals->http2_resting += counter_read(&front->workers[i].http2.resting);
		ret_totals->http2_lost += counter_read(&front->workers[i].http2.lost);
		ret_totals->tunnels += counter_read(&c->tunnels);
		ret_totals->active += counter_read(&c->active);
		ret_totals->replays += counter_read(&c->replays);
		ret_totals->cut_by_client += counter_read(&c->cut_by_client);
		ret_totals->cut_by_sandbox += counter_read(&c->cut_by_sandbox);
		for (size_t j = 0; j < ERROR_CAUSES; j++)
			ret_totals->errors[j] += counter_read(&c->errors[j]);
		ret_totals->dials += counter_read(&context->pool.dials);
		ret_totals->retries += counter_read(&context->pool.retries);
		ret_totals->reused += counter_read(&context->pool.reused);
		ret_totals->access_log_dropped += counter_read(&context->access_log.dropped);
		ret_totals->addresses_refused += counter_read(&context->pool.refused);
		ret_totals->idle_upstreams += counter_read(&context->pool.idle_now);
		ret_totals->connections += counter_read(&c->connections);
		ret_totals->upstreams += counter_read(&c->upstreams);
		ret_totals->groups += counter_read(&context->pool.groups_now);
		for (size_t j = 0; j < RELAY_STATUS_CLASSES; j++)
			ret_totals->responses[j] += counter_read(&c->responses[j]);
		histogram_add(&ret_totals->durations, &c->durations);
		histogram_add(&ret_totals->first_bytes, &c->first_bytes);
		histogram_add(&ret_totals->per_sandbox, &c->per_sandbox);
		add_tls(&front->workers[i], ret_totals);
	}
}
