#include "tests/support/snapshot_lab.h"

#include "tests/support/cmocka.h"

void snapshot_lab_open_service(struct snapshot_lab *f, const char *root)
{
	snapshot_service_init(&f->agent.app.snapshot, &f->agent.app.loop, root);
	cgroup_lab_adopt(&f->lab, &f->agent.app.snapshot.freezer.freeze.tree);
	f->agent.app.sandbox.freezer = &f->agent.app.snapshot.freezer;
}

int snapshot_lab_setup(void **state)
{
	struct snapshot_lab *f = xcalloc(1, sizeof(*f));

	agent_open(&f->agent);
	cgroup_lab_open(&f->lab);
	snapshot_lab_open_service(f, f->lab.root);
	*state = f;
	return 0;
}

int snapshot_lab_teardown(void **state)
{
	struct snapshot_lab *f = *state;

	snapshot_service_close(&f->agent.app.snapshot);
	agent_stop(&f->agent);
	snapshot_service_fini(&f->agent.app.snapshot);
	agent_free(&f->agent);
	cgroup_lab_close(&f->lab);
	free(f);
	return 0;
}

struct talk_answer post(struct snapshot_lab *f, const char *target, const char *body)
{
	return agent_post(&f->agent, target, body);
}

void post_later(struct snapshot_lab *f, struct talk *talk, const char *target)
{
	char text[512];
	int len = snprintf(
		text, sizeof(text),
		"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
		target);

	talk_open(talk, &f->agent.app.loop, f->agent.server);
	talk_send(talk, text, (size_t)len);
}

void assert_status(struct snapshot_lab *f, const char *target, const char *body, int status)
{
	struct talk_answer answer = post(f, target, body);

	if (answer.status != status)
		fail_msg("%s: %d %.*s", target, answer.status, (int)answer.body.len, answer.body.p);
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

	talk_wait(&f->agent.app.loop, are_waiting, &awaited);
}
