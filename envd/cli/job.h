/*
 * `sandbox job ...`: what the sub-commands share. jobs.c has those that ask and tell, job_run.c
 * what starts one, job_output.c what moves output and input by offset and so survives a lost
 * connection.
 */
#ifndef ENVD_CLI_JOB_H
#define ENVD_CLI_JOB_H

#include "envd/cli/call.h"
#include "envd/cli/cli.h"
#include "envd/cli/print.h"
#include "proto/jobs.pb-c.h"

/* 128 and SIGPIPE, as a shell would say of a program here. */
#define JOB_EXIT_PIPE 141
/* As timeout(1) has it. */
#define JOB_EXIT_TIMED_OUT 124

int job_run_command(int argc, char **argv);
int job_logs(int argc, char **argv);
int job_input(int argc, char **argv);
int job_watch(int argc, char **argv);

/* Prints what is stored and, with `follow`, what comes until the job ends; goes on where it was
 * after a lost connection, for as long as `retry_s` without success. Returns the exit code: of the
 * job if it was followed to its end. */
struct job_follow {
	const char *id;
	Jobs__Stream stream;
	uint64_t stdout_offset, stderr_offset;
	bool follow;
	int64_t retry_s;
};
int job_follow(struct target *target, const struct job_follow *what);

/* What a shell would say: the exit code, 128 and the signal. */
int job_exit_code(const Jobs__Job *job);
bool job_has_ended(const Jobs__Job *job);
const char *job_state_text(Jobs__JobState state);
/* The value of an option: CLI_GO_ON, or the exit code after having said what is wrong. NULL leaves
 * the number as it is; 0 comes from nothing but 0. "512M", "1.5G", "100" (bytes): */
int job_read_size(const char *command, const char *option, const char *text, uint64_t *ret_bytes);
/* "1.5" */
int job_read_processors(const char *command, const char *option, const char *text,
			uint32_t *ret_millis);
/* "90" (seconds), "300ms", "1.5s", "10m", "1h30m", "1d" */
int job_read_duration(const char *command, const char *option, const char *text, uint64_t *ret_ms);

#endif
