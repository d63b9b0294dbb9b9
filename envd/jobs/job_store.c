#include "envd/jobs/job_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "envd/jobs/keeper_image.h"
#include "envd/limits.h"
#include "lib/log.h"
#include "lib/process/pidfd.h"

/* Holes are of whole blocks of the file system. */
#define HOLE_ALIGNMENT (64 * 1024)

static const char *const file_names[] = {".record", "record", "status", "stdout",
					 "stderr",  "input",  "order"};

const char *job_stream_name(enum job_stream stream)
{
	return stream == JOB_STDOUT ? "stdout" : "stderr";
}

const char *job_store_path(const struct job_store *store, const char *id, const char *name,
			   char room[JOB_STORE_PATH_BYTES])
{
	snprintf(room, JOB_STORE_PATH_BYTES, "%s/%s%s%s", store->directory, id, *name ? "/" : "",
		 name);
	return room;
}

int job_store_open_file(const struct job_store *store, const char *id, const char *name, int flags)
{
	char path[JOB_STORE_PATH_BYTES];
	int fd;

	/* Whoever may write here, such as a job of the same user, may have put a FIFO in its place,
	 * which would keep whoever opens it waiting. What is made new goes to commands as it is. */
	if (!(flags & O_EXCL))
		flags |= O_NONBLOCK;
	fd = open(job_store_path(store, id, name, path), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? -errno : fd;
}

/* ---- the store ---- */

void job_store_init(struct job_store *store, const char *directory)
{
	*store = (struct job_store){
		.directory = xstrdup(directory), .lock_fd = -1, .keeper_fd = -1};
	pthread_mutex_init(&store->opening, NULL);
}

void job_store_fini(struct job_store *store)
{
	close_fd(&store->lock_fd);
	close_fd(&store->keeper_fd);
	pthread_mutex_destroy(&store->opening);
	free(store->directory);
	store->directory = NULL;
}

bool job_store_exists(const struct job_store *store)
{
	return access(store->directory, F_OK) == 0;
}

static int make_directories(const char *directory)
{
	char path[JOB_STORE_PATH_BYTES];
	size_t len = strlen(directory), i;

	if (len >= sizeof(path))
		return -ENAMETOOLONG;
	memcpy(path, directory, len + 1);
	for (i = 1; i <= len; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		path[i] = '\0';
		/* Inputs and webhook keys are nobody's business but the owner's. */
		if (mkdir(path, i == len ? 0700 : 0755) < 0 && errno != EEXIST)
			return -errno;
		path[i] = '/';
	}
	return 0;
}

/* Somebody else may have made it first, where everybody may write. */
static int check_owner(const char *directory)
{
	struct stat about;

	if (stat(directory, &about) < 0)
		return -errno;
	if (!S_ISDIR(about.st_mode))
		return -ENOTDIR;
	return about.st_uid == geteuid() ? 0 : -EPERM;
}

/* What a killed envd had just cloned holds its lock, too, until it is what it was cloned for. */
static int lock_store(int fd)
{
	int64_t until = monotonic_ms() + START_AGAIN_MS;
	int status;

	do {
		status = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
	} while (status == -EWOULDBLOCK && monotonic_ms() < until &&
		 usleep(START_AGAIN_PAUSE_US) == 0);
	return status;
}

/* The directory may have been removed with all that was in it; a new one is as good. */
static bool is_open(const struct job_store *store)
{
	struct stat about;

	return store->lock_fd >= 0 && fstat(store->lock_fd, &about) == 0 && about.st_nlink > 0;
}

static int open_lock(const char *path, const char *directory, int *ret_fd, struct err *err)
{
	auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	int status;

	/* What is on a disk that can only be read can still be told. */
	if (fd < 0 && errno == EROFS) {
		fd = open(path, O_RDONLY | O_CLOEXEC);
		errno = fd < 0 ? EROFS : 0;
	}
	status = fd < 0 ? -errno : lock_store(fd);

	if (status == -EWOULDBLOCK)
		return err_set(err, ERR_UNAVAILABLE,
			       "%s belongs to another envd that is running (see -jobs-dir)",
			       directory);
	if (status < 0)
		return err_set_sys(err, err_kind_from_errno(status), status, "%s", path);
	*ret_fd = take_fd(&fd);
	return 0;
}

static int open_store(struct job_store *store, struct err *err)
{
	char path[JOB_STORE_PATH_BYTES];
	int status, fd = -1;

	if (is_open(store))
		return 0;
	status = make_directories(store->directory);
	if (status == 0)
		status = check_owner(store->directory);
	if (status < 0)
		return err_set_sys(err, err_kind_from_errno(status), status, "%s",
				   store->directory);
	status = open_lock(job_store_path(store, "lock", "", path), store->directory, &fd, err);
	if (status < 0)
		return status;
	close_fd(&store->lock_fd);
	store->lock_fd = fd;
	if (store->keeper_fd < 0)
		store->keeper_fd = keeper_image_open(store->directory);
	if (store->keeper_fd < 0) {
		status = store->keeper_fd;
		close_fd(&store->lock_fd);
		return err_set_sys(err, ERR_UNAVAILABLE, status, "the keeper of jobs");
	}
	return 0;
}

int job_store_open(struct job_store *store, struct err *err)
{
	int status;

	pthread_mutex_lock(&store->opening);
	status = open_store(store, err);
	pthread_mutex_unlock(&store->opening);
	return status;
}

void job_store_boot_id(char text[JOB_BOOT_ID_BYTES])
{
	auto_close int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t len = fd < 0 ? 0 : read(fd, text, JOB_BOOT_ID_BYTES - 1);

	while (len > 0 && text[len - 1] == '\n')
		len--;
	text[len > 0 ? len : 0] = '\0';
}

uint64_t job_store_disk_room(const struct job_store *store)
{
	struct statvfs about;

	if (statvfs(store->directory, &about) < 0 || about.f_blocks == 0)
		return UINT64_MAX;
	/* As an ordinary user sees it, who most jobs are. */
	return (uint64_t)about.f_bavail * about.f_frsize;
}

/* ---- one job's files ---- */

int job_store_write(int fd, struct str text, uint64_t *taken)
{
	while (text.len > 0) {
		ssize_t written = write(fd, text.p, text.len);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return written < 0 ? -errno : -ENOSPC;
		str_skip(&text, (size_t)written);
		*taken += (uint64_t)written;
	}
	return 0;
}

int job_store_save(const struct job_store *store, const char *id, struct str text)
{
	char path[JOB_STORE_PATH_BYTES], temporary[JOB_STORE_PATH_BYTES];
	auto_close int fd = job_store_open_file(store, id, ".record", O_WRONLY | O_CREAT | O_TRUNC);
	uint64_t taken = 0;
	int status;

	if (fd < 0)
		return fd;
	(void)job_store_path(store, id, ".record", temporary);
	status = job_store_write(fd, text, &taken);
	if (status < 0) {
		unlink(temporary);
		return status;
	}
	return rename(temporary, job_store_path(store, id, "record", path)) < 0 ? -errno : 0;
}

void job_files_close(struct job_files *files)
{
	close_fd(&files->status);
	close_fd(&files->input);
	close_fd(&files->outputs[JOB_STDOUT]);
	close_fd(&files->outputs[JOB_STDERR]);
}

static int open_new(const struct job_store *store, const char *id, const char *name, int flags,
		    int *ret_fd)
{
	int fd = job_store_open_file(store, id, name, flags | O_CREAT | O_EXCL);

	if (fd < 0)
		return fd;
	/* A child's 0, 1, 2 are made from these. */
	if (fd <= 2) {
		*ret_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		close(fd);
		return *ret_fd < 0 ? -errno : 0;
	}
	*ret_fd = fd;
	return 0;
}

/* Its blocks must exist before a full disk can keep them from it. It is locked until the job has
 * begun. */
static int open_status(const struct job_store *store, const char *id, int *ret_fd)
{
	static const char nothing[JOB_STATUS_BYTES];
	int status = open_new(store, id, "status", O_RDWR, ret_fd);

	if (status == 0 && pwrite(*ret_fd, nothing, sizeof(nothing), 0) != (ssize_t)sizeof(nothing))
		status = errno == EDQUOT ? -EDQUOT : -ENOSPC;
	if (status == 0 && flock(*ret_fd, LOCK_EX | LOCK_NB) < 0)
		status = -errno;
	return status;
}

static bool takes_input(const struct job_record *record)
{
	return record->stdin_mode == JOB_STDIN_PIPE;
}

static bool has_stderr(const struct job_record *record)
{
	return record->output_mode == JOB_OUTPUT_SPLIT && !record->has_terminal;
}

static int open_files(const struct job_store *store, const struct job_record *record,
		      struct job_files *files)
{
	int status = open_status(store, record->id, &files->status);

	if (status == 0)
		status = open_new(store, record->id, "stdout", O_WRONLY | O_APPEND,
				  &files->outputs[JOB_STDOUT]);
	if (status == 0 && has_stderr(record))
		status = open_new(store, record->id, "stderr", O_WRONLY | O_APPEND,
				  &files->outputs[JOB_STDERR]);
	if (status == 0 && takes_input(record))
		status = open_new(store, record->id, "input", O_RDWR | O_APPEND, &files->input);
	return status;
}

int job_store_create(const struct job_store *store, const struct job_record *record,
		     struct job_files *ret_files, struct err *err)
{
	struct job_files files = JOB_FILES_NONE;
	char path[JOB_STORE_PATH_BYTES];
	struct buf text;
	int status;

	buf_init(&text, 2 * JOB_RECORD_BYTES_MAX);
	status = job_record_write(record, &text);
	if (status == 0 && mkdir(job_store_path(store, record->id, "", path), 0700) < 0)
		status = -errno;
	if (status == 0) {
		status = open_files(store, record, &files);
		/* Last, because it makes a job of the folder. */
		if (status == 0)
			status = job_store_save(store, record->id, buf_str(&text));
		if (status < 0)
			job_store_remove(store, record->id);
	}
	buf_fini(&text);
	if (status < 0) {
		bool is_denied = status == -EACCES || status == -EROFS;

		job_files_close(&files);
		return err_set_sys(err, is_denied ? ERR_UNAVAILABLE : ERR_RESOURCE_EXHAUSTED,
				   status, "the job cannot be stored in %s", store->directory);
	}
	*ret_files = files;
	return 0;
}

int job_store_forget(const struct job_store *store, const char *id)
{
	char path[JOB_STORE_PATH_BYTES];

	return unlink(job_store_path(store, id, "record", path)) < 0 && errno != ENOENT ? -errno
											: 0;
}

void job_store_remove(const struct job_store *store, const char *id)
{
	char path[JOB_STORE_PATH_BYTES];

	for (size_t i = 0; i < ARRAY_LENGTH(file_names); i++)
		(void)unlink(job_store_path(store, id, file_names[i], path));
	if (rmdir(job_store_path(store, id, "", path)) < 0 && errno != ENOENT)
		log_warn("jobs", "a job's folder is left", LOG_S("path", path),
			 LOG_S("reason", errno_text(errno)));
}

/* ---- what the keeper says ---- */

static bool is_valid(const void *slot, size_t size, uint64_t magic)
{
	const uint64_t *words = slot;

	return words[0] == magic &&
	       words[size / sizeof(*words) - 1] == job_status_checksum(slot, (unsigned)size);
}

int job_store_read_status(const struct job_store *store, const char *id,
			  struct job_status *ret_status)
{
	auto_close int fd = job_store_open_file(store, id, "status", O_RDONLY);
	_Alignas(8) char bytes[JOB_STATUS_BYTES] = {0};

	*ret_status = (struct job_status){.start.magic = 0};
	if (fd < 0)
		return fd;
	if (pread(fd, bytes, sizeof(bytes), 0) < 0)
		return -errno;
	if (is_valid(bytes + JOB_STATUS_START_AT, sizeof(ret_status->start),
		     JOB_STATUS_START_MAGIC))
		memcpy(&ret_status->start, bytes + JOB_STATUS_START_AT, sizeof(ret_status->start));
	if (is_valid(bytes + JOB_STATUS_END_AT, sizeof(ret_status->end), JOB_STATUS_END_MAGIC))
		memcpy(&ret_status->end, bytes + JOB_STATUS_END_AT, sizeof(ret_status->end));
	memcpy(&ret_status->fed, bytes + JOB_STATUS_FED_AT, sizeof(ret_status->fed));
	memcpy(&ret_status->agent, bytes + JOB_STATUS_AGENT_AT, sizeof(ret_status->agent));
	memcpy(&ret_status->birth, bytes + JOB_STATUS_BIRTH_AT, sizeof(ret_status->birth));
	return 0;
}

int job_store_tell_keeper(const struct job_store *store, const char *id, size_t at,
			  const void *data, size_t size)
{
	auto_close int fd = job_store_open_file(store, id, "status", O_WRONLY);

	if (fd < 0)
		return fd;
	return pwrite(fd, data, size, JOB_STATUS_AGENT_AT + (off_t)at) < 0 ? -errno : 0;
}

pid_t job_status_keeper(int status_fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	if (fcntl(status_fd, F_GETLK, &lock) < 0 || lock.l_type == F_UNLCK)
		return 0;
	return lock.l_pid;
}

/* The kernel says who holds the lock, so this is the keeper and nobody who got its number later;
 * asked again after the descriptor was opened. */
pid_t job_store_find_keeper(const struct job_store *store, const char *id, int *ret_pidfd)
{
	auto_close int fd = job_store_open_file(store, id, "status", O_RDONLY);
	pid_t keeper = fd < 0 ? 0 : job_status_keeper(fd);

	*ret_pidfd = -1;
	if (!keeper)
		return 0;
	*ret_pidfd = pidfd_of(keeper);
	if (job_status_keeper(fd) == keeper)
		return keeper;
	close_fd(ret_pidfd);
	return 0;
}

void job_store_wake_keeper(const struct job_store *store, const char *id)
{
	auto_close int pidfd = -1;
	pid_t keeper = job_store_find_keeper(store, id, &pidfd);

	if (pidfd >= 0)
		(void)pidfd_signal(pidfd, JOB_KEEPER_SIGNAL);
	else if (keeper)
		(void)kill(keeper, JOB_KEEPER_SIGNAL);
}

bool job_status_apply_end(const struct job_status *status, struct job_record *record)
{
	const struct job_status_end *end = &status->end;

	if (status->start.magic) {
		record->pid = status->start.leader_pid;
		/* Told before, it stays what it was. */
		if (!record->exit.started_ms)
			record->exit.started_ms = status->start.started_ms;
	}
	if (status->agent.stop_requested_ms) {
		record->stop_requested_ms = status->agent.stop_requested_ms;
		record->stop_due_ms = status->agent.stop_due_ms;
		record->stop_has_terminated = status->agent.has_terminated;
	}
	record->output_incomplete |= status->agent.is_output_incomplete != 0;
	if (status->agent.cols && status->agent.rows)
		record->size = (struct terminal_size){status->agent.cols, status->agent.rows};
	if (!end->magic)
		return false;
	record->exit.exited = end->exited;
	record->exit.code = end->code;
	record->exit.signal = end->signal;
	record->exit.core_dumped = end->core_dumped;
	record->exit.user_us = end->user_us;
	record->exit.system_us = end->system_us;
	record->exit.peak_rss_bytes = end->peak_rss_bytes;
	record->exit.ended_ms = end->ended_ms;
	record->ended_steady_ms = end->ended_steady_ms;
	record->exit.timed_out = record->wall_time_ms && status->start.magic &&
				 end->ended_steady_ms - status->start.started_steady_ms >=
					 (int64_t)record->wall_time_ms;
	if (end->log_lost_bytes)
		record->output_incomplete = true;
	record->has_exit = true;
	return true;
}

/* ---- output ---- */

int job_extent_of(int fd, struct job_extent *ret_extent)
{
	struct stat about;
	off_t first;

	if (fstat(fd, &about) < 0)
		return -errno;
	*ret_extent = (struct job_extent){.oldest = 0, .end = (uint64_t)about.st_size};
	/* Nothing but the cap makes holes in a file that is only appended to. */
	first = lseek(fd, 0, SEEK_DATA);
	if (first > 0)
		ret_extent->oldest = (uint64_t)first;
	else if (first < 0 && errno == ENXIO)
		ret_extent->oldest = ret_extent->end;
	return 0;
}

void job_store_extents(const struct job_store *store, const char *id,
		       struct job_extent extents[JOB_STREAMS], uint64_t *ret_stored_bytes)
{
	char path[JOB_STORE_PATH_BYTES];
	struct stat order;

	*ret_stored_bytes = 0;
	for (int i = 0; i < JOB_STREAMS; i++) {
		int fd = job_store_open_file(store, id, job_stream_name((enum job_stream)i),
					     O_RDONLY);
		struct stat about;

		extents[i] = (struct job_extent){0, 0};
		if (fd < 0)
			continue;
		if (job_extent_of(fd, &extents[i]) == 0 && fstat(fd, &about) == 0)
			*ret_stored_bytes += (uint64_t)about.st_blocks * 512;
		close(fd);
	}
	if (lstat(job_store_path(store, id, "order", path), &order) == 0)
		*ret_stored_bytes += (uint64_t)order.st_blocks * 512;
}

int job_store_cap(const struct job_store *store, const char *id, enum job_stream stream,
		  uint64_t keep)
{
	auto_close int fd = job_store_open_file(store, id, job_stream_name(stream), O_RDWR);
	struct job_extent extent;
	uint64_t upto;
	int status;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	status = job_extent_of(fd, &extent);
	if (status < 0 || extent.end - extent.oldest <= keep)
		return status;
	upto = (extent.end - keep) / HOLE_ALIGNMENT * HOLE_ALIGNMENT;
	if (upto <= extent.oldest)
		return 0;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)upto) < 0)
		return -errno;
	return 0;
}

bool job_store_can_cap(const struct job_files *files)
{
	return fallocate(files->outputs[JOB_STDOUT], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			 HOLE_ALIGNMENT) == 0 ||
	       errno != EOPNOTSUPP;
}
