/*
 * What a download's headers ask about the file before they want it (RFC 9110 section 13,
 * contract/envd.md 2.5). Files have no entity tags, so only "*" and dates say anything. Pure.
 */
#ifndef ENVD_FILESYSTEM_FILES_CONDITIONS_H
#define ENVD_FILESYSTEM_FILES_CONDITIONS_H

#include "lib/http.h"

enum files_condition { CONDITION_PASSED, CONDITION_NOT_MODIFIED, CONDITION_FAILED };

/* `modified`: seconds since 1970; 0: not told, then dates say nothing either. Dates that cannot be
 * read are ignored. */
enum files_condition files_conditions_check(const struct http_headers *headers, int64_t modified);
/* Whether If-Range lets Range count; true without it. */
bool files_conditions_allow_range(const struct http_headers *headers, int64_t modified);
/* Whether the request is about bytes or a state of the file itself, not of a compressed form. */
bool files_conditions_need_identity(const struct http_headers *headers);

#endif
