/* TLS around a memory stream, against OpenSSL's own client: what is cut, half-closed, broken,
 * flooded. */
#include "tests/support/cmocka.h"

#include <openssl/err.h>

#include "lib/limits.h"
#include "proxy/limits.h"
#include "tests/support/tls_lab.h"
#include "tests/support/torture.h"

#define KIB 1024

static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};

/* ---- tests ---- */

static void handshakes_and_records_may_be_cut_anywhere(void **state)
{
	static const size_t steps[] = {0, 1, 2, 7, 100};

	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		for (size_t i = 0; i < ARRAY_LENGTH(steps); i++) {
			tls_lab_connect(versions[v], steps[i]);
			tls_lab_say("hello", 5);
			tls_lab_say(" there", 6);
			tls_lab_exchange(steps[i]);
			tls_lab_expect("hello there");
			tls_lab_answer("good day");
			tls_lab_exchange(steps[i]);
			tls_lab_hear("good day");
			tls_lab_close();
		}
	}
}

static void what_comes_together_is_told_together(void **state)
{
	char block[10 * KIB];

	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	memset(block, 'x', sizeof(block));
	for (int i = 0; i < 6; i++)
		tls_lab_say(block, sizeof(block));
	tls_lab_exchange(0);
	assert_int_equal(buf_length(&tls_lab.received), 6 * sizeof(block));
	assert_int_equal(tls_lab.reads, 1);
	tls_lab_close();
}

static size_t count_records(struct str bytes)
{
	size_t count = 0;

	while (bytes.len >= 5) {
		size_t len = 5 +
			     ((size_t)(unsigned char)bytes.p[3] << 8 | (unsigned char)bytes.p[4]);

		assert_true(len <= bytes.len);
		bytes = (struct str){bytes.p + len, bytes.len - len};
		count++;
	}
	assert_int_equal(bytes.len, 0);
	return count;
}

static void small_pieces_share_a_record_and_a_write(void **state)
{
	struct iovec pieces[] = {
		{(void *)"head ", 5}, {(void *)"", 0}, {(void *)"body ", 5}, {(void *)"end", 3}};
	size_t before;

	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	before = tls_lab.m->writes;
	assert_int_equal(stream_write(tls_lab.stream, pieces, 4), 0);
	assert_int_equal(tls_lab.m->writes, before + 1);
	assert_int_equal(count_records(stream_mem_output(tls_lab.m)), 1);
	tls_lab_exchange(0);
	tls_lab_hear("head body end");
	tls_lab_close();
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
	tls_lab_connect(TLS1_3_VERSION, 0);
	before = tls_lab.m->writes;
	assert_int_equal(stream_write(tls_lab.stream, pieces, 2), 0);
	assert_int_equal(tls_lab.m->writes, before + 1);
	assert_int_equal(count_records(stream_mem_output(tls_lab.m)), 3);
	tls_lab_exchange(0);
	while ((n = SSL_read(tls_lab.client, room + len, (int)(sizeof(room) - len))) > 0)
		len += (size_t)n;
	assert_int_equal(len, sizeof(head) + sizeof(block));
	assert_memory_equal(room, head, sizeof(head));
	assert_memory_equal(room + sizeof(head), block, sizeof(block));
	tls_lab_close();
}

static void what_comes_while_nobody_reads_waits(void **state)
{
	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	tls_lab_say("one ", 4);
	stream_read_stop(tls_lab.stream);
	tls_lab.refuses_reading = true;
	tls_lab_exchange(0);
	tls_lab_say("two ", 4);
	tls_lab_exchange(0);
	tls_lab_settle();
	assert_int_equal(buf_length(&tls_lab.received), 0);
	tls_lab.refuses_reading = false;
	stream_read_start(tls_lab.stream);
	tls_lab_exchange(0);
	tls_lab_expect("one two ");
	tls_lab_close();
}

/* A reader that stops at every arrival, with several records in each. */
static void a_reader_may_stop_in_the_middle(void **state)
{
	static char block[16 * KIB];
	size_t total = 0;

	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	tls_lab.stops_at_read = true;
	for (int i = 0; i < 20; i++) {
		memset(block, 'a' + i, sizeof(block));
		tls_lab_say(block, sizeof(block));
		total += sizeof(block);
	}
	tls_lab_exchange(0);
	assert_true(buf_length(&tls_lab.received) < total);
	while (buf_length(&tls_lab.received) < total) {
		size_t before = buf_length(&tls_lab.received);

		tls_lab.refuses_reading = false;
		stream_read_start(tls_lab.stream);
		tls_lab_exchange(0);
		assert_true(buf_length(&tls_lab.received) > before);
	}
	for (size_t i = 0; i < total; i++)
		assert_int_equal(buf_data(&tls_lab.received)[i], 'a' + (int)(i / sizeof(block)));
	tls_lab_close();
}

