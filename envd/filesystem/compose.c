#include "envd/filesystem/compose.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/copy.h"
#include "envd/filesystem/file_error.h"
#include "envd/filesystem/lease.h"
#include "envd/filesystem/path.h"
#include "envd/filesystem/staging.h"
#include "envd/limits.h"
#include "lib/json.h"

#define SUFFIX_BYTES 64
/* What a source costs at least, so that a job does not go through thousands of empty ones. */
#define SOURCE_BYTES_MIN (256 * 1024)

static int no_memory(struct err *err)
{
	return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "compose");
}

static bool is_no_space(int status)
{
	return status == -ENOSPC || status == -EDQUOT;
}

static int fail_writing(struct err *err, int status, const char *what, const char *path)
{
	if (is_no_space(status)) {
		err_set(err, ERR_RESOURCE_EXHAUSTED, "not enough disk space available");
		err->sys = ENOSPC;
		return -ENOSPC;
	}
	return err_set_sys(err, file_error_kind(status < 0 ? -status : status), status, "%s %s",
			   what, path);
}

/* ---- the request ---- */

/* What follows the first value is ignored, as in the reference. */
static struct str first_object(struct str text)
{
	bool in_string = false;
	size_t depth = 0;

	for (size_t i = 0; i < text.len; i++) {
		char c = text.p[i];

		if (in_string && c == '\\')
			i++;
		else if (c == '"')
			in_string = !in_string;
		else if (!in_string && (c == '{' || c == '['))
			depth++;
		else if (!in_string && (c == '}' || c == ']') && depth && --depth == 0)
			return (struct str){text.p, i + 1};
	}
	return text;
}

static int wrong_type(struct err *err, const char *field)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "invalid request body: %s has another type",
		       field);
}

static bool is_absent(const struct json_value *value)
{
	return !value || json_type(value) == JSON_NULL;
}

/* NULL when it is absent. */
static int read_text(const struct json_value *root, const char *field, const char **ret_text,
		     struct err *err)
{
	const struct json_value *value = json_get_nocase(root, str_of(field));

	*ret_text = NULL;
	if (is_absent(value))
		return 0;
	if (json_type(value) != JSON_STRING)
		return wrong_type(err, field);
	*ret_text = json_string(value).p;
	return 0;
}

static int read_sources(struct compose *compose, const struct json_value *root, struct arena *arena,
			struct err *err)
{
	const struct json_value *list = json_get_nocase(root, STR("source_paths"));

	if (!is_absent(list) && json_type(list) != JSON_ARRAY)
		return wrong_type(err, "source_paths");
	compose->source_count = is_absent(list) ? 0 : json_length(list);
	if (!compose->source_count)
		return err_set(err, ERR_INVALID_ARGUMENT, "source_paths must not be empty");
	compose->sources = arena_alloc_array(arena, compose->source_count,
					     sizeof(*compose->sources));
	if (!compose->sources)
		return no_memory(err);
	for (size_t i = 0; i < compose->source_count; i++) {
		if (json_type(json_at(list, i)) != JSON_STRING)
			return wrong_type(err, "source_paths");
		compose->sources[i].shown = json_string(json_at(list, i)).p;
	}
	return 0;
}

static int read_request(struct compose *compose, const struct compose_request *request,
			const char **ret_destination, const char **ret_user_name,
			struct arena *arena, struct err *err)
{
	const struct json_value *root;
	int status = json_parse(first_object(request->body), arena, &root, err);

	if (status == 0 && json_type(root) != JSON_OBJECT)
		status = err_set(err, ERR_INVALID_ARGUMENT, "not an object");
	if (status < 0) {
		err_wrap(err, "invalid request body");
		return status;
	}
	status = read_text(root, "destination", ret_destination, err);
	if (status == 0)
		status = read_text(root, "username", ret_user_name, err);
	if (status == 0)
		status = read_sources(compose, root, arena, err);
	if (status == 0 && (!*ret_destination || !**ret_destination))
		status = err_set(err, ERR_INVALID_ARGUMENT, "destination is required");
	return status;
}

