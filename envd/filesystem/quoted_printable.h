/*
 * The content transfer encoding "quoted-printable" (RFC 2045, 6.7) taken off a stream, as bytes
 * come, in constant memory. As forgiving as the reference: lines may end in LF alone, be of any
 * length and have lower case digits; a '=' that begins no escape stands for itself. Pure.
 */
#ifndef ENVD_FILESYSTEM_QUOTED_PRINTABLE_H
#define ENVD_FILESYSTEM_QUOTED_PRINTABLE_H

#include "lib/err.h"

/* Blanks at a line's end are no content, so they are held until it is known where they stand. */
#define QUOTED_PRINTABLE_BLANKS_MAX 256

enum quoted_printable_state {
	QUOTED_PRINTABLE_TEXT,
	QUOTED_PRINTABLE_EQUALS, /* behind a '=' */
	QUOTED_PRINTABLE_DIGIT, /* behind '=' and a digit */
	/* '=' and blanks: the line is to end here, and does not count as one */
	QUOTED_PRINTABLE_SOFT,
	QUOTED_PRINTABLE_SOFT_CR,
};

struct quoted_printable {
	enum quoted_printable_state state;
	char digit;
	char blanks[QUOTED_PRINTABLE_BLANKS_MAX]; /* also a CR */
	size_t blank_count;
};

/* What comes out; a negative value ends the decoding with it. */
typedef int quoted_printable_sink(void *user, const char *data, size_t len, struct err *err);

void quoted_printable_init(struct quoted_printable *decoder);
/* A control byte, and a '=' at a line's end with something else behind it, are invalid_argument,
 * "quotedprintable:
 * ...". */
int quoted_printable_feed(struct quoted_printable *decoder, const char *data, size_t len,
			  quoted_printable_sink *sink, void *user, struct err *err) NODISCARD;
/* The content ends here. */
int quoted_printable_finish(struct quoted_printable *decoder, quoted_printable_sink *sink,
			    void *user, struct err *err) NODISCARD;

#endif
