#include "lib/http_client.h"

#include "lib/http_parse.h"
#include "lib/http_write.h"
#include "lib/limits.h"

/* With the head, a chunk header and a CR LF this fills what a stream takes at once. */
#define PIECES_MAX 12

struct http_client {
	struct loop *loop;
	struct stream *stream;
	const struct http_client_handler *handler;
	void *user;
	struct later later;
	uv_timer_t timer; /* against a server that takes nothing; opened when bytes first wait */
	struct arena arena;
	struct http_parser parser;
	struct http_response response;
	struct str upgrade; /* what was asked for */
	struct str head;    /* of the request, until it is sent */
	struct buf held;    /* arrived while paused */
	int64_t length;     /* of the request */
	uint64_t sent;      /* body bytes */
	uint64_t written, taken, taken_ms;
	size_t unread;      /* bytes behind what is being told right now */
	unsigned interims;
	int broken;         /* negative errno of the stream */
	int write_error;    /* the same of the writing side alone: the answer may still come */
	int status;         /* for on_closed */
	uint8_t handles;
	bool begun, request_ended, chunked, to_head, wants_continue, keep_alive;
	bool got_bytes, response_told, response_done, tunnel, end_told;
	bool paused, reading, eof, shut, stray;
	bool full, full_told; /* the stream is / the user was told */
	bool busy, closing, close_wanted, reset_wanted, detached, timer_running;
};

/* ---- the end ---- */

static void free_client(struct http_client *c)
{
	arena_release(&c->arena);
	buf_fini(&c->held);
	free(c);
}

static void release_handle(struct http_client *c)
{
	if (--c->handles)
		return;
	if (!c->detached && c->handler->on_closed)
		c->handler->on_closed(c, c->status);
	free_client(c);
}

static void on_stream_closed(struct stream *s)
{
	release_handle(s->user);
}

static void on_timer_closed(uv_handle_t *handle)
{
	release_handle(container_of(handle, struct http_client, timer));
}

static void close_timer(struct http_client *c)
{
	if (c->timer.data)
		uv_close((uv_handle_t *)&c->timer, on_timer_closed);
}

static void close_client(struct http_client *c, int status, bool reset)
{
	if (c->closing)
		return;
	c->closing = true;
	c->status = status;
	later_cancel(&c->later);
	buf_reset(&c->held);
	close_timer(c);
	stream_close(c->stream, reset);
}

static void poke(struct http_client *c)
{
	if (!c->busy && !c->closing)
		later_call(c->loop, &c->later);
}

/* ---- sending ---- */

static struct iovec piece_of(struct str s)
{
	return (struct iovec){.iov_base = (void *)s.p, .iov_len = s.len};
}

static int send_pieces(struct http_client *c, const struct iovec *pieces, size_t count)
{
	int status = c->write_error ? c->write_error : stream_write(c->stream, pieces, count);

	if (status < 0) {
		/* The server may have answered before it stopped reading (proxy.md S16). */
		c->write_error = status;
		return status;
	}
	for (size_t i = 0; i < count; i++)
		c->written += pieces[i].iov_len;
	if (status == STREAM_FULL)
		c->full = true;
	if (c->stream->queued)
		poke(c); /* to watch for a stall */
	return status;
}

static int send_body(struct http_client *c, const struct iovec *pieces, size_t count, size_t total)
{
	char chunk_header[HTTP_CHUNK_HEADER_BYTES];
	struct iovec all[PIECES_MAX + 3];
	size_t n = 0;

	if (c->head.len)
		all[n++] = piece_of(c->head);
	c->head.len = 0;
	if (c->chunked)
		all[n++] = (struct iovec){.iov_base = chunk_header,
					  .iov_len = http_write_chunk_header(chunk_header, total)};
	memcpy(all + n, pieces, count * sizeof(*pieces));
	n += count;
	if (c->chunked)
		all[n++] = piece_of(STR("\r\n"));
	return send_pieces(c, all, n);
}

static void flush_head(struct http_client *c)
{
	struct iovec piece = piece_of(c->head);

	if (!c->head.len)
		return;
	c->head.len = 0;
	(void)send_pieces(c, &piece, 1); /* a failure is remembered */
}

