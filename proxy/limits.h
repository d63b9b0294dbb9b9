/*
 * How much a peer can push on the proxy, and how long each wait may take: the limits that only it
 * has, a heading for each folder. lib/limits.h has those of lib/, and says how to read both.
 */
#ifndef PROXY_LIMITS_H
#define PROXY_LIMITS_H

/* proxy: how it begins, ends and hands over. */

/* Threads that serve clients, and sandboxes that they know. */
#define PROXY_WORKERS_MAX 64
#define PROXY_SANDBOXES_MAX 65536
/* Changes of the catalog that a watcher may be behind; each keeps what the sandbox was then, half a
 * kilobyte and more, so memory grows with the first 4,096 of them, and not afterwards. */
#define PROXY_CHANGES_KEPT 4096
/* Lines in the log about addresses that are not dialled, and about records that make no sense: one
 * in so long. */
#define PROXY_COMPLAINTS_MS 1000
/* A successor has this long to serve; and the old one's clients to send what is on its way. */
#define PROXY_HANDOVER_MS (30 * 1000)
#define PROXY_HANDOVER_IDLE_MS (5 * 1000)
/* At the end the admin API's last answers get this long; and when a successor takes over, a request
 * that may be on its way. */
#define PROXY_ADMIN_ENDING_MS 500
#define PROXY_ADMIN_HANDOVER_IDLE_MS 1000

/* proxy/route */

/* Names that are not sandboxes' (-host). */
#define PROXY_HOSTS_MAX 32
/* Addresses that one name may have: of a sandbox, of Redis, of the hook that wakes. */
#define PROXY_RESOLVED_MAX 4
/* A worker's thread that enters network namespaces hangs when a path takes longer, in a file system
 * that does not answer; and how many may. */
#define PROXY_NETNS_STUCK_MS 200
#define PROXY_NETNS_STUCK_MAX 8

/* proxy/sources: who else knows sandboxes. */

/* Ids that the catalog's sources are being asked about, and requests that wait for that. */
#define PROXY_LOOKUPS_MAX 1024
#define PROXY_LOOKUP_WAITERS_MAX 8192
/* Redis: every call (contract/proxy.md 1.16), a connection made, silence before it is asked for a
 * sign of life, waits between attempts to connect (doubled from the one to the other). */
#define PROXY_REDIS_MS 1000
#define PROXY_REDIS_CONNECT_MS (3 * 1000)
#define PROXY_REDIS_SILENCE_MS (3 * 1000)
#define PROXY_REDIS_RETRY_MS 50
#define PROXY_REDIS_RETRY_MS_MAX (5 * 1000)
/* An answer, its parts, and what Redis has not read yet. */
#define PROXY_REDIS_REPLY_BYTES_MAX (4 * 1024 * 1024)
#define PROXY_REDIS_ELEMENTS_MAX 65536
#define PROXY_REDIS_QUEUE_BYTES_MAX (4 * 1024 * 1024)
/* One record; changes announced and not yet read; records being read, those of lookups not
 * counted. */
#define PROXY_REDIS_RECORD_BYTES_MAX (16 * 1024)
#define PROXY_REDIS_CHANGES_MAX 8192
#define PROXY_REDIS_READS_MAX 128
/* All records are read again this long after the last time: when Redis announces changes, and when
 * it does not; so many keys at a time. */
#define PROXY_REDIS_RESCAN_MS (60 * 1000)
#define PROXY_REDIS_POLL_MS (2 * 1000)
#define PROXY_REDIS_SCAN_COUNT 256
/* DNS: how long a request waits for it. */
#define PROXY_DNS_MS (3 * 1000)
/* Each name server's part of that; questions on their way; how long the system's list of name
 * servers holds. */
#define PROXY_DNS_STEP_MS 1000
#define PROXY_DNS_QUESTIONS_MAX 32
#define PROXY_DNS_SERVERS_MS (10 * 1000)
/* How long an answer holds, a "no such name", and a sandbox that nobody uses. */
#define PROXY_DNS_TTL_MS_MIN 1000
#define PROXY_DNS_TTL_MS_MAX (5 * 1000)
#define PROXY_DNS_NEGATIVE_MS 1000
#define PROXY_DNS_IDLE_MS (60 * 1000)
/* Sandboxes known from DNS, names remembered not to exist, refreshes at a time. */
#define PROXY_DNS_RECORDS_MAX 16384
#define PROXY_DNS_NEGATIVE_MAX 4096
#define PROXY_DNS_REFRESHES_MAX 256

