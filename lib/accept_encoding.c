#include "lib/accept_encoding.h"

#define ITEMS_MAX 64

struct item {
	struct str name;
	unsigned quality; /* in thousandths */
};

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

static bool parse_item(struct str text, struct item *ret_item)
{
	struct str parameter;

	if (!str_split(&text, ';', &parameter))
		return false;
	*ret_item = (struct item){str_trim(parameter), 1000};
	while (str_split(&text, ';', &parameter)) {
		struct str value = str_trim(parameter), name;

		if (str_split(&value, '=', &name) && value.p &&
		    str_equal_nocase(str_trim(name), STR("q")))
			ret_item->quality = parse_quality(str_trim(value));
	}
	return ret_item->name.len > 0;
}

/* Stable: the client's order stays among equals. */
static void sort_items(struct item *items, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		struct item item = items[i];
		size_t at = i;

		for (; at > 0 && items[at - 1].quality < item.quality; at--)
			items[at] = items[at - 1];
		items[at] = item;
	}
}

static bool is_identity_acceptable(const struct item *items, size_t count)
{
	bool any_refused = false, named = false;

	for (size_t i = 0; i < count; i++) {
		if (str_equal_nocase(items[i].name, STR("identity"))) {
			if (items[i].quality == 0)
				return false;
			named = true;
		} else if (str_equal(items[i].name, STR("*")) && items[i].quality == 0) {
			any_refused = true;
		}
	}
	return named || !any_refused;
}

enum accept_encoding accept_encoding_choose(struct str value, bool *ret_identity)
{
	struct item items[ITEMS_MAX];
	struct str text;
	size_t count = 0;

	while (count < ITEMS_MAX && str_split(&value, ',', &text))
		count += parse_item(text, &items[count]);
	*ret_identity = is_identity_acceptable(items, count);
	sort_items(items, count);
	for (size_t i = 0; i < count && items[i].quality; i++) {
		if (str_equal_nocase(items[i].name, STR("gzip")))
			return ACCEPT_GZIP;
		if (str_equal_nocase(items[i].name, STR("identity")))
			return ACCEPT_IDENTITY;
		if (str_equal(items[i].name, STR("*")))
			return *ret_identity ? ACCEPT_IDENTITY : ACCEPT_GZIP;
	}
	return *ret_identity ? ACCEPT_IDENTITY : ACCEPT_NONE;
}
