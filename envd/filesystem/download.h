/*
 * A file being read by GET /files (contract/envd.md 2.5), as blocking functions. Only regular files
 * are opened; FIFOs, sockets and devices are refused at once (case 101). The length is fixed when
 * the file is opened: growth is not seen, and a file that shrinks is an error where it ends (case
 * 103). Files of virtual file systems, which do not tell their size, are read to their end.
 *
 * A file that changes while it is read comes as a mixture of what it was and what it became. One
 * that is cut breaks the download off; where it is sent uncopied (file_send.h), zeros may have gone
 * out before that in place of what was cut away. That a file was cut and grew again to its old
 * length between two looks is not found out, so then a mixture may have such zeros in it.
 */
#ifndef ENVD_FILESYSTEM_DOWNLOAD_H
#define ENVD_FILESYSTEM_DOWNLOAD_H

#include "envd/filesystem/user.h"
#include "envd/init/sandbox.h"
#include "lib/file_send.h"

/* What download_open reads ahead; smaller files are complete with it. */
#define DOWNLOAD_START_BYTES (64 * 1024)

struct download_request {
	const struct sandbox *sandbox; /* for sandbox_check_user alone */
	const char *user_name;
	const char *default_workdir; /* may be NULL */
	struct str path; /* the query's; {NULL, 0}: not given */
};

struct download {
	int fd; /* -1: everything is in `start` */
	const char *path; /* resolved; real bytes */
	int64_t length; /* -1: until the end of the file */
	int64_t modified; /* seconds since 1970; 0: not told */
	const char *content_type; /* by name, else by content */
	const char *name_content_type; /* by name alone; NULL when that says nothing */
	char *start; /* the first bytes; heap */
	size_t start_len;
};

/* Kinds: unauthenticated 401, not_found 404, invalid_argument 400, permission_denied 403, the rest
 * 500; messages of the contract. After a failure there is nothing to close. */
int download_open(struct download *download, const struct download_request *request,
		  struct arena *arena, struct err *err) NODISCARD;
/* Up to `size` bytes from `offset` on. 0 at the end; -EIO when the file has become shorter. A file
 * whose length is not known is read from its start to its end, without gaps. */
ssize_t download_read(struct download *download, int64_t offset, char *buffer, size_t size);
/* The same through a socket, uncopied, of a file whose length is known; as file_send. -EIO also
 * when the file has become shorter anywhere: then what was sent before may be wrong, and the answer
 * must not end. */
ssize_t download_send(struct download *download, int64_t offset, size_t len,
		      struct file_send *send) NODISCARD;
/* The first bytes need not be held any longer: the descriptor has them, or nobody wants them
 * again. */
void download_drop_start(struct download *download);
void download_close(struct download *download);

#endif
