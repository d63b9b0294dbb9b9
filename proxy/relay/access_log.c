#include "proxy/relay/access_log.h"

#include <time.h>
#include <unistd.h>

#include "lib/json.h"
#include "lib/timestamp.h"

#define LINES_BYTES_MAX (1024 * 1024)
#define FLUSH_BYTES (32 * 1024)
#define FLUSH_MS 200
#define PATH_SHOWN_BYTES 1024
#define TEXT_SHOWN_BYTES 256
#define TRACEPARENT_BYTES 55

/* The most that one line can be, every byte of its texts escaped. */
#define LINE_BYTES_MAX (16 * 1024)

void access_sink_open(struct access_sink *sink, int fd)
{
	sink_open(&sink->sink, fd);
	sink->fd = fd;
	atomic_init(&sink->dropped, 0);
	pthread_mutex_init(&sink->lock, NULL);
	buf_init(&sink->rest, LINE_BYTES_MAX);
}

void access_sink_close(struct access_sink *sink)
{
	sink_close(&sink->sink);
	pthread_mutex_destroy(&sink->lock);
	buf_fini(&sink->rest);
}

/* What is left of a line that was begun. 0 or a negative errno. */
static ssize_t write_rest(struct access_sink *sink)
{
	ssize_t done = 0;

	while (buf_length(&sink->rest) && done >= 0) {
		done = sink_put(&sink->sink, buf_data(&sink->rest), buf_length(&sink->rest));
		if (done > 0)
			buf_consume(&sink->rest, (size_t)done);
	}
	return done < 0 ? done : 0;
}

int access_sink_replace(struct access_sink *sink, int fd)
{
	int former;

	pthread_mutex_lock(&sink->lock);
	if (write_rest(sink) < 0)
		counter_add(&sink->dropped); /* the file with its beginning is full, or has no
						reader any more */
	buf_clear(&sink->rest);
	former = sink->fd;
	sink_close(&sink->sink);
	sink_open(&sink->sink, fd);
	sink->fd = fd;
	pthread_mutex_unlock(&sink->lock);
	return former;
}

/* As much of `lines` as there is room for; a line that was begun counts as written, its rest is
 * kept. 0, -EAGAIN when there is no more room, or another negative errno. */
static int write_whole_lines(struct access_sink *sink, struct buf *lines)
{
	ssize_t done = write_rest(sink);

	while (buf_length(lines) && done >= 0) {
		const char *end;
		bool is_whole;

		done = sink_put(&sink->sink, buf_data(lines), buf_length(lines));
		if (done <= 0)
			continue;
		is_whole = buf_data(lines)[done - 1] == '\n';
		buf_consume(lines, (size_t)done);
		if (is_whole)
			continue;
		end = memchr(buf_data(lines), '\n', buf_length(lines));
		if (buf_append(&sink->rest, buf_data(lines), (size_t)(end - buf_data(lines)) + 1) <
		    0)
			return -ENOMEM;
		buf_consume(lines, buf_length(&sink->rest));
		return -EAGAIN;
	}
	return done < 0 ? (int)done : 0;
}

static void write_lines(struct job *job)
{
	struct access_log *log = container_of(job, struct access_log, job);

	pthread_mutex_lock(&log->sink->lock);
	do
		log->status = write_whole_lines(log->sink, &log->writing);
	while (log->status == -EINTR);
	pthread_mutex_unlock(&log->sink->lock);
}

static void drop(struct access_log *log, struct buf *lines)
{
	struct str rest = buf_str(lines), line;

	while (rest.len && str_split(&rest, '\n', &line))
		counter_add(&log->dropped);
	buf_clear(lines);
}

static void flush(struct access_log *log);
static void arm(struct access_log *log)
{
	if (!alarm_is_set(&log->alarm) && !log->closing)
		alarm_set(log->loop, &log->alarm, FLUSH_MS);
}

static void on_written(struct job *job)
{
	struct access_log *log = container_of(job, struct access_log, job);

	log->busy = false;
	/* No room: again in a while. A full disk or a closed pipe: the proxy goes on without. */
	if (log->closing || (log->status < 0 && log->status != -EAGAIN))
		drop(log, &log->writing);
	if (buf_length(&log->writing))
		arm(log);
	else if (buf_length(&log->lines) >= FLUSH_BYTES || log->closing)
		flush(log);
	else if (buf_length(&log->lines))
		arm(log); /* their alarm may have found us busy */
}

static void finish_close(struct access_log *log)
{
	buf_fini(&log->lines);
	buf_fini(&log->writing);
}

static void flush(struct access_log *log)
{
	if (log->busy)
		return;
	if (buf_length(&log->writing) == 0) {
		struct buf swap = log->writing;

		log->writing = log->lines;
		log->lines = swap;
		buf_clear(&log->lines);
	}
	if (buf_length(&log->writing) == 0) {
		if (log->closing)
			finish_close(log);
		return;
	}
	if (job_run(log->loop, &log->job, JOB_QUICK, write_lines, on_written) < 0) {
		drop(log, &log->writing);
		if (log->closing) {
			drop(log, &log->lines);
			finish_close(log);
		}
		return;
	}
	log->busy = true;
}

static void on_alarm(struct alarm *alarm)
{
	flush(container_of(alarm, struct access_log, alarm));
}

