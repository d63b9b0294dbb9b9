/* `envd cp`: files and whole trees, in either direction. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/cli.h"
#include "envd/cli/print.h"
#include "envd/cli/transfer.h"
#include "lib/limits.h"
#include "proto/filesystem.pb-c.h"

#define DIRECTORY_MODE 0777
#define FILE_MODE 0666
#define DEPTH_MAX 200

static const char summary[] =
	"cp [-r] SOURCE... DESTINATION\n\nCopies files. Paths in the sandbox begin with ':'. - is standard "
	"input or output:\n"
	"  envd cp report.txt :/home/user/\n"
	"  envd cp -r :/app/build ./build\n"
	"  tar c . | envd cp - :/tmp/all.tar\n"
	"Symbolic links and special files below a directory are left out, which is said. Permissions are\n"
	"kept on the way here as far as whether a file can be run; files that are uploaded get the\n"
	"sandbox's usual ones.\n";

struct copy {
	struct target target;
	bool recursive;
	size_t left_out;
};

static char *join(const char *directory, const char *name)
{
	size_t len = strlen(directory);
	char *path = xmalloc(len + strlen(name) + 2);

	memcpy(path, directory, len);
	if (len && directory[len - 1] != '/')
		path[len++] = '/';
	memcpy(path + len, name, strlen(name) + 1);
	return path;
}

/* The last part of a path; "." when it has none. */
static char *last_part(const char *path)
{
	size_t end = strlen(path), start;

	while (end && path[end - 1] == '/')
		end--;
	for (start = end; start && path[start - 1] != '/'; start--)
		;
	return end > start ? xstrndup(path + start, end - start) : xstrdup(".");
}

static void leave_out(struct copy *copy, const char *path)
{
	FILE *file = fdopen(dup(STDERR_FILENO), "w");

	copy->left_out++;
	if (!file)
		return;
	fputs("left out: ", file);
	print_safe(file, path);
	fputc('\n', file);
	fclose(file);
}

/* Fills ret_type and ret_mode; a missing entry is not_found. */
static int look(struct copy *copy, const char *path, Filesystem__FileType *ret_type, mode_t *ret_mode,
		struct err *err)
{
	Filesystem__StatRequest request = FILESYSTEM__STAT_REQUEST__INIT;
	const Filesystem__EntryInfo *entry;
	ProtobufCMessage *message;
	struct arena arena;
	int status;

	arena_init(&arena, RPC_ARENA_BYTES);
	request.path = (char *)(uintptr_t)path;
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

/* ---- up ---- */

static int make_remote(struct copy *copy, const char *path, struct err *err)
{
	Filesystem__MakeDirRequest request = FILESYSTEM__MAKE_DIR_REQUEST__INIT;
	struct arena arena;
	int status;

	arena_init(&arena, RPC_ARENA_BYTES);
	request.path = (char *)(uintptr_t)path;
	status = call_unary(&copy->target, "/filesystem.Filesystem/MakeDir", &request.base,
			    &filesystem__make_dir_response__descriptor, &arena, NULL, err);
	arena_release(&arena);
	return status < 0 && err->kind == ERR_ALREADY_EXISTS ? 0 : status;
}

static int upload(struct copy *copy, const char *local, const char *remote, unsigned depth,
		  struct err *err);

static int upload_below(struct copy *copy, const char *local, const char *remote, unsigned depth,
			struct err *err)
{
	DIR *directory = opendir(local);
	const struct dirent *entry;
	int status = 0;

	if (!directory)
		return err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local);
	while (status == 0 && (errno = 0, entry = readdir(directory))) {
		auto_free char *from = NULL;
		auto_free char *to = NULL;
		struct stat st;

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		from = join(local, entry->d_name);
		to = join(remote, entry->d_name);
		if (lstat(from, &st) < 0)
			status = err_set_sys(err, err_kind_from_errno(errno), errno, "%s", from);
		else if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
			leave_out(copy, from);
		else
			status = upload(copy, from, to, depth + 1, err);
	}
	if (status == 0 && errno)
		status = err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local);
	closedir(directory);
	return status;
}

static int upload(struct copy *copy, const char *local, const char *remote, unsigned depth,
		  struct err *err)
{
	struct stat st;
	int status;

	if (stat(local, &st) < 0)
		return err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local);
	if (!S_ISDIR(st.st_mode))
		return transfer_upload(&copy->target, local, remote, err);
	if (!copy->recursive)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s is a directory (use -r)", local);
	if (depth > DEPTH_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s is nested too deep", local);
	status = make_remote(copy, remote, err);
	return status < 0 ? status : upload_below(copy, local, remote, depth, err);
}

static bool ends_with_slash(const char *path)
{
	return *path && path[strlen(path) - 1] == '/';
}

static int copy_up(struct copy *copy, char **sources, size_t count, const char *destination,
		   struct err *err)
{
	Filesystem__FileType type = FILESYSTEM__FILE_TYPE__FILE_TYPE_UNSPECIFIED;
	mode_t mode;
	int status = look(copy, destination, &type, &mode, err);
	bool into;

	if (status < 0 && err->kind != ERR_NOT_FOUND)
		return status;
	into = ends_with_slash(destination) || type == FILESYSTEM__FILE_TYPE__FILE_TYPE_DIRECTORY;
	if (count > 1 && !into)
		return err_set(err, ERR_INVALID_ARGUMENT, ":%s is not a directory", destination);
	status = 0;
	for (size_t i = 0; i < count && status == 0; i++) {
		bool is_stdin = strcmp(sources[i], "-") == 0;
		auto_free char *name = last_part(sources[i]);
		auto_free char *path = into ? join(destination, name) : xstrdup(destination);

		if (is_stdin && into)
			return err_set(err, ERR_INVALID_ARGUMENT, "standard input needs a name to go to");
		status = is_stdin ? transfer_upload(&copy->target, NULL, path, err)
				  : upload(copy, sources[i], path, 0, err);
	}
	return status;
}

