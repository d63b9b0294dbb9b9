/*
 * The only door to the thread pool. A job is one whole blocking operation: a plain function over a
 * plain struct, run on a thread of the pool (or one of its own, see below), whose `done` runs on
 * the loop that asked. While it runs, the struct (and any arena in it) belongs to the job. A caller
 * that loses interest may job_abandon(): `done` still runs, with `abandoned` set, and must only
 * release.
 *
 * Admission: what touches files a client named may take long, or for ever when their file system is
 * dead. So JOB_BULK jobs (file transfer, recursive listing and removal) hold at most JOB_BULK_MAX
 * threads of the pool per loop, and together with JOB_FILES jobs (one file's facts, opening) at
 * most JOB_BLOCKING_MAX; the others wait their turn. A JOB_LONG is a bulk job that is known to take
 * seconds (a huge directory, a move to another file system). At most JOB_LONG_MAX of them run at a
 * time, so that they never keep out all transfers. JOB_COMPUTE (decoding a large message) takes
 * time but waits for nothing; it has JOB_COMPUTE_MAX threads. One is always left for JOB_QUICK
 * (stopping processes, answering about the sandbox) and JOB_START. Beyond JOB_QUEUE_MAX queued jobs
 * that touch files, or as many of JOB_QUICK and JOB_COMPUTE, or JOB_STARTS_QUEUE_MAX starts,
 * job_run refuses with -EAGAIN.
 *
 * JOB_START prepares the start of a command and, if it can, makes the child; else its `done` does.
 * What has been prepared holds memory and descriptors, and what was born has to be looked after: of
 * a burst JOB_STARTS_MAX are under way, so that those that have begun also end before all of it has
 * begun, and so that JOB_QUICK need not wait behind it.
 *
 * One that touches files and goes on and on while others wait (JOB_STUCK_LOOKS; not a JOB_LONG, of
 * which that is known) is stuck and no longer counts in all this, so that a dead file system keeps
 * nobody out of those that are well. JOB_STUCK_MAX may be. While there are any, whatever touches
 * files has a thread of its own, started for it and gone with it: of the pool itself they never
 * have more than JOB_BLOCKING_MAX.
 *
 * A transfer holds next to nothing until its JOB_BEGIN (a JOB_FILES that opens a file) has run, and
 * then file, buffers and what else it works with. So its first pieces are JOB_PIECE, bulk jobs that
 * take turns with all others, and while JOB_PIECES_WAITING_MAX of them wait no other transfer
 * begins. Many at once are done one after the other then, instead of all little by little.
 *
 * None of these threads makes a copy of envd: their stacks are left out of what a clone copies.
 * Where libc is musl its fork() must not be used any more, by no thread; lib/process/child.h does
 * without libc.
 */
#ifndef LIB_JOB_H
#define LIB_JOB_H

#include "lib/loop.h"

enum job_class {
	JOB_QUICK,
	JOB_COMPUTE,
	JOB_START,
	JOB_FILES,
	JOB_BEGIN,
	JOB_PIECE,
	JOB_BULK,
	JOB_LONG
};

struct job {
	uv_work_t work;
	struct list_node node; /* among those that wait */
	struct list_node fresh; /* among the loop's file_jobs_fresh */
	struct message returned; /* of one with a thread of its own */
	struct loop *loop;
	enum job_class class;
	void (*fn)(struct job *job); /* that thread */
	void (*done)(struct job *job); /* loop thread; the job may be freed or reused here */
	uint64_t place; /* among those that wait */
	unsigned looks; /* has been seen running so often while others waited */
	bool abandoned;
	bool active;
	bool is_stuck;
};

/* The job is embedded by its owner (container_of in fn and done). 0 or -EAGAIN. */
int job_run(struct loop *loop, struct job *job, enum job_class class, void (*fn)(struct job *job),
	    void (*done)(struct job *job)) NODISCARD;
void job_abandon(struct job *job);
/* Whether it waits for its turn: neither fn nor done has been called, nor will be before the loop
 * goes on. */
bool job_waits(const struct job *job);
/* Takes a job that waits for its turn back: false when it runs already or is not submitted, else
 * neither fn nor done will be called. */
bool job_cancel(struct job *job);
/* From within a job that touches files and could go on: whether others like it wait for a
 * thread. */
bool job_is_awaited(const struct job *job);
/* Sets the pool's size; once, before the first job. */
void job_pool_configure(void);
/* Starts the threads of the pool now, and with all signals blocked (lib/thread.h). Otherwise libuv
 * starts them when they are first needed, with the signal mask of the thread that needs them. */
void job_pool_start(void);

/* For loop_init and loop_fini. */
void job_open(struct loop *loop);
void job_close(struct loop *loop);

#endif
