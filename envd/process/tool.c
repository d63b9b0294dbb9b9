#include "envd/process/tool.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/log.h"

#define ARGUMENTS_MAX 32
#define TOOL_ARENA_BYTES (64 * 1024)

struct tool {
	struct list_node node;
	struct tools *tools;
	struct arena arena;
	struct spawn_request request;
	struct spawn_plan plan;
	struct job job;
	struct reaper_child child;
	struct alarm late;
	struct err err;
	int status;
	int output_fd;
	unsigned holds; /* job, child */
	bool is_tracked, is_over;
	void (*on_done)(void *user, const struct tool_result *result);
	void *user;
};

static void drop(struct tool *tool)
{
	if (--tool->holds)
		return;
	list_remove(&tool->node);
	spawn_plan_fini(&tool->plan);
	close_fd(&tool->output_fd);
	arena_release(&tool->arena);
	free(tool);
}

static void kill_child(struct tool *tool)
{
	/* A session of its own, so its helpers are in its group; uncollected, so the number is its
	 * own. */
	if (tool->is_tracked && kill(-tool->child.pid, SIGKILL) < 0)
		(void)reaper_signal(&tool->child, SIGKILL);
}

/* From here on nobody is told anything. */
static void end(struct tool *tool)
{
	if (tool->is_over)
		return;
	tool->is_over = true;
	kill_child(tool);
	alarm_cancel(&tool->late);
}

static void report(struct tool *tool, int status, const char *output)
{
	const struct tool_result result = {.status = status, .output = output};

	if (tool->is_over)
		return;
	tool->on_done(tool->user, &result);
	end(tool);
}

static void on_late(struct alarm *alarm)
{
	report(container_of(alarm, struct tool, late), -ETIMEDOUT,
	       "it took too long and was killed");
}

static void read_output(const struct tool *tool, char text[TOOL_OUTPUT_BYTES])
{
	off_t written = lseek(tool->output_fd, 0, SEEK_CUR);
	size_t want = written > 0 ? size_min((size_t)written, TOOL_OUTPUT_BYTES - 1) : 0;
	ssize_t len = pread(tool->output_fd, text, want, 0);

	while (len > 0 && strchr(" \t\r\n", text[len - 1]))
		len--;
	text[len > 0 ? len : 0] = '\0';
}

static void on_untracked(struct reaper_child *child)
{
	drop(container_of(child, struct tool, child));
}

static void on_exit_of_child(struct reaper_child *child, const struct exit_record *record)
{
	struct tool *tool = container_of(child, struct tool, child);
	char output[TOOL_OUTPUT_BYTES];
	struct err err;

	tool->is_tracked = false;
	if (!tool->is_over) {
		if (spawn_read_status(tool->plan.status_fd, &tool->request, "/", &err) ==
		    SPAWN_FAILED) {
			report(tool, err.sys ? -err.sys : -ENOEXEC, err.message);
		} else {
			read_output(tool, output);
			report(tool, record->exited ? record->code : 128 + record->signal, output);
		}
	}
	reaper_untrack(child);
}

/* Both outputs share it, and with it one position. It cannot grow: what is too much is refused. */
static int open_output(struct tool *tool)
{
	tool->output_fd = memfd_create("envd-tool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (tool->output_fd < 0 || ftruncate(tool->output_fd, TOOL_OUTPUT_BYTES) < 0 ||
	    fcntl(tool->output_fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) < 0)
		return -errno;
	tool->request.stdout_fd = tool->request.stderr_fd = tool->output_fd;
	return 0;
}

static void prepare(struct job *job)
{
	struct tool *tool = container_of(job, struct tool, job);

	tool->status = open_output(tool);
	if (tool->status < 0)
		tool->status = err_set_sys(&tool->err, ERR_RESOURCE_EXHAUSTED, tool->status,
					   "output");
	else
		tool->status = spawn_prepare(&tool->plan, tool->tools->spawn, &tool->err);
}

static void on_prepared(struct job *job)
{
	struct tool *tool = container_of(job, struct tool, job);

	if (!tool->is_over && tool->status == 0)
		tool->status = spawn_clone(&tool->plan, &tool->err);
	if (!tool->is_over && tool->status == 0) {
		tool->child.on_exit = on_exit_of_child;
		tool->child.on_untracked = on_untracked;
		tool->is_tracked = true;
		tool->holds++;
		reaper_track(tool->tools->reaper, &tool->child, tool->plan.pid,
			     take_fd(&tool->plan.pidfd));
	} else {
		report(tool, tool->status, tool->err.message);
	}
	drop(tool);
}

static int copy_arguments(struct tool *tool, const char *const *argv)
{
	const char **args = arena_alloc_array(&tool->arena, ARGUMENTS_MAX, sizeof(*args));
	size_t count = 0;

	if (!args)
		return -ENOMEM;
	for (; argv[count]; count++) {
		if (count == ARGUMENTS_MAX)
			return -E2BIG;
		args[count] = arena_strdup(&tool->arena, argv[count]);
		if (!args[count])
			return -ENOMEM;
	}
	tool->request.command = args[0];
	tool->request.args = args + 1;
	tool->request.arg_count = count - 1;
	return 0;
}

struct tool *tool_run(struct tools *tools, const char *const *argv, uint64_t timeout_ms,
		      void (*on_done)(void *user, const struct tool_result *result), void *user)
{
	struct tool *tool;
	int status;

	if (tools->is_stopped)
		return NULL;
	tool = xcalloc(1, sizeof(*tool));
	*tool = (struct tool){
		.tools = tools, .output_fd = -1, .holds = 1, .on_done = on_done, .user = user};
	tool->request.as_agent = true;
	tool->request.stdout_fd = tool->request.stderr_fd = -1;
	arena_init(&tool->arena, TOOL_ARENA_BYTES);
	status = spawn_plan_init(&tool->plan, &tool->request, tools->sandbox);
	list_append(&tools->running, &tool->node);
	if (status == 0)
		status = copy_arguments(tool, argv);
	if (status == 0)
		status = job_run(tools->loop, &tool->job, JOB_QUICK, prepare, on_prepared);
	if (status < 0) {
		drop(tool);
		return NULL;
	}
	alarm_init(&tool->late, on_late);
	alarm_set(tools->loop, &tool->late, timeout_ms);
	return tool;
}

void tool_cancel(struct tool *tool)
{
	end(tool);
}

void tools_init(struct tools *tools)
{
	list_init(&tools->running);
	tools->is_stopped = false;
}

void tools_stop(struct tools *tools)
{
	struct list_node *node, *following;

	tools->is_stopped = true;
	LIST_FOR_EACH_SAFE (node, following, &tools->running) {
		struct tool *tool = container_of(node, struct tool, node);

		report(tool, -ECANCELED, "envd is stopping");
		if (!tool->is_tracked)
			continue;
		tool->is_tracked = false;
		reaper_untrack(&tool->child);
	}
}
