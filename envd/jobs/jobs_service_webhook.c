#include "envd/jobs/job_webhook.h"
#include "envd/jobs/jobs_service_internal.h"
#include "envd/limits.h"
#include "envd/rpc/json_encode.h"
#include "lib/http_call.h"
#include "lib/log.h"

struct webhook {
	struct list_node node; /* waits for its turn, or has it */
	struct job_listener listener;
	struct background_job *job;
	struct loop *loop;
	struct job work;
	struct job_webhook_target target;
	struct sockaddr_storage address;
	struct http_call *call; /* NULL: not now */
	struct alarm alarm; /* until the next attempt, or for what fails at once */
	int status; /* what failed at once */
	size_t answer_bytes;
	int resolve_status;
	bool has_turn, needs_address, is_over;
	unsigned live; /* 1 until it is over, the work */
};

static const uint64_t waits_ms[] = JOB_WEBHOOK_WAITS_MS;

static void give_next_turn(struct job_table *table);
static void start_attempt(struct webhook *hook);

/* ---- the end ---- */

static void drop(struct webhook *hook)
{
	if (--hook->live > 0)
		return;
	background_job_release(hook->job);
	free(hook);
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

static void end(struct webhook *hook)
{
	if (hook->is_over)
		return;
	hook->is_over = true;
	hook->job->is_webhook_busy = false;
	list_remove(&hook->listener.node);
	alarm_cancel(&hook->alarm);
	if (hook->call)
		http_call_close(hook->call);
	leave_turn(hook);
	list_remove(&hook->node);
	drop(hook);
}

static void on_change(struct job_listener *listener)
{
	struct webhook *hook = container_of(listener, struct webhook, listener);

	/* Of a closed table: the next envd goes on. */
	if (hook->job->is_removed)
		end(hook);
}

static void on_alarm(struct alarm *alarm);

/* An attempt is over: `status`, or 0 when it was taken. */
static void settle(struct webhook *hook, int status)
{
	struct background_job *job = hook->job;
	struct job_record *record = &job->record;

	if (hook->is_over)
		return;
	record->webhook_attempts++;
	record->webhook_delivered = status == 0;
	background_job_save(hook->job);
	leave_turn(hook);
	if (status == 0 || record->webhook_attempts > ARRAY_LENGTH(waits_ms)) {
		if (status < 0)
			log_warn("jobs", "a webhook was given up", LOG_S("id", record->id),
				 LOG_S("reason", errno_text(status)),
				 LOG_I("attempts", record->webhook_attempts));
		background_job_hold(job);
		end(hook);
		background_job_publish(job);
		background_job_release(job);
		return;
	}
	log_debug("jobs", "a webhook was not taken", LOG_S("id", record->id),
		  LOG_S("reason", errno_text(status)));
	alarm_set(hook->loop, &hook->alarm, waits_ms[record->webhook_attempts - 1]);
}

/* ---- the call ---- */

static bool is_taken(const struct http_call *call)
{
	return http_call_status(call) / 100 == 2;
}

static void on_response(struct http_call *call, const struct http_response *response)
{
	http_call_set_deadline(call, JOB_WEBHOOK_LINGER_MS);
}

/* The call is over once it has its status; what became of the rest of the answer is not looked
 * at. */
static void end_call(struct webhook *hook, int status)
{
	struct http_call *call = take_ptr(&hook->call);

	if (is_taken(call))
		status = 0;
	else if (http_call_status(call))
		status = -EBADMSG;
	http_call_close(call);
	settle(hook, status);
}

/* What it says is of no interest; but servers report a failure when they cannot say it. */
static void on_body(struct http_call *call, const char *data, size_t len)
{
	struct webhook *hook = http_call_user(call);

	hook->answer_bytes += len;
	if (hook->answer_bytes > JOB_WEBHOOK_ANSWER_BYTES_MAX)
		end_call(hook, -EMSGSIZE);
}

static void on_call_done(struct http_call *call, int status)
{
	end_call(http_call_user(call), status);
}

static int make_body(struct webhook *hook, struct buf *body)
{
	struct arena arena;
	Jobs__Job *job;
	int status;

	arena_init(&arena, JOBS_MESSAGE_ARENA_BYTES);
	job = jobs_make_job(&arena, hook->job);
	status = job ? buf_append_str(body, STR("{\"event\":\"job.ended\",\"job\":")) : -ENOMEM;
	if (status == 0)
		status = json_encode(&job->base, body);
	if (status == 0)
		status = buf_append_str(body, STR("}"));
	arena_release(&arena);
	return status;
}

static void open_call(struct webhook *hook, const struct buf *body)
{
	static const struct http_call_handler handler = {
		.on_response = on_response, .on_body = on_body, .on_done = on_call_done};
	const struct job_record *record = &hook->job->record;
	const struct sockaddr *address = (const struct sockaddr *)&hook->address;
	char signature[JOB_WEBHOOK_SIGNATURE_BYTES], target[JOB_WEBHOOK_URL_BYTES_MAX + 2];
	const struct iovec piece = {.iov_base = buf_data(body), .iov_len = buf_length(body)};
	struct http_header headers[5] = {
		{STR("Host"), hook->target.authority},
		{STR("Content-Type"), STR("application/json")},
		{STR("User-Agent"), STR("envd")},
		{STR("Envd-Job-Id"), str_of(record->id)},
	};
	struct http_call_settings settings = {
		.addresses = &address,
		.address_count = 1,
		.deadline_ms = JOB_WEBHOOK_TIMEOUT_MS,
		.method = STR("POST"),
		.headers = headers,
		.header_count = 4,
		.body = &piece,
		.body_count = 1,
		.user = hook,
	};

	snprintf(target, sizeof(target), "%s%.*s",
		 hook->target.path.len > 0 && hook->target.path.p[0] == '/' ? "" : "/",
		 (int)hook->target.path.len, hook->target.path.p);
	settings.target = str_of(target);
	if (*record->webhook_key) {
		job_webhook_sign(record->webhook_key, wall_clock_ms(), buf_str(body), signature);
		headers[settings.header_count++] = (struct http_header){STR("Envd-Signature"),
									str_of(signature)};
	}
	hook->answer_bytes = 0;
	hook->call = http_call_open(hook->loop, &settings, &handler);
}

static void fail_later(struct webhook *hook, int status)
{
	hook->status = status;
	alarm_set(hook->loop, &hook->alarm, 0);
}

static void call_server(struct webhook *hook)
{
	struct buf body;
	int status;

	buf_init(&body, JOB_WEBHOOK_BODY_BYTES_MAX);
	status = make_body(hook, &body);
	if (status < 0)
		fail_later(hook, status);
	else
		open_call(hook, &body);
	buf_fini(&body);
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
	LIST_FOR_EACH_SAFE (node, following, active) {
		const struct webhook *other = container_of(node, struct webhook, node);

		if (!other->needs_address ||
		    !job_webhook_is_same_server(&other->target, &hook->target))
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
			call_server(other);
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

/* One name at a time: a name server that does not answer is as bad as a dead file system, and must
 * not take more of the pool than that one thread. */
static void resolve_next(struct job_table *table)
{
	struct list_node *node;

	if (table->is_resolving || table->is_closed)
		return;
	LIST_FOR_EACH (node, &table->webhooks_active) {
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
	if (job_webhook_read_address(&hook->target, &hook->address) == 0) {
		call_server(hook);
		return;
	}
	hook->needs_address = true;
	resolve_next(hook->job->table);
}

static size_t count_active(const struct job_table *table, const struct webhook *hook)
{
	const struct list_node *node;
	size_t count = 0;

	LIST_FOR_EACH (node, &table->webhooks_active)
		count += job_webhook_is_same_server(
			&container_of(node, const struct webhook, node)->target, &hook->target);
	return count;
}

/* The first that does not wait for its own server. */
static struct webhook *find_next(struct job_table *table)
{
	const struct webhook *refused = NULL; /* thousands may wait for the same one */
	struct list_node *node;

	LIST_FOR_EACH (node, &table->webhooks_waiting) {
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

static void on_alarm(struct alarm *alarm)
{
	struct webhook *hook = container_of(alarm, struct webhook, alarm);

	if (hook->has_turn) {
		settle(hook, hook->status);
		return;
	}
	list_append(&hook->job->table->webhooks_waiting, &hook->node);
	give_next_turn(hook->job->table);
}

void jobs_webhook_start(struct background_job *job)
{
	struct webhook *hook;

	if (job->is_webhook_busy || job->record.webhook_attempts > ARRAY_LENGTH(waits_ms))
		return;
	hook = xcalloc(1, sizeof(*hook));
	if (job_webhook_parse(job->record.webhook_url, &hook->target) < 0) {
		free(hook);
		return;
	}
	hook->live = 1;
	hook->job = job;
	hook->loop = job->table->loop;
	job->is_webhook_busy = true;
	background_job_hold(job);
	hook->listener.on_change = on_change;
	background_job_listen(job, &hook->listener);
	alarm_init(&hook->alarm, on_alarm);
	list_append(&job->table->webhooks_waiting, &hook->node);
	give_next_turn(job->table);
}
