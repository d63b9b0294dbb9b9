#include "proxy/relay/relay.h"

#include "proxy/limits.h"
#include "proxy/relay/relay_private.h"
#include "proxy/route/internal_path.h"

static _Atomic uint64_t *open_in(struct lifecycle_use *use, enum relay_phase phase)
{
	switch (phase) {
	case RELAY_UNANSWERED:
		return &use->unanswered;
	case RELAY_STREAM:
		return &use->streams;
	case RELAY_TUNNEL:
		return &use->tunnels;
	case RELAY_UNCOUNTED:
		break;
	}
	return NULL;
}

void relay_enter(struct relay *r, enum relay_phase phase)
{
	struct lifecycle_use *use = r->admitted ? &r->admitted->use[r->context->pool.worker] : NULL;
	_Atomic uint64_t *open;

	if (!use || r->is_probe || r->phase == phase)
		return;
	relay_touch(r); /* what ends now was in use until now */
	open = open_in(use, r->phase);
	if (open)
		lifecycle_close_use(open);
	r->phase = phase;
	r->stamp = phase == RELAY_UNCOUNTED ? NULL
		   : phase == RELAY_TUNNEL  ? &use->tunnel_ms
					    : &use->request_ms;
	open = open_in(use, phase);
	if (open)
		counter_add(open);
	relay_touch(r);
}

static void leave_lifecycle(struct relay *r)
{
	if (!r->admitted)
		return;
	relay_enter(r, RELAY_UNCOUNTED);
	lifecycle_leave(r->admitted);
	lifecycle_release(r->admitted);
	r->admitted = NULL;
}

void relay_release_part(struct relay *r)
{
	assert(r->parts > 0);
	if (--r->parts)
		return;
	alarm_cancel(&r->alarm);
	upstream_leave(&r->context->pool, &r->user);
	leave_lifecycle(r);
	if (r->record)
		catalog_record_release(r->record);
	counter_take(&r->context->counters.active);
	histogram_observe(&r->context->counters.durations, &histogram_milliseconds,
			  loop_now_ms(r->context->loop) - r->ex->started_ms);
	http_exchange_release(r->ex);
	clients_leave(r->context->clients, r->peer, r->bound);
	free(r);
}

/* ---- endings ---- */

void relay_close_dial(struct relay *r)
{
	if (r->dial)
		dial_close(r->dial);
	r->dial = NULL;
}

void relay_begin(struct relay *r)
{
	r->begun = true;
	r->first_byte_ms = loop_now_ms(r->context->loop) - r->ex->started_ms;
}

void relay_answered(struct relay *r)
{
	assert(!r->begun);
	r->answered = true;
	relay_begin(r);
	relay_enter(r, RELAY_STREAM);
	relay_stop_waiting(r);
	relay_close_dial(r);
}

void relay_fail_with(struct relay *r, enum error_cause cause, const char *detail,
		     unsigned retry_after_s)
{
	struct error_answer answer = {
		.cause = cause,
		.host = r->host != NULL,
		.sandbox_id = r->target.id_len ? r->target.id : NULL,
		.port = r->target.port,
		.connection_limit = r->record ? r->record->entry.connection_limit : 0,
		.detail = detail,
		.retry_after_s = retry_after_s,
	};

	relay_answered(r);
	r->ex->heads.always = true;
	r->failed = true;
	r->error = cause;
	counter_add(&r->context->counters.errors[cause]);
	if (r->host)
		atomic_fetch_add_explicit(&r->host->errors, 1, memory_order_relaxed);
	error_answer_send(r->ex, &answer);
}

void relay_fail(struct relay *r, enum error_cause cause)
{
	relay_fail_with(r, cause, NULL, 0);
}

void relay_cut(struct relay *r)
{
	r->cut_by_sandbox = true;
	counter_add(&r->context->counters.cut_by_sandbox);
	http_exchange_abort(r->ex);
}

void relay_drop_client(struct relay *r, bool reset)
{
	if (r->client)
		http_client_close(r->client, reset);
}

/* ---- finding the sandbox ---- */

