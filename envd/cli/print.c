#include "envd/cli/print.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "envd/cli/name.h"
#include "envd/limits.h"
#include "envd/rpc/json_encode.h"

bool print_bytes(int fd, const void *data, size_t len)
{
	const char *next = data;

	while (len > 0) {
		ssize_t written = write(fd, next, len);

		if (written < 0 && errno == EAGAIN) {
			poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
			continue;
		}
		if (written < 0 && errno != EINTR) {
			/* As a socket says that its reader left with something unread. */
			errno = errno == ECONNRESET ? EPIPE : errno;
			return false;
		}
		if (written > 0) {
			next += written;
			len -= (size_t)written;
		}
	}
	return true;
}

/* What a terminal must not get becomes '?' (envd/cli/name.h). */
static void print_safe(FILE *file, const char *text)
{
	while (*text) {
		size_t len = name_visible(text);

		if (len)
			fwrite(text, 1, len, file);
		else
			fputc('?', file);
		text += len ? len : 1;
	}
}

int print_failure(const struct err *err)
{
	FILE *file = fdopen(dup(STDERR_FILENO), "w");

	if (!file)
		return EXIT_FAILURE;
	fprintf(file, "sandbox: %s: ", err_kind_name(err->kind));
	print_safe(file, err->message);
	fputc('\n', file);
	fclose(file);
	return EXIT_FAILURE;
}

void print_json(const ProtobufCMessage *message)
{
	struct buf b;

	buf_init(&b, RPC_REPLY_BYTES_MAX);
	if (json_encode(message, &b) == 0 && buf_append_str(&b, STR("\n")) == 0)
		print_bytes(STDOUT_FILENO, buf_data(&b), buf_length(&b));
	buf_fini(&b);
}

void table_init(struct table *t, size_t columns)
{
	assert(columns > 0 && columns <= TABLE_COLUMNS_MAX);
	*t = (struct table){.columns = columns};
}

static void add_cell(struct table *t, char *text)
{
	if (t->rows == t->capacity) {
		t->capacity = t->capacity ? t->capacity * 2 : 64;
		t->cells = xrealloc(t->cells, t->capacity * sizeof(*t->cells));
	}
	t->cells[t->rows++] = text;
}

void table_add(struct table *t, const char *format, ...)
{
	va_list arguments;
	char *text;
	int len;

	va_start(arguments, format);
	len = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	text = xmalloc((size_t)len + 1);
	va_start(arguments, format);
	vsnprintf(text, (size_t)len + 1, format, arguments);
	va_end(arguments);
	add_cell(t, text);
}

void table_add_name(struct table *t, const char *name)
{
	add_cell(t, name_quote_wire(name));
}

/* Characters, as far as a terminal is concerned: bytes that begin one. */
static size_t width_of(const char *text)
{
	size_t width = 0;

	for (; *text; text++)
		width += ((unsigned char)*text & 0xc0) != 0x80;
	return width;
}

void table_print(const struct table *t)
{
	FILE *file = fdopen(dup(STDOUT_FILENO), "w");
	size_t widths[TABLE_COLUMNS_MAX] = {0};

	if (!file)
		return;
	for (size_t i = 0; i < t->rows; i++)
		widths[i % t->columns] = size_max(widths[i % t->columns], width_of(t->cells[i]));
	for (size_t i = 0; i < t->rows; i++) {
		size_t column = i % t->columns;
		int blanks = (int)(widths[column] - width_of(t->cells[i]));
		bool last = column + 1 == t->columns;

		if (t->right[column])
			fprintf(file, "%*s", blanks, "");
		print_safe(file, t->cells[i]);
		if (last)
			fputc('\n', file);
		else
			fprintf(file, "%*s  ", t->right[column] ? 0 : blanks, "");
	}
	fclose(file);
}

void table_fini(struct table *t)
{
	for (size_t i = 0; i < t->rows; i++)
		free(t->cells[i]);
	free(t->cells);
}

const char *print_size(uint64_t bytes, char text[PRINT_TEXT_BYTES])
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double size = (double)bytes / 1024;
	size_t unit = 0;

	if (bytes < 1024) {
		snprintf(text, PRINT_TEXT_BYTES, "%llu B", (unsigned long long)bytes);
		return text;
	}
	for (; size >= 1024 && unit + 1 < ARRAY_LENGTH(units); unit++)
		size /= 1024;
	snprintf(text, PRINT_TEXT_BYTES, "%.1f %s", size, units[unit]);
	return text;
}

const char *print_time(int64_t unix_ms, char text[PRINT_TEXT_BYTES])
{
	time_t seconds = (time_t)(unix_ms / 1000);
	struct tm tm;

	if (!unix_ms || !localtime_r(&seconds, &tm) ||
	    !strftime(text, PRINT_TEXT_BYTES, "%Y-%m-%d %H:%M:%S", &tm))
		snprintf(text, PRINT_TEXT_BYTES, "-");
	return text;
}

const char *print_duration(int64_t ms, char text[PRINT_TEXT_BYTES])
{
	long long seconds = ms / 1000;

	if (ms < 10000)
		snprintf(text, PRINT_TEXT_BYTES, "%.1f s", (double)ms / 1000);
	else if (seconds < 120)
		snprintf(text, PRINT_TEXT_BYTES, "%lld s", seconds);
	else if (seconds < 7200)
		snprintf(text, PRINT_TEXT_BYTES, "%lld m %lld s", seconds / 60, seconds % 60);
	else if (seconds < 48 * 3600)
		snprintf(text, PRINT_TEXT_BYTES, "%lld h %lld m", seconds / 3600,
			 seconds / 60 % 60);
	else
		snprintf(text, PRINT_TEXT_BYTES, "%lld d %lld h", seconds / 86400,
			 seconds / 3600 % 24);
	return text;
}