/* ---- checks ---- */

static int find_user(struct compose *compose, const struct compose_request *request,
		     const char *name, struct arena *arena, struct err *err)
{
	if (user_lookup(name, arena, &compose->user, err) < 0) {
		bool is_unknown = err->kind == ERR_NOT_FOUND;

		err_wrap(err, "error looking up user '%s'", name);
		if (is_unknown)
			err->kind = ERR_UNAUTHENTICATED;
		return -EPROTO;
	}
	return sandbox_check_user(request->sandbox, name, compose->user.uid, err);
}

static int check_source(struct compose *compose, const struct compose_request *request,
			struct compose_source *source, struct arena *arena, struct err *err)
{
	struct stat link, content;
	int status = path_resolve(source->shown, &compose->user, request->default_workdir, arena,
				  &source->path, err);

	if (status < 0) {
		err_wrap(err, "error resolving source path \"%s\"", source->shown);
		err->kind = ERR_INVALID_ARGUMENT;
		return status;
	}
	if (strcmp(source->path, compose->path) == 0)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "source path \"%s\" cannot be the same as destination",
			       source->shown);
	if (lstat(source->path, &link) < 0 || stat(source->path, &content) < 0)
		return err_set(err, ERR_NOT_FOUND, "source file not found: %s", source->shown);
	if (!S_ISREG(content.st_mode))
		return err_set(err, ERR_INVALID_ARGUMENT, "source path is not a regular file: %s",
			       source->shown);
	source->device = link.st_dev;
	source->inode = link.st_ino;
	source->content_device = content.st_dev;
	source->content_inode = content.st_ino;
	return 0;
}

static int find_destination(struct compose *compose, struct err *err)
{
	struct place *place = &compose->place;
	int status = place_find(compose->path, &compose->user, PLACE_MAKE_PARENTS, place, err);

	if (status < 0) {
		err_wrap(err, "error ensuring directories");
		return status;
	}
	if (place->exists && S_ISDIR(place->st.st_mode))
		status = err_set(err, ERR_INVALID_ARGUMENT,
				 "error finalizing compose: path is a directory: %s",
				 compose->path);
	else if (!place_may_rename(place, &compose->user))
		status = fail_writing(err, -EACCES, "error creating destination file: open",
				      compose->path);
	/* The same name by another way: deleting the part would delete the result. */
	for (size_t i = 0; i < compose->source_count && status == 0 && place->exists; i++)
		if (compose->sources[i].device == place->st.st_dev &&
		    compose->sources[i].inode == place->st.st_ino && place->st.st_nlink == 1)
			status = err_set(err, ERR_INVALID_ARGUMENT,
					 "source path \"%s\" cannot be the same as destination",
					 compose->sources[i].shown);
	if (status < 0)
		place_close(place);
	return status;
}

/* ---- the new file ---- */

/* <name>.e2b-compose.<uuid>.tmp, without the name where that would be too long. */
static int pick_temporary_name(struct compose *compose)
{
	unsigned char r[16];
	char suffix[SUFFIX_BYTES];
	bool fits;

	if (getrandom(r, sizeof(r), 0) != (ssize_t)sizeof(r))
		return -EIO;
	r[6] = (r[6] & 0x0f) | 0x40;
	r[8] = (r[8] & 0x3f) | 0x80;
	snprintf(suffix, sizeof(suffix),
		 ".e2b-compose.%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%"
		 "02x.tmp",
		 r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12],
		 r[13], r[14], r[15]);
	fits = strlen(compose->place.name) <= NAME_MAX - SUFFIX_BYTES;
	snprintf(compose->temporary, sizeof(compose->temporary), "%.*s%s",
		 fits ? NAME_MAX - SUFFIX_BYTES : 0, compose->place.name, suffix);
	return 0;
}

