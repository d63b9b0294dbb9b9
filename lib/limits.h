/*
 * Every number a peer can push on, and every wait on a peer, has its name here, so that one page
 * answers "how much, how long". Units are in the names: _MS milliseconds, _BYTES bytes, _MAX
 * counts.
 */
#ifndef LIB_LIMITS_H
#define LIB_LIMITS_H

/* Streams: a writer is told "full" above the high mark and "drained" below the low one. */
#define STREAM_HIGH_MARK_BYTES (256 * 1024)
#define STREAM_LOW_MARK_BYTES (64 * 1024)
/* When the streams of a loop have so much queued together, each is "full" with any that it has
 * queued. */
#define STREAMS_QUEUED_BYTES_MAX (64 * 1024 * 1024)
#define LOOP_SCRATCH_BYTES (64 * 1024)
/* A timer that is due before what is ready was looked at comes again after so long (lib/loop.h). */
#define LOOP_LOOK_AGAIN_MS 1

/* HTTP/1.1 message heads (contract/proxy.md 3.11: at least 32 KiB and 100 fields are expected). */
#define HTTP_HEAD_BYTES_MAX (64 * 1024)
#define HTTP_TARGET_BYTES_MAX (32 * 1024)
#define HTTP_HEADERS_MAX 200
#define HTTP_LEADING_CRLF_MAX 2
#define HTTP_CHUNK_EXTENSION_BYTES_MAX (16 * 1024)
#define HTTP_TRAILERS_MAX 64
#define HTTP_INTERIM_RESPONSES_MAX 10
/* What a server says instead of a response to an upgrade, and how long its end is waited for. */
#define HTTP_REFUSAL_BYTES_MAX 128
#define HTTP_REFUSAL_WAIT_MS 1000
#define HTTP_EXCHANGE_ARENA_BYTES (512 * 1024)
/* What requests of all connections of a loop have together for heads and what is made of them. Of
 * each request these first bytes are not counted, so that ordinary heads are read whatever others
 * send. */
#define HTTP_EXCHANGES_BYTES_MAX (64 * 1024 * 1024)
#define HTTP_EXCHANGE_EXEMPT_BYTES (8 * 1024)
/* Where the memory for the heads of one client is counted, the first bytes of each exchange are
 * not, nor as many of its request to the sandbox: ordinary heads pass, whatever others hold. */
#define HTTP_HEADS_EXEMPT_BYTES (4 * 1024)
/* A request of ours to another server: head and body as they are kept until it is connected, and
 * how many of its addresses are tried. */
#define HTTP_CALL_ARENA_BYTES (512 * 1024)
#define HTTP_CALL_ADDRESSES_MAX 8
/* First byte to complete head, absolute, against slowloris. */
#define HTTP_HEAD_TIMEOUT_MS (30 * 1000)
/* A new connection that sends nothing at all. */
#define HTTP_FIRST_BYTE_TIMEOUT_MS (60 * 1000)
/* Longer than every layer in front (contract/envd.md 1.2, contract/proxy.md 1.7). */
#define HTTP_IDLE_TIMEOUT_MS (640 * 1000)
#define HTTP_PROXY_IDLE_TIMEOUT_MS (630 * 1000)
/* A peer that owes body bytes has to send so many (or the rest) in so long, or it only keeps the
 * connection busy. Not applied to client streams and tunnels. */
#define HTTP_BODY_IDLE_TIMEOUT_MS (120 * 1000)
#define HTTP_BODY_PROGRESS_BYTES 1024
/* Bytes are waiting for a peer that takes none. Longer than PROCESS_SUBSCRIBER_ALONE_STALL_MS, so
 * that a reader that comes back after that learns why it was cut, also through the proxy. */
#define HTTP_WRITE_STALL_TIMEOUT_MS (150 * 1000)
/* What is read and thrown away of a request body nobody wanted, before the connection closes. */
#define HTTP_DISCARD_BYTES_MAX (1024 * 1024)
/* After the last answer the client gets this long, counted from its last byte, to see it ... */
#define HTTP_LINGER_TIMEOUT_MS (2 * 1000)
/* ... and this long if it keeps sending. */
#define HTTP_LINGER_TOTAL_MS (30 * 1000)
/* Bytes kept of what comes before it can be used (pipelined requests, a body nobody started, frames
 * before the 101); at most one read more where a stream reads as it likes. Thousands of requests
 * may wait. */
#define HTTP_EARLY_BYTES_MAX (4 * 1024)
/* Accepted connections at once; beyond, new ones wait in the kernel's queue. */
#define HTTP_CONNECTIONS_MAX 16384
/* A connection that has been idle for less may have a request on its way: it is not closed to make
 * room for another. */
#define HTTP_EVICT_IDLE_MS 500
/* ... nor one on which an answer is still on its way, unless nothing of that was taken for so
 * long. */
