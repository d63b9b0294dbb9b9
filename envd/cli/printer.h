/*
 * What a command says, on its way to this program's own descriptors. Who reads them may stop
 * reading, which blocks whoever writes: so a worker writes, one piece after the other, and the loop
 * goes on with signals and keys. What comes meanwhile is kept, in its order; its source is to be
 * held back while printer_is_busy, so that it is no more than had arrived already.
 */
#ifndef ENVD_CLI_PRINTER_H
#define ENVD_CLI_PRINTER_H

#include "lib/buf.h"
#include "lib/job.h"

struct printer {
	struct loop *loop;
	struct job job;
	struct buf waiting, writing; /* pieces, each behind its head */
	bool busy;
	int failed; /* the worker's; what becomes of it: */
	int error; /* an errno: the rest was not written, and nothing is any more; 0: none */
	/* Everything there was has been written, or error says why not. */
	void (*on_written)(struct printer *printer);
};

void printer_init(struct printer *printer, struct loop *loop,
		  void (*on_written)(struct printer *printer));
/* Copies the bytes. on_written comes later, also when they could not be taken. */
void printer_write(struct printer *printer, int fd, const void *data, size_t len);
bool printer_is_busy(const struct printer *printer);
/* Bytes that nobody has begun to write. */
size_t printer_waiting(const struct printer *printer);

#endif
