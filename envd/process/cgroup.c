#include "envd/process/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/process/cgroup_file.h"
#include "envd/process/cgroup_setup.h"
#include "lib/err.h"
#include "lib/log.h"

#define ROOT_DEFAULT "/sys/fs/cgroup"
/* Where machines that still use version 1 mount version 2: no controllers, but kill works. */
#define ROOT_HYBRID "/sys/fs/cgroup/unified"
/* Beyond this many they are left to the end of the sandbox. */
#define LEFTOVERS_MAX 32768
#define LINGERING_TRIED_AT_ONCE 64
#define CREATE_ATTEMPTS 4
#define KILL_ROUNDS 64
#define NAME_BYTES 64
#define CPU_PERIOD_US 100000
#define NAME_FORMAT "c%" PRIx64 "-%" PRIu64
#define NAME_FORMAT_LASTING "j%" PRIx64 "-%" PRIu64
#define NAME_FORMAT_READ "c%" SCNx64 "-%" SCNu64

/* A cgroup to be removed. */
struct leftover {
	struct list_node node;
	struct cgroup_place place;
};

static void place_name(const struct cgroups *cgroups, struct cgroup_place place,
		       char name[NAME_BYTES])
{
	if (place.lasting_mark)
		snprintf(name, NAME_BYTES, NAME_FORMAT_LASTING, place.lasting_mark, place.number);
	else
		snprintf(name, NAME_BYTES, NAME_FORMAT, cgroups->boot_mark, place.number);
}

/* What an agent before this one has left behind, if nobody lives in it any more. */
static void remove_old_leftovers(int directory)
{
	auto_close int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *entry;
	DIR *listing;

	listing = fd >= 0 ? fdopendir(fd) : NULL;
	if (!listing)
		return;
	take_fd(&fd);
	while ((entry = readdir(listing))) {
		uint64_t mark, number;

		if (sscanf(entry->d_name, NAME_FORMAT_READ, &mark, &number) == 2)
			unlinkat(directory, entry->d_name, AT_REMOVEDIR);
	}
	closedir(listing);
}

static void close_all(struct cgroups *cgroups)
{
	size_t i;

	for (i = 0; i < CGROUP_KINDS; i++)
		close_fd(&cgroups->directories[i]);
}

/* How many processes of a cgroup, and of those below, the kernel has killed for their memory. */
static int read_kills(int directory, const char *path, unsigned long long *ret_kills)
{
	char text[1024];
	const char *line;
	ssize_t len = cgroup_file_read(directory, path, text, sizeof(text));

	if (len < 0)
		return (int)len;
	line = strstr(text, "oom_kill ");
	return line && sscanf(line, "oom_kill %llu", ret_kills) == 1 ? 0 : -ENODATA;
}

/* Where memory is not accounted for each command: whether somebody of the kind was killed since the
 * last time this was asked. */
static bool saw_new_kills(struct cgroups *cgroups, enum cgroup_kind kind)
{
	unsigned long long kills;

	if (read_kills(cgroups->directories[kind], "memory.events", &kills) < 0)
		return false;
	return atomic_exchange(&cgroups->out_of_memory_kills[kind], kills) < kills;
}

void cgroups_init(struct cgroups *cgroups, const char *root, bool enabled)
{
	struct timespec now;
	size_t i;
	int status;

	memset(cgroups, 0, sizeof(*cgroups));
	for (i = 0; i < CGROUP_KINDS; i++)
		cgroups->directories[i] = -1;
	pthread_mutex_init(&cgroups->lock, NULL);
	list_init(&cgroups->finished);
	list_init(&cgroups->lingering);
	clock_gettime(CLOCK_REALTIME, &now);
	cgroups->boot_mark = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	if (!enabled) {
		log_info("process.cgroup", "cgroups are off by configuration");
		return;
	}
	if (root && *root) {
		status = cgroup_setup(root, cgroups->directories);
	} else {
		root = ROOT_DEFAULT;
		status = cgroup_setup(root, cgroups->directories);
		if (status == -EOPNOTSUPP && cgroup_setup(ROOT_HYBRID, cgroups->directories) == 0) {
			root = ROOT_HYBRID;
			status = 0;
		}
	}
	if (status < 0) {
		close_all(cgroups);
		log_warn("process.cgroup", "falling back to no-op cgroup manager",
			 LOG_S("root", root), LOG_S("reason", errno_text(status)));
		return;
	}
	cgroups->available = true;
	cgroups->root = xstrdup(root);
	for (i = CGROUP_USER; i < CGROUP_KINDS; i++)
		remove_old_leftovers(cgroups->directories[i]);
	saw_new_kills(cgroups, CGROUP_USER);
	saw_new_kills(cgroups, CGROUP_PTY);
}

/* The parent's limit is reached: a command born elsewhere would escape it. */
static bool is_exhaustion(int error)
{
	return error == ENOMEM || error == EAGAIN;
}

