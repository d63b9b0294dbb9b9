#include "lib/tls/tls_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "lib/buf.h"
#include "lib/limits.h"

/* The largest content of a record, and what protection adds to it at most. */
#define RECORD_BYTES SSL3_RT_MAX_PLAIN_LENGTH
#define RECORD_OVERHEAD (SSL3_RT_HEADER_LENGTH + SSL3_RT_MAX_ENCRYPTED_OVERHEAD)
/* Records written together; more go to the carrier in between. */
#define OUT_RECORDS 4

struct tls_buffers {
	BIO_METHOD *method;
	/* What one arrival decrypts to, with a record that began in the one before. */
	char plain[LOOP_SCRATCH_BYTES + RECORD_BYTES];
	char record[RECORD_BYTES];
	/* Of the one stream that is being written to right now. */
	char out[OUT_RECORDS * (RECORD_BYTES + RECORD_OVERHEAD)];
	size_t out_len;
};

struct tls_stream {
	struct stream stream;
	struct tls_buffers *buffers;
	SSL *ssl;
	tls_stream_ready *on_ready;
	struct later later; /* goes on with `held` */
	struct buf held; /* came while nobody reads */
	struct str input; /* what OpenSSL may read now */
	const char *reason;
	size_t control; /* bytes OpenSSL wrote by itself since the peer had taken everything */
	int failure; /* negative errno */
	bool ready, reading, ended, failed, shut, closing;
};

static struct tls_stream *of(const struct stream *s)
{
	return container_of(s, struct tls_stream, stream);
}

/* ---- between OpenSSL and the carrier ---- */

/* What was collected goes to the carrier. */
static int flush(struct tls_stream *t)
{
	struct tls_buffers *buffers = t->buffers;
	struct iovec piece = {.iov_base = buffers->out, .iov_len = buffers->out_len};
	int status;

	if (buffers->out_len == 0)
		return 0;
	buffers->out_len = 0;
	status = stream_write(t->stream.carrier, &piece, 1);
	if (status < 0 && !t->failure)
		t->failure = status;
	return status;
}

static int on_bio_write(BIO *bio, const char *data, int len)
{
	struct tls_stream *t = BIO_get_data(bio);
	struct tls_buffers *buffers = t->buffers;
	size_t rest = (size_t)len;

	BIO_clear_retry_flags(bio);
	while (rest) {
		size_t take = size_min(rest, sizeof(buffers->out) - buffers->out_len);

		memcpy(buffers->out + buffers->out_len, data, take);
		buffers->out_len += take;
		data += take;
		rest -= take;
		if (rest && flush(t) < 0)
			return -1;
	}
	return len;
}

static int on_bio_read(BIO *bio, char *room, int len)
{
	struct tls_stream *t = BIO_get_data(bio);
	size_t take = size_min((size_t)len, t->input.len);

	BIO_clear_retry_flags(bio);
	if (take == 0) {
		BIO_set_retry_read(bio);
		return -1;
	}
	memcpy(room, t->input.p, take);
	str_skip(&t->input, take);
	return (int)take;
}

static long on_bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
	(void)bio;
	(void)number;
	(void)pointer;
	return command == BIO_CTRL_FLUSH;
}

struct tls_buffers *tls_buffers_new(void)
{
	struct tls_buffers *buffers = xcalloc(1, sizeof(*buffers));

	buffers->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "stream");
	if (!buffers->method)
		abort(); /* of fixed size, at the start: as xmalloc */
	BIO_meth_set_write(buffers->method, on_bio_write);
	BIO_meth_set_read(buffers->method, on_bio_read);
	BIO_meth_set_ctrl(buffers->method, on_bio_ctrl);
	return buffers;
}

void tls_buffers_free(struct tls_buffers *buffers)
{
	BIO_meth_free(buffers->method);
	wipe(buffers->plain, sizeof(buffers->plain));
	wipe(buffers->record, sizeof(buffers->record));
	free(buffers);
}

/* ---- endings ---- */

