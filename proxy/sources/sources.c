#include "proxy/sources/sources.h"

#include <fcntl.h>
#include <unistd.h>

#include "proxy/sources/dns.h"

#define DNS_PORT 53

struct sources {
	struct lookups *lookups;
	struct redis_source *redis; /* NULL: none */
	struct dns_source *dns; /* NULL: none */
};

/* ---- options ---- */

static int read_password(const char *path, struct redis_url *url, struct err *err)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len = fd < 0 ? -1 : read(fd, url->password, sizeof(url->password));

	if (len < 0)
		return err_set_sys(err, ERR_INVALID_ARGUMENT, errno, "read %s", path);
	if (len == (ssize_t)sizeof(url->password))
		return err_set(err, ERR_INVALID_ARGUMENT, "the password in %s is too long", path);
	while (len > 0 && (url->password[len - 1] == '\n' || url->password[len - 1] == '\r'))
		len--;
	url->password[len] = '\0';
	if (len == 0 || strlen(url->password) != (size_t)len)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s must hold one password", path);
	return 0;
}

static int open_redis(struct sources *sources, struct loop *loop, struct catalog *catalog,
		      const struct sources_config *config, struct err *err)
{
	struct redis_config redis = {.set_notifications = config->redis_set_notifications};
	int status;

	if (!config->redis) {
		if (config->redis_password_file || config->redis_set_notifications)
			return err_set(
				err, ERR_INVALID_ARGUMENT,
				"-redis-password-file and -redis-set-notifications need -redis");
		return 0;
	}
	status = redis_url_parse(str_of(config->redis), &redis.url, err);
	if (status == 0 && config->redis_password_file)
		status = *redis.url.password
				 ? err_set(err, ERR_INVALID_ARGUMENT,
					   "-redis and -redis-password-file both give a password")
				 : read_password(config->redis_password_file, &redis.url, err);
	if (status == 0) {
		sources->redis = redis_open(loop, catalog, &redis);
		lookups_add(sources->lookups, redis_as_source(sources->redis));
	}
	wipe(&redis, sizeof(redis));
	return status;
}

/* "10.0.0.10" or "10.0.0.10:5353". */
static int parse_server(struct str text, union address *ret_server)
{
	const char *colon = memchr(text.p, ':', text.len);
	uint64_t port = DNS_PORT;

	if (colon) {
		struct str number = {colon + 1, text.len - (size_t)(colon + 1 - text.p)};

		if (str_to_u64(number, 65535, &port) < 0)
			return -EINVAL;
		text.len = (size_t)(colon - text.p);
	}
	if (address_parse(text, ret_server) < 0 || ret_server->any.sa_family != AF_INET)
		return -EINVAL;
	address_set_port(ret_server, (unsigned)port);
	return 0;
}

static int open_dns(struct sources *sources, struct loop *loop, struct catalog *catalog,
		    const struct sources_config *config, struct err *err)
{
	struct dns_config dns = {.has_server = config->dns_server != NULL};
	int status;

	if (!config->dns_template)
		return !config->dns_server ? 0
					   : err_set(err, ERR_INVALID_ARGUMENT,
						     "-dns-server needs -dns-template");
	status = dns_template_parse(str_of(config->dns_template), &dns.template, err);
	if (status < 0)
		return status;
	if (dns.has_server && parse_server(str_of(config->dns_server), &dns.server) < 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "-dns-server must be IPV4-ADDRESS[:PORT]");
	sources->dns = dns_open(loop, catalog, &dns);
	lookups_add(sources->lookups, dns_as_source(sources->dns));
	return 0;
}

/* A predecessor may have left records: whoever they came from looks after them from now on, and
 * what nobody looks after goes. */
static void adopt(struct sources *sources, struct catalog *catalog)
{
	uint64_t revision;
	size_t count;
	struct catalog_record **records = catalog_snapshot(catalog, &count, &revision);

	for (size_t i = 0; i < count; i++) {
		enum sandbox_origin origin = records[i]->entry.origin;

		if (origin == SANDBOX_FROM_DNS && sources->dns)
			dns_adopt(sources->dns, records[i]->entry.id);
		else if ((origin == SANDBOX_FROM_DNS && !sources->dns) ||
			 (origin == SANDBOX_FROM_REDIS && !sources->redis))
			catalog_remove_record(catalog, records[i]);
	}
	catalog_snapshot_free(records, count);
}