int cgroup_open(struct cgroups *cgroups, struct cgroup_place place)
{
	char name[NAME_BYTES];
	int fd;

	place_name(cgroups, place, name);
	fd = openat(cgroups->directories[place.kind], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int create(struct cgroups *cgroups, enum cgroup_kind kind, uint64_t lasting_mark,
		  struct cgroup_place *ret_place, int *ret_fd)
{
	int attempt, directory;

	*ret_place = (struct cgroup_place){.kind = CGROUP_NONE};
	*ret_fd = -1;
	if (!cgroups->available || kind == CGROUP_NONE)
		return 0;
	directory = cgroups->directories[kind];
	for (attempt = 0; attempt < CREATE_ATTEMPTS; attempt++) {
		struct cgroup_place place = {
			.kind = kind,
			.number = atomic_fetch_add(&cgroups->next_number, 1),
			.lasting_mark = lasting_mark,
		};
		char name[NAME_BYTES];

		place_name(cgroups, place, name);
		if (mkdirat(directory, name, 0755) < 0) {
			if (errno == EEXIST)
				continue;
			return is_exhaustion(errno) ? -errno : 0;
		}
		*ret_fd = cgroup_open(cgroups, place);
		if (*ret_fd < 0) {
			int error = -*ret_fd;

			*ret_fd = -1;
			unlinkat(directory, name, AT_REMOVEDIR);
			return is_exhaustion(error) || error == EMFILE || error == ENFILE ? -error
											  : 0;
		}
		*ret_place = place;
		return 0;
	}
	return 0;
}

int cgroup_create(struct cgroups *cgroups, enum cgroup_kind kind, struct cgroup_place *ret_place,
		  int *ret_fd)
{
	return create(cgroups, kind, 0, ret_place, ret_fd);
}

int cgroup_create_lasting(struct cgroups *cgroups, enum cgroup_kind kind,
			  struct cgroup_place *ret_place, int *ret_fd)
{
	return create(cgroups, kind, cgroups->boot_mark, ret_place, ret_fd);
}

static bool limit_memory(int directory, uint64_t bytes)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, bytes);
	if (cgroup_file_write(directory, "memory.max", text) < 0)
		return false;
	/* Not everywhere; the first limit holds without them. */
	(void)cgroup_file_write(directory, "memory.swap.max", "0");
	(void)cgroup_file_write(directory, "memory.oom.group", "1");
	return true;
}

static bool limit_pids(int directory, uint32_t pids)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu32, pids);
	return cgroup_file_write(directory, "pids.max", text) == 0;
}

/* The controller is switched on for all commands when the first asks, because it is not free. */
static bool limit_cpu(struct cgroups *cgroups, enum cgroup_kind kind, int directory,
		      uint32_t millis)
{
	char text[64];

	snprintf(text, sizeof(text), "%" PRIu64 " %d", (uint64_t)millis * (CPU_PERIOD_US / 1000),
		 CPU_PERIOD_US);
	cgroup_file_enable(cgroups->directories[kind], (const char *const[]){"+cpu", NULL});
	return cgroup_file_write(directory, "cpu.max", text) == 0;
}

