#include "lib/options.h"

#include <unistd.h>

static void say(int fd, const char *const *pieces, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (write(fd, pieces[i], strlen(pieces[i])) < 0)
			return;
}
#define SAY(fd, ...) \
	say(fd, (const char *const[]){__VA_ARGS__}, \
	    ARRAY_LENGTH(((const char *const[]){__VA_ARGS__})))

void options_print(int fd, const struct option *options, const char *program, const char *summary)
{
	static const char *const value_names[] = {[OPTION_BOOL] = "",
						  [OPTION_INT] = " int",
						  [OPTION_STRING] = " string",
						  [OPTION_LIST] = " value (repeatable)"};

	SAY(fd, "Usage of ", program, ":\n", summary);
	for (; options->name; options++)
		SAY(fd, "  -", options->name, value_names[options->type], "\n    \t", options->help,
		    "\n");
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
	static const char *const words[2][6] = {{"0", "f", "F", "false", "FALSE", "False"},
						{"1", "t", "T", "true", "TRUE", "True"}};

	if (!value) {
		*(bool *)option->value = true;
		return true;
	}
	for (size_t i = 0; i < ARRAY_LENGTH(words[0]); i++) {
		if (strcmp(value, words[0][i]) == 0 || strcmp(value, words[1][i]) == 0) {
			*(bool *)option->value = strcmp(value, words[1][i]) == 0;
			return true;
		}
	}
	return false;
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
		/* strtoll skips blanks; a number in quotes with blanks is more likely a mistake. */
		if (errno || end == value || *end || strchr(" \t\n\v\f\r", *value))
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

enum options_result options_read(const struct option *options, int argc, char **argv, int *ret_rest,
				 char mistake[OPTIONS_MISTAKE_BYTES])
{
	int i;

	for (i = 1; i < argc; i++) {
		const char *argument = argv[i];
		const struct option *option;
		const char *value;
		struct str name;

		if (argument[0] != '-' || argument[1] == '\0')
			break;
		argument += argument[1] == '-' ? 2 : 1;
		if (!*argument) {
			i++; /* "--": what follows is not for us, and it is not either */
			break;
		}
		value = strchr(argument, '=');
		name = (struct str){argument,
				    value ? (size_t)(value - argument) : strlen(argument)};
		value = value ? value + 1 : NULL;
		option = find(options, name);
		if (!option && (str_equal(name, STR("h")) || str_equal(name, STR("help"))))
			return OPTIONS_HELP;
		if (!option) {
			snprintf(mistake, OPTIONS_MISTAKE_BYTES,
				 "flag provided but not defined: -%.*s",
				 (int)size_min(name.len, 200), name.p);
			return OPTIONS_BAD;
		}
		if (option->type != OPTION_BOOL && !value) {
			if (i + 1 >= argc) {
				snprintf(mistake, OPTIONS_MISTAKE_BYTES,
					 "flag needs an argument: -%s", option->name);
				return OPTIONS_BAD;
			}
			value = argv[++i];
		}
		if (!set_value(option, value)) {
			snprintf(mistake, OPTIONS_MISTAKE_BYTES,
				 "invalid value \"%.200s\" for flag -%s", value, option->name);
			return OPTIONS_BAD;
		}
	}
	*ret_rest = i;
	return OPTIONS_OK;
}

enum options_result options_parse(const struct option *options, const char *program,
				  const char *summary, int argc, char **argv, int *ret_rest)
{
	char mistake[OPTIONS_MISTAKE_BYTES];
	enum options_result result = options_read(options, argc, argv, ret_rest, mistake);

	if (result == OPTIONS_BAD)
		SAY(STDERR_FILENO, mistake, "\n");
	if (result != OPTIONS_OK)
		options_print(STDERR_FILENO, options, program, summary);
	return result;
}

void options_list_fini(struct option_list *list)
{
	free(list->items);
	*list = (struct option_list){0};
}
