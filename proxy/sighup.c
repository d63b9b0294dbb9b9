#include "proxy/sighup.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "lib/log.h"

static int open_log(const char *path, int flags, struct err *err)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | flags, 0640);

	return fd < 0 ? err_set_sys(err, ERR_INVALID_ARGUMENT, errno, "open %s", path) : fd;
}

int sighup_open_log(const char *path, struct err *err)
{
	return open_log(path, 0, err);
}

/* ---- one opening ---- */

static void reopen(struct job *job)
{
	struct sighup *sighup = container_of(job, struct sighup, job);
	int former;

	sighup->fresh = open_log(sighup->path, O_NONBLOCK, &sighup->err);
	sighup->status = sighup->fresh < 0 ? sighup->fresh : 0;
	if (sighup->status < 0)
		return;
	former = access_sink_replace(sighup->sink, sighup->fresh);
	close_fd(&former);
}

static void start(struct sighup *sighup);

static void on_reopened(struct job *job)
{
	struct sighup *sighup = container_of(job, struct sighup, job);

	if (sighup->status == 0) {
		*sighup->log_fd = sighup->fresh;
		counter_add(&sighup->reopened);
		log_info("proxy", "access log opened anew");
	} else {
		counter_add(&sighup->failed);
		log_error("proxy", "access log cannot be opened anew, going on with the old file",
			  LOG_S("error", sighup->err.message));
	}
	if (sighup->again && !sighup->closing)
		start(sighup);
}

static void start(struct sighup *sighup)
{
	/* The job under way may have opened the file before it was moved away, so another one
	 * follows. */
	sighup->again = sighup->job.active;
	if (sighup->again)
		return;
	/* Once it is queued its fields are the job's. */
	if (job_run(sighup->loop, &sighup->job, JOB_QUICK, reopen, on_reopened) == 0)
		return;
	sighup->status = err_set(&sighup->err, ERR_UNAVAILABLE, "too much is going on");
	on_reopened(&sighup->job);
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct sighup *sighup = container_of(handle, struct sighup, signal);

	(void)number;
	if (sighup->path)
		start(sighup);
	if (sighup->certificates)
		tls_reload_now(sighup->certificates, NULL, NULL);
}

/* ---- life ---- */

void sighup_open(struct sighup *sighup, struct loop *loop)
{
	memset(sighup, 0, sizeof(*sighup));
	sighup->loop = loop;
	uv_signal_init(&loop->uv, &sighup->signal);
}

void sighup_start(struct sighup *sighup, const char *path, struct access_sink *sink, int *log_fd,
		  struct tls_reload *certificates)
{
	sighup->path = path;
	sighup->sink = sink;
	sighup->log_fd = log_fd;
	sighup->certificates = certificates;
	uv_signal_start(&sighup->signal, on_signal, SIGHUP);
}

void sighup_close(struct sighup *sighup)
{
	sighup->closing = true;
	uv_close((uv_handle_t *)&sighup->signal, NULL);
}

int sighup_write_metrics(struct buf *b, const struct sighup *sighup)
{
	return buf_printf(
		b,
		"# HELP proxy_access_log_reopened_total Times the access log was opened anew.\n"
		"# TYPE proxy_access_log_reopened_total counter\n"
		"proxy_access_log_reopened_total %llu\n"
		"# HELP proxy_access_log_reopen_failures_total Times it could not be, and the old "
		"file stayed in use.\n"
		"# TYPE proxy_access_log_reopen_failures_total counter\n"
		"proxy_access_log_reopen_failures_total %llu\n",
		(unsigned long long)counter_read(&sighup->reopened),
		(unsigned long long)counter_read(&sighup->failed));
}
