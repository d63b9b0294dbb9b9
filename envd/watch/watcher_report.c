/* What envd-watch says: records, collected and written in large pieces. */
#include <poll.h>
#include <unistd.h>

#include "envd/watch/watcher.h"

#define OUTPUT_KEPT_BYTES 512
#define NUMBER_BYTES 12
#define FLUSH_BYTES (16 * 1024)

static void wait_for_reader(void)
{
	struct pollfd fd = {.fd = STDOUT_FILENO, .events = POLLOUT};

	(void)poll(&fd, 1, -1);
}

void watcher_flush(struct watcher *watcher)
{
	struct buf *output = &watcher->output;

	while (buf_length(output) > 0) {
		ssize_t len = write(STDOUT_FILENO, buf_data(output), buf_length(output));

		if (len >= 0)
			buf_consume(output, (size_t)len);
		else if (errno == EAGAIN)
			wait_for_reader();
		else if (errno != EINTR)
			_exit(EXIT_SUCCESS); /* nobody reads any more */
	}
	/* A watch that is at rest holds next to nothing. */
	if (output->capacity > OUTPUT_KEPT_BYTES)
		buf_reset(output);
}

static const char *number_text(unsigned number, char text[NUMBER_BYTES])
{
	char *at = text + NUMBER_BYTES - 1;

	*at = '\0';
	do {
		*--at = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	return at;
}

static void put(struct watcher *watcher, const struct watch_record *record)
{
	int status = watch_record_append(&watcher->output, record);

	/* Beyond PATH_MAX many times over; nothing so deep is descended into. */
	if (status == -ENAMETOOLONG)
		return;
	if (status < 0)
		_exit(EXIT_FAILURE);
	if (buf_length(&watcher->output) >= FLUSH_BYTES)
		watcher_flush(watcher);
}

void watcher_report(struct watcher *watcher, enum watch_record_type type,
		    const struct tree_node *node, struct str name)
{
	struct buf *path = &watcher->name;
	int status = 0;

	if (watcher->is_quiet)
		return;
	buf_clear(path);
	if (!name.p || node->parent)
		status = tree_append_path(node, path);
	if (status == 0 && name.p && node->parent)
		status = buf_append(path, "/", 1);
	if (status == 0 && name.p)
		status = buf_append(path, name.p, name.len);
	if (status == -ENOSPC)
		return;
	if (status < 0)
		watcher_fail(watcher, WATCH_CAUSE_SYSTEM, ENOMEM, "path");
	put(watcher, &(struct watch_record){.type = type, .text = buf_str(path)});
}

void watcher_report_plain(struct watcher *watcher, enum watch_record_type type)
{
	put(watcher, &(struct watch_record){.type = type});
}

void watcher_end(struct watcher *watcher, enum watch_record_type root_event)
{
	/* Not while arming for the first time: the client knows of nothing yet. */
	watcher_report(watcher, root_event, watcher->tree.root, (struct str){NULL, 0});
	put(watcher,
	    &(struct watch_record){
		    .type = WATCH_RECORD_GONE,
		    .text = root_event == WATCH_RECORD_RENAME ? STR("moved") : STR("removed"),
	    });
	watcher_flush(watcher);
	_exit(EXIT_SUCCESS);
}

void watcher_fail(struct watcher *watcher, enum watch_cause cause, int error, const char *what)
{
	char limit[NUMBER_BYTES];

	if (cause == WATCH_CAUSE_WATCHES)
		what = number_text((unsigned)watcher_inotify_watches_max(), limit);
	else if (cause == WATCH_CAUSE_INSTANCES)
		what = number_text((unsigned)watcher_inotify_instances_max(), limit);
	put(watcher, &(struct watch_record){
			     .type = WATCH_RECORD_FAILED,
			     .cause = cause,
			     .error = error < 0 ? -error : error,
			     .text = str_of(what),
		     });
	watcher_flush(watcher);
	_exit(EXIT_FAILURE);
}
