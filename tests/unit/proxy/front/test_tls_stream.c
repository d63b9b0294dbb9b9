/* TLS around a memory stream, against OpenSSL's own client: what is cut, half-closed, broken, flooded. */
#include "tests/support/cmocka.h"

#include <openssl/err.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/limits.h"
#include "proxy/front/tls.h"
#include "proxy/front/tls_development.h"
#include "proxy/front/tls_stream.h"
#include "tests/support/stream_mem.h"
#include "tests/support/torture.h"

#define KIB 1024
#define HELLO_BYTES_MAX (4 * KIB)

/* ---- what all tests share: certificates and the server's side of OpenSSL ---- */

static char directory[] = "/tmp/test-tls-XXXXXX";
static struct tls *tls;

static int group_set_up(void **state)
{
	const char *source = directory;
	struct tls_load_result result;
	struct tls_store *store;
	struct err err;
	bool made;

	(void)state;
	if (!mkdtemp(directory) || tls_development_make(directory, "sbx.localhost", &made, &err) < 0 ||
	    tls_store_load(&source, 1, NULL, &store, &result, &err) < 0 ||
	    tls_new(store, &tls, &err) < 0)
		return -1;
	return 0;
}

static int group_tear_down(void **state)
{
	static const char *const names[] = {"ca.pem", "ca-key.pem", "tls.crt", "tls.key"};
	char path[64];

	(void)state;
	tls_free(tls);
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
		unlink(path);
	}
	return rmdir(directory);
}

/* ---- one connection ---- */

static struct lab {
	struct loop loop;
	struct tls_buffers *buffers;
	struct stream_mem *m; /* the carrier */
	struct stream *stream;
	SSL_CTX *context;
	SSL *client;
	BIO *to_client, *from_client;
	struct buf received;
	size_t reads, drains, ends, shuts;
	int ready, end; /* 1: not yet */
	bool closed, refuses_reading;
} lab;

static void on_read(struct stream *s, const char *data, size_t len)
{
	assert_ptr_equal(s, lab.stream);
	assert_false(lab.refuses_reading);
	lab.reads++;
	if (buf_append(&lab.received, data, len) < 0)
		assert_true(torture_refused());
}

static void on_end(struct stream *s, int status)
{
	(void)s;
	lab.ends++;
	lab.end = status;
}

static void on_drained(struct stream *s)
{
	(void)s;
	lab.drains++;
}

static void on_shut(struct stream *s)
{
	(void)s;
	lab.shuts++;
}

static void on_closed(struct stream *s)
{
	(void)s;
	lab.closed = true;
	lab.stream = NULL;
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
	assert_int_equal(lab.ready, 1);
	lab.ready = status;
	s->events = &events;
	if (status == 0) {
		s->security = tls_security_of(tls_stream_ssl(s));
		assert_int_equal(stream_read_start(s), 0);
	}
}

static void settle(void)
{
	stream_mem_settle(&lab.loop);
}

/* What each side has said so far reaches the other, `step` bytes at a time; 0: all at once. */
static void exchange(size_t step)
{
	bool moved = true;

	while (moved) {
		char *data;
		size_t len = (size_t)BIO_get_mem_data(lab.from_client, &data);
		struct str output;

		moved = false;
		for (size_t at = 0; at < len && lab.stream && !lab.m->closed;) {
			size_t take = step ? size_min(step, len - at) : len;

			stream_mem_feed(lab.m, data + at, take);
			settle();
			at += take;
			moved = true;
		}
		BIO_reset(lab.from_client);
		settle();
		output = stream_mem_output(lab.m);
		if (output.len) {
			BIO_write(lab.to_client, output.p, (int)output.len);
			buf_clear(&lab.m->output);
			moved = true;
		}
		if (!SSL_is_init_finished(lab.client))
			SSL_do_handshake(lab.client);
		ERR_clear_error();
	}
}