static void report_end(struct tls_stream *t, int status)
{
	if (t->closing || t->failed || (t->ended && status == 0))
		return;
	t->ended = true;
	t->failed = status < 0;
	t->reading = false;
	stream_read_stop(t->stream.carrier);
	if (!t->ready)
		t->on_ready(&t->stream, status);
	else if (t->stream.events && t->stream.events->on_end)
		t->stream.events->on_end(&t->stream, status);
}

/* What is left of former failures would be taken for one of the call that follows. To clear what is
 * empty costs as much as a header of a request. */
static void forget_errors(void)
{
	if (ERR_peek_error())
		ERR_clear_error();
}

/* The failure of the OpenSSL call that just returned `result`; 0 when it only wants more bytes. */
static int failure_of(struct tls_stream *t, int result)
{
	const char *reason;

	if (SSL_get_error(t->ssl, result) == SSL_ERROR_WANT_READ)
		return 0;
	reason = ERR_reason_error_string(ERR_peek_last_error());
	t->reason = reason ? reason : "";
	ERR_clear_error();
	if (!t->failure)
		t->failure = -EPROTO;
	return t->failure;
}

/* ---- the handshake ---- */

/* 1 when it is over, 0 when it waits for the peer, else a negative errno. */
static int advance_handshake(struct tls_stream *t)
{
	int result, status = 0;

	forget_errors();
	result = SSL_do_handshake(t->ssl);
	if (result != 1)
		status = failure_of(t, result);
	flush(t);
	if (status < 0 || t->failure)
		return t->failure;
	return result == 1;
}

/* ---- reading ---- */

/* Decrypts what can be; false when no more will come of the input. */
static bool decrypt_some(struct tls_stream *t, size_t *ret_len, int *ret_end)
{
	struct tls_buffers *buffers = t->buffers;
	size_t len = 0, n;
	bool more = true;

	*ret_end = 1;
	forget_errors();
	while (sizeof(buffers->plain) - len >= RECORD_BYTES) {
		if (SSL_read_ex(t->ssl, buffers->plain + len, sizeof(buffers->plain) - len, &n)) {
			len += n;
			/* That there is no more, OpenSSL would find out by way of a buffer for the
			 * record. */
			if (t->input.len || SSL_has_pending(t->ssl))
				continue;
			more = false;
			break;
		}
		more = false;
		if (SSL_get_error(t->ssl, 0) == SSL_ERROR_ZERO_RETURN)
			*ret_end = 0;
		else if (failure_of(t, 0) < 0)
			*ret_end = t->failure;
		break;
	}
	*ret_len = len;
	return more;
}

/* Alerts and key updates of its own accord, in answer to what the peer sent. */
static void count_control(struct tls_stream *t)
{
	if (stream_queued(&t->stream) == 0)
		t->control = 0;
	t->control += t->buffers->out_len;
	if (t->control > TLS_CONTROL_BYTES_MAX && !t->failure) {
		t->buffers->out_len = 0;
		t->failure = -EPROTO;
	}
}

/* Hands on what the input holds, as long as somebody reads. */
static void decrypt(struct tls_stream *t)
{
	size_t len;
	bool more = true;
	int end = 1;

	while (more && end == 1 && t->reading && !t->closing && !t->ended) {
		more = decrypt_some(t, &len, &end);
		count_control(t);
		flush(t);
		if (end == 1 && t->failure)
			end = t->failure;
		if (len)
			t->stream.events->on_read(&t->stream, t->buffers->plain, len);
		if (end != 1)
			report_end(t, end);
	}
}

/* Bytes of the carrier: `held` or what has just come. */
static void take_input(struct tls_stream *t, struct str input)
{
	int status;

	t->input = input;
	if (!t->ready) {
		status = advance_handshake(t);
		if (status == 0)
			return;
		t->ready = status == 1;
		if (status == 1) {
			t->on_ready(&t->stream, 0);
		} else {
			report_end(t, status);
			return;
		}
	}
	decrypt(t);
}

static void on_carrier_read(struct stream *carrier, const char *data, size_t len)
{
	struct tls_stream *t = carrier->user;

	if (buf_length(&t->held) == 0) {
		take_input(t, (struct str){data, len});
		data = t->input.p;
		len = t->input.len;
		t->input = (struct str){NULL, 0};
	}
	if (len && !t->closing && !t->ended && buf_append(&t->held, data, len) < 0) {
		t->failure = -ENOMEM;
		report_end(t, -ENOMEM);
	}
	if (buf_length(&t->held) && !t->closing)
		stream_read_stop(carrier);
}