int http_client_send(struct http_client *c, const struct http_client_request *request)
{
	struct http_framing framing = {.length = request->length, .upgrade = request->upgrade};
	int status;

	if (c->closing)
		return -ECONNRESET;
	if (c->begun)
		return -EINVAL;
	if (request->upgrade.p)
		framing.connection = STR("Upgrade");
	else if (!request->keep_alive)
		framing.connection = STR("close");
	status = http_write_request_head(&c->arena, request->method, request->target,
					 &request->headers, &framing, &c->head);
	if (status < 0)
		return status;
	if (request->upgrade.p) {
		c->upgrade = arena_str(&c->arena, request->upgrade);
		if (!c->upgrade.p)
			return -ENOMEM;
	}
	c->begun = true;
	c->length = request->length;
	c->chunked = request->length == HTTP_LENGTH_CHUNKED;
	c->keep_alive = request->keep_alive;
	c->to_head = str_equal(request->method, STR("HEAD"));
	c->wants_continue = http_headers_get(&request->headers, STR("Expect")).p != NULL;
	http_parser_init_response(&c->parser, &c->arena, &c->response, c->to_head);
	if (request->length == HTTP_LENGTH_NONE || request->length == 0) {
		c->request_ended = true;
		flush_head(c);
		return c->write_error;
	}
	poke(c); /* sends the head if no body follows at once */
	return 0;
}

int http_client_write(struct http_client *c, const struct iovec *pieces, size_t count)
{
	size_t total = 0;
	int status = 0;

	if (c->closing)
		return -ECONNRESET;
	for (size_t i = 0; i < count; i++)
		total += pieces[i].iov_len;
	if (!c->begun || c->request_ended)
		return total ? -EINVAL : 0;
	if (!c->tunnel && c->length >= 0 && total > (uint64_t)c->length - c->sent)
		return -EMSGSIZE;
	while (count && total) {
		size_t len = 0, batch = size_min(count, PIECES_MAX);

		for (size_t i = 0; i < batch; i++)
			len += pieces[i].iov_len;
		status = len ? send_body(c, pieces, batch, len) : status;
		if (status < 0)
			return status;
		c->sent += len;
		pieces += batch;
		count -= batch;
	}
	if (c->full)
		c->full_told = true;
	return c->full ? STREAM_FULL : 0;
}

int http_client_end(struct http_client *c, const struct http_headers *trailers)
{
	struct iovec pieces[2];
	struct str last;
	size_t n = 0;
	int status = 0;

	if (c->closing)
		return -ECONNRESET;
	if (!c->begun)
		return -EINVAL;
	if (c->request_ended)
		return 0;
	if (!c->tunnel && c->length >= 0 && c->sent < (uint64_t)c->length)
		return -EINVAL;
	if (c->chunked && !c->tunnel) {
		status = http_write_last_chunk(&c->arena, trailers, &last);
		if (status < 0)
			return status;
	}
	if (c->head.len)
		pieces[n++] = piece_of(c->head);
	c->head.len = 0;
	if (c->chunked && !c->tunnel)
		pieces[n++] = piece_of(last);
	if (n)
		status = send_pieces(c, pieces, n);
	c->request_ended = true;
	if (c->tunnel)
		stream_shutdown(c->stream);
	poke(c);
	return status < 0 ? status : 0;
}

/* ---- receiving ---- */

static void use(struct http_client *c, struct str *in, size_t len)
{
	in->p += len;
	in->len -= len;
	c->unread = in->len;
}

/* The server switches to what was asked for and to nothing else (proxy.md S64). */
static bool is_wanted_upgrade(const struct http_client *c)
{
	struct str got = http_headers_get(&c->response.headers, STR("Upgrade"));

	return c->upgrade.p && got.p && str_list_has_token(c->upgrade, str_trim(got)) &&
	       http_headers_has_token(&c->response.headers, STR("Connection"), STR("upgrade"));
}

static bool take_head(struct http_client *c)
{
	int status = c->response.status;

	if (status == 101) {
		if (!is_wanted_upgrade(c)) {
			close_client(c, -EPROTO, true);
			return false;
		}
		c->tunnel = true;
		c->request_ended = c->chunked = false;
		c->response.length = HTTP_LENGTH_TUNNEL;
	} else if (status < 200) {
		if (++c->interims > HTTP_INTERIM_RESPONSES_MAX) {
			close_client(c, -EPROTO, true);
			return false;
		}
		if (c->handler->on_interim && (status != 100 || c->wants_continue))
			c->handler->on_interim(c, &c->response);
		http_parser_init_response(&c->parser, &c->arena, &c->response, c->to_head);
		return true;
	}
	c->response_told = true;
	if (c->handler->on_response)
		c->handler->on_response(c, &c->response);
	return true;
}

