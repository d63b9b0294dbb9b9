#include "tests/support/wire.h"

#include <glob.h>

#include "tests/support/cmocka.h"

#define EVERY_SPLIT_MOST 1500
#define BY_BYTE_MOST 150000

struct wire_cases {
	struct wire_case *items;
	size_t count;
};

static void die(const char *file, const char *what, const char *text)
{
	fprintf(stderr, "%s: %s: %s\n", file, what, text);
	exit(1);
}

static void must(int status)
{
	if (status < 0)
		abort();
}

static int hex(char c)
{
	return c >= 'a' ? c - 'a' + 10 : c >= 'A' ? c - 'A' + 10 : c - '0';
}

/* The brace that closes the one at s.p[open]. */
static size_t closing_brace(struct str s, size_t open)
{
	size_t depth = 0;

	for (size_t i = open; i < s.len; i++) {
		depth += s.p[i] == '{';
		depth -= s.p[i] == '}';
		if (depth == 0)
			return i;
	}
	die("wire", "no closing brace", s.p);
	return 0;
}

static void unescape(struct buf *b, struct str s)
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
				size_t from = (size_t)(open - s.p) + 1, to;

				if (times <= 0 || *open != '{')
					die("wire", "bad repetition", s.p);
				to = closing_brace(s, from - 1);
				while (times--)
					unescape(b, (struct str){s.p + from, to - from});
				i = to;
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

void wire_unescape(struct buf *b, const char *text)
{
	unescape(b, str_of(text));
}

void wire_add_line(struct buf *b, const char *text)
{
	struct str s = str_of(text);

	if (s.len && s.p[s.len - 1] == '\\' && (s.len < 2 || s.p[s.len - 2] != '\\')) {
		s.len--;
		unescape(b, s);
		return;
	}
	unescape(b, s);
	must(buf_append(b, "\r\n", 2));
}

static void add_case(struct wire_cases *cases, const char *file, const char *name)
{
	struct wire_case *c;

	cases->items = xrealloc(cases->items, (cases->count + 1) * sizeof(*cases->items));
	c = &cases->items[cases->count++];
	*c = (struct wire_case){.name = xstrdup(name), .file = xstrdup(file)};
}

static void add_line(struct wire_cases *cases, const char *file, const char *line)
{
	const char *blank = strchr(line, ' ');
	size_t tag = blank ? (size_t)(blank - line) : strlen(line);
	struct wire_case *c = cases->count ? &cases->items[cases->count - 1] : NULL;
	struct wire_line *l;

	if (!c || tag >= sizeof(l->tag))
		die(file, "not understood", line);
	c->lines = xrealloc(c->lines, (c->line_count + 1) * sizeof(*c->lines));
	l = &c->lines[c->line_count++];
	memcpy(l->tag, line, tag);
	l->tag[tag] = '\0';
	l->text = xstrdup(blank ? blank + 1 : "");
}

static void read_file(struct wire_cases *cases, const char *path)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t capacity = 0;
	ssize_t len;

	if (!file)
		die(path, "cannot be read", "");
	while ((len = getline(&line, &capacity, file)) > 0) {
		if (line[len - 1] == '\n')
			line[len - 1] = '\0';
		if (strncmp(line, "== ", 3) == 0)
			add_case(cases, path, line + 3);
		else if (line[0] && line[0] != '#')
			add_line(cases, path, line);
	}
	free(line);
	fclose(file);
}

static void read_files(struct wire_cases *cases, const char *pattern)
{
	glob_t files;

	*cases = (struct wire_cases){.count = 0};
	if (glob(pattern, 0, NULL, &files) != 0)
		die(pattern, "no such files", "run this from the top of the tree");
	for (size_t i = 0; i < files.gl_pathc; i++)
		read_file(cases, files.gl_pathv[i]);
	globfree(&files);
}

static void free_cases(struct wire_cases *cases)
{
	for (size_t i = 0; i < cases->count; i++) {
		for (size_t k = 0; k < cases->items[i].line_count; k++)
			free(cases->items[i].lines[k].text);
		free(cases->items[i].lines);
		free(cases->items[i].name);
		free(cases->items[i].file);
	}
	free(cases->items);
}

void wire_feed(struct loop *loop, struct stream_mem *m, struct str input, struct wire_cut cut)
{
	for (size_t at = 0, len; at < input.len; at += len) {
		len = cut.by_byte ? 1 : at < cut.split ? cut.split - at : input.len - at;
		stream_mem_feed(m, input.p + at, len);
		if (!list_is_empty(&loop->later))
			stream_mem_settle(loop);
	}
}

bool wire_play(bool (*play)(const void *scene, struct wire_cut cut), const void *scene, size_t len)
{
	size_t step = len / EVERY_SPLIT_MOST + 1;
	bool good = play(scene, (struct wire_cut){0});

	for (size_t split = 1; good && split < len; split += step)
		good = play(scene, (struct wire_cut){.split = split});
	if (good && len <= BY_BYTE_MOST)
		good = play(scene, (struct wire_cut){.by_byte = true});
	return good;
}

int wire_main(const char *pattern, void (*test)(void **state))
{
	struct wire_cases cases;
	struct CMUnitTest *tests;
	int failed;

	read_files(&cases, pattern);
	tests = xcalloc(cases.count, sizeof(*tests));
	for (size_t i = 0; i < cases.count; i++)
		tests[i] = (struct CMUnitTest){
			.name = cases.items[i].name,
			.test_func = test,
			.initial_state = &cases.items[i],
		};
	failed = _cmocka_run_group_tests("wire", tests, cases.count, NULL, NULL);
	free(tests);
	free_cases(&cases);
	return failed;
}
