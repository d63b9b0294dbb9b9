#include "lib/process/exit_record.h"

#include <signal.h>
#include <time.h>

/* Not strsignal(): clients match on these words, and libcs differ. */
static const char *const signal_names[] = {
	[SIGHUP] = "hangup",
	[SIGINT] = "interrupt",
	[SIGQUIT] = "quit",
	[SIGILL] = "illegal instruction",
	[SIGTRAP] = "trace/breakpoint trap",
	[SIGABRT] = "aborted",
	[SIGBUS] = "bus error",
	[SIGFPE] = "floating point exception",
	[SIGKILL] = "killed",
	[SIGUSR1] = "user defined signal 1",
	[SIGSEGV] = "segmentation fault",
	[SIGUSR2] = "user defined signal 2",
	[SIGPIPE] = "broken pipe",
	[SIGALRM] = "alarm clock",
	[SIGTERM] = "terminated",
};

const char *signal_text(int number, char text[EXIT_STATUS_TEXT_BYTES])
{
	if (number > 0 && (size_t)number < ARRAY_LENGTH(signal_names) && signal_names[number])
		return signal_names[number];
	snprintf(text, EXIT_STATUS_TEXT_BYTES, "signal %d", number);
	return text;
}

void exit_record_status_text(const struct exit_record *record, char text[EXIT_STATUS_TEXT_BYTES])
{
	char unnamed[EXIT_STATUS_TEXT_BYTES];

	if (record->exited)
		snprintf(text, EXIT_STATUS_TEXT_BYTES, "exit status %d", record->code);
	else
		snprintf(text, EXIT_STATUS_TEXT_BYTES, "signal: %.32s%s",
			 signal_text(record->signal, unnamed),
			 record->core_dumped ? " (core dumped)" : "");
}

int64_t wall_clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
