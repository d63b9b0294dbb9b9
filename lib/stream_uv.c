#include "lib/stream_uv.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/buf.h"
#include "lib/hangup.h"
#include "lib/limits.h"

#define PIECES_MAX 16
/* Pieces that come to no more are joined on the stack: one plain write costs less than a gather. */
#define JOIN_BYTES_MAX 1024

struct stream_uv {
	struct stream stream;
	union {
		uv_handle_t any;
		uv_stream_t uv;
		uv_tcp_t tcp;
		uv_pipe_t pipe;
	} handle;
	void (*on_connected)(struct stream *stream, int status);
	struct later
		later; /* reports a broken write or a drain from the loop, never re-entrantly */
	struct hangup hangup; /* a peer that leaves while nobody reads */
	struct buf queue; /* what comes after the write in flight */
	char *in_flight; /* owned until the write's callback */
	size_t in_flight_len;
	int broken; /* negative errno of a failed write */
	bool closing, writing, shut, shutdown_wanted, full, ended, failed, reading;
	bool lent; /* somebody else writes */
};

/* What libuv keeps while it connects, writes or shuts down; its callback frees it. Streams that
 * rest do without. */
static void *request_new(struct stream_uv *s, size_t size)
{
	uv_req_t *request = xmalloc(size);

	request->data = s;
	return request;
}

static struct stream_uv *of(const struct stream *s)
{
	return container_of(s, struct stream_uv, stream);
}

static int descriptor(const struct stream *stream)
{
	uv_os_fd_t fd;

	return uv_fileno(&of(stream)->handle.any, &fd) == 0 ? fd : -1;
}

/* By all streams of the loop, which share them out; and by those of all loops, to be told. */
static _Thread_local size_t queued_bytes;
static _Atomic size_t queued_bytes_of_all;

size_t stream_uv_queued_bytes(void)
{
	return atomic_load_explicit(&queued_bytes_of_all, memory_order_relaxed);
}

static void count_queued(struct stream_uv *s, ssize_t change)
{
	if (change == 0)
		return;
	s->stream.queued += (size_t)change;
	queued_bytes += (size_t)change;
	atomic_fetch_add_explicit(&queued_bytes_of_all, (size_t)change, memory_order_relaxed);
}

static bool is_crowded(void)
{
	return queued_bytes > STREAMS_QUEUED_BYTES_MAX;
}

static void on_closed(uv_handle_t *handle)
{
	struct stream_uv *s = container_of(handle, struct stream_uv, handle.any);
	const struct stream_events *events = s->stream.events;
	struct stream_peer *peer = s->stream.peer;

	if (events && events->on_closed)
		events->on_closed(&s->stream);
	count_queued(s, -(ssize_t)s->stream.queued);
	if (peer)
		peer->on_gone(peer);
	buf_fini(&s->queue);
	free(s->in_flight);
	free(s);
}

static void report_end(struct stream_uv *s, int status)
{
	if (s->closing || s->failed || (s->ended && status == 0))
		return;
	s->ended = true;
	s->failed = status < 0;
	if (s->stream.events && s->stream.events->on_end)
		s->stream.events->on_end(&s->stream, status);
}

static void on_later(struct later *later)
{
	struct stream_uv *s = container_of(later, struct stream_uv, later);

	if (s->closing)
		return;
	if (s->broken) {
		/* While it is being read, the reading side finds out by itself, after the last
		 * bytes. */
		if (!s->reading)
			report_end(s, s->broken);
		return;
	}
	if (s->full && s->stream.queued <= s->stream.low_mark) {
		s->full = false;
		if (s->stream.events && s->stream.events->on_drained)
			s->stream.events->on_drained(&s->stream);
	}
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
	struct stream_uv *s = container_of(handle, struct stream_uv, handle.any);
	char *scratch = loop_of(handle)->scratch, *room = NULL;
	size_t len = 0;

	(void)suggested;
	if (s->stream.events && s->stream.events->on_room)
		room = s->stream.events->on_room(&s->stream, &len);
	if (!room) {
		room = scratch;
		len = LOOP_SCRATCH_BYTES;
	}
	/* What comes into memory of the reader's own need not be queued anywhere. */
	if (room == scratch && is_crowded())
		len = size_min(len, STREAM_CROWDED_READ_BYTES);
	*ret_buf = uv_buf_init(room, (unsigned)len);
}

