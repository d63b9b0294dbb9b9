/* How the proxy ends: at a signal, or because a successor serves. */
#include <signal.h>
#include <unistd.h>

#include "lib/limits.h"
#include "lib/log.h"
#include "proxy/app.h"
#include "proxy/limits.h"
#include "proxy/service_notify.h"

/* Only a resolver that does not return can hold the main thread now. */
static void leave(int number)
{
	(void)number;
	_exit(0);
}

static const int end_signals[] = {SIGTERM, SIGINT}, other_signals[] = {SIGHUP, SIGUSR2};

static void mask_signals(int how, const int *signals, size_t count)
{
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < count; i++)
		sigaddset(&set, signals[i]);
	pthread_sigmask(how, &set, NULL);
}

static void close_rest(struct app *app)
{
	sigaction(SIGALRM, &(struct sigaction){.sa_handler = leave}, NULL);
	alarm(SHUTDOWN_HARD_MS / 1000);
	/* One that comes in the last moment must not turn an orderly end into a death by signal. No
	 * other thread takes it. */
	mask_signals(SIG_BLOCK, end_signals, ARRAY_LENGTH(end_signals));
	mask_signals(SIG_BLOCK, other_signals, ARRAY_LENGTH(other_signals));
	sighup_close(&app->sighup);
	sources_close(app->sources);
	if (app->certificates)
		tls_reload_close(app->certificates, "the proxy is ending");
	alarm_cancel(&app->alarm);
	message_close(&app->drained);
	uv_close((uv_handle_t *)&app->on_term, NULL);
	uv_close((uv_handle_t *)&app->on_int, NULL);
	uv_close((uv_handle_t *)&app->on_usr2, NULL);
	handover_close(app->predecessor);
	handover_close(app->successor);
	app->predecessor = app->successor = NULL;
}

/* True when nobody but a successor changes the catalog here any more. */
static bool is_quiet(const struct app *app)
{
	return (!app->admin || app->admin_closed) && app->predecessor_quiet;
}

/* What comes from a predecessor is for the successor, too, so this one may not go before. */
static void go_on(struct app *app)
{
	if (!is_quiet(app))
		return;
	if (app->left_to_successor && app->successor && !app->said_over)
		handover_say_over(app->successor);
	app->said_over = true;
	if (app->phase == PHASE_ENDING && !app->closed) {
		app->closed = true;
		close_rest(app);
	}
}

static void on_admin_closed(void *user)
{
	struct app *app = user;

	app->admin_closed = true;
	go_on(app);
}

void app_end_predecessor_quiet(void *user)
{
	struct app *app = user;

	app->predecessor_quiet = true;
	go_on(app);
}

static void close_admin(struct app *app, unsigned idle_ms)
{
	if (!app->admin || app->admin_closing)
		return;
	app->admin_closing = true;
	admin_close(app->admin, idle_ms, on_admin_closed, app);
}

static void advance(struct app *app, enum app_phase phase)
{
	app->phase = phase;
	switch (phase) {
	case PHASE_SERVING:
		break;
	case PHASE_ANNOUNCED:
		log_info("proxy", "draining");
		service_notify("STOPPING=1");
		if (app->admin)
			admin_set_draining(app->admin);
		alarm_set(&app->loop, &app->alarm, (uint64_t)app->config.drain_delay_ms);
		break;
	case PHASE_DRAINING:
		front_drain(app->front, app->left_to_successor ? PROXY_HANDOVER_IDLE_MS : 0);
		alarm_set(&app->loop, &app->alarm, (uint64_t)app->config.drain_ms);
		break;
	case PHASE_ABORTING:
		log_info("proxy", "resetting what is left");
		front_abort(app->front);
		alarm_set(&app->loop, &app->alarm, SHUTDOWN_HARD_MS);
		break;
	case PHASE_ENDING:
		waking_close(&app->waking);
		alarm_set(&app->loop, &app->alarm,
			  PROXY_ADMIN_ENDING_MS +
				  (app->left_to_successor ? PROXY_ADMIN_HANDOVER_IDLE_MS : 0));
		close_admin(app, 0);
		if (!app->left_to_successor)
			app->predecessor_quiet = true;
		go_on(app);
		break;
	}
}

static void on_alarm(struct alarm *alarm)
{
	struct app *app = container_of(alarm, struct app, alarm);

	switch (app->phase) {
	case PHASE_SERVING:
		break;
	case PHASE_ANNOUNCED:
		advance(app, PHASE_DRAINING);
		break;
	case PHASE_DRAINING:
		advance(app, PHASE_ABORTING);
		break;
	case PHASE_ABORTING:
		/* Only a resolver that does not return can hold a worker now. */
		log_warn("proxy", "a worker does not end, leaving");
		_exit(0);
	case PHASE_ENDING:
		app->predecessor_quiet = true;
		if (app->admin)
			admin_abort(app->admin);
		go_on(app);
		break;
	}
}

static void on_drained(struct message *drained)
{
	struct app *app = container_of(drained, struct app, drained);

	if (app->phase < PHASE_ENDING)
		advance(app, PHASE_ENDING);
}

void app_end_drained(void *user)
{
	struct app *app = user;

	message_post(&app->drained);
}

/* The first signal drains, the second does not wait any longer (contract/proxy.md S95). Who drains
 * because a successor serves hears of it first, too: a service manager that stops both tells each
 * of them once. */
