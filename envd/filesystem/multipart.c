#include "envd/filesystem/multipart.h"

#include "envd/filesystem/parameters.h"
#include "envd/limits.h"

/* Parsed header texts of one part; a hostile one ends in an error. */
#define HEADER_ARENA_BYTES (8 * MULTIPART_HEADERS_BYTES_MAX)

static int malformed(struct err *err, const char *what)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "multipart: %s", what);
}

static bool is_boundary_text(struct str boundary)
{
	for (size_t i = 0; i < boundary.len; i++)
		if (boundary.p[i] < 0x20 || boundary.p[i] == 0x7F)
			return false;
	return boundary.len > 0 && boundary.len <= MULTIPART_BOUNDARY_BYTES_MAX;
}

int multipart_init(struct multipart *m, struct str content_type,
		   const struct multipart_events *events, void *user, struct err *err)
{
	struct str type = parameters_type(content_type), boundary;
	struct arena arena;
	int status;

	*m = (struct multipart){.events = events, .user = user};
	buf_init(&m->headers, MULTIPART_HEADERS_BYTES_MAX);
	if (!str_equal_nocase(type, STR("multipart/form-data")) &&
	    !str_equal_nocase(type, STR("multipart/mixed")))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "request Content-Type isn't multipart/form-data");
	arena_init(&arena, HEADER_ARENA_BYTES);
	status = parameters_get(content_type, STR("boundary"), &arena, &boundary);
	if (status <= 0) {
		status = err_set(err, ERR_INVALID_ARGUMENT,
				 "no multipart boundary param in Content-Type");
	} else if (!is_boundary_text(boundary)) {
		status = malformed(err, "boundary is empty, too long or has control characters");
	} else {
		memcpy(m->delimiter, "\r\n--", 4);
		memcpy(m->delimiter + 4, boundary.p, boundary.len);
		m->delimiter_len = 4 + boundary.len;
		/* The first delimiter may stand at the very start, without a line end before it. */
		m->matched = m->phantom = 2;
		status = 0;
	}
	arena_release(&arena);
	return status;
}

void multipart_fini(struct multipart *m)
{
	buf_fini(&m->headers);
}

/* A decoder's message is as the form's other ones. */
static int wrap_decoding(int status, struct err *err)
{
	if (status < 0 && strncmp(err->message, "quotedprintable: ", 17) == 0)
		err_wrap(err, "multipart");
	return status;
}

static int emit(struct multipart *m, const char *data, size_t len, struct err *err)
{
	if (!m->in_part || !len)
		return 0;
	if (!m->is_quoted)
		return m->events->on_data(m->user, data, len, err);
	return wrap_decoding(
		quoted_printable_feed(&m->quoted, data, len, m->events->on_data, m->user, err),
		err);
}

static int end_part(struct multipart *m, struct err *err)
{
	int status = 0;

	if (m->in_part && m->is_quoted)
		status = quoted_printable_finish(&m->quoted, m->events->on_data, m->user, err);
	if (m->in_part && status == 0)
		status = m->events->on_part_end(m->user, err);
	m->in_part = false;
	return status;
}

/* What looked like a delimiter was content. CR stands in a delimiter only at its start, so no later
 * start can hide in what was held back. */
static int emit_held(struct multipart *m, struct err *err)
{
	size_t held = m->matched, phantom = m->phantom;

	m->matched = m->phantom = 0;
	m->state = MULTIPART_CONTENT;
	return emit(m, m->delimiter + phantom, held - phantom, err);
}

/* Goes on with a delimiter that the previous bytes began. Returns how many bytes were used. */
static size_t continue_match(struct multipart *m, const char *data, size_t len, int *ret_status,
			     struct err *err)
{
	size_t used = 0;

	*ret_status = 0;
	while (used < len && m->matched < m->delimiter_len &&
	       data[used] == m->delimiter[m->matched]) {
		used++;
		m->matched++;
	}
	if (m->matched == m->delimiter_len)
		m->state = MULTIPART_AFTER;
	else if (used < len)
		*ret_status = emit_held(m, err);
	return used;
}

/* Content up to a delimiter, or to the start of what may be one. */
static size_t feed_content(struct multipart *m, const char *data, size_t len, int *ret_status,
			   struct err *err)
{
	const char *at = data, *end = data + len;

	if (m->matched)
		return continue_match(m, data, len, ret_status, err);
	while ((at = memchr(at, '\r', (size_t)(end - at)))) {
		size_t have = size_min((size_t)(end - at), m->delimiter_len);

		if (memcmp(at, m->delimiter, have) == 0) {
			m->matched = have;
			if (have == m->delimiter_len)
				m->state = MULTIPART_AFTER;
			*ret_status = emit(m, data, (size_t)(at - data), err);
			return (size_t)(at - data) + have;
		}
		at++;
	}
	*ret_status = emit(m, data, len, err);
	return len;
}

