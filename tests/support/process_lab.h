/*
 * A process table on a real loop, and subscribers that write down what they are told. For tests of
 * envd/process below the wire.
 */
#ifndef TESTS_SUPPORT_PROCESS_LAB_H
#define TESTS_SUPPORT_PROCESS_LAB_H

#include "envd/process/process_table.h"
#include "lib/buf.h"

struct process_lab {
	struct loop loop;
	struct sandbox sandbox;
	struct process_table *table;
	bool stopped;
	struct spawn_plan other; /* whose launch seems to take long, if it is the pad's */
	char directory[64]; /* temporary, removed at the end */
};

/* What one subscriber saw. */
struct capture {
	struct process_subscriber subscriber;
	struct process *process; /* as long as it may be used: until ended or failed */
	struct buf output[3]; /* by enum output_stream */
	char order[256]; /* one letter an event: s(tarted) o(utput) k(eepalive) e(nded) f(ailed) */
	bool started, ended, failed;
	pid_t pid;
	size_t events, largest;
	struct exit_record record;
	struct err err;
	/* Plays a slow client: full after every output event until the test calls capture_drain. */
	bool slow;
	size_t queued;
};

struct lab_options {
	bool with_cgroups; /* a fresh directory of the machine's cgroup v2, if there is one */
	bool kill_scope_leader;
	bool adopts_orphans;
	rlim_t nofile; /* 0: not set */
};

/* Whether this machine lets us make cgroups (version 2). */
bool lab_has_cgroups(void);
/* Skips the test where it does not, or would not let an ordinary user. */
void lab_need_cgroups(void);
void lab_open(struct process_lab *lab, const struct lab_options *options);
/* In cgroups, which are needed. */
void lab_open_with_cgroups(struct process_lab *lab);
/* As while another launch takes long: commands are started the way that comes back to the loop
 * before the exec, until lab_free_pad or the end. */
void lab_take_pad(struct process_lab *lab);
void lab_free_pad(struct process_lab *lab);
/* Stops the table, and asserts that nothing is left. */
void lab_close(struct process_lab *lab);
/* Runs the loop until *flag; fails the test after a minute. */
void lab_run_until(struct process_lab *lab, const bool *flag);
void lab_run_until_true(struct process_lab *lab, bool (*condition)(void *user), void *user);
void lab_run_for(struct process_lab *lab, uint64_t ms);

/* Who runs the tests: commands can be run as nobody else without root. */
const char *lab_user_name(void);
/* A command of lab_user_name(); args end with NULL and include the command. */
void lab_spec(struct process_spec *spec, const char *const *args);
void capture_init(struct capture *capture);
void capture_fini(struct capture *capture);
/* Opens and fails the test if that is refused. */
void capture_open(struct process_lab *lab, struct capture *capture,
		  const struct process_spec *spec);
/* Opens `sh -c script`. */
void capture_shell(struct process_lab *lab, struct capture *capture, const char *script);
void capture_subscribe(struct capture *capture, struct process *process);
/* Runs until it has ended or failed. */
void capture_wait(struct process_lab *lab, struct capture *capture);
void capture_drain(struct capture *capture);
/* Its process waits for readers. A struct capture, for lab_run_until_true. */
bool capture_is_held_up(void *capture);
const char *capture_text(struct capture *capture, enum output_stream stream);
/* The value of a line "name: value" of the report program, "" when there is none. */
const char *report_value(struct capture *capture, const char *name, char *value, size_t size);

uint64_t lab_now_ms(struct process_lab *lab);
/* Runs `script` and returns when it has ended. */
void lab_run_shell(struct process_lab *lab, struct capture *run, const char *script);
void lab_open_terminal(struct process_lab *lab, struct capture *run, const char *script);
void lab_wait_for_text(struct process_lab *lab, struct capture *run, enum output_stream stream,
		       const char *text);
/* How many live processes have this word as an argument. */
size_t lab_count_with_argument(const char *word);
bool lab_none_with_argument(void *user);

struct killed {
	struct process_kill_waiter waiter;
	bool done;
	pid_t pid;
	int leader_status; /* of kill(pid, 0) at the moment of the answer */
};
void lab_kill_and_wait(struct process_lab *lab, struct capture *run, struct killed *killed);

/* ---- what commands are born with ---- */

#define NEEDS_ROOT() \
	do { \
		if (geteuid() != 0) \
			skip(); \
	} while (0)

void lab_write_text(const char *path, const char *text);
/* Accounts for these tests: `tester` 12345 in groups 12345, 777 and 888; its home is the lab's. */
void lab_make_accounts(struct process_lab *lab);
void lab_run_report(struct process_lab *lab, struct capture *run, struct process_spec *spec);

#define assert_report(run, name, expected) \
	do { \
		char value_[4096]; \
		assert_string_equal(report_value((run), (name), value_, sizeof(value_)), \
				    (expected)); \
	} while (0)

bool lab_has_variable(struct capture *run, const char *entry);
void lab_expect_refusal(struct process_lab *lab, const struct process_spec *spec,
			enum err_kind kind, const char *text);
/* What a shell would do: a message on stderr and its exit code, with start and end around it. */
void lab_expect_code(struct process_lab *lab, const char *const *args, int code,
		     const char *message);

#endif
