#include "envd/host/volumes.h"

#include <limits.h>
#include <sys/stat.h>

#include "envd/limits.h"
#include "lib/job.h"
#include "lib/log.h"

#define MOUNTINFO "/proc/self/mountinfo"
#define NFS_OPTIONS \
	"fg,hard,sync,rsize=1048576,wsize=1048576,mountproto=tcp,mountport=2049,proto=tcp,port=" \
	"2049," \
	"nfsvers=3,noacl,noac,lookupcache=none"

struct mounted {
	struct list_node node;
	char *path, *lifecycle_id;
};

/* One volume being mounted. */
struct mounting {
	struct list_node node;
	struct volumes *volumes;
	char *target, *path;
	struct job job;
	struct tool *tool; /* NULL: none runs */
	int status;
};

struct volumes {
	struct tools *tools;
	struct list_node mounted;
	size_t mounted_count;
	/* The batch; nothing when the list is empty. */
	struct list_node batch;
	uint64_t deadline_ms;
	char *lifecycle_id;
	bool is_over; /* reported; what is left only ends */
	bool is_closing;
	void (*on_done)(void *user, int status, const struct err *err);
	void *user;
};

/* ---- blocking ---- */

/* mountinfo writes blanks and backslashes as octal escapes. */
static bool is_same_path(const char *escaped, size_t len, const char *path)
{
	for (size_t i = 0; i < len; i++) {
		char c = escaped[i];

		if (c == '\\' && len - i > 3) {
			c = (char)((escaped[i + 1] - '0') * 64 + (escaped[i + 2] - '0') * 8 +
				   (escaped[i + 3] - '0'));
			i += 3;
		}
		if (c != *path || !*path)
			return false;
		path++;
	}
	return !*path;
}

int volumes_is_mounted(const char *mountinfo, const char *path)
{
	FILE *file = fopen(mountinfo, "re");
	auto_free char *line = NULL;
	size_t capacity = 0;
	int found = 0;

	if (!file)
		return -errno;
	while (!found && getline(&line, &capacity, file) > 0) {
		const char *at = line;

		/* The fifth field. */
		for (int field = 0; at && field < 4; field++) {
			at = strchr(at, ' ');
			at = at ? at + 1 : NULL;
		}
		if (at)
			found = is_same_path(at, strcspn(at, " "), path);
	}
	fclose(file);
	return found;
}

static int make_folders(const char *path)
{
	char copy[PATH_MAX];

	if (snprintf(copy, sizeof(copy), "%s", path) >= (int)sizeof(copy))
		return -ENAMETOOLONG;
	for (char *slash = strchr(copy + 1, '/');; slash = strchr(slash + 1, '/')) {
		if (slash)
			*slash = '\0';
		if (copy[0] && mkdir(copy, 0755) < 0 && errno != EEXIST)
			return -errno;
		if (!slash)
			return 0;
		*slash = '/';
	}
}

/* ---- the ledger ---- */

static struct mounted *find(const struct volumes *volumes, const char *path)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &volumes->mounted) {
		struct mounted *mounted = container_of(node, struct mounted, node);

		if (strcmp(mounted->path, path) == 0)
			return mounted;
	}
	return NULL;
}

static void forget(struct volumes *volumes, const char *path)
{
	struct mounted *mounted = find(volumes, path);

	if (!mounted)
		return;
	list_remove(&mounted->node);
	volumes->mounted_count--;
	free(mounted->path);
	free(mounted->lifecycle_id);
	free(mounted);
}

static void remember(struct volumes *volumes, const char *path)
{
	struct mounted *mounted = xcalloc(1, sizeof(*mounted));

	forget(volumes, path);
	mounted->path = xstrdup(path);
	mounted->lifecycle_id = xstrdup(volumes->lifecycle_id);
	list_append(&volumes->mounted, &mounted->node);
	volumes->mounted_count++;
}

bool volumes_must_mount(const struct volumes *volumes, const char *path, const char *lifecycle_id)
{
	const struct mounted *mounted = find(volumes, path);

	return !mounted || strcmp(mounted->lifecycle_id, lifecycle_id) != 0;
}

/* ---- a batch ---- */

