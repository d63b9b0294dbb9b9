#include "envd/filesystem/filesystem_service.h"

#include "envd/filesystem/filesystem_service_entry.h"
#include "envd/filesystem/list.h"
#include "envd/filesystem/operations.h"
#include "envd/filesystem/path.h"
#include "envd/init/sandbox.h"
#include "envd/limits.h"
#include "envd/watch/watch_service.h"
#include "lib/job.h"
#include "proto/filesystem.pb-c.h"

/* One call on its way through the pool. */
struct operation {
	struct job job;
	struct arena request; /* copies of what was asked for */
	struct arena arena; /* what a run needs, and the answer */
	struct rpc_call *call;
	const struct sandbox *sandbox; /* for sandbox_check_user alone */
	const char *user_name; /* as given, or the default */
	bool is_default_user;
	bool is_legacy;
	const char *default_workdir; /* may be NULL */
	const char *path, *destination;
	uint32_t depth;
	bool is_long; /* it is known to be, and submitted as such */
	atomic_bool is_unwanted;
	/* Fills `answer`, in the arena. */
	int (*run)(struct operation *operation, const struct user *user, struct err *err);
	const ProtobufCMessage *answer;
	struct err err;
	int status;
};

/* ---- the life of an operation ---- */

/* The client left: what changes something is completed all the same, its answer is ignored. */
static void on_closed(struct rpc_call *call, int status)
{
	struct operation *operation = call->user;

	(void)status;
	if (operation)
		operation->is_unwanted = true;
}

static const struct rpc_handler handler = {.on_closed = on_closed};

static void free_operation(struct operation *operation)
{
	struct rpc_call *call = operation->call;

	rpc_call_set_handler(call, &handler, NULL);
	arena_release(&operation->arena);
	arena_release(&operation->request);
	free(operation);
	rpc_call_release(call);
}

static int find_user(struct operation *operation, struct user *user, struct err *err)
{
	if (!operation->user_name[0])
		return err_set(err, ERR_UNAUTHENTICATED, "no user specified");
	if (user_lookup(operation->user_name, &operation->arena, user, err) < 0) {
		if (err->kind != ERR_NOT_FOUND)
			return -EPROTO;
		return err_set(err, ERR_UNAUTHENTICATED, "invalid %s: '%s'",
			       operation->is_default_user ? "default user" : "username",
			       operation->user_name);
	}
	return sandbox_check_user(operation->sandbox, operation->user_name, user->uid, err);
}

static void run_operation(struct job *job)
{
	struct operation *operation = container_of(job, struct operation, job);
	struct user user;

	operation->status = find_user(operation, &user, &operation->err);
	if (operation->status == 0)
		operation->status = operation->run(operation, &user, &operation->err);
}

static void on_done(struct job *job);

static void submit(struct operation *operation, enum job_class class)
{
	if (job_run(operation->call->loop, &operation->job, class, run_operation, on_done) == 0)
		return;
	rpc_fail_kind(operation->call, ERR_RESOURCE_EXHAUSTED, "too much work is queued");
	free_operation(operation);
}

/* A move to another file system, a large directory. */
static bool is_longer_than_thought(const struct operation *operation)
{
	return !operation->is_long && (operation->status == -EXDEV || operation->status == -E2BIG);
}

static void on_done(struct job *job)
{
	struct operation *operation = container_of(job, struct operation, job);

	if (is_longer_than_thought(operation) && !rpc_call_is_closed(operation->call)) {
		operation->is_long = true;
		/* Thousands may wait, with nothing of what the short run has found. */
		arena_release(&operation->arena);
		submit(operation, JOB_LONG);
		return;
	}
	if (operation->status < 0)
		rpc_fail(operation->call, &operation->err);
	else
		rpc_reply(operation->call, operation->answer);
	free_operation(operation);
}

