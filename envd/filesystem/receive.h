/*
 * The body of one POST /files on its way into files (contract/envd.md 2.6, 2.8): content coding,
 * form, targets, writing. Blocking functions over bytes as they come: begin, any number of feed,
 * finish; or abort at any point. Memory does not depend on the body: what lasts is a few hundred
 * bytes for each file of a form, at most MULTIPART_FILES_MAX of them, within the arena.
 *
 * Error kinds become statuses: unauthenticated 401, invalid_argument 400, permission_denied 403,
 * resource_exhausted 507, the rest 500. After a failure, call receive_abort as well; files written
 * by then remain, as in the reference.
 */
#ifndef ENVD_FILESYSTEM_RECEIVE_H
#define ENVD_FILESYSTEM_RECEIVE_H

#include "envd/filesystem/metadata.h"
#include "envd/filesystem/multipart.h"
#include "envd/filesystem/upload.h"
#include "envd/init/sandbox.h"
#include "lib/gzip.h"

/* All borrowed until receive_abort or _finish. */
struct receive_request {
	const struct sandbox *sandbox; /* for sandbox_check_user alone */
	const char *user_name;
	const char *default_workdir; /* may be NULL */
	struct str path; /* the query's; {NULL, 0}: not given */
	struct str content_type; /* raw */
	struct str content_encoding; /* first field; {NULL, 0}: none */
	int64_t length; /* of the body; -1: not known */
	const struct metadata_field *fields;
	size_t field_count;
};

struct received_file {
	const char *path; /* resolved; real bytes, show with path_show */
	uint64_t hash; /* of it */
	const struct entry_metadata *metadata;
	size_t metadata_count;
};

struct receive {
	const struct receive_request *request;
	struct arena *arena;
	struct user user;
	struct entry_metadata *metadata;
	size_t metadata_count;
	struct received_file *files;
	size_t file_count, file_capacity;
	int64_t left; /* of the body before the current piece; -1: not known */

	struct gzip_reader *gzip;
	struct multipart multipart;
	bool is_multipart;
	struct upload upload;
	bool is_uploading;
	struct err *err; /* of the call that runs */
};

/* The arena is the job's; it holds the result, too. */
int receive_begin(struct receive *receive, const struct receive_request *request,
		  struct arena *arena, struct err *err) NODISCARD;
int receive_feed(struct receive *receive, const char *data, size_t len, struct err *err) NODISCARD;
/* The body is complete: publishes. The result is receive->files. */
int receive_finish(struct receive *receive, struct err *err) NODISCARD;
/* Drops what is unfinished and what is held. Also after receive_finish; idempotent. */
void receive_abort(struct receive *receive);

#endif
