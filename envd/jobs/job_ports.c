#include "envd/jobs/job_ports.h"

#include "envd/limits.h"

#define LISTENING 0x0a

struct job_ports {
	struct job_table *table;
	struct list_node waiters;
	struct alarm alarm;
	struct job work;
	unsigned char listening[(UINT16_MAX + 1) / 8]; /* one bit for each port; by the last look */
	bool is_owed, is_telling;
};

/* Nobody waits any more. */
static void end(struct job_ports *ports)
{
	if (ports->is_telling || ports->work.active || !list_is_empty(&ports->waiters))
		return;
	alarm_cancel(&ports->alarm);
	ports->table->ports = NULL;
	free(ports);
}

/* "  sl  local_address rem_address st ...", numbers in hexadecimal. */
static void look_into(struct job_ports *ports, const char *path)
{
	FILE *file = fopen(path, "re");
	char line[512];

	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		unsigned port, state;

		if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &port, &state) ==
			    2 &&
		    state == LISTENING && port <= UINT16_MAX)
			ports->listening[port / 8] |= (unsigned char)(1U << port % 8);
	}
	fclose(file);
}

static void look(struct job *work)
{
	struct job_ports *ports = container_of(work, struct job_ports, work);

	memset(ports->listening, 0, sizeof(ports->listening));
	look_into(ports, "/proc/net/tcp");
	look_into(ports, "/proc/net/tcp6");
}

static void on_looked(struct job *work)
{
	struct job_ports *ports = container_of(work, struct job_ports, work);

	job_table_drop_live(ports->table);
	alarm_set(ports->table->loop, &ports->alarm, ports->is_owed ? 0 : JOB_PORT_LOOK_MS);
	ports->is_telling = true;
	job_listeners_tell(&ports->waiters);
	ports->is_telling = false;
	end(ports);
}

static void start(struct job_ports *ports)
{
	ports->is_owed = ports->work.active;
	if (ports->work.active || ports->is_telling)
		return;
	if (job_run(ports->table->loop, &ports->work, JOB_QUICK, look, on_looked) < 0)
		alarm_set(ports->table->loop, &ports->alarm, JOB_PORT_LOOK_MS);
	else
		ports->table->live++;
}

static void on_alarm(struct alarm *alarm)
{
	start(container_of(alarm, struct job_ports, alarm));
}

void job_ports_join(struct job_table *table, struct job_port_waiter *waiter)
{
	struct job_ports *ports = table->ports;

	if (!ports) {
		table->ports = ports = xcalloc(1, sizeof(*ports));
		ports->table = table;
		list_init(&ports->waiters);
		alarm_init(&ports->alarm, on_alarm);
	}
	list_append(&ports->waiters, &waiter->listener.node);
	start(ports);
}

void job_ports_leave(struct job_table *table, struct job_port_waiter *waiter)
{
	list_remove(&waiter->listener.node);
	if (table->ports)
		end(table->ports);
}

bool job_ports_has(const struct job_table *table, unsigned port)
{
	return port <= UINT16_MAX && table->ports->listening[port / 8] & 1U << port % 8;
}
