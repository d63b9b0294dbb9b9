#include "proxy/route/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <unistd.h>

int address_parse(struct str text, union address *ret_address)
{
	char copy[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
	char *zone;

	memset(ret_address, 0, sizeof(*ret_address));
	if (text.len >= 2 && text.p[0] == '[' && text.p[text.len - 1] == ']') {
		text.p++;
		text.len -= 2;
	}
	if (text.len == 0 || text.len >= sizeof(copy) || memchr(text.p, '\0', text.len))
		return -EINVAL;
	memcpy(copy, text.p, text.len);
	copy[text.len] = '\0';
	if (inet_pton(AF_INET, copy, &ret_address->v4.sin_addr) == 1) {
		ret_address->v4.sin_family = AF_INET;
		return 0;
	}
	zone = strchr(copy, '%');
	if (zone)
		*zone++ = '\0';
	if (inet_pton(AF_INET6, copy, &ret_address->v6.sin6_addr) != 1)
		return -EINVAL;
	ret_address->v6.sin6_family = AF_INET6;
	if (zone) {
		ret_address->v6.sin6_scope_id = if_nametoindex(zone);
		if (ret_address->v6.sin6_scope_id == 0)
			return -EINVAL;
	}
	return 0;
}

bool address_is_netns(struct str text)
{
	return str_starts_with(text, STR("netns:"));
}

static bool is_plain_path(struct str path)
{
	struct str rest = path, part;

	if (path.len < 2 || path.len >= ADDRESS_NETNS_PATH_BYTES || path.p[0] != '/' ||
	    memchr(path.p, '\0', path.len))
		return false;
	while (str_split(&rest, '/', &part))
		if (str_equal(part, STR(".")) || str_equal(part, STR("..")))
			return false;
	return true;
}

int address_parse_netns(struct str text, struct str *ret_path, union address *ret_address)
{
	static const struct str prefix = STR("netns:");
	const char *comma;

	memset(ret_address, 0, sizeof(*ret_address));
	if (!address_is_netns(text))
		return -EINVAL;
	*ret_path = (struct str){text.p + prefix.len, text.len - prefix.len};
	comma = memchr(ret_path->p, ',', ret_path->len);
	if (comma) {
		struct str address = {comma + 1, ret_path->len - (size_t)(comma + 1 - ret_path->p)};

		/* Interfaces are another thing in there. */
		if (memchr(address.p, '%', address.len) || address_parse(address, ret_address) < 0)
			return -EINVAL;
		ret_path->len = (size_t)(comma - ret_path->p);
	}
	return is_plain_path(*ret_path) ? 0 : -EINVAL;
}

void address_set_port(union address *address, unsigned port)
{
	if (address->any.sa_family == AF_INET)
		address->v4.sin_port = htons((uint16_t)port);
	else
		address->v6.sin6_port = htons((uint16_t)port);
}

unsigned address_port(const union address *address)
{
	return ntohs(address->any.sa_family == AF_INET ? address->v4.sin_port
						       : address->v6.sin6_port);
}

void address_format_host(const union address *address, char *ret_text, size_t size)
{
	const void *bytes = address->any.sa_family == AF_INET ? (const void *)&address->v4.sin_addr
							      : &address->v6.sin6_addr;

	if ((address->any.sa_family != AF_INET && address->any.sa_family != AF_INET6) ||
	    !inet_ntop(address->any.sa_family, bytes, ret_text, (socklen_t)size))
		snprintf(ret_text, size, "?");
}

void address_format(const union address *address, char *ret_text, size_t size)
{
	char host[INET6_ADDRSTRLEN];

	if (address->any.sa_family == AF_INET) {
		inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof(host));
		snprintf(ret_text, size, "%s:%u", host, address_port(address));
	} else if (address->any.sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof(host));
		snprintf(ret_text, size, "[%s]:%u", host, address_port(address));
	} else {
		snprintf(ret_text, size, "?");
	}
}

static union address v4_of(const unsigned char bytes[4], const union address *outer)
{
	union address inner = {.v4 = {.sin_family = AF_INET, .sin_port = outer->v6.sin6_port}};

	memcpy(&inner.v4.sin_addr, bytes, 4);
	return inner;
}

/* Where the address ends with the four bytes of another one, and nothing else makes a difference:
 * mapped, compatible, and translated (RFC 4291, RFC 2765), and NAT64's own prefix (RFC 6052). */
static bool is_v4_itself(const union address *address)
{
	static const unsigned char nat64[12] = {0x00, 0x64, 0xff, 0x9b};
	static const unsigned char translated[12] = {[8] = 0xff, [9] = 0xff};
	const unsigned char *bytes = address->v6.sin6_addr.s6_addr;

	return IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr) ||
	       IN6_IS_ADDR_V4COMPAT(&address->v6.sin6_addr) ||
	       memcmp(bytes, nat64, sizeof(nat64)) == 0 ||
	       memcmp(bytes, translated, sizeof(translated)) == 0;
}

