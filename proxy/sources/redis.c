#include "proxy/sources/redis.h"

#include <hiredis/hiredis.h>
#include <sys/random.h>

#include "lib/log.h"
#include "proxy/sources/redis_private.h"

/* An empty answer is one of no record, or of one that says nothing. */
#define EMPTY_READS_MAX 3

/* One record being read. */
struct read {
	struct redis_command command;
	struct redis_source *source;
	struct lookup *lookup; /* who asked, or NULL */
	struct redis_write *write; /* who wrote, or NULL */
	bool of_scan;
	unsigned empty;
	bool told; /* Redis said that it was written */
	struct redis_id id;
};

/* ---- reading ---- */

static void park(struct redis_source *source, struct lookup *lookup);

/* Nobody waits for the next attempt any more. One that fails may be chance. */
static bool is_down(const struct redis_source *source)
{
	return source->closing || source->failures > 1;
}

static void finish(struct read *read, enum lookup_answer answer)
{
	struct redis_source *source = read->source;

	if (read->lookup)
		lookup_answer(read->lookup, answer);
	else if (read->write)
		redis_write_applied(read->write, answer);
	else
		source->reads--;
	if (read->of_scan)
		source->scan.reads--;
	free(read);
	redis_pump(source);
}

/* The connection went away: the lookup may wait for the next one. */
static void on_lost_read(struct read *read)
{
	struct redis_source *source = read->source;

	if (read->lookup && !is_down(source)) {
		park(source, read->lookup);
		free(read);
		return;
	}
	finish(read, LOOKUP_UNAVAILABLE);
}

static void send_read(struct read *read);

static void on_exists(struct redis_command *command, const redisReply *reply)
{
	struct read *read = container_of(command, struct read, command);

	if (!reply)
		on_lost_read(read);
	else if (reply->type != REDIS_REPLY_INTEGER)
		finish(read, LOOKUP_UNAVAILABLE);
	else if (reply->integer == 0)
		finish(read, redis_apply_absent(read->source, read->id.text));
	else if (++read->empty < EMPTY_READS_MAX)
		send_read(read);
	else
		finish(read, redis_apply_unreadable(read->source, read->id.text, "empty"));
}

static void ask_exists(struct read *read)
{
	char key[REDIS_RECORD_KEY_BYTES];
	const char *const arguments[] = {"EXISTS", key};

	redis_record_key(read->id.text, key);
	read->command.on_reply = on_exists;
	redis_link_send(read->source->commands, &read->command, ARRAY_LENGTH(arguments), arguments);
}

static bool is_of_cluster(const char *error)
{
	return strncmp(error, "MOVED ", 6) == 0 || strncmp(error, "ASK ", 4) == 0 ||
	       strncmp(error, "CLUSTERDOWN ", 12) == 0;
}

static enum lookup_answer apply_error(struct read *read, const redisReply *reply)
{
	if (strncmp(reply->str, "WRONGTYPE", 9) == 0)
		return redis_apply_unreadable(read->source, read->id.text, "not a string");
	if (redis_may_complain(read->source))
		log_warn("redis", "not read", LOG_S("sandbox", read->id.text),
			 LOG_S("reason", reply->str),
			 LOG_S("hint", is_of_cluster(reply->str)
					       ? "nodes of a cluster are not spoken to"
					       : ""));
	return LOOKUP_UNAVAILABLE;
}

static void on_value(struct redis_command *command, const redisReply *reply)
{
	struct read *read = container_of(command, struct read, command);
	struct redis_source *source = read->source;

	if (!reply)
		on_lost_read(read);
	else if (reply->type == REDIS_REPLY_ERROR)
		finish(read, apply_error(read, reply));
	else if (reply->type != REDIS_REPLY_STRING)
		finish(read, LOOKUP_UNAVAILABLE);
	else if (reply->len == 0)
		ask_exists(read);
	else if (reply->len > PROXY_REDIS_RECORD_BYTES_MAX)
		finish(read, redis_apply_unreadable(source, read->id.text, "too large"));
	else
		finish(read, redis_apply_value(source, read->id.text,
					       (struct str){reply->str, reply->len}, read->told));
}

/* A range, so that no value can be larger than we want it. */
static void send_read(struct read *read)
{
	char key[REDIS_RECORD_KEY_BYTES], end[16];
	const char *const arguments[] = {"GETRANGE", key, "0", end};

	redis_record_key(read->id.text, key);
	snprintf(end, sizeof(end), "%d", PROXY_REDIS_RECORD_BYTES_MAX);
	read->command.on_reply = on_value;
	redis_link_send(read->source->commands, &read->command, ARRAY_LENGTH(arguments), arguments);
}

