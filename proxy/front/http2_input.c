/*
 * What comes in. nghttp2 reads the frames; what it passes over in silence (DATA of closed streams,
 * unknown frames) is work all the same, so every frame's header is looked at here first.
 */
#include "proxy/front/http2_private.h"
#include "proxy/relay/clients.h"

/* For a stream that has been reset: nghttp2 reads the rest of the head for its table alone, and
 * does not look at every byte of every field. */
#define IGNORE_HEAD NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE

const uint8_t http2_drain_mark[8] = {'d', 'r', 'a', 'i', 'n', 0, 0, 0};

/* DATA that comes in small pieces costs its handler a call per roomful. */
static void empty_room(struct http2_session *s)
{
	struct http2_stream *x = s->room_of;
	size_t len = s->room_len;

	s->room_of = NULL;
	s->room_len = 0;
	if (x && len)
		http2_stream_receive(x, s->room, len);
}

static int on_begin_headers(nghttp2_session *nghttp2, const nghttp2_frame *frame, void *user)
{
	/* Everybody gets its turn, whatever a client asks for: no stream waits for another's
	 * end. */
	static const nghttp2_extpri in_turns = {.urgency = NGHTTP2_EXTPRI_DEFAULT_URGENCY,
						.inc = 1};
	struct http2_session *s = user;
	struct http2_stream *x;

	if (frame->headers.cat != NGHTTP2_HCAT_REQUEST || s->failed)
		return 0;
	if (s->stream_count >= HTTP2_STREAMS_MAX || clients_is_flooding(s->stream->peer)) {
		counter_add(s->stream_count >= HTTP2_STREAMS_MAX ? &s->counters->refused
								 : &s->counters->shares_refused);
		if (http2_spend_reset(s))
			nghttp2_submit_rst_stream(nghttp2, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
						  NGHTTP2_REFUSED_STREAM);
		return IGNORE_HEAD;
	}
	x = http2_stream_new(s, frame->hd.stream_id);
	nghttp2_session_set_stream_user_data(nghttp2, x->id, x);
	/* With clients that have not given up the old priorities those count, and nghttp2 1.52
	 * asserts that a stream with dependents (it may be born as the parent of busy ones) is not
	 * given a new one. */
	if (nghttp2_session_get_remote_settings(nghttp2, NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES) ==
	    1)
		nghttp2_session_change_extpri_stream_priority(nghttp2, x->id, &in_turns, 1);
	return 0;
}

/* Counts what the head takes. False when that is too much. */
static bool has_room(struct http2_stream *x)
{
	struct http2_session *s = x->session;

	s->head_bytes += x->ex.arena.used - x->head_bytes;
	x->head_bytes = x->ex.arena.used;
	return !x->ex.heads.refused && s->head_bytes <= HTTP2_HEADS_BYTES_MAX;
}

static int on_header(nghttp2_session *nghttp2, const nghttp2_frame *frame, nghttp2_rcbuf *name,
		     nghttp2_rcbuf *value, uint8_t flags, void *user)
{
	struct http2_session *s = user;
	struct http2_stream *x = http2_find(s, frame->hd.stream_id);

	(void)nghttp2;
	(void)flags;
	if (!x || x->ex.closed)
		return 0;
	if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
		if (!http2_request_add_trailer(x, name, value))
			http2_stream_reset(x, x->ex.heads.refused ? NGHTTP2_ENHANCE_YOUR_CALM
								  : NGHTTP2_PROTOCOL_ERROR);
		return 0;
	}
	if (http2_request_add(x, name, value)) {
		if (has_room(x))
			return 0;
		http2_stream_refuse_head(x);
		return IGNORE_HEAD;
	}
	http2_refuse(s, NGHTTP2_ENHANCE_YOUR_CALM, "a message head out of all proportion");
	return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

