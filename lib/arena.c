#include "lib/arena.h"

/* With its header 1 KiB: what malloc keeps at hand for the next exchange (calloc does not). */
#define ARENA_FIRST_BLOCK 1008
#define ARENA_LARGEST_STEP (256 * 1024)
#define ARENA_ALIGNMENT 16

struct arena_block {
	struct arena_block *older;
	size_t size;
	_Alignas(ARENA_ALIGNMENT) char memory[];
};

void arena_init(struct arena *a, size_t budget)
{
	*a = (struct arena){.budget = budget};
}

void arena_init_shared(struct arena *a, size_t budget, struct share *share)
{
	*a = (struct arena){.budget = budget, .share = share};
}

void arena_release(struct arena *a)
{
	struct arena_block *block = a->blocks;

	while (block) {
		struct arena_block *older = block->older;

		free(block);
		block = older;
	}
	if (a->share)
		share_release(a->share);
	arena_init_shared(a, a->budget, a->share);
}

void arena_release_wiped(struct arena *a)
{
	for (struct arena_block *block = a->blocks; block; block = block->older)
		wipe(block->memory, block->size);
	arena_release(a);
}

static bool add_block(struct arena *a, size_t least)
{
	size_t size = a->blocks ? size_min(a->blocks->size * 2, ARENA_LARGEST_STEP)
				: ARENA_FIRST_BLOCK;
	struct arena_block *block;

	if (a->share && a->share->always)
		size = ARENA_FIRST_BLOCK;
	if (a->budget - a->used <= sizeof(*block) || least > a->budget - a->used - sizeof(*block)) {
		a->refused = true;
		return false;
	}
	size = size_max(size_min(size, a->budget - a->used - sizeof(*block)), least);
	if (a->share && !share_take(a->share, sizeof(*block) + size))
		return false;
	if (size <= ARENA_FIRST_BLOCK)
		block = malloc(sizeof(*block) + size);
	else
		block = calloc(1, sizeof(*block) + size);
	if (!block)
		return false;
	if (size <= ARENA_FIRST_BLOCK)
		memset(block->memory, 0, size);
	block->size = size;
	block->older = a->blocks;
	a->blocks = block;
	a->used += sizeof(*block) + size;
	a->next = block->memory;
	a->left = size;
	return true;
}

void *arena_alloc(struct arena *a, size_t size)
{
	void *memory;

	if (size > SIZE_MAX - ARENA_ALIGNMENT)
		return NULL;
	size = (size_max(size, 1) + ARENA_ALIGNMENT - 1) & ~(size_t)(ARENA_ALIGNMENT - 1);
	if (size > a->left && !add_block(a, size))
		return NULL;
	memory = a->next;
	a->next += size;
	a->left -= size;
	return memory;
}

void *arena_alloc_array(struct arena *a, size_t count, size_t size)
{
	if (size && count > SIZE_MAX / size)
		return NULL;
	return arena_alloc(a, count * size);
}

char *arena_strndup(struct arena *a, const char *text, size_t len)
{
	char *copy = len < SIZE_MAX ? arena_alloc(a, len + 1) : NULL;

	if (copy && len)
		memcpy(copy, text, len);
	return copy;
}

char *arena_strdup(struct arena *a, const char *text)
{
	return arena_strndup(a, text, strlen(text));
}

struct str arena_str(struct arena *a, struct str s)
{
	char *copy = arena_strndup(a, s.p, s.len);

	return copy ? (struct str){copy, s.len} : (struct str){NULL, 0};
}

char *arena_printf(struct arena *a, const char *format, ...)
{
	va_list arguments;
	char *text;
	int len;

	va_start(arguments, format);
	len = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (len < 0)
		return NULL;
	text = arena_alloc(a, (size_t)len + 1);
	if (!text)
		return NULL;
	va_start(arguments, format);
	vsnprintf(text, (size_t)len + 1, format, arguments);
	va_end(arguments);
	return text;
}