static void free_when_closed(struct volumes *volumes)
{
	if (!volumes->is_closing || !list_is_empty(&volumes->batch))
		return;
	while (!list_is_empty(&volumes->mounted))
		forget(volumes, container_of(volumes->mounted.next, struct mounted, node)->path);
	free(volumes->lifecycle_id);
	free(volumes);
}

static void free_one(struct mounting *m)
{
	list_remove(&m->node);
	free(m->target);
	free(m->path);
	free(m);
}

/* Whoever waits in a job ends when that is done. */
static void cancel_batch(struct volumes *volumes)
{
	struct list_node *node, *following;

	volumes->is_over = true;
	LIST_FOR_EACH_SAFE (node, following, &volumes->batch) {
		struct mounting *m = container_of(node, struct mounting, node);

		if (!m->tool)
			continue;
		tool_cancel(m->tool);
		free_one(m);
	}
}

static void finish_one(struct mounting *m)
{
	struct volumes *volumes = m->volumes;

	free_one(m);
	if (!list_is_empty(&volumes->batch))
		return;
	if (!volumes->is_over) {
		volumes->is_over = true;
		volumes->on_done(volumes->user, 0, NULL);
	}
	free_when_closed(volumes);
}

static void fail(struct mounting *m, const char *what, const char *why, const char *output)
{
	struct volumes *volumes = m->volumes;
	struct err err;

	err_set(&err, ERR_INTERNAL, "failed to %s NFS at \"%.256s\": %s%s%.512s", what, m->path,
		why, *output ? "\n" : "", output);
	m->tool = NULL;
	free_one(m);
	cancel_batch(volumes);
	volumes->on_done(volumes->user, -EIO, &err);
}

static void fail_sys(struct mounting *m, const char *what, int status)
{
	fail(m, what, errno_text(status), "");
}

static const char *why_of(const struct tool_result *result, char text[32])
{
	if (result->status < 0)
		return errno_text(result->status);
	snprintf(text, 32, "exit status %d", result->status);
	return text;
}

/* ---- a volume: looked at, unmounted, its folder made, mounted ---- */

static void run_tool(struct mounting *m, const char *what, const char *const *argv,
		     uint64_t least_ms,
		     void (*on_done)(void *user, const struct tool_result *result))
{
	const struct volumes *volumes = m->volumes;
	uint64_t now = loop_now_ms(volumes->tools->loop);
	uint64_t left = volumes->deadline_ms > now ? volumes->deadline_ms - now : 0;

	m->tool = tool_run(volumes->tools, argv, left > least_ms ? left : least_ms, on_done, m);
	if (!m->tool)
		fail(m, what, "too much work is waiting", "");
}

static void on_mounted(void *user, const struct tool_result *result)
{
	struct mounting *m = user;
	char text[32];

	m->tool = NULL;
	if (result->status != 0) {
		fail(m, "mount", why_of(result, text), result->output);
		return;
	}
	remember(m->volumes, m->path);
	log_info("envd", "volume mounted", LOG_S("path", m->path));
	finish_one(m);
}

static void make_folder(struct job *job)
{
	struct mounting *m = container_of(job, struct mounting, job);

	m->status = make_folders(m->path);
}

static void on_folder_made(struct job *job)
{
	struct mounting *m = container_of(job, struct mounting, job);
	const char *const argv[] = {"mount",	 "-v",	    "-t",    "nfs", "-o",
				    NFS_OPTIONS, m->target, m->path, NULL};

	if (m->volumes->is_over)
		finish_one(m);
	else if (m->status < 0)
		fail_sys(m, "mount", m->status);
	else
		run_tool(m, "mount", argv, 1, on_mounted);
}

static void start_mounting(struct mounting *m)
{
	int status = job_run(m->volumes->tools->loop, &m->job, JOB_FILES, make_folder,
			     on_folder_made);

	if (status < 0)
		fail_sys(m, "mount", status);
}

static void on_detached(void *user, const struct tool_result *result)
{
	struct mounting *m = user;
	char text[32];

	m->tool = NULL;
	if (result->status != 0)
		fail(m, "unmount", why_of(result, text), result->output);
	else
		start_mounting(m);
}

