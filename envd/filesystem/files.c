#include "envd/filesystem/files.h"

#include "envd/filesystem/path.h"
#include "envd/gate/query_http.h"
#include "envd/limits.h"

static _Thread_local size_t transfers;

void files_transfer_started(void)
{
	transfers++;
}

void files_transfer_ended(void)
{
	assert(transfers > 0);
	transfers--;
}

size_t files_transfer_count(void)
{
	return transfers;
}

/* Two chunks a transfer. */
size_t files_chunk_bytes(size_t most)
{
	size_t share = FILE_TRANSFERS_BYTES / 2 / size_max(transfers, 1);

	return size_max(FILE_CHUNK_BYTES_MIN, size_min(share, most));
}

bool files_are_crowded(void)
{
	return files_chunk_bytes(FILE_CHUNK_BYTES) < FILE_CHUNK_BYTES;
}

enum job_class files_piece_class(unsigned *pieces)
{
	if (*pieces == FILE_FIRST_PIECES)
		return JOB_BULK;
	++*pieces;
	return JOB_PIECE;
}

bool files_read_query(struct http_exchange *ex, const struct sandbox *sandbox,
		      struct files_query *ret_query)
{
	struct str user_name;

	if (!query_read(ex, "path", &ret_query->path) || !query_read(ex, "username", &user_name))
		return false;
	/* Copies: /init may change the defaults while a job reads them. */
	if (!user_name.p)
		user_name = str_of(sandbox->default_user);
	ret_query->user_name = arena_str(&ex->arena, user_name).p;
	ret_query->default_workdir = NULL;
	if (sandbox->default_workdir)
		ret_query->default_workdir = arena_strdup(&ex->arena, sandbox->default_workdir);
	if (ret_query->user_name && (!sandbox->default_workdir || ret_query->default_workdir))
		return true;
	http_respond_error(ex, 431, "the request's head needs too much memory");
	return false;
}

void files_fail(struct http_exchange *ex, const struct err *err)
{
	bool is_space = err->sys == ENOSPC || err->sys == EDQUOT;
	int status = err_kind_http_status(err->kind);

	if (err->kind == ERR_RESOURCE_EXHAUSTED)
		status = is_space ? 507 : 503;
	http_respond_error(ex, status, "%s", err->message);
}

void files_open_writer(struct json_writer *w, struct buf *body)
{
	json_writer_init(w, body);
	w->html_safe = true;
}

void files_write_entry(struct json_writer *w, const char *path)
{
	if (!path) {
		w->status = -ENOMEM;
		return;
	}
	json_writer_text(w, "name", str_of(path_base(path)));
	json_writer_text(w, "path", str_of(path));
	json_writer_text(w, "type", STR("file"));
}
