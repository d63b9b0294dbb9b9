#include "envd/process/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/limits.h"

/* How often one source is read before the others get their turn. */
#define READS_AT_ONCE 4

struct output_source {
	struct list_node node; /* in the discarding list */
	uv_poll_t poll;
	struct output *output; /* NULL: what is read is dropped */
	struct loop *loop;
	int fd;
	enum output_stream stream;
	bool polling, ended;
	/* The beginning of a character whose rest has not come yet. */
	char held[4];
	size_t held_len;
	uint64_t held_since_ms;
};

static void on_readable(uv_poll_t *poll, int status, int events);

/* ---- sources ---- */

static void on_source_closed(uv_handle_t *handle)
{
	free(container_of(handle, struct output_source, poll));
}

static void close_source(struct output_source *source)
{
	list_remove(&source->node);
	uv_close((uv_handle_t *)&source->poll, on_source_closed);
	close_fd(&source->fd);
}

static void set_polling(struct output_source *source, bool polling)
{
	if (source->polling == polling)
		return;
	source->polling = polling;
	if (polling)
		uv_poll_start(&source->poll, UV_READABLE, on_readable);
	else
		uv_poll_stop(&source->poll);
}

static size_t pending_in(const struct output_source *source)
{
	int count = 0;

	if (source->ended || ioctl(source->fd, FIONREAD, &count) < 0 || count < 0)
		return 0;
	return (size_t)count;
}

int output_add_source(struct output *output, enum output_stream stream, int fd)
{
	struct output_source *source = xcalloc(1, sizeof(*source));
	int status = uv_poll_init(&output->loop->uv, &source->poll, fd);

	if (status < 0) {
		free(source);
		close_fd(&fd);
		return status;
	}
	assert(output->source_count < OUTPUT_SOURCES_MAX);
	list_init(&source->node);
	source->output = output;
	source->loop = output->loop;
	source->fd = fd;
	source->stream = stream;
	output->sources[output->source_count++] = source;
	return 0;
}

void output_close_discarding(struct list_node *discarding)
{
	while (!list_is_empty(discarding))
		close_source(container_of(discarding->next, struct output_source, node));
}

/* ---- readers ---- */

static size_t queued_of(struct output_reader *reader)
{
	return reader->ops->queued ? reader->ops->queued(reader) : 0;
}

static void mark_full(struct output_reader *reader)
{
	reader->full = true;
	reader->stall_mark = queued_of(reader);
	reader->stall_since_ms = loop_now_ms(reader->output->loop);
	reader->holding_since_ms = 0;
}

/* The reader may be detached afterwards. */
static void give(struct output_reader *reader, enum output_stream stream, struct str bytes)
{
	int status;

	reader->position += bytes.len;
	reader->last_sent_ms = loop_now_ms(reader->output->loop);
	status = reader->ops->on_output(reader, stream, bytes);
	if (status == OUTPUT_FULL && reader->output) {
		mark_full(reader);
		reader->output->on_changed(reader->output);
	}
}

static bool may_read(const struct output *output)
{
	struct list_node *node;

	if (output->reader_count == 0)
		return true;
	LIST_FOR_EACH (node, &output->readers) {
		if (!container_of(node, struct output_reader, node)->full)
			return output_log_has_room(&output->log);
	}
	return false;
}

static void update_polling(struct output *output)
{
	bool reading = output->started && !output->finished && may_read(output);
	bool paused = output->started && !output->finished && !reading;
	size_t i;

	for (i = 0; i < output->source_count; i++)
		set_polling(output->sources[i], reading && !output->sources[i]->ended);
	if (paused != output->paused) {
		output->paused = paused;
		output->on_changed(output);
	}
}

static void trim(struct output *output)
{
	uint64_t needed = output->log.end;
	struct list_node *node;

	LIST_FOR_EACH (node, &output->readers) {
		const struct output_reader *reader = container_of(node, struct output_reader, node);

		if (reader->position < needed)
			needed = reader->position;
	}
	output_log_trim(&output->log, needed);
}

static void publish(struct output *output, enum output_stream stream, struct str bytes)
{
	struct list_node *node, *following;
	uint64_t end = output->log.end + bytes.len;
	bool keep = false;

	if (bytes.len == 0)
		return;
	LIST_FOR_EACH_SAFE (node, following, &output->readers) {
		struct output_reader *reader = container_of(node, struct output_reader, node);

		if (reader->full)
			keep = true;
		else
			give(reader, stream, bytes);
	}
	if (keep)
		output_log_append(&output->log, stream, bytes);
	else
		output_log_skip(&output->log, bytes.len);
	assert(output->log.end == end);
}

static void end_reader(struct output_reader *reader)
{
	output_detach(reader);
	reader->ops->on_end(reader);
}

static void pump(struct output_reader *reader)
{
	struct output *output = reader->output;
	enum output_stream stream;
	struct str bytes;

	while (reader->output && !reader->full &&
	       output_log_peek(&output->log, reader->position, &stream, &bytes))
		give(reader, stream, bytes);
	trim(output);
	if (reader->output && output->finished && reader->position == output->log.end)
		end_reader(reader);
	else
		update_polling(output);
}

