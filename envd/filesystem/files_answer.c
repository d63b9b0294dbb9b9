#include "envd/filesystem/files_answer.h"

#include <sys/random.h>

#include "envd/filesystem/files_conditions.h"
#include "envd/filesystem/range.h"

#define BOUNDARY_BYTES 20

static void refuse(struct files_answer *answer, int status, const char *message)
{
	answer->status = status;
	answer->message = message;
}

/* False when refused. */
static bool choose_encoding(const struct files_answer_request *request,
			    const struct download *download, bool needs_identity,
			    struct files_answer *answer)
{
	if (request->encoding == ACCEPT_NONE) {
		refuse(answer, 406,
		       "error parsing Accept-Encoding: no acceptable encoding found, "
		       "supported: [gzip]");
		return false;
	}
	answer->varies = true;
	if (needs_identity && !request->takes_identity) {
		refuse(answer, 406,
		       "identity encoding not acceptable for Range or conditional request");
		return false;
	}
	answer->is_compressed = request->encoding == ACCEPT_GZIP && !needs_identity;
	if (!answer->is_compressed || !request->takes_identity)
		return true;
	/* What does not shrink goes out as it is, which is faster for both sides. Little files are
	 * not worth the question. */
	if (!request->may_compress || (download->fd >= 0 && !download_body_shrinks(download)))
		answer->is_compressed = false;
	return true;
}

static int add_whole(struct files_answer *answer, const struct download *download,
		     struct arena *arena)
{
	answer->parts = arena_new(arena, struct download_part);
	if (!answer->parts)
		return -ENOMEM;
	answer->parts[0].end = download->length;
	answer->part_count = 1;
	answer->length = answer->is_compressed ? -1 : download->length;
	answer->content_type = download->content_type;
	if (answer->is_compressed)
		answer->content_type = download->name_content_type ? download->name_content_type
								   : "application/octet-stream";
	return 0;
}

static const char *format_range(const struct range *range, int64_t length, struct arena *arena)
{
	return arena_printf(arena, "bytes %lld-%lld/%lld", (long long)range->start,
			    (long long)range->end - 1, (long long)length);
}

static int add_range(struct files_answer *answer, const struct range *range,
		     const struct download *download, struct arena *arena)
{
	answer->status = 206;
	answer->content_type = download->content_type;
	answer->content_range = format_range(range, download->length, arena);
	answer->parts = arena_new(arena, struct download_part);
	if (!answer->parts || !answer->content_range)
		return -ENOMEM;
	answer->parts[0].offset = range->start;
	answer->parts[0].end = range->end;
	answer->part_count = 1;
	answer->length = range->end - range->start;
	return 0;
}

static int make_boundary(char ret_boundary[2 * BOUNDARY_BYTES + 1])
{
	unsigned char bytes[BOUNDARY_BYTES];

	if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
		return -EIO;
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(ret_boundary + 2 * i, 3, "%02x", bytes[i]);
	return 0;
}

/* multipart/byteranges (RFC 9110 section 14.6). */
static int add_ranges(struct files_answer *answer, const struct range *ranges, size_t count,
		      const struct download *download, struct arena *arena)
{
	char boundary[2 * BOUNDARY_BYTES + 1];
	int status = make_boundary(boundary);

	if (status < 0)
		return status;
	answer->status = 206;
	answer->content_type = arena_printf(arena, "multipart/byteranges; boundary=%s", boundary);
	answer->parts = arena_alloc_array(arena, count + 1, sizeof(*answer->parts));
	if (!answer->content_type || !answer->parts)
		return -ENOMEM;
	for (size_t i = 0; i <= count; i++) {
		struct download_part *part = &answer->parts[i];
		const char *range = i < count ? format_range(&ranges[i], download->length, arena)
					      : NULL;

		if (range) {
			part->offset = ranges[i].start;
			part->end = ranges[i].end;
			part->text = str_of(arena_printf(
				arena, "%s--%s\r\nContent-Range: %s\r\nContent-Type: %s\r\n\r\n",
				i ? "\r\n" : "", boundary, range, download->content_type));
		} else if (i == count) {
			part->text = str_of(arena_printf(arena, "\r\n--%s--\r\n", boundary));
		}
		if (!part->text.p)
			return -ENOMEM;
		answer->length += (int64_t)part->text.len + part->end - part->offset;
	}
	answer->part_count = count + 1;
	return 0;
}

static int choose_ranges(struct str value, const struct download *download, struct arena *arena,
			 struct files_answer *answer)
{
	struct range *ranges = arena_alloc_array(arena, RANGES_MAX, sizeof(*ranges));
	size_t count;

	if (!ranges)
		return -ENOMEM;
	switch (range_parse(value, download->length, ranges, &count)) {
	case RANGE_WHOLE:
		break;
	case RANGE_PARTS:
		return count == 1 ? add_range(answer, ranges, download, arena)
				  : add_ranges(answer, ranges, count, download, arena);
	case RANGE_OUTSIDE:
		answer->content_range = arena_printf(arena, "bytes */%lld",
						     (long long)download->length);
		refuse(answer, 416, "invalid range: failed to overlap\n");
		return answer->content_range ? 0 : -ENOMEM;
	case RANGE_INVALID:
		refuse(answer, 416, "invalid range\n");
		return 0;
	}
	return add_whole(answer, download, arena);
}

int files_answer_plan(const struct files_answer_request *request, const struct download *download,
		      struct arena *arena, struct files_answer *ret_answer)
{
	const struct http_headers *headers = request->headers;
	struct str range = http_headers_get(headers, STR("Range"));
	struct files_answer *answer = ret_answer;
	enum files_condition condition;
	int status = 0;

	*answer = (struct files_answer){.status = 200};
	if (!choose_encoding(request, download, files_conditions_need_identity(headers), answer))
		return 0;
	condition = files_conditions_check(headers, download->modified);
	if (condition != CONDITION_PASSED)
		answer->status = condition == CONDITION_FAILED ? 412 : 304;
	else if (range.len && download->length >= 0 &&
		 files_conditions_allow_range(headers, download->modified))
		status = choose_ranges(range, download, arena, answer);
	else
		status = add_whole(answer, download, arena);
	answer->tells_modified = answer->status != 416 && !answer->is_compressed &&
				 download->modified;
	return status;
}