unsigned cgroup_limit(struct cgroups *cgroups, struct cgroup_place place,
		      const struct cgroup_limits *limits)
{
	unsigned wanted = (limits->memory_bytes ? CGROUP_LIMIT_MEMORY : 0) |
			  (limits->pids ? CGROUP_LIMIT_PIDS : 0) |
			  (limits->cpu_millis ? CGROUP_LIMIT_CPU : 0);
	auto_close int directory = -1;
	char name[NAME_BYTES];

	if (!wanted || !cgroups->available || place.kind == CGROUP_NONE)
		return wanted;
	place_name(cgroups, place, name);
	directory = openat(cgroups->directories[place.kind], name,
			   O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return wanted;
	if (limits->memory_bytes && limit_memory(directory, limits->memory_bytes))
		wanted &= ~CGROUP_LIMIT_MEMORY;
	if (limits->pids && limit_pids(directory, limits->pids))
		wanted &= ~CGROUP_LIMIT_PIDS;
	if (limits->cpu_millis && limit_cpu(cgroups, place.kind, directory, limits->cpu_millis))
		wanted &= ~CGROUP_LIMIT_CPU;
	return wanted;
}

/* For kernels before 5.14: whoever is listed gets the signal, again until nobody new appears. */
static int kill_listed(int directory)
{
	int round;

	for (round = 0; round < KILL_ROUNDS; round++) {
		char text[16384];
		ssize_t len = cgroup_file_read(directory, "cgroup.procs", text, sizeof(text));
		const char *line = text, *end;
		bool any = false;

		if (len < 0)
			return (int)len;
		/* A last line without its end may be half a number. */
		while ((end = strchr(line, '\n'))) {
			long pid = strtol(line, NULL, 10);

			if (pid > 0 && kill((pid_t)pid, SIGKILL) == 0)
				any = true;
			line = end + 1;
		}
		if (!any)
			return 0;
		usleep(1000);
	}
	return -EAGAIN;
}

int cgroup_kill(struct cgroups *cgroups, struct cgroup_place place)
{
	auto_close int directory = -1;
	char name[NAME_BYTES];
	int status;

	if (!cgroups->available || place.kind == CGROUP_NONE)
		return -ENOENT;
	place_name(cgroups, place, name);
	directory = openat(cgroups->directories[place.kind], name,
			   O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return -errno;
	status = cgroup_file_write(directory, "cgroup.kill", "1");
	return status == -ENOENT ? kill_listed(directory) : status;
}

bool cgroup_is_frozen(struct cgroups *cgroups, struct cgroup_place place)
{
	char name[NAME_BYTES], path[NAME_BYTES + 16], text[256];

	if (!cgroups->available || place.kind == CGROUP_NONE)
		return false;
	place_name(cgroups, place, name);
	snprintf(path, sizeof(path), "%s/cgroup.events", name);
	return cgroup_file_read(cgroups->directories[place.kind], path, text, sizeof(text)) > 0 &&
	       strstr(text, "frozen 1");
}

static bool try_remove(struct cgroups *cgroups, struct cgroup_place place)
{
	char name[NAME_BYTES];

	place_name(cgroups, place, name);
	return unlinkat(cgroups->directories[place.kind], name, AT_REMOVEDIR) == 0 ||
	       errno == ENOENT;
}

bool cgroup_remove(struct cgroups *cgroups, struct cgroup_place place)
{
	if (!cgroups->available || place.kind == CGROUP_NONE)
		return true;
	return try_remove(cgroups, place);
}

void cgroup_remove_later(struct cgroups *cgroups, struct cgroup_place place)
{
	struct leftover *leftover;

	if (!cgroups->available || place.kind == CGROUP_NONE)
		return;
	pthread_mutex_lock(&cgroups->lock);
	if (cgroups->remembered < LEFTOVERS_MAX) {
		leftover = xmalloc(sizeof(*leftover));
		leftover->place = place;
		list_append(&cgroups->finished, &leftover->node);
		cgroups->remembered++;
	}
	pthread_mutex_unlock(&cgroups->lock);
}

static struct leftover *take_first(struct cgroups *cgroups, struct list_node *list)
{
	struct leftover *first = NULL;

	pthread_mutex_lock(&cgroups->lock);
	if (!list_is_empty(list)) {
		first = container_of(list->next, struct leftover, node);
		list_remove(&first->node);
	}
	pthread_mutex_unlock(&cgroups->lock);
	return first;
}

static void remove_or_linger(struct cgroups *cgroups, struct leftover *leftover)
{
	bool removed = try_remove(cgroups, leftover->place);

	pthread_mutex_lock(&cgroups->lock);
	if (removed)
		cgroups->remembered--;
	else
		list_append(&cgroups->lingering, &leftover->node);
	pthread_mutex_unlock(&cgroups->lock);
	if (removed)
		free(leftover);
}

void cgroups_sweep(struct cgroups *cgroups)
{
	struct leftover *leftover;
	size_t tries;

	/* Oldest first; the ones that stay go to the end, so that each gets its turn. */
	for (tries = 0; tries < LINGERING_TRIED_AT_ONCE; tries++) {
		leftover = take_first(cgroups, &cgroups->lingering);
		if (!leftover)
			break;
		remove_or_linger(cgroups, leftover);
	}
	while ((leftover = take_first(cgroups, &cgroups->finished)))
		remove_or_linger(cgroups, leftover);
}

bool cgroup_saw_out_of_memory(struct cgroups *cgroups, struct cgroup_place place)
{
	char name[NAME_BYTES], path[NAME_BYTES + 16];
	unsigned long long kills;

	if (!cgroups->available || place.kind == CGROUP_NONE)
		return false;
	place_name(cgroups, place, name);
	snprintf(path, sizeof(path), "%s/memory.events", name);
	if (read_kills(cgroups->directories[place.kind], path, &kills) == 0)
		return kills > 0;
	/* Of many agents' time, not of this one's alone. */
	if (place.lasting_mark)
		return false;
	return saw_new_kills(cgroups, place.kind);
}

static void forget_all(struct cgroups *cgroups, struct list_node *list)
{
	struct leftover *leftover;

	while ((leftover = take_first(cgroups, list))) {
		try_remove(cgroups, leftover->place);
		free(leftover);
	}
}

void cgroups_fini(struct cgroups *cgroups)
{
	forget_all(cgroups, &cgroups->finished);
	forget_all(cgroups, &cgroups->lingering);
	close_all(cgroups);
	pthread_mutex_destroy(&cgroups->lock);
	free(cgroups->root);
	cgroups->root = NULL;
	cgroups->available = false;
}