/* libuv takes a reset that comes together with the last bytes for the end. */
static int end_status(const struct stream_uv *s)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (s->handle.any.type == UV_TCP)
		getsockopt(descriptor(&s->stream), SOL_SOCKET, SO_ERROR, &error, &len);
	return -error;
}

static void on_read(uv_stream_t *handle, ssize_t len, const uv_buf_t *buf)
{
	struct stream_uv *s = container_of(handle, struct stream_uv, handle.uv);

	if (len > 0) {
		s->stream.events->on_read(&s->stream, buf->base, (size_t)len);
	} else if (len < 0) {
		uv_read_stop(handle);
		s->reading = false;
		report_end(s, s->broken ? s->broken : len == UV_EOF ? end_status(s) : (int)len);
	}
}

static int read_start(struct stream *stream)
{
	struct stream_uv *s = of(stream);
	int status;

	if (s->closing || s->ended)
		return 0;
	status = uv_read_start(&s->handle.uv, on_alloc, on_read);
	if (status < 0 && status != UV_EALREADY)
		return status;
	hangup_forget(s->stream.loop, &s->hangup);
	s->reading = true;
	return 0;
}

static void on_hangup(struct hangup *hangup, bool reset)
{
	struct stream_uv *s = container_of(hangup, struct stream_uv, hangup);

	if (s->stream.events && s->stream.events->on_hangup)
		s->stream.events->on_hangup(&s->stream, reset);
}

static void read_stop(struct stream *stream)
{
	struct stream_uv *s = of(stream);

	if (s->closing)
		return;
	uv_read_stop(&s->handle.uv);
	s->reading = false;
	if (s->handle.any.type == UV_TCP && stream->events && stream->events->on_hangup)
		hangup_watch(stream->loop, &s->hangup, descriptor(stream), !s->ended);
	if (s->broken && !s->failed)
		later_call(s->stream.loop, &s->later);
}

static void on_shutdown(uv_shutdown_t *request, int status)
{
	struct stream_uv *s = request->data;

	free(request);
	(void)status; /* a peer that is already gone shows itself on the reading side */
	if (!s->closing && s->stream.events && s->stream.events->on_shut)
		s->stream.events->on_shut(&s->stream);
}

static void close_stream(struct stream *stream, bool reset);

static void start_shutdown(struct stream_uv *s)
{
	struct stat kind;

	s->shut = true;
	if (s->handle.any.type == UV_TCP || fstat(stream_fd(&s->stream), &kind) < 0 ||
	    S_ISSOCK(kind.st_mode)) {
		uv_shutdown_t *request = request_new(s, sizeof(*request));

		/* ENOTCONN: the peer is already gone, and reading says so. */
		if (uv_shutdown(request, &s->handle.uv, on_shutdown) < 0)
			free(request);
	} else if (S_ISFIFO(kind.st_mode)) {
		close_stream(&s->stream,
			     false); /* a pipe's one direction ends with the descriptor */
	}
}

static void start_write(struct stream_uv *s);

static void on_written(uv_write_t *request, int status)
{
	struct stream_uv *s = request->data;

	free(request);
	s->writing = false;
	free(s->in_flight);
	s->in_flight = NULL;
	count_queued(s, -(ssize_t)s->in_flight_len);
	s->in_flight_len = 0;
	if (s->closing)
		return;
	if (status < 0) {
		s->broken = status;
		later_call(s->stream.loop, &s->later);
		return;
	}
	if (buf_length(&s->queue))
		start_write(s);
	else if (s->shutdown_wanted)
		start_shutdown(s);
	if (!s->closing && s->full && s->stream.queued <= s->stream.low_mark)
		later_call(s->stream.loop, &s->later);
}