static void close_notify_is_the_end_and_its_lack_is_a_cut(void **state)
{
	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		tls_lab_connect(versions[v], 0);
		tls_lab_say("bye", 3);
		SSL_shutdown(tls_lab.client);
		tls_lab_exchange(0);
		tls_lab_expect("bye");
		assert_int_equal(tls_lab.end, 0);
		stream_mem_feed_eof(tls_lab.m);
		tls_lab_settle();
		assert_int_equal(tls_lab.ends, 1);
		tls_lab_close();

		tls_lab_connect(versions[v], 0);
		tls_lab_say("bye", 3);
		tls_lab_exchange(0);
		stream_mem_feed_eof(tls_lab.m);
		tls_lab_settle();
		tls_lab_expect("bye");
		assert_int_equal(tls_lab.end, -ECONNRESET);
		tls_lab_close();
	}
}

static void a_record_cut_by_the_end_is_a_cut(void **state)
{
	char *data;
	long len;

	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	tls_lab_say("complete", 8);
	tls_lab_exchange(0);
	tls_lab_say("incomplete", 10);
	len = BIO_get_mem_data(tls_lab.from_client, &data);
	stream_mem_feed(tls_lab.m, data, (size_t)len - 1);
	stream_mem_feed_eof(tls_lab.m);
	tls_lab_settle();
	tls_lab_expect("complete");
	assert_int_equal(tls_lab.end, -ECONNRESET);
	tls_lab_close();
}

static void either_side_may_end_first_and_go_on_reading(void **state)
{
	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		tls_lab_connect(versions[v], 0);
		tls_lab_answer("last");
		stream_shutdown(tls_lab.stream);
		tls_lab_exchange(0);
		assert_int_equal(tls_lab.shuts, 1);
		assert_true(tls_lab.m->shut_wanted);
		tls_lab_hear("last");
		tls_lab_hear_end();
		tls_lab_say("not yet", 7);
		tls_lab_exchange(0);
		tls_lab_expect("not yet");
		SSL_shutdown(tls_lab.client);
		tls_lab_exchange(0);
		assert_int_equal(tls_lab.end, 0);
		tls_lab_close();

		tls_lab_connect(versions[v], 0);
		SSL_shutdown(tls_lab.client);
		tls_lab_exchange(0);
		assert_int_equal(tls_lab.end, 0);
		tls_lab_answer("still here");
		tls_lab_exchange(0);
		tls_lab_hear("still here");
		tls_lab_close();
	}
}

static void an_orderly_close_says_so_and_a_reset_does_not(void **state)
{
	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	stream_close(tls_lab.stream, false);
	tls_lab_exchange(0);
	tls_lab_hear_end();
	assert_false(tls_lab.m->reset);
	tls_lab_close();

	tls_lab_connect(TLS1_3_VERSION, 0);
	stream_close(tls_lab.stream, true);
	tls_lab_exchange(0);
	assert_int_equal(stream_mem_output(tls_lab.m).len, 0);
	assert_true(tls_lab.m->reset);
	tls_lab_close();
}

static void nothing_can_be_written_after_the_end(void **state)
{
	struct iovec piece = {(void *)"x", 1};

	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	stream_shutdown(tls_lab.stream);
	assert_int_equal(stream_write(tls_lab.stream, &piece, 1), -EPIPE);
	tls_lab_close();
}

