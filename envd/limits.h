/*
 * How much a peer can push on envd, its client and envd-watch, and how long each wait may take: the
 * limits that only they have, a heading for each folder. lib/limits.h has those of lib/, and says
 * how to read both.
 */
#ifndef ENVD_LIMITS_H
#define ENVD_LIMITS_H

#include "lib/limits.h"

/* envd: how it shares out what there is, begins and ends. */

/* Of DESCRIPTORS_PARTS, those for connections of the HTTP server, and for ports that are forwarded
 * and their connections. What these and DESCRIPTORS_PARTS_KEPT leave is for work that lasts. */
#define DESCRIPTORS_PARTS_CONNECTIONS 3
#define DESCRIPTORS_PARTS_FORWARDED 2
/* What an envd that was killed a moment ago may still hold is asked for again: for how long, how
 * often. */
#define START_AGAIN_MS 500
#define START_AGAIN_PAUSE_US 2000
/* Orderly stop: SIGTERM for all processes, and this long later SIGKILL. */
#define PROCESS_STOP_GRACE_MS 1500
/* Once all processes are gone, clients get this long to take the rest of their answers; then
 * connections are reset. */
#define SHUTDOWN_ANSWERS_MS (1 * 1000)

/* envd/rpc: messages, and answers to them. */

/* One message, and what is decoded from it or made for its answer. */
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
/* How often a silent stream shows that it lives, unless its client asks for another time. */
#define RPC_KEEPALIVE_DEFAULT_S 90
#define RPC_KEEPALIVE_MAX_S (24 * 3600)
/* Connect-Timeout-Ms has at most ten digits (contract/envd.md 4.1). */
#define RPC_TIMEOUT_DIGITS_MAX 10

/* envd/init: what the host sets. */

/* One body of /init, all of them together, and what is parsed from one. */
#define INIT_BODY_BYTES_MAX (4 * 1024 * 1024)
#define INIT_BODIES_BYTES_MAX (16 * 1024 * 1024)
#define INIT_ARENA_BYTES (64 * 1024 * 1024)
/* Of each body these first bytes are not counted, so that nobody who sends large ones slowly keeps
 * the host's out, which has a kilobyte or two; less where there are very many. */
#define INIT_EXEMPT_BYTES (16 * 1024)
#define INIT_EXEMPT_BYTES_MAX (8 * 1024 * 1024)
/* Requests that wait for their turn. */
#define INIT_WAITERS_MAX 256

/* envd/snapshot: freezing (contract/envd.md 2.9). */

/* What one request may ask for ... */
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

/* envd/forward: servers of localhost. */

/* How often the sockets that listen are looked at while something runs (half of what a server may
 * be out of reach for at first) ... */
#define FORWARD_SCAN_MS 50
/* ... just after something was started, when servers mostly begin to listen, and how long that
 * is ... */
#define FORWARD_SCAN_FRESH_MS 20
#define FORWARD_FRESH_MS (5 * 1000)
/* ... and how slowly at last when nothing runs: before no look is needed any more, or while a port
 * is forwarded. */
#define FORWARD_SCAN_IDLE_MS_MAX (8 * 1000)
#define FORWARD_SCAN_SERVING_MS_MAX 1000
/* A new listener is looked at a second time after this long, before it is forwarded. */
#define FORWARD_SETTLE_MS 10
/* What one look may read: some ten thousand sockets. */
#define FORWARD_SCAN_BYTES_MAX (1024 * 1024)
/* Ports at once, and connections to all of them. */
#define FORWARD_PORTS_MAX 1024
#define FORWARD_CONNECTIONS_MAX 1024
/* When one port has them all, others get so many each, and together so many more: a part of all. */
#define FORWARD_CONNECTIONS_RESERVE_PART 4
#define FORWARD_CONNECTIONS_PORT_MIN 16
/* An address that was in use is tried again this much later. */
#define FORWARD_RETRY_MS 1000

/* envd/boot: process 1 of a virtual machine. */

/* At the end, others that are still there get SIGTERM, this long, SIGKILL, and this long to be
 * gone. */
#define MACHINE_STOP_GRACE_MS 1000
#define SHUTDOWN_KILLED_MS (1 * 1000)
/* A file system that takes longer to be written out is one that hangs. */
#define SHUTDOWN_SYNC_MS (10 * 1000)
/* What the machine gets at least, if envd sets it up. */
#define INOTIFY_WATCHES_MIN (1024 * 1024)
#define INOTIFY_INSTANCES_MIN 8192
#define INOTIFY_QUEUE_MIN (64 * 1024)

/* envd/filesystem */

/* What is read of a file, or collected for it, at a time. */
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
/* So many pieces of each transfer are its first (JOB_PIECE of lib/job.h). */
#define FILE_FIRST_PIECES 4
/* What is copied of a file that is sent uncopied (lib/file_send.h) while it waits for a client that
 * is behind: the loop wakes up when there is room for bytes that it has, and then there is room for
 * a third of all that the socket holds. */
