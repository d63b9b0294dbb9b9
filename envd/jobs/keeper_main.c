/*
 * The keeper: a program of a few KiB, without libc, one process for each running job. It is the
 * parent of the job's leader, so that somebody is there to learn the exit code also while envd is
 * not. It is started by lib/process/child.c out of envd's own memory, and lives outside of the
 * job's cgroup.
 *
 * Orphans of the job come to it, so that everything the job has started can be found below it.
 *
 * It writes down that it has started and how the leader ended (job_status.h), hands the stored
 * input on to the leader, copies a terminal's output into its file, and kills when the time limit
 * has passed. All signals are blocked. Output of jobs without a terminal does not pass through
 * here.
 *
 * There are as many of these as jobs, so each is made as small as a process can be: the page of
 * code, which all share, and one page of its own with state and stack, right behind the code, so
 * that one page table reaches both. Everything else that the kernel maps for a program is unmapped.
 */
#include "envd/jobs/job_status.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>

#include "lib/process/raw_call.h"

#define COPY_BYTES 4096
#define END_OF_INPUT 4 /* what a terminal takes for it: ^D */
#define NAME "envd-job"
#define OPTION_SET_NAME 15
/* How often it is looked for an end, input and another size where no signalfd tells of them. */
#define BLIND_LOOK_MS 20
#define E_AGAIN (-11)
#define E_INTR (-4)

struct keeper {
	int leader;
	uint64_t wall_time_ms;
	int64_t started_steady_ms;
	int signals; /* a signalfd; negative where there is none, as in sandboxes that refuse it */
	bool is_terminal;
	bool feeds; /* input may still come */
	bool is_sink_full;
	bool is_closing; /* the end of a terminal's input is on its way */
	uint64_t fed, read_up_to;
	unsigned held_start, held_end; /* of memory.held */
	bool is_in_line; /* a terminal's input, by what it has been given so far */
	uint64_t log_lost_bytes;
	bool has_used_buffers; /* so that they are resident */
	uint16_t cols, rows; /* of the terminal, when it was given another size than at first */
};

/* Pages of 4096 bytes; where they are larger, all of it is in one. */
#define STACK_END 4096
#if defined(__x86_64__)
#define PAGE_BYTES_MAX 4096
#else
#define PAGE_BYTES_MAX 65536
#endif

/* The stack grows from STACK_END down to the state: KEEPER_FLAGS in the Makefile hold its frames
 * small. What follows is resident only while there is something in it. */
static struct memory {
	_Alignas(PAGE_BYTES_MAX) struct keeper keeper;
	_Alignas(STACK_END) char held[COPY_BYTES]; /* input that was read and not yet taken */
	char copied[COPY_BYTES];
} memory;

_Static_assert(sizeof(struct keeper) <= 1024, "the rest of the page is the stack");
_Static_assert(offsetof(struct memory, held) == STACK_END,
	       "the stack is in one page with the state");

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

/* ---- memory ---- */

static const char *read_address(const char *text, unsigned long *ret_address)
{
	unsigned long address = 0;

	for (;; text++) {
		if (*text >= '0' && *text <= '9')
			address = address * 16 + (unsigned long)(*text - '0');
		else if (*text >= 'a' && *text <= 'f')
			address = address * 16 + (unsigned long)(*text - 'a' + 10);
		else
			break;
	}
	*ret_address = address;
	return text;
}

/* Lines of "START-END ...". One by one, because not every kernel lets go of all that is its own,
 * and because what emulates a kernel may take hours over a range that is the whole address
 * space. */
static void unmap_the_rest(void)
{
	char *text = memory.copied;
	unsigned long start, end;
	long fd = raw4(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0), len = 0,
	     got;

	if (fd < 0)
		return;
	while (len < COPY_BYTES - 1 &&
	       (got = raw3(SYS_read, fd, text + len, COPY_BYTES - 1 - len)) > 0)
		len += got;
	raw1(SYS_close, fd);
	text[len] = '\0';
	while (*text) {
		text = (char *)(unsigned long)read_address(text, &start);
		(void)read_address(text + (*text == '-'), &end);
		if (start >= (unsigned long)(&memory + 1) && end > start)
			raw2(SYS_munmap, start, end - start);
		while (*text && *text++ != '\n')
			;
	}
}

static void give_back_buffers(struct keeper *keeper)
{
	if (!keeper->has_used_buffers)
		return;
	keeper->has_used_buffers = false;
	if (keeper->held_start == keeper->held_end)
		raw3(SYS_madvise, memory.held, 2 * COPY_BYTES, MADV_DONTNEED);
	else
		raw3(SYS_madvise, memory.copied, COPY_BYTES, MADV_DONTNEED);
}

/* ---- the beginning ---- */

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

