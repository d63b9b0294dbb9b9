#include "envd/jobs/job_scan.h"

#include <fcntl.h>
#include <unistd.h>

#include "envd/limits.h"

#define BLOCK_BYTES (64 * 1024)
/* Read in one go; then others have a turn. */
#define TURN_BYTES (16 * 1024 * 1024)
#define PLUSES_MAX 4

/* What follows a '[', up to behind its end. A backslash means nothing in there; a ']' that comes
 * first, or in a class such as [:alpha:], does not end it. */
static const char *skip_brackets(const char *text)
{
	text += *text == '^';
	text += *text == ']';
	while (*text && *text != ']') {
		if (text[0] == '[' && (text[1] == ':' || text[1] == '.' || text[1] == '=')) {
			const char closing[] = {text[1], ']', '\0'},
				   *end = strstr(text + 2, closing);

			text = end ? end + 2 : text + strlen(text);
		} else {
			text++;
		}
	}
	return text + (*text == ']');
}

/* How often the parts of a pattern are repeated with +, one within the other. */
struct nesting {
	unsigned char deepest[JOB_PATTERN_BYTES_MAX + 1]; /* in each group that is open */
	size_t open;
	unsigned char last; /* of what a + here would repeat */
};

static void enter(struct nesting *nesting)
{
	nesting->deepest[++nesting->open] = 0;
	nesting->last = 0;
}

static void leave(struct nesting *nesting)
{
	if (nesting->open > 0)
		nesting->last = nesting->deepest[nesting->open--];
}

/* Some libraries keep what is repeated twice, and so 2^n times. */
static bool repeat(struct nesting *nesting)
{
	return ++nesting->last <= PLUSES_MAX;
}

static void count(struct nesting *nesting)
{
	if (nesting->last > nesting->deepest[nesting->open])
		nesting->deepest[nesting->open] = nesting->last;
}

int job_pattern_check(const char *text, struct err *err)
{
	struct nesting nesting = {.open = 0};

	if (strlen(text) > JOB_PATTERN_BYTES_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "the pattern is longer than %d bytes",
			       JOB_PATTERN_BYTES_MAX);
	while (*text) {
		const char *at = text++;

		if (*at == '(') {
			enter(&nesting);
			continue;
		}
		if (*at == '{')
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "repetition counts are not taken in patterns; write [{] for "
				       "a brace");
		if (*at == '\\' && *text >= '1' && *text <= '9')
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "back references are not taken in patterns");
		if (*at == '+' && !repeat(&nesting))
			return err_set(err, ERR_INVALID_ARGUMENT, "at most %d + within each other",
				       PLUSES_MAX);
		if (*at == ')')
			leave(&nesting);
		else if (*at != '+' && *at != '*' && *at != '?')
			nesting.last = 0;
		if (*at == '[')
			text = skip_brackets(text);
		else if (*at == '\\' && *text)
			text++;
		count(&nesting);
	}
	return 0;
}

int job_pattern_compile(struct job_pattern *pattern, const char *text, struct err *err)
{
	char reason[128];
	int status = regcomp(&pattern->regex, text, REG_EXTENDED | REG_NOSUB);

	if (status != 0) {
		regerror(status, &pattern->regex, reason, sizeof(reason));
		return err_set(err, ERR_INVALID_ARGUMENT, "invalid pattern: %s", reason);
	}
	pattern->is_compiled = true;
	return 0;
}

void job_pattern_fini(struct job_pattern *pattern)
{
	if (pattern->is_compiled)
		regfree(&pattern->regex);
	pattern->is_compiled = false;
}

/* ---- lines ---- */

/* Bytes of the character at the front; 0: it is none. */
static size_t character_length(struct str text)
{
	for (size_t len = 1; len <= text.len && len <= 4; len++)
		if (str_is_utf8((struct str){text.p, len}))
			return len;
	return 0;
}

