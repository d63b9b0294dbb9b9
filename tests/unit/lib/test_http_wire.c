/*
 * Plays tests/wire/server*.wire against a server connection on a memory stream: the whole input at once, cut
 * in two at every place, and byte by byte. What comes back must be the same each time.
 *
 * A case begins with "== name". Lines then mean:
 *   > text     the client sends it, and CR LF; without these when it ends with a lone backslash
 *   eof        the client ends its direction after what it sent
 *   < text     the server sends exactly this, and CR LF or not in the same way
 *   = text     the server answers 200 with this body (and keeps the connection)
 *   =close text  the same with Connection: close
 *   ! status   the server answers an error of its own with this status, and closes
 *   open, end  how the server leaves its direction in the end (open, unless a "!" came before)
 * Escapes: \r \n \t \0 \\ \xHH, and \*N{text} for N times text. The handler's answers say what it
 * was asked: "<method> <target> <authority> <body length>:<body>".
 */
#include "tests/support/cmocka.h"

#include <glob.h>

#include "lib/http_server.h"
#include "lib/limits.h"
#include "tests/support/stream_mem.h"

#define CASES_MAX 400
#define EVERY_SPLIT_MOST 1500
#define BY_BYTE_MOST 150000

struct wire_case {
	char *name;
	const char *file;
	struct buf input, expected;
	bool eof, end;
};

static struct wire_case cases[CASES_MAX];
static size_t case_count;

/* ---- reading the files ---- */

static void must(int status)
{
	if (status < 0)
		abort();
}

/* The files are read before cmocka has a test that could fail. */
static void die(const char *what, struct str line)
{
	fprintf(stderr, "%s: %s: \"%.*s\"\n", case_count ? cases[case_count - 1].name : "?", what,
		(int)line.len, line.p);
	exit(1);
}

static int hex(char c)
{
	return c >= 'a' ? c - 'a' + 10 : c >= 'A' ? c - 'A' + 10 : c - '0';
}

/* The brace that closes the one at s.p[open]. */
static const char *closing_brace(struct str s, size_t open)
{
	size_t depth = 0;

	for (size_t i = open; i < s.len; i++) {
		depth += s.p[i] == '{';
		depth -= s.p[i] == '}';
		if (depth == 0)
			return s.p + i;
	}
	return NULL;
}

static void unescape(struct str s, struct buf *b)
{
	for (size_t i = 0; i < s.len; i++) {
		char c = s.p[i];

		if (c == '\\' && i + 1 < s.len) {
			switch (s.p[++i]) {
			case 'r':
				c = '\r';
				break;
			case 'n':
				c = '\n';
				break;
			case 't':
				c = '\t';
				break;
			case '0':
				c = '\0';
				break;
			case 'x':
				c = (char)(hex(s.p[i + 1]) << 4 | hex(s.p[i + 2]));
				i += 2;
				break;
			case '*': {
				char *open;
				long times = strtol(s.p + i + 1, &open, 10);
				const char *close = closing_brace(s, (size_t)(open - s.p));

				if (times <= 0 || *open != '{' || !close)
					die("bad repetition", s);
				while (times--)
					unescape((struct str){open + 1, (size_t)(close - open - 1)}, b);
				i = (size_t)(close - s.p);
				continue;
			}
			default:
				c = s.p[i];
				break;
			}
		}
		must(buf_append(b, &c, 1));
	}
}

/* A line of input or output: with CR LF, unless it ends with a lone backslash. */
static void add_line(struct str text, struct buf *b)
{
	if (text.len && text.p[text.len - 1] == '\\' &&
	    (text.len < 2 || text.p[text.len - 2] != '\\')) {
		text.len--;
		unescape(text, b);
		return;
	}
	unescape(text, b);
	must(buf_append(b, "\r\n", 2));
}

static void add_answer(struct str text, bool close, struct buf *b)
{
	struct buf body;

	buf_init(&body, SIZE_MAX / 2);
	unescape(text, &body);
	must(buf_printf(b, "HTTP/1.1 200 OK\r\n%sContent-Length: %zu\r\n\r\n",
			close ? "Connection: close\r\n" : "", buf_length(&body)));
	must(buf_append_str(b, buf_str(&body)));
	buf_fini(&body);
}

static bool cut(struct str *line, const char *prefix)
{
	struct str p = str_of(prefix);

	if (!str_starts_with(*line, p))
		return false;
	line->p += p.len;
	line->len -= p.len;
	return true;
}

