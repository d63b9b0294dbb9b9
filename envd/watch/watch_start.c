/* What a watch needs before its helper is started; runs in a job. */
#include <fcntl.h>
#include <limits.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "envd/filesystem/file_error.h"
#include "envd/filesystem/path.h"
#include "envd/limits.h"
#include "envd/watch/watch.h"
#include "envd/watch/watch_mount.h"

#define HELPER_NAME "envd-watch"
#define HELPER_INSTALLED "/usr/bin/" HELPER_NAME

static int resolve(struct watch *watch, struct err *err)
{
	const struct watch_request *request = &watch->request;
	struct user user;
	int status;

	if (!request->user_name[0])
		return err_set(err, ERR_UNAUTHENTICATED, "no user specified");
	if (user_lookup(request->user_name, &watch->arena, &user, err) < 0) {
		if (err->kind != ERR_NOT_FOUND)
			return -EPROTO;
		return err_set(err, ERR_UNAUTHENTICATED, "invalid %s: '%s'",
			       request->user_is_default ? "default user" : "username",
			       request->user_name);
	}
	status = sandbox_check_user(watch->all->sandbox, request->user_name, user.uid, err);
	if (status == 0)
		status = path_resolve(request->path, &user, watch->default_workdir, &watch->arena,
				      &watch->path, err);
	if (status < 0)
		return status;
	watch->shown = path_show(watch->path, &watch->arena);
	return watch->shown ? 0 : err_set(err, ERR_RESOURCE_EXHAUSTED, "the path is too long");
}

/* The texts are the contract's, and so is the odd end of the second one. */
static int check_path(const struct watch *watch, struct err *err)
{
	const char *shown = watch->shown;
	struct statfs fs;
	struct stat st;

	if (stat(watch->path, &st) < 0) {
		if (errno == ENOENT)
			return err_set(err, ERR_NOT_FOUND, "path %s not found: stat %s: %s", shown,
				       shown, errno_text(ENOENT));
		return err_set_sys(err, file_error_kind(errno), errno,
				   "error statting path %s: stat %s", shown, shown);
	}
	if (!S_ISDIR(st.st_mode))
		return err_set(err, ERR_INVALID_ARGUMENT, "path %s not a directory: %%!w(<nil>)",
			       shown);
	if (watch->request.allow_network_mounts)
		return 0;
	if (statfs(watch->path, &fs) < 0)
		return err_set_sys(err, file_error_kind(errno), errno,
				   "error checking mount status: statfs %s", shown);
	if (watch_mount_is_network((uint64_t)fs.f_type))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "cannot watch path on network filesystem: %s", shown);
	return 0;
}

static const char *beside_envd(struct arena *arena)
{
	char own[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", own, sizeof(own) - 1);
	char *slash;

	if (len <= 0)
		return NULL;
	own[len] = '\0';
	slash = strrchr(own, '/');
	if (!slash)
		return NULL;
	*slash = '\0';
	return arena_printf(arena, "%s/" HELPER_NAME, own);
}

static const char *find_helper(struct watch *watch)
{
	const char *given = watch->all->helper, *found;

	if (given)
		return access(given, X_OK) == 0 ? given : NULL;
	found = beside_envd(&watch->arena);
	if (found && access(found, X_OK) == 0)
		return found;
	return access(HELPER_INSTALLED, X_OK) == 0 ? HELPER_INSTALLED : NULL;
}

static int set_helper_missing(const struct watch *watch, struct err *err)
{
	if (watch->all->helper)
		return err_set_sys(err, ERR_UNIMPLEMENTED, errno,
				   "watching directories needs the program " HELPER_NAME
				   ", which -watch-helper says is %.512s",
				   watch->all->helper);
	return err_set(err, ERR_UNIMPLEMENTED,
		       "watching directories needs the program " HELPER_NAME
		       ", which is neither beside envd nor in /usr/bin");
}

/* The names as the helper takes them, behind the other arguments. */
static int add_excluded(struct watch *watch, size_t *args, struct err *err)
{
	const struct watch_request *request = &watch->request;

	if (request->excluded_count > WATCH_EXCLUDED_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "more than %d names to exclude",
			       WATCH_EXCLUDED_MAX);
	if (request->excluded_count)
		watch->spawn_args[(*args)++] = "exclude";
	for (size_t i = 0; i < request->excluded_count; i++) {
		const char *shown = request->excluded[i], *name;

		if (!shown[0] || strchr(shown, '/') || strcmp(shown, ".") == 0 ||
		    strcmp(shown, "..") == 0 || strlen(shown) > WATCH_EXCLUDED_NAME_BYTES_MAX)
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "'%.256s' to exclude is not the name of a file", shown);
		name = path_unshow(shown, &watch->arena);
		if (!name)
			return err_set(err, ERR_RESOURCE_EXHAUSTED,
				       "the names to exclude are too long");
		watch->spawn_args[(*args)++] = name;
	}
	return 0;
}

int watch_prepare(struct watch *watch, struct err *err)
{
	size_t args = 0;
	const char *helper;
	int status = resolve(watch, err);

	if (status == 0)
		status = check_path(watch, err);
	if (status < 0)
		return status;
	helper = find_helper(watch);
	if (!helper)
		return set_helper_missing(watch, err);
	watch->spawn_args[args++] = watch->path;
	if (watch->request.recursive)
		watch->spawn_args[args++] = "recursive";
	if (watch->request.allow_network_mounts)
		watch->spawn_args[args++] = "network";
	status = add_excluded(watch, &args, err);
	if (status < 0)
		return status;
	watch->spawn_request = (struct spawn_request){
		.command = helper,
		.args = watch->spawn_args,
		.arg_count = args,
		.as_agent = true,
		.with_stdin = true,
		.cgroup_kind = CGROUP_NONE,
		.stdout_fd = -1,
		.stderr_fd = STDERR_FILENO,
	};
	return spawn_prepare(watch->plan, watch->all->spawn, err);
}
