/* Shared by redis.c (connections, lookups, what is told), redis_apply.c (one record), redis_scan.c
 * (all of them) and redis_write.c (changes from here); for no one else. */
#ifndef PROXY_SOURCES_REDIS_PRIVATE_H
#define PROXY_SOURCES_REDIS_PRIVATE_H

#include "proxy/limits.h"
#include "proxy/sources/redis.h"
#include "proxy/sources/redis_record.h"

struct redis_id {
	char text[HOST_NAME_ID_BYTES_MAX + 1];
};

/* One pass over all records. */
struct redis_scan {
	bool running;
	bool listed; /* the cursor has come round */
	bool asking; /* for the next page */
	char cursor[24];
	struct redis_id *page; /* ids found, and how far they have been handed out */
	size_t page_count, page_at;
	/* What was known at the beginning, by id; what the scan does not meet is read once more. */
	struct catalog_record **known;
	bool *met;
	size_t known_count, known_at;
	size_t reads; /* under way; those of a scan that was stopped, too */
	struct redis_command command;
};

struct redis_source {
	struct source source;
	struct loop *loop;
	struct catalog *catalog;
	struct redis_config config;
	struct redis_link *commands, *messages; /* NULL while there is no attempt */
	bool commands_ready, notifications_known, notified, told_unnotified;
	unsigned subscriptions; /* answers to the two of them */
	bool online;
	bool closing;
	unsigned failures; /* to connect, one after the other */
	uint64_t retry_ms;
	struct alarm alarm; /* offline: the next attempt; online: the next scan */
	struct list_node parked; /* lookups that wait for a connection */
	struct alarm parked_alarm;
	struct redis_id *changes; /* a ring of ids to read */
	size_t change_first, change_count;
	bool scan_again; /* once more, as soon as the running one is over */
	size_t reads; /* under way for changes and scans */
	struct redis_scan scan;
	struct redis_command ask_notifications, set_notifications;
	uint64_t complained_ms;
	struct redis_totals totals;
};

/* redis.c */
/* Hands out what is to be read, as far as there is room. */
void redis_pump(struct redis_source *source);
/* Reads one record, applies it, and tells who asked or who wrote, if either, what it came to. */
void redis_read(struct redis_source *source, const char *id, struct lookup *lookup,
		struct redis_write *write);

/* redis_apply.c */
/* Whoever writes records could fill the log. */
bool redis_may_complain(struct redis_source *source);
/* `told`: Redis said that it was written, so it is news also when its text is the one that is known
 * and the sandbox was changed here in between. */
enum lookup_answer redis_apply_value(struct redis_source *source, const char *id, struct str value,
				     bool told);
enum lookup_answer redis_apply_absent(struct redis_source *source, const char *id);
enum lookup_answer redis_apply_unreadable(struct redis_source *source, const char *id,
					  const char *reason);

/* redis_scan.c */
void redis_scan_start(struct redis_source *source);
void redis_scan_stop(struct redis_source *source);
/* The next id to read; false: none now. */
bool redis_scan_next(struct redis_source *source, struct redis_id *ret_id);
/* Every record has been read, and the source may sleep until the next time. */
void redis_scan_over(struct redis_source *source);

/* redis_write.c */
/* The record has been read back: `answer` as for a lookup. */
void redis_write_applied(struct redis_write *write, enum lookup_answer answer);

#endif
