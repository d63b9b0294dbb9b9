/*
 * One JSON line per request: who asked which sandbox for what, and what came of it. Never in it:
 * query strings, tokens, cookies, bodies. Each worker collects lines in a bounded buffer of its own;
 * a job writes them, so that a slow disk delays nobody. What does not fit is dropped and counted.
 */
#ifndef PROXY_ADMIN_ACCESS_LOG_H
#define PROXY_ADMIN_ACCESS_LOG_H

#include "lib/buf.h"
#include "lib/job.h"

struct access_log {
	struct loop *loop;
	int fd; /* borrowed; -1: off */
	struct buf lines, writing;
	struct job job;
	uv_timer_t timer;
	bool busy, armed, closing;
	uint64_t dropped;
};

struct access_entry {
	struct str method, host, path; /* the path without its query */
	bool has_query;
	const char *sandbox; /* NULL when none was found out */
	unsigned port;
	int status;	   /* 0: none was sent */
	const char *error; /* X-Proxy-Error class, NULL when the sandbox answered */
	const char *end;   /* "complete", or how it ended early */
	uint64_t received, sent;
	uint64_t duration_ms;
	const char *peer;
	struct str user_agent;
	bool tunnel;
};

void access_log_open(struct access_log *log, struct loop *loop, int fd);
void access_log_write(struct access_log *log, const struct access_entry *entry);
/* Writes what is left, then closes; the memory is free when the loop is empty. */
void access_log_close(struct access_log *log);

#endif
