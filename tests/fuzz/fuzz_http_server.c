/*
 * A whole server connection on a memory stream. The input is a program: the first byte picks how
 * the handler behaves, then records of <kind and length> <bytes> say what the client does. The
 * handler answers in its own ways, pauses, aborts, tunnels; what must hold is asserted: every
 * exchange is closed exactly once, nothing is called after that, and the loop is empty in the end.
 */
#include "lib/http_server.h"
#include "tests/support/stream_mem.h"

struct actor {
	struct http_exchange *ex;
	unsigned char choice;
	bool begun, ended, closed;
	size_t got;
};

static unsigned char choices;
static size_t open_exchanges;

static void must(bool condition)
{
	if (!condition)
		abort();
}

static void answer_some(struct actor *a)
{
	char text[300];
	struct iovec piece = {text, sizeof(text)};

	memset(text, 'x', sizeof(text));
	if (a->ended)
		return;
	if (!a->begun) {
		int64_t length = a->choice & 1 ? HTTP_LENGTH_CHUNKED : 600;
		bool tunnel = a->ex->request.upgrade.p && a->choice & 2;

		a->begun = http_response_begin(a->ex, tunnel ? 101 : 200,
					       tunnel ? HTTP_LENGTH_TUNNEL : length) == 0;
		if (!a->begun)
			return;
	}
	if (http_response_write(a->ex, &piece, 1) == HTTP_FULL && a->choice & 4)
		http_request_body_pause(a->ex);
}

static void end_answer(struct actor *a)
{
	if (!a->begun)
		answer_some(a);
	if (!a->begun || a->ended)
		return;
	if (a->ex->sent < 600)
		answer_some(a);
	a->ended = true;
	http_response_end(a->ex, NULL);
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct actor *a = ex->user;

	must(!a->closed && len > 0);
	a->got += len;
	if (data[0] == 'P')
		http_request_body_pause(ex);
	if (data[0] == 'A')
		http_exchange_abort(ex);
	if (data[0] == 'W')
		answer_some(a);
	if (data[0] == 'E')
		end_answer(a);
}

static void on_body_end(struct http_exchange *ex)
{
	struct actor *a = ex->user;

	must(!a->closed);
	end_answer(a);
}

static void on_drained(struct http_exchange *ex)
{
	must(!((struct actor *)ex->user)->closed);
	http_request_body_resume(ex);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct actor *a = ex->user;

	(void)status;
	must(!a->closed && ex->closed);
	a->closed = true;
	open_exchanges--;
	http_request_body_resume(ex); /* must be ignored */
	answer_some(a);
	free(a);
}

static const struct http_exchange_handler handler = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static struct actor *current;

static void dispatch(struct http_exchange *ex)
{
	struct actor *a = xcalloc(1, sizeof(*a));
	struct str value;

	a->ex = ex;
	a->choice = choices;
	must(ex->request.method.len > 0 && ex->request.path.len > 0 && ex->request.minor <= 1);
	must(http_query_get(ex->request.query, STR("a"), &ex->arena, &value) >= 0);
	http_exchange_set_handler(ex, &handler, a);
	open_exchanges++;
	if (choices & 8) {
		http_respond_error(ex, 404, "no %.*s", (int)size_min(ex->request.path.len, 100),
				   ex->request.path.p);
		return;
	}
	ex->abort_on_eof = choices & 16;
	if (!(choices & 32))
		http_request_body_start(ex);
	current = a;
}

static void on_bad_request(struct http_exchange *ex, int status, const char *reason)
{
	must(status >= 400 && status <= 599);
	http_respond_error(ex, status, "%s", reason);
}

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct http_server_config config = {.dispatch = dispatch};
	struct http_server *server;
	struct stream_mem *m;
	struct loop loop;
	bool stopped = false;

	if (size < 2)
		return 0;
	choices = *data++;
	size--;
	if (choices & 64)
		config.on_bad_request = on_bad_request;
	loop_init(&loop);
	server = http_server_new(&loop, &config);
	m = stream_mem_new(&loop);
	if (choices & 128)
		m->room = 1000;
	http_server_adopt(server, &m->stream, "fuzz");
	while (size) {
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
				http_server_stop(server, on_stopped, &stopped);
			else if (open_exchanges && current)
				len == 4   ? end_answer(current)
				: len == 5 ? http_request_body_start(current->ex)
				: len == 6 ? http_request_body_resume(current->ex)
					   : answer_some(current);
			len = 0;
		} else if (!m->eof) {
			/* Kind 3 repeats what it feeds, for long bodies from short inputs. */
			for (int times = kind == 3 ? 40 : 1; times; times--)
				stream_mem_feed(m, data, len);
		}
		stream_mem_settle(&loop);
		if (!open_exchanges)
			current = NULL;
		if (stopped)
			break;
		data += len;
		size -= len;
	}
	if (!stopped) {
		http_server_stop(server, on_stopped, &stopped);
		stream_mem_settle(&loop);
	}
	if (!stopped)
		http_server_abort(server);
	stream_mem_settle(&loop);
	must(stopped && open_exchanges == 0);
	current = NULL;
	stream_mem_free(m);
	loop_fini(&loop);
	return 0;
}
