#include "proxy/relay/access_log.h"

#include <time.h>
#include <unistd.h>

#include "lib/json_writer.h"
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

static void put_time(struct json_writer *w)
{
	struct timespec now;
	char text[TIMESTAMP_BYTES];

	clock_gettime(CLOCK_REALTIME, &now);
	json_writer_text(w, "ts", timestamp_write_ms(now.tv_sec, (int32_t)now.tv_nsec, text));
}

static int put_entry(struct buf *b, const struct access_entry *e)
{
	struct str traceparent = access_log_traceparent(e->traceparent);
	struct json_writer w;

	json_writer_init(&w, b);
	json_writer_object(&w, NULL);
	put_time(&w);
	json_writer_text(&w, "peer", str_of(e->peer));
	if (e->protocol)
		json_writer_text(&w, "protocol", str_of(e->protocol));
	json_writer_text(&w, "method", cut(e->method, TEXT_SHOWN_BYTES));
	json_writer_text(&w, "host", cut(e->host, TEXT_SHOWN_BYTES));
	json_writer_text(&w, "path", cut(e->path, PATH_SHOWN_BYTES));
	if (e->has_query)
		json_writer_text(&w, "query", STR("(masked)"));
	if (e->sandbox) {
		json_writer_text(&w, "sandbox", str_of(e->sandbox));
		json_writer_uint(&w, "port", e->port);
	}
	if (e->handler.p)
		json_writer_text(&w, "handler", e->handler);
	if (e->upstream)
		json_writer_text(&w, "upstream", str_of(e->upstream));
	json_writer_int(&w, "status", e->status);
	if (e->error)
		json_writer_text(&w, "error", str_of(e->error));
	json_writer_text(&w, "end", str_of(e->end));
	if (e->tunnel)
		json_writer_bool(&w, "tunnel", true);
	if (e->tls)
		json_writer_text(&w, "tls", str_of(e->tls));
	json_writer_uint(&w, "received", e->received);
	json_writer_uint(&w, "sent", e->sent);
	json_writer_uint(&w, "duration_ms", e->duration_ms);
	if (e->status)
		json_writer_uint(&w, "first_byte_ms", e->first_byte_ms);
	if (traceparent.p)
		json_writer_text(&w, "traceparent", traceparent);
	if (e->user_agent.len)
		json_writer_text(&w, "user_agent", cut(e->user_agent, TEXT_SHOWN_BYTES));
	return json_writer_end_line(&w);
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
