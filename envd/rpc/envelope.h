/*
 * The frames of Connect streams: one byte of flags, the length in four bytes, the payload
 * (contract/envd.md 4.1). Reading is incremental: bytes may be cut anywhere. The length is checked
 * before anything is stored, and memory grows with what has arrived, not with what was promised.
 */
#ifndef ENVD_RPC_ENVELOPE_H
#define ENVD_RPC_ENVELOPE_H

#include "lib/buf.h"
#include "lib/err.h"

#define ENVELOPE_PREFIX_BYTES 5
#define ENVELOPE_COMPRESSED 0x01
#define ENVELOPE_END_STREAM 0x02

struct envelope_reader {
	unsigned char prefix[ENVELOPE_PREFIX_BYTES];
	unsigned prefix_len;
	size_t length; /* of the payload, once the prefix is complete */
	size_t length_max;
	struct buf payload;
};

void envelope_reader_init(struct envelope_reader *r, size_t length_max);
void envelope_reader_fini(struct envelope_reader *r);
/* Takes bytes of at most one envelope and says how many. 1: an envelope is complete; its flags and
 * payload can be read until envelope_next. 0: more bytes are needed. Negative: err is filled with
 * resource_exhausted. */
int envelope_feed(struct envelope_reader *r, const char *data, size_t len, size_t *ret_taken,
		  struct err *err) NODISCARD;
static inline unsigned envelope_flags(const struct envelope_reader *r)
{
	return r->prefix[0];
}
static inline struct str envelope_payload(const struct envelope_reader *r)
{
	return buf_str(&r->payload);
}
/* Forgets the complete envelope and its memory; the next one begins. */
void envelope_next(struct envelope_reader *r);
/* True between envelopes: the stream may end here. */
static inline bool envelope_is_between(const struct envelope_reader *r)
{
	return r->prefix_len == 0;
}
/* What to say about a stream that ended inside an envelope. */
void envelope_set_truncated(const struct envelope_reader *r, struct err *err);

void envelope_write_prefix(char *prefix, unsigned flags, size_t length);

#endif
