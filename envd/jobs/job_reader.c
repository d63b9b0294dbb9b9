#include "envd/jobs/job_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include "envd/limits.h"

static void pump(struct job_reader *reader);

/* ---- in the pool ---- */

static int open_stream(struct job_reader *reader, enum job_stream which)
{
	struct job_reader_stream *stream = &reader->streams[which];

	if (stream->fd >= 0)
		return 0;
	stream->fd = job_store_open_file(&reader->job->table->store, reader->job->record.id,
					 job_stream_name(which), O_RDONLY);
	return stream->fd == -ENOENT || stream->fd >= 0 ? 0 : stream->fd;
}

/* Of `piece->len` bytes as many as there are. */
static ssize_t fill(struct job_reader_piece *piece, size_t capacity, int fd, uint64_t offset)
{
	ssize_t got;

	if (piece->capacity != capacity)
		free_ptr(&piece->data);
	if (!piece->data)
		piece->data = xmalloc(capacity);
	piece->capacity = capacity;
	got = pread(fd, piece->data, size_min(piece->len, capacity), (off_t)offset);
	return got < 0 ? -errno : got;
}

/* What the socket takes of the next `len` bytes in one go; how many were sent, or negative. */
static ssize_t send_once(struct job_reader *reader, struct job_reader_stream *stream, size_t len)
{
	uint64_t from = stream->offset;
	ssize_t sent = file_send(&reader->send, stream->fd, (int64_t)from, len);
	int status;

	if (sent == -ENOSYS) {
		reader->may_send = false;
		return 0;
	}
	if (sent < 0)
		return sent;
	reader->sent += (size_t)sent;
	stream->offset += (uint64_t)sent;
	reader->bytes_left -= (uint64_t)sent;
	status = job_extent_of(stream->fd, &stream->extent);
	if (status < 0)
		return status;
	/* It may have been dropped on its way. */
	return from < stream->extent.oldest ? -EIO : sent;
}

/* ... and in as many goes as the job may have, of the `left` bytes there are. How many are left, or
 * negative. */
static ssize_t send_next(struct job_reader *reader, struct job_reader_stream *stream, uint64_t left)
{
	ssize_t sent;

	reader->sent_from = stream->offset;
	do {
		sent = send_once(reader, stream, (size_t)size_min(left, reader->piece_bytes));
		if (sent < 0)
			return sent;
		left -= (uint64_t)sent;
	} while (sent > 0 && left > 0 && lent_socket_goes_on(&reader->send.socket, &reader->work));
	return (ssize_t)left;
}

/* Up to a piece. 0 when there is nothing, 1 with a piece, negative. */
static int read_stream(struct job_reader *reader, enum job_stream which, uint64_t until,
		       struct job_reader_piece *piece)
{
	struct job_reader_stream *stream = &reader->streams[which];
	size_t capacity = size_min(reader->piece_bytes, JOB_READ_BYTES);
	uint64_t limit;
	ssize_t got;
	int status;

	if (!stream->is_wanted || stream->fd < 0)
		return 0;
	status = job_extent_of(stream->fd, &stream->extent);
	if (status < 0)
		return status;
	piece->stream = which;
	piece->offset = stream->offset;
	piece->is_gap = false;
	limit = stream->extent.end < stream->until ? stream->extent.end : stream->until;
	limit = limit < until ? limit : until;
	if (stream->offset < stream->extent.oldest && stream->offset < limit) {
		piece->is_gap = true;
		piece->extent = stream->extent;
		piece->len = 0;
		stream->offset = stream->extent.oldest;
		return 1;
	}
	if (stream->offset >= limit || reader->bytes_left == 0)
		return 0;
	piece->len = reader->piece_bytes;
	if (piece->len > limit - stream->offset)
		piece->len = (size_t)(limit - stream->offset);
	if (piece->len > reader->bytes_left)
		piece->len = (size_t)reader->bytes_left;
	if (reader->send.socket.fd >= 0) {
		limit -= stream->offset;
		got = send_next(reader, stream,
				limit < reader->bytes_left ? limit : reader->bytes_left);
		if (got < 0)
			return (int)got;
		/* All was, or a part of what there is. */
		if (got == 0 || (reader->sent > 0 && !reader->send.socket.is_blocked)) {
			piece->len = 0;
			return got > 0;
		}
		piece->len = size_min(piece->len, (size_t)got);
		/* Some bytes to wait with, or the whole piece where nothing can be sent. */
		piece->offset = stream->offset;
		if (reader->send.socket.is_blocked)
			capacity = FILE_SEND_WAIT_BYTES;
	}
	got = fill(piece, capacity, stream->fd, stream->offset);
	if (got < 0)
		return (int)got;
	/* It may have been dropped while it was read: then these are not its bytes. */
	status = job_extent_of(stream->fd, &stream->extent);
	if (status < 0)
		return status;
	if (stream->offset < stream->extent.oldest)
		return read_stream(reader, which, until, piece);
	piece->len = (size_t)got;
	piece->extent = stream->extent;
	stream->offset += (uint64_t)got;
	reader->bytes_left -= (uint64_t)got;
	return got > 0;
}

