#include "lib/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "lib/sink.h"
#include "lib/timestamp.h"

/* Not more than PIPE_BUF: a pipe that is writable takes that much at once. */
#define LINE_BYTES 4096

static struct {
	enum log_level level;
	enum log_format format;
	struct sink sink;
	bool files_held;
	bool is_torn; /* the last line went out in part */
	pthread_mutex_t lock; /* held from asking for room to using it */
	atomic_ulong dropped; /* since that was told */
	atomic_ulong lost; /* ever */
	void (*hook)(const char *line, size_t len, void *user);
	void *hook_user;
	atomic_int copy_level; /* -1: no copies */
	void (*copy)(const char *line, size_t len, void *user);
	void *copy_user;
	pthread_mutex_t copy_lock;
} logger_state = {
	.level = LOG_INFO,
	.format = LOG_JSON,
	.sink = {.fd = -1, .own_fd = -1},
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.copy_level = -1,
	.copy_lock = PTHREAD_MUTEX_INITIALIZER,
};

struct line {
	char text[LINE_BYTES];
	size_t len;
};

void log_init(enum log_level level, enum log_format format, int fd)
{
	sink_close(&logger_state.sink);
	logger_state.level = level;
	logger_state.format = format;
	sink_open(&logger_state.sink, fd);
	logger_state.is_torn = false;
}

void log_hold_files(bool held)
{
	pthread_mutex_lock(&logger_state.lock);
	logger_state.files_held = held;
	pthread_mutex_unlock(&logger_state.lock);
}

void log_set_copy(enum log_level level, void (*copy)(const char *line, size_t len, void *user),
		  void *user)
{
	pthread_mutex_lock(&logger_state.copy_lock);
	logger_state.copy = copy;
	logger_state.copy_user = user;
	atomic_store(&logger_state.copy_level, copy ? (int)level : -1);
	pthread_mutex_unlock(&logger_state.copy_lock);
}

static bool is_written(enum log_level level)
{
	return level <= logger_state.level && (logger_state.sink.fd >= 0 || logger_state.hook);
}

static bool is_copied(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&logger_state.copy_level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
	return is_written(level) || is_copied(level);
}

void log_set_hook(void (*hook)(const char *line, size_t len, void *user), void *user)
{
	logger_state.hook = hook;
	logger_state.hook_user = user;
}

/* The last bytes of a line are kept for its closing brace and newline. */
static void add(struct line *line, const char *text, size_t len)
{
	len = size_min(len, sizeof(line->text) - 8 - size_min(line->len, sizeof(line->text) - 8));
	memcpy(line->text + line->len, text, len);
	line->len += len;
}

static void add_text(struct line *line, const char *text)
{
	add(line, text, strlen(text));
}

static void add_escaped(struct line *line, struct str s)
{
	bool utf8 = str_is_utf8(s);

	for (size_t i = 0; i < s.len && line->len < sizeof(line->text) - 16; i++) {
		unsigned char c = (unsigned char)s.p[i];
		char escape[8];

		if (c == '"' || c == '\\') {
			escape[0] = '\\';
			escape[1] = (char)c;
			add(line, escape, 2);
		} else if (c < 0x20 || c == 0x7F || (c >= 0x80 && !utf8)) {
			snprintf(escape, sizeof(escape), "\\u%04x", c);
			add(line, escape, 6);
		} else {
			add(line, s.p + i, 1);
		}
	}
}

static void add_time(struct line *line)
{
	struct timespec now;
	char text[TIMESTAMP_BYTES];
	struct str written;

	clock_gettime(CLOCK_REALTIME, &now);
	written = timestamp_write_ms(now.tv_sec, (int32_t)now.tv_nsec, text);
	add(line, written.p, written.len);
}

static void add_number(struct line *line, int64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)number);
	add_text(line, text);
}