#define FILE_SEND_WAIT_BYTES 4096
/* Smaller files are copied to their end without asking how much of that has to be. */
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
/* Symbolic links that one path may lead through. */
#define SYMLINK_HOPS_MAX 255
/* One key of a file's metadata, and all of them with their values. */
#define FILE_METADATA_KEY_BYTES_MAX 246
#define FILE_METADATA_BYTES_MAX 4096
/* An upload of several files: what stands between them, the head of one, how many. */
#define MULTIPART_BOUNDARY_BYTES_MAX 200
#define MULTIPART_HEADERS_BYTES_MAX (32 * 1024)
#define MULTIPART_FILES_MAX 10000
/* What the names of all files of one upload request may need. */
#define UPLOAD_ARENA_BYTES (16 * 1024 * 1024)
/* ... and those of all uploads, these first bytes of each not counted. */
#define UPLOADS_ARENA_BYTES_MAX (64 * 1024 * 1024)
#define UPLOAD_ARENA_EXEMPT_BYTES (16 * 1024)
/* Entries of one listing; those with more than the second number run one at a time. */
#define LIST_DIRECTORY_ENTRIES_MAX 500000
#define LIST_SHORT_ENTRIES_MAX 1000
/* What one listing may need in memory, and any other operation (tables of names included). */
#define LIST_DIRECTORY_ARENA_BYTES (192 * 1024 * 1024)
#define FILE_OPERATION_ARENA_BYTES (8 * 1024 * 1024)
/* POST /files/compose: one body, all of them, what is made of one, and what a job copies in one
 * go. */
#define COMPOSE_BODY_BYTES_MAX (1024 * 1024)
#define COMPOSE_BODIES_BYTES_MAX (16 * 1024 * 1024)
#define COMPOSE_ARENA_BYTES (48 * 1024 * 1024)
#define COMPOSE_STEP_BYTES (64 * 1024 * 1024)
/* Of each body these first bytes are not counted. */
#define COMPOSE_BODY_FREE_BYTES (16 * 1024)
/* What is made of all that are under way, these first bytes of each not counted. */
#define COMPOSE_ARENAS_BYTES_MAX (96 * 1024 * 1024)
#define COMPOSE_ARENA_EXEMPT_BYTES (64 * 1024)

/* envd/process */

/* All of them may be waiting to be born. */
#define PROCESS_MAX JOB_STARTS_QUEUE_MAX
/* What a client calls one by. */
#define PROCESS_TAG_BYTES_MAX 4096
/* Arguments and environment: of all commands as long as they run, and of all starts (there with
 * the sandbox's environment) until they are born. Of each these first bytes are not counted. */
#define PROCESS_TEXTS_BYTES_MAX (256 * 1024 * 1024)
#define PROCESS_TEXTS_EXEMPT_BYTES (16 * 1024)
/* How long a child may take to its exec: before a launch is given up, or it is made killable for
 * want of memory ... */
#define PROCESS_SLOW_START_MS 100
/* ... and before it is given up, unless it is frozen. */
#define PROCESS_STATUS_PIPE_MS (30 * 1000)
/* What is read of a process in one go. */
#define PROCESS_READ_BYTES LOOP_SCRATCH_BYTES
/* What one process keeps of its output for readers that are behind. */
#define PROCESS_LOG_BYTES (256 * 1024)
/* When all processes together keep so much for readers that are behind, one that has some kept
 * reads no more. */
#define PROCESS_LOGS_BYTES_MAX (64 * 1024 * 1024)
/* Readers of one process. */
#define PROCESS_SUBSCRIBERS_MAX 1024
/* A process is paced by its slowest reader. A reader that holds other readers up is cut when in so
 * long ... */
#define PROCESS_SUBSCRIBER_STALL_MS (10 * 1000)
/* ... it has not taken as much as this; one that holds up only the process, when in so long it has
 * taken nothing. That is shorter than HTTP_WRITE_STALL_TIMEOUT_MS, so that a reader that comes back
 * after it learns why it was cut, also through the proxy. */
#define PROCESS_SUBSCRIBER_PROGRESS_BYTES 1024
#define PROCESS_SUBSCRIBER_ALONE_STALL_MS (120 * 1000)
/* How often readers that are behind are looked at. */
#define PROCESS_SUBSCRIBER_LOOK_MS 1000
/* How long the beginning of a character waits for its rest. */
#define PROCESS_PARTIAL_HOLD_MS 20
/* After the leader's exit output is delivered until EOF or this much quiet ... */
#define PROCESS_DRAIN_QUIET_MS 100
/* ... and at most this long. */
#define PROCESS_DRAIN_MAX_MS 1000
/* Inputs waiting for one process; each holds its own request, of RPC_MESSAGE_BYTES_MAX at most. */
#define PROCESS_INPUTS_MAX 64
/* How long, and how many of the processes that have ended can still be asked for. */
#define PROCESS_RETAINED_EXIT_MS (30 * 1000)
#define PROCESS_RETAINED_EXITS_MAX 4096
/* How long a killed process is waited for. */
#define PROCESS_KILL_WAIT_MS 1000