static int check_offsets(struct job_reader *reader)
{
	for (int i = 0; i < JOB_STREAMS; i++) {
		struct job_reader_stream *stream = &reader->streams[i];

		if (!stream->is_wanted)
			continue;
		if (stream->fd >= 0 && job_extent_of(stream->fd, &stream->extent) < 0)
			return -EIO;
		if (stream->offset > stream->extent.end)
			return -ERANGE;
	}
	return 0;
}

/* Up to the next mark, if there is one. */
static int read_in_order(struct job_reader *reader, struct job_reader_piece *piece)
{
	const struct job_reader_stream *streams = reader->streams;
	const uint64_t offsets[JOB_STREAMS] = {streams[JOB_STDOUT].offset,
					       streams[JOB_STDERR].offset};
	struct job_mark mark;
	int status;

	if (!streams[JOB_STDOUT].is_wanted || !streams[JOB_STDERR].is_wanted)
		return 0;
	if (reader->order_fd < 0)
		reader->order_fd = job_store_open_file(&reader->job->table->store,
						       reader->job->record.id, "order", O_RDONLY);
	if (reader->order_fd < 0 || !job_order_find(reader->order_fd, offsets, &mark))
		return 0;
	status = read_stream(reader, mark.first, mark.ends[mark.first], piece);
	if (status == 0) {
		enum job_stream last = mark.first == JOB_STDOUT ? JOB_STDERR : JOB_STDOUT;

		status = read_stream(reader, last, mark.ends[last], piece);
	}
	return status;
}

static void read_piece(struct job *work)
{
	struct job_reader *reader = container_of(work, struct job_reader, work);
	struct job_reader_piece *piece = &reader->pieces[reader->reading];
	int status = 0, i;

	for (i = 0; i < JOB_STREAMS && status == 0; i++)
		if (reader->streams[i].is_wanted)
			status = open_stream(reader, (enum job_stream)i);
	if (status == 0 && reader->checks_offset)
		status = check_offsets(reader);
	reader->checks_offset = false;
	if (status == 0)
		status = read_in_order(reader, piece);
	for (i = 0; i < JOB_STREAMS && status == 0; i++)
		status = read_stream(reader, (enum job_stream)i, UINT64_MAX, piece);
	reader->status = status;
}

static void close_files(struct job *work)
{
	struct job_reader *reader = container_of(work, struct job_reader, work);

	for (int i = 0; i < JOB_STREAMS; i++)
		close_fd(&reader->streams[i].fd);
	close_fd(&reader->order_fd);
}

/* ---- on the loop ---- */

static void on_files_closed(struct job *work)
{
	struct job_reader *reader = container_of(work, struct job_reader, work);
	struct background_job *job = reader->job;

	free(reader->pieces[0].data);
	free(reader->pieces[1].data);
	job->table->reader_count--;
	reader->on_free(reader);
	background_job_release(job);
}

/* The last close of a deleted file frees its blocks, so that is done in the pool, too. */
static void finish(struct job_reader *reader)
{
	if (reader->state != JOB_READER_CLOSED || reader->work.active)
		return;
	if (job_run(reader->job->table->loop, &reader->work, JOB_FILES, close_files,
		    on_files_closed) < 0) {
		close_files(&reader->work);
		on_files_closed(&reader->work);
	}
}

static void end(struct job_reader *reader, int status)
{
	if (reader->state != JOB_READER_OPEN)
		return;
	reader->state = JOB_READER_ENDED;
	list_remove(&reader->listener.node);
	reader->ops->on_end(reader, status);
}

static void give_back(struct job_reader *reader)
{
	if (reader->send.socket.fd < 0)
		return;
	lent_socket_end(&reader->send.socket);
	if (reader->state != JOB_READER_CLOSED)
		reader->ops->on_sent(reader, reader->sent_from, reader->sent);
}

/* Nothing more will be written, as far as is known now. */
static bool is_final(const struct job_reader *reader)
{
	return !reader->follows || job_state_is_end(reader->job->record.state) ||
	       reader->job->is_removed;
}

static void on_piece(struct job *work)
{
	struct job_reader *reader = container_of(work, struct job_reader, work);

	give_back(reader);
	if (reader->state == JOB_READER_CLOSED) {
		finish(reader);
		return;
	}
	if (reader->status < 0) {
		end(reader, reader->status);
		return;
	}
	reader->is_dry = reader->status == 0;
	if (reader->is_dry)
		reader->pieces[reader->reading].len = 0;
	pump(reader);
}

static bool is_filled(const struct job_reader_piece *piece)
{
	return piece->len > 0 || piece->is_gap;
}

