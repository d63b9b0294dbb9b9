#include "envd/host/metadata_pin.h"

#include "envd/host/metadata.h"
#include "envd/limits.h"
#include "lib/log.h"

/* The first of each pair may find nothing to delete. */
static const struct step {
	const char *chain, *action, *place; /* place: NULL for none */
} steps[] = {
	{"PREROUTING", "-D", NULL},
	{"PREROUTING", "-I", "1"},
	{"OUTPUT", "-D", NULL},
	{"OUTPUT", "-I", "1"},
};

struct metadata_pin {
	struct tools *tools;
	struct tool *tool;
	size_t step;
	void (*on_done)(void *user, bool is_pinned);
	void *user;
};

static void finish(struct metadata_pin *pin, bool is_pinned)
{
	pin->on_done(pin->user, is_pinned);
	free(pin);
}

static bool run_step(struct metadata_pin *pin);

static void on_tool(void *user, const struct tool_result *result)
{
	struct metadata_pin *pin = user;
	bool may_fail = strcmp(steps[pin->step].action, "-D") == 0;
	/* There is no iptables, or it cannot be run. */
	bool is_hopeless = result->status < 0 || result->status == 127;

	if (is_hopeless || (result->status != 0 && !may_fail)) {
		log_debug("envd", "the metadata service's address cannot be pinned",
			  LOG_I("status", result->status));
		finish(pin, false);
		return;
	}
	pin->step++;
	if (pin->step == ARRAY_LENGTH(steps))
		finish(pin, true);
	else if (!run_step(pin))
		finish(pin, false);
}

static bool run_step(struct metadata_pin *pin)
{
	const struct step *step = &steps[pin->step];
	const char *argv[20] = {"iptables", "-w", "5", "-t", "nat", step->action, step->chain};
	static const char *const rule[] = {"-d", METADATA_ADDRESS, "-p", "tcp", "--dport", "80",
					   "-j", "RETURN"};
	size_t count = 7;

	if (step->place)
		argv[count++] = step->place;
	for (size_t i = 0; i < ARRAY_LENGTH(rule); i++)
		argv[count++] = rule[i];
	argv[count] = NULL;
	pin->tool = tool_run(pin->tools, argv, METADATA_PIN_MS, on_tool, pin);
	return pin->tool != NULL;
}

struct metadata_pin *metadata_pin_start(struct tools *tools,
					void (*on_done)(void *user, bool is_pinned), void *user)
{
	struct metadata_pin *pin = xcalloc(1, sizeof(*pin));

	*pin = (struct metadata_pin){.tools = tools, .on_done = on_done, .user = user};
	if (run_step(pin))
		return pin;
	free(pin);
	return NULL;
}

void metadata_pin_cancel(struct metadata_pin *pin)
{
	tool_cancel(pin->tool);
	free(pin);
}
