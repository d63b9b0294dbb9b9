#include "envd/host/log_exporter.h"

#include <pthread.h>

#include "envd/host/log_delivery_http.h"
#include "envd/limits.h"
#include "lib/err.h"
#include "lib/log.h"

struct line {
	struct list_node node;
	size_t len;
	char text[];
};

struct log_exporter {
	struct loop *loop;
	/* Any thread, under the lock: */
	pthread_mutex_t lock;
	struct list_node lines;
	size_t bytes;
	uint64_t dropped; /* since the last report */
	uint64_t lost; /* ever */
	/* The loop's: */
	struct message logged; /* there are lines */
	struct alarm retry; /* set while it pauses after a delivery that failed */
	struct alarm flush_alarm;
	struct list_node flushes; /* in the order in which they are due */
	struct log_target target;
	struct line *line; /* being delivered, or waiting for its next attempt */
	struct log_delivery *delivery; /* NULL: none is under way */
	unsigned attempts;
	uint64_t retry_ms;
	bool has_reported;
	uint64_t reported_ms;
};

static void advance(struct log_exporter *exporter);

/* ---- the queue ---- */

static void drop_line(struct log_exporter *exporter, struct line *line)
{
	list_remove(&line->node);
	exporter->bytes -= sizeof(*line) + line->len;
	free(line);
}

/* Under the lock. */
static void note_loss(struct log_exporter *exporter)
{
	exporter->dropped++;
	exporter->lost++;
}

uint64_t log_exporter_lost(struct log_exporter *exporter)
{
	uint64_t lost;

	pthread_mutex_lock(&exporter->lock);
	lost = exporter->lost;
	pthread_mutex_unlock(&exporter->lock);
	return lost;
}

static void on_logged(const char *text, size_t len, void *user)
{
	struct log_exporter *exporter = user;
	struct line *line = malloc(sizeof(*line) + len);

	pthread_mutex_lock(&exporter->lock);
	if (line) {
		line->len = len;
		memcpy(line->text, text, len);
		list_append(&exporter->lines, &line->node);
		exporter->bytes += sizeof(*line) + len;
	} else {
		note_loss(exporter);
	}
	while (exporter->bytes > LOG_EXPORT_BYTES_MAX) {
		drop_line(exporter, container_of(exporter->lines.next, struct line, node));
		note_loss(exporter);
	}
	pthread_mutex_unlock(&exporter->lock);
	message_post(&exporter->logged);
}

static struct line *take_line(struct log_exporter *exporter)
{
	struct line *line = NULL;

	pthread_mutex_lock(&exporter->lock);
	if (!list_is_empty(&exporter->lines)) {
		line = container_of(exporter->lines.next, struct line, node);
		list_remove(&line->node);
		exporter->bytes -= sizeof(*line) + line->len;
	}
	pthread_mutex_unlock(&exporter->lock);
	return line;
}

static void drop_all(struct log_exporter *exporter)
{
	pthread_mutex_lock(&exporter->lock);
	while (!list_is_empty(&exporter->lines))
		drop_line(exporter, container_of(exporter->lines.next, struct line, node));
	exporter->dropped = 0;
	pthread_mutex_unlock(&exporter->lock);
}

static uint64_t take_dropped(struct log_exporter *exporter)
{
	uint64_t dropped;

	pthread_mutex_lock(&exporter->lock);
	dropped = exporter->dropped;
	exporter->dropped = 0;
	pthread_mutex_unlock(&exporter->lock);
	return dropped;
}

static void lose_line(struct log_exporter *exporter)
{
	free(take_ptr(&exporter->line));
	exporter->attempts = 0;
	pthread_mutex_lock(&exporter->lock);
	note_loss(exporter);
	pthread_mutex_unlock(&exporter->lock);
}

/* Its line comes to the collector, too. */
static void report(struct log_exporter *exporter, const char *error)
{
	uint64_t now = loop_now_ms(exporter->loop), dropped;

	if (exporter->has_reported && now - exporter->reported_ms < LOG_EXPORT_REPORT_MS)
		return;
	dropped = take_dropped(exporter);
	if (dropped == 0 && !error)
		return;
	exporter->has_reported = true;
	exporter->reported_ms = now;
	log_warn("envd", "lines of the log could not be delivered", LOG_I("lines", dropped),
		 LOG_S("error", error ? error : ""));
}

/* ---- those that wait until all is sent ---- */

static void end_flush(struct log_exporter *exporter)
{
	struct log_flush *flush = container_of(exporter->flushes.next, struct log_flush, node);

	list_remove(&flush->node);
	flush->on_done(flush);
}

static void end_flushes(struct log_exporter *exporter)
{
	while (!list_is_empty(&exporter->flushes))
		end_flush(exporter);
	alarm_cancel(&exporter->flush_alarm);
}

static void on_flush_due(struct alarm *alarm)
{
	struct log_exporter *exporter = container_of(alarm, struct log_exporter, flush_alarm);
	const struct log_flush *first;

	while (!list_is_empty(&exporter->flushes)) {
		first = container_of(exporter->flushes.next, struct log_flush, node);
		if (!loop_is_past(exporter->loop, first->due_ms)) {
			alarm_set(exporter->loop, alarm,
				  loop_wait_ms(exporter->loop, first->due_ms));
			return;
		}
		end_flush(exporter);
	}
}