/* proxy/wake: sandboxes that sleep (wake/wake.h). */

/* How long requests wait for a sandbox, and how many for one, unless told otherwise; how many
 * sandboxes at once, and how many of these the platform is asked about at a time. */
#define PROXY_WAKE_TIMEOUT_MS (90 * 1000)
#define PROXY_WAKE_WAITERS_MAX 256
#define PROXY_WAKE_FLIGHTS_MAX 1024
#define PROXY_WAKE_CALLS_MAX 64
/* Ids that nobody knows can be made up: they get a part of the two, so that known sandboxes still
 * wake. */
#define PROXY_WAKE_UNKNOWN_FLIGHTS_MAX (PROXY_WAKE_FLIGHTS_MAX / 2)
#define PROXY_WAKE_UNKNOWN_CALLS_MAX (PROXY_WAKE_CALLS_MAX / 2)
/* A connection to the hook, while there is another address to try. */
#define PROXY_WAKE_CONNECT_MS (2 * 1000)
/* The platform's answer, its words for people apart. */
#define PROXY_WAKE_ANSWER_BYTES_MAX (64 * 1024)
#define PROXY_WAKE_RETRY_AFTER_S_MAX 3600

/* proxy/relay: requests on their way to sandboxes. */

/* How long after each other a sandbox that does not answer is dialled, and how long in all. */
#define PROXY_DIAL_WAITS_MS \
	{ \
		100, 200, 300, 400, 500, 700, 800 \
	}
#define PROXY_DIAL_TIMEOUT_MS (3 * 1000)
/* The last attempt of a dial gets at least this long, so that the budget above may end with one. */
#define PROXY_DIAL_LAST_MS 500
/* How often one request may go to another place, may ask the catalog's sources, and may find its
 * sandbox asleep again. */
#define PROXY_REROUTES_MAX 3
#define PROXY_LOOKUPS_PER_REQUEST_MAX 3
#define PROXY_WAKE_ROUNDS_MAX 3
/* How long a body waits for the sandbox's "100 Continue" before it is sent anyway. */
#define PROXY_CONTINUE_WAIT_MS 1000
/* What clients have at once (relay/clients.h). Memory for heads of one address (of IPv6: the
 * network of 64 bits) and of all, beyond HTTP_HEADS_EXEMPT_BYTES of each. */
#define PROXY_CLIENT_HEADS_BYTES_MAX (3 * 1024 * 1024)
#define PROXY_HEADS_BYTES_MAX (32 * 1024 * 1024)
/* What connections of HTTP/2 may have under way and hold, of those that need more than at first. */
#define PROXY_CLIENT_BODIES_BYTES_MAX (256 * 1024 * 1024)
#define PROXY_BODIES_BYTES_MAX (1024 * 1024 * 1024)
/* Requests and tunnels of all; fewer where there are fewer descriptors. One more is for a client
 * that has less than so many times what is left, and for a sandbox that has less than what is left.
 * Of what waits for sources and for sandboxes to run (PROXY_LOOKUPS_MAX, PROXY_WAKE_FLIGHTS_MAX),
 * one more is for such a client, too. */
#define PROXY_EXCHANGES_MAX 65536
#define PROXY_CLIENT_PARTS 2
/* Of these, answers of one client that tell it of its share and wait for it to take them; beyond,
 * its HTTP/2 streams are refused without one. */
#define PROXY_REFUSALS_OPEN_MAX 128
/* Connections to sandboxes that rest. */
#define PROXY_IDLE_UPSTREAMS_MAX 4096
#define PROXY_UPSTREAM_IDLE_MS (60 * 1000)
/* Servers of users close idle connections early (Node and uvicorn after 5 s, gunicorn after 2). */
#define PROXY_USER_UPSTREAM_IDLE_MS 1500
/* A server that was told "Connection: close" gets this long after its answer to end the
 * connection. */
#define PROXY_UPSTREAM_ENDING_MS 1000
/* One side of a tunnel has ended, the other stays silent for this long. */
#define PROXY_HALF_CLOSED_MS (60 * 60 * 1000)
/* How many kinds of requests may be no activity. */
#define PROXY_PROBES_MAX 32
/* Cookies that let somebody into a private port (route/access.h) are good for this long unless told
 * otherwise; how many of our own name are looked at, since pages of others may have set some. */