static enum error_cause host_cause(enum host_name_result result)
{
	switch (result) {
	case HOST_NAME_BAD_PORT:
		return ERROR_INVALID_PORT;
	case HOST_NAME_BAD_ID:
		return ERROR_INVALID_ID;
	case HOST_NAME_HEADER_MISSING:
		return ERROR_HEADER_MISSING;
	case HOST_NAME_HEADER_REPEATED:
		return ERROR_HEADER_REPEATED;
	case HOST_NAME_OK:
	case HOST_NAME_UNROUTED:
	case HOST_NAME_INVALID:
		break;
	}
	return ERROR_INVALID_HOST;
}

static struct str target_id(const struct relay *r)
{
	return (struct str){r->target.id, r->target.id_len};
}

/* Whether the client had reason to send this host's request on this connection. */
static bool is_misdirected(const struct http_exchange *ex)
{
	return ex->security &&
	       !ex->security->covers(ex->security, host_name_without_port(ex->request.authority));
}

/* The port by which this sandbox's envd is really reached is as good as 49983. */
static bool is_internal(const struct relay *r)
{
	return (r->target.port == ENVD_PORT ||
		(r->record && r->target.port == r->record->entry.envd_port)) &&
	       internal_path_is_refused(r->ex->request.path);
}

/* False when the request was answered. */
static bool find_target(struct relay *r)
{
	const struct http_request *request = &r->ex->request;
	const char *fallback = r->context->options->default_sandbox;
	enum host_name_result result = host_name_route(request->authority, &r->summary.routing,
						       &r->target);

	/* Clients in debug mode name no sandbox, or one that cannot exist ("debug_sandbox_id"). */
	if (fallback && r->target.shared &&
	    (result == HOST_NAME_UNROUTED || result == HOST_NAME_BAD_ID)) {
		snprintf(r->target.id, sizeof(r->target.id), "%s", fallback);
		r->target.id_len = strlen(r->target.id);
		if (result == HOST_NAME_UNROUTED)
			r->target.port = ENVD_PORT;
		result = HOST_NAME_OK;
	}
	if (result != HOST_NAME_OK) {
		relay_fail(r, host_cause(result));
		return false;
	}
	if (is_misdirected(r->ex)) {
		relay_fail(r, ERROR_MISDIRECTED);
		return false;
	}
	if (is_internal(r)) {
		relay_fail(r, ERROR_INTERNAL_PATH);
		return false;
	}
	return true;
}

static bool state_allows(struct relay *r)
{
	switch (r->record->entry.state) {
	case SANDBOX_RUNNING:
		return true;
	case SANDBOX_PAUSED:
		relay_wait(r, ERROR_PAUSED);
		return false;
	case SANDBOX_STOPPING:
		relay_fail(r, ERROR_NOT_FOUND);
		return false;
	case SANDBOX_PAUSING:
	case SANDBOX_RESUMING:
		break;
	}
	relay_wait(r, ERROR_TRANSITIONAL);
	return false;
}

static bool admit(struct relay *r)
{
	int active = catalog_admit(r->record);

	if (active == -ESTALE && r->reroutes++ < PROXY_REROUTES_MAX) {
		relay_route(r); /* dropped for want of use; its source still knows it */
		return false;
	}
	if (active < 0) {
		relay_fail(r, active == -EBUSY ? ERROR_LIMIT : ERROR_TRANSITIONAL);
		return false;
	}
	if (!clients_allow_sandbox(r->context->clients, (size_t)active)) {
		lifecycle_leave(r->record->lifecycle);
		relay_fail(r, ERROR_SANDBOX_SHARE);
		return false;
	}
	r->admitted = r->record->lifecycle;
	lifecycle_hold(r->admitted);
	histogram_observe(&r->context->counters.per_sandbox, &histogram_amounts, (uint64_t)active);
	relay_enter(r, RELAY_UNANSWERED);
	return true;
}

static void connect_to_record(struct relay *r)
{
	upstream_join(&r->context->pool, r->record->lifecycle, &r->user);
	transfer_connect(r);
}

static void forget_record(struct relay *r)
{
	upstream_leave(&r->context->pool, &r->user);
	leave_lifecycle(r);
	if (r->record)
		catalog_record_release(r->record);
	r->record = NULL;
}

