#include "lib/options.h"

#include <unistd.h>

static void say(const char *text)
{
	if (write(2, text, strlen(text)) < 0)
		return;
}

static void usage(const struct option *options, const char *program, const char *summary)
{
	static const char *const value_names[] = {
		[OPTION_BOOL] = "", [OPTION_INT] = " int", [OPTION_STRING] = " string",
		[OPTION_LIST] = " value (repeatable)"};
	char line[512];

	snprintf(line, sizeof(line), "Usage of %s:\n%s", program, summary);
	say(line);
	for (; options->name; options++) {
		snprintf(line, sizeof(line), "  -%s%s\n    \t%s\n", options->name,
			 value_names[options->type], options->help);
		say(line);
	}
}

static const struct option *find(const struct option *options, struct str name)
{
	for (; options->name; options++)
		if (str_equal(str_of(options->name), name))
			return options;
	return NULL;
}

static bool set_bool(const struct option *option, const char *value)
{
	if (!value || strcmp(value, "true") == 0 || strcmp(value, "1") == 0 ||
	    strcmp(value, "t") == 0 || strcmp(value, "TRUE") == 0 || strcmp(value, "True") == 0)
		*(bool *)option->value = true;
	else if (strcmp(value, "false") == 0 || strcmp(value, "0") == 0 || strcmp(value, "f") == 0 ||
		 strcmp(value, "FALSE") == 0 || strcmp(value, "False") == 0)
		*(bool *)option->value = false;
	else
		return false;
	return true;
}

static bool set_value(const struct option *option, const char *value)
{
	struct option_list *list;
	char *end;
	long long number;

	switch (option->type) {
	case OPTION_BOOL:
		return set_bool(option, value);
	case OPTION_INT:
		errno = 0;
		number = strtoll(value, &end, 0);
		if (errno || end == value || *end)
			return false;
		*(int64_t *)option->value = number;
		return true;
	case OPTION_STRING:
		*(const char **)option->value = value;
		return true;
	case OPTION_LIST:
		list = option->value;
		list->items = xrealloc(list->items, (list->count + 1) * sizeof(*list->items));
		list->items[list->count++] = value;
		return true;
	}
	return false;
}

enum options_result options_parse(const struct option *options, const char *program,
				  const char *summary, int argc, char **argv, int *ret_rest)
{
	char line[512];
	int i;

	for (i = 1; i < argc; i++) {
		const char *argument = argv[i];
		const struct option *option;
		const char *value;
		struct str name;

		if (argument[0] != '-' || argument[1] == '\0')
			break;
		argument += argument[1] == '-' ? 2 : 1;
		if (!*argument && argv[i][1] == '-') {
			i++;
			break;
		}
		value = strchr(argument, '=');
		name = (struct str){argument, value ? (size_t)(value - argument) : strlen(argument)};
		value = value ? value + 1 : NULL;
		option = find(options, name);
		if (!option) {
			bool help = str_equal(name, STR("h")) || str_equal(name, STR("help"));

			if (!help) {
				snprintf(line, sizeof(line), "flag provided but not defined: -%.*s\n",
					 (int)size_min(name.len, 200), name.p);
				say(line);
			}
			usage(options, program, summary);
			return help ? OPTIONS_HELP : OPTIONS_BAD;
		}
		if (option->type != OPTION_BOOL && !value) {
			if (i + 1 >= argc) {
				snprintf(line, sizeof(line), "flag needs an argument: -%s\n", option->name);
				say(line);
				usage(options, program, summary);
				return OPTIONS_BAD;
			}
			value = argv[++i];
		}
		if (!set_value(option, value)) {
			snprintf(line, sizeof(line), "invalid value \"%.200s\" for flag -%s\n", value,
				 option->name);
			say(line);
			usage(options, program, summary);
			return OPTIONS_BAD;
		}
	}
	*ret_rest = i;
	return OPTIONS_OK;
}

void options_list_fini(struct option_list *list)
{
	free(list->items);
	*list = (struct option_list){0};
}