static struct read *read_new(struct redis_source *source, const char *id)
{
	struct read *read = xcalloc(1, sizeof(*read));

	read->source = source;
	snprintf(read->id.text, sizeof(read->id.text), "%s", id);
	return read;
}

void redis_read(struct redis_source *source, const char *id, struct lookup *lookup,
		struct redis_write *write)
{
	struct read *read = read_new(source, id);

	read->lookup = lookup;
	read->write = write;
	if (!lookup && !write)
		source->reads++;
	send_read(read);
}

static bool next_change(struct redis_source *source, struct redis_id *ret_id)
{
	if (source->change_count == 0)
		return false;
	*ret_id = source->changes[source->change_first];
	source->change_first = (source->change_first + 1) % PROXY_REDIS_CHANGES_MAX;
	source->change_count--;
	return true;
}

void redis_pump(struct redis_source *source)
{
	struct redis_id id;

	while (source->online && source->reads < PROXY_REDIS_READS_MAX) {
		bool of_scan = !next_change(source, &id);
		struct read *read;

		if (of_scan && !redis_scan_next(source, &id))
			return;
		read = read_new(source, id.text);
		read->of_scan = of_scan;
		read->told = !of_scan;
		source->scan.reads += of_scan;
		source->reads++;
		send_read(read);
	}
}

static void note_change(struct redis_source *source, struct str id)
{
	struct redis_id *last;
	size_t at;

	if (source->change_count > 0) {
		at = (source->change_first + source->change_count - 1) % PROXY_REDIS_CHANGES_MAX;
		if (str_equal(str_of(source->changes[at].text), id))
			return;
	}
	if (source->change_count == PROXY_REDIS_CHANGES_MAX) {
		/* More than can be kept in mind: look at all. */
		source->change_count = 0;
		source->scan_again = true;
		if (!source->scan.running)
			redis_scan_start(source);
		return;
	}
	at = (source->change_first + source->change_count++) % PROXY_REDIS_CHANGES_MAX;
	last = &source->changes[at];
	memcpy(last->text, id.p, id.len);
	last->text[id.len] = '\0';
}

/* ---- lookups ---- */

static void answer_parked(struct redis_source *source, uint64_t overdue_ms)
{
	struct list_node parked;

	list_init(&parked);
	list_splice(&parked, &source->parked);
	while (!list_is_empty(&parked)) {
		struct lookup *lookup = container_of(parked.next, struct lookup, node);

		list_remove(&lookup->node);
		if (source->online)
			redis_read(source, lookup->id, lookup, NULL);
		else if (lookup->deadline_ms <= overdue_ms)
			lookup_answer(lookup, LOOKUP_UNAVAILABLE);
		else
			list_append(&source->parked, &lookup->node);
	}
}

static void set_parked_alarm(struct redis_source *source, uint64_t now)
{
	struct lookup *first = container_of(source->parked.next, struct lookup, node);

	alarm_set(source->loop, &source->parked_alarm,
		  first->deadline_ms > now ? first->deadline_ms - now : 1);
}

static void on_parked_alarm(struct alarm *alarm)
{
	struct redis_source *source = container_of(alarm, struct redis_source, parked_alarm);
	uint64_t now = loop_now_ms(source->loop);

	answer_parked(source, now);
	if (!list_is_empty(&source->parked))
		set_parked_alarm(source, now);
}

static void park(struct redis_source *source, struct lookup *lookup)
{
	bool first = list_is_empty(&source->parked);

	list_append(&source->parked, &lookup->node);
	if (first)
		set_parked_alarm(source, loop_now_ms(source->loop));
}

static void ask(struct source *base, struct lookup *lookup)
{
	struct redis_source *source = container_of(base, struct redis_source, source);

	lookup->deadline_ms = loop_now_ms(source->loop) + PROXY_REDIS_MS;
	if (!source->online && is_down(source))
		lookup_answer(lookup, LOOKUP_UNAVAILABLE);
	else if (source->online)
		redis_read(source, lookup->id, lookup, NULL);
	else
		park(source, lookup);
}

/* ---- connections ---- */

static uint64_t with_jitter(uint64_t wait_ms)
{
	uint16_t random = 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		return wait_ms;
	return wait_ms / 2 + wait_ms * random / UINT16_MAX / 2;
}

