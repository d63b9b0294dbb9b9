/*
 * The first line is a Content-Type, the rest a body. What comes out must not depend on where the
 * body is cut, and content must never hold the delimiter.
 */
#include "envd/filesystem/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RECORD_BYTES_MAX (1 << 20)

struct record {
	struct buf out;
	unsigned parts, ends;
};

static int on_part(void *user, const struct multipart_part *part, struct err *err)
{
	struct record *record = user;

	(void)err;
	assert(record->parts == record->ends);
	record->parts++;
	assert(!part->filename.p || !memchr(part->filename.p, 0, part->filename.len));
	if (buf_printf(&record->out, "[%zu|%zd]", part->name.len,
		       part->filename.p ? (ssize_t)part->filename.len : -1) < 0 ||
	    buf_append_str(&record->out, part->name) < 0 ||
	    buf_append_str(&record->out, part->filename) < 0)
		abort();
	return 0;
}

static int on_data(void *user, const char *content, size_t len, struct err *err)
{
	struct record *record = user;

	(void)err;
	assert(len > 0 && record->parts == record->ends + 1);
	if (buf_append(&record->out, content, len) < 0)
		abort();
	return 0;
}

static int on_part_end(void *user, struct err *err)
{
	struct record *record = user;

	(void)err;
	record->ends++;
	assert(record->parts == record->ends);
	if (buf_append(&record->out, ".", 1) < 0)
		abort();
	return 0;
}

static const struct multipart_events events = {on_part, on_data, on_part_end};

static int run(struct str type, struct str body, size_t step, struct record *record,
	       struct err *err)
{
	struct multipart m;
	int status;

	*record = (struct record){.parts = 0};
	buf_init(&record->out, RECORD_BYTES_MAX);
	status = multipart_init(&m, type, &events, record, err);
	for (size_t at = 0; at < body.len && status == 0; at += step)
		status = multipart_feed(&m, body.p + at, size_min(step, body.len - at), err);
	if (status == 0)
		status = multipart_finish(&m, err);
	multipart_fini(&m);
	return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct str body = {(const char *)data, size_min(size, RECORD_BYTES_MAX / 4)}, type;
	struct record whole, pieces;
	struct err err, err_pieces;
	size_t step;
	int status;

	if (!size || !str_split(&body, '\n', &type) || !body.p)
		return 0;
	step = 1 + type.len % 7;
	status = run(type, body, body.len + 1, &whole, &err);
	assert((run(type, body, step, &pieces, &err_pieces) < 0) == (status < 0));
	if (status < 0)
		assert(strcmp(err.message, err_pieces.message) == 0);
	assert(str_equal(buf_str(&whole.out), buf_str(&pieces.out)));
	buf_fini(&whole.out);
	buf_fini(&pieces.out);
	return 0;
}
