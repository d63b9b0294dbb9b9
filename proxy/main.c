/* Puts the parts together: catalog, workers, admin API, signals, and an orderly end. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/json.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "proxy/admin/admin.h"
#include "proxy/config.h"
#include "proxy/front/front.h"
#include "proxy/front/metrics.h"
#include "proxy/front/tls_development.h"
#include "proxy/front/tls_reload.h"
#include "proxy/route/sources.h"
#include "proxy/token_file.h"
#include "proxy/waking.h"

/* The admin API's last answers get this long. */
#define ADMIN_GRACE_MS 500

enum phase { PHASE_SERVING, PHASE_ANNOUNCED, PHASE_DRAINING, PHASE_ABORTING, PHASE_ENDING };

struct app {
	struct config config;
	struct loop loop;
	struct catalog *catalog;
	struct address_guard guard;
	struct relay_options relay_options;
	struct waking waking;
	struct sources *sources;
	struct front *front;
	struct tls_reload *certificates; /* NULL: no TLS */
	struct admin *admin;
	uv_signal_t on_term, on_int;
	uv_timer_t timer;
	uv_async_t drained;
	enum phase phase;
	char token[TOKEN_FILE_BYTES_MAX + 1];
	int access_log_fd; /* -1: none */
	struct access_sink access_sink;
	size_t descriptors;
};

/* ---- the end ---- */