static void open_lab(int version, const char *server_name, SSL_SESSION *session)
{
	memset(&lab, 0, sizeof(lab));
	lab.ready = lab.end = 1;
	buf_init(&lab.received, SIZE_MAX / 2);
	loop_init(&lab.loop);
	lab.buffers = tls_buffers_new();
	lab.context = SSL_CTX_new(TLS_client_method());
	SSL_CTX_set_max_proto_version(lab.context, version);
	SSL_CTX_set_session_cache_mode(lab.context, SSL_SESS_CACHE_OFF);
	lab.client = SSL_new(lab.context);
	lab.to_client = BIO_new(BIO_s_mem());
	lab.from_client = BIO_new(BIO_s_mem());
	SSL_set_bio(lab.client, lab.to_client, lab.from_client);
	SSL_set_connect_state(lab.client);
	if (server_name)
		SSL_set_tlsext_host_name(lab.client, server_name);
	if (session)
		SSL_set_session(lab.client, session);
	lab.m = stream_mem_new(&lab.loop);
	assert_int_equal(tls_stream_open(lab.buffers, tls_accept_new(tls), &lab.m->stream, on_ready, NULL,
					 &lab.stream),
			 0);
	lab.stream->events = &events;
}

static int start_lab(size_t step)
{
	char *data;
	size_t len;
	int status;

	SSL_do_handshake(lab.client);
	len = (size_t)BIO_get_mem_data(lab.from_client, &data);
	assert_true(len > 0);
	status = tls_stream_start(lab.stream, data, step ? size_min(step, len) : len);
	if (step && len > step) {
		char rest[HELLO_BYTES_MAX];

		assert_true(len <= sizeof(rest));
		memcpy(rest, data, len);
		BIO_reset(lab.from_client);
		BIO_write(lab.from_client, rest + step, (int)(len - step));
	} else {
		BIO_reset(lab.from_client);
	}
	return status;
}

static void connect_lab(int version, size_t step)
{
	open_lab(version, "a.sbx.localhost", NULL);
	assert_int_equal(start_lab(step), 0);
	exchange(step);
	assert_int_equal(lab.ready, 0);
	assert_true(SSL_is_init_finished(lab.client));
}

static void close_lab(void)
{
	if (lab.stream)
		stream_close(lab.stream, true);
	settle();
	assert_true(lab.closed);
	stream_mem_free(lab.m);
	/* Without this OpenSSL takes the session for a bad one. */
	SSL_set_shutdown(lab.client, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
	SSL_free(lab.client);
	SSL_CTX_free(lab.context);
	tls_buffers_free(lab.buffers);
	buf_fini(&lab.received);
	loop_fini(&lab.loop);
}

static void client_says(const void *data, size_t len)
{
	assert_int_equal(SSL_write(lab.client, data, (int)len), (int)len);
}

static void expect_received(const char *text)
{
	assert_int_equal(buf_length(&lab.received), strlen(text));
	assert_memory_equal(buf_data(&lab.received), text, strlen(text));
	buf_clear(&lab.received);
}

static void server_says(const char *text)
{
	struct iovec piece = {(void *)text, strlen(text)};

	assert_int_equal(stream_write(lab.stream, &piece, 1), 0);
}

static void client_hears(const char *text)
{
	char room[256];
	int len = SSL_read(lab.client, room, sizeof(room));

	assert_int_equal(len, (int)strlen(text));
	assert_memory_equal(room, text, strlen(text));
}

static void client_hears_the_end(void)
{
	char room[16];
	int result = SSL_read(lab.client, room, sizeof(room));

	assert_true(result <= 0);
	assert_int_equal(SSL_get_error(lab.client, result), SSL_ERROR_ZERO_RETURN);
}

static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};

/* ---- tests ---- */

static void handshakes_and_records_may_be_cut_anywhere(void **state)
{
	static const size_t steps[] = {0, 1, 2, 7, 100};

	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		for (size_t i = 0; i < ARRAY_LENGTH(steps); i++) {
			connect_lab(versions[v], steps[i]);
			client_says("hello", 5);
			client_says(" there", 6);
			exchange(steps[i]);
			expect_received("hello there");
			server_says("good day");
			exchange(steps[i]);
			client_hears("good day");
			close_lab();
		}
	}
}

static void what_comes_together_is_told_together(void **state)
{
	char block[10 * KIB];

	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	memset(block, 'x', sizeof(block));
	for (int i = 0; i < 6; i++)
		client_says(block, sizeof(block));
	exchange(0);
	assert_int_equal(buf_length(&lab.received), 6 * sizeof(block));
	assert_int_equal(lab.reads, 1);
	close_lab();
}