/* ---- down ---- */

/* What a sandbox calls its files decides nothing about where they go here. */
static bool is_one_name(const char *name)
{
	return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int download_below(struct copy *copy, const char *remote, const char *local, unsigned depth,
			  struct err *err);

static int download(struct copy *copy, const char *remote, const char *local,
		    Filesystem__FileType type, mode_t mode, unsigned depth, struct err *err)
{
	if (type != FILESYSTEM__FILE_TYPE__FILE_TYPE_DIRECTORY)
		return transfer_download(&copy->target, remote, local, mode & 0111 ? 0777 : FILE_MODE, err);
	if (!local)
		return err_set(err, ERR_INVALID_ARGUMENT, ":%s is a directory", remote);
	if (!copy->recursive)
		return err_set(err, ERR_INVALID_ARGUMENT, ":%s is a directory (use -r)", remote);
	if (depth > DEPTH_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, ":%s is nested too deep", remote);
	if (mkdir(local, DIRECTORY_MODE) < 0 && errno != EEXIST)
		return err_set_sys(err, err_kind_from_errno(errno), errno, "%s", local);
	return download_below(copy, remote, local, depth, err);
}

static int download_entry(struct copy *copy, const Filesystem__EntryInfo *entry, const char *remote,
			  const char *local, unsigned depth, struct err *err)
{
	auto_free char *from = join(remote, entry->name);
	auto_free char *to = NULL;

	if (!is_one_name(entry->name) ||
	    entry->opt_symlink_target_case != FILESYSTEM__ENTRY_INFO__OPT_SYMLINK_TARGET__NOT_SET ||
	    (entry->type != FILESYSTEM__FILE_TYPE__FILE_TYPE_FILE &&
	     entry->type != FILESYSTEM__FILE_TYPE__FILE_TYPE_DIRECTORY)) {
		leave_out(copy, from);
		return 0;
	}
	to = join(local, entry->name);
	return download(copy, from, to, entry->type, (mode_t)entry->mode, depth + 1, err);
}

static int download_below(struct copy *copy, const char *remote, const char *local, unsigned depth,
			  struct err *err)
{
	Filesystem__ListDirRequest request = FILESYSTEM__LIST_DIR_REQUEST__INIT;
	const Filesystem__ListDirResponse *response;
	ProtobufCMessage *message;
	struct arena arena;
	int status;

	arena_init(&arena, RPC_ARENA_BYTES);
	request.path = (char *)(uintptr_t)remote;
	request.depth = 1;
	status = call_unary(&copy->target, "/filesystem.Filesystem/ListDir", &request.base,
			    &filesystem__list_dir_response__descriptor, &arena, &message, err);
	response = status == 0 ? (const Filesystem__ListDirResponse *)message : NULL;
	for (size_t i = 0; status == 0 && i < response->n_entries; i++)
		status = download_entry(copy, response->entries[i], remote, local, depth, err);
	arena_release(&arena);
	return status;
}

static int copy_down(struct copy *copy, char **sources, size_t count, const char *destination,
		     struct err *err)
{
	bool is_stdout = strcmp(destination, "-") == 0;
	struct stat st;
	bool into = !is_stdout && (ends_with_slash(destination) ||
				   (stat(destination, &st) == 0 && S_ISDIR(st.st_mode)));
	int status = 0;

	if (count > 1 && !into)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s is not a directory", destination);
	for (size_t i = 0; i < count && status == 0; i++) {
		const char *remote = sources[i] + 1;
		auto_free char *name = last_part(remote);
		auto_free char *path = into ? join(destination, name) : xstrdup(destination);
		Filesystem__FileType type;
		mode_t mode;

		status = look(copy, remote, &type, &mode, err);
		if (status == 0)
			status = download(copy, remote, is_stdout ? NULL : path, type, mode, 0, err);
	}
	return status;
}

int cli_copy(int argc, char **argv)
{
	struct copy copy = {0};
	const struct option options[] = {
		{"r", OPTION_BOOL, &copy.recursive, "directories, with everything below them"},
		TARGET_OPTIONS(&copy.target),
		{0},
	};
	struct err err;
	bool up;
	size_t count;
	int rest, result, status;

	target_init(&copy.target);
	result = cli_parse(options, "envd cp", summary, argc, argv, &rest);
	if (result != CLI_GO_ON) {
		target_fini(&copy.target);
		return result;
	}
	count = argc - rest > 1 ? (size_t)(argc - rest) - 1 : 0;
	up = count && argv[argc - 1][0] == ':';
	for (size_t i = 0; i < count; i++)
		if ((argv[rest + (int)i][0] == ':') == up)
			count = 0;
	if (!count) {
		result = cli_usage("cp: from here to the sandbox or the other way; its paths begin with ':'");
	} else {
		status = target_open(&copy.target, &err);
		if (status == 0)
			status = up ? copy_up(&copy, argv + rest, count, argv[argc - 1] + 1, &err)
				    : copy_down(&copy, argv + rest, count, argv[argc - 1], &err);
		result = status < 0 ? print_failure(&err) : EXIT_SUCCESS;
	}
	target_fini(&copy.target);
	return result;
}