/* IPv4 inside IPv6 becomes IPv4; other addresses are copied. */
static union address unwrap(const union address *address)
{
	if (address->any.sa_family == AF_INET6 && is_v4_itself(address))
		return v4_of(address->v6.sin6_addr.s6_addr + 12, address);
	return *address;
}

#define TUNNELLED_MAX 4

/* IPv4 addresses that a router may send packets for this IPv6 address to, because they stand in it;
 * returns how many. Some are only perhaps meant: those are to be refused if they are dangerous, and
 * to be judged no further. */
static size_t tunnelled(const union address *address, union address ret_inner[TUNNELLED_MAX])
{
	/* NAT64 of this network (RFC 8215): how long its prefix is does not show. */
	static const unsigned char nat64_local[6] = {0x00, 0x64, 0xff, 0x9b, 0x00, 0x01};
	static const unsigned char places[][4] = {
		{6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}, {12, 13, 14, 15}};
	static const unsigned char six_to_four[2] = {0x20, 0x02}, teredo[4] = {0x20, 0x01};
	static const unsigned char isatap[2] = {0x5e, 0xfe};
	const unsigned char *bytes = address->v6.sin6_addr.s6_addr;
	unsigned char found[4];
	size_t count = 0;

	if (address->any.sa_family != AF_INET6)
		return 0;
	if (memcmp(bytes, nat64_local, sizeof(nat64_local)) == 0) {
		for (size_t i = 0; i < ARRAY_LENGTH(places); i++) {
			for (size_t j = 0; j < sizeof(found); j++)
				found[j] = bytes[places[i][j]];
			ret_inner[count++] = v4_of(found, address);
		}
		return count;
	}
	if (memcmp(bytes, six_to_four, sizeof(six_to_four)) == 0)
		ret_inner[count++] = v4_of(bytes + 2, address);
	if (memcmp(bytes, teredo, sizeof(teredo)) == 0) {
		for (size_t i = 0; i < sizeof(found); i++)
			found[i] = bytes[12 + i] ^ 0xff;
		ret_inner[count++] = v4_of(bytes + 4, address); /* the server */
		ret_inner[count++] = v4_of(found, address); /* the client */
	}
	/* Whatever the prefix (RFC 5214); the bit that says "unique" may be set. */
	if ((bytes[8] & 0xfd) == 0 && bytes[9] == 0 &&
	    memcmp(bytes + 10, isatap, sizeof(isatap)) == 0)
		ret_inner[count++] = v4_of(bytes + 12, address);
	return count;
}

static bool same_host(const union address *a, const union address *b)
{
	if (a->any.sa_family != b->any.sa_family)
		return false;
	if (a->any.sa_family == AF_INET)
		return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
	return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr)) == 0;
}

static bool is_any(const union address *a)
{
	return a->any.sa_family == AF_INET ? a->v4.sin_addr.s_addr == htonl(INADDR_ANY)
					   : IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr);
}

/* Where clouds have services that trust who asks, outside of 169.254/16: Amazon's and Google's
 * metadata by IPv6, Alibaba's and Oracle's, and what Azure's agents talk to. */
static bool is_metadata(const union address *a)
{
	static const uint32_t fours[] = {0x646464c8 /* 100.100.100.200 */,
					 0xc00000c0 /* 192.0.0.192 */,
					 0xa83f8110 /* 168.63.129.16 */};
	static const unsigned char sixes[][16] = {
		{0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54}, /* fd00:ec2::254 */
		{0xfd, 0x20, 0x00, 0xce, [14] = 0x02, [15] = 0x54}, /* fd20:ce::254 */
	};
	bool found = false;

	for (size_t i = 0; i < ARRAY_LENGTH(fours) && a->any.sa_family == AF_INET; i++)
		found = found || ntohl(a->v4.sin_addr.s_addr) == fours[i];
	for (size_t i = 0; i < ARRAY_LENGTH(sixes) && a->any.sa_family == AF_INET6; i++)
		found = found || memcmp(&a->v6.sin6_addr, sixes[i], sizeof(sixes[i])) == 0;
	return found;
}

static enum address_verdict classify(const union address *a)
{
	uint32_t v4;

	if (a->any.sa_family != AF_INET && a->any.sa_family != AF_INET6)
		return ADDRESS_FAMILY;
	if (is_metadata(a))
		return ADDRESS_LINK_LOCAL;
	if (a->any.sa_family == AF_INET6) {
		if (IN6_IS_ADDR_UNSPECIFIED(&a->v6.sin6_addr))
			return ADDRESS_UNSPECIFIED;
		if (IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr))
			return ADDRESS_LOOPBACK;
		if (IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr))
			return ADDRESS_LINK_LOCAL;
		return IN6_IS_ADDR_MULTICAST(&a->v6.sin6_addr) ? ADDRESS_MULTICAST : ADDRESS_OK;
	}
	v4 = ntohl(a->v4.sin_addr.s_addr);
	if (v4 >> 24 == 0)
		return ADDRESS_UNSPECIFIED;
	if (v4 >> 24 == 127)
		return ADDRESS_LOOPBACK;
	if (v4 >> 16 == (169 << 8 | 254))
		return ADDRESS_LINK_LOCAL;
	return v4 >> 28 >= 14 ? ADDRESS_MULTICAST : ADDRESS_OK;
}

