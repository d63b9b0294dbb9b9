/* List: all processes, with what they were started with, which may be much. */
#include "envd/limits.h"
#include "envd/process/process_service_internal.h"
#include "lib/job.h"

/* Thousands of processes with their environments are more than an exchange's arena holds, and more
 * than the loop should encode. What their texts are in is held, because processes end meanwhile. */
struct list_call {
	struct job job;
	struct rpc_call *call;
	struct arena arena;
	Process__ListResponse response;
	struct process_texts **held;
	size_t held_count, bytes;
	int status;
	struct err err;
};

static void free_list_call(struct list_call *list)
{
	for (size_t i = 0; i < list->held_count; i++)
		process_texts_release(list->held[i]);
	arena_release(&list->arena);
	rpc_call_release(list->call);
	free(list);
}

static Process__ProcessConfig *make_config(struct arena *arena, const struct process_spec *spec)
{
	Process__ProcessConfig *config = arena_new(arena, Process__ProcessConfig);
	Process__ProcessConfig__EnvsEntry *entries;
	size_t i;

	entries = arena_alloc_array(arena, spec->variable_count + 1, sizeof(*entries));
	if (!config || !entries)
		return NULL;
	process__process_config__init(config);
	config->cmd = (char *)(uintptr_t)spec->command; /* encoding only reads */
	config->args = (char **)(uintptr_t)spec->args;
	config->n_args = spec->arg_count;
	config->envs = arena_alloc_array(arena, spec->variable_count + 1, sizeof(*config->envs));
	if (!config->envs)
		return NULL;
	for (i = 0; i < spec->variable_count; i++) {
		process__process_config__envs_entry__init(&entries[i]);
		entries[i].key = (char *)(uintptr_t)spec->variables[i].name;
		entries[i].value = (char *)(uintptr_t)spec->variables[i].value;
		config->envs[i] = &entries[i];
	}
	config->n_envs = spec->variable_count;
	if (spec->cwd) {
		config->opt_cwd_case = PROCESS__PROCESS_CONFIG__OPT_CWD_CWD;
		config->cwd = (char *)(uintptr_t)spec->cwd;
	}
	return config;
}

static Process__ProcessInfo *make_info(struct arena *arena, const struct process *process)
{
	Process__ProcessInfo *info = arena_new(arena, Process__ProcessInfo);

	if (!info)
		return NULL;
	process__process_info__init(info);
	info->pid = (uint32_t)process->pid;
	info->config = make_config(arena, &process->spec);
	if (process->spec.tag) {
		info->opt_tag_case = PROCESS__PROCESS_INFO__OPT_TAG_TAG;
		info->tag = (char *)(uintptr_t)process->spec.tag;
	}
	return info->config ? info : NULL;
}

static int make_list(struct list_call *list, const struct process_table *table)
{
	struct list_node *node;

	process__list_response__init(&list->response);
	list->response.processes = arena_alloc_array(&list->arena, table->count + 1,
						     sizeof(*list->response.processes));
	list->held = arena_alloc_array(&list->arena, table->count + 1,
				       sizeof(struct process_texts *));
	if (!list->response.processes || !list->held)
		return -ENOMEM;
	LIST_FOR_EACH (node, &table->all) {
		const struct process *process = container_of(node, struct process, node);
		Process__ProcessInfo *info;

		if (process->state != PROCESS_RUNNING)
			continue;
		info = make_info(&list->arena, process);
		if (!info)
			return -ENOMEM;
		list->response.processes[list->response.n_processes++] = info;
		list->bytes += process->texts->size;
		process_texts_hold(process->texts);
		list->held[list->held_count++] = process->texts;
	}
	return 0;
}

static void encode(struct job *job)
{
	struct list_call *list = container_of(job, struct list_call, job);

	list->status = rpc_encode_ahead(list->call, &list->response.base, &list->err);
}

static void on_encoded(struct job *job)
{
	struct list_call *list = container_of(job, struct list_call, job);

	if (list->status < 0)
		rpc_fail(list->call, &list->err);
	else
		rpc_reply(list->call, &list->response.base);
	free_list_call(list);
}

void service_list(struct rpc_call *call, const ProtobufCMessage *message)
{
	static const struct rpc_handler handler = {.on_closed = NULL};
	struct list_call *list = xcalloc(1, sizeof(*list));

	list->call = call;
	rpc_call_hold(call);
	arena_init(&list->arena, RPC_ARENA_BYTES);
	if (make_list(list, service_table(call)) < 0) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "no memory for the list");
	} else if (list->bytes <= RPC_ENCODE_INLINE_BYTES) {
		rpc_reply(call, &list->response.base);
	} else if (job_run(call->loop, &list->job, JOB_COMPUTE, encode, on_encoded) < 0) {
		rpc_fail_kind(call, ERR_RESOURCE_EXHAUSTED, "too much work is queued");
	} else {
		rpc_call_set_handler(call, &handler, list);
		return;
	}
	free_list_call(list);
}
