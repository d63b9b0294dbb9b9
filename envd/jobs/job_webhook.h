/*
 * Where a job's webhook is, and how its call is signed. Plain functions; jobs_service_webhook.c
 * calls it.
 */
#ifndef ENVD_JOBS_JOB_WEBHOOK_H
#define ENVD_JOBS_JOB_WEBHOOK_H

#include <sys/socket.h>

#include "lib/base.h"

#define JOB_WEBHOOK_HOST_BYTES 256
#define JOB_WEBHOOK_SIGNATURE_BYTES 112

struct job_webhook_target {
	char host[JOB_WEBHOOK_HOST_BYTES]; /* without brackets */
	char port[8];
	struct str authority; /* for the Host field; into the URL, as the next */
	struct str path; /* with its query; may be empty */
};

/* http://host[:port][/path][?query]; no name and password in front of the host. -EINVAL. */
int job_webhook_parse(const char *url, struct job_webhook_target *ret_target) NODISCARD;
/* Without asking anybody; -EINVAL: the host is a name. */
int job_webhook_read_address(const struct job_webhook_target *target,
			     struct sockaddr_storage *ret_address) NODISCARD;
bool job_webhook_is_same_server(const struct job_webhook_target *a,
				const struct job_webhook_target *b);
/* Blocking. A negative errno when there is no such host now. */
int job_webhook_resolve(const struct job_webhook_target *target,
			struct sockaddr_storage *ret_address) NODISCARD;
/* "t=<ms>,v1=<hex>". */
void job_webhook_sign(const char *key, int64_t now_ms, struct str body,
		      char ret_text[JOB_WEBHOOK_SIGNATURE_BYTES]);

#endif
