#include "envd/watch/watch_service.h"

#include "envd/filesystem/filesystem_service.h"
#include "envd/filesystem/filesystem_service_entry.h"
#include "envd/limits.h"
#include "envd/watch/polled_watch.h"
#include "lib/log.h"
#include "proto/filesystem.pb-c.h"

/* Encoding only reads what the generated structs point to. */
#define TEXT(text) ((char *)(uintptr_t)(text))

static const struct filesystem_service *service_of(const struct rpc_call *call)
{
	return call->service;
}

/* The user, and what he is called when he is not known. */
static void set_user(const struct rpc_call *call, struct watch_request *request)
{
	const struct sandbox *sandbox = service_of(call)->sandbox;

	request->user_name = call->user_name ? call->user_name : sandbox->default_user;
	request->user_is_default = !call->user_name;
	/* Old clients do not know entries (contract/envd.md 5.3). */
	if (call->legacy_client)
		request->include_entry = false;
}

static int fill_event(Filesystem__FilesystemEvent *message, const struct watch_event *event,
		      bool is_legacy, struct arena *arena)
{
	filesystem__filesystem_event__init(message);
	message->name = TEXT(event->name);
	message->type = (Filesystem__EventType)event->type;
	if (!event->entry || is_legacy)
		return 0;
	message->entry = filesystem_service_entry(event->entry, false, arena);
	return message->entry ? 0 : -ENOMEM;
}

/* ---- WatchDir ---- */

struct watch_stream {
	struct rpc_call *call;
	struct watch *watch; /* NULL: it could not be opened */
	struct alarm keepalive; /* once the watch is ready */
};

static void plan_keepalive(struct watch_stream *stream)
{
	alarm_set(stream->call->loop, &stream->keepalive,
		  (uint64_t)stream->call->keepalive_s * 1000);
}

static void on_keepalive(struct alarm *alarm)
{
	struct watch_stream *stream = container_of(alarm, struct watch_stream, keepalive);
	Filesystem__WatchDirResponse__KeepAlive keepalive =
		FILESYSTEM__WATCH_DIR_RESPONSE__KEEP_ALIVE__INIT;
	Filesystem__WatchDirResponse response = FILESYSTEM__WATCH_DIR_RESPONSE__INIT;

	plan_keepalive(stream);
	/* Who takes nothing needs nothing more to take. */
	if (stream->watch->is_paused)
		return;
	response.event_case = FILESYSTEM__WATCH_DIR_RESPONSE__EVENT_KEEPALIVE;
	response.keepalive = &keepalive;
	(void)rpc_send(stream->call, &response.base);
}

static void on_stream_ready(struct watch *watch)
{
	struct watch_stream *stream = watch->user;
	Filesystem__WatchDirResponse__StartEvent start =
		FILESYSTEM__WATCH_DIR_RESPONSE__START_EVENT__INIT;
	Filesystem__WatchDirResponse response = FILESYSTEM__WATCH_DIR_RESPONSE__INIT;

	response.event_case = FILESYSTEM__WATCH_DIR_RESPONSE__EVENT_START;
	response.start = &start;
	plan_keepalive(stream);
	(void)rpc_send(stream->call, &response.base);
}

static int send_event(struct watch_stream *stream, const struct watch_event *event,
		      struct arena *arena)
{
	Filesystem__WatchDirResponse response = FILESYSTEM__WATCH_DIR_RESPONSE__INIT;
	Filesystem__FilesystemEvent message;

	if (fill_event(&message, event, stream->call->legacy_client, arena) < 0)
		return -ENOMEM;
	response.event_case = FILESYSTEM__WATCH_DIR_RESPONSE__EVENT_FILESYSTEM;
	response.filesystem = &message;
	return rpc_send(stream->call, &response.base);
}

