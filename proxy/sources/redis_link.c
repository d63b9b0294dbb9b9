#include "proxy/sources/redis_link.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/stream_uv.h"
#include "proxy/limits.h"
#include "proxy/route/address.h"

#define REASON_BYTES 160

/* What opens a connection and keeps it: commands of the link itself. */
struct own_command {
	struct redis_command command;
	struct redis_link *link;
};

struct redis_link {
	struct loop *loop;
	const struct redis_url *url;
	const struct redis_link_events *events;
	void *user;
	struct stream *stream;
	redisReader *reader;
	redisReplyObjectFunctions functions; /* the reader's, with a bound on arrays */
	void *(*create_array)(const redisReadTask *task, int elements);
	uv_getaddrinfo_t resolve;
	struct alarm alarm;
	struct later later; /* reports a loss that is noticed inside a call, or frees the link */
	struct list_node commands; /* oldest first */
	struct own_command auth, select, ping;
	union address addresses[PROXY_RESOLVED_MAX];
	size_t address_count, address_at;
	uint64_t received_ms, pinged_ms, connect_by_ms;
	uint64_t next_address_ms; /* while connecting, if there is another one to try; else 0 */
	bool resolving, ready, subscribed, lost, closing, pinging;
	char reason[REASON_BYTES];
};

/* ---- losing it ---- */

static void drop_stream(struct redis_link *link)
{
	if (link->stream) {
		link->stream->events = NULL;
		stream_close(link->stream, false);
	}
	link->stream = NULL;
}

static void on_lost_later(struct later *later)
{
	struct redis_link *link = container_of(later, struct redis_link, later);

	link->events->on_lost(link->user, link->reason);
}

/* Never tells from inside the caller: the link may be in use above it. */
static void lose(struct redis_link *link, const char *reason, const char *detail)
{
	if (link->lost || link->closing)
		return;
	link->lost = true;
	snprintf(link->reason, sizeof(link->reason), "%s%s%s", reason, *detail ? ": " : "", detail);
	alarm_cancel(&link->alarm);
	drop_stream(link);
	later_call(link->loop, &link->later);
}

/* ---- time ---- */

static void set_alarm(struct redis_link *link)
{
	uint64_t now = loop_now_ms(link->loop), at = link->received_ms + PROXY_REDIS_SILENCE_MS;

	if (link->lost || link->closing)
		return;
	if (link->pinging)
		at = link->pinged_ms + PROXY_REDIS_MS;
	if (!list_is_empty(&link->commands)) {
		uint64_t oldest =
			container_of(link->commands.next, struct redis_command, node)->sent_ms;

		if (oldest + PROXY_REDIS_MS < at)
			at = oldest + PROXY_REDIS_MS;
	}
	if (!link->ready && link->connect_by_ms < at)
		at = link->connect_by_ms;
	if (link->next_address_ms && link->next_address_ms < at)
		at = link->next_address_ms;
	alarm_set(link->loop, &link->alarm, at > now ? at - now : 1);
}

static void send_own(struct redis_link *link, struct own_command *own, int count,
		     const char *const *arguments);
static void connect_next(struct redis_link *link);

static void on_alarm(struct alarm *alarm)
{
	static const char *const ping[] = {"PING"};
	struct redis_link *link = container_of(alarm, struct redis_link, alarm);
	uint64_t now = loop_now_ms(link->loop);
	bool overdue = link->pinging && now >= link->pinged_ms + PROXY_REDIS_MS;

	if (!list_is_empty(&link->commands))
		overdue |= now >=
			   container_of(link->commands.next, struct redis_command, node)->sent_ms +
				   PROXY_REDIS_MS;
	if (!link->ready && now >= link->connect_by_ms) {
		lose(link, "not connected in time", "");
		return;
	}
	if (overdue) {
		lose(link, "no answer in time", "");
		return;
	}
	if (link->next_address_ms && now >= link->next_address_ms) {
		drop_stream(link);
		connect_next(link);
		return;
	}
	if (link->ready && !link->pinging && now >= link->received_ms + PROXY_REDIS_SILENCE_MS) {
		link->pinging = true;
		link->pinged_ms = now;
		/* After a subscription the answer is a message, not one to a command. */
		if (link->subscribed)
			redis_link_subscribe(link, ARRAY_LENGTH(ping), ping);
		else
			send_own(link, &link->ping, ARRAY_LENGTH(ping), ping);
	}
	set_alarm(link);
}

/* ---- commands ---- */

static void write_command(struct redis_link *link, int count, const char *const *arguments)
{
	/* hiredis does not change what it is given. */
	char *text = NULL;
	int len = redisFormatCommandArgv(&text, count, (const char **)arguments, NULL);
	struct iovec piece = {.iov_base = text, .iov_len = len > 0 ? (size_t)len : 0};

	if (len < 0)
		lose(link, "out of memory", "");
	else if (link->stream && stream_write(link->stream, &piece, 1) < 0)
		lose(link, "the connection is broken", "");
	else if (link->stream && stream_queued(link->stream) > PROXY_REDIS_QUEUE_BYTES_MAX)
		lose(link, "it does not read what it is asked", "");
	if (len >= 0) {
		wipe(text, (size_t)len); /* AUTH */
		redisFreeCommand(text);
	}
}

