/*
 * All watches of one envd. Those that are polled (polled_watch.h) are found here by their id; the
 * others belong to their streams.
 */
#ifndef ENVD_WATCH_WATCH_TABLE_H
#define ENVD_WATCH_WATCH_TABLE_H

#include "envd/watch/watch.h"

struct watch_table {
	struct watch_settings settings;
	struct list_node watches;
	size_t count;
	struct list_node polled; /* that have an id; the one that was polled longest ago is first */
	size_t held_bytes; /* events that wait in envd, of all watches */
	size_t lost; /* pollers that have lost events to WATCHERS_BYTES_MAX, since it was logged */
	uint64_t lost_total; /* the same, ever */
	uint64_t lost_logged_ms; /* 0: never */
	struct alarm expiry; /* an idle one; set while there are polled ones */
	bool is_stopped;
};

struct watch_table *watch_table_new(const struct watch_settings *settings);
/* Ends every watch with `unavailable`. The loop then holds the table until helpers are gone. */
void watch_table_stop(struct watch_table *table);
/* After the loop has run out. */
void watch_table_free(struct watch_table *table);

/* watch_open, counted. resource_exhausted beyond WATCHES_MAX. */
struct watch *watch_table_open(struct watch_table *table, const struct watch_request *request,
			       const struct watch_ops *ops, void *user, struct err *err) NODISCARD;

/* After a polled one has come or gone. */
void watch_table_check_expiry(struct watch_table *table);

#endif