static void stop(struct app *app)
{
	bool first = !app->told_to_end;

	app->told_to_end = true;
	if (first && app->left_to_successor) {
		log_info("proxy", "told to end while draining for a successor: going on with that");
	} else if (app->phase == PHASE_SERVING) {
		/* Who is to end does not want to be followed any more. */
		handover_close(app->successor);
		app->successor = NULL;
		advance(app, PHASE_ANNOUNCED);
	} else if (app->phase == PHASE_ANNOUNCED) {
		advance(app, PHASE_DRAINING);
	} else if (app->phase == PHASE_DRAINING) {
		advance(app, PHASE_ABORTING);
	}
}

static void on_term(uv_signal_t *handle, int number)
{
	(void)number;
	stop(container_of(handle, struct app, on_term));
}

static void on_int(uv_signal_t *handle, int number)
{
	(void)number;
	stop(container_of(handle, struct app, on_int));
}

/* ---- a successor ---- */

/* It serves on the same sockets; what runs here is finished here. */
static void on_successor_ready(void *user, int pid)
{
	struct app *app = user;

	log_info("proxy", "a successor serves", LOG_I("pid", pid));
	service_notify("MAINPID=%d", pid);
	if (app->phase != PHASE_SERVING)
		return;
	app->left_to_successor = true;
	close_admin(app, PROXY_ADMIN_HANDOVER_IDLE_MS);
	go_on(app);
	advance(app, PHASE_DRAINING);
}

static void on_successor_failed(void *user, const struct err *err)
{
	struct app *app = user;

	app->successor = NULL;
	log_error("proxy", "no successor, going on", LOG_S("reason", err->message));
}

static void on_nothing(void *user)
{
	(void)user;
}

static void on_successor_over(void *user)
{
	struct app *app = user;

	app->successor = NULL;
}

static size_t collect_sockets(const struct app *app, struct handover_socket *ret_sockets)
{
	static const char *const kinds[] = {[FRONT_PLAIN] = "plain", [FRONT_TLS] = "tls"};
	int fds[PROXY_WORKERS_MAX];
	size_t count = 0;

	for (size_t which = 0; which < FRONT_LISTENERS; which++) {
		size_t found = front_sockets(app->front, (enum front_listener)which, fds,
					     ARRAY_LENGTH(fds));

		for (size_t i = 0; i < found; i++)
			ret_sockets[count++] = (struct handover_socket){kinds[which], fds[i]};
	}
	if (app->admin)
		ret_sockets[count++] = (struct handover_socket){"admin", admin_socket(app->admin)};
	return count;
}

static struct handover_tickets copy_tickets(const struct app *app)
{
	struct handover_tickets tickets = {.len = 0};

	if (app->certificates) {
		static_assert(sizeof(tickets.keys) >= TLS_TICKET_KEYS_BYTES, "they fit");
		tickets.len = tls_server_export_tickets(tls_reload_tls(app->certificates),
							tickets.keys);
		tickets.due_ms = tls_reload_tickets_due_ms(app->certificates);
	}
	return tickets;
}

static void on_usr2(uv_signal_t *handle, int number)
{
	static const struct handover_events events = {.on_ready = on_successor_ready,
						      .on_failed = on_successor_failed,
						      .on_quiet = on_nothing,
						      .on_over = on_successor_over};
	struct app *app = container_of(handle, struct app, on_usr2);
	struct handover_socket sockets[HANDOVER_LISTENERS_MAX];
	struct handover_tickets tickets;
	struct err err;

	(void)number;
	if (app->phase != PHASE_SERVING)
		return;
	if (app->successor) {
		log_warn("proxy", "a handover is under way already");
		return;
	}
	log_info("proxy", "starting a successor");
	tickets = copy_tickets(app);
	if (handover_begin(&app->loop, app->catalog, app->argv, sockets,
			   collect_sockets(app, sockets), tickets.len ? &tickets : NULL, &events,
			   app, &app->successor, &err) < 0)
		log_error("proxy", "no successor, going on", LOG_S("reason", err.message));
	wipe(&tickets, sizeof(tickets));
}

/* ---- the beginning of the end ---- */

void app_end_hold_signals(void)
{
	mask_signals(SIG_BLOCK, other_signals, ARRAY_LENGTH(other_signals));
	/* Others open their logs anew by it. */
	sigaction(SIGUSR1, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
}

void app_end_open(struct app *app)
{
	sighup_open(&app->sighup, &app->loop);
	alarm_init(&app->alarm, on_alarm);
	message_open(&app->drained, &app->loop, on_drained);
	uv_signal_init(&app->loop.uv, &app->on_term);
	uv_signal_init(&app->loop.uv, &app->on_int);
	uv_signal_init(&app->loop.uv, &app->on_usr2);
}

void app_end_start(struct app *app)
{
	uv_signal_start(&app->on_term, on_term, SIGTERM);
	uv_signal_start(&app->on_int, on_int, SIGINT);
	uv_signal_start(&app->on_usr2, on_usr2, SIGUSR2);
	sighup_start(&app->sighup, app->access_log_fd > 2 ? app->config.access_log : NULL,
		     &app->access_sink, &app->access_log_fd, app->certificates);
	mask_signals(SIG_UNBLOCK, other_signals, ARRAY_LENGTH(other_signals));
}
