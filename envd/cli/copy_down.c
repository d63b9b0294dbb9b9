/* `sandbox cp` from the sandbox. */
#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/copy.h"
#include "envd/cli/name.h"
#include "envd/cli/transfer.h"
#include "envd/limits.h"

/* What there is without permissions in the answer, which cannot be meant. */
#define DIRECTORY_MODE 0777
#define FILE_MODE 0666

/* What a sandbox calls its files decides nothing about where they go here. */
static bool is_one_name(const char *name)
{
	return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static void download_below(struct copy *copy, const char *remote, const char *local,
			   unsigned depth);

static void fail_here(struct copy *copy, const char *local, int sys)
{
	struct err err;

	err_set_sys(&err, err_kind_from_errno(sys), sys, "%s", local);
	copy_fail(copy, &err);
}

/* It is ours to write to while it is filled, and then what it was there. */
static void download_directory(struct copy *copy, const char *remote, const char *local,
			       mode_t mode, unsigned depth)
{
	bool is_new = mkdir(local, DIRECTORY_MODE) == 0;
	struct stat st;

	if (!is_new && errno != EEXIST) {
		fail_here(copy, local, errno);
		return;
	}
	if (!is_new && stat(local, &st) == 0 && !S_ISDIR(st.st_mode)) {
		fail_here(copy, local, ENOTDIR);
		return;
	}
	download_below(copy, remote, local, depth);
	if (is_new && mode && (mode & 0777) != DIRECTORY_MODE &&
	    chmod(local, transfer_local_mode(mode)) < 0)
		fail_here(copy, local, errno);
}

static void download(struct copy *copy, const char *remote, const char *local,
		     Filesystem__FileType type, mode_t mode, unsigned depth)
{
	bool is_directory = type == FILESYSTEM__FILE_TYPE__FILE_TYPE_DIRECTORY;
	struct err err;
	int status = 0;

	if (!is_directory)
		status = transfer_download(&copy->target, remote, local,
					   mode & 0777 ? mode : FILE_MODE, &err);
	else if (!local)
		status = err_set(&err, ERR_INVALID_ARGUMENT, ":%s is a directory", remote);
	else if (!copy->recursive)
		status = err_set(&err, ERR_INVALID_ARGUMENT, ":%s is a directory (use -r)", remote);
	else if (depth > COPY_DEPTH_MAX)
		status = err_set(&err, ERR_INVALID_ARGUMENT, ":%s is nested too deep", remote);
	if (status < 0)
		copy_fail(copy, &err);
	else if (is_directory)
		download_directory(copy, remote, local, mode, depth);
}

static void download_entry(struct copy *copy, const Filesystem__EntryInfo *entry,
			   const char *remote, const char *local, unsigned depth)
{
	auto_free char *name = name_from_wire(entry->name);
	auto_free char *from = copy_join(remote, name);
	auto_free char *to = NULL;

	if (!is_one_name(name) ||
	    entry->opt_symlink_target_case != FILESYSTEM__ENTRY_INFO__OPT_SYMLINK_TARGET__NOT_SET ||
	    (entry->type != FILESYSTEM__FILE_TYPE__FILE_TYPE_FILE &&
	     entry->type != FILESYSTEM__FILE_TYPE__FILE_TYPE_DIRECTORY)) {
		copy_leave_out(from);
		return;
	}
	to = copy_join(local, name);
	download(copy, from, to, entry->type, (mode_t)entry->mode, depth + 1);
}

static void download_below(struct copy *copy, const char *remote, const char *local, unsigned depth)
{
	auto_free char *shown = name_to_wire(remote);
	Filesystem__ListDirRequest request = FILESYSTEM__LIST_DIR_REQUEST__INIT;
	const Filesystem__ListDirResponse *response;
	ProtobufCMessage *message;
	struct arena arena;
	struct err err;

	arena_init(&arena, RPC_ARENA_BYTES);
	request.path = shown;
	request.depth = 1;
	if (call_unary(&copy->target, "/filesystem.Filesystem/ListDir", &request.base,
		       &filesystem__list_dir_response__descriptor, &arena, &message, &err) < 0) {
		err_wrap(&err, ":%s", remote);
		copy_fail(copy, &err);
	} else {
		response = (const Filesystem__ListDirResponse *)message;
		for (size_t i = 0; i < response->n_entries && !copy->hopeless; i++)
			download_entry(copy, response->entries[i], remote, local, depth);
	}
	arena_release(&arena);
}

void copy_down(struct copy *copy, char **sources, size_t count, const char *destination)
{
	bool is_stdout = strcmp(destination, "-") == 0;
	struct stat st;
	bool into = !is_stdout && (copy_ends_with_slash(destination) ||
				   (stat(destination, &st) == 0 && S_ISDIR(st.st_mode)));
	struct err err;

	if (count > 1 && !into && !is_stdout) {
		err_set(&err, ERR_INVALID_ARGUMENT, "%s is not a directory", destination);
		copy_fail(copy, &err);
		return;
	}
	for (size_t i = 0; i < count && !copy->hopeless; i++) {
		const char *remote = sources[i] + 1;
		auto_free char *path = into ? copy_place(destination, remote)
					    : xstrdup(destination);
		Filesystem__FileType type;
		mode_t mode;

		if (copy_look(copy, remote, &type, &mode, &err) < 0)
			copy_fail(copy, &err);
		else
			download(copy, remote, is_stdout ? NULL : path, type, mode, 0);
	}
}
