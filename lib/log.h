/*
 * One line an event: JSON for machines (default) or readable text (envd --standalone). Call sites
 * give a constant event text and typed fields; nothing is ever formatted into the message, so
 * neither secrets nor payloads can slip in by accident. Never logged: tokens, environment values,
 * stdin/stdout data, query strings of signed URLs.
 *
 * The log never blocks: a line goes out through one write, and only when there is room for it, also
 * where the descriptor is a blocking one shared with others; what finds no room is dropped, and the
 * number of dropped lines is reported with the next line that fits. May be called from any thread.
 */
#ifndef LIB_LOG_H
#define LIB_LOG_H

#include "lib/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_JSON, LOG_TEXT };

struct log_field {
	const char *name;
	enum { LOG_FIELD_END, LOG_FIELD_STR, LOG_FIELD_INT, LOG_FIELD_BOOL } type;
	struct str text;
	int64_t number;
};

/* `fd` is borrowed and stays as it is (not made non-blocking: others may share it); -1 turns
 * logging off. */
void log_init(enum log_level level, enum log_format format, int fd);
/* While held, a log that is a file gets nothing (the lines count as dropped): for the time in which
 * its file system is frozen and every write to it would block. Waits for a line under way. */
void log_hold_files(bool held);
/* Every line of this level or a graver one also goes to `copy`, as JSON, wherever else it goes and
 * whether or not it finds room there; from any thread, one at a time. It must not wait, nor log.
 * Once this returns the function before it is not called any more; NULL: nowhere. */
void log_set_copy(enum log_level level, void (*copy)(const char *line, size_t len, void *user),
		  void *user);
/* Lines that found no room, ever. */
uint64_t log_lines_lost(void);
bool log_enabled(enum log_level level);
/* `fields` ends with a LOG_FIELD_END entry. Use the macros below. */
void log_write(enum log_level level, const char *logger, const char *message,
	       const struct log_field *fields);
/* Tests see every line through this; NULL restores the descriptor. */
void log_set_hook(void (*hook)(const char *line, size_t len, void *user), void *user);

#define LOG_S(field, value) LOG_STR(field, str_of(value))
#define LOG_STR(field, value) \
	((struct log_field){.name = (field), .type = LOG_FIELD_STR, .text = (value)})
#define LOG_I(field, value) \
	((struct log_field){.name = (field), .type = LOG_FIELD_INT, .number = (int64_t)(value)})
#define LOG_B(field, value) \
	((struct log_field){.name = (field), .type = LOG_FIELD_BOOL, .number = (value)})

#define LOG_AT(level, logger, message, ...) \
	do { \
		if (log_enabled(level)) \
			log_write((level), (logger), (message), \
				  (const struct log_field[]){ \
					  __VA_ARGS__ __VA_OPT__(, ){.type = LOG_FIELD_END}}); \
	} while (0)
#define log_error(logger, message, ...) \
	LOG_AT(LOG_ERROR, logger, message __VA_OPT__(, ) __VA_ARGS__)
#define log_warn(logger, message, ...) LOG_AT(LOG_WARN, logger, message __VA_OPT__(, ) __VA_ARGS__)
#define log_info(logger, message, ...) LOG_AT(LOG_INFO, logger, message __VA_OPT__(, ) __VA_ARGS__)
#define log_debug(logger, message, ...) \
	LOG_AT(LOG_DEBUG, logger, message __VA_OPT__(, ) __VA_ARGS__)

#endif
