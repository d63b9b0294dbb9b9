#include "envd/jobs/jobs_service_webhook.h"

#include "envd/jobs/job_webhook.h"
#include "envd/jobs/jobs_service_internal.h"
#include "envd/rpc/json_encode.h"
#include "lib/http_client.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "lib/stream_uv.h"

struct webhook {
	struct list_node node; /* waits for its turn, or has it */
	struct job_listener listener;
	struct background_job *job;
	struct loop *loop;
	struct job work;
	struct job_webhook_target target;
	struct sockaddr_storage address;
	struct stream *stream; /* while connecting */
	struct http_client *client;
	struct later later; /* for what fails at once */
	uv_timer_t timer;
	struct buf body;
	int status; /* of this attempt: 0 until it failed */
	size_t answer_bytes;
	int resolve_status;
	bool is_taken, has_turn, needs_address, is_over;
	unsigned live; /* timer, work, connection */
};

static const uint64_t waits_ms[] = JOB_WEBHOOK_WAITS_MS;

static void give_next_turn(struct job_table *table);
static void start_attempt(struct webhook *hook);

/* ---- the end ---- */

static void drop(struct webhook *hook)
{
	if (--hook->live > 0)
		return;
	buf_fini(&hook->body);
	background_job_release(hook->job);
	free(hook);
}

static void on_timer_closed(uv_handle_t *handle)
{
	drop(container_of((uv_timer_t *)handle, struct webhook, timer));
}

static void leave_turn(struct webhook *hook)
{
	if (!hook->has_turn)
		return;
	hook->has_turn = hook->needs_address = false;
	list_remove(&hook->node);
	hook->job->table->webhooks_busy--;
	give_next_turn(hook->job->table);
}

static void cut(struct webhook *hook)
{
	if (hook->stream)
		stream_close(hook->stream, true);
	if (hook->client)
		http_client_close(hook->client, true);
}

static void end(struct webhook *hook)
{
	if (hook->is_over)
		return;
	hook->is_over = true;
	hook->job->is_webhook_busy = false;
	list_remove(&hook->listener.node);
	later_cancel(&hook->later);
	uv_close((uv_handle_t *)&hook->timer, on_timer_closed);
	cut(hook);
	leave_turn(hook);
	list_remove(&hook->node);
}

static void on_change(struct job_listener *listener)
{
	struct webhook *hook = container_of(listener, struct webhook, listener);

	/* Of a closed table: the next envd goes on. */
	if (hook->job->is_removed)
		end(hook);
}

static void on_timer(uv_timer_t *timer);

/* An attempt is over: `status`, or 0 when it was taken. */
static void settle(struct webhook *hook, int status)
{
	struct job_record *record = &hook->job->record;

	if (hook->is_over)
		return;
	record->webhook_attempts++;
	record->webhook_delivered = status == 0;
	background_job_save(hook->job);
	leave_turn(hook);
	if (status == 0 || record->webhook_attempts > ARRAY_LENGTH(waits_ms)) {
		if (status < 0)
			log_warn("jobs", "a webhook was given up", LOG_S("id", record->id),
				 LOG_S("reason", errno_text(status)), LOG_I("attempts", record->webhook_attempts));
		background_job_hold(hook->job);
		end(hook);
		background_job_publish(hook->job);
		background_job_release(hook->job);
		return;
	}
	log_debug("jobs", "a webhook was not taken", LOG_S("id", record->id), LOG_S("reason", errno_text(status)));
	uv_timer_start(&hook->timer, on_timer, waits_ms[record->webhook_attempts - 1], 0);
}

/* ---- the connection ---- */

static void connection_over(struct webhook *hook, int status)
{
	uv_timer_stop(&hook->timer);
	if (hook->is_taken)
		settle(hook, 0);
	else
		settle(hook, hook->status < 0 ? hook->status : status < 0 ? status : -ECONNRESET);
	drop(hook);
}

static void on_response(struct http_client *c, const struct http_response *response)
{
	struct webhook *hook = http_client_user(c);

	hook->is_taken = response->status >= 200 && response->status < 300;
	if (!hook->is_taken)
		hook->status = -EBADMSG;
	hook->answer_bytes = 0;
	uv_timer_start(&hook->timer, on_timer, JOB_WEBHOOK_LINGER_MS, 0);
}

/* What it says is of no interest; but servers report a failure when they cannot say it. */
static void on_body(struct http_client *c, const char *data, size_t len)
{
	struct webhook *hook = http_client_user(c);

	hook->answer_bytes += len;
	if (hook->answer_bytes > JOB_WEBHOOK_ANSWER_BYTES_MAX)
		http_client_close(c, true);
}