/* Any byte here belongs to a delimiter line, except for the one that shows it is none. */
static size_t feed_after(struct multipart *m, char c, int *ret_status, struct err *err)
{
	switch (m->state) {
	case MULTIPART_AFTER:
		if (c == '-')
			m->state = MULTIPART_CLOSING;
		else if (c == '\r')
			m->state = MULTIPART_AFTER_CR;
		else if (c == ' ' || c == '\t')
			m->state = MULTIPART_AFTER_BLANK;
		else if (c == '\n' && !m->in_part)
			*ret_status = malformed(err, "lines end in LF, not in CR LF");
		else
			*ret_status = emit_held(m, err);
		return m->state != MULTIPART_CONTENT;
	case MULTIPART_AFTER_BLANK:
		if (c == '\r')
			m->state = MULTIPART_AFTER_CR;
		else if (c != ' ' && c != '\t')
			*ret_status = malformed(err, "bytes behind a boundary");
		return 1;
	case MULTIPART_AFTER_CR:
		if (c != '\n') {
			*ret_status = malformed(err, "boundary line without line end");
			return 1;
		}
		m->state = MULTIPART_HEADERS;
		*ret_status = end_part(m, err);
		return 1;
	case MULTIPART_CLOSING:
		if (c != '-') {
			*ret_status = emit_held(m, err);
			if (*ret_status == 0)
				*ret_status = emit(m, "-", 1, err);
			return 0;
		}
		m->state = MULTIPART_DONE;
		*ret_status = end_part(m, err);
		return 1;
	case MULTIPART_CONTENT:
	case MULTIPART_HEADERS:
	case MULTIPART_DONE:
		break;
	}
	return 0;
}

/* The value of the last field of that name; folded lines are unfolded in place beforehand. */
static struct str find_field(struct str block, struct str name)
{
	struct str line, found = {NULL, 0};

	while (str_split(&block, '\n', &line)) {
		const char *colon = line.len ? memchr(line.p, ':', line.len) : NULL;
		struct str field = {line.p, colon ? (size_t)(colon - line.p) : 0};
		struct str value;

		if (!colon || !str_equal_nocase(str_trim(field), name))
			continue;
		value = (struct str){colon + 1, line.len - field.len - 1};
		if (value.len && value.p[value.len - 1] == '\r')
			value.len--;
		found = str_trim(value);
	}
	return found;
}

/* RFC 822 folding: a line that begins with a blank goes on with the one before. */
static void unfold(char *block, size_t len)
{
	for (size_t i = 0; i + 2 < len; i++)
		if (block[i] == '\r' && block[i + 1] == '\n' &&
		    (block[i + 2] == ' ' || block[i + 2] == '\t'))
			block[i] = block[i + 1] = ' ';
}

static int read_disposition(struct str disposition, struct arena *arena,
			    struct multipart_part *part, struct err *err)
{
	int status;

	if (!str_equal_nocase(parameters_type(disposition), STR("form-data")))
		return 0;
	status = parameters_get(disposition, STR("name"), arena, &part->name);
	if (status >= 0)
		status = parameters_get(disposition, STR("filename"), arena, &part->filename);
	if (status == -ENOMEM)
		return malformed(err, "part header too large");
	if (status < 0)
		return malformed(err, "malformed Content-Disposition header");
	if (part->filename.len && memchr(part->filename.p, '\0', part->filename.len))
		return malformed(err, "file name with a NUL byte");
	return 0;
}

/* The header block is complete. */
static int begin_part(struct multipart *m, struct err *err)
{
	struct str block = buf_str(&m->headers);
	struct multipart_part part = {.name = STR("")};
	struct arena arena;
	int status;

	unfold(buf_data(&m->headers), block.len);
	m->is_quoted = str_equal_nocase(find_field(block, STR("Content-Transfer-Encoding")),
					STR("quoted-printable"));
	quoted_printable_init(&m->quoted);
	arena_init(&arena, HEADER_ARENA_BYTES);
	status = read_disposition(find_field(block, STR("Content-Disposition")), &arena, &part,
				  err);
	m->in_part = true;
	if (status == 0)
		status = m->events->on_part(m->user, &part, err);
	arena_release(&arena);
	buf_reset(&m->headers);
	m->state = MULTIPART_CONTENT;
	/* An empty part may end at once: the blank line's end is the delimiter's start. */
	m->matched = m->phantom = 2;
	return status;
}

/* Collects up to the blank line. Returns how many bytes were used. */
static size_t feed_headers(struct multipart *m, const char *data, size_t len, int *ret_status,
			   struct err *err)
{
	const char *newline = memchr(data, '\n', len);
	size_t take = newline ? (size_t)(newline - data) + 1 : len;
	struct str block;

	if (buf_append(&m->headers, data, take) < 0) {
		*ret_status = malformed(err, "part header too large");
		return take;
	}
	block = buf_str(&m->headers);
	if (newline && (str_equal(block, STR("\r\n")) || str_ends_with(block, STR("\r\n\r\n"))))
		*ret_status = begin_part(m, err);
	else if (str_ends_with(block, STR("\n\n")) || str_equal(block, STR("\n")))
		*ret_status = malformed(err, "lines end in LF, not in CR LF");
	return take;
}

int multipart_feed(struct multipart *m, const char *data, size_t len, struct err *err)
{
	int status = 0;

	while (len && status >= 0) {
		size_t used = len;

		switch (m->state) {
		case MULTIPART_CONTENT:
			used = feed_content(m, data, len, &status, err);
			break;
		case MULTIPART_HEADERS:
			used = feed_headers(m, data, len, &status, err);
			break;
		case MULTIPART_AFTER:
		case MULTIPART_AFTER_BLANK:
		case MULTIPART_AFTER_CR:
		case MULTIPART_CLOSING:
			used = feed_after(m, data[0], &status, err);
			break;
		case MULTIPART_DONE:
			return 0;
		}
		data += used;
		len -= used;
	}
	return status;
}

int multipart_finish(struct multipart *m, struct err *err)
{
	return m->state == MULTIPART_DONE ? 0 : malformed(err, "unexpected EOF");
}
