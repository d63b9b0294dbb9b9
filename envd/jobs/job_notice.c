/* What nobody tells the table of: output files that grow, and a disk that gets full. */
#include <sys/inotify.h>
#include <unistd.h>

#include "envd/jobs/job_life.h"
#include "envd/limits.h"

/* ---- the disk ---- */

static void mark_all(struct job_table *table)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &table->all)
		job_life_mark_disk_full(container_of(node, struct background_job, all));
}

static void on_disk_timer(uv_timer_t *timer);

/* Seldom as long as there is room, often while little is left and gets less or more. */
static void plan_disk_look(struct job_table *table, uint64_t room_before)
{
	uint64_t wait_ms = JOB_DISK_CHECK_MS;

	if (table->is_closed || table->running_count == 0)
		return;
	if (table->disk_room < (uint64_t)JOB_DISK_LOW_BYTES)
		wait_ms = table->disk_room == room_before ? JOB_DISK_CHECK_LOW_MS
							  : JOB_DISK_CHECK_SCARCE_MS;
	uv_timer_start(&table->disk_timer, on_disk_timer, wait_ms, 0);
}

void job_notice_room(struct job_table *table, uint64_t room)
{
	uint64_t before = table->disk_room;

	if (table->is_closed)
		return;
	table->disk_room = room;
	if (room == 0)
		mark_all(table);
	if (room < (uint64_t)JOB_DISK_LOW_BYTES && !table->disk_job.active &&
	    uv_timer_get_due_in(&table->disk_timer) > JOB_DISK_CHECK_SCARCE_MS)
		plan_disk_look(table, before);
}

static void look_at_disk(struct job *job)
{
	struct job_table *table = container_of(job, struct job_table, disk_job);

	table->disk_found = job_store_disk_room(&table->store);
}

static void on_disk_looked(struct job *job)
{
	struct job_table *table = container_of(job, struct job_table, disk_job);
	uint64_t before = table->disk_room;

	job_notice_room(table, table->disk_found);
	plan_disk_look(table, before);
	job_table_drop_live(table);
}

static void on_disk_timer(uv_timer_t *timer)
{
	struct job_table *table = container_of(timer, struct job_table, disk_timer);

	if (table->running_count == 0 || table->disk_job.active)
		return;
	if (job_run(table->loop, &table->disk_job, JOB_QUICK, look_at_disk, on_disk_looked) < 0)
		plan_disk_look(table, table->disk_room);
	else
		table->live++;
}

void job_notice_disk(struct job_table *table)
{
	if (!uv_is_active((uv_handle_t *)&table->disk_timer) && !table->disk_job.active)
		plan_disk_look(table, table->disk_room);
}

void job_notice_write_error(struct job_table *table, int status)
{
	if ((status == -ENOSPC || status == -EDQUOT) && !table->is_closed)
		on_disk_timer(&table->disk_timer);
}

/* ---- what changes in the folders ---- */

/* Some were lost, whose is not known. */
static void dispatch_all(struct job_table *table)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &table->all) {
		struct background_job *job = container_of(node, struct background_job, all);

		if (job->run)
			job_life_on_watch(job->run, JOB_STREAMS);
	}
}

static void dispatch_watch(struct job_table *table, int watch)
{
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, &table->watches, hash_number((uint64_t)watch)) {
		struct job_watch *found = container_of(node, struct job_watch, by_number);

		if (found->number == watch) {
			hash_table_remove(&table->watches, node);
			job_life_on_watch(found->run,
					  (enum job_stream)(found - found->run->watches));
			return;
		}
	}
	/* At most two for each run; those of runs that have ended meanwhile make room for
	 * others. */
	table->early_watches[table->early_count++ % ARRAY_LENGTH(table->early_watches)] = watch;
}

bool job_notice_watch(struct job_table *table, struct job_watch *watch)
{
	size_t count = size_min(table->early_count, ARRAY_LENGTH(table->early_watches)), i;

	for (i = 0; i < count; i++) {
		if (table->early_watches[i] != watch->number)
			continue;
		table->early_watches[i] = table->early_watches[count - 1];
		table->early_count = count - 1;
		return false;
	}
	hash_table_insert(&table->watches, &watch->by_number, hash_number((uint64_t)watch->number));
	return true;
}

void job_notice_read(struct job_table *table)
{
	_Alignas(struct inotify_event) char bytes[4096];
	ssize_t len = read(table->inotify_fd, bytes, sizeof(bytes));

	for (ssize_t at = 0; at + (ssize_t)sizeof(struct inotify_event) <= len;) {
		const struct inotify_event *event =
			(const struct inotify_event *)(const void *)(bytes + at);

		if (event->mask & IN_Q_OVERFLOW)
			dispatch_all(table);
		else if (event->mask & IN_MODIFY)
			dispatch_watch(table, event->wd);
		at += (ssize_t)(sizeof(*event) + event->len);
	}
}

static void on_inotify(uv_poll_t *poll, int status, int events)
{
	job_notice_read(container_of(poll, struct job_table, inotify));
}

/* ---- start and stop ---- */

void job_notice_start(struct job_table *table)
{
	table->disk_room = UINT64_MAX;
	uv_timer_init(&table->loop->uv, &table->disk_timer);
	table->live++;
	table->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (table->inotify_fd >= 0 &&
	    uv_poll_init(&table->loop->uv, &table->inotify, table->inotify_fd) < 0)
		close_fd(&table->inotify_fd);
	if (table->inotify_fd >= 0) {
		table->live++;
		uv_poll_start(&table->inotify, UV_READABLE, on_inotify);
	}
}

static void on_timer_closed(uv_handle_t *handle)
{
	job_table_drop_live(container_of((uv_timer_t *)handle, struct job_table, disk_timer));
}

static void on_inotify_closed(uv_handle_t *handle)
{
	struct job_table *table = container_of((uv_poll_t *)handle, struct job_table, inotify);

	close_fd(&table->inotify_fd);
	job_table_drop_live(table);
}

void job_notice_stop(struct job_table *table)
{
	uv_close((uv_handle_t *)&table->disk_timer, on_timer_closed);
	if (table->inotify_fd >= 0)
		uv_close((uv_handle_t *)&table->inotify, on_inotify_closed);
}
