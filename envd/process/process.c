/* The bottom of a process: the copy of its request, and who holds it. */
#include "envd/limits.h"
#include "envd/process/process_internal.h"

/* ---- the copy: everything in one block, strings behind the arrays ---- */

static size_t size_of_text(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

static const char *copy_text(char **room, const char *text)
{
	size_t size = size_of_text(text);
	char *copy = *room;

	if (!text)
		return NULL;
	memcpy(copy, text, size);
	*room += size;
	return copy;
}

void process_texts_hold(struct process_texts *texts)
{
	texts->holds++;
}

void process_texts_release(struct process_texts *texts)
{
	if (--texts->holds > 0)
		return;
	share_release(&texts->share);
	free(texts);
}

int process_copy_spec(struct process *process, const struct process_spec *spec)
{
	size_t size = spec->arg_count * sizeof(char *) +
		      spec->variable_count * sizeof(struct spawn_variable);
	struct spawn_variable *variables;
	const char **args;
	char *room;
	size_t i;

	size += size_of_text(spec->command) + size_of_text(spec->cwd) + size_of_text(spec->tag) +
		size_of_text(spec->user_name);
	for (i = 0; i < spec->arg_count; i++)
		size += size_of_text(spec->args[i]);
	for (i = 0; i < spec->variable_count; i++)
		size += size_of_text(spec->variables[i].name) +
			size_of_text(spec->variables[i].value);
	process->texts = malloc(sizeof(*process->texts) + size); /* a client decides how much */
	if (!process->texts)
		return -ENOMEM;
	*process->texts = (struct process_texts){.holds = 1, .size = size};
	share_init(&process->texts->share, spawn_texts_budget(), PROCESS_TEXTS_EXEMPT_BYTES);
	if (!share_take(&process->texts->share, size))
		return -ENOMEM; /* the process frees it */
	args = (const char **)process->texts->bytes;
	variables = (struct spawn_variable *)(args + spec->arg_count);
	room = (char *)(variables + spec->variable_count);
	process->spec = *spec;
	process->spec.args = args;
	process->spec.variables = variables;
	process->spec.command = copy_text(&room, spec->command);
	process->spec.cwd = copy_text(&room, spec->cwd);
	process->spec.tag = copy_text(&room, spec->tag);
	process->spec.user_name = copy_text(&room, spec->user_name);
	for (i = 0; i < spec->arg_count; i++)
		args[i] = copy_text(&room, spec->args[i]);
	for (i = 0; i < spec->variable_count; i++) {
		variables[i].name = copy_text(&room, spec->variables[i].name);
		variables[i].value = copy_text(&room, spec->variables[i].value);
	}
	return 0;
}

/* ---- holders ---- */

void process_wake(struct process *process)
{
	later_call(process->loop, &process->later);
}

void process_hold(struct process *process)
{
	process->live++;
}

void process_drop(struct process *process)
{
	assert(process->live > 0);
	process->live--;
	if (process->state == PROCESS_DONE)
		process_wake(process);
}
