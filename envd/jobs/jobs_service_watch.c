/* Watch: a number in the list of changes, moved on as far as the client takes messages. */
#include "envd/jobs/jobs_service_internal.h"
#include "envd/limits.h"

struct watch_call {
	struct job_listener watcher;
	struct jobs_keepalive keepalive;
	struct rpc_call *call;
	uint64_t revision;
	struct str *ids; /* wanted ones; 0: all */
	size_t id_count;
	bool is_synced, is_full, is_ended;
};

static bool is_wanted(const struct watch_call *watch, const char *id)
{
	if (watch->id_count == 0)
		return true;
	for (size_t i = 0; i < watch->id_count; i++)
		if (str_equal(watch->ids[i], str_of(id)))
			return true;
	return false;
}

static bool send_message(struct watch_call *watch, Jobs__WatchResponse *response)
{
	int status;

	response->revision = watch->revision;
	watch->keepalive.sent_ms = loop_now_ms(watch->call->loop);
	status = rpc_send(watch->call, &response->base);
	watch->is_full = status == RPC_FULL;
	return status == 0;
}

static bool send_change(struct watch_call *watch, const struct job_change *change)
{
	Jobs__WatchResponse response = JOBS__WATCH_RESPONSE__INIT;
	const struct background_job *job = container_of(change, struct background_job, change);
	Jobs__Job bare = JOBS__JOB__INIT;
	struct arena arena;
	bool goes_on;

	watch->revision = change->revision;
	if (change->is_deletion)
		bare.id = container_of((struct job_change *)(uintptr_t)change, struct job_deletion,
				       change)
				  ->id;
	if (!is_wanted(watch, change->is_deletion ? bare.id : job->record.id))
		return true;
	arena_init(&arena, JOBS_MESSAGE_ARENA_BYTES);
	response.job = change->is_deletion ? &bare : jobs_make_job(&arena, job);
	response.deleted = change->is_deletion;
	goes_on = response.job && send_message(watch, &response);
	arena_release(&arena);
	return goes_on;
}

static void pump(struct watch_call *watch)
{
	const struct job_table *table = jobs_table(watch->call);
	const struct job_change *change = job_table_next_change(table, watch->revision);

	while (!watch->is_full && !watch->is_ended) {
		/* What was there at the beginning may have moved to the end of the list
		 * meanwhile. */
		if (!watch->is_synced && !change) {
			Jobs__WatchResponse response = JOBS__WATCH_RESPONSE__INIT;

			response.synced = true;
			watch->is_synced = true;
			if (!send_message(watch, &response))
				return;
			continue;
		}
		if (!change || !send_change(watch, change))
			return;
		change = job_table_following_change(table, change);
	}
}

static void on_news(struct job_listener *watcher)
{
	struct watch_call *watch = container_of(watcher, struct watch_call, watcher);

	if (watch->is_ended)
		return;
	if (jobs_table(watch->call)->is_closed) {
		watch->is_ended = true;
		jobs_fail_closed(watch->call);
		return;
	}
	pump(watch);
}

static void on_keepalive(struct jobs_keepalive *keepalive)
{
	Jobs__WatchResponse response = JOBS__WATCH_RESPONSE__INIT;
	struct watch_call *watch = container_of(keepalive, struct watch_call, keepalive);

	response.keepalive = true;
	(void)send_message(watch, &response);
}

static void on_drained(struct rpc_call *call)
{
	struct watch_call *watch = call->user;

	watch->is_full = false;
	pump(watch);
}

static void on_closed(struct rpc_call *call, int status)
{
	struct watch_call *watch = call->user;
	struct job_table *table = jobs_table(call);

	watch->is_ended = true;
	list_remove(&watch->watcher.node);
	jobs_keepalive_close(&watch->keepalive);
	table->watcher_count--;
}

static const struct rpc_handler handler = {.on_drained = on_drained, .on_closed = on_closed};

static bool copy_ids(struct watch_call *watch, const Jobs__WatchRequest *request)
{
	watch->ids = arena_alloc_array(watch->call->arena, request->n_ids + 1, sizeof(*watch->ids));
	for (size_t i = 0; i < request->n_ids && watch->ids; i++) {
		watch->ids[i] = arena_str(watch->call->arena, str_of(request->ids[i]));
		if (!watch->ids[i].p)
			return false;
	}
	watch->id_count = request->n_ids;
	return watch->ids != NULL;
}

void jobs_watch(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__WatchRequest *request = (const Jobs__WatchRequest *)message;
	struct job_table *table = jobs_table(call);
	struct watch_call *watch;
	bool is_lost;

	if (jobs_fail_unread(call))
		return;
	if (table->watcher_count >= JOB_WATCHERS_MAX) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too many watchers (%d)",
			      JOB_WATCHERS_MAX);
		return;
	}
	if (request->n_ids > JOB_WAIT_IDS_MAX) {
		rpc_fail_kind(call, ERR_INVALID_ARGUMENT, "at most %d ids", JOB_WAIT_IDS_MAX);
		return;
	}
	watch = jobs_new_state(call, sizeof(*watch));
	if (!watch)
		return;
	watch->call = call;
	if (!copy_ids(watch, request)) {
		jobs_fail_no_memory(call);
		return;
	}
	is_lost = request->since_revision != 0 &&
		  (request->since_revision < table->forgotten_revision ||
		   request->since_revision > table->revision);
	watch->revision = is_lost ? 0 : request->since_revision;
	watch->watcher.on_change = on_news;
	list_init(&watch->watcher.node);
	table->watcher_count++;
	jobs_keepalive_open(&watch->keepalive, call, on_keepalive);
	rpc_call_set_handler(call, &handler, watch);
	rpc_drop_message(call);
	list_append(&table->watchers, &watch->watcher.node);
	if (is_lost) {
		Jobs__WatchResponse response = JOBS__WATCH_RESPONSE__INIT;

		response.resync = true;
		(void)send_message(watch, &response);
	}
	pump(watch);
}
