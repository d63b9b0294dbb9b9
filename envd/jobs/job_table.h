/*
 * All background jobs of one envd. A job is in memory from its creation to its deletion (its
 * record; about a kibibyte), on disk as job_store.h says, and while it runs it has a struct
 * job_life besides. Loop thread only; what blocks goes through lib/job.h.
 *
 * Life: PENDING until the exec has happened; who created it waits for that, and a job that cannot
 * be started is gone again. RUNNING. Then one of the ends, for good. Its processes belong to its
 * keeper and not to envd: when envd ends, in order or not, they go on, and the next envd adopts
 * them.
 *
 * Changes are numbered. The list `changes` holds every job once, at the place of its last change,
 * and what was deleted; so who watches needs nothing but the number it has seen.
 */
#ifndef ENVD_JOBS_JOB_TABLE_H
#define ENVD_JOBS_JOB_TABLE_H

#include "envd/jobs/job_store.h"
#include "envd/limits.h"
#include "lib/process/reaper.h"
#include "envd/process/spawn.h"
#include "lib/hash_table.h"
#include "lib/job.h"

struct background_job;
struct job_life;
struct job_ports;
struct job_searches;
struct job_sweep;
struct job_watch;

struct job_table_settings {
	struct loop *loop;
	const struct sandbox *sandbox;
	const struct spawn_settings *spawn;
	struct reaper *reaper;
	const char *directory; /* borrowed until job_table_new returns */
	/* Of ended jobs; 0: what envd/limits.h says. */
	uint64_t ended_max, ended_age_s, ended_bytes;
	/* Every time a job runs. May be NULL. */
	void (*on_started)(void *user);
	void *on_started_user;
	/* Once for each job with a webhook that has ended and was not told yet. May be NULL. */
	void (*on_webhook)(struct background_job *job, void *user);
	void *on_webhook_user;
};

/* One line of the list of changes. */
struct job_change {
	struct list_node node;
	uint64_t revision;
	bool is_deletion; /* then it is a struct job_deletion, otherwise part of a background_job */
};

struct job_deletion {
	struct job_change change;
	char id[JOB_ID_BYTES];
};

struct job_table {
	struct job_table_settings settings;
	struct loop *loop;
	struct job_store store;
	char boot_id[JOB_BOOT_ID_BYTES];
	struct list_node all; /* newest first */
	struct list_node ended; /* oldest end first */
	struct hash_table ids, keys;
	size_t count, running_count, ended_count;
	uint64_t next_sequence, stored_bytes;
	size_t webhooks_busy;
	struct list_node webhooks_waiting, webhooks_active; /* of jobs_service_webhook.c */
	bool is_resolving; /* the name of one */
	struct job_ports *ports; /* of job_ports.c; NULL: nobody waits for one */
	size_t reader_count, wait_count, watcher_count;

	struct list_node changes; /* oldest first */
	uint64_t revision, first_revision; /* of this envd; what is below is another's */
	uint64_t forgotten_revision; /* deletions up to here are not told any more */
	size_t deletion_count;
	struct list_node watchers;
	struct later tell_watchers;

	int inotify_fd; /* -1: none; then output is looked at by the clock */
	uv_poll_t inotify;
	struct hash_table watches; /* by their number */
	/* Watches that told of something before their look was back from the pool. */
	int early_watches[JOB_STREAMS * JOBS_RUNNING_MAX];
	size_t early_count;
	uv_timer_t retention_timer, disk_timer;
	struct list_node deletions,
		removals; /* of job_retention.c: asked for, and those nobody waits for */
	struct job_sweep *sweep; /* some of them, in the pool; NULL: none */
	unsigned live; /* handles, work, jobs in memory */
	struct job load_job;
	struct job_found *found;
	size_t found_count;
	int load_status;
	struct err load_err;
	struct job disk_job;
	uint64_t disk_room, disk_found; /* bytes; the last seen, and of disk_job */
	bool is_loaded, is_load_owed, is_closed; /* owed: another envd had the directory */
	struct list_node load_waiters;
};

/* Told once the jobs of earlier envds are known; from the loop. */
struct job_load_waiter {
	struct list_node node;
	void (*on_loaded)(struct job_load_waiter *waiter);
};

