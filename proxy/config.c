#include "proxy/config.h"

#include <unistd.h>

#include "build_info.h"
#include "lib/limits.h"
#include "proxy/limits.h"
#include "proxy/catalog/sandbox_fields.h"
#include "proxy/relay/clients.h"
#include "proxy/route/access.h"

#define SANDBOX_HELP_BYTES 512

static const char summary[] =
	"Routes <port>-<sandboxid>.<domain> to that port of that sandbox.\n"
	"\"proxy dev-certificate DIR\" makes certificates for this machine (-help says more).\n"
	"Prints \"proxy listening on ADDRESS:PORT, TLS on ADDRESS:PORT, admin on ADDRESS:PORT\", "
	"as far as there\n"
	"are these, when it is ready.\n";

int config_parse_endpoint(struct str text, struct config_endpoint *ret_endpoint)
{
	struct str address, port;
	union address parsed;
	uint64_t number;
	size_t at = text.len;

	memset(ret_endpoint, 0, sizeof(*ret_endpoint));
	if (str_equal(text, STR("none"))) {
		ret_endpoint->none = true;
		return 0;
	}
	while (at > 0 && text.p[at - 1] != ':')
		at--;
	if (at == 0)
		return -EINVAL;
	address = (struct str){text.p, at - 1};
	port = (struct str){text.p + at, text.len - at};
	if (str_to_u64(port, 65535, &number) < 0)
		return -EINVAL;
	ret_endpoint->port = (unsigned)number;
	if (address.len == 0)
		address = STR("0.0.0.0");
	if (address_parse(address, &parsed) < 0)
		return -EINVAL;
	if (address.p[0] == '[')
		address = (struct str){address.p + 1, address.len - 2};
	if (address.len >= sizeof(ret_endpoint->address))
		return -EINVAL;
	memcpy(ret_endpoint->address, address.p, address.len);
	return 0;
}

int config_parse_sandbox(char *memory, struct sandbox_entry *ret_entry, struct err *err)
{
	char *rest = strchr(memory, '='), *piece;

	if (!rest)
		return err_set(err, ERR_INVALID_ARGUMENT, "a sandbox is given as id=ADDRESS[,...]");
	*rest++ = '\0';
	sandbox_entry_init(ret_entry, memory);
	ret_entry->trusted = true;
	ret_entry->origin = SANDBOX_FROM_COMMAND_LINE;
	ret_entry->address = strsep(&rest, ",");
	while ((piece = strsep(&rest, ","))) {
		char *value = strchr(piece, '=');
		const struct sandbox_field *field;
		int status;

		/* netns:PATH,ADDRESS has a comma of its own. */
		if (!value && piece == ret_entry->address + strlen(ret_entry->address) + 1 &&
		    address_is_netns(str_of(ret_entry->address))) {
			piece[-1] = ',';
			continue;
		}
		if (!value)
			return err_set(err, ERR_INVALID_ARGUMENT, "\"%s\" is not key=value", piece);
		*value++ = '\0';
		field = sandbox_field_find_flag(str_of(piece));
		status = field ? sandbox_field_parse(field, str_of(piece), value, ret_entry, err)
			       : sandbox_field_unknown(str_of(piece), err);
		if (status < 0)
			return status;
	}
	return 0;
}

static enum options_result complain(const char *what)
{
	fprintf(stderr, "proxy: %s\n", what);
	return OPTIONS_BAD;
}

/* The workers share a port, so the kernel would share it between the two as well: half of the
 * clients would speak TLS to the listener without. */
static bool are_the_same(const struct config_endpoint *a, const struct config_endpoint *b)
{
	return !a->none && !b->none && a->port != 0 && a->port == b->port &&
	       strcmp(a->address, b->address) == 0;
}

