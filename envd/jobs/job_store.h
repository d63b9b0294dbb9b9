/*
 * Jobs on disk, as blocking functions. One folder for each in the store's directory:
 *
 *   record           what is known (job_record.h), replaced as a whole
 *   status           what its keeper writes (job_status.h)
 *   stdout, stderr   the output, appended to by the job itself; a MERGED job and a terminal have
 *                    only stdout. What a cap has dropped is a hole at the front.
 *   input            what WriteStdin has stored; what was handed on is a hole
 *   order            which of the two outputs grew when (struct job_mark, below); not every job
 *                    has one
 *
 * A folder without a record is what is left of a deletion, or of a creation that failed.
 */
#ifndef ENVD_JOBS_JOB_STORE_H
#define ENVD_JOBS_JOB_STORE_H

#include <pthread.h>

#include "envd/jobs/job_record.h"
#include "envd/jobs/job_status.h"
#include "lib/process/child.h"
#include "lib/err.h"

struct job_store {
	char *directory;
	pthread_mutex_t opening; /* several jobs may be the first */
	int lock_fd; /* held as long as this envd lives; -1: not open */
	int keeper_fd; /* the keeper's program */
};

/* What a job that starts is given. -1: not there. */
struct job_files {
	int status, input;
	int outputs[JOB_STREAMS];
};

/* More than the 4 KiB that the kernel takes, so that it is the one to refuse what is too long. */
#define JOB_STORE_PATH_BYTES 4608
#define JOB_FILES_NONE \
	{ \
		-1, -1, \
		{ \
			-1, -1 \
		} \
	}

struct job_status {
	struct job_status_start start; /* magic 0: not valid */
	struct job_status_end end;
	struct job_status_fed fed;
	struct job_status_agent agent;
	struct child_birth birth; /* pid 0: there is none */
};

struct job_extent {
	uint64_t oldest, end; /* offsets; oldest is where what is kept begins */
};

/* One job of an earlier envd. */
struct job_found {
	struct job_record record; /* a copy, to be taken over */
	pid_t keeper; /* 0: gone */
	int pidfd; /* of the keeper; -1: gone, or the kernel has none */
	/* since it was started, by a clock that nobody sets; for one that runs */
	int64_t elapsed_ms;
	bool is_changed; /* the record says more than the file */
	uint64_t stored_bytes;
};

void job_store_init(struct job_store *store, const char *directory);
void job_store_fini(struct job_store *store);
/* Makes the directory, and takes it for this envd alone: unavailable when another one has it. */
int job_store_open(struct job_store *store, struct err *err) NODISCARD;
/* There is something to be read; false without making anything. */
bool job_store_exists(const struct job_store *store);
void job_store_boot_id(char text[JOB_BOOT_ID_BYTES]);

/* Folder, record and files of a new job. After a failure nothing is left. */
int job_store_create(const struct job_store *store, const struct job_record *record,
		     struct job_files *ret_files, struct err *err) NODISCARD;
void job_files_close(struct job_files *files);
/* All of it, to the end of what was written. */
int job_store_write(int fd, struct str text, uint64_t *taken) NODISCARD;
int job_store_save(const struct job_store *store, const char *id, struct str text) NODISCARD;
void job_store_remove(const struct job_store *store, const char *id);
/* Its record alone, which makes a job of the folder: what is left is removed by whoever finds it. 0
 * also when there is none. */
int job_store_forget(const struct job_store *store, const char *id) NODISCARD;
/* Of a file of a job, or with an empty name of its folder. */
const char *job_store_path(const struct job_store *store, const char *id, const char *name,
			   char room[JOB_STORE_PATH_BYTES]);
/* A file of a job. The descriptor, or a negative errno. */
int job_store_open_file(const struct job_store *store, const char *id, const char *name,
			int flags) NODISCARD;
const char *job_stream_name(enum job_stream stream);

int job_store_read_status(const struct job_store *store, const char *id,
			  struct job_status *ret_status) NODISCARD;
