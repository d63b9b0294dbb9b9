#include "lib/tls/tls_reload.h"

#include "lib/counter.h"
#include "lib/job.h"
#include "lib/limits.h"
#include "lib/log.h"

/* A key is the current one this long, and then the last one: a ticket can be used all its session's
 * life. */
#define TICKET_KEY_MS (TLS_SESSION_S * 1000ull)

/* A directory whose changes are looked out for. */
struct watched {
	uv_fs_event_t event;
	struct tls_reload *reload;
	char *path;
};

struct waiter {
	struct list_node node;
	tls_reload_told *told;
	void *user;
};

struct tls_reload {
	struct loop *loop;
	const char *const *sources;
	size_t count;
	struct tls_server *tls;
	struct alarm delay, tickets;
	struct watched *watched;
	size_t watched_count;
	struct job job;
	struct tls_store *previous, *loaded; /* of the load under way */
	struct tls_load_result result;
	struct err err;
	int status;
	struct list_node waiters, served; /* for the next load; for the one under way */
	bool again, closing;
	_Atomic uint64_t done, failed;
};

/* ---- one load ---- */

static void load(struct job *job)
{
	struct tls_reload *reload = container_of(job, struct tls_reload, job);

	reload->status = tls_store_load(reload->sources, reload->count, reload->previous,
					&reload->loaded, &reload->result, &reload->err);
}

static void tell(struct tls_reload *reload)
{
	while (!list_is_empty(&reload->served)) {
		struct waiter *waiter = container_of(reload->served.next, struct waiter, node);

		list_remove(&waiter->node);
		waiter->told(waiter->user, &reload->result,
			     reload->status < 0 ? &reload->err : NULL);
		free(waiter);
	}
}

static void log_load(struct tls_reload *reload)
{
	counter_add(&reload->done);
	if (reload->status < 0 || reload->result.failed) {
		counter_add(&reload->failed);
		log_error("tls", "certificates: the old ones stay where new ones cannot be used",
			  LOG_S("error",
				reload->status < 0 ? reload->err.message : reload->result.message),
			  LOG_I("failed", reload->result.failed));
		return;
	}
	log_info("tls", "certificates loaded", LOG_I("count", reload->result.certificates));
}

static void start(struct tls_reload *reload);

static void on_loaded(struct job *job)
{
	struct tls_reload *reload = container_of(job, struct tls_reload, job);

	tls_store_release(reload->previous);
	reload->previous = NULL;
	if (reload->status == 0)
		tls_server_set_store(reload->tls, reload->loaded);
	log_load(reload);
	tell(reload);
	if (reload->again && !reload->closing)
		start(reload);
}

static void start(struct tls_reload *reload)
{
	if (reload->job.active) {
		reload->again = true;
		return;
	}
	reload->again = false;
	list_splice(&reload->served, &reload->waiters);
	reload->previous = tls_server_hold_store(reload->tls);
	if (job_run(reload->loop, &reload->job, JOB_FILES, load, on_loaded) == 0)
		return;
	memset(&reload->result, 0, sizeof(reload->result));
	reload->status = err_set(&reload->err, ERR_UNAVAILABLE, "too much is going on");
	tls_store_release(reload->previous);
	reload->previous = NULL;
	log_load(reload);
	tell(reload);
}

void tls_reload_now(struct tls_reload *reload, tls_reload_told *told, void *user)
{
	if (told) {
		struct waiter *waiter = xcalloc(1, sizeof(*waiter));

		waiter->told = told;
		waiter->user = user;
		list_append(&reload->waiters, &waiter->node);
	}
	start(reload);
}

/* ---- what starts one ---- */

static void on_delay(struct alarm *delay)
{
	start(container_of(delay, struct tls_reload, delay));
}

static bool is_name_of(struct str path, const char *name)
{
	size_t len = strlen(name);

	return path.len >= len && memcmp(path.p + path.len - len, name, len) == 0 &&
	       (path.len == len || path.p[path.len - len - 1] == '/');
}

/* A certificate's or key's file, or one of the links ("..data") by which volumes of Kubernetes
 * change all of their files at once. */
static bool concerns(const struct tls_reload *reload, const char *name)
{
	struct str text = str_of(name);

	if (!name || str_starts_with(text, STR("..")) || str_ends_with(text, STR(".pem")) ||
	    str_ends_with(text, STR(".crt")) || str_ends_with(text, STR(".key")))
		return true;
	for (size_t i = 0; i < reload->count; i++) {
		struct str rest = str_of(reload->sources[i]), piece;

		while (str_split(&rest, ',', &piece))
			if (is_name_of(piece, name))
				return true;
	}
	return false;
}

/* A certificate and its key change one after the other: what comes together is read together. */
static void on_change(uv_fs_event_t *event, const char *name, int events, int status)
{
	struct tls_reload *reload = container_of(event, struct watched, event)->reload;

	(void)events;
	if (status == 0 && !reload->closing && concerns(reload, name) &&
	    !alarm_is_set(&reload->delay))
		alarm_set(reload->loop, &reload->delay, TLS_RELOAD_DELAY_MS);
}

