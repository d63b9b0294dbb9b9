#include "lib/tls/tls_acceptor.h"

#include <openssl/ssl.h>

#include "lib/buf.h"
#include "lib/counter.h"
#include "lib/limits.h"
#include "lib/log.h"
#include "lib/tls/tls_server.h"
#include "lib/tls/tls_stream.h"

#define RECORD_HEADER_BYTES 5
#define RECORD_HANDSHAKE 22
#define RECORD_VERSION 3 /* the first byte of SSL 3 and every TLS */

struct tls_acceptor {
	struct loop *loop;
	struct tls_server *tls;
	struct tls_buffers *buffers;
	struct str plain_http_answer;
	struct tls_counters counters;
	struct list_node waiting; /* first record complete, for a turn of the loop with time left */
	struct later later; /* the next turn */
	uint64_t spent_ns; /* on first steps in this turn */
};

enum state {
	STATE_FIRST_RECORD, /* until it is complete */
	STATE_WAITING, /* for its first step */
	STATE_HANDSHAKE,
	STATE_LINGER, /* refused; the client gets to see why */
	STATE_CLOSING,
};

struct handshake {
	struct http_server_guest guest;
	struct tls_acceptor *acceptor;
	struct list_node node; /* in the acceptor's `waiting` */
	struct stream *stream; /* as accepted; NULL once it is another's */
	struct stream *tls; /* around it, in STATE_HANDSHAKE */
	struct buf first;
	struct later later; /* after a stream's callback: a failure, or the end of what it became */
	struct alarm alarm;
	enum state state;
	int failure;
	bool shut, eof;
	char peer[64];
};

/* ---- the end of things ---- */

static void free_handshake(struct handshake *h)
{
	later_cancel(&h->later);
	buf_fini(&h->first);
	http_server_leave(&h->guest);
	free(h);
}

static void on_stream_closed(struct stream *s)
{
	free_handshake(s->user);
}

static void on_handed_over(struct later *later)
{
	free_handshake(container_of(later, struct handshake, later));
}

static void end(struct handshake *h)
{
	h->state = STATE_CLOSING;
	list_remove(&h->node);
	alarm_cancel(&h->alarm);
}

static void close_handshake(struct handshake *h, bool reset)
{
	if (h->state == STATE_CLOSING)
		return;
	end(h);
	stream_close(h->tls ? h->tls : h->stream, reset);
}

static void on_stop(struct http_server_guest *guest)
{
	struct handshake *h = container_of(guest, struct handshake, guest);

	/* Nothing has been asked yet that would deserve an answer, but when a successor has the
	 * listening socket, what came here before is served here; it has the handshake's time. */
	if (h->state != STATE_LINGER && !http_server_is_waiting(guest->server))
		close_handshake(h, true);
}

static void on_abort(struct http_server_guest *guest)
{
	close_handshake(container_of(guest, struct handshake, guest), true);
}

/* ---- refusals ---- */

static const struct stream_events stream_events;

/* Our direction ends; the client may read until it ends its own. */
static void linger(struct handshake *h)
{
	h->state = STATE_LINGER;
	http_server_rest(&h->guest, false);
	list_remove(&h->node);
	buf_reset(&h->first);
	h->stream->events = &stream_events;
	h->stream->user = h;
	stream_shutdown(h->stream);
	if (h->eof || stream_read_start(h->stream) < 0) {
		close_handshake(h, false);
		return;
	}
	alarm_set(h->acceptor->loop, &h->alarm, HTTP_LINGER_TIMEOUT_MS);
}

/* By its first byte; a client that spoke HTTP is told what is missing (contract/proxy.md S91). */
static void refuse_plain_http(struct handshake *h)
{
	struct str answer = h->acceptor->plain_http_answer;
	struct iovec piece = {(void *)answer.p, answer.len};

	counter_add(&h->acceptor->counters.plain_http);
	stream_write(h->stream, &piece, 1);
	linger(h);
}

static void log_failure(const struct handshake *h, const char *reason)
{
	log_debug("tls", "a handshake failed", LOG_S("peer", h->peer), LOG_S("reason", reason));
}

