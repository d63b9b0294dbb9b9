/*
 * Frames for streams that are over. Those that we reset may still have some under way; those that
 * the client ended or reset have none, and one that was passed over was never opened (RFC 9113
 * sections 5.1 and 5.1.1). nghttp2 forgets streams once they are closed; the last few are
 * remembered here.
 */
#include "proxy/front/http2_private.h"

void http2_past_add(struct http2_session *s, int32_t id, enum http2_ending ending)
{
	s->past[s->past_count++ % HTTP2_PAST_MAX] = (uint32_t)id << 2 | ending;
}

void http2_past_reset(struct http2_session *s, int32_t id)
{
	uint32_t known = s->past_count < HTTP2_PAST_MAX ? s->past_count : HTTP2_PAST_MAX;

	for (uint32_t i = 0; i < known; i++)
		if (s->past[i] >> 2 == (uint32_t)id)
			s->past[i] = (uint32_t)id << 2 | HTTP2_RESET_BY_CLIENT;
}

uint32_t http2_past_judge(const struct http2_session *s, int32_t id)
{
	uint32_t known = s->past_count < HTTP2_PAST_MAX ? s->past_count : HTTP2_PAST_MAX;
	uint32_t oldest = s->past_count <= HTTP2_PAST_MAX ? 0 : UINT32_MAX;

	if (id % 2 == 0)
		return NGHTTP2_NO_ERROR; /* nghttp2 knows that these are not the client's */
	for (uint32_t i = 0; i < known; i++) {
		uint32_t past_id = s->past[i] >> 2;

		if (past_id == (uint32_t)id)
			return (s->past[i] & 3) == HTTP2_RESET_BY_US ? NGHTTP2_NO_ERROR
								     : NGHTTP2_STREAM_CLOSED;
		if (past_id < oldest)
			oldest = past_id;
	}
	return (uint32_t)id > oldest ? NGHTTP2_PROTOCOL_ERROR : NGHTTP2_NO_ERROR;
}
