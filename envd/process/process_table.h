/*
 * All processes of one envd: found by pid and by tag, and the exits of those that have just ended,
 * which Connect can still ask for during PROCESS_RETAINED_EXIT_MS. A live process always wins over
 * a retained exit with the same pid. When a process starts, retained exits with its pid or its tag
 * leave the table. Loop thread only.
 */
#ifndef ENVD_PROCESS_PROCESS_TABLE_H
#define ENVD_PROCESS_PROCESS_TABLE_H

#include "envd/process/launch.h"
#include "envd/process/process.h"

struct process_table_config {
	struct loop *loop;
	const struct sandbox *sandbox;
	const char *cgroup_root; /* NULL: the usual place */
	bool with_cgroups;
	bool kill_scope_leader; /* signals reach the leader alone */
	bool adopts_orphans; /* PID 1 or subreaper: reap strangers too */
	bool set_nofile; /* envd raised its own limit; commands get this one */
	struct rlimit nofile;
	/* Every time a process runs. May be NULL. */
	void (*on_started)(void *user);
	void *on_started_user;
};

/* The exit of a process that is gone. */
struct process_exit {
	struct list_node node; /* oldest first */
	struct hash_node by_pid;
	pid_t pid;
	uint64_t due_ms;
	struct exit_record record;
	bool has_tag;
	char tag[];
};

struct process_table {
	struct process_table_config config;
	struct cgroups cgroups;
	struct cgroup_spare spare;
	struct spawn_settings spawn_settings;
	struct launch_pad pad;
	struct reaper reaper;
	struct list_node all; /* every process object, oldest first */
	size_t count;
	uint64_t next_serial;
	/* Readers that were cut off for not reading. */
	uint64_t cut_alone, cut_for_others;
	struct hash_table by_pid; /* RUNNING and DRAINING */
	struct list_node exits;
	struct hash_table exits_by_pid;
	size_t exit_count, tagged_exit_count;
	struct list_node
		discarding; /* outputs whose process is over but whose pipes are held open */
	struct alarm expiry; /* of the oldest exit; when nothing is retained, nothing wakes up */
	struct alarm grace; /* rings when it is over */
	struct alarm sweep_alarm;
	struct job sweep_job;
	bool sweep_is_wanted;
	struct later closed;
	enum { TABLE_OPEN, TABLE_TERMINATING, TABLE_KILLING, TABLE_CLOSING, TABLE_CLOSED } phase;
	void (*on_stopped)(struct process_table *table, void *user);
	void *on_stopped_user;
};

/* Blocks (cgroups); for start-up. */
struct process_table *process_table_new(const struct process_table_config *config);
/* Orderly end: SIGTERM to every process (and SIGHUP where there is a terminal), SIGKILL after
 * `grace_ms`. No new ones are started. `on_stopped` comes when all are gone and collected and every
 * subscriber was told; the loop then holds nothing of the table. */
void process_table_stop(struct process_table *table, uint64_t grace_ms,
			void (*on_stopped)(struct process_table *table, void *user), void *user);
/* Ends the grace time at once. Only while stopping. */
void process_table_hasten_stop(struct process_table *table);
/* After on_stopped. */
void process_table_free(struct process_table *table);

/* RUNNING ones. The newest of several with one tag. NULL when there is none. */
struct process *process_table_find(const struct process_table *table, pid_t pid);
struct process *process_table_find_tag(const struct process_table *table, const char *tag);
/* For Connect: RUNNING or DRAINING. */
struct process *process_table_find_attachable(const struct process_table *table, pid_t pid);
struct process *process_table_find_attachable_tag(const struct process_table *table,
						  const char *tag);
const struct process_exit *process_table_find_exit(struct process_table *table, pid_t pid);
const struct process_exit *process_table_find_exit_tag(struct process_table *table,
						       const char *tag);

#endif
