/* The orderly end of all processes. */
#include "envd/process/process_internal.h"
#include "lib/log.h"

static void end_one(struct process *process, bool hard)
{
	switch (process->state) {
	case PROCESS_STARTING:
		process_dispatch(process, PROCESS_KILL);
		break;
	case PROCESS_RUNNING:
		if (hard)
			process_kill(process, NULL);
		else
			process_hang_up(process);
		break;
	case PROCESS_DRAINING:
		if (hard)
			process_dispatch(process, PROCESS_DRAIN_OVER);
		break;
	case PROCESS_DONE:
		break;
	}
}

static void end_all(struct process_table *table, bool hard)
{
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &table->all)
		end_one(container_of(node, struct process, node), hard);
}

void process_table_hasten_stop(struct process_table *table)
{
	if (table->phase != TABLE_TERMINATING)
		return;
	table->phase = TABLE_KILLING;
	log_info("process", "grace is over, killing", LOG_I("processes", table->count));
	end_all(table, true);
}

static void on_grace_over(struct alarm *alarm)
{
	process_table_hasten_stop(container_of(alarm, struct process_table, grace));
}

void process_table_stop(struct process_table *table, uint64_t grace_ms,
			void (*on_stopped)(struct process_table *table, void *user), void *user)
{
	assert(table->phase == TABLE_OPEN);
	table->phase = TABLE_TERMINATING;
	table->on_stopped = on_stopped;
	table->on_stopped_user = user;
	alarm_init(&table->grace, on_grace_over);
	alarm_set(table->config.loop, &table->grace, grace_ms);
	end_all(table, false);
	process_table_close_when_empty(table);
}
