/*
 * What has been read from a process and not yet been taken by all its readers: one bounded queue of
 * bytes, in the order of reading, with a cursor for each reader. Pieces of the same stream that
 * follow each other are joined, up to one read's size, and parted between UTF-8 sequences. When
 * every reader has caught up there is nothing in it and it holds no memory; readers that keep up
 * never pay for it.
 *
 * Positions count every byte since the process began, so a cursor is just a number.
 */
#ifndef ENVD_PROCESS_OUTPUT_LOG_H
#define ENVD_PROCESS_OUTPUT_LOG_H

#include "lib/base.h"
#include "lib/list.h"

enum output_stream { OUTPUT_STDOUT, OUTPUT_STDERR, OUTPUT_TERMINAL };

struct output_log {
	struct list_node blocks; /* oldest first */
	uint64_t start, end; /* positions of the content */
	size_t memory; /* what the blocks take */
};

/* What all logs of this thread take together, of PROCESS_LOGS_BYTES_MAX. */
size_t output_logs_bytes(void);
void output_log_init(struct output_log *log);
void output_log_fini(struct output_log *log);
/* The bytes begin at position `end`. The caller keeps to the bound: see output_log_has_room. */
void output_log_append(struct output_log *log, enum output_stream stream, struct str bytes);
/* For one more read of PROCESS_READ_BYTES. */
bool output_log_has_room(const struct output_log *log);
/* The bytes are passing by without being kept: nobody is behind. Only while the log is empty. */
void output_log_skip(struct output_log *log, size_t len);
/* The contiguous bytes of one stream at `position`; false at the end. Valid until the next append
 * or trim. */
bool output_log_peek(const struct output_log *log, uint64_t position,
		     enum output_stream *ret_stream, struct str *ret_bytes);
/* Nobody needs what is before `position`. */
void output_log_trim(struct output_log *log, uint64_t position);

/* How many bytes at the end of `bytes` begin a UTF-8 sequence that is not complete: 0 to 3. Bytes
 * that cannot become well-formed count as complete. */
size_t utf8_partial_tail(struct str bytes);

#endif
