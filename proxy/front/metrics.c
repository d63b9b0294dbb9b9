#include "proxy/front/metrics.h"

#include "lib/stream_uv.h"
#include "lib/tls/tls_reload.h"

struct metric {
	const char *name, *type, *help;
	uint64_t value;
};

static int write_tls(struct buf *b, const struct front_totals *t)
{
	return buf_printf(b,
			  "# HELP proxy_tls_handshakes_total TLS handshakes by how they ended.\n"
			  "# TYPE proxy_tls_handshakes_total counter\n"
			  "proxy_tls_handshakes_total{result=\"ok\",version=\"TLSv1.2\"} %llu\n"
			  "proxy_tls_handshakes_total{result=\"ok\",version=\"TLSv1.3\"} %llu\n"
			  "proxy_tls_handshakes_total{result=\"failed\"} %llu\n"
			  "proxy_tls_handshakes_total{result=\"timeout\"} %llu\n"
			  "proxy_tls_handshakes_total{result=\"left\"} %llu\n"
			  "proxy_tls_handshakes_total{result=\"plain_http\"} %llu\n"
			  "# HELP proxy_tls_resumed_total Of the successful ones, those that "
			  "resumed a session.\n"
			  "# TYPE proxy_tls_resumed_total counter\n"
			  "proxy_tls_resumed_total %llu\n",
			  (unsigned long long)t->tls_12, (unsigned long long)t->tls_13,
			  (unsigned long long)t->tls_failed, (unsigned long long)t->tls_timed_out,
			  (unsigned long long)t->tls_left, (unsigned long long)t->tls_plain_http,
			  (unsigned long long)t->tls_resumed);
}

static int write_certificates(struct buf *b, struct tls_reload *certificates)
{
	struct tls_reload_totals t;

	tls_reload_totals(certificates, &t);
	return buf_printf(
		b,
		"# HELP proxy_certificates Certificates in use.\n"
		"# TYPE proxy_certificates gauge\nproxy_certificates %zu\n"
		"# HELP proxy_certificates_expire_seconds When the first of them expires, Unix "
		"time.\n# TYPE proxy_certificates_expire_seconds gauge\n"
		"proxy_certificates_expire_seconds %lld\n"
		"# HELP proxy_certificate_reloads_total Times the certificates were read again.\n"
		"# TYPE proxy_certificate_reloads_total counter\n"
		"proxy_certificate_reloads_total %llu\n"
		"# HELP proxy_certificate_reload_failures_total Of these, those that kept an old "
		"one for want of a usable new one.\n"
		"# TYPE proxy_certificate_reload_failures_total counter\n"
		"proxy_certificate_reload_failures_total %llu\n",
		t.certificates, (long long)t.expires_s, (unsigned long long)t.done,
		(unsigned long long)t.failed);
}

/* What clients were answered, by whomever, and how long it took. */
static int write_answers(struct buf *b, const struct front_totals *t)
{
	static const char *const classes[RELAY_STATUS_CLASSES] = {"other", "1xx", "2xx",
								  "3xx",   "4xx", "5xx"};
	int status = buf_append_str(b, STR("# HELP proxy_responses_total Responses that have "
					   "begun, by the class of their status.\n"
					   "# TYPE proxy_responses_total counter\n"));

	for (size_t i = 0; i < RELAY_STATUS_CLASSES && status == 0; i++)
		status = buf_printf(b, "proxy_responses_total{code=\"%s\"} %llu\n", classes[i],
				    (unsigned long long)t->responses[i]);
	if (status == 0)
		status = histogram_write_seconds(b, &t->durations, &histogram_milliseconds,
						 "proxy_request_duration_seconds",
						 "How long requests and tunnels took.");
	if (status == 0)
		status = histogram_write_seconds(
			b, &t->first_bytes, &histogram_milliseconds,
			"proxy_time_to_first_byte_seconds",
			"From the request's head to the beginning of the response.");
	return status;
}