/* The alert is in the queue or with the kernel already. */
static void refuse(struct handshake *h)
{
	counter_add(&h->acceptor->counters.failed);
	log_failure(h, tls_stream_reason(h->tls));
	h->stream = tls_stream_detach(h->tls);
	h->tls = NULL;
	linger(h);
}

static void on_failed(struct later *later)
{
	struct handshake *h = container_of(later, struct handshake, later);

	if (h->state == STATE_CLOSING)
		return;
	if (h->failure == -EPROTO) {
		refuse(h);
		return;
	}
	counter_add(&h->acceptor->counters.left);
	close_handshake(h, true);
}

/* ---- the handshake ---- */

static void hand_over(struct handshake *h)
{
	struct http_server *server = h->guest.server;
	struct tls_counters *counters = &h->acceptor->counters;
	struct stream *tls = h->tls;
	SSL *ssl = tls_stream_ssl(tls);

	tls->security = tls_server_security_of(ssl);
	counter_add(SSL_version(ssl) == TLS1_2_VERSION ? &counters->handshakes_12
						       : &counters->handshakes_13);
	if (SSL_session_reused(ssl))
		counter_add(&counters->resumed);
	h->stream = h->tls = NULL;
	end(h);
	later_cancel(&h->later);
	later_init(&h->later, on_handed_over);
	later_call(h->acceptor->loop, &h->later);
	if (tls_server_chose_http2(ssl)) {
		counter_add(&counters->http2);
		http_server_adopt_http2(server, tls, h->peer);
	} else {
		http_server_adopt(server, tls, h->peer);
	}
}

static void on_ready(struct stream *stream, int status)
{
	struct handshake *h = stream->user;

	if (h->state != STATE_HANDSHAKE)
		return;
	if (status == 0) {
		hand_over(h);
		return;
	}
	h->failure = status;
	later_call(h->acceptor->loop, &h->later);
}

/* Where the time goes: the key exchange and the signature. */
static void make_first_step(struct handshake *h)
{
	struct tls_acceptor *acceptor = h->acceptor;
	uint64_t start = uv_hrtime();
	SSL *ssl = tls_server_connection_new(acceptor->tls);
	int status = -ENOMEM;

	list_remove(&h->node);
	if (ssl && tls_stream_open(acceptor->buffers, ssl, h->stream, on_ready, h, &h->tls) == 0) {
		static const struct stream_events closed = {.on_closed = on_stream_closed};

		h->state = STATE_HANDSHAKE;
		http_server_rest(&h->guest, false);
		h->tls->events = &closed;
		status = tls_stream_start(h->tls, buf_data(&h->first), buf_length(&h->first));
		buf_reset(&h->first);
		if (status < 0) {
			h->failure = status;
			later_call(acceptor->loop, &h->later);
		}
	} else {
		SSL_free(ssl);
		close_handshake(h, true);
	}
	acceptor->spent_ns += uv_hrtime() - start;
}

static bool has_time(const struct tls_acceptor *acceptor)
{
	return acceptor->spent_ns < TLS_HANDSHAKE_SLICE_US * 1000ull;
}

/* A new turn of the loop, with its own slice. */
static void on_turn(struct later *later)
{
	struct tls_acceptor *acceptor = container_of(later, struct tls_acceptor, later);

	acceptor->spent_ns = 0;
	while (!list_is_empty(&acceptor->waiting) && has_time(acceptor))
		make_first_step(container_of(acceptor->waiting.next, struct handshake, node));
	if (acceptor->spent_ns)
		later_call(acceptor->loop, &acceptor->later);
}

static void begin(struct handshake *h)
{
	struct tls_acceptor *acceptor = h->acceptor;

	h->state = STATE_WAITING;
	http_server_work(&h->guest);
	later_call(acceptor->loop, &acceptor->later);
	if (list_is_empty(&acceptor->waiting) && has_time(acceptor)) {
		make_first_step(h); /* reading goes on: to stop and start it again costs three
				       system calls */
		return;
	}
	stream_read_stop(h->stream);
	list_append(&acceptor->waiting, &h->node);
}

/* ---- the first record ---- */

