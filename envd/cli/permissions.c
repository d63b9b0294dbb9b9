#include "envd/cli/permissions.h"

#include "envd/cli/name.h"
#include "envd/cli/remote.h"

#define MANY_BYTES (64 * 1024)
#define MANY_FILES 500

void permissions_init(struct permissions *p, struct target *target)
{
	*p = (struct permissions){.target = target};
}

void permissions_add(struct permissions *p, const char *path, mode_t mode)
{
	if (p->count == p->capacity) {
		p->capacity = p->capacity ? p->capacity * 2 : 64;
		p->items = xrealloc(p->items, p->capacity * sizeof(*p->items));
	}
	p->items[p->count++] = (struct permission){xstrdup(path), mode};
	p->bytes += strlen(path);
}

bool permissions_are_many(const struct permissions *p)
{
	return p->count >= MANY_FILES || p->bytes >= MANY_BYTES;
}

/* Arguments are UTF-8 in the message, so that a name that is none goes as what printf makes it
 * of. */
static bool set_odd(struct target *target, const char *mode, const char *bytes)
{
	static char script[] = "name=$(printf \"$2.\"); exec chmod \"$1\" \"${name%.}\"";
	size_t len = strlen(bytes);
	auto_free char *octal = xmalloc(len * 4 + 1);
	char *arguments[] = {(char[]){"-c"}, script, (char[]){"sh"}, (char *)(uintptr_t)mode,
			     octal};

	for (size_t i = 0; i < len; i++)
		snprintf(octal + i * 4, 5, "\\%03o", (unsigned)(unsigned char)bytes[i]);
	return remote_run(target, "sh", arguments, ARRAY_LENGTH(arguments), "permissions");
}

/* Of `count` files with one mode, from the end. */
static bool set_some(struct target *target, const struct permission *last, size_t count)
{
	auto_free char **arguments = xcalloc(count + 1, sizeof(*arguments));
	size_t used = 1;
	bool is_good = true;
	char mode[16];

	snprintf(mode, sizeof(mode), "%04o", (unsigned)last->mode);
	arguments[0] = mode;
	for (size_t i = 0; i < count; i++) {
		char *bytes = name_from_wire((last - i)->path);

		if (str_is_utf8(str_of(bytes))) {
			arguments[used++] = bytes;
		} else {
			is_good = set_odd(target, mode, bytes) && is_good;
			free(bytes);
		}
	}
	if (used > 1)
		is_good = remote_run(target, "chmod", arguments, used, "permissions") && is_good;
	while (used > 1)
		free(arguments[--used]);
	return is_good;
}

bool permissions_set(struct permissions *p)
{
	bool is_good = true;

	for (size_t left = p->count; left > 0;) {
		const struct permission *last = &p->items[left - 1];
		size_t count = 0, bytes = 0;

		while (count < left && count < MANY_FILES && bytes < MANY_BYTES &&
		       (last - count)->mode == last->mode)
			bytes += strlen((last - count++)->path);
		is_good = set_some(p->target, last, count) && is_good;
		left -= count;
	}
	permissions_fini(p);
	p->count = p->capacity = p->bytes = 0;
	p->items = NULL;
	return is_good;
}

void permissions_fini(struct permissions *p)
{
	for (size_t i = 0; i < p->count; i++)
		free(p->items[i].path);
	free(p->items);
}