static void on_stream_events(struct watch *watch, struct watch_batch *batch)
{
	struct watch_stream *stream = watch->user;
	struct rpc_call *call = stream->call;
	int status = 0;

	/* A batch is bounded, so what is accepted beyond "full" is, too. */
	for (size_t i = 0; i < batch->count && status >= 0; i++) {
		int result = send_event(stream, &batch->events[i], &batch->arena);

		status = result != 0 ? result : status;
	}
	watch_batch_free(batch);
	if (status == -ENOMEM)
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED,
			      "watcher error: no memory for its events");
	else if (status == RPC_FULL)
		watch_pause(watch);
	if (status >= 0)
		plan_keepalive(stream);
}

static void on_stream_failed(struct watch *watch, const struct err *err)
{
	struct watch_stream *stream = watch->user;

	rpc_fail(stream->call, err);
}

static const struct watch_ops stream_ops = {
	.on_ready = on_stream_ready,
	.on_events = on_stream_events,
	.on_failed = on_stream_failed,
};

static void on_drained(struct rpc_call *call)
{
	struct watch_stream *stream = call->user;

	if (stream->watch)
		watch_resume(stream->watch);
}

static void on_stream_closed(struct rpc_call *call, int status)
{
	struct watch_stream *stream = call->user;

	alarm_cancel(&stream->keepalive);
	if (stream->watch)
		watch_close(stream->watch);
	free(stream);
}

static const struct rpc_handler stream_handler = {
	.on_drained = on_drained,
	.on_closed = on_stream_closed,
};

void watch_service_watch(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__WatchDirRequest *given = (const void *)message;
	struct watch_stream *stream = xcalloc(1, sizeof(*stream));
	struct watch_request request = {
		.path = given->path,
		.recursive = given->recursive,
		.include_entry = given->include_entry,
		.allow_network_mounts = given->allow_network_mounts,
		.excluded = given->exclude,
		.excluded_count = given->n_exclude,
	};
	struct err err;

	set_user(call, &request);
	stream->call = call;
	alarm_init(&stream->keepalive, on_keepalive);
	rpc_call_set_handler(call, &stream_handler, stream);
	stream->watch = watch_open(service_of(call)->watches, &request, &stream_ops, stream, &err);
	/* The watch has its own copy, and the stream may stay for days. */
	rpc_drop_message(call);
	if (!stream->watch)
		rpc_fail(call, &err);
}

/* ---- CreateWatcher ---- */

static void on_made(struct polled_watch *watcher, const struct err *err, void *user)
{
	struct rpc_call *call = user;
	Filesystem__CreateWatcherResponse response = FILESYSTEM__CREATE_WATCHER_RESPONSE__INIT;

	/* Now it belongs to nobody but its id. */
	call->user = NULL;
	if (err) {
		rpc_fail(call, err);
		return;
	}
	response.watcher_id = watcher->id;
	rpc_reply(call, &response.base);
}

/* The client left before it was told the id. */
static void on_create_closed(struct rpc_call *call, int status)
{
	if (call->user)
		polled_watch_free(call->user);
}

static const struct rpc_handler create_handler = {.on_closed = on_create_closed};

void watch_service_create(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__CreateWatcherRequest *given = (const void *)message;
	struct watch_request request = {
		.path = given->path,
		.recursive = given->recursive,
		.include_entry = given->include_entry,
		.allow_network_mounts = given->allow_network_mounts,
		.excluded = given->exclude,
		.excluded_count = given->n_exclude,
	};
	struct polled_watch *watcher;
	struct err err;

	set_user(call, &request);
	watcher = polled_watch_new(service_of(call)->polled_watches, &request, on_made, call, &err);
	rpc_call_set_handler(call, &create_handler, watcher);
	if (!watcher)
		rpc_fail(call, &err);
}

/* ---- GetWatcherEvents ---- */

static struct polled_watch *find(struct rpc_call *call, const char *id)
{
	struct polled_watch *watcher = polled_watch_find(service_of(call)->polled_watches, id);