static void start_write(struct stream_uv *s)
{
	uv_write_t *request = request_new(s, sizeof(*request));
	uv_buf_t piece;
	int status;

	s->in_flight = buf_detach(&s->queue, &s->in_flight_len);
	piece = uv_buf_init(s->in_flight, (unsigned)s->in_flight_len);
	s->writing = true;
	status = uv_write(request, &s->handle.uv, &piece, 1, on_written);
	if (status < 0) {
		free(request);
		s->writing = false;
		s->broken = status;
		later_call(s->stream.loop, &s->later);
	}
}

/* Appends the pieces, without their first `skip` bytes, to the queue. */
static int enqueue(struct stream_uv *s, const struct iovec *pieces, size_t count, size_t skip)
{
	for (size_t i = 0; i < count; i++) {
		size_t cut = size_min(skip, pieces[i].iov_len);
		int status;

		skip -= cut;
		status = buf_append(&s->queue, (const char *)pieces[i].iov_base + cut,
				    pieces[i].iov_len - cut);
		if (status < 0)
			return status;
		count_queued(s, (ssize_t)(pieces[i].iov_len - cut));
	}
	return 0;
}

/* A socket's own calls cost less than write() and writev(), and nothing is queued in libuv. */
static ssize_t send_now(int fd, const struct iovec *pieces, size_t count)
{
	const struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = count};
	ssize_t taken;

	if (count == 1)
		taken = send(fd, pieces->iov_base, pieces->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL);
	else
		taken = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	return taken < 0 ? -errno : taken;
}

/* What the kernel takes at once; 0 when it takes nothing now. */
static ssize_t try_write(struct stream_uv *s, const struct iovec *pieces, size_t count,
			 size_t total)
{
	char joined[JOIN_BYTES_MAX];
	struct iovec whole = {.iov_base = joined, .iov_len = total};
	uv_buf_t bufs[PIECES_MAX];
	ssize_t taken;

	if (count > 1 && total <= sizeof(joined)) {
		size_t at = 0;

		for (size_t i = 0; i < count; i++) {
			if (pieces[i].iov_len)
				memcpy(joined + at, pieces[i].iov_base, pieces[i].iov_len);
			at += pieces[i].iov_len;
		}
		pieces = &whole;
		count = 1;
	}
	if (s->handle.any.type == UV_TCP) {
		taken = send_now(descriptor(&s->stream), pieces, count);
	} else {
		for (size_t i = 0; i < count; i++)
			bufs[i] = uv_buf_init(pieces[i].iov_base, (unsigned)pieces[i].iov_len);
		taken = uv_try_write(&s->handle.uv, bufs, (unsigned)count);
	}
	return taken == -EAGAIN || taken == -EWOULDBLOCK || taken == -EINTR ? 0 : taken;
}

static int write_pieces(struct stream *stream, const struct iovec *pieces, size_t count)
{
	struct stream_uv *s = of(stream);
	size_t total = 0;
	ssize_t taken = 0;
	int status;

	if (s->closing || s->shut || s->shutdown_wanted)
		return -EPIPE;
	if (s->broken)
		return s->broken;
	assert(count <= PIECES_MAX);
	for (size_t i = 0; i < count; i++)
		total += pieces[i].iov_len;
	if (total == 0)
		return s->full ? STREAM_FULL : 0;
	if (!s->writing && !s->lent) {
		taken = try_write(s, pieces, count, total);
		if (taken < 0) {
			s->broken = (int)taken;
			later_call(s->stream.loop, &s->later);
			return s->broken;
		}
	}
	if ((size_t)taken < total) {
		status = enqueue(s, pieces, count, (size_t)taken);
		if (status < 0) {
			s->broken = status;
			later_call(s->stream.loop, &s->later);
			return status;
		}
		if (!s->writing && !s->lent)
			start_write(s);
		if (s->broken)
			return s->broken;
	}
	if (s->stream.queued > (is_crowded() ? 0 : s->stream.high_mark))
		s->full = true;
	return s->full ? STREAM_FULL : 0;
}

/* Without this each sendfile pushes what does not fill a segment, and a reader on this machine
 * is woken twice as often. */
static void cork(int fd, int on)
{
	(void)setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
}

