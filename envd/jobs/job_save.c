/* Records to the disk: one write of a job at a time, and one more when it has changed meanwhile. */
#include "envd/jobs/job_table.h"
#include "envd/limits.h"
#include "lib/log.h"

struct job_save {
	struct job job;
	struct background_job *owner;
	struct buf text;
	bool is_output_incomplete;
	int status;
};

static void write_record(struct job *job)
{
	struct job_save *save = container_of(job, struct job_save, job);
	const struct job_store *store = &save->owner->table->store;
	const char *id = save->owner->record.id;
	const uint64_t yes = 1;

	/* In place: a full disk is what keeps the record from being written. */
	if (save->is_output_incomplete)
		(void)!job_store_tell_keeper(
			store, id, offsetof(struct job_status_agent, is_output_incomplete), &yes,
			sizeof(yes));
	save->status = job_store_save(store, id, buf_str(&save->text));
}

static void on_record_written(struct job *job)
{
	struct job_save *save = container_of(job, struct job_save, job);
	struct background_job *owner = save->owner;
	int status = save->status;
	/* Known since this one was begun, and the disk takes that, if nothing else. */
	bool has_mark_to_write = owner->record.output_incomplete && !save->is_output_incomplete;

	owner->is_saving = false;
	job_notice_write_error(owner->table, status);
	buf_fini(&save->text);
	free(save);
	if (status < 0 && !owner->is_removed)
		log_warn("jobs", "a record could not be written", LOG_S("id", owner->record.id),
			 LOG_S("reason", errno_text(status)));
	if (owner->is_save_owed && (status == 0 || has_mark_to_write))
		background_job_save(owner);
	/* Otherwise with the next look at what is too old. */
	owner->is_save_owed |= status < 0;
	background_job_release(owner);
}

void background_job_save(struct background_job *job)
{
	struct job_save *save;

	if (job->is_saving || job->is_removed) {
		job->is_save_owed = !job->is_removed;
		return;
	}
	job->is_save_owed = true;
	save = xcalloc(1, sizeof(*save));
	save->owner = job;
	save->is_output_incomplete = job->record.output_incomplete;
	buf_init(&save->text, 2 * JOB_RECORD_BYTES_MAX);
	if (job_record_write(&job->record, &save->text) < 0 ||
	    job_run(job->table->loop, &save->job, JOB_QUICK, write_record, on_record_written) < 0) {
		buf_fini(&save->text);
		free(save);
		return;
	}
	job->is_save_owed = false;
	job->is_saving = true;
	background_job_hold(job);
}
