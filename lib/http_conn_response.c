/* The response side of an HTTP/1.x exchange: what handlers call. */
#include <time.h>

#include "lib/http_conn.h"
#include "lib/http_write.h"
#include "lib/limits.h"

/* With the head, a chunk header and a CR LF this fills what a stream takes at once. */
#define PIECES_MAX 12

static struct http_conn_exchange *of(struct http_exchange *ex)
{
	return container_of(ex, struct http_conn_exchange, ex);
}

static struct iovec piece_of(struct str s)
{
	return (struct iovec){.iov_base = (void *)s.p, .iov_len = s.len};
}

static void body_start(struct http_exchange *ex)
{
	struct http_conn_exchange *x = of(ex);

	if (ex->closed || x->started)
		return;
	x->started = true;
	if (ex->request.expect_continue && !x->continued && (!x->begun || x->head.len) &&
	    !x->request_complete) {
		struct iovec piece = piece_of(STR("HTTP/1.1 100 Continue\r\n\r\n"));

		x->continued = true;
		http_conn_send(x->conn, &piece, 1);
	}
	http_conn_poke(x->conn);
}

static void body_pause(struct http_exchange *ex)
{
	struct http_conn_exchange *x = of(ex);

	if (ex->closed || x->paused)
		return;
	x->paused = true;
	http_conn_poke(x->conn);
}

static void body_resume(struct http_exchange *ex)
{
	struct http_conn_exchange *x = of(ex);

	if (ex->closed || !x->paused)
		return;
	x->paused = false;
	http_conn_poke(x->conn);
}

/* What has come is the parser's, and so is the last byte, with which the message ends. */
static int body_lend(struct http_exchange *ex, uint64_t *ret_left)
{
	struct http_conn_exchange *x = of(ex);
	struct http_conn *c = x->conn;
	int fd;

	if (ex->closed || x->abort_wanted)
		return -ECONNRESET;
	if (!x->started || x->tunnel || x->ended || ex->request.length <= 0 ||
	    x->request_complete || x->body_lent || c->eof || http_conn_unused(c) > 0 ||
	    (uint64_t)ex->request.length - ex->received < 2)
		return -EINVAL;
	x->body_lent = true;
	http_conn_update_reading(c);
	fd = stream_lend_input(c->stream);
	x->body_lent = fd >= 0;
	*ret_left = (uint64_t)ex->request.length - ex->received - 1;
	http_conn_poke(c);
	return fd;
}

static void body_take_back(struct http_exchange *ex, uint64_t received)
{
	struct http_conn_exchange *x = of(ex);

	if (ex->closed)
		return;
	assert(x->body_lent && received < (uint64_t)ex->request.length - ex->received);
	x->body_lent = false;
	ex->received += received;
	http_parser_skip_body(&x->parser, received);
	if (x->hung_up)
		http_conn_hung_up(x->conn);
	http_conn_poke(x->conn);
}

static void abort_exchange(struct http_exchange *ex)
{
	struct http_conn_exchange *x = of(ex);

	if (ex->closed)
		return;
	x->abort_wanted = true;
	http_conn_poke(x->conn);
}

static int abort_with(struct http_conn_exchange *x, int status)
{
	abort_exchange(&x->ex);
	return status;
}

/* The current second as text, made once a second. */
static struct str current_date(struct http_conn_shared *shared)
{
	uint64_t now = loop_now_ms(shared->loop);
	struct timespec ts;

	if (now >= shared->date_until_ms) {
		clock_gettime(CLOCK_REALTIME, &ts);
		http_format_date(ts.tv_sec, shared->date);
		shared->date_until_ms = now + (uint64_t)(1000 - ts.tv_nsec / 1000000);
	}
	return str_of(shared->date);
}