/* NULL after having answered. */
static struct operation *new_operation(struct rpc_call *call, size_t budget, const char *path,
				       const char *destination,
				       int (*run)(struct operation *operation,
						  const struct user *user, struct err *err))
{
	const struct filesystem_service *service = call->service;
	const struct sandbox *sandbox = service->sandbox;
	struct operation *operation = xcalloc(1, sizeof(*operation));
	const char *user_name = call->user_name ? call->user_name : sandbox->default_user;
	const char *workdir = sandbox->default_workdir;
	struct arena *arena = &operation->request;

	arena_init(arena, budget);
	arena_init(&operation->arena, budget);
	operation->call = call;
	operation->run = run;
	operation->sandbox = sandbox;
	operation->is_default_user = !call->user_name;
	operation->is_legacy = call->legacy_client;
	/* Copies, because /init may change the defaults and the call may end meanwhile. */
	operation->user_name = arena_strdup(arena, user_name);
	operation->default_workdir = workdir ? arena_strdup(arena, workdir) : NULL;
	operation->path = arena_strdup(arena, path);
	operation->destination = arena_strdup(arena, destination);
	rpc_call_set_handler(call, &handler, operation);
	rpc_call_hold(call);
	if (operation->user_name && operation->path && operation->destination &&
	    (!workdir || operation->default_workdir))
		return operation;
	rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "the request is too large");
	free_operation(operation);
	return NULL;
}

static int resolve(struct operation *operation, const struct user *user, const char *given,
		   const char **ret_path, struct err *err)
{
	return path_resolve(given, user, operation->default_workdir, &operation->arena, ret_path,
			    err);
}

static int out_of_budget(struct err *err)
{
	return err_set(err, ERR_RESOURCE_EXHAUSTED, "the answer is too large");
}

static Filesystem__EntryInfo *make_info(const struct operation *operation,
					const struct entry *entry, struct arena *arena)
{
	return filesystem_service_entry(entry, operation->is_legacy, arena);
}

/* ---- Stat ---- */

static int run_stat(struct operation *operation, const struct user *user, struct err *err)
{
	Filesystem__StatResponse *response = arena_new(&operation->arena, Filesystem__StatResponse);
	struct entry entry;
	const char *path;
	int status = resolve(operation, user, operation->path, &path, err);

	if (status == 0)
		status = operation_stat(path, &operation->arena, &entry, err);
	if (status < 0)
		return status;
	if (!response)
		return out_of_budget(err);
	filesystem__stat_response__init(response);
	response->entry = make_info(operation, &entry, &operation->arena);
	operation->answer = &response->base;
	return response->entry ? 0 : out_of_budget(err);
}

static void start_stat(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__StatRequest *request = (const void *)message;
	struct operation *operation = new_operation(call, FILE_OPERATION_ARENA_BYTES, request->path,
						    "", run_stat);

	if (operation)
		submit(operation, JOB_FILES);
}

/* ---- MakeDir ---- */

static int run_make_directory(struct operation *operation, const struct user *user, struct err *err)
{
	Filesystem__MakeDirResponse *response = arena_new(&operation->arena,
							  Filesystem__MakeDirResponse);
	struct entry entry;
	const char *path;
	int status = resolve(operation, user, operation->path, &path, err);

	if (status == 0)
		status = operation_make_directory(path, user, &operation->arena, &entry, err);
	if (status < 0)
		return status;
	if (!response)
		return out_of_budget(err);
	filesystem__make_dir_response__init(response);
	response->entry = make_info(operation, &entry, &operation->arena);
	operation->answer = &response->base;
	return response->entry ? 0 : out_of_budget(err);
}

static void start_make_directory(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__MakeDirRequest *request = (const void *)message;
	struct operation *operation = new_operation(call, FILE_OPERATION_ARENA_BYTES, request->path,
						    "", run_make_directory);

	if (operation)
		submit(operation, JOB_FILES);
}

/* "", "x/.", "x/..": nobody means to remove or to move what these come out as. */
static bool names_nothing(const char *path)
{
	struct str rest = str_of(path), piece, last = {NULL, 0};

	while (str_split(&rest, '/', &piece))
		if (piece.len)
			last = piece;
	return !path[0] || str_equal(last, STR(".")) || str_equal(last, STR(".."));
}

/* ---- Move ---- */

static int run_move(struct operation *operation, const struct user *user, struct err *err)
{
	Filesystem__MoveResponse *response = arena_new(&operation->arena, Filesystem__MoveResponse);
	const char *source, *destination;
	struct entry entry;
	int status;

	/* A field that was left out must not move a whole home away. */
	if (names_nothing(operation->path) || !operation->destination[0])
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "error renaming: the path \"%s\" does not name one",
			       names_nothing(operation->path) ? operation->path
							      : operation->destination);
	status = resolve(operation, user, operation->path, &source, err);
	if (status == 0)
		status = resolve(operation, user, operation->destination, &destination, err);
	if (status == 0)
		status = operation_move(source, destination, user, operation->is_long,
					&operation->arena, &entry, err);
	if (status < 0)
		return status;
	if (!response)
		return out_of_budget(err);
	filesystem__move_response__init(response);
	response->entry = make_info(operation, &entry, &operation->arena);
	operation->answer = &response->base;
	return response->entry ? 0 : out_of_budget(err);
}

