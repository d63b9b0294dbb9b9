/*
 * One file being written by POST /files (contract/envd.md 2.6, steps 1 to 7), as blocking functions
 * in the order begin, any number of write, publish; or abort at any point. One thread at a time.
 *
 * What is promised (decisions 87 and 88): until publish nothing of the target has changed, so an
 * upload that is interrupted, or whose body turns out to be broken, leaves the old content, or no
 * file, and nothing else. The content is staged in an unnamed file (O_TMPFILE) on the target's file
 * system. A new name is then linked in with owner, mode and metadata already right, and touched so
 * that a watcher sees a write after the create. An existing file keeps its inode, mode and links:
 * the owner is changed first, as the reference does, then the metadata, which is put back if it
 * does not fit, then the content is copied over inside the kernel, with the space for it reserved
 * beforehand. Uploads of one file at the same time take turns, so that the result is one of them.
 *
 * The unnamed file is made in the topmost directory of the same mount, because inotify reports
 * writes to such files to watchers of the directory they were made in, under a name like "#1234";
 * in the target's own directory when that fails, or when it has a default ACL for new files.
 *
 * An existing file that is empty has nothing to lose, and copying to it at the end would be in
 * vain: a large upload is written into it directly, as fast as to a new file. It is emptied again
 * when the upload breaks off, unless somebody else has written there meanwhile; only when this
 * program is killed does a part stay. Readers see it grow. An upload of the same file that
 * publishes meanwhile comes after it, so what the direct one still brings is dropped; one that
 * begins meanwhile is staged.
 *
 * Written in place as the body arrives, so that an interruption leaves a part of it (a file that
 * was not there before is removed again):
 *   - file systems without O_TMPFILE: proc, sysfs, cgroup (writes must go straight through there),
 *     FUSE, NFS, overlayfs before Linux 6.1;
 *   - existing files for which no unnamed file can be made (no free inode, a directory this process
 *     must not write to).
 *
 * When an existing file's replacement does not fit beside it, it is moved in piecewise, each piece
 * freed where it came from, unless that is in vain: the rest of the body is known not to fit, or it
 * is not known and the old content would free next to nothing. From then on an interruption loses
 * the old content.
 *
 * Owners: files end up owned by the acting user, as in the reference, whoever owned them and
 * whatever directory they are in; set-id bits and capabilities go with the old owner. Not so when
 * this process is not root, when it or the file system cannot change owners (place_give), where the
 * file is virtual (a knob of the kernel's is not given away by being turned), and when the file is
 * protected (place_protects): then it is written only if the user could do it himself, and stays
 * whose it was.
 */
#ifndef ENVD_FILESYSTEM_UPLOAD_H
#define ENVD_FILESYSTEM_UPLOAD_H

#include "envd/filesystem/entry.h"
#include "envd/filesystem/staging.h"

struct upload {
	const char *path; /* resolved, clean; borrowed, like the two below */
	const struct user *user;
	const struct entry_metadata *metadata; /* replaces all that the file has */
	size_t metadata_count;
	/* What is still to come at most, this file's bytes included; -1: not known. Kept by the
	 * caller, only looked at when space runs out. */
	int64_t remaining;
	/* The request's Content-Length, for the text of the error; -1: none. */
	int64_t request_length;

	struct place place;
	int fd; /* written to: the unnamed file, or the target */
	bool in_place; /* fd is the target */
	bool is_new; /* in place: we made it */
	bool is_direct; /* in place: it was there and empty */
	struct staging_direct direct;
	int64_t written;
};

/* Fails with what will become 400 (invalid_argument), 403 (permission_denied), 507
 * (resource_exhausted, no space or no inodes) and 500 (internal), with the contract's messages;
 * after a failure there is nothing to abort. Fill the fields above the blank line first. */
int upload_begin(struct upload *upload, struct err *err) NODISCARD;
int upload_write(struct upload *upload, const char *data, size_t len, struct err *err) NODISCARD;
/* Success or failure, the upload is over then. The metadata that the file now has is read back from
 * it, so that none is claimed where the file system keeps none. */
int upload_publish(struct upload *upload, struct arena *arena, struct entry_metadata **ret_metadata,
		   size_t *ret_count, struct err *err) NODISCARD;
void upload_abort(struct upload *upload);

#endif