static enum options_result check_listeners(struct config *config, const char *listen_text,
					   const char *listen_tls_text)
{
	if (config_parse_endpoint(str_of(listen_text), &config->listen) < 0)
		return complain("-listen must be ADDRESS:PORT with an IP address, or \"none\"");
	if (config_parse_endpoint(str_of(listen_tls_text), &config->listen_tls) < 0)
		return complain("-listen-tls must be ADDRESS:PORT with an IP address, or \"none\"");
	if (config->listen.none && config->listen_tls.none)
		return complain("-listen and -listen-tls cannot both be \"none\"");
	if (are_the_same(&config->listen, &config->listen_tls))
		return complain("-listen and -listen-tls cannot both be the same port");
	if (!config->listen_tls.none && config->certificates.count == 0)
		return complain("-listen-tls needs -certificate");
	if (config->listen_tls.none && config->certificates.count > 0)
		return complain("-certificate needs -listen-tls");
	return OPTIONS_OK;
}

static int parse_admin(struct str text, struct config_endpoint *ret_endpoint)
{
	if (!str_starts_with(text, STR("unix:")))
		return config_parse_endpoint(text, ret_endpoint);
	memset(ret_endpoint, 0, sizeof(*ret_endpoint));
	if (text.len == 5 || text.len >= sizeof(ret_endpoint->address))
		return -EINVAL;
	memcpy(ret_endpoint->address, text.p, text.len);
	return 0;
}

/* A client of the admin API may lead every sandbox's requests anywhere and read their tokens. */
static bool is_for_this_machine(const struct config_endpoint *admin)
{
	union address address;

	return admin->none || address_parse(str_of(admin->address), &address) < 0 /* unix:PATH */ ||
	       address_is_loopback(&address);
}

static enum options_result check_admin(struct config *config, const char *admin_text)
{
	if (parse_admin(str_of(admin_text), &config->admin) < 0)
		return complain(
			"-admin must be ADDRESS:PORT with an IP address, unix:PATH, or \"none\"");
	if (is_for_this_machine(&config->admin) || config->admin_token_file ||
	    config->admin_is_open)
		return OPTIONS_OK;
	fprintf(stderr,
		"proxy: -admin %s: everybody who reaches this port could change where requests go "
		"and read\n"
		"tokens of sandboxes. Give it a token (-admin-token-file FILE), or an address of "
		"this machine\n"
		"alone (127.0.0.1:PORT or unix:PATH); -admin-open leaves it open.\n",
		admin_text);
	return OPTIONS_BAD;
}

static enum options_result check(struct config *config)
{
	if (config->workers == 0)
		config->workers = (int64_t)size_min((size_t)sysconf(_SC_NPROCESSORS_ONLN),
						    PROXY_WORKERS_MAX);
	_Static_assert(PROXY_WORKERS_MAX == 64, "as the next text says");
	if (config->workers < 1 || config->workers > PROXY_WORKERS_MAX)
		return complain("-workers must be from 1 to 64");
	if (config->connections_max < 0 || config->connections_max > INT32_MAX)
		return complain("-connections-max must not be negative");
	if (config->drain_ms < 0 || config->drain_ms > INT32_MAX || config->drain_delay_ms < 0 ||
	    config->drain_delay_ms > INT32_MAX)
		return complain("-drain-ms and -drain-delay-ms must not be negative");
	if (config->wake_timeout_ms < 1 || config->wake_timeout_ms > INT32_MAX ||
	    config->wake_waiters < 0 || config->wake_waiters > INT32_MAX)
		return complain("-wake-timeout-ms must be positive, -wake-waiters not negative");
	for (size_t i = 0; i < config->embed_origins.count; i++)
		if (!access_is_origin(str_of(config->embed_origins.items[i])))
			return complain("-embed-origin must be http(s)://name[:port]");
	for (size_t i = 0; i < config->load_balancers.count; i++)
		if (!clients_is_network(str_of(config->load_balancers.items[i])))
			return complain("-load-balancer must be ADDRESS or ADDRESS/BITS");
	for (size_t i = 0; i < config->probe_texts.count; i++)
		if (probe_rules_add(&config->probes, str_of(config->probe_texts.items[i])) < 0)
			return complain(
				"-probe must be \"METHOD PORT PATH\", and not be given too often");
	if (config->access_cookie_seconds < 1 || config->access_cookie_seconds > INT32_MAX)
		return complain("-access-cookie-seconds must be positive");
	if ((config->wake_token_file || config->wake_unknown) && !config->wake_url)
		return complain("-wake-token-file and -wake-unknown need -wake-url");
	if (config->default_sandbox && !host_name_is_id(str_of(config->default_sandbox)))
		return complain("-default-sandbox must be a sandbox id");
	return OPTIONS_OK;
}