/* What was held goes first, then the carrier again. */
static void on_later(struct later *later)
{
	struct tls_stream *t = container_of(later, struct tls_stream, later);
	struct buf held = t->held;

	if (t->closing || !t->reading)
		return;
	buf_init(&t->held, held.max);
	take_input(t, buf_str(&held));
	buf_consume(&held, buf_length(&held) - t->input.len);
	t->input = (struct str){NULL, 0};
	if (buf_length(&held) && !t->closing && !t->ended) {
		t->held = held;
		return;
	}
	buf_fini(&held);
	if (t->reading && !t->closing && stream_read_start(t->stream.carrier) < 0)
		report_end(t, -EIO);
}

static void on_carrier_end(struct stream *carrier, int status)
{
	struct tls_stream *t = carrier->user;

	/* Its end without close_notify is none of the peer's words. */
	report_end(t, status < 0 ? status : -ECONNRESET);
}

/* While nobody reads. An end that close_notify has announced is known already. */
static void on_carrier_hangup(struct stream *carrier, bool reset)
{
	struct tls_stream *t = carrier->user;

	if (!t->ready || t->closing || t->failed || (t->ended && !reset))
		return;
	if (t->stream.events && t->stream.events->on_hangup)
		t->stream.events->on_hangup(&t->stream, reset);
}

static int read_start(struct stream *s)
{
	struct tls_stream *t = of(s);

	if (t->closing || t->ended)
		return 0;
	t->reading = true;
	if (buf_length(&t->held)) {
		later_call(s->loop, &t->later);
		return 0;
	}
	return stream_read_start(s->carrier);
}

static void read_stop(struct stream *s)
{
	struct tls_stream *t = of(s);

	if (t->closing)
		return;
	t->reading = false;
	stream_read_stop(s->carrier);
}

/* ---- writing ---- */

static int encrypt(struct tls_stream *t, const char *data, size_t len)
{
	size_t written;

	if (SSL_write_ex(t->ssl, data, len, &written))
		return 0;
	/* The carrier takes everything, and renegotiation is off: a wait can only mean that the
	 * peer has begun a message of the handshake and not ended it, which no honest one does. */
	if (failure_of(t, 0) == 0)
		t->failure = -EPROTO;
	return t->failure;
}

/* Small pieces are joined to records; of large ones every full record goes from where it is. */
static int encrypt_pieces(struct tls_stream *t, const struct iovec *pieces, size_t count)
{
	char *record = t->buffers->record;
	size_t len = 0;
	int status = 0;

	for (size_t i = 0; i < count && status == 0; i++) {
		const char *data = pieces[i].iov_base;
		size_t rest = pieces[i].iov_len;

		while (rest && status == 0) {
			size_t take = size_min(rest, RECORD_BYTES - len);

			if (len == 0 && (rest >= RECORD_BYTES || i + 1 == count)) {
				take = rest >= RECORD_BYTES ? rest - rest % RECORD_BYTES : rest;
				status = encrypt(t, data, take);
			} else {
				memcpy(record + len, data, take);
				len += take;
			}
			data += take;
			rest -= take;
			if (len == RECORD_BYTES && status == 0) {
				status = encrypt(t, record, len);
				len = 0;
			}
		}
	}
	return len && status == 0 ? encrypt(t, record, len) : status;
}

static int write_pieces(struct stream *s, const struct iovec *pieces, size_t count)
{
	struct tls_stream *t = of(s);
	int status;

	if (t->closing || t->shut || !t->ready)
		return -EPIPE;
	if (t->failure)
		return t->failure;
	forget_errors();
	status = encrypt_pieces(t, pieces, count);
	if (status == 0)
		status = flush(t);
	else
		t->buffers->out_len = 0;
	return status;
}

/* Ours alone; the peer may go on. */
static void send_close_notify(struct tls_stream *t)
{
	if (!t->ready || t->failure || t->shut)
		return;
	forget_errors();
	(void)SSL_shutdown(t->ssl); /* 0: the peer's is still to come */
	forget_errors();
	flush(t);
}

