#include "proxy/route/dns_name.h"

#include <arpa/nameser.h>
#include <netdb.h>
#include <resolv.h>

#define LABEL_BYTES_MAX 63
#define ANSWER_BYTES 4096
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

static int read_answer(const unsigned char *message, int len, int type, struct dns_answer *answer)
{
	ns_msg parsed;
	ns_rr record;

	if (ns_initparse(message, len, &parsed) < 0)
		return -EAGAIN;
	for (int i = 0; i < ns_msg_count(parsed, ns_s_an); i++) {
		if (ns_parserr(&parsed, ns_s_an, i, &record) < 0)
			return -EAGAIN;
		take_record(&record, type, answer);
	}
	return answer->count > 0 ? 0 : -ENOENT;
}

static int ask(struct __res_state *state, const char *name, int type, struct dns_answer *answer)
{
	unsigned char message[ANSWER_BYTES];
	int len = res_nquery(state, name, ns_c_in, type, message, sizeof(message));

	/* A longer one is cut, and the rest of its addresses not missed. */
	if (len > (int)sizeof(message))
		len = sizeof(message);
	if (len >= 0)
		return read_answer(message, len, type, answer);
	/* NO_DATA, but not for one that the server was not able to give. */
	return state->res_h_errno == HOST_NOT_FOUND || state->res_h_errno == NO_DATA ? -ENOENT : -EAGAIN;
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
	state.retrans = 1; /* seconds, doubled the second time */
	state.retry = state.nscount > 1 ? 1 : 2;
	status = ask(&state, name, ns_t_a, ret_answer);
	if (status == -ENOENT && state.res_h_errno != HOST_NOT_FOUND)
		status = ask(&state, name, ns_t_aaaa, ret_answer);
	res_nclose(&state);
	return status;
}
