/* TLS as its client, on a memory stream, against tls_server.h's side of it: which servers it talks
 * to. */
#include "tests/support/cmocka.h"

#include "lib/tls/tls_client.h"
#include "lib/tls/tls_stream.h"
#include "tests/support/tls_lab.h"

static struct {
	struct loop loop;
	struct tls_client *client;
	struct stream_mem *m; /* the carrier */
	struct stream *stream;
	SSL *server;
	BIO *to_server, *from_server;
	struct buf received;
	int ready; /* 1: not yet */
	bool closed;
} lab;

/* ---- the stream's user ---- */

static void on_read(struct stream *s, const char *data, size_t len)
{
	(void)s;
	assert_int_equal(buf_append(&lab.received, data, len), 0);
}

static void on_end(struct stream *s, int status)
{
	(void)s;
	(void)status;
	fail();
}

static void on_closed(struct stream *s)
{
	(void)s;
	lab.closed = true;
}

static const struct stream_events events = {
	.on_read = on_read, .on_end = on_end, .on_closed = on_closed};

static void on_ready(struct stream *s, int status)
{
	assert_int_equal(lab.ready, 1);
	lab.ready = status;
	s->events = &events;
	if (status == 0)
		assert_int_equal(stream_read_start(s), 0);
}

/* ---- both sides ---- */

static void exchange(void)
{
	bool moved = true;

	while (moved) {
		char *data;
		size_t len = (size_t)BIO_get_mem_data(lab.from_server, &data);
		struct str output;

		moved = false;
		if (len) {
			stream_mem_feed(lab.m, data, len);
			BIO_reset(lab.from_server);
			moved = true;
		}
		stream_mem_settle(&lab.loop);
		output = stream_mem_output(lab.m);
		if (output.len) {
			BIO_write(lab.to_server, output.p, (int)output.len);
			buf_clear(&lab.m->output);
			moved = true;
		}
		if (!SSL_is_init_finished(lab.server))
			SSL_do_handshake(lab.server);
	}
}

/* Nothing but the client's first words has been said. */
static void open_lab(const char *server_name, bool knows_authority)
{
	const struct http_call_security *security;
	char path[64];
	struct err err;

	memset(&lab, 0, sizeof(lab));
	lab.ready = 1;
	snprintf(path, sizeof(path), "%s/ca.pem", tls_lab_directory);
	setenv("SSL_CERT_FILE", knows_authority ? path : "/dev/null", 1);
	setenv("SSL_CERT_DIR", "/dev/null", 1);
	loop_init(&lab.loop);
	buf_init(&lab.received, 1024);
	assert_int_equal(tls_client_new(server_name, &lab.client, &err), 0);
	lab.server = tls_server_connection_new(tls_lab_tls);
	lab.to_server = BIO_new(BIO_s_mem());
	lab.from_server = BIO_new(BIO_s_mem());
	SSL_set_bio(lab.server, lab.to_server, lab.from_server);
	lab.m = stream_mem_new(&lab.loop);
	security = tls_client_security(lab.client);
	assert_int_equal(security->open(security, &lab.m->stream, on_ready, &lab, &lab.stream), 0);
	assert_ptr_equal(lab.stream->user, &lab);
	lab.stream->events = &events;
	assert_int_equal(lab.ready, 1);
}

