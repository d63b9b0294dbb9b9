#include "envd/init/ca_bundle.h"

#include "envd/init/text_file.h"
#include "envd/limits.h"
#include "lib/log.h"

#define BUNDLE_PATH "/etc/ssl/certs/ca-certificates.crt"
#define EXTRA_PATH "/usr/local/share/ca-certificates/e2b-ca.crt"

struct ca_install {
	struct ca_bundle *bundle;
	struct turn turn;
	struct job job;
	char *text;
	char *old; /* installed before, now to be removed; NULL: none */
	bool is_first; /* of this process: it may be there from an earlier one */
	bool is_reported;
	bool is_starting; /* its maker still looks at it */
	int status;
	struct err err;
	void (*on_done)(void *user, int status, const struct err *err);
	void *user;
};

/* ---- blocking; every text ends with a newline ---- */

/* Where `text` stands in `whole` as lines of its own, at or after `from`; NULL: nowhere. */
static const char *find_lines(const char *whole, const char *from, const char *text)
{
	const char *at = strstr(from, text);

	while (at && at != whole && at[-1] != '\n')
		at = strstr(at + 1, text);
	return at;
}

static int append_text(const char *bundle_path, const char *text, bool unless_there,
		       struct err *err)
{
	auto_free char *whole = NULL;
	auto_free char *piece = NULL;
	size_t len, text_len = strlen(text);
	int status = text_file_read(bundle_path, &whole, &len);

	if (status == 0 && unless_there && find_lines(whole, whole, text))
		return 0;
	if (status == 0 && len && whole[len - 1] != '\n') {
		piece = malloc(text_len + 1);
		if (!piece)
			return err_set(err, ERR_RESOURCE_EXHAUSTED,
				       "append CA bundle: out of memory");
		piece[0] = '\n';
		memcpy(piece + 1, text, text_len);
		status = text_file_append(bundle_path, piece, text_len + 1);
	} else if (status == 0 || status == -EFBIG || status == -ENOMEM) {
		status = text_file_append(bundle_path, text, text_len);
	}
	if (status < 0)
		return err_set_sys(err, err_kind_from_errno(status), status, "open %s",
				   bundle_path);
	return 0;
}

/* Takes `old` out of the bundle, except where it is part of `text`. */
static int strip_text(const char *bundle_path, const char *old, const char *text)
{
	auto_free char *whole = NULL;
	const char *kept = NULL, *at;
	size_t len, old_len = strlen(old), text_len = strlen(text);
	char *to;
	int status = text_file_read(bundle_path, &whole, &len);

	if (status < 0)
		return status;
	/* The last one is the one that was just appended. */
	for (at = find_lines(whole, whole, text); at; at = find_lines(whole, at + 1, text))
		kept = at;
	to = whole;
	for (const char *from = whole;;) {
		bool is_kept;

		at = find_lines(whole, from, old);
		if (!at)
			at = whole + len;
		is_kept = kept && at >= kept && at < kept + text_len;
		memmove(to, from, (size_t)(at - from));
		to += at - from;
		if (at == whole + len)
			break;
		if (is_kept) {
			memmove(to, at, old_len);
			to += old_len;
		}
		from = at + old_len;
	}
	if ((size_t)(to - whole) == len)
		return 0;
	return text_file_replace(bundle_path, whole, (size_t)(to - whole));
}

/* ---- one installation ---- */

static void free_install(struct ca_install *install)
{
	turn_leave(&install->bundle->turns, &install->turn);
	if (install->is_starting)
		return;
	free(install->text);
	free(install->old);
	free(install);
}

static void report(struct ca_install *install, int status)
{
	install->is_reported = true;
	install->on_done(install->user, status, &install->err);
}

static void finish(struct job *job)
{
	struct ca_install *install = container_of(job, struct ca_install, job);
	const struct ca_bundle *bundle = install->bundle;

	install->status = text_file_create(bundle->extra_path, install->text,
					   strlen(install->text));
	if (install->old) {
		int status = strip_text(bundle->bundle_path, install->old, install->text);

		if (install->status == 0)
			install->status = status;
	}
}