void redis_link_send(struct redis_link *link, struct redis_command *command, int count,
		     const char *const *arguments)
{
	assert(!link->closing);
	command->sent_ms = loop_now_ms(link->loop);
	list_append(&link->commands, &command->node);
	if (!link->lost) /* else on_lost is on its way */
		write_command(link, count, arguments);
	set_alarm(link);
}

static void send_own(struct redis_link *link, struct own_command *own, int count,
		     const char *const *arguments)
{
	redis_link_send(link, &own->command, count, arguments);
}

void redis_link_subscribe(struct redis_link *link, int count, const char *const *arguments)
{
	link->subscribed = true;
	if (!link->lost)
		write_command(link, count, arguments);
}

/* ---- answers ---- */

static bool is_message(const struct redis_link *link, const redisReply *reply)
{
	return link->subscribed &&
	       (reply->type == REDIS_REPLY_ARRAY || list_is_empty(&link->commands));
}

static void on_reply(struct redis_link *link, redisReply *reply)
{
	struct redis_command *command;

	if (is_message(link, reply)) {
		link->events->on_message(link->user, reply);
		return;
	}
	if (list_is_empty(&link->commands)) {
		lose(link, "an answer to nothing",
		     reply->type == REDIS_REPLY_ERROR ? reply->str : "");
		return;
	}
	command = container_of(link->commands.next, struct redis_command, node);
	list_remove(&command->node);
	command->on_reply(command, reply);
}

static void on_read(struct stream *stream, const char *data, size_t len)
{
	struct redis_link *link = stream->user;
	void *reply = NULL;

	link->received_ms = loop_now_ms(link->loop);
	link->pinging = link->pinging && !link->subscribed;
	if (redisReaderFeed(link->reader, data, len) != REDIS_OK) {
		lose(link, "not Redis", link->reader->errstr);
		return;
	}
	while (!link->lost && !link->closing) {
		if (redisReaderGetReply(link->reader, &reply) != REDIS_OK) {
			lose(link, "not Redis", link->reader->errstr);
			break;
		}
		if (!reply)
			break;
		on_reply(link, reply);
		freeReplyObject(reply);
	}
	if (!link->closing && link->reader->len - link->reader->pos > PROXY_REDIS_REPLY_BYTES_MAX)
		lose(link, "an answer that is too large", "");
	set_alarm(link);
}

static void on_end(struct stream *stream, int status)
{
	struct redis_link *link = stream->user;

	lose(link, "closed", status < 0 ? errno_text(status) : "");
}

static const struct stream_events stream_events = {.on_read = on_read, .on_end = on_end};

/* A few bytes can ask for an array of any size. */
static void *create_array(const redisReadTask *task, int elements)
{
	const struct redis_link *link = task->privdata;

	if (elements < 0 || elements > PROXY_REDIS_ELEMENTS_MAX)
		return NULL;
	return link->create_array(task, elements);
}

static redisReader *open_reader(struct redis_link *link)
{
	redisReader *reader = redisReaderCreate();

	if (!reader)
		abort(); /* as xmalloc */
	link->functions = *reader->fn;
	link->create_array = link->functions.createArray;
	link->functions.createArray = create_array;
	reader->fn = &link->functions;
	reader->privdata = link;
	return reader;
}

/* ---- getting ready ---- */

static bool is_refusal(struct redis_link *link, const redisReply *reply, bool secret)
{
	char code[32];

	if (!reply || reply->type != REDIS_REPLY_ERROR)
		return !reply;
	/* Some servers repeat what they were sent. */
	snprintf(code, sizeof(code), "%.*s", (int)strcspn(reply->str, " "), reply->str);
	lose(link, "refused", secret ? code : reply->str);
	return true;
}

static void on_auth_reply(struct redis_command *command, const redisReply *reply)
{
	is_refusal(container_of(command, struct own_command, command)->link, reply, true);
}

static void on_select_reply(struct redis_command *command, const redisReply *reply)
{
	is_refusal(container_of(command, struct own_command, command)->link, reply, false);
}

static void on_pong(struct redis_command *command, const redisReply *reply)
{
	struct redis_link *link = container_of(command, struct own_command, command)->link;

	link->pinging = false;
	if (is_refusal(link, reply, false) || link->ready || link->lost)
		return;
	link->ready = true;
	link->events->on_ready(link->user);
}

static void introduce(struct redis_link *link)
{
	const struct redis_url *url = link->url;
	const char *const ping[] = {"PING"};
	char db[16];

	link->stream->user = link;
	link->stream->events = &stream_events;
	if (stream_read_start(link->stream) < 0) {
		lose(link, "the connection is broken", "");
		return;
	}
	if (*url->password) {
		const char *const plain[] = {"AUTH", url->password};
		const char *const named[] = {"AUTH", url->user, url->password};

		if (*url->user)
			send_own(link, &link->auth, ARRAY_LENGTH(named), named);
		else
			send_own(link, &link->auth, ARRAY_LENGTH(plain), plain);
	}
	if (url->db != 0) {
		const char *const select[] = {"SELECT", db};

		snprintf(db, sizeof(db), "%u", url->db);
		send_own(link, &link->select, ARRAY_LENGTH(select), select);
	}
	send_own(link, &link->ping, ARRAY_LENGTH(ping), ping);
}

