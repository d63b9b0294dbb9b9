#include "envd/jobs/job_look.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/log.h"

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

static void note_room(struct job_table *table, uint64_t room)
{
	uint64_t before = table->disk_room;

	if (table->is_closed)
		return;
	table->disk_room = room;
	if (room == 0)
		table->on_disk_full(table);
	if (room < (uint64_t)JOB_DISK_LOW_BYTES && alarm_is_set(&table->disk_alarm) &&
	    alarm_left_ms(&table->disk_alarm) > JOB_DISK_CHECK_SCARCE_MS)
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

	note_room(table, table->disk_found);
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

/* ---- when ---- */

static bool has_audience(const struct job_look *look)
{
	return !list_is_empty(&look->job->listeners);
}

void job_look_now(struct job_look *look)
{
	alarm_cancel(&look->alarm);
	look->on_due(look);
}

static void on_alarm(struct alarm *alarm)
{
	job_look_now(container_of(alarm, struct job_look, alarm));
}

void job_look_at(struct job_look *look, uint64_t due_ms)
{
	uint64_t now = loop_now_ms(look->job->table->loop);

	if (due_ms <= now)
		job_look_now(look);
	else
		alarm_set_within(look->job->table->loop, &look->alarm, due_ms - now);
}

/* Soon for who follows it, seldom otherwise; but what changes the order of the streams should be
 * known before there is more. */
static uint64_t look_pause_ms(const struct job_look *look, enum job_stream stream)
{
	const struct job_table *table = look->job->table;

	/* What a look costs grows with those who are told, so they come less often. */
	if (has_audience(look))
		return JOB_LOOK_MS + (table->wait_count + table->reader_count) / JOB_LOOK_CROWD;
	if (stream != JOB_STREAMS && stream != look->grew_last)
		return size_min(JOB_LOOK_ORDER_MS + table->running_count / JOB_LOOK_ORDER_CROWD,
				JOB_LOOK_IDLE_MS);
	return JOB_LOOK_IDLE_MS;
}

/* An output file has changed; JOB_STREAMS: it is not known which. */
static void note_growth(struct job_look *look, enum job_stream stream)
{
	if (look->grew_first == JOB_STREAMS)
		look->grew_first = stream;
	job_look_at(look, look->looked_ms + look_pause_ms(look, stream));
}

/* ---- watches ---- */

static void forget_watches(struct job_look *look)
{
	for (int i = 0; i < JOB_STREAMS; i++)
		hash_table_remove(&look->job->table->watches, &look->watches[i].by_number);
}

static struct job_look *look_of(struct job_watch *watch)
{
	return container_of(watch - watch->stream, struct job_look, watches);
}

/* Some were lost, whose is not known. */
static void note_growth_of_all(struct job_table *table)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &table->looks)
		note_growth(container_of(node, struct job_look, node), JOB_STREAMS);
}

static void dispatch_watch(struct job_table *table, int watch)
{
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, &table->watches, hash_number((uint64_t)watch)) {
		struct job_watch *found = container_of(node, struct job_watch, by_number);

		if (found->number == watch) {
			hash_table_remove(&table->watches, node);
			note_growth(look_of(found), found->stream);
			return;
		}
	}
	/* At most two for each run; those of runs that have ended meanwhile make room for
	 * others. */
	table->early_watches[table->early_count++ % ARRAY_LENGTH(table->early_watches)] = watch;
}

/* Under its number; false when that has told of something already. */
static bool enter_watch(struct job_table *table, struct job_watch *watch)
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

/* What the kernel has to tell already. Does not wait. */
static void read_events(struct job_table *table)
{
	_Alignas(struct inotify_event) char bytes[4096];
	ssize_t len = read(table->inotify_fd, bytes, sizeof(bytes));

	for (ssize_t at = 0; at + (ssize_t)sizeof(struct inotify_event) <= len;) {
		const struct inotify_event *event =
			(const struct inotify_event *)(const void *)(bytes + at);

		if (event->mask & IN_Q_OVERFLOW)
			note_growth_of_all(table);
		else if (event->mask & IN_MODIFY)
			dispatch_watch(table, event->wd);
		at += (ssize_t)(sizeof(*event) + event->len);
	}
}

static void on_inotify(void *user)
{
	read_events(user);
}

static void enter_watches(struct job_look *look)
{
	bool has_news[JOB_STREAMS] = {false, false};

	for (int i = 0; i < JOB_STREAMS; i++)
		if (look->watches[i].number >= 0 &&
		    !enter_watch(look->job->table, &look->watches[i]))
			has_news[i] = true;
	/* Where no inotify is to be had: by the clock. And seldom for somebody who waits: not every
	 * file system tells of everything. */
	if (look->watches[JOB_STDOUT].number < 0)
		job_look_at(look, look->looked_ms + JOB_LOOK_IDLE_MS);
	else if (has_audience(look))
		job_look_at(look, look->looked_ms + JOB_LOOK_SURE_MS);
	for (int i = 0; i < JOB_STREAMS; i++)
		if (has_news[i])
			note_growth(look, (enum job_stream)i);
}

