#include "tests/support/snapshot_lab.h"

#include "envd/routes.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"

static void on_log(const char *line, size_t len, void *user)
{
	struct snapshot_lab *f = user;
	size_t used = strlen(f->log);

	if (used + len < sizeof(f->log))
		memcpy(f->log + used, line, len);
}

void snapshot_lab_open_service(struct snapshot_lab *f, const char *root)
{
	snapshot_service_init(&f->app.snapshot, &f->app.loop, root);
	cgroup_lab_adopt(&f->lab, &f->app.snapshot.freezer.freeze.tree);
	f->app.sandbox.freezer = &f->app.snapshot.freezer;
}

int snapshot_lab_setup(void **state)
{
	struct snapshot_lab *f = xcalloc(1, sizeof(*f));
	const struct http_server_config config = routes_server_config(&f->app);

	json_init();
	log_init(LOG_DEBUG, LOG_JSON, -1);
	log_set_hook(on_log, f);
	loop_init(&f->app.loop);
	sandbox_init(&f->app.sandbox, &f->app.loop);
	f->server = http_server_new(&f->app.loop, &config);
	cgroup_lab_open(&f->lab);
	snapshot_lab_open_service(f, f->lab.root);
	*state = f;
	return 0;
}

static void on_stopped(void *user)
{
	struct snapshot_lab *f = user;

	f->stopped = true;
}

static bool is_stopped(void *user)
{
	struct snapshot_lab *f = user;

	return f->stopped && loop_is_empty(&f->app.loop);
}

int snapshot_lab_teardown(void **state)
{
	struct snapshot_lab *f = *state;

	if (f->talking)
		talk_close(&f->talk);
	snapshot_service_close(&f->app.snapshot);
	http_server_stop(f->server, on_stopped, f);
	talk_wait(&f->app.loop, is_stopped, f);
	snapshot_service_fini(&f->app.snapshot);
	sandbox_fini(&f->app.sandbox);
	loop_fini(&f->app.loop);
	cgroup_lab_close(&f->lab);
	log_set_hook(NULL, NULL);
	free(f);
	return 0;
}

struct talk_answer post(struct snapshot_lab *f, const char *target, const char *body)
{
	char head[1024];

	if (f->talking)
		talk_close(&f->talk);
	f->talking = true;
	snprintf(head, sizeof(head), "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n", target,
		 strlen(body));
	return talk_request(&f->talk, &f->app.loop, f->server, head, str_of(body));
}

void post_later(struct snapshot_lab *f, struct talk *talk, const char *target)
{
	char text[512];
	int len = snprintf(text, sizeof(text),
			   "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", target);

	talk_open(talk, &f->app.loop, f->server);
	talk_send(talk, text, (size_t)len);
}

void assert_status(struct snapshot_lab *f, const char *target, const char *body, int status)
{
	struct talk_answer answer = post(f, target, body);

	if (answer.status != status)
		fail_msg("%s: %d %.*s", target, answer.status, (int)answer.body.len, answer.body.p);
}

void assert_body(const struct talk_answer *answer, const char *wanted)
{
	if (!str_equal(answer->body, str_of(wanted)))
		fail_msg("body is \"%.*s\" and not \"%s\"", (int)answer->body.len, answer->body.p, wanted);
}

void assert_header(const struct talk_answer *answer, const char *name, const char *wanted)
{
	const char *value = talk_header(answer, name);

	if (!wanted && value)
		fail_msg("%s is there: \"%s\"", name, value);
	if (wanted && (!value || strcmp(value, wanted) != 0))
		fail_msg("%s is \"%s\" and not \"%s\"", name, value ? value : "(none)", wanted);
}

bool turns_are_free(void *user)
{
	const struct turn_queue *queue = user;

	return !queue->holder && list_is_empty(&queue->waiting);
}

bool turns_are_busy(void *user)
{
	return !turns_are_free(user);
}

struct awaited {
	struct turn_queue *queue;
	size_t count;
};

static bool are_waiting(void *user)
{
	const struct awaited *awaited = user;

	return awaited->queue->waiting_count == awaited->count;
}

void wait_for_waiters(struct snapshot_lab *f, struct turn_queue *queue, size_t count)
{
	struct awaited awaited = {queue, count};

	talk_wait(&f->app.loop, are_waiting, &awaited);
}