static void a_forged_record_ends_in_an_alert(void **state)
{
	char *data;
	char record[256];
	long len;

	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		tls_lab_connect(versions[v], 0);
		tls_lab_say("good", 4);
		tls_lab_exchange(0);
		tls_lab_say("forged", 6);
		len = BIO_get_mem_data(tls_lab.from_client, &data);
		assert_true(len < (long)sizeof(record));
		memcpy(record, data, (size_t)len);
		BIO_reset(tls_lab.from_client);
		record[len - 1] ^= 1;
		stream_mem_feed(tls_lab.m, record, (size_t)len);
		tls_lab_exchange(0);
		tls_lab_expect("good");
		assert_int_equal(tls_lab.end, -EPROTO);
		assert_int_equal(tls_lab.ends, 1);
		assert_true(SSL_read(tls_lab.client, record, sizeof(record)) <= 0);
		assert_int_equal(ERR_GET_REASON(ERR_peek_last_error()),
				 SSL_R_SSLV3_ALERT_BAD_RECORD_MAC);
		ERR_clear_error();
		tls_lab_close();
	}
}

static void garbage_instead_of_a_handshake_gets_an_alert(void **state)
{
	static const char hello[] = "\x16\x03\x01\x00\x05hello";
	struct str output;

	(void)state;
	tls_lab_open(TLS1_3_VERSION, NULL, NULL);
	assert_int_equal(tls_stream_start(tls_lab.stream, hello, sizeof(hello) - 1), -EPROTO);
	assert_true(strlen(tls_stream_reason(tls_lab.stream)) > 0);
	output = stream_mem_output(tls_lab.m);
	assert_true(output.len >= 7 && output.p[0] == SSL3_RT_ALERT);
	tls_lab.m->stream.events = NULL;
	assert_ptr_equal(tls_stream_detach(tls_lab.stream), &tls_lab.m->stream);
	tls_lab.stream = NULL;
	tls_lab.closed = true;
	tls_lab.m->close_told = true;
	tls_lab_close();
}

static void a_client_that_leaves_in_the_handshake_is_told(void **state)
{
	(void)state;
	tls_lab_open(TLS1_3_VERSION, NULL, NULL);
	assert_int_equal(tls_lab_start(0), 0);
	stream_mem_feed_eof(tls_lab.m);
	tls_lab_settle();
	assert_int_equal(tls_lab.ready, -ECONNRESET);
	tls_lab_close();
}

static void s089_renegotiation_is_refused(void **state)
{
	char *data;
	long len;

	(void)state;
	tls_lab_connect(TLS1_2_VERSION, 0);
	assert_int_equal(SSL_renegotiate(tls_lab.client), 1);
	SSL_do_handshake(tls_lab.client);
	len = BIO_get_mem_data(tls_lab.from_client, &data);
	assert_true(len > 0);
	stream_mem_feed(tls_lab.m, data, (size_t)len);
	tls_lab_settle();
	BIO_reset(tls_lab.from_client);
	/* A warning; what the client makes of it is its affair. */
	assert_int_equal(tls_lab.end, 1);
	assert_int_equal(count_records(stream_mem_output(tls_lab.m)), 1);
	assert_int_equal(stream_mem_output(tls_lab.m).p[0], SSL3_RT_ALERT);
	tls_lab_answer("as before");
	BIO_write(tls_lab.to_client, stream_mem_output(tls_lab.m).p,
		  (int)stream_mem_output(tls_lab.m).len);
	ERR_clear_error();
	SSL_do_handshake(tls_lab.client);
	assert_int_equal(ERR_GET_REASON(ERR_peek_last_error()), SSL_R_NO_RENEGOTIATION);
	tls_lab_close();
}

static void keys_may_change_under_way(void **state)
{
	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	tls_lab_say("old ", 4);
	assert_int_equal(SSL_key_update(tls_lab.client, SSL_KEY_UPDATE_REQUESTED), 1);
	tls_lab_say("new ", 4);
	tls_lab_exchange(0);
	tls_lab_expect("old new ");
	tls_lab_answer("new too");
	tls_lab_exchange(0);
	tls_lab_hear("new too");
	tls_lab_close();
}

/* Each asks for an answer, and the answers are never taken. */
static void a_flood_of_key_updates_is_bounded(void **state)
{
	size_t rounds = 0;

	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	tls_lab.m->room = 0;
	while (tls_lab.end == 1 && rounds < 20000) {
		char *data;
		long len;

		SSL_key_update(tls_lab.client, SSL_KEY_UPDATE_REQUESTED);
		SSL_do_handshake(tls_lab.client);
		len = BIO_get_mem_data(tls_lab.from_client, &data);
		stream_mem_feed(tls_lab.m, data, (size_t)len);
		BIO_reset(tls_lab.from_client);
		tls_lab_settle();
		rounds++;
	}
	assert_int_equal(tls_lab.end, -EPROTO);
	assert_true(rounds > 1);
	assert_true(stream_queued(tls_lab.stream) <= 2 * TLS_CONTROL_BYTES_MAX);
	tls_lab_close();
}

