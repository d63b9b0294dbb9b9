/* The request side of calls: content types, headers, decoding. */
#include "envd/limits.h"
#include "envd/rpc/binary.h"
#include "envd/rpc/call.h"
#include "envd/rpc/gzip.h"
#include "envd/rpc/json_decode.h"
#include "lib/accept_encoding.h"

static const struct {
	struct str name;
	enum rpc_codec codec;
	bool streaming;
} content_types[] = {
	{{"application/json", 16}, RPC_JSON, false},
	{{"application/proto", 17}, RPC_BINARY, false},
	{{"application/connect+json", 24}, RPC_JSON, true},
	{{"application/connect+proto", 25}, RPC_BINARY, true},
};

/* The only parameter there is: charset=utf-8, for JSON. */
static bool is_utf8_charset(struct str parameter)
{
	struct str name = {NULL, 0}, value = str_trim(parameter);

	if (!str_split(&value, '=', &name) || !str_equal_nocase(str_trim(name), STR("charset")))
		return false;
	value = str_trim(value);
	return str_equal_nocase(value, STR("utf-8")) || str_equal_nocase(value, STR("\"utf-8\""));
}

bool request_content(const struct http_exchange *ex, struct rpc_content *ret_content)
{
	struct str rest = http_headers_get(&ex->request.headers, STR("Content-Type"));
	struct str name;

	if (!str_split(&rest, ';', &name))
		return false;
	name = str_trim(name);
	rest = str_trim(rest);
	for (size_t i = 0; i < ARRAY_LENGTH(content_types); i++) {
		if (!str_equal_nocase(name, content_types[i].name))
			continue;
		*ret_content = (struct rpc_content){.codec = content_types[i].codec,
						    .streaming = content_types[i].streaming,
						    .charset = rest.len > 0};
		return rest.len == 0 ||
		       (content_types[i].codec == RPC_JSON && is_utf8_charset(rest));
	}
	return false;
}

static int fail_timeout(struct str value, struct err *err)
{
	return err_set(err, ERR_INVALID_ARGUMENT,
		       "parse timeout: strconv.ParseInt: parsing \"%.*s\": invalid syntax",
		       (int)size_min(value.len, 64), value.p);
}

/*
 * Milliseconds; a fraction, as some Python clients send it, is rounded. Absent and 0 both mean no
 * limit: clients use 0 for that. A negative value would be a deadline in the past for a process
 * that nothing then ends, so it is refused.
 */
static int read_timeout(struct call *c, struct err *err)
{
	const struct http_headers *headers = &c->base.exchange->request.headers;
	struct str value = str_trim(http_headers_get(headers, STR("Connect-Timeout-Ms")));
	struct str rest = value, whole;
	bool above = false, half = false;
	uint64_t ms;

	if (http_headers_count(headers, STR("Connect-Timeout-Ms")) == 0)
		return 0;
	if (!str_split(&rest, '.', &whole))
		return fail_timeout(value, err);
	if (whole.len > RPC_TIMEOUT_DIGITS_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "parse timeout: \"%.*s\" has >%d digits",
			       (int)size_min(value.len, 64), value.p, RPC_TIMEOUT_DIGITS_MAX);
	if (str_to_u64(whole, UINT64_MAX, &ms) < 0 || (whole.len < value.len && rest.len == 0))
		return fail_timeout(value, err);
	for (size_t i = 0; i < rest.len; i++) {
		if (rest.p[i] < '0' || rest.p[i] > '9')
			return fail_timeout(value, err);
		above = above || rest.p[i] != '0';
		half = half || (i == 0 && rest.p[i] >= '5');
	}
	/* Less than half a millisecond is a limit still. */
	c->base.timeout_ms = ms + (half || (ms == 0 && above));
	if (c->base.timeout_ms > 0)
		c->base.deadline_ms = loop_now_ms(c->base.loop) + c->base.timeout_ms;
	return 0;
}

static unsigned read_keepalive(const struct http_headers *headers)
{
	struct str value = str_trim(http_headers_get(headers, STR("Keepalive-Ping-Interval")));
	uint64_t seconds;
	int status = str_to_u64(value, RPC_KEEPALIVE_MAX_S, &seconds);

	if (status == -ERANGE)
		return RPC_KEEPALIVE_MAX_S;
	return status < 0 || seconds == 0 ? RPC_KEEPALIVE_DEFAULT_S : (unsigned)seconds;
}

