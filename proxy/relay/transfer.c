/* The moving part of a relay: the connection to the sandbox, both bodies, both ends. */
#include <sys/socket.h>

#include "lib/limits.h"
#include "lib/stream_uv.h"
#include "proxy/limits.h"
#include "proxy/relay/relay_private.h"

/* ---- towards the sandbox ---- */

static const struct http_client_handler client_handler;

static bool is_idempotent(const struct http_request *request)
{
	return str_equal(request->method, STR("GET")) || str_equal(request->method, STR("HEAD")) ||
	       str_equal(request->method, STR("OPTIONS"));
}

static bool has_body(const struct http_request *request)
{
	return request->length != HTTP_LENGTH_NONE && request->length != 0;
}

/* Only such a request may be sent again when a kept connection turns out to be dead. */
static bool is_replayable(const struct http_request *request)
{
	return is_idempotent(request) && !has_body(request) && !request->upgrade.p;
}

static bool may_reuse(const struct relay *r)
{
	const struct http_request *request = &r->ex->request;

	if (r->replayed || request->upgrade.p)
		return false;
	if (r->target.port == ENVD_PORT)
		return true;
	return r->context->options->reuse_user_ports && is_replayable(request);
}

static bool may_keep(const struct relay *r)
{
	return r->target.port == ENVD_PORT || r->context->options->reuse_user_ports;
}

static void on_continue_overdue(struct alarm *alarm)
{
	struct relay *r = container_of(alarm, struct relay, alarm);

	/* The server does not know the expectation; the client would wait for ever. */
	if (r->waits_continue && !r->ex->closed) {
		r->waits_continue = false;
		http_request_body_start(r->ex);
	}
}

static void start_request_body(struct relay *r)
{
	const struct http_request *request = &r->ex->request;

	if (!has_body(request)) {
		if (!request->upgrade.p && !r->sent_end) {
			r->sent_end = true;
			http_client_end(r->client, NULL);
		}
		return;
	}
	if (request->expect_continue) {
		r->waits_continue = true;
		alarm_call(r->context->loop, &r->alarm, on_continue_overdue,
			   PROXY_CONTINUE_WAIT_MS);
		return;
	}
	/* Some bodies are streams of what a person types. */
	r->ex->no_body_timeout = request->length == HTTP_LENGTH_CHUNKED;
	http_request_body_start(r->ex);
}

static void note_upstream(struct relay *r, const struct stream *stream)
{
	socklen_t size = sizeof(r->upstream);

	if (r->context->access_log.sink &&
	    getpeername(stream_fd(stream), &r->upstream.any, &size) < 0)
		r->upstream.any.sa_family = AF_UNSPEC;
}

/* Takes ownership of the connected stream. */
static void send_request(struct relay *r, struct stream *stream)
{
	struct http_exchange *ex = r->ex;
	struct http_header items[HEAD_FIELDS_MAX];
	struct http_client_request request = {
		.method = ex->request.method,
		.target = head_target(&ex->request,
				      sandbox_port_is_private(&r->record->entry, r->target.port),
				      &ex->arena),
		/* Some servers insist on a length where they expect a body, if only of 0. */
		.length = ex->request.length == HTTP_LENGTH_NONE && r->summary.has_length
				  ? 0
				  : ex->request.length,
		.upgrade = ex->request.upgrade,
		.keep_alive = may_keep(r),
	};
	const struct head_request head = {
		.request = &ex->request,
		.target = &r->target,
		.entry = &r->record->entry,
		.summary = &r->summary,
		.peer = ex->peer,
		.forwarded_fields = r->context->options->forwarded_fields,
		.secure = ex->security || r->context->options->behind_tls,
		.expect_continue = ex->request.expect_continue && has_body(&ex->request),
	};
	int status = head_for_sandbox(&head, &ex->arena, items, &request.headers);

	note_upstream(r, stream);
	if (status < 0 || !request.target.p) {
		stream_close(stream, true);
		relay_fail(r, ex->heads.refused ? ERROR_CLIENT_SHARE : ERROR_OVERLOADED);
		return;
	}
	r->client = http_client_open(r->context->loop, stream, &client_handler, r);
	http_client_set_budget(r->client, r->peer ? &r->peer->heads : NULL);
	counter_add(&r->context->counters.upstreams);
	r->parts++;
	status = http_client_send(r->client, &request);
	if (status == -ENOMEM || status == -EDQUOT) {
		relay_fail(r, status == -EDQUOT ? ERROR_CLIENT_SHARE : ERROR_OVERLOADED);
		relay_drop_client(r, true);
		return;
	}
	start_request_body(r); /* other failures come as on_closed */
}

