/*
 * The inside of a process, shared by the files process*.c alone. Each of them calls those before
 * it. process.c has the copy of the request and counts the holders; process_table.c keeps all
 * processes, and the exits of those that are gone; process_signal.c kills; process_subscriber.c has
 * the readers; process_start.c leads from the request to the exec; process_life.c has the table of
 * states and events, and the alarm; process_stop.c ends all processes.
 */
#ifndef ENVD_PROCESS_PROCESS_INTERNAL_H
#define ENVD_PROCESS_PROCESS_INTERNAL_H

#include "envd/process/process.h"
#include "envd/process/process_table.h"

/* process.c */

/* 0 or -ENOMEM. */
int process_copy_spec(struct process *process, const struct process_spec *spec) NODISCARD;
/* Soon, from the loop, its alarm is set to what comes next; once it is DONE, what can be freed is.
 */
void process_wake(struct process *process);
void process_hold(struct process *process);
void process_drop(struct process *process);

/* process_table.c */

void process_table_insert(struct process_table *table, struct process *process);
void process_table_retain_exit(struct process_table *table, const struct process *process);
void process_table_remove(struct process_table *table, struct process *process);
void process_table_forget(struct process_table *table, struct process *process);
/* Soon, also for the next command's cgroup. */
void process_table_plan_sweep(struct process_table *table);
void process_table_leave_cgroup(struct process_table *table, struct process *process);
/* Once it is stopping. */
void process_table_close_when_empty(struct process_table *table);

/* process_signal.c */

void process_signal_leader(struct process *process, int number);
void process_send_kill(struct process *process);
void process_tell_kill_waiters(struct process *process);

/* process_subscriber.c */

void process_attach(struct process *process, struct process_subscriber *subscriber);
struct process_subscriber *process_find_starter(struct process *process);
void process_fail_subscriber(struct process_subscriber *subscriber, const struct err *err);
void process_fail_with_deadline(struct process_subscriber *subscriber);
/* To those whose time has come; returns when to ask again, UINT64_MAX for never. */
uint64_t process_send_keepalives(struct process *process);

/* process_start.c */

/* How it went is told by on_start. 0 or -EAGAIN, -ENOMEM. */
int process_begin_start(struct process *process) NODISCARD;
/* Reads the status pipe; calls on_start when it tells. */
void process_check_status(struct process *process);
void process_end_start(struct process *process);
/* Not started PROCESS_SLOW_START_MS after the clone. */
void process_hurry_start(struct process *process);
/* The status pipe of a slow start has ended: with the exec, or with the child. */
void process_look_into_end(struct process *process);
/* For when it may be no longer STARTING; the reaper may then tell of its exit. */
void process_release_start(struct process *process);

/* process_life.c */

/* The one way into the table of states and events. */
void process_dispatch(struct process *process, enum process_event event);
/* Sets the alarm to what comes next. */
void process_plan_alarm(struct process *process);

#endif
