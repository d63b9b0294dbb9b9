/*
 * Plays tests/wire/server*.wire against a server connection on a memory stream: the whole input at
 * once, cut in two at every place, and byte by byte. What comes back must be the same each time.
 *
 * Lines mean:
 *   > text     the client sends it, and CR LF; without these when it ends with a lone backslash
 *   eof        the client ends its direction after what it sent
 *   < text     the server sends exactly this, and CR LF or not in the same way
 *   = text     the server answers 200 with this body (and keeps the connection)
 *   =close text  the same with Connection: close
 *   ! status   the server answers an error of its own with this status, and closes
 *   end        the server ended its direction; "!" and "=close" imply it
 *
 * The handler's answers say what it was asked:
 * "<method> <target> <authority> <body length>:<body>".
 */
#include "tests/support/cmocka.h"

#include "lib/http_server.h"
#include "tests/support/wire.h"

struct scene {
	const struct wire_case *wire;
	struct buf input, expected;
	bool eof, end;
};

static void must(int status)
{
	if (status < 0)
		abort();
}

static void add_answer(const char *text, bool close, struct buf *b)
{
	struct buf body;

	buf_init(&body, SIZE_MAX / 2);
	wire_unescape(&body, text);
	must(buf_printf(b, "HTTP/1.1 200 OK\r\n%sContent-Length: %zu\r\n\r\n",
			close ? "Connection: close\r\n" : "", buf_length(&body)));
	must(buf_append_str(b, buf_str(&body)));
	buf_fini(&body);
}

static void set_scene(struct scene *scene, const struct wire_case *c)
{
	*scene = (struct scene){.wire = c};
	buf_init(&scene->input, SIZE_MAX / 2);
	buf_init(&scene->expected, SIZE_MAX / 2);
	for (size_t i = 0; i < c->line_count; i++) {
		const char *tag = c->lines[i].tag, *text = c->lines[i].text;

		if (strcmp(tag, ">") == 0) {
			wire_add_line(&scene->input, text);
		} else if (strcmp(tag, "<") == 0) {
			wire_add_line(&scene->expected, text);
		} else if (strcmp(tag, "=") == 0) {
			add_answer(text, false, &scene->expected);
		} else if (strcmp(tag, "=close") == 0) {
			add_answer(text, true, &scene->expected);
			scene->end = true;
		} else if (strcmp(tag, "!") == 0) {
			must(buf_printf(&scene->expected, "!%s\n", text));
			scene->end = true;
		} else if (strcmp(tag, "eof") == 0) {
			scene->eof = true;
		} else if (strcmp(tag, "end") == 0) {
			scene->end = true;
		} else {
			fail_msg("%s: %s: what is \"%s\"?", c->file, c->name, tag);
		}
	}
}

/* ---- the server ---- */

static size_t bodies_in_their_room;

struct asked {
	struct buf body;
	char *room; /* that was asked for and not yet filled */
};

/* More than any body has: what is behind it must not get there. */
static char *on_body_room(struct http_exchange *ex, size_t *ret_len)
{
	struct asked *asked = ex->user;

	*ret_len = 64 * 1024;
	must(buf_reserve(&asked->body, *ret_len, &asked->room));
	return asked->room;
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct asked *asked = ex->user;

	if (asked->room) {
		assert_ptr_equal(data, asked->room);
		buf_commit(&asked->body, len);
		bodies_in_their_room++;
	} else {
		must(buf_append(&asked->body, data, len));
	}
	asked->room = NULL;
}

static void on_body_end(struct http_exchange *ex)
{
	const struct http_request *r = &ex->request;
	struct asked *asked = ex->user;
	struct buf text;

	buf_init(&text, SIZE_MAX / 2);
	must(buf_printf(&text, "%.*s %.*s %.*s %zu:", (int)r->method.len, r->method.p,
			(int)size_min(r->target.len, 200), r->target.p, (int)r->authority.len,
			r->authority.p, buf_length(&asked->body)));
	if (buf_length(&asked->body) <= 200)
		must(buf_append_str(&text, buf_str(&asked->body)));
	http_respond(ex, 200, NULL, buf_str(&text));
	buf_fini(&text);
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct asked *asked = ex->user;

	(void)status;
	buf_fini(&asked->body);
	free(asked);
}

