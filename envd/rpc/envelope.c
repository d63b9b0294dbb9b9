#include "envd/rpc/envelope.h"

void envelope_reader_init(struct envelope_reader *r, size_t length_max)
{
	*r = (struct envelope_reader){.length_max = length_max};
	buf_init(&r->payload, 0);
}

void envelope_reader_fini(struct envelope_reader *r)
{
	buf_fini(&r->payload);
}

void envelope_next(struct envelope_reader *r)
{
	buf_reset(&r->payload);
	r->prefix_len = 0;
}

static int take_prefix(struct envelope_reader *r, struct err *err)
{
	const unsigned char *p = r->prefix;

	r->length = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
	if (r->length > r->length_max)
		return err_set(err, ERR_RESOURCE_EXHAUSTED,
			       "message size %zu is larger than configured max %zu", r->length,
			       r->length_max);
	r->payload.max = r->length;
	return 0;
}

int envelope_feed(struct envelope_reader *r, const char *data, size_t len, size_t *ret_taken,
		  struct err *err)
{
	size_t taken = 0;
	size_t wanted;

	*ret_taken = 0;
	while (r->prefix_len < ENVELOPE_PREFIX_BYTES) {
		if (taken == len) {
			*ret_taken = taken;
			return 0;
		}
		r->prefix[r->prefix_len++] = (unsigned char)data[taken++];
		if (r->prefix_len == ENVELOPE_PREFIX_BYTES && take_prefix(r, err) < 0)
			return -EMSGSIZE;
	}
	wanted = size_min(r->length - buf_length(&r->payload), len - taken);
	if (buf_append(&r->payload, data + taken, wanted) < 0) {
		err_set(err, ERR_RESOURCE_EXHAUSTED, "no memory for a message of %zu bytes",
			r->length);
		return -ENOMEM;
	}
	*ret_taken = taken + wanted;
	return buf_length(&r->payload) == r->length;
}

void envelope_set_truncated(const struct envelope_reader *r, struct err *err)
{
	if (r->prefix_len < ENVELOPE_PREFIX_BYTES)
		err_set(err, ERR_INVALID_ARGUMENT,
			"protocol error: incomplete envelope: unexpected EOF");
	else
		err_set(err, ERR_INVALID_ARGUMENT,
			"protocol error: promised %zu bytes in enveloped message, got %zu bytes",
			r->length, buf_length(&r->payload));
}

void envelope_write_prefix(char *prefix, unsigned flags, size_t length)
{
	prefix[0] = (char)flags;
	prefix[1] = (char)(length >> 24);
	prefix[2] = (char)(length >> 16);
	prefix[3] = (char)(length >> 8);
	prefix[4] = (char)length;
}
