/*
 * The file-system side of uploads: unnamed files, giving them a name, and moving their content into
 * a file that exists. See upload.h for what it is for. Blocking; negative errnos.
 */
#ifndef ENVD_FILESYSTEM_STAGING_H
#define ENVD_FILESYSTEM_STAGING_H

#include "envd/filesystem/place.h"

enum staging_use {
	STAGING_TO_LINK, /* becomes the file at the place: gets what its directory passes on */
	STAGING_TO_COPY, /* is copied into the file that is there */
};

/* An unnamed file on the file system of place->directory, open for reading and writing, mode 0666
 * less the umask. */
int staging_open(const struct place *place, enum staging_use use) NODISCARD;
/* Gives it the place's name; -EEXIST when there is one by now. */
int staging_link(int fd, const struct place *place) NODISCARD;
/* Copies the whole content over `target`, which then has exactly that size. -ENOSPC comes before
 * the target has changed. */
int staging_copy(int fd, int target) NODISCARD;
/* The same where there is no room for two copies: the target is emptied first, and each piece is
 * freed where it came from. The rest of `fd` is lost. Returns 0 or a negative errno; the target
 * then holds a part. */
int staging_move(int fd, int target) NODISCARD;
/* Whether a replacement of `target` by what is staged, and `more` bytes still to come, will fit
 * when the target's own space is freed for it. With `more` unknown (-1) it is thought worth trying
 * when that frees at least an eighth of what is staged already. */
bool staging_would_fit(int fd, int target, int64_t more);

/* Uploads of one file take turns from here ... */
struct staging_turn {
	struct staging_turn *next;
	dev_t device;
	ino_t inode;
};

void staging_turn_take(struct staging_turn *turn, const struct stat *st);
/* ... to here. `status` is what replacing the content came to: it ends the upload that writes there
 * directly. */
void staging_turn_end(struct staging_turn *turn, int status);
/* Nothing has changed. */
#define STAGING_UNCHANGED 1

/* The one upload that writes into a file directly. Others of the same file know of it: one that
 * replaces the content meanwhile comes after it, so what the direct one still brings is not written
 * any more. */
struct staging_direct {
	struct staging_turn turn;
	struct staging_direct *next;
	/* 0: not; else 1, or the errno with which the other one has left a part behind */
	int ended;
};

/* False when another one writes there, directly or because it is its turn. */
bool staging_direct_begin(struct staging_direct *direct, const struct stat *st) NODISCARD;
/* Takes a turn for one write: 0, or as `ended`; staging_direct_pause ends it in either case. */
int staging_direct_resume(struct staging_direct *direct) NODISCARD;
void staging_direct_pause(struct staging_direct *direct);
void staging_direct_end(struct staging_direct *direct);

#endif
