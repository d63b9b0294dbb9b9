/*
 * The command line of the proxy, read into plain values. Texts point into argv or are owned by the
 * struct; config_fini frees them.
 */
#ifndef PROXY_CONFIG_H
#define PROXY_CONFIG_H

#include "lib/err.h"
#include "lib/options.h"
#include "proxy/relay/probe.h"
#include "proxy/catalog/catalog.h"
#include "proxy/sources/sources.h"

#define CONFIG_ADDRESS_BYTES 128

struct config_endpoint {
	char address[CONFIG_ADDRESS_BYTES]; /* IP literal; of the admin API also "unix:PATH" */
	unsigned port; /* 0: the kernel chooses */
	bool none;
};

struct config {
	struct config_endpoint listen, listen_tls,
		admin; /* one of the first two at least is there */
	const char *default_sandbox; /* NULL: none */
	const char *access_log; /* NULL: none; "-": stdout; else a file that is appended to */
	const char *admin_token_file;
	bool admin_is_open; /* also without a token, where others reach it */
	const char *user; /* to become once all is open; NULL: nobody else */
	const char *wake_url, *wake_token_file; /* NULL: none */
	struct sources_config sources;
	struct option_list sandboxes, hosts, certificates, probe_texts, embed_origins,
		load_balancers;
	/* Of clients, over all workers; 0: as many as descriptors allow with another one for
	 * each. */
	int64_t connections_max;
	int64_t workers, drain_ms, drain_delay_ms;
	int64_t wake_timeout_ms, wake_waiters;
	int64_t access_cookie_seconds;
	struct probe_rules probes;
	bool behind_tls, wake_unknown;
	bool allow_loopback, forwarded_fields, reuse_user_ports, incomplete, verbose;
};

/* OPTIONS_BAD and OPTIONS_HELP have been said on stderr. */
enum options_result config_read(struct config *config, int argc, char **argv);
void config_fini(struct config *config);

/* "127.0.0.1:3002", "[::1]:0", ":3002" (all IPv4 addresses), "none". */
int config_parse_endpoint(struct str text, struct config_endpoint *ret_endpoint) NODISCARD;
/* "id=ADDRESS[,KEY=VALUE]...", the keys being those of catalog/sandbox_fields.h. `memory` is cut
 * up, and the texts of *ret_entry are in it. Fills err with invalid_argument. */
int config_parse_sandbox(char *memory, struct sandbox_entry *ret_entry, struct err *err) NODISCARD;

#endif