/* As text, whatever the command's encoding: what is no character in UTF-8 is a '?'. */
static void keep_line(struct job_scan *scan, struct str line, uint64_t offset)
{
	size_t room = sizeof(scan->line) - 1, at = 0;

	while (line.len > 0) {
		size_t len = character_length(line);

		if (at + (len ? len : 1) > room)
			break;
		if (len)
			memcpy(scan->line + at, line.p, len);
		else
			scan->line[at] = '?';
		at += len ? len : 1;
		str_skip(&line, len ? len : 1);
	}
	scan->line[at] = '\0';
	scan->line_offset = offset;
}

/* `line` is followed by a byte that may be overwritten. */
static bool matches(const struct job_pattern *pattern, char *line, size_t len)
{
	char after = line[len];
	bool found;

	for (size_t i = 0; i < len; i++)
		if (!line[i])
			line[i] = ' ';
	line[len] = '\0';
	found = regexec(&pattern->regex, line, 0, NULL, 0) == 0;
	line[len] = after;
	return found;
}

/* Lines of a block that begins with one. *ret_used: what is not looked at again. */
static bool scan_block(struct job_scan *scan, const struct job_pattern *pattern, char *block,
		       size_t len, uint64_t offset, size_t *ret_used)
{
	size_t at = 0;

	*ret_used = 0;
	while (at < len) {
		char *end = memchr(block + at, '\n', len - at);
		size_t line_len = end ? (size_t)(end - block) - at : len - at;
		bool is_whole = end || line_len >= JOB_LINE_BYTES_MAX;

		/* The rest of a very long one counts as a line of its own. */
		line_len = size_min(line_len, JOB_LINE_BYTES_MAX);
		if (matches(pattern, block + at, line_len)) {
			keep_line(scan, (struct str){block + at, line_len}, offset + at);
			return true;
		}
		if (!is_whole)
			return false;
		at += line_len + (end && block + at + line_len == end);
		*ret_used = at;
	}
	return false;
}

/* ---- what is read ---- */

void job_scan_open(struct job_scan_source *source, const struct job_store *store, const char *id)
{
	*source = (struct job_scan_source){.block = xmalloc(BLOCK_BYTES + 1)};
	for (int i = 0; i < JOB_STREAMS; i++)
		source->fds[i] = job_store_open_file(store, id, job_stream_name((enum job_stream)i),
						     O_RDONLY);
}

void job_scan_close(struct job_scan_source *source)
{
	for (int i = 0; i < JOB_STREAMS; i++)
		close_fd(&source->fds[i]);
	free_ptr(&source->block);
}

bool job_scan_is_enough(const struct job_scan_source *source)
{
	return source->scanned >= TURN_BYTES;
}

/* The block that begins at *offset, or where what is kept begins. Most scans want the same one. */
static int load_block(struct job_scan_source *source, int stream, uint64_t *offset)
{
	struct job_extent extent;
	ssize_t got;
	int status;

	if (source->has_block && source->stream == stream && source->offset == *offset)
		return 0;
	source->has_block = false;
	status = job_extent_of(source->fds[stream], &extent);
	if (status < 0)
		return status;
	if (*offset < extent.oldest)
		*offset = extent.oldest;
	got = pread(source->fds[stream], source->block, BLOCK_BYTES, (off_t)*offset);
	if (got < 0)
		return -errno;
	source->stream = stream;
	source->offset = *offset;
	source->len = (size_t)got;
	source->has_block = true;
	return 0;
}

static int scan_stream(struct job_scan *scan, const struct job_pattern *pattern, int stream,
		       struct job_scan_source *source)
{
	do {
		uint64_t *offset = &scan->offsets[stream];
		int status = load_block(source, stream, offset);
		size_t used;

		if (status < 0)
			return status;
		source->scanned += source->len;
		if (scan_block(scan, pattern, source->block, source->len, *offset, &used))
			return 1;
		*offset += used;
		if (source->len < BLOCK_BYTES)
			return 0;
	} while (!job_scan_is_enough(source));
	scan->has_more = true;
	return 0;
}

int job_scan_run(struct job_scan *scan, const struct job_pattern *pattern,
		 struct job_scan_source *source)
{
	int status = 0, i;

	scan->has_more = false;
	for (i = 0; i < JOB_STREAMS && status == 0; i++)
		if (scan->is_wanted[i] && source->fds[i] >= 0)
			status = scan_stream(scan, pattern, i, source);
	return status;
}