/* Told of every change of state or output of one job; also when the table closes. */
struct job_listener {
	struct list_node node;
	void (*on_change)(struct job_listener *listener);
};

struct background_job {
	struct job_table *table;
	struct job_record record;
	struct list_node all, ended;
	struct hash_node by_id, by_key;
	struct job_change change;
	unsigned holds;
	bool is_removed; /* not in the table any more */
	struct job_life *run; /* NULL unless PENDING or RUNNING */
	struct list_node listeners;
	struct job_extent extents[JOB_STREAMS]; /* last seen */
	uint64_t stored_bytes;
	bool is_saving, is_save_owed;
	struct job_searches *searches; /* of job_search.c; NULL: nobody waits for a pattern */
	bool is_webhook_busy, is_writing, is_resizing;
};

struct job_watcher {
	struct list_node node;
	/* There are changes. */
	void (*on_news)(struct job_watcher *watcher);
};

/* Blocks a little (start-up). */
struct job_table *job_table_new(const struct job_table_settings *settings);
/* Begins to read what earlier envds have left, in the pool. Once; looks at the disk (start-up). */
void job_table_open(struct job_table *table);
/* Forgets the running jobs, which go on, and tells every listener and watcher. The loop then comes
 * to hold nothing of the table. */
void job_table_close(struct job_table *table);
void job_table_free(struct job_table *table);

/* False when it has to be waited for; also when it was not possible before, and may be now. */
bool job_table_is_loaded(struct job_table *table);
void job_table_wait_loaded(struct job_table *table, struct job_load_waiter *waiter);
/* Why the jobs of earlier envds are not known; NULL: they are. */
const struct err *job_table_load_error(const struct job_table *table);

struct background_job *job_table_find(struct job_table *table, struct str id);
struct background_job *job_table_find_key(struct job_table *table, const char *key);
void background_job_hold(struct background_job *job);
void background_job_release(struct background_job *job);
void background_job_listen(struct background_job *job, struct job_listener *listener);
/* Of an ended job: out of the table at once, its files in the pool, after those that wait
 * already. */
void background_job_remove(struct background_job *job);
/* The same for somebody who waits for it, and so before those that nobody waits for. Told once no
 * envd after this one can find the job any more; negative when that was not possible. Also while
 * the table closes. */
void background_job_delete(struct background_job *job, void (*on_removed)(void *user, int status),
			   void *user);
/* Its record to the disk, some time soon. */
void background_job_save(struct background_job *job);
/* Its state or facts have changed. */
void background_job_publish(struct background_job *job);
/* Its output has grown, or anything else that a listener waits for. */
void background_job_tell(struct background_job *job);

void job_table_watch(struct job_table *table, struct job_watcher *watcher);
/* The oldest change after `revision`; NULL: none. */
const struct job_change *job_table_next_change(const struct job_table *table, uint64_t revision);
const struct job_change *job_table_following_change(const struct job_table *table,
						    const struct job_change *change);

/* Between job_table.c and job_changes.c. */
void job_table_append_change(struct job_table *table, struct job_change *change);
void job_table_note_deletion(struct job_table *table, const char *id);
void job_table_tell_watchers(struct later *later);

/* job_retention.c. One more that has ended. */
void job_retention_add(struct background_job *job);
/* What is too much or too old goes. */
void job_retention_drop(struct job_table *table);
void job_retention_start(struct job_table *table);
void job_retention_stop(struct job_table *table);

/* job_notice.c. Enters a watch under its number; false when that has told of something already. */
bool job_notice_watch(struct job_table *table, struct job_watch *watch);
/* What the kernel has to tell already. Does not wait. */
void job_notice_read(struct job_table *table);
/* From now on, as long as jobs run, it is looked at whether the disk gets full. */
void job_notice_disk(struct job_table *table);
/* Somebody else has looked. */
void job_notice_room(struct job_table *table, uint64_t room);
/* A write of our own has failed: if for want of room, others have, too. */
void job_notice_write_error(struct job_table *table, int status);
void job_notice_start(struct job_table *table);
void job_notice_stop(struct job_table *table);

/* For job_life.c. */
struct background_job *job_table_add(struct job_table *table, const struct job_record *record);
/* It has ended: counted, kept, told, and the oldest of the others dropped. */
void job_table_ended(struct background_job *job);
void job_table_drop_live(struct job_table *table);

#endif
