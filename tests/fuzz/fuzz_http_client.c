/*
 * A client on a memory stream: the first byte picks the request, the records after it say what the
 * server sends and how. Asserted: heads come before bodies and once, on_closed comes exactly once
 * and last, a client that calls itself reusable can be detached, and the loop is empty in the end.
 */
#include "lib/http_client.h"
#include "tests/support/stream_mem.h"

struct witness {
	bool responded, ended, closed, tunnel;
	uint64_t body;
	int64_t length;
	unsigned char choice;
};

static void must(bool condition)
{
	if (!condition)
		abort();
}

static void on_interim(struct http_client *c, const struct http_response *r)
{
	struct witness *w = http_client_user(c);

	must(!w->responded && r->status >= 100 && r->status < 200 && r->status != 101);
}

static void on_response(struct http_client *c, const struct http_response *r)
{
	struct witness *w = http_client_user(c);

	must(!w->responded && !w->closed && (r->status >= 200 || r->status == 101));
	w->responded = true;
	w->length = r->length;
	w->tunnel = r->length == HTTP_LENGTH_TUNNEL;
	if (w->choice & 16)
		http_client_pause(c);
}

static void on_body(struct http_client *c, const char *data, size_t len)
{
	struct witness *w = http_client_user(c);

	must(w->responded && !w->ended && !w->closed && len > 0);
	w->body += len;
	must(w->length < 0 || w->body <= (uint64_t)w->length);
	if (data[0] == 'C')
		http_client_close(c, false);
	if (data[0] == 'P')
		http_client_pause(c);
}

static void on_body_end(struct http_client *c, const struct http_headers *trailers)
{
	struct witness *w = http_client_user(c);

	(void)trailers;
	must(w->responded && !w->ended && !w->closed);
	w->ended = true;
	if (w->tunnel)
		http_client_end(c, NULL);
}

static void on_closed(struct http_client *c, int status)
{
	struct witness *w = http_client_user(c);

	must(!w->closed);
	must(status != 0 || w->ended || w->responded);
	w->closed = true;
}

static const struct http_client_handler handler = {
	.on_interim = on_interim,
	.on_response = on_response,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct http_header host = {STR("Host"), STR("a")};
	struct http_client_request request = {
		.method = STR("GET"),
		.target = STR("/"),
		.headers = {&host, 1, 1},
		.length = HTTP_LENGTH_NONE,
		.keep_alive = true,
	};
	struct iovec piece = {(void *)"0123456789", 10};
	struct witness w = {.closed = false};
	struct http_client *c;
	struct stream_mem *m;
	struct loop loop;
	bool detached = false;

	if (size < 2)
		return 0;
	w.choice = *data++;
	size--;
	if (w.choice & 1)
		request.method = STR("HEAD");
	if (w.choice & 2)
		request.upgrade = STR("websocket");
	if (w.choice & 4)
		request.length = HTTP_LENGTH_CHUNKED;
	if (w.choice & 8)
		request.length = 20;
	loop_init(&loop);
	m = stream_mem_new(&loop);
	if (w.choice & 32)
		m->room = 5;
	c = http_client_open(&loop, &m->stream, &handler, &w);
	must(http_client_send(c, &request) == 0);
	while (size && !w.closed) {
		unsigned char kind = *data >> 6;
		size_t len = size_min(*data & 63, size - 1);

		data++;
		size--;
		if (kind == 0 && len < 8) {
			if (len == 0)
				stream_mem_feed_eof(m);
			else if (len == 1)
				stream_mem_break(m, -ECONNRESET);
			else if (len == 2)
				stream_mem_take(m, 400000);
			else if (len == 3)
				(void)http_client_write(c, &piece, 1);
			else if (len == 4)
				(void)http_client_end(c, NULL);
			else if (len == 5)
				http_client_pause(c);
			else if (len == 6)
				http_client_resume(c);
			len = 0;
		} else if (!m->eof) {
			for (int times = kind == 3 ? 40 : 1; times; times--)
				stream_mem_feed(m, data, len);
		}
		stream_mem_settle(&loop);
		data += len;
		size -= len;
	}
	if (!w.closed && w.choice & 64 && http_client_is_reusable(c)) {
		must(w.ended && http_client_detach(c) == &m->stream);
		detached = true;
		stream_close(&m->stream, false);
	} else if (!w.closed) {
		w.responded = true; /* so that closing ourselves may say 0 */
		http_client_close(c, true);
	}
	stream_mem_settle(&loop);
	must(w.closed != detached);
	stream_mem_free(m);
	loop_fini(&loop);
	return 0;
}
