#include "tests/support/tls_lab.h"

#include <openssl/err.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/tls/tls_development.h"
#include "tests/support/cmocka.h"
#include "tests/support/torture.h"

#define HELLO_BYTES_MAX (4 * 1024)

/* ---- certificates and the server's side of OpenSSL ---- */

char tls_lab_directory[] = "/tmp/test-tls-XXXXXX";

struct tls_server *tls_lab_tls;

struct tls_server *tls_lab_new_tls(void)
{
	const char *source = tls_lab_directory;
	struct tls_load_result result;
	struct tls_store *store;
	struct tls_server *tls;
	struct err err;

	if (tls_store_load(&source, 1, NULL, &store, &result, &err) < 0 ||
	    tls_server_new(store, &tls, &err) < 0)
		return NULL;
	return tls;
}

int tls_lab_group_set_up(void **state)
{
	struct err err;
	bool made;

	(void)state;
	if (!mkdtemp(tls_lab_directory) ||
	    tls_development_make(tls_lab_directory, "sbx.localhost", &made, &err) < 0)
		return -1;
	tls_lab_tls = tls_lab_new_tls();
	return tls_lab_tls ? 0 : -1;
}

int tls_lab_group_tear_down(void **state)
{
	static const char *const names[] = {"ca.pem", "ca-key.pem", "tls.crt", "tls.key"};
	char path[64];

	(void)state;
	tls_server_free(tls_lab_tls);
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", tls_lab_directory, names[i]);
		unlink(path);
	}
	return rmdir(tls_lab_directory);
}

/* ---- one connection ---- */

struct tls_lab tls_lab;

static void on_read(struct stream *s, const char *data, size_t len)
{
	assert_ptr_equal(s, tls_lab.stream);
	assert_false(tls_lab.refuses_reading);
	tls_lab.reads++;
	if (buf_append(&tls_lab.received, data, len) < 0)
		assert_true(torture_refused());
	if (tls_lab.stops_at_read) {
		stream_read_stop(s);
		tls_lab.refuses_reading = true;
	}
}

static void on_end(struct stream *s, int status)
{
	(void)s;
	tls_lab.ends++;
	tls_lab.end = status;
}

static void on_drained(struct stream *s)
{
	(void)s;
	tls_lab.drains++;
}

static void on_shut(struct stream *s)
{
	(void)s;
	tls_lab.shuts++;
}

static void on_closed(struct stream *s)
{
	(void)s;
	tls_lab.closed = true;
	tls_lab.stream = NULL;
}

static const struct stream_events events = {
	.on_read = on_read,
	.on_end = on_end,
	.on_drained = on_drained,
	.on_shut = on_shut,
	.on_closed = on_closed,
};

static void on_ready(struct stream *s, int status)
{
	assert_int_equal(tls_lab.ready, 1);
	tls_lab.ready = status;
	s->events = &events;
	if (status == 0) {
		s->security = tls_server_security_of(tls_stream_ssl(s));
		assert_int_equal(stream_read_start(s), 0);
	}
}

void tls_lab_settle(void)
{
	stream_mem_settle(&tls_lab.loop);
}

void tls_lab_exchange(size_t step)
{
	bool moved = true;

	while (moved) {
		char *data;
		size_t len = (size_t)BIO_get_mem_data(tls_lab.from_client, &data);
		struct str output;

		moved = false;
		for (size_t at = 0; at < len && tls_lab.stream && !tls_lab.m->closed;) {
			size_t take = step ? size_min(step, len - at) : len;

			stream_mem_feed(tls_lab.m, data + at, take);
			tls_lab_settle();
			at += take;
			moved = true;
		}
		BIO_reset(tls_lab.from_client);
		tls_lab_settle();
		output = stream_mem_output(tls_lab.m);
		if (output.len) {
			BIO_write(tls_lab.to_client, output.p, (int)output.len);
			buf_clear(&tls_lab.m->output);
			moved = true;
		}
		if (!SSL_is_init_finished(tls_lab.client))
			SSL_do_handshake(tls_lab.client);
		ERR_clear_error();
	}
}

