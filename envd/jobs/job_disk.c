#include "envd/jobs/job_disk.h"

#include "envd/limits.h"

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

void job_disk_note_room(struct job_table *table, uint64_t room)
{
	uint64_t before = table->disk_room;

	if (table->is_closed)
		return;
	table->disk_room = room;
	if (room == 0)
		table->on_disk_full(table);
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

	job_disk_note_room(table, table->disk_found);
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

void job_disk_watch(struct job_table *table)
{
	if (!alarm_is_set(&table->disk_alarm) && !table->disk_job.active)
		plan_disk_look(table, table->disk_room);
}

void job_disk_note_write(struct job_table *table, int status)
{
	if ((status == -ENOSPC || status == -EDQUOT) && !table->is_closed)
		start_disk_look(table);
}

void job_disk_open(struct job_table *table, void (*on_full)(struct job_table *table))
{
	table->on_disk_full = on_full;
	table->disk_room = UINT64_MAX;
	alarm_init(&table->disk_alarm, on_disk_alarm);
}

void job_disk_close(struct job_table *table)
{
	alarm_cancel(&table->disk_alarm);
}