static void a_full_carrier_stops_the_writer_and_says_when_it_is_not(void **state)
{
	static char block[32 * KIB];
	struct iovec piece = {block, sizeof(block)};
	size_t written = 0;
	int status;

	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	tls_lab.m->room = 0;
	do {
		status = stream_write(tls_lab.stream, &piece, 1);
		written += sizeof(block);
	} while (status == 0);
	assert_int_equal(status, STREAM_FULL);
	assert_true(written <= STREAM_HIGH_MARK_BYTES + 2 * sizeof(block));
	assert_true(stream_queued(tls_lab.stream) >= written);
	tls_lab_settle();
	assert_int_equal(tls_lab.drains, 0);
	stream_mem_take(tls_lab.m, SIZE_MAX);
	tls_lab_settle();
	assert_int_equal(tls_lab.drains, 1);
	assert_int_equal(stream_queued(tls_lab.stream), 0);
	tls_lab_close();
}

static void a_broken_carrier_is_the_end(void **state)
{
	struct iovec piece = {(void *)"x", 1};

	(void)state;
	tls_lab_connect(TLS1_3_VERSION, 0);
	stream_mem_break(tls_lab.m, -EPIPE);
	tls_lab_settle();
	assert_int_equal(tls_lab.end, -EPIPE);
	assert_true(stream_write(tls_lab.stream, &piece, 1) < 0);
	tls_lab_close();
}

static void s090_tickets_of_the_last_key_still_resume(void **state)
{
	SSL_SESSION *session;

	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		for (int rotations = 0; rotations < 3; rotations++) {
			char room[8];

			tls_lab_connect(versions[v], 0);
			SSL_read(tls_lab.client, room, sizeof(room)); /* the tickets */
			session = SSL_get1_session(tls_lab.client);
			assert_true(SSL_SESSION_has_ticket(session));
			tls_lab_close();
			for (int i = 0; i < rotations; i++)
				tls_server_rotate_tickets(tls_lab_tls);
			tls_lab_open(versions[v], "a.sbx.localhost", session);
			assert_int_equal(tls_lab_start(0), 0);
			tls_lab_exchange(0);
			assert_int_equal(tls_lab.ready, 0);
			if (SSL_session_reused(tls_lab.client) != (rotations < 2))
				fail_msg("%s after %d rotations", SSL_get_version(tls_lab.client),
					 rotations);
			tls_lab_say("x", 1);
			tls_lab_exchange(0);
			tls_lab_expect("x");
			/* Which certificate counts is known without having been shown again. */
			assert_true(tls_lab.stream->security->covers(tls_lab.stream->security,
								     STR("b.sbx.localhost")));
			assert_false(tls_lab.stream->security->covers(tls_lab.stream->security,
								      STR("b.other.localhost")));
			tls_lab_close();
			SSL_SESSION_free(session);
		}
	}
}

/* A session that the server's side gives; `renewed`: how often its keys changed since. */
static SSL_SESSION *take_session(int version, int renewed)
{
	SSL_SESSION *session;
	char room[8];

	tls_lab_connect(version, 0);
	SSL_read(tls_lab.client, room, sizeof(room)); /* the tickets */
	session = SSL_get1_session(tls_lab.client);
	tls_lab_close();
	for (int i = 0; i < renewed; i++)
		tls_server_rotate_tickets(tls_lab_tls);
	return session;
}

static bool resumes(int version, SSL_SESSION *session)
{
	bool reused;

	tls_lab_open(version, "a.sbx.localhost", session);
	assert_int_equal(tls_lab_start(0), 0);
	tls_lab_exchange(0);
	assert_int_equal(tls_lab.ready, 0);
	reused = SSL_session_reused(tls_lab.client);
	tls_lab_close();
	return reused;
}