static void on_finished(struct job *job)
{
	struct ca_install *install = container_of(job, struct ca_install, job);

	if (install->status < 0)
		log_warn("envd", "the CA bundle is installed, but not for good",
			 LOG_S("error", errno_text(install->status)));
	free_install(install);
}

static void append(struct job *job)
{
	struct ca_install *install = container_of(job, struct ca_install, job);

	install->status = append_text(install->bundle->bundle_path, install->text,
				      install->is_first, &install->err);
}

static void on_appended(struct job *job)
{
	struct ca_install *install = container_of(job, struct ca_install, job);
	struct ca_bundle *bundle = install->bundle;

	if (install->status < 0) {
		report(install, install->status);
		free_install(install);
		return;
	}
	install->old = bundle->installed;
	bundle->installed = xstrdup(install->text);
	report(install, 0);
	/* This very job has just ended, so there is room for one. */
	if (job_run(bundle->loop, &install->job, JOB_QUICK, finish, on_finished) < 0) {
		log_warn("envd", "the CA bundle is installed, but not for good",
			 LOG_S("error", "too much work is waiting"));
		free_install(install);
	}
}

static void on_turn(struct turn *turn)
{
	struct ca_install *install = container_of(turn, struct ca_install, turn);
	struct ca_bundle *bundle = install->bundle;
	bool is_there = bundle->installed && strcmp(bundle->installed, install->text) == 0;

	install->is_first = !bundle->installed;
	if (!is_there) {
		if (job_run(bundle->loop, &install->job, JOB_QUICK, append, on_appended) == 0)
			return;
		install->status = err_set(&install->err, ERR_RESOURCE_EXHAUSTED,
					  "too much work is waiting");
	}
	report(install, is_there ? 0 : install->status);
	free_install(install);
}

struct ca_install *ca_bundle_install(struct ca_bundle *bundle, const char *text,
				     void (*on_done)(void *user, int status, const struct err *err),
				     void *user)
{
	size_t len = strlen(text);
	struct ca_install *install;
	char *copy;
	struct err err;

	while (len && text[len - 1] == '\n')
		len--;
	if (len == 0) {
		on_done(user, 0, NULL);
		return NULL;
	}
	copy = malloc(len + 2);
	if (!copy) {
		on_done(user, err_set(&err, ERR_RESOURCE_EXHAUSTED, "out of memory"), &err);
		return NULL;
	}
	memcpy(copy, text, len);
	memcpy(copy + len, "\n", 2);
	install = xcalloc(1, sizeof(*install));
	*install = (struct ca_install){
		.bundle = bundle, .text = copy, .on_done = on_done, .user = user};
	install->is_starting = true;
	if (turn_take(&bundle->turns, &install->turn, on_turn) < 0)
		report(install,
		       err_set(&install->err, ERR_RESOURCE_EXHAUSTED, "too many wait already"));
	install->is_starting = false;
	if (!install->is_reported)
		return install;
	free_install(install);
	return NULL;
}

void ca_install_cancel(struct ca_install *install)
{
	if (install->is_reported || install->turn.state != TURN_WAITING)
		return;
	err_set(&install->err, ERR_CANCELED, "another installation is in progress");
	report(install, -ECANCELED);
	free_install(install);
}

/* ---- all of them ---- */

void ca_bundle_init(struct ca_bundle *bundle, struct loop *loop)
{
	*bundle = (struct ca_bundle){
		.loop = loop, .bundle_path = BUNDLE_PATH, .extra_path = EXTRA_PATH};
	turn_queue_init(&bundle->turns, loop, INIT_WAITERS_MAX);
}

void ca_bundle_fini(struct ca_bundle *bundle)
{
	turn_queue_fini(&bundle->turns);
	free(bundle->installed);
}
