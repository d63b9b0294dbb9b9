/*
 * process.Process on a real server of this loop, and a client that takes its streams apart.
 */
#ifndef TESTS_SUPPORT_PROCESS_SERVICE_LAB_H
#define TESTS_SUPPORT_PROCESS_SERVICE_LAB_H

#include "envd/app.h"
#include "tests/support/wire_client.h"

struct service {
	struct app app;
	bool server_stopped, table_stopped;
};

int service_setup(void **state);
int service_teardown(void **state);
void service_turn(struct service *s);
void service_send_stream_head(struct service *s, struct wire_client *c, const char *method,
			      const char *headers);
/* A server stream: one request message. */
void service_open_stream(struct service *s, struct wire_client *c, const char *method,
			 const char *headers, const char *json);
void service_open_shell(struct service *s, struct wire_client *c, const char *script,
			const char *more);
void service_wait_for(struct service *s, struct wire_client *c, const char *text);
/* The pid of the start event. */
pid_t service_wait_for_pid(struct service *s, struct wire_client *c);
void service_call(struct service *s, const char *method, struct str json, struct wire_response *r);
/* A unary call whose answer has this status and contains this text. */
void service_expect(struct service *s, const char *method, int status, const char *text,
		    const char *format, ...) PRINTF_LIKE(5, 6);

/* A finished stream taken apart. */
struct seen {
	struct wire_response response;
	size_t starts, ends, data, end_streams, keepalives;
	char first[256], last[1024]; /* the first message, the end of stream */
	char end[256];
	struct buf output[3]; /* stdout, stderr, pty */
	int pid;
};

void service_read_stream(struct wire_client *c, struct seen *seen);
void service_forget(struct seen *seen);
void service_expect_end(struct seen *seen, const char *end);
void service_expect_stream_error(struct service *s, const char *method, const char *json,
				 const char *error);

#endif