#define HTTP_EVICT_STALLED_MS (5 * 1000)
/* When there is no room, how long others may wait in the kernel's queue before they are told. */
#define HTTP_QUEUE_PATIENCE_MS 1000
/* How often the log says that connections without a request are closed to make room. */
#define HTTP_EVICT_REPORT_MS (60 * 1000)
#define LISTEN_BACKLOG 1024

/* The descriptors there are (RLIMIT_NOFILE), shared out (lib/descriptors.h): parts for connections
 * of the HTTP server, for ports that are forwarded and their connections, and those that no work
 * may take which lasts (processes, jobs, watches, transfers): so many at most. What remains is for
 * such work alone. */
#define DESCRIPTORS_PARTS 8
#define DESCRIPTORS_PARTS_CONNECTIONS 3
#define DESCRIPTORS_PARTS_FORWARDED 2
#define DESCRIPTORS_PARTS_KEPT 1
#define DESCRIPTORS_KEPT_MAX 1024
/* The kernel asks silent peers for a sign of life, so that streams may rest for hours but not on a
 * connection whose other end is gone: first after the idle time, then count times. Seconds. */
#define TCP_KEEPALIVE_IDLE_S 60
#define TCP_KEEPALIVE_INTERVAL_S 15
#define TCP_KEEPALIVE_COUNT 4

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
#define HTTP2_CONTINUATIONS_MAX 8
/* Memory for decoded heads of the requests that are open on a connection; beyond, REFUSED_STREAM.
 * Few bytes of HPACK make large heads. */
#define HTTP2_HEADS_BYTES_MAX (1024 * 1024)
/* A head that is too large is read to its end and answered 431, unless it is so many times too
 * large. */
#define HTTP2_HEAD_EXCESS_MAX 4
/* A client with requests open that is silent for so long is asked for a sign of life, and gone if
 * it gives none for so long. */
#define HTTP2_PING_SILENCE_MS (30 * 1000)
#define HTTP2_PING_WAIT_MS (15 * 1000)
/* A session without requests rests after so long, if what has to be kept of it is no more than
 * that. */
#define HTTP2_REST_MS 1000
#define HTTP2_FOLDED_BYTES_MAX (6 * 1024)
/* At an orderly stop, once the requests are over that were open when it began, how long at most a
 * moment without any is waited for before "no new requests, please"; how much of the stop's time is
 * left at least (a third of it, if that is less); and then until "no new requests". */
#define HTTP2_DRAIN_QUIET_MS (5 * 1000)
#define HTTP2_DRAIN_LEFT_MS (5 * 1000)
#define HTTP2_DRAIN_NOTICE_MS 1000

/* The pool behind job_run, a thread more than may be taken by what waits, computes or launches.
 * Queued work beyond the maximum is refused with resource_exhausted. */
#define JOB_QUEUE_MAX 4096
#define JOB_BULK_MAX 2
#define JOB_LONG_MAX 1
#define JOB_BLOCKING_MAX 3
/* First pieces of transfers that may wait while others begin (lib/job.h), and how many those of one
 * are. */
#define JOB_PIECES_WAITING_MAX 16
#define FILE_FIRST_PIECES 4
#define JOB_COMPUTE_MAX 2
/* Starts that are being prepared or whose child is about to be born (lib/job.h). */
#define JOB_STARTS_MAX 16
#define JOB_STARTS_QUEUE_MAX PROCESS_MAX
#define JOB_THREADS (JOB_BLOCKING_MAX + JOB_COMPUTE_MAX + LAUNCHES_MAX + 1)
/* While others wait, what touches files is looked at so often; one that was seen running so many
 * times is stuck, and so many may be. Then as many threads as these and JOB_BLOCKING_MAX are added
 * at most. */
#define JOB_LOOK_STUCK_MS 250
#define JOB_STUCK_LOOKS 4
#define JOB_STUCK_MAX 16
/* Of each of these threads, of the pool's unless RLIMIT_STACK forbids as much; the kernel's own
 * default. */
#define JOB_STACK_BYTES (8 * 1024 * 1024)

/* RPC messages and JSON. */
#define RPC_MESSAGE_BYTES_MAX (64 * 1024 * 1024)
#define RPC_ARENA_BYTES (192 * 1024 * 1024)
/* What the messages of all calls have together: received bytes, what they inflate to, and what is
 * decoded from them, until it is dropped. Of each call these first bytes are not counted, so that
 * messages up to 64 KiB are served whatever other calls hold; less where there are very many
 * calls. */
#define RPC_MESSAGES_BYTES_MAX (256 * 1024 * 1024)
#define RPC_MESSAGE_EXEMPT_BYTES (128 * 1024)
#define RPC_MESSAGE_EXEMPT_BYTES_MIN (4 * 1024)
#define RPC_MESSAGES_EXEMPT_BYTES_MAX (64 * 1024 * 1024)
/* Messages up to this are decoded on the loop (about 3 ms at worst), larger ones in the pool. */
#define RPC_DECODE_INLINE_BYTES (256 * 1024)
/* Answers about so large are encoded on the loop, larger ones in the pool. */
#define RPC_ENCODE_INLINE_BYTES (256 * 1024)
/* Unary answers of so many bytes are compressed for clients that take it: on the loop up to the
 * second number (about a millisecond's work), larger ones in the pool. */
