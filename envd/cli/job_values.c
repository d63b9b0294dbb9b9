/* Sizes, times and shares of processors, as people write them. */
#include <math.h>
#include <stdlib.h>

#include "envd/cli/job.h"

struct unit {
	const char *name;
	double factor;
};

/* A number and, at its end or before the next number, one of `units`; "" is what may be left out.
 * False for anything else. */
static bool parse_scaled(const char **text, const struct unit *units, double *ret_value)
{
	char *end;
	double value = strtod(*text, &end);
	size_t len = 0;

	if (end == *text || !(value >= 0) || !isfinite(value))
		return false;
	while (end[len] >= 'A')
		len++;
	for (; units->name; units++) {
		if (strlen(units->name) != len || memcmp(units->name, end, len) != 0)
			continue;
		*text = end + len;
		*ret_value = value * units->factor;
		return *ret_value < 9e18;
	}
	return false;
}

/* What is not nothing must not become 0, which is no limit. */
static uint64_t round_up(double value)
{
	uint64_t whole = (uint64_t)value;

	return whole + ((double)whole < value);
}

int job_read_size(const char *command, const char *option, const char *text, uint64_t *ret_bytes)
{
	static const struct unit units[] = {
		{"", 1},	{"k", 1024},	   {"K", 1024},	      {"m", 1048576},
		{"M", 1048576}, {"g", 1073741824}, {"G", 1073741824}, {0},
	};
	const char *at = text;
	double value;

	if (!text)
		return CLI_GO_ON;
	if (!parse_scaled(&at, units, &value) || *at)
		return cli_usage("%s: %s wants a size such as 512M, not %s", command, option, text);
	*ret_bytes = round_up(value);
	return CLI_GO_ON;
}

int job_read_processors(const char *command, const char *option, const char *text,
			uint32_t *ret_millis)
{
	static const struct unit units[] = {{"", 1000}, {0}};
	const char *at = text;
	double value;

	if (!text)
		return CLI_GO_ON;
	if (!parse_scaled(&at, units, &value) || *at || value > UINT32_MAX)
		return cli_usage("%s: %s wants a number such as 1.5, not %s", command, option,
				 text);
	*ret_millis = (uint32_t)round_up(value);
	return CLI_GO_ON;
}

/* Seconds, or numbers that all have a unit. */
static bool parse_duration(const char *text, double *ret_ms)
{
	static const struct unit bare[] = {{"", 1000}, {0}},
				 units[] = {
					 {"ms", 1},	 {"s", 1000},	  {"m", 60000},
					 {"h", 3600000}, {"d", 86400000}, {0},
				 };
	double part;

	if (parse_scaled(&text, bare, ret_ms) && !*text)
		return true;
	*ret_ms = 0;
	do {
		if (!parse_scaled(&text, units, &part))
			return false;
		*ret_ms += part;
	} while (*text >= '0' && *text <= '9');
	return !*text && *ret_ms < 9e18;
}

int job_read_duration(const char *command, const char *option, const char *text, uint64_t *ret_ms)
{
	double value;

	if (!text)
		return CLI_GO_ON;
	if (!parse_duration(text, &value))
		return cli_usage("%s: %s wants a time such as 90s, 10m or 1h30m, not %s", command,
				 option, text);
	*ret_ms = round_up(value);
	return CLI_GO_ON;
}
