#include "lib/json_writer.h"

#include <inttypes.h>

#include "lib/json.h"

void json_writer_init(struct json_writer *w, struct buf *out)
{
	*w = (struct json_writer){.out = out};
}

static void put(struct json_writer *w, struct str text)
{
	if (w->status == 0)
		w->status = buf_append_str(w->out, text);
}

static void begin_value(struct json_writer *w, const char *key)
{
	if (w->needs_comma)
		put(w, STR(","));
	w->needs_comma = true;
	if (!key)
		return;
	put(w, STR("\""));
	put(w, str_of(key));
	put(w, STR("\":"));
}

static void open_value(struct json_writer *w, const char *key, struct str bracket)
{
	begin_value(w, key);
	put(w, bracket);
	w->needs_comma = false;
}

static void close_value(struct json_writer *w, struct str bracket)
{
	put(w, bracket);
	w->needs_comma = true;
}

void json_writer_object(struct json_writer *w, const char *key)
{
	open_value(w, key, STR("{"));
}

void json_writer_object_end(struct json_writer *w)
{
	close_value(w, STR("}"));
}

int json_writer_end_line(struct json_writer *w)
{
	close_value(w, STR("}\n"));
	return w->status;
}

void json_writer_array(struct json_writer *w, const char *key)
{
	open_value(w, key, STR("["));
}

void json_writer_array_end(struct json_writer *w)
{
	close_value(w, STR("]"));
}

void json_writer_text(struct json_writer *w, const char *key, struct str text)
{
	begin_value(w, key);
	if (w->status == 0)
		w->status = json_write_string(w->out, text, w->html_safe);
}

void json_writer_key(struct json_writer *w, struct str key)
{
	json_writer_text(w, NULL, key);
	put(w, STR(":"));
	w->needs_comma = false;
}

void json_writer_int(struct json_writer *w, const char *key, int64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, number);
	json_writer_raw(w, key, str_of(text));
}

void json_writer_uint(struct json_writer *w, const char *key, uint64_t number)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, number);
	json_writer_raw(w, key, str_of(text));
}

void json_writer_real(struct json_writer *w, const char *key, double number, int decimals)
{
	char text[340]; /* the largest double has 309 digits */

	snprintf(text, sizeof(text), "%.*f", decimals, number);
	json_writer_raw(w, key, str_of(text));
}

void json_writer_bool(struct json_writer *w, const char *key, bool value)
{
	json_writer_raw(w, key, value ? STR("true") : STR("false"));
}

void json_writer_null(struct json_writer *w, const char *key)
{
	json_writer_raw(w, key, STR("null"));
}

void json_writer_raw(struct json_writer *w, const char *key, struct str json)
{
	begin_value(w, key);
	put(w, json);
}