static void go_offline(struct redis_source *source, const char *reason)
{
	bool was_online = source->online;
	uint64_t wait_ms = was_online ? 0 : with_jitter(source->retry_ms);

	source->online = source->commands_ready = false;
	source->failures = was_online ? 0 : source->failures + 1;
	source->subscriptions = 0;
	source->totals.connected = false;
	redis_scan_stop(source);
	source->change_count = 0;
	if (source->messages)
		redis_link_close(source->messages);
	if (source->commands)
		redis_link_close(source->commands);
	source->commands = source->messages = NULL;
	if (source->closing)
		return;
	if (was_online) {
		source->totals.losses++;
		source->retry_ms = PROXY_REDIS_RETRY_MS;
		log_warn("redis", "connection lost", LOG_S("reason", reason));
	} else {
		if (source->failures == 1)
			log_warn("redis", "not connected", LOG_S("reason", reason));
		source->retry_ms = size_min(source->retry_ms * 2, PROXY_REDIS_RETRY_MS_MAX);
		if (is_down(source))
			answer_parked(source, UINT64_MAX);
	}
	alarm_set(source->loop, &source->alarm, wait_ms);
}

static void on_link_lost(void *user, const char *reason)
{
	go_offline(user, reason);
}

/* Both connections stand and nothing that happens from now on goes unnoticed. */
static void go_online_if_ready(struct redis_source *source)
{
	if (source->online || !source->commands_ready || !source->notifications_known ||
	    source->subscriptions < 2)
		return;
	source->online = source->totals.connected = true;
	source->failures = 0;
	source->retry_ms = PROXY_REDIS_RETRY_MS;
	log_info("redis", "connected", LOG_B("notified", source->notified));
	alarm_cancel(&source->parked_alarm);
	answer_parked(source, UINT64_MAX);
	redis_scan_start(source);
}

static void notifications_known(struct redis_source *source, bool notified)
{
	source->notifications_known = true;
	source->notified = source->totals.notified = notified;
	if (!notified && !source->told_unnotified) {
		source->told_unnotified = true;
		log_warn("redis",
			 "keyspace notifications are off, all records are read all the time",
			 LOG_S("needed", "notify-keyspace-events Kg$xe"));
	}
	go_online_if_ready(source);
}

static bool has_flag(const char *flags, char flag)
{
	return strchr(flags, flag) || (flag != 'K' && strchr(flags, 'A'));
}

static void on_notifications_set(struct redis_command *command, const redisReply *reply)
{
	struct redis_source *source = container_of(command, struct redis_source, set_notifications);

	if (reply)
		notifications_known(source, reply->type == REDIS_REPLY_STATUS);
}

/* {"notify-keyspace-events", flags}, or an error where CONFIG is forbidden. */
static void on_notifications(struct redis_command *command, const redisReply *reply)
{
	struct redis_source *source = container_of(command, struct redis_source, ask_notifications);
	const char *flags = "";
	char wanted[64];
	const char *const set[] = {"CONFIG", "SET", "notify-keyspace-events", wanted};

	if (!reply)
		return;
	if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
	    reply->element[1]->type == REDIS_REPLY_STRING && reply->element[1]->len < 32)
		flags = reply->element[1]->str;
	if (has_flag(flags, 'K') && has_flag(flags, 'g') && has_flag(flags, '$') &&
	    has_flag(flags, 'x') && has_flag(flags, 'e')) {
		notifications_known(source, true);
	} else if (source->config.set_notifications) {
		snprintf(wanted, sizeof(wanted), "%sKg$xe", flags);
		source->set_notifications.on_reply = on_notifications_set;
		redis_link_send(source->commands, &source->set_notifications, ARRAY_LENGTH(set),
				set);
	} else {
		notifications_known(source, false);
	}
}

static void on_commands_ready(void *user)
{
	static const char *const get[] = {"CONFIG", "GET", "notify-keyspace-events"};
	struct redis_source *source = user;

	source->commands_ready = true;
	source->ask_notifications.on_reply = on_notifications;
	redis_link_send(source->commands, &source->ask_notifications, ARRAY_LENGTH(get), get);
}

static void on_messages_ready(void *user)
{
	struct redis_source *source = user;
	char pattern[64];
	const char *const channel[] = {"SUBSCRIBE", REDIS_CHANGES_CHANNEL};
	const char *const keys[] = {"PSUBSCRIBE", pattern};

	snprintf(pattern, sizeof(pattern), "__keyspace@%u__:" REDIS_RECORD_PREFIX "*",
		 source->config.url.db);
	redis_link_subscribe(source->messages, ARRAY_LENGTH(channel), channel);
	redis_link_subscribe(source->messages, ARRAY_LENGTH(keys), keys);
}

