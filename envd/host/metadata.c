#include "envd/host/metadata.h"

#include "envd/host/metadata_pin.h"
#include "envd/host/log_exporter.h"
#include "envd/init/run_files.h"
#include "envd/limits.h"
#include "lib/err.h"
#include "lib/log.h"

struct metadata_service {
	struct metadata_settings settings;
	struct alarm poll;
	struct metadata_lookup *lookup; /* of the poller; NULL: none is under way */
	bool is_polling, is_closing;
	uint64_t since_ms; /* when polling began */
	uint64_t interval_ms;
	bool has_deadline;
	/* The files: what the job writes, and what came meanwhile. */
	struct job job;
	char *sandbox_id, *template_id;
	char *next_sandbox_id, *next_template_id; /* NULL: nothing */
	int status;
	struct metadata_check *left,
		*kept; /* a look that nobody waits for, and what one has found */
};

struct metadata_check {
	struct metadata_service *service;
	struct metadata_lookup *lookup; /* one of these two */
	struct metadata_pin *pin;
	int status; /* of the first look; at last, of what is kept */
	bool is_retrying, is_joined;
	metadata_check_done *on_done; /* NULL: who asked has left */
	void *user;
	/* What was found for nobody. */
	char *kept_hash;
	uint64_t kept_ms;
	struct later later;
};

static void free_when_closed(struct metadata_service *service)
{
	if (!service->is_closing || service->job.active)
		return;
	free(service->sandbox_id);
	free(service->template_id);
	free(service->next_sandbox_id);
	free(service->next_template_id);
	free(service);
}

/* ---- taking over ---- */

static void write_files(struct job *job)
{
	struct metadata_service *service = container_of(job, struct metadata_service, job);
	const char *directory = service->settings.run_directory;
	int status = run_files_write(directory, ".E2B_SANDBOX_ID", service->sandbox_id, 0644);

	service->status = run_files_write(directory, ".E2B_TEMPLATE_ID", service->template_id,
					  0644);
	if (status < 0)
		service->status = status;
}

static void start_writing(struct metadata_service *service);

static void on_written(struct job *job)
{
	struct metadata_service *service = container_of(job, struct metadata_service, job);

	if (service->status < 0)
		log_warn("envd", "the sandbox's id cannot be written down",
			 LOG_S("error", errno_text(service->status)));
	if (service->is_closing)
		free_when_closed(service);
	else
		start_writing(service);
}

static void start_writing(struct metadata_service *service)
{
	if (!service->next_sandbox_id || service->job.active)
		return;
	free(service->sandbox_id);
	free(service->template_id);
	service->sandbox_id = take_ptr(&service->next_sandbox_id);
	service->template_id = take_ptr(&service->next_template_id);
	if (job_run(service->settings.loop, &service->job, JOB_QUICK, write_files, on_written) < 0)
		log_warn("envd", "the sandbox's id cannot be written down",
			 LOG_S("error", "too much work is waiting"));
}

static void take_over(struct metadata_service *service, const struct metadata *metadata)
{
	struct environment *environment = service->settings.environment;

	if (service->settings.exporter)
		log_exporter_set_target(service->settings.exporter, metadata->log_address,
					metadata->sandbox_id, metadata->template_id);
	environment_set_internal(environment, "E2B_SANDBOX_ID", metadata->sandbox_id);
	environment_set_internal(environment, "E2B_TEMPLATE_ID", metadata->template_id);
	free(service->next_sandbox_id);
	free(service->next_template_id);
	service->next_sandbox_id = xstrdup(metadata->sandbox_id);
	service->next_template_id = xstrdup(metadata->template_id);
	start_writing(service);
}

/* ---- the poller ---- */

static void stop_polling(struct metadata_service *service)
{
	service->is_polling = false;
	alarm_cancel(&service->poll);
	if (service->lookup)
		metadata_lookup_close(service->lookup);
	service->lookup = NULL;
}

static void plan_next(struct metadata_service *service)
{
	uint64_t spent = loop_now_ms(service->settings.loop) - service->since_ms;

	if (spent >= METADATA_REFRESH_MS && service->has_deadline) {
		log_warn("envd", "the metadata service does not answer; gave up asking");
		stop_polling(service);
		return;
	}
	if (spent >= METADATA_REFRESH_MS && service->interval_ms < METADATA_POLL_MS_MAX)
		service->interval_ms *= 2;
	alarm_set(service->settings.loop, &service->poll, service->interval_ms);
}

static void on_polled(void *user, int status, const struct metadata *metadata)
{
	struct metadata_service *service = user;

	service->lookup = NULL;
	if (status < 0) {
		log_debug("envd", "the metadata service does not answer",
			  LOG_S("error", errno_text(status)));
		plan_next(service);
		return;
	}
	stop_polling(service);
	take_over(service, metadata);
}

static void on_poll(struct alarm *alarm)
{
	struct metadata_service *service = container_of(alarm, struct metadata_service, poll);

	service->lookup = metadata_lookup_open(service->settings.loop, &service->settings.address,
					       METADATA_REQUEST_MS, on_polled, service);
}

