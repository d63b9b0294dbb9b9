/*
 * What the host's metadata service knows about this sandbox, kept up to date
 * (contract/envd.md 1.9): E2B_SANDBOX_ID and E2B_TEMPLATE_ID in the environment, and files of these
 * names below /run/e2b. It is asked after start until it answers, and after each /init, as a
 * resumed sandbox may be another one than was paused; in between nothing wakes up. Only there where
 * a host has such a service, that is in a microVM. Loop thread only.
 */
#ifndef ENVD_HOST_METADATA_H
#define ENVD_HOST_METADATA_H

#include "envd/host/metadata_http.h"
#include "envd/init/environment.h"
#include "lib/job.h"

#define METADATA_ADDRESS "169.254.169.254"
#define METADATA_PORT 80

struct log_exporter;
struct tools;

struct metadata_settings {
	struct loop *loop;
	struct environment *environment;
	struct sockaddr_in address;
	const char *run_directory; /* borrowed */
	struct tools *tools; /* to clear the way to the service with; NULL: none */
	struct log_exporter *exporter; /* is told where the host collects the log; NULL: none */
};

struct metadata_service;

/* Asks until there is an answer. */
struct metadata_service *metadata_service_new(const struct metadata_settings *settings);
/* What was known may be outdated: asks again, for METADATA_REFRESH_MS at most. */
void metadata_service_refresh(struct metadata_service *service);
/* One look for somebody who waits for it, each step of METADATA_CHECK_MS at most, and a second one
 * when the first fails and the way could be cleared (envd/host/metadata_pin.h); what is found is
 * also taken over. As metadata_lookup_open, and metadata_check_cancel ends it.
 *
 * Who cannot wait any longer leaves instead: then the look goes on, and what it finds is for who
 * asks next, within METADATA_KEPT_MS, so that a service slower than each of them is patient still
 * serves them. Such an answer `is_kept`, and may be from before a pause; who does not like it asks
 * again, and gets a new one. One at a time. */
struct metadata_check;
typedef void metadata_check_done(void *user, int status, const struct metadata *metadata,
				 bool is_kept);
struct metadata_check *metadata_service_check(struct metadata_service *service,
					      metadata_check_done *on_done, void *user);
void metadata_check_cancel(struct metadata_check *check);
void metadata_check_leave(struct metadata_check *check);
/* Nobody waits for a look any more. The service frees itself once the loop has closed it. */
void metadata_service_close(struct metadata_service *service);
/* Nothing is planned or under way. */
bool metadata_service_is_at_rest(const struct metadata_service *service);

#endif
