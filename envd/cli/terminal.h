/*
 * The terminal that a command is used from: raw while keys go to the sandbox, and as it was on
 * every way out that a program has a say in (kill -9 is none); also while it is suspended.
 */
#ifndef ENVD_CLI_TERMINAL_H
#define ENVD_CLI_TERMINAL_H

#include <termios.h>

#include "lib/base.h"

/* Ctrl-D: ends the input of what reads lines from a terminal. */
#define TERMINAL_END_KEY '\004'

struct terminal {
	struct termios saved;
	bool is_raw;
};

/* Standard input; nothing happens when that is no terminal. */
void terminal_make_raw(struct terminal *terminal);
void terminal_restore(struct terminal *terminal);
/* Of the first standard descriptor that is a terminal; 80x24 when none is. */
void terminal_size(uint32_t *ret_columns, uint32_t *ret_rows);

/* "~." at the beginning of a line, as with ssh. Starts as {0}. */
struct terminal_escape {
	bool within_line, held; /* held: a ~ that may be the first half */
};

/* Takes out what is not for the other side, in place; there must be room for one byte more. Returns
 * the new length. *ret_leaves: the user wants to go; what was typed behind that is dropped. */
size_t terminal_filter(struct terminal_escape *escape, char *keys, size_t len, bool *ret_leaves);

#endif
