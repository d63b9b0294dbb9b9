#include "envd/filesystem/quoted_printable.h"

#define OUTPUT_BYTES 4096
/* What one byte may bring out: all blanks that were held, and itself. */
#define STEP_BYTES (QUOTED_PRINTABLE_BLANKS_MAX + 4)

struct output {
	char bytes[OUTPUT_BYTES];
	size_t used;
};

static int invalid(struct err *err, const char *what, unsigned char byte)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "quotedprintable: %s 0x%02x", what, byte);
}

static int value_of(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'A' && digit <= 'F')
		return digit - 'A' + 10;
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	return -1;
}

static void put(struct output *output, char byte)
{
	output->bytes[output->used++] = byte;
}

static void put_blanks(struct quoted_printable *decoder, struct output *output)
{
	memcpy(output->bytes + output->used, decoder->blanks, decoder->blank_count);
	output->used += decoder->blank_count;
	decoder->blank_count = 0;
}

static int take_text(struct quoted_printable *decoder, char c, struct output *output,
		     struct err *err)
{
	unsigned char byte = (unsigned char)c;

	if (c == ' ' || c == '\t' || c == '\r') {
		if (decoder->blank_count == QUOTED_PRINTABLE_BLANKS_MAX)
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "quotedprintable: too many blanks in a row");
		decoder->blanks[decoder->blank_count++] = c;
	} else if (c == '\n') {
		if (decoder->blank_count && decoder->blanks[decoder->blank_count - 1] == '\r')
			put(output, '\r');
		decoder->blank_count = 0;
		put(output, '\n');
	} else if (c == '=') {
		put_blanks(decoder, output);
		decoder->state = QUOTED_PRINTABLE_EQUALS;
	} else if (byte < ' ' || byte == 0x7F) {
		return invalid(err, "invalid unescaped byte in body", byte);
	} else {
		put_blanks(decoder, output);
		put(output, c);
	}
	return 0;
}

static int take(struct quoted_printable *decoder, char c, struct output *output, struct err *err)
{
	switch (decoder->state) {
	case QUOTED_PRINTABLE_TEXT:
		break;
	case QUOTED_PRINTABLE_EQUALS:
		if (value_of(c) >= 0) {
			decoder->digit = c;
			decoder->state = QUOTED_PRINTABLE_DIGIT;
			return 0;
		}
		if (c == ' ' || c == '\t') {
			decoder->state = QUOTED_PRINTABLE_SOFT;
			return 0;
		}
		if (c == '\r') {
			decoder->state = QUOTED_PRINTABLE_SOFT_CR;
			return 0;
		}
		decoder->state = QUOTED_PRINTABLE_TEXT;
		if (c == '\n')
			return 0;
		put(output, '=');
		break;
	case QUOTED_PRINTABLE_DIGIT:
		decoder->state = QUOTED_PRINTABLE_TEXT;
		if (value_of(c) >= 0) {
			put(output, (char)(value_of(decoder->digit) << 4 | value_of(c)));
			return 0;
		}
		put(output, '=');
		put(output, decoder->digit);
		break;
	case QUOTED_PRINTABLE_SOFT:
		if (c == ' ' || c == '\t')
			return 0;
		if (c == '\r') {
			decoder->state = QUOTED_PRINTABLE_SOFT_CR;
			return 0;
		}
		if (c != '\n')
			return invalid(err, "invalid byte after =", (unsigned char)c);
		decoder->state = QUOTED_PRINTABLE_TEXT;
		return 0;
	case QUOTED_PRINTABLE_SOFT_CR:
		if (c != '\n')
			return invalid(err, "invalid byte after =", (unsigned char)c);
		decoder->state = QUOTED_PRINTABLE_TEXT;
		return 0;
	}
	return take_text(decoder, c, output, err);
}

void quoted_printable_init(struct quoted_printable *decoder)
{
	decoder->state = QUOTED_PRINTABLE_TEXT;
	decoder->blank_count = 0;
}

static int flush(struct output *output, quoted_printable_sink *sink, void *user, struct err *err)
{
	size_t len = output->used;

	output->used = 0;
	return len ? sink(user, output->bytes, len, err) : 0;
}

int quoted_printable_feed(struct quoted_printable *decoder, const char *data, size_t len,
			  quoted_printable_sink *sink, void *user, struct err *err)
{
	struct output output = {.used = 0};
	int status = 0;

	for (size_t i = 0; i < len && status == 0; i++) {
		status = take(decoder, data[i], &output, err);
		if (status == 0 && output.used > OUTPUT_BYTES - STEP_BYTES)
			status = flush(&output, sink, user, err);
	}
	return status < 0 ? status : flush(&output, sink, user, err);
}

int quoted_printable_finish(struct quoted_printable *decoder, quoted_printable_sink *sink,
			    void *user, struct err *err)
{
	struct output output = {.used = 0};

	/* A soft line end needs no line behind it. */
	if (decoder->state == QUOTED_PRINTABLE_DIGIT) {
		put(&output, '=');
		put(&output, decoder->digit);
	}
	quoted_printable_init(decoder);
	return flush(&output, sink, user, err);
}