static void take_end(struct http_client *c)
{
	c->response_done = true;
	if (c->handler->on_body_end)
		c->handler->on_body_end(c, &c->parser.trailers);
}

/* Everything that came has been parsed, and nothing more will come. */
static bool take_eof(struct http_client *c)
{
	if (!c->broken && http_parser_finish(&c->parser) == 0) {
		take_end(c);
		return true;
	}
	close_client(c, c->broken ? c->broken : -ECONNRESET, false);
	return false;
}

static bool step_response(struct http_client *c, struct str *in)
{
	struct str body;
	size_t used;

	if (c->paused)
		return false;
	if (!c->begun) {
		if (in->len)
			close_client(c, -EPROTO, true); /* an answer before any question (S15) */
		else if (c->eof)
			close_client(c, c->broken ? c->broken : -ECONNRESET, false);
		return false;
	}
	switch (http_parser_next(&c->parser, in->p, in->len, &used, &body)) {
	case HTTP_PARSE_MORE:
		use(c, in, used);
		return c->eof ? take_eof(c) : false;
	case HTTP_PARSE_HEAD:
		use(c, in, used);
		return take_head(c);
	case HTTP_PARSE_BODY:
		use(c, in, used);
		if (c->handler->on_body)
			c->handler->on_body(c, body.p, body.len);
		return true;
	case HTTP_PARSE_END:
		use(c, in, used);
		take_end(c);
		return true;
	case HTTP_PARSE_ERROR:
		break;
	}
	close_client(c, -EPROTO, true);
	return false;
}

static bool step_tunnel(struct http_client *c, struct str *in)
{
	struct str piece = *in;

	if (c->end_told && c->request_ended && (c->shut || c->write_error)) {
		close_client(c, 0, false);
		return false;
	}
	if (c->paused)
		return false;
	if (piece.len) {
		use(c, in, piece.len);
		if (c->handler->on_body)
			c->handler->on_body(c, piece.p, piece.len);
		return true;
	}
	if (c->broken) {
		close_client(c, c->broken, true);
		return false;
	}
	if (c->eof && !c->end_told) {
		c->end_told = true;
		if (c->handler->on_body_end)
			c->handler->on_body_end(c, &c->parser.trailers);
		return true;
	}
	return false;
}

static bool step(struct http_client *c, struct str *in)
{
	if (c->closing || c->detached)
		return false;
	c->unread = in->len;
	if (c->close_wanted) {
		close_client(c, 0, c->reset_wanted);
		return false;
	}
	if (c->full_told && !c->full) {
		c->full_told = false;
		if (!c->request_ended && c->handler->on_drained)
			c->handler->on_drained(c);
		return true;
	}
	if (c->tunnel)
		return step_tunnel(c, in);
	if (!c->response_done)
		return step_response(c, in);
	if (in->len) {
		c->stray = true;
		use(c, in, in->len);
	}
	/* Nothing more can come of this connection. */
	if (c->eof || (c->request_ended && !http_client_is_reusable(c)))
		close_client(c, 0, false);
	return false;
}

/* ---- the loop's side ---- */

static void run(struct http_client *c, const char *data, size_t len);

static void on_timer(uv_timer_t *timer)
{
	struct http_client *c = container_of(timer, struct http_client, timer);

	c->timer_running = false;
	run(c, NULL, 0);
}

static void watch_stall(struct http_client *c)
{
	uint64_t now = loop_now_ms(c->loop), taken = c->written - c->stream->queued;

	if (c->stream->queued == 0) {
		c->taken_ms = 0;
		return;
	}
	if (taken != c->taken || !c->taken_ms) {
		c->taken = taken;
		c->taken_ms = now;
	}
	if (now - c->taken_ms >= HTTP_WRITE_STALL_TIMEOUT_MS) {
		close_client(c, -ETIMEDOUT, true);
		return;
	}
	if (c->timer_running)
		return;
	if (!c->timer.data) {
		uv_timer_init(&c->loop->uv, &c->timer);
		c->timer.data = c;
		c->handles++;
	}
	c->timer_running = true;
	uv_timer_start(&c->timer, on_timer, c->taken_ms + HTTP_WRITE_STALL_TIMEOUT_MS - now, 0);
}

