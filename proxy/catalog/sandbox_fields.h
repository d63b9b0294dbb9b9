/*
 * What a description of a sandbox consists of: one table, by which every form of it is read and
 * written (the admin API's JSON, the command line, Redis, the hand-over), and by which entries are
 * copied, compared and checked. A new field is a member of struct sandbox_entry and a row here.
 *
 * A field has one spelling, `name`, wherever it stands. The other spellings are those that somebody
 * else's form demands, and the short ones that command lines have had before. A field with a
 * spelling of its own in Redis (`redis`) is also named in the script of
 * proxy/sources/redis_write.c, which changes records inside Redis and cannot look here.
 *
 * The table is in sandbox_fields.c. It is constant; functions are pure, but for the caller's arena.
 */
#ifndef PROXY_CATALOG_SANDBOX_FIELDS_H
#define PROXY_CATALOG_SANDBOX_FIELDS_H

#include "proxy/catalog/catalog.h"

enum sandbox_field_kind {
	SANDBOX_FIELD_TEXT,
	SANDBOX_FIELD_STATE, /* its name */
	SANDBOX_FIELD_PORT, /* a number; ENVD_PORT and what is not said are 0 in an entry */
	SANDBOX_FIELD_LIMIT, /* a number; CATALOG_NO_LIMIT is not said */
	SANDBOX_FIELD_RESUME, /* "any" or "off" */
	SANDBOX_FIELD_FLAG,
	SANDBOX_FIELD_ORIGIN, /* an enum sandbox_origin; one that is not known here is skipped */
	SANDBOX_FIELD_VERSION, /* 64 bits, which do not fit JSON's integers: decimal in a text */
};

enum sandbox_field_reach {
	SANDBOX_FIELD_INTERNAL, /* from one proxy to its successor, and for nobody else */
	SANDBOX_FIELD_SHOWN, /* and by the admin API, which does not take it */
	SANDBOX_FIELD_SET, /* and set by whoever describes a sandbox */
};

struct sandbox_field {
	const char *name; /* NULL ends the table */
	enum sandbox_field_kind kind;
	enum sandbox_field_reach reach;
	size_t offset, size; /* in struct sandbox_entry */
	const char *usage; /* its value on the command line; NULL: it is not given there by name */
	const char *flag; /* its short spelling there; NULL: none */
	const char *redis; /* in Redis, as E2B's services have it; NULL: as `name` */
	/* A secret, which is not shown: of this name is shown whether there is one. NULL: it is
	 * none. */
	const char *shown;
	/* A text that must be more than plain; fills err with invalid_argument. */
	int (*check)(const char *text, struct err *err);
};

/* In the order in which they are written. */
extern const struct sandbox_field sandbox_fields[];

/* That can be set, by its one spelling; NULL: none. */
const struct sandbox_field *sandbox_field_find(struct str name);
/* The same on the command line, by either spelling. */
const struct sandbox_field *sandbox_field_find_flag(struct str name);
/* Fills err with invalid_argument: there is no `key`, and which one may have been meant. */
int sandbox_field_unknown(struct str key, struct err *err);

/* Setting a member of *entry from a text (which stays where it is), a number or nothing at all.
 * `key` is what it is called where it came from. Fill err with invalid_argument. */
int sandbox_field_parse(const struct sandbox_field *field, struct str key, const char *text,
			struct sandbox_entry *entry, struct err *err) NODISCARD;
int sandbox_field_set_number(const struct sandbox_field *field, struct str key, int64_t number,
			     struct sandbox_entry *entry, struct err *err) NODISCARD;
void sandbox_field_unset(const struct sandbox_field *field, struct sandbox_entry *entry);
void sandbox_field_copy(const struct sandbox_field *field, const struct sandbox_entry *from,
			struct sandbox_entry *to);

/* Its value in *entry, of the fitting kind. */
static inline void *sandbox_field_of(const struct sandbox_field *field,
				     const struct sandbox_entry *entry)
{
	return (char *)(uintptr_t)entry + field->offset;
}
static inline const char *sandbox_field_text(const struct sandbox_field *field,
					     const struct sandbox_entry *entry)
{
	return *(const char *const *)sandbox_field_of(field, entry);
}

/* "id=ADDRESS[,state=NAME]..." */
void sandbox_fields_usage(char *ret_usage, size_t size);

/* ---- whole entries ---- */

/* What all texts take, with their ends. */
size_t sandbox_entry_text_bytes(const struct sandbox_entry *entry);
/* Copies them to `memory`, where *entry has them from now on. */
void sandbox_entry_place_texts(struct sandbox_entry *entry, char *memory);
/* Of an entry whose texts are its owner's to write to. */
void sandbox_entry_wipe_secrets(const struct sandbox_entry *entry);
/* Whether both say the same, by whichever version of their source. */
bool sandbox_entry_equals(const struct sandbox_entry *a, const struct sandbox_entry *b);
/* Fills err with invalid_argument. */
int sandbox_entry_check(const struct sandbox_entry *entry, struct err *err) NODISCARD;

#endif
