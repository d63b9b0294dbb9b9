/*
 * How a download is answered, decided from the request's headers and the opened file, in the order
 * of contract/envd.md 2.5: encoding, conditions, ranges. Blocking, because it may try to compress.
 */
#ifndef ENVD_FILESYSTEM_FILES_ANSWER_H
#define ENVD_FILESYSTEM_FILES_ANSWER_H

#include "lib/accept_encoding.h"
#include "envd/filesystem/download_body.h"
#include "lib/http.h"

struct files_answer_request {
	const struct http_headers *headers;
	enum accept_encoding encoding; /* what accept_encoding_choose said of them */
	bool takes_identity;
	bool may_compress; /* else only a client that takes nothing else gets gzip */
};

struct files_answer {
	int status; /* 200, 206, 304, 406, 412 or 416 */
	const char *message; /* of 406 and 416 */
	const char *content_type; /* of 200 and 206 */
	const char *content_range; /* NULL: none */
	bool varies; /* with Accept-Encoding */
	bool tells_modified;
	bool is_compressed;
	int64_t length; /* of the body; -1: not known */
	struct download_part *parts;
	size_t part_count;
};

/* Everything lives in the arena. -ENOMEM. */
int files_answer_plan(const struct files_answer_request *request, const struct download *download,
		      struct arena *arena, struct files_answer *ret_answer) NODISCARD;

#endif