static void begin(struct keeper *keeper, const char *leader)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	struct job_status_start start = {.magic = JOB_STATUS_START_MAGIC};
	uint64_t watched = 1ULL << (SIGCHLD - 1) | 1ULL << (JOB_KEEPER_SIGNAL - 1);
	uint64_t all = ~0ULL;

	raw4(SYS_rt_sigprocmask, SIG_BLOCK, &all, NULL, sizeof(all));
	raw3(SYS_fcntl, JOB_KEEPER_STATUS_FD, F_SETLK, &lock);
	raw2(SYS_prctl, OPTION_SET_NAME, NAME);
	keeper->started_steady_ms = clock_ms(CLOCK_MONOTONIC);
	keeper->is_terminal = is_open(JOB_KEEPER_LOG_FD);
	keeper->feeds = is_open(JOB_KEEPER_INPUT_FD) && is_open(JOB_KEEPER_SINK_FD);
	keeper->signals = (int)raw4(SYS_signalfd4, -1, &watched, sizeof(watched),
				    O_NONBLOCK | O_CLOEXEC);
	start.started_ms = clock_ms(CLOCK_REALTIME);
	start.started_steady_ms = keeper->started_steady_ms;
	start.leader_ticks = start_ticks(leader);
	start.keeper_pid = (int32_t)raw0(SYS_getpid);
	start.leader_pid = keeper->leader;
	start.checksum = job_status_checksum(&start, sizeof(start));
	write_slot(&start, sizeof(start), JOB_STATUS_START_AT);
	raw2(SYS_flock, JOB_KEEPER_STATUS_FD, LOCK_UN);
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

	return raw4(SYS_pread64, JOB_KEEPER_STATUS_FD, &agent, sizeof(agent),
		    JOB_STATUS_AGENT_AT) == (long)sizeof(agent) &&
	       agent.is_input_closed;
}

/* Who reads lines is given what there is of one by ^D, and takes only the next for the end. */
static unsigned put_end_of_input(const struct keeper *keeper)
{
	struct termios settings = {.c_lflag = 0}; /* begins as the kernel's does */

	memory.held[0] = memory.held[1] = END_OF_INPUT;
	raw3(SYS_ioctl, JOB_KEEPER_SINK_FD, TCGETS, &settings);
	return keeper->is_in_line && settings.c_lflag & ICANON ? 2 : 1;
}

/* False when there is nothing to hand on right now. */
static bool refill(struct keeper *keeper)
{
	/* Asked before: closing comes after the last byte. */
	bool closed = is_input_closed();
	long got;

	keeper->has_used_buffers = true;
	got = raw4(SYS_pread64, JOB_KEEPER_INPUT_FD, memory.held, COPY_BYTES, keeper->read_up_to);

	if (got > 0) {
		keeper->read_up_to += (uint64_t)got;
		keeper->held_start = 0;
		keeper->held_end = (unsigned)got;
		return true;
	}
	if (!closed)
		return false;
	if (keeper->is_terminal) {
		keeper->held_start = 0;
		keeper->held_end = put_end_of_input(keeper);
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
	char last;

	keeper->is_sink_full = false;
	while (keeper->feeds && (keeper->held_start < keeper->held_end || refill(keeper))) {
		taken = raw3(SYS_write, JOB_KEEPER_SINK_FD, memory.held + keeper->held_start,
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
			if (keeper->held_start < keeper->held_end)
				continue;
			stop_feeding(keeper, false);
			return;
		}
		last = memory.held[keeper->held_start - 1];
		keeper->is_in_line = last != '\n' && last != '\r' && last != END_OF_INPUT;
		keeper->fed += (uint64_t)taken;
		has_fed = true;
	}
	if (has_fed && keeper->feeds)
		write_fed(keeper, false);
}

/* ---- a terminal ---- */

/* The kernel tells who is in front of it with SIGWINCH. */
static void resize(struct keeper *keeper)
{
	struct job_status_agent agent = {0};
	struct winsize size = {0};

	if (raw4(SYS_pread64, JOB_KEEPER_STATUS_FD, &agent, sizeof(agent), JOB_STATUS_AGENT_AT) !=
		    (long)sizeof(agent) ||
	    !agent.cols || !agent.rows ||
	    (agent.cols == keeper->cols && agent.rows == keeper->rows))
		return;
	size.ws_col = keeper->cols = agent.cols;
	size.ws_row = keeper->rows = agent.rows;
	raw3(SYS_ioctl, JOB_KEEPER_SINK_FD, TIOCSWINSZ, &size);
}

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
	keeper->has_used_buffers = true;
	for (int rounds = 0; rounds < 16; rounds++) {
		long got = raw3(SYS_read, JOB_KEEPER_SINK_FD, memory.copied, COPY_BYTES);

		if (got == E_AGAIN || got == E_INTR)
			return true;
		if (got <= 0)
			return false;
		store(keeper, memory.copied, got);
	}
	return true;
}

static void drain_output(struct keeper *keeper)
{
	/* What the leader had written before it ended is there; what its children write may never
	 * end. */
	for (int rounds = 0; rounds < 256; rounds++) {
		long got = raw3(SYS_read, JOB_KEEPER_SINK_FD, memory.copied, COPY_BYTES);

		if (got <= 0 && got != E_INTR)
			return;
		store(keeper, memory.copied, got);
	}
}