/* Sources are asked by the id alone: what they find is looked up in the catalog again. */
static bool ask_sources(struct relay *r,
			void (*on_answer)(struct lookup_waiter *, enum lookup_answer))
{
	if (!r->context->lookups || r->lookups >= PROXY_LOOKUPS_PER_REQUEST_MAX)
		return false;
	r->lookups++;
	r->waiter.on_answer = on_answer;
	r->waiter.of_client = relay_begin_waiting(r);
	r->waiter.client = r->peer;
	r->waiter.on_over = clients_wait_over;
	lookup_ask(r->context->lookups, r->context->loop, target_id(r), &r->waiter);
	return true;
}

size_t relay_begin_waiting(struct relay *r)
{
	assert(!r->waits);
	r->waits = true;
	return clients_wait(r->peer);
}

void relay_stop_waiting(struct relay *r)
{
	bool goes_on = lookup_cancel(&r->waiter);

	if (r->waits && !goes_on)
		clients_wait_over(r->peer);
	r->waits = false;
	wake_leave(&r->wake_waiter);
}

/* `status` is the catalog's, `answer` the sources'. */
static enum error_cause unknown_cause(int status, enum lookup_answer answer)
{
	switch (answer) {
	case LOOKUP_UNAVAILABLE:
		return ERROR_CATALOG;
	case LOOKUP_OVERLOADED:
		return ERROR_OVERLOADED;
	case LOOKUP_FOUND: /* and gone again */
	case LOOKUP_ABSENT:
		break;
	}
	return status == -ENOENT ? ERROR_NOT_FOUND : ERROR_CATALOG;
}

static void on_looked_up(struct lookup_waiter *waiter, enum lookup_answer answer);

static void route(struct relay *r, bool asked, enum lookup_answer answer)
{
	int status;

	/* Nothing that was under way for the former record may come to an end for this one: a dial
	 * least of all, since somebody else may live at that address by now (contract/proxy.md
	 * S18). */
	relay_stop_waiting(r);
	relay_close_dial(r);
	forget_record(r);
	status = catalog_find(r->context->catalog, target_id(r), &r->record);
	if (status < 0) {
		if (asked || !ask_sources(r, on_looked_up))
			relay_wait_unknown(r, unknown_cause(status, answer));
		return;
	}
	if (is_internal(r)) {
		relay_fail(r, ERROR_INTERNAL_PATH);
		return;
	}
	if (!state_allows(r) || !relay_token_allows(r) || !admit(r))
		return;
	connect_to_record(r);
}

static void on_looked_up(struct lookup_waiter *waiter, enum lookup_answer answer)
{
	/* Found is what has to be in the catalog now; anything else may have come there by
	 * itself. */
	route(container_of(waiter, struct relay, waiter), answer != LOOKUP_FOUND, answer);
}

void relay_route(struct relay *r)
{
	route(r, false, LOOKUP_ABSENT);
}

/* True when the request has gone another way, because the sandbox is not where it was. */
static bool reroute_if_changed(struct relay *r)
{
	struct catalog_record *now;
	bool changed;

	if (r->reroutes >= PROXY_REROUTES_MAX)
		return false;
	if (catalog_find(r->context->catalog, target_id(r), &now) < 0)
		now = NULL;
	changed = !now || now->lifecycle != r->record->lifecycle ||
		  now->entry.state != r->record->entry.state;
	if (now)
		catalog_record_release(now);
	if (!changed)
		return false;
	r->reroutes++;
	relay_route(r);
	return true;
}

static void on_asked_again(struct lookup_waiter *waiter, enum lookup_answer answer)
{
	struct relay *r = container_of(waiter, struct relay, waiter);

	(void)answer; /* what it changed is in the catalog */
	if (!reroute_if_changed(r))
		relay_fail(r, r->error);
}

/* A sandbox that is being paused, or has moved, is not one with a closed port (contract/proxy.md
 * S29). Its source may know before we were told. */
void relay_dial_failed(struct relay *r, enum error_cause cause)
{
	if (cause != ERROR_ADDRESS_REFUSED && !r->host) {
		if (reroute_if_changed(r))
			return;
		r->error = cause;
		if (sandbox_origin_is_source(r->record->entry.origin) &&
		    r->reroutes < PROXY_REROUTES_MAX && ask_sources(r, on_asked_again))
			return;
	}
	relay_fail(r, cause);
}