static void on_connected(struct stream *stream, int status)
{
	struct redis_link *link = stream->user;

	link->next_address_ms = 0;
	if (status < 0) {
		drop_stream(link);
		if (link->address_at < link->address_count)
			connect_next(link);
		else
			lose(link, "connect", errno_text(status));
		return;
	}
	introduce(link);
}

static void connect_next(struct redis_link *link)
{
	uint64_t now = loop_now_ms(link->loop);
	int status = -EHOSTUNREACH;

	while (link->address_at < link->address_count) {
		size_t left = link->address_count - link->address_at;
		union address *address = &link->addresses[link->address_at++];

		address_set_port(address, link->url->port);
		status = stream_uv_connect(link->loop, &address->any, on_connected, &link->stream);
		if (status < 0)
			continue;
		link->stream->user = link;
		link->stream->events = NULL;
		/* One that does not answer leaves time for the others. */
		link->next_address_ms = left > 1 && link->connect_by_ms > now
						? now + (link->connect_by_ms - now) / left
						: 0;
		set_alarm(link);
		return;
	}
	link->stream = NULL;
	link->next_address_ms = 0;
	lose(link, "connect", errno_text(status));
}

/* Local sockets connect at once or not at all. */
static void connect_local(struct redis_link *link)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int status = fd < 0 ? -errno : 0;

	memcpy(address.sun_path, link->url->path,
	       size_min(strlen(link->url->path), sizeof(address.sun_path) - 1));
	if (status == 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		status = -errno;
	if (status == 0)
		status = stream_uv_open_pipe(link->loop, fd, &link->stream);
	if (status < 0) {
		link->stream = NULL;
		lose(link, "connect", errno_text(status));
		return;
	}
	take_fd(&fd);
	introduce(link);
}

static void free_link(struct later *later)
{
	struct redis_link *link = container_of(later, struct redis_link, later);

	redisReaderFree(link->reader);
	free(link);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
	struct redis_link *link = container_of(request, struct redis_link, resolve);

	link->resolving = false;
	for (struct addrinfo *at = found; at && link->address_count < PROXY_RESOLVED_MAX;
	     at = at->ai_next) {
		if (at->ai_family != AF_INET && at->ai_family != AF_INET6)
			continue;
		memcpy(&link->addresses[link->address_count++], at->ai_addr,
		       size_min(at->ai_addrlen, sizeof(union address)));
	}
	uv_freeaddrinfo(found);
	if (link->closing)
		free_link(&link->later);
	else if (link->lost)
		return;
	else if (status < 0 || link->address_count == 0)
		lose(link, "resolve the host", status < 0 ? uv_strerror(status) : "no address");
	else
		connect_next(link);
}

static void resolve(struct redis_link *link)
{
	static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	int status = uv_getaddrinfo(&link->loop->uv, &link->resolve, on_resolved, link->url->host,
				    NULL, &hints);

	if (status < 0)
		lose(link, "resolve the host", uv_strerror(status));
	else
		link->resolving = true;
}

static void own_init(struct own_command *own, struct redis_link *link,
		     void (*answered)(struct redis_command *, const redisReply *))
{
	own->link = link;
	own->command.on_reply = answered;
}

struct redis_link *redis_link_open(struct loop *loop, const struct redis_url *url,
				   const struct redis_link_events *events, void *user)
{
	struct redis_link *link = xcalloc(1, sizeof(*link));

	link->loop = loop;
	link->url = url;
	link->events = events;
	link->user = user;
	link->reader = open_reader(link);
	list_init(&link->commands);
	later_init(&link->later, on_lost_later);
	own_init(&link->auth, link, on_auth_reply);
	own_init(&link->select, link, on_select_reply);
	own_init(&link->ping, link, on_pong);
	alarm_init(&link->alarm, on_alarm);
	link->received_ms = loop_now_ms(loop);
	link->connect_by_ms = link->received_ms + PROXY_REDIS_CONNECT_MS;
	set_alarm(link);
	if (*url->path) {
		connect_local(link);
	} else if (address_parse(str_of(url->host), &link->addresses[0]) == 0) {
		link->address_count = 1;
		connect_next(link);
	} else {
		resolve(link);
	}
	return link;
}

void redis_link_close(struct redis_link *link)
{
	if (link->closing)
		return;
	link->closing = true;
	alarm_cancel(&link->alarm);
	later_cancel(&link->later);
	drop_stream(link);
	while (!list_is_empty(&link->commands)) {
		struct redis_command *command = container_of(link->commands.next,
							     struct redis_command, node);

		list_remove(&command->node);
		command->on_reply(command, NULL);
	}
	if (link->resolving) {
		uv_cancel((uv_req_t *)&link->resolve); /* its callback frees */
		return;
	}
	later_init(&link->later, free_link);
	later_call(link->loop, &link->later);
}
