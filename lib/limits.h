/*
 * Every number a peer can push on, and every wait on a peer, has a name, so that one page answers
 * "how much, how long": here those of lib/ itself and those that envd/ and proxy/ share, in
 * envd/limits.h and proxy/limits.h those of one side; `make limits` prints them all. Units are
 * in the names: _MS milliseconds, _BYTES bytes, _MAX counts. A heading names the module or the
 * folder that the limits after it belong to; a comment speaks of all names up to the next comment
 * or empty line.
 */
#ifndef LIB_LIMITS_H
#define LIB_LIMITS_H

/* lib/loop */

/* What a loop has for bytes that are read and handed on at once. */
#define LOOP_SCRATCH_BYTES (64 * 1024)
/* An alarm that is due before what is ready was looked at comes again after so long (lib/loop.h).
 */
#define LOOP_LOOK_AGAIN_MS 1

/* lib/job: the pool behind job_run. Queued work beyond the maximum is refused with
 * resource_exhausted. */

/* Jobs that wait: of those that touch files, and as many others; starts apart. */
#define JOB_QUEUE_MAX 4096
/* Threads of the pool that work of these classes may take (lib/job.h). */
#define JOB_BULK_MAX 2
#define JOB_LONG_MAX 1
#define JOB_BLOCKING_MAX 3
#define JOB_COMPUTE_MAX 2
/* First pieces of transfers that may wait while others begin. */
#define JOB_PIECES_WAITING_MAX 16
/* Starts that are being prepared or whose child is about to be born, and those that wait. */
#define JOB_STARTS_MAX 16
#define JOB_STARTS_QUEUE_MAX 16384
/* Threads that stand still until the exec of a child that they have made. */
#define JOB_LAUNCHES_MAX 1
/* A thread more than may be taken by what waits, computes or launches. */
#define JOB_THREADS (JOB_BLOCKING_MAX + JOB_COMPUTE_MAX + JOB_LAUNCHES_MAX + 1)
/* While others wait, what touches files is looked at so often; one that was seen running so many
 * times is stuck, and so many may be. Then as many threads as these and JOB_BLOCKING_MAX are added
 * at most. */
#define JOB_LOOK_STUCK_MS 250
#define JOB_STUCK_LOOKS 4
#define JOB_STUCK_MAX 16
/* Of each of these threads, of the pool's unless RLIMIT_STACK forbids as much; the kernel's own
 * default. */
#define JOB_STACK_BYTES (8 * 1024 * 1024)

/* lib/stream */

/* A writer is told "full" above the high mark and "drained" below the low one. */
#define STREAM_HIGH_MARK_BYTES (64 * 1024)
#define STREAM_LOW_MARK_BYTES (16 * 1024)
/* When the streams of a loop have so much queued together, each is "full" with any that it has
 * queued. */
#define STREAMS_QUEUED_BYTES_MAX (64 * 1024 * 1024)
/* ... and so little is read in one go then, because one read more is what each may still queue. */
#define STREAM_CROWDED_READ_BYTES (8 * 1024)
/* The kernel asks silent peers for a sign of life, so that streams may rest for hours but not on a
 * connection whose other end is gone: first after the idle time, then count times. Seconds. */
#define TCP_KEEPALIVE_IDLE_S 60
#define TCP_KEEPALIVE_INTERVAL_S 15
#define TCP_KEEPALIVE_COUNT 4

/* lib/descriptors */

/* The descriptors there are (RLIMIT_NOFILE) are shared out in so many parts. So many of these, and
 * so many descriptors at most, are kept from work that lasts (processes, jobs, watches,
 * transfers). */
#define DESCRIPTORS_PARTS 8
#define DESCRIPTORS_PARTS_KEPT 1
#define DESCRIPTORS_KEPT_MAX 1024

/* lib/file_send, lib/lent_socket: files that are sent uncopied. */

/* What is sent in one go, of a file that is in memory about a millisecond's work. At first, at
 * most, and of a file that is slow: ... */
#define FILE_SEND_BYTES_FIRST (2 * 1024 * 1024)
#define FILE_SEND_BYTES (8 * 1024 * 1024)
#define FILE_SEND_BYTES_MIN (256 * 1024)
/* ... what goes in so long. */
#define FILE_SEND_MS 10
/* The end of a download is copied: what sender and receiver can hold (4 and 6 MiB, unless Linux is
 * told otherwise), and this, which has not reached the kernel when the last is read: two chunks and
 * what a stream queues. */
#define FILE_SEND_TAIL_BYTES (2 * 1024 * 1024)
/* A job that has a client's socket goes on for so long at most, and only while nobody waits for its
 * thread. */
#define LENT_SOCKET_JOB_MS 50

/* lib/http_parse: message heads of HTTP/1.1 (contract/proxy.md 3.11: at least 32 KiB and 100 fields
 * are expected). */

#define HTTP_HEAD_BYTES_MAX (64 * 1024)
#define HTTP_TARGET_BYTES_MAX (32 * 1024)
#define HTTP_HEADERS_MAX 200
#define HTTP_LEADING_CRLF_MAX 2
#define HTTP_CHUNK_EXTENSION_BYTES_MAX (16 * 1024)
#define HTTP_TRAILERS_MAX 64

/* lib/http_exchange */