#define PROXY_ACCESS_COOKIE_SECONDS (12 * 60 * 60)
#define PROXY_ACCESS_COOKIES_MAX 4

/* proxy/front: what clients connect to. */

/* Longer than every layer in front (contract/proxy.md 1.7). */
#define HTTP_PROXY_IDLE_TIMEOUT_MS (630 * 1000)

/* HTTP/2 towards clients (contract/proxy.md 1.14, S76-S87). Requests at once on a connection; more
 * are refused with REFUSED_STREAM, which clients may send again. */
#define HTTP2_STREAMS_MAX 100
/* What a client may send before it is told to go on: for a stream to begin with, for one whose
 * bytes keep being taken, and for all streams of a connection. */
#define HTTP2_STREAM_WINDOW_BYTES (256 * 1024)
#define HTTP2_STREAM_WINDOW_BYTES_MAX (1024 * 1024)
#define HTTP2_CONNECTION_WINDOW_BYTES (1024 * 1024)
/* ... at first, for all streams together, and what they may hold then (see below). Both grow when
 * more is needed, if the client has that much left. */
#define HTTP2_CONNECTION_WINDOW_BYTES_FIRST (128 * 1024)
#define HTTP2_HELD_BYTES_FIRST (64 * 1024)
/* What streams that nobody takes from may hold together without slowing the others down; beyond, it
 * counts against the window of the connection. */
#define HTTP2_HELD_BYTES_MAX (1024 * 1024)
/* Marks of what a response has waiting; at most one write of its maker more. */
#define HTTP2_STREAM_HIGH_MARK_BYTES (64 * 1024)
#define HTTP2_STREAM_LOW_MARK_BYTES (16 * 1024)
/* What goes to the connection in one write. */
#define HTTP2_WRITE_BYTES (128 * 1024)
/* Requests that come to nothing because the client resets them, breaks the rules or asks for more
 * than it may, at once and a second; beyond, ENHANCE_YOUR_CALM. */
#define HTTP2_RESETS_BURST 200
#define HTTP2_RESETS_PER_S 20
/* Frames that carry nothing (PING, SETTINGS, WINDOW_UPDATE, PRIORITY, RST_STREAM, empty DATA,
 * unknown ones), at once and a second. So many bytes of bodies, either way, allow one more. */
#define HTTP2_CONTROL_BURST 2000
#define HTTP2_CONTROL_PER_S 200
#define HTTP2_CONTROL_PER_BYTES 512
/* Frames that the rest of one head may come in. */
#define HTTP2_CONTINUATIONS_MAX 8
/* Memory for decoded heads of the requests that are open on a connection; beyond, REFUSED_STREAM.
 * Few bytes of HPACK make large heads. */
#define HTTP2_HEADS_BYTES_MAX (1024 * 1024)
/* A head that is too large is read to its end and answered 431, unless it is so many times too
 * large. */
#define HTTP2_HEAD_EXCESS_MAX 4
/* What may have to be kept of a session without requests that is to rest (HTTP2_REST_MS). */
#define HTTP2_FOLDED_BYTES_MAX (6 * 1024)
/* "No new requests, please" is said when so much of an orderly stop's time is left at least (a
 * third of it, if that is less), also if there was no moment without any (HTTP2_DRAIN_QUIET_MS);
 * and "no new requests" so long after it. */
#define HTTP2_DRAIN_LEFT_MS (5 * 1000)
#define HTTP2_DRAIN_NOTICE_MS 1000

/* proxy/admin */

/* A body, what is parsed from it at its worst and its answer together, and connections at once. */
#define PROXY_ADMIN_BODY_BYTES_MAX (64 * 1024)
#define PROXY_ADMIN_ARENA_BYTES (8 * 1024 * 1024)
#define PROXY_ADMIN_CONNECTIONS_MAX 256
/* Those who watch the catalog, and how often they hear that nothing has changed. */
#define PROXY_WATCHERS_MAX 64
#define PROXY_WATCH_HEARTBEAT_MS (30 * 1000)
/* How often activity is told. */
#define PROXY_ACTIVITY_EVERY_MS 1000
/* Links to private ports (route/access.h) are good for this long at most, and unless told
 * otherwise; and the path that one leads to. */
#define PROXY_LINK_SECONDS_MAX (7 * 24 * 60 * 60)
#define PROXY_LINK_SECONDS (60 * 60)
#define PROXY_LINK_PATH_BYTES_MAX 4096

#endif
