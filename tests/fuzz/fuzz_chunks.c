/*
 * Bodies in chunks: however the bytes are cut into reads, the same body comes out, or the same
 * refusal; what is accepted is what a plain reading of RFC 9112 section 7.1 gives; and what we
 * write in chunks is read back.
 *
 * Input: a byte that cuts, then the body as it is on the wire.
 */
#include "lib/http_parse.h"
#include "lib/http_write.h"
#include "lib/limits.h"

static const char head[] = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
	if (!condition)
		abort();
}

enum outcome { INCOMPLETE, COMPLETE, REFUSED };

/* Feeds `step` bytes at a time; the body, and how many bytes of the input belong to the message. */
static enum outcome decode(const char *wire, size_t len, size_t step, bool joined,
			   struct buf *ret_body, size_t *ret_end)
{
	char room[HTTP_PARSE_ROOM_BYTES];
	enum outcome outcome = INCOMPLETE;
	struct http_request request = {0};
	struct http_parser parser;
	struct arena arena;
	struct str body;
	size_t used, at = 0, limit = 0;
	bool more = false; /* behind a piece the end may be known already */

	arena_init(&arena, HTTP_EXCHANGE_ARENA_BYTES);
	http_parser_init_request(&parser, &arena, &request);
	must(http_parser_next(&parser, head, sizeof(head) - 1, &used, &body) == HTTP_PARSE_HEAD);
	must(used == sizeof(head) - 1);
	while (outcome == INCOMPLETE && (more || at < limit || limit < len)) {
		enum http_parse_event event;

		if (at == limit && !more)
			limit = size_min(limit + step, len);
		event = joined ? http_parser_next_joined(&parser, wire + at, limit - at, room,
							 sizeof(room), &used, &body)
			       : http_parser_next(&parser, wire + at, limit - at, &used, &body);
		must(used <= limit - at);
		at += used;
		more = event == HTTP_PARSE_BODY;
		if (event == HTTP_PARSE_BODY)
			must(buf_append(ret_body, body.p, body.len) == 0);
		else if (event == HTTP_PARSE_END)
			outcome = COMPLETE;
		else if (event == HTTP_PARSE_ERROR)
			outcome = REFUSED;
		else
			must(event == HTTP_PARSE_MORE && at == limit);
	}
	*ret_end = at;
	arena_release(&arena);
	return outcome;
}

/* Chunks without extensions and trailers, read the simple way; false for everything else. */
static bool decode_plain(const char *wire, size_t len, struct buf *ret_body, size_t *ret_end)
{
	size_t at = 0;

	for (;;) {
		size_t chunk = 0, digits = 0;

		for (; at < len && hex_digit(wire[at]) >= 0; at++, digits++)
			chunk = chunk * 16 + (size_t)hex_digit(wire[at]);
		if (digits == 0 || digits > 7 || len - at < 2 || memcmp(wire + at, "\r\n", 2) != 0)
			return false;
		at += 2;
		if (len - at < chunk + 2 || memcmp(wire + at + chunk, "\r\n", 2) != 0)
			return false;
		must(buf_append(ret_body, wire + at, chunk) == 0);
		at += chunk + 2;
		if (chunk == 0)
			break;
	}
	*ret_end = at;
	return true;
}

static bool same(const struct buf *a, const struct buf *b)
{
	return str_equal(buf_str(a), buf_str(b));
}

static void write_and_read_back(const struct buf *body, size_t step)
{
	char line[HTTP_CHUNK_HEADER_BYTES];
	struct buf wire, again;
	struct str rest = buf_str(body);
	size_t end;

	buf_init(&wire, SIZE_MAX / 2);
	buf_init(&again, SIZE_MAX / 2);
	while (rest.len) {
		size_t piece = size_min(rest.len, step);

		must(buf_append(&wire, line, http_write_chunk_header(line, piece)) == 0);
		must(buf_append(&wire, rest.p, piece) == 0 && buf_append(&wire, "\r\n", 2) == 0);
		rest.p += piece;
		rest.len -= piece;
	}
	must(buf_append(&wire, "0\r\n\r\n", 5) == 0);
	must(decode(buf_str(&wire).p, buf_length(&wire), step * 3 + 1, true, &again, &end) ==
	     COMPLETE);
	must(end == buf_length(&wire) && same(body, &again));
	buf_fini(&wire);
	buf_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *wire = (const char *)data + 1;
	struct buf whole, cut, joined, plain;
	size_t whole_end, cut_end, joined_end, plain_end;
	enum outcome outcome;

	if (size < 2 || size > 1 << 16)
		return 0;
	buf_init(&whole, SIZE_MAX / 2);
	buf_init(&cut, SIZE_MAX / 2);
	buf_init(&joined, SIZE_MAX / 2);
	buf_init(&plain, SIZE_MAX / 2);
	size--;
	outcome = decode(wire, size, size, false, &whole, &whole_end);
	must(decode(wire, size, 1 + data[0] % 16, false, &cut, &cut_end) == outcome);
	must(decode(wire, size, 1 + data[0], true, &joined, &joined_end) == outcome);
	if (outcome == COMPLETE) {
		must(same(&whole, &cut) && same(&whole, &joined));
		must(whole_end == cut_end && whole_end == joined_end);
		write_and_read_back(&whole, 1 + data[0]);
	}
	if (decode_plain(wire, size, &plain, &plain_end) && outcome != REFUSED)
		must(outcome == COMPLETE && same(&whole, &plain) && whole_end == plain_end);
	buf_fini(&whole);
	buf_fini(&cut);
	buf_fini(&joined);
	buf_fini(&plain);
	return 0;
}
