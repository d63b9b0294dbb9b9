/*
 * The waker that asks the platform: one HTTP request per sandbox to be woken.
 *
 *   POST /path HTTP/1.1
 *   Authorization: Bearer <token>             when there is one
 *   Content-Type: application/json
 *
 *   {"sandboxId":"abc","port":3000,"lifecycleId":"the one that was paused"}
 *   {"sandboxId":"abc","port":3000,"trafficAccessToken":"...","envdAccessToken":"..."}
 *
 * The second form is for a sandbox that the catalog does not know (only with --wake-unknown): the
 * hook has to check the client's credentials, which are there if the client sent any.
 *
 * In the first form the request was allowed already (token, policy). The hook may take its time, up
 * to the deadline. Its answer (contract/proxy.md 1.16):
 *
 *   2xx        the sandbox runs, or will soon. A body is what PATCH /sandboxes/{id} of the admin
 *              API takes (catalog/sandbox_json.h), with "state" being "running" unless it says
 *              otherwise; it is published if the sandbox still has the lifecycle id above. Without
 *              a body, or with {}, somebody else changes the catalog; the requests wait for that.
 *              For an unknown sandbox the body is what PUT takes; without one, the source that
 *              knows it (a shared Redis) must have it before the hook answers.
 *   403        it may not be woken
 *   404, 410   there is no such sandbox any more
 *   409        it is between states
 *   429        there is no room; {"message": "..."} is for the client
 *   other      unavailable, like an answer that is not what is said here, and no answer
 *
 * The body of a refusal matters with 429 alone, and only its first bytes. An answer about a life
 * that has been over since does not count (wake.h). When the host has several addresses, each but
 * the last gets PROXY_WAKE_CONNECT_MS.
 *
 * A Retry-After in seconds with 409, 429 and 503 is passed on. Redirects are not followed, and the
 * proxy variables of the environment mean nothing here.
 */
#ifndef PROXY_WAKE_WAKE_HOOK_H
#define PROXY_WAKE_WAKE_HOOK_H

#include "proxy/wake/wake.h"

struct wake_hook_config {
	const char *url; /* "http://host[:port]/path" */
	const char *token; /* "" = none; no blanks or control bytes */
	struct catalog *catalog;
};

struct wake_hook;

/* Fills err with invalid_argument for a URL that cannot be one. The texts are copied. */
int wake_hook_open(struct loop *loop, const struct wake_hook_config *config,
		   struct wake_hook **ret_hook, struct err *err) NODISCARD;
struct waker *wake_hook_waker(struct wake_hook *hook);
/* After wake_close. The hook is gone, or will be when its name has been looked up. */
void wake_hook_close(struct wake_hook *hook);

#endif
