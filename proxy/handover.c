#include "proxy/handover.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/stream_uv.h"
#include "proxy/handover_private.h"
#include "proxy/limits.h"

extern char **environ;

/* ---- the end of it ---- */

static void release(struct handover *h)
{
	assert(h->parts > 0);
	if (--h->parts)
		return;
	for (size_t i = 0; i < h->count; i++)
		close_fd(&h->sockets[i].fd);
	buf_fini(&h->received);
	wipe(&h->tickets, sizeof(h->tickets));
	catalog_snapshot_free(h->records, h->record_count);
	close_fd(&h->fd);
	free(h);
}

static void on_process_closed(uv_handle_t *handle)
{
	release(container_of((uv_process_t *)handle, struct handover, process));
}

static void on_stream_closed(struct stream *s)
{
	struct handover *h = s->user;

	h->stream = NULL;
	release(h);
}

static void close_now(struct handover *h)
{
	h->closing = true;
	h->parts++;
	if (h->loop && !h->finishing)
		catalog_unlisten(h->catalog, &h->listener);
	message_close(&h->changed);
	alarm_cancel(&h->alarm);
	if (h->stream)
		stream_close(h->stream, false);
	/* One that does not serve yet is not left behind; its handle stays until it is
	 * collected. */
	if (h->alive && !h->is_ready)
		uv_process_kill(&h->process, SIGKILL);
	else if (h->spawned)
		uv_close((uv_handle_t *)&h->process, on_process_closed);
	release(h);
}

static void on_shut(struct stream *s)
{
	struct handover *h = s->user;

	if (h->finishing && !h->closing)
		close_now(h);
}

/* What was said last is not lost because the other one is slow to hear it. */
void handover_close(struct handover *h)
{
	if (!h || h->closing || h->finishing)
		return;
	if (!h->is_ready || !h->stream || !h->stream->queued) {
		close_now(h);
		return;
	}
	h->finishing = true;
	catalog_unlisten(h->catalog, &h->listener);
	stream_read_stop(h->stream);
	alarm_set(h->loop, &h->alarm, PROXY_HANDOVER_IDLE_MS);
	if (stream_shutdown(h->stream) < 0)
		close_now(h);
}

/* Of the old one, before the successor is ready. */
static void give_up(struct handover *h, const struct err *err)
{
	const struct handover_events *events = h->events;
	void *user = h->user;

	handover_close(h);
	events->on_failed(user, err);
}

static void lose(struct handover *h, const char *why)
{
	struct err err;

	if (h->closing)
		return;
	if (h->finishing) {
		close_now(h);
		return;
	}
	if (h->is_successor || h->is_ready) {
		/* What is drained here goes on being drained; what serves here goes on serving. */
		const struct handover_events *events = h->events;
		void *user = h->user;

		log_debug("handover", "over", LOG_S("reason", why));
		close_now(h);
		events->on_over(user);
		return;
	}
	err_set(&err, ERR_UNAVAILABLE, "the successor is not ready: %s", why);
	give_up(h, &err);
}

/* ---- sending ---- */

static int send_text(struct handover *h, struct buf *b)
{
	struct iovec piece = {buf_data(b), buf_length(b)};
	int status = h->stream ? stream_write(h->stream, &piece, 1) : -ENOTCONN;

	/* Tokens and keys. */
	if (buf_length(b))
		wipe(buf_data(b), buf_length(b));
	buf_fini(b);
	return status;
}

/* Changes that the other side does not hear of by itself. */
static bool is_told(const struct sandbox_entry *entry)
{
	return !sandbox_origin_is_source(entry->origin);
}

static int write_change(struct buf *b, const struct catalog_change *change)
{
	if (!is_told(&change->record->entry))
		return 0;
	if (change->kind == CATALOG_REMOVED)
		return handover_write_removed(b, &change->record->entry);
	return handover_write_put(b, &change->record->entry);
}

/* False when the stream is full, or there is nothing more to say now. */
static bool send_changes(struct handover *h)
{
	struct catalog_change changes[HANDOVER_CHANGES_AT_ONCE];
	ssize_t count = catalog_changes(h->catalog, h->revision, changes, ARRAY_LENGTH(changes));
	struct buf b;
	int status = 0;

	if (count < 0) {
		lose(h, "more changes than are kept");
		return false;
	}
	buf_init(&b, SIZE_MAX);
	for (ssize_t i = 0; i < count; i++) {
		if (status == 0)
			status = write_change(&b, &changes[i]);
		h->revision = changes[i].revision;
		catalog_record_release(changes[i].record);
	}
	if (status < 0) {
		buf_fini(&b);
		lose(h, "out of memory");
		return false;
	}
	return send_text(h, &b) == 0 && count > 0;
}

