/* Whole calls of filesystem.Filesystem: a real server on a thread of its own, blocking sockets
 * here. */
#include <sys/socket.h>
#include <unistd.h>

#include "envd/filesystem/path.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/site.h"

static void large_listings_are_whole_and_may_be_left(void **state)
{
	size_t names = 0;
	struct linger hard = {.l_onoff = 1};
	const char *body = arena_printf(&site.arena, "{\"path\":\"%s\"}", site.folder.path);
	struct answer answer;

	(void)state;
	for (int i = 0; i < 3000; i++)
		site_write_bytes(arena_printf(&site.arena, "entry-%04d", i), "", 0);
	answer = site_call("ListDir", body);
	assert_int_equal(answer.status, 200);
	for (const char *found = answer.body; (found = strstr(found, "\"name\":\"entry-")); found++)
		names++;
	assert_int_equal(names, 3000);
	assert_string_equal(answer.body + answer.len - 3, "}]}");
	for (int round = 0; round < 10; round++) {
		int fd = site_connect_server();

		site_send_text(
			fd,
			arena_printf(
				&site.arena,
				"POST /filesystem.Filesystem/ListDir HTTP/1.1\r\nHost: x\r\n"
				"Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
				strlen(body), body));
		if (round & 1)
			site_wait_readable(fd);
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		close(fd);
	}
	assert_int_equal(site_get(site_at("none"), NULL).status, 404);
	site_wait_until(site_is_at_rest, 0);
}

static void case_097_hostile_names_round_trip(void **state)
{
	static const char *const names[] = {
		"a\nb",	    "quote\"'", "x;y",	 " lead",
		"-rf",	    "#?&+%",	"a%2Fb", "\xC3\xA4\xE6\x97\xA5\xF0\x9F\x99\x82",
		"\xFF\xFE", "\xC3("};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
		const char *path = site_at(names[i]), *shown = path_show(path, &site.arena);
		struct answer answer = site_post(path, "content", 7, NULL);
		struct buf quoted;

		assert_int_equal(answer.status, 200);
		buf_init(&quoted, 4096);
		assert_int_equal(json_write_string(&quoted, str_of(shown), true), 0);
		assert_non_null(strstr(answer.body, arena_strndup(&site.arena, buf_data(&quoted),
								  buf_length(&quoted))));
		for (int round = 0; round < 2; round++) {
			answer = site_get(round ? shown : path, NULL);
			assert_int_equal(answer.status, 200);
			assert_string_equal(answer.body, "content");
		}
		answer = site_call("Stat",
				   arena_printf(&site.arena, "{\"path\":%.*s}",
						(int)buf_length(&quoted), buf_data(&quoted)));
		assert_int_equal(answer.status, 200);
		answer = site_call("Move", arena_printf(&site.arena,
							"{\"source\":%.*s,\"destination\":\"%s\"}",
							(int)buf_length(&quoted), buf_data(&quoted),
							site_at("plain")));
		assert_int_equal(answer.status, 200);
		answer = site_call("Move", arena_printf(&site.arena,
							"{\"destination\":%.*s,\"source\":\"%s\"}",
							(int)buf_length(&quoted), buf_data(&quoted),
							site_at("plain")));
		assert_int_equal(answer.status, 200);
		answer = site_call("ListDir", arena_printf(&site.arena, "{\"path\":\"%s\"}",
							   site.folder.path));
		assert_int_equal(answer.status, 200);
		assert_non_null(strstr(answer.body, "\"entries\":[{"));
		answer = site_call("Remove",
				   arena_printf(&site.arena, "{\"path\":%.*s}",
						(int)buf_length(&quoted), buf_data(&quoted)));
		assert_int_equal(answer.status, 200);
		assert_string_equal(answer.body, "{}");
		buf_fini(&quoted);
		assert_int_equal(folder_count(site.folder.path), 0);
	}
}

static void check_failure(const char *method, const char *body, int status, const char *want)
{
	struct answer answer = site_call(method, body);

	assert_int_equal(answer.status, status);
	assert_string_equal(answer.body, want);
}

