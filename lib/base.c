#include "lib/base.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

bool str_equal(struct str a, struct str b)
{
	return a.len == b.len && (a.len == 0 || memcmp(a.p, b.p, a.len) == 0);
}

/* Up to eight bytes as a number; equal texts give equal numbers, byte by byte. */
static uint64_t load_short(const char *p, size_t len)
{
	uint64_t both;
	uint32_t first, last;

	if (len == 8) {
		memcpy(&both, p, 8);
		return both;
	}
	if (len >= 4) { /* what overlaps is there twice */
		memcpy(&first, p, 4);
		memcpy(&last, p + len - 4, 4);
		return (uint64_t)first | (uint64_t)last << 32;
	}
	both = (unsigned char)p[0];
	return len == 1 ? both
			: both | (uint64_t)(unsigned char)p[len - 2] << 8 |
				  (uint64_t)(unsigned char)p[len - 1] << 16;
}

/* Eight bytes at a time: they differ only in the bit for the case, and only where there are
 * letters. */
static bool equal_nocase_short(uint64_t x, uint64_t y)
{
	const uint64_t ones = ~(uint64_t)0 / 255, highs = ones * 0x80;
	uint64_t differ = x ^ y, low = (x | ones * 0x20) & ~highs, letters;

	if (differ == 0)
		return true;
	letters = (low + ones * (0x80 - 'a')) & ~(low + ones * (0x7f - 'z')) & ~x & highs;
	return (differ & ~(ones * 0x20)) == 0 && (differ << 2 & ~letters) == 0;
}

bool str_equal_nocase(struct str a, struct str b)
{
	if (a.len != b.len)
		return false;
	for (size_t i = 0, step; i < a.len; i += step) {
		step = a.len - i < 8 ? a.len - i : 8;
		if (!equal_nocase_short(load_short(a.p + i, step), load_short(b.p + i, step)))
			return false;
	}
	return true;
}

bool str_starts_with(struct str s, struct str prefix)
{
	return s.len >= prefix.len && str_equal((struct str){s.p, prefix.len}, prefix);
}

bool str_ends_with(struct str s, struct str suffix)
{
	return s.len >= suffix.len &&
	       str_equal((struct str){s.p + (s.len - suffix.len), suffix.len}, suffix);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

struct str str_trim(struct str s)
{
	while (s.len && is_blank(s.p[0])) {
		s.p++;
		s.len--;
	}
	while (s.len && is_blank(s.p[s.len - 1]))
		s.len--;
	return s;
}

bool str_split(struct str *rest, char separator, struct str *ret_piece)
{
	const char *end;

	if (!rest->p)
		return false;
	end = rest->len ? memchr(rest->p, separator, rest->len) : NULL;
	if (!end) {
		*ret_piece = *rest;
		*rest = (struct str){NULL, 0};
		return true;
	}
	*ret_piece = (struct str){rest->p, (size_t)(end - rest->p)};
	rest->len -= ret_piece->len + 1;
	rest->p = end + 1;
	return true;
}

bool str_list_has_token(struct str list, struct str token)
{
	struct str piece;

	while (str_split(&list, ',', &piece))
		if (str_equal_nocase(str_trim(piece), token))
			return true;
	return false;
}

int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int str_to_u64(struct str s, uint64_t max, uint64_t *ret_value)
{
	uint64_t value = 0;
	bool overflow = false;

	if (s.len == 0)
		return -EINVAL;
	for (size_t i = 0; i < s.len; i++) {
		unsigned digit = (unsigned)(s.p[i] - '0');

		/* Looked for to the end, also after an overflow: it is the better answer. */
		if (s.p[i] < '0' || s.p[i] > '9')
			return -EINVAL;
		overflow = overflow || value > (UINT64_MAX - digit) / 10;
		value = value * 10 + digit;
	}
	if (overflow || value > max)
		return -ERANGE;
	*ret_value = value;
	return 0;
}

bool str_equal_constant_time(struct str a, struct str b)
{
	volatile unsigned char difference = a.len != b.len;

	for (size_t i = 0; i < a.len; i++)
		difference |= (unsigned char)(a.p[i] ^ (b.len ? b.p[i % b.len] : 1));
	return difference == 0;
}

bool str_is_utf8(struct str s)
{
	const unsigned char *p = (const unsigned char *)s.p;
	size_t i = 0;

	while (i < s.len) {
		unsigned char c = p[i];
		size_t more;
		uint32_t point, least;

		if (c < 0x80) {
			i++;
			continue;
		}
		if (c >= 0xC2 && c <= 0xDF) {
			more = 1;
			point = c & 0x1F;
			least = 0x80;
		} else if (c >= 0xE0 && c <= 0xEF) {
			more = 2;
			point = c & 0x0F;
			least = 0x800;
		} else if (c >= 0xF0 && c <= 0xF4) {
			more = 3;
			point = c & 0x07;
			least = 0x10000;
		} else {
			return false;
		}
		if (s.len - i <= more)
			return false;
		for (size_t k = 1; k <= more; k++) {
			if ((p[i + k] & 0xC0) != 0x80)
				return false;
			point = point << 6 | (p[i + k] & 0x3F);
		}
		if (point < least || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
			return false;
		i += more + 1;
	}
	return true;
}

static void out_of_memory(void)
{
	static const char text[] = "out of memory\n";

	if (write(2, text, sizeof(text) - 1) < 0)
		abort();
	abort();
}

void *xmalloc(size_t size)
{
	void *memory = malloc(size ? size : 1);

	if (!memory)
		out_of_memory();
	return memory;
}

void *xcalloc(size_t count, size_t size)
{
	size_t bytes;
	void *memory;

	if (__builtin_mul_overflow(count, size, &bytes))
		out_of_memory();
	/* Small blocks are what malloc keeps at hand per thread; glibc's calloc looks past that. */
	memory = bytes <= 1024 ? malloc(bytes ? bytes : 1) : calloc(1, bytes);
	if (!memory)
		out_of_memory();
	if (bytes <= 1024)
		memset(memory, 0, bytes);
	return memory;
}

void *xrealloc(void *pointer, size_t size)
{
	void *memory = realloc(pointer, size ? size : 1);

	if (!memory)
		out_of_memory();
	return memory;
}

char *xstrdup(const char *text)
{
	return xstrndup(text, strlen(text));
}

char *xstrndup(const char *text, size_t len)
{
	char *copy = xmalloc(len + 1);

	if (len)
		memcpy(copy, text, len);
	copy[len] = '\0';
	return copy;
}

void occupy_standard_descriptors(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (fcntl(fd, F_GETFD) >= 0)
			continue;
		/* The lowest free number, which is this one. Without /dev, anything harmless will
		 * do. */
		if (open("/dev/null", O_RDWR) < 0 && eventfd(0, EFD_NONBLOCK) < 0)
			return;
	}
}

void close_fd(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved;
}

void free_ptr(void *pointer_to_pointer)
{
	void **pointer = pointer_to_pointer;

	free(*pointer);
	*pointer = NULL;
}

int64_t monotonic_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void wipe(void *memory, size_t size)
{
	if (!size)
		return;
	memset(memory, 0, size);
	__asm__ volatile("" : : "r"(memory) : "memory");
}