/* Left to itself, nghttp2 would pass over values with control characters. */
static int on_invalid_header(nghttp2_session *nghttp2, const nghttp2_frame *frame,
			     nghttp2_rcbuf *name, nghttp2_rcbuf *value, uint8_t flags, void *user)
{
	(void)nghttp2;
	(void)frame;
	(void)name;
	(void)value;
	(void)flags;
	(void)user;
	return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static int on_data(nghttp2_session *nghttp2, uint8_t flags, int32_t id, const uint8_t *data,
		   size_t len, void *user)
{
	struct http2_session *s = user;
	struct http2_stream *x = http2_find(s, id);

	(void)flags;
	if (!x) {
		nghttp2_session_consume(nghttp2, id, len);
		return 0;
	}
	if (s->room_of != x || s->room_len + len > HTTP2_ROOM_BYTES)
		empty_room(s);
	if (len > HTTP2_ROOM_BYTES / 4) {
		empty_room(s);
		http2_stream_receive(x, (const char *)data, len);
		return 0;
	}
	memcpy(s->room + s->room_len, data, len);
	s->room_len += len;
	s->room_of = x;
	return 0;
}

static void on_headers_received(struct http2_session *s, const nghttp2_frame *frame)
{
	struct http2_stream *x = http2_find(s, frame->hd.stream_id);
	bool last = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;

	if (!x || s->failed || (x->ex.closed && !x->dispatched))
		return;
	if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
		x->request_complete = last;
		http2_stream_dispatch(x);
	}
	if (last)
		http2_stream_receive_end(x);
}

