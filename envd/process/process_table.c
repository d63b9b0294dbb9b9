#include "envd/process/process_table.h"

#include "envd/limits.h"
#include "envd/process/process_internal.h"
#include "lib/log.h"

/* To make a cgroup costs as much as to remove one, a good part of a short command; not while its
 * answer waits. */
#define SWEEP_DELAY_MS 50

/* ---- exits ---- */

static void drop_exit(struct process_table *table, struct process_exit *record)
{
	list_remove(&record->node);
	hash_table_remove(&table->exits_by_pid, &record->by_pid);
	table->exit_count--;
	table->tagged_exit_count -= record->has_tag;
	free(record);
}

static void plan_expiry(struct process_table *table)
{
	uint64_t now = loop_now_ms(table->config.loop);
	const struct process_exit *oldest;

	if (list_is_empty(&table->exits)) {
		alarm_cancel(&table->expiry);
		return;
	}
	oldest = container_of(table->exits.next, struct process_exit, node);
	alarm_set_within(table->config.loop, &table->expiry,
			 oldest->due_ms > now ? oldest->due_ms - now : 0);
}

static void drop_old_exits(struct process_table *table)
{
	uint64_t now = loop_now_ms(table->config.loop);

	while (!list_is_empty(&table->exits)) {
		struct process_exit *oldest = container_of(table->exits.next, struct process_exit,
							   node);

		if (oldest->due_ms > now && table->exit_count <= PROCESS_RETAINED_EXITS_MAX)
			break;
		drop_exit(table, oldest);
	}
}

/* One at most has it: whoever gets the number next drops it. */
static struct process_exit *exit_of(const struct process_table *table, pid_t pid)
{
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, &table->exits_by_pid, hash_number((uint64_t)pid)) {
		struct process_exit *record = container_of(node, struct process_exit, by_pid);

		if (record->pid == pid)
			return record;
	}
	return NULL;
}

/* Called for every start, with thousands of exits retained. */
static void drop_predecessors(struct process_table *table, pid_t pid, const char *tag)
{
	struct process_exit *predecessor = exit_of(table, pid);
	struct list_node *node, *following;

	if (predecessor)
		drop_exit(table, predecessor);
	if (!tag || table->tagged_exit_count == 0)
		return;
	LIST_FOR_EACH_SAFE (node, following, &table->exits) {
		struct process_exit *record = container_of(node, struct process_exit, node);

		if (record->has_tag && strcmp(record->tag, tag) == 0)
			drop_exit(table, record);
	}
}

void process_table_retain_exit(struct process_table *table, const struct process *process)
{
	const char *tag = process->spec.tag;
	struct process_exit *record;

	/* Its successor may live already, when the kernel was quick to use the number again. */
	if (process_table_find(table, process->pid))
		return;
	record = xmalloc(sizeof(*record) + (tag ? strlen(tag) : 0) + 1);
	record->by_pid = (struct hash_node){0};
	record->pid = process->pid;
	record->due_ms = loop_now_ms(table->config.loop) + PROCESS_RETAINED_EXIT_MS;
	record->record = process->record;
	record->has_tag = tag != NULL;
	memcpy(record->tag, tag ? tag : "", tag ? strlen(tag) + 1 : 1);
	list_append(&table->exits, &record->node);
	hash_table_insert(&table->exits_by_pid, &record->by_pid,
			  hash_number((uint64_t)record->pid));
	table->exit_count++;
	table->tagged_exit_count += record->has_tag;
	drop_old_exits(table);
	plan_expiry(table);
}

static void on_expiry(struct alarm *alarm)
{
	struct process_table *table = container_of(alarm, struct process_table, expiry);

	drop_old_exits(table);
	plan_expiry(table);
}

const struct process_exit *process_table_find_exit(struct process_table *table, pid_t pid)
{
	drop_old_exits(table);
	return exit_of(table, pid);
}

const struct process_exit *process_table_find_exit_tag(struct process_table *table, const char *tag)
{
	struct list_node *node;

	drop_old_exits(table);
	for (node = table->exits.previous; node != &table->exits; node = node->previous) {
		const struct process_exit *record = container_of(node, struct process_exit, node);

		if (record->has_tag && strcmp(record->tag, tag) == 0)
			return record;
	}
	return NULL;
}

/* ---- processes ---- */

/* A draining one may share its pid with a successor. */
static bool is_newer(const struct process *process, const struct process *other)
{
	return process->state != other->state ? process->state == PROCESS_RUNNING
					      : process->serial > other->serial;
}

static struct process *find(const struct process_table *table, pid_t pid, enum process_state last)
{
	struct process *newest = NULL;
	struct hash_node *node;

	HASH_TABLE_FOR_EACH (node, &table->by_pid, hash_number((uint64_t)pid)) {
		struct process *process = container_of(node, struct process, by_pid);

		if (process->pid == pid && process->state >= PROCESS_RUNNING &&
		    process->state <= last && (!newest || is_newer(process, newest)))
			newest = process;
	}
	return newest;
}

static struct process *find_tag(const struct process_table *table, const char *tag,
				enum process_state last)
{
	struct process *draining = NULL;
	struct list_node *node;

