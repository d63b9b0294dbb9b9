#include "proxy/route/dns_name.h"

#include <arpa/nameser.h>
#include <netdb.h>
#include <poll.h>
#include <resolv.h>
#include <sys/socket.h>

#include "lib/limits.h"

#define LABEL_BYTES_MAX 63
#define ANSWER_BYTES 65535
#define UDP_ANSWER_BYTES 4096
#define TRUNCATED 0x02 /* in the third byte of a message (RFC 1035 section 4.1.1) */
#define NAME_BYTES_MAX 253

/* ---- templates ---- */

static bool is_name_part(struct str text)
{
	for (size_t i = 0; i < text.len; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._",
			    text.p[i]) || text.p[i] == '\0')
			return false;
	return text.len < DNS_NAME_BYTES;
}

static bool is_name(const char *name)
{
	struct str rest = str_of(name), label;

	if (rest.len > 0 && rest.p[rest.len - 1] == '.')
		rest.len--;
	if (rest.len == 0 || rest.len > NAME_BYTES_MAX || rest.p[rest.len - 1] == '.')
		return false;
	while (str_split(&rest, '.', &label))
		if (label.len == 0 || label.len > LABEL_BYTES_MAX)
			return false;
	return true;
}

int dns_template_parse(struct str text, struct dns_template *ret_template, struct err *err)
{
	static const struct str mark = STR("{id}");
	char name[DNS_NAME_BYTES];
	struct str before = text, after;
	const char *found = NULL;

	memset(ret_template, 0, sizeof(*ret_template));
	for (size_t i = 0; i + mark.len <= text.len && !found; i++)
		if (memcmp(text.p + i, mark.p, mark.len) == 0)
			found = text.p + i;
	if (!found)
		return err_set(err, ERR_INVALID_ARGUMENT, "a DNS template holds {id}");
	before.len = (size_t)(found - text.p);
	after = (struct str){found + mark.len, text.len - before.len - mark.len};
	if (!is_name_part(before) || !is_name_part(after))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "a DNS template is a host name with {id} in it once");
	memcpy(ret_template->before, before.p, before.len);
	memcpy(ret_template->after, after.p, after.len);
	if (dns_template_expand(ret_template, "i", name) < 0)
		return err_set(err, ERR_INVALID_ARGUMENT, "the DNS template makes no host names");
	return 0;
}

int dns_template_expand(const struct dns_template *template, const char *id,
			char ret_name[DNS_NAME_BYTES])
{
	int len = snprintf(ret_name, DNS_NAME_BYTES, "%s%s%s", template->before, id, template->after);

	return len < DNS_NAME_BYTES && is_name(ret_name) ? 0 : -ENAMETOOLONG;
}

/* ---- asking ---- */

static void take_record(const ns_rr *record, int type, struct dns_answer *answer)
{
	union address *address = &answer->addresses[answer->count];
	size_t size = type == ns_t_a ? 4 : 16;

	if ((int)ns_rr_type(*record) != type || ns_rr_class(*record) != ns_c_in ||
	    ns_rr_rdlen(*record) != size || answer->count == DNS_NAME_ADDRESSES_MAX)
		return;
	memset(address, 0, sizeof(*address));
	if (type == ns_t_a) {
		address->v4.sin_family = AF_INET;
		memcpy(&address->v4.sin_addr, ns_rr_rdata(*record), size);
	} else {
		address->v6.sin6_family = AF_INET6;
		memcpy(&address->v6.sin6_addr, ns_rr_rdata(*record), size);
	}
	if (answer->count++ == 0 || ns_rr_ttl(*record) < answer->ttl_s)
		answer->ttl_s = ns_rr_ttl(*record);
}

/* -ENODATA: there is such a name, without an address of this kind. */
static int read_answer(const unsigned char *message, int len, int type, struct dns_answer *answer)
{
	ns_msg parsed;
	ns_rr record;

	if (ns_initparse(message, len, &parsed) < 0)
		return -EAGAIN;
	if (ns_msg_getflag(parsed, ns_f_rcode) == ns_r_nxdomain)
		return -ENOENT;
	if (ns_msg_getflag(parsed, ns_f_rcode) != ns_r_noerror)
		return -EAGAIN;
	for (int i = 0; i < ns_msg_count(parsed, ns_s_an); i++) {
		if (ns_parserr(&parsed, ns_s_an, i, &record) < 0)
			return -EAGAIN;
		take_record(&record, type, answer);
	}
	return answer->count > 0 ? 0 : -ENODATA;
}

/* ---- by TCP, for answers that UDP has no room for ---- */

/* The resolver of the C library does that too, but waits for ever. */

static int wait_until(int fd, short events, int64_t deadline_ms)
{
	struct pollfd wait = {.fd = fd, .events = events};
	int64_t now = monotonic_ms();

	return now < deadline_ms && poll(&wait, 1, (int)(deadline_ms - now)) == 1 ? 0 : -ETIMEDOUT;
}

