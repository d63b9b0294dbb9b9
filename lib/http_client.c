#include "lib/http_client_private.h"
#include "lib/limits.h"

/* ---- the end ---- */

static void free_client(struct http_client *c)
{
	arena_release(&c->arena);
	buf_fini(&c->held);
	free(c);
}

/* What counted it may be gone before the memory is. */
static void leave_budget(struct http_client *c)
{
	share_release(&c->heads);
	share_init(&c->heads, NULL, 0);
}

static void on_stream_closed(struct stream *s)
{
	struct http_client *c = s->user;

	leave_budget(c);
	if (c->handler->on_closed)
		c->handler->on_closed(c, c->status);
	free_client(c);
}

static void close_client(struct http_client *c, int status, bool reset)
{
	if (c->closing)
		return;
	c->closing = true;
	c->status = status;
	later_cancel(&c->later);
	alarm_cancel(&c->alarm);
	buf_reset(&c->held);
	stream_close(c->stream, reset);
}

void http_client_poke(struct http_client *c)
{
	if (!c->busy && !c->closing)
		later_call(c->loop, &c->later);
}

/* ---- receiving ---- */

static void use(struct http_client *c, struct str *in, size_t len)
{
	str_skip(in, len);
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
	if (c->handler->on_response)
		c->handler->on_response(c, &c->response);
	/* A tunnel may rest for hours; what its head was needs no memory. */
	if (c->tunnel && !c->closing && !c->head.len) {
		arena_release(&c->arena);
		c->response = (struct http_response){.length = HTTP_LENGTH_TUNNEL};
		c->parser.trailers = (struct http_headers){0};
		c->upgrade = (struct str){0};
	}
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

static bool is_printable(struct str text)
{
	for (size_t i = 0; i < text.len; i++)
		if (text.p[i] < ' ' || text.p[i] > '~')
			return false;
	return text.len > 0;
}

/* "Unauthorized", and the end: some servers refuse an upgrade by words on the bare connection. */
static bool step_refusal(struct http_client *c, struct str *in)
{
	struct str rest = *in, line;

	if (!c->eof && in->len <= HTTP_REFUSAL_BYTES_MAX &&
	    !loop_is_past(c->loop, c->refusing_until_ms))
		return false;
	str_split(&rest, '\n', &line);
	if (line.len && line.p[line.len - 1] == '\r')
		line.len--;
	if (c->eof && in->len <= HTTP_REFUSAL_BYTES_MAX && is_printable(line))
		c->refusal = arena_str(&c->arena, line);
	close_client(c, -EPROTO, true);
	return false;
}

static bool step_response(struct http_client *c, struct str *in)
{
	char room[HTTP_PARSE_ROOM_BYTES];
	bool may_refuse = c->upgrade.p && !c->parser.begun;
	struct str body;
	size_t used;

	if (c->paused)
		return false;
	if (c->refusing)
		return step_refusal(c, in);
	if (!c->begun) {
		if (in->len)
			close_client(c, -EPROTO, true); /* an answer before any question (S15) */
		else if (c->eof)
			close_client(c, c->broken ? c->broken : -ECONNRESET, false);
		return false;
	}
	switch (http_parser_next_joined(&c->parser, in->p, in->len, room, sizeof(room), &used,
					&body)) {
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
	if (may_refuse && !c->heads.refused) {
		c->refusing = true;
		c->refusing_until_ms = loop_now_ms(c->loop) + HTTP_REFUSAL_WAIT_MS;
		return true;
	}
	close_client(c, c->heads.refused ? -EDQUOT : -EPROTO, true);
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

static void on_alarm(struct alarm *alarm)
{
	struct http_client *c = container_of(alarm, struct http_client, alarm);

	run(c, NULL, 0);
}

static void watch_stall(struct http_client *c)
{
	uint64_t deadline = stall_clock_deadline(&c->stall, c->written, stream_queued(c->stream),
						 loop_now_ms(c->loop), HTTP_WRITE_STALL_TIMEOUT_MS);

	if (c->refusing && c->refusing_until_ms < deadline)
		deadline = c->refusing_until_ms;
	if (deadline == UINT64_MAX)
		return;
	if (loop_is_past(c->loop, deadline)) {
		close_client(c, -ETIMEDOUT, true);
		return;
	}
	alarm_set_within(c->loop, &c->alarm, loop_wait_ms(c->loop, deadline));
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
	struct str in = {data ? data : "", len};
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
	http_client_flush_head(c);
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
	alarm_init(&c->alarm, on_alarm);
	later_init(&c->later, on_later);
	arena_init_shared(&c->arena, HTTP_EXCHANGE_ARENA_BYTES, &c->heads);
	buf_init(&c->held, 2 * LOOP_SCRATCH_BYTES);
	stream->events = &events;
	stream->user = c;
	c->reading = stream_read_start(stream) == 0;
	if (!c->reading)
		http_client_poke(c);
	return c;
}

void *http_client_user(const struct http_client *c)
{
	return c->user;
}

void http_client_set_budget(struct http_client *c, struct budget *heads)
{
	share_init(&c->heads, heads, HTTP_HEADS_EXEMPT_BYTES);
}

void http_client_pause(struct http_client *c)
{
	if (c->paused || c->closing)
		return;
	c->paused = true;
	http_client_poke(c);
}

void http_client_resume(struct http_client *c)
{
	if (!c->paused || c->closing)
		return;
	c->paused = false;
	http_client_poke(c);
}

bool http_client_is_over(const struct http_client *c)
{
	return c->response_done && c->request_ended && !c->tunnel && !c->eof && !c->broken &&
	       !c->write_error && !c->stray && c->unread == 0 && c->stream->queued == 0 &&
	       !c->closing && !c->close_wanted;
}

bool http_client_is_reusable(const struct http_client *c)
{
	return c->keep_alive && c->response.keep_alive && http_client_is_over(c);
}

bool http_client_has_response_bytes(const struct http_client *c)
{
	return c->got_bytes;
}

const struct http_headers *http_client_response_headers(const struct http_client *c)
{
	return &c->response.headers;
}

struct str http_client_refusal(const struct http_client *c)
{
	return c->refusal;
}

struct stream *http_client_detach(struct http_client *c)
{
	struct stream *stream = c->stream;

	if (!c->detached) {
		assert(http_client_is_over(c));
		c->detached = true;
		c->stream->events = NULL;
		c->stream->user = NULL;
		leave_budget(c);
	}
	if (c->busy)
		return stream; /* the rest follows when its own frames are left */
	later_cancel(&c->later);
	alarm_cancel(&c->alarm);
	free_client(c);
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