static int interim(struct http_exchange *ex, int status, const struct http_headers *headers)
{
	static const struct http_headers none;
	const struct http_framing framing = {.length = HTTP_LENGTH_NONE};
	struct http_conn_exchange *x = of(ex);
	struct iovec piece;
	struct str head;

	if (ex->closed || x->abort_wanted)
		return -ECONNRESET;
	if (status < 100 || status > 199 || status == 101 || x->begun)
		return -EINVAL;
	if (status == 100)
		x->continued = true;
	if (ex->request.minor == 0)
		return 0;
	if (http_write_response_head(&ex->arena, status, str_of(http_reason(status)),
				     headers ? headers : &none, &framing, &head) < 0)
		return abort_with(x, -ENOMEM);
	piece = piece_of(head);
	return http_conn_send(x->conn, &piece, 1);
}

/* Whether the connection may carry another request after this answer. */
static bool keeps_alive(const struct http_conn_exchange *x)
{
	const struct http_request *r = &x->ex.request;

	if (!r->keep_alive || x->conn->shared->stopping || x->conn->eof)
		return false;
	if (x->chunked && r->minor == 0)
		return false; /* the end of the connection ends the body */
	if (r->upgrade.p)
		return false; /* bytes meant for the tunnel may be under way (proxy.md S62) */
	if (x->request_complete)
		return true;
	/* Who waits for 100 may or may not send the body now (S50). */
	if (!x->started && r->expect_continue && !x->continued)
		return false;
	/* More to come than would be discarded. */
	return r->length - (int64_t)x->ex.received <= HTTP_DISCARD_BYTES_MAX;
}

/* Who answers 426 has to name what to upgrade to, and Upgrade goes with Connection (RFC 9110
 * sections 7.8 and 15.5.22). */
static struct str connection_line(const struct http_conn_exchange *x)
{
	bool names_upgrade = x->ex.status == 426 &&
			     http_headers_get(&x->ex.response_headers, STR("Upgrade")).p;

	if (x->tunnel)
		return STR("Upgrade");
	if (!x->keep_alive)
		return names_upgrade ? STR("close, Upgrade") : STR("close");
	if (x->ex.request.minor == 0)
		return names_upgrade ? STR("keep-alive, Upgrade") : STR("keep-alive");
	return names_upgrade ? STR("Upgrade") : (struct str){NULL, 0};
}

static int begin(struct http_exchange *ex, int status, int64_t length)
{
	struct http_conn_exchange *x = of(ex);
	struct http_framing framing = {.length = HTTP_LENGTH_NONE};
	bool head_method = str_equal(ex->request.method, STR("HEAD"));

	if (ex->closed || x->abort_wanted)
		return -ECONNRESET;
	if (x->begun)
		return -EINVAL;
	if ((length == HTTP_LENGTH_TUNNEL) != (status == 101) || (status < 200 && status != 101) ||
	    status > 999 || (status == 101 && !ex->request.upgrade.p))
		return abort_with(x, -EINVAL);
	x->begun = true;
	ex->status = status;
	x->tunnel = length == HTTP_LENGTH_TUNNEL;
	x->bodyless = head_method || status == 204 || status == 304;
	x->length = length == HTTP_LENGTH_NONE ? 0 : length;
	x->chunked = length == HTTP_LENGTH_CHUNKED && !x->bodyless;
	x->keep_alive = !x->tunnel && keeps_alive(x);
	if (x->tunnel) {
		x->started = true;
		if (!http_headers_get(&ex->response_headers, STR("Upgrade")).p)
			framing.upgrade = ex->request.upgrade;
	} else if (x->chunked) {
		if (ex->request.minor == 0)
			x->chunked = false;
		else
			framing.length = HTTP_LENGTH_CHUNKED;
	} else if (status != 204 && (status != 304 || length > 0) &&
		   !(head_method && length == HTTP_LENGTH_NONE) && length != HTTP_LENGTH_CHUNKED) {
		framing.length = x->length;
	}
	framing.connection = connection_line(x);
	if (x->conn->shared->config.send_date)
		framing.date = current_date(x->conn->shared);
	if (http_write_response_head(&ex->arena, status, str_of(http_reason(status)),
				     &ex->response_headers, &framing, &x->head) < 0)
		return abort_with(x, -ENOMEM);
	http_conn_poke(x->conn);
	return 0;
}

