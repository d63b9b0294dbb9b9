/*
 * What commands print. For people: text in which nothing that a sandbox says can move the cursor or
 * change the terminal, and tables. For programs (-json): protobuf's JSON form, one value a line.
 */
#ifndef ENVD_CLI_PRINT_H
#define ENVD_CLI_PRINT_H

#include <protobuf-c/protobuf-c.h>

#include "lib/err.h"

/* "sandbox: not_found: no such file or directory", on stderr. Returns the exit code for it, 1. */
int print_failure(const struct err *err);
/* One line of JSON on stdout. */
void print_json(const ProtobufCMessage *message);
/* All of it, however long the reader takes; false, with errno, when that fails: EPIPE when there is
 * no reader any more, whatever the descriptor is. */
bool print_bytes(int fd, const void *data, size_t len);

#define TABLE_COLUMNS_MAX 10

/* Rows are kept until table_print, which makes columns as wide as their widest cell. */
struct table {
	size_t columns, rows, capacity;
	char **cells;
	bool right[TABLE_COLUMNS_MAX]; /* numbers stand at the right */
};

void table_init(struct table *t, size_t columns);
/* The next cell, row by row. */
void table_add(struct table *t, const char *format, ...) PRINTF_LIKE(2, 3);
/* One that somebody else chose, as it came from envd: quoted when it is odd. */
void table_add_name(struct table *t, const char *name);
void table_print(const struct table *t);
void table_fini(struct table *t);

#define PRINT_TEXT_BYTES 32
/* "812 B", "1.5 MiB". */
const char *print_size(uint64_t bytes, char text[PRINT_TEXT_BYTES]);
/* "2026-11-28 02:10:11", local time; "-" for 0. */
const char *print_time(int64_t unix_ms, char text[PRINT_TEXT_BYTES]);
/* "35 s", "2 h 10 m". */
const char *print_duration(int64_t ms, char text[PRINT_TEXT_BYTES]);

#endif
