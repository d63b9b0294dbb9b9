#include "envd/numbers.h"

#include "build_info.h"
#include "envd/app.h"
#include "envd/filesystem/files.h"
#include "envd/filesystem/lease.h"
#include "envd/jobs/job_table.h"
#include "envd/limits.h"
#include "envd/process/process_table.h"
#include "envd/rpc/rpc.h"
#include "envd/forward/forwarder.h"
#include "envd/init/init_service.h"
#include "envd/host/log_exporter.h"
#include "lib/descriptors.h"
#include "lib/http_server.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "lib/process_metrics.h"
#include "lib/stream_uv.h"

#define NAME_BYTES 64

/* "envd_<what>" and "envd_<what>_max", or with "_bytes" behind <what>. */
static void write_bound(struct prometheus *p, const char *what, const char *help, double now,
			double max)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), "envd_%s", what);
	prometheus_gauge(p, name, help, now);
	snprintf(name, sizeof(name), "envd_%s_max", what);
	prometheus_gauge(p, name, "The most of these that there may be.", max);
}

static void write_budget(struct prometheus *p, const char *what, const char *help,
			 const struct budget *budget)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), "%s_bytes", what);
	write_bound(p, name, help, (double)budget->used, (double)budget->max);
	snprintf(name, sizeof(name), "envd_%s_refused_total", what);
	prometheus_counter(p, name, "Times that there was no room for more of these bytes.",
			   (double)budget->refused);
}

static void write_server(struct prometheus *p, const struct app *app)
{
	const struct http_server *server = app->server;
	struct http_server_totals totals = http_server_totals(server);

	write_bound(p, "connections", "Connections of clients.",
		    (double)http_server_connections(server),
		    (double)http_server_config_of(server)->connections_max);
	prometheus_counter(p, "envd_connections_refused_total",
			   "Connections turned away because there was no room.",
			   (double)totals.turned_away);
	prometheus_counter(p, "envd_connections_evicted_total",
			   "Connections without a request that were closed for others.",
			   (double)totals.evicted);
	prometheus_counter(p, "envd_descriptors_refused_total",
			   "Work that was refused because descriptors are scarce.",
			   (double)descriptors_refused());
	write_budget(p, "heads", "Request heads, beyond what is exempt of each.",
		     http_exchange_budget());
	write_bound(p, "streams_queued_bytes", "What clients and programs have not taken yet.",
		    (double)stream_uv_queued_bytes(), STREAMS_QUEUED_BYTES_MAX);
	write_budget(p, "rpc_messages", "Messages of calls, beyond what is exempt of each.",
		     rpc_messages_budget());
	write_budget(p, "rpc_replies", "Answers of calls that clients have not taken yet.",
		     rpc_replies_budget());
	write_budget(p, "init_bodies", "Bodies of /init, beyond what is exempt of each.",
		     init_bodies_budget());
}

static void write_files(struct prometheus *p)
{
	struct lease_totals leases = lease_totals();

	prometheus_gauge(p, "envd_transfers", "Uploads and downloads that have begun.",
			 (double)files_transfer_count());
	write_budget(p, "upload_names", "Names of uploaded files until they are answered.",
		     files_names_budget());
	write_budget(p, "compose_bodies", "Bodies of requests to join files.",
		     files_compose_bodies_budget());
	write_budget(p, "compose", "What is made of these.", files_compose_budget());
	write_bound(p, "lease_waits", "Files waited for because somebody has a lease on them.",
		    leases.waiting, FILE_LEASE_WAITS_MAX);
	prometheus_counter(p, "envd_lease_waits_total", "Times that a lease was waited for.",
			   (double)leases.waits);
	prometheus_counter(p, "envd_lease_conflicts_total",
			   "Times that it was not given up, which is answered 409.",
			   (double)leases.conflicts);
}

static void write_processes(struct prometheus *p, const struct app *app)
{
	static const char cut[] = "envd_readers_cut_total";

	write_bound(p, "processes", "Commands and terminals, until their output is over.",
		    (double)app->processes->count, PROCESS_MAX);
	write_budget(p, "process_texts", "Arguments and environments of commands.",
		     spawn_texts_budget());
	write_bound(p, "process_logs_bytes", "Output kept for readers that are behind.",
		    (double)output_logs_bytes(), PROCESS_LOGS_BYTES_MAX);
	prometheus_begin(p, cut, "counter", "Readers cut off for not reading, by who waited.");
	prometheus_number(p, cut, "waited=\"process\"", (double)app->processes->cut_alone);
	prometheus_number(p, cut, "waited=\"readers\"", (double)app->processes->cut_for_others);
	write_bound(p, "jobs_running", "Background jobs.", (double)app->jobs->running_count,
		    JOBS_RUNNING_MAX);
	write_bound(p, "job_readers", "Readers of background jobs.",
		    (double)app->jobs->reader_count, JOB_READERS_MAX);
	write_bound(p, "watches", "Watches.", (double)app->watches.count, WATCHES_MAX);
	write_bound(p, "watch_events_bytes", "Events that wait to be fetched.",
		    (double)app->watches.held_bytes, WATCHERS_BYTES_MAX);
	prometheus_counter(p, "envd_watch_events_lost_total",
			   "Times that a watcher lost the events it had, to make room.",
			   (double)app->polled_watches.lost_total);
}

static void write_pool(struct prometheus *p, const struct loop *loop)
{
	static const char name[] = "envd_pool_jobs", max[] = "envd_pool_jobs_max";

	prometheus_begin(p, name, "gauge", "Blocking work that runs or waits, by kind.");
	prometheus_number(p, name, "kind=\"files\"", (double)loop->file_jobs);
	prometheus_number(p, name, "kind=\"start\"", (double)loop->start_jobs);
	prometheus_number(p, name, "kind=\"other\"", (double)loop->other_jobs);
	prometheus_begin(p, max, "gauge", "The most of these that there may be.");
	prometheus_number(p, max, "kind=\"files\"", JOB_QUEUE_MAX);
	prometheus_number(p, max, "kind=\"start\"", JOB_STARTS_QUEUE_MAX);
	prometheus_number(p, max, "kind=\"other\"", JOB_QUEUE_MAX);
	prometheus_gauge(p, "envd_pool_files_waiting", "Of those of files, what waits.",
			 (double)loop->file_jobs_waiting);
	write_bound(p, "pool_stuck", "Work that a file system keeps from ending.",
		    (double)loop->jobs_stuck, JOB_STUCK_MAX);
	prometheus_counter(p, "envd_pool_refused_total",
			   "Work refused because so much of its kind waited.",
			   (double)loop->jobs_refused);
}

void numbers_write(struct prometheus *p, void *user)
{
	const struct app *app = user;

	process_metrics_write_build(p, "envd_build_info", BUILD_VERSION, BUILD_COMMIT,
				    BUILD_PROFILE);
	process_metrics_write(p);
	write_server(p, app);
	write_files(p);
	write_processes(p, app);
	write_pool(p, &app->loop);
	if (app->forwarder) {
		prometheus_gauge(p, "envd_forwarded_ports",
				 "Ports of localhost that are forwarded.",
				 (double)forwarder_port_count(app->forwarder));
		prometheus_gauge(p, "envd_forwarded_connections", "Connections to these.",
				 (double)forwarder_connection_count(app->forwarder));
	}
	prometheus_counter(p, "envd_log_lost_total", "Lines of the log that found no room.",
			   (double)log_lines_lost());
	if (app->exporter)
		prometheus_counter(p, "envd_log_undelivered_total",
				   "Lines of the log that did not come to the collector.",
				   (double)log_exporter_lost(app->exporter));
}