#define RPC_GZIP_BYTES_MIN 1024
#define RPC_GZIP_INLINE_BYTES (64 * 1024)
/* One answer; a listing of LIST_DIRECTORY_ENTRIES_MAX entries is what comes near. */
#define RPC_REPLY_BYTES_MAX (512 * 1024 * 1024)
/* Answers that clients have not taken yet, together. */
#define RPC_REPLIES_BYTES_MAX RPC_REPLY_BYTES_MAX
/* What the encoder's memory may keep between messages. */
#define RPC_OUTPUT_KEPT_BYTES (128 * 1024)
#define JSON_DEPTH_MAX 100
#define RPC_KEEPALIVE_DEFAULT_S 90
#define RPC_KEEPALIVE_MAX_S (24 * 3600)
/* Connect-Timeout-Ms has at most ten digits (contract/envd.md 4.1). */
#define RPC_TIMEOUT_DIGITS_MAX 10

/* Processes. */
#define PROCESS_MAX 16384
#define PROCESS_TAG_BYTES_MAX 4096
/* Arguments and environment: of all commands as long as they run, and of all starts (there with
 * the sandbox's environment) until they are born. Of each these first bytes are not counted. */
#define PROCESS_TEXTS_BYTES_MAX (256 * 1024 * 1024)
#define PROCESS_TEXTS_EXEMPT_BYTES (16 * 1024)
#define PROCESS_LOG_BYTES (256 * 1024)
/* When all processes together keep so much for readers that are behind, one that has some kept
 * reads no more. */
#define PROCESS_LOGS_BYTES_MAX (64 * 1024 * 1024)
#define PROCESS_READ_BYTES LOOP_SCRATCH_BYTES
#define PROCESS_SUBSCRIBERS_MAX 1024
/* A process is paced by its slowest reader. A reader that holds other readers up is cut when in so
 * long ... */
#define PROCESS_SUBSCRIBER_STALL_MS (10 * 1000)
/* ... it has not taken as much as this; one that holds up only the process, when in so long it has
 * taken nothing. */
#define PROCESS_SUBSCRIBER_PROGRESS_BYTES 1024
#define PROCESS_SUBSCRIBER_ALONE_STALL_MS (120 * 1000)
/* How often readers that are behind are looked at. */
#define PROCESS_SUBSCRIBER_LOOK_MS 1000
/* How long the beginning of a character waits for its rest. */
#define PROCESS_PARTIAL_HOLD_MS 20
/* Decision 1/60: after the leader's exit output is delivered until EOF or this much quiet ... */
#define PROCESS_DRAIN_QUIET_MS 100
/* ... and at most this long. */
#define PROCESS_DRAIN_MAX_MS 1000
/* Inputs waiting for one process; each holds its own request, of RPC_MESSAGE_BYTES_MAX at most. */
#define PROCESS_INPUTS_MAX 64
#define PROCESS_RETAINED_EXIT_MS (30 * 1000)
#define PROCESS_RETAINED_EXITS_MAX 4096
#define PROCESS_KILL_WAIT_MS 1000
/* How long a kill goes on looking for members of the session that appear while it kills. */
#define PROCESS_KILL_SCAN_MS 1000
/* Orderly stop of envd: SIGTERM, and this long later SIGKILL. */
#define PROCESS_STOP_GRACE_MS 1500
/* Threads that stand still until their child's exec (envd/process/launch.h). */
#define LAUNCHES_MAX 1
/* How long a child may take to its exec: before a launch is given up, or it is made killable for
 * want of memory ... */
#define PROCESS_SLOW_START_MS 100
/* ... and before it is given up, unless it is frozen. */
#define PROCESS_STATUS_PIPE_MS (30 * 1000)
/* The kernel has 16 bits for each side; what is larger is cut. */
#define TERMINAL_SIZE_MAX 65535

/* What an envd that was killed a moment ago may still hold is asked for again. */
#define START_AGAIN_MS 500
#define START_AGAIN_PAUSE_US 2000
/* Background jobs: how many at once, and how many ended ones are kept, for how long, with how much
 * output in all (flags of envd say otherwise). */
#define JOBS_RUNNING_MAX 4096
#define JOBS_ENDED_MAX 10000
#define JOBS_ENDED_AGE_S (7 * 24 * 3600)
#define JOBS_AGE_S_MAX (100LL * 366 * 24 * 3600)
#define JOBS_ENDED_BYTES (8LL * 1024 * 1024 * 1024)
/* How often, at least and at most, it is looked whether some are too old. */
#define JOBS_RETENTION_MS (60 * 60 * 1000)
#define JOBS_RETENTION_MS_MIN 1000
/* What a job says about itself: texts, and how much of its command line is kept. */
#define JOB_NAME_BYTES_MAX 256
#define JOB_KEY_BYTES_MAX 256
#define JOB_PATH_BYTES_MAX 4096
#define JOB_SHOWN_COMMAND_BYTES 2048
#define JOB_RECORD_BYTES_MAX (128 * 1024)
#define JOB_RECORD_ARENA_BYTES (1024 * 1024)
#define JOB_WALL_TIME_MS_MAX (366LL * 24 * 3600 * 1000)
/* A keeper whose envd was killed has so long to write down that it lives, before its job counts as
 * lost. */
