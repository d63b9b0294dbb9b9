/*
 * What to do when a connection is lost in the middle of something that can go on where it was: wait
 * a little, longer each time, and try again, until it was in vain for too long. Who was never
 * reached is not waited for: a wrong address is told at once.
 */
#ifndef ENVD_CLI_RETRY_H
#define ENVD_CLI_RETRY_H

#include "lib/err.h"

#define RETRY_DEFAULT_S 60

/* Starts as {.limit_ms = ...}. */
struct retry {
	int64_t limit_ms, failing_since_ms; /* since 0: not failing */
	int64_t wait_ms;
	bool reached, said;
};

/* Something came through. */
void retry_succeeded(struct retry *retry);
/* After a failure: waits, and true when there is another attempt; false when it is hopeless,
 * because it is not a matter of the connection, or for too long. */
bool retry_again(struct retry *retry, const struct err *err);
/* A pause of somebody who is slow rather than gone. Returns the next one. */
int64_t retry_pause(int64_t wait_ms);

#define RETRY_FIRST_MS 100

#endif
