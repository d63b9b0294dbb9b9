#include "proxy/front/http2_memory.h"

#include <sys/mman.h>

#include "lib/list.h"
#include "proxy/limits.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>
#endif

/* What nghttp2 1.52 allocates for a session (25,466 bytes) in whole pages of 4 KiB. */
#define BLOCK_BYTES (7 * 4096)
#define SLAB_BLOCKS 64
#define SLAB_BYTES ((size_t)SLAB_BLOCKS * BLOCK_BYTES)
#define ALL_FREE UINT64_MAX
/* Smaller pieces are worth no place in a block. */
#define PIECE_BYTES_MIN 512
#define PIECE_ALIGNMENT 16
/* A folded block: runs of words, each behind one that says where it was. */
#define WORD sizeof(uint64_t)
/* Shorter gaps of zeros are kept rather than begun a run behind. */
#define GAP_WORDS_MIN 2

/* Blocks that were mapped together. */
struct http2_slab {
	struct list_node node; /* in `roomy` or `taken` */
	char *pages;
	uint64_t free; /* a bit for each block */
};

struct http2_pool {
	struct list_node roomy, taken;
};

static void poison(const char *pages)
{
#ifdef __SANITIZE_ADDRESS__
	__asan_poison_memory_region(pages, BLOCK_BYTES);
#else
	(void)pages;
#endif
}

static void unpoison(const char *pages)
{
#ifdef __SANITIZE_ADDRESS__
	__asan_unpoison_memory_region(pages, BLOCK_BYTES);
#else
	(void)pages;
#endif
}

/* ---- the pool ---- */

struct http2_pool *http2_pool_new(void)
{
	struct http2_pool *pool = xcalloc(1, sizeof(*pool));

	list_init(&pool->roomy);
	list_init(&pool->taken);
	return pool;
}

static void free_slab(struct http2_slab *slab)
{
	assert(slab->free == ALL_FREE);
	list_remove(&slab->node);
#ifdef __SANITIZE_ADDRESS__
	__lsan_unregister_root_region(slab->pages, SLAB_BYTES);
#endif
	munmap(slab->pages, SLAB_BYTES);
	free(slab);
}

void http2_pool_free(struct http2_pool *pool)
{
	assert(list_is_empty(&pool->taken));
	while (!list_is_empty(&pool->roomy))
		free_slab(container_of(pool->roomy.next, struct http2_slab, node));
	free(pool);
}

static struct http2_slab *add_slab(struct http2_pool *pool)
{
	struct http2_slab *slab;
	char *pages = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (pages == MAP_FAILED)
		return NULL;
	/* One byte would cost two megabytes. */
	(void)madvise(pages, SLAB_BYTES, MADV_NOHUGEPAGE);
#ifdef __SANITIZE_ADDRESS__
	__lsan_register_root_region(pages, SLAB_BYTES);
#endif
	slab = xcalloc(1, sizeof(*slab));
	slab->pages = pages;
	slab->free = ALL_FREE;
	list_append(&pool->roomy, &slab->node);
	return slab;
}

void http2_block_open(struct http2_block *b, struct http2_pool *pool)
{
	struct http2_slab *slab = NULL;
	unsigned index;

	memset(b, 0, sizeof(*b));
	b->pool = pool;
	if (!pool)
		return;
	if (!list_is_empty(&pool->roomy))
		slab = container_of(pool->roomy.next, struct http2_slab, node);
	else
		slab = add_slab(pool);
	if (!slab)
		return;
	index = (unsigned)__builtin_ctzll(slab->free);
	slab->free &= slab->free - 1;
	if (!slab->free) {
		list_remove(&slab->node);
		list_append(&pool->taken, &slab->node);
	}
	b->slab = slab;
	b->pages = slab->pages + (size_t)index * BLOCK_BYTES;
}

/* The pages read as zeros afterwards. */
static bool give_back(char *pages)
{
	return madvise(pages, BLOCK_BYTES, MADV_DONTNEED) == 0;
}

void http2_block_close(struct http2_block *b)
{
	struct http2_slab *slab = b->slab;

	if (!slab)
		return;
	unpoison(b->pages);
	free(b->folded);
	if (!give_back(b->pages))
		memset(b->pages, 0, BLOCK_BYTES);
	if (!slab->free) {
		list_remove(&slab->node);
		list_append(&b->pool->roomy, &slab->node);
	}
	slab->free |= UINT64_C(1) << ((size_t)(b->pages - slab->pages) / BLOCK_BYTES);
	/* The last one stays, so that one connection at a time maps nothing. */
	if (slab->free == ALL_FREE && b->pool->roomy.next != b->pool->roomy.previous)
		free_slab(slab);
	memset(b, 0, sizeof(*b));
}