/* The head, if it still waits, then one piece of the body; `last` if none follows. */
static int send_body(struct http_conn_exchange *x, const struct iovec *pieces, size_t count,
		     size_t total, bool last)
{
	char chunk_header[HTTP_CHUNK_HEADER_BYTES];
	struct iovec all[PIECES_MAX + 3];
	size_t n = 0;

	if (x->head.len)
		all[n++] = piece_of(x->head);
	x->head.len = 0;
	if (x->chunked)
		all[n++] = (struct iovec){.iov_base = chunk_header,
					  .iov_len = http_write_chunk_header(chunk_header, total)};
	memcpy(all + n, pieces, count * sizeof(*pieces));
	n += count;
	if (x->chunked)
		all[n++] = piece_of(last && x->finishing ? STR("\r\n0\r\n\r\n") : STR("\r\n"));
	return http_conn_send(x->conn, all, n);
}

static int write_body(struct http_exchange *ex, const struct iovec *pieces, size_t count)
{
	struct http_conn_exchange *x = of(ex);
	size_t total = 0, batch;
	int status = 0;

	if (ex->closed || x->abort_wanted)
		return -ECONNRESET;
	if (!x->begun || x->ended || x->lent)
		return -EINVAL;
	for (size_t i = 0; i < count; i++)
		total += pieces[i].iov_len;
	if (x->bodyless)
		return 0;
	if (x->length >= 0 && total > (uint64_t)x->length - ex->sent)
		return -EMSGSIZE;
	while (count && total) {
		size_t len = 0;

		batch = size_min(count, PIECES_MAX);
		for (size_t i = 0; i < batch; i++)
			len += pieces[i].iov_len;
		status = len ? send_body(x, pieces, batch, len, batch == count) : status;
		if (status < 0)
			return status;
		ex->sent += len;
		pieces += batch;
		count -= batch;
	}
	if (status == HTTP_FULL || x->conn->full) {
		x->full = true;
		return HTTP_FULL;
	}
	return 0;
}

static int lend(struct http_exchange *ex)
{
	struct http_conn_exchange *x = of(ex);
	int fd;

	if (ex->closed || x->abort_wanted)
		return -ECONNRESET;
	if (!x->begun || x->ended || x->bodyless || x->length < 0 || x->lent)
		return -EINVAL;
	if (x->head.len)
		http_conn_flush_head(x);
	fd = http_conn_lend(x->conn);
	x->lent = fd >= 0;
	x->full |= fd == -EAGAIN;
	return fd;
}

static void take_back(struct http_exchange *ex, uint64_t sent)
{
	struct http_conn_exchange *x = of(ex);

	if (ex->closed)
		return;
	assert(x->lent && sent <= (uint64_t)x->length - ex->sent);
	x->lent = false;
	ex->sent += sent;
	http_conn_take_back(x->conn, sent);
}

static int end(struct http_exchange *ex, const struct http_headers *trailers)
{
	struct http_conn_exchange *x = of(ex);
	struct iovec pieces[2];
	struct str last;
	size_t n = 0;
	int status = 0;

	if (ex->closed || x->abort_wanted)
		return -ECONNRESET;
	if (x->ended || x->lent || x->body_lent)
		return -EINVAL;
	if (!x->begun || (x->length >= 0 && !x->bodyless && ex->sent < (uint64_t)x->length))
		return abort_with(x, -EINVAL);
	if (x->head.len)
		pieces[n++] = piece_of(x->head);
	x->head.len = 0;
	if (x->chunked && !x->finishing) {
		if (http_write_last_chunk(&ex->arena, trailers, &last) < 0)
			return abort_with(x, -ENOMEM);
		pieces[n++] = piece_of(last);
	}
	if (n)
		status = http_conn_send(x->conn, pieces, n);
	x->ended = true;
	if (x->tunnel)
		stream_shutdown(x->conn->stream);
	http_conn_poke(x->conn);
	return status < 0 ? status : 0;
}