/* Memory of one exchange for heads and what is made of them. */
#define HTTP_EXCHANGE_ARENA_BYTES (512 * 1024)
/* What requests of all connections of a loop have together for heads and what is made of them. Of
 * each request these first bytes are not counted, so that ordinary heads are read whatever others
 * send. */
#define HTTP_EXCHANGES_BYTES_MAX (64 * 1024 * 1024)
#define HTTP_EXCHANGE_EXEMPT_BYTES (8 * 1024)
/* Where the memory for the heads of one client is counted, the first bytes of each exchange are
 * not, nor as many of its request to the sandbox: ordinary heads pass, whatever others hold. */
#define HTTP_HEADS_EXEMPT_BYTES (4 * 1024)

/* lib/http_server */

/* Accepted connections at once; beyond, new ones wait in the kernel's queue. */
#define HTTP_CONNECTIONS_MAX 16384
#define LISTEN_BACKLOG 1024
/* A connection that has been idle for less may have a request on its way: it is not closed to make
 * room for another. */
#define HTTP_EVICT_IDLE_MS 500
/* ... nor one on which an answer is still on its way, unless nothing of that was taken for so
 * long. */
#define HTTP_EVICT_STALLED_MS (5 * 1000)
/* When there is no room, how long others may wait in the kernel's queue before they are told. */
#define HTTP_QUEUE_PATIENCE_MS 1000
/* How often the log says that connections are closed to make room, that there is none, and that
 * accepting pauses. */
#define HTTP_EVICT_REPORT_MS (60 * 1000)
/* First byte to complete head, absolute, against slowloris. */
#define HTTP_HEAD_TIMEOUT_MS (30 * 1000)
/* A new connection that sends nothing at all. */
#define HTTP_FIRST_BYTE_TIMEOUT_MS (60 * 1000)
/* Longer than every layer in front (contract/envd.md 1.2). */
#define HTTP_IDLE_TIMEOUT_MS (640 * 1000)
/* A peer that owes body bytes has to send so many (or the rest) in so long, or it only keeps the
 * connection busy. Not applied to client streams and tunnels. */
#define HTTP_BODY_IDLE_TIMEOUT_MS (120 * 1000)
#define HTTP_BODY_PROGRESS_BYTES 1024
/* Bytes are waiting for a peer that takes none. */
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
/* How long an orderly stop waits for requests that are under way, unless told otherwise. */
#define HTTP_DRAIN_MS (15 * 1000)
/* A client of HTTP/2 with requests open that is silent for so long is asked for a sign of life, and
 * gone if it gives none for so long. */
#define HTTP2_PING_SILENCE_MS (30 * 1000)
#define HTTP2_PING_WAIT_MS (15 * 1000)
/* A session of HTTP/2 without requests rests after so long. */
#define HTTP2_REST_MS 1000
/* At an orderly stop, once the requests are over that were open when it began, how long at most a
 * moment without any is waited for before HTTP/2 says "no new requests, please". */
#define HTTP2_DRAIN_QUIET_MS (5 * 1000)

/* lib/http_client */

/* Before the response to one request. */
#define HTTP_INTERIM_RESPONSES_MAX 10
/* What a server says instead of a response to an upgrade, and how long its end is waited for. */
#define HTTP_REFUSAL_BYTES_MAX 128
#define HTTP_REFUSAL_WAIT_MS 1000

/* lib/http_call */

/* A request of ours to another server: head and body as they are kept until it is connected, and
 * how many of its addresses are tried. */
#define HTTP_CALL_ARENA_BYTES (512 * 1024)
#define HTTP_CALL_ADDRESSES_MAX 8

/* lib/tls */

/* From accepting, or being accepted, to the end of the handshake, absolute (contract/proxy.md
 * S56). */
#define TLS_HANDSHAKE_TIMEOUT_MS (10 * 1000)
/* Answers that the library gives by itself (key updates, refused renegotiations) to a peer that
 * does not take them. */
#define TLS_CONTROL_BYTES_MAX (16 * 1024)
/* What the expensive beginnings of handshakes may take of one turn of the loop; more wait for the
 * next, so that a burst of new clients does not hold up those that are there. Microseconds. */
#define TLS_HANDSHAKE_SLICE_US 2000
/* What a client may send before its first record is complete: header, content, room for
 * protection. */
#define TLS_FIRST_RECORD_BYTES_MAX (5 + 16 * 1024 + 256)
/* A session may be resumed this long; the keys of its ticket live at most twice as long. */
#define TLS_SESSION_S (4 * 3600)
/* Certificates: one file, all of a directory, names of one; and how long a changed file rests
 * before it is read. */
#define TLS_FILE_BYTES_MAX (1024 * 1024)
#define TLS_CERTIFICATES_MAX 4096
#define TLS_NAMES_MAX 1024
#define TLS_RELOAD_DELAY_MS 300

/* lib/json */

/* Objects and lists within each other; envd's messages in binary have the same bound. */
#define JSON_DEPTH_MAX 100

/* lib: what envd and the proxy both do. */

/* So much after the time that an orderly stop has, a program ends in any case, also if work in a
 * dead file system does not. */
#define SHUTDOWN_HARD_MS (3 * 1000)

/* lib/process */

/* How long a kill goes on looking for those that appear while it kills, and how many of them are
 * asked for their children in one look. */
#define KILL_SCAN_MS 1000
#define KILL_DESCENDANTS_MAX 16384
/* The kernel has 16 bits for each side; what is larger is cut. */
#define TERMINAL_SIZE_MAX 65535

#endif