/* envd/watch: each watch is a process and an inotify instance, of which Linux allows a user 128 by
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
/* What the answer to a poll may need in memory. */
#define WATCHER_ANSWER_ARENA_BYTES (64 * 1024 * 1024)
/* A watcher nobody has polled for this long is removed. */
#define WATCHER_EXPIRY_MS (60 * 60 * 1000)

/* envd/host: what the machine around it offers, and takes. */

/* The metadata service (contract/envd.md 1.9): each of the two requests. */
#define METADATA_REQUEST_MS (10 * 1000)
/* The same while an /init waits: the service is in the machine's own monitor, and hosts give up an
 * /init for good after 10 s. */
#define METADATA_CHECK_MS (1 * 1000)
/* What was asked for an /init whose sender had left when the answer came is good for the next
 * one. */
#define METADATA_KEPT_MS (1 * 1000)
/* How often the service is asked while it does not answer, for how long so often, and how seldom at
 * last. */
#define METADATA_POLL_MS 50
#define METADATA_REFRESH_MS (60 * 1000)
#define METADATA_POLL_MS_MAX (60 * 1000)
/* One run of iptables, which itself waits 5 s for another one. */
#define METADATA_PIN_MS (6 * 1000)
/* An answer of the service, what is parsed from it, and its token. */
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
/* The collector's address. */
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

/* envd/jobs: background jobs. */

/* How many at once, and how many ended ones are kept, for how long, with how much output in all
 * (flags of envd say otherwise; the age they may say at most). */
#define JOBS_RUNNING_MAX 4096
#define JOBS_ENDED_MAX 10000
#define JOBS_ENDED_AGE_S (7 * 24 * 3600)
#define JOBS_AGE_S_MAX (100LL * 366 * 24 * 3600)
#define JOBS_ENDED_BYTES (8LL * 1024 * 1024 * 1024)
/* How often, at least and at most, it is looked whether some are too old. */
#define JOBS_RETENTION_MS (60 * 60 * 1000)
#define JOBS_RETENTION_MS_MIN 1000
/* What a job says about itself: texts, how much of its command line is kept, its record in the file
 * and in memory. */
#define JOB_NAME_BYTES_MAX 256
#define JOB_KEY_BYTES_MAX 256
#define JOB_PATH_BYTES_MAX 4096
#define JOB_SHOWN_COMMAND_BYTES 2048
#define JOB_RECORD_BYTES_MAX (128 * 1024)
#define JOB_RECORD_ARENA_BYTES (1024 * 1024)
/* The time limit that a job may have. */
#define JOB_WALL_TIME_MS_MAX (366LL * 24 * 3600 * 1000)
/* A keeper whose envd was killed has so long to write down that it lives, before its job counts as
 * lost. */
#define JOB_KEEPER_BEGIN_MS (5 * 1000)
/* A stop: SIGTERM, and SIGKILL so long later, unless told otherwise. */
#define JOB_STOP_GRACE_MS (10 * 1000)
#define JOB_STOP_GRACE_MS_MAX (24 * 3600 * 1000)
/* What is kept of each of a job's two streams; whoever asks for less than the least gets that. */
#define JOB_OUTPUT_BYTES (1024LL * 1024 * 1024)
#define JOB_OUTPUT_BYTES_MIN (64 * 1024)
/* How often output that grows is looked at: with somebody who follows it, and for the cap alone. */
#define JOB_LOOK_MS 5
#define JOB_LOOK_IDLE_MS 200
/* So many readers and waiters add a millisecond to the first. */
#define JOB_LOOK_CROWD 32
/* When the other of its two streams grows, so that the order is known; and so many running jobs add
 * a millisecond to that. How many changes of order are kept: 16 bytes each. */
#define JOB_LOOK_ORDER_MS 20
#define JOB_LOOK_ORDER_CROWD 8
#define JOB_ORDER_MARKS_MAX 16384
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
 * readers: all together, and to one by an RPC. */
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
/* Watchers of the list, and deleted jobs one that was away can be told of. */
#define JOB_WATCHERS_MAX 256
#define JOB_DELETIONS_KEPT 4096
/* Jobs in one answer: unless told otherwise, and at most. */
#define JOB_LIST_PAGE 100
#define JOB_LIST_PAGE_MAX 1000
/* A webhook: its texts, each attempt, and how long after each other they come. */
#define JOB_WEBHOOK_URL_BYTES_MAX 2048
#define JOB_WEBHOOK_KEY_BYTES_MAX 256
#define JOB_WEBHOOK_BODY_BYTES_MAX (64 * 1024)
#define JOB_WEBHOOK_TIMEOUT_MS (10 * 1000)
#define JOB_WEBHOOK_WAITS_MS \
	{ \
		1000, 5 * 1000, 30 * 1000, 2 * 60 * 1000, 10 * 60 * 1000 \
	}
/* What of its answer is heard to the end, once the status has come. */
#define JOB_WEBHOOK_LINGER_MS (5 * 1000)
#define JOB_WEBHOOK_ANSWER_BYTES_MAX (64 * 1024)
/* At once, and of those to one server, so that a dead one does not hold up the others. */
#define JOB_WEBHOOKS_AT_ONCE 32
#define JOB_WEBHOOKS_OF_SERVER 4

#endif