void output_attach(struct output *output, struct output_reader *reader)
{
	reader->output = output;
	reader->position = output->log.end;
	reader->full = false;
	reader->last_sent_ms = loop_now_ms(output->loop);
	list_append(&output->readers, &reader->node);
	output->reader_count++;
	update_polling(output);
}

void output_detach(struct output_reader *reader)
{
	struct output *output = reader->output;

	if (!output)
		return;
	list_remove(&reader->node);
	reader->output = NULL;
	output->reader_count--;
	trim(output);
	update_polling(output);
}

void output_reader_drained(struct output_reader *reader)
{
	if (!reader->output || !reader->full)
		return;
	reader->full = false;
	pump(reader);
}

/* Some reader could take what the others leave no room for. */
static bool others_wait(const struct output *output)
{
	struct list_node *node;

	if (!output->paused)
		return false;
	LIST_FOR_EACH (node, &output->readers) {
		if (!container_of(node, struct output_reader, node)->full)
			return output_pending(output) > 0;
	}
	return false;
}

static bool program_waits(const struct output_reader *reader)
{
	const struct output *output = reader->output;

	return reader->position < output->log.end || (output->paused && output_pending(output) > 0);
}

static void note_progress(struct output_reader *reader, bool others)
{
	uint64_t now = loop_now_ms(reader->output->loop);
	size_t queued = queued_of(reader);

	if (queued < reader->stall_mark) {
		reader->stall_mark = queued;
		reader->stall_since_ms = now;
	}
	if (!others || reader->position == reader->output->log.end) {
		reader->holding_since_ms = 0;
	} else if (reader->holding_since_ms == 0 ||
		   queued + PROCESS_SUBSCRIBER_PROGRESS_BYTES <= reader->holding_mark) {
		reader->holding_mark = queued;
		reader->holding_since_ms = now;
	}
}

/* When its time is over, whether or not anything waits then. */
static uint64_t stall_due_ms(const struct output_reader *reader)
{
	uint64_t alone = reader->stall_since_ms + PROCESS_SUBSCRIBER_ALONE_STALL_MS;
	uint64_t holding = reader->holding_since_ms + PROCESS_SUBSCRIBER_STALL_MS;

	return reader->holding_since_ms != 0 && holding < alone ? holding : alone;
}

uint64_t output_check_stalls(struct output *output)
{
	uint64_t now = loop_now_ms(output->loop), next = UINT64_MAX;
	struct list_node *node, *following;
	/* Asked once, so that of several readers which hold the same one up none gets time of its
	 * own. */
	bool others = !output->finished && others_wait(output);

	LIST_FOR_EACH_SAFE (node, following, &output->readers) {
		struct output_reader *reader = container_of(node, struct output_reader, node);
		uint64_t due, wait_ms = PROCESS_SUBSCRIBER_LOOK_MS;
		bool for_others;

		if (!reader->full || output->finished)
			continue;
		note_progress(reader, others);
		due = stall_due_ms(reader);
		for_others = reader->holding_since_ms != 0;
		if (!loop_is_past(output->loop, due)) {
			uint64_t left_ms = loop_wait_ms(output->loop, due);

			wait_ms = left_ms < wait_ms ? left_ms : wait_ms;
		} else if (for_others || program_waits(reader)) {
			output_detach(reader);
			reader->ops->on_cut(reader, for_others);
			continue;
		}
		next = now + wait_ms < next ? now + wait_ms : next;
	}
	return next;
}

/* ---- reading ---- */

/* Fills the loop's scratch buffer behind what was held back: once from a pipe, whose whole content
 * one read returns; as often as it gives something from a terminal, which hands out 4 KiB at most.
 * True when the source has ended. A terminal's end is EIO: nobody has the other side open. */
static bool fill_scratch(struct output_source *source, size_t *ret_len)
{
	char *scratch = source->loop->scratch;
	size_t len = source->held_len;
	bool ended = false;

	memcpy(scratch, source->held, len);
	source->held_len = 0;
	while (len < LOOP_SCRATCH_BYTES) {
		ssize_t count = read(source->fd, scratch + len, LOOP_SCRATCH_BYTES - len);

		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0) {
			ended = count == 0 || errno != EAGAIN;
			break;
		}
		len += (size_t)count;
		if (source->stream != OUTPUT_TERMINAL)
			break;
	}
	*ret_len = len;
	return ended;
}

/* The rest of the character is most likely on its way: a large write has filled the pipe in the
 * middle of it. When it does not come soon, output_flush_held lets the bytes go as they are. */
static void hold_back(struct output_source *source, const char *bytes, size_t len)
{
	struct output *output = source->output;

	memcpy(source->held, bytes, len);
	source->held_len = len;
	source->held_since_ms = loop_now_ms(source->loop);
	if (!output->flush_is_planned) {
		output->flush_is_planned = true;
		output->on_changed(output);
	}
}