static int shutdown_stream(struct stream *s)
{
	struct tls_stream *t = of(s);

	if (t->closing || t->shut)
		return 0;
	send_close_notify(t);
	t->shut = true;
	return stream_shutdown(s->carrier);
}

static void on_carrier_drained(struct stream *carrier)
{
	struct tls_stream *t = carrier->user;

	if (t->ready && t->stream.events && t->stream.events->on_drained)
		t->stream.events->on_drained(&t->stream);
}

static void on_carrier_shut(struct stream *carrier)
{
	struct tls_stream *t = carrier->user;

	if (t->stream.events && t->stream.events->on_shut)
		t->stream.events->on_shut(&t->stream);
}

/* ---- life ---- */

static void free_stream(struct tls_stream *t)
{
	SSL_free(t->ssl);
	buf_fini(&t->held);
	free(t);
}

static void on_carrier_closed(struct stream *carrier)
{
	struct tls_stream *t = carrier->user;

	if (t->stream.events && t->stream.events->on_closed)
		t->stream.events->on_closed(&t->stream);
	free_stream(t);
}

static void close_stream(struct stream *s, bool reset)
{
	struct tls_stream *t = of(s);

	if (t->closing)
		return;
	if (!reset)
		send_close_notify(t);
	t->closing = true;
	later_cancel(&t->later);
	stream_close(s->carrier, reset);
}

static int descriptor(const struct stream *s)
{
	(void)s;
	return -1;
}

static const struct stream_ops ops = {
	.read_start = read_start,
	.read_stop = read_stop,
	.write = write_pieces,
	.shutdown = shutdown_stream,
	.close = close_stream,
	.fd = descriptor,
};

static const struct stream_events carrier_events = {
	.on_read = on_carrier_read,
	.on_end = on_carrier_end,
	.on_hangup = on_carrier_hangup,
	.on_drained = on_carrier_drained,
	.on_shut = on_carrier_shut,
	.on_closed = on_carrier_closed,
};

int tls_stream_open(struct tls_buffers *buffers, SSL *ssl, struct stream *carrier,
		    tls_stream_ready *on_ready, void *user, struct stream **ret_stream)
{
	BIO *bio = BIO_new(buffers->method);
	struct tls_stream *t;

	if (!bio)
		return -ENOMEM;
	t = xcalloc(1, sizeof(*t));
	BIO_set_data(bio, t);
	BIO_set_init(bio, 1);
	SSL_set_bio(ssl, bio, bio);
	t->buffers = buffers;
	t->ssl = ssl;
	t->on_ready = on_ready;
	t->reason = "";
	t->stream.ops = &ops;
	t->stream.loop = carrier->loop;
	t->stream.carrier = carrier;
	t->stream.peer = carrier->peer;
	t->stream.user = user;
	buf_init(&t->held, SIZE_MAX / 2);
	later_init(&t->later, on_later);
	carrier->events = &carrier_events;
	carrier->user = t;
	*ret_stream = &t->stream;
	return 0;
}

int tls_stream_start(struct stream *s, const char *early, size_t len)
{
	struct tls_stream *t = of(s);
	int status;

	t->input = (struct str){early, len};
	status = advance_handshake(t);
	/* A peer's first words never end the handshake. */
	assert(status <= 0);
	if (status == 0)
		status = stream_read_start(s->carrier);
	if (status < 0)
		stream_read_stop(s->carrier);
	t->input = (struct str){NULL, 0};
	t->ended = t->failed = status < 0;
	return status;
}

SSL *tls_stream_ssl(const struct stream *s)
{
	return of(s)->ssl;
}

const char *tls_stream_reason(const struct stream *s)
{
	return of(s)->reason;
}

struct stream *tls_stream_detach(struct stream *s)
{
	struct tls_stream *t = of(s);
	struct stream *carrier = s->carrier;

	later_cancel(&t->later);
	stream_read_stop(carrier);
	carrier->events = NULL;
	carrier->user = NULL;
	free_stream(t);
	return carrier;
}