static int lend(struct stream *stream)
{
	struct stream_uv *s = of(stream);
	int fd;

	assert(!s->lent);
	if (s->closing || s->shut || s->shutdown_wanted)
		return -EPIPE;
	if (s->broken)
		return s->broken;
	if (s->writing) {
		s->full = true;
		return -EAGAIN;
	}
	fd = fcntl(descriptor(stream), F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	cork(fd, 1);
	s->lent = true;
	return fd;
}

static void take_back(struct stream *stream)
{
	struct stream_uv *s = of(stream);

	assert(s->lent);
	s->lent = false;
	if (s->closing)
		return;
	cork(descriptor(stream), 0);
	if (buf_length(&s->queue))
		start_write(s);
	else if (s->shutdown_wanted)
		start_shutdown(s);
}

static int lend_input(struct stream *stream)
{
	struct stream_uv *s = of(stream);
	int fd;

	assert(!s->reading);
	if (s->closing || s->ended || s->broken)
		return -EPIPE;
	fd = fcntl(descriptor(stream), F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

static int shutdown_stream(struct stream *stream)
{
	struct stream_uv *s = of(stream);

	if (s->closing || s->shut || s->shutdown_wanted)
		return 0;
	if (s->writing || s->lent)
		s->shutdown_wanted = true;
	else
		start_shutdown(s);
	return 0;
}

static void close_stream(struct stream *stream, bool reset)
{
	struct stream_uv *s = of(stream);

	if (s->closing)
		return;
	s->closing = true;
	later_cancel(&s->later);
	hangup_forget(stream->loop, &s->hangup);
	if (reset && s->handle.any.type == UV_TCP) {
		/* uv_tcp_close_reset refuses while a shutdown is pending; the option alone does
		 * it. */
		struct linger linger = {.l_onoff = 1, .l_linger = 0};
		uv_os_fd_t fd;

		if (uv_fileno(&s->handle.any, &fd) == 0)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	}
	uv_close(&s->handle.any, on_closed);
}

static const struct stream_ops ops = {
	.read_start = read_start,
	.read_stop = read_stop,
	.write = write_pieces,
	.lend = lend,
	.take_back = take_back,
	.lend_input = lend_input,
	.shutdown = shutdown_stream,
	.close = close_stream,
	.fd = descriptor,
};

static struct stream_uv *stream_uv_new(struct loop *loop)
{
	struct stream_uv *s = xcalloc(1, sizeof(*s));

	s->stream.ops = &ops;
	s->stream.loop = loop;
	s->stream.high_mark = STREAM_HIGH_MARK_BYTES;
	s->stream.low_mark = STREAM_LOW_MARK_BYTES;
	buf_init(&s->queue, SIZE_MAX / 2);
	later_init(&s->later, on_later);
	hangup_init(&s->hangup, on_hangup);
	return s;
}

int stream_uv_accept(struct loop *loop, uv_stream_t *listener, struct stream **ret_stream)
{
	struct stream_uv *s = stream_uv_new(loop);
	int status = uv_tcp_init(&loop->uv, &s->handle.tcp);

	if (status == 0)
		status = uv_accept(listener, &s->handle.uv);
	if (status < 0) {
		s->closing = true;
		uv_close(&s->handle.any, on_closed);
		return status;
	}
	uv_tcp_nodelay(&s->handle.tcp, 1);
	*ret_stream = &s->stream;
	return 0;
}

int stream_uv_open_tcp(struct loop *loop, int fd, struct stream **ret_stream)
{
	struct stream_uv *s = stream_uv_new(loop);
	int status = uv_tcp_init(&loop->uv, &s->handle.tcp);

	if (status == 0)
		status = uv_tcp_open(&s->handle.tcp, fd);
	if (status < 0) {
		s->closing = true;
		uv_close(&s->handle.any, on_closed);
		return status;
	}
	uv_tcp_nodelay(&s->handle.tcp, 1);
	*ret_stream = &s->stream;
	return 0;
}

static void on_connected(uv_connect_t *request, int status)
{
	struct stream_uv *s = request->data;

	free(request);
	if (s->closing)
		return;
	if (status < 0)
		s->broken = status;
	else if (s->handle.any.type == UV_TCP)
		uv_tcp_nodelay(&s->handle.tcp, 1);
	s->on_connected(&s->stream, status);
}

/* The handle with its socket. On failure `s` is freed: libuv keeps nothing of a handle without
 * one. */
static int open_socket(struct stream_uv *s, int fd, int family)
{
	int status;

	if (fd < 0) {
		status = uv_tcp_init_ex(&s->stream.loop->uv, &s->handle.tcp, (unsigned)family);
		if (status < 0)
			free(s);
		return status;
	}
	status = uv_tcp_init(&s->stream.loop->uv, &s->handle.tcp);
	if (status == 0)
		status = uv_tcp_open(&s->handle.tcp, fd);
	if (status < 0) {
		close_fd(&fd);
		s->closing = true;
		uv_close(&s->handle.any, on_closed);
	}
	return status;
}

static int start_connecting(struct loop *loop, int fd, bool to_write,
			    const struct sockaddr *address,
			    void (*connected)(struct stream *stream, int status),
			    struct stream **ret_stream)
{
	struct stream_uv *s = stream_uv_new(loop);
	uv_connect_t *request;
	int status = open_socket(s, fd, address->sa_family), quick = 0;

	if (status < 0)
		return status;
	/* Without it the peer's SYN is answered by a segment of its own. */
	if (to_write)
		(void)setsockopt(descriptor(&s->stream), IPPROTO_TCP, TCP_QUICKACK, &quick,
				 sizeof(quick));
	s->on_connected = connected;
	request = request_new(s, sizeof(*request));
	status = uv_tcp_connect(request, &s->handle.tcp, address, on_connected);
	if (status < 0) {
		free(request);
		s->closing = true;
		uv_close(&s->handle.any, on_closed);
		return status;
	}
	*ret_stream = &s->stream;
	return 0;
}

/* libuv tells of a failure by the callback. */
static int connect_locally(struct loop *loop, const struct sockaddr_un *address,
			   void (*connected)(struct stream *stream, int status),
			   struct stream **ret_stream)
{
	struct stream_uv *s = stream_uv_new(loop);
	int status = uv_pipe_init(&loop->uv, &s->handle.pipe, 0);

	if (status < 0) {
		free(s);
		return status;
	}
	s->on_connected = connected;
	uv_pipe_connect(request_new(s, sizeof(uv_connect_t)), &s->handle.pipe, address->sun_path,
			on_connected);
	*ret_stream = &s->stream;
	return 0;
}

int stream_uv_connect(struct loop *loop, const struct sockaddr *address,
		      void (*connected)(struct stream *stream, int status),
		      struct stream **ret_stream)
{
	if (address->sa_family == AF_UNIX)
		return connect_locally(loop, (const struct sockaddr_un *)address, connected,
				       ret_stream);
	return start_connecting(loop, -1, false, address, connected, ret_stream);
}

int stream_uv_connect_to_write(struct loop *loop, int fd, const struct sockaddr *address,
			       void (*connected)(struct stream *stream, int status),
			       struct stream **ret_stream)
{
	return start_connecting(loop, fd, true, address, connected, ret_stream);
}

void stream_uv_keep_alive(int fd)
{
	static const struct {
		int level, name, value;
	} options[] = {
		{SOL_SOCKET, SO_KEEPALIVE, 1},
		{IPPROTO_TCP, TCP_KEEPIDLE, TCP_KEEPALIVE_IDLE_S},
		{IPPROTO_TCP, TCP_KEEPINTVL, TCP_KEEPALIVE_INTERVAL_S},
		{IPPROTO_TCP, TCP_KEEPCNT, TCP_KEEPALIVE_COUNT},
	};

	/* A kernel that refuses them loses nothing essential. */
	for (size_t i = 0; i < ARRAY_LENGTH(options); i++)
		(void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
				 sizeof(options[i].value));
}

int stream_uv_open_pipe(struct loop *loop, int fd, struct stream **ret_stream)
{
	struct stream_uv *s = stream_uv_new(loop);
	int status = uv_pipe_init(&loop->uv, &s->handle.pipe, 0);

	if (status == 0)
		status = uv_pipe_open(&s->handle.pipe, fd);
	if (status < 0) {
		s->closing = true;
		uv_close(&s->handle.any, on_closed);
		return status;
	}
	*ret_stream = &s->stream;
	return 0;
}