static void on_unmounted(void *user, const struct tool_result *result)
{
	struct mounting *m = user;
	const char *const argv[] = {"umount", "--lazy", m->path, NULL};

	m->tool = NULL;
	if (result->status == 0)
		start_mounting(m);
	else
		run_tool(m, "unmount", argv, VOLUMES_DETACH_MS, on_detached);
}

static void look(struct job *job)
{
	struct mounting *m = container_of(job, struct mounting, job);

	m->status = volumes_is_mounted(MOUNTINFO, m->path);
}

static void on_looked(struct job *job)
{
	struct mounting *m = container_of(job, struct mounting, job);
	const char *const argv[] = {"umount", "--force", m->path, NULL};

	if (m->volumes->is_over) {
		finish_one(m);
	} else if (m->status < 0) {
		fail_sys(m, "unmount", m->status);
	} else if (m->status == 0) {
		start_mounting(m);
	} else {
		forget(m->volumes, m->path);
		run_tool(m, "unmount", argv, 1, on_unmounted);
	}
}

static void add(struct volumes *volumes, const struct init_volume *volume)
{
	struct mounting *m = xcalloc(1, sizeof(*m));

	m->volumes = volumes;
	m->target = xstrdup(volume->target);
	m->path = xstrdup(volume->path);
	list_append(&volumes->batch, &m->node);
}

/* A path that stands twice is mounted once. */
static bool is_in_batch(const struct volumes *volumes, const char *path)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &volumes->batch) {
		if (strcmp(container_of(node, struct mounting, node)->path, path) == 0)
			return true;
	}
	return false;
}

static void start_batch(struct volumes *volumes)
{
	struct list_node *node, *following;
	int status = 0;

	LIST_FOR_EACH_SAFE (node, following, &volumes->batch) {
		struct mounting *m = container_of(node, struct mounting, node);

		if (status == 0)
			status = job_run(volumes->tools->loop, &m->job, JOB_QUICK, look, on_looked);
		if (status == 0)
			continue;
		/* Nothing runs that would end it; the first one tells. */
		if (volumes->is_over)
			free_one(m);
		else
			fail_sys(m, "mount", status);
	}
}

void volumes_mount(struct volumes *volumes, const struct init_volume *list, size_t count,
		   const char *lifecycle_id,
		   void (*on_done)(void *user, int status, const struct err *err), void *user)
{
	struct err err;

	if (!list_is_empty(&volumes->batch) || volumes->is_closing) {
		log_info("envd", "volumes are being mounted already");
		on_done(user, 0, NULL);
		return;
	}
	if (count > VOLUMES_MAX || volumes->mounted_count + count > VOLUMES_MOUNTED_MAX) {
		on_done(user, err_set(&err, ERR_RESOURCE_EXHAUSTED, "too many volumes"), &err);
		return;
	}
	free(volumes->lifecycle_id);
	volumes->lifecycle_id = xstrdup(lifecycle_id);
	for (size_t i = 0; i < count; i++) {
		if (volumes_must_mount(volumes, list[i].path, lifecycle_id) &&
		    !is_in_batch(volumes, list[i].path))
			add(volumes, &list[i]);
	}
	if (list_is_empty(&volumes->batch)) {
		on_done(user, 0, NULL);
		return;
	}
	volumes->is_over = false;
	volumes->on_done = on_done;
	volumes->user = user;
	volumes->deadline_ms = loop_now_ms(volumes->tools->loop) + VOLUMES_BATCH_MS;
	start_batch(volumes);
}

struct volumes *volumes_new(struct tools *tools)
{
	struct volumes *volumes = xcalloc(1, sizeof(*volumes));

	volumes->tools = tools;
	list_init(&volumes->mounted);
	list_init(&volumes->batch);
	return volumes;
}

void volumes_close(struct volumes *volumes)
{
	bool tell = !list_is_empty(&volumes->batch) && !volumes->is_over;
	struct err err;

	volumes->is_closing = true;
	cancel_batch(volumes);
	if (tell)
		volumes->on_done(volumes->user, err_set(&err, ERR_UNAVAILABLE, "envd is stopping"),
				 &err);
	free_when_closed(volumes);
}