/* ---- deliveries ---- */

static void on_retry(struct alarm *alarm)
{
	advance(container_of(alarm, struct log_exporter, retry));
}

static void pause_after(struct log_exporter *exporter, int status)
{
	if (++exporter->attempts >= LOG_EXPORT_ATTEMPTS_MAX)
		lose_line(exporter);
	alarm_set(exporter->loop, &exporter->retry, exporter->retry_ms);
	exporter->retry_ms *= 2;
	if (exporter->retry_ms > LOG_EXPORT_RETRY_MS_MAX)
		exporter->retry_ms = LOG_EXPORT_RETRY_MS_MAX;
	report(exporter, errno_text(status));
	end_flushes(exporter);
}

static void on_delivered(void *user, int status)
{
	struct log_exporter *exporter = user;

	exporter->delivery = NULL;
	if (status < 0 && status != -EPERM) {
		pause_after(exporter, status);
		return;
	}
	exporter->retry_ms = LOG_EXPORT_RETRY_MS;
	exporter->attempts = 0;
	if (status == 0)
		free(take_ptr(&exporter->line));
	else
		lose_line(exporter);
	report(exporter, status == 0 ? NULL : "refused by the collector");
	advance(exporter);
	if (log_exporter_is_at_rest(exporter))
		end_flushes(exporter);
}

static void advance(struct log_exporter *exporter)
{
	struct str line;

	if (!exporter->target.path || exporter->delivery || alarm_is_set(&exporter->retry))
		return;
	if (!exporter->line)
		exporter->line = take_line(exporter);
	if (!exporter->line)
		return;
	line = (struct str){exporter->line->text, exporter->line->len};
	exporter->delivery = log_delivery_open(exporter->loop, &exporter->target, line,
					       on_delivered, exporter);
}

/* ---- where to ---- */

/* What is under way goes to where the target was. Its line is not lost. */
static void interrupt(struct log_exporter *exporter)
{
	if (exporter->delivery)
		log_delivery_close(exporter->delivery);
	exporter->delivery = NULL;
}

void log_exporter_set_target(struct log_exporter *exporter, const char *address,
			     const char *sandbox_id, const char *template_id)
{
	interrupt(exporter);
	if (log_target_set(&exporter->target, address, sandbox_id, template_id) < 0) {
		log_set_copy(LOG_INFO, NULL, NULL);
		free(take_ptr(&exporter->line));
		drop_all(exporter);
		end_flushes(exporter);
		if (*address)
			log_warn("envd", "the address of the log's collector is not understood");
		return;
	}
	log_set_copy(LOG_INFO, on_logged, exporter);
	advance(exporter);
}

/* ---- life ---- */

static void on_lines(struct message *logged)
{
	advance(container_of(logged, struct log_exporter, logged));
}

struct log_exporter *log_exporter_new(struct loop *loop)
{
	struct log_exporter *exporter = xcalloc(1, sizeof(*exporter));

	exporter->loop = loop;
	exporter->retry_ms = LOG_EXPORT_RETRY_MS;
	list_init(&exporter->lines);
	list_init(&exporter->flushes);
	pthread_mutex_init(&exporter->lock, NULL);
	log_target_init(&exporter->target);
	message_open(&exporter->logged, loop, on_lines);
	alarm_init(&exporter->retry, on_retry);
	alarm_init(&exporter->flush_alarm, on_flush_due);
	log_set_copy(LOG_INFO, on_logged, exporter);
	return exporter;
}

void log_exporter_close(struct log_exporter *exporter)
{
	log_set_copy(LOG_INFO, NULL, NULL);
	interrupt(exporter);
	end_flushes(exporter);
	alarm_cancel(&exporter->retry);
	message_close(&exporter->logged);
	drop_all(exporter);
	free(exporter->line);
	log_target_fini(&exporter->target);
	pthread_mutex_destroy(&exporter->lock);
	free(exporter);
}

bool log_exporter_is_at_rest(struct log_exporter *exporter)
{
	bool is_empty;

	pthread_mutex_lock(&exporter->lock);
	is_empty = list_is_empty(&exporter->lines);
	pthread_mutex_unlock(&exporter->lock);
	return is_empty && !exporter->line && !alarm_is_set(&exporter->retry);
}

bool log_exporter_flush(struct log_exporter *exporter, struct log_flush *flush,
			void (*on_done)(struct log_flush *flush))
{
	if (!exporter->target.path || log_exporter_is_at_rest(exporter))
		return false;
	alarm_cancel(&exporter->retry);
	advance(exporter);
	if (alarm_is_set(&exporter->retry))
		return false; /* it has failed at once, again */
	flush->on_done = on_done;
	flush->due_ms = loop_now_ms(exporter->loop) + LOG_EXPORT_FLUSH_MS;
	if (list_is_empty(&exporter->flushes))
		alarm_set(exporter->loop, &exporter->flush_alarm, LOG_EXPORT_FLUSH_MS);
	list_append(&exporter->flushes, &flush->node);
	return true;
}
