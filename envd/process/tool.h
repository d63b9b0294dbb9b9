/*
 * Runs a program of the image on envd's own behalf, as envd, to its end: mount, iptables. For what
 * no system call does, or what may hang in one for ever. Its output is kept up to
 * TOOL_OUTPUT_BYTES. Loop thread only.
 */
#ifndef ENVD_PROCESS_TOOL_H
#define ENVD_PROCESS_TOOL_H

#include "lib/process/reaper.h"
#include "envd/process/spawn.h"

#define TOOL_OUTPUT_BYTES 4096

struct tool;

/* Lives as long as envd. The first four are filled by its maker. */
struct tools {
	struct loop *loop;
	const struct sandbox *sandbox;
	const struct spawn_settings *spawn;
	struct reaper *reaper;
	struct list_node running; /* until they have ended, also those nobody waits for */
	bool is_stopped;
};

void tools_init(struct tools *tools);
/* Kills all, without waiting for who hangs in the kernel: the reaper tracks none any more, and none
 * starts. Who waits for one is told -ECANCELED. */
void tools_stop(struct tools *tools);

struct tool_result {
	/* The exit status (127: there is no such program); 128 and more after a signal; a negative
	 * errno when it could not be started; -ETIMEDOUT when it took too long and was killed. */
	int status;
	const char
		*output; /* of both kinds, without blanks at its end; or why it was not started */
};

/* `argv` ends with NULL and is copied; the program is looked for in PATH. `on_done` comes once,
 * from the loop, unless tool_cancel comes first; the tool is gone after it. NULL (and no on_done)
 * when too much work is waiting, or after tools_stop. */
struct tool *tool_run(struct tools *tools, const char *const *argv, uint64_t timeout_ms,
		      void (*on_done)(void *user, const struct tool_result *result),
		      void *user) NODISCARD;
/* Kills it. */
void tool_cancel(struct tool *tool);

#endif