static void on_body_end(struct http_client *c, const struct http_headers *trailers)
{
}

static void on_client_closed(struct http_client *c, int status)
{
	struct webhook *hook = http_client_user(c);

	hook->client = NULL;
	connection_over(hook, status);
}

static const struct http_client_handler client_handler = {
	.on_response = on_response, .on_body = on_body, .on_body_end = on_body_end, .on_closed = on_client_closed};

static int make_body(struct webhook *hook)
{
	struct arena arena;
	Jobs__Job *job;
	int status;

	buf_clear(&hook->body);
	arena_init(&arena, JOBS_MESSAGE_ARENA_BYTES);
	job = jobs_make_job(&arena, hook->job);
	status = job ? buf_append_str(&hook->body, STR("{\"event\":\"job.ended\",\"job\":")) : -ENOMEM;
	if (status == 0)
		status = json_encode(&job->base, &hook->body);
	if (status == 0)
		status = buf_append_str(&hook->body, STR("}"));
	arena_release(&arena);
	return status;
}

static void send_request(struct webhook *hook)
{
	const struct job_record *record = &hook->job->record;
	char signature[JOB_WEBHOOK_SIGNATURE_BYTES], target[JOB_WEBHOOK_URL_BYTES_MAX + 2];
	struct http_header items[5] = {
		{STR("Host"), hook->target.authority},
		{STR("Content-Type"), STR("application/json")},
		{STR("User-Agent"), STR("envd")},
		{STR("Envd-Job-Id"), str_of(record->id)},
	};
	struct http_client_request request = {
		.method = STR("POST"),
		.headers = {.items = items, .count = 4, .capacity = ARRAY_LENGTH(items)},
		.length = (int64_t)buf_length(&hook->body),
	};
	struct iovec piece = {.iov_base = buf_data(&hook->body), .iov_len = buf_length(&hook->body)};

	snprintf(target, sizeof(target), "%s%.*s",
		 hook->target.path.len > 0 && hook->target.path.p[0] == '/' ? "" : "/",
		 (int)hook->target.path.len, hook->target.path.p);
	request.target = str_of(target);
	if (*record->webhook_key) {
		job_webhook_sign(record->webhook_key, wall_clock_ms(), buf_str(&hook->body), signature);
		items[request.headers.count++] = (struct http_header){STR("Envd-Signature"), str_of(signature)};
	}
	/* A failure comes as on_closed. */
	if (http_client_send(hook->client, &request) >= 0 && http_client_write(hook->client, &piece, 1) >= 0)
		(void)http_client_end(hook->client, NULL);
}

static void on_stream_closed(struct stream *stream)
{
	struct webhook *hook = stream->user;

	hook->stream = NULL;
	connection_over(hook, hook->status);
}

static const struct stream_events connecting = {.on_closed = on_stream_closed};

static void on_connected(struct stream *stream, int status)
{
	struct webhook *hook = stream->user;

	if (status < 0) {
		hook->status = status;
		stream_close(stream, true);
		return;
	}
	hook->stream = NULL;
	hook->client = http_client_open(hook->loop, stream, &client_handler, hook);
	send_request(hook);
}

static void on_failed_at_once(struct later *later)
{
	struct webhook *hook = container_of(later, struct webhook, later);

	settle(hook, hook->status);
}

static void fail_later(struct webhook *hook, int status)
{
	hook->status = status;
	later_call(hook->loop, &hook->later);
}

static void connect_to(struct webhook *hook)
{
	int status = make_body(hook);

	if (status == 0)
		status = stream_uv_connect(hook->loop, (const struct sockaddr *)&hook->address, on_connected,
					   &hook->stream);
	if (status < 0) {
		fail_later(hook, status);
		return;
	}
	hook->live++;
	hook->stream->user = hook;
	hook->stream->events = &connecting;
	uv_timer_start(&hook->timer, on_timer, JOB_WEBHOOK_TIMEOUT_MS, 0);
}

/* ---- an attempt ---- */

static void resolve_next(struct job_table *table);

static void resolve(struct job *work)
{
	struct webhook *hook = container_of(work, struct webhook, work);

	hook->resolve_status = job_webhook_resolve(&hook->target, &hook->address);
}

