#include "proxy/front/heap_keeper.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/thread.h"

/* A burst is over when this much later it still looks so. */
#define LOOK_MS 2000
/* Less is not worth the locks, and is used again by the next requests. */
#define WORTH_BYTES ((size_t)8 * 1024 * 1024)
/* Nor is less than this part of what is in use. */
#define WORTH_PART 2

bool heap_keeper_is_due(struct heap_keeper *keeper, size_t resident, size_t used)
{
	size_t unused = resident > used ? resident - used : 0;
	size_t gain;

	keeper->residue = size_min(keeper->residue, unused);
	gain = unused - keeper->residue;
	return gain >= WORTH_BYTES && gain >= used / WORTH_PART;
}

#ifdef __GLIBC__

/* Of this process alone: what is of files, or shared, is not malloc's. */
static size_t read_resident(const struct heap_keeper *keeper)
{
	unsigned long size, resident, shared;
	char text[128];
	ssize_t len = pread(keeper->statm_fd, text, sizeof(text) - 1, 0);

	if (len <= 0)
		return 0;
	text[len] = '\0';
	if (sscanf(text, "%lu %lu %lu", &size, &resident, &shared) != 3 || resident < shared)
		return 0;
	return (resident - shared) * (size_t)sysconf(_SC_PAGESIZE);
}

static size_t read_used(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static void trim(struct heap_keeper *keeper, size_t before)
{
	size_t after, used;

	malloc_trim(0);
	after = read_resident(keeper);
	used = read_used();
	keeper->residue = after > used ? after - used : 0;
	log_debug("proxy", "memory was given back", LOG_I("before_kib", before / 1024),
		  LOG_I("after_kib", after / 1024), LOG_I("used_kib", used / 1024));
}

/* True when it has to be looked at again, whatever happens until then. */
static bool look(struct heap_keeper *keeper)
{
	size_t resident = read_resident(keeper);
	bool due = resident >= WORTH_BYTES && heap_keeper_is_due(keeper, resident, read_used());

	if (due && keeper->was_due) {
		trim(keeper, resident);
		due = false;
	}
	keeper->was_due = due;
	return due;
}

static int open_statm(void)
{
	/* Kept open: a burst may take all descriptors. */
	return open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
}

#else

static bool look(struct heap_keeper *keeper)
{
	(void)keeper;
	return false;
}

static int open_statm(void)
{
	return -1;
}

#endif

/* Under the lock. */
static void rest(struct heap_keeper *keeper)
{
	struct timespec until;

	while (!keeper->ending && !atomic_load(&keeper->noted))
		pthread_cond_wait(&keeper->changed, &keeper->lock);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LOOK_MS / 1000;
	while (!keeper->ending &&
	       pthread_cond_timedwait(&keeper->changed, &keeper->lock, &until) == 0)
		;
}

static void *run(void *user)
{
	struct heap_keeper *keeper = user;
	bool again;

	pthread_mutex_lock(&keeper->lock);
	while (rest(keeper), !keeper->ending) {
		atomic_store(&keeper->noted, false);
		pthread_mutex_unlock(&keeper->lock);
		again = look(keeper);
		pthread_mutex_lock(&keeper->lock);
		if (again)
			atomic_store(&keeper->noted, true);
	}
	pthread_mutex_unlock(&keeper->lock);
	return NULL;
}

int heap_keeper_open(struct heap_keeper *keeper, struct err *err)
{
	pthread_condattr_t attributes;
	int status = 0;

	*keeper = (struct heap_keeper){.statm_fd = open_statm()};
	atomic_init(&keeper->noted, false);
	pthread_mutex_init(&keeper->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&keeper->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	if (keeper->statm_fd >= 0)
		status = thread_start(&keeper->thread, 0, run, keeper);
	if (status < 0)
		close_fd(&keeper->statm_fd);
	return status < 0 ? err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status, "start a thread") : 0;
}

void heap_keeper_close(struct heap_keeper *keeper)
{
	if (keeper->statm_fd >= 0) {
		pthread_mutex_lock(&keeper->lock);
		keeper->ending = true;
		pthread_cond_signal(&keeper->changed);
		pthread_mutex_unlock(&keeper->lock);
		pthread_join(keeper->thread, NULL);
		close_fd(&keeper->statm_fd);
	}
	pthread_cond_destroy(&keeper->changed);
	pthread_mutex_destroy(&keeper->lock);
}

void heap_keeper_wake(struct heap_keeper *keeper)
{
	pthread_mutex_lock(&keeper->lock);
	atomic_store(&keeper->noted, true);
	pthread_cond_signal(&keeper->changed);
	pthread_mutex_unlock(&keeper->lock);
}
