/*
 * jobs.Jobs on the wire (proto/jobs.proto), and the plain paths beside it: GET /jobs/{id}/stdout
 * and /jobs/{id}/stderr. Only the jobs_service*.c files and jobs_rest.c see generated types, calls
 * and exchanges.
 *
 * `rpc_call->service` must be a struct jobs_service.
 */
#ifndef ENVD_JOBS_JOBS_SERVICE_H
#define ENVD_JOBS_JOBS_SERVICE_H

#include "envd/jobs/jobs.h"
#include "envd/rpc/rpc.h"

struct process_table;
struct sandbox;

/* What the calls work on; lives as long as envd. */
struct jobs_service {
	struct job_table *jobs;
	const struct process_table *processes; /* the list shows running commands, too */
	const struct sandbox *sandbox;
};

/* Sorted by path. */
#define JOBS_SERVICE_METHODS 10
extern const struct rpc_method jobs_service_methods[JOBS_SERVICE_METHODS];

/* Answers paths below /jobs/: 404 for what is not there, 405 for other methods than GET and
 * HEAD. */
void jobs_rest_serve(struct http_exchange *ex, struct job_table *table);
#define JOBS_REST_PREFIX "/jobs/"

/* job_table_settings.on_webhook: calls the webhooks of jobs that have ended (proto/jobs.proto,
 * Webhook), a few at once, each tried again after the times of envd/limits.h until somebody has
 * taken it. How often it was tried is in the job's record, so that the next envd goes on. */
void jobs_webhook_start(struct background_job *job);

#endif
