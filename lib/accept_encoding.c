#include "lib/accept_encoding.h"

#include "lib/accept.h"

#define ITEMS_MAX 64

/* Stable: the client's order stays among equals. */
static void sort_items(struct accept_item *items, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		struct accept_item item = items[i];
		size_t at = i;

		for (; at > 0 && items[at - 1].quality < item.quality; at--)
			items[at] = items[at - 1];
		items[at] = item;
	}
}

static bool is_identity_acceptable(const struct accept_item *items, size_t count)
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
	struct accept_item items[ITEMS_MAX];
	size_t count = 0;

	while (count < ITEMS_MAX && accept_next(&value, &items[count]))
		count++;
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
