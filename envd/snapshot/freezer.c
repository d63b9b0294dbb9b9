#include "envd/snapshot/freezer.h"

#include "envd/limits.h"
#include "lib/err.h"
#include "lib/log.h"

/* At most one /init and one rescue wait beside those who may be refused. */
#define PATIENT_WAITERS_MAX 8
/* The pool refused the rescue. */
#define RESCUE_RETRY_MS 1000

static void on_watchdog(struct alarm *alarm);

void freezer_init(struct freezer *freezer, struct loop *loop, const char *root)
{
	*freezer = (struct freezer){.loop = loop, .watchdog_ms = FREEZE_WATCHDOG_MS};
	alarm_init_idle(&freezer->watchdog, on_watchdog);
	freeze_init(&freezer->freeze, root);
	freezer->has_cgroups = freezer->freeze.tree.root != NULL;
	turn_queue_init(&freezer->turns, loop, FREEZE_WAITERS_MAX + PATIENT_WAITERS_MAX);
}

void freezer_fini(struct freezer *freezer)
{
	assert(!alarm_is_set(&freezer->watchdog) && !freezer->rescue);
	turn_queue_fini(&freezer->turns);
	freeze_fini(&freezer->freeze);
}

static void arm(struct freezer *freezer, uint64_t after_ms)
{
	if (freezer->is_closed)
		return;
	freezer->arming++;
	/* The loop's clock may be as old as the job that has just ended. */
	uv_update_time(&freezer->loop->uv);
	alarm_set(freezer->loop, &freezer->watchdog, after_ms);
}

static void disarm(struct freezer *freezer)
{
	freezer->arming++;
	alarm_cancel(&freezer->watchdog);
}

void freezer_close(struct freezer *freezer)
{
	freezer->is_closed = true;
	disarm(freezer);
}

static void work(struct job *job)
{
	struct freezer_call *call = container_of(job, struct freezer_call, job);
	struct freeze *freeze = &call->freezer->freeze;

	switch (call->work) {
	case FREEZER_FREEZE:
		call->status = freeze_sweep(freeze, &call->request, &call->is_cancelled,
					    &call->frozen);
		break;
	case FREEZER_THAW:
		call->status = freeze_thaw(freeze, &call->thawed);
		break;
	case FREEZER_AUDIT:
		call->status = freeze_audit(freeze, &call->audit);
		break;
	}
}

/* The owner may free the call in `done`. */
static void finish(struct freezer_call *call)
{
	turn_leave(&call->freezer->turns, &call->turn);
	call->is_over = true;
	call->done(call);
}

static void watch(struct freezer *freezer, const struct freezer_call *call)
{
	if (!freezer->has_cgroups)
		return;
	if (call->work == FREEZER_FREEZE && call->frozen.requested > 0)
		arm(freezer, freezer->watchdog_ms);
	else if (call->work == FREEZER_THAW && call->status == 0)
		disarm(freezer);
}

static void on_worked(struct job *job)
{
	struct freezer_call *call = container_of(job, struct freezer_call, job);
	struct freezer *freezer = call->freezer;

	freezer->audit_is_due = freezer->freeze.audit_is_due;
	watch(freezer, call);
	finish(call);
}

static void on_turn(struct turn *turn)
{
	struct freezer_call *call = container_of(turn, struct freezer_call, turn);
	const struct freezer *freezer = call->freezer;
	/* While it waited, others thawed and maybe froze anew. */
	bool is_superseded = call == freezer->rescue && freezer->arming != freezer->rescue_arming;

	call->status = is_superseded ? 0 : -EAGAIN;
	/* Once it runs, the call is the job's. */
	if (is_superseded || job_run(freezer->loop, &call->job, JOB_QUICK, work, on_worked) < 0)
		finish(call);
}

void freezer_start(struct freezer *freezer, struct freezer_call *call,
		   enum freezer_work work_wanted, bool is_patient,
		   void (*done)(struct freezer_call *call))
{
	call->freezer = freezer;
	call->work = work_wanted;
	call->done = done;
	call->status = -EAGAIN;
	if ((!is_patient && freezer->turns.waiting_count >= FREEZE_WAITERS_MAX) ||
	    turn_take(&freezer->turns, &call->turn, on_turn) < 0)
		finish(call);
}

void freezer_cancel(struct freezer_call *call)
{
	atomic_store(&call->is_cancelled, true);
	if (call->is_over || call->turn.state != TURN_WAITING)
		return;
	call->status = -ECANCELED;
	finish(call);
}

static void on_rescued(struct freezer_call *call)
{
	struct freezer *freezer = call->freezer;
	int status = call->status;

	freezer->rescue = NULL;
	free(call);
	if (status == 0)
		return;
	log_error("freeze", "the watchdog could not thaw everything",
		  LOG_S("error", errno_text(status)));
	arm(freezer, status == -EAGAIN ? RESCUE_RETRY_MS : freezer->watchdog_ms);
}

static void on_watchdog(struct alarm *alarm)
{
	struct freezer *freezer = container_of(alarm, struct freezer, watchdog);

	if (freezer->rescue)
		return;
	log_warn("freeze", "nobody has thawed the workload; the watchdog does");
	freezer->rescue = xcalloc(1, sizeof(*freezer->rescue));
	freezer->rescue_arming = freezer->arming;
	freezer_start(freezer, freezer->rescue, FREEZER_THAW, true, on_rescued);
}