#define JOB_KEEPER_BEGIN_MS (5 * 1000)
#define JOB_STOP_GRACE_MS (10 * 1000)
#define JOB_STOP_GRACE_MS_MAX (24 * 3600 * 1000)
/* Of each of its two streams; whoever asks for less than the least gets that. */
#define JOB_OUTPUT_BYTES (1024LL * 1024 * 1024)
#define JOB_OUTPUT_BYTES_MIN (64 * 1024)
/* How often output that grows is looked at: with somebody who follows it, and for the cap alone. */
#define JOB_LOOK_MS 5
#define JOB_LOOK_IDLE_MS 200
/* When the other of its two streams grows, so that the order is known; and so many running jobs add
 * a millisecond to that. How many changes of order are kept: 16 bytes each. */
#define JOB_LOOK_ORDER_MS 20
#define JOB_LOOK_ORDER_CROWD 8
#define JOB_ORDER_MARKS_MAX 16384
/* So many readers and waiters add a millisecond to the first. */
#define JOB_LOOK_CROWD 32
/* For somebody who follows it or waits, also without a word from the kernel. */
#define JOB_LOOK_SURE_MS 1000
/* While jobs run, whether the disk is full: with little room left more often, still more while that
 * changes. Besides, with every look at output that grows. */
#define JOB_DISK_CHECK_MS (10 * 1000)
#define JOB_DISK_LOW_BYTES (256LL * 1024 * 1024)
#define JOB_DISK_CHECK_LOW_MS 1000
#define JOB_DISK_CHECK_SCARCE_MS 100
/* Input that is stored and that the job has not read yet. */
#define JOB_STDIN_BYTES_MAX (64LL * 1024 * 1024)
/* Output to one reader is read in pieces of this size, which get smaller where there are many
 * readers. */
#define JOB_READ_BYTES (256 * 1024)
#define JOB_READ_BYTES_MIN (8 * 1024)
#define JOB_READS_BYTES (32 * 1024 * 1024)
#define JOB_RPC_READ_BYTES (64 * 1024)
/* Each has a read in the pool's queue at times, which is for others as well. */
#define JOB_READERS_MAX (JOB_QUEUE_MAX / 2)
/* Wait: jobs of one call, calls, the pattern, the longest line that is looked at, how often ports
 * are. */
#define JOB_WAIT_IDS_MAX 64
#define JOB_WAITS_MAX 1024
#define JOB_PATTERN_BYTES_MAX 1024
#define JOB_LINE_BYTES_MAX 8192
#define JOB_PORT_LOOK_MS 50
#define JOB_WATCHERS_MAX 256
/* Deleted jobs a watcher that was away can be told of. */
#define JOB_DELETIONS_KEPT 4096
#define JOB_LIST_PAGE 100
#define JOB_LIST_PAGE_MAX 1000
/* A webhook: its texts, each attempt, and how long after each other they come. */
#define JOB_WEBHOOK_URL_BYTES_MAX 2048
#define JOB_WEBHOOK_KEY_BYTES_MAX 256
#define JOB_WEBHOOK_TIMEOUT_MS (10 * 1000)
/* ... and what of an answer is heard to its end, once its status has come. */
#define JOB_WEBHOOK_LINGER_MS (5 * 1000)
#define JOB_WEBHOOK_ANSWER_BYTES_MAX (64 * 1024)
#define JOB_WEBHOOK_WAITS_MS \
	{ \
		1000, 5 * 1000, 30 * 1000, 2 * 60 * 1000, 10 * 60 * 1000 \
	}
/* At once, and of those to one server, so that a dead one does not hold up the others. */
#define JOB_WEBHOOKS_AT_ONCE 32
#define JOB_WEBHOOKS_OF_SERVER 4
#define JOB_WEBHOOK_BODY_BYTES_MAX (64 * 1024)

/* Files. */
#define FILE_CHUNK_BYTES (256 * 1024)
/* What an upload collects for one job: going to the pool and back costs as much as writing some 100
 * KiB. */
#define FILE_UPLOAD_CHUNK_BYTES (1024 * 1024)
/* An upload that brings nothing for so long keeps no memory for what it has brought. */
#define UPLOAD_REST_MS 500
/* All transfers of a loop that have begun hold about so much together; many at once have smaller
 * chunks each. */