static size_t count_records(struct str bytes)
{
	size_t count = 0;

	while (bytes.len >= 5) {
		size_t len = 5 + ((size_t)(unsigned char)bytes.p[3] << 8 | (unsigned char)bytes.p[4]);

		assert_true(len <= bytes.len);
		bytes = (struct str){bytes.p + len, bytes.len - len};
		count++;
	}
	assert_int_equal(bytes.len, 0);
	return count;
}

static void small_pieces_share_a_record_and_a_write(void **state)
{
	struct iovec pieces[] = {{(void *)"head ", 5}, {(void *)"", 0}, {(void *)"body ", 5}, {(void *)"end", 3}};
	size_t before;

	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	before = lab.m->writes;
	assert_int_equal(stream_write(lab.stream, pieces, 4), 0);
	assert_int_equal(lab.m->writes, before + 1);
	assert_int_equal(count_records(stream_mem_output(lab.m)), 1);
	exchange(0);
	client_hears("head body end");
	close_lab();
}

static void large_pieces_fill_records(void **state)
{
	static char head[100], block[40 * KIB], room[64 * KIB];
	struct iovec pieces[] = {{head, sizeof(head)}, {block, sizeof(block)}};
	size_t before, len = 0;
	int n;

	(void)state;
	memset(head, 'h', sizeof(head));
	memset(block, 'b', sizeof(block));
	connect_lab(TLS1_3_VERSION, 0);
	before = lab.m->writes;
	assert_int_equal(stream_write(lab.stream, pieces, 2), 0);
	assert_int_equal(lab.m->writes, before + 1);
	assert_int_equal(count_records(stream_mem_output(lab.m)), 3);
	exchange(0);
	while ((n = SSL_read(lab.client, room + len, (int)(sizeof(room) - len))) > 0)
		len += (size_t)n;
	assert_int_equal(len, sizeof(head) + sizeof(block));
	assert_memory_equal(room, head, sizeof(head));
	assert_memory_equal(room + sizeof(head), block, sizeof(block));
	close_lab();
}

static void what_comes_while_nobody_reads_waits(void **state)
{
	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	client_says("one ", 4);
	stream_read_stop(lab.stream);
	lab.refuses_reading = true;
	exchange(0);
	client_says("two ", 4);
	exchange(0);
	settle();
	assert_int_equal(buf_length(&lab.received), 0);
	lab.refuses_reading = false;
	stream_read_start(lab.stream);
	exchange(0);
	expect_received("one two ");
	close_lab();
}

static void stop_in_read(struct stream *s, const char *data, size_t len)
{
	on_read(s, data, len);
	stream_read_stop(s);
	lab.refuses_reading = true;
}

/* A reader that stops at every arrival, with several records in each. */
static void a_reader_may_stop_in_the_middle(void **state)
{
	static const struct stream_events stopping = {
		.on_read = stop_in_read, .on_end = on_end, .on_closed = on_closed, .on_drained = on_drained};
	static char block[16 * KIB];
	size_t total = 0;

	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	lab.stream->events = &stopping;
	for (int i = 0; i < 20; i++) {
		memset(block, 'a' + i, sizeof(block));
		client_says(block, sizeof(block));
		total += sizeof(block);
	}
	exchange(0);
	assert_true(buf_length(&lab.received) < total);
	while (buf_length(&lab.received) < total) {
		size_t before = buf_length(&lab.received);

		lab.refuses_reading = false;
		stream_read_start(lab.stream);
		exchange(0);
		assert_true(buf_length(&lab.received) > before);
	}
	for (size_t i = 0; i < total; i++)
		assert_int_equal(buf_data(&lab.received)[i], 'a' + (int)(i / sizeof(block)));
	close_lab();
}

static void close_notify_is_the_end_and_its_lack_is_a_cut(void **state)
{
	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		connect_lab(versions[v], 0);
		client_says("bye", 3);
		SSL_shutdown(lab.client);
		exchange(0);
		expect_received("bye");
		assert_int_equal(lab.end, 0);
		stream_mem_feed_eof(lab.m);
		settle();
		assert_int_equal(lab.ends, 1);
		close_lab();

		connect_lab(versions[v], 0);
		client_says("bye", 3);
		exchange(0);
		stream_mem_feed_eof(lab.m);
		settle();
		expect_received("bye");
		assert_int_equal(lab.end, -ECONNRESET);
		close_lab();
	}
}