/* The lifecycle has ended under us. */
static void on_lifecycle_ended(struct upstream_user *user)
{
	struct relay *r = container_of(user, struct relay, user);

	/* A response that is here already only waits for the client to take it. */
	if (r->ex->closed || r->answered || (r->received_end && !r->tunnel))
		return;
	if (!r->begun && !r->client && r->reroutes++ < PROXY_REROUTES_MAX) {
		relay_route(r);
		return;
	}
	if (r->begun) {
		relay_cut(r);
		relay_drop_client(r, true);
		return;
	}
	/* The request may have had effects already; the sandbox it went to is gone. */
	relay_fail(r, ERROR_NOT_FOUND);
	relay_drop_client(r, true);
}

/* ---- the entrance ---- */

static struct relay *relay_new(struct http_exchange *ex)
{
	struct relay *r = xcalloc(1, sizeof(*r));

	r->context = ex->server_user;
	r->ex = ex;
	r->peer = ex->client;
	r->bound = clients_enter(r->context->clients, r->peer);
	r->user.on_ended = on_lifecycle_ended;
	r->wake_waiter.on_woken = relay_on_woken;
	r->parts = 1;
	http_exchange_hold(ex);
	http_exchange_set_handler(ex, &transfer_exchange_handler, r);
	counter_add(&r->context->counters.requests);
	counter_add(&r->context->counters.active);
	return r;
}

/* NULL: the request was answered. */
static struct relay *enter(struct http_exchange *ex)
{
	struct relay *r = relay_new(ex);

	/* While nobody reads what the sandbox will say, it need not say it (contract/proxy.md
	 * S20). */
	ex->abort_on_eof = true;
	head_summarise(&ex->request, &r->summary);
	if (r->bound != CLIENT_BOUND_NONE) {
		relay_fail(r,
			   r->bound == CLIENT_BOUND_CLIENT ? ERROR_CLIENT_SHARE : ERROR_OVERLOADED);
		return NULL;
	}
	ex->client_is_known = true; /* it has asked something: heads that never end yield before */
	/* Never with a body: the exchange has seen to that. */
	if (ex->request.upgrade.p)
		ex->request.upgrade = head_upgrade(ex->request.upgrade, &ex->arena);
	return r;
}

void relay_dispatch(struct http_exchange *ex)
{
	struct relay *r = enter(ex);

	if (!r || !find_target(r))
		return;
	r->is_probe = probe_rules_match(r->context->options->probes, &ex->request, r->target.port);
	relay_route(r);
}

void relay_dispatch_fixed(struct http_exchange *ex, struct host_entry *host)
{
	struct fixed_upstream *upstream = host->user;
	struct relay *r = enter(ex);

	atomic_fetch_add_explicit(&host->requests, 1, memory_order_relaxed);
	if (!r)
		return;
	r->host = host;
	r->target.port = upstream->port;
	r->record = upstream->record;
	catalog_record_hold(r->record);
	if (is_misdirected(ex)) {
		relay_fail(r, ERROR_MISDIRECTED);
		return;
	}
	if (admit(r))
		connect_to_record(r);
}

/* What lib/http_head.h refuses before anybody is asked. */
static enum error_cause refusal_cause(int status)
{
	switch (status) {
	case 405:
		return ERROR_METHOD;
	case 417:
		return ERROR_EXPECTATION;
	case 429:
		return ERROR_CLIENT_SHARE;
	case 503:
		return ERROR_OVERLOADED;
	default:
		return ERROR_BAD_REQUEST;
	}
}

void relay_bad_request(struct http_exchange *ex, int status, const char *reason)
{
	struct relay *r = relay_new(ex);
	struct error_answer answer = {
		.cause = refusal_cause(status),
		.status = status,
		.detail = reason,
	};

	r->answered = r->failed = true;
	relay_begin(r);
	r->error = answer.cause;
	counter_add(&r->context->counters.errors[answer.cause]);
	error_answer_send(ex, &answer);
}
