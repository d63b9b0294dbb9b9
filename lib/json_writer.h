/*
 * Writes JSON into a buf, piece by piece, without a tree: commas, colons and escapes are its
 * business. A failure of the buf is remembered, and what is written afterwards is dropped, so only
 * the end has to be asked.
 *
 * `key` is the member's name within an object, and NULL within an array and for the outermost
 * value. Keys are written as they are: constants without anything to escape; json_writer_key is for
 * all others.
 */
#ifndef LIB_JSON_WRITER_H
#define LIB_JSON_WRITER_H

#include "lib/buf.h"

struct json_writer {
	struct buf *out;
	int status; /* 0, -ENOSPC or -ENOMEM */
	bool needs_comma;
	bool html_safe; /* < > & as \u003c \u003e \u0026 */
};

void json_writer_init(struct json_writer *w, struct buf *out);
void json_writer_object(struct json_writer *w, const char *key);
void json_writer_object_end(struct json_writer *w);
void json_writer_array(struct json_writer *w, const char *key);
void json_writer_array_end(struct json_writer *w);
/* The key of the value that comes next, which is given none. */
void json_writer_key(struct json_writer *w, struct str key);
/* Invalid UTF-8 becomes U+FFFD, byte by byte. */
void json_writer_text(struct json_writer *w, const char *key, struct str text);
void json_writer_int(struct json_writer *w, const char *key, int64_t number);
void json_writer_uint(struct json_writer *w, const char *key, uint64_t number);
/* Rounded to so many decimals, at most 9. */
void json_writer_real(struct json_writer *w, const char *key, double number, int decimals);
void json_writer_bool(struct json_writer *w, const char *key, bool value);
void json_writer_null(struct json_writer *w, const char *key);
/* `json` is one value that is written as it is. */
void json_writer_raw(struct json_writer *w, const char *key, struct str json);
/* The end of an object that has a line for itself: its bracket and a newline. The status. */
int json_writer_end_line(struct json_writer *w) NODISCARD;
/* 0, or why something is missing. */
static inline int json_writer_status(const struct json_writer *w)
{
	return w->status;
}

#endif
