/* The successor, from its first moment until its loop runs: it waits for what it is to know. */
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "lib/log.h"
#include "proxy/catalog/sandbox_fields.h"
#include "proxy/handover_private.h"
#include "proxy/limits.h"

bool handover_next_line(const struct buf *b, struct str *ret_line)
{
	const char *data = buf_data(b);
	const char *end = buf_length(b) ? memchr(data, '\n', buf_length(b)) : NULL;

	if (!end)
		return false;
	*ret_line = (struct str){data, (size_t)(end - data)};
	return true;
}

void handover_consume_line(struct buf *b, struct str line)
{
	wipe(buf_data(b), line.len);
	buf_consume(b, line.len + 1);
}

static void apply_put(struct catalog *catalog, const struct sandbox_entry *entry)
{
	struct catalog_record *record;
	struct err err;
	bool is_known = false;

	if (catalog_find(catalog, str_of(entry->id), &record) == 0) {
		is_known = sandbox_entry_equals(&record->entry, entry);
		catalog_record_release(record);
	}
	if (!is_known && catalog_put(catalog, entry, "", NULL, &err) < 0)
		log_warn("handover", "a sandbox is not taken over", LOG_S("id", entry->id),
			 LOG_S("reason", err.message));
}

void handover_apply(struct catalog *catalog, const struct handover_line *line)
{
	if (line->word == HANDOVER_PUT)
		apply_put(catalog, &line->entry);
	else if (line->word == HANDOVER_REMOVED)
		catalog_remove_of(catalog, str_of(line->entry.id), line->entry.origin);
}

/* Waits for the next line. */
static int read_line(struct handover *h, int64_t until_ms, struct str *ret_line, struct err *err)
{
	while (!handover_next_line(&h->received, ret_line)) {
		int64_t left_ms = until_ms - monotonic_ms();
		struct pollfd poll_fd = {.fd = h->fd, .events = POLLIN};
		char *room;
		ssize_t len;

		if (left_ms <= 0 || poll(&poll_fd, 1, (int)left_ms) == 0)
			return err_set(err, ERR_DEADLINE_EXCEEDED,
				       "the predecessor does not speak");
		if (buf_reserve(&h->received, 4096, &room) < 0)
			return err_set(err, ERR_RESOURCE_EXHAUSTED,
				       "a line of the predecessor is too long");
		len = read(h->fd, room, 4096);
		if (len == 0 || (len < 0 && errno != EINTR && errno != EAGAIN))
			return err_set_sys(err, ERR_UNAVAILABLE, len ? errno : ECONNRESET,
					   "the predecessor");
		if (len > 0)
			buf_commit(&h->received, (size_t)len);
	}
	return 0;
}

static int take_listeners(struct handover *h, const struct handover_line *line, struct err *err)
{
	size_t count = json_length(line->kinds);

	if (line->word != HANDOVER_LISTENERS || count > HANDOVER_LISTENERS_MAX)
		return err_set(err, ERR_FAILED_PRECONDITION, "the predecessor speaks otherwise");
	for (size_t i = 0; i < count; i++) {
		struct str kind = json_string(json_at(line->kinds, i));
		int fd = HANDOVER_FIRST_FD + 1 + (int)i;

		if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
			return err_set_sys(err, ERR_FAILED_PRECONDITION, errno,
					   "a listening socket was not inherited");
		snprintf(h->sockets[i].kind, sizeof(h->sockets[i].kind), "%.*s", (int)kind.len,
			 kind.p ? kind.p : "");
		h->sockets[i].fd = fd;
		h->count++;
	}
	h->complete = line->complete;
	h->first_revision = line->revision;
	return 0;
}

static int inherit(struct handover *h, struct err *err)
{
	struct handover_line line;
	struct arena arena;
	struct str text;
	int status = read_line(h, monotonic_ms() + PROXY_HANDOVER_MS, &text, err);

	if (status < 0)
		return status;
	arena_init(&arena, HANDOVER_ARENA_BYTES);
	status = handover_read(text, &arena, &line, err);
	if (status == 0)
		status = take_listeners(h, &line, err);
	arena_release(&arena);
	handover_consume_line(&h->received, text);
	return status;
}

int handover_inherit(struct handover **ret_handover, struct err *err)
{
	const char *variable = getenv(HANDOVER_VARIABLE);
	struct handover *h;
	uint64_t fd;
	int status;

	*ret_handover = NULL;
	if (!variable)
		return 0;
	if (str_to_u64(str_of(variable), INT32_MAX, &fd) < 0 ||
	    fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0)
		return err_set(err, ERR_INVALID_ARGUMENT, HANDOVER_VARIABLE " is set by mistake");
	unsetenv(HANDOVER_VARIABLE);
	h = handover_new();
	h->fd = (int)fd;
	status = inherit(h, err);
	if (status < 0)
		handover_close(h);
	else
		*ret_handover = h;
	return status;
}

size_t handover_count(const struct handover *h, const char *kind)
{
	size_t count = 0;

	for (size_t i = 0; h && i < h->count; i++)
		count += strcmp(h->sockets[i].kind, kind) == 0;
	return count;
}

int handover_take_socket(struct handover *h, const char *kind)
{
	for (size_t i = 0; h && i < h->count; i++)
		if (h->sockets[i].fd >= 0 && strcmp(h->sockets[i].kind, kind) == 0)
			return take_fd(&h->sockets[i].fd);
	return -1;
}

int handover_read_catalog(struct handover *h, struct catalog *catalog, bool *ret_complete,
			  struct err *err)
{
	int64_t until_ms = monotonic_ms() + PROXY_HANDOVER_MS;
	bool synced = false;

	h->catalog = catalog;
	*ret_complete = h->complete;
	/* Nobody who followed the old one's changes may take ours for the ones that come next. */
	catalog_begin_after(catalog, h->first_revision + PROXY_CHANGES_KEPT + 1);
	while (!synced) {
		struct handover_line line;
		struct arena arena;
		struct str text;
		int status = read_line(h, until_ms, &text, err);

		if (status < 0)
			return status;
		arena_init(&arena, HANDOVER_ARENA_BYTES);
		status = handover_read(text, &arena, &line, err);
		if (status == 0)
			handover_apply(catalog, &line);
		if (status == 0 && line.word == HANDOVER_TICKETS)
			h->tickets = line.tickets;
		synced = status == 0 && line.word == HANDOVER_SYNCED;
		wipe(&line.tickets, sizeof(line.tickets));
		arena_release(&arena);
		if (status < 0)
			return status;
		handover_consume_line(&h->received, text);
	}
	return 0;
}

bool handover_take_tickets(struct handover *h, struct handover_tickets *ret_tickets)
{
	if (!h || h->tickets.len == 0)
		return false;
	*ret_tickets = h->tickets;
	wipe(&h->tickets, sizeof(h->tickets));
	return true;
}
