/*
 * All routes of envd on a real HTTP server, and a client that asks it. Of the app only the loop and
 * the sandbox are there; what a test adds of the rest is the test's, from agent_open to agent_stop.
 */
#ifndef TESTS_SUPPORT_AGENT_H
#define TESTS_SUPPORT_AGENT_H

#include "envd/app.h"
#include "tests/support/talk.h"

struct agent {
	struct app app;
	struct http_server *server;
	struct talk talk;
	bool talking;
	bool stopped;
	char log[64 * 1024];
};

extern int64_t agent_clock_now, agent_clock_set_to;
extern int agent_clock_set_calls, agent_clock_set_result;

void agent_open(struct agent *f);
/* Stops the server and waits until nothing is open any more. */
void agent_stop(struct agent *f);
/* The rest, after agent_stop. */
void agent_free(struct agent *f);

/* For cmocka: *state is the agent, whose clock can be set and is the test's. */
int agent_setup(void **state);
int agent_teardown(void **state);

struct talk_answer agent_request(struct agent *f, const char *method, const char *path,
				 const char *headers, const char *body);

/* The same for a POST without further fields. The answer lives until the next one. */
struct talk_answer agent_post(struct agent *f, const char *target, const char *body);

void agent_assert_body(const struct talk_answer *answer, const char *wanted);
/* NULL: the header must not be there. */
void agent_assert_header(const struct talk_answer *answer, const char *name, const char *wanted);

#endif
