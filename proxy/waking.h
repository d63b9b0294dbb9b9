/*
 * Puts together what waking sandboxes needs, from the flags: the hook that is asked, and the
 * flights.
 */
#ifndef PROXY_WAKING_H
#define PROXY_WAKING_H

#include "lib/buf.h"
#include "proxy/config.h"
#include "proxy/wake/wake.h"

struct waking {
	struct wake_hook *hook; /* NULL: nobody is asked */
	struct wake *wake; /* NULL: closed */
};

int waking_open(struct waking *waking, struct loop *loop, struct catalog *catalog,
		const struct config *config, struct err *err) NODISCARD;
/* When no request waits any more, that is, when the workers have ended. */
void waking_close(struct waking *waking);
int waking_write_metrics(struct buf *b, const struct waking *waking) NODISCARD;

#endif
