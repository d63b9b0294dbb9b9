/*
 * What goes out. nghttp2 decides which frame is next (streams take turns); here frames are joined
 * into one write per turn of the loop. Bodies are not copied on the way: a write gathers pieces of
 * the session's buffer (frame headers, small frames) and of the streams' buffers.
 */
#include "proxy/front/http2_private.h"

/* Less than this is copied next to its frame header. */
#define COPY_BYTES_MAX 1024
/* An empty buffer that is larger gives its memory back. */
#define KEPT_BYTES_MAX (4 * 1024)
#define FRAME_HEADER_BYTES 9

#define FRAME_TYPE_SETTINGS 4
#define SETTING_BYTES 6

static void break_session(struct http2_session *s, int status)
{
	if (!s->broken)
		s->broken = status;
	http2_poke(s);
}

static void write_gathered(struct http2_session *s)
{
	struct iovec pieces[HTTP2_PIECES_MAX];
	const char *own = buf_data(&s->own);
	int status;

	if (s->piece_count == 0)
		return;
	for (size_t i = 0; i < s->piece_count; i++) {
		const struct http2_piece *piece = &s->pieces[i];

		pieces[i].iov_base = (void *)(piece->p ? piece->p : own + piece->offset);
		pieces[i].iov_len = piece->len;
		s->written += piece->len;
	}
	status = stream_write(s->stream, pieces, s->piece_count);
	s->piece_count = s->gathered = 0;
	buf_clear(&s->own);
	if (status < 0)
		break_session(s, status);
	else if (status == STREAM_FULL)
		s->full = true;
}

static bool is_blocked(const struct http2_session *s)
{
	return s->full || s->broken;
}

/* Room for one more frame of `len` bytes, in `count` pieces. */
static void make_room(struct http2_session *s, size_t len, size_t count)
{
	if (s->piece_count + count > HTTP2_PIECES_MAX || s->gathered + len > HTTP2_WRITE_BYTES)
		write_gathered(s);
}

static int gather_own(struct http2_session *s, const void *data, size_t len)
{
	struct http2_piece *last = s->piece_count ? &s->pieces[s->piece_count - 1] : NULL;
	size_t offset = buf_length(&s->own);

	if (buf_append(&s->own, data, len) < 0) {
		break_session(s, -ENOMEM);
		return -ENOMEM;
	}
	if (last && !last->p && last->offset + last->len == offset)
		last->len += len;
	else
		s->pieces[s->piece_count++] = (struct http2_piece){NULL, offset, len};
	s->gathered += len;
	return 0;
}

static int gather(struct http2_session *s, const char *p, size_t len)
{
	if (len <= COPY_BYTES_MAX)
		return len ? gather_own(s, p, len) : 0;
	s->pieces[s->piece_count++] = (struct http2_piece){p, 0, len};
	s->gathered += len;
	return 0;
}

/*
 * nghttp2 ends the connection when a client opens more streams than it was allowed; here such a
 * stream alone is refused, so nghttp2 was told a larger number than the client is.
 */
static void correct_settings(uint8_t *frame, size_t len)
{
	for (size_t at = FRAME_HEADER_BYTES; at + SETTING_BYTES <= len; at += SETTING_BYTES) {
		uint32_t value = HTTP2_STREAMS_MAX;

		if (frame[at] != 0 || frame[at + 1] != NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS)
			continue;
		for (size_t i = 0; i < 4; i++)
			frame[at + 2 + i] = (uint8_t)(value >> (24 - 8 * i));
	}
}

static ssize_t on_send(nghttp2_session *nghttp2, const uint8_t *data, size_t len, int flags,
		       void *user)
{
	struct http2_session *s = user;
	uint8_t settings[FRAME_HEADER_BYTES + 16 * SETTING_BYTES];

	(void)nghttp2;
	(void)flags;
	if (is_blocked(s))
		return NGHTTP2_ERR_WOULDBLOCK;
	make_room(s, len, 1);
	if (!s->settled && len <= sizeof(settings) && data[3] == FRAME_TYPE_SETTINGS) {
		memcpy(settings, data, len);
		correct_settings(settings, len);
		data = settings;
		s->settled = true;
	}
	return gather_own(s, data, len) < 0 ? NGHTTP2_ERR_CALLBACK_FAILURE : (ssize_t)len;
}

static size_t body_left(const struct http2_stream *x)
{
	return buf_length(&x->out) + x->direct_len;
}