enum options_result config_read(struct config *config, int argc, char **argv)
{
	const char *listen_text = "127.0.0.1:3002", *listen_tls_text = "none";
	const char *admin_text = "127.0.0.1:3003";
	enum options_result result;
	char sandbox_help[SANDBOX_HELP_BYTES], usage[SANDBOX_HELP_BYTES - 32];
	bool version = false;
	int rest;
	const struct option options[] = {
		{"listen", OPTION_STRING, &listen_text,
		 "ADDRESS:PORT for sandbox traffic (default 127.0.0.1:3002; without ADDRESS: all "
		 "of IPv4;\n"
		 "    \tport 0: the kernel chooses), or \"none\""},
		{"listen-tls", OPTION_STRING, &listen_tls_text,
		 "ADDRESS:PORT for the same over TLS (default \"none\")"},
		{"certificate", OPTION_LIST, &config->certificates,
		 "CERT.pem,KEY.pem, or one file with both, or a directory of NAME.crt with "
		 "NAME.key; the first "
		 "one is the default"},
		{"admin", OPTION_STRING, &admin_text,
		 "ADDRESS:PORT of the admin API (default 127.0.0.1:3003), or unix:PATH, or "
		 "\"none\""},
		{"admin-token-file", OPTION_STRING, &config->admin_token_file,
		 "file with the bearer token that the admin API asks for"},
		{"admin-open", OPTION_BOOL, &config->admin_is_open,
		 "serve the admin API without a token also where other machines reach it"},
		{"sandbox", OPTION_LIST, &config->sandboxes, sandbox_help},
		{"host", OPTION_LIST, &config->hosts,
		 "NAME=http://ADDRESS[:PORT] of a server that is no sandbox, such as api.DOMAIN: "
		 "requests for exactly\n"
		 "    \tthat host go there; may be on loopback"},
		{"default-sandbox", OPTION_STRING, &config->default_sandbox,
		 "sandbox id for requests to localhost, an IP address or sandbox.DOMAIN without "
		 "(usable) routing "
		 "headers"},
		{"connections-max", OPTION_INT, &config->connections_max,
		 "clients' connections at once, over all workers and listeners; more wait until "
		 "one ends\n"
		 "    \t(default: as many as descriptors allow, with a second one for each towards "
		 "its sandbox;\n"
		 "    \twith a larger number requests may find none, which is answered 503)"},
		{"load-balancer", OPTION_LIST, &config->load_balancers,
		 "ADDRESS or ADDRESS/BITS of peers that stand for many clients: unlike other "
		 "addresses they have\n"
		 "    \tno share of their own"},
		{"user", OPTION_STRING, &config->user,
		 "who to become once the sockets are open; must be able to read what is read "
		 "later"},
		{"workers", OPTION_INT, &config->workers, "threads (default: one per core)"},
		{"allow-loopback-upstreams", OPTION_BOOL, &config->allow_loopback,
		 "sandboxes added through the admin API may be on 127.0.0.0/8 and ::1"},
		{"forwarded-headers", OPTION_BOOL, &config->forwarded_fields,
		 "add X-Forwarded-For, -Proto and -Host (what clients send of them never passes)"},
		{"reuse-user-ports", OPTION_BOOL, &config->reuse_user_ports,
		 "keep connections to user ports too, for bodyless GET, HEAD and OPTIONS"},
		{"catalog-incomplete", OPTION_BOOL, &config->incomplete,
		 "answer 503 for unknown sandboxes until PUT /catalog says that all are known"},
		{"redis", OPTION_STRING, &config->sources.redis,
		 "shared catalog: redis://[user:password@]host[:port][/db] or unix:///path[?db=N]"},
		{"redis-password-file", OPTION_STRING, &config->sources.redis_password_file,
		 "file with the password for it"},
		{"redis-set-notifications", OPTION_BOOL, &config->sources.redis_set_notifications,
		 "turn keyspace notifications on in that Redis (else it should have Kg$xe)"},
		{"behind-tls", OPTION_BOOL, &config->behind_tls,
		 "clients come over https that ends in front of the proxy: its cookies are for "
		 "https alone"},
		{"access-cookie-seconds", OPTION_INT, &config->access_cookie_seconds,
		 "how long a browser that came by a link may use a private port (default 43200)"},
		{"dns-template", OPTION_STRING, &config->sources.dns_template,
		 "name of sandboxes nobody else knows, such as {id}.sandboxes.svc.cluster.local"},
		{"dns-server", OPTION_STRING, &config->sources.dns_server,
		 "IPV4-ADDRESS[:PORT] to ask instead of the system's name servers"},
		{"embed-origin", OPTION_LIST, &config->embed_origins,
		 "https://name[:port] of a dashboard whose pages may show private ports in frames"},
		{"probe", OPTION_LIST, &config->probe_texts,
		 "\"METHOD PORT PATH\" (each may be *) of requests that neither wake sandboxes nor "
		 "count as "
		 "activity, as \"GET 49983 /health\""},
		{"wake-url", OPTION_STRING, &config->wake_url,
		 "http://host[:port]/path that is asked to wake paused sandboxes whose policy is "
		 "resume=any"},
		{"wake-unknown", OPTION_BOOL, &config->wake_unknown,
		 "ask it also about sandboxes that nobody knows, passing on the client's tokens to "
		 "be checked"},
		{"wake-token-file", OPTION_STRING, &config->wake_token_file,
		 "file with the bearer token for it"},
		{"wake-timeout-ms", OPTION_INT, &config->wake_timeout_ms,
		 "requests wait this long for a sandbox to run (default 90000)"},
		{"wake-waiters", OPTION_INT, &config->wake_waiters,
		 "requests that may wait for one sandbox (default 256)"},
		{"access-log", OPTION_STRING, &config->access_log,
		 "file for one JSON line per request, \"-\" for stdout"},
		{"drain-ms", OPTION_INT, &config->drain_ms,
		 "after SIGTERM running exchanges get this long (default 15000)"},
		{"drain-delay-ms", OPTION_INT, &config->drain_delay_ms,
		 "after SIGTERM keep accepting this long while /health says 503 (default 0)"},
		{"verbose", OPTION_BOOL, &config->verbose, "log at debug level"},
		{"version", OPTION_BOOL, &version,
		 "print this program's version and how it was built, and exit"},
		{0},
	};