static bool send_records(struct handover *h)
{
	struct buf b;
	int status = 0;

	buf_init(&b, SIZE_MAX);
	for (size_t i = 0; i < HANDOVER_CHANGES_AT_ONCE && h->record_at < h->record_count; i++) {
		const struct catalog_record *record = h->records[h->record_at++];

		if (status == 0)
			status = handover_write_put(&b, &record->entry);
	}
	if (status == 0 && h->record_at == h->record_count) {
		catalog_snapshot_free(h->records, h->record_count);
		h->records = NULL;
		h->record_count = h->record_at = 0;
		status = handover_write_word(&b, HANDOVER_SYNCED);
	}
	if (status < 0) {
		buf_fini(&b);
		lose(h, "out of memory");
		return false;
	}
	return send_text(h, &b) == 0;
}

static void send_what_there_is(struct handover *h)
{
	bool more = h->may_send && !h->finishing;

	while (more && !h->closing)
		more = h->records ? send_records(h) : send_changes(h);
}

static void say(struct handover *h, enum handover_word word)
{
	struct buf b;

	buf_init(&b, SIZE_MAX);
	if (handover_write_word(&b, word) == 0)
		(void)send_text(h, &b);
	else
		buf_fini(&b);
}

void handover_say_over(struct handover *h)
{
	if (h->closing || !h->may_send)
		return;
	/* The stream keeps what is not gone yet, in this order. */
	while (catalog_revision(h->catalog) != h->revision && !h->closing)
		(void)send_changes(h);
	h->may_send = false;
	say(h, HANDOVER_OVER);
}

static void on_changed(struct message *changed)
{
	send_what_there_is(container_of(changed, struct handover, changed));
}

/* From any thread. */
static void on_catalog_change(struct catalog_listener *listener)
{
	message_post(&container_of(listener, struct handover, listener)->changed);
}

static void on_drained(struct stream *s)
{
	send_what_there_is(s->user);
}

/* ---- receiving ---- */

static void on_ready(struct handover *h)
{
	if (h->is_successor || h->is_ready)
		return;
	h->is_ready = true;
	alarm_cancel(&h->alarm);
	h->events->on_ready(h->user, h->process.pid);
}

/* The predecessor changes nothing any more: it hears what changes here. */
static void on_over(struct handover *h)
{
	if (!h->is_successor)
		return;
	h->may_send = true;
	h->events->on_quiet(h->user);
	send_what_there_is(h);
}

static void take_line(struct handover *h, struct str text)
{
	struct handover_line line;
	struct arena arena;
	struct err err;

	arena_init(&arena, HANDOVER_ARENA_BYTES);
	if (handover_read(text, &arena, &line, &err) < 0)
		log_warn("handover", "a line cannot be read", LOG_S("reason", err.message));
	else if (line.word == HANDOVER_READY)
		on_ready(h);
	else if (line.word == HANDOVER_OVER)
		on_over(h);
	else
		handover_apply(h->catalog, &line);
	arena_release(&arena);
}

static void on_read(struct stream *s, const char *data, size_t len)
{
	struct handover *h = s->user;
	struct str line;

	if (buf_append(&h->received, data, len) < 0) {
		lose(h, "a line is too long");
		return;
	}
	while (!h->closing && handover_next_line(&h->received, &line)) {
		take_line(h, line);
		handover_consume_line(&h->received, line);
	}
}

static void on_end(struct stream *s, int status)
{
	lose(s->user, status < 0 ? errno_text(status) : "it has ended");
}

static const struct stream_events stream_events = {
	.on_read = on_read,
	.on_end = on_end,
	.on_drained = on_drained,
	.on_shut = on_shut,
	.on_closed = on_stream_closed,
};

static void on_alarm(struct alarm *alarm)
{
	lose(container_of(alarm, struct handover, alarm), "it takes too long");
}

static int open_stream(struct handover *h, struct loop *loop, struct catalog *catalog,
		       struct err *err)
{
	int status = stream_uv_open_pipe(loop, h->fd, &h->stream);

	if (status < 0)
		return err_set_sys(err, ERR_INTERNAL, status, "open the handover's socket");
	h->fd = -1;
	h->loop = loop;
	h->catalog = catalog;
	h->stream->events = &stream_events;
	h->stream->user = h;
	message_open(&h->changed, loop, on_changed);
	alarm_init(&h->alarm, on_alarm);
	h->parts++;
	h->listener.notify = on_catalog_change;
	catalog_listen(catalog, &h->listener);
	status = stream_read_start(h->stream);
	return status < 0 ? err_set_sys(err, ERR_INTERNAL, status, "read the handover's socket")
			  : 0;
}

struct handover *handover_new(void)
{
	struct handover *h = xcalloc(1, sizeof(*h));

	h->fd = -1;
	buf_init(&h->received, HANDOVER_LINE_BYTES_MAX);
	return h;
}

/* ---- the old one ---- */

