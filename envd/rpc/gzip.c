#include "envd/rpc/gzip.h"

#include <zlib.h>

#define STEP_BYTES (32 * 1024)
#define GZIP_ONLY (16 + MAX_WBITS)

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
		err_set(err, ERR_RESOURCE_EXHAUSTED, "decompressed message is larger than configured max %zu",
			out->max);
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
