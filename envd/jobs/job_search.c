#include "envd/jobs/job_search.h"

struct job_searches {
	struct background_job *job;
	struct job_listener listener;
	struct job work;
	struct list_node all; /* those that have waited longest first */
	struct list_node turn; /* those that the pool has */
	bool is_owed, is_telling;
};

static bool has_news(const struct job_search *search)
{
	return search->is_found || search->is_seen_whole || search->err.kind;
}

/* ---- coming and going ---- */

static void free_search(struct job_search *search)
{
	list_remove(&search->node);
	job_pattern_fini(&search->pattern);
	free(search->text);
	free(search);
}

/* What nobody waits for any more. Not while the pool has it. False when nothing is left at all. */
static bool sweep(struct job_searches *searches)
{
	struct background_job *job = searches->job;
	struct list_node *node, *following;

	if (searches->work.active || searches->is_telling)
		return true;
	LIST_FOR_EACH_SAFE (node, following, &searches->all) {
		struct job_search *search = container_of(node, struct job_search, node);

		if (list_is_empty(&search->waiters))
			free_search(search);
	}
	if (!list_is_empty(&searches->all))
		return true;
	list_remove(&searches->listener.node);
	job->searches = NULL;
	free(searches);
	background_job_release(job);
	return false;
}

void job_search_leave(struct job_search_waiter *waiter)
{
	struct job_search *search = waiter->search;

	if (!search)
		return;
	waiter->search = NULL;
	list_remove(&waiter->listener.node);
	(void)sweep(search->owner);
}

/* ---- in the pool ---- */

static void run_one(struct job_search *search, struct job_scan_source *source)
{
	if (!search->pattern.is_compiled &&
	    job_pattern_compile(&search->pattern, search->text, &search->err) < 0)
		return;
	search->status = job_scan_run(&search->scan, &search->pattern, source);
	search->is_served = true;
}

static void look(struct job *work)
{
	struct job_searches *searches = container_of(work, struct job_searches, work);
	struct job_scan_source source;
	struct list_node *node;

	job_scan_open(&source, &searches->job->table->store, searches->job->record.id);
	LIST_FOR_EACH (node, &searches->turn) {
		struct job_search *search = container_of(node, struct job_search, node);

		if (job_scan_is_enough(&source))
			break;
		if (!has_news(search))
			run_one(search, &source);
	}
	job_scan_close(&source);
}

/* ---- on the loop ---- */

static void start(struct job_searches *searches);

static void settle(struct job_search *search)
{
	search->is_served = false;
	search->is_found = search->status > 0;
	search->is_seen_whole = search->was_ended && !search->scan.has_more;
}

/* Those that had no turn come first the next time, and those that had one last. True when there is
 * more to be looked at right now. */
static bool put_back(struct job_searches *searches)
{
	struct list_node first, last;
	bool has_more = false;

	list_init(&first);
	list_init(&last);
	while (!list_is_empty(&searches->turn)) {
		struct job_search *search = container_of(searches->turn.next, struct job_search,
							 node);
		bool is_served = search->is_served;

		if (is_served)
			settle(search);
		has_more |= !has_news(search) && (!is_served || search->scan.has_more);
		list_remove(&search->node);
		list_append(is_served ? &last : &first, &search->node);
	}
	list_splice(&first, &searches->all);
	list_splice(&first, &last);
	list_splice(&searches->all, &first);
	return has_more;
}

static void tell_all(struct job_searches *searches)
{
	struct list_node *node;

	searches->is_telling = true;
	LIST_FOR_EACH (node, &searches->all) {
		struct job_search *search = container_of(node, struct job_search, node);

		if (has_news(search))
			job_listeners_tell(&search->waiters);
	}
	searches->is_telling = false;
}

static void on_looked(struct job *work)
{
	struct job_searches *searches = container_of(work, struct job_searches, work);
	bool has_more = put_back(searches);

	tell_all(searches);
	if (sweep(searches) && (has_more || searches->is_owed))
		start(searches);
}

/* Of a job that goes on, the next change asks again. */
static void refuse(struct job_searches *searches, bool has_ended)
{
	struct list_node *node;

	list_splice(&searches->all, &searches->turn);
	if (!has_ended)
		return;
	LIST_FOR_EACH (node, &searches->all)
		(void)err_set(&container_of(node, struct job_search, node)->err,
			      ERR_RESOURCE_EXHAUSTED, "too much work is queued");
	tell_all(searches);
	(void)sweep(searches);
}

static void start(struct job_searches *searches)
{
	const struct background_job *job = searches->job;
	bool has_ended = job_state_is_end(job->record.state) || job->is_removed;
	struct list_node *node;

	if (searches->work.active || searches->is_telling) {
		searches->is_owed = true;
		return;
	}
	searches->is_owed = false;
	if (job->table->is_closed)
		return;
	LIST_FOR_EACH (node, &searches->all)
		container_of(node, struct job_search, node)->was_ended = has_ended;
	list_splice(&searches->turn, &searches->all);
	if (job_run(job->table->loop, &searches->work, JOB_FILES, look, on_looked) < 0)
		refuse(searches, has_ended);
}

static void on_change(struct job_listener *listener)
{
	start(container_of(listener, struct job_searches, listener));
}

/* ---- joining ---- */

static struct job_searches *searches_of(struct background_job *job)
{
	struct job_searches *searches = job->searches;

	if (searches)
		return searches;
	job->searches = searches = xcalloc(1, sizeof(*searches));
	searches->job = job;
	list_init(&searches->all);
	list_init(&searches->turn);
	searches->listener.on_change = on_change;
	background_job_hold(job);
	background_job_listen(job, &searches->listener);
	return searches;
}

static struct job_search *find_in(struct list_node *list, const char *text,
				  const bool is_wanted[JOB_STREAMS])
{
	struct list_node *node;

	LIST_FOR_EACH (node, list) {
		struct job_search *search = container_of(node, struct job_search, node);

		if (strcmp(search->text, text) == 0 &&
		    memcmp(search->scan.is_wanted, is_wanted, sizeof(search->scan.is_wanted)) == 0)
			return search;
	}
	return NULL;
}

static struct job_search *add(struct job_searches *searches, const char *text,
			      const bool is_wanted[JOB_STREAMS])
{
	struct job_search *search = xcalloc(1, sizeof(*search));

	search->owner = searches;
	search->text = xstrdup(text);
	memcpy(search->scan.is_wanted, is_wanted, sizeof(search->scan.is_wanted));
	list_init(&search->waiters);
	list_append(&searches->all, &search->node);
	return search;
}

void job_search_join(struct background_job *job, const char *text,
		     const bool is_wanted[JOB_STREAMS], struct job_search_waiter *waiter)
{
	struct job_searches *searches = searches_of(job);
	struct job_search *search = find_in(&searches->all, text, is_wanted);

	if (!search)
		search = find_in(&searches->turn, text, is_wanted);
	if (!search)
		search = add(searches, text, is_wanted);
	waiter->search = search;
	list_append(&search->waiters, &waiter->listener.node);
	if (!has_news(search))
		start(searches);
}
