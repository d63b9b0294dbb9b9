/*
 * All background jobs of one envd. A job is in memory from its creation to its deletion (its
 * record; about a kibibyte), on disk as job_store.h says, and while it is PENDING or RUNNING it has
 * a struct job_life besides. Loop thread only; what blocks goes through lib/job.h.
 *
 * The table knows nobody who works with its jobs: job_retention.h says how long ended ones stay,
 * job_look.h what happens to files and disk, job_life.h starts, follows and ends jobs, and jobs.h
 * opens and closes all of it. What the table holds for each of them is theirs alone.
 *
 * Changes are numbered. The list `changes` holds every job once, at the place of its last change,
 * and what was deleted; so who watches needs nothing but the number it has seen.
 */
#ifndef ENVD_JOBS_JOB_TABLE_H
#define ENVD_JOBS_JOB_TABLE_H

#include "envd/jobs/job_poll.h"
#include "envd/jobs/job_store.h"
#include "envd/limits.h"
#include "envd/process/spawn.h"
#include "lib/hash_table.h"
#include "lib/job.h"
#include "lib/process/reaper.h"

struct background_job;
struct job_life;
struct job_ports;
struct job_searches;

struct job_table_settings {
	struct loop *loop;
	const struct sandbox *sandbox;
	const struct spawn_settings *spawn;
	struct reaper *reaper;
	const char *directory; /* borrowed until jobs_new returns */
	/* Of ended jobs; 0: what envd/limits.h says. */
	uint64_t ended_max, ended_age_s, ended_bytes;
	/* Every time a job runs. May be NULL. */
	void (*on_started)(void *user);
	void *on_started_user;
	/* Once for each job with a webhook that has ended and was not told yet. May be NULL. */
	void (*on_webhook)(struct background_job *job);
};

/* Is told that something has changed. Embedded by whoever waits; leaves with list_remove. */
struct job_listener {
	struct list_node node;
	void (*on_change)(struct job_listener *listener);
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
	struct hash_table ids, keys;
	size_t count, running_count, reader_count, wait_count, watcher_count;
	uint64_t next_sequence;
	unsigned live; /* work, and jobs in memory */
	bool is_closed;

	struct list_node changes; /* oldest first */
	uint64_t revision; /* of the last one; begins above those of earlier envds */
	uint64_t forgotten_revision; /* deletions up to here are not told any more */
	size_t deletion_count;
	struct list_node watchers; /* listeners; told when there are changes */
	struct later tell_watchers;

	/* job_retention.c */
	struct list_node ended; /* oldest end first */
	size_t ended_count;
	uint64_t stored_bytes;
	struct alarm retention_alarm;
	struct list_node deletions, removals; /* asked for, and those nobody waits for */
	struct list_node sweeping; /* some of them, in the pool */
	struct job sweep_job;
	bool is_last_sweep; /* envd ends */

	/* job_look.c */
	struct list_node looks; /* of the jobs that run */
	int inotify_fd; /* -1: none; then output is looked at by the clock */
	struct job_poll *inotify;
	struct hash_table watches; /* by their number */
	/* Watches that told of something before their look was back from the pool. */
	int early_watches[JOB_STREAMS * JOBS_RUNNING_MAX];
	size_t early_count;
	void (*on_disk_full)(struct job_table *table);
	struct alarm disk_alarm;
	struct job disk_job;
	uint64_t disk_room, disk_found; /* bytes; the last seen, and of disk_job */

	/* jobs.c */
	struct job load_job;
	struct job_found *found;
	size_t found_count;
	int load_status;
	struct err load_err;
	bool is_loaded, is_load_owed; /* owed: another envd had the directory */
	struct list_node load_waiters; /* listeners */

	struct job_ports *ports; /* of job_ports.c; NULL: nobody waits for one */
	/* jobs_service_webhook.c */
	struct list_node webhooks_waiting, webhooks_active;
	size_t webhooks_busy;
	bool is_resolving; /* the name of one */
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
	struct list_node listeners; /* told of every change of state or output, and of the table's
				       end */
	struct job_extent extents[JOB_STREAMS]; /* last seen */
	uint64_t stored_bytes;
	bool is_saving, is_save_owed;
	struct job_searches *searches; /* of job_search.c; NULL: nobody waits for a pattern */
	bool is_webhook_busy, is_writing, is_resizing;
};

/* Each once; one that is told may take itself and any other out of the list. */
void job_listeners_tell(struct list_node *listeners);

/* Of memory that is all zero. */
void job_table_init(struct job_table *table, const struct job_table_settings *settings);
void job_table_drop_live(struct job_table *table);
struct background_job *job_table_find(struct job_table *table, struct str id);
struct background_job *job_table_find_key(struct job_table *table, const char *key);
struct background_job *job_table_add(struct job_table *table, const struct job_record *record);
/* Out of the table, and the table's hold on it released. Its listeners are told. */
void job_table_remove(struct background_job *job);

void background_job_hold(struct background_job *job);
void background_job_release(struct background_job *job);
void background_job_listen(struct background_job *job, struct job_listener *listener);
/* Its state or facts have changed. */
void background_job_publish(struct background_job *job);
/* Its output has grown, or anything else that a listener waits for. */
void background_job_tell(struct background_job *job);
/* It has ended: its webhook, if it has one that was not told yet, is. */
void background_job_announce(struct background_job *job);

void job_table_append_change(struct job_table *table, struct job_change *change);
void job_table_note_deletion(struct job_table *table, const char *id);
/* The oldest change after `revision`; NULL: none. */
const struct job_change *job_table_next_change(const struct job_table *table, uint64_t revision);
const struct job_change *job_table_following_change(const struct job_table *table,
						    const struct job_change *change);

#endif
