/*
 * Requests that only look whether something is there (contract/proxy.md S31): those of monitoring
 * that would keep sandboxes awake, or wake them again and again. They are relayed to sandboxes that
 * run, and neither wake one nor count as activity. Which they are the operator says.
 */
#ifndef PROXY_RELAY_PROBE_H
#define PROXY_RELAY_PROBE_H

#include "lib/http.h"
#include "proxy/limits.h"

struct probe_rule {
	struct str method, path; /* "*" = any */
	unsigned port; /* 0 = any */
};

struct probe_rules {
	struct probe_rule items[PROXY_PROBES_MAX];
	size_t count;
};

/* "METHOD PORT PATH", such as "GET 49983 /health" or "HEAD * *"; borrowed. -EINVAL, -ENOSPC. */
int probe_rules_add(struct probe_rules *rules, struct str text) NODISCARD;
/* Paths compare byte by byte, without the query. */
bool probe_rules_match(const struct probe_rules *rules, const struct http_request *request,
		       unsigned port);

#endif
