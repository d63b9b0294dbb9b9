#include "envd/rpc/gzip.h"

#include <zlib.h>

#include "lib/gzip.h"

#define STEP_BYTES (32 * 1024)
#define GZIP_ONLY (16 + MAX_WBITS)
/* A smaller window does for these. */
#define SMALL_BYTES (16 * 1024)

static int step(z_stream *z, struct buf *out, struct share *share, struct err *err)
{
	size_t room = size_min(STEP_BYTES, out->max - buf_length(out));
	char spare[1];
	char *to = spare;
	int status;

	/* At the bound one byte more tells an end from an excess. */
	if (room > 0 && (!share_take(share, room) || buf_reserve(out, room, &to) < 0)) {
		err_set(err, ERR_RESOURCE_EXHAUSTED, "decompress: no memory");
		return Z_MEM_ERROR;
	}
	z->next_out = (unsigned char *)to;
	z->avail_out = room > 0 ? (unsigned)room : 1;
	status = inflate(z, Z_NO_FLUSH);
	if (room > 0)
		buf_commit(out, room - z->avail_out);
	else if (z->avail_out == 0) {
		err_set(err, ERR_RESOURCE_EXHAUSTED,
			"decompressed message is larger than configured max %zu", out->max);
		return Z_MEM_ERROR;
	}
	if (status == Z_OK || status == Z_STREAM_END)
		return status;
	err_set(err, status == Z_MEM_ERROR ? ERR_RESOURCE_EXHAUSTED : ERR_INVALID_ARGUMENT,
		"decompress: %s", status == Z_BUF_ERROR ? "unexpected EOF" : "invalid gzip data");
	return status == Z_MEM_ERROR ? Z_MEM_ERROR : Z_DATA_ERROR;
}

int gzip_inflate(struct str data, struct buf *out, struct share *share, struct err *err)
{
	z_stream z = {.next_in = (unsigned char *)data.p, .avail_in = (unsigned)data.len};
	int status;

	if (data.len > UINT32_MAX || inflateInit2(&z, GZIP_ONLY) != Z_OK)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "decompress: no memory");
	do {
		status = step(&z, out, share, err);
		if (status == Z_STREAM_END && z.avail_in > 0)
			status = inflateReset(&z);
	} while (status == Z_OK);
	inflateEnd(&z);
	return status == Z_STREAM_END ? 0 : -EPROTO;
}

static bool deflate_into(struct gzip_writer *writer, struct str data, struct buf *out)
{
	bool ended = false;

	while (!ended) {
		size_t room = size_min(STEP_BYTES, out->max - buf_length(out));
		char *to;

		if (room == 0 || buf_reserve(out, room, &to) < 0)
			return false;
		buf_commit(out, gzip_writer_write(writer, &data, true, to, room, &ended));
	}
	return true;
}

bool gzip_deflate(struct buf *content)
{
	struct gzip_writer *writer = gzip_writer_new(buf_length(content) <= SMALL_BYTES);
	struct buf out;
	bool is_shorter;

	if (!writer)
		return false;
	buf_init(&out, buf_length(content) - 1);
	is_shorter = deflate_into(writer, buf_str(content), &out);
	gzip_writer_free(writer);
	if (is_shorter) {
		buf_fini(content);
		*content = out;
	} else {
		buf_fini(&out);
	}
	return is_shorter;
}
