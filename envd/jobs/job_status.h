/*
 * The file `status` in a job's folder: how envd, and every envd after it, learns what became of the
 * job. It is written by the job's keeper (keeper_main.c), which has it open for as long as it
 * lives:
 *
 * - The keeper holds a POSIX record lock on the file (F_SETLK): whoever asks the kernel for the
 *   lock's holder learns the keeper's pid, or that it is gone. A pid that was used again cannot
 *   deceive.
 * - From the file's making until the keeper has begun, the file is under a flock() that envd and
 *   the child it has cloned to become the keeper hold together: once neither holds it, a job
 *   without a start will have none.
 * - Before the keeper collects its leader, which gives the leader's pid free, it takes an exclusive
 *   flock(). Whoever holds that lock while the keeper lives may rely on the leader's pid and
 *   session.
 * - Keeper and leader begin at the same time. The leader writes its birth down by itself: whoever
 *   finds that and no start knows that the command may have run, and that its keeper was killed
 *   before it began.
 *
 * Slots are written in place, with one write each, into blocks that exist from the beginning on, so
 * that a full disk cannot lose an exit code. Each has a checksum; one that is not valid is not
 * there.
 *
 * Included by a program without libc.
 */
#ifndef ENVD_JOBS_JOB_STATUS_H
#define ENVD_JOBS_JOB_STATUS_H

#include <stdint.h>

#define JOB_STATUS_BYTES 4096
#define JOB_STATUS_START_AT 0
#define JOB_STATUS_END_AT 512
#define JOB_STATUS_FED_AT 1024 /* by the keeper: how much of the input it has handed on */
#define JOB_STATUS_AGENT_AT 1536 /* by envd */
#define JOB_STATUS_BIRTH_AT \
	2048 /* struct child_birth, by the leader before it does anything else */

#define JOB_STATUS_START_MAGIC 0x7472617473626f6aULL
#define JOB_STATUS_END_MAGIC 0x646e65656e656b6fULL

/* What the keeper's descriptors are. */
#define JOB_KEEPER_STATUS_FD 3
#define JOB_KEEPER_INPUT_FD 4 /* the stored input; missing: none */
#define JOB_KEEPER_SINK_FD \
	5 /* the pipe to the leader's stdin, or the terminal's master; missing: none */
#define JOB_KEEPER_LOG_FD 6 /* of a terminal: where its output goes; missing: no terminal */
#define JOB_KEEPER_READY_FD 7 /* closed once it has begun: the lock is held then */

/* To the keeper: there is more input, or it is closed, or the terminal has another size. */
#define JOB_KEEPER_SIGNAL 10 /* SIGUSR1 */
/* The keeper's own time limit comes this much after envd's, which kills more thoroughly. */
#define JOB_KEEPER_WALL_SLACK_MS 1000

struct job_status_start {
	uint64_t magic;
	int64_t started_ms; /* since 1970 */
	int64_t started_steady_ms; /* CLOCK_MONOTONIC */
	uint64_t leader_ticks; /* its start, as /proc/PID/stat has it; 0: unknown */
	int32_t keeper_pid, leader_pid;
	uint64_t checksum;
};

struct job_status_end {
	uint64_t magic;
	int64_t ended_ms, ended_steady_ms;
	int32_t code, signal; /* as siginfo's si_status, one of the two */
	int32_t exited, core_dumped;
	uint64_t user_us, system_us, peak_rss_bytes;
	uint64_t log_lost_bytes; /* of a terminal: output that the disk did not take */
	uint64_t checksum;
};

struct job_status_fed {
	uint64_t fed;
	uint64_t is_broken; /* nobody reads the input any more */
};

struct job_status_agent {
	uint64_t is_input_closed;
	int64_t stop_requested_ms; /* since 1970; 0: not */
	int64_t stop_due_ms; /* when its grace is over; 0: not told */
	uint64_t has_terminated; /* SIGTERM was sent */
	/* The terminal's; 0: as it was begun. Written as one. */
	uint16_t cols, rows;
	uint32_t unused;
	uint64_t is_output_incomplete; /* here, because a full disk takes no record */
};

/* FNV-1a over all 64-bit words but the last. */
static inline uint64_t job_status_checksum(const void *slot, unsigned size)
{
	const uint64_t *words = (const uint64_t *)slot;
	uint64_t sum = 0xcbf29ce484222325ULL;

	for (unsigned i = 0; i + 1 < size / sizeof(uint64_t); i++)
		sum = (sum ^ words[i]) * 0x100000001b3ULL;
	return sum;
}

#endif