#define FILE_TRANSFERS_BYTES (32 * 1024 * 1024)
#define FILE_CHUNK_BYTES_MIN (16 * 1024)
#define FILE_CHUNK_BYTES_LEAST (4 * 1024)
/* What is sent uncopied in one go (file_send.h), of a file that is in memory about a millisecond's
 * work. At first, at most, and of a file that is slow: ... */
#define FILE_SEND_BYTES_FIRST (2 * 1024 * 1024)
#define FILE_SEND_BYTES (8 * 1024 * 1024)
#define FILE_SEND_BYTES_MIN (256 * 1024)
/* ... what goes in so long. */
#define FILE_SEND_MS 10
/* A job that has a client's socket (lent_socket.h) goes on for so long at most, and only while
 * nobody waits for its thread. */
#define LENT_SOCKET_JOB_MS 50
/* What is copied while it waits for a client that is behind: the loop wakes up when there is room
 * for bytes that it has, and then there is room for a third of all that the socket holds. */
#define FILE_SEND_WAIT_BYTES 4096
/* The end of a download is copied: what sender and receiver can hold (4 and 6 MiB, unless Linux is
 * told otherwise), and this, which has not reached the kernel when the last is read: two chunks and
 * what a stream queues. */
#define FILE_SEND_TAIL_BYTES (2 * 1024 * 1024)
/* Smaller files are copied without asking how much that is. */
#define FILE_SEND_FILE_BYTES_MIN (12 * 1024 * 1024)
/* Downloads compressed at once: with much memory each, with little, and beyond that the file goes
 * out as it is to whoever takes it so ... */
#define FILE_COMPRESSIONS_LARGE_MAX 16
#define FILE_COMPRESSIONS_MAX 64
/* ... and who takes nothing but gzip is told to come again. */
#define FILE_COMPRESSIONS_FORCED_MAX 256
/* How long a file under a lease is waited for, the time between two looks, and how many threads of
 * the pool may wait at a time; beyond that the client is told at once that the file is taken. */
#define FILE_LEASE_WAIT_MS 2000
#define FILE_LEASE_LOOK_MS 5
#define FILE_LEASE_WAITS_MAX 2
/* Larger uploads, and those that do not tell, are written directly into a file that is there and
 * empty. */
#define UPLOAD_DIRECT_BYTES_MIN (1024 * 1024)
#define FILE_METADATA_KEY_BYTES_MAX 246
#define FILE_METADATA_BYTES_MAX 4096
#define MULTIPART_BOUNDARY_BYTES_MAX 200
#define MULTIPART_HEADERS_BYTES_MAX (32 * 1024)
#define MULTIPART_FILES_MAX 10000
#define LIST_DIRECTORY_ENTRIES_MAX 500000
/* Larger listings run one at a time. */
#define LIST_SHORT_ENTRIES_MAX 1000
/* What one listing may need in memory, and any other operation (tables of names included). */
#define LIST_DIRECTORY_ARENA_BYTES (192 * 1024 * 1024)
#define FILE_OPERATION_ARENA_BYTES (8 * 1024 * 1024)
/* What the names of all files of one upload request may need. */
#define UPLOAD_ARENA_BYTES (16 * 1024 * 1024)
/* ... and those of all uploads, these first bytes of each not counted. */
#define UPLOADS_ARENA_BYTES_MAX (64 * 1024 * 1024)
#define UPLOAD_ARENA_EXEMPT_BYTES (16 * 1024)
#define SYMLINK_HOPS_MAX 255
/* POST /files/compose: one body, all of them, what is made of one, and what a job copies in one
 * go. */
#define COMPOSE_BODY_BYTES_MAX (1024 * 1024)
#define COMPOSE_BODIES_BYTES_MAX (16 * 1024 * 1024)
#define COMPOSE_BODY_FREE_BYTES (16 * 1024)
#define COMPOSE_ARENA_BYTES (48 * 1024 * 1024)
/* ... of all that are under way, these first bytes of each not counted. */
#define COMPOSE_ARENAS_BYTES_MAX (96 * 1024 * 1024)
#define COMPOSE_ARENA_EXEMPT_BYTES (64 * 1024)
#define COMPOSE_STEP_BYTES (64 * 1024 * 1024)

/* Watches. Each is a process and an inotify instance, of which Linux allows a user 128 by
 * default. */
#define WATCHES_MAX 1024
/* Names below one watched directory (about 130 bytes each in its helper). */
#define WATCH_ENTRIES_MAX (1024 * 1024)
/* What the library may fail to forget before everything is armed anew. */
#define WATCH_STALE_MAX 20000
/* From the start of the helper to "armed"; a large tree on a slow disk takes its time. */
#define WATCH_READY_MS (5 * 60 * 1000)
/* What is read of a helper in one go. While a client takes nothing, so much and the beginning of a
 * record wait in envd, and the rest in the pipe and the kernel. */