static const struct http_exchange_handler handler = {
	.on_body_room = on_body_room,
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_closed = on_closed,
};

/* /refuse answers without touching the body, /chunked in pieces, /none with 204. */
static void dispatch(struct http_exchange *ex)
{
	struct asked *asked;

	if (str_equal(ex->request.path, STR("/refuse"))) {
		http_respond(ex, 413, NULL, STR("too large\n"));
		return;
	}
	if (str_equal(ex->request.path, STR("/none"))) {
		http_respond(ex, 204, NULL, STR(""));
		return;
	}
	if (str_equal(ex->request.path, STR("/chunked"))) {
		struct http_header trailer = {STR("X-Sum"), STR("5")};
		struct http_headers trailers = {&trailer, 1, 1};
		struct iovec pieces[2] = {{(void *)"ab", 2}, {(void *)"cde", 3}};

		must(http_response_begin(ex, 200, HTTP_LENGTH_CHUNKED));
		must(http_response_write(ex, pieces, 2));
		must(http_response_write(ex, pieces, 1));
		must(http_response_end(ex, &trailers));
		return;
	}
	asked = xcalloc(1, sizeof(*asked));
	buf_init(&asked->body, SIZE_MAX / 2);
	http_exchange_set_handler(ex, &handler, asked);
	http_request_body_start(ex);
}

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

/* ---- playing ---- */

/* True when `output` is what the case expects; "!status" lines stand for error answers. */
static bool matches(struct str expected, struct str output)
{
	while (expected.len) {
		const char *mark = memchr(expected.p, '!', expected.len);
		size_t exact = mark ? (size_t)(mark - expected.p) : expected.len;
		char status[32];
		const char *end, *length_at;
		size_t body, length;

		if (output.len < exact || memcmp(output.p, expected.p, exact) != 0)
			return false;
		output.p += exact;
		output.len -= exact;
		expected.p += exact;
		expected.len -= exact;
		if (!expected.len)
			break;
		snprintf(status, sizeof(status), "HTTP/1.1 %.3s ", expected.p + 1);
		end = memmem(output.p, output.len, "\r\n\r\n", 4);
		if (!str_starts_with(output, str_of(status)) || !end ||
		    !memmem(output.p, (size_t)(end - output.p), "Connection: close", 17))
			return false;
		length_at = memmem(output.p, output.len, "Content-Length: ", 16);
		if (!length_at)
			return false;
		length = strtoul(length_at + 16, NULL, 10); /* a CR follows */
		body = (size_t)(end + 4 - output.p);
		if (output.len < body + length || memcmp(end + 4, "{\"code\":", 8) != 0 ||
		    memcmp(end + 12, status + 9, 3) != 0)
			return false;
		output.p += body + length;
		output.len -= body + length;
		expected.p += 5;
		expected.len -= 5;
	}
	return output.len == 0;
}

static bool play(const void *arg, struct wire_cut cut)
{
	static const struct http_server_config config = {.dispatch = dispatch};
	const struct scene *c = arg;
	struct str output;
	bool stopped = false, good, ended;
	struct http_server *server;
	struct stream_mem *m;
	struct loop loop;

	loop_init(&loop);
	server = http_server_new(&loop, &config);
	m = stream_mem_new(&loop);
	http_server_adopt(server, &m->stream, "wire");
	wire_feed(&loop, m, buf_str(&c->input), cut);
	if (c->eof)
		stream_mem_feed_eof(m);
	stream_mem_settle(&loop);
	output = stream_mem_output(m);
	ended = m->shut_wanted || m->closed;
	good = matches(buf_str(&c->expected), output) && ended == c->end && !m->reset;
	if (!good)
		print_message("%s: %s\n  split %zu%s, direction %s%s, got:\n%.*s\n", c->wire->file,
			      c->wire->name, cut.split, cut.by_byte ? " (by byte)" : "",
			      ended ? "ended" : "open", m->reset ? " (reset)" : "",
			      (int)size_min(output.len, 4000), output.p);
	http_server_stop(server, on_stopped, &stopped);
	http_server_abort(server);
	stream_mem_settle(&loop);
	assert_true(stopped);
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
	int failed = wire_main("tests/wire/server*.wire", play_case);

	if (bodies_in_their_room)
		return failed;
	fprintf(stderr, "no body was put where its handler wanted it\n");
	return 1;
}
