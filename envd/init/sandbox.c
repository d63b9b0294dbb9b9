#include "envd/init/sandbox.h"

#include "envd/limits.h"

void sandbox_init(struct sandbox *sandbox, struct loop *loop)
{
	*sandbox = (struct sandbox){.loop = loop, .clock = &clock_system};
	turn_queue_init(&sandbox->init_turns, loop, INIT_WAITERS_MAX);
	ca_bundle_init(&sandbox->ca_bundle, loop);
	hyperloop_init(&sandbox->hyperloop, loop);
	environment_init(&sandbox->environment);
	sandbox->default_user = xstrdup("root");
}

void sandbox_fini(struct sandbox *sandbox)
{
	turn_queue_fini(&sandbox->init_turns);
	ca_bundle_fini(&sandbox->ca_bundle);
	sandbox_set_access_token(sandbox, (struct str){NULL, 0});
	environment_fini(&sandbox->environment);
	free(sandbox->default_user);
	free(sandbox->default_workdir);
	free(sandbox->only_user);
	*sandbox = (struct sandbox){0};
}

void sandbox_set_default_user(struct sandbox *sandbox, const char *name)
{
	char *copy = xstrdup(name);

	free(sandbox->default_user);
	sandbox->default_user = copy;
}

void sandbox_set_default_workdir(struct sandbox *sandbox, const char *path)
{
	char *copy = path ? xstrdup(path) : NULL;

	free(sandbox->default_workdir);
	sandbox->default_workdir = copy;
}

void sandbox_set_access_token(struct sandbox *sandbox, struct str token)
{
	/* Copied first: the new token may be a slice of the old one's memory. */
	char *copy = token.p ? xstrndup(token.p, token.len) : NULL;

	if (sandbox->access_token) {
		wipe(sandbox->access_token, sandbox->access_token_len);
		free(sandbox->access_token);
	}
	sandbox->access_token = copy;
	sandbox->access_token_len = copy ? token.len : 0;
}

bool sandbox_token_matches(const struct sandbox *sandbox, struct str token)
{
	if (!sandbox->access_token || !token.p)
		return false;
	return str_equal_constant_time(
		(struct str){sandbox->access_token, sandbox->access_token_len}, token);
}

int sandbox_check_user(const struct sandbox *sandbox, const char *name, uid_t uid, struct err *err)
{
	if (!sandbox->only_user || uid == sandbox->only_uid)
		return 0;
	err_set(err, ERR_PERMISSION_DENIED, "envd runs as user '%s'%s: cannot act as '%s'",
		sandbox->only_user, sandbox->is_standalone ? " (standalone)" : "", name);
	return -EPERM;
}
