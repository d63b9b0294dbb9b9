/*
 * `envd job ...`: what the sub-commands share. jobs.c has those that ask and tell, job_run.c what
 * starts one, job_output.c what moves output and input by offset and so survives a lost connection.
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

/* Prints what is stored and, with `follow`, what comes until the job ends; goes on where it was after a
 * lost connection, for as long as `retry_s` without success. Returns the exit code: of the job if
 * it was followed to its end. */
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
/* "512M", "1.5G", "100" (bytes); false for anything else. */
bool job_parse_size(const char *text, uint64_t *ret_bytes);
/* "90", "1.5s", "10m", "2h", "1d"; NULL is 0. */
bool job_parse_duration(const char *text, uint64_t *ret_ms);

#endif
