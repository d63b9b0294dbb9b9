#include "envd/jobs/job_ports.h"

#include "envd/jobs/job_scan.h"
#include "envd/limits.h"

struct job_ports {
	struct job_table *table;
	struct list_node waiters;
	uv_timer_t timer;
	struct job work;
	struct job_ports_seen seen;
	bool is_owed, is_telling, is_over;
};

static void on_closed(uv_handle_t *handle)
{
	struct job_ports *ports = container_of((uv_timer_t *)handle, struct job_ports, timer);

	job_table_drop_live(ports->table);
	free(ports);
}

/* Nobody waits any more. */
static void end(struct job_ports *ports)
{
	if (ports->is_over || ports->is_telling || ports->work.active ||
	    !list_is_empty(&ports->waiters))
		return;
	ports->is_over = true;
	ports->table->ports = NULL;
	uv_close((uv_handle_t *)&ports->timer, on_closed);
}

static void on_timer(uv_timer_t *timer);

static void look(struct job *work)
{
	job_scan_ports(&container_of(work, struct job_ports, work)->seen);
}

static void on_looked(struct job *work)
{
	struct job_ports *ports = container_of(work, struct job_ports, work);
	uint64_t wait_ms = ports->is_owed ? 0 : JOB_PORT_LOOK_MS;
	struct list_node told;

	ports->is_telling = true;
	list_init(&told);
	list_splice(&told, &ports->waiters);
	while (!list_is_empty(&told)) {
		struct job_port_waiter *waiter = container_of(told.next, struct job_port_waiter,
							      node);

		list_remove(&waiter->node);
		list_append(&ports->waiters, &waiter->node);
		if (job_ports_seen_has(&ports->seen, waiter->port))
			waiter->on_listening(waiter);
		else
			waiter->on_silent(waiter);
	}
	ports->is_telling = false;
	uv_timer_start(&ports->timer, on_timer, wait_ms, 0);
	end(ports);
}

static void start(struct job_ports *ports)
{
	ports->is_owed = ports->work.active;
	if (!ports->work.active && !ports->is_telling &&
	    job_run(ports->table->loop, &ports->work, JOB_QUICK, look, on_looked) < 0)
		uv_timer_start(&ports->timer, on_timer, JOB_PORT_LOOK_MS, 0);
}

static void on_timer(uv_timer_t *timer)
{
	start(container_of(timer, struct job_ports, timer));
}

void job_ports_join(struct job_table *table, struct job_port_waiter *waiter)
{
	struct job_ports *ports = table->ports;

	if (!ports) {
		table->ports = ports = xcalloc(1, sizeof(*ports));
		ports->table = table;
		list_init(&ports->waiters);
		uv_timer_init(&table->loop->uv, &ports->timer);
		table->live++;
	}
	list_append(&ports->waiters, &waiter->node);
	start(ports);
}

void job_ports_leave(struct job_table *table, struct job_port_waiter *waiter)
{
	list_remove(&waiter->node);
	if (table->ports)
		end(table->ports);
}
