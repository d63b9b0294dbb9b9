/*
 * An entry as a message. An old client gets the three fields it knows (contract/envd.md 5.3).
 */
#ifndef ENVD_FILESYSTEM_FILESYSTEM_SERVICE_ENTRY_H
#define ENVD_FILESYSTEM_FILESYSTEM_SERVICE_ENTRY_H

#include "envd/filesystem/entry.h"
#include "proto/filesystem.pb-c.h"

/* In the arena; the entry's texts are borrowed. NULL when the arena refuses. */
Filesystem__EntryInfo *filesystem_service_entry(const struct entry *entry, bool is_legacy,
						struct arena *arena) NODISCARD;

#endif
