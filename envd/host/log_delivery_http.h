/*
 * One line of the log on its way to the host's collector, and where that is (contract/envd.md 1.8).
 * Loop thread only.
 */
#ifndef ENVD_HOST_LOG_DELIVERY_HTTP_H
#define ENVD_HOST_LOG_DELIVERY_HTTP_H

#include <netinet/in.h>

#include "lib/buf.h"
#include "lib/loop.h"

struct log_target {
	struct sockaddr_storage address;
	char *authority, *path; /* NULL: nowhere */
	struct buf suffix; /* what every line ends with: the ids */
};

void log_target_init(struct log_target *target);
void log_target_fini(struct log_target *target);
/* `address`: http://, an IP address, perhaps a port and a path. Anything else is -EINVAL; then, or
 * without memory, the target is nowhere. */
int log_target_set(struct log_target *target, const char *address, const char *sandbox_id,
		   const char *template_id) NODISCARD;

struct log_delivery;

/* `line` is a JSON object and a newline. `on_done` comes once, from the loop, unless
 * log_delivery_close comes first: 0 when the collector took it, -EPERM when it refused, or another
 * negative errno when it could not be asked. The delivery is gone after it. */
struct log_delivery *log_delivery_open(struct loop *loop, const struct log_target *target,
				       struct str line, void (*on_done)(void *user, int status),
				       void *user);
void log_delivery_close(struct log_delivery *delivery);

#endif
