/*
 * Calls the webhooks of jobs that have ended (proto/jobs.proto, Webhook): a few at once, each tried
 * again after the times of envd/limits.h until somebody has taken it. How often it was tried is in
 * the job's record, so that the next envd goes on. Loop thread only.
 */
#ifndef ENVD_JOBS_JOBS_SERVICE_WEBHOOK_H
#define ENVD_JOBS_JOBS_SERVICE_WEBHOOK_H

#include "envd/jobs/job_table.h"

/* job_table_settings.on_webhook. */
void jobs_webhook_start(struct background_job *job);

#endif
