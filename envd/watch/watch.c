#include "envd/watch/watch.h"

#include <signal.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/descriptors.h"
#include "lib/log.h"
#include "lib/stream_uv.h"

/* Complete records of one read, and the incomplete one before it. */
#define BYTES_MAX (WATCH_READ_BYTES + WATCH_RECORD_HEAD_BYTES + WATCH_RECORD_TEXT_MAX)

/* ---- life ---- */

static void hold(struct watch *watch)
{
	watch->holds++;
}

static void free_plan(struct watch *watch)
{
	if (!watch->plan)
		return;
	spawn_plan_fini(watch->plan);
	free(watch->plan);
	watch->plan = NULL;
}

static void count_held(struct watch *watch)
{
	watch->all->held_bytes += watch->bytes.capacity - watch->held;
	watch->held = watch->bytes.capacity;
}

static void drop(struct watch *watch)
{
	if (--watch->holds > 0)
		return;
	free_plan(watch);
	buf_fini(&watch->bytes);
	count_held(watch);
	watch_batch_free(watch->batch);
	arena_release(&watch->arena);
	list_remove(&watch->node);
	watch->all->count--;
	free(watch);
}

static void end_helper(struct watch *watch)
{
	alarm_cancel(&watch->late);
	close_fd(&watch->input_fd);
	if (watch->output)
		stream_close(watch->output, false);
	if (watch->is_tracked)
		(void)reaper_signal(&watch->child, SIGKILL);
}

void watch_fail(struct watch *watch, const struct err *err)
{
	if (watch->is_over)
		return;
	watch->is_over = true;
	hold(watch);
	end_helper(watch);
	if (!watch->is_closed)
		watch->ops->on_failed(watch, err);
	drop(watch);
}

void watch_close(struct watch *watch)
{
	if (watch->is_closed)
		return;
	watch->is_closed = watch->is_over = true;
	end_helper(watch);
	drop(watch);
}

/* ---- what the helper says ---- */

static void set_failure(const struct watch *watch, const struct watch_record *record,
			struct err *err)
{
	const char *shown = watch->shown;
	int text_len = (int)size_min(record->text.len, 128);

	switch (record->cause) {
	case WATCH_CAUSE_INSTANCES:
		err_set(err, ERR_RESOURCE_EXHAUSTED,
			"error creating watcher: the kernel's limit on inotify instances of one "
			"user is "
			"used up (fs.inotify.max_user_instances is %.*s)",
			text_len, record->text.p);
		break;
	case WATCH_CAUSE_WATCHES:
		err_set(err, ERR_RESOURCE_EXHAUSTED,
			"error adding path %.512s to watcher: the kernel's limit on inotify "
			"watches of one "
			"user is used up (fs.inotify.max_user_watches is %.*s)",
			shown, text_len, record->text.p);
		break;
	case WATCH_CAUSE_ENTRIES:
		err_set(err, ERR_RESOURCE_EXHAUSTED,
			"error adding path %.512s to watcher: more than %d files and directories "
			"are in it",
			shown, WATCH_ENTRIES_MAX);
		break;
	case WATCH_CAUSE_SYSTEM:
		err_set(err, ERR_INTERNAL, "error adding path %.512s to watcher: %.*s: %s", shown,
			text_len, record->text.p, errno_text(record->error));
		break;
	}
	if (watch->is_ready)
		err_wrap(err, "watcher error");
}