void access_log_open(struct access_log *log, struct loop *loop, struct access_sink *sink)
{
	memset(log, 0, sizeof(*log));
	log->loop = loop;
	log->sink = sink;
	buf_init(&log->lines, LINES_BYTES_MAX);
	buf_init(&log->writing, LINES_BYTES_MAX);
	alarm_init(&log->alarm, on_alarm);
}

static struct str cut(struct str text, size_t max)
{
	return (struct str){text.p ? text.p : "", size_min(text.len, max)};
}

static int put_text(struct buf *b, const char *key, struct str text)
{
	int status = buf_printf(b, ",\"%s\":", key);

	return status < 0 ? status : json_write_string(b, text, false);
}

/* Lower-case hex digits; false also when all of them are 0. */
static bool is_id(struct str text)
{
	bool any = false;

	for (size_t i = 0; i < text.len; i++) {
		bool is_hex = (text.p[i] >= '0' && text.p[i] <= '9') ||
			      (text.p[i] >= 'a' && text.p[i] <= 'f');

		if (!is_hex)
			return false;
		any |= text.p[i] != '0';
	}
	return any;
}

static bool is_hex_byte(const char *at)
{
	return str_equal((struct str){at, 2}, STR("00")) || is_id((struct str){at, 2});
}

/* version "-" trace-id "-" parent-id "-" flags */
struct str access_log_traceparent(struct str value)
{
	const char *p = value.p;

	if (value.len < TRACEPARENT_BYTES || p[2] != '-' || p[35] != '-' || p[52] != '-' ||
	    !is_hex_byte(p) || str_equal((struct str){p, 2}, STR("ff")) ||
	    !is_id((struct str){p + 3, 32}) || !is_id((struct str){p + 36, 16}) ||
	    !is_hex_byte(p + 53))
		return (struct str){0};
	if (value.len > TRACEPARENT_BYTES &&
	    (str_equal((struct str){p, 2}, STR("00")) || p[TRACEPARENT_BYTES] != '-'))
		return (struct str){0};
	return (struct str){p, TRACEPARENT_BYTES};
}

static int put_time(struct buf *b)
{
	struct timespec now;
	char text[TIMESTAMP_BYTES];
	struct str written;

	clock_gettime(CLOCK_REALTIME, &now);
	written = timestamp_write_ms(now.tv_sec, (int32_t)now.tv_nsec, text);
	return buf_printf(b, "{\"ts\":\"%.*s\"", (int)written.len, written.p);
}

static int put_entry(struct buf *b, const struct access_entry *e)
{
	struct str traceparent = access_log_traceparent(e->traceparent);
	int status = put_time(b);

	if (status == 0)
		status = put_text(b, "peer", str_of(e->peer));
	if (status == 0 && e->protocol)
		status = put_text(b, "protocol", str_of(e->protocol));
	if (status == 0)
		status = put_text(b, "method", cut(e->method, TEXT_SHOWN_BYTES));
	if (status == 0)
		status = put_text(b, "host", cut(e->host, TEXT_SHOWN_BYTES));
	if (status == 0)
		status = put_text(b, "path", cut(e->path, PATH_SHOWN_BYTES));
	if (status == 0 && e->has_query)
		status = buf_append_str(b, STR(",\"query\":\"(masked)\""));
	if (status == 0 && e->sandbox) {
		status = put_text(b, "sandbox", str_of(e->sandbox));
		if (status == 0)
			status = buf_printf(b, ",\"port\":%u", e->port);
	}
	if (status == 0 && e->handler.p)
		status = put_text(b, "handler", e->handler);
	if (status == 0 && e->upstream)
		status = put_text(b, "upstream", str_of(e->upstream));
	if (status == 0)
		status = buf_printf(b, ",\"status\":%d", e->status);
	if (status == 0 && e->error)
		status = put_text(b, "error", str_of(e->error));
	if (status == 0)
		status = put_text(b, "end", str_of(e->end));
	if (status == 0 && e->tunnel)
		status = buf_append_str(b, STR(",\"tunnel\":true"));
	if (status == 0 && e->tls)
		status = buf_printf(b, ",\"tls\":\"%s\"", e->tls);
	if (status == 0)
		status = buf_printf(b, ",\"received\":%llu,\"sent\":%llu,\"duration_ms\":%llu",
				    (unsigned long long)e->received, (unsigned long long)e->sent,
				    (unsigned long long)e->duration_ms);
	if (status == 0 && e->status)
		status = buf_printf(b, ",\"first_byte_ms\":%llu",
				    (unsigned long long)e->first_byte_ms);
	if (status == 0 && traceparent.p)
		status = put_text(b, "traceparent", traceparent);
	if (status == 0 && e->user_agent.len)
		status = put_text(b, "user_agent", cut(e->user_agent, TEXT_SHOWN_BYTES));
	return status < 0 ? status : buf_append_str(b, STR("}\n"));
}

void access_log_write(struct access_log *log, const struct access_entry *entry)
{
	size_t before = log->lines.end;

	if (!log->sink || log->closing)
		return;
	if (put_entry(&log->lines, entry) < 0) {
		log->lines.end = size_min(before, log->lines.end);
		counter_add(&log->dropped);
		return;
	}
	/* While it is busy, `writing` is the job's. What waits for room is not helped by another
	 * attempt at once. */
	if (buf_length(&log->lines) >= FLUSH_BYTES && !log->busy && buf_length(&log->writing) == 0)
		flush(log);
	else
		arm(log);
}

void access_log_close(struct access_log *log)
{
	if (log->closing)
		return;
	log->closing = true;
	alarm_cancel(&log->alarm);
	flush(log);
}
