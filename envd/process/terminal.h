/*
 * Pseudo-terminals: made complete before the clone, with the size set, so that the first instruction
 * of the program sees it (cases.md, case 57), and owned by the user who will sit at it.
 */
#ifndef ENVD_PROCESS_TERMINAL_H
#define ENVD_PROCESS_TERMINAL_H

#include "lib/base.h"

struct terminal_size {
	uint16_t cols, rows;
};

/* Of one that nobody has given a size. */
#define TERMINAL_COLS_DEFAULT 80
#define TERMINAL_ROWS_DEFAULT 24

/* Both descriptors are close-on-exec; the master is non-blocking. The slave belongs to `uid`, mode
 * 0620, in the group the devpts mount gave it. 0 or a negative errno. May block: for jobs. */
int terminal_open(struct terminal_size size, uid_t uid, int *ret_master, int *ret_slave) NODISCARD;
/* The foreground job gets SIGWINCH when the size is new. Does not block. */
int terminal_resize(int master, struct terminal_size size) NODISCARD;

#endif
