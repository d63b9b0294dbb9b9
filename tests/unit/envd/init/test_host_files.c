/* The files of the system that a host has envd change: the hosts file and the CA bundle, by
 * themselves and through POST /init. Everything is in a temporary folder. */
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/init/ca_bundle.h"
#include "envd/init/hosts_file.h"
#include "envd/init/text_file.h"
#include "tests/support/agent.h"
#include "tests/support/cmocka.h"

#define BASE "base certificate\n"

struct fixture {
	struct agent agent;
	char folder[64], bundle[128], extra[160], hosts[128];
};

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void assert_file(const char *path, const char *wanted)
{
	char *text;
	size_t len;

	assert_int_equal(text_file_read(path, &text, &len), 0);
	assert_string_equal(text, wanted);
	free(text);
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	alarm(60);
	snprintf(f->folder, sizeof(f->folder), "/tmp/envd-host-XXXXXX");
	assert_non_null(mkdtemp(f->folder));
	snprintf(f->bundle, sizeof(f->bundle), "%s/bundle.crt", f->folder);
	snprintf(f->extra, sizeof(f->extra), "%s/local/share/e2b-ca.crt", f->folder);
	snprintf(f->hosts, sizeof(f->hosts), "%s/hosts", f->folder);
	agent_open(&f->agent);
	f->agent.app.sandbox.ca_bundle.bundle_path = f->bundle;
	f->agent.app.sandbox.ca_bundle.extra_path = f->extra;
	f->agent.app.sandbox.hyperloop.hosts_path = f->hosts;
	*state = f;
	return 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where)
{
	return remove(path);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	agent_stop(&f->agent);
	agent_free(&f->agent);
	nftw(f->folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
	free(f);
	return 0;
}

static struct talk_answer init(struct fixture *f, const char *body)
{
	return agent_post(&f->agent, "/init", body);
}

static bool is_at_rest(void *user)
{
	const struct fixture *f = user;

	const struct turn_queue *turns = &f->agent.app.sandbox.ca_bundle.turns;

	return !turns->holder && list_is_empty(&turns->waiting) &&
	       !f->agent.app.sandbox.hyperloop.job.active;
}

static void rest(struct fixture *f)
{
	talk_wait(&f->agent.app.loop, is_at_rest, f);
}

static void forget(struct fixture *f)
{
	free(f->agent.app.sandbox.ca_bundle.installed);
	f->agent.app.sandbox.ca_bundle.installed = NULL;
}

static void install(struct fixture *f, const char *certificate)
{
	char body[256];

	snprintf(body, sizeof(body), "{\"caBundle\":\"%s\"}", certificate);
	assert_int_equal(init(f, body).status, 204);
}

/* ---- the CA bundle ---- */

static void conformance_044_conformance_045_first_and_same(void **state)
{
	struct fixture *f = *state;

	write_file(f->bundle, BASE);
	install(f, "one\\n\\n\\n");
	assert_file(f->bundle, BASE "one\n"); /* already when the answer is there */
	rest(f);
	assert_file(f->extra, "one\n");
	install(f, "one");
	rest(f);
	assert_file(f->bundle, BASE "one\n");
}

static void conformance_046_conformance_052_a_different_one_replaces(void **state)
{
	struct fixture *f = *state;

	write_file(f->bundle, "first\none-not\n" BASE "  odd \r\nno newline");
	install(f, "one");
	install(f, "two\\nlines");
	rest(f);
	assert_file(f->bundle, "first\none-not\n" BASE "  odd \r\nno newline\ntwo\nlines\n");
	assert_file(f->extra, "two\nlines\n");
}

/* Taking the old one out must not tear a hole in the new one, nor keep what only looks the same. */
static void an_old_one_that_is_part_of_the_new_one(void **state)
{
	struct fixture *f = *state;

	write_file(f->bundle, BASE);
	install(f, "one");
	install(f, "one\\ntwo");
	rest(f);
	assert_file(f->bundle, BASE "one\ntwo\n");
	install(f, "one");
	rest(f);
	assert_file(f->bundle, BASE "one\n");
}

static void conformance_047_empty_ones_touch_nothing(void **state)
{
	struct fixture *f = *state;

	write_file(f->bundle, BASE);
	install(f, "");
	install(f, "\\n");
	rest(f);
	assert_file(f->bundle, BASE);
	assert_int_equal(access(f->extra, F_OK), -1);
}

static void conformance_048_conformance_049_after_a_restart(void **state)
{
	struct fixture *f = *state;

	write_file(f->bundle, BASE);
	install(f, "one");
	rest(f);
	forget(f);
	install(f, "one");
	rest(f);
	assert_file(f->bundle, BASE "one\n");
	forget(f);
	install(f, "two");
	rest(f);
	assert_file(f->bundle, BASE "one\ntwo\n");
	assert_file(f->extra, "two\n");
}

struct waiting {
	unsigned done, cancelled;
};

static void on_done(void *user, int status, const struct err *err)
{
	struct waiting *waiting = user;

	waiting->done += status == 0;
	waiting->cancelled += status == -ECANCELED;
	if (status == -ECANCELED)
		assert_non_null(strstr(err->message, "in progress"));
}

static void conformance_050_ten_at_once(void **state)
{
	struct fixture *f = *state;
	struct waiting waiting = {0};

	write_file(f->bundle, BASE);
	for (int i = 0; i < 10; i++)
		(void)ca_bundle_install(&f->agent.app.sandbox.ca_bundle, "one", on_done, &waiting);
	rest(f);
	assert_int_equal(waiting.done, 10);
	assert_file(f->bundle, BASE "one\n");
}

static void conformance_051_a_wait_can_be_given_up(void **state)
{
	struct fixture *f = *state;
	struct waiting waiting = {0};
	struct ca_install *first, *second;

	write_file(f->bundle, BASE);
	first = ca_bundle_install(&f->agent.app.sandbox.ca_bundle, "one", on_done, &waiting);
	second = ca_bundle_install(&f->agent.app.sandbox.ca_bundle, "two", on_done, &waiting);
	assert_non_null(first);
	assert_non_null(second);
	ca_install_cancel(first); /* has begun */
	ca_install_cancel(second);
	assert_int_equal(waiting.cancelled, 1);
	rest(f);
	assert_int_equal(waiting.done, 1);
	assert_file(f->bundle, BASE "one\n");
}

static void a_missing_bundle_fails_init_but_what_came_before_stays(void **state)
{
	struct fixture *f = *state;
	struct talk_answer answer = init(
		f, "{\"accessToken\":\"t\",\"envVars\":{\"A\":\"1\"},\"caBundle\":\"one\"}");
	char wanted[512];

	assert_int_equal(answer.status, 400);
	snprintf(wanted, sizeof(wanted),
		 "failed to install CA bundle: open %s: no such file or directory", f->bundle);
	assert_true(str_equal(answer.body, str_of(wanted)));
	assert_string_equal(environment_get(&f->agent.app.sandbox.environment, "A"), "1");
	assert_true(sandbox_token_matches(&f->agent.app.sandbox, STR("t")));
	assert_false(f->agent.app.sandbox.initialised);
	assert_int_equal(access(f->extra, F_OK), -1);
	/* Its owner can try again. */
	write_file(f->bundle, BASE);
	assert_int_equal(init(f, "{\"accessToken\":\"t\",\"caBundle\":\"one\"}").status, 204);
	rest(f);
	assert_true(f->agent.app.sandbox.initialised);
}

static void standalone_leaves_the_machine_alone(void **state)
{
	struct fixture *f = *state;

	write_file(f->bundle, BASE);
	write_file(f->hosts, "127.0.0.1 localhost\n");
	f->agent.app.sandbox.is_standalone = true;
	assert_int_equal(init(f, "{\"caBundle\":\"one\",\"hyperloopIP\":\"192.0.2.1\"}").status,
			 204);
	rest(f);
	assert_file(f->bundle, BASE);
	assert_file(f->hosts, "127.0.0.1 localhost\n");
	assert_null(environment_get(&f->agent.app.sandbox.environment, "E2B_EVENTS_ADDRESS"));
}

/* ---- the hosts file ---- */

static void edits(const char *text, const char *address, const char *wanted)
{
	struct buf out;
	int status;

	buf_init(&out, 65536);
	status = hosts_file_edit(str_of(text), address, "events.e2b.local", &out);
	if (wanted) {
		assert_int_equal(status, 1);
		assert_int_equal(buf_append(&out, "", 1), 0);
		assert_string_equal(buf_data(&out), wanted);
	} else {
		assert_int_equal(status, 0);
	}
	buf_fini(&out);
}

#define OURS "192.0.2.1        events.e2b.local\n"

static void conformance_039_case_146_lines_are_kept(void **state)
{
	(void)state;
	edits("", "192.0.2.1", OURS);
	edits("# c\n127.0.0.1\tlocalhost\n::1 localhost # x\n", "192.0.2.1",
	      "# c\n127.0.0.1\tlocalhost\n::1 localhost # x\n" OURS);
	edits("\n# c\n127.0.0.1\tlocalhost", "192.0.2.1", "\n# c\n127.0.0.1\tlocalhost\n" OURS);
	edits(OURS, "192.0.2.1", NULL);
	edits("192.0.2.1 a EVENTS.e2b.local b\n", "192.0.2.1", NULL);
	edits("192.0.2.9 events.e2b.local\nx\n", "192.0.2.1", "x\n" OURS);
	edits("192.0.2.9 events.e2b.local # mine\n", "192.0.2.1", "# mine\n" OURS);
	edits("192.0.2.9 a events.e2b.local  b # c\n", "192.0.2.1", "192.0.2.9 a  b # c\n" OURS);
	edits("192.0.2.1 a  # c\n192.0.2.9 events.e2b.local\n", "192.0.2.1",
	      "192.0.2.1 a events.e2b.local  # c\n");
	edits("192.0.2.9 events.e2b.local\n" OURS, "192.0.2.1", OURS);
	/* The other family is another matter. */
	edits("fd00::9 events.e2b.local\n", "192.0.2.1", "fd00::9 events.e2b.local\n" OURS);
	edits("fd00:0::1 x\n", "fd00::1", "fd00:0::1 x events.e2b.local\n");
	edits("# 192.0.2.1 events.e2b.local\nnot an address events.e2b.local\n", "192.0.2.1",
	      "# 192.0.2.1 events.e2b.local\nnot an address events.e2b.local\n" OURS);
}

static void case_146_two_inits_leave_one_entry(void **state)
{
	struct fixture *f = *state;

	write_file(f->hosts, "127.0.0.1 localhost");
	assert_int_equal(chmod(f->hosts, 0604), 0);
	assert_int_equal(init(f, "{\"hyperloopIP\":\"192.0.2.7\"}").status, 204);
	assert_string_equal(
		environment_get(&f->agent.app.sandbox.environment, "E2B_EVENTS_ADDRESS"),
		"http://192.0.2.7");
	assert_int_equal(init(f, "{\"hyperloopIP\":\"192.0.2.1\"}").status, 204);
	assert_int_equal(init(f, "{\"hyperloopIP\":\"not one\"}").status, 204);
	assert_int_equal(init(f, "{\"hyperloopIP\":\"\"}").status, 204);
	assert_string_equal(
		environment_get(&f->agent.app.sandbox.environment, "E2B_EVENTS_ADDRESS"),
		"http://192.0.2.1");
	rest(f);
	assert_file(f->hosts, "127.0.0.1 localhost\n" OURS);
	struct stat st;
	assert_int_equal(stat(f->hosts, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0604);
}

/* In a mount namespace of its own, as container engines do it; exit status 77: not allowed here. */
static int on_a_bind_mount(const char *folder, const char *hosts)
{
	char source[128];
	struct stat before, after;

	snprintf(source, sizeof(source), "%s/source", folder);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount(source, hosts, NULL, MS_BIND, NULL) < 0)
		return 77;
	if (stat(source, &before) < 0 ||
	    hosts_file_set(hosts, "192.0.2.1", "events.e2b.local") < 0 || stat(source, &after) < 0)
		return 1;
	return before.st_ino == after.st_ino ? 0 : 2;
}

static void case_146_a_bind_mount_is_written_in_place(void **state)
{
	struct fixture *f = *state;
	char source[128];
	int status;
	pid_t pid;

	snprintf(source, sizeof(source), "%s/source", f->folder);
	write_file(source, "127.0.0.1 localhost\n");
	write_file(f->hosts, "below\n");
	pid = fork();
	if (pid == 0)
		_exit(on_a_bind_mount(f->folder, f->hosts));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_file(source, "127.0.0.1 localhost\n" OURS);
	assert_file(f->hosts, "below\n");
}

static void case_146_links_and_missing_files(void **state)
{
	struct fixture *f = *state;
	char target[128];

	assert_int_equal(hosts_file_set(f->hosts, "192.0.2.1", "x"), -ENOENT);
	snprintf(target, sizeof(target), "%s/target", f->folder);
	write_file(target, "a\n");
	assert_int_equal(symlink("target", f->hosts), 0);
	assert_int_equal(hosts_file_set(f->hosts, "192.0.2.1", "events.e2b.local"), 0);
	assert_file(target, "a\n" OURS);
	struct stat st;
	assert_int_equal(lstat(f->hosts, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_044_conformance_045_first_and_same),
		TEST(conformance_046_conformance_052_a_different_one_replaces),
		TEST(an_old_one_that_is_part_of_the_new_one),
		TEST(conformance_047_empty_ones_touch_nothing),
		TEST(conformance_048_conformance_049_after_a_restart),
		TEST(conformance_050_ten_at_once),
		TEST(conformance_051_a_wait_can_be_given_up),
		TEST(a_missing_bundle_fails_init_but_what_came_before_stays),
		TEST(standalone_leaves_the_machine_alone),
		TEST(conformance_039_case_146_lines_are_kept),
		TEST(case_146_two_inits_leave_one_entry),
		TEST(case_146_a_bind_mount_is_written_in_place),
		TEST(case_146_links_and_missing_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
