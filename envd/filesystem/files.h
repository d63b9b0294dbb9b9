/*
 * GET and POST /files (contract/envd.md 2.5, 2.6): files and parts of them out, octet-stream and
 * multipart bodies in. Here the exchange and the pool meet; what is done to files is in download.h
 * and receive.h. Authorisation (contract 3.2) is the caller's, before these run.
 */
#ifndef ENVD_FILESYSTEM_FILES_H
#define ENVD_FILESYSTEM_FILES_H

#include "envd/init/sandbox.h"
#include "lib/budget.h"
#include "lib/http_exchange.h"
#include "lib/job.h"
#include "lib/json_writer.h"

void files_get(struct http_exchange *ex, struct sandbox *sandbox);
void files_post(struct http_exchange *ex, struct sandbox *sandbox);
/* POST /files/compose: files joined to one (contract 2.7), by compose.h. */
void files_compose(struct http_exchange *ex, struct sandbox *sandbox);

/* What all of them have together: for names of uploaded files, for bodies of compose requests and
 * for what is made of these. */
struct budget *files_names_budget(void);
struct budget *files_compose_bodies_budget(void);
struct budget *files_compose_budget(void);

/* For the two above. */
struct files_query {
	const char *user_name; /* the query's or the default; lives as long as the exchange */
	const char *default_workdir; /* a copy, or NULL */
	struct str path; /* {NULL, 0}: not given */
};

/* False when it has answered the request itself. */
bool files_read_query(struct http_exchange *ex, const struct sandbox *sandbox,
		      struct files_query *ret_query);
/* Transfers of this thread's loop are counted, each from its first job to its end, to share memory
 * between them: how much one of them may take at once right now, `most` at most; and whether they
 * are so many that what waits for its turn has to do without. */
void files_transfer_started(void);
void files_transfer_ended(void);
size_t files_transfer_count(void);
size_t files_chunk_bytes(size_t most);
bool files_are_crowded(void);
/* Of a transfer's next piece; `pieces` are those that were the first (lib/job.h), 0 at the
 * beginning. */
enum job_class files_piece_class(unsigned *pieces);
/* The error as {"code":..,"message":..}, with the status of its kind. */
void files_fail(struct http_exchange *ex, const struct err *err);
/* For what answers with entries. */
void files_open_writer(struct json_writer *w, struct buf *body);
/* A written file as uploads tell it, into its object: "name", "path" and "type". NULL for `path`:
 * -ENOMEM. */
void files_write_entry(struct json_writer *w, const char *path);

#endif
