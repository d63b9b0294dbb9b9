#include "proxy/relay/fixed_upstream.h"

#define PORT_USUAL 80

/* Splits "HOST:PORT", "HOST" and "[IPV6]:PORT". */
static int split(struct str authority, struct str *ret_host, unsigned *ret_port)
{
	struct str host = host_name_without_port(authority);

	*ret_port = PORT_USUAL;
	if (host.len < authority.len)
		*ret_port = host_name_port(
			(struct str){authority.p + host.len + 1, authority.len - host.len - 1});
	if (host.len > 2 && host.p[0] == '[' && host.p[host.len - 1] == ']')
		host = (struct str){host.p + 1, host.len - 2};
	*ret_host = host;
	return host.len && *ret_port ? 0 : -EINVAL;
}

int fixed_upstream_open(struct str url, const char *name, size_t worker_count,
			struct fixed_upstream **ret_upstream, struct err *err)
{
	static const struct str scheme = STR("http://");
	struct fixed_upstream *upstream;
	struct sandbox_entry entry;
	struct str host = {0};
	auto_free char *address = NULL;
	unsigned port = 0;

	if (str_starts_with(url, scheme)) {
		str_skip(&url, scheme.len);
		if (str_ends_with(url, STR("/")))
			url.len--;
		if (split(url, &host, &port) < 0)
			host.len = 0;
	}
	address = xstrndup(host.p ? host.p : "", host.len);
	if (!host.len || address_is_netns(host) || catalog_check_address(address, err) < 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "a server is given as http://HOST[:PORT]");
	sandbox_entry_init(&entry, name);
	entry.address = address;
	entry.trusted = true;
	upstream = xcalloc(1, sizeof(*upstream));
	upstream->record = catalog_record_apart(&entry, worker_count);
	upstream->port = port;
	*ret_upstream = upstream;
	return 0;
}

void fixed_upstream_close(struct fixed_upstream *upstream)
{
	catalog_record_release(upstream->record);
	free(upstream);
}