static void on_control(struct watch *watch, const struct watch_record *record)
{
	struct err err;

	switch (record->type) {
	case WATCH_RECORD_READY:
		watch->is_ready = true;
		alarm_cancel(&watch->late);
		free_plan(watch);
		watch->ops->on_ready(watch);
		return;
	case WATCH_RECORD_RESCANNED:
		log_info("watch",
			 "the kernel dropped events; what had changed was found by looking",
			 LOG_I("pid", watch->child.pid));
		return;
	case WATCH_RECORD_DRAINED:
		watch->is_asked = false;
		if (watch->ops->on_told)
			watch->ops->on_told(watch);
		return;
	case WATCH_RECORD_GONE:
		err_set(&err, ERR_NOT_FOUND, "the watched directory %.512s was %.*s", watch->shown,
			(int)size_min(record->text.len, 32), record->text.p);
		break;
	case WATCH_RECORD_FAILED:
		set_failure(watch, record, &err);
		break;
	case WATCH_RECORD_CREATE:
	case WATCH_RECORD_WRITE:
	case WATCH_RECORD_REMOVE:
	case WATCH_RECORD_RENAME:
	case WATCH_RECORD_CHMOD:
		return;
	}
	watch_fail(watch, &err);
}

/* It ended without a word. */
static void on_silent_end(struct watch *watch)
{
	struct err err;

	watch->ended_silently = true;
	if (watch->plan && spawn_read_status(watch->plan->status_fd, &watch->spawn_request, "/",
					     &err) == SPAWN_FAILED)
		err_wrap(&err, "error creating watcher");
	else
		err_set(&err, ERR_INTERNAL, "watcher error: envd-watch ended unexpectedly");
	watch_fail(watch, &err);
}

static void fail_with(struct watch *watch, int status)
{
	struct err err;

	if (status == -EPROTO)
		err_set(&err, ERR_INTERNAL, "watcher error: envd-watch talks nonsense");
	else
		err_set(&err, ERR_RESOURCE_EXHAUSTED, "watcher error: no memory for its events");
	watch_fail(watch, &err);
}

static void pump(struct watch *watch);

static void look_at_entries(struct job *job)
{
	struct watch *watch = container_of(job, struct watch, job);

	watch->status = watch_batch_fill_entries(watch->batch, watch->path);
}

static void deliver(struct watch *watch, struct watch_batch *batch)
{
	if (watch->is_over)
		watch_batch_free(batch);
	else
		watch->ops->on_events(watch, batch);
}

static void on_looked_at(struct job *job)
{
	struct watch *watch = container_of(job, struct watch, job);

	if (watch->status < 0)
		fail_with(watch, watch->status);
	deliver(watch, take_ptr(&watch->batch));
	pump(watch);
	drop(watch);
}

/* False: it is in the pool now. */
static bool pass_on(struct watch *watch, struct watch_batch *batch)
{
	if (!watch->request.include_entry) {
		deliver(watch, batch);
		return true;
	}
	watch->batch = batch;
	if (job_run(watch->all->loop, &watch->job, JOB_FILES, look_at_entries, on_looked_at) < 0) {
		fail_with(watch, -ENOMEM);
		return true;
	}
	hold(watch);
	return false;
}

/* Handles what has been read, as far as it may be. False: there is nothing complete. */
static bool handle_some(struct watch *watch)
{
	struct str rest = buf_str(&watch->bytes);
	struct watch_record record;
	struct watch_batch *batch = NULL;
	int status = watch_batch_take(&rest, &batch);

	if (status == 0 && !batch)
		status = watch_record_take(&rest, &record);
	if (status < 0) {
		fail_with(watch, status);
		return true;
	}
	if (!batch && status == 0)
		return false;
	if (!batch)
		on_control(watch, &record); /* its text is in the buffer */
	buf_consume(&watch->bytes, buf_length(&watch->bytes) - rest.len);
	if (batch)
		(void)pass_on(watch, batch);
	return true;
}

static bool may_go_on(const struct watch *watch)
{
	return !watch->is_over && !watch->is_paused && !watch->batch;
}

static void pump(struct watch *watch)
{
	hold(watch);
	while (may_go_on(watch) && handle_some(watch))
		continue;
	if (!watch->is_over && watch->output) {
		if (!may_go_on(watch))
			stream_read_stop(watch->output);
		else if (watch->at_end)
			on_silent_end(watch);
		else if (stream_read_start(watch->output) < 0)
			fail_with(watch, -ENOMEM);
	}
	if (buf_length(&watch->bytes) == 0)
		buf_reset(&watch->bytes);
	count_held(watch);
	drop(watch);
}

