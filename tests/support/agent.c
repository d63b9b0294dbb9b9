#include "tests/support/agent.h"

#include "envd/filesystem/user.h"
#include "envd/routes.h"
#include "lib/json.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"

int64_t agent_clock_now, agent_clock_set_to;

int agent_clock_set_calls, agent_clock_set_result;

static int64_t fake_now(void)
{
	return agent_clock_now;
}

static int fake_set(int64_t unix_ns)
{
	agent_clock_set_calls++;
	agent_clock_set_to = unix_ns;
	return agent_clock_set_result;
}

static const struct clock_source fake_clock = {fake_now, fake_set};

static void on_log(const char *line, size_t len, void *user)
{
	struct agent *f = user;
	size_t used = strlen(f->log);

	if (used + len < sizeof(f->log))
		memcpy(f->log + used, line, len);
}

void agent_open(struct agent *f)
{
	const struct http_server_config config = routes_server_config(&f->app);

	json_init();
	log_init(LOG_DEBUG, LOG_JSON, -1);
	log_set_hook(on_log, f);
	loop_init(&f->app.loop);
	sandbox_init(&f->app.sandbox, &f->app.loop);
	f->server = http_server_new(&f->app.loop, &config);
}

static void on_stopped(void *user)
{
	struct agent *f = user;

	f->stopped = true;
}

static bool is_stopped(void *user)
{
	struct agent *f = user;

	return f->stopped && loop_is_empty(&f->app.loop);
}

void agent_stop(struct agent *f)
{
	if (f->talking)
		talk_close(&f->talk);
	http_server_stop(f->server, on_stopped, f);
	talk_wait(&f->app.loop, is_stopped, f);
}

void agent_free(struct agent *f)
{
	sandbox_fini(&f->app.sandbox);
	loop_fini(&f->app.loop);
	log_set_hook(NULL, NULL);
}

int agent_setup(void **state)
{
	struct agent *f = xcalloc(1, sizeof(*f));

	agent_open(f);
	f->app.sandbox.clock = &fake_clock;
	agent_clock_now = INT64_C(1700000000000000000);
	agent_clock_set_calls = agent_clock_set_result = 0;
	*state = f;
	return 0;
}

int agent_teardown(void **state)
{
	struct agent *f = *state;

	agent_stop(f);
	agent_free(f);
	user_set_files(NULL, NULL);
	free(f);
	return 0;
}

struct talk_answer agent_request(struct agent *f, const char *method, const char *path,
				 const char *headers, const char *body)
{
	char head[8192];
	size_t len = body ? strlen(body) : 0;

	if (f->talking)
		talk_close(&f->talk);
	f->talking = true;
	if (body)
		snprintf(head, sizeof(head),
			 "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n%s", method, path,
			 len, headers);
	else
		snprintf(head, sizeof(head), "%s %s HTTP/1.1\r\nHost: x\r\n%s", method, path,
			 headers);
	return talk_request(&f->talk, &f->app.loop, f->server, head, (struct str){body, len});
}

struct talk_answer agent_post(struct agent *f, const char *target, const char *body)
{
	return agent_request(f, "POST", target, "", body);
}

void agent_assert_body(const struct talk_answer *answer, const char *wanted)
{
	if (!str_equal(answer->body, str_of(wanted)))
		fail_msg("body is \"%.*s\" and not \"%s\"", (int)answer->body.len, answer->body.p,
			 wanted);
}

void agent_assert_header(const struct talk_answer *answer, const char *name, const char *wanted)
{
	const char *value = talk_header(answer, name);

	if (!wanted && value)
		fail_msg("%s is there: \"%s\"", name, value);
	if (wanted && (!value || strcmp(value, wanted) != 0))
		fail_msg("%s is \"%s\" and not \"%s\"", name, value ? value : "(none)", wanted);
}
