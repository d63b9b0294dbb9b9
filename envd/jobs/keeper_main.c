/*
 * The keeper: a program of a few KiB, without libc, one process for each running job. It is the parent
 * of the job's leader, so that somebody is there to learn the exit code also while envd is not. It is
 * started by envd/process/child.c out of envd's own memory, and lives outside of the job's cgroup.
 *
 * Orphans of the job come to it, so that everything the job has started can be found below it.
 *
 * It writes down that it has started and how the leader ended (job_status.h), hands the stored input on
 * to the leader, copies a terminal's output into its file, and kills when the time limit has passed.
 * All signals are blocked. Output of jobs without a terminal does not pass through here.
 */
#include "envd/jobs/job_status.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "envd/process/raw_call.h"

#define COPY_BYTES 4096
#define END_OF_INPUT 4 /* what a terminal takes for it: ^D */
#define NAME "envd-job"
#define OPTION_SET_NAME 15
#define OPTION_SUBREAPER 36
#define E_AGAIN (-11)
#define E_INTR (-4)
#define E_IO (-5)

struct keeper {
	int leader;
	uint64_t wall_time_ms;
	int64_t started_steady_ms;
	int signals; /* a signalfd */
	bool is_terminal;
	bool feeds; /* input may still come */
	bool is_sink_full;
	bool is_closing; /* the last byte of a terminal's input is on its way */
	uint64_t fed, read_up_to;
	unsigned held_start, held_end;
	uint64_t log_lost_bytes;
	char held[COPY_BYTES]; /* input that was read and not yet taken */
};

