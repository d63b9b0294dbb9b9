#include "proxy/route/dns_name.h"

#include <arpa/nameser.h>

#define LABEL_BYTES_MAX 63
/* In the third and fourth byte of a message (RFC 1035 section 4.1.1). */
#define FLAG_ANSWER 0x80
#define FLAG_CUT 0x02
#define FLAG_RECURSE 0x01
#define RCODE_MASK 0x0f
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

/* ---- messages ---- */

size_t dns_question_write(const char *name, int type, uint16_t id,
			  unsigned char ret_message[DNS_QUESTION_BYTES])
{
	unsigned char *at = ret_message + NS_HFIXEDSZ;
	struct str rest = str_of(name), label;

	memset(ret_message, 0, NS_HFIXEDSZ);
	ns_put16(id, ret_message);
	ret_message[2] = FLAG_RECURSE;
	ret_message[5] = 1; /* questions */
	while (str_split(&rest, '.', &label) && label.len > 0) {
		*at++ = (unsigned char)label.len;
		memcpy(at, label.p, label.len);
		at += label.len;
	}
	*at++ = 0;
	ns_put16((unsigned)type, at);
	ns_put16(ns_c_in, at + NS_INT16SZ);
	return (size_t)(at + NS_QFIXEDSZ - ret_message);
}

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

/* Servers that understood nothing may leave the question out. */
static bool is_answer_to(const unsigned char *message, size_t len, const unsigned char *question,
			 size_t question_len)
{
	if (len < NS_HFIXEDSZ || memcmp(message, question, NS_INT16SZ) != 0 ||
	    !(message[2] & FLAG_ANSWER))
		return false;
	if (ns_get16(message + 2 * NS_INT16SZ) == 0)
		return (message[3] & RCODE_MASK) != ns_r_noerror && (message[3] & RCODE_MASK) != ns_r_nxdomain;
	return len >= question_len &&
	       str_equal_nocase((struct str){(const char *)message + NS_HFIXEDSZ, question_len - NS_HFIXEDSZ},
				(struct str){(const char *)question + NS_HFIXEDSZ, question_len - NS_HFIXEDSZ});
}

int dns_answer_read(const unsigned char *message, size_t len, const unsigned char *question,
		    size_t question_len, struct dns_answer *ret_answer)
{
	int type = (int)ns_get16(question + question_len - NS_QFIXEDSZ);
	bool is_cut;
	ns_msg parsed;
	ns_rr record;

	memset(ret_answer, 0, sizeof(*ret_answer));
	if (!is_answer_to(message, len, question, question_len))
		return -EBADMSG;
	is_cut = message[2] & FLAG_CUT;
	if ((message[3] & RCODE_MASK) == ns_r_nxdomain)
		return -ENOENT;
	if ((message[3] & RCODE_MASK) != ns_r_noerror)
		return -EAGAIN;
	if (ns_initparse(message, (int)len, &parsed) < 0)
		return is_cut ? -EMSGSIZE : -EAGAIN;
	for (int i = 0; i < ns_msg_count(parsed, ns_s_an); i++) {
		if (ns_parserr(&parsed, ns_s_an, i, &record) < 0)
			return is_cut ? -EMSGSIZE : -EAGAIN;
		take_record(&record, type, ret_answer);
	}
	if (is_cut)
		return -EMSGSIZE;
	return ret_answer->count > 0 ? 0 : -ENODATA;
}