static void on_dial_connected(void *user, struct stream *stream)
{
	struct relay *r = user;

	/* By now somebody else may live at that address (contract/proxy.md S18). */
	if (lifecycle_has_ended(r->record->lifecycle) && r->reroutes < PROXY_REROUTES_MAX) {
		stream_close(stream, true);
		r->reroutes++;
		relay_route(r);
		return;
	}
	relay_close_dial(r);
	if (r->ex->request.upgrade.p)
		stream_uv_keep_alive(stream_fd(stream));
	r->reused = false;
	send_request(r, stream);
}

static void on_dial_failed(void *user, enum error_cause cause)
{
	struct relay *r = user;
	const union address *address = dial_address(r->dial);

	if (address)
		r->upstream = *address;
	relay_dial_failed(r, cause);
}

static const struct dial_handler on_dial = {
	.on_connected = on_dial_connected,
	.on_failed = on_dial_failed,
};

void transfer_connect(struct relay *r)
{
	struct stream *stream = NULL;

	assert(!r->dial);
	r->upstream.any.sa_family = AF_UNSPEC;
	if (may_reuse(r))
		stream = upstream_take_idle(&r->context->pool, &r->user, r->target.port,
					    !is_replayable(&r->ex->request));
	if (stream) {
		r->reused = true;
		send_request(r, stream);
		return;
	}
	r->dial = dial_open(&r->context->pool, &on_dial, r, r->record, r->target.port);
}

/* ---- tunnels ---- */

static void on_half_closed_too_long(struct alarm *alarm)
{
	struct relay *r = container_of(alarm, struct relay, alarm);
	uint64_t silent = loop_now_ms(r->context->loop) - r->moved_ms;

	if (r->ex->closed)
		return;
	if (silent < PROXY_HALF_CLOSED_MS) {
		alarm_set(r->context->loop, alarm, PROXY_HALF_CLOSED_MS - silent);
		return;
	}
	http_exchange_abort(r->ex);
	relay_drop_client(r, true);
}

/* One direction of a tunnel has ended. */
static void half_closed(struct relay *r)
{
	r->moved_ms = loop_now_ms(r->context->loop);
	if (r->sent_end && r->received_end)
		alarm_cancel(&r->alarm);
	else
		alarm_call(r->context->loop, &r->alarm, on_half_closed_too_long,
			   PROXY_HALF_CLOSED_MS);
}

/* ---- what the sandbox sends ---- */

static void on_client_interim(struct http_client *c, const struct http_response *response)
{
	struct relay *r = http_client_user(c);
	struct http_header items[HTTP_HEADERS_MAX];
	struct http_headers passed;

	if (r->begun || r->ex->closed)
		return;
	if (response->status == 100) {
		if (r->waits_continue) {
			r->waits_continue = false;
			alarm_cancel(&r->alarm);
			http_request_body_start(r->ex);
		}
		return;
	}
	head_interim(&response->headers, items, &passed);
	http_response_interim(r->ex, response->status, &passed);
}

/* What the sandbox answers to an upgrade is no answer to it as the client asked for it. */
static void refuse_upgrade(struct relay *r)
{
	r->tunnel = r->begun = false;
	r->ex->no_body_timeout = r->ex->forget_head = false;
	relay_fail_with(r, ERROR_UPSTREAM_PROTOCOL,
			"The server in the sandbox did not accept the WebSocket as it should", 0);
	relay_drop_client(r, true);
}

static void on_client_response(struct http_client *c, const struct http_response *response)
{
	struct relay *r = http_client_user(c);
	struct http_exchange *ex = r->ex;

	if (r->begun || ex->closed)
		return;
	r->tunnel = response->length == HTTP_LENGTH_TUNNEL;
	relay_begin(r);
	relay_enter(r, r->tunnel ? RELAY_TUNNEL : RELAY_STREAM);
	r->waits_continue = false;
	alarm_cancel(&r->alarm);
	if (!r->tunnel && !has_body(&ex->request))
		r->sent_end = true; /* also of an upgrade that was refused */
	if (r->tunnel) {
		ex->no_body_timeout = ex->forget_head = true;
		http_response_header(ex, STR("Upgrade"),
				     http_headers_get(&response->headers, STR("Upgrade")));
	}
	head_for_client(response, ex);
	head_unmask_location(&r->record->entry, &r->target, ex);
	if (http_response_begin(ex, response->status, response->length) == -EPROTO) {
		ex->response_headers.count = 0;
		refuse_upgrade(r);
	} else if (r->tunnel) {
		counter_add(&r->context->counters.tunnels);
	}
}