/* The names that dashboards for E2B's two proxies know, which are one here
 * (contract/proxy.md 1.18). */
static int write_known_names(struct buf *b, const struct front_totals *t)
{
	static const char *const prefixes[] = {"client_proxy_proxy", "orchestrator_proxy"};
	const struct {
		const char *name, *help;
		uint64_t value;
	} gauges[] = {
		{"server_connections_open", "Connections of clients.", t->connections},
		{"pool_connections_open", "Connections to sandboxes, at work or kept.",
		 t->upstreams + t->idle_upstreams},
		{"pool_size", "Sandboxes that have connections, counted by worker.", t->groups},
	};
	int status = 0;

	for (size_t i = 0; i < ARRAY_LENGTH(prefixes) * ARRAY_LENGTH(gauges) && status == 0; i++) {
		const char *prefix = prefixes[i / ARRAY_LENGTH(gauges)];
		size_t g = i % ARRAY_LENGTH(gauges);

		status = buf_printf(b, "# HELP %s_%s %s\n# TYPE %s_%s gauge\n%s_%s %llu\n", prefix,
				    gauges[g].name, gauges[g].help, prefix, gauges[g].name, prefix,
				    gauges[g].name, (unsigned long long)gauges[g].value);
	}
	if (status == 0)
		status = buf_printf(
			b,
			"# HELP orchestrator_proxy_connections_blocked_total Refused by a "
			"connection "
			"limit.\n# TYPE orchestrator_proxy_connections_blocked_total counter\n"
			"orchestrator_proxy_connections_blocked_total %llu\n",
			(unsigned long long)t->errors[ERROR_LIMIT]);
	if (status == 0)
		status = histogram_write(b, &t->durations, &histogram_milliseconds,
					 "orchestrator_proxy_connection_duration_milliseconds",
					 "How long requests and tunnels took.");
	if (status == 0)
		status = histogram_write(b, &t->per_sandbox, &histogram_amounts,
					 "orchestrator_proxy_connections_per_sandbox",
					 "How many a sandbox had when one more came.");
	return status;
}

/* What clients have at once, and what was refused because they have (relay/clients.h). */
static int write_shares(struct buf *b, const struct front_totals *t)
{
	static const char *const bounds[CLIENT_BOUNDS] = {
		[CLIENT_BOUND_CLIENT] = "client",
		[CLIENT_BOUND_SANDBOX] = "sandbox",
		[CLIENT_BOUND_ALL] = "all",
	};
	const struct clients_totals *c = &t->clients;
	int status = buf_append_str(b, STR("# HELP proxy_exchanges_refused_total Requests that "
					   "were one too many, by whose share.\n"
					   "# TYPE proxy_exchanges_refused_total counter\n"));

	for (size_t i = CLIENT_BOUND_CLIENT; i < CLIENT_BOUNDS && status == 0; i++)
		status = buf_printf(b, "proxy_exchanges_refused_total{by=\"%s\"} %llu\n", bounds[i],
				    (unsigned long long)c->exchanges_refused[i]);
	if (status == 0)
		status = buf_printf(b,
				    "# HELP proxy_heads_refused_total Times there was no memory "
				    "for message heads, by whose "
				    "share.\n# TYPE proxy_heads_refused_total counter\n"
				    "proxy_heads_refused_total{by=\"client\"} %llu\n"
				    "proxy_heads_refused_total{by=\"all\"} %llu\n",
				    (unsigned long long)c->heads_refused[CLIENT_BOUND_CLIENT],
				    (unsigned long long)c->heads_refused[CLIENT_BOUND_ALL]);
	return status;
}

