#include "envd/jobs/job_notice.h"

#include <sys/inotify.h>
#include <unistd.h>

#include "envd/limits.h"

/* ---- the disk ---- */

/* Seldom as long as there is room, often while little is left and gets less or more. */
static void plan_disk_look(struct job_table *table, uint64_t room_before)
{
	uint64_t wait_ms = JOB_DISK_CHECK_MS;

	if (table->is_closed || table->running_count == 0)
		return;
	if (table->disk_room < (uint64_t)JOB_DISK_LOW_BYTES)
		wait_ms = table->disk_room == room_before ? JOB_DISK_CHECK_LOW_MS
							  : JOB_DISK_CHECK_SCARCE_MS;
	alarm_set(table->loop, &table->disk_alarm, wait_ms);
}

void job_notice_room(struct job_table *table, uint64_t room)
{
	uint64_t before = table->disk_room;

	if (table->is_closed)
		return;
	table->disk_room = room;
	if (room == 0)
		table->notice_handler->on_full(table);
	if (room < (uint64_t)JOB_DISK_LOW_BYTES && alarm_is_set(&table->disk_alarm) &&
	    table->disk_alarm.due_ms > loop_now_ms(table->loop) + JOB_DISK_CHECK_SCARCE_MS)
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

static void start_disk_look(struct job_table *table)
{
	if (table->running_count == 0 || table->disk_job.active)
		return;
	if (job_run(table->loop, &table->disk_job, JOB_QUICK, look_at_disk, on_disk_looked) < 0)
		plan_disk_look(table, table->disk_room);
	else
		table->live++;
}

static void on_disk_alarm(struct alarm *alarm)
{
	start_disk_look(container_of(alarm, struct job_table, disk_alarm));
}

void job_notice_disk(struct job_table *table)
{
	if (!alarm_is_set(&table->disk_alarm) && !table->disk_job.active)
		plan_disk_look(table, table->disk_room);
}

void job_notice_write_error(struct job_table *table, int status)
{
	if ((status == -ENOSPC || status == -EDQUOT) && !table->is_closed)
		start_disk_look(table);
}

/* ---- what changes in the folders ---- */

static void dispatch_watch(struct job_table *table, int watch)
{
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, &table->watches, hash_number((uint64_t)watch)) {
		struct job_watch *found = container_of(node, struct job_watch, by_number);

		if (found->number == watch) {
			hash_table_remove(&table->watches, node);
			table->notice_handler->on_output(found);
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
			table->notice_handler->on_outputs(table);
		else if (event->mask & IN_MODIFY)
			dispatch_watch(table, event->wd);
		at += (ssize_t)(sizeof(*event) + event->len);
	}
}

static void on_inotify(void *user)
{
	job_notice_read(user);
}

/* ---- start and stop ---- */

void job_notice_start(struct job_table *table, const struct job_notice_handler *handler)
{
	table->notice_handler = handler;
	table->disk_room = UINT64_MAX;
	alarm_init(&table->disk_alarm, on_disk_alarm);
	table->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (table->inotify_fd >= 0)
		table->inotify = job_poll_open(table->loop, table->inotify_fd, on_inotify, table);
	if (!table->inotify)
		close_fd(&table->inotify_fd);
}

void job_notice_stop(struct job_table *table)
{
	alarm_cancel(&table->disk_alarm);
	job_poll_close(&table->inotify);
	close_fd(&table->inotify_fd);
}