static void on_client_body(struct http_client *c, const char *data, size_t len)
{
	struct relay *r = http_client_user(c);
	struct iovec piece = {.iov_base = (void *)data, .iov_len = len};

	if (r->ex->closed || r->answered)
		return;
	relay_touch(r);
	if (r->tunnel)
		r->moved_ms = loop_now_ms(r->context->loop);
	if (http_response_write(r->ex, &piece, 1) == HTTP_FULL)
		http_client_pause(c);
}

/* The connection has served its exchange: kept for another one, or left to end. */
static void finish_client(struct relay *r)
{
	struct http_client *c = r->client;
	struct upstream_pool *pool = &r->context->pool;

	if (!http_client_is_over(c)) {
		/* A server that answered before it had the whole request gets no more of it. */
		http_client_close(c, !r->sent_end);
		return;
	}
	r->client = NULL;
	counter_take(&r->context->counters.upstreams);
	if (may_keep(r) && http_client_is_reusable(c))
		upstream_put_idle(pool, &r->user, r->target.port, http_client_detach(c));
	else
		upstream_put_ending(pool, http_client_detach(c));
	relay_release_part(r);
}

static void on_client_body_end(struct http_client *c, const struct http_headers *trailers)
{
	struct relay *r = http_client_user(c);
	struct http_header items[HTTP_TRAILERS_MAX];
	struct http_headers passed;

	r->received_end = true;
	if (!r->ex->closed && !r->answered) {
		head_trailers(trailers, http_client_response_headers(c), items, &passed);
		http_response_end(r->ex, passed.count ? &passed : NULL);
	}
	if (!r->tunnel)
		finish_client(r);
	else
		half_closed(r);
}

static void on_client_drained(struct http_client *c)
{
	struct relay *r = http_client_user(c);

	if (!r->ex->closed)
		http_request_body_resume(r->ex);
}

static enum error_cause lost_cause(int status)
{
	switch (status) {
	case -EPROTO:
	case -EBADMSG:
		return ERROR_UPSTREAM_PROTOCOL;
	case -ETIMEDOUT:
		return ERROR_UPSTREAM_TIMEOUT;
	case -EDQUOT: /* for the head of its answer */
		return ERROR_CLIENT_SHARE;
	default:
		return ERROR_UPSTREAM_RESET;
	}
}

/* The server is told apart from one that cannot speak HTTP: it did mean no. */
static void fail_lost(struct relay *r, int status, struct str refusal)
{
	char detail[HTTP_REFUSAL_BYTES_MAX + 64];

	if (!refusal.p) {
		relay_fail(r, lost_cause(status));
		return;
	}
	snprintf(detail, sizeof(detail), "The server in the sandbox refused the upgrade: %.*s",
		 (int)refusal.len, refusal.p);
	relay_fail_with(r, ERROR_UPGRADE_REFUSED, detail, 0);
}

static void on_client_closed(struct http_client *c, int status)
{
	struct relay *r = http_client_user(c);
	bool untouched = !http_client_has_response_bytes(c);

	r->client = NULL;
	counter_take(&r->context->counters.upstreams);
	if (!r->ex->closed && !r->answered) {
		if (!r->begun && r->reused && untouched && is_replayable(&r->ex->request)) {
			r->replayed = true;
			r->sent_end = false;
			counter_add(&r->context->counters.replays);
			transfer_connect(r);
		} else if (!r->begun) {
			fail_lost(r, status, http_client_refusal(c));
		} else if (!r->cut_by_sandbox && (!r->received_end || status < 0)) {
			relay_cut(r);
		}
	}
	relay_release_part(r);
}

static const struct http_client_handler client_handler = {
	.on_interim = on_client_interim,
	.on_response = on_client_response,
	.on_body = on_client_body,
	.on_body_end = on_client_body_end,
	.on_drained = on_client_drained,
	.on_closed = on_client_closed,
};

