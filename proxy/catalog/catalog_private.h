/* Shared by catalog.c (who has what, and changes) and catalog_record.c (records by themselves); for
 * no one else. */
#ifndef PROXY_CATALOG_CATALOG_PRIVATE_H
#define PROXY_CATALOG_CATALOG_PRIVATE_H

#include "proxy/catalog/catalog.h"

/* In `active` of a lifecycle: nobody is admitted any more. */
#define LIFECYCLE_RETIRED INT_MIN

/* With one reference; takes over the one to `lifecycle`. */
struct catalog_record *catalog_record_new(const struct sandbox_entry *entry,
					  struct lifecycle *lifecycle);
/* True when a connection to what `old` says is still one to what `entry` says. */
bool catalog_record_continues(const struct catalog_record *old, const struct sandbox_entry *entry);

#endif
