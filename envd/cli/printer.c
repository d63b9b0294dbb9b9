#include "envd/cli/printer.h"

#include <errno.h>
#include <string.h>

#include "envd/cli/print.h"
#include "envd/limits.h"

struct piece {
	int fd;
	size_t len;
};

static void write_pieces(struct job *job)
{
	struct printer *printer = container_of(job, struct printer, job);
	struct piece piece;

	while (buf_length(&printer->writing) > 0 && !printer->failed) {
		memcpy(&piece, buf_data(&printer->writing), sizeof(piece));
		buf_consume(&printer->writing, sizeof(piece));
		if (!print_bytes(piece.fd, buf_data(&printer->writing), piece.len))
			printer->failed = errno;
		buf_consume(&printer->writing, piece.len);
	}
}

static void write_waiting(struct printer *printer);

static void on_pieces_written(struct job *job)
{
	struct printer *printer = container_of(job, struct printer, job);

	printer->busy = false;
	if (printer->failed)
		printer->error = printer->failed;
	buf_clear(&printer->writing);
	if (buf_length(&printer->waiting) > 0 && !printer->error)
		write_waiting(printer);
	else
		printer->on_written(printer);
}

static void write_waiting(struct printer *printer)
{
	struct buf written = printer->writing;

	printer->writing = printer->waiting;
	printer->waiting = written;
	printer->busy = true;
	/* It touches no file system of the sandbox, and one thread of the pool reads the input at
	 * most. */
	if (job_run(printer->loop, &printer->job, JOB_QUICK, write_pieces, on_pieces_written) < 0) {
		write_pieces(&printer->job);
		on_pieces_written(&printer->job);
	}
}

void printer_init(struct printer *printer, struct loop *loop,
		  void (*on_written)(struct printer *printer))
{
	*printer = (struct printer){.loop = loop, .on_written = on_written};
	buf_init(&printer->waiting, RPC_REPLY_BYTES_MAX);
	buf_init(&printer->writing, RPC_REPLY_BYTES_MAX);
}

void printer_write(struct printer *printer, int fd, const void *data, size_t len)
{
	struct piece piece = {fd, len};
	char *room;

	if (printer->error)
		return;
	if (buf_reserve(&printer->waiting, sizeof(piece) + len, &room) == 0) {
		memcpy(room, &piece, sizeof(piece));
		memcpy(room + sizeof(piece), data, len);
		buf_commit(&printer->waiting, sizeof(piece) + len);
	} else {
		printer->error = ENOBUFS;
	}
	if (!printer->busy)
		write_waiting(printer);
}

bool printer_is_busy(const struct printer *printer)
{
	return printer->busy;
}

size_t printer_waiting(const struct printer *printer)
{
	return buf_length(&printer->waiting);
}