#define WATCH_READ_BYTES 4096
/* Names a watch leaves out, and how long each may be (NAME_MAX, in the form that clients see). */
#define WATCH_EXCLUDED_MAX 64
#define WATCH_EXCLUDED_NAME_BYTES_MAX (3 * 255)
/* Events looked at together, and what names and entries of those may need. */
#define WATCH_BATCH_EVENTS 512
#define WATCH_BATCH_ARENA_BYTES (32 * 1024 * 1024)
/* What is kept for a poller; beyond, the helper waits and then tells the difference. */
#define WATCHER_EVENTS_MAX 32768
#define WATCHER_BYTES_MAX (8 * 1024 * 1024)
/* What waits in envd for all pollers and all streams together; beyond, the watcher that was polled
 * longest ago loses what it has, and its next poll says so. */
#define WATCHERS_BYTES_MAX (32 * 1024 * 1024)
/* It is logged once in such a time that this has happened. */
#define WATCHERS_LOST_LOG_MS (60 * 1000)
/* How long a poll waits for the helper to tell what has happened before it. */
#define WATCHER_POLL_MS 5000
#define WATCHER_ANSWER_ARENA_BYTES (64 * 1024 * 1024)
/* A watcher nobody has polled for this long is removed. */
#define WATCHER_EXPIRY_MS (60 * 60 * 1000)

/* Sandbox state. */
#define INIT_BODY_BYTES_MAX (4 * 1024 * 1024)
/* All bodies of /init together, and what is parsed from one of them. */
#define INIT_BODIES_BYTES_MAX (16 * 1024 * 1024)
/* Of each these first bytes are not counted, so that nobody who sends large ones slowly keeps the
 * host's out, which has a kilobyte or two; less where there are very many. */
#define INIT_EXEMPT_BYTES (16 * 1024)
#define INIT_EXEMPT_BYTES_MAX (8 * 1024 * 1024)
#define INIT_ARENA_BYTES (64 * 1024 * 1024)
#define INIT_WAITERS_MAX 256

/* The host's metadata service (contract/envd.md 1.9): each of the two requests, how often it is
 * asked while it does not answer, for how long so often, and how seldom at last. */
#define METADATA_REQUEST_MS (10 * 1000)
/* The same while an /init waits: the service is in the machine's own monitor, and hosts give up an
 * /init for good after 10 s. */
#define METADATA_CHECK_MS (1 * 1000)
/* What was asked for an /init whose sender had left when the answer came is good for the next
 * one. */
#define METADATA_KEPT_MS (1 * 1000)
#define METADATA_POLL_MS 50
/* One run of iptables, which itself waits 5 s for another one. */
#define METADATA_PIN_MS (6 * 1000)
#define METADATA_REFRESH_MS (60 * 1000)
#define METADATA_POLL_MS_MAX (60 * 1000)
#define METADATA_BYTES_MAX (64 * 1024)
#define METADATA_ARENA_BYTES (4 * 1024 * 1024)
#define METADATA_TOKEN_BYTES_MAX 1024

/* Lines of the log on their way to the host's collector (contract/envd.md 1.8): what waits, how
 * long one delivery may take, how often one line is tried, how long after a failure (growing), and
 * how often failures are told. */
#define LOG_EXPORT_BYTES_MAX (512 * 1024)
#define LOG_EXPORT_REQUEST_MS (10 * 1000)
#define LOG_EXPORT_ATTEMPTS_MAX 3
#define LOG_EXPORT_RETRY_MS 250
#define LOG_EXPORT_RETRY_MS_MAX (60 * 1000)
#define LOG_EXPORT_REPORT_MS (60 * 1000)
#define LOG_EXPORT_ADDRESS_BYTES_MAX 2048
/* How long a freeze waits for the log to be delivered, at most: hosts give it two seconds, of which
 * the wait for the cgroups takes one and a half. */
#define LOG_EXPORT_FLUSH_MS 250

/* Volumes (contract/envd.md 1.11): those of one /init, all of them; how long one /init may mount,
 * and what a lazy unmount gets at least. */
#define VOLUMES_MAX 64
#define VOLUMES_MOUNTED_MAX 1024
#define VOLUMES_BATCH_MS (10 * 1000)
#define VOLUMES_DETACH_MS (2 * 1000)

/* Freezing (contract/envd.md 2.9). What one request may ask for ... */
#define FREEZE_CGROUPS_DEFAULT 512
#define FREEZE_CGROUPS_MAX 8192
#define FREEZE_WAIT_MS_MAX (60 * 1000)
#define FREEZE_POLL_MS 2
/* ... and how many requests may wait for each other. */
#define FREEZE_WAITERS_MAX 64
/* A frozen workload that nobody thaws is thawed after this long. */
#define FREEZE_WATCHDOG_MS (10 * 60 * 1000)
/* Hosts wait this long and a little more for /collapse (contract/envd.md 1.15). */
#define COLLAPSE_MS_MAX (8 * 1000)
/* The names of all cgroups that one walk over them keeps at a time. */
#define CGROUP_PATHS_BYTES_MAX (4 * 1024 * 1024)

