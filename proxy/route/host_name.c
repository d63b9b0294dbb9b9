#include "proxy/route/host_name.h"

#include <arpa/inet.h>

#define LABEL_BYTES_MAX 63
#define NAME_BYTES_MAX 253

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

bool host_name_is_id(struct str id)
{
	if (id.len == 0 || id.len > HOST_NAME_ID_BYTES_MAX)
		return false;
	for (size_t i = 0; i < id.len; i++)
		if (!is_digit(id.p[i]) && !(id.p[i] >= 'a' && id.p[i] <= 'z'))
			return false;
	return true;
}

unsigned host_name_port(struct str text)
{
	unsigned port = 0;

	if (text.len == 0 || text.len > 5 || text.p[0] == '0')
		return 0;
	for (size_t i = 0; i < text.len; i++) {
		if (!is_digit(text.p[i]))
			return 0;
		port = port * 10 + (unsigned)(text.p[i] - '0');
	}
	return port <= 65535 ? port : 0;
}

bool host_name_take_header(struct host_name_headers *headers, struct str name, struct str value)
{
	struct str *slot;

	switch (name.len) {
	case sizeof("E2b-Sandbox-Id") - 1:
		if (!str_equal_nocase(name, STR("E2b-Sandbox-Id")))
			return false;
		slot = &headers->e2b_id;
		break;
	case sizeof("E2b-Sandbox-Port") - 1:
		if (!str_equal_nocase(name, STR("E2b-Sandbox-Port")))
			return false;
		slot = &headers->e2b_port;
		break;
	case sizeof("Novita-Sandbox-Id") - 1:
		if (!str_equal_nocase(name, STR("Novita-Sandbox-Id")))
			return false;
		slot = &headers->novita_id;
		break;
	case sizeof("Novita-Sandbox-Port") - 1:
		if (!str_equal_nocase(name, STR("Novita-Sandbox-Port")))
			return false;
		slot = &headers->novita_port;
		break;
	default:
		return false;
	}
	if (slot->p)
		headers->repeated = true;
	*slot = (struct str){value.p ? value.p : "", value.len};
	return true;
}

enum { NAME_BYTE = 1, DELIMITER = 2 };

/* NAME_BYTE: of a registered name. What is neither a letter, a digit nor one of "-._" has no
 * business in a name that clients resolve, and userinfo, blanks and controls are attacks.
 *
 * DELIMITER: what may not even stand in a label: blanks, controls, and what delimits the parts of a
 * URL. Other odd bytes of a label make a bad port or a bad id, which says more than "Invalid host".
 */
static const unsigned char byte_class[256] = {
	[0 ... ' '] = DELIMITER,   [0x7f] = DELIMITER,	      ['"'] = DELIMITER,
	['#'] = DELIMITER,	   ['%'] = DELIMITER,	      [','] = DELIMITER,
	['/'] = DELIMITER,	   [':'] = DELIMITER,	      ['<'] = DELIMITER,
	['>'] = DELIMITER,	   ['?'] = DELIMITER,	      ['@'] = DELIMITER,
	['['] = DELIMITER,	   ['\\'] = DELIMITER,	      [']'] = DELIMITER,
	['^'] = DELIMITER,	   ['`'] = DELIMITER,	      ['{'] = DELIMITER,
	['|'] = DELIMITER,	   ['}'] = DELIMITER,	      ['0' ... '9'] = NAME_BYTE,
	['a' ... 'z'] = NAME_BYTE, ['A' ... 'Z'] = NAME_BYTE, ['-'] = NAME_BYTE,
	['.'] = NAME_BYTE,	   ['_'] = NAME_BYTE,
};

static bool is_name_byte(char c)
{
	return byte_class[(unsigned char)c] == NAME_BYTE;
}

static bool is_delimiter(char c)
{
	return byte_class[(unsigned char)c] == DELIMITER;
}

/* ":80", ":" or "" after the name. Zeros in front are the client's business (RFC 3986 3.2.3: any
 * digits), a port that nobody can have connected to is not. */
static bool is_port_suffix(struct str s)
{
	unsigned port = 0;

	if (s.len <= 1)
		return s.len == 0 || s.p[0] == ':';
	if (s.p[0] != ':' || s.len > 6)
		return false;
	for (size_t i = 1; i < s.len; i++) {
		if (!is_digit(s.p[i]))
			return false;
		port = port * 10 + (unsigned)(s.p[i] - '0');
	}
	return port >= 1 && port <= 65535;
}

struct str host_name_without_port(struct str authority)
{
	size_t len = authority.len;

	while (len > 0 && is_digit(authority.p[len - 1]))
		len--;
	if (len > 0 && authority.p[len - 1] == ':')
		authority.len = len - 1;
	return authority;
}

static bool is_address(int family, struct str text)
{
	unsigned char address[sizeof(struct in6_addr)];
	char copy[INET6_ADDRSTRLEN];

	if (text.len == 0 || text.len >= sizeof(copy))
		return false;
	memcpy(copy, text.p, text.len);
	copy[text.len] = '\0';
	return inet_pton(family, copy, address) == 1;
}

/* "[::1]", "[fe80::1%eth0]:3002". */
static bool is_bracketed_address(struct str authority)
{
	const char *end = memchr(authority.p, ']', authority.len);
	const char *zone;
	struct str address;
	size_t after;

	if (!end)
		return false;
	after = (size_t)(end - authority.p) + 1;
	address = (struct str){authority.p + 1, after - 2};
	zone = memchr(address.p, '%', address.len);
	if (zone) {
		struct str name = {zone + 1, (size_t)(address.p + address.len - zone - 1)};

		if (name.len == 0)
			return false;
		for (size_t i = 0; i < name.len; i++)
			if (!is_name_byte(name.p[i]))
				return false;
		address.len = (size_t)(zone - address.p);
	}
	return is_address(AF_INET6, address) &&
	       is_port_suffix((struct str){authority.p + after, authority.len - after});
}