static int on_frame_received(nghttp2_session *nghttp2, const nghttp2_frame *frame, void *user)
{
	struct http2_session *s = user;
	struct http2_stream *x;

	(void)nghttp2;
	if (s->room_of)
		empty_room(s);
	switch (frame->hd.type) {
	case NGHTTP2_HEADERS:
		on_headers_received(s, frame);
		break;
	case NGHTTP2_DATA:
		x = http2_find(s, frame->hd.stream_id);
		if (x && frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
			http2_stream_receive_end(x);
		break;
	case NGHTTP2_RST_STREAM:
		x = http2_find(s, frame->hd.stream_id);
		if (!x || x->ex.closed)
			break;
		x->client_reset = true;
		/* Who has seen the answer begin and leaves has cost what any request costs. */
		if (!x->begun)
			http2_spend_reset(s);
		break;
	case NGHTTP2_SETTINGS:
		s->greeted |= !(frame->hd.flags & NGHTTP2_FLAG_ACK);
		break;
	case NGHTTP2_PING:
		if (frame->hd.flags & NGHTTP2_FLAG_ACK && s->draining &&
		    memcmp(frame->ping.opaque_data, http2_drain_mark, sizeof(http2_drain_mark)) ==
			    0)
			http2_finish_drain(s);
		break;
	default:
		break;
	}
	return 0;
}

static void fail_reading(struct http2_session *s, int error)
{
	switch (error) {
	case NGHTTP2_ERR_NOMEM:
		s->broken = s->broken ? s->broken : -ENOMEM;
		break;
	case NGHTTP2_ERR_FLOODED:
	case NGHTTP2_ERR_TOO_MANY_CONTINUATIONS:
		http2_refuse(s, NGHTTP2_ENHANCE_YOUR_CALM, "flooded");
		break;
	default:
		http2_refuse(s, NGHTTP2_PROTOCOL_ERROR, "not HTTP/2");
		break;
	}
}

static void feed(struct http2_session *s, const char *data, size_t len)
{
	ssize_t used = nghttp2_session_mem_recv(s->nghttp2, (const uint8_t *)data, len);

	if (used < 0)
		fail_reading(s, (int)used);
}

/* ---- frame headers ---- */

struct frame {
	size_t length;
	uint32_t id;
	uint8_t type, flags;
};

static struct frame unpack(const unsigned char *header)
{
	return (struct frame){
		.length = (size_t)header[0] << 16 | (size_t)header[1] << 8 | header[2],
		.type = header[3],
		.flags = header[4],
		.id = (uint32_t)(header[5] & 0x7F) << 24 | (uint32_t)header[6] << 16 |
		      (uint32_t)header[7] << 8 | header[8],
	};
}

static bool is_control(const struct frame *frame)
{
	switch (frame->type) {
	case NGHTTP2_HEADERS:
	case NGHTTP2_CONTINUATION: /* nghttp2 counts these */
		return false;
	case NGHTTP2_DATA:
		return frame->length == 0 && !(frame->flags & NGHTTP2_FLAG_END_STREAM);
	default:
		return true;
	}
}

static bool is_open(const struct http2_session *s, const struct frame *frame)
{
	nghttp2_stream *stream = nghttp2_session_find_stream(s->nghttp2, (int32_t)frame->id);

	/* Some that are closed it keeps, for the tree of the old priorities. */
	return stream && nghttp2_stream_get_state(stream) != NGHTTP2_STREAM_STATE_CLOSED;
}

static void judge_stream(struct http2_session *s, const struct frame *frame)
{
	uint32_t error;

	if (s->draining || s->failed || is_open(s, frame))
		return;
	error = http2_past_judge(s, (int32_t)frame->id);
	if (error != NGHTTP2_NO_ERROR)
		http2_refuse(s, error, "a frame for a stream that is over");
}

/* `before`: what comes before this frame and nghttp2 has not seen. True when it has now. */
static bool look_at_frame(struct http2_session *s, struct str before)
{
	struct frame frame = unpack(s->frame);
	bool fed = false;

	s->skip = frame.length;
	if (frame.type == NGHTTP2_HEADERS && frame.id > s->newest_id) {
		s->newest_id = frame.id;
	} else if ((frame.type == NGHTTP2_HEADERS || frame.type == NGHTTP2_DATA) &&
		   frame.id <= s->newest_id && (s->reset_unread || !is_open(s, &frame))) {
		feed(s, before.p, before.len);
		fed = true;
		s->reset_unread = false;
		judge_stream(s, &frame);
	} else if (frame.type == NGHTTP2_RST_STREAM) {
		s->reset_unread = true;
		if (!is_open(s, &frame))
			http2_past_reset(s, (int32_t)frame.id);
	}
	if (is_control(&frame) && !http2_budget_spend(&s->control, s->last_read_ms,
						      HTTP2_CONTROL_BURST, HTTP2_CONTROL_PER_S))
		http2_refuse(s, NGHTTP2_ENHANCE_YOUR_CALM, "too many control frames");
	return fed;
}

static void read_frames(struct http2_session *s, const char *data, size_t len)
{
	size_t at = 0, fed = 0, now;

	while (at < len && !s->failed) {
		size_t begin;

		now = size_min(s->skip, len - at);
		s->skip -= now;
		at += now;
		if (s->skip || at == len)
			break;
		begin = at;
		now = size_min(sizeof(s->frame) - s->frame_len, len - at);
		memcpy(s->frame + s->frame_len, data + at, now);
		s->frame_len += now;
		at += now;
		if (s->frame_len < sizeof(s->frame))
			break;
		s->frame_len = 0;
		if (look_at_frame(s, (struct str){data + fed, begin - fed}))
			fed = begin;
	}
	if (!s->failed)
		feed(s, data + fed, len - fed);
	s->reset_unread = s->reset_unread && s->skip > 0;
}

void http2_read(struct http2_session *s, const char *data, size_t len)
{
	char room[HTTP2_ROOM_BYTES];

	if (s->failed || s->state != HTTP2_SERVING)
		return;
	s->busy = true;
	s->room = room;
	read_frames(s, data, len);
	empty_room(s);
	s->room = NULL;
	s->busy = false;
}

void http2_input_set_callbacks(nghttp2_session_callbacks *callbacks)
{
	nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
	nghttp2_session_callbacks_set_on_header_callback2(callbacks, on_header);
	nghttp2_session_callbacks_set_on_invalid_header_callback2(callbacks, on_invalid_header);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
	nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_received);
}