static void a_record_cut_by_the_end_is_a_cut(void **state)
{
	char *data;
	long len;

	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	client_says("complete", 8);
	exchange(0);
	client_says("incomplete", 10);
	len = BIO_get_mem_data(lab.from_client, &data);
	stream_mem_feed(lab.m, data, (size_t)len - 1);
	stream_mem_feed_eof(lab.m);
	settle();
	expect_received("complete");
	assert_int_equal(lab.end, -ECONNRESET);
	close_lab();
}

static void either_side_may_end_first_and_go_on_reading(void **state)
{
	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		connect_lab(versions[v], 0);
		server_says("last");
		stream_shutdown(lab.stream);
		exchange(0);
		assert_int_equal(lab.shuts, 1);
		assert_true(lab.m->shut_wanted);
		client_hears("last");
		client_hears_the_end();
		client_says("not yet", 7);
		exchange(0);
		expect_received("not yet");
		SSL_shutdown(lab.client);
		exchange(0);
		assert_int_equal(lab.end, 0);
		close_lab();

		connect_lab(versions[v], 0);
		SSL_shutdown(lab.client);
		exchange(0);
		assert_int_equal(lab.end, 0);
		server_says("still here");
		exchange(0);
		client_hears("still here");
		close_lab();
	}
}

static void an_orderly_close_says_so_and_a_reset_does_not(void **state)
{
	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	stream_close(lab.stream, false);
	exchange(0);
	client_hears_the_end();
	assert_false(lab.m->reset);
	close_lab();

	connect_lab(TLS1_3_VERSION, 0);
	stream_close(lab.stream, true);
	exchange(0);
	assert_int_equal(stream_mem_output(lab.m).len, 0);
	assert_true(lab.m->reset);
	close_lab();
}

static void nothing_can_be_written_after_the_end(void **state)
{
	struct iovec piece = {(void *)"x", 1};

	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	stream_shutdown(lab.stream);
	assert_int_equal(stream_write(lab.stream, &piece, 1), -EPIPE);
	close_lab();
}

static void a_forged_record_ends_in_an_alert(void **state)
{
	char *data;
	char record[256];
	long len;

	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		connect_lab(versions[v], 0);
		client_says("good", 4);
		exchange(0);
		client_says("forged", 6);
		len = BIO_get_mem_data(lab.from_client, &data);
		assert_true(len < (long)sizeof(record));
		memcpy(record, data, (size_t)len);
		BIO_reset(lab.from_client);
		record[len - 1] ^= 1;
		stream_mem_feed(lab.m, record, (size_t)len);
		exchange(0);
		expect_received("good");
		assert_int_equal(lab.end, -EPROTO);
		assert_int_equal(lab.ends, 1);
		assert_true(SSL_read(lab.client, record, sizeof(record)) <= 0);
		assert_int_equal(ERR_GET_REASON(ERR_peek_last_error()), SSL_R_SSLV3_ALERT_BAD_RECORD_MAC);
		ERR_clear_error();
		close_lab();
	}
}

static void garbage_instead_of_a_handshake_gets_an_alert(void **state)
{
	static const char hello[] = "\x16\x03\x01\x00\x05hello";
	struct str output;

	(void)state;
	open_lab(TLS1_3_VERSION, NULL, NULL);
	assert_int_equal(tls_stream_start(lab.stream, hello, sizeof(hello) - 1), -EPROTO);
	assert_true(strlen(tls_stream_reason(lab.stream)) > 0);
	output = stream_mem_output(lab.m);
	assert_true(output.len >= 7 && output.p[0] == SSL3_RT_ALERT);
	lab.m->stream.events = NULL;
	assert_ptr_equal(tls_stream_detach(lab.stream), &lab.m->stream);
	lab.stream = NULL;
	lab.closed = true;
	lab.m->close_told = true;
	close_lab();
}

static void a_client_that_leaves_in_the_handshake_is_told(void **state)
{
	(void)state;
	open_lab(TLS1_3_VERSION, NULL, NULL);
	assert_int_equal(start_lab(0), 0);
	stream_mem_feed_eof(lab.m);
	settle();
	assert_int_equal(lab.ready, -ECONNRESET);
	close_lab();
}

