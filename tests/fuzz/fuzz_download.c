/*
 * Headers of a download: the first line is Range, the second Accept-Encoding, the third a date and
 * list of tags, and the first byte the length of the file. Ranges lie in the file and are not
 * longer than it together; a date that is understood is understood again as it is written.
 */
#include "lib/accept_encoding.h"
#include "envd/filesystem/files_conditions.h"
#include "envd/filesystem/range.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ranges(struct str value, int64_t length)
{
	static struct range ranges[RANGES_MAX];
	size_t count = 0;
	int64_t sum = 0;
	enum range_result result = range_parse(value, length, ranges, &count);

	assert(count <= RANGES_MAX);
	if (result != RANGE_PARTS)
		return;
	assert(count > 0);
	for (size_t i = 0; i < count; i++) {
		assert(ranges[i].start >= 0 && ranges[i].start < ranges[i].end &&
		       ranges[i].end <= length);
		sum += ranges[i].end - ranges[i].start;
	}
	assert(sum <= length);
}

static void check_encoding(struct str value)
{
	bool takes_identity = false;
	enum accept_encoding choice = accept_encoding_choose(value, &takes_identity);

	/* Who contradicts himself about identity gets it. */
	assert(choice != ACCEPT_NONE || !takes_identity);
}

static void check_conditions(struct str value)
{
	static const struct str names[] = {{"If-Match", 8},
					   {"If-None-Match", 13},
					   {"If-Modified-Since", 17},
					   {"If-Unmodified-Since", 19},
					   {"If-Range", 8}};
	int64_t date, again;
	char text[32];

	for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
		struct http_header item = {names[i], value};
		const struct http_headers headers = {&item, 1, 1};

		(void)files_conditions_check(&headers, 1000000000);
		/* Nothing is the same as what has no date, and has no tag. */
		assert(i != 4 || !value.len || !files_conditions_allow_range(&headers, 0));
	}
	if (http_parse_date(value, &date) < 0 || date < 0 || date > 253402300799)
		return;
	http_format_date(date, text);
	if (http_parse_date(str_of(text), &again) < 0)
		abort();
	assert(again == date);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct str rest = {(const char *)data, size}, line;
	int64_t length;

	if (size < 1)
		return 0;
	length = data[0] < 128	  ? data[0]
		 : data[0] == 255 ? INT64_MAX
				  : (int64_t)1 << (data[0] % 63);
	rest = (struct str){rest.p + 1, rest.len - 1};
	if (str_split(&rest, '\n', &line))
		check_ranges(line, length);
	if (str_split(&rest, '\n', &line))
		check_encoding(line);
	check_conditions(rest);
	return 0;
}