static void on_tickets(struct alarm *tickets)
{
	struct tls_reload *reload = container_of(tickets, struct tls_reload, tickets);

	alarm_set(reload->loop, tickets, TICKET_KEY_MS);
	tls_server_rotate_tickets(reload->tls);
}

/* ---- the directories ---- */

static void watch(struct tls_reload *reload, struct str directory)
{
	struct watched *w;
	int status;

	for (size_t i = 0; i < reload->watched_count; i++)
		if (str_equal(str_of(reload->watched[i].path), directory))
			return;
	w = &reload->watched[reload->watched_count++];
	w->reload = reload;
	w->path = xstrndup(directory.p, directory.len);
	uv_fs_event_init(&reload->loop->uv, &w->event);
	status = uv_fs_event_start(&w->event, on_change, w->path, 0);
	/* SIGHUP and the admin API are left. */
	if (status < 0)
		log_warn("tls", "changes of certificates are not noticed",
			 LOG_S("directory", w->path), LOG_S("error", errno_text(status)));
}

static struct str directory_of(struct str path)
{
	size_t len = path.len;

	while (len > 0 && path.p[len - 1] != '/')
		len--;
	if (len == 0)
		return STR(".");
	return (struct str){path.p, len > 1 ? len - 1 : 1};
}

static bool is_directory(const char *path)
{
	uv_fs_t request;
	bool answer = uv_fs_stat(NULL, &request, path, NULL) == 0 &&
		      (request.statbuf.st_mode & 0170000) == 0040000;

	uv_fs_req_cleanup(&request);
	return answer;
}

/* Directories rather than files: files are replaced by renaming, and links with them. */
static void watch_sources(struct tls_reload *reload)
{
	reload->watched = xcalloc(2 * reload->count, sizeof(*reload->watched));
	for (size_t i = 0; i < reload->count; i++) {
		struct str source = str_of(reload->sources[i]);
		const char *comma = strchr(source.p, ',');

		if (comma) {
			watch(reload,
			      directory_of((struct str){source.p, (size_t)(comma - source.p)}));
			watch(reload, directory_of(str_of(comma + 1)));
		} else {
			watch(reload, is_directory(source.p) ? source : directory_of(source));
		}
	}
}

/* ---- life ---- */

int tls_reload_open(struct loop *loop, const char *const *sources, size_t count,
		    struct tls_reload **ret_reload, struct err *err)
{
	struct tls_load_result result;
	struct tls_reload *reload;
	struct tls_store *store;
	struct tls_server *tls;

	if (tls_store_load(sources, count, NULL, &store, &result, err) < 0 ||
	    tls_server_new(store, &tls, err) < 0)
		return -EINVAL;
	reload = xcalloc(1, sizeof(*reload));
	reload->loop = loop;
	reload->sources = sources;
	reload->count = count;
	reload->tls = tls;
	list_init(&reload->waiters);
	list_init(&reload->served);
	alarm_init(&reload->delay, on_delay);
	alarm_init(&reload->tickets, on_tickets);
	alarm_set(loop, &reload->tickets, TICKET_KEY_MS);
	watch_sources(reload);
	*ret_reload = reload;
	return 0;
}

struct tls_server *tls_reload_tls(const struct tls_reload *reload)
{
	return reload->tls;
}

uint64_t tls_reload_tickets_due_ms(const struct tls_reload *reload)
{
	return alarm_left_ms(&reload->tickets);
}

bool tls_reload_import_tickets(struct tls_reload *reload, const unsigned char *keys, size_t len,
			       uint64_t due_ms)
{
	if (!tls_server_import_tickets(reload->tls, keys, len))
		return false;
	alarm_set(reload->loop, &reload->tickets, size_min(due_ms, TICKET_KEY_MS));
	return true;
}

void tls_reload_totals(struct tls_reload *reload, struct tls_reload_totals *ret_totals)
{
	struct tls_store *store = tls_server_hold_store(reload->tls);

	ret_totals->done = counter_read(&reload->done);
	ret_totals->failed = counter_read(&reload->failed);
	ret_totals->certificates = tls_store_count(store);
	ret_totals->expires_s = tls_store_expires_s(store);
	tls_store_release(store);
}

void tls_reload_close(struct tls_reload *reload, const char *why)
{
	if (reload->closing)
		return;
	reload->closing = true;
	list_splice(&reload->served, &reload->waiters);
	if (!reload->job.active) {
		reload->status = err_set(&reload->err, ERR_UNAVAILABLE, "%s", why);
		tell(reload);
	}
	alarm_cancel(&reload->delay);
	alarm_cancel(&reload->tickets);
	for (size_t i = 0; i < reload->watched_count; i++)
		uv_close((uv_handle_t *)&reload->watched[i].event, NULL);
}

void tls_reload_free(struct tls_reload *reload)
{
	for (size_t i = 0; i < reload->watched_count; i++)
		free(reload->watched[i].path);
	free(reload->watched);
	tls_server_free(reload->tls);
	free(reload);
}