static void on_successor_exit(uv_process_t *process, int64_t code, int number)
{
	struct handover *h = container_of(process, struct handover, process);
	char why[64];

	h->alive = false;
	if (h->closing) {
		uv_close((uv_handle_t *)process, on_process_closed);
		return;
	}
	snprintf(why, sizeof(why), number ? "it died of signal %d" : "it ended with %d",
		 number ? number : (int)code);
	lose(h, why);
}

/* environ with our variable; the strings stay environ's but for ours. */
static char **make_environment(char *variable)
{
	size_t count = 0, kept = 0;
	char **copy;

	while (environ[count])
		count++;
	copy = xcalloc(count + 2, sizeof(*copy));
	for (size_t i = 0; i < count; i++)
		if (!str_starts_with(str_of(environ[i]), STR(HANDOVER_VARIABLE "=")))
			copy[kept++] = environ[i];
	copy[kept] = variable;
	return copy;
}

static int spawn(struct handover *h, struct loop *loop, char **argv, int theirs,
		 const struct handover_socket *sockets, size_t count)
{
	char variable[] = HANDOVER_VARIABLE "=3";
	uv_stdio_container_t stdio[HANDOVER_FIRST_FD + 1 + HANDOVER_LISTENERS_MAX];
	auto_free char **environment = make_environment(variable);
	uv_process_options_t options = {
		.exit_cb = on_successor_exit,
		.file = argv[0],
		.args = argv,
		.env = environment,
		.stdio = stdio,
		.stdio_count = (int)(HANDOVER_FIRST_FD + 1 + count),
	};
	int status;

	for (int fd = 0; fd < HANDOVER_FIRST_FD; fd++)
		stdio[fd] = (uv_stdio_container_t){.flags = UV_INHERIT_FD, .data.fd = fd};
	stdio[HANDOVER_FIRST_FD] = (uv_stdio_container_t){.flags = UV_INHERIT_FD,
							  .data.fd = theirs};
	for (size_t i = 0; i < count; i++)
		stdio[HANDOVER_FIRST_FD + 1 + i] = (uv_stdio_container_t){.flags = UV_INHERIT_FD,
									  .data.fd = sockets[i].fd};
	status = uv_spawn(&loop->uv, &h->process, &options);
	/* The handle is to be closed also when nothing was started. */
	h->spawned = true;
	h->alive = status == 0;
	h->parts++;
	return status;
}

static int send_listeners(struct handover *h, const struct handover_socket *sockets, size_t count,
			  const struct handover_tickets *tickets)
{
	const char *kinds[HANDOVER_LISTENERS_MAX];
	struct buf b;
	int status;

	for (size_t i = 0; i < count; i++)
		kinds[i] = sockets[i].kind;
	h->records = catalog_snapshot(h->catalog, &h->record_count, &h->revision);
	buf_init(&b, SIZE_MAX);
	status = handover_write_listeners(&b, kinds, count, catalog_is_complete(h->catalog),
					  h->revision);
	if (status == 0 && tickets)
		status = handover_write_tickets(&b, tickets);
	if (status < 0) {
		buf_fini(&b);
		return status;
	}
	return send_text(h, &b);
}

int handover_begin(struct loop *loop, struct catalog *catalog, char **argv,
		   const struct handover_socket *sockets, size_t count,
		   const struct handover_tickets *tickets, const struct handover_events *events,
		   void *user, struct handover **ret_handover, struct err *err)
{
	struct handover *h = handover_new();
	auto_close int theirs = -1;
	int pair[2], status;

	assert(count <= HANDOVER_LISTENERS_MAX);
	h->events = events;
	h->user = user;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		status = err_set_sys(err, ERR_RESOURCE_EXHAUSTED, errno, "socketpair");
		handover_close(h);
		return status;
	}
	h->fd = pair[0];
	theirs = pair[1];
	status = open_stream(h, loop, catalog, err);
	if (status == 0) {
		status = spawn(h, loop, argv, theirs, sockets, count);
		if (status < 0)
			status = err_set_sys(err, ERR_UNAVAILABLE, status, "start %s", argv[0]);
	}
	if (status < 0) {
		handover_close(h);
		return status;
	}
	h->may_send = true;
	alarm_set(loop, &h->alarm, PROXY_HANDOVER_MS);
	*ret_handover = h;
	if (send_listeners(h, sockets, count, tickets) >= 0)
		send_what_there_is(h);
	return 0;
}

/* ---- the new one, once it serves ---- */

int handover_say_ready(struct handover *h, struct loop *loop, const struct handover_events *events,
		       void *user, struct err *err)
{
	int status;

	h->events = events;
	h->user = user;
	fcntl(h->fd, F_SETFD, FD_CLOEXEC);
	h->is_successor = true;
	h->revision = catalog_revision(h->catalog);
	status = open_stream(h, loop, h->catalog, err);
	if (status < 0)
		return status;
	say(h, HANDOVER_READY);
	/* Lines that came with the catalog and were not looked at yet. */
	on_read(h->stream, "", 0);
	return 0;
}
