#include "envd/jobs/job_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/limits.h"

#define HOLE_ALIGNMENT (64 * 1024)

static int store_data(int fd, const struct job_status *status, struct job_input_write *write)
{
	struct str data = write->data;
	uint64_t skip, waiting;
	struct stat about;

	if (fstat(fd, &about) < 0)
		return -errno;
	write->taken = (uint64_t)about.st_size;
	write->is_closed = status->agent.is_input_closed;
	if (write->offset > write->taken)
		return -ERANGE;
	skip = write->taken - write->offset;
	skip = skip < data.len ? skip : data.len;
	str_skip(&data, (size_t)skip);
	if (write->has_ended) {
		write->is_closed = true;
		return data.len > 0 ? -ESHUTDOWN : 0;
	}
	if (data.len > 0 && write->is_closed)
		return -EBADF;
	if (data.len > 0 && status->fed.is_broken)
		return -EPIPE;
	waiting = write->taken > status->fed.fed ? write->taken - status->fed.fed : 0;
	if (waiting + data.len > (uint64_t)JOB_STDIN_BYTES_MAX)
		data.len = waiting < (uint64_t)JOB_STDIN_BYTES_MAX
				   ? (size_t)(JOB_STDIN_BYTES_MAX - waiting)
				   : 0;
	/* Not all file systems can. */
	if (status->fed.fed >= HOLE_ALIGNMENT)
		(void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
				 (off_t)(status->fed.fed / HOLE_ALIGNMENT * HOLE_ALIGNMENT));
	return job_store_write(fd, data, &write->taken);
}

static int store_and_close(const struct job_store *store, const char *id,
			   struct job_input_write *write)
{
	auto_close int fd = job_store_open_file(store, id, "input", O_RDWR | O_APPEND);
	struct job_status status;
	const uint64_t yes = 1;
	int result;

	if (fd < 0)
		return fd;
	result = job_store_read_status(store, id, &status);
	if (result == 0)
		result = store_data(fd, &status, write);
	if (result < 0 || !write->closes || write->is_closed ||
	    write->taken != write->offset + write->data.len)
		return result;
	result = job_store_tell_keeper(
		store, id, offsetof(struct job_status_agent, is_input_closed), &yes, sizeof(yes));
	write->is_closed = result == 0;
	return result;
}

int job_input_store(const struct job_store *store, const char *id, struct job_input_write *write)
{
	int status = store_and_close(store, id, write);

	/* Here and not when envd hears of it, which may be ending just now. */
	job_store_wake_keeper(store, id);
	return status;
}
