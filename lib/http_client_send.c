/* The request side of a client: head, body, end. */
#include "lib/http_client_private.h"
#include "lib/http_write.h"

/* With the head, a chunk header and a CR LF this fills what a stream takes at once. */
#define PIECES_MAX 12

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
	if (stream_queued(c->stream))
		http_client_poke(c); /* to watch for a stall */
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

void http_client_flush_head(struct http_client *c)
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
		return c->heads.refused ? -EDQUOT : status;
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
		http_client_flush_head(c);
		return c->write_error;
	}
	http_client_poke(c); /* sends the head if no body follows at once */
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
	http_client_poke(c);
	return status < 0 ? status : 0;
}
