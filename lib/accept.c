#include "lib/accept.h"

/* "0.5" and the like; anything else counts as 1. */
static unsigned parse_quality(struct str text)
{
	unsigned value = 0, unit = 1000;
	size_t i = 0;

	if (!text.len || text.p[0] < '0' || text.p[0] > '9')
		return 1000;
	if (text.p[0] != '0')
		value = 1000;
	for (i = 1; i < text.len; i++) {
		if (i == 1 && text.p[i] == '.')
			continue;
		if (i == 1 || text.p[i] < '0' || text.p[i] > '9')
			return 1000;
		unit /= 10;
		value += (unsigned)(text.p[i] - '0') * unit;
	}
	/* Too small to be told from nothing is still not nothing. */
	if (value == 0 && i > 5)
		for (size_t k = 2; k < text.len; k++)
			if (text.p[k] != '0')
				return 1;
	return value;
}

static struct str without_quotes(struct str text)
{
	if (text.len >= 2 && text.p[0] == '"' && text.p[text.len - 1] == '"')
		return (struct str){text.p + 1, text.len - 2};
	return text;
}

static struct str find_parameter(const struct accept_item *item, struct str name)
{
	struct str rest = item->parameters, parameter, found = {NULL, 0};

	while (str_split(&rest, ';', &parameter)) {
		struct str value = str_trim(parameter), given;

		if (str_split(&value, '=', &given) && value.p &&
		    str_equal_nocase(str_trim(given), name))
			found = str_trim(value);
	}
	return found;
}

struct str accept_parameter(const struct accept_item *item, struct str name)
{
	return without_quotes(find_parameter(item, name));
}

bool accept_next(struct str *rest, struct accept_item *ret_item)
{
	struct str text, name;

	while (str_split(rest, ',', &text)) {
		if (!str_split(&text, ';', &name) || !str_trim(name).len)
			continue;
		*ret_item = (struct accept_item){.name = str_trim(name), .parameters = text};
		text = find_parameter(ret_item, STR("q"));
		ret_item->quality = text.p ? parse_quality(text) : 1000;
		return true;
	}
	return false;
}