static char *on_room(struct stream *s, size_t *ret_len)
{
	struct watch *watch = s->user;
	char *room;

	if (watch->is_over || buf_reserve(&watch->bytes, WATCH_READ_BYTES, &room) < 0)
		return NULL;
	*ret_len = WATCH_READ_BYTES;
	return room;
}

static void on_read(struct stream *s, const char *data, size_t len)
{
	struct watch *watch = s->user;

	if (watch->is_over)
		return;
	if (!watch->bytes.memory || data != buf_data(&watch->bytes) + buf_length(&watch->bytes)) {
		fail_with(watch, -ENOMEM); /* there was no room */
		return;
	}
	buf_commit(&watch->bytes, len);
	pump(watch);
}

static void on_end(struct stream *s, int status)
{
	struct watch *watch = s->user;

	watch->at_end = true;
	pump(watch);
}

static void on_closed(struct stream *s)
{
	struct watch *watch = s->user;

	watch->output = NULL;
	drop(watch);
}

static const struct stream_events output_events = {
	.on_room = on_room,
	.on_read = on_read,
	.on_end = on_end,
	.on_closed = on_closed,
};

void watch_pause(struct watch *watch)
{
	watch->is_paused = true;
	if (!watch->is_over && watch->output)
		stream_read_stop(watch->output);
}

bool watch_ask(struct watch *watch)
{
	if (watch->is_over || !watch->is_ready || watch->is_paused)
		return false;
	assert(!watch->is_asked);
	/* The pipe is empty, so this does not block. A helper that has just died answers by its
	 * end, which comes. */
	watch->is_asked = write(watch->input_fd, "?", 1) == 1 || errno == EPIPE;
	return watch->is_asked;
}

void watch_resume(struct watch *watch)
{
	if (!watch->is_paused)
		return;
	watch->is_paused = false;
	pump(watch);
}

/* ---- the start ---- */

static void on_untracked(struct reaper_child *child)
{
	drop(container_of(child, struct watch, child));
}

static void on_exit_of_helper(struct reaper_child *child, const struct exit_record *record)
{
	struct watch *watch = container_of(child, struct watch, child);

	if ((!watch->is_over || watch->ended_silently) && !record->exited)
		log_warn("watch", "envd-watch was killed", LOG_I("pid", child->pid),
			 LOG_I("signal", record->signal));
	/* What it said last is still in the pipe, whose end is what counts. */
	watch->is_tracked = false;
	reaper_untrack(child);
}

static void on_late(struct alarm *alarm)
{
	struct watch *watch = container_of(alarm, struct watch, late);
	struct err err;

	err_set(&err, ERR_UNAVAILABLE, "the watch of %.512s was not ready within %d s",
		watch->shown, WATCH_READY_MS / 1000);
	watch_fail(watch, &err);
}

static int start_helper(struct watch *watch, struct err *err)
{
	struct spawn_plan *plan = watch->plan;
	int status = spawn_clone(plan, err);

	if (status < 0)
		return status;
	watch->child.on_exit = on_exit_of_helper;
	watch->child.on_untracked = on_untracked;
	reaper_track(watch->all->reaper, &watch->child, plan->pid, take_fd(&plan->pidfd));
	watch->is_tracked = true;
	hold(watch);
	watch->input_fd = take_fd(&plan->input_fd);
	status = stream_uv_open_pipe(watch->all->loop, plan->output_fd, &watch->output);
	if (status < 0)
		return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, status, "error creating watcher");
	(void)take_fd(&plan->output_fd);
	watch->output->events = &output_events;
	watch->output->user = watch;
	hold(watch);
	alarm_set(watch->all->loop, &watch->late, WATCH_READY_MS);
	return 0;
}

static void prepare(struct job *job)
{
	struct watch *watch = container_of(job, struct watch, job);

	watch->status = watch_prepare(watch, &watch->err);
}