/* Into envd's slot of the status file, at this offset of struct job_status_agent. */
int job_store_tell_keeper(const struct job_store *store, const char *id, size_t at,
			  const void *data, size_t size) NODISCARD;
/* Who holds the lock on an open status file: the keeper. 0: nobody. */
pid_t job_status_keeper(int status_fd);
/* The keeper of a job, and a descriptor of it (-1: the kernel has none). 0: gone. */
pid_t job_store_find_keeper(const struct job_store *store, const char *id,
			    int *ret_pidfd) NODISCARD;
/* There is something new for it: input, or in envd's slot. */
void job_store_wake_keeper(const struct job_store *store, const char *id);
/* The end, if the status has one, into the record. */
bool job_status_apply_end(const struct job_status *status, struct job_record *record);

/*
 * The stored input. Its file's length is how much was taken, so a write that was cut off can be
 * sent again by its offset, also to another envd; what the keeper has handed on is given back to
 * the disk. One at a time for each job.
 */
struct job_input_write {
	uint64_t offset;
	struct str data;
	bool closes;
	bool has_ended; /* the job: it takes nothing more, but what it took may be sent again */
	/* Results. */
	uint64_t taken; /* the length after it */
	bool is_closed;
};

/* 0, with less taken when JOB_STDIN_BYTES_MAX are waiting already. -ERANGE: the offset is beyond
 * what was taken; -EPIPE: nobody reads; -EBADF: closed before, and there is more; -ESHUTDOWN: the
 * job has ended, and there is more; or what the disk says. */
int job_input_store(const struct job_store *store, const char *id,
		    struct job_input_write *write) NODISCARD;

/* The extent of an open output. */
int job_extent_of(int fd, struct job_extent *ret_extent) NODISCARD;
/* Both, and what they take on the disk. */
void job_store_extents(const struct job_store *store, const char *id,
		       struct job_extent extents[JOB_STREAMS], uint64_t *ret_stored_bytes);
/* Drops the oldest bytes of a stream beyond `keep`. 0, or a negative errno (the file system
 * cannot). */
int job_store_cap(const struct job_store *store, const char *id, enum job_stream stream,
		  uint64_t keep) NODISCARD;
/* Whether that will work, by the new and empty files. */
bool job_store_can_cap(const struct job_files *files);
/* Bytes that can still be written; UINT64_MAX: nobody knows. */
uint64_t job_store_disk_room(const struct job_store *store);

/*
 * In which order the two streams have grown, as far as looks at them can tell: the file `order`, so
 * that it is also known to the next envd and long after. A mark says how far both had come; from
 * one mark to the next, all bytes of one stream come before all of the other. Where there is no
 * mark, nothing is known.
 */
struct job_mark {
	uint64_t ends[JOB_STREAMS];
	enum job_stream first; /* of what came since the mark before */
};

/* Of who writes; all zero at first. */
struct job_order {
	struct job_mark before, last;
	uint64_t count; /* of marks, with `last` */
	bool is_loaded;
};

/* What a look has found, and which stream had grown first since the last one. The file is made when
 * both have grown; it holds JOB_ORDER_MARKS_MAX, of which every other one is dropped when they are
 * reached. A disk that takes none costs nothing but the order. */
void job_order_note(struct job_order *order, const struct job_store *store, const char *id,
		    const uint64_t ends[JOB_STREAMS], enum job_stream first);
/* The first mark beyond these offsets, in the open file. False: none is. */
bool job_order_find(int fd, const uint64_t offsets[JOB_STREAMS],
		    struct job_mark *ret_mark) NODISCARD;

/* All jobs of earlier envds, in no order. *ret_count of them; free() the array. What is left of a
 * job whose keeper is gone is killed. `cgroups` may be NULL. */
struct job_found *job_store_load(const struct job_store *store, struct cgroups *cgroups,
				 size_t *ret_count);
/* Nobody is left who would keep it, so it does not go on. False when nothing of it was found. */
bool job_kill_orphan(const struct job_status_start *start, struct cgroups *cgroups,
		     struct cgroup_place place);

#endif