static enum host_name_result by_headers(const struct host_name_headers *headers,
					struct host_name *target)
{
	bool e2b = headers->e2b_id.len || headers->e2b_port.len;
	bool novita = headers->novita_id.len || headers->novita_port.len;
	struct str id, port;

	target->shared = true;
	if (headers->repeated || (e2b && novita))
		return HOST_NAME_HEADER_REPEATED;
	if (!e2b && !novita)
		return HOST_NAME_UNROUTED;
	id = e2b ? headers->e2b_id : headers->novita_id;
	port = e2b ? headers->e2b_port : headers->novita_port;
	if (id.len == 0 || port.len == 0)
		return HOST_NAME_HEADER_MISSING;
	target->port = host_name_port(port);
	if (target->port == 0)
		return HOST_NAME_BAD_PORT;
	if (!host_name_is_id(id))
		return HOST_NAME_BAD_ID;
	memcpy(target->id, id.p, id.len);
	target->id[id.len] = '\0';
	target->id_len = id.len;
	return HOST_NAME_OK;
}

/* `label` is what stands before the first dot: port, id, and further parts that are ignored (older
 * clients append a node id). A bad port wins over a bad id. */
static enum host_name_result by_label(struct str label, struct host_name *target)
{
	struct str rest = label, port, id;

	if (!memchr(label.p, '-', label.len))
		return HOST_NAME_INVALID;
	str_split(&rest, '-', &port);
	target->port = host_name_port(port);
	if (target->port == 0)
		return HOST_NAME_BAD_PORT;
	id = rest;
	if (memchr(rest.p, '-', rest.len))
		id.len = (size_t)((const char *)memchr(rest.p, '-', rest.len) - rest.p);
	if (id.len == 0 || id.len > HOST_NAME_ID_BYTES_MAX)
		return HOST_NAME_BAD_ID;
	for (size_t i = 0; i < id.len; i++)
		target->id[i] = lower(id.p[i]);
	target->id[id.len] = '\0';
	target->id_len = id.len;
	return host_name_is_id((struct str){target->id, id.len}) ? HOST_NAME_OK : HOST_NAME_BAD_ID;
}

/* Splits off the first label and checks the others: none empty, none too long. */
static bool split_name(struct str name, struct str *ret_label, struct str *ret_domain)
{
	size_t label_len = 0;

	*ret_label = *ret_domain = (struct str){0};
	for (size_t i = 0; i <= name.len; i++) {
		if (i < name.len && name.p[i] != '.') {
			label_len++;
			continue;
		}
		if (label_len == 0 || label_len > LABEL_BYTES_MAX)
			return false;
		if (!ret_label->p) {
			*ret_label = (struct str){name.p, i};
			if (i < name.len)
				*ret_domain = (struct str){name.p + i + 1, name.len - i - 1};
		}
		label_len = 0;
	}
	return true;
}

bool host_name_split_port(struct str authority, struct str *ret_name)
{
	const char *colon = authority.len ? memchr(authority.p, ':', authority.len) : NULL;
	struct str name = authority;

	if (authority.len && authority.p[0] == '[')
		return false;
	if (colon) {
		name.len = (size_t)(colon - authority.p);
		if (!is_port_suffix((struct str){colon, authority.len - name.len}))
			return false;
	}
	if (name.len && name.p[name.len - 1] == '.')
		name.len--;
	*ret_name = name;
	return true;
}

bool host_name_is_plain(struct str name)
{
	struct str label, domain;

	for (size_t i = 0; i < name.len; i++)
		if (!is_name_byte(name.p[i]))
			return false;
	return name.len <= NAME_BYTES_MAX && split_name(name, &label, &domain);
}

enum host_name_result host_name_route(struct str authority, const struct host_name_headers *headers,
				      struct host_name *ret_target)
{
	struct str name, label, domain;

	memset(ret_target, 0, sizeof(*ret_target));
	if (authority.len == 0 || authority.len > HOST_NAME_BYTES_MAX)
		return HOST_NAME_INVALID;
	if (authority.p[0] == '[')
		return is_bracketed_address(authority) ? by_headers(headers, ret_target)
						       : HOST_NAME_INVALID;
	if (!host_name_split_port(authority, &name) || name.len > NAME_BYTES_MAX)
		return HOST_NAME_INVALID;
	if (!split_name(name, &label, &domain))
		return HOST_NAME_INVALID;
	for (size_t i = 0; i < label.len; i++)
		if (is_delimiter(label.p[i]))
			return HOST_NAME_INVALID;
	for (size_t i = 0; i < domain.len; i++)
		if (!is_name_byte(domain.p[i]))
			return HOST_NAME_INVALID;
	/* No top-level domain ends with a digit, every IPv4 address does. */
	if (str_equal_nocase(name, STR("localhost")) ||
	    (is_digit(name.p[name.len - 1]) && is_address(AF_INET, name)))
		return by_headers(headers, ret_target);
	if (!domain.p)
		return HOST_NAME_INVALID;
	if (str_equal_nocase(label, STR("sandbox"))) {
		ret_target->domain = (struct str){domain.p,
						  (size_t)(authority.p + authority.len - domain.p)};
		return by_headers(headers, ret_target);
	}
	return by_label(label, ret_target);
}
