/*
 * Pseudo-terminals: made complete before the clone, with the size set, so that the first
 * instruction of the program sees it (cases.md, case 57), and owned by the user who will sit at it.
 */
#ifndef LIB_PROCESS_TERMINAL_H
#define LIB_PROCESS_TERMINAL_H

#include "lib/base.h"

struct terminal_size {
	uint16_t cols, rows;
};

/* Of one that nobody has given a size. */
static const struct terminal_size terminal_size_default = {.cols = 80, .rows = 24};

/* From what a client asks for: cut to TERMINAL_SIZE_MAX. What is 0, or was left out, is as in
 * `otherwise`: clients whose output is no terminal know no size, and a page that is hidden has
 * none. */
struct terminal_size terminal_size_from(uint32_t cols, uint32_t rows,
					struct terminal_size otherwise);

/* Both descriptors are close-on-exec; the master is non-blocking. The slave belongs to `uid`, mode
 * 0620, in the group the devpts mount gave it. 0 or a negative errno, and what it is about: the
 * path of what the machine lacks or refuses. May block: for jobs. */
int terminal_open(struct terminal_size size, uid_t uid, int *ret_master, int *ret_slave,
		  const char **ret_what) NODISCARD;
/* What is 0 stays as it is. The foreground job gets SIGWINCH when the size is new. Does not
 * block. */
int terminal_resize(int master, struct terminal_size size) NODISCARD;

#endif