/* ---- what the client sends ---- */

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct relay *r = ex->user;
	struct iovec piece = {.iov_base = (void *)data, .iov_len = len};

	if (!r->client || r->answered || (r->received_end && !r->tunnel))
		return; /* the answer is complete; what is left of the question goes nowhere */
	relay_touch(r);
	if (r->tunnel)
		r->moved_ms = loop_now_ms(r->context->loop);
	if (http_client_write(r->client, &piece, 1) == STREAM_FULL)
		http_request_body_pause(ex);
}

static void on_body_end(struct http_exchange *ex)
{
	struct relay *r = ex->user;
	struct http_header items[HTTP_TRAILERS_MAX];
	struct http_headers passed;

	if (!r->client || r->sent_end || r->answered)
		return;
	r->sent_end = true;
	head_trailers(&ex->request_trailers, &ex->request.headers, items, &passed);
	http_client_end(r->client, passed.count ? &passed : NULL);
	if (r->tunnel)
		half_closed(r);
}

static void on_drained(struct http_exchange *ex)
{
	struct relay *r = ex->user;

	if (r->client)
		http_client_resume(r->client);
}

static const char *protocol_of(const struct http_exchange *ex)
{
	if (ex->is_http2)
		return "HTTP/2";
	if (!ex->request.method.len) /* it did not get that far */
		return NULL;
	return ex->request.minor == 1 ? "HTTP/1.1" : "HTTP/1.0";
}

static void log_access(const struct relay *r, int status)
{
	const struct http_exchange *ex = r->ex;
	static const struct str traceparent = STR("Traceparent");
	char upstream[ADDRESS_TEXT_BYTES];
	const struct access_entry entry = {
		.protocol = protocol_of(ex),
		.upstream = r->upstream.any.sa_family != AF_UNSPEC ? upstream : NULL,
		.traceparent = http_headers_count(&ex->request.headers, traceparent) == 1
				       ? http_headers_get(&ex->request.headers, traceparent)
				       : (struct str){0},
		.first_byte_ms = r->first_byte_ms,
		.method = ex->request.method,
		.host = ex->request.authority,
		.path = ex->request.path,
		.has_query = ex->request.query.p != NULL,
		.sandbox = r->target.id_len ? r->target.id : NULL,
		.port = r->target.port,
		.handler = r->host ? r->host->name : (struct str){NULL, 0},
		.status = ex->status,
		.error = r->failed ? error_cause_name(r->error) : NULL,
		.end = status == 0	   ? "complete"
		       : r->cut_by_sandbox ? "cut_by_sandbox"
					   : "cut_by_client",
		.received = ex->received,
		.sent = ex->sent,
		.duration_ms = loop_now_ms(ex->loop) - ex->started_ms,
		.peer = ex->peer,
		.user_agent = http_headers_get(&ex->request.headers, STR("User-Agent")),
		.tunnel = r->tunnel,
		.tls = ex->security ? ex->security->version : NULL,
	};

	address_format(&r->upstream, upstream, sizeof(upstream));
	access_log_write(&r->context->access_log, &entry);
}

static void count_response(struct relay *r)
{
	struct relay_counters *counters = &r->context->counters;
	unsigned class = (unsigned)r->ex->status / 100;

	if (!r->ex->status)
		return;
	counter_add(&counters->responses[class < RELAY_STATUS_CLASSES ? class : 0]);
	histogram_observe(&counters->first_bytes, &histogram_milliseconds, r->first_byte_ms);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct relay *r = ex->user;

	if (status < 0 && !r->cut_by_sandbox)
		counter_add(&r->context->counters.cut_by_client);
	/* The rest of the request made no sense or did not come, which it is told without us. */
	if (!r->begun && !r->sent_end && has_body(&ex->request) &&
	    (status == -EPROTO || status == -ETIMEDOUT)) {
		r->failed = true;
		r->error = ERROR_BAD_REQUEST;
		counter_add(&r->context->counters.errors[ERROR_BAD_REQUEST]);
	}
	count_response(r);
	if (r->context->access_log.sink)
		log_access(r, status);
	relay_stop_waiting(r);
	relay_close_dial(r);
	alarm_cancel(&r->alarm);
	relay_drop_client(r, status < 0 || !r->received_end || !r->sent_end);
	relay_release_part(r);
}

const struct http_exchange_handler transfer_exchange_handler = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};