int sources_open(struct loop *loop, struct catalog *catalog, const struct sources_config *config,
		 struct sources **ret_sources, struct err *err)
{
	struct sources *sources = xcalloc(1, sizeof(*sources));
	int status;

	sources->lookups = lookups_open(loop);
	status = open_redis(sources, loop, catalog, config, err);
	if (status == 0)
		status = open_dns(sources, loop, catalog, config, err);
	if (status < 0) {
		sources_close(sources);
		return status;
	}
	adopt(sources, catalog);
	*ret_sources = sources;
	return 0;
}

struct lookups *sources_lookups(const struct sources *sources)
{
	return lookups_have_source(sources->lookups) ? sources->lookups : NULL;
}

struct redis_source *sources_redis(const struct sources *sources)
{
	return sources->redis;
}

void sources_close(struct sources *sources)
{
	if (sources->redis)
		redis_close(sources->redis);
	if (sources->dns)
		dns_close(sources->dns);
	lookups_close(sources->lookups);
	free(sources);
}

/* ---- metrics ---- */

struct metric {
	const char *name, *type, *help;
	uint64_t value;
};

static int write_all(struct buf *b, const struct metric *metrics, size_t count)
{
	int status = 0;

	for (size_t i = 0; i < count && status == 0; i++)
		status = buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n%s %llu\n", metrics[i].name,
				    metrics[i].help, metrics[i].name, metrics[i].type,
				    metrics[i].name, (unsigned long long)metrics[i].value);
	return status;
}

static int write_lookups(const struct lookups *lookups, struct buf *b)
{
	static const char *const names[LOOKUP_ANSWERS] = {
		[LOOKUP_FOUND] = "found",
		[LOOKUP_ABSENT] = "absent",
		[LOOKUP_UNAVAILABLE] = "unavailable",
		[LOOKUP_OVERLOADED] = "overloaded",
	};
	int status = buf_append_str(
		b,
		STR("# HELP proxy_lookups_total Requests that waited for a source of the catalog.\n"
		    "# TYPE proxy_lookups_total counter\n"));

	for (size_t i = 0; i < LOOKUP_ANSWERS && status == 0; i++)
		status = buf_printf(
			b, "proxy_lookups_total{answer=\"%s\"} %llu\n", names[i],
			(unsigned long long)lookups_count(lookups, (enum lookup_answer)i));
	return status;
}

static int write_redis(const struct redis_source *redis, struct buf *b)
{
	struct redis_totals t;

	redis_totals(redis, &t);
	const struct metric metrics[] = {
		{"proxy_redis_connected", "gauge", "1 while Redis answers.", t.connected},
		{"proxy_redis_notified", "gauge", "1 when Redis tells of changes.", t.notified},
		{"proxy_redis_losses_total", "counter", "Connections lost.", t.losses},
		{"proxy_redis_scans_total", "counter", "Times all records were read.", t.scans},
		{"proxy_redis_changes_total", "counter", "Changes of the catalog by Redis.",
		 t.applied},
		{"proxy_redis_unreadable_total", "counter", "Records read that make no sense.",
		 t.unreadable},
	};

	return write_all(b, metrics, ARRAY_LENGTH(metrics));
}

static int write_dns(const struct dns_source *dns, struct buf *b)
{
	struct dns_totals t;

	dns_totals(dns, &t);
	const struct metric metrics[] = {
		{"proxy_dns_found_total", "counter", "Names that DNS had an address for.", t.found},
		{"proxy_dns_absent_total", "counter", "Names that DNS had none for.", t.absent},
		{"proxy_dns_failed_total", "counter", "Questions no name server answered.",
		 t.failed},
		{"proxy_dns_records", "gauge", "Sandboxes known from DNS.", t.records},
	};

	return write_all(b, metrics, ARRAY_LENGTH(metrics));
}

int sources_write_metrics(const struct sources *sources, struct buf *b)
{
	int status = 0;

	if (lookups_have_source(sources->lookups))
		status = write_lookups(sources->lookups, b);
	if (status == 0 && sources->redis)
		status = write_redis(sources->redis, b);
	if (status == 0 && sources->dns)
		status = write_dns(sources->dns, b);
	return status;
}
