/*
 * One reader of a job's stored output: from an offset on, following if wanted. The file is the
 * buffer: a reader holds nothing while its client is slow, and costs the job nothing. Reading
 * happens in the pool, a piece at a time; what has been read is handed out on the loop.
 *
 * What does not change any more need not be copied: then the pool sends it through the client's
 * socket, which refers to the pages of the file afterwards (file_send.h). Of a job that runs, the
 * cap may drop what lies there unsent, and the client would get zeros; its output is always copied.
 */
#ifndef ENVD_JOBS_JOB_READER_H
#define ENVD_JOBS_JOB_READER_H

#include "envd/jobs/job_life.h"
#include "lib/file_send.h"

#define JOB_READER_FULL 1

struct job_reader;

struct job_reader_ops {
	/* Bytes of a stream, valid during the call. 0, JOB_READER_FULL (taken; no more until
	 * job_reader_drained), or a negative errno: the client is gone. */
	int (*on_data)(struct job_reader *reader, enum job_stream stream, uint64_t offset,
		       struct str bytes);
	/* Both of who lets the pool send: a socket for that, as stream_lend, -EAGAIN meaning
	 * JOB_READER_FULL; and that so many bytes from `offset` on were sent, and the descriptor is
	 * closed. */
	int (*on_lend)(struct job_reader *reader);
	void (*on_sent)(struct job_reader *reader, uint64_t offset, size_t len);
	/* What is from `offset` to reader->extent.oldest was dropped. As above. */
	int (*on_gap)(struct job_reader *reader, enum job_stream stream, uint64_t offset);
	/* All that was to be read was. 0; -EIO and the like: it cannot be read; -ERANGE: the offset
	 * is beyond the end; -ESHUTDOWN: envd ends; -ENOENT: the job was deleted. Last callback. */
	void (*on_end)(struct job_reader *reader, int status);
};

struct job_reader_stream {
	bool is_wanted;
	int fd; /* -1: not open (yet) */
	uint64_t offset;
	uint64_t until; /* UINT64_MAX: all */
	struct job_extent extent;
};

struct job_reader_piece {
	char *data; /* heap; NULL: none */
	size_t capacity, len;
	enum job_stream stream;
	uint64_t offset;
	struct job_extent
		extent; /* of the stream, when it was read; where a gap ends that is the oldest */
	bool is_gap;
};

enum job_reader_state {
	JOB_READER_OPEN,
	JOB_READER_ENDED, /* on_end has been called */
	JOB_READER_CLOSED,
};

/* Embedded by its owner; lives until on_free. */
struct job_reader {
	const struct job_reader_ops *ops;
	void (*on_free)(struct job_reader *reader);
	struct background_job *job;
	bool follows;
	bool checks_offset; /* beyond the end is an error */
	bool may_send; /* the pool sends, where that is possible; the job has ended, one stream is
			  wanted */
	uint64_t bytes_left;
	size_t piece_bytes;
	struct job_reader_stream streams[JOB_STREAMS];
	/* Of the piece's stream when it was read, for all callbacks but on_end; those above are the
	 * pool's. */
	struct job_extent extent;
	int order_fd; /* of who reads both streams; -1: not open (yet) */
	struct file_send send;
	uint64_t sent_from;
	size_t sent; /* by the last job */

	struct job_listener listener;
	struct job work;
	struct job_reader_piece pieces[2];
	unsigned next, reading;
	enum job_reader_state state;
	bool is_full, is_dry, is_stale, ends_dry;
	struct later later;
	int status;
};

/* The fields down to `streams` are the caller's to fill. -EAGAIN: too many readers; nothing is
 * called. */
int job_reader_open(struct job_reader *reader) NODISCARD;
void job_reader_drained(struct job_reader *reader);
/* The client is gone. on_free comes once nothing is in flight any more. Also after on_end. */
void job_reader_close(struct job_reader *reader);

#endif
