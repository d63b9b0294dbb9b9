/* Requests for a sandbox that is not running, and how they wake it. */
#include "lib/digest.h"
#include "proxy/limits.h"
#include "proxy/relay/relay_private.h"

void relay_on_woken(struct wake_waiter *waiter, const struct wake_verdict *verdict)
{
	static const enum error_cause causes[WAKE_OUTCOMES] = {
		[WAKE_NOT_FOUND] = ERROR_NOT_FOUND,	     [WAKE_DENIED] = ERROR_WAKE_DENIED,
		[WAKE_TRANSITIONING] = ERROR_TRANSITIONAL,   [WAKE_LIMITED] = ERROR_WAKE_LIMIT,
		[WAKE_UNAVAILABLE] = ERROR_WAKE_UNAVAILABLE, [WAKE_TIMEOUT] = ERROR_WAKE_TIMEOUT,
	};
	struct relay *r = container_of(waiter, struct relay, wake_waiter);

	if (verdict->outcome == WAKE_LOOK_AGAIN)
		relay_route(r);
	else
		relay_fail_with(r, causes[verdict->outcome], *verdict->text ? verdict->text : NULL,
				verdict->retry_after_s);
}

/* envd checks its callers itself, but cannot do so before it runs (contract/proxy.md 1.16). */
static bool envd_token_allows(struct relay *r)
{
	struct str token = http_headers_get(&r->ex->request.headers, STR("X-Access-Token"));
	unsigned char digest[DIGEST_SHA256_BYTES];
	char hex[2 * sizeof(digest) + 1];
	const char *wanted = r->record->entry.envd_token_hash;

	if (!*wanted || r->target.port != ENVD_PORT)
		return true;
	digest_sha256(&token, 1, digest);
	for (size_t i = 0; i < sizeof(digest); i++)
		snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	if (str_equal_constant_time(str_of(hex), str_of(wanted)))
		return true;
	relay_fail(r, ERROR_WAKE_DENIED);
	return false;
}

static int join(struct relay *r, const struct wake_request *request)
{
	r->wakes++;
	r->wake_waiter.of_client = relay_begin_waiting(r);
	return wake_join(r->context->wake, r->context->loop, &r->wake_waiter, request,
			 r->record ? r->record->entry.state : SANDBOX_PAUSED);
}

static enum error_cause join_cause(int status, enum error_cause usual)
{
	return status == -EBUSY || status == -EAGAIN ? ERROR_WAKE_QUEUE : usual;
}

void relay_wait(struct relay *r, enum error_cause cause)
{
	struct wake_request request;
	int status = -ENOTSUP;

	if (r->record->entry.auto_resume && !r->is_probe && r->wakes < PROXY_WAKE_ROUNDS_MAX) {
		/* Who may not reach the sandbox may not wake it either. */
		if (!relay_token_allows(r) || !envd_token_allows(r))
			return;
		wake_request_init(&request, r->record, r->target.port);
		status = join(r, &request);
	}
	if (status < 0)
		relay_fail(r, join_cause(status, cause));
}

/* At most one of a kind, and short enough to be one. */
static int take_token(const struct http_headers *headers, struct str name,
		      char ret_token[CATALOG_TEXT_BYTES_MAX + 1])
{
	struct str token = http_headers_get(headers, name);

	if (http_headers_count(headers, name) > 1 || token.len > CATALOG_TEXT_BYTES_MAX ||
	    !str_is_utf8(token))
		return -EINVAL;
	snprintf(ret_token, CATALOG_TEXT_BYTES_MAX + 1, "%.*s", (int)token.len,
		 token.p ? token.p : "");
	return 0;
}

void relay_wait_unknown(struct relay *r, enum error_cause cause)
{
	const struct http_headers *headers = &r->ex->request.headers;
	struct wake_request request = {.port = r->target.port, .is_unknown = true};
	int status = -ENOTSUP;

	if (cause == ERROR_NOT_FOUND && r->context->options->wake_unknown && !r->is_probe &&
	    r->wakes == 0) {
		memcpy(request.id, r->target.id, r->target.id_len + 1);
		if (take_token(headers, STR("e2b-traffic-access-token"), request.traffic_token) <
			    0 ||
		    take_token(headers, STR("X-Access-Token"), request.envd_token) < 0) {
			relay_fail(r, ERROR_WAKE_DENIED);
			return;
		}
		status = join(r, &request);
		wipe(&request, sizeof(request));
	}
	if (status < 0)
		relay_fail(r, join_cause(status, cause));
}
