/* List: the commands that process.Process has started and that run, then the jobs; newest first
 * each. */
#include "envd/jobs/jobs_service_internal.h"
#include "envd/limits.h"
#include "envd/process/process_table.h"

#define TOKEN_BYTES 32

struct listing {
	struct arena arena;
	const Jobs__ListRequest *request;
	Jobs__ListResponse response;
	size_t room;
	char next[TOKEN_BYTES];
	bool is_short; /* of memory */
};

static bool is_wanted(const struct listing *list, enum job_state state, const char *name)
{
	const Jobs__ListRequest *request = list->request;
	bool fits = request->n_states == 0;

	for (size_t i = 0; i < request->n_states && !fits; i++)
		fits = (int)request->states[i] == (int)state;
	return fits && (!*request->name || strcmp(request->name, name) == 0);
}

/* False when the page is full: the next one begins with this one. */
static bool add(struct listing *list, Jobs__Job *job)
{
	if (!job) {
		list->is_short = true;
		return false;
	}
	list->response.jobs[list->response.n_jobs++] = job;
	return true;
}

static bool is_full(struct listing *list, char kind, uint64_t number)
{
	if (list->response.n_jobs < list->room)
		return false;
	snprintf(list->next, sizeof(list->next), "%c%llu", kind, (unsigned long long)number);
	list->response.next_page_token = list->next;
	return true;
}

/* As much of the command line as of a job's. */
static bool show_command(struct arena *arena, const struct process_spec *spec, Jobs__Job *job)
{
	Jobs__Command *command = arena_new(arena, Jobs__Command);
	char **argv = arena_alloc_array(
		arena, size_min(spec->arg_count, JOB_SHOWN_COMMAND_BYTES) + 1, sizeof(*argv));
	size_t room = JOB_SHOWN_COMMAND_BYTES, i;

	if (!command || !argv)
		return false;
	jobs__command__init(command);
	command->argv = argv;
	for (i = 0; i <= spec->arg_count; i++) {
		const char *word = i == 0 ? spec->command : spec->args[i - 1];
		size_t size = strlen(word) + 1;

		if (size > room)
			break;
		room -= size;
		argv[command->n_argv++] = (char *)(uintptr_t)word;
	}
	job->command_is_cut = i <= spec->arg_count;
	command->cwd = (char *)(uintptr_t)(spec->cwd ? spec->cwd : "");
	command->user = (char *)(uintptr_t)(spec->user_name ? spec->user_name : "");
	job->command = command;
	return true;
}

static Jobs__Job *make_command_job(struct arena *arena, const struct process *process)
{
	Jobs__Job *job = arena_new(arena, Jobs__Job);

	if (!job)
		return NULL;
	jobs__job__init(job);
	job->id = arena_printf(arena, "pid-%d", process->pid);
	job->kind = JOBS__JOB_KIND__JOB_KIND_COMMAND;
	job->name = (char *)(uintptr_t)(process->spec.tag ? process->spec.tag : "");
	job->state = JOBS__JOB_STATE__JOB_STATE_RUNNING;
	job->pid = (uint32_t)process->pid;
	job->created_ms = job->started_ms = process->record.started_ms;
	job->has_terminal = process->spec.with_terminal;
	return job->id && show_command(arena, &process->spec, job) ? job : NULL;
}

static bool add_commands(struct listing *list, const struct process_table *table, uint64_t from)
{
	const struct list_node *node;

	for (node = table->all.previous; node != &table->all; node = node->previous) {
		const struct process *process = container_of(node, struct process, node);
		const char *name = process->spec.tag ? process->spec.tag : "";

		if (process->state != PROCESS_RUNNING || process->serial > from ||
		    !is_wanted(list, JOB_RUNNING, name))
			continue;
		if (is_full(list, 'c', process->serial) ||
		    !add(list, make_command_job(&list->arena, process)))
			return false;
	}
	return true;
}

static void add_jobs(struct listing *list, const struct job_table *table, uint64_t from)
{
	const struct list_node *node;

	LIST_FOR_EACH (node, &table->all) {
		const struct background_job *job = container_of(node, struct background_job, all);
		const struct job_record *record = &job->record;

		if (record->sequence > from || !is_wanted(list, record->state, record->name))
			continue;
		if (is_full(list, 'j', record->sequence) ||
		    !add(list, jobs_make_job(&list->arena, job)))
			return;
	}
}

/* Where to go on; false for what was never a token. */
static bool read_token(const char *token, bool *ret_commands, uint64_t *ret_from)
{
	*ret_commands = *token != 'j';
	*ret_from = UINT64_MAX;
	if (!*token)
		return true;
	return (*token == 'j' || *token == 'c') &&
	       str_to_u64(str_of(token + 1), UINT64_MAX, ret_from) == 0;
}

void jobs_list(struct rpc_call *call, const ProtobufCMessage *message)
{
	const Jobs__ListRequest *request = (const Jobs__ListRequest *)message;
	const struct jobs_service *service = call->service;
	struct listing list = {.request = request, .room = request->page_size};
	bool commands;
	uint64_t from;

	if (jobs_fail_unread(call))
		return;
	for (size_t i = 0; i < request->n_states; i++) {
		if (!jobs_is_state((int)request->states[i])) {
			rpc_fail_kind(call, ERR_INVALID_ARGUMENT, "unknown state %d",
				      (int)request->states[i]);
			return;
		}
	}
	if (!read_token(request->page_token, &commands, &from)) {
		rpc_fail_kind(call, ERR_INVALID_ARGUMENT, "invalid page token");
		return;
	}
	if (list.room == 0)
		list.room = JOB_LIST_PAGE;
	if (list.room > JOB_LIST_PAGE_MAX)
		list.room = JOB_LIST_PAGE_MAX;
	arena_init(&list.arena, RPC_ARENA_BYTES);
	jobs__list_response__init(&list.response);
	list.response.jobs = arena_alloc_array(&list.arena, list.room, sizeof(Jobs__Job *));
	list.is_short = !list.response.jobs;
	if (!list.is_short && (!commands || request->without_commands ||
			       add_commands(&list, service->processes, from)))
		add_jobs(&list, service->jobs, commands ? UINT64_MAX : from);
	if (list.is_short)
		jobs_fail_no_memory(call);
	else
		rpc_reply(call, &list.response.base);
	arena_release(&list.arena);
}
