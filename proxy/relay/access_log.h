/*
 * One JSON line per request: who asked which sandbox for what, and what came of it. Never in it:
 * query strings, tokens, cookies, bodies. Each worker collects lines in a bounded buffer of its
 * own; a job writes them, so that a slow disk delays nobody, and never waits for who reads a pipe.
 * Lines go out whole, also when workers share a pipe; what does not fit is dropped and counted.
 */
#ifndef PROXY_RELAY_ACCESS_LOG_H
#define PROXY_RELAY_ACCESS_LOG_H

#include <pthread.h>

#include "lib/buf.h"
#include "lib/counter.h"
#include "lib/job.h"
#include "lib/sink.h"

/* Where the lines of all workers go. */
struct access_sink {
	struct sink sink;
	pthread_mutex_t lock;
	struct buf rest; /* of a line that went out in part: it comes before all others */
	int fd; /* borrowed */
	_Atomic uint64_t dropped; /* lines, as a part of them had to stay behind */
};

/* `fd` is borrowed. */
void access_sink_open(struct access_sink *sink, int fd);
/* Lines go to another descriptor from now on; returns the former one, which is not used any more.
 * From any thread, as a job: it waits for lines that are just being written. */
int access_sink_replace(struct access_sink *sink, int fd);
void access_sink_close(struct access_sink *sink);

struct access_log {
	struct loop *loop;
	struct access_sink *sink; /* NULL: off */
	struct buf lines, writing;
	struct job job;
	struct alarm alarm;
	int status; /* of the last write */
	bool busy, closing;
	_Atomic uint64_t dropped; /* lines */
};

struct access_entry {
	const char *protocol; /* "HTTP/1.1"; NULL when it did not get clear */
	const char *
		upstream; /* "10.0.0.5:3000", where the request went or would have; NULL: nowhere */
	struct str traceparent; /* as it came */
	struct str method, host, path; /* the path without its query */
	bool has_query;
	const char *sandbox; /* NULL when none was found out */
	unsigned port;
	struct str handler; /* the name of a host that is no sandbox's; {NULL, 0}: it is */
	int status; /* 0: none was sent */
	const char *error; /* X-Proxy-Error class, NULL when the sandbox answered */
	const char *end; /* "complete", or how it ended early */
	uint64_t received, sent;
	uint64_t duration_ms, first_byte_ms; /* the latter with a status */
	const char *peer;
	struct str user_agent;
	bool tunnel;
	const char *tls; /* "TLSv1.3"; NULL: plain text */
};

/* A traceparent of W3C's Trace Context, of this version or a later one; what is not one is not
 * logged, since anybody may have written it. {NULL, 0}: it is none. Of later versions the part that
 * this one has, too. */
struct str access_log_traceparent(struct str value);

/* `sink` is borrowed. */
void access_log_open(struct access_log *log, struct loop *loop, struct access_sink *sink);
void access_log_write(struct access_log *log, const struct access_entry *entry);
/* Writes what is left, then closes; the memory is free when the loop is empty. */
void access_log_close(struct access_log *log);

#endif
