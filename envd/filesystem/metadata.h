/*
 * Metadata of uploads: the X-Metadata-* header fields (contract/envd.md 2.6), which become
 * attributes user.e2b.<key> of the file. Pure.
 */
#ifndef ENVD_FILESYSTEM_METADATA_H
#define ENVD_FILESYSTEM_METADATA_H

#include "envd/filesystem/entry.h"

/* A header field as received. */
struct metadata_field {
	struct str name, value;
};

/* Picks the X-Metadata-* fields out of all; keys are lower-cased, sorted, the first of several
 * values counts, empty keys are ignored. invalid_argument with the contract's messages. */
int metadata_collect(const struct metadata_field *fields, size_t field_count, struct arena *arena,
		     struct entry_metadata **ret_metadata, size_t *ret_count,
		     struct err *err) NODISCARD;

#endif