static void flush_source(struct output_source *source)
{
	struct str bytes = {source->held, source->held_len};

	source->held_len = 0;
	publish(source->output, source->stream, bytes);
}

uint64_t output_flush_held(struct output *output)
{
	uint64_t now = loop_now_ms(output->loop), next = UINT64_MAX;
	size_t i;

	if (!output->flush_is_planned)
		return next;
	for (i = 0; i < output->source_count; i++) {
		struct output_source *source = output->sources[i];
		uint64_t due = source->held_since_ms + PROCESS_PARTIAL_HOLD_MS;

		if (source->held_len == 0)
			continue;
		if (due <= now)
			flush_source(source);
		else if (due < next)
			next = due;
	}
	output->flush_is_planned = next != UINT64_MAX;
	return next;
}

static void end_source(struct output_source *source)
{
	struct output *output = source->output;

	set_polling(source, false);
	if (!output) {
		close_source(source);
		return;
	}
	/* The descriptor stays open: closing a terminal's master hangs its session up, and the
	 * program may well open /dev/tty again. */
	source->ended = true;
	if (output_has_ended(output))
		output->on_ended(output);
}

/* False when there is nothing more to be had now. */
static bool read_source(struct output_source *source)
{
	char *scratch = source->loop->scratch;
	size_t len, tail = 0;
	bool ended = fill_scratch(source, &len);

	if (len == 0) {
		if (ended)
			end_source(source);
		return false;
	}
	if (source->output) {
		source->output->last_read_ms = loop_now_ms(source->loop);
		if (!ended)
			tail = utf8_partial_tail((struct str){scratch, len});
		if (tail > 0)
			hold_back(source, scratch + len - tail, tail);
		len -= tail;
		publish(source->output, source->stream, (struct str){scratch, len});
	}
	if (ended) {
		end_source(source);
		return false;
	}
	return len + source->held_len == LOOP_SCRATCH_BYTES;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	struct output_source *source = container_of(poll, struct output_source, poll);
	struct output *output = source->output;
	int i;

	/* libuv has stopped the handle when it reports an error; reading tells which. */
	if (status < 0)
		source->polling = false;
	for (i = 0; i < READS_AT_ONCE; i++) {
		if (output && (!may_read(output) || output->finished))
			break;
		if (!read_source(source))
			break;
	}
	if (output && source->output == output && !output->finished)
		update_polling(output);
}

/* ---- as a whole ---- */

void output_init(struct output *output, struct loop *loop, struct list_node *discarding)
{
	*output = (struct output){.loop = loop, .discarding = discarding};
	list_init(&output->readers);
	output_log_init(&output->log);
}

void output_fini(struct output *output)
{
	assert(list_is_empty(&output->readers));
	assert(output->source_count == 0);
	output_log_fini(&output->log);
}

void output_start(struct output *output)
{
	output->started = true;
	output->last_read_ms = loop_now_ms(output->loop);
	update_polling(output);
}

bool output_has_ended(const struct output *output)
{
	size_t i;

	for (i = 0; i < output->source_count; i++) {
		if (!output->sources[i]->ended)
			return false;
	}
	return true;
}

size_t output_pending(const struct output *output)
{
	size_t count = 0, i;

	for (i = 0; i < output->source_count; i++)
		count += pending_in(output->sources[i]);
	return count;
}

void output_read_now(struct output *output, size_t max)
{
	uint64_t end = output->log.end + max;
	size_t i;

	for (i = 0; i < output->source_count; i++) {
		struct output_source *source = output->sources[i];

		while (!source->ended && output->log.end < end && may_read(output) &&
		       pending_in(source) > 0)
			read_source(source);
	}
	update_polling(output);
}

void output_retry_terminal(struct output *output)
{
	size_t i;

	for (i = 0; i < output->source_count; i++) {
		if (output->sources[i]->stream == OUTPUT_TERMINAL)
			output->sources[i]->ended = false;
	}
	update_polling(output);
}

void output_discard(struct output *output)
{
	size_t i;

	output->finished = true;
	for (i = 0; i < output->source_count; i++)
		close_source(output->sources[i]);
	output->source_count = 0;
}

void output_finish(struct output *output)
{
	struct list_node *node, *following;
	size_t i;

	for (i = 0; i < output->source_count; i++)
		flush_source(output->sources[i]);
	output->finished = true;
	for (i = 0; i < output->source_count; i++) {
		struct output_source *source = output->sources[i];

		source->output = NULL;
		if (source->ended) {
			close_source(source);
			continue;
		}
		list_append(output->discarding, &source->node);
		set_polling(source, true);
	}
	output->source_count = 0;
	update_polling(output);
	LIST_FOR_EACH_SAFE (node, following, &output->readers) {
		struct output_reader *reader = container_of(node, struct output_reader, node);

		if (reader->position == output->log.end)
			end_reader(reader);
	}
}
