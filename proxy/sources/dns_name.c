#include "proxy/sources/dns_name.h"

#define LABEL_BYTES_MAX 63
#define NAME_BYTES_MAX 253

static bool is_name_part(struct str text)
{
	for (size_t i = 0; i < text.len; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._",
			    text.p[i]) ||
		    text.p[i] == '\0')
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
	int len = snprintf(ret_name, DNS_NAME_BYTES, "%s%s%s", template->before, id,
			   template->after);

	return len < DNS_NAME_BYTES && is_name(ret_name) ? 0 : -ENAMETOOLONG;
}
