/* The items of fields like Accept and Accept-Encoding (RFC 9110 section 12.5): a name, parameters,
 * and how much it is wanted. Pure. */
#ifndef LIB_ACCEPT_H
#define LIB_ACCEPT_H

#include "lib/base.h"

struct accept_item {
	struct str name;
	struct str parameters; /* all that is behind the name's semicolon */
	unsigned quality; /* in thousandths */
};

/* Takes the next item off `rest`; false when there is none. What has no name is left out. */
bool accept_next(struct str *rest, struct accept_item *ret_item);
/* The last of that name, without its quotes; {NULL, 0}: none. */
struct str accept_parameter(const struct accept_item *item, struct str name);

#endif