/* ---- what nghttp2 calls ---- */

static bool is_piece(const struct http2_block *b, const void *pointer)
{
	const char *p = pointer;

	return b->pages && p >= b->pages && p < b->pages + BLOCK_BYTES;
}

/* Zeroed, as its pages are fresh. NULL when it is none for the block. */
static void *take_piece(struct http2_block *b, size_t size)
{
	char *piece;

	if (!b->pages || b->sealed || size < PIECE_BYTES_MIN || size > BLOCK_BYTES - b->used)
		return NULL;
	piece = b->pages + b->used;
	b->used += (size + PIECE_ALIGNMENT - 1) / PIECE_ALIGNMENT * PIECE_ALIGNMENT;
	b->used = size_min(b->used, BLOCK_BYTES);
	return piece;
}

static void *allocate(size_t size, void *user)
{
	void *piece = take_piece(user, size);

	return piece ? piece : malloc(size);
}

static void *allocate_zeroed(size_t count, size_t size, void *user)
{
	size_t bytes;
	void *piece = NULL;

	if (!__builtin_mul_overflow(count, size, &bytes))
		piece = take_piece(user, bytes);
	return piece ? piece : calloc(count, size);
}

static void release(void *pointer, void *user)
{
	if (!is_piece(user, pointer))
		free(pointer);
}

static void *reallocate(void *pointer, size_t size, void *user)
{
	struct http2_block *b = user;
	void *copy;

	if (!pointer)
		return allocate(size, user);
	if (!is_piece(b, pointer))
		return realloc(pointer, size);
	/* How long the piece is, nobody knows; it ends where the block does at the latest. */
	copy = malloc(size);
	if (copy)
		memcpy(copy, pointer,
		       size_min(size, (size_t)(b->pages + BLOCK_BYTES - (char *)pointer)));
	return copy;
}

nghttp2_mem http2_block_memory(struct http2_block *b)
{
	return (nghttp2_mem){b, allocate, release, allocate_zeroed, reallocate};
}

void http2_block_seal(struct http2_block *b)
{
	b->sealed = true;
}

/* ---- folding ---- */

static bool is_zero(const char *pages, size_t at)
{
	uint64_t word;

	memcpy(&word, pages + at * WORD, WORD);
	return word == 0;
}

/* The next run of words at or behind `*at`, whose end it returns; `*at` is where it begins. */
static size_t find_run(const char *pages, size_t count, size_t *at)
{
	size_t begin = *at, end, next;

	while (begin < count && is_zero(pages, begin))
		begin++;
	*at = begin;
	for (end = begin; end < count; end = next) {
		while (end < count && !is_zero(pages, end))
			end++;
		next = end;
		while (next < count && is_zero(pages, next))
			next++;
		if (next == count || next - end >= GAP_WORDS_MIN)
			break;
	}
	return end;
}

bool http2_block_fold(struct http2_block *b)
{
	size_t count = (b->used + WORD - 1) / WORD, kept = 1, at, end;
	uint64_t *to;

	if (!b->slab || b->folded)
		return false;
	for (at = 0; end = find_run(b->pages, count, &at), at < count; at = end)
		kept += 1 + end - at;
	if (kept * WORD > HTTP2_FOLDED_BYTES_MAX)
		return false;
	b->folded = malloc(kept * WORD);
	if (!b->folded)
		return false;
	to = b->folded;
	for (at = 0; end = find_run(b->pages, count, &at), at < count; at = end) {
		*to++ = (uint64_t)at << 32 | (end - at);
		memcpy(to, b->pages + at * WORD, (end - at) * WORD);
		to += end - at;
	}
	*to = 0;
	if (!give_back(b->pages)) {
		free(b->folded);
		b->folded = NULL;
		return false;
	}
	poison(b->pages);
	return true;
}

void http2_block_unfold(struct http2_block *b)
{
	const uint64_t *from = b->folded;

	if (!from)
		return;
	unpoison(b->pages);
	while (*from) {
		size_t at = *from >> 32, count = (uint32_t)*from;

		from++;
		memcpy(b->pages + at * WORD, from, count * WORD);
		from += count;
	}
	free(b->folded);
	b->folded = NULL;
}
