#include "proxy/handover_text.h"

#include "proxy/catalog/sandbox_json.h"

static const char *const words[] = {
	[HANDOVER_UNKNOWN] = "",	[HANDOVER_LISTENERS] = "listeners",
	[HANDOVER_TICKETS] = "tickets", [HANDOVER_PUT] = "put",
	[HANDOVER_REMOVED] = "removed", [HANDOVER_SYNCED] = "synced",
	[HANDOVER_READY] = "ready",	[HANDOVER_OVER] = "over",
};

/* A line's beginning; json_writer_end_line is its end. */
static void begin(struct json_writer *w, struct buf *b, enum handover_word word)
{
	json_writer_init(w, b);
	json_writer_object(w, NULL);
	json_writer_text(w, "type", str_of(words[word]));
}

int handover_write_word(struct buf *b, enum handover_word word)
{
	struct json_writer w;

	begin(&w, b, word);
	return json_writer_end_line(&w);
}

int handover_write_listeners(struct buf *b, const char *const *kinds, size_t count, bool complete,
			     uint64_t revision)
{
	struct json_writer w;

	begin(&w, b, HANDOVER_LISTENERS);
	json_writer_array(&w, "kinds");
	for (size_t i = 0; i < count; i++)
		json_writer_text(&w, NULL, str_of(kinds[i]));
	json_writer_array_end(&w);
	json_writer_bool(&w, "complete", complete);
	json_writer_uint(&w, "revision", revision);
	return json_writer_end_line(&w);
}

int handover_write_tickets(struct buf *b, const struct handover_tickets *tickets)
{
	char keys[2 * HANDOVER_TICKET_BYTES_MAX + 1] = "";
	struct json_writer w;

	for (size_t i = 0; i < tickets->len; i++)
		snprintf(keys + 2 * i, 3, "%02x", tickets->keys[i]);
	begin(&w, b, HANDOVER_TICKETS);
	json_writer_text(&w, "keys", str_of(keys));
	json_writer_uint(&w, "due_ms", tickets->due_ms);
	wipe(keys, sizeof(keys));
	return json_writer_end_line(&w);
}

int handover_write_put(struct buf *b, const struct sandbox_entry *entry)
{
	struct json_writer w;

	begin(&w, b, HANDOVER_PUT);
	json_writer_object(&w, "sandbox");
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		sandbox_json_write_field(&w, f, f->name, entry);
	json_writer_object_end(&w);
	return json_writer_end_line(&w);
}

int handover_write_removed(struct buf *b, const struct sandbox_entry *entry)
{
	struct json_writer w;

	begin(&w, b, HANDOVER_REMOVED);
	json_writer_text(&w, "id", str_of(entry->id));
	json_writer_int(&w, "origin", entry->origin);
	return json_writer_end_line(&w);
}

static struct str text_of(const struct json_value *object, struct str key)
{
	const struct json_value *value = json_get(object, key);

	return value ? json_string(value) : (struct str){NULL, 0};
}

/* All of a sandbox that is put; its id and origin are all that is said of one that is removed. */
static int read_sandbox(const struct json_value *object, struct arena *arena,
			struct sandbox_entry *entry, struct err *err)
{
	struct sandbox_patch patch = {0};

	sandbox_entry_init(entry, "");
	patch.values = *entry; /* also of what a later version says that means nothing here */
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		const struct json_value *value = json_get(object, str_of(f->name));
		int status = 0;

		if (value)
			status = sandbox_json_read_field(f, str_of(f->name), value, arena, &patch,
							 err);
		if (status < 0)
			return status;
	}
	sandbox_patch_apply(entry, &patch);
	return host_name_is_id(str_of(entry->id))
		       ? 0
		       : err_set(err, ERR_INVALID_ARGUMENT, "a line without an id");
}

/* The text does not stay behind. */
static int read_tickets(const struct json_value *object, struct handover_tickets *ret_tickets,
			struct err *err)
{
	struct str text = text_of(object, STR("keys"));
	const struct json_value *due = json_get(object, STR("due_ms"));
	int status = 0;

	if (text.len % 2 || text.len / 2 > sizeof(ret_tickets->keys))
		status = -EINVAL;
	for (size_t i = 0; i < text.len / 2 && status == 0; i++) {
		int high = hex_digit(text.p[2 * i]), low = hex_digit(text.p[2 * i + 1]);

		ret_tickets->keys[i] = (unsigned char)(high << 4 | low);
		if (high < 0 || low < 0)
			status = -EINVAL;
	}
	if (text.len)
		wipe((char *)text.p, text.len);
	if (status < 0)
		return err_set(err, ERR_INVALID_ARGUMENT, "ticket keys that are none");
	ret_tickets->len = text.len / 2;
	ret_tickets->due_ms = due && json_int(due) > 0 ? (uint64_t)json_int(due) : 0;
	return 0;
}

static enum handover_word word_of(struct str text)
{
	for (int word = HANDOVER_LISTENERS; word <= HANDOVER_OVER; word++)
		if (str_equal(text, str_of(words[word])))
			return (enum handover_word)word;
	return HANDOVER_UNKNOWN;
}

int handover_read(struct str line, struct arena *arena, struct handover_line *ret_line,
		  struct err *err)
{
	const struct json_value *object, *value;
	int status = json_parse(line, arena, &object, err);

	*ret_line = (struct handover_line){0};
	if (status < 0)
		return status;
	ret_line->word = word_of(text_of(object, STR("type")));
	switch (ret_line->word) {
	case HANDOVER_LISTENERS:
		ret_line->kinds = json_get(object, STR("kinds"));
		value = json_get(object, STR("complete"));
		ret_line->complete = value && json_bool(value);
		value = json_get(object, STR("revision"));
		ret_line->revision = value ? (uint64_t)json_int(value) : 0;
		if (!ret_line->kinds)
			return err_set(err, ERR_INVALID_ARGUMENT, "no listeners are named");
		break;
	case HANDOVER_PUT:
		value = json_get(object, STR("sandbox"));
		if (!value)
			return err_set(err, ERR_INVALID_ARGUMENT, "a line without a sandbox");
		return read_sandbox(value, arena, &ret_line->entry, err);
	case HANDOVER_TICKETS:
		return read_tickets(object, &ret_line->tickets, err);
	case HANDOVER_REMOVED:
		return read_sandbox(object, arena, &ret_line->entry, err);
	case HANDOVER_UNKNOWN:
	case HANDOVER_SYNCED:
	case HANDOVER_READY:
	case HANDOVER_OVER:
		break;
	}
	return 0;
}