/* Complete, or something that no more bytes will make a record. */
static bool is_complete(struct str first)
{
	const unsigned char *p = (const unsigned char *)first.p;

	if ((first.len && p[0] != RECORD_HANDSHAKE) || (first.len > 1 && p[1] != RECORD_VERSION))
		return true;
	if (first.len < RECORD_HEADER_BYTES)
		return false;
	return first.len >= size_min(RECORD_HEADER_BYTES + ((size_t)p[3] << 8 | p[4]),
				     TLS_FIRST_RECORD_BYTES_MAX);
}

static void on_read(struct stream *s, const char *data, size_t len)
{
	struct handshake *h = s->user;

	if (h->state != STATE_FIRST_RECORD)
		return; /* lingering: read and thrown away */
	if (buf_append(&h->first, data, len) < 0) {
		close_handshake(h, true);
		return;
	}
	if (!is_complete(buf_str(&h->first)))
		return;
	if (buf_data(&h->first)[0] >= 'A' && buf_data(&h->first)[0] <= 'Z')
		refuse_plain_http(h);
	else
		begin(h);
}

static void on_end(struct stream *s, int status)
{
	struct handshake *h = s->user;

	h->eof = true;
	if (h->state == STATE_LINGER && status == 0 && !h->shut)
		return; /* until our own end is out */
	if (h->state != STATE_LINGER)
		counter_add(&h->acceptor->counters.left);
	close_handshake(h, status < 0);
}

static void on_shut(struct stream *s)
{
	struct handshake *h = s->user;

	h->shut = true;
	if (h->eof)
		close_handshake(h, false);
}

static const struct stream_events stream_events = {
	.on_read = on_read,
	.on_end = on_end,
	.on_shut = on_shut,
	.on_closed = on_stream_closed,
};

static void on_alarm(struct alarm *alarm)
{
	struct handshake *h = container_of(alarm, struct handshake, alarm);

	if (h->state != STATE_LINGER) {
		counter_add(&h->acceptor->counters.timed_out);
		log_failure(h, "it took too long");
	}
	close_handshake(h, h->state != STATE_LINGER);
}

void tls_acceptor_accept(struct http_server *server, struct stream *stream, const char *peer)
{
	struct tls_acceptor *acceptor = http_server_config_of(server)->accept_user;
	struct handshake *h = xcalloc(1, sizeof(*h));

	h->acceptor = acceptor;
	h->stream = stream;
	h->state = STATE_FIRST_RECORD;
	h->guest.on_stop = on_stop;
	h->guest.on_yield = on_abort;
	h->guest.on_abort = on_abort;
	snprintf(h->peer, sizeof(h->peer), "%s", peer);
	buf_init(&h->first, TLS_FIRST_RECORD_BYTES_MAX + LOOP_SCRATCH_BYTES);
	list_init(&h->node);
	later_init(&h->later, on_failed);
	alarm_init(&h->alarm, on_alarm);
	alarm_set(acceptor->loop, &h->alarm, TLS_HANDSHAKE_TIMEOUT_MS);
	stream->events = &stream_events;
	stream->user = h;
	http_server_enter(server, &h->guest);
	http_server_rest(&h->guest, false); /* of those who go first when there is no room */
	if (stream_read_start(stream) < 0)
		close_handshake(h, true);
}

struct tls_acceptor *tls_acceptor_new(struct loop *loop, struct tls_server *tls,
				      struct str plain_http_answer)
{
	struct tls_acceptor *acceptor = xcalloc(1, sizeof(*acceptor));

	acceptor->loop = loop;
	acceptor->tls = tls;
	acceptor->buffers = tls_buffers_new();
	acceptor->plain_http_answer = plain_http_answer;
	list_init(&acceptor->waiting);
	later_init(&acceptor->later, on_turn);
	return acceptor;
}

void tls_acceptor_free(struct tls_acceptor *acceptor)
{
	later_cancel(&acceptor->later);
	tls_buffers_free(acceptor->buffers);
	free(acceptor);
}

const struct tls_counters *tls_acceptor_counters(const struct tls_acceptor *acceptor)
{
	return &acceptor->counters;
}