/* What is in front of it has gone out, and the client is not behind. False: it must wait. */
static bool lend(struct job_reader *reader)
{
	int fd;

	if (is_filled(&reader->pieces[0]) || is_filled(&reader->pieces[1]))
		return false;
	fd = reader->ops->on_lend(reader);
	reader->is_full = fd == -EAGAIN;
	if (reader->is_full)
		return false;
	reader->may_send = fd >= 0;
	lent_socket_begin(&reader->send.socket, fd);
	reader->sent = 0;
	return true;
}

static void start_reading(struct job_reader *reader)
{
	unsigned into;

	/* Asked first: the pieces are the job's while it works. */
	if (reader->work.active || reader->is_dry || reader->state != JOB_READER_OPEN)
		return;
	into = is_filled(&reader->pieces[reader->next]) ? reader->next ^ 1 : reader->next;
	if (is_filled(&reader->pieces[into]))
		return;
	if (reader->may_send && !lend(reader))
		return;
	reader->reading = into;
	/* Asked before the look, so that what is written before the end is seen by it. */
	reader->ends_dry = is_final(reader) || reader->bytes_left == 0;
	if (job_run(reader->job->table->loop, &reader->work, JOB_BULK, read_piece, on_piece) < 0) {
		give_back(reader);
		end(reader, -EAGAIN);
		return;
	}
}

static int hand_out(struct job_reader *reader, struct job_reader_piece *piece)
{
	int status;

	reader->extent = piece->extent;
	if (piece->is_gap)
		status = reader->ops->on_gap(reader, piece->stream, piece->offset);
	else
		status = reader->ops->on_data(reader, piece->stream, piece->offset,
					      (struct str){piece->data, piece->len});
	piece->len = 0;
	piece->is_gap = false;
	reader->next ^= 1;
	reader->is_full = status == JOB_READER_FULL;
	return status;
}

static void rest(struct job_reader *reader)
{
	for (int i = 0; i < 2; i++) {
		free(reader->pieces[i].data);
		reader->pieces[i].data = NULL;
	}
}

/* Reads ahead, hands out, ends. */
static void pump(struct job_reader *reader)
{
	while (reader->state == JOB_READER_OPEN && !reader->is_full) {
		struct job_reader_piece *piece = &reader->pieces[reader->next];

		if ((reader->work.active && reader->reading == reader->next) || !is_filled(piece))
			break;
		/* The next one is read while this one is sent. */
		start_reading(reader);
		if (reader->state != JOB_READER_OPEN || hand_out(reader, piece) < 0)
			return;
	}
	if (reader->state != JOB_READER_OPEN || reader->is_full)
		return;
	start_reading(reader);
	if (reader->work.active || reader->state != JOB_READER_OPEN || !reader->is_dry)
		return;
	if (reader->ends_dry) {
		end(reader, reader->job->is_removed && reader->follows ? -ENOENT : 0);
		return;
	}
	/* Something may have come, or the end, since the look began. */
	if (is_final(reader) || reader->is_stale) {
		reader->is_dry = reader->is_stale = false;
		start_reading(reader);
		return;
	}
	rest(reader);
}

static void on_change(struct job_listener *listener)
{
	struct job_reader *reader = container_of(listener, struct job_reader, listener);

	if (reader->job->table->is_closed) {
		end(reader, -ESHUTDOWN);
		return;
	}
	if (reader->work.active) {
		reader->is_stale = true;
		return;
	}
	reader->is_dry = false;
	pump(reader);
}

static void on_later(struct later *later)
{
	pump(container_of(later, struct job_reader, later));
}

int job_reader_open(struct job_reader *reader)
{
	struct job_table *table = reader->job->table;

	if (table->reader_count >= JOB_READERS_MAX)
		return -EAGAIN;
	table->reader_count++;
	background_job_hold(reader->job);
	reader->piece_bytes = size_min(
		reader->piece_bytes,
		size_max(JOB_READS_BYTES / table->reader_count, JOB_READ_BYTES_MIN));
	/* Small pieces cost less to copy. */
	if (reader->piece_bytes < JOB_READ_BYTES)
		reader->may_send = false;
	if (!reader->may_send)
		reader->piece_bytes = size_min(reader->piece_bytes, JOB_READ_BYTES);
	reader->send.socket.fd = -1;
	reader->streams[JOB_STDOUT].fd = reader->streams[JOB_STDERR].fd = reader->order_fd = -1;
	reader->listener.on_change = on_change;
	list_init(&reader->listener.node);
	later_init(&reader->later, on_later);
	if (reader->follows) {
		background_job_listen(reader->job, &reader->listener);
		job_life_look(reader->job);
	}
	later_call(table->loop, &reader->later);
	return 0;
}

void job_reader_drained(struct job_reader *reader)
{
	reader->is_full = false;
	later_call(reader->job->table->loop, &reader->later);
}

void job_reader_close(struct job_reader *reader)
{
	if (reader->state == JOB_READER_CLOSED)
		return;
	reader->state = JOB_READER_CLOSED;
	list_remove(&reader->listener.node);
	later_cancel(&reader->later);
	finish(reader);
}
