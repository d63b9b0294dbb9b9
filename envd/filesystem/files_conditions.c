#include "envd/filesystem/files_conditions.h"

static struct str get(const struct http_headers *headers, struct str name)
{
	return http_headers_get(headers, name);
}

/* Whether the list names "*" before anything that is no tag. */
static bool names_any(struct str list)
{
	struct str item;

	while (str_split(&list, ',', &item))
		if (str_equal(str_trim(item), STR("*")))
			return true;
	return false;
}

/* The file has not changed since; false also when one cannot tell, and *ret_told says so. */
static bool is_unmodified_since(struct str date, int64_t modified, bool *ret_told)
{
	int64_t since;

	*ret_told = date.len && modified && http_parse_date(date, &since) == 0;
	return *ret_told && modified <= since;
}

enum files_condition files_conditions_check(const struct http_headers *headers, int64_t modified)
{
	struct str match = get(headers, STR("If-Match"));
	struct str none_match = get(headers, STR("If-None-Match"));
	bool is_told, is_same;

	if (match.len) {
		if (!names_any(match))
			return CONDITION_FAILED;
	} else {
		is_same = is_unmodified_since(get(headers, STR("If-Unmodified-Since")), modified,
					      &is_told);
		if (is_told && !is_same)
			return CONDITION_FAILED;
	}
	if (none_match.len)
		return names_any(none_match) ? CONDITION_NOT_MODIFIED : CONDITION_PASSED;
	is_same = is_unmodified_since(get(headers, STR("If-Modified-Since")), modified, &is_told);
	return is_told && is_same ? CONDITION_NOT_MODIFIED : CONDITION_PASSED;
}

bool files_conditions_allow_range(const struct http_headers *headers, int64_t modified)
{
	struct str value = get(headers, STR("If-Range"));
	int64_t date;

	if (!value.len)
		return true;
	return modified && http_parse_date(value, &date) == 0 && date == modified;
}

bool files_conditions_need_identity(const struct http_headers *headers)
{
	static const struct str names[] = {
		{"Range", 5}, {"If-Modified-Since", 17}, {"If-None-Match", 13}, {"If-Range", 8}};

	for (size_t i = 0; i < ARRAY_LENGTH(names); i++)
		if (get(headers, names[i]).len)
			return true;
	return false;
}
