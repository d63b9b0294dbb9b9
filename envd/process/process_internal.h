/*
 * What process.c (life cycle), process_start.c (from the request to the exec),
 * process_subscriber.c, process_signal.c and process_table.c share with each other and with nobody
 * else.
 */
#ifndef ENVD_PROCESS_PROCESS_INTERNAL_H
#define ENVD_PROCESS_PROCESS_INTERNAL_H

#include "envd/process/process.h"
#include "envd/process/process_table.h"

/* The one way into the table of states and events. */
void process_dispatch(struct process *process, enum process_event event);
/* Sets the alarm to what comes next. */
void process_plan_alarm(struct process *process);
/* Starts what can be started and frees what can be freed, once the process is DONE. */
void process_settle(struct process *process);
void process_hold(struct process *process);
void process_drop(struct process *process);

/* process_start.c */
void process_texts_hold(struct process_texts *texts);
void process_texts_release(struct process_texts *texts);
/* 0 or -ENOMEM. */
int process_copy_spec(struct process *process, const struct process_spec *spec) NODISCARD;
/* 0 or -EAGAIN, -ENOMEM. */
int process_begin_start(struct process *process) NODISCARD;
/* Reads the status pipe; dispatches EXEC_OK or EXEC_FAIL when it tells. */
void process_check_status(struct process *process);
void process_end_start(struct process *process);
/* Not started PROCESS_SLOW_START_MS after the clone. */
void process_hurry_start(struct process *process);
/* The status pipe of a slow start has ended: with the exec, or with the child. */
void process_look_into_end(struct process *process);
/* For when it may be no longer STARTING; may dispatch EXIT. */
void process_release_start(struct process *process);

/* process_subscriber.c */
void process_attach(struct process *process, struct process_subscriber *subscriber);
struct process_subscriber *process_find_starter(struct process *process);
void process_fail_subscriber(struct process_subscriber *subscriber, const struct err *err);
void process_fail_with_deadline(struct process_subscriber *subscriber);
/* To those whose time has come; returns when to ask again, UINT64_MAX for never. */
uint64_t process_send_keepalives(struct process *process);

/* process_signal.c */
void process_signal_leader(struct process *process, int number);
void process_send_kill(struct process *process);
void process_tell_kill_waiters(struct process *process);

#endif