static void s090_a_successor_with_the_keys_resumes_and_renews_them(void **state)
{
	static const size_t wrong[] = {0, 1, TLS_TICKET_KEY_BYTES - 1, TLS_TICKET_KEYS_BYTES - 1};

	(void)state;
	for (size_t v = 0; v < ARRAY_LENGTH(versions); v++) {
		SSL_SESSION *older = take_session(versions[v], 1),
			    *newer = take_session(versions[v], 0);
		struct tls_server *predecessor = tls_lab_tls;
		unsigned char keys[TLS_TICKET_KEYS_BYTES];
		size_t len = tls_server_export_tickets(predecessor, keys);

		assert_int_equal(len, sizeof(keys));
		tls_lab_tls = tls_lab_new_tls();
		for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++)
			assert_false(tls_server_import_tickets(tls_lab_tls, keys, wrong[i]));
		assert_false(resumes(versions[v], newer));
		assert_true(tls_server_import_tickets(tls_lab_tls, keys, len));
		assert_true(resumes(versions[v], newer));
		assert_true(resumes(versions[v], older));
		tls_server_rotate_tickets(tls_lab_tls);
		assert_true(resumes(versions[v], newer));
		assert_false(resumes(versions[v], older));
		tls_server_rotate_tickets(tls_lab_tls);
		assert_false(resumes(versions[v], newer));
		tls_server_free(tls_lab_tls);

		/* One that has not renewed any yet has no last one. */
		tls_lab_tls = tls_lab_new_tls();
		len = tls_server_export_tickets(tls_lab_tls, keys);
		assert_int_equal(len, TLS_TICKET_KEY_BYTES);
		tls_server_free(tls_lab_tls);
		tls_lab_tls = tls_lab_new_tls();
		tls_server_rotate_tickets(tls_lab_tls);
		assert_true(tls_server_import_tickets(tls_lab_tls, keys, len));
		assert_int_equal(tls_server_export_tickets(tls_lab_tls, keys),
				 TLS_TICKET_KEY_BYTES);
		tls_server_free(tls_lab_tls);
		tls_lab_tls = predecessor;
		SSL_SESSION_free(older);
		SSL_SESSION_free(newer);
	}
}

/* A client uses a ticket once (RFC 8446 appendix C.4), so whoever resumes needs another one for the
 * next time. */
static void s090_who_resumes_gets_a_ticket_for_the_next_time(void **state)
{
	SSL_SESSION *session = take_session(TLS1_3_VERSION, 0);

	(void)state;
	for (int i = 0; i < 3; i++) {
		SSL_SESSION *used = session;
		char room[8];

		tls_lab_open(TLS1_3_VERSION, "a.sbx.localhost", used);
		assert_int_equal(tls_lab_start(0), 0);
		tls_lab_exchange(0);
		assert_int_equal(tls_lab.ready, 0);
		assert_true(SSL_session_reused(tls_lab.client));
		tls_lab_answer("x");
		tls_lab_exchange(0);
		assert_int_equal(SSL_read(tls_lab.client, room, sizeof(room)), 1);
		session = SSL_get1_session(tls_lab.client);
		assert_ptr_not_equal(session, used);
		assert_true(SSL_SESSION_has_ticket(session));
		tls_lab_close();
		SSL_SESSION_free(used);
	}
	SSL_SESSION_free(session);
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

		tls_lab_open(TLS1_3_VERSION, table[i].asked, NULL);
		assert_int_equal(tls_lab_start(0), 0);
		tls_lab_exchange(0);
		assert_int_equal(tls_lab.ready, 0);
		security = tls_lab.stream->security;
		assert_string_equal(security->version, "TLSv1.3");
		if (security->covers(security, str_of(table[i].host)) != table[i].covered)
			fail_msg("%s on a connection for %s", table[i].host, table[i].asked);
		tls_lab_close();
	}
}

static void talk_with_refusals(void *user)
{
	(void)user;
	tls_lab_connect(TLS1_3_VERSION, 0);
	tls_lab_say("one", 3);
	stream_read_stop(tls_lab.stream);
	tls_lab_exchange(0);
	stream_read_start(tls_lab.stream);
	tls_lab_exchange(0);
	tls_lab_say("two", 3);
	tls_lab_exchange(0);
	if (!torture_refused())
		tls_lab_expect("onetwo");
	tls_lab_close();
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
		cmocka_unit_test(s090_a_successor_with_the_keys_resumes_and_renews_them),
		cmocka_unit_test(s090_who_resumes_gets_a_ticket_for_the_next_time),
		cmocka_unit_test(s081_what_a_connection_covers),
		cmocka_unit_test(torture_of_a_stream),
	};

	return cmocka_run_group_tests(tests, tls_lab_group_set_up, tls_lab_group_tear_down);
}
