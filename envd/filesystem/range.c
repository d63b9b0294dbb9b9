#include "envd/filesystem/range.h"

/* Digits alone; what is larger than any file is as good as INT64_MAX. */
static int parse_number(struct str text, int64_t *ret_value)
{
	uint64_t value;
	int status = str_to_u64(text, INT64_MAX, &value);

	if (status == -ERANGE)
		value = INT64_MAX;
	else if (status < 0)
		return status;
	*ret_value = (int64_t)value;
	return 0;
}

/* 1: ret_range is in the file; 0: outside; -EINVAL. */
static int parse_one(struct str text, int64_t length, struct range *ret_range)
{
	struct str first;
	int64_t start, last = length - 1;

	if (!memchr(text.p, '-', text.len) || !str_split(&text, '-', &first))
		return -EINVAL;
	first = str_trim(first);
	text = str_trim(text);
	if (first.len == 0) {
		int64_t suffix;

		if (parse_number(text, &suffix) < 0)
			return -EINVAL;
		*ret_range = (struct range){suffix < length ? length - suffix : 0, length};
		return suffix > 0 && length > 0;
	}
	if (parse_number(first, &start) < 0 || (text.len && parse_number(text, &last) < 0))
		return -EINVAL;
	if (start >= length)
		return 0;
	if (last < start)
		return -EINVAL;
	*ret_range = (struct range){start, last < length ? last + 1 : length};
	return 1;
}

enum range_result range_parse(struct str value, int64_t length, struct range ret_ranges[RANGES_MAX],
			      size_t *ret_count)
{
	const struct str unit = STR("bytes=");
	bool any_outside = false, too_many = false;
	int64_t sum = 0;
	struct str text;

	*ret_count = 0;
	if (!str_starts_with(value, unit))
		return RANGE_INVALID;
	value = (struct str){value.p + unit.len, value.len - unit.len};
	while (str_split(&value, ',', &text)) {
		struct range range;
		int status;

		text = str_trim(text);
		if (text.len == 0)
			continue;
		status = parse_one(text, length, &range);
		if (status < 0)
			return RANGE_INVALID;
		any_outside |= status == 0;
		if (status == 0)
			continue;
		if (*ret_count == RANGES_MAX ||
		    __builtin_add_overflow(sum, range.end - range.start, &sum))
			too_many = true;
		else
			ret_ranges[(*ret_count)++] = range;
	}
	if (*ret_count == 0)
		return any_outside && length > 0 ? RANGE_OUTSIDE : RANGE_WHOLE;
	return too_many || sum > length ? RANGE_WHOLE : RANGE_PARTS;
}
