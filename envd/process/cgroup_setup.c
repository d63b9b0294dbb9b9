#include "envd/process/cgroup_setup.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "lib/process/cgroup_file.h"
#include "lib/log.h"

#define CGROUP2_MAGIC 0x63677270
#define OWN_NAME "init.scope"
#define RESERVED_BYTES_MAX (128ULL * 1024 * 1024)
/* What even the smallest process costs the kernel, which not every cgroup accounts: as many as fill
 * the memory would bring down everybody. */
#define BYTES_PER_PROCESS (256ULL * 1024)

static const char *const kind_names[CGROUP_KINDS] = {
	[CGROUP_USER] = "user", [CGROUP_PTY] = "ptys", [CGROUP_SOCAT] = "socats"};

/* How many threads commands may have: less than there can be in all. 0 when unknown. */
static uint64_t threads_for_commands(uint64_t memory)
{
	static const char *const limits[] = {"/proc/sys/kernel/threads-max",
					     "/proc/sys/kernel/pid_max"};
	uint64_t least = UINT64_MAX;
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(limits); i++) {
		char text[32];
		uint64_t limit;

		if (cgroup_file_read(AT_FDCWD, limits[i], text, sizeof(text)) < 0)
			return 0;
		limit = strtoull(text, NULL, 10);
		if (limit < least)
			least = limit;
	}
	least -= least / 8;
	return least < memory / BYTES_PER_PROCESS ? least : memory / BYTES_PER_PROCESS;
}

static uint64_t total_memory(void)
{
	char text[4096];
	const char *line;
	unsigned long long kilobytes;

	if (cgroup_file_read(AT_FDCWD, "/proc/meminfo", text, sizeof(text)) < 0)
		return 0;
	line = strstr(text, "MemTotal:");
	if (!line || sscanf(line, "MemTotal: %llu kB", &kilobytes) != 1)
		return 0;
	return kilobytes * 1024;
}

/* A property the kernel does not offer here is skipped, anything else makes the whole unusable. */
static int set_property(int directory, const char *kind, const char *property, const char *value)
{
	int status = cgroup_file_write(directory, property, value);

	if (status == -ENOENT || status == -EACCES || status == -EPERM) {
		log_debug("process.cgroup", "property not available", LOG_S("cgroup", kind),
			  LOG_S("property", property));
		return 0;
	}
	return status;
}

/* Commands leave some memory and some threads to everybody else, so that neither a hog nor a fork
 * bomb is one for the agent. */
static int set_properties(int directory, enum cgroup_kind kind, uint64_t memory, uint64_t threads)
{
	struct {
		const char *property;
		char value[32];
	} properties[5];
	size_t count = 0, i;
	int status;

	memset(properties, 0, sizeof(properties));
#define PROPERTY(text, ...) \
	do { \
		properties[count].property = (text); \
		snprintf(properties[count].value, sizeof(properties[count].value), __VA_ARGS__); \
		count++; \
	} while (0)
	if (kind == CGROUP_SOCAT) {
		PROPERTY("cpu.weight", "150");
		PROPERTY("io.weight", "default 50");
		PROPERTY("memory.min", "%d", 5 * 1024 * 1024);
		PROPERTY("memory.low", "%d", 8 * 1024 * 1024);
	} else {
		PROPERTY("cpu.weight", kind == CGROUP_PTY ? "200" : "50");
		PROPERTY("io.weight", kind == CGROUP_PTY ? "default 50" : "default 10");
		PROPERTY("memory.high", "%" PRIu64, memory);
		PROPERTY("memory.max", "%" PRIu64, memory);
		if (threads > 0)
			PROPERTY("pids.max", "%" PRIu64, threads);
	}
#undef PROPERTY
	for (i = 0; i < count; i++) {
		status = set_property(directory, kind_names[kind], properties[i].property,
				      properties[i].value);
		if (status < 0)
			return status;
	}
	return 0;
}

/* In a container envd is born at the top of the tree, and a cgroup that somebody lives in passes no
 * controllers down. It moves to one of its own, which freezing leaves alone. */
static void leave_the_top(int root)
{
	if (mkdirat(root, OWN_NAME, 0755) == 0 || errno == EEXIST)
		(void)cgroup_file_write(root, OWN_NAME "/cgroup.procs", "0");
}

static int open_kind(int root, enum cgroup_kind kind, uint64_t memory, uint64_t threads,
		     int *ret_directory)
{
	auto_close int directory = -1;
	int status;

	if (mkdirat(root, kind_names[kind], 0755) < 0 && errno != EEXIST)
		return -errno;
	/* Left by somebody else, it would take no command, and could be neither frozen nor
	 * thawed. */
	if (faccessat(root, kind_names[kind], W_OK, 0) < 0)
		return -errno;
	directory = openat(root, kind_names[kind], O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		return -errno;
	status = set_properties(directory, kind, memory, threads);
	if (status < 0)
		return status;
	/* For each command, so that its record can say what became of it. */
	if (kind != CGROUP_SOCAT)
		cgroup_file_enable(directory, (const char *const[]){"+memory", "+pids", NULL});
	*ret_directory = take_fd(&directory);
	return 0;
}

int cgroup_setup(const char *path, int directories[CGROUP_KINDS])
{
	uint64_t memory = total_memory(), threads = threads_for_commands(memory);
	auto_close int root = -1;
	struct statfs about;
	enum cgroup_kind kind;
	int status;

	if (statfs(path, &about) < 0)
		return -errno;
	if ((uint64_t)about.f_type != CGROUP2_MAGIC)
		return -EOPNOTSUPP;
	/* Whoever was here before may have made the three kinds, so nothing else below has to
	 * fail. */
	if (access(path, W_OK) < 0)
		return -errno;
	if (memory == 0)
		return -ENODATA;
	memory -= memory / 8 < RESERVED_BYTES_MAX ? memory / 8 : RESERVED_BYTES_MAX;
	root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return -errno;
	/* Memory first: it minds who lives there, and nobody can leave once one that does not is
	 * on. */
	if (cgroup_file_write(root, "cgroup.subtree_control", "+memory") == -EBUSY)
		leave_the_top(root);
	cgroup_file_enable(root, (const char *const[]){"+memory", "+io", "+cpu", "+pids", NULL});
	for (kind = CGROUP_USER; kind <= CGROUP_SOCAT; kind++) {
		status = open_kind(root, kind, memory, threads, &directories[kind]);
		if (status < 0)
			return status;
	}
	return 0;
}
