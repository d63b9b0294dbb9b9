#include "envd/rpc/base64.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define BASE64_AVX2
#endif

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* The value of a character of either alphabet; above 63 for any other. */
static uint32_t digit_of(unsigned char c)
{
	static const unsigned char
		plus_one[256] =
			{
				['A'] = 1, 2,  3,	   4,	       5,	   6,
				7,	   8,  9,	   10,	       11,	   12,
				13,	   14, 15,	   16,	       17,	   18,
				19,	   20, 21,	   22,	       23,	   24,
				25,	   26, ['a'] = 27, 28,	       29,	   30,
				31,	   32, 33,	   34,	       35,	   36,
				37,	   38, 39,	   40,	       41,	   42,
				43,	   44, 45,	   46,	       47,	   48,
				49,	   50, 51,	   52,	       ['0'] = 53, 54,
				55,	   56, 57,	   58,	       59,	   60,
				61,	   62, ['+'] = 63, ['-'] = 63, ['/'] = 64, ['_'] = 64,
			};

	return (uint32_t)plus_one[c] - 1;
}

#ifdef BASE64_AVX2
/*
 * 24 bytes become 32 characters a round. Each group of three bytes is spread over a 32-bit lane so
 * that two multiplications move its four 6-bit digits to one byte each; a digit's character is then
 * the digit plus an offset that depends on which of five ranges it is in.
 */
__attribute__((target("avx2"))) static size_t encode_avx2(const unsigned char *in, size_t len,
							  char *out)
{
	const __m256i spread = _mm256_setr_epi8(5, 4, 6, 5, 8, 7, 9, 8, 11, 10, 12, 11, 14, 13, 15,
						14, 1, 0, 2, 1, 4, 3, 5, 4, 7, 6, 8, 7, 10, 9, 11,
						10);
	const __m256i offsets = _mm256_setr_epi8(
		'A', 'a' - 26, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52,
		'0' - 52, '0' - 52, '0' - 52, '+' - 62, '/' - 63, 0, 0, 'A', 'a' - 26, '0' - 52,
		'0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52, '0' - 52,
		'0' - 52, '+' - 62, '/' - 63, 0, 0);
	size_t done;

	/* Each round loads 32 bytes of which it uses those from 4 to 28; the first one may not
	 * begin before the input, so it goes the portable way (4 bytes are not a multiple of 3:
	 * take 6). */
	for (done = 6, out += 8; len - done >= 28; done += 24, out += 32) {
		__m256i bytes = _mm256_loadu_si256((const __m256i *)(in + done - 4));
		__m256i digits, high, low, range;

		bytes = _mm256_shuffle_epi8(bytes, spread);
		high = _mm256_mulhi_epu16(_mm256_and_si256(bytes, _mm256_set1_epi32(0x0FC0FC00)),
					  _mm256_set1_epi32(0x04000040));
		low = _mm256_mullo_epi16(_mm256_and_si256(bytes, _mm256_set1_epi32(0x003F03F0)),
					 _mm256_set1_epi32(0x01000010));
		digits = _mm256_or_si256(high, low);
		/* 0 for A-Z, 1 for a-z, 2..11 for the digits, 12 and 13 for the last two. */
		range = _mm256_subs_epu8(digits, _mm256_set1_epi8(51));
		range = _mm256_add_epi8(
			range, _mm256_and_si256(_mm256_cmpgt_epi8(digits, _mm256_set1_epi8(25)),
						_mm256_set1_epi8(1)));
		digits = _mm256_add_epi8(digits, _mm256_shuffle_epi8(offsets, range));
		_mm256_storeu_si256((__m256i *)out, digits);
	}
	return done;
}

/*
 * 32 characters become 24 bytes a round, which ends before the first character that is none of the
 * alphabet; the portable loop then judges it. The room of 32 bytes a store needs is kept free.
 */