static int write_all(int fd, const unsigned char *data, size_t len, int64_t deadline_ms)
{
	while (len > 0) {
		ssize_t sent = send(fd, data, len, MSG_NOSIGNAL);

		if (sent > 0) {
			data += sent;
			len -= (size_t)sent;
		} else if (errno != EAGAIN || wait_until(fd, POLLOUT, deadline_ms) < 0) {
			return -EAGAIN;
		}
	}
	return 0;
}

static int read_all(int fd, unsigned char *data, size_t len, int64_t deadline_ms)
{
	while (len > 0) {
		ssize_t got = recv(fd, data, len, 0);

		if (got > 0) {
			data += got;
			len -= (size_t)got;
		} else if (got == 0 || errno != EAGAIN || wait_until(fd, POLLIN, deadline_ms) < 0) {
			return -EAGAIN;
		}
	}
	return 0;
}

static int connect_until(int fd, const struct sockaddr *server, socklen_t size, int64_t deadline_ms)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (connect(fd, server, size) == 0)
		return 0;
	if (errno != EINPROGRESS || wait_until(fd, POLLOUT, deadline_ms) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error)
		return -EAGAIN;
	return 0;
}

static int ask_one_by_tcp(const struct sockaddr *server, socklen_t size, const unsigned char *question,
			  size_t question_len, int type, struct dns_answer *answer)
{
	auto_close int fd = socket(server->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	auto_free unsigned char *message = xmalloc(ANSWER_BYTES);
	int64_t deadline_ms = monotonic_ms() + PROXY_DNS_TCP_MS;
	unsigned char length[NS_INT16SZ];
	size_t len;

	ns_put16((unsigned)question_len, length);
	if (fd < 0 || connect_until(fd, server, size, deadline_ms) < 0 ||
	    write_all(fd, length, sizeof(length), deadline_ms) < 0 ||
	    write_all(fd, question, question_len, deadline_ms) < 0 ||
	    read_all(fd, length, sizeof(length), deadline_ms) < 0)
		return -EAGAIN;
	len = ns_get16(length);
	if (len < NS_HFIXEDSZ || read_all(fd, message, len, deadline_ms) < 0 ||
	    memcmp(message, question, NS_INT16SZ) != 0) /* the id */
		return -EAGAIN;
	return read_answer(message, (int)len, type, answer);
}

static int ask_by_tcp(struct __res_state *state, const char *name, int type, struct dns_answer *answer)
{
	unsigned char question[NS_PACKETSZ];
	int len = res_nmkquery(state, ns_o_query, name, ns_c_in, type, NULL, 0, NULL, question,
			       sizeof(question));
	int status = -EAGAIN;

	for (int i = 0; len > 0 && status == -EAGAIN && i < state->nscount; i++) {
		const struct sockaddr_in *four = &state->nsaddr_list[i];
		const struct sockaddr_in6 *six = state->_u._ext.nsaddrs[i];

		memset(answer, 0, sizeof(*answer));
		if (four->sin_family == AF_INET)
			status = ask_one_by_tcp((const struct sockaddr *)four, sizeof(*four), question,
						(size_t)len, type, answer);
		else if (six)
			status = ask_one_by_tcp((const struct sockaddr *)six, sizeof(*six), question,
						(size_t)len, type, answer);
	}
	return status;
}

static int ask(struct __res_state *state, const char *name, int type, struct dns_answer *answer)
{
	unsigned char message[UDP_ANSWER_BYTES] = {0};
	int len = res_nquery(state, name, ns_c_in, type, message, sizeof(message));

	if (message[2] & TRUNCATED) {
		int status = ask_by_tcp(state, name, type, answer);

		/* Some addresses are better than none. */
		if (status != -EAGAIN || len < 0)
			return status;
		memset(answer, 0, sizeof(*answer));
	}
	if (len > (int)sizeof(message))
		return -EAGAIN;
	if (len >= 0)
		return read_answer(message, len, type, answer);
	/* NO_DATA, but not for one that the server was not able to give. */
	return state->res_h_errno == HOST_NOT_FOUND ? -ENOENT
	       : state->res_h_errno == NO_DATA	    ? -ENODATA
						    : -EAGAIN;
}

int dns_name_resolve(const char *name, const union address *server, struct dns_answer *ret_answer)
{
	struct __res_state state = {0};
	int status;

	memset(ret_answer, 0, sizeof(*ret_answer));
	if (res_ninit(&state) < 0)
		return -EAGAIN;
	if (server) {
		state.nscount = 1;
		state.nsaddr_list[0] = server->v4;
	}
	state.options |= RES_IGNTC;
	state.retrans = 1; /* seconds, doubled the second time */
	state.retry = state.nscount > 1 ? 1 : 2;
	status = ask(&state, name, ns_t_a, ret_answer);
	if (status == -ENODATA)
		status = ask(&state, name, ns_t_aaaa, ret_answer);
	res_nclose(&state);
	return status == -ENODATA ? -ENOENT : status;
}
