#include "envd/filesystem/download_body.h"

/* What is compressed in one go, so that a job does not hold its thread for long. */
#define INPUT_BYTES (128 * 1024)
#define INPUT_SMALL_BYTES (16 * 1024)
#define INPUTS_MAX 8

static ssize_t read_part(struct download_body *body, char *buffer, size_t size)
{
	const struct download_part *part = &body->parts[body->part];
	int64_t text_len = (int64_t)part->text.len, offset = part->offset + body->done - text_len;

	if (body->done < text_len) {
		size = size_min(size, (size_t)(text_len - body->done));
		memcpy(buffer, part->text.p + body->done, size);
		return (ssize_t)size;
	}
	if (part->end >= 0)
		size = size_min(size, (size_t)(part->end - offset));
	return size ? download_read(body->download, offset, buffer, size) : 0;
}

/* Fills the buffer unless the parts end before. */
static ssize_t read_parts(struct download_body *body, char *buffer, size_t size)
{
	size_t used = 0;

	while (used < size && body->part < body->part_count) {
		ssize_t got = read_part(body, buffer + used, size - used);

		if (got < 0)
			return got;
		used += (size_t)got;
		body->done += got;
		if (got == 0) {
			body->part++;
			body->done = 0;
		}
	}
	body->has_all = body->part == body->part_count;
	return (ssize_t)used;
}

static int refill(struct download_body *body)
{
	size_t size = body->is_small ? INPUT_SMALL_BYTES : INPUT_BYTES;
	ssize_t got;

	if (!body->input)
		body->input = xmalloc(size);
	got = read_parts(body, body->input, size);
	if (got < 0)
		return (int)got;
	body->left = (struct str){body->input, (size_t)got};
	return 0;
}

static ssize_t read_compressed(struct download_body *body, char *buffer, size_t size,
			       bool *ret_ended)
{
	size_t used = 0;

	for (int inputs = 0; used < size && !*ret_ended;) {
		if (!body->left.len && !body->has_all) {
			int status;

			if (inputs++ == INPUTS_MAX)
				break;
			status = refill(body);
			if (status < 0)
				return status;
		}
		used += gzip_writer_write(body->gzip, &body->left, body->has_all, buffer + used,
					  size - used, ret_ended);
	}
	return (ssize_t)used;
}

/* Whether nothing is left, without looking at the file again. */
static bool is_at_end(const struct download_body *body)
{
	const struct download_part *part = &body->parts[body->part];

	if (body->part == body->part_count)
		return true;
	return body->part + 1 == body->part_count && part->end >= 0 &&
	       body->done == (int64_t)part->text.len + part->end - part->offset;
}

ssize_t download_body_read(struct download_body *body, char *buffer, size_t size, bool *ret_ended)
{
	ssize_t got;

	*ret_ended = false;
	if (body->gzip)
		return read_compressed(body, buffer, size, ret_ended);
	got = read_parts(body, buffer, size);
	*ret_ended = got >= 0 && is_at_end(body);
	return got;
}

int64_t download_body_sendable(const struct download_body *body)
{
	const struct download_part *part = body->parts;
	int64_t last;

	if (body->tail < 0 || body->gzip || body->part_count != 1 || body->part > 0 ||
	    part->text.len || part->end < 0 || body->download->fd < 0)
		return 0;
	last = part->end - body->tail - part->offset;
	return last > body->done ? last - body->done : 0;
}

ssize_t download_body_send(struct download_body *body, size_t len, struct file_send *send)
{
	ssize_t sent;

	len = (size_t)size_min(len, (size_t)download_body_sendable(body));
	sent = download_send(body->download, body->parts->offset + body->done, len, send);
	if (sent > 0)
		body->done += sent;
	return sent;
}

void download_body_fini(struct download_body *body)
{
	gzip_writer_free(body->gzip);
	body->gzip = NULL;
	free_ptr(&body->input);
}

bool download_body_shrinks(const struct download *download)
{
	struct str input = {download->start, download->start_len};
	struct gzip_writer *writer = gzip_writer_new(true);
	size_t room = download->start_len - download->start_len / 16;
	auto_free char *output = xmalloc(size_max(room, 1));
	bool has_ended = false;
	size_t made = 0;

	if (!writer)
		return false;
	while (made < room && !has_ended)
		made += gzip_writer_write(writer, &input, true, output + made, room - made,
					  &has_ended);
	gzip_writer_free(writer);
	return has_ended;
}
