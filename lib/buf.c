#include "lib/buf.h"

#define BUF_LEAST 256

void buf_init(struct buf *b, size_t max)
{
	*b = (struct buf){.max = max};
}

void buf_fini(struct buf *b)
{
	free(b->memory);
	*b = (struct buf){.max = 0};
}

void buf_fini_wiped(struct buf *b)
{
	wipe(b->memory, b->memory ? b->capacity : 0);
	buf_fini(b);
}

void buf_reset(struct buf *b)
{
	size_t max = b->max;

	buf_fini(b);
	b->max = max;
}

static int reserve(struct buf *b, size_t len, size_t max, char **ret_room)
{
	size_t used = buf_length(b);
	size_t capacity;
	char *memory;

	if (len > max - used)
		return -ENOSPC;
	if (b->capacity - b->end >= len && b->memory) {
		*ret_room = b->memory + b->end;
		return 0;
	}
	/* Sliding the content to the front is cheaper than growing while it is the smaller half. */
	if (b->memory && b->capacity - used >= len && b->start >= used) {
		memmove(b->memory, b->memory + b->start, used);
	} else {
		capacity = size_max(b->capacity, BUF_LEAST);
		while (capacity < used + len)
			capacity = capacity > SIZE_MAX / 2 ? SIZE_MAX : capacity * 2;
		capacity = size_max(size_min(capacity, max), used + len);
		memory = malloc(capacity);
		if (!memory)
			return -ENOMEM;
		if (used)
			memcpy(memory, b->memory + b->start, used);
		free(b->memory);
		b->memory = memory;
		b->capacity = capacity;
	}
	b->start = 0;
	b->end = used;
	*ret_room = b->memory + used;
	return 0;
}

int buf_reserve(struct buf *b, size_t len, char **ret_room)
{
	return reserve(b, len, b->max, ret_room);
}

void buf_commit(struct buf *b, size_t len)
{
	assert(len <= b->capacity - b->end);
	b->end += len;
}

int buf_append(struct buf *b, const void *data, size_t len)
{
	char *room;
	int status;

	if (len == 0)
		return 0;
	status = buf_reserve(b, len, &room);
	if (status < 0)
		return status;
	memcpy(room, data, len);
	b->end += len;
	return 0;
}

int buf_append_str(struct buf *b, struct str s)
{
	return buf_append(b, s.p, s.len);
}

int buf_printf(struct buf *b, const char *format, ...)
{
	va_list arguments;
	char *room;
	int len, status;

	va_start(arguments, format);
	len = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (len < 0)
		return -EINVAL;
	/* vsnprintf's NUL needs room of its own but is not content, so the maximum does not count
	 * it. */
	status = reserve(b, (size_t)len + 1, b->max < SIZE_MAX ? b->max + 1 : b->max, &room);
	if (status < 0)
		return status;
	va_start(arguments, format);
	vsnprintf(room, (size_t)len + 1, format, arguments);
	va_end(arguments);
	b->end += (size_t)len;
	return 0;
}

void buf_consume(struct buf *b, size_t len)
{
	assert(len <= buf_length(b));
	b->start += len;
	if (b->start == b->end)
		b->start = b->end = 0;
}

void buf_clear(struct buf *b)
{
	b->start = b->end = 0;
}

char *buf_detach(struct buf *b, size_t *ret_len)
{
	char *memory = b->memory;
	size_t used = buf_length(b);

	if (memory && b->start)
		memmove(memory, memory + b->start, used);
	*ret_len = used;
	b->memory = NULL;
	b->start = b->end = b->capacity = 0;
	return memory;
}