static int read_compression(struct call *c, struct err *err)
{
	struct str value = str_trim(http_headers_get(
		&c->base.exchange->request.headers,
		c->content.streaming ? STR("Connect-Content-Encoding") : STR("Content-Encoding")));

	if (value.len == 0 || str_equal_nocase(value, STR("identity")))
		return 0;
	if (!str_equal_nocase(value, STR("gzip")))
		return err_set(err, ERR_UNIMPLEMENTED,
			       "unknown compression \"%.*s\": supported encodings are gzip",
			       (int)size_min(value.len, 64), value.p);
	c->gzip = true;
	return 0;
}

int request_read_headers(struct call *c, struct err *err)
{
	const struct http_headers *headers = &c->base.exchange->request.headers;
	struct str version = str_trim(http_headers_get(headers, STR("Connect-Protocol-Version")));
	bool takes_plain;
	int status;

	c->base.keepalive_s = read_keepalive(headers);
	c->takes_gzip = !c->content.streaming &&
			accept_encoding_choose(http_headers_get(headers, STR("Accept-Encoding")),
					       &takes_plain) == ACCEPT_GZIP;
	c->base.legacy_client = str_equal(http_headers_get(headers, STR("User-Agent")),
					  STR("connect-python"));
	if (version.len > 0 && !str_equal(version, STR("1")))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "Connect-Protocol-Version must be \"1\": got \"%.*s\"",
			       (int)size_min(version.len, 64), version.p);
	status = read_timeout(c, err);
	return status < 0 ? status : read_compression(c, err);
}

int request_set_crowded(struct err *err)
{
	return err_set(err, ERR_RESOURCE_EXHAUSTED,
		       "other calls hold the memory for large messages, try again");
}

/* The tree is given back before the handler runs. Small texts' trees, of which there are no more at
 * a time than threads, are not counted. */
static int decode_json(struct call *c, struct str text, ProtobufCMessage **ret_message,
		       struct err *err)
{
	const struct json_value *value;
	struct arena tree;
	struct share share;
	int status;

	if (text.len == 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "zero-length payload is not a valid JSON object");
	share_init(&share, c->message_share.budget,
		   text.len <= RPC_DECODE_INLINE_BYTES ? RPC_ARENA_BYTES : 0);
	arena_init_shared(&tree, RPC_ARENA_BYTES, &share);
	status = json_parse(text, &tree, &value, err);
	if (status == 0)
		status = json_decode(c->base.method->input, value, &c->message_arena, ret_message,
				     err);
	arena_release(&tree);
	return share.refused ? request_set_crowded(err) : status;
}

static int decode(struct call *c, struct str bytes, struct err *err)
{
	ProtobufCMessage *message;
	int status = c->content.codec == RPC_JSON ? decode_json(c, bytes, &message, err)
						  : binary_decode(c->base.method->input, bytes,
								  &c->message_arena, &message, err);

	if (status < 0) {
		if (c->message_share.refused)
			request_set_crowded(err);
		arena_release(&c->message_arena);
		err_wrap(err, "unmarshal message");
		return status;
	}
	c->message = message;
	return 0;
}

int request_decode(struct call *c, struct str bytes, bool compressed, struct err *err)
{
	struct share share;
	struct buf text;
	int status;

	if (!compressed)
		return decode(c, bytes, err);
	buf_init(&text, RPC_MESSAGE_BYTES_MAX);
	share_init(&share, c->message_share.budget, RPC_MESSAGE_EXEMPT_BYTES);
	status = gzip_inflate(bytes, &text, &share, err);
	if (status == 0)
		status = decode(c, buf_str(&text), err);
	else if (share.refused)
		request_set_crowded(err);
	buf_fini(&text);
	share_release(&share);
	return status;
}

int request_check_envelope(const struct call *c, bool *ret_compressed, struct err *err)
{
	unsigned flags = envelope_flags(&c->reader);

	if (flags & ~(unsigned)ENVELOPE_COMPRESSED)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "protocol error: invalid envelope flags %u", flags);
	if ((flags & ENVELOPE_COMPRESSED) && !c->gzip)
		return err_set(
			err, ERR_INTERNAL,
			"protocol error: sent compressed message without compression support");
	/* An empty message is never compressed. */
	*ret_compressed = (flags & ENVELOPE_COMPRESSED) && envelope_payload(&c->reader).len > 0;
	return 0;
}
