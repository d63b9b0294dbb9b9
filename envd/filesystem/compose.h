/*
 * Several files joined to one, which then replaces what is at the destination, and the parts
 * deleted (POST /files/compose, contract/envd.md 2.7), as blocking functions: begin, step until it
 * says done; or abort at any point.
 *
 * What is promised (case 99): the content is collected in an unnamed file and put in place by a
 * rename at the very end, so that until then, whatever fails, the destination and all parts are as
 * they were and nothing else is left. A file system without O_TMPFILE gets a temporary name beside
 * the destination from the start. Parts are deleted last; one that has been replaced meanwhile, or
 * that cannot be deleted, stays.
 *
 * Users' links are followed with care, as in uploads (place.h): no part is read and no name
 * replaced through them that the user could not read or replace himself.
 */
#ifndef ENVD_FILESYSTEM_COMPOSE_H
#define ENVD_FILESYSTEM_COMPOSE_H

#include "envd/filesystem/place.h"
#include "envd/init/sandbox.h"

struct compose_source {
	const char *path; /* resolved */
	const char *shown; /* as given */
	/* What is at the path (a link itself) and what it leads to, when the work began. */
	dev_t device, content_device;
	ino_t inode, content_inode;
};

struct compose {
	struct user user;
	struct compose_source *sources;
	size_t source_count;
	const char *path; /* of the destination, resolved; the result's when done */
	struct place place; /* of the destination */
	char temporary[NAME_MAX + 1];
	bool has_temporary; /* there is something under that name */
	int fd; /* the new content */
	size_t at; /* the source being copied ... */
	int from; /* ... its descriptor, -1: not opened yet */
	int64_t from_offset, from_length;
	int64_t written;
};

struct compose_request {
	const struct sandbox *sandbox; /* for sandbox_check_user alone */
	const char *user_name;
	const char *default_workdir; /* may be NULL */
	struct str body; /* JSON */
};

/* Reads the request, checks everything there is to check, opens the new file. Kinds become
 * statuses: unauthenticated 401, invalid_argument 400, not_found 404, permission_denied 403,
 * resource_exhausted 507, the rest 500. After a failure there is nothing to abort. Everything lives
 * in the arena. */
int compose_begin(struct compose *compose, const struct compose_request *request,
		  struct arena *arena, struct err *err) NODISCARD;
/* Copies up to COMPOSE_STEP_BYTES. 1: go on; 0: the file is in place and the parts are gone. A
 * failure has aborted it. */
int compose_step(struct compose *compose, struct err *err) NODISCARD;
void compose_abort(struct compose *compose);

#endif