static int finish(struct http_exchange *ex, const struct iovec *pieces, size_t count)
{
	struct http_conn_exchange *x = of(ex);
	int status;

	/* An empty last piece would send nothing for the end to go with. */
	x->finishing = x->chunked && count > 0 && pieces[count - 1].iov_len > 0;
	status = write_body(ex, pieces, count);
	if (status < 0)
		x->finishing = false;
	return status < 0 ? status : end(ex, NULL);
}

static void free_exchange(struct http_exchange *ex)
{
	arena_release(&ex->arena);
	free(of(ex));
}

static size_t queued(const struct http_exchange *ex)
{
	return stream_queued(of((struct http_exchange *)ex)->conn->stream);
}

static const struct http_exchange_ops exchange_ops = {
	.body_start = body_start,
	.body_pause = body_pause,
	.body_resume = body_resume,
	.body_lend = body_lend,
	.body_take_back = body_take_back,
	.interim = interim,
	.begin = begin,
	.write = write_body,
	.lend = lend,
	.take_back = take_back,
	.end = end,
	.finish = finish,
	.queued = queued,
	.abort = abort_exchange,
	.free = free_exchange,
};

static const struct http_exchange_handler no_handler;

struct http_conn_exchange *http_conn_exchange_new(struct http_conn *c)
{
	struct http_conn_exchange *x = xcalloc(1, sizeof(*x));
	struct http_exchange *ex = &x->ex;

	x->conn = c;
	http_exchange_begin(ex, c->stream->peer);
	http_parser_init_request(&x->parser, &ex->arena, &ex->request);
	ex->loop = c->shared->loop;
	ex->ops = &exchange_ops;
	ex->handler = &no_handler;
	ex->server_user = c->shared->config.user;
	memcpy(ex->peer, c->peer, sizeof(ex->peer));
	ex->security = c->stream->security;
	ex->can_lend = stream_can_lend(c->stream);
	ex->started_ms = loop_now_ms(ex->loop);
	ex->holds = 1; /* the connection's */
	return x;
}

void http_conn_flush_head(struct http_conn_exchange *x)
{
	struct iovec piece = piece_of(x->head);

	x->head.len = 0;
	http_conn_send(x->conn, &piece, 1);
}

void http_conn_send_error(struct http_conn *c, int status, const char *reason)
{
	const struct http_header *field = &c->shared->config.error_field;
	char body[256], head[512];
	struct iovec pieces[2];

	/* The reasons are constants of the parser; nothing in them needs escaping. */
	snprintf(body, sizeof(body), "{\"code\":%d,\"message\":\"%s\"}\n", status, reason);
	snprintf(head, sizeof(head),
		 "HTTP/1.1 %d %s\r\nContent-Type: application/json; charset=utf-8\r\n"
		 "X-Content-Type-Options: nosniff\r\n%.*s%s%.*s%s%s%s%sConnection: close\r\n"
		 "Content-Length: %zu\r\n\r\n",
		 status, http_reason(status), (int)field->name.len,
		 field->name.len ? field->name.p : "", field->name.len ? ": " : "",
		 (int)field->value.len, field->value.len ? field->value.p : "",
		 field->name.len ? "\r\n" : "", c->shared->config.send_date ? "Date: " : "",
		 c->shared->config.send_date ? current_date(c->shared).p : "",
		 c->shared->config.send_date ? "\r\n" : "", strlen(body));
	pieces[0] = piece_of(str_of(head));
	pieces[1] = piece_of(str_of(body));
	http_conn_send(c, pieces, 2);
}