	for (node = table->all.previous; node != &table->all; node = node->previous) {
		struct process *process = container_of(node, struct process, node);

		if (!process->spec.tag || strcmp(process->spec.tag, tag) != 0)
			continue;
		if (process->state == PROCESS_RUNNING)
			return process;
		if (process->state == PROCESS_DRAINING && last == PROCESS_DRAINING && !draining)
			draining = process;
	}
	return draining;
}

struct process *process_table_find(const struct process_table *table, pid_t pid)
{
	return find(table, pid, PROCESS_RUNNING);
}

struct process *process_table_find_tag(const struct process_table *table, const char *tag)
{
	return find_tag(table, tag, PROCESS_RUNNING);
}

struct process *process_table_find_attachable(const struct process_table *table, pid_t pid)
{
	return find(table, pid, PROCESS_DRAINING);
}

struct process *process_table_find_attachable_tag(const struct process_table *table,
						  const char *tag)
{
	return find_tag(table, tag, PROCESS_DRAINING);
}

void process_table_insert(struct process_table *table, struct process *process)
{
	drop_predecessors(table, process->pid, process->spec.tag);
	hash_table_insert(&table->by_pid, &process->by_pid, hash_number((uint64_t)process->pid));
	if (table->config.on_started)
		table->config.on_started(table->config.on_started_user);
}

void process_table_remove(struct process_table *table, struct process *process)
{
	hash_table_remove(&table->by_pid, &process->by_pid);
}

/* ---- cgroups: those that nobody leads any more go, and some are made for the next commands ----
 */

static void sweep(struct job *job)
{
	struct process_table *table = container_of(job, struct process_table, sweep_job);

	cgroups_sweep(&table->cgroups);
	cgroup_spare_sweep(&table->spare);
}

static void on_swept(struct job *job)
{
	struct process_table *table = container_of(job, struct process_table, sweep_job);

	if (table->sweep_is_wanted || cgroup_spare_has_many(&table->spare))
		process_table_plan_sweep(table);
	process_table_close_when_empty(table);
}

static void on_sweep_alarm(struct alarm *alarm)
{
	struct process_table *table = container_of(alarm, struct process_table, sweep_alarm);

	table->sweep_is_wanted = false;
	if (job_run(table->config.loop, &table->sweep_job, JOB_QUICK, sweep, on_swept) < 0)
		process_table_plan_sweep(table);
}

void process_table_plan_sweep(struct process_table *table)
{
	table->sweep_is_wanted = true;
	if (!table->sweep_job.active && table->phase == TABLE_OPEN)
		alarm_set_within(table->config.loop, &table->sweep_alarm, SWEEP_DELAY_MS);
}

void process_table_leave_cgroup(struct process_table *table, struct process *process)
{
	cgroup_remove_later(&table->cgroups, process->place);
	process->place.kind = CGROUP_NONE;
	process_table_plan_sweep(table);
}

/* ---- the end of the table ---- */

static void on_closed(struct later *later)
{
	struct process_table *table = container_of(later, struct process_table, closed);

	table->phase = TABLE_CLOSED;
	table->on_stopped(table, table->on_stopped_user);
}

void process_table_close_when_empty(struct process_table *table)
{
	if (table->phase == TABLE_OPEN || table->phase >= TABLE_CLOSING || table->count > 0 ||
	    table->sweep_job.active)
		return;
	table->phase = TABLE_CLOSING;
	while (!list_is_empty(&table->exits))
		drop_exit(table, container_of(table->exits.next, struct process_exit, node));
	output_close_discarding(&table->discarding);
	reaper_fini(&table->reaper);
	alarm_cancel(&table->expiry);
	alarm_cancel(&table->grace);
	alarm_cancel(&table->sweep_alarm);
	later_call(table->config.loop, &table->closed);
}

void process_table_forget(struct process_table *table, struct process *process)
{
	list_remove(&process->node);
	hash_table_remove(&table->by_pid, &process->by_pid);
	table->count--;
	process_table_close_when_empty(table);
}

static bool is_being_launched(void *user, pid_t pid)
{
	struct process_table *table = user;

	return launch_expects(&table->pad, pid);
}

struct process_table *process_table_new(const struct process_table_config *config)
{
	struct process_table *table = xcalloc(1, sizeof(*table));

	table->config = *config;
	cgroups_init(&table->cgroups, config->cgroup_root, config->with_cgroups);
	table->config.cgroup_root = NULL; /* was only borrowed */
	cgroup_spare_init(&table->spare, &table->cgroups);
	table->spawn_settings = (struct spawn_settings){
		.sandbox = config->sandbox,
		.cgroups = &table->cgroups,
		.spare = &table->spare,
		.set_nofile = config->set_nofile,
		.nofile = config->nofile,
		.ignored_signals = spawn_ignored_signals(),
	};
	launch_pad_init(&table->pad, config->loop);
	reaper_init(&table->reaper, config->loop, config->adopts_orphans, is_being_launched, table);
	list_init(&table->all);
	list_init(&table->exits);
	list_init(&table->discarding);
	alarm_init(&table->expiry, on_expiry);
	alarm_init(&table->sweep_alarm, on_sweep_alarm);
	later_init(&table->closed, on_closed);
	return table;
}

void process_table_free(struct process_table *table)
{
	assert(table->phase == TABLE_CLOSED);
	launch_pad_fini(&table->pad);
	cgroup_spare_fini(&table->spare);
	cgroups_fini(&table->cgroups);
	free(table);
}