static void start_polling(struct metadata_service *service, bool has_deadline, uint64_t first_ms)
{
	/* An answer that is on its way may be from before a pause. */
	stop_polling(service);
	service->is_polling = true;
	service->has_deadline = has_deadline;
	service->since_ms = loop_now_ms(service->settings.loop);
	service->interval_ms = METADATA_POLL_MS;
	alarm_set(service->settings.loop, &service->poll, first_ms);
}

void metadata_service_refresh(struct metadata_service *service)
{
	if (!service->is_closing)
		start_polling(service, true, 0);
}

/* ---- one look ---- */

static void look(struct metadata_check *check);

static void free_check(struct metadata_check *check)
{
	free(check->kept_hash);
	free(check);
}

static void forget_kept(struct metadata_service *service)
{
	if (service->kept)
		free_check(service->kept);
	service->kept = NULL;
}

/* Nobody waits for it: kept for who asks next. */
static void keep_check(struct metadata_check *check, int status, const struct metadata *metadata)
{
	struct metadata_service *service = check->service;

	forget_kept(service);
	service->left = NULL;
	service->kept = check;
	check->status = status;
	check->kept_hash = status < 0 ? NULL : xstrdup(metadata->token_hash);
	check->kept_ms = loop_now_ms(service->settings.loop);
}

static void finish_check(struct metadata_check *check, int status, const struct metadata *metadata)
{
	if (!check->on_done) {
		keep_check(check, status, metadata);
		return;
	}
	check->on_done(check->user, status, metadata, check->is_joined);
	free_check(check);
}

static void on_kept(struct later *later)
{
	struct metadata_check *check = container_of(later, struct metadata_check, later);
	const struct metadata metadata = {.sandbox_id = "",
					  .template_id = "",
					  .log_address = "",
					  .token_hash = check->kept_hash};

	check->on_done(check->user, check->status, check->status < 0 ? NULL : &metadata, true);
	free_check(check);
}

static void on_pinned(void *user, bool is_pinned)
{
	struct metadata_check *check = user;

	check->pin = NULL;
	if (is_pinned)
		look(check);
	else
		finish_check(check, check->status, NULL);
}

static void on_checked(void *user, int status, const struct metadata *metadata)
{
	struct metadata_check *check = user;
	struct tools *tools = check->service->settings.tools;

	check->lookup = NULL;
	if (status < 0 && tools && !check->is_retrying) {
		check->status = status;
		check->is_retrying = true;
		check->pin = metadata_pin_start(tools, on_pinned, check);
		if (check->pin)
			return;
	}
	if (status == 0) {
		/* Fresh: nobody needs to ask again. */
		stop_polling(check->service);
		take_over(check->service, metadata);
	}
	finish_check(check, status, metadata);
}

static void look(struct metadata_check *check)
{
	const struct metadata_settings *settings = &check->service->settings;

	check->lookup = metadata_lookup_open(settings->loop, &settings->address, METADATA_CHECK_MS,
					     on_checked, check);
}

/* The look that others have left, or what it has found; NULL when there is none. */
static struct metadata_check *take_left(struct metadata_service *service)
{
	struct metadata_check *check = take_ptr(&service->left);

	if (check)
		check->is_joined = true;
	if (check || !service->kept)
		return check;
	check = take_ptr(&service->kept);
	if (loop_now_ms(service->settings.loop) - check->kept_ms < METADATA_KEPT_MS) {
		later_init(&check->later, on_kept);
		later_call(service->settings.loop, &check->later);
		return check;
	}
	free_check(check);
	return NULL;
}

struct metadata_check *metadata_service_check(struct metadata_service *service,
					      metadata_check_done *on_done, void *user)
{
	struct metadata_check *check = take_left(service);

	if (!check) {
		check = xcalloc(1, sizeof(*check));
		check->service = service;
		later_init(&check->later, on_kept);
		look(check);
	}
	check->on_done = on_done;
	check->user = user;
	return check;
}

void metadata_check_cancel(struct metadata_check *check)
{
	later_cancel(&check->later);
	if (check->lookup)
		metadata_lookup_close(check->lookup);
	if (check->pin)
		metadata_pin_cancel(check->pin);
	free_check(check);
}

void metadata_check_leave(struct metadata_check *check)
{
	if (check->service->left || (!check->lookup && !check->pin)) {
		metadata_check_cancel(check);
		return;
	}
	check->on_done = NULL;
	check->service->left = check;
}

/* ---- life ---- */

struct metadata_service *metadata_service_new(const struct metadata_settings *settings)
{
	struct metadata_service *service = xcalloc(1, sizeof(*service));

	service->settings = *settings;
	alarm_init(&service->poll, on_poll);
	start_polling(service, false, METADATA_POLL_MS);
	return service;
}

void metadata_service_close(struct metadata_service *service)
{
	service->is_closing = true;
	stop_polling(service);
	if (service->left)
		metadata_check_cancel(take_ptr(&service->left));
	forget_kept(service);
	free_when_closed(service);
}

bool metadata_service_is_at_rest(const struct metadata_service *service)
{
	return !service->is_polling && !service->job.active && !service->left;
}