/* Localhost forwarding: how often the sockets that listen are looked at while something runs (half
 * of what a server may be out of reach for at first), and how slowly at last when nothing does. */
#define FORWARD_SCAN_MS 50
/* Just after something was started, when servers mostly begin to listen. */
#define FORWARD_SCAN_FRESH_MS 20
#define FORWARD_FRESH_MS (5 * 1000)
/* A new listener is looked at a second time after this long, before it is forwarded. */
#define FORWARD_SETTLE_MS 10
#define FORWARD_SCAN_IDLE_MS_MAX (8 * 1000)
#define FORWARD_SCAN_SERVING_MS_MAX 1000
/* What one look may read: some ten thousand sockets. */
#define FORWARD_SCAN_BYTES_MAX (1024 * 1024)
#define FORWARD_PORTS_MAX 1024
#define FORWARD_CONNECTIONS_MAX 1024
/* When one port has them all, others get so many each, and together so many more: a part of all. */
#define FORWARD_CONNECTIONS_RESERVE_PART 4
#define FORWARD_CONNECTIONS_PORT_MIN 16
/* An address that was in use is tried again this much later. */
#define FORWARD_RETRY_MS 1000

/* Proxy. */
#define PROXY_DIAL_WAITS_MS \
	{ \
		100, 200, 300, 400, 500, 700, 800 \
	}
#define PROXY_DIAL_TIMEOUT_MS (3 * 1000)
/* The last attempt of a dial gets at least this long, so that the budget above may end with one. */
#define PROXY_DIAL_LAST_MS 500
#define PROXY_REROUTES_MAX 3
/* Lines in the log about addresses that are not dialled, and about records that make no sense: one
 * in so long. */
#define PROXY_COMPLAINTS_MS 1000
#define PROXY_RESOLVED_MAX 4
/* A worker's thread that enters network namespaces hangs when a path takes longer, in a file system
 * that does not answer; and how many may. */
#define PROXY_NETNS_STUCK_MS 200
#define PROXY_NETNS_STUCK_MAX 8
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
 * Of what waits for sources and for sandboxes to run, below, one more is for such a client, too. */
#define PROXY_EXCHANGES_MAX 65536
#define PROXY_CLIENT_PARTS 2
/* Of these, answers of one client that tell it of its share and wait for it to take them; beyond,
 * its HTTP/2 streams are refused without one. */
#define PROXY_REFUSALS_OPEN_MAX 128
#define PROXY_SANDBOXES_MAX 65536
/* Changes of the catalog that a watcher may be behind; each keeps what the sandbox was then, half a
 * kilobyte and more, so memory grows with the first 4,096 of them, and not afterwards. */
#define PROXY_CHANGES_KEPT 4096
#define PROXY_WORKERS_MAX 64
/* Ids that the catalog's sources are being asked about, requests that wait for that, and how often
 * one request may ask. */
#define PROXY_LOOKUPS_MAX 1024
#define PROXY_LOOKUP_WAITERS_MAX 8192
#define PROXY_LOOKUPS_PER_REQUEST_MAX 3
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
 * it does not. */
#define PROXY_REDIS_RESCAN_MS (60 * 1000)
#define PROXY_REDIS_POLL_MS (2 * 1000)
#define PROXY_REDIS_SCAN_COUNT 256
/* DNS: how long a request waits for it, how long an answer holds, a "no such name", and a sandbox
 * that nobody uses; sandboxes known from there, names remembered not to exist, refreshes at a
 * time. */
#define PROXY_DNS_MS (3 * 1000)
/* Each name server's part of that; questions on their way; how long the system's list of name
 * servers holds. */
#define PROXY_DNS_STEP_MS 1000
#define PROXY_DNS_QUESTIONS_MAX 32
#define PROXY_DNS_SERVERS_MS (10 * 1000)
#define PROXY_DNS_TTL_MS_MIN 1000
#define PROXY_DNS_TTL_MS_MAX (5 * 1000)
#define PROXY_DNS_NEGATIVE_MS 1000
#define PROXY_DNS_IDLE_MS (60 * 1000)
#define PROXY_DNS_RECORDS_MAX 16384
#define PROXY_DNS_NEGATIVE_MAX 4096
#define PROXY_DNS_REFRESHES_MAX 256
#define PROXY_ADMIN_BODY_BYTES_MAX (64 * 1024)
#define PROXY_ADMIN_ARENA_BYTES \
	(8 * 1024 * 1024) /* that body parsed, at its worst, and an answer */
#define PROXY_ADMIN_CONNECTIONS_MAX 256
/* At the end the admin API's last answers get this long; and when a successor takes over, a request
 * that may be on its way. */
