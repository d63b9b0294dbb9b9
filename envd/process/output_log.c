#include "envd/process/output_log.h"

#include "envd/limits.h"

/* Small pieces are given room to grow into, because more of the same usually follows; each block of
 * a stream is twice as large as the one before it, up to a size that wastes little of the bound. */
#define BLOCK_BYTES_MIN 1024
#define BLOCK_BYTES_GROWN (PROCESS_READ_BYTES / 2)

struct block {
	struct list_node node;
	uint64_t start;
	size_t len, capacity;
	enum output_stream stream;
	char bytes[];
};

/* Of all processes of the loop. */
static _Thread_local size_t logs_bytes;

size_t output_logs_bytes(void)
{
	return logs_bytes;
}

void output_log_init(struct output_log *log)
{
	*log = (struct output_log){0};
	list_init(&log->blocks);
}

static void drop_block(struct output_log *log, struct block *block)
{
	list_remove(&block->node);
	log->memory -= sizeof(*block) + block->capacity;
	logs_bytes -= sizeof(*block) + block->capacity;
	free(block);
}

void output_log_fini(struct output_log *log)
{
	while (!list_is_empty(&log->blocks))
		drop_block(log, container_of(log->blocks.next, struct block, node));
	log->start = log->end;
}

bool output_log_has_room(const struct output_log *log)
{
	/* One read of each there is always room for, or readers that are not behind would wait for
	 * others'. */
	if (logs_bytes >= PROCESS_LOGS_BYTES_MAX)
		return log->memory == 0;
	return log->memory + sizeof(struct block) + PROCESS_READ_BYTES <= PROCESS_LOG_BYTES;
}

size_t utf8_partial_tail(struct str bytes)
{
	size_t back, needed;

	/* The last byte that is not a continuation decides, if it is one of the last three. */
	for (back = 1; back <= 3 && back <= bytes.len; back++) {
		unsigned char byte = (unsigned char)bytes.p[bytes.len - back];

		if ((byte & 0xc0) == 0x80)
			continue;
		if (byte >= 0xc2 && byte <= 0xdf)
			needed = 2;
		else if (byte >= 0xe0 && byte <= 0xef)
			needed = 3;
		else if (byte >= 0xf0 && byte <= 0xf4)
			needed = 4;
		else
			return 0;
		return needed > back ? back : 0;
	}
	return 0;
}

static size_t fill_block(struct output_log *log, struct block *block, struct str bytes)
{
	size_t len = size_min(bytes.len, block->capacity - block->len);

	/* A block's end is an event's end: not in the middle of a character. */
	if (len < bytes.len)
		len -= utf8_partial_tail((struct str){bytes.p, len});
	memcpy(block->bytes + block->len, bytes.p, len);
	block->len += len;
	log->end += len;
	return len;
}

void output_log_append(struct output_log *log, enum output_stream stream, struct str bytes)
{
	struct block *last = NULL;
	size_t wanted;

	if (!list_is_empty(&log->blocks))
		last = container_of(log->blocks.previous, struct block, node);
	if (last && last->stream == stream) {
		size_t taken = fill_block(log, last, bytes);

		str_skip(&bytes, taken);
	}
	wanted = last && last->stream == stream ? size_min(2 * last->capacity, BLOCK_BYTES_GROWN)
						: BLOCK_BYTES_MIN;
	while (bytes.len > 0) {
		size_t capacity = size_min(size_max(bytes.len, wanted), PROCESS_READ_BYTES);
		struct block *block = xmalloc(sizeof(*block) + capacity);
		size_t taken;

		*block = (struct block){.start = log->end, .capacity = capacity, .stream = stream};
		list_append(&log->blocks, &block->node);
		log->memory += sizeof(*block) + capacity;
		logs_bytes += sizeof(*block) + capacity;
		taken = fill_block(log, block, bytes);
		str_skip(&bytes, taken);
	}
}

void output_log_skip(struct output_log *log, size_t len)
{
	assert(list_is_empty(&log->blocks));
	log->end += len;
	log->start = log->end;
}

bool output_log_peek(const struct output_log *log, uint64_t position,
		     enum output_stream *ret_stream, struct str *ret_bytes)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &log->blocks) {
		const struct block *block = container_of(node, struct block, node);
		size_t offset;

		if (position >= block->start + block->len)
			continue;
		assert(position >= block->start);
		offset = (size_t)(position - block->start);
		*ret_stream = block->stream;
		*ret_bytes = (struct str){block->bytes + offset, block->len - offset};
		return true;
	}
	return false;
}

void output_log_trim(struct output_log *log, uint64_t position)
{
	while (!list_is_empty(&log->blocks)) {
		struct block *block = container_of(log->blocks.next, struct block, node);

		if (block->start + block->len > position)
			break;
		drop_block(log, block);
	}
	log->start = position;
}
