/* Puts the parts together: catalog, workers, admin API. */
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "build_info.h"
#include "lib/json.h"
#include "lib/log.h"
#include "lib/process_metrics.h"
#include "proxy/app.h"
#include "proxy/dev_certificate.h"
#include "proxy/front/metrics.h"
#include "proxy/limits.h"
#include "proxy/relay/fixed_upstream.h"
#include "proxy/privileges.h"
#include "proxy/service_notify.h"

static int complain(const struct err *err)
{
	fprintf(stderr, "proxy: %s\n", err->message);
	return EXIT_FAILURE;
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
	app->access_log_fd = sighup_open_log(app->config.access_log, err);
	if (app->access_log_fd < 0)
		return app->access_log_fd;
	access_sink_open(&app->access_sink, app->access_log_fd);
	return 0;
}

/* Before what the command line says of sandboxes: those keep their lifecycles. */
static int inherit_catalog(struct app *app, struct err *err)
{
	bool complete;
	int status;

	if (!app->predecessor)
		return 0;
	status = handover_read_catalog(app->predecessor, app->catalog, &complete, err);
	if (status == 0 && complete)
		catalog_set_complete(app->catalog, true);
	return status;
}

static int drop_privileges(struct app *app, struct err *err)
{
	return app->config.user ? privileges_drop(app->config.user, app->access_log_fd, err) : 0;
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
	struct prometheus p = {.b = b};
	struct app *app = user;

	if (metrics_write(b, app->front, app->catalog, &app->hosts, app->certificates) < 0)
		return -1;
	if (waking_write_metrics(b, &app->waking) < 0 || sighup_write_metrics(b, &app->sighup) < 0)
		return -1;
	process_metrics_write_build(&p, "proxy_build_info", BUILD_VERSION, BUILD_COMMIT,
				    BUILD_PROFILE);
	process_metrics_write(&p);
	if (p.status < 0)
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
	struct handover_tickets tickets;
	int status;

	if (app->config.listen_tls.none)
		return 0;
	status = tls_reload_open(&app->loop, sources->items, sources->count, &app->certificates,
				 err);
	if (status == 0 && handover_take_tickets(app->predecessor, &tickets)) {
		if (!tls_reload_import_tickets(app->certificates, tickets.keys, tickets.len,
					       tickets.due_ms))
			log_warn("proxy",
				 "sessions begin anew: the predecessor's ticket keys are others");
		wipe(&tickets, sizeof(tickets));
	}
	return status;
}

static int take_socket(void *user, enum front_listener which)
{
	struct app *app = user;

	return handover_take_socket(app->predecessor, which == FRONT_TLS ? "tls" : "plain");
}

/* "NAME=http://HOST[:PORT]" */
static int add_host(struct app *app, const char *text, struct err *err)
{
	const char *equals = strchr(text, '=');
	struct fixed_upstream *upstream;
	auto_free char *name = NULL;
	int status;

	if (!equals)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "a host is given as NAME=http://HOST[:PORT]");
	name = xstrndup(text, (size_t)(equals - text));
	status = fixed_upstream_open(str_of(equals + 1), name, (size_t)app->config.workers,
				     &upstream, err);
	if (status < 0)
		return status;
	/* The name is in argv, which stays. */
	status = host_table_add(&app->hosts, (struct str){text, (size_t)(equals - text)},
				relay_dispatch_fixed, upstream, err);
	if (status < 0)
		fixed_upstream_close(upstream);
	return status;
}

static int add_hosts(struct app *app, struct err *err)
{
	for (size_t i = 0; i < app->config.hosts.count; i++) {
		int status = add_host(app, app->config.hosts.items[i], err);

		if (status < 0) {
			err_wrap(err, "-host %s", app->config.hosts.items[i]);
			return status;
		}
	}
	return 0;
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
		.hosts = &app->hosts,
		.access_sink = app->access_log_fd >= 0 ? &app->access_sink : NULL,
		.heap_keeper = &app->heap_keeper,
		.descriptors = app->descriptors,
		.load_balancers = &app->config.load_balancers,
		.connections_max = (size_t)app->config.connections_max,
		.drain_ms = (unsigned)app->config.drain_ms,
		.take_socket = take_socket,
		.on_drained = app_end_drained,
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
		.socket = handover_take_socket(app->predecessor, "admin"),
		.address = app->config.admin.address,
		.port = app->config.admin.port,
		.token = app->token,
		.catalog = app->catalog,
		.writer = &app->writer,
		.guard = &app->guard,
		.certificates = app->certificates,
		.write_metrics = write_metrics,
		.user = app,
	};

	app->writer = (struct record_writer){app->catalog, sources_redis(app->sources)};
	return app->config.admin.none ? 0 : admin_open(&app->loop, &config, &app->admin, err);
}