static void on_prepared(struct job *job)
{
	struct watch *watch = container_of(job, struct watch, job);

	if (!watch->is_over && watch->status == 0)
		watch->status = start_helper(watch, &watch->err);
	if (watch->is_over)
		free_plan(watch);
	else if (watch->status < 0)
		watch_fail(watch, &watch->err);
	else
		pump(watch);
	drop(watch);
}

static int copy_excluded(struct watch *watch, const struct watch_request *request)
{
	char **copies = arena_alloc_array(&watch->arena, request->excluded_count, sizeof(*copies));

	for (size_t i = 0; copies && i < request->excluded_count; i++) {
		copies[i] = arena_strdup(&watch->arena, request->excluded[i]);
		if (!copies[i])
			return -ENOMEM;
	}
	watch->request.excluded = copies;
	return copies ? 0 : -ENOMEM;
}

static int copy_request(struct watch *watch, const struct watch_request *request)
{
	const char *workdir = watch->all->sandbox->default_workdir;

	watch->request = *request;
	watch->request.path = arena_strdup(&watch->arena, request->path);
	watch->request.user_name = arena_strdup(&watch->arena,
						request->user_name ? request->user_name : "");
	if (workdir)
		watch->default_workdir = arena_strdup(&watch->arena, workdir);
	return watch->request.path && watch->request.user_name &&
			       (!workdir || watch->default_workdir)
		       ? copy_excluded(watch, request)
		       : -ENOMEM;
}

static int refuse(const struct watches *watches, struct err *err)
{
	if (watches->is_stopped)
		return err_set(err, ERR_UNAVAILABLE, "envd is stopping");
	if (watches->count >= WATCHES_MAX)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "too many watches (%d)", WATCHES_MAX);
	return descriptors_check(err);
}

struct watch *watch_open(struct watches *watches, const struct watch_request *request,
			 const struct watch_ops *ops, void *user, struct err *err)
{
	struct watch *watch;
	int status;

	if (refuse(watches, err) < 0)
		return NULL;
	watch = xcalloc(1, sizeof(*watch));
	watch->all = watches;
	list_append(&watches->list, &watch->node);
	watches->count++;
	watch->ops = ops;
	watch->user = user;
	watch->input_fd = -1;
	watch->holds = 1;
	alarm_init(&watch->late, on_late);
	arena_init(&watch->arena, FILE_OPERATION_ARENA_BYTES);
	buf_init(&watch->bytes, BYTES_MAX);
	watch->plan = xcalloc(1, sizeof(*watch->plan));
	watch->spawn_request.as_agent = true;
	status = spawn_plan_init(watch->plan, &watch->spawn_request, watches->sandbox);
	if (status == 0)
		status = copy_request(watch, request);
	if (status < 0)
		err_set(err, ERR_RESOURCE_EXHAUSTED, "the request is too large");
	if (status == 0) {
		status = job_run(watches->loop, &watch->job, JOB_FILES, prepare, on_prepared);
		if (status < 0)
			err_set(err, ERR_RESOURCE_EXHAUSTED, "too much work is queued");
	}
	if (status < 0) {
		drop(watch);
		return NULL;
	}
	hold(watch);
	return watch;
}

/* ---- all of them ---- */

void watches_init(struct watches *watches)
{
	list_init(&watches->list);
}

/* Nobody waits for it any more. */
static void abandon_helper(struct watch *watch)
{
	if (!watch->is_tracked)
		return;
	watch->is_tracked = false;
	(void)reaper_signal(&watch->child, SIGKILL);
	reaper_untrack(&watch->child);
}

void watches_stop(struct watches *watches)
{
	struct list_node *node, *following;
	struct err err;

	watches->is_stopped = true;
	err_set(&err, ERR_UNAVAILABLE, "envd is stopping");
	LIST_FOR_EACH_SAFE (node, following, &watches->list)
		watch_fail(container_of(node, struct watch, node), &err);
	/* Who hangs in a dead file system would hold up the end; the others are gone in a
	 * moment. */
	LIST_FOR_EACH (node, &watches->list)
		abandon_helper(container_of(node, struct watch, node));
}
