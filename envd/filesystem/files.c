#include "envd/filesystem/files.h"

#include "lib/limits.h"

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

/* Two chunks a transfer. */
size_t files_chunk_bytes(void)
{
	size_t share = FILE_TRANSFERS_BYTES / 2 / size_max(transfers, 1);

	return size_max(FILE_CHUNK_BYTES_MIN, size_min(share, FILE_CHUNK_BYTES));
}

/* {NULL, 0} when the parameter is not given. */
static bool read_parameter(struct http_exchange *ex, const char *name, struct str *ret_value)
{
	int count = http_query_get(ex->request.query, str_of(name), &ex->arena, ret_value);
	const char *message;

	if (count < 0) {
		http_respond_error(ex, 500, "query: %s", errno_text(count));
		return false;
	}
	if (count <= 1)
		return true;
	message = arena_printf(&ex->arena, "Invalid format for parameter %s: multiple values for single "
					   "value parameter '%s'\n", name, name);
	http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
	http_respond(ex, 400, "text/plain; charset=utf-8", str_of(message ? message : ""));
	return false;
}

bool files_read_query(struct http_exchange *ex, const struct sandbox *sandbox,
		      struct files_query *ret_query)
{
	struct str user_name;

	if (!read_parameter(ex, "path", &ret_query->path) ||
	    !read_parameter(ex, "username", &user_name))
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
	http_respond_error(ex, 500, "query: %s", errno_text(ENOMEM));
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