	sandbox_fields_usage(usage, sizeof(usage));
	snprintf(sandbox_help, sizeof(sandbox_help), "%s; may be on loopback", usage);
	memset(config, 0, sizeof(*config));
	config->drain_ms = HTTP_DRAIN_MS;
	config->access_cookie_seconds = PROXY_ACCESS_COOKIE_SECONDS;
	config->wake_timeout_ms = PROXY_WAKE_TIMEOUT_MS;
	config->wake_waiters = PROXY_WAKE_WAITERS_MAX;
	result = options_parse(options, "proxy", summary, argc, argv, &rest);
	if (result == OPTIONS_OK && version) {
		printf("proxy %s\ncommit %s\nprofile %s\n", BUILD_VERSION, BUILD_COMMIT,
		       BUILD_PROFILE);
		result = OPTIONS_HELP;
	}
	if (result == OPTIONS_OK && rest < argc)
		result = complain("there are no arguments besides flags");
	if (result == OPTIONS_OK)
		result = check_listeners(config, listen_text, listen_tls_text);
	if (result == OPTIONS_OK)
		result = check_admin(config, admin_text);
	if (result == OPTIONS_OK)
		result = check(config);
	if (result != OPTIONS_OK)
		config_fini(config);
	return result;
}

void config_fini(struct config *config)
{
	options_list_fini(&config->sandboxes);
	options_list_fini(&config->hosts);
	options_list_fini(&config->certificates);
	options_list_fini(&config->probe_texts);
	options_list_fini(&config->embed_origins);
	options_list_fini(&config->load_balancers);
}