static void on_admin_closed(void *user)
{
	struct app *app = user;
	sigset_t signals;

	/* One that comes in the last moment must not turn an orderly end into a death by signal. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	sources_close(app->sources);
	if (app->certificates)
		tls_reload_close(app->certificates);
	uv_close((uv_handle_t *)&app->timer, NULL);
	uv_close((uv_handle_t *)&app->drained, NULL);
	uv_close((uv_handle_t *)&app->on_term, NULL);
	uv_close((uv_handle_t *)&app->on_int, NULL);
}

static void on_time(uv_timer_t *timer);

static void advance(struct app *app, enum phase phase)
{
	app->phase = phase;
	switch (phase) {
	case PHASE_SERVING:
		break;
	case PHASE_ANNOUNCED:
		log_info("proxy", "draining");
		if (app->admin)
			admin_set_draining(app->admin);
		uv_timer_start(&app->timer, on_time, (uint64_t)app->config.drain_delay_ms, 0);
		break;
	case PHASE_DRAINING:
		front_drain(app->front);
		uv_timer_start(&app->timer, on_time, (uint64_t)app->config.drain_ms, 0);
		break;
	case PHASE_ABORTING:
		log_info("proxy", "resetting what is left");
		front_abort(app->front);
		uv_timer_start(&app->timer, on_time, SHUTDOWN_HARD_MS, 0);
		break;
	case PHASE_ENDING:
		waking_close(&app->waking);
		if (!app->admin) {
			on_admin_closed(app);
			break;
		}
		uv_timer_start(&app->timer, on_time, ADMIN_GRACE_MS, 0);
		admin_close(app->admin, on_admin_closed, app);
		break;
	}
}

static void on_time(uv_timer_t *timer)
{
	struct app *app = container_of(timer, struct app, timer);

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
		admin_abort(app->admin);
		break;
	}
}

static void on_drained(uv_async_t *async)
{
	struct app *app = container_of(async, struct app, drained);

	if (app->phase < PHASE_ENDING)
		advance(app, PHASE_ENDING);
}

/* On a worker's thread. */
static void wake_drained(void *user)
{
	struct app *app = user;

	uv_async_send(&app->drained);
}

/* The first signal drains, the second does not wait any longer. */
static void stop(struct app *app)
{
	if (app->phase == PHASE_SERVING)
		advance(app, PHASE_ANNOUNCED);
	else if (app->phase == PHASE_ANNOUNCED)
		advance(app, PHASE_DRAINING);
	else if (app->phase == PHASE_DRAINING)
		advance(app, PHASE_ABORTING);
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

/* ---- the beginning ---- */

static int complain(const struct err *err)
{
	fprintf(stderr, "proxy: %s\n", err->message);
	return -1;
}

/* Two descriptors a proxied connection: the default of 1024 is for other programs. */
static size_t raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 1024;
	if (limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
		getrlimit(RLIMIT_NOFILE, &limit);
	}
	return (size_t)limit.rlim_cur;
}

static int read_token(struct app *app, struct err *err)
{
	return app->config.admin_token_file
		       ? token_file_read(app->config.admin_token_file, app->token, err)
		       : 0;
}

static int open_access_log(struct app *app, struct err *err)
{
	app->access_log_fd = -1;
	if (!app->config.access_log)
		return 0;
	if (strcmp(app->config.access_log, "-") == 0) {
		app->access_log_fd = 1;
		access_sink_open(&app->access_sink, app->access_log_fd);
		return 0;
	}
	app->access_log_fd =
		open(app->config.access_log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
	if (app->access_log_fd < 0)
		return err_set_sys(err, ERR_INVALID_ARGUMENT, errno, "open %s",
				   app->config.access_log);
	access_sink_open(&app->access_sink, app->access_log_fd);
	return 0;
}

static int add_sandboxes(struct app *app, struct err *err)
{
	for (size_t i = 0; i < app->config.sandboxes.count; i++) {
		auto_free char *memory = xstrdup(app->config.sandboxes.items[i]);
		struct sandbox_entry entry;
		int status = config_parse_sandbox(memory, &entry, err);

		if (status == 0)
			status = catalog_put(app->catalog, &entry, "", NULL, err);
		if (status < 0) {
			err_wrap(err, "-sandbox %s", memory);
			return status;
		}
	}
	return 0;
}

static int write_metrics(struct buf *b, void *user)
{
	struct app *app = user;

	if (metrics_write(b, app->front, app->catalog, app->certificates) < 0)
		return -1;
	if (waking_write_metrics(b, &app->waking) < 0)
		return -1;
	return sources_write_metrics(app->sources, b);
}

static struct front_address listen_address(const struct config_endpoint *endpoint)
{
	return (struct front_address){endpoint->none ? NULL : endpoint->address, endpoint->port};
}

static int open_certificates(struct app *app, struct err *err)
{
	const struct option_list *sources = &app->config.certificates;

	if (app->config.listen_tls.none)
		return 0;
	return tls_reload_open(&app->loop, sources->items, sources->count, &app->certificates, err);
}

static int open_front(struct app *app, struct err *err)
{
	const struct front_config config = {
		.listen = {[FRONT_PLAIN] = listen_address(&app->config.listen),
			   [FRONT_TLS] = listen_address(&app->config.listen_tls)},
		.tls = app->certificates ? tls_reload_tls(app->certificates) : NULL,
		.workers = (size_t)app->config.workers,
		.catalog = app->catalog,
		.wake = app->waking.wake,
		.lookups = sources_lookups(app->sources),
		.guard = &app->guard,
		.options = &app->relay_options,
		.access_sink = app->access_log_fd >= 0 ? &app->access_sink : NULL,
		.descriptors = app->descriptors,
		.on_drained = wake_drained,
		.user = app,
	};

	app->relay_options = (struct relay_options){
		.default_sandbox = app->config.default_sandbox,
		.forwarded_fields = app->config.forwarded_fields,
		.wake_unknown = app->config.wake_unknown,
		.probes = &app->config.probes,
		.embed_origins = &app->config.embed_origins,
		.behind_tls = app->config.behind_tls,
		.access_cookie_seconds = app->config.access_cookie_seconds,
		.reuse_user_ports = app->config.reuse_user_ports,
	};
	return front_open(&config, &app->front, err);
}

static int open_admin(struct app *app, struct err *err)
{
	const struct admin_config config = {
		.address = app->config.admin.address,
		.port = app->config.admin.port,
		.token = app->token,
		.catalog = app->catalog,
		.redis = sources_redis(app->sources),
		.guard = &app->guard,
		.certificates = app->certificates,
		.write_metrics = write_metrics,
		.user = app,
	};

	return app->config.admin.none ? 0 : admin_open(&app->loop, &config, &app->admin, err);
}

static void format_endpoint(const struct config_endpoint *endpoint, unsigned port,
			    char *ret_text, size_t size)
{
	union address address;

	if (address_parse(str_of(endpoint->address), &address) < 0)
		return;
	address_set_port(&address, port);
	address_format(&address, ret_text, size);
}

static void print_ready(const struct app *app)
{
	char text[ADDRESS_TEXT_BYTES] = "";

	if (!app->config.listen.none)
		format_endpoint(&app->config.listen, front_port(app->front, FRONT_PLAIN), text,
				sizeof(text));
	printf("proxy listening on %s", app->config.listen.none ? "none" : text);
	if (!app->config.listen_tls.none) {
		format_endpoint(&app->config.listen_tls, front_port(app->front, FRONT_TLS), text,
				sizeof(text));
		printf(", TLS on %s", text);
	}
	if (app->admin) {
		format_endpoint(&app->config.admin, admin_port(app->admin), text, sizeof(text));
		printf(", admin on %s", text);
	}
	printf("\n");
	fflush(NULL);
}

static int start(struct app *app, struct err *err)
{
	uv_timer_init(&app->loop.uv, &app->timer);
	uv_async_init(&app->loop.uv, &app->drained, on_drained);
	uv_signal_init(&app->loop.uv, &app->on_term);
	uv_signal_init(&app->loop.uv, &app->on_int);
	if (read_token(app, err) < 0 || open_access_log(app, err) < 0 ||
	    add_sandboxes(app, err) < 0 || open_certificates(app, err) < 0 ||
	    waking_open(&app->waking, &app->loop, app->catalog, &app->config, err) < 0 ||
	    sources_open(&app->loop, app->catalog, &app->config.sources, &app->sources, err) < 0 ||
	    open_front(app, err) < 0 || open_admin(app, err) < 0 ||
	    front_start(app->front, err) < 0)
		return -1;
	uv_signal_start(&app->on_term, on_term, SIGTERM);
	uv_signal_start(&app->on_int, on_int, SIGINT);
	return 0;
}

int main(int argc, char **argv)
{
	static struct app app;
	struct err err;

	if (argc > 1 && strcmp(argv[1], "dev-certificate") == 0)
		return tls_development_main(argc - 1, argv + 1);
	switch (config_read(&app.config, argc, argv)) {
	case OPTIONS_OK:
		break;
	case OPTIONS_HELP:
		return 0;
	case OPTIONS_BAD:
		return 2;
	}
	log_init(app.config.verbose ? LOG_DEBUG : LOG_INFO, LOG_JSON, 2);
	sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
	app.descriptors = raise_descriptor_limit();
	json_init();
	job_pool_configure();
	loop_init(&app.loop);
	app.catalog = catalog_new((size_t)app.config.workers, PROXY_SANDBOXES_MAX,
				  PROXY_CHANGES_KEPT);
	catalog_set_complete(app.catalog, !app.config.incomplete);
	address_guard_init(&app.guard, app.config.allow_loopback);
	if (start(&app, &err) < 0)
		return complain(&err) ? 1 : 0;
	print_ready(&app);
	loop_run(&app.loop);
	front_close(app.front);
	if (app.admin)
		admin_free(app.admin);
	if (app.certificates)
		tls_reload_free(app.certificates);
	loop_fini(&app.loop);
	catalog_free(app.catalog);
	if (app.access_log_fd >= 0)
		access_sink_close(&app.access_sink);
	if (app.access_log_fd > 2)
		close_fd(&app.access_log_fd);
	wipe(app.token, sizeof(app.token));
	config_fini(&app.config);
	log_info("proxy", "ended");
	return 0;
}
