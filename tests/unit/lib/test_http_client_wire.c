/*
 * Plays tests/wire/client*.wire against a client on a memory stream: the server's bytes at once,
 * cut in two at every place, and byte by byte. What the client tells must be the same each time.
 *
 * Lines mean:
 *   ? METHOD [expect] [upgrade TOKEN]   the request (default: GET)
 *   > text       the server sends it, and CR LF; without these when it ends with a lone backslash
 *   eof, reset   what the server does then
 *   < event      what the client must tell: interim, response, body, trailer, end, closed, and in
 *                the end "reusable" or "open" when it was not closed
 */
#include "tests/support/cmocka.h"

#include "lib/err.h"
#include "lib/http_client.h"
#include "tests/support/wire.h"

struct scene {
	const struct wire_case *wire;
	const char *request;
	struct buf input, expected;
	bool eof, reset;
};

struct witness {
	struct buf told, body;
	bool closed;
};

static void must(int status)
{
	if (status < 0)
		abort();
}

static void set_scene(struct scene *scene, const struct wire_case *c)
{
	*scene = (struct scene){.wire = c, .request = "GET"};
	buf_init(&scene->input, SIZE_MAX / 2);
	buf_init(&scene->expected, SIZE_MAX / 2);
	for (size_t i = 0; i < c->line_count; i++) {
		const char *tag = c->lines[i].tag, *text = c->lines[i].text;

		if (strcmp(tag, "?") == 0) {
			scene->request = text;
		} else if (strcmp(tag, ">") == 0) {
			wire_add_line(&scene->input, text);
		} else if (strcmp(tag, "<") == 0) {
			wire_unescape(&scene->expected, text);
			must(buf_append(&scene->expected, "\n", 1));
		} else if (strcmp(tag, "eof") == 0) {
			scene->eof = true;
		} else if (strcmp(tag, "reset") == 0) {
			scene->reset = true;
		} else {
			fail_msg("%s: %s: what is \"%s\"?", c->file, c->name, tag);
		}
	}
}

/* ---- the witness: one line an event, body bytes joined ---- */

static void tell_body(struct witness *w)
{
	if (!buf_length(&w->body))
		return;
	if (buf_length(&w->body) > 1000)
		must(buf_printf(&w->told, "body of %zu bytes\n", buf_length(&w->body)));
	else
		must(buf_printf(&w->told, "body %.*s\n", (int)buf_length(&w->body),
				buf_data(&w->body)));
	buf_clear(&w->body);
}

static void tell_head(struct witness *w, const char *what, const struct http_response *r)
{
	const char *form = r->length == HTTP_LENGTH_CHUNKED  ? "chunked"
			   : r->length == HTTP_LENGTH_NONE   ? "none"
			   : r->length == HTTP_LENGTH_TUNNEL ? "tunnel"
							     : "bytes";

	tell_body(w);
	must(buf_printf(&w->told, "%s %d \"%.*s\" %s", what, r->status, (int)r->reason.len,
			r->reason.p, form));
	if (r->length >= 0)
		must(buf_printf(&w->told, " %lld", (long long)r->length));
	must(buf_printf(&w->told, "%s\n", r->keep_alive ? "" : " close"));
}

static void on_interim(struct http_client *c, const struct http_response *r)
{
	tell_head(http_client_user(c), "interim", r);
}

static void on_response(struct http_client *c, const struct http_response *r)
{
	tell_head(http_client_user(c), "response", r);
}

static void on_body(struct http_client *c, const char *data, size_t len)
{
	struct witness *w = http_client_user(c);

	must(buf_append(&w->body, data, len));
}

static void on_body_end(struct http_client *c, const struct http_headers *trailers)
{
	struct witness *w = http_client_user(c);

	tell_body(w);
	for (size_t i = 0; i < trailers->count; i++)
		must(buf_printf(&w->told, "trailer %.*s: %.*s\n", (int)trailers->items[i].name.len,
				trailers->items[i].name.p, (int)trailers->items[i].value.len,
				trailers->items[i].value.p));
	must(buf_printf(&w->told, "end\n"));
}

static void on_closed(struct http_client *c, int status)
{
	struct witness *w = http_client_user(c);

	tell_body(w);
	must(buf_printf(&w->told, "closed %s\n",
			status == 0		? "0"
			: status == -EPROTO	? "EPROTO"
			: status == -ECONNRESET ? "ECONNRESET"
						: errno_text(status)));
	w->closed = true;
}

static const struct http_client_handler handler = {
	.on_interim = on_interim,
	.on_response = on_response,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

static void send_request(struct http_client *c, const char *text)
{
	struct http_header fields[2] = {{STR("Host"), STR("a")},
					{STR("Expect"), STR("100-continue")}};
	struct http_client_request request = {
		.target = STR("/"),
		.headers = {fields, 1, 2},
		.length = HTTP_LENGTH_NONE,
		.keep_alive = true,
	};
	struct str rest = str_of(text), word;

	must(str_split(&rest, ' ', &request.method) ? 0 : -1);
	while (str_split(&rest, ' ', &word)) {
		if (str_equal(word, STR("expect")))
			request.headers.count = 2;
		else if (str_equal(word, STR("upgrade")))
			must(str_split(&rest, ' ', &request.upgrade) ? 0 : -1);
		else
			fail_msg("what is \"%s\"?", text);
	}
	must(http_client_send(c, &request));
}

static bool play(const void *arg, struct wire_cut cut)
{
	const struct scene *scene = arg;
	struct witness w = {.closed = false};
	struct http_client *client;
	struct stream_mem *m;
	struct loop loop;
	bool good;

	loop_init(&loop);
	buf_init(&w.told, SIZE_MAX / 2);
	buf_init(&w.body, SIZE_MAX / 2);
	m = stream_mem_new(&loop);
	client = http_client_open(&loop, &m->stream, &handler, &w);
	send_request(client, scene->request);
	wire_feed(&loop, m, buf_str(&scene->input), cut);
	if (scene->eof)
		stream_mem_feed_eof(m);
	if (scene->reset)
		stream_mem_break(m, -ECONNRESET);
	stream_mem_settle(&loop);
	if (!w.closed) {
		tell_body(&w);
		must(buf_printf(&w.told, "%s\n",
				http_client_is_reusable(client) ? "reusable" : "open"));
		good = str_equal(buf_str(&w.told), buf_str(&scene->expected));
		http_client_close(client, true);
		stream_mem_settle(&loop);
		assert_true(w.closed);
	} else {
		good = str_equal(buf_str(&w.told), buf_str(&scene->expected));
	}
	if (!good)
		print_message("%s: %s\n  split %zu%s, told:\n%.*s\n", scene->wire->file,
			      scene->wire->name, cut.split, cut.by_byte ? " (by byte)" : "",
			      (int)buf_length(&w.told), buf_data(&w.told));
	buf_fini(&w.told);
	buf_fini(&w.body);
	stream_mem_free(m);
	loop_fini(&loop);
	return good;
}

static void play_case(void **state)
{
	struct scene scene;
	bool good;

	set_scene(&scene, *state);
	good = wire_play(play, &scene, buf_length(&scene.input));
	buf_fini(&scene.input);
	buf_fini(&scene.expected);
	if (!good)
		fail(); /* what came is printed above */
}

int main(void)
{
	return wire_main("tests/wire/client*.wire", play_case);
}
