#include "tests/support/cmocka.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/log.h"
#include "tests/support/sockets.h"

static char last_line[8192];
static size_t last_len, lines_seen;

static void remember(const char *line, size_t len, void *user)
{
	assert_ptr_equal(user, &last_len);
	assert_true(len < sizeof(last_line));
	memcpy(last_line, line, len);
	last_line[len] = '\0';
	last_len = len;
	lines_seen++;
}

static int hook(void **state)
{
	(void)state;
	lines_seen = 0;
	log_init(LOG_INFO, LOG_JSON, -1);
	log_set_hook(remember, &last_len);
	return 0;
}

static int unhook(void **state)
{
	(void)state;
	log_set_hook(NULL, NULL);
	log_init(LOG_INFO, LOG_JSON, -1);
	return 0;
}

static json_t *parse_last_line(void)
{
	json_t *root;

	assert_true(last_len > 0);
	assert_int_equal(last_line[last_len - 1], '\n');
	assert_null(memchr(last_line, '\n', last_len - 1));
	root = json_loadb(last_line, last_len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	assert_non_null(root);
	return root;
}

static void a_line_is_one_json_object_with_typed_fields(void **state)
{
	json_t *root;
	const char *time;

	(void)state;
	log_info("process", "started", LOG_S("cmd", "a \"quoted\"\n\tname\x7F"),
		 LOG_I("pid", INT64_MIN), LOG_B("pty", true),
		 LOG_STR("tag", ((struct str){"a\0b", 3})), LOG_S("none", NULL));
	root = parse_last_line();
	time = json_string_value(json_object_get(root, "timestamp"));
	assert_int_equal(strlen(time), strlen("2026-01-02T03:04:05.678Z"));
	assert_string_equal(json_string_value(json_object_get(root, "level")), "info");
	assert_string_equal(json_string_value(json_object_get(root, "logger")), "process");
	assert_string_equal(json_string_value(json_object_get(root, "message")), "started");
	assert_string_equal(json_string_value(json_object_get(root, "cmd")),
			    "a \"quoted\"\n\tname\x7F");
	assert_true(json_integer_value(json_object_get(root, "pid")) == INT64_MIN);
	assert_true(json_is_true(json_object_get(root, "pty")));
	assert_string_equal(json_string_value(json_object_get(root, "none")), "");
	json_decref(root);
}

static void any_bytes_make_a_valid_line(void **state)
{
	char all[256];
	json_t *root;

	(void)state;
	for (int i = 0; i < 256; i++)
		all[i] = (char)(255 - i);
	log_info("test", "bytes", LOG_STR("all", ((struct str){all, 255}))); /* without the NUL */
	root = parse_last_line();
	assert_true(json_is_string(json_object_get(root, "all")));
	json_decref(root);
}

static void a_field_that_does_not_fit_is_left_out_whole(void **state)
{
	static char text[6000];
	json_t *root;

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	/* Every length around the limit. */
	for (size_t len = 3700; len<sizeof(text) - 1; len += len> 3900 && len < 4150 ? 1 : 50) {
		log_info("test", "long", LOG_STR("text", ((struct str){text, len})),
			 LOG_I("after", 1));
		root = parse_last_line();
		assert_string_equal(json_string_value(json_object_get(root, "message")), "long");
		if (json_object_get(root, "text"))
			assert_int_equal(json_string_length(json_object_get(root, "text")), len);
		json_decref(root);
	}
	memset(text, '\x01', sizeof(text) - 1);
	log_info("test", "long", LOG_S("text", text));
	json_decref(parse_last_line());
}

static void levels_are_respected(void **state)
{
	(void)state;
	assert_true(log_enabled(LOG_ERROR));
	assert_true(log_enabled(LOG_INFO));
	assert_false(log_enabled(LOG_DEBUG));
	log_debug("test", "not seen");
	assert_int_equal(lines_seen, 0);
	log_init(LOG_DEBUG, LOG_JSON, -1);
	log_debug("test", "seen");
	assert_int_equal(lines_seen, 1);
	log_init(LOG_ERROR, LOG_JSON, -1);
	log_warn("test", "not seen");
	assert_int_equal(lines_seen, 1);
	log_set_hook(NULL, NULL);
	assert_false(log_enabled(LOG_ERROR)); /* nobody listens */
}

static void text_format_is_for_people(void **state)
{
	(void)state;
	log_init(LOG_INFO, LOG_TEXT, -1);
	log_warn("proxy", "dial failed", LOG_S("host", "a\nb"), LOG_I("port", 80),
		 LOG_B("last", false));
	assert_non_null(
		strstr(last_line, " warn  proxy: dial failed host=a\\u000ab port=80 last=false\n"));
	assert_int_equal(last_line[2], ':');
}

static void dropped_lines_are_counted_and_told(void **state)
{
	int ends[2];
	static char drain[1 << 20];
	size_t got;
	char *told;

	(void)state;
	assert_int_equal(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
	assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
	log_set_hook(NULL, NULL);
	log_init(LOG_INFO, LOG_JSON, ends[1]);
	for (int i = 0; i < 500; i++)
		log_info("test", "filler", LOG_I("number", i));
	got = (size_t)read(ends[0], drain, sizeof(drain) - 1);
	drain[got] = '\0';
	assert_int_equal(drain[got - 1], '\n'); /* no line is cut */
	assert_null(strstr(drain, "lines dropped"));
	told = strrchr(drain, '#');
	assert_null(told);
	int whole = 0;
	for (size_t i = 0; i < got; i++)
		whole += drain[i] == '\n';

	log_info("test", "after");
	got = (size_t)read(ends[0], drain, sizeof(drain) - 1);
	drain[got] = '\0';
	told = strstr(drain, "\"lines\":");
	assert_non_null(told);
	assert_non_null(strstr(drain, "\"message\":\"after\""));
	/* Every refused "lines dropped" line was refused together with the line behind it. */
	assert_int_equal(atoi(told + 8), 500 - whole); // lint-ok: a test reads its own number
	close(ends[0]);
	close(ends[1]);
}

/* A blocking descriptor that nobody reads must not stop the program: case 82. The alarm ends a test
 * that waits. */
static void fill_and_recover(int read_end, int write_end)
{
	static char drain[4 << 20];
	size_t got = 0;
	ssize_t more;

	log_set_hook(NULL, NULL);
	log_init(LOG_INFO, LOG_JSON, write_end);
	alarm(30);
	for (int i = 0; i < 20000; i++)
		log_info("test", "filler", LOG_I("number", i),
			 LOG_S("text", "some more to fill it up with"));
	alarm(0);
	assert_int_equal(fcntl(read_end, F_SETFL, O_NONBLOCK), 0);
	while ((more = read(read_end, drain + got, sizeof(drain) - 1 - got)) > 0)
		got += (size_t)more;
	assert_true(got > 4000);
	/* Room again, on a terminal a moment after its bytes were read. */
	got = 0;
	for (int round = 0; round < 1000 && !strstr(drain, "\"message\":\"after\""); round++) {
		struct pollfd wait = {.fd = read_end, .events = POLLIN};

		log_info("test", "after");
		poll(&wait, 1, 10);
		more = read(read_end, drain + got, sizeof(drain) - 1 - got);
		got += more > 0 ? (size_t)more : 0;
		drain[got] = '\0';
	}
	assert_non_null(strstr(drain, "\"lines\":"));
	assert_non_null(strstr(drain, "\"message\":\"after\""));
	log_init(LOG_INFO, LOG_JSON, -1);
	close(read_end);
	close(write_end);
}

static void case_082_nobody_reads_a_blocking_pipe(void **state)
{
	int ends[2];

	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	fill_and_recover(ends[0], ends[1]);
}

static void case_082_nobody_reads_a_blocking_socket(void **state)
{
	int ends[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	fill_and_recover(ends[0], ends[1]);
}

static void case_082_nobody_reads_a_terminal(void **state)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave;

	(void)state;
	assert_true(master >= 0);
	assert_int_equal(grantpt(master), 0);
	assert_int_equal(unlockpt(master), 0);
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_true(slave >= 0);
	fill_and_recover(master, slave);
}

static void *write_many(void *argument)
{
	for (int i = 0; i < 300; i++)
		log_info("thread", "line", LOG_I("number", i), LOG_S("name", argument));
	return NULL;
}

static void threads_never_mix_their_lines(void **state)
{
	pthread_t threads[4];
	int ends[2];
	static char text[1 << 20];
	size_t got = 0;
	int lines = 0;

	(void)state;
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_true(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) > 0);
	log_set_hook(NULL, NULL);
	log_init(LOG_INFO, LOG_JSON, ends[1]);
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_many, (void *)"writer"),
				 0);
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		pthread_join(threads[i], NULL);
	log_init(LOG_INFO, LOG_JSON, -1);
	close(ends[1]);
	got = read_fully(ends[0], text, sizeof(text));
	for (char *line = text, *end; line < text + got; line = end + 1, lines++) {
		json_t *root;

		end = memchr(line, '\n', (size_t)(text + got - line));
		assert_non_null(end);
		root = json_loadb(line, (size_t)(end - line), 0, NULL);
		assert_non_null(root);
		json_decref(root);
	}
	assert_int_equal(lines, 1200);
	close(ends[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_line_is_one_json_object_with_typed_fields, hook,
						unhook),
		cmocka_unit_test_setup_teardown(any_bytes_make_a_valid_line, hook, unhook),
		cmocka_unit_test_setup_teardown(a_field_that_does_not_fit_is_left_out_whole, hook,
						unhook),
		cmocka_unit_test_setup_teardown(levels_are_respected, hook, unhook),
		cmocka_unit_test_setup_teardown(text_format_is_for_people, hook, unhook),
		cmocka_unit_test_setup_teardown(dropped_lines_are_counted_and_told, hook, unhook),
		cmocka_unit_test_setup_teardown(case_082_nobody_reads_a_blocking_pipe, hook,
						unhook),
		cmocka_unit_test_setup_teardown(case_082_nobody_reads_a_blocking_socket, hook,
						unhook),
		cmocka_unit_test_setup_teardown(case_082_nobody_reads_a_terminal, hook, unhook),
		cmocka_unit_test_setup_teardown(threads_never_mix_their_lines, hook, unhook),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
