/*
 * Reading and replacing the small files of the system that envd edits for its host: whole, keeping
 * owner and mode, and never leaving half a file where that can be helped. Blocking: for jobs.
 */
#ifndef ENVD_INIT_TEXT_FILE_H
#define ENVD_INIT_TEXT_FILE_H

#include "lib/base.h"

/* Beyond, such a file is left alone. */
#define TEXT_FILE_BYTES_MAX (16 * 1024 * 1024)

/* 0 and a NUL-terminated copy to free, or a negative errno: -EFBIG beyond the limit above. */
int text_file_read(const char *path, char **ret_text, size_t *ret_len) NODISCARD;
/* Makes an existing file hold exactly this: by a new file that takes its place, or, where the place
 * cannot be taken (a bind mount, a folder that cannot be written), by writing into it. Symbolic
 * links are followed. 0 or a negative errno. */
int text_file_replace(const char *path, const char *text, size_t len) NODISCARD;
/* Writes behind the end of an existing file, all or nothing. */
int text_file_append(const char *path, const char *text, size_t len) NODISCARD;
/* All of it into an open file. */
int text_file_write(int fd, const char *text, size_t len) NODISCARD;
/* The folders above `path`; missing ones get 0755. */
int text_file_make_folders(const char *path) NODISCARD;
/* Creates or overwrites, with 0644, and makes the folders above. */
int text_file_create(const char *path, const char *text, size_t len) NODISCARD;

#endif