	if (!watcher)
		rpc_fail_kind(call, ERR_NOT_FOUND, "watcher with id %.128s not found", id);
	return watcher;
}

static int fill_answer(Filesystem__GetWatcherEventsResponse *response,
		       const struct watch_batch *batch, bool is_legacy, struct arena *arena)
{
	Filesystem__FilesystemEvent *events = arena_alloc_array(arena, batch->count,
								sizeof(*events));

	response->events = arena_alloc_array(arena, batch->count, sizeof(*response->events));
	if (!events || !response->events)
		return -ENOMEM;
	for (; response->n_events < batch->count; response->n_events++) {
		Filesystem__FilesystemEvent *event = &events[response->n_events];

		if (fill_event(event, &batch->events[response->n_events], is_legacy, arena) < 0)
			return -ENOMEM;
		response->events[response->n_events] = event;
	}
	return 0;
}

static void reply_events(struct rpc_call *call, struct polled_watch *watcher)
{
	Filesystem__GetWatcherEventsResponse response =
		FILESYSTEM__GET_WATCHER_EVENTS_RESPONSE__INIT;
	struct watch_batch *batch;
	struct arena arena;
	struct err err;

	if (polled_watch_take(watcher, &batch, &err) < 0) {
		rpc_fail(call, &err);
		return;
	}
	arena_init(&arena, WATCHER_ANSWER_ARENA_BYTES);
	if (fill_answer(&response, batch, call->legacy_client, &arena) < 0)
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "the answer is too large");
	else
		rpc_reply(call, &response.base);
	arena_release(&arena);
	watch_batch_free(batch);
}

struct poll_call {
	struct rpc_call *call;
	struct watch_poll poll;
	struct alarm late;
};

static void on_poll_told(struct watch_poll *poll)
{
	struct poll_call *waiting = container_of(poll, struct poll_call, poll);

	if (poll->watcher)
		reply_events(waiting->call, poll->watcher);
	else
		rpc_fail_kind(waiting->call, ERR_NOT_FOUND, "the watcher was removed");
}

static void on_poll_late(struct alarm *alarm)
{
	struct poll_call *waiting = container_of(alarm, struct poll_call, late);

	if (list_is_empty(&waiting->poll.node))
		return;
	log_warn("watch", "a poll is answered without what the watch may still have to tell",
		 LOG_S("watcher", waiting->poll.watcher->id));
	polled_watch_give_up(&waiting->poll, true);
	reply_events(waiting->call, waiting->poll.watcher);
}

static void on_poll_closed(struct rpc_call *call, int status)
{
	struct poll_call *waiting = call->user;

	alarm_cancel(&waiting->late);
	polled_watch_give_up(&waiting->poll, false);
	free(waiting);
}

static const struct rpc_handler poll_handler = {.on_closed = on_poll_closed};

void watch_service_get_events(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__GetWatcherEventsRequest *request = (const void *)message;
	struct polled_watch *watcher = find(call, request->watcher_id);
	struct poll_call *waiting;

	if (!watcher)
		return;
	waiting = xcalloc(1, sizeof(*waiting));
	waiting->call = call;
	waiting->poll.on_told = on_poll_told;
	if (!polled_watch_await(watcher, &waiting->poll)) {
		free(waiting);
		reply_events(call, watcher);
		return;
	}
	alarm_init(&waiting->late, on_poll_late);
	alarm_set(call->loop, &waiting->late, WATCHER_POLL_MS);
	rpc_call_set_handler(call, &poll_handler, waiting);
}

/* ---- RemoveWatcher ---- */

void watch_service_remove(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__RemoveWatcherRequest *request = (const void *)message;
	Filesystem__RemoveWatcherResponse response = FILESYSTEM__REMOVE_WATCHER_RESPONSE__INIT;
	struct polled_watch *watcher = find(call, request->watcher_id);

	if (!watcher)
		return;
	polled_watch_free(watcher);
	rpc_reply(call, &response.base);
}
