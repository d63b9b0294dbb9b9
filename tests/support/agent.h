/*
 * All routes of envd on a real HTTP server, with a clock that can be set.
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

int agent_setup(void **state);
int agent_teardown(void **state);

struct talk_answer agent_request(struct agent *f, const char *method, const char *path,
				 const char *headers, const char *body);

void agent_assert_body(const struct talk_answer *answer, const char *wanted);
void agent_assert_header(const struct talk_answer *answer, const char *name, const char *wanted);

#endif