static void add_value(struct line *line, const struct log_field *field, bool quote)
{
	switch (field->type) {
	case LOG_FIELD_STR:
		add_text(line, quote ? "\"" : "");
		add_escaped(line, field->text);
		add_text(line, quote ? "\"" : "");
		break;
	case LOG_FIELD_INT:
		add_number(line, field->number);
		break;
	case LOG_FIELD_BOOL:
		add_text(line, field->number ? "true" : "false");
		break;
	case LOG_FIELD_END:
		break;
	}
}

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static void format_json(struct line *line, enum log_level level, const char *logger,
			const char *message, const struct log_field *fields)
{
	add_text(line, "{\"timestamp\":\"");
	add_time(line);
	add_text(line, "\",\"level\":\"");
	add_text(line, level_names[level]);
	add_text(line, "\",\"logger\":\"");
	add_text(line, logger);
	add_text(line, "\",\"message\":\"");
	add_escaped(line, str_of(message));
	add_text(line, "\"");
	for (; fields->type != LOG_FIELD_END; fields++) {
		size_t before = line->len;

		add_text(line, ",\"");
		add_text(line, fields->name);
		add_text(line, "\":");
		add_value(line, fields, true);
		/* A field that does not fit is left out whole, so that the line stays JSON. */
		if (line->len >= sizeof(line->text) - 16) {
			line->len = before;
			break;
		}
	}
	line->text[line->len++] = '}';
	line->text[line->len++] = '\n';
}

static void format_text(struct line *line, enum log_level level, const char *logger,
			const char *message, const struct log_field *fields)
{
	struct timespec now;
	struct tm parts;
	char text[40];

	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &parts);
	add(line, text, strftime(text, sizeof(text), "%H:%M:%S", &parts));
	snprintf(text, sizeof(text), ".%03ld %-5s ", now.tv_nsec / 1000000, level_names[level]);
	add_text(line, text);
	add_text(line, logger);
	add_text(line, ": ");
	add_text(line, message);
	for (; fields->type != LOG_FIELD_END; fields++) {
		add_text(line, " ");
		add_text(line, fields->name);
		add_text(line, "=");
		add_value(line, fields, false);
	}
	line->text[line->len++] = '\n';
}

static ssize_t put(const char *text, size_t len)
{
	if (logger_state.sink.is_file && logger_state.files_held)
		return -1;
	return sink_put(&logger_state.sink, text, len);
}

static bool put_line(const struct line *line)
{
	ssize_t done;

	if (logger_state.is_torn && put("\n", 1) != 1)
		return false;
	logger_state.is_torn = false;
	done = put(line->text, line->len);
	logger_state.is_torn = done > 0 && done < (ssize_t)line->len;
	return done == (ssize_t)line->len;
}

static bool emit(const struct line *line)
{
	bool is_out;

	if (logger_state.hook) {
		logger_state.hook(line->text, line->len, logger_state.hook_user);
		return true;
	}
	if (logger_state.sink.fd < 0)
		return true;
	pthread_mutex_lock(&logger_state.lock);
	is_out = put_line(line);
	pthread_mutex_unlock(&logger_state.lock);
	return is_out;
}

static void format(struct line *line, enum log_level level, const char *logger, const char *message,
		   const struct log_field *fields)
{
	line->len = 0;
	if (logger_state.format == LOG_JSON)
		format_json(line, level, logger, message, fields);
	else
		format_text(line, level, logger, message, fields);
}

static void copy_line(const struct line *line)
{
	pthread_mutex_lock(&logger_state.copy_lock);
	if (logger_state.copy)
		logger_state.copy(line->text, line->len, logger_state.copy_user);
	pthread_mutex_unlock(&logger_state.copy_lock);
}

static void drop(void)
{
	atomic_fetch_add(&logger_state.dropped, 1);
	atomic_fetch_add(&logger_state.lost, 1);
}

uint64_t log_lines_lost(void)
{
	return atomic_load(&logger_state.lost);
}

static void write_line(enum log_level level, const char *logger, const char *message,
		       const struct log_field *fields)
{
	struct line line;
	unsigned long dropped = atomic_exchange(&logger_state.dropped, 0);

	if (dropped) {
		const struct log_field lost[] = {LOG_I("lines", dropped), {.type = LOG_FIELD_END}};

		format(&line, LOG_WARN, "log", "lines dropped", lost);
		if (!emit(&line)) {
			/* No room for that, then none for the next line either. */
			atomic_fetch_add(&logger_state.dropped, dropped);
			drop();
			return;
		}
	}
	format(&line, level, logger, message, fields);
	if (!emit(&line))
		drop();
}

void log_write(enum log_level level, const char *logger, const char *message,
	       const struct log_field *fields)
{
	struct line line;

	if (is_written(level))
		write_line(level, logger, message, fields);
	if (is_copied(level)) {
		line.len = 0;
		format_json(&line, level, logger, message, fields);
		copy_line(&line);
	}
}
