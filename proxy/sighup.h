/*
 * What SIGHUP does: the access log is opened anew by its path, so that it can be moved away before,
 * and certificates are read again. It ends nothing, with or without these. A log that cannot be
 * opened leaves the file that was written to before in use, and the log and the metrics say so.
 */
#ifndef PROXY_SIGHUP_H
#define PROXY_SIGHUP_H

#include "lib/err.h"
#include "lib/tls/tls_reload.h"
#include "proxy/relay/access_log.h"

struct sighup {
	struct loop *loop;
	uv_signal_t signal;
	struct job job;
	const char *path; /* of the access log; NULL: there is none, or it is not a file of ours */
	struct access_sink *sink;
	int *log_fd; /* what it is written to */
	struct tls_reload *certificates; /* NULL: no TLS */
	struct err err;
	int status, fresh; /* of the opening under way */
	bool again, closing;
	_Atomic uint64_t reopened, failed;
};

/* Opens the file for the access log at the start; waits for the reader of a pipe. Fills err. */
int sighup_open_log(const char *path, struct err *err) NODISCARD;

/* Its handle; before anything else is opened. */
void sighup_open(struct sighup *sighup, struct loop *loop);
/* Listens to the signal from now on. Everything is borrowed. */
void sighup_start(struct sighup *sighup, const char *path, struct access_sink *sink, int *log_fd,
		  struct tls_reload *certificates);
void sighup_close(struct sighup *sighup);
int sighup_write_metrics(struct buf *b, const struct sighup *sighup) NODISCARD;

#endif