static struct str text_of(const redisReply *reply, size_t index)
{
	if (index >= reply->elements || reply->element[index]->type != REDIS_REPLY_STRING)
		return (struct str){0};
	return (struct str){reply->element[index]->str, reply->element[index]->len};
}

/* "__keyspace@0__:sandbox:catalog:<id>" */
static struct str id_of_channel(struct str channel)
{
	const char *colon = channel.p ? memchr(channel.p, ':', channel.len) : NULL;

	if (!colon)
		return (struct str){0};
	return redis_record_id(
		(struct str){colon + 1, channel.len - (size_t)(colon + 1 - channel.p)});
}

static void on_message(void *user, const redisReply *message)
{
	struct redis_source *source = user;
	struct str kind = {0}, id = {0}, event;

	if (message->type == REDIS_REPLY_ARRAY)
		kind = text_of(message, 0);
	if (message->type == REDIS_REPLY_ERROR || str_equal(kind, STR("subscribe")) ||
	    str_equal(kind, STR("psubscribe"))) {
		if (message->type == REDIS_REPLY_ERROR)
			log_warn("redis", "not subscribed", LOG_S("reason", message->str));
		source->subscriptions++;
		go_online_if_ready(source);
		return;
	}
	if (str_equal(kind, STR("message"))) {
		id = text_of(message, 2);
		if (!host_name_is_id(id))
			id = (struct str){0};
	} else if (str_equal(kind, STR("pmessage"))) {
		/* Also where nobody may ask for the configuration. */
		source->notified = source->totals.notified = true;
		event = text_of(message, 3);
		/* How long a record lives is no news. */
		if (!str_equal(event, STR("expire")) && !str_equal(event, STR("persist")))
			id = id_of_channel(text_of(message, 2));
	}
	if (!id.p)
		return;
	note_change(source, id);
	redis_pump(source);
}

static const struct redis_link_events command_events = {
	.on_ready = on_commands_ready,
	.on_message = on_message,
	.on_lost = on_link_lost,
};

static const struct redis_link_events message_events = {
	.on_ready = on_messages_ready,
	.on_message = on_message,
	.on_lost = on_link_lost,
};

static void on_alarm(struct alarm *alarm)
{
	struct redis_source *source = container_of(alarm, struct redis_source, alarm);

	if (source->online) {
		redis_scan_start(source);
		return;
	}
	source->notifications_known = false;
	source->commands = redis_link_open(source->loop, &source->config.url, &command_events,
					   source);
	source->messages = redis_link_open(source->loop, &source->config.url, &message_events,
					   source);
}

void redis_scan_over(struct redis_source *source)
{
	source->totals.scans++;
	if (source->scan_again) {
		source->scan_again = false;
		alarm_set(source->loop, &source->alarm, 0);
		return;
	}
	alarm_set(source->loop, &source->alarm,
		  source->notified ? PROXY_REDIS_RESCAN_MS : PROXY_REDIS_POLL_MS);
}

/* ---- the whole ---- */

struct redis_source *redis_open(struct loop *loop, struct catalog *catalog,
				const struct redis_config *config)
{
	struct redis_source *source = xcalloc(1, sizeof(*source));

	source->source.ask = ask;
	source->loop = loop;
	source->catalog = catalog;
	source->config = *config;
	source->retry_ms = PROXY_REDIS_RETRY_MS;
	source->changes = xcalloc(PROXY_REDIS_CHANGES_MAX, sizeof(struct redis_id));
	list_init(&source->parked);
	alarm_init(&source->alarm, on_alarm);
	alarm_init(&source->parked_alarm, on_parked_alarm);
	alarm_set(loop, &source->alarm, 0);
	return source;
}

struct source *redis_as_source(struct redis_source *source)
{
	return &source->source;
}

void redis_totals(const struct redis_source *source, struct redis_totals *ret_totals)
{
	*ret_totals = source->totals;
}

void redis_close(struct redis_source *source)
{
	source->closing = true;
	go_offline(source, "");
	answer_parked(source, UINT64_MAX);
	alarm_cancel(&source->alarm);
	alarm_cancel(&source->parked_alarm);
	free(source->changes);
	wipe(&source->config.url, sizeof(source->config.url));
	free(source);
}