static void calls_answer_as_the_contract_says(void **state)
{
	struct answer answer;

	(void)state;
	answer = site_call("MakeDir", arena_printf(&site.arena, "{\"path\":\"%s\"}", site_at("d")));
	assert_int_equal(answer.status, 200);
	assert_non_null(strstr(answer.body, "\"permissions\":\"drwxr-xr-x\""));
	check_failure("MakeDir", arena_printf(&site.arena, "{\"path\":\"%s\"}", site_at("d")), 409,
		      arena_printf(&site.arena,
				   "{\"code\":\"already_exists\",\"message\":\"directory already "
				   "exists: %s\"}",
				   site_at("d")));
	check_failure(
		"Stat", arena_printf(&site.arena, "{\"path\":\"%s\"}", site_at("none")), 404,
		arena_printf(&site.arena,
			     "{\"code\":\"not_found\",\"message\":\"file not found: lstat %s: no "
			     "such file or directory\"}",
			     site_at("none")));
	check_failure("ListDir",
		      arena_printf(&site.arena, "{\"path\":\"%s\",\"depth\":1}", site_at("d")), 200,
		      "{}");
	check_failure("Remove", arena_printf(&site.arena, "{\"path\":\"%s\"}", site_at("none")),
		      200, "{}");
	check_failure("Stat", "{\"path\":\"~other/x\"}", 400,
		      "{\"code\":\"invalid_argument\",\"message\":\"failed to expand path '' for "
		      "user 'root': "
		      "cannot expand user-specific home dir\"}");
	/* Moving across file systems, in two steps inside. */
	site_write_bytes("f", "moved", 5);
	answer = site_call("Move",
			   arena_printf(&site.arena,
					"{\"source\":\"%s\",\"destination\":\"/dev/shm/%s\"}",
					site_at("f"), path_base(site.folder.path)));
	assert_int_equal(answer.status, 200);
	answer = site_call("Move",
			   arena_printf(&site.arena,
					"{\"destination\":\"%s\",\"source\":\"/dev/shm/%s\"}",
					site_at("f"), path_base(site.folder.path)));
	assert_int_equal(answer.status, 200);
	site_check_file("f", "moved", 5);
}

static void removing_nothing_in_particular_is_refused(void **state)
{
	static const char *const paths[] = {"", ".", "./", "..", "x/..", "x/./", "/.", "/"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(paths); i++) {
		struct answer answer = site_call(
			"Remove", arena_printf(&site.arena, "{\"path\":\"%s\"}", paths[i]));

		assert_int_equal(answer.status, 400);
		assert_non_null(strstr(answer.body, "\"code\":\"invalid_argument\""));
	}
}

/* What is moved would be the home of root: the destination exists, so that nothing can happen to
 * it. */
static void moving_nothing_in_particular_is_refused(void **state)
{
	static const char *const sources[] = {"", ".", "./", "x/..", "x/./"};
	struct answer answer;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(sources); i++) {
		answer = site_call("Move",
				   arena_printf(&site.arena,
						"{\"source\":\"%s\",\"destination\":\"%s\"}",
						sources[i], site.folder.path));
		assert_int_equal(answer.status, 400);
		assert_non_null(strstr(answer.body, "does not name one"));
	}
	site_write_bytes("f", "stays", 5);
	answer = site_call("Move", arena_printf(&site.arena, "{\"source\":\"%s\"}", site_at("f")));
	assert_int_equal(answer.status, 400);
	assert_non_null(strstr(answer.body, "does not name one"));
	site_check_file("f", "stays", 5);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, site_setup, site_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(large_listings_are_whole_and_may_be_left),
		TEST(case_097_hostile_names_round_trip),
		TEST(calls_answer_as_the_contract_says),
		TEST(removing_nothing_in_particular_is_refused),
		TEST(moving_nothing_in_particular_is_refused),
	};

	return cmocka_run_group_tests(tests, site_start_thread, NULL);
}
