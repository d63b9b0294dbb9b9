#include "proxy/front/metrics.h"

struct metric {
	const char *name, *type, *help;
	uint64_t value;
};

int metrics_write(struct buf *b, const struct front *front, struct catalog *catalog)
{
	struct front_totals t;
	int status = 0;

	front_totals(front, &t);
	const struct metric metrics[] = {
		{"proxy_requests_total", "counter", "Requests received.", t.requests},
		{"proxy_tunnels_total", "counter", "Upgrades that became tunnels.", t.tunnels},
		{"proxy_active_exchanges", "gauge", "Requests and tunnels being served.", t.active},
		{"proxy_replays_total", "counter",
		 "Requests sent again because a kept connection was dead.", t.replays},
		{"proxy_dials_total", "counter", "Connections attempted to sandboxes.", t.dials},
		{"proxy_dial_retries_total", "counter", "Waits between attempts.", t.retries},
		{"proxy_upstream_reused_total", "counter", "Requests sent on a kept connection.",
		 t.reused},
		{"proxy_upstream_idle", "gauge", "Connections kept to sandboxes.", t.idle_upstreams},
		{"proxy_cut_by_client_total", "counter", "Exchanges that the client left.",
		 t.cut_by_client},
		{"proxy_cut_by_sandbox_total", "counter",
		 "Responses that the sandbox's side cut short.", t.cut_by_sandbox},
		{"proxy_access_log_dropped_total", "counter",
		 "Lines of the access log that found no room.", t.access_log_dropped},
		{"proxy_http2_connections_total", "counter", "Connections that spoke HTTP/2.",
		 t.http2_sessions},
		{"proxy_http2_requests_total", "counter", "Requests that came by HTTP/2.",
		 t.http2_requests},
		{"proxy_http2_refused_total", "counter",
		 "Streams refused because their connection had too many.", t.http2_refused},
		{"proxy_http2_calmed_total", "counter",
		 "HTTP/2 connections ended because their client floods.", t.http2_calmed},
		{"proxy_http2_lost_total", "counter",
		 "HTTP/2 connections ended because their client gave no sign of life.", t.http2_lost},
		{"proxy_sandboxes", "gauge", "Sandboxes in the catalog.", catalog_count(catalog)},
	};

	for (size_t i = 0; i < ARRAY_LENGTH(metrics) && status == 0; i++)
		status = buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n%s %llu\n", metrics[i].name,
				    metrics[i].help, metrics[i].name, metrics[i].type, metrics[i].name,
				    (unsigned long long)metrics[i].value);
	if (status == 0)
		status = buf_append_str(b, STR("# HELP proxy_errors_total Answers by the proxy itself.\n"
					       "# TYPE proxy_errors_total counter\n"));
	for (size_t i = 0; i < ERROR_CAUSES && status == 0; i++)
		status = buf_printf(b, "proxy_errors_total{class=\"%s\"} %llu\n",
				    error_cause_name((enum error_cause)i),
				    (unsigned long long)t.errors[i]);
	return status;
}