__attribute__((target("avx2"))) static size_t decode_avx2(const unsigned char *in, size_t len,
							  unsigned char *out)
{
	/* By low and by high half of a character: bits that meet for characters outside. */
	const __m256i low_classes = _mm256_setr_epi8(
		0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1A, 0x1B, 0x1B,
		0x1B, 0x1A, 0x15, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x13, 0x1A,
		0x1B, 0x1B, 0x1B, 0x1A);
	const __m256i high_classes = _mm256_setr_epi8(
		0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10, 0x10, 0x10,
		0x10, 0x10, 0x10, 0x10, 0x01, 0x02, 0x04, 0x08, 0x04, 0x08, 0x10, 0x10, 0x10, 0x10,
		0x10, 0x10, 0x10, 0x10);
	const __m256i offsets = _mm256_setr_epi8(0, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0, 0, 0,
						 0, 0, 0, 16, 19, 4, -65, -65, -71, -71, 0, 0, 0, 0,
						 0, 0, 0, 0);
	const __m256i gather = _mm256_setr_epi8(2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1, -1,
						-1, 2, 1, 0, 6, 5, 4, 10, 9, 8, 14, 13, 12, -1, -1,
						-1, -1);
	const __m256i join = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, -1, -1);
	const __m256i slash = _mm256_set1_epi8('/');
	size_t done;

	for (done = 0; len - done >= 48; done += 32, out += 24) {
		__m256i text = _mm256_loadu_si256((const __m256i *)(in + done));
		__m256i high, low, offset;

		text = _mm256_blendv_epi8(text, _mm256_set1_epi8('+'),
					  _mm256_cmpeq_epi8(text, _mm256_set1_epi8('-')));
		text = _mm256_blendv_epi8(text, slash,
					  _mm256_cmpeq_epi8(text, _mm256_set1_epi8('_')));
		high = _mm256_and_si256(_mm256_srli_epi32(text, 4), _mm256_set1_epi8(0x0F));
		low = _mm256_and_si256(text, _mm256_set1_epi8(0x0F));
		if (!_mm256_testz_si256(_mm256_shuffle_epi8(low_classes, low),
					_mm256_shuffle_epi8(high_classes, high)))
			break;
		/* '/' shares its high half with '+', so it borrows the row before. */
		offset = _mm256_shuffle_epi8(offsets,
					     _mm256_add_epi8(_mm256_cmpeq_epi8(text, slash), high));
		text = _mm256_add_epi8(text, offset);
		text = _mm256_maddubs_epi16(text, _mm256_set1_epi32(0x01400140));
		text = _mm256_madd_epi16(text, _mm256_set1_epi32(0x00011000));
		text = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(text, gather), join);
		_mm256_storeu_si256((__m256i *)out, text);
	}
	return done;
}
#endif

static void encode_group(const unsigned char *in, char *out)
{
	uint32_t group = (uint32_t)in[0] << 16 | (uint32_t)in[1] << 8 | in[2];

	out[0] = alphabet[group >> 18];
	out[1] = alphabet[group >> 12 & 63];
	out[2] = alphabet[group >> 6 & 63];
	out[3] = alphabet[group & 63];
}

void base64_encode(const void *data, size_t len, char *out)
{
	const unsigned char *in = data;
	size_t done = 0;

#ifdef BASE64_AVX2
	if (len >= 64 && __builtin_cpu_supports("avx2")) {
		encode_group(in, out);
		encode_group(in + 3, out + 4);
		done = encode_avx2(in, len, out);
	}
#endif
	for (out += done / 3 * 4; len - done >= 3; done += 3, out += 4)
		encode_group(in + done, out);
	if (len > done) {
		unsigned char last[3] = {in[done], len - done > 1 ? in[done + 1] : 0, 0};

		encode_group(last, out);
		out[3] = '=';
		if (len - done == 1)
			out[2] = '=';
	}
}

ssize_t base64_decode(struct str text, void *out)
{
	const unsigned char *in = (const unsigned char *)text.p;
	unsigned char *to = out;
	size_t len = text.len;
	size_t done = 0;
	uint32_t bad = 0;

	/* Padding, where there is any, fills up the last group. */
	if (len % 4 == 0 && len > 0 && in[len - 1] == '=')
		len -= in[len - 2] == '=' ? 2 : 1;
	if (len % 4 == 1)
		return -EINVAL;
#ifdef BASE64_AVX2
	if (len >= 64 && __builtin_cpu_supports("avx2"))
		done = decode_avx2(in, len, to);
#endif
	for (to += done / 4 * 3; len - done >= 4; done += 4, to += 3) {
		uint32_t a = digit_of(in[done]), b = digit_of(in[done + 1]);
		uint32_t c = digit_of(in[done + 2]), d = digit_of(in[done + 3]);
		uint32_t group = a << 18 | b << 12 | c << 6 | d;

		bad |= a | b | c | d;
		to[0] = (unsigned char)(group >> 16);
		to[1] = (unsigned char)(group >> 8);
		to[2] = (unsigned char)group;
	}
	if (len > done) {
		uint32_t a = digit_of(in[done]), b = digit_of(in[done + 1]);
		uint32_t c = len - done > 2 ? digit_of(in[done + 2]) : 0;

		bad |= a | b | c;
		*to++ = (unsigned char)(a << 2 | b >> 4);
		if (len - done > 2)
			*to++ = (unsigned char)(b << 4 | c >> 2);
	}
	return bad > 63 ? -EINVAL : to - (unsigned char *)out;
}