/* ---- the wait ---- */

/* The leader has ended: it is still there to be collected. */
static bool has_ended(const struct keeper *keeper, siginfo_t *info, struct rusage *usage,
		      int options)
{
	long status;

	info->si_pid = 0;
	do {
		status = raw5(SYS_waitid, P_PID, keeper->leader, info, WEXITED | options, usage);
	} while (status == E_INTR);
	/* Nobody else can have collected it; but should it be gone, there is nothing to wait
	 * for. */
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

/* In milliseconds, for poll, -1 for ever; kills when it is over. */
static int time_left(const struct keeper *keeper)
{
	int64_t left;

	if (!keeper->wall_time_ms)
		return -1;
	left = keeper->started_steady_ms + (int64_t)keeper->wall_time_ms +
	       JOB_KEEPER_WALL_SLACK_MS - clock_ms(CLOCK_MONOTONIC);
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
		polls[1].events = (short)((has_output ? POLLIN : 0) |
					  (keeper->is_sink_full ? POLLOUT : 0));
		/* A pipe without readers is always ready, so it is not asked without need. */
		if (polls[1].events)
			polls[1].fd = JOB_KEEPER_SINK_FD;
		give_back_buffers(keeper);
		left = time_left(keeper);
		if (keeper->signals < 0 && (left < 0 || left > BLIND_LOOK_MS))
			left = BLIND_LOOK_MS;
		if (left >= 0) {
			pause.tv_sec = left / 1000;
			pause.tv_nsec = left % 1000 * 1000000L;
			timeout = &pause;
		}
		raw5(SYS_ppoll, polls, 2, timeout, NULL, 0);
		if (polls[0].revents || keeper->signals < 0) {
			empty_signals(keeper);
			/* Before the input that was written after it. */
			if (keeper->is_terminal)
				resize(keeper);
		}
	}
	if (keeper->is_terminal)
		drain_output(keeper);
}

static void write_end(const struct keeper *keeper, const siginfo_t *info,
		      const struct rusage *usage)
{
	struct job_status_end end = {.magic = JOB_STATUS_END_MAGIC};

	end.ended_ms = clock_ms(CLOCK_REALTIME);
	end.ended_steady_ms = clock_ms(CLOCK_MONOTONIC);
	end.exited = info->si_code == CLD_EXITED;
	end.core_dumped = info->si_code == CLD_DUMPED;
	end.code = end.exited ? info->si_status : -1;
	end.signal = end.exited ? 0 : info->si_status;
	end.user_us = (uint64_t)usage->ru_utime.tv_sec * 1000000 +
		      (uint64_t)usage->ru_utime.tv_usec;
	end.system_us = (uint64_t)usage->ru_stime.tv_sec * 1000000 +
			(uint64_t)usage->ru_stime.tv_usec;
	end.peak_rss_bytes = (uint64_t)usage->ru_maxrss * 1024;
	end.log_lost_bytes = keeper->log_lost_bytes;
	end.checksum = job_status_checksum(&end, sizeof(end));
	write_slot(&end, sizeof(end), JOB_STATUS_END_AT);
}

__attribute__((noreturn, used)) void keeper_main(long *arguments);

/* On the new stack; `arguments` is where the kernel has put them: their count, then the vector. */
__attribute__((noreturn, used)) void keeper_main(long *arguments)
{
	char **argv = (char **)(arguments + 1), leader[12];
	struct keeper *keeper = &memory.keeper;
	struct rusage usage;
	siginfo_t info;
	unsigned i;

	if (arguments[0] < 3)
		raw1(SYS_exit_group, 2);
	for (i = 0; i < sizeof(leader) - 1 && argv[1][i]; i++)
		leader[i] = argv[1][i];
	leader[i] = '\0';
	keeper->leader = (int)read_number(leader);
	keeper->wall_time_ms = read_number(argv[2]);
	begin(keeper, leader);
	unmap_the_rest();
	keeper->has_used_buffers = true;
	wait_for_end(keeper, &info, &usage);
	write_end(keeper, &info, &usage);
	while (raw2(SYS_flock, JOB_KEEPER_STATUS_FD, LOCK_EX) == E_INTR)
		;
	(void)has_ended(keeper, &info, &usage, 0);
	for (;;)
		raw1(SYS_exit_group, 0);
}

/* The offset of what follows it in struct memory is the end of the stack. */
#if defined(__x86_64__)
__asm__(".globl _start\n"
	"_start:\n"
	"\txor %ebp, %ebp\n"
	"\tmov %rsp, %rdi\n"
	"\tmov $memory + 4096, %esp\n"
	"\tcall keeper_main\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n"
	"_start:\n"
	"\tmov x29, #0\n"
	"\tmov x0, sp\n"
	"\tadrp x1, memory + 4096\n"
	"\tadd sp, x1, :lo12:memory + 4096\n"
	"\tbl keeper_main\n");
#endif
