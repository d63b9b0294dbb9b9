/*
 * The body of a download's answer, made piece by piece: texts and sections of the file one after
 * the other, compressed if wanted. Blocking, in constant memory; one thread at a time.
 */
#ifndef ENVD_FILESYSTEM_DOWNLOAD_BODY_H
#define ENVD_FILESYSTEM_DOWNLOAD_BODY_H

#include "envd/filesystem/download.h"
#include "lib/gzip.h"

struct download_part {
	struct str text; /* comes first; borrowed */
	int64_t offset, end; /* then these bytes of the file; end -1: all there are */
};

struct download_body {
	struct download *download; /* borrowed, as the two below */
	const struct download_part *parts;
	size_t part_count;
	struct gzip_writer *gzip; /* owned; NULL: not compressed */
	bool is_small; /* little memory for that */
	int64_t tail; /* of the last part, which is copied in any case; -1: all is */

	size_t part; /* that is being read */
	int64_t done; /* bytes of it */
	char *input; /* not compressed yet */
	struct str left; /* of that */
	bool has_all; /* the parts have ended */
};

/* Fills the buffer, or less of it, also nothing, when that would take long; *ret_ended: that was
 * all. Negative errno when the file cannot be read; what was made so far must not look complete
 * then. */
ssize_t download_body_read(struct download_body *body, char *buffer, size_t size,
			   bool *ret_ended) NODISCARD;
/* How much of what comes next can be sent uncopied. */
int64_t download_body_sendable(const struct download_body *body);
/* The next of these, `len` at most, as download_send. */
ssize_t download_body_send(struct download_body *body, size_t len,
			   struct file_send *send) NODISCARD;
void download_body_fini(struct download_body *body);
/* Whether compressing is worth while, by how the start of the file shrinks. */
bool download_body_shrinks(const struct download *download);

#endif