static void close_lab(void)
{
	stream_close(lab.stream, false);
	stream_mem_settle(&lab.loop);
	assert_true(lab.closed);
	stream_mem_free(lab.m);
	SSL_set_shutdown(lab.server, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
	SSL_free(lab.server);
	buf_fini(&lab.received);
	loop_fini(&lab.loop);
	tls_client_free(lab.client);
}

/* ---- tests ---- */

static void a_server_with_the_right_certificate_is_talked_to(void **state)
{
	static const struct {
		const char *name, *asked;
	} rows[] = {
		{"a.sbx.localhost", "a.sbx.localhost"},
		{"127.0.0.1", NULL}, /* RFC 6066: an address is not asked for */
		{"::1", NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		const struct iovec piece = {(char *)"question", 8};
		const unsigned char *protocol;
		const char *asked;
		char room[16];
		unsigned len;

		open_lab(rows[i].name, true);
		exchange();
		assert_int_equal(lab.ready, 0);
		asked = SSL_get_servername(lab.server, TLSEXT_NAMETYPE_host_name);
		if (rows[i].asked)
			assert_string_equal(asked, rows[i].asked);
		else
			assert_null(asked);
		SSL_get0_alpn_selected(lab.server, &protocol, &len);
		assert_int_equal(len, strlen("http/1.1"));
		assert_memory_equal(protocol, "http/1.1", len);
		assert_int_equal(stream_write(lab.stream, &piece, 1), 0);
		exchange();
		assert_int_equal(SSL_read(lab.server, room, sizeof(room)), 8);
		assert_memory_equal(room, "question", 8);
		assert_int_equal(SSL_write(lab.server, "answer", 6), 6);
		exchange();
		assert_int_equal(buf_length(&lab.received), 6);
		assert_memory_equal(buf_data(&lab.received), "answer", 6);
		close_lab();
	}
}

static void one_with_a_wrong_certificate_is_not_and_hears_it(void **state)
{
	static const struct {
		const char *name, *reason;
		bool knows_authority;
	} rows[] = {
		{"a.elsewhere", "hostname mismatch", true},
		{"x.a.sbx.localhost", "hostname mismatch", true},
		{"127.0.0.2", "IP address mismatch", true},
		{"a.sbx.localhost", "self-signed certificate in certificate chain", false},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		const struct http_call_security *security;

		open_lab(rows[i].name, rows[i].knows_authority);
		exchange();
		assert_int_equal(lab.ready, -EPROTO);
		security = tls_client_security(lab.client);
		assert_string_equal(security->reason(lab.stream), rows[i].reason);
		assert_false(SSL_is_init_finished(lab.server));
		close_lab();
	}
}

static void one_that_speaks_something_else_has_a_reason(void **state)
{
	static const char plain[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
	const struct http_call_security *security;

	(void)state;
	open_lab("a.sbx.localhost", true);
	stream_mem_feed(lab.m, plain, strlen(plain));
	stream_mem_settle(&lab.loop);
	assert_int_equal(lab.ready, -EPROTO);
	security = tls_client_security(lab.client);
	assert_string_equal(security->reason(lab.stream), "wrong version number");
	close_lab();
}

static void one_that_leaves_is_lost(void **state)
{
	(void)state;
	open_lab("a.sbx.localhost", true);
	stream_mem_feed_eof(lab.m);
	stream_mem_settle(&lab.loop);
	assert_int_equal(lab.ready, -ECONNRESET);
	close_lab();

	/* While the handshake is under way. */
	open_lab("a.sbx.localhost", true);
	close_lab();
	assert_int_equal(lab.ready, 1);
}

static void a_carrier_that_is_broken_already_is_given_back(void **state)
{
	const struct http_call_security *security;
	struct stream_mem *m;
	struct stream *stream;

	(void)state;
	open_lab("a.sbx.localhost", true);
	m = stream_mem_new(&lab.loop);
	stream_mem_break(m, -EPIPE);
	security = tls_client_security(lab.client);
	assert_int_equal(security->open(security, &m->stream, on_ready, NULL, &stream), -EPIPE);
	assert_null(m->stream.events);
	stream_close(&m->stream, true);
	stream_mem_settle(&lab.loop);
	stream_mem_free(m);
	close_lab();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_server_with_the_right_certificate_is_talked_to),
		cmocka_unit_test(one_with_a_wrong_certificate_is_not_and_hears_it),
		cmocka_unit_test(one_that_speaks_something_else_has_a_reason),
		cmocka_unit_test(one_that_leaves_is_lost),
		cmocka_unit_test(a_carrier_that_is_broken_already_is_given_back),
	};

	return cmocka_run_group_tests(tests, tls_lab_group_set_up, tls_lab_group_tear_down);
}
