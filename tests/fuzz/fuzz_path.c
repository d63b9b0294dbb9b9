/*
 * A default workdir and a path, split at a newline. Results are absolute and clean, showing a path
 * and resolving what is shown comes back to the same bytes, and header parameters and download
 * headers made of the same bytes stay within their grammar.
 */
#include <limits.h>

#include "envd/filesystem/content_type.h"
#include "envd/filesystem/parameters.h"
#include "envd/filesystem/path.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_clean(const char *path, struct arena *arena)
{
	assert(path[0] == '/' && strlen(path) < PATH_MAX);
	assert(!strstr(path, "//") && !strstr(path, "/./") && !strstr(path, "/../"));
	assert(strcmp(path, "/") == 0 || path[strlen(path) - 1] != '/');
	assert(strcmp(path_clean(path, arena), path) == 0);
}

static void check_shown(const char *path, const struct user *user, struct arena *arena)
{
	const char *shown = path_show(path, arena), *again;
	struct err err;

	assert(shown && str_is_utf8(str_of(shown)));
	if (path_resolve(shown, user, NULL, arena, &again, &err) < 0)
		abort();
	assert(strcmp(again, path) == 0);
}

static void check_headers(const char *path, struct arena *arena)
{
	const char *disposition = content_disposition(path_base(path), arena);
	struct str name;

	assert(disposition);
	for (const char *c = disposition; *c; c++)
		assert(*c >= ' ' && *c < 0x7F);
	/* Our own parser reads the name back. */
	if (parameters_get(str_of(disposition), STR("filename"), arena, &name) == 1 &&
	    !strchr(path_base(path), '\\'))
		assert(str_equal(name, str_of(path_base(path))));
	assert(content_type_sniff(str_of(path)));
	content_type_of_path(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct user user = {.name = "user", .home = "/home/user", .uid = 1, .gid = 1};
	struct str rest = {(const char *)data, size}, workdir, value;
	const char *path, *resolved;
	struct arena arena;
	struct err err;

	if (!size || memchr(data, '\0', size) || !str_split(&rest, '\n', &workdir) || !rest.p)
		return 0;
	arena_init(&arena, 64 << 20);
	path = arena_strndup(&arena, rest.p, rest.len);
	if (path_resolve(path, &user, arena_str(&arena, workdir).p, &arena, &resolved, &err) == 0) {
		check_clean(resolved, &arena);
		check_shown(resolved, &user, &arena);
		check_headers(resolved, &arena);
	} else {
		assert(err.kind == ERR_INVALID_ARGUMENT);
	}
	if (parameters_get(rest, STR("filename"), &arena, &value) == 1)
		assert(value.p && value.p[value.len] == '\0');
	arena_release(&arena);
	return 0;
}
