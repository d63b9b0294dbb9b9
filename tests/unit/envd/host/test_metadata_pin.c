/* Clearing the way to the metadata service, with a script for iptables (contract/envd.md 1.9). */
#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include "envd/host/metadata.h"
#include "envd/host/metadata_pin.h"
#include "lib/http_server.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

#define RULE "-d 169.254.169.254 -p tcp --dport 80 -j RETURN\n"
#define ALL_RULES \
	"-w 5 -t nat -D PREROUTING " RULE "-w 5 -t nat -I PREROUTING 1 " RULE \
	"-w 5 -t nat -D OUTPUT " RULE "-w 5 -t nat -I OUTPUT 1 " RULE

struct fixture {
	struct process_lab lab;
	struct tools tools;
	struct http_server *host;
	struct metadata_service *service;
	struct metadata_settings settings;
	char log[128], *old_path;
	bool done, is_pinned, stopped;
	unsigned calls;
	int status;
};

/* Lost, until the rules are there. */
static void play_host(struct http_exchange *ex)
{
	struct fixture *f = ex->server_user;

	if (str_equal(ex->request.method, STR("PUT")))
		http_respond(ex, 200, "text/plain",
			     access(f->log, F_OK) == 0 ? STR("t0ken") : STR(""));
	else
		http_respond(ex, 200, "application/json", STR("{\"instanceID\":\"sbx1\"}"));
}

static void write_script(struct fixture *f, const char *script)
{
	char path[160];
	int fd;

	snprintf(path, sizeof(path), "%s/iptables", f->lab.directory);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
	assert_true(fd >= 0);
	assert_true(dprintf(fd, "#!/bin/sh\necho \"$*\" >> %s\n%s\n", f->log, script) > 0);
	close(fd);
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));
	const struct http_server_config config = {.dispatch = play_host,
						  .user = f,
						  .idle_timeout_ms = HTTP_IDLE_TIMEOUT_MS,
						  .connections_max = HTTP_CONNECTIONS_MAX};
	char path[256];

	json_init();
	lab_open(&f->lab, NULL);
	f->tools = (struct tools){
		.loop = &f->lab.loop,
		.sandbox = &f->lab.sandbox,
		.spawn = &f->lab.table->spawn_settings,
		.reaper = &f->lab.table->reaper,
	};
	tools_init(&f->tools);
	snprintf(f->log, sizeof(f->log), "%s/log", f->lab.directory);
	f->old_path = xstrdup(getenv("PATH"));
	snprintf(path, sizeof(path), "%s:/usr/bin:/bin", f->lab.directory);
	setenv("PATH", path, 1);
	assert_int_equal(http_server_listen(&f->lab.loop, &config, "127.0.0.1", 0, &f->host), 0);
	f->settings = (struct metadata_settings){
		.loop = &f->lab.loop,
		.environment = &f->lab.sandbox.environment,
		.address = {.sin_family = AF_INET,
			    .sin_port = htons((uint16_t)http_server_port(f->host)),
			    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)},
		.run_directory = f->lab.directory,
		.tools = &f->tools,
	};
	f->service = metadata_service_new(&f->settings);
	*state = f;
	return 0;
}

static void on_stopped(void *user)
{
	((struct fixture *)user)->stopped = true;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	metadata_service_close(f->service);
	http_server_stop(f->host, on_stopped, f);
	lab_run_until(&f->lab, &f->stopped);
	tools_stop(&f->tools);
	setenv("PATH", f->old_path, 1);
	free(f->old_path);
	lab_close(&f->lab);
	free(f);
	return 0;
}

static void assert_log(struct fixture *f, const char *wanted)
{
	char text[4096] = "";
	int fd = open(f->log, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_true(read(fd, text, sizeof(text) - 1) >= 0);
	close(fd);
	assert_string_equal(text, wanted);
}

static void on_pinned(void *user, bool is_pinned)
{
	struct fixture *f = user;

	f->done = true;
	f->calls++;
	f->is_pinned = is_pinned;
}

static void on_checked(void *user, int status, const struct metadata *metadata, bool is_kept)
{
	struct fixture *f = user;

	f->done = true;
	f->calls++;
	f->status = status;
	if (status == 0)
		assert_string_equal(metadata->sandbox_id, "sbx1");
}

static void rules_are_put_at_the_head(void **state)
{
	struct fixture *f = *state;

	write_script(f, "case \"$*\" in *-D*) exit 1;; esac");
	assert_non_null(metadata_pin_start(&f->tools, on_pinned, f));
	lab_run_until(&f->lab, &f->done);
	assert_true(f->is_pinned);
	assert_log(f, ALL_RULES);
}

static void a_refusal_ends_it(void **state)
{
	struct fixture *f = *state;

	write_script(f, "exit 4");
	assert_non_null(metadata_pin_start(&f->tools, on_pinned, f));
	lab_run_until(&f->lab, &f->done);
	assert_false(f->is_pinned);
	assert_log(f, "-w 5 -t nat -D PREROUTING " RULE "-w 5 -t nat -I PREROUTING 1 " RULE);
}

static void a_failed_look_is_repeated_once_the_way_is_clear(void **state)
{
	struct fixture *f = *state;

	write_script(f, "exit 0");
	assert_non_null(metadata_service_check(f->service, on_checked, f));
	lab_run_until(&f->lab, &f->done);
	assert_int_equal(f->status, 0);
	assert_log(f, ALL_RULES);
}

static void without_iptables_the_first_failure_counts(void **state)
{
	struct fixture *f = *state;

	setenv("PATH", "/nowhere", 1);
	assert_non_null(metadata_service_check(f->service, on_checked, f));
	lab_run_until(&f->lab, &f->done);
	assert_int_equal(f->status, -EBADMSG);
}

static void who_waits_may_leave_and_the_end_of_envd_is_told(void **state)
{
	struct fixture *f = *state;
	struct metadata_check *check;

	write_script(f, "sleep 100");
	check = metadata_service_check(f->service, on_checked, f);
	while (access(f->log, F_OK) < 0)
		lab_run_for(&f->lab, 5);
	metadata_check_cancel(check);
	lab_run_for(&f->lab, 20);
	assert_int_equal(f->calls, 0);
	assert_int_equal(unlink(f->log), 0);
	check = metadata_service_check(f->service, on_checked, f);
	while (access(f->log, F_OK) < 0)
		lab_run_for(&f->lab, 5);
	tools_stop(&f->tools);
	assert_int_equal(f->calls, 1);
	assert_int_equal(f->status, -EBADMSG);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(rules_are_put_at_the_head),
		TEST(a_refusal_ends_it),
		TEST(a_failed_look_is_repeated_once_the_way_is_clear),
		TEST(without_iptables_the_first_failure_counts),
		TEST(who_waits_may_leave_and_the_end_of_envd_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
