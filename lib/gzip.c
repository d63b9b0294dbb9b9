#include "lib/gzip.h"

#include <limits.h>
#include <zlib.h>

#define OUTPUT_BYTES (64 * 1024)
/* zlib's way of asking for a gzip header and trailer. */
#define GZIP_WINDOW (15 + 16)

struct gzip_reader {
	z_stream stream;
	bool is_started; /* a byte has come */
	bool in_member; /* the member's end has not */
	gz_header header; /* of the first member: only whether all of it has come */
	char *output; /* OUTPUT_BYTES, while something is fed */
};

struct gzip_reader *gzip_reader_new(void)
{
	struct gzip_reader *reader = xcalloc(1, sizeof(*reader));

	/* Fails for want of memory alone, and this is bookkeeping of fixed size. */
	if (inflateInit2(&reader->stream, GZIP_WINDOW) != Z_OK)
		abort();
	(void)inflateGetHeader(&reader->stream, &reader->header);
	return reader;
}

void gzip_reader_free(struct gzip_reader *reader)
{
	if (!reader)
		return;
	inflateEnd(&reader->stream);
	free(reader);
}

static bool has_header(const struct gzip_reader *reader)
{
	return reader->header.done == 1;
}

static int inflate_some(struct gzip_reader *reader,
			int (*sink)(void *user, const char *data, size_t len), void *user)
{
	z_stream *stream = &reader->stream;
	size_t len;
	int status, sunk;

	stream->next_out = (unsigned char *)reader->output;
	stream->avail_out = OUTPUT_BYTES;
	status = inflate(stream, Z_NO_FLUSH);
	len = OUTPUT_BYTES - stream->avail_out;
	sunk = len ? sink(user, reader->output, len) : 0;
	if (sunk < 0)
		return sunk;
	if (status == Z_STREAM_END) {
		reader->in_member = false;
		return inflateReset(stream) == Z_OK ? 0 : -EILSEQ;
	}
	if (status == Z_OK || status == Z_BUF_ERROR)
		return 0;
	return has_header(reader) ? -EILSEQ : -EBADMSG;
}

int gzip_reader_feed(struct gzip_reader *reader, const char *data, size_t len,
		     int (*sink)(void *user, const char *data, size_t len), void *user)
{
	z_stream *stream = &reader->stream;
	int status = 0;

	/* Thousands may rest, between what a client sends. */
	reader->output = xmalloc(OUTPUT_BYTES);
	while (len && status == 0) {
		size_t piece = size_min(len, INT_MAX);

		stream->next_in = (unsigned char *)data;
		stream->avail_in = (uInt)piece;
		/* Once more when the output was filled: there may be more of it without more
		 * input. */
		do {
			if (stream->avail_in)
				reader->is_started = reader->in_member = true;
			status = inflate_some(reader, sink, user);
		} while (status == 0 &&
			 (stream->avail_in || (reader->in_member && stream->avail_out == 0)));
		data += piece;
		len -= piece;
	}
	free_ptr(&reader->output);
	return status;
}

int gzip_reader_finish(const struct gzip_reader *reader)
{
	if (!reader->is_started)
		return -ENODATA;
	if (!has_header(reader))
		return -ENOMSG;
	return reader->in_member ? -EPIPE : 0;
}

#define LEVEL 1
#define SMALL_WINDOW (13 + 16)
#define MEMORY 8
#define SMALL_MEMORY 6

struct gzip_writer {
	z_stream stream;
};

struct gzip_writer *gzip_writer_new(bool is_small)
{
	struct gzip_writer *writer = xcalloc(1, sizeof(*writer));

	if (deflateInit2(&writer->stream, LEVEL, Z_DEFLATED, is_small ? SMALL_WINDOW : GZIP_WINDOW,
			 is_small ? SMALL_MEMORY : MEMORY, Z_DEFAULT_STRATEGY) == Z_OK)
		return writer;
	free(writer);
	return NULL;
}

void gzip_writer_free(struct gzip_writer *writer)
{
	if (!writer)
		return;
	deflateEnd(&writer->stream);
	free(writer);
}

size_t gzip_writer_write(struct gzip_writer *writer, struct str *input, bool is_last, char *output,
			 size_t size, bool *ret_ended)
{
	z_stream *stream = &writer->stream;
	size_t given = size_min(input->len, INT_MAX);
	int status;

	size = size_min(size, INT_MAX);
	stream->next_in = (unsigned char *)input->p;
	stream->avail_in = (uInt)given;
	stream->next_out = (unsigned char *)output;
	stream->avail_out = (uInt)size;
	status = deflate(stream, is_last && given == input->len ? Z_FINISH : Z_NO_FLUSH);
	*ret_ended = status == Z_STREAM_END;
	*input = (struct str){input->p + (given - stream->avail_in),
			      input->len - (given - stream->avail_in)};
	return size - stream->avail_out;
}