static void update_reading(struct http_client *c)
{
	bool wanted = !c->paused && !c->eof;

	if (wanted == c->reading)
		return;
	c->reading = wanted;
	if (!wanted)
		stream_read_stop(c->stream);
	else if (stream_read_start(c->stream) < 0)
		close_client(c, -EIO, true);
}

static void run(struct http_client *c, const char *data, size_t len)
{
	struct str in = {data, len};
	bool from_held = buf_length(&c->held) > 0;
	size_t before;

	if (c->closing)
		return;
	assert(!c->busy);
	c->busy = true;
	c->got_bytes |= len > 0;
	if (from_held) {
		if (buf_append(&c->held, data, len) < 0)
			c->close_wanted = c->reset_wanted = true;
		in = buf_str(&c->held);
	}
	before = in.len;
	while (step(c, &in))
		;
	c->busy = false;
	if (c->detached) {
		http_client_detach(c);
		return;
	}
	if (c->closing)
		return;
	if (from_held)
		buf_consume(&c->held, before - in.len);
	else if (in.len && buf_append(&c->held, in.p, in.len) < 0)
		close_client(c, -ENOMEM, true);
	if (c->held.memory && buf_length(&c->held) == 0)
		buf_reset(&c->held);
	c->unread = buf_length(&c->held);
	if (c->closing)
		return;
	flush_head(c);
	later_cancel(&c->later);
	update_reading(c);
	if (!c->closing)
		watch_stall(c);
}

static void on_read(struct stream *s, const char *data, size_t len)
{
	run(s->user, data, len);
}

static void on_end(struct stream *s, int status)
{
	struct http_client *c = s->user;

	c->eof = true;
	c->reading = false;
	if (status < 0)
		c->broken = status;
	run(c, NULL, 0);
}

static void on_drained(struct stream *s)
{
	struct http_client *c = s->user;

	c->full = false;
	run(c, NULL, 0);
}

static void on_shut(struct stream *s)
{
	struct http_client *c = s->user;

	c->shut = true;
	run(c, NULL, 0);
}

static void on_later(struct later *later)
{
	run(container_of(later, struct http_client, later), NULL, 0);
}

static const struct stream_events events = {
	.on_read = on_read,
	.on_end = on_end,
	.on_drained = on_drained,
	.on_shut = on_shut,
	.on_closed = on_stream_closed,
};

struct http_client *http_client_open(struct loop *loop, struct stream *stream,
				     const struct http_client_handler *handler, void *user)
{
	struct http_client *c = xcalloc(1, sizeof(*c));

	c->loop = loop;
	c->stream = stream;
	c->handler = handler;
	c->user = user;
	c->handles = 1;
	later_init(&c->later, on_later);
	arena_init(&c->arena, HTTP_EXCHANGE_ARENA_BYTES);
	buf_init(&c->held, 2 * LOOP_SCRATCH_BYTES);
	stream->events = &events;
	stream->user = c;
	c->reading = stream_read_start(stream) == 0;
	if (!c->reading)
		poke(c);
	return c;
}

void *http_client_user(const struct http_client *c)
{
	return c->user;
}

void http_client_pause(struct http_client *c)
{
	if (c->paused || c->closing)
		return;
	c->paused = true;
	poke(c);
}

void http_client_resume(struct http_client *c)
{
	if (!c->paused || c->closing)
		return;
	c->paused = false;
	poke(c);
}

bool http_client_is_reusable(const struct http_client *c)
{
	return c->response_done && c->request_ended && !c->tunnel && c->keep_alive &&
	       c->response.keep_alive && !c->eof && !c->broken && !c->write_error && !c->stray &&
	       c->unread == 0 && c->stream->queued == 0 && !c->closing && !c->close_wanted;
}

bool http_client_has_response_bytes(const struct http_client *c)
{
	return c->got_bytes;
}

struct stream *http_client_detach(struct http_client *c)
{
	struct stream *stream = c->stream;

	if (!c->detached) {
		assert(http_client_is_reusable(c));
		c->detached = true;
		c->stream->events = NULL;
		c->stream->user = NULL;
	}
	if (c->busy)
		return stream; /* the rest follows when its own frames are left */
	later_cancel(&c->later);
	close_timer(c);
	release_handle(c);
	return stream;
}

void http_client_close(struct http_client *c, bool reset)
{
	if (c->closing || c->detached)
		return;
	c->close_wanted = true;
	c->reset_wanted = reset;
	if (!c->busy)
		close_client(c, 0, reset);
}
