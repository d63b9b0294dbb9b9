#include "envd/cli/retry.h"

#include <time.h>
#include <unistd.h>

#define RETRY_MAX_MS 5000

int64_t retry_pause(int64_t wait_ms)
{
	nanosleep(&(struct timespec){wait_ms / 1000, wait_ms % 1000 * 1000000}, NULL);
	return wait_ms * 2 < RETRY_MAX_MS ? wait_ms * 2 : RETRY_MAX_MS;
}

void retry_succeeded(struct retry *retry)
{
	if (retry->said)
		dprintf(STDERR_FILENO, "sandbox: connected again\n");
	retry->failing_since_ms = 0;
	retry->said = false;
	retry->reached = true;
}

bool retry_again(struct retry *retry, const struct err *err)
{
	int64_t now_ms = monotonic_ms();

	if (err->sys == ECONNRESET || err->sys == EPIPE)
		retry->reached = true;
	if (err->kind != ERR_UNAVAILABLE || !retry->reached)
		return false;
	if (!retry->failing_since_ms) {
		retry->failing_since_ms = now_ms;
		retry->wait_ms = RETRY_FIRST_MS;
	} else if (!retry->said) {
		retry->said = true;
		dprintf(STDERR_FILENO, "sandbox: the connection is lost, trying again\n");
	}
	if (now_ms - retry->failing_since_ms >= retry->limit_ms)
		return false;
	retry->wait_ms = retry_pause(retry->wait_ms);
	return true;
}
