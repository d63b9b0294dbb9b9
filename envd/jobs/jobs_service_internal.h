/* What the jobs_service*.c files share. */
#ifndef ENVD_JOBS_JOBS_SERVICE_INTERNAL_H
#define ENVD_JOBS_JOBS_SERVICE_INTERNAL_H

#include "envd/jobs/job_look.h"
#include "envd/jobs/job_life.h"
#include "envd/jobs/job_retention.h"
#include "envd/jobs/jobs_service.h"
#include "proto/jobs.pb-c.h"

struct job_table *jobs_table(const struct rpc_call *call);
/* NULL, and the call has failed: not_found, failed_precondition for a command, or why there may be
 * jobs that are not known. */
struct background_job *jobs_find(struct rpc_call *call, const char *id);
/* Of a request: JOB_STATE_UNSPECIFIED is none. */
bool jobs_is_state(int state);
/* True when there may be jobs that cannot be read; the call has failed then. */
bool jobs_fail_unread(struct rpc_call *call);
/* What a call keeps, in its arena. NULL, and the call has failed. */
void *jobs_new_state(struct rpc_call *call, size_t size);
/* Borrows the job's texts. NULL when the arena refuses. */
Jobs__Job *jobs_make_job(struct arena *arena, const struct background_job *job);
/* Answers, or fails when `job`, which is part of the response, could not be made. */
void jobs_reply(struct rpc_call *call, const ProtobufCMessage *response, const Jobs__Job *job);
void jobs_fail_no_memory(struct rpc_call *call);
void jobs_fail_closed(struct rpc_call *call);
/* Room for the message with one job. */
#define JOBS_MESSAGE_ARENA_BYTES (64 * 1024)

/* A unary call that does something in the pool for one job, and answers then. Embedded as the first
 * member of what the call keeps. */
struct jobs_work {
	struct job work;
	struct rpc_call *call;
	struct background_job *job;
	void (*fn)(struct jobs_work *work); /* blocking */
	void (*answer)(struct jobs_work *work);
};

/* Call, job and functions are set. False: refused, and the call has failed. */
bool jobs_work_run(struct jobs_work *work);

/* A unary call that is answered by what becomes of a job. Embedded in what the call keeps. */
struct jobs_follow {
	struct job_listener listener;
	struct rpc_call *call;
	struct background_job *job;
	/* False while there is nothing to answer; then it is asked again when the job changes. */
	bool (*answer)(struct jobs_follow *follow);
};

/* Call, job and function are set. True: answered already. */
bool jobs_follow(struct jobs_follow *follow);

/* Keepalives of a stream, embedded by its owner. */
struct jobs_keepalive {
	struct alarm alarm;
	struct rpc_call *call;
	uint64_t sent_ms; /* the owner notes every message here */
	void (*on_due)(struct jobs_keepalive *keepalive);
};

void jobs_keepalive_open(struct jobs_keepalive *keepalive, struct rpc_call *call,
			 void (*on_due)(struct jobs_keepalive *keepalive));
void jobs_keepalive_close(struct jobs_keepalive *keepalive);

void jobs_create(struct rpc_call *call, const ProtobufCMessage *message);
void jobs_get(struct rpc_call *call, const ProtobufCMessage *message);
void jobs_list(struct rpc_call *call, const ProtobufCMessage *message);
void jobs_output(struct rpc_call *call, const ProtobufCMessage *message);
void jobs_resize(struct rpc_call *call, const ProtobufCMessage *message);
void jobs_wait(struct rpc_call *call, const ProtobufCMessage *message);
void jobs_watch(struct rpc_call *call, const ProtobufCMessage *message);
void jobs_write_stdin(struct rpc_call *call, const ProtobufCMessage *message);

#endif
