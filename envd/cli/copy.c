#include "envd/cli/copy.h"

#include <signal.h>
#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/cli.h"
#include "envd/cli/name.h"
#include "envd/cli/print.h"
#include "envd/limits.h"

/* As a shell would say of a program here. */
#define EXIT_OF_PIPE (128 + SIGPIPE)

static const char summary[] = "cp [-r] SOURCE... DESTINATION\n\nCopies files. Paths in the sandbox "
			      "begin with ':'. - is standard "
			      "input or output:\n"
			      "  sandbox cp report.txt :/home/user/\n"
			      "  sandbox cp -r :/app/build ./build\n"
			      "  tar c . | sandbox cp - :/tmp/all.tar\n"
			      "Permissions are kept, as far as the umask lets; there as with a "
			      "umask of 022. Symbolic links and\n"
			      "special files below a directory are left out, which is said. A file "
			      "that cannot be copied is told,\n"
			      "and the rest goes on; the exit code is 1 then. No half file ever "
			      "has the name of a whole one. Holes of\n"
			      "files stay holes; there, where fallocate can dig them.\n";

void copy_fail(struct copy *copy, const struct err *err)
{
	copy->failed = true;
	copy->reader_left = err->sys == EPIPE && err->kind != ERR_UNAVAILABLE;
	/* Nobody there, or nobody who lets us in. */
	if (copy->reader_left || err->kind == ERR_UNAVAILABLE || err->kind == ERR_UNAUTHENTICATED)
		copy->hopeless = true;
	if (!copy->reader_left)
		print_failure(err);
}

void copy_leave_out(const char *path)
{
	auto_free char *quoted = name_quote(path);

	dprintf(STDERR_FILENO, "left out: %s\n", quoted);
}

char *copy_join(const char *directory, const char *name)
{
	size_t len = strlen(directory);
	char *path = xmalloc(len + strlen(name) + 2);

	memcpy(path, directory, len);
	if (len && directory[len - 1] != '/')
		path[len++] = '/';
	memcpy(path + len, name, strlen(name) + 1);
	return path;
}

char *copy_place(const char *directory, const char *source)
{
	size_t end = strlen(source), start;
	auto_free char *name = NULL;

	while (end && source[end - 1] == '/')
		end--;
	for (start = end; start && source[start - 1] != '/'; start--)
		;
	name = xstrndup(source + start, end - start);
	if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return xstrdup(directory);
	return copy_join(directory, name);
}

bool copy_ends_with_slash(const char *path)
{
	return *path && path[strlen(path) - 1] == '/';
}

int copy_look(struct copy *copy, const char *path, Filesystem__FileType *ret_type, mode_t *ret_mode,
	      struct err *err)
{
	auto_free char *shown = name_to_wire(path);
	Filesystem__StatRequest request = FILESYSTEM__STAT_REQUEST__INIT;
	const Filesystem__EntryInfo *entry;
	ProtobufCMessage *message;
	struct arena arena;
	int status;

	arena_init(&arena, RPC_ARENA_BYTES);
	request.path = shown;
	status = call_unary(&copy->target, "/filesystem.Filesystem/Stat", &request.base,
			    &filesystem__stat_response__descriptor, &arena, &message, err);
	entry = status == 0 ? ((Filesystem__StatResponse *)message)->entry : NULL;
	if (entry) {
		*ret_type = entry->type;
		*ret_mode = (mode_t)entry->mode;
	} else if (status == 0) {
		status = err_set(err, ERR_INTERNAL, "an answer without an entry");
	}
	arena_release(&arena);
	return status;
}

/* How many sources there are; 0 when both sides are the same. *ret_up: to the sandbox. */
static size_t count_sources(char **paths, int count, bool *ret_up)
{
	*ret_up = count > 1 && paths[count - 1][0] == ':';
	for (int i = 0; i < count - 1; i++)
		if ((paths[i][0] == ':') == *ret_up)
			return 0;
	return count > 1 ? (size_t)count - 1 : 0;
}

static int run(struct copy *copy, char **paths, size_t count, bool up)
{
	struct err err;

	if (target_open(&copy->target, &err) < 0)
		return print_failure(&err);
	permissions_init(&copy->files, &copy->target);
	permissions_init(&copy->directories, &copy->target);
	if (up)
		copy_up(copy, paths, count, paths[count] + 1);
	else
		copy_down(copy, paths, count, paths[count]);
	permissions_fini(&copy->files);
	permissions_fini(&copy->directories);
	if (copy->reader_left)
		return EXIT_OF_PIPE;
	return copy->failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

int cli_copy(int argc, char **argv)
{
	struct copy copy = {0};
	const struct option options[] = {
		{"r", OPTION_BOOL, &copy.recursive, "directories, with everything below them"},
		TARGET_OPTIONS(&copy.target),
		{0},
	};
	size_t count;
	int rest, result;
	bool up;

	target_init(&copy.target);
	result = cli_parse_anywhere(options, "sandbox cp", summary, argc, argv, &rest);
	if (result == CLI_GO_ON) {
		count = count_sources(argv + rest, argc - rest, &up);
		result = count ? run(&copy, argv + rest, count, up)
			       : cli_usage("cp: from here to the sandbox or the other way; its "
					   "paths begin "
					   "with ':'");
	}
	target_fini(&copy.target);
	return result;
}
