/*
 * A file that holds one secret for an Authorization field, at start-up.
 */
#ifndef PROXY_TOKEN_FILE_H
#define PROXY_TOKEN_FILE_H

#include "lib/err.h"

#define TOKEN_FILE_BYTES_MAX 1024

/* NUL-terminated, without the line's end. Blocking. Fills err with invalid_argument: not readable,
 * empty, blanks around it, or bytes that a field cannot hold. */
int token_file_read(const char *path, char ret_token[TOKEN_FILE_BYTES_MAX + 1],
		    struct err *err) NODISCARD;

#endif
