/*
 * The files of tests/wire: cases of bytes to play and what must come of them. A case begins with
 * "== name"; each line after it is a tag, a blank, and text (both may be alone). '#' begins a
 * comment, blank lines mean nothing. What tags mean is the playing test's business.
 */
#ifndef TESTS_SUPPORT_WIRE_H
#define TESTS_SUPPORT_WIRE_H

#include "lib/buf.h"
#include "tests/support/stream_mem.h"

struct wire_line {
	char tag[16];
	char *text;
};

struct wire_case {
	char *name, *file;
	struct wire_line *lines;
	size_t line_count;
};

/* Appends the text with its escapes undone: \r \n \t \0 \\ \xHH, and \*N{text} for N times text. */
void wire_unescape(struct buf *b, const char *text);
/* The same as a line of protocol: CR LF follows, unless the text ends with a lone backslash. */
void wire_add_line(struct buf *b, const char *text);

/* One way to cut the bytes that a peer sends: at once (split 0), in two at `split`, or byte by
 * byte. */
struct wire_cut {
	size_t split;
	bool by_byte;
};

/* Feeds the stream, and lets the loop settle after a piece that asks for it. */
void wire_feed(struct loop *loop, struct stream_mem *m, struct str input, struct wire_cut cut);
/* Plays a scene of `len` bytes of input in every cut (of long ones, at some 1500 places); stops at
 * the first cut that fails, and returns false. */
bool wire_play(bool (*play)(const void *scene, struct wire_cut cut), const void *scene, size_t len);
/* A main: every case of these files is a cmocka test; its state is the struct wire_case. Files are
 * named relative to the top of the tree, with wildcards. Exits the program with a message when
 * there are none: they are read before there is a test that could fail. */
int wire_main(const char *pattern, void (*test)(void **state));

#endif