void tls_lab_open(int version, const char *server_name, SSL_SESSION *session)
{
	memset(&tls_lab, 0, sizeof(tls_lab));
	tls_lab.ready = tls_lab.end = 1;
	buf_init(&tls_lab.received, SIZE_MAX / 2);
	loop_init(&tls_lab.loop);
	tls_lab.buffers = tls_buffers_new();
	tls_lab.context = SSL_CTX_new(TLS_client_method());
	SSL_CTX_set_max_proto_version(tls_lab.context, version);
	SSL_CTX_set_session_cache_mode(tls_lab.context, SSL_SESS_CACHE_OFF);
	tls_lab.client = SSL_new(tls_lab.context);
	tls_lab.to_client = BIO_new(BIO_s_mem());
	tls_lab.from_client = BIO_new(BIO_s_mem());
	SSL_set_bio(tls_lab.client, tls_lab.to_client, tls_lab.from_client);
	SSL_set_connect_state(tls_lab.client);
	if (server_name)
		SSL_set_tlsext_host_name(tls_lab.client, server_name);
	if (session)
		SSL_set_session(tls_lab.client, session);
	tls_lab.m = stream_mem_new(&tls_lab.loop);
	assert_int_equal(tls_stream_open(tls_lab.buffers, tls_server_connection_new(tls_lab_tls),
					 &tls_lab.m->stream, on_ready, NULL, &tls_lab.stream),
			 0);
	tls_lab.stream->events = &events;
}

int tls_lab_start(size_t step)
{
	char *data;
	size_t len;
	int status;

	SSL_do_handshake(tls_lab.client);
	len = (size_t)BIO_get_mem_data(tls_lab.from_client, &data);
	assert_true(len > 0);
	status = tls_stream_start(tls_lab.stream, data, step ? size_min(step, len) : len);
	if (step && len > step) {
		char rest[HELLO_BYTES_MAX];

		assert_true(len <= sizeof(rest));
		memcpy(rest, data, len);
		BIO_reset(tls_lab.from_client);
		BIO_write(tls_lab.from_client, rest + step, (int)(len - step));
	} else {
		BIO_reset(tls_lab.from_client);
	}
	return status;
}

void tls_lab_connect(int version, size_t step)
{
	tls_lab_open(version, "a.sbx.localhost", NULL);
	assert_int_equal(tls_lab_start(step), 0);
	tls_lab_exchange(step);
	assert_int_equal(tls_lab.ready, 0);
	assert_true(SSL_is_init_finished(tls_lab.client));
}

void tls_lab_close(void)
{
	if (tls_lab.stream)
		stream_close(tls_lab.stream, true);
	tls_lab_settle();
	assert_true(tls_lab.closed);
	stream_mem_free(tls_lab.m);
	/* Without this OpenSSL takes the session for a bad one. */
	SSL_set_shutdown(tls_lab.client, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
	SSL_free(tls_lab.client);
	SSL_CTX_free(tls_lab.context);
	tls_buffers_free(tls_lab.buffers);
	buf_fini(&tls_lab.received);
	loop_fini(&tls_lab.loop);
}

void tls_lab_say(const void *data, size_t len)
{
	assert_int_equal(SSL_write(tls_lab.client, data, (int)len), (int)len);
}

void tls_lab_expect(const char *text)
{
	assert_int_equal(buf_length(&tls_lab.received), strlen(text));
	assert_memory_equal(buf_data(&tls_lab.received), text, strlen(text));
	buf_clear(&tls_lab.received);
}

void tls_lab_answer(const char *text)
{
	struct iovec piece = {(void *)text, strlen(text)};

	assert_int_equal(stream_write(tls_lab.stream, &piece, 1), 0);
}

void tls_lab_hear(const char *text)
{
	char room[256];
	int len = SSL_read(tls_lab.client, room, sizeof(room));

	assert_int_equal(len, (int)strlen(text));
	assert_memory_equal(room, text, strlen(text));
}

void tls_lab_hear_end(void)
{
	char room[16];
	int result = SSL_read(tls_lab.client, room, sizeof(room));

	assert_true(result <= 0);
	assert_int_equal(SSL_get_error(tls_lab.client, result), SSL_ERROR_ZERO_RETURN);
}
