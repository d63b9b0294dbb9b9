/*
 * Range headers (RFC 9110 section 14, contract/envd.md 2.5). Pure.
 */
#ifndef ENVD_FILESYSTEM_RANGE_H
#define ENVD_FILESYSTEM_RANGE_H

#include "lib/base.h"

/* Who asks for more pieces gets the whole. */
#define RANGES_MAX 256

struct range {
	int64_t start, end; /* [start, end), not empty */
};

enum range_result {
	RANGE_WHOLE, /* the whole file is to be sent, with 200 */
	RANGE_PARTS, /* 206 */
	RANGE_OUTSIDE, /* well-formed, and nothing of it is in the file: 416 */
	RANGE_INVALID, /* 416 as well, in the reference */
};

/* In the order given, overlaps included; what lies outside is left out. The whole file also when
 * the ranges together are longer than it, and when it is empty. */
enum range_result range_parse(struct str value, int64_t length, struct range ret_ranges[RANGES_MAX],
			      size_t *ret_count) NODISCARD;

#endif