static void start_move(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__MoveRequest *request = (const void *)message;
	struct operation *operation = new_operation(
		call, FILE_OPERATION_ARENA_BYTES, request->source, request->destination, run_move);

	if (operation)
		submit(operation, JOB_FILES);
}

/* ---- ListDir ---- */

static int run_list(struct operation *operation, const struct user *user, struct err *err)
{
	Filesystem__ListDirResponse *response = arena_new(&operation->arena,
							  Filesystem__ListDirResponse);
	struct list_result list;
	const char *path;
	int status;

	if (operation->is_unwanted)
		return err_set(err, ERR_CANCELED, "canceled");
	status = resolve(operation, user, operation->path, &path, err);
	if (status == 0 && operation->is_long)
		status = list_directory(path, operation->depth, &operation->arena, &list, err);
	else if (status == 0)
		status = list_directory_short(path, operation->depth, &operation->arena, &list,
					      err);
	if (status < 0)
		return status;
	if (!response)
		return out_of_budget(err);
	filesystem__list_dir_response__init(response);
	response->entries = arena_alloc_array(&operation->arena, list.count,
					      sizeof(*response->entries));
	for (size_t i = 0; i < list.count && response->entries; i++) {
		response->entries[i] = make_info(operation, list.entries[i], &operation->arena);
		if (!response->entries[i])
			return out_of_budget(err);
	}
	response->n_entries = list.count;
	operation->answer = &response->base;
	if (!response->entries)
		return out_of_budget(err);
	/* Hundreds of thousands of entries would hold up everybody else. */
	return rpc_encode_ahead(operation->call, operation->answer, err);
}

static void start_list(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__ListDirRequest *request = (const void *)message;
	struct operation *operation = new_operation(call, LIST_DIRECTORY_ARENA_BYTES, request->path,
						    "", run_list);

	if (!operation)
		return;
	operation->depth = request->depth;
	submit(operation, JOB_BULK);
}

/* ---- Remove ---- */

static int run_remove(struct operation *operation, const struct user *user, struct err *err)
{
	Filesystem__RemoveResponse *response = arena_new(&operation->arena,
							 Filesystem__RemoveResponse);
	const char *path;
	int status;

	if (names_nothing(operation->path))
		return err_set(
			err, ERR_INVALID_ARGUMENT,
			"error removing file or directory: the path \"%s\" does not name one",
			operation->path);
	status = resolve(operation, user, operation->path, &path, err);
	if (status == 0)
		status = operation_remove(path, user, &operation->arena, err);
	if (status < 0)
		return status;
	if (!response)
		return out_of_budget(err);
	filesystem__remove_response__init(response);
	operation->answer = &response->base;
	return 0;
}

static void start_remove(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Filesystem__RemoveRequest *request = (const void *)message;
	struct operation *operation = new_operation(call, FILE_OPERATION_ARENA_BYTES, request->path,
						    "", run_remove);

	if (operation)
		submit(operation, JOB_BULK);
}

#define METHOD(name, rpc_kind, request, response, function) \
	{ \
		.path = "/filesystem.Filesystem/" name, .kind = (rpc_kind), \
		.input = &filesystem__##request##__descriptor, \
		.output = &filesystem__##response##__descriptor, .start = (function) \
	}

const struct rpc_method filesystem_service_methods[FILESYSTEM_SERVICE_METHODS] = {
	METHOD("CreateWatcher", RPC_UNARY, create_watcher_request, create_watcher_response,
	       watch_service_create),
	METHOD("GetWatcherEvents", RPC_UNARY, get_watcher_events_request,
	       get_watcher_events_response, watch_service_get_events),
	METHOD("ListDir", RPC_UNARY, list_dir_request, list_dir_response, start_list),
	METHOD("MakeDir", RPC_UNARY, make_dir_request, make_dir_response, start_make_directory),
	METHOD("Move", RPC_UNARY, move_request, move_response, start_move),
	METHOD("Remove", RPC_UNARY, remove_request, remove_response, start_remove),
	METHOD("RemoveWatcher", RPC_UNARY, remove_watcher_request, remove_watcher_response,
	       watch_service_remove),
	METHOD("Stat", RPC_UNARY, stat_request, stat_response, start_stat),
	METHOD("WatchDir", RPC_SERVER_STREAM, watch_dir_request, watch_dir_response,
	       watch_service_watch),
};