/* The answer is that of all who have the same question. */
static void take_address(struct webhook *hook, struct list_node *active)
{
	struct list_node *node, *following, same;

	list_init(&same);
	LIST_FOR_EACH_SAFE(node, following, active) {
		const struct webhook *other = container_of(node, struct webhook, node);

		if (!other->needs_address || !job_webhook_is_same_server(&other->target, &hook->target))
			continue;
		list_remove(node);
		list_append(&same, node);
	}
	while (!list_is_empty(&same)) {
		struct webhook *other = container_of(same.next, struct webhook, node);

		list_remove(&other->node);
		list_append(active, &other->node);
		other->needs_address = false;
		other->address = hook->address;
		if (hook->resolve_status < 0)
			settle(other, hook->resolve_status);
		else
			connect_to(other);
	}
}

static void on_resolved(struct job *work)
{
	struct webhook *hook = container_of(work, struct webhook, work);
	struct job_table *table = hook->job->table;

	take_address(hook, &table->webhooks_active);
	table->is_resolving = false;
	resolve_next(table);
	drop(hook);
}

/* One name at a time: a name server that does not answer is as bad as a dead file system, and must not
 * take more of the pool than that one thread. */
static void resolve_next(struct job_table *table)
{
	struct list_node *node;

	if (table->is_resolving || table->is_closed)
		return;
	LIST_FOR_EACH(node, &table->webhooks_active) {
		struct webhook *hook = container_of(node, struct webhook, node);

		if (!hook->needs_address)
			continue;
		if (job_run(hook->loop, &hook->work, JOB_BULK, resolve, on_resolved) == 0) {
			hook->live++;
			table->is_resolving = true;
			return;
		}
		hook->needs_address = false;
		fail_later(hook, -EAGAIN);
	}
}

static void start_attempt(struct webhook *hook)
{
	hook->is_taken = false;
	hook->status = 0;
	if (job_webhook_read_address(&hook->target, &hook->address) == 0) {
		connect_to(hook);
		return;
	}
	hook->needs_address = true;
	resolve_next(hook->job->table);
}

static size_t count_active(const struct job_table *table, const struct webhook *hook)
{
	const struct list_node *node;
	size_t count = 0;

	LIST_FOR_EACH(node, &table->webhooks_active)
		count += job_webhook_is_same_server(&container_of(node, const struct webhook, node)->target,
						    &hook->target);
	return count;
}

/* The first that does not wait for its own server. */
static struct webhook *find_next(struct job_table *table)
{
	const struct webhook *refused = NULL; /* thousands may wait for the same one */
	struct list_node *node;

	LIST_FOR_EACH(node, &table->webhooks_waiting) {
		struct webhook *hook = container_of(node, struct webhook, node);

		if (refused && job_webhook_is_same_server(&refused->target, &hook->target))
			continue;
		if (count_active(table, hook) < JOB_WEBHOOKS_OF_SERVER)
			return hook;
		refused = hook;
	}
	return NULL;
}

static void give_next_turn(struct job_table *table)
{
	while (!table->is_closed && table->webhooks_busy < JOB_WEBHOOKS_AT_ONCE) {
		struct webhook *hook = find_next(table);

		if (!hook)
			return;
		list_remove(&hook->node);
		list_append(&table->webhooks_active, &hook->node);
		hook->has_turn = true;
		table->webhooks_busy++;
		start_attempt(hook);
	}
}

static void on_timer(uv_timer_t *timer)
{
	struct webhook *hook = container_of(timer, struct webhook, timer);

	if (hook->has_turn) {
		hook->status = -ETIMEDOUT;
		cut(hook);
		return;
	}
	list_append(&hook->job->table->webhooks_waiting, &hook->node);
	give_next_turn(hook->job->table);
}

void jobs_webhook_start(struct background_job *job, void *user)
{
	struct webhook *hook;

	if (job->is_webhook_busy || job->record.webhook_attempts > ARRAY_LENGTH(waits_ms))
		return;
	hook = xcalloc(1, sizeof(*hook));
	if (job_webhook_parse(job->record.webhook_url, &hook->target) < 0) {
		free(hook);
		return;
	}
	hook->job = job;
	hook->loop = job->table->loop;
	hook->live = 1;
	job->is_webhook_busy = true;
	background_job_hold(job);
	hook->listener.on_change = on_change;
	background_job_listen(job, &hook->listener);
	buf_init(&hook->body, JOB_WEBHOOK_BODY_BYTES_MAX);
	later_init(&hook->later, on_failed_at_once);
	uv_timer_init(&hook->loop->uv, &hook->timer);
	list_append(&job->table->webhooks_waiting, &hook->node);
	give_next_turn(job->table);
}