#define PROXY_ADMIN_ENDING_MS 500
#define PROXY_ADMIN_HANDOVER_IDLE_MS 1000
#define PROXY_WATCHERS_MAX 64
#define PROXY_WATCH_HEARTBEAT_MS (30 * 1000)
#define PROXY_IDLE_UPSTREAMS_MAX 4096
#define PROXY_UPSTREAM_IDLE_MS (60 * 1000)
/* Servers of users close idle connections early (Node and uvicorn after 5 s, gunicorn after 2). */
#define PROXY_USER_UPSTREAM_IDLE_MS 1500
/* A server that was told "Connection: close" gets this long after its answer to end the
 * connection. */
#define PROXY_UPSTREAM_ENDING_MS 1000
#define PROXY_DRAIN_MS (15 * 1000)
/* A successor has this long to serve; and the old one's clients to send what is on its way. */
#define PROXY_HANDOVER_MS (30 * 1000)
#define PROXY_HANDOVER_IDLE_MS (5 * 1000)
/* Waking (wake/wake.h): how long requests wait for a sandbox unless told otherwise, how many for
 * one, how many sandboxes at once, how many of these the platform is asked about at a time, and how
 * often one request may find its sandbox asleep again. */
#define PROXY_WAKE_TIMEOUT_MS (90 * 1000)
#define PROXY_WAKE_WAITERS_MAX 256
/* To the hook, while there is another address to try. */
#define PROXY_WAKE_CONNECT_MS (2 * 1000)
#define PROXY_WAKE_FLIGHTS_MAX 1024
#define PROXY_WAKE_CALLS_MAX 64
#define PROXY_WAKE_ROUNDS_MAX 3
/* Ids that nobody knows can be made up: they get a part of the two, so that known sandboxes still
 * wake. */
#define PROXY_WAKE_UNKNOWN_FLIGHTS_MAX (PROXY_WAKE_FLIGHTS_MAX / 2)
#define PROXY_WAKE_UNKNOWN_CALLS_MAX (PROXY_WAKE_CALLS_MAX / 2)
/* The platform's answer, its words for people apart. */
#define PROXY_WAKE_ANSWER_BYTES_MAX (64 * 1024)
#define PROXY_WAKE_RETRY_AFTER_S_MAX 3600
/* How often activity is told, and how many kinds of requests may be no activity. */
#define PROXY_ACTIVITY_EVERY_MS 1000
#define PROXY_PROBES_MAX 32
/* Links to private ports (route/access.h) are good for this long at most, and unless told
 * otherwise; and how many cookies of our own name are looked at, since pages of others may have set
 * some. */
#define PROXY_LINK_SECONDS_MAX (7 * 24 * 60 * 60)
#define PROXY_LINK_SECONDS (60 * 60)
#define PROXY_ACCESS_COOKIE_SECONDS (12 * 60 * 60)
#define PROXY_ACCESS_COOKIES_MAX 4
#define PROXY_LINK_PATH_BYTES_MAX 4096
/* One side of a tunnel has ended, the other stays silent for this long. */
#define PROXY_HALF_CLOSED_MS (60 * 60 * 1000)

/* TLS (contract/proxy.md S56): from accepting to the end of the handshake, absolute. */
#define TLS_HANDSHAKE_TIMEOUT_MS (10 * 1000)
/* What the expensive beginnings of handshakes may take of one turn of the loop; more wait for the
 * next, so that a burst of new clients does not hold up those that are there. Microseconds. */
#define TLS_HANDSHAKE_SLICE_US 2000
/* What a client may send before its first record is complete: header, content, room for
 * protection. */
#define TLS_FIRST_RECORD_BYTES_MAX (5 + 16 * 1024 + 256)
/* Answers that the library gives by itself (key updates, refused renegotiations) to a peer that
 * does not take them. */
#define TLS_CONTROL_BYTES_MAX (16 * 1024)
/* A session may be resumed this long; the keys of its ticket live at most twice as long. */
#define TLS_SESSION_S (4 * 3600)
/* Certificates: one file, all of a directory, names of one; and how long a changed file rests
 * before it is read. */
#define TLS_FILE_BYTES_MAX (1024 * 1024)
#define TLS_CERTIFICATES_MAX 4096
#define TLS_NAMES_MAX 1024
#define TLS_RELOAD_DELAY_MS 300

/* Orderly stop of envd: once all processes are gone, clients get this long to take the rest of
 * their answers; then connections are reset. */
#define SHUTDOWN_ANSWERS_MS (1 * 1000)
/* And this much later a program ends in any case, also if work in a dead file system does not. */
#define SHUTDOWN_HARD_MS (3 * 1000)
/* As process 1: others that are still there get SIGTERM, this long, SIGKILL, and this long to be
 * gone. */
#define MACHINE_STOP_GRACE_MS 1000
#define SHUTDOWN_KILLED_MS (1 * 1000)
/* A file system that takes longer to be written out is one that hangs. */
#define SHUTDOWN_SYNC_MS (10 * 1000)

/* What a virtual machine gets at least, if envd sets it up. */
#define INOTIFY_WATCHES_MIN (1024 * 1024)
#define INOTIFY_INSTANCES_MIN 8192
#define INOTIFY_QUEUE_MIN (64 * 1024)

#endif