static void s089_renegotiation_is_refused(void **state)
{
	char *data;
	long len;

	(void)state;
	connect_lab(TLS1_2_VERSION, 0);
	assert_int_equal(SSL_renegotiate(lab.client), 1);
	SSL_do_handshake(lab.client);
	len = BIO_get_mem_data(lab.from_client, &data);
	assert_true(len > 0);
	stream_mem_feed(lab.m, data, (size_t)len);
	settle();
	BIO_reset(lab.from_client);
	/* A warning; what the client makes of it is its affair. */
	assert_int_equal(lab.end, 1);
	assert_int_equal(count_records(stream_mem_output(lab.m)), 1);
	assert_int_equal(stream_mem_output(lab.m).p[0], SSL3_RT_ALERT);
	server_says("as before");
	BIO_write(lab.to_client, stream_mem_output(lab.m).p, (int)stream_mem_output(lab.m).len);
	ERR_clear_error();
	SSL_do_handshake(lab.client);
	assert_int_equal(ERR_GET_REASON(ERR_peek_last_error()), SSL_R_NO_RENEGOTIATION);
	close_lab();
}

static void keys_may_change_under_way(void **state)
{
	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	client_says("old ", 4);
	assert_int_equal(SSL_key_update(lab.client, SSL_KEY_UPDATE_REQUESTED), 1);
	client_says("new ", 4);
	exchange(0);
	expect_received("old new ");
	server_says("new too");
	exchange(0);
	client_hears("new too");
	close_lab();
}

/* Each asks for an answer, and the answers are never taken. */
static void a_flood_of_key_updates_is_bounded(void **state)
{
	size_t rounds = 0;

	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	lab.m->room = 0;
	while (lab.end == 1 && rounds < 20000) {
		char *data;
		long len;

		SSL_key_update(lab.client, SSL_KEY_UPDATE_REQUESTED);
		SSL_do_handshake(lab.client);
		len = BIO_get_mem_data(lab.from_client, &data);
		stream_mem_feed(lab.m, data, (size_t)len);
		BIO_reset(lab.from_client);
		settle();
		rounds++;
	}
	assert_int_equal(lab.end, -EPROTO);
	assert_true(rounds > 1);
	assert_true(stream_queued(lab.stream) <= 2 * TLS_CONTROL_BYTES_MAX);
	close_lab();
}

static void a_full_carrier_stops_the_writer_and_says_when_it_is_not(void **state)
{
	static char block[32 * KIB];
	struct iovec piece = {block, sizeof(block)};
	size_t written = 0;
	int status;

	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	lab.m->room = 0;
	do {
		status = stream_write(lab.stream, &piece, 1);
		written += sizeof(block);
	} while (status == 0);
	assert_int_equal(status, STREAM_FULL);
	assert_true(written <= STREAM_HIGH_MARK_BYTES + 2 * sizeof(block));
	assert_true(stream_queued(lab.stream) >= written);
	settle();
	assert_int_equal(lab.drains, 0);
	stream_mem_take(lab.m, SIZE_MAX);
	settle();
	assert_int_equal(lab.drains, 1);
	assert_int_equal(stream_queued(lab.stream), 0);
	close_lab();
}

static void a_broken_carrier_is_the_end(void **state)
{
	struct iovec piece = {(void *)"x", 1};

	(void)state;
	connect_lab(TLS1_3_VERSION, 0);
	stream_mem_break(lab.m, -EPIPE);
	settle();
	assert_int_equal(lab.end, -EPIPE);
	assert_true(stream_write(lab.stream, &piece, 1) < 0);
	close_lab();
}

static void s090_tickets_of_the_last_key_still_resume(void **state)
{
	SSL_SESSION *session;

	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		for (int rotations = 0; rotations < 3; rotations++) {
			char room[8];

			connect_lab(versions[v], 0);
			SSL_read(lab.client, room, sizeof(room)); /* the tickets */
			session = SSL_get1_session(lab.client);
			assert_true(SSL_SESSION_has_ticket(session));
			close_lab();
			for (int i = 0; i < rotations; i++)
				tls_rotate_tickets(tls);
			open_lab(versions[v], "a.sbx.localhost", session);
			assert_int_equal(start_lab(0), 0);
			exchange(0);
			assert_int_equal(lab.ready, 0);
			if (SSL_session_reused(lab.client) != (rotations < 2))
				fail_msg("%s after %d rotations", SSL_get_version(lab.client), rotations);
			client_says("x", 1);
			exchange(0);
			expect_received("x");
			/* Which certificate counts is known without having been shown again. */
			assert_true(lab.stream->security->covers(lab.stream->security,
								 STR("b.sbx.localhost")));
			assert_false(lab.stream->security->covers(lab.stream->security,
								  STR("b.other.localhost")));
			close_lab();
			SSL_SESSION_free(session);
		}
	}
}

