/*
 * Sends the log to the host's collector, in a microVM (contract/envd.md 1.8): each line is POSTed
 * as JSON with the sandbox's and the template's id in it, one after the other, over a connection of
 * its own. The metadata service says where to; until it has, lines wait. There are no payloads in
 * them, because there are none in the log (lib/log.h).
 *
 * Nobody ever waits for it, but for a freeze, which comes before this machine is stopped
 * (log_exporter_flush). Lines wait in a queue of LOG_EXPORT_BYTES_MAX, from which the oldest go
 * first; a line that the collector refuses, or that cannot be delivered LOG_EXPORT_ATTEMPTS_MAX
 * times, is dropped. How many were lost is in the log (and so comes to the collector) once there is
 * something to tell, at most every LOG_EXPORT_REPORT_MS. With nothing to send there is no
 * connection and no alarm.
 *
 * Lines come from any thread; everything else belongs to the loop's.
 */
#ifndef ENVD_HOST_LOG_EXPORTER_H
#define ENVD_HOST_LOG_EXPORTER_H

#include "lib/loop.h"

struct log_exporter;

/* Takes copies of what is logged from now on. One at a time. */
struct log_exporter *log_exporter_new(struct loop *loop);
/* `address`: http://, an IP address, perhaps a port and a path. Anything else is told and, like an
 * empty one, means nowhere: what waits is dropped, and nothing is kept until there is another
 * address. */
void log_exporter_set_target(struct log_exporter *exporter, const char *address,
			     const char *sandbox_id, const char *template_id);
/* Embedded by its owner. */
struct log_flush {
	struct list_node node;
	uint64_t due_ms;
	void (*on_done)(struct log_flush *flush);
};

/* False: there is nothing to be sent, or nowhere. Otherwise `on_done` comes once, from the loop:
 * when everything was delivered, which is tried at once also after a failure, when that fails
 * again, or after LOG_EXPORT_FLUSH_MS. Lines that are left stay. */
bool log_exporter_flush(struct log_exporter *exporter, struct log_flush *flush,
			void (*on_done)(struct log_flush *flush)) NODISCARD;
/* Nothing more is sent, flushes that wait are ended, and the exporter is gone. */
void log_exporter_close(struct log_exporter *exporter);
/* Nothing waits or is under way. */
bool log_exporter_is_at_rest(struct log_exporter *exporter);

/* Lines that were not delivered, ever. */
uint64_t log_exporter_lost(struct log_exporter *exporter);

#endif