static int64_t clock_ms(int clock)
{
	struct timespec now;

	raw2(SYS_clock_gettime, clock, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool is_open(int fd)
{
	return raw2(SYS_fcntl, fd, F_GETFD) >= 0;
}

static uint64_t read_number(const char *text)
{
	uint64_t number = 0;

	for (; *text >= '0' && *text <= '9'; text++)
		number = number * 10 + (uint64_t)(*text - '0');
	return number;
}

static char *append(char *text, const char *more)
{
	while (*more)
		*text++ = *more++;
	return text;
}

/* Field 22 of /proc/PID/stat. The name, field 2, may hold anything, so the last ')' counts. */
static uint64_t start_ticks(const char *pid)
{
	char path[48], text[512], *end = append(append(append(path, "/proc/"), pid), "/stat");
	long fd, len, i, at = -1;
	int blanks = 0;

	*end = '\0';
	fd = raw4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	len = raw3(SYS_read, fd, text, sizeof(text) - 1);
	raw1(SYS_close, fd);
	for (i = 0; i < len; i++)
		if (text[i] == ')')
			at = i;
	if (at < 0)
		return 0;
	text[len] = '\0';
	/* A blank stands before field 3; the twentieth is before field 22. */
	for (i = at + 1; i < len; i++)
		if (text[i] == ' ' && ++blanks == 20)
			return read_number(text + i + 1);
	return 0;
}

static void write_slot(const void *slot, size_t size, int64_t at)
{
	while (raw4(SYS_pwrite64, JOB_KEEPER_STATUS_FD, slot, size, at) == E_INTR)
		;
}

static void begin(struct keeper *keeper, const char *leader, const char *wall_time_ms)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct job_status_start start = {.magic = JOB_STATUS_START_MAGIC};
	uint64_t watched = 1ULL << (SIGCHLD - 1) | 1ULL << (JOB_KEEPER_SIGNAL - 1);
	uint64_t all = ~0ULL;

	raw4(SYS_rt_sigprocmask, SIG_BLOCK, &all, NULL, sizeof(all));
	raw3(SYS_fcntl, JOB_KEEPER_STATUS_FD, F_SETLK, &lock);
	raw2(SYS_prctl, OPTION_SET_NAME, NAME);
	/* What leaves the leader's session and loses its parent stays below us, where a kill finds it. */
	raw2(SYS_prctl, OPTION_SUBREAPER, 1);
	keeper->leader = (int)read_number(leader);
	keeper->wall_time_ms = read_number(wall_time_ms);
	keeper->started_steady_ms = clock_ms(CLOCK_MONOTONIC);
	keeper->is_terminal = is_open(JOB_KEEPER_LOG_FD);
	keeper->feeds = is_open(JOB_KEEPER_INPUT_FD) && is_open(JOB_KEEPER_SINK_FD);
	keeper->signals = (int)raw4(SYS_signalfd4, -1, &watched, sizeof(watched), O_NONBLOCK | O_CLOEXEC);
	start.started_ms = clock_ms(CLOCK_REALTIME);
	start.started_steady_ms = keeper->started_steady_ms;
	start.leader_ticks = start_ticks(leader);
	start.keeper_pid = (int32_t)raw0(SYS_getpid);
	start.leader_pid = keeper->leader;
	start.checksum = job_status_checksum(&start, sizeof(start));
	write_slot(&start, sizeof(start), JOB_STATUS_START_AT);
	raw1(SYS_close, JOB_KEEPER_READY_FD);
}

/* ---- input ---- */

static void write_fed(const struct keeper *keeper, bool is_broken)
{
	struct job_status_fed fed = {.fed = keeper->fed, .is_broken = is_broken};

	write_slot(&fed, sizeof(fed), JOB_STATUS_FED_AT);
}

static void stop_feeding(struct keeper *keeper, bool is_broken)
{
	keeper->feeds = false;
	write_fed(keeper, is_broken);
	raw1(SYS_close, JOB_KEEPER_INPUT_FD);
	/* The terminal's output still comes from there. */
	if (!keeper->is_terminal)
		raw1(SYS_close, JOB_KEEPER_SINK_FD);
}

static bool is_input_closed(void)
{
	struct job_status_agent agent = {0};

	return raw4(SYS_pread64, JOB_KEEPER_STATUS_FD, &agent, sizeof(agent), JOB_STATUS_AGENT_AT) ==
		       (long)sizeof(agent) && agent.is_input_closed;
}

/* False when there is nothing to hand on right now. */
static bool refill(struct keeper *keeper)
{
	/* Asked before: closing comes after the last byte. */
	bool closed = is_input_closed();
	long got = raw4(SYS_pread64, JOB_KEEPER_INPUT_FD, keeper->held, COPY_BYTES, keeper->read_up_to);

	if (got > 0) {
		keeper->read_up_to += (uint64_t)got;
		keeper->held_start = 0;
		keeper->held_end = (unsigned)got;
		return true;
	}
	if (!closed)
		return false;
	if (keeper->is_terminal) {
		keeper->held[0] = END_OF_INPUT;
		keeper->held_start = 0;
		keeper->held_end = 1;
		keeper->is_closing = true;
		return true;
	}
	stop_feeding(keeper, false);
	return false;
}

static void feed(struct keeper *keeper)
{
	bool has_fed = false;
	long taken;

	keeper->is_sink_full = false;
	while (keeper->feeds && (keeper->held_start < keeper->held_end || refill(keeper))) {
		taken = raw3(SYS_write, JOB_KEEPER_SINK_FD, keeper->held + keeper->held_start,
			     keeper->held_end - keeper->held_start);
		if (taken == E_INTR)
			continue;
		if (taken == E_AGAIN) {
			keeper->is_sink_full = true;
			break;
		}
		if (taken < 0) {
			stop_feeding(keeper, true);
			return;
		}
		keeper->held_start += (unsigned)taken;
		if (keeper->is_closing) {
			stop_feeding(keeper, false);
			return;
		}
		keeper->fed += (uint64_t)taken;
		has_fed = true;
	}
	if (has_fed && keeper->feeds)
		write_fed(keeper, false);
}

/* ---- a terminal's output ---- */

static void store(struct keeper *keeper, const char *bytes, long len)
{
	while (len > 0) {
		long written = raw3(SYS_write, JOB_KEEPER_LOG_FD, bytes, len);

		if (written == E_INTR)
			continue;
		if (written <= 0) {
			keeper->log_lost_bytes += (uint64_t)len;
			return;
		}
		bytes += written;
		len -= written;
	}
}

/* False at its end: nobody has the other side open. */
static bool copy_output(struct keeper *keeper)
{
	char bytes[COPY_BYTES];

	for (int rounds = 0; rounds < 16; rounds++) {
		long got = raw3(SYS_read, JOB_KEEPER_SINK_FD, bytes, sizeof(bytes));

		if (got == E_AGAIN || got == E_INTR)
			return true;
		if (got <= 0)
			return false;
		store(keeper, bytes, got);
	}
	return true;
}

static void drain_output(struct keeper *keeper)
{
	char bytes[COPY_BYTES];

	/* What the leader had written before it ended is there; what its children write may never end. */
	for (int rounds = 0; rounds < 256; rounds++) {
		long got = raw3(SYS_read, JOB_KEEPER_SINK_FD, bytes, sizeof(bytes));

		if (got <= 0 && got != E_INTR)
			return;
		store(keeper, bytes, got);
	}
}

/* ---- the wait ---- */

/* The leader has ended: it is still there to be collected. */
static bool has_ended(const struct keeper *keeper, siginfo_t *info, struct rusage *usage, int options)
{
	long status;

	info->si_pid = 0;
	do {
		status = raw5(SYS_waitid, P_PID, keeper->leader, info, WEXITED | options, usage);
	} while (status == E_INTR);
	/* Nobody else can have collected it; but should it be gone, there is nothing to wait for. */
	return status < 0 || info->si_pid == keeper->leader;
}

static void collect_orphans(const struct keeper *keeper)
{
	struct rusage usage;
	siginfo_t info;

	for (;;) {
		info.si_pid = 0;
		if (raw5(SYS_waitid, P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT, &usage) < 0 ||
		    info.si_pid == 0 || info.si_pid == keeper->leader)
			return;
		raw5(SYS_waitid, P_PID, info.si_pid, &info, WEXITED | WNOHANG, &usage);
	}
}

static void empty_signals(const struct keeper *keeper)
{
	struct signalfd {
		char bytes[128];
	} news;

	while (raw3(SYS_read, keeper->signals, &news, sizeof(news)) > 0)
		;
}

/* In milliseconds, for poll; kills when it is over. */
static int time_left(const struct keeper *keeper)
{
	int64_t left;

	if (!keeper->wall_time_ms)
		return -1;
	left = keeper->started_steady_ms + (int64_t)keeper->wall_time_ms + JOB_KEEPER_WALL_SLACK_MS -
	       clock_ms(CLOCK_MONOTONIC);
	if (left > 0)
		return left > 1000000000 ? 1000000000 : (int)left;
	raw2(SYS_kill, -keeper->leader, SIGKILL);
	raw2(SYS_kill, keeper->leader, SIGKILL);
	return 1000;
}

static void wait_for_end(struct keeper *keeper, siginfo_t *info, struct rusage *usage)
{
	bool has_output = keeper->is_terminal;

	while (!has_ended(keeper, info, usage, WNOWAIT | WNOHANG)) {
		struct pollfd polls[2] = {{.fd = keeper->signals, .events = POLLIN}, {.fd = -1}};
		struct timespec pause, *timeout = NULL;
		int left;

		if (has_output)
			has_output = copy_output(keeper);
		feed(keeper);
		collect_orphans(keeper);
		polls[1].events = (short)((has_output ? POLLIN : 0) | (keeper->is_sink_full ? POLLOUT : 0));
		/* A pipe without readers is always ready, so it is not asked without need. */
		if (polls[1].events)
			polls[1].fd = JOB_KEEPER_SINK_FD;
		left = time_left(keeper);
		if (left >= 0) {
			pause.tv_sec = left / 1000;
			pause.tv_nsec = left % 1000 * 1000000L;
			timeout = &pause;
		}
		raw5(SYS_ppoll, polls, 2, timeout, NULL, 0);
		if (polls[0].revents)
			empty_signals(keeper);
	}
	if (keeper->is_terminal)
		drain_output(keeper);
}

static void write_end(const struct keeper *keeper, const siginfo_t *info, const struct rusage *usage)
{
	struct job_status_end end = {.magic = JOB_STATUS_END_MAGIC};

	end.ended_ms = clock_ms(CLOCK_REALTIME);
	end.ended_steady_ms = clock_ms(CLOCK_MONOTONIC);
	end.exited = info->si_code == CLD_EXITED;
	end.core_dumped = info->si_code == CLD_DUMPED;
	end.code = end.exited ? info->si_status : -1;
	end.signal = end.exited ? 0 : info->si_status;
	end.user_us = (uint64_t)usage->ru_utime.tv_sec * 1000000 + (uint64_t)usage->ru_utime.tv_usec;
	end.system_us = (uint64_t)usage->ru_stime.tv_sec * 1000000 + (uint64_t)usage->ru_stime.tv_usec;
	end.peak_rss_bytes = (uint64_t)usage->ru_maxrss * 1024;
	end.log_lost_bytes = keeper->log_lost_bytes;
	end.checksum = job_status_checksum(&end, sizeof(end));
	write_slot(&end, sizeof(end), JOB_STATUS_END_AT);
}

__attribute__((noreturn, used)) void keeper_main(long *stack);

__attribute__((noreturn, used)) void keeper_main(long *stack)
{
	char **argv = (char **)(stack + 1);
	struct keeper keeper;
	struct rusage usage;
	siginfo_t info;

	/* Not as an initialiser: most of it is never touched. */
	keeper.is_sink_full = keeper.is_closing = false;
	keeper.fed = keeper.read_up_to = keeper.log_lost_bytes = 0;
	keeper.held_start = keeper.held_end = 0;
	if (stack[0] < 3)
		raw1(SYS_exit_group, 2);
	begin(&keeper, argv[1], argv[2]);
	wait_for_end(&keeper, &info, &usage);
	write_end(&keeper, &info, &usage);
	while (raw2(SYS_flock, JOB_KEEPER_STATUS_FD, LOCK_EX) == E_INTR)
		;
	(void)has_ended(&keeper, &info, &usage, 0);
	for (;;)
		raw1(SYS_exit_group, 0);
}

#if defined(__x86_64__)
__asm__(".globl _start\n"
	"_start:\n"
	"\txor %ebp, %ebp\n"
	"\tmov %rsp, %rdi\n"
	"\tand $-16, %rsp\n"
	"\tcall keeper_main\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n"
	"_start:\n"
	"\tmov x29, #0\n"
	"\tmov x0, sp\n"
	"\tbl keeper_main\n");
#endif