static void s081_what_a_connection_covers(void **state)
{
	static const struct {
		const char *asked, *host;
		bool covered;
	} table[] = {
		{"a.sbx.localhost", "a.sbx.localhost", true},
		{"a.sbx.localhost", "b.sbx.localhost", true},
		{"a.sbx.localhost", "B.SBX.localhost.", true},
		{"a.sbx.localhost", "sbx.localhost", true},
		{"a.sbx.localhost", "x.b.sbx.localhost", false},
		{"a.sbx.localhost", "a.elsewhere", false},
		{"a.sbx.localhost", "127.0.0.1", true},
		{"a.sbx.localhost", "[::1]", true},
		{"a.sbx.localhost", "127.0.0.2", false},
		{"a.sbx.localhost", "*.sbx.localhost", false},
		{"unknown.test", "unknown.test", true},
		{"unknown.test", "UNKNOWN.test.", true},
		{"unknown.test", "other.test", false},
		{"unknown.test", "a.sbx.localhost", true},
		{NULL, "anything.test", true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		const struct stream_security *security;

		open_lab(TLS1_3_VERSION, table[i].asked, NULL);
		assert_int_equal(start_lab(0), 0);
		exchange(0);
		assert_int_equal(lab.ready, 0);
		security = lab.stream->security;
		assert_string_equal(security->version, "TLSv1.3");
		if (security->covers(security, str_of(table[i].host)) != table[i].covered)
			fail_msg("%s on a connection for %s", table[i].host, table[i].asked);
		close_lab();
	}
}

static void talk_with_refusals(void *user)
{
	(void)user;
	connect_lab(TLS1_3_VERSION, 0);
	client_says("one", 3);
	stream_read_stop(lab.stream);
	exchange(0);
	stream_read_start(lab.stream);
	exchange(0);
	client_says("two", 3);
	exchange(0);
	if (!torture_refused())
		expect_received("onetwo");
	close_lab();
}

/* Of our own allocations; OpenSSL's are its own. */
static void torture_of_a_stream(void **state)
{
	(void)state;
	assert_true(torture(talk_with_refusals, NULL) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handshakes_and_records_may_be_cut_anywhere),
		cmocka_unit_test(what_comes_together_is_told_together),
		cmocka_unit_test(small_pieces_share_a_record_and_a_write),
		cmocka_unit_test(large_pieces_fill_records),
		cmocka_unit_test(what_comes_while_nobody_reads_waits),
		cmocka_unit_test(a_reader_may_stop_in_the_middle),
		cmocka_unit_test(close_notify_is_the_end_and_its_lack_is_a_cut),
		cmocka_unit_test(a_record_cut_by_the_end_is_a_cut),
		cmocka_unit_test(either_side_may_end_first_and_go_on_reading),
		cmocka_unit_test(an_orderly_close_says_so_and_a_reset_does_not),
		cmocka_unit_test(nothing_can_be_written_after_the_end),
		cmocka_unit_test(a_forged_record_ends_in_an_alert),
		cmocka_unit_test(garbage_instead_of_a_handshake_gets_an_alert),
		cmocka_unit_test(a_client_that_leaves_in_the_handshake_is_told),
		cmocka_unit_test(s089_renegotiation_is_refused),
		cmocka_unit_test(keys_may_change_under_way),
		cmocka_unit_test(a_flood_of_key_updates_is_bounded),
		cmocka_unit_test(a_full_carrier_stops_the_writer_and_says_when_it_is_not),
		cmocka_unit_test(a_broken_carrier_is_the_end),
		cmocka_unit_test(s090_tickets_of_the_last_key_still_resume),
		cmocka_unit_test(s081_what_a_connection_covers),
		cmocka_unit_test(torture_of_a_stream),
	};

	return cmocka_run_group_tests(tests, group_set_up, group_tear_down);
}