bool address_is_loopback(const union address *address)
{
	union address plain = unwrap(address);

	return classify(&plain) == ADDRESS_LOOPBACK;
}

/* This machine's own are sent to from themselves. Interfaces come and go, so the routes are asked,
 * each time; nothing is sent. */
static bool is_local(const union address *target)
{
	bool six = target->any.sa_family == AF_INET6;
	socklen_t size = six ? sizeof(target->v6) : sizeof(target->v4);
	auto_close int fd = socket(target->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	union address source;

	/* Who cannot be asked about does not get the benefit of the doubt: the port is one of
	 * ours. */
	if (fd < 0)
		return true;
	return connect(fd, &target->any, size) == 0 && getsockname(fd, &source.any, &size) == 0 &&
	       same_host(&source, target);
}

/* A listener on "any" is reached through every address of this machine. */
static bool reaches_listener(const union address *target, const union address *listener)
{
	if (address_port(target) != address_port(listener))
		return false;
	if (same_host(target, listener))
		return true;
	return is_any(listener) && (classify(target) == ADDRESS_LOOPBACK || is_local(target));
}

static enum address_verdict judge_own(const struct address_guard *guard,
				      const union address *target)
{
	if (address_port(target) == 0)
		return ADDRESS_OK;
	for (size_t i = 0; i < guard->listener_count; i++)
		if (reaches_listener(target, &guard->listeners[i]))
			return ADDRESS_OWN;
	return ADDRESS_OK;
}

static enum address_verdict judge(const struct address_guard *guard, const union address *target,
				  bool allow_loopback)
{
	enum address_verdict verdict = classify(target);

	if (verdict == ADDRESS_LOOPBACK && allow_loopback)
		verdict = ADDRESS_OK;
	return verdict == ADDRESS_OK ? judge_own(guard, target) : verdict;
}

/* Nobody is at 0.0.0.0 or at a multicast address on the other side of a tunnel, and such numbers
 * stand in many an address by chance. */
static bool is_dangerous(enum address_verdict verdict)
{
	return verdict != ADDRESS_OK && verdict != ADDRESS_UNSPECIFIED &&
	       verdict != ADDRESS_MULTICAST;
}

/* The address itself, and those that stand in it. */
static enum address_verdict judge_all(const struct address_guard *guard,
				      const union address *address, bool allow_loopback)
{
	union address target = unwrap(address), inner[TUNNELLED_MAX];
	size_t count = tunnelled(address, inner);
	enum address_verdict verdict = judge(guard, &target, allow_loopback);

	for (size_t i = 0; i < count && verdict == ADDRESS_OK; i++) {
		enum address_verdict other = judge(guard, &inner[i], allow_loopback);

		if (is_dangerous(other))
			verdict = other;
	}
	return verdict;
}

enum address_verdict address_guard_check(const struct address_guard *guard,
					 const union address *address, bool trusted)
{
	return judge_all(guard, address, trusted || guard->allow_loopback);
}

enum address_verdict address_guard_check_inside(const struct address_guard *guard,
						const union address *address)
{
	union address target = unwrap(address);

	/* Its network may lead out to us. */
	return classify(&target) == ADDRESS_LOOPBACK ? ADDRESS_OK
						     : judge_all(guard, address, false);
}

void address_guard_init(struct address_guard *guard, bool allow_loopback)
{
	memset(guard, 0, sizeof(*guard));
	guard->allow_loopback = allow_loopback;
}

void address_guard_add_listener(struct address_guard *guard, const union address *listener)
{
	assert(guard->listener_count < ADDRESS_LISTENERS_MAX);
	guard->listeners[guard->listener_count++] = unwrap(listener);
}

const char *address_verdict_text(enum address_verdict verdict)
{
	switch (verdict) {
	case ADDRESS_OK:
		return "allowed";
	case ADDRESS_UNSPECIFIED:
		return "the unspecified address";
	case ADDRESS_LOOPBACK:
		return "this machine's loopback";
	case ADDRESS_LINK_LOCAL:
		return "a link-local or metadata address";
	case ADDRESS_MULTICAST:
		return "a multicast, broadcast or reserved address";
	case ADDRESS_OWN:
		return "the proxy itself";
	case ADDRESS_FAMILY:
		return "neither IPv4 nor IPv6";
	}
	return "";
}
