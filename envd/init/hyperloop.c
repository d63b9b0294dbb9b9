#include "envd/init/hyperloop.h"

#include <arpa/inet.h>

#include "envd/init/hosts_file.h"
#include "lib/err.h"
#include "lib/log.h"

#define HOSTS_PATH "/etc/hosts"
#define EVENTS_NAME "events.e2b.local"

static void start(struct hyperloop *hyperloop);

static void write_hosts(struct job *job)
{
	struct hyperloop *hyperloop = container_of(job, struct hyperloop, job);

	hyperloop->status = hosts_file_set(hyperloop->hosts_path, hyperloop->address, EVENTS_NAME);
}

static void warn(int status)
{
	log_warn("envd", "the hosts file cannot be changed", LOG_S("error", errno_text(status)));
}

static void on_written(struct job *job)
{
	struct hyperloop *hyperloop = container_of(job, struct hyperloop, job);

	if (hyperloop->status < 0)
		warn(hyperloop->status);
	start(hyperloop);
}

static void start(struct hyperloop *hyperloop)
{
	int status;

	if (!hyperloop->next[0] || hyperloop->job.active)
		return;
	memcpy(hyperloop->address, hyperloop->next, sizeof(hyperloop->address));
	hyperloop->next[0] = '\0';
	status = job_run(hyperloop->loop, &hyperloop->job, JOB_QUICK, write_hosts, on_written);
	if (status < 0)
		warn(status);
}

void hyperloop_init(struct hyperloop *hyperloop, struct loop *loop)
{
	*hyperloop = (struct hyperloop){.loop = loop, .hosts_path = HOSTS_PATH};
}

void hyperloop_set(struct hyperloop *hyperloop, const char *address,
		   struct environment *environment)
{
	bool is_v6 = strchr(address, ':') != NULL;
	char url[sizeof("http://[]") + INET6_ADDRSTRLEN];
	struct in6_addr parsed;

	if (inet_pton(is_v6 ? AF_INET6 : AF_INET, address, &parsed) != 1) {
		log_warn("envd", "hyperloopIP is not an address");
		return;
	}
	snprintf(url, sizeof(url), is_v6 ? "http://[%s]" : "http://%s", address);
	environment_set_internal(environment, "E2B_EVENTS_ADDRESS", url);
	snprintf(hyperloop->next, sizeof(hyperloop->next), "%s", address);
	start(hyperloop);
}
