/*
 * How a process ended: made once, from the wait status and the usage the kernel hands over with it,
 * and kept for every process. The compatible wire carries what it can (exit_record_status_text);
 * everything else is there for those who keep more, such as jobs.
 */
#ifndef LIB_PROCESS_EXIT_RECORD_H
#define LIB_PROCESS_EXIT_RECORD_H

#include "lib/base.h"

struct exit_record {
	bool exited; /* by exit(); otherwise by a signal */
	int code; /* exit status; -1 after death by a signal (cases.md, decision 54) */
	int signal; /* 0 when it exited */
	bool core_dumped;
	bool timed_out; /* its deadline passed and it was killed for that */
	bool stopped; /* somebody asked for the signal (SendSignal, shutdown) */
	bool out_of_memory; /* the kernel's OOM killer chose it; known only where cgroups account
			       memory */
	uint64_t user_us, system_us; /* CPU time of it and of the children it waited for */
	uint64_t peak_rss_bytes; /* the largest of these processes */
	int64_t started_ms, ended_ms; /* wall clock, since 1970 */
};

#define EXIT_STATUS_TEXT_BYTES 64

/* "exit status 3", "signal: killed", "signal: segmentation fault (core dumped)": the texts clients
 * know (contract/envd.md 4.4, EndEvent). */
void exit_record_status_text(const struct exit_record *record, char text[EXIT_STATUS_TEXT_BYTES]);
/* "killed", "terminated"; "signal 34" for those without a name. `text` is used for these. */
const char *signal_text(int number, char text[EXIT_STATUS_TEXT_BYTES]);
int64_t wall_clock_ms(void);

#endif
