/* What proxies say to each other when one takes over: everything that is written is read again. */
#include "tests/support/cmocka.h"

#include "lib/json.h"
#include "proxy/handover_text.h"

static struct buf b;
static struct arena arena;

static int set_up(void **state)
{
	(void)state;
	buf_init(&b, 1024 * 1024);
	arena_init(&arena, 1024 * 1024);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	buf_fini(&b);
	arena_release(&arena);
	return 0;
}

/* What stands in the buf, which is one line. */
static struct handover_line read_back(void)
{
	struct handover_line line;
	struct str text = buf_str(&b);
	struct err err;

	assert_true(str_ends_with(text, STR("\n")));
	text.len--;
	assert_null(memchr(text.p, '\n', text.len));
	if (handover_read(text, &arena, &line, &err) < 0)
		fail_msg("%.*s: %s", (int)text.len, text.p, err.message);
	return line;
}

static void a_sandbox_comes_through_whole(void **state)
{
	struct sandbox_entry entry;
	struct handover_line line;

	(void)state;
	sandbox_entry_init(&entry, "abc1");
	entry.state = SANDBOX_PAUSING;
	entry.address = "fe80::1%eth0";
	entry.envd_port = 4711;
	entry.lifecycle_id = "life \"quoted\" \\";
	entry.traffic_token = "secret";
	entry.envd_token_hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
	entry.mask_host = "localhost:${PORT}";
	entry.connection_limit = 0;
	entry.trusted = entry.auto_resume = true;
	entry.origin = SANDBOX_FROM_REDIS;
	entry.origin_version = UINT64_MAX;
	assert_int_equal(handover_write_put(&b, &entry), 0);
	line = read_back();
	assert_int_equal(line.word, HANDOVER_PUT);
	assert_string_equal(line.entry.id, entry.id);
	assert_int_equal(line.entry.state, entry.state);
	assert_string_equal(line.entry.address, entry.address);
	assert_int_equal(line.entry.envd_port, entry.envd_port);
	assert_string_equal(line.entry.lifecycle_id, entry.lifecycle_id);
	assert_string_equal(line.entry.traffic_token, entry.traffic_token);
	assert_string_equal(line.entry.envd_token_hash, entry.envd_token_hash);
	assert_string_equal(line.entry.mask_host, entry.mask_host);
	assert_int_equal(line.entry.connection_limit, 0);
	assert_true(line.entry.trusted && line.entry.auto_resume);
	assert_int_equal(line.entry.origin, SANDBOX_FROM_REDIS);
	assert_true(line.entry.origin_version == UINT64_MAX);
}

static void what_is_not_said_is_as_in_a_new_one(void **state)
{
	struct sandbox_entry entry;
	struct handover_line line;

	(void)state;
	sandbox_entry_init(&entry, "x");
	assert_int_equal(handover_write_put(&b, &entry), 0);
	line = read_back();
	assert_string_equal(line.entry.traffic_token, "");
	assert_int_equal(line.entry.connection_limit, CATALOG_NO_LIMIT);
	assert_int_equal(line.entry.envd_port, 0);
	assert_false(line.entry.trusted || line.entry.auto_resume);
	assert_int_equal(line.entry.origin, SANDBOX_FROM_ADMIN);
}

static void the_other_lines(void **state)
{
	static const char *const kinds[] = {"plain", "tls", "admin"};
	struct handover_tickets tickets = {.len = sizeof(tickets.keys), .due_ms = 7200000};
	struct sandbox_entry entry;
	struct handover_line line;

	(void)state;
	assert_int_equal(handover_write_listeners(&b, kinds, 3, true, 12345678901), 0);
	line = read_back();
	assert_int_equal(line.word, HANDOVER_LISTENERS);
	assert_int_equal(json_length(line.kinds), 3);
	assert_true(str_equal(json_string(json_at(line.kinds, 1)), STR("tls")));
	assert_true(line.complete);
	assert_true(line.revision == 12345678901);

	sandbox_entry_init(&entry, "gone");
	entry.origin = SANDBOX_FROM_COMMAND_LINE;
	buf_clear(&b);
	assert_int_equal(handover_write_removed(&b, &entry), 0);
	line = read_back();
	assert_int_equal(line.word, HANDOVER_REMOVED);
	assert_string_equal(line.entry.id, "gone");
	assert_int_equal(line.entry.origin, SANDBOX_FROM_COMMAND_LINE);

	buf_clear(&b);
	for (size_t i = 0; i < sizeof(tickets.keys); i++)
		tickets.keys[i] = (unsigned char)(i * 7);
	assert_int_equal(handover_write_tickets(&b, &tickets), 0);
	line = read_back();
	assert_int_equal(line.word, HANDOVER_TICKETS);
	assert_int_equal(line.tickets.len, sizeof(tickets.keys));
	assert_memory_equal(line.tickets.keys, tickets.keys, sizeof(tickets.keys));
	assert_true(line.tickets.due_ms == 7200000);

	for (int word = HANDOVER_SYNCED; word <= HANDOVER_OVER; word++) {
		buf_clear(&b);
		assert_int_equal(handover_write_word(&b, (enum handover_word)word), 0);
		assert_int_equal(read_back().word, word);
	}
}

static void another_version_is_skipped_and_nonsense_refused(void **state)
{
	static const char *const unknown[] = {"{\"type\":\"later\",\"x\":1}", "{}", "{\"type\":7}"};
	static const char *const bad[] = {
		"",
		"x",
		"[",
		"{\"type\":\"put\"}",
		"{\"type\":\"listeners\"}",
		"{\"type\":\"put\",\"sandbox\":{}}",
		"{\"type\":\"put\",\"sandbox\":{\"id\":\"A b\"}}",
		"{\"type\":\"put\",\"sandbox\":{\"id\":\"a\",\"state\":\"odd\"}}",
		"{\"type\":\"removed\"}",
		"{\"type\":\"tickets\",\"keys\":\"0\"}",
		"{\"type\":\"tickets\",\"keys\":\"0g\"}"};
	char long_one[2 * HANDOVER_TICKET_BYTES_MAX + 64];
	struct handover_line line;
	struct err err;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(unknown); i++) {
		assert_int_equal(handover_read(str_of(unknown[i]), &arena, &line, &err), 0);
		assert_int_equal(line.word, HANDOVER_UNKNOWN);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		if (handover_read(str_of(bad[i]), &arena, &line, &err) >= 0)
			fail_msg("%s was accepted", bad[i]);
	snprintf(long_one, sizeof(long_one), "{\"type\":\"tickets\",\"keys\":\"%0*d\"}",
		 2 * HANDOVER_TICKET_BYTES_MAX + 2, 0);
	assert_true(handover_read(str_of(long_one), &arena, &line, &err) < 0);
	assert_int_equal(
		handover_read(STR("{\"type\":\"put\",\"sandbox\":{\"id\":\"a\",\"later\":1}}"),
			      &arena, &line, &err),
		0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_sandbox_comes_through_whole, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_is_not_said_is_as_in_a_new_one, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(the_other_lines, set_up, tear_down),
		cmocka_unit_test_setup_teardown(another_version_is_skipped_and_nonsense_refused,
						set_up, tear_down),
	};

	json_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
