#include "proxy/admin/access_log.h"

#include <time.h>
#include <unistd.h>

#include "lib/json.h"

#define LINES_BYTES_MAX (1024 * 1024)
#define FLUSH_BYTES (32 * 1024)
#define FLUSH_MS 200
#define PATH_SHOWN_BYTES 1024
#define TEXT_SHOWN_BYTES 256

static void write_lines(struct job *job)
{
	struct access_log *log = container_of(job, struct access_log, job);

	while (buf_length(&log->writing)) {
		ssize_t len = write(log->fd, buf_data(&log->writing), buf_length(&log->writing));

		if (len < 0 && errno == EINTR)
			continue;
		if (len <= 0)
			break; /* a full disk or a closed pipe must not stop the proxy */
		buf_consume(&log->writing, (size_t)len);
	}
}

static void flush(struct access_log *log);

static void on_written(struct job *job)
{
	struct access_log *log = container_of(job, struct access_log, job);

	log->busy = false;
	buf_clear(&log->writing);
	if (buf_length(&log->lines) >= FLUSH_BYTES || log->closing)
		flush(log);
}

static void finish_close(struct access_log *log)
{
	buf_fini(&log->lines);
	buf_fini(&log->writing);
}

static void flush(struct access_log *log)
{
	struct buf swap;

	if (log->busy)
		return;
	if (buf_length(&log->lines) == 0) {
		if (log->closing)
			finish_close(log);
		return;
	}
	swap = log->writing;
	log->writing = log->lines;
	log->lines = swap;
	if (job_run(log->loop, &log->job, JOB_QUICK, write_lines, on_written) < 0) {
		log->dropped++;
		buf_clear(&log->writing);
		if (log->closing)
			finish_close(log);
		return;
	}
	log->busy = true;
}

static void on_timer(uv_timer_t *timer)
{
	struct access_log *log = container_of(timer, struct access_log, timer);

	log->armed = false;
	flush(log);
}

void access_log_open(struct access_log *log, struct loop *loop, int fd)
{
	memset(log, 0, sizeof(*log));
	log->loop = loop;
	log->fd = fd;
	buf_init(&log->lines, LINES_BYTES_MAX);
	buf_init(&log->writing, LINES_BYTES_MAX);
	uv_timer_init(&loop->uv, &log->timer);
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

static int put_time(struct buf *b)
{
	struct timespec now;
	struct tm parts;
	char text[32];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &parts);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
	return buf_printf(b, "{\"ts\":\"%s.%03ldZ\"", text, now.tv_nsec / 1000000);
}

static int put_entry(struct buf *b, const struct access_entry *e)
{
	int status = put_time(b);

	if (status == 0)
		status = put_text(b, "peer", str_of(e->peer));
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
	if (status == 0)
		status = buf_printf(b, ",\"status\":%d", e->status);
	if (status == 0 && e->error)
		status = put_text(b, "error", str_of(e->error));
	if (status == 0)
		status = put_text(b, "end", str_of(e->end));
	if (status == 0 && e->tunnel)
		status = buf_append_str(b, STR(",\"tunnel\":true"));
	if (status == 0)
		status = buf_printf(b, ",\"received\":%llu,\"sent\":%llu,\"duration_ms\":%llu",
				    (unsigned long long)e->received, (unsigned long long)e->sent,
				    (unsigned long long)e->duration_ms);
	if (status == 0 && e->user_agent.len)
		status = put_text(b, "user_agent", cut(e->user_agent, TEXT_SHOWN_BYTES));
	return status < 0 ? status : buf_append_str(b, STR("}\n"));
}

void access_log_write(struct access_log *log, const struct access_entry *entry)
{
	size_t before = log->lines.end;

	if (log->fd < 0 || log->closing)
		return;
	if (put_entry(&log->lines, entry) < 0) {
		log->lines.end = size_min(before, log->lines.end);
		log->dropped++;
		return;
	}
	if (buf_length(&log->lines) >= FLUSH_BYTES) {
		flush(log);
	} else if (!log->armed) {
		log->armed = true;
		uv_timer_start(&log->timer, on_timer, FLUSH_MS, 0);
	}
}

void access_log_close(struct access_log *log)
{
	if (log->closing)
		return;
	log->closing = true;
	uv_close((uv_handle_t *)&log->timer, NULL);
	flush(log);
}