static void add_case_line(struct str line)
{
	struct wire_case *c = case_count ? &cases[case_count - 1] : NULL;

	if (line.len == 0 || line.p[0] == '#')
		return;
	if (cut(&line, "== ")) {
		if (case_count == CASES_MAX)
			die("too many cases", line);
		c = &cases[case_count++];
		c->name = xstrndup(line.p, line.len);
		buf_init(&c->input, SIZE_MAX / 2);
		buf_init(&c->expected, SIZE_MAX / 2);
		return;
	}
	if (!c)
		die("outside of any case", line);
	if (cut(&line, "> ") || str_equal(line, STR(">"))) {
		add_line(line.len && line.p[0] == '>' ? STR("") : line, &c->input);
	} else if (cut(&line, "< ") || str_equal(line, STR("<"))) {
		add_line(line.len && line.p[0] == '<' ? STR("") : line, &c->expected);
	} else if (cut(&line, "= ")) {
		add_answer(line, false, &c->expected);
	} else if (cut(&line, "=close ")) {
		add_answer(line, true, &c->expected);
		c->end = true;
	} else if (cut(&line, "! ")) {
		must(buf_printf(&c->expected, "!%.*s\n", (int)line.len, line.p));
		c->end = true;
	} else if (str_equal(line, STR("eof"))) {
		c->eof = true;
	} else if (str_equal(line, STR("end"))) {
		c->end = true;
	} else if (str_equal(line, STR("open"))) {
		c->end = false;
	} else {
		die("not understood", line);
	}
}

static void read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t capacity = 0;
	ssize_t len;

	if (!file)
		die("cannot be read", str_of(path));
	while ((len = getline(&line, &capacity, file)) > 0) {
		size_t before = case_count;

		add_case_line((struct str){line, (size_t)len - (line[len - 1] == '\n')});
		if (case_count != before)
			cases[case_count - 1].file = xstrdup(path);
	}
	free(line);
	fclose(file);
}

/* ---- the server ---- */

struct asked {
	struct buf body;
};

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct asked *asked = ex->user;

	must(buf_append(&asked->body, data, len));
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

static bool play(const struct wire_case *c, size_t split, bool by_byte, bool tell)
{
	static const struct http_server_config config = {.dispatch = dispatch};
	struct str input = buf_str(&c->input), output;
	bool stopped = false, good, ended;
	struct http_server *server;
	struct stream_mem *m;
	struct loop loop;

	loop_init(&loop);
	server = http_server_new(&loop, &config);
	m = stream_mem_new(&loop);
	http_server_adopt(server, &m->stream, "wire");
	for (size_t at = 0, len; at < input.len; at += len) {
		len = by_byte ? 1 : at < split ? split - at : input.len - at;
		stream_mem_feed(m, input.p + at, len);
		if (!list_is_empty(&loop.later))
			stream_mem_settle(&loop);
	}
	if (c->eof)
		stream_mem_feed_eof(m);
	stream_mem_settle(&loop);
	output = stream_mem_output(m);
	ended = m->shut_wanted || m->closed;
	good = matches(buf_str(&c->expected), output) && ended == c->end && !m->reset;
	if (!good && tell)
		print_message("%s: %s\n  split %zu%s, direction %s%s, got:\n%.*s\n", c->file, c->name, split,
			      by_byte ? " (by byte)" : "", ended ? "ended" : "open",
			      m->reset ? " (reset)" : "", (int)size_min(output.len, 4000), output.p);
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
	const struct wire_case *c = *state;
	size_t len = buf_length(&c->input), step = len / EVERY_SPLIT_MOST + 1;

	if (!play(c, 0, false, true))
		fail();
	for (size_t split = 1; split < len; split += step)
		if (!play(c, split, false, true))
			fail();
	if (len <= BY_BYTE_MOST && !play(c, 0, true, true))
		fail();
}

int main(void)
{
	struct CMUnitTest tests[CASES_MAX];
	glob_t files;
	int failed;

	if (glob("tests/wire/server*.wire", 0, NULL, &files) != 0) {
		fprintf(stderr, "run this from the top of the tree\n");
		return 1;
	}
	for (size_t i = 0; i < files.gl_pathc; i++)
		read_file(files.gl_pathv[i]);
	globfree(&files);
	for (size_t i = 0; i < case_count; i++)
		tests[i] = (struct CMUnitTest){
			.name = cases[i].name,
			.test_func = play_case,
			.initial_state = &cases[i],
		};
	failed = _cmocka_run_group_tests("wire", tests, case_count, NULL, NULL);
	for (size_t i = 0; i < case_count; i++) {
		free(cases[i].name);
		free((void *)cases[i].file);
		buf_fini(&cases[i].input);
		buf_fini(&cases[i].expected);
	}
	return failed;
}