static void format_endpoint(const struct config_endpoint *endpoint, unsigned port, char *ret_text,
			    size_t size)
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
	if (app->admin && str_starts_with(str_of(app->config.admin.address), STR("unix:"))) {
		printf(", admin on %s", app->config.admin.address);
	} else if (app->admin) {
		format_endpoint(&app->config.admin, admin_port(app->admin), text, sizeof(text));
		printf(", admin on %s", text);
	}
	printf("\n");
	fflush(NULL);
}

/* Each worker has a socket of each kind, and none may be left without one. */
static void adopt_workers(struct app *app)
{
	size_t count = size_max(handover_count(app->predecessor, "plain"),
				handover_count(app->predecessor, "tls"));

	if (count > 0 && count != (size_t)app->config.workers)
		log_warn("proxy", "the number of workers stays as it was until a full restart",
			 LOG_I("workers", count));
	if (count > 0)
		app->config.workers = (int64_t)count;
}

static void on_predecessor_over(void *user)
{
	struct app *app = user;

	app->predecessor = NULL;
	app_end_predecessor_quiet(app);
}

/* Whoever waits for this process goes on now. */
static int announce(struct app *app, struct err *err)
{
	static const struct handover_events events = {.on_quiet = app_end_predecessor_quiet,
						      .on_over = on_predecessor_over};

	print_ready(app);
	if (app->predecessor)
		return handover_say_ready(app->predecessor, &app->loop, &events, app, err);
	service_notify("READY=1");
	return 0;
}

static int start(struct app *app, struct err *err)
{
	app_end_open(app);
	if (heap_keeper_open(&app->heap_keeper, err) < 0 || read_token(app, err) < 0 ||
	    open_access_log(app, err) < 0 || inherit_catalog(app, err) < 0 ||
	    add_sandboxes(app, err) < 0 || add_hosts(app, err) < 0 ||
	    open_certificates(app, err) < 0 ||
	    waking_open(&app->waking, &app->loop, app->catalog, &app->config, err) < 0 ||
	    sources_open(&app->loop, app->catalog, &app->config.sources, &app->sources, err) < 0 ||
	    open_front(app, err) < 0 || open_admin(app, err) < 0 || drop_privileges(app, err) < 0 ||
	    front_start(app->front, err) < 0)
		return -1;
	app_end_start(app);
	return 0;
}

int main(int argc, char **argv)
{
	static struct app app;
	struct err err;

	occupy_standard_descriptors();
	if (argc > 1 && strcmp(argv[1], "dev-certificate") == 0)
		return dev_certificate_main(argc - 1, argv + 1);
	app_end_hold_signals();
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
	sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_IGN},
		  NULL); /* a log that may not grow */
	app.descriptors = raise_descriptor_limit();
	json_init();
	job_pool_configure();
	job_pool_start();
	loop_init(&app.loop);
	app.argv = argv;
	if (handover_inherit(&app.predecessor, &err) < 0)
		return complain(&err);
	app.predecessor_quiet = !app.predecessor;
	adopt_workers(&app);
	app.catalog = catalog_new((size_t)app.config.workers, PROXY_SANDBOXES_MAX,
				  PROXY_CHANGES_KEPT);
	catalog_set_complete(app.catalog, !app.config.incomplete);
	address_guard_init(&app.guard, app.config.allow_loopback);
	if (start(&app, &err) < 0)
		return complain(&err);
	if (announce(&app, &err) < 0)
		return complain(&err);
	loop_run(&app.loop);
	front_close(app.front);
	heap_keeper_close(&app.heap_keeper);
	if (app.admin)
		admin_free(app.admin);
	if (app.certificates)
		tls_reload_free(app.certificates);
	loop_fini(&app.loop);
	for (size_t i = 0; i < app.hosts.count; i++)
		fixed_upstream_close(app.hosts.items[i].user);
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
