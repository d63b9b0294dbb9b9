/* `sandbox cp` to the sandbox. */
#include <dirent.h>
#include <unistd.h>

#include "envd/cli/call.h"
#include "envd/cli/copy.h"
#include "envd/cli/name.h"
#include "envd/cli/remote.h"
#include "envd/cli/transfer.h"
#include "envd/limits.h"

/* What envd gives to what it makes; and what is taken along of others' permissions. */
#define FILE_MODE 0644
#define DIRECTORY_MODE 0755
#define MODE_MASK 0755

/* An existing directory is fine, and stays as it is. */
static int make_directory(struct copy *copy, const char *path, mode_t mode, struct err *err)
{
	auto_free char *shown = name_to_wire(path);
	Filesystem__MakeDirRequest request = FILESYSTEM__MAKE_DIR_REQUEST__INIT;
	const Filesystem__MakeDirResponse *response;
	ProtobufCMessage *message;
	struct arena arena;
	int status;

	arena_init(&arena, RPC_ARENA_BYTES);
	request.path = shown;
	status = call_unary(&copy->target, "/filesystem.Filesystem/MakeDir", &request.base,
			    &filesystem__make_dir_response__descriptor, &arena, &message, err);
	if (status < 0 && err->kind == ERR_ALREADY_EXISTS) {
		status = 0;
	} else if (status == 0) {
		response = (const Filesystem__MakeDirResponse *)message;
		if ((mode & MODE_MASK) != DIRECTORY_MODE && response->entry)
			permissions_add(&copy->directories, response->entry->path,
					mode & MODE_MASK);
	}
	arena_release(&arena);
	return status;
}

/* Where the sandbox has a fallocate that can; else they are zeros that take room. */
static void dig_holes(struct copy *copy, const char *path)
{
	auto_free char *bytes = name_from_wire(path);
	char *arguments[] = {(char[]){"--dig-holes"}, bytes};

	if (str_is_utf8(str_of(bytes)))
		remote_run(&copy->target, "fallocate", arguments, ARRAY_LENGTH(arguments), NULL);
}

static void upload_file(struct copy *copy, const char *local, const char *remote)
{
	struct transfer_uploaded uploaded;
	struct err err;
	mode_t mode;

	if (transfer_upload(&copy->target, local, remote, &uploaded, &err) < 0) {
		copy_fail(copy, &err);
		return;
	}
	mode = uploaded.mode & MODE_MASK;
	if (uploaded.path && uploaded.has_holes)
		dig_holes(copy, uploaded.path);
	if (uploaded.path && local && mode != FILE_MODE)
		permissions_add(&copy->files, uploaded.path, mode);
	free(uploaded.path);
	if (permissions_are_many(&copy->files) && !permissions_set(&copy->files))
		copy->failed = true;
}

static void upload(struct copy *copy, const char *local, const char *remote, unsigned depth);

static void upload_below(struct copy *copy, const char *local, const char *remote, unsigned depth)
{
	DIR *directory = opendir(local);
	const struct dirent *entry;
	struct err err;

	if (!directory) {
		err_set_sys(&err, err_kind_from_errno(errno), errno, "%s", local);
		copy_fail(copy, &err);
		return;
	}
	while (!copy->hopeless && (errno = 0, entry = readdir(directory))) {
		auto_free char *from = NULL;
		auto_free char *to = NULL;
		struct stat st;

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		from = copy_join(local, entry->d_name);
		to = copy_join(remote, entry->d_name);
		if (lstat(from, &st) == 0 && !S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
			copy_leave_out(from);
		else
			upload(copy, from, to, depth + 1);
	}
	if (!copy->hopeless && errno) {
		err_set_sys(&err, err_kind_from_errno(errno), errno, "%s", local);
		copy_fail(copy, &err);
	}
	closedir(directory);
}

static void upload(struct copy *copy, const char *local, const char *remote, unsigned depth)
{
	struct stat st;
	struct err err;
	int status = 0;

	if (stat(local, &st) < 0)
		status = err_set_sys(&err, err_kind_from_errno(errno), errno, "%s", local);
	else if (S_ISDIR(st.st_mode) && !copy->recursive)
		status = err_set(&err, ERR_INVALID_ARGUMENT, "%s is a directory (use -r)", local);
	else if (S_ISDIR(st.st_mode) && depth > COPY_DEPTH_MAX)
		status = err_set(&err, ERR_INVALID_ARGUMENT, "%s is nested too deep", local);
	else if (S_ISDIR(st.st_mode))
		status = make_directory(copy, remote, st.st_mode, &err);
	if (status < 0)
		copy_fail(copy, &err);
	else if (S_ISDIR(st.st_mode))
		upload_below(copy, local, remote, depth);
	else
		upload_file(copy, local, remote);
}

static void upload_source(struct copy *copy, const char *source, const char *destination, bool into)
{
	bool is_stdin = strcmp(source, "-") == 0;
	auto_free char *path = into ? copy_place(destination, source) : xstrdup(destination);
	struct err err;

	if (is_stdin && into) {
		err_set(&err, ERR_INVALID_ARGUMENT, "standard input needs a name to go to");
		copy_fail(copy, &err);
	} else if (is_stdin) {
		upload_file(copy, NULL, path);
	} else {
		upload(copy, source, path, 0);
	}
}

void copy_up(struct copy *copy, char **sources, size_t count, const char *destination)
{
	Filesystem__FileType type = FILESYSTEM__FILE_TYPE__FILE_TYPE_UNSPECIFIED;
	struct err err;
	mode_t mode;
	int status = copy_look(copy, destination, &type, &mode, &err);
	bool into = copy_ends_with_slash(destination) ||
		    type == FILESYSTEM__FILE_TYPE__FILE_TYPE_DIRECTORY;

	if (status < 0 && err.kind == ERR_NOT_FOUND)
		status = 0;
	if (status == 0 && count > 1 && !into)
		status = err_set(&err, ERR_INVALID_ARGUMENT, ":%s is not a directory", destination);
	if (status < 0) {
		copy_fail(copy, &err);
		return;
	}
	for (size_t i = 0; i < count && !copy->hopeless; i++)
		upload_source(copy, sources[i], destination, into);
	if (copy->hopeless)
		return;
	if (!permissions_set(&copy->files) || !permissions_set(&copy->directories))
		copy->failed = true;
}
