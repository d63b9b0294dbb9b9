#include "envd/filesystem/receive.h"

#include "envd/filesystem/parameters.h"
#include "envd/filesystem/path.h"
#include "envd/limits.h"
#include "lib/hash_table.h"

static int out_of_budget(struct err *err)
{
	return err_set_sys(err, ERR_RESOURCE_EXHAUSTED, ENOMEM, "upload");
}

static int choose_coding(struct receive *receive, struct err *err)
{
	struct str coding = parameters_type(receive->request->content_encoding);

	if (!coding.len || str_equal_nocase(coding, STR("identity")))
		return 0;
	if (!str_equal_nocase(coding, STR("gzip")))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "error decompressing request body: unsupported "
			       "Content-Encoding: %.*s, supported: [gzip]",
			       (int)receive->request->content_encoding.len,
			       receive->request->content_encoding.p);
	receive->gzip = gzip_reader_new();
	receive->left = -1;
	return 0;
}

static int find_user(struct receive *receive, struct err *err)
{
	const char *name = receive->request->user_name;

	if (user_lookup(name, receive->arena, &receive->user, err) < 0) {
		bool is_unknown = err->kind == ERR_NOT_FOUND;

		err_wrap(err, "error looking up user '%s'", name);
		if (is_unknown)
			err->kind = ERR_UNAUTHENTICATED;
		return -EPROTO;
	}
	return sandbox_check_user(receive->request->sandbox, name, receive->user.uid, err);
}

static bool is_multipart_type(struct str type)
{
	return type.len >= 10 && str_equal_nocase((struct str){type.p, 10}, STR("multipart/"));
}

/* `given` is what the client sent, in a query or as a part's file name. */
static int resolve(struct receive *receive, struct str given, const char **ret_path,
		   struct err *err)
{
	const char *text = arena_strndup(receive->arena, given.p, given.len);
	int status;

	if (!text)
		return out_of_budget(err);
	if (strlen(text) != given.len)
		return err_set(err, ERR_INVALID_ARGUMENT, "error resolving path: invalid NUL byte");
	status = path_resolve(text, &receive->user, receive->request->default_workdir,
			      receive->arena, ret_path, err);
	if (status < 0) {
		err_wrap(err, "error resolving path");
		err->kind = ERR_INVALID_ARGUMENT;
		return status;
	}
	/* A trailing slash asks for a directory, whether there is one or not. */
	if (given.len && given.p[given.len - 1] == '/')
		return err_set(err, ERR_INVALID_ARGUMENT, "path is a directory: %s", *ret_path);
	return 0;
}

/* Nothing but the closing delimiter must follow a part, so that much of the rest is no content. */
static int64_t content_left(const struct receive *receive)
{
	int64_t closing = receive->is_multipart ? (int64_t)receive->multipart.delimiter_len + 2 : 0;

	if (receive->left < 0)
		return -1;
	return receive->left > closing ? receive->left - closing : 0;
}

static int begin_file(struct receive *receive, const char *path, struct err *err)
{
	int status;

	receive->upload = (struct upload){
		.path = path,
		.user = &receive->user,
		.metadata = receive->metadata,
		.metadata_count = receive->metadata_count,
		.remaining = content_left(receive),
		.request_length = receive->request->length,
	};
	status = upload_begin(&receive->upload, err);
	receive->is_uploading = status == 0;
	return status;
}

static struct received_file *new_file(struct receive *receive)
{
	if (receive->file_count == receive->file_capacity) {
		size_t capacity = receive->file_capacity ? receive->file_capacity * 2 : 4;
		struct received_file *files = arena_alloc_array(receive->arena, capacity,
								sizeof(*files));

		if (!files)
			return NULL;
		if (receive->file_count)
			memcpy(files, receive->files, receive->file_count * sizeof(*files));
		receive->files = files;
		receive->file_capacity = capacity;
	}
	return &receive->files[receive->file_count];
}

static uint64_t hash_path(const char *path)
{
	return hash_text(str_of(path));
}

static int finish_file(struct receive *receive, struct err *err)
{
	struct received_file *file = new_file(receive);
	struct entry_metadata *metadata;
	size_t metadata_count;
	int status;

	if (!file)
		return out_of_budget(err);
	receive->is_uploading = false;
	status = upload_publish(&receive->upload, receive->arena, &metadata, &metadata_count, err);
	if (status < 0)
		return status;
	*file = (struct received_file){receive->upload.path, hash_path(receive->upload.path),
				       metadata, metadata_count};
	receive->file_count++;
	return 0;
}

/* Thousands of long paths begin alike. */
static bool is_stored(const struct receive *receive, const char *path)
{
	uint64_t hash = hash_path(path);

	for (size_t i = 0; i < receive->file_count; i++)
		if (receive->files[i].hash == hash && strcmp(receive->files[i].path, path) == 0)
			return true;
	return false;
}

static int refuse_duplicate(const struct receive *receive, const char *path, struct err *err)
{
	struct buf others;
	size_t count = 0;

	buf_init(&others, ERR_MESSAGE_BYTES);
	for (size_t i = 0; i < receive->file_count; i++) {
		if (strcmp(receive->files[i].path, path) == 0)
			continue;
		/* A list that is too long is cut, as the message would be. */
		if (buf_printf(&others, "%s%s", count ? ", " : "", receive->files[i].path) < 0)
			break;
		count++;
	}
	err_set(err, ERR_INVALID_ARGUMENT,
		"you cannot upload multiple files to the same path '%s' in one upload request, "
		"only the "
		"first specified file was uploaded%s%.*s",
		path, count >= 2 ? ", also the following files were uploaded: " : "",
		count >= 2 ? (int)buf_length(&others) : 0, count >= 2 ? buf_data(&others) : "");
	buf_fini(&others);
	return -EPROTO;
}