/* ---- looks ---- */

static void hold_cap(struct job_look *look)
{
	const struct job_store *store = &look->job->table->store;
	const struct job_record *record = &look->job->record;
	uint64_t keep = record->output_bytes;
	int i;

	job_store_extents(store, record->id, look->extents, &look->stored_bytes);
	for (i = 0; i < JOB_STREAMS; i++) {
		int status;

		/* Some more, so that it is not done for every line. */
		if (look->extents[i].end - look->extents[i].oldest <= keep + keep / 8)
			continue;
		status = job_store_cap(store, record->id, (enum job_stream)i, keep);
		look->cap_status = status < 0 ? status : look->cap_status;
	}
}

static void note_order(struct job_look *look)
{
	const struct job_record *record = &look->job->record;
	uint64_t ends[JOB_STREAMS] = {look->extents[JOB_STDOUT].end, look->extents[JOB_STDERR].end};

	if (record->output_mode == JOB_OUTPUT_SPLIT)
		job_order_note(&look->order, &look->job->table->store, record->id, ends,
			       look->noted_first == JOB_STDERR ? JOB_STDERR : JOB_STDOUT);
}

/* Its number; -1: it cannot be watched. */
static int watch_output(const struct job_look *look, enum job_stream stream)
{
	const struct job_table *table = look->job->table;
	char path[JOB_STORE_PATH_BYTES];

	return inotify_add_watch(
		table->inotify_fd,
		job_store_path(&table->store, look->job->record.id, job_stream_name(stream), path),
		IN_MODIFY | IN_ONESHOT);
}

void job_look_before(struct job_look *look)
{
	forget_watches(look);
	look->noted_first = look->grew_first;
	look->grew_first = JOB_STREAMS;
}

void job_look_run(struct job_look *look)
{
	/* First, so that nothing that comes after the look stays unseen. */
	for (int i = 0; i < JOB_STREAMS && look->job->table->inotify_fd >= 0; i++)
		look->watches[i].number = watch_output(look, (enum job_stream)i);
	hold_cap(look);
	note_order(look);
	look->disk_room = job_store_disk_room(&look->job->table->store);
}

bool job_look_after(struct job_look *look)
{
	struct background_job *owner = look->job;
	bool has_grown = false, grown;
	int i;

	look->looked_ms = loop_now_ms(look->job->table->loop);
	for (i = 0; i < JOB_STREAMS; i++) {
		grown = look->extents[i].end != owner->extents[i].end;
		/* Of both it is the one that was not the first. */
		if (grown && (!has_grown || look->noted_first != JOB_STDERR))
			look->grew_last = (enum job_stream)i;
		has_grown |= grown;
		owner->extents[i] = look->extents[i];
	}
	note_room(look->job->table, look->disk_room);
	if (look->cap_status < 0 && !owner->record.output_incomplete)
		log_debug("jobs", "the cap of an output cannot be held",
			  LOG_S("id", owner->record.id),
			  LOG_S("reason", errno_text(look->cap_status)));
	enter_watches(look);
	return has_grown;
}

void job_look_before_last(struct job_look *look)
{
	read_events(look->job->table);
	look->noted_first = look->grew_first;
}

void job_look_run_last(struct job_look *look)
{
	struct job_table *table = look->job->table;

	for (int i = 0; i < JOB_STREAMS; i++)
		if (look->watches[i].number >= 0)
			(void)inotify_rm_watch(table->inotify_fd, look->watches[i].number);
	hold_cap(look);
	note_order(look);
	job_store_extents(&table->store, look->job->record.id, look->extents, &look->stored_bytes);
	look->disk_room = job_store_disk_room(&table->store);
}

/* ---- beginning and end ---- */

void job_look_init(struct job_look *look, struct background_job *job,
		   void (*on_due)(struct job_look *look))
{
	*look = (struct job_look){.job = job, .on_due = on_due};
	look->grew_first = look->grew_last = JOB_STREAMS;
	for (int i = 0; i < JOB_STREAMS; i++)
		look->watches[i] = (struct job_watch){.number = -1, .stream = (enum job_stream)i};
	alarm_init(&look->alarm, on_alarm);
	list_append(&job->table->looks, &look->node);
}

void job_look_end(struct job_look *look)
{
	list_remove(&look->node);
	forget_watches(look);
	alarm_cancel(&look->alarm);
}

void job_look_open(struct job_table *table, void (*on_full)(struct job_table *table))
{
	list_init(&table->looks);
	table->on_disk_full = on_full;
	table->disk_room = UINT64_MAX;
	alarm_init(&table->disk_alarm, on_disk_alarm);
	table->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (table->inotify_fd >= 0)
		table->inotify = job_poll_open(table->loop, table->inotify_fd, on_inotify, table);
	if (!table->inotify)
		close_fd(&table->inotify_fd);
}

void job_look_close(struct job_table *table)
{
	alarm_cancel(&table->disk_alarm);
	job_poll_close(&table->inotify);
	close_fd(&table->inotify_fd);
}
