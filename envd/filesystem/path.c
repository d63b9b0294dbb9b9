#include "envd/filesystem/path.h"

#include <limits.h>

/* U+EF80..U+EFFF is EE BE 80 .. EE BF BF in UTF-8. */
#define ESCAPE_BYTES 3

static bool is_escape(const char *p, size_t left)
{
	const unsigned char *b = (const unsigned char *)p;

	return left >= ESCAPE_BYTES && b[0] == 0xEE && (b[1] == 0xBE || b[1] == 0xBF) &&
	       (b[2] & 0xC0) == 0x80;
}

static unsigned char escape_decode(const char *p)
{
	const unsigned char *b = (const unsigned char *)p;

	return (unsigned char)((b[1] & 3) << 6 | (b[2] & 0x3F));
}

static void escape_encode(unsigned char byte, char *ret)
{
	ret[0] = (char)0xEE;
	ret[1] = (char)(0xBC | byte >> 6);
	ret[2] = (char)(0x80 | (byte & 0x3F));
}

/* Length of the well-formed character at p, 0 when there is none. */
static size_t character_length(const char *p, size_t left)
{
	unsigned char c = (unsigned char)p[0];
	size_t len = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;

	return len <= left && str_is_utf8((struct str){p, len}) ? len : 0;
}

/* Writes the shown form of `name` (at most 3 bytes for each of its own); returns its length. */
static size_t show(struct str name, char *ret)
{
	size_t used = 0;

	for (size_t i = 0; i < name.len;) {
		size_t len = character_length(name.p + i, name.len - i);

		if (len && !is_escape(name.p + i, len)) {
			memcpy(ret + used, name.p + i, len);
			used += len;
			i += len;
			continue;
		}
		for (size_t end = i + (len ? len : 1); i < end; i++, used += ESCAPE_BYTES)
			escape_encode((unsigned char)name.p[i], ret + used);
	}
	return used;
}

const char *path_show(const char *path, struct arena *arena)
{
	struct str bytes = str_of(path);
	char *shown;

	if (!path)
		return NULL;
	if (str_is_utf8(bytes) && !strstr(path, "\xEE\xBE") && !strstr(path, "\xEE\xBF"))
		return path;
	shown = arena_alloc(arena, bytes.len * ESCAPE_BYTES + 1);
	if (shown)
		shown[show(bytes, shown)] = '\0';
	return shown;
}

/* Turns a shown component back into bytes, in place when it shrinks. Returns its new length. */
static size_t unshow_component(char *component, size_t len, char *scratch)
{
	char *bytes = scratch, *again = scratch + len;
	size_t used = 0;

	for (size_t i = 0; i < len;) {
		if (is_escape(component + i, len - i)) {
			bytes[used++] = (char)escape_decode(component + i);
			i += ESCAPE_BYTES;
		} else {
			bytes[used++] = component[i++];
		}
	}
	if (show((struct str){bytes, used}, again) != len || memcmp(again, component, len) != 0)
		return len;
	memcpy(component, bytes, used);
	return used;
}

const char *path_unshow(const char *path, struct arena *arena)
{
	size_t len = strlen(path), used = 0;
	char *copy, *scratch;

	if (!strstr(path, "\xEE\xBE") && !strstr(path, "\xEE\xBF"))
		return path;
	copy = arena_strndup(arena, path, len);
	scratch = arena_alloc(arena, len * (1 + ESCAPE_BYTES));
	if (!copy || !scratch)
		return NULL;
	for (size_t i = 0; i < len;) {
		char *component = copy + i;
		size_t piece = strcspn(component, "/");
		size_t kept = piece ? unshow_component(component, piece, scratch) : 0;

		memmove(copy + used, component, kept);
		used += kept;
		i += piece;
		if (i < len) {
			copy[used++] = '/';
			i++;
		}
	}
	copy[used] = '\0';
	return copy;
}

const char *path_clean(const char *path, struct arena *arena)
{
	char *clean = arena_alloc(arena, strlen(path) + 2);
	size_t used = 0;

	if (!clean)
		return NULL;
	while (*path) {
		size_t len = strcspn(path, "/");

		if (len == 2 && path[0] == '.' && path[1] == '.') {
			while (used && clean[--used] != '/')
				;
		} else if (len && !(len == 1 && path[0] == '.')) {
			clean[used++] = '/';
			memcpy(clean + used, path, len);
			used += len;
		}
		path += len + (path[len] == '/');
	}
	if (!used)
		clean[used++] = '/';
	clean[used] = '\0';
	return clean;
}

const char *path_base(const char *clean_path)
{
	const char *slash = strrchr(clean_path, '/');

	return slash && slash[1] ? slash + 1 : clean_path;
}

const char *path_join(const char *clean_path, const char *relative, struct arena *arena)
{
	return arena_printf(arena, "%s/%s", strcmp(clean_path, "/") == 0 ? "" : clean_path,
			    relative);
}

bool path_is_within(const char *path, const char *ancestor)
{
	size_t len = strlen(ancestor);

	if (strcmp(ancestor, "/") == 0)
		return true;
	return strncmp(path, ancestor, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

static int out_of_budget(struct err *err)
{
	return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "path");
}

/* "~" and relative paths; the result is absolute but not clean. */
static const char *make_absolute(const char *path, const struct user *user, struct arena *arena)
{
	if (path[0] == '/')
		return path;
	if (path[0] == '~')
		path++;
	return arena_printf(arena, "%s/%s", user->home, path);
}

int path_resolve(const char *path, const struct user *user, const char *default_workdir,
		 struct arena *arena, const char **ret_path, struct err *err)
{
	const char *bytes, *absolute, *clean;

	if (!path[0] && default_workdir)
		path = default_workdir;
	if (path[0] == '~' && path[1] && path[1] != '/' && path[1] != '\\')
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "failed to expand path '' for user '%s': "
			       "cannot expand user-specific home dir",
			       user->name);
	/* Longer than any shown form of a possible path; keeps the work below bounded. */
	if (strlen(path) > (size_t)PATH_MAX * ESCAPE_BYTES)
		return err_set_sys(err, ERR_INVALID_ARGUMENT, ENAMETOOLONG, "path");
	bytes = path_unshow(path, arena);
	absolute = bytes ? make_absolute(bytes, user, arena) : NULL;
	clean = absolute ? path_clean(absolute, arena) : NULL;
	if (!clean)
		return out_of_budget(err);
	if (strlen(clean) >= PATH_MAX)
		return err_set_sys(err, ERR_INVALID_ARGUMENT, ENAMETOOLONG, "path");
	*ret_path = clean;
	return 0;
}