static int on_part(void *user, const struct multipart_part *part, struct err *err)
{
	struct receive *receive = user;
	const char *path;
	int status;

	if (!str_equal(part->name, STR("file")))
		return 0;
	if (receive->file_count >= MULTIPART_FILES_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "more than %d files in one upload request", MULTIPART_FILES_MAX);
	if (!receive->request->path.p && !part->filename.p)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "error getting multipart custom part file name: "
			       "filename not found in Content-Disposition header");
	status = resolve(receive,
			 receive->request->path.p ? receive->request->path : part->filename, &path,
			 err);
	if (status < 0)
		return status;
	if (is_stored(receive, path))
		return refuse_duplicate(receive, path, err);
	return begin_file(receive, path, err);
}

static int on_data(void *user, const char *data, size_t len, struct err *err)
{
	struct receive *receive = user;

	return receive->is_uploading ? upload_write(&receive->upload, data, len, err) : 0;
}

static int on_part_end(void *user, struct err *err)
{
	struct receive *receive = user;

	return receive->is_uploading ? finish_file(receive, err) : 0;
}

static const struct multipart_events multipart_events = {on_part, on_data, on_part_end};

static int begin_multipart(struct receive *receive, struct err *err)
{
	int status = multipart_init(&receive->multipart, receive->request->content_type,
				    &multipart_events, receive, err);

	receive->is_multipart = true;
	if (status < 0)
		err_wrap(err, "error parsing multipart form");
	return status;
}

static int begin_raw(struct receive *receive, struct err *err)
{
	const char *path;
	int status;

	if (!receive->request->path.p)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "path query parameter is required for raw body upload");
	status = resolve(receive, receive->request->path, &path, err);
	return status < 0 ? status : begin_file(receive, path, err);
}

int receive_begin(struct receive *receive, const struct receive_request *request,
		  struct arena *arena, struct err *err)
{
	struct str type = parameters_type(request->content_type);
	int status;

	*receive = (struct receive){.request = request, .arena = arena, .left = request->length};
	status = choose_coding(receive, err);
	if (status == 0)
		status = find_user(receive, err);
	if (status == 0)
		status = metadata_collect(request->fields, request->field_count, arena,
					  &receive->metadata, &receive->metadata_count, err);
	if (status < 0)
		return status;
	if (str_equal_nocase(type, STR("application/octet-stream")))
		return begin_raw(receive, err);
	if (is_multipart_type(type))
		return begin_multipart(receive, err);
	return err_set(err, ERR_INVALID_ARGUMENT,
		       "unsupported content type: %.*s, expected "
		       "multipart/form-data or application/octet-stream",
		       (int)request->content_type.len,
		       request->content_type.p ? request->content_type.p : "");
}

/* Behind the content coding. */
static int feed_plain(void *user, const char *data, size_t len)
{
	struct receive *receive = user;
	struct err *err = receive->err;
	int status;

	receive->upload.remaining = content_left(receive);
	if (!receive->is_multipart)
		return upload_write(&receive->upload, data, len, err) < 0 ? -EPROTO : 0;
	status = multipart_feed(&receive->multipart, data, len, err);
	if (status < 0 && strncmp(err->message, "multipart: ", 11) == 0)
		err_wrap(err, "error reading form");
	return status < 0 ? -EPROTO : 0;
}

static int broken_gzip(struct err *err, const char *what)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "error decompressing request body: %s", what);
}

int receive_feed(struct receive *receive, const char *data, size_t len, struct err *err)
{
	int status;

	receive->err = err;
	if (!receive->gzip) {
		status = feed_plain(receive, data, len);
		if (receive->left >= 0)
			receive->left -= (int64_t)size_min(len, (size_t)receive->left);
		return status;
	}
	status = gzip_reader_feed(receive->gzip, data, len, feed_plain, receive);
	if (status == -EBADMSG)
		return broken_gzip(err, "failed to create gzip reader: gzip: invalid header");
	if (status == -EILSEQ)
		return broken_gzip(err, "gzip: invalid data");
	return status;
}

int receive_finish(struct receive *receive, struct err *err)
{
	int status = receive->gzip ? gzip_reader_finish(receive->gzip) : 0;

	if (status == -ENODATA)
		return broken_gzip(err, "failed to create gzip reader: EOF");
	if (status == -ENOMSG)
		return broken_gzip(err, "failed to create gzip reader: unexpected EOF");
	if (status < 0)
		return broken_gzip(err, "unexpected EOF");
	if (!receive->is_multipart)
		return finish_file(receive, err);
	status = multipart_finish(&receive->multipart, err);
	if (status < 0)
		err_wrap(err, "error reading form");
	return status;
}

void receive_abort(struct receive *receive)
{
	if (receive->is_uploading)
		upload_abort(&receive->upload);
	receive->is_uploading = false;
	if (receive->is_multipart)
		multipart_fini(&receive->multipart);
	receive->is_multipart = false;
	gzip_reader_free(take_ptr(&receive->gzip));
}
