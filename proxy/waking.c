#include "proxy/waking.h"

#include "proxy/wake/wake_hook.h"
#include "proxy/token_file.h"

static int open_hook(struct waking *waking, struct loop *loop, struct catalog *catalog,
		     const struct config *config, struct err *err)
{
	char token[TOKEN_FILE_BYTES_MAX + 1] = "";
	const struct wake_hook_config hook = {
		.url = config->wake_url,
		.token = token,
		.catalog = catalog,
	};
	int status = 0;

	if (config->wake_token_file)
		status = token_file_read(config->wake_token_file, token, err);
	if (status == 0)
		status = wake_hook_open(loop, &hook, &waking->hook, err);
	wipe(token, sizeof(token));
	return status;
}

int waking_open(struct waking *waking, struct loop *loop, struct catalog *catalog,
		const struct config *config, struct err *err)
{
	struct wake_options options = {
		.timeout_ms = (unsigned)config->wake_timeout_ms,
		.waiters_max = (unsigned)config->wake_waiters,
	};
	int status = 0;

	if (config->wake_url)
		status = open_hook(waking, loop, catalog, config, err);
	if (status < 0)
		return status;
	if (waking->hook)
		options.waker = wake_hook_waker(waking->hook);
	waking->wake = wake_open(loop, catalog, &options);
	return 0;
}

void waking_close(struct waking *waking)
{
	wake_close(take_ptr(&waking->wake));
	if (waking->hook)
		wake_hook_close(waking->hook);
}

int waking_write_metrics(struct buf *b, const struct waking *waking)
{
	const struct wake_counters *c;
	int status;

	if (!waking->wake)
		return 0; /* a last question while the proxy ends */
	c = wake_counters(waking->wake);
	status = buf_printf(
		b,
		"# HELP proxy_wake_waiting Requests that wait for a sandbox to run.\n"
		"# TYPE proxy_wake_waiting gauge\nproxy_wake_waiting %zu\n"
		"# HELP proxy_wake_call_seconds Time that calls of the wake-up hook took.\n"
		"# TYPE proxy_wake_call_seconds summary\n"
		"proxy_wake_call_seconds_sum %llu.%03llu\n"
		"proxy_wake_call_seconds_count %llu\n"
		"# HELP proxy_wakes_total Waits for sandboxes that are over, by outcome.\n"
		"# TYPE proxy_wakes_total counter\n",
		wake_waiting(waking->wake), (unsigned long long)counter_read(&c->calls_ms) / 1000,
		(unsigned long long)counter_read(&c->calls_ms) % 1000,
		(unsigned long long)counter_read(&c->calls));

	for (size_t i = 0; i < WAKE_OUTCOMES && status == 0; i++)
		status = buf_printf(b, "proxy_wakes_total{outcome=\"%s\"} %llu\n",
				    wake_outcome_name((enum wake_outcome)i),
				    (unsigned long long)counter_read(&c->outcomes[i]));
	return status;
}
