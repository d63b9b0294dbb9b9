#include "envd/gate/auth_http.h"

#include "envd/filesystem/user.h"
#include "envd/rpc/base64.h"
#include "envd/rpc/rpc.h"
#include "envd/gate/query_http.h"
#include "envd/gate/signature_http.h"
#include "lib/job.h"

#define USER_ARENA_BYTES (256 * 1024)

#define NANOSECONDS 1000000000LL
#define TOKEN_HEADER STR("X-Access-Token")

/* {NULL, 0} when the request carries none. False when it carries several that differ: whoever is in
 * front of us may have looked at another one. */
static bool find_token(const struct http_exchange *ex, struct str *ret_token)
{
	const struct http_headers *headers = &ex->request.headers;

	*ret_token = http_headers_get(headers, TOKEN_HEADER);
	for (size_t i = 0; i < headers->count; i++)
		if (str_equal_nocase(headers->items[i].name, TOKEN_HEADER) &&
		    !str_equal_constant_time(headers->items[i].value, *ret_token))
			return false;
	return true;
}

static bool pass(struct http_exchange *ex)
{
	ex->client_is_known = true;
	return true;
}

bool auth_pass_token(struct http_exchange *ex, const struct sandbox *sandbox)
{
	struct str token;

	if (!sandbox->access_token)
		return pass(ex);
	if (find_token(ex, &token) && sandbox_token_matches(sandbox, token))
		return pass(ex);
	http_respond_error(
		ex, 401,
		"unauthorized access, please provide a valid access token or method signing if "
		"supported");
	return false;
}

bool auth_pass_files(struct http_exchange *ex, const struct sandbox *sandbox)
{
	bool is_read = str_equal(ex->request.method, STR("GET"));
	struct signature_subject subject = {.operation = is_read ? "read" : "write"};
	struct str token, signature;
	const char *failure;

	/* Bound before anything else is looked at, so a bad one is told even when none is
	 * needed. */
	if (!query_read(ex, "path", &subject.path) ||
	    !query_read(ex, "username", &subject.user_name) ||
	    !query_read(ex, "signature", &signature) ||
	    !query_read_integer(ex, "signature_expiration", &subject.expiration, &subject.expires))
		return false;
	if (!sandbox->access_token)
		return pass(ex);
	if (!find_token(ex, &token) || (token.len && !sandbox_token_matches(sandbox, token))) {
		http_respond_error(ex, 401, "access token present in header but does not match");
		return false;
	}
	if (token.len)
		return pass(ex);
	failure = "missing signature query parameter";
	if (signature.p)
		failure = signature_check(
			&subject, (struct str){sandbox->access_token, sandbox->access_token_len},
			signature, sandbox->clock->now_ns() / NANOSECONDS);
	if (!failure)
		return pass(ex);
	http_respond_error(ex, 401, "%s", failure);
	return false;
}

bool auth_basic_name(struct http_exchange *ex, struct str *ret_name)
{
	struct str value = http_headers_get(&ex->request.headers, STR("Authorization"));
	const struct str scheme = STR("Basic ");
	const char *colon;
	char *decoded;
	ssize_t len;

	if (value.len < scheme.len || !str_equal_nocase((struct str){value.p, scheme.len}, scheme))
		return false;
	value = (struct str){value.p + scheme.len, value.len - scheme.len};
	decoded = arena_alloc(&ex->arena, base64_decoded_bound(value.len) + 1);
	if (!decoded)
		return false;
	len = base64_decode(value, decoded);
	colon = len > 0 ? memchr(decoded, ':', (size_t)len) : NULL;
	if (!colon)
		return false;
	*ret_name = (struct str){decoded, (size_t)(colon - decoded)};
	return true;
}

struct user_check {
	struct job job;
	struct http_exchange *ex;
	const struct sandbox *sandbox;
	const char *name;
	void (*passed)(struct http_exchange *ex, const char *name);
	int status;
	struct err err;
};

static void look_up(struct job *job)
{
	struct user_check *check = container_of(job, struct user_check, job);
	struct arena arena;
	struct user user;

	arena_init(&arena, USER_ARENA_BYTES);
	check->status = user_lookup(check->name, &arena, &user, &check->err);
	if (check->status == 0)
		check->status = sandbox_check_user(check->sandbox, user.name, user.uid,
						   &check->err);
	arena_release(&arena);
}

static void reject_name(struct http_exchange *ex, const char *name)
{
	struct err err;

	err_set(&err, ERR_UNAUTHENTICATED, "invalid username: '%s'", name);
	rpc_reject(ex, &err);
}

static void on_looked_up(struct job *job)
{
	struct user_check *check = container_of(job, struct user_check, job);
	struct http_exchange *ex = check->ex;

	if (!ex->closed) {
		if (check->status == 0)
			check->passed(ex, check->name);
		else if (check->err.kind == ERR_NOT_FOUND)
			reject_name(ex, check->name);
		else
			rpc_reject(ex, &check->err);
	}
	http_exchange_release(ex);
}

/* The client may leave meanwhile; on_looked_up sees that by the exchange. */
static void on_closed(struct http_exchange *ex, int status)
{
}

static const struct http_exchange_handler waiting_handler = {.on_closed = on_closed};

const char *auth_take_name(struct http_exchange *ex, struct str name)
{
	const char *text = arena_strndup(&ex->arena, name.p, name.len);

	if (!text) {
		http_respond_error(ex, 431, "the request's head needs too much memory");
		return NULL;
	}
	if (!name.len || strlen(text) != name.len) {
		reject_name(ex, text);
		return NULL;
	}
	return text;
}

void auth_check_user(struct http_exchange *ex, const struct sandbox *sandbox, struct str name,
		     void (*passed)(struct http_exchange *ex, const char *name))
{
	const char *text = auth_take_name(ex, name);
	struct user_check *check;

	if (!text)
		return;
	check = arena_new(&ex->arena, struct user_check);
	if (!check) {
		http_respond_error(ex, 431, "the request's head needs too much memory");
		return;
	}
	check->ex = ex;
	check->sandbox = sandbox;
	check->name = text;
	check->passed = passed;
	if (job_run(ex->loop, &check->job, JOB_QUICK, look_up, on_looked_up) < 0) {
		err_set(&check->err, ERR_RESOURCE_EXHAUSTED, "too much work is waiting");
		rpc_reject(ex, &check->err);
		return;
	}
	http_exchange_set_handler(ex, &waiting_handler, check);
	http_exchange_hold(ex);
}