/* Under the temporary name, from which it is renamed. */
static int open_named(struct compose *compose)
{
	int fd = openat(compose->place.directory, compose->temporary,
			O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	if (fd < 0)
		return -errno;
	compose->has_temporary = true;
	return fd;
}

static int open_new(struct compose *compose, struct err *err)
{
	int status = pick_temporary_name(compose);

	compose->fd = status < 0 ? status : staging_open(&compose->place, STAGING_TO_LINK);
	if (compose->fd < 0 && !is_no_space(compose->fd) && status == 0)
		compose->fd = open_named(compose);
	if (compose->fd < 0)
		return fail_writing(err, compose->fd, "error creating destination file: open",
				    compose->path);
	status = place_give(compose->fd, &compose->user);
	if (status < 0)
		return fail_writing(err, status, "error creating destination file: chown",
				    compose->path);
	return 0;
}

int compose_begin(struct compose *compose, const struct compose_request *request,
		  struct arena *arena, struct err *err)
{
	const char *destination, *user_name;
	int status;

	*compose = (struct compose){.fd = -1, .from = -1};
	compose->place.directory = -1;
	status = read_request(compose, request, &destination, &user_name, arena, err);
	if (status == 0)
		status = find_user(compose, request, user_name ? user_name : request->user_name,
				   arena, err);
	if (status < 0)
		return status;
	status = path_resolve(destination, &compose->user, request->default_workdir, arena,
			      &compose->path, err);
	if (status < 0) {
		err_wrap(err, "error resolving destination path");
		err->kind = ERR_INVALID_ARGUMENT;
		return status;
	}
	for (size_t i = 0; i < compose->source_count && status == 0; i++)
		status = check_source(compose, request, &compose->sources[i], arena, err);
	if (status == 0)
		status = find_destination(compose, err);
	if (status < 0)
		return status;
	status = open_new(compose, err);
	if (status < 0)
		compose_abort(compose);
	return status;
}

void compose_abort(struct compose *compose)
{
	if (compose->has_temporary)
		unlinkat(compose->place.directory, compose->temporary, 0);
	compose->has_temporary = false;
	close_fd(&compose->from);
	close_fd(&compose->fd);
	place_close(&compose->place);
}

/* ---- copying ---- */

static int open_failed(const struct compose_source *source, int sys, struct err *err)
{
	/* It was there when the work began. */
	return err_set_sys(err, sys == ENOENT ? ERR_NOT_FOUND : file_error_kind(sys), sys,
			   "error opening source file %s: open %s", source->path, source->path);
}

/* What it was when it was checked, and nothing the user's links lead us to against his rights. */
static int open_source(struct compose *compose, struct err *err)
{
	const struct compose_source *source = &compose->sources[compose->at];
	struct place place;
	struct stat st;
	int status = place_find(source->path, &compose->user, PLACE_FOLLOW, &place, err);

	if (status < 0)
		return open_failed(source, err->sys ? err->sys : EIO, err);
	if (!place.exists)
		status = open_failed(source, ENOENT, err);
	if (status == 0) {
		compose->from = lease_open(place.directory, place.name, O_RDONLY | O_NOFOLLOW, 0);
		if (compose->from < 0)
			status = open_failed(source, -compose->from, err);
		else if (fstat(compose->from, &st) < 0)
			status = open_failed(source, errno, err);
		else if (!place_may_open(&place, &compose->user, &st, 4))
			status = open_failed(source, EACCES, err);
		else if (!S_ISREG(st.st_mode) || st.st_dev != source->content_device ||
			 st.st_ino != source->content_inode)
			status = open_failed(source, ESTALE, err);
	}
	place_close(&place);
	if (status < 0)
		return status;
	compose->from_offset = 0;
	/* Files without a size, as those of /proc, are read to their end. */
	compose->from_length = st.st_size ? st.st_size : INT64_MAX;
	return 0;
}

/* Copies a piece of the source that is open; closes it at its end. */
static int copy_piece(struct compose *compose, int64_t *budget, struct err *err)
{
	const struct compose_source *source = &compose->sources[compose->at];
	int64_t want = compose->from_length - compose->from_offset;
	int64_t copied;

	if (want > *budget)
		want = *budget;
	copied = copy_content_at(compose->from, compose->from_offset, compose->fd, compose->written,
				 want);
	if (copied < 0) {
		fail_writing(err, (int)copied, "error composing source", source->path);
		if (err->kind == ERR_INTERNAL)
			err->kind = file_error_kind_of(compose->from, (int)copied);
		return (int)copied;
	}
	compose->from_offset += copied;
	compose->written += copied;
	*budget -= copied;
	if (copied == want && compose->from_offset < compose->from_length)
		return 0;
	if (copied < want && compose->from_length != INT64_MAX)
		return err_set(err, ERR_ABORTED,
			       "error composing source %s: the file has become shorter",
			       source->path);
	close_fd(&compose->from);
	compose->at++;
	*budget -= copied < SOURCE_BYTES_MIN ? SOURCE_BYTES_MIN - copied : 0;
	return 0;
}

/* ---- the end ---- */

/* Where an unnamed file cannot be linked, as in upload.c. */
static int name_by_copying(struct compose *compose)
{
	auto_close int named = open_named(compose);
	int status;

	if (named < 0)
		return named;
	status = place_give(named, &compose->user);
	if (status >= 0)
		status = staging_copy(compose->fd, named);
	if (status < 0)
		return status;
	close_fd(&compose->fd);
	compose->fd = take_fd(&named);
	return 0;
}

static int put_in_place(struct compose *compose, struct err *err)
{
	const struct place *place = &compose->place;
	int status = 0;

	if (!compose->has_temporary && !place->exists) {
		status = staging_link(compose->fd, place);
		if (status == 0)
			return 0;
	}
	if (!compose->has_temporary) {
		struct place temporary = *place;

		snprintf(temporary.name, sizeof(temporary.name), "%s", compose->temporary);
		status = staging_link(compose->fd, &temporary);
		compose->has_temporary = status == 0;
		if (status < 0 && !is_no_space(status))
			status = name_by_copying(compose);
	}
	if (status == 0)
		status = place_rename_onto(place->directory, compose->temporary, place);
	if (status < 0)
		return fail_writing(err, status, "error finalizing compose: rename", compose->path);
	compose->has_temporary = false;
	return 0;
}

static void delete_source(struct compose *compose, const struct compose_source *source)
{
	struct place place;
	struct stat result;
	struct err ignored;

	if (place_find(source->path, &compose->user, 0, &place, &ignored) < 0)
		return;
	if (place.exists && place.st.st_dev == source->device && place.st.st_ino == source->inode &&
	    fstat(compose->fd, &result) == 0 &&
	    !(result.st_dev == place.st.st_dev && result.st_ino == place.st.st_ino) &&
	    place_may_rename(&place, &compose->user))
		unlinkat(place.directory, place.name, 0);
	place_close(&place);
}

int compose_step(struct compose *compose, struct err *err)
{
	int64_t budget = COMPOSE_STEP_BYTES;
	int status = 0;

	while (compose->at < compose->source_count && budget > 0 && status == 0) {
		if (compose->from < 0)
			status = open_source(compose, err);
		if (status == 0)
			status = copy_piece(compose, &budget, err);
	}
	if (status == 0 && compose->at < compose->source_count)
		return 1;
	if (status == 0)
		status = put_in_place(compose, err);
	for (size_t i = 0; i < compose->source_count && status == 0; i++)
		delete_source(compose, &compose->sources[i]);
	compose_abort(compose);
	return status;
}
