#include "proxy/relay/probe.h"

#include "proxy/limits.h"
#include "proxy/route/host_name.h"

int probe_rules_add(struct probe_rules *rules, struct str text)
{
	struct probe_rule rule = {0};
	struct str port;

	if (rules->count >= PROXY_PROBES_MAX)
		return -ENOSPC;
	if (!str_split(&text, ' ', &rule.method) || !str_split(&text, ' ', &port) || !text.p)
		return -EINVAL;
	rule.path = text;
	rule.port = host_name_port(port);
	if (!rule.method.len || (!rule.port && !str_equal(port, STR("*"))) ||
	    (!str_starts_with(rule.path, STR("/")) && !str_equal(rule.path, STR("*"))))
		return -EINVAL;
	rules->items[rules->count++] = rule;
	return 0;
}

static bool matches(struct str wanted, struct str given)
{
	return str_equal(wanted, STR("*")) || str_equal(wanted, given);
}

bool probe_rules_match(const struct probe_rules *rules, const struct http_request *request,
		       unsigned port)
{
	for (size_t i = 0; i < rules->count; i++) {
		const struct probe_rule *rule = &rules->items[i];

		if ((!rule->port || rule->port == port) && matches(rule->method, request->method) &&
		    matches(rule->path, request->path))
			return true;
	}
	return false;
}
