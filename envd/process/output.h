/*
 * The way of a process's output: from its pipes or terminal to everybody who reads along.
 *
 * Reading is paced by the readers. Bytes go straight from the read buffer to each reader that keeps
 * up; for those that said OUTPUT_FULL they are kept in the log. When the log is full, or nobody is
 * ready, the sources are left alone, their pipes fill and the program waits. Nobody attached: bytes
 * are read and dropped.
 *
 * A reader that holds other readers up, which could go on, is cut off after
 * PROCESS_SUBSCRIBER_STALL_MS in which it takes next to nothing; the time counts from when it
 * begins to hold them up. A reader that holds up only the program, because it is alone or the
 * others take nothing either, is cut off after PROCESS_SUBSCRIBER_ALONE_STALL_MS in which it takes
 * nothing.
 *
 * Bytes are never changed. The beginning of a UTF-8 sequence at the end of what was read waits for
 * its rest, PROCESS_PARTIAL_HOLD_MS at most, because some clients decode every event by itself.
 */
#ifndef ENVD_PROCESS_OUTPUT_H
#define ENVD_PROCESS_OUTPUT_H

#include "envd/process/output_log.h"
#include "lib/loop.h"

#define OUTPUT_FULL 1
#define OUTPUT_SOURCES_MAX 2

struct output;
struct output_reader;
struct output_source;

struct output_reader_ops {
	/* 0; OUTPUT_FULL: taken, but wait for output_reader_drained; negative: the reader is going
	 * away and will be detached. May detach its own reader, no other. */
	int (*on_output)(struct output_reader *reader, enum output_stream stream, struct str bytes);
	/* Everything was delivered and nothing more comes. The reader is detached already. */
	void (*on_end)(struct output_reader *reader);
	/* Cut off for stalling, for other readers' sake or for the program's. The reader is
	 * detached already. */
	void (*on_cut)(struct output_reader *reader, bool for_others);
	/* Bytes it was given that its peer has not taken: to tell slow from stalled. May be
	 * NULL. */
	size_t (*queued)(struct output_reader *reader);
};

/* Embedded by its owner. */
struct output_reader {
	struct list_node node;
	struct output *output; /* NULL: not attached */
	const struct output_reader_ops *ops;
	uint64_t position;
	bool full;
	/* While full: what was queued when its peer was last seen to take something, and when that
	 * was. */
	size_t stall_mark;
	uint64_t stall_since_ms;
	/* The same of when it began to hold others up, or took enough since. 0: it does not. */
	size_t holding_mark;
	uint64_t holding_since_ms;
	uint64_t last_sent_ms;
};

struct output {
	struct loop *loop;
	struct output_source *sources[OUTPUT_SOURCES_MAX];
	size_t source_count;
	struct list_node readers;
	size_t reader_count;
	struct output_log log;
	struct list_node *discarding; /* sources nobody owns any more; see output_finish */
	uint64_t last_read_ms;
	bool started, finished, paused, flush_is_planned;
	/* All sources have ended. From the loop. */
	void (*on_ended)(struct output *output);
	/* `paused` has changed, a reader has become full, or bytes are held back: ask
	 * output_check_stalls and output_flush_held when to call them. Must not touch readers or
	 * the output. */
	void (*on_changed)(struct output *output);
};

/* Sources that outlive the output are put in `discarding`, whose owner closes them at the end with
 * output_close_discarding. */
void output_init(struct output *output, struct loop *loop, struct list_node *discarding);
/* The output must be finished, or never have got a source. */
void output_fini(struct output *output);
/* Takes the descriptor, which must be non-blocking; it is closed on failure too. */
int output_add_source(struct output *output, enum output_stream stream, int fd) NODISCARD;
/* Reading begins. */
void output_start(struct output *output);
bool output_has_ended(const struct output *output);
/* Bytes that can be read right now. */
size_t output_pending(const struct output *output);
/* Takes what is in the pipes at this moment, as far as the readers let it; up to `max` bytes. */
void output_read_now(struct output *output, size_t max);
/* A terminal has ended only for as long as nobody has it open: look again. */
void output_retry_terminal(struct output *output);
/* Nothing more will be delivered; readers end as soon as each has got its backlog. Sources that are
 * still open go on being read, into nowhere, so that whoever holds the other end is not killed by
 * SIGPIPE. */
void output_finish(struct output *output);
/* The same when nothing was ever started: closes the sources and leaves the readers attached. */
void output_discard(struct output *output);

/* From now on, not from before. */
void output_attach(struct output *output, struct output_reader *reader);
void output_detach(struct output_reader *reader);
void output_reader_drained(struct output_reader *reader);
/* Cuts those whose time is over; returns when to ask again, UINT64_MAX for never. */
uint64_t output_check_stalls(struct output *output);

/* Lets go what was held back for too long; returns when to ask again. */
uint64_t output_flush_held(struct output *output);

void output_close_discarding(struct list_node *discarding);

#endif