static int write_hosts(struct buf *b, const struct host_table *hosts)
{
	static const struct {
		const char *name, *help;
		size_t offset;
	} counters[] = {
		{"proxy_host_requests_total", "Requests for hosts that are not sandboxes'.",
		 offsetof(struct host_entry, requests)},
		{"proxy_host_errors_total", "Of these, those that the proxy answered by itself.",
		 offsetof(struct host_entry, errors)},
	};
	int status = 0;

	for (size_t i = 0; i < ARRAY_LENGTH(counters) && hosts->count > 0 && status == 0; i++) {
		status = buf_printf(b, "# HELP %s %s\n# TYPE %s counter\n", counters[i].name,
				    counters[i].help, counters[i].name);
		for (size_t j = 0; j < hosts->count && status == 0; j++) {
			const struct host_entry *host = &hosts->items[j];
			const _Atomic uint64_t *counter = (const void *)((const char *)host +
									 counters[i].offset);

			status = buf_printf(b, "%s{host=\"%.*s\"} %llu\n", counters[i].name,
					    (int)host->name.len, host->name.p,
					    (unsigned long long)counter_read(counter));
		}
	}
	return status;
}

int metrics_write(struct buf *b, const struct front *front, struct catalog *catalog,
		  const struct host_table *hosts, struct tls_reload *certificates)
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
		{"proxy_upstream_idle", "gauge", "Connections kept to sandboxes.",
		 t.idle_upstreams},
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
		{"proxy_http2_heads_refused_total", "counter",
		 "Streams refused because there was no memory for their heads.",
		 t.http2_heads_refused},
		{"proxy_http2_shares_refused_total", "counter",
		 "Streams refused because their client leaves its refusals waiting.",
		 t.http2_shares_refused},
		{"proxy_clients", "gauge", "Client addresses that have something open.",
		 t.clients.clients},
		{"proxy_exchanges_max", "gauge", "Requests and tunnels that may be open at once.",
		 t.clients.exchanges_max},
		{"proxy_heads_bytes", "gauge",
		 "Memory for message heads, beyond what is exempt of each exchange.",
		 t.clients.heads_bytes},
		{"proxy_http2_bodies_bytes", "gauge",
		 "What HTTP/2 connections with larger uploads may have under way together.",
		 t.clients.bodies_bytes},
		{"proxy_streams_queued_bytes", "gauge",
		 "What clients and sandboxes have not taken yet.", stream_uv_queued_bytes()},
		{"proxy_http2_calmed_total", "counter",
		 "HTTP/2 connections ended because their client floods.", t.http2_calmed},
		{"proxy_http2_lost_total", "counter",
		 "HTTP/2 connections ended because their client gave no sign of life.",
		 t.http2_lost},
		{"proxy_http2_connections_resting", "gauge",
		 "HTTP/2 connections without a request that have given most of their memory back.",
		 t.http2_resting},
		{"proxy_addresses_refused_total", "counter",
		 "Addresses that must not be dialled and were not.", t.addresses_refused},
		{"proxy_sandboxes", "gauge", "Sandboxes in the catalog.", catalog_count(catalog)},
	};

	for (size_t i = 0; i < ARRAY_LENGTH(metrics) && status == 0; i++)
		status = buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n%s %llu\n", metrics[i].name,
				    metrics[i].help, metrics[i].name, metrics[i].type,
				    metrics[i].name, (unsigned long long)metrics[i].value);
	if (status == 0)
		status = write_answers(b, &t);
	if (status == 0)
		status = write_shares(b, &t);
	if (status == 0)
		status = write_hosts(b, hosts);
	if (status == 0)
		status = write_known_names(b, &t);
	if (status == 0)
		status = write_tls(b, &t);
	if (status == 0 && certificates)
		status = write_certificates(b, certificates);
	if (status == 0)
		status = buf_append_str(
			b, STR("# HELP proxy_errors_total Answers by the proxy itself.\n"
			       "# TYPE proxy_errors_total counter\n"));
	for (size_t i = 0; i < ERROR_CAUSES && status == 0; i++)
		status = buf_printf(b, "proxy_errors_total{class=\"%s\"} %llu\n",
				    error_cause_name((enum error_cause)i),
				    (unsigned long long)t.errors[i]);
	return status;
}
