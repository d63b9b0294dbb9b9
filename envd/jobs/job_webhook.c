#include "envd/jobs/job_webhook.h"

#include <netdb.h>

#include "lib/digest.h"

static const struct str scheme = {"http://", 7};

static int read_port(struct str text, char port[8])
{
	uint64_t number;

	if (str_to_u64(text, 65535, &number) < 0 || number == 0)
		return -EINVAL;
	snprintf(port, 8, "%u", (unsigned)number);
	return 0;
}

static int read_authority(struct str authority, struct job_webhook_target *target)
{
	struct str host = authority, port = STR("80");
	bool is_bracketed = str_starts_with(host, STR("["));
	const char *end = host.len > 0 ? memchr(host.p, is_bracketed ? ']' : ':', host.len) : NULL;

	if (is_bracketed) {
		if (!end)
			return -EINVAL;
		host = (struct str){host.p + 1, (size_t)(end - host.p - 1)};
		if (++end == authority.p + authority.len)
			end = NULL;
		else if (*end != ':')
			return -EINVAL;
	} else if (end) {
		host.len = (size_t)(end - host.p);
	}
	if (end)
		port = (struct str){end + 1, (size_t)(authority.p + authority.len - end - 1)};
	if (host.len == 0 || host.len >= sizeof(target->host) || memchr(host.p, '@', host.len))
		return -EINVAL;
	memcpy(target->host, host.p, host.len);
	target->host[host.len] = '\0';
	return read_port(port, target->port);
}

int job_webhook_parse(const char *url, struct job_webhook_target *ret_target)
{
	struct str rest = str_of(url);
	size_t len = 0, i;

	*ret_target = (struct job_webhook_target){.host = ""};
	if (!str_starts_with(rest, scheme))
		return -EINVAL;
	/* It becomes part of a request's head. */
	for (i = 0; i < rest.len; i++)
		if ((unsigned char)rest.p[i] <= ' ' || (unsigned char)rest.p[i] >= 0x7f)
			return -EINVAL;
	str_skip(&rest, scheme.len);
	while (len < rest.len && !strchr("/?#", rest.p[len]))
		len++;
	ret_target->authority = (struct str){rest.p, len};
	ret_target->path = (struct str){rest.p + len, rest.len - len};
	for (i = 0; i < ret_target->path.len; i++)
		if (ret_target->path.p[i] == '#')
			ret_target->path.len = i;
	if (memchr(ret_target->authority.p, '@', len))
		return -EINVAL;
	return read_authority(ret_target->authority, ret_target);
}

static int look_up(const struct job_webhook_target *target, int flags,
		   struct sockaddr_storage *ret_address)
{
	const struct addrinfo hints = {.ai_family = AF_UNSPEC,
				       .ai_socktype = SOCK_STREAM,
				       .ai_flags = AI_NUMERICSERV | flags};
	struct addrinfo *found;

	if (getaddrinfo(target->host, target->port, &hints, &found) != 0)
		return -EHOSTUNREACH;
	*ret_address = (struct sockaddr_storage){0};
	memcpy(ret_address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return 0;
}

int job_webhook_resolve(const struct job_webhook_target *target,
			struct sockaddr_storage *ret_address)
{
	return look_up(target, 0, ret_address);
}

int job_webhook_read_address(const struct job_webhook_target *target,
			     struct sockaddr_storage *ret_address)
{
	return look_up(target, AI_NUMERICHOST, ret_address) < 0 ? -EINVAL : 0;
}

bool job_webhook_is_same_server(const struct job_webhook_target *a,
				const struct job_webhook_target *b)
{
	return strcmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0;
}

void job_webhook_sign(const char *key, int64_t now_ms, struct str body,
		      char ret_text[JOB_WEBHOOK_SIGNATURE_BYTES])
{
	unsigned char digest[DIGEST_SHA256_BYTES];
	char time[24];
	struct str pieces[3] = {{time, 0}, {".", 1}, body};
	int used;

	pieces[0].len = (size_t)snprintf(time, sizeof(time), "%lld", (long long)now_ms);
	digest_hmac_sha256(str_of(key), pieces, ARRAY_LENGTH(pieces), digest);
	used = snprintf(ret_text, JOB_WEBHOOK_SIGNATURE_BYTES, "t=%s,v1=", time);
	for (size_t i = 0; i < sizeof(digest); i++)
		used += snprintf(ret_text + used, JOB_WEBHOOK_SIGNATURE_BYTES - (size_t)used,
				 "%02x", digest[i]);
}