/* The next `len` bytes of the body, first those that have waited, then those being written. */
static int gather_body(struct http2_stream *x, size_t len)
{
	struct http2_session *s = x->session;
	size_t waited = size_min(len, buf_length(&x->out));

	if (waited) {
		if (gather(s, buf_data(&x->out), waited) < 0)
			return -ENOMEM;
		buf_consume(&x->out, waited); /* the memory stays until the write is made */
		len -= waited;
	}
	while (len) {
		const struct iovec *piece = x->direct;
		size_t now = size_min(len, piece->iov_len - x->direct_skip);

		if (s->piece_count + 1 >= HTTP2_PIECES_MAX)
			write_gathered(s);
		if (gather(s, (const char *)piece->iov_base + x->direct_skip, now) < 0)
			return -ENOMEM;
		len -= now;
		x->direct_len -= now;
		x->direct_skip += now;
		if (x->direct_skip == piece->iov_len) {
			x->direct++;
			x->direct_skip = 0;
		}
	}
	return 0;
}

static int on_send_data(nghttp2_session *nghttp2, nghttp2_frame *frame, const uint8_t *header,
			size_t len, nghttp2_data_source *source, void *user)
{
	struct http2_session *s = user;
	struct http2_stream *x = source->ptr;

	(void)nghttp2;
	if (is_blocked(s))
		return NGHTTP2_ERR_WOULDBLOCK;
	assert(frame->data.padlen == 0 && len <= body_left(x));
	make_room(s, FRAME_HEADER_BYTES + len, 3);
	if (gather_own(s, header, FRAME_HEADER_BYTES) < 0 || gather_body(x, len) < 0)
		return NGHTTP2_ERR_CALLBACK_FAILURE;
	http2_budget_earn(&s->control, len * 1000 / HTTP2_CONTROL_PER_BYTES);
	if (buf_length(&x->out) <= HTTP2_STREAM_LOW_MARK_BYTES &&
	    (x->full || x->out.capacity > KEPT_BYTES_MAX))
		http2_mark(x);
	return 0;
}

static nghttp2_nv nv_of(const struct http_header *field)
{
	return (nghttp2_nv){(uint8_t *)field->name.p, (uint8_t *)field->value.p, field->name.len,
			    field->value.len, NGHTTP2_NV_FLAG_NONE};
}

static int submit_trailers(struct http2_stream *x)
{
	nghttp2_nv fields[HTTP_TRAILERS_MAX];
	size_t count = size_min(x->trailers.count, HTTP_TRAILERS_MAX);

	for (size_t i = 0; i < count; i++)
		fields[i] = nv_of(&x->trailers.items[i]);
	return nghttp2_submit_trailer(x->session->nghttp2, x->id, fields, count);
}

/* No more bytes follow those there are; with a length that shows before the maker says so. */
static bool is_complete(const struct http2_stream *x)
{
	return x->ended || (x->length >= 0 && x->ex.sent == (uint64_t)x->length);
}

void http2_wake_body(struct http2_stream *x)
{
	if (x->deferred)
		nghttp2_session_resume_data(x->session->nghttp2, x->id);
	x->deferred = false;
}

ssize_t http2_read_body(nghttp2_session *nghttp2, int32_t id, uint8_t *buf, size_t len,
			uint32_t *flags, nghttp2_data_source *source, void *user)
{
	struct http2_stream *x = source->ptr;
	size_t left = body_left(x);

	(void)nghttp2;
	(void)id;
	(void)buf;
	(void)user;
	if (left == 0 && !is_complete(x)) {
		x->deferred = true;
		return NGHTTP2_ERR_DEFERRED;
	}
	*flags |= NGHTTP2_DATA_FLAG_NO_COPY;
	if (left > len)
		return (ssize_t)len;
	if (is_complete(x)) {
		*flags |= NGHTTP2_DATA_FLAG_EOF;
		if (x->trailers.count) {
			*flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
			if (submit_trailers(x) < 0)
				return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
		}
	}
	return (ssize_t)left;
}

void http2_output_set_callbacks(nghttp2_session_callbacks *callbacks)
{
	nghttp2_session_callbacks_set_send_callback(callbacks, on_send);
	nghttp2_session_callbacks_set_send_data_callback(callbacks, on_send_data);
}

void http2_flush(struct http2_session *s)
{
	struct http2_piece pieces[HTTP2_PIECES_MAX];

	assert(!s->busy);
	if (is_blocked(s))
		return;
	s->busy = true;
	s->pieces = pieces;
	if (nghttp2_session_send(s->nghttp2) < 0)
		break_session(s, -ENOMEM);
	write_gathered(s);
	s->pieces = NULL;
	s->busy = false;
	if (s->own.capacity > KEPT_BYTES_MAX || s->stream_count == 0)
		buf_reset(&s->own);
}
