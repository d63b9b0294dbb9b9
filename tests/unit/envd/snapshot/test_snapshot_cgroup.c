/* Freezing real processes in real cgroups, with the assembled envd, where this machine has
 * version 2. */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "envd/app.h"
#include "envd/process/process_table.h"
#include "envd/routes.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/talk.h"

struct fixture {
	struct app app;
	struct http_server *server;
	char root[128];
	bool stopped;
};

static char kill_path[160];

/* A test that fails must not leave frozen processes behind. */
static void kill_all(void)
{
	int fd = open(kill_path, O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, "1", 1) == 1)
		close(fd);
}

static void on_abort(int number)
{
	kill_all();
}

static const char *find_mount(void)
{
	static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	char path[128];

	for (size_t i = 0; i < ARRAY_LENGTH(mounts); i++) {
		snprintf(path, sizeof(path), "%s/cgroup.controllers", mounts[i]);
		if (access(path, F_OK) == 0)
			return mounts[i];
	}
	return NULL;
}

/* A tree of its own, below the mount: what is elsewhere on this machine is out of reach. */
static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));
	const struct http_server_config server = routes_server_config(&f->app);
	struct app_config config = {.address = "127.0.0.1", .cgroup_root = f->root};
	const char *mount = find_mount();

	log_init(LOG_ERROR, LOG_JSON, -1);
	snprintf(f->root, sizeof(f->root), "%s/envd-snapshot-%d", mount ? mount : "/nonexistent",
		 getpid());
	*state = f;
	if (geteuid() != 0 || !mount || mkdir(f->root, 0755) < 0) {
		f->root[0] = '\0';
		return 0;
	}
	snprintf(kill_path, sizeof(kill_path), "%s/cgroup.kill", f->root);
	signal(SIGABRT, on_abort);
	app_init(&f->app, &config);
	f->server = http_server_new(&f->app.loop, &server);
	return 0;
}

static void on_stopped(void *user)
{
	struct fixture *f = user;

	f->stopped = true;
}

static bool is_stopped(void *user)
{
	struct fixture *f = user;

	return f->stopped;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	char command[512];

	if (f->root[0]) {
		http_server_stop(f->server, on_stopped, f);
		talk_wait(&f->app.loop, is_stopped, f);
		app_fini(&f->app);
		kill_all();
		snprintf(command, sizeof(command),
			 "find %s -mindepth 1 -depth -type d -exec rmdir {} + && rmdir %s", f->root,
			 f->root);
		assert_int_equal(system(command), 0);
	}
	free(f);
	return 0;
}

static void ask(struct fixture *f, struct talk *talk, const char *method, const char *target,
		const char *type, struct str body)
{
	char head[512];
	int len = snprintf(head, sizeof(head),
			   "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
			   "Content-Type: %s\r\nContent-Length: %zu\r\n\r\n",
			   method, target, type, body.len);

	talk_open(talk, &f->app.loop, f->server);
	talk_send(talk, head, (size_t)len);
	talk_send(talk, body.p, body.len);
}

static int status_of(struct fixture *f, const char *method, const char *target, const char *type,
		     const char *body)
{
	struct talk talk;
	int status;

	ask(f, &talk, method, target, type, str_of(body));
	talk_read_all(&talk);
	status = talk_parse(&talk).status;
	talk_close(&talk);
	return status;
}

static void start(struct fixture *f, struct talk *talk, const char *script)
{
	char text[512] = {0};
	int len = snprintf(text + 5, sizeof(text) - 5,
			   "{\"process\":{\"cmd\":\"sh\",\"args\":[\"-c\",\"%s\"]}}", script);

	text[3] = (char)(len >> 8);
	text[4] = (char)len;
	ask(f, talk, "POST", "/process.Process/Start", "application/connect+json",
	    (struct str){text, (size_t)len + 5});
}

struct watched {
	char path[PATH_MAX];
	bool frozen;
};

static bool has_state(void *user)
{
	const struct watched *watched = user;
	char text[256] = "";
	int fd = open(watched->path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		assert_true(read(fd, text, sizeof(text) - 1) >= 0);
		close(fd);
	}
	return strstr(text, watched->frozen ? "frozen 1" : "frozen 0") != NULL;
}

static bool is_in_state(struct fixture *f, const char *path, bool frozen)
{
	struct watched watched = {.frozen = frozen};

	snprintf(watched.path, sizeof(watched.path), "%s/%s/cgroup.events", f->root, path);
	return has_state(&watched);
}

static void wait_for_state(struct fixture *f, const char *path, bool frozen)
{
	struct watched watched = {.frozen = frozen};

	snprintf(watched.path, sizeof(watched.path), "%s/%s/cgroup.events", f->root, path);
	talk_wait(&f->app.loop, has_state, &watched);
}

static void assert_answer_has(struct talk *talk, int status, const char *part)
{
	struct talk_answer answer = talk_parse(talk);

	assert_int_equal(answer.status, status);
	if (!memmem(answer.body.p, answer.body.len, part, strlen(part)))
		fail_msg("%.*s", (int)answer.body.len, answer.body.p);
}

static void freeze(struct fixture *f, const char *target, const char *wanted)
{
	struct talk talk;

	ask(f, &talk, "POST", target, "", STR(""));
	talk_read_all(&talk);
	assert_answer_has(&talk, 200, wanted);
	talk_close(&talk);
}

/* By what has come and nobody has read yet. */
static void assert_not_ended(struct talk *talk)
{
	char text[4096];
	ssize_t got = recv(talk->fd, text, sizeof(text), MSG_PEEK | MSG_DONTWAIT);

	assert_true(got > 0 || (got < 0 && errno == EAGAIN));
	assert_null(got > 0 ? memmem(text, (size_t)got, "\"end\"", 5) : NULL);
}

static void case_079_a_frozen_workload_and_a_lively_envd(void **state)
{
	struct fixture *f = *state;
	struct talk before, during[20], list;
	char file[] = "/tmp/envd-frozen-XXXXXX", target[128];
	int fd;

	if (!f->root[0])
		skip();
	start(f, &before, "echo up; read nothing; while :; do :; done");
	talk_read_until(&before, "\"stdout\"");
	freeze(f, "/freeze?maxWaitMs=5000", "\"frozen\":2,\"mode\":\"legacy\",\"notFrozen\":0");
	assert_true(is_in_state(f, "user", true));

	/* More starts than the pool has threads; each waits. */
	for (size_t i = 0; i < ARRAY_LENGTH(during); i++)
		start(f, &during[i], "echo thawed");
	assert_int_equal(status_of(f, "GET", "/health", "", ""), 204);
	assert_int_equal(status_of(f, "GET", "/metrics", "", ""), 200);
	ask(f, &list, "POST", "/process.Process/List", "application/json", STR("{}"));
	talk_read_all(&list);
	assert_answer_has(&list, 200, "read nothing");
	talk_close(&list);
	fd = mkstemp(file);
	assert_true(fd >= 0);
	close(fd);
	snprintf(target, sizeof(target), "/files?path=%s&username=root", file);
	assert_int_equal(status_of(f, "POST", target, "application/octet-stream", "content"), 200);
	unlink(file);
	for (size_t i = 0; i < ARRAY_LENGTH(during); i++)
		assert_not_ended(&during[i]);

	assert_int_equal(status_of(f, "POST", "/unfreeze", "", ""), 204);
	for (size_t i = 0; i < ARRAY_LENGTH(during); i++) {
		talk_read_all(&during[i]);
		assert_non_null(memmem(buf_data(&during[i].received),
				       buf_length(&during[i].received), "dGhhd2VkCg==", 12));
		assert_answer_has(&during[i], 200, "\"exited\":true");
		talk_close(&during[i]);
	}
	wait_for_state(f, "user", false);
	talk_close(&before);
}

static void make_cgroup(struct fixture *f, const char *path)
{
	char room[PATH_MAX];

	snprintf(room, sizeof(room), "%s/%s", f->root, path);
	assert_int_equal(mkdir(room, 0755), 0);
}

static void write_cgroup(struct fixture *f, const char *path, const char *file, const char *text)
{
	char room[PATH_MAX];
	int fd;

	snprintf(room, sizeof(room), "%s/%s/%s", f->root, path, file);
	fd = open(room, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static pid_t inhabit(struct fixture *f, const char *path)
{
	char text[16];
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		for (;;)
			pause();
	}
	snprintf(text, sizeof(text), "%d", pid);
	write_cgroup(f, path, "cgroup.procs", text);
	return pid;
}

static void conformance_118_conformance_124_real_guests(void **state)
{
	struct fixture *f = *state;
	pid_t guest, kept;
	struct talk talk;
	struct talk_answer answer;

	if (!f->root[0])
		skip();
	make_cgroup(f, "guest");
	make_cgroup(f, "guest/inner");
	make_cgroup(f, "kept");
	guest = inhabit(f, "guest/inner");
	kept = inhabit(f, "kept");
	write_cgroup(f, "kept", "cgroup.freeze", "1");
	wait_for_state(f, "kept", true);

	freeze(f, "/freeze?mode=hierarchy&maxWaitMs=5000",
	       "\"frozen\":3,\"mode\":\"hierarchy\",\"notFrozen\":0,\"preFrozen\":1,\"requested\":"
	       "3,");
	assert_true(is_in_state(f, "guest/inner", true));
	assert_true(is_in_state(f, "socats", false));
	ask(f, &talk, "POST", "/init", "", STR(""));
	talk_read_all(&talk);
	answer = talk_parse(&talk);
	assert_int_equal(answer.status, 204);
	assert_string_equal(
		talk_header(&answer, "X-Envd-Freeze-Audit"),
		"{\"visited\":6,\"frozen\":5,\"escaped\":0,\"violations\":0,\"truncated\":false}");
	talk_close(&talk);
	wait_for_state(f, "guest/inner", false);
	wait_for_state(f, "user", false);
	assert_true(is_in_state(f, "kept", true));

	kill(guest, SIGKILL);
	kill(kept, SIGKILL);
	assert_int_equal(waitpid(guest, NULL, 0), guest);
	assert_int_equal(waitpid(kept, NULL, 0), kept);
}

/* envd was killed in the middle of a snapshot and started again: the host's /init thaws. */
static void a_new_envd_thaws_what_the_old_one_froze(void **state)
{
	struct fixture *f = *state;

	if (!f->root[0])
		skip();
	write_cgroup(f, "user", "cgroup.freeze", "1");
	write_cgroup(f, "ptys", "cgroup.freeze", "1");
	make_cgroup(f, "guest");
	write_cgroup(f, "guest", "cgroup.freeze", "1");
	assert_int_equal(status_of(f, "POST", "/init", "", ""), 204);
	wait_for_state(f, "user", false);
	wait_for_state(f, "ptys", false);
	wait_for_state(f, "guest", false);
}

static void stopping_while_frozen(void **state)
{
	struct fixture *f = *state;
	struct talk talk;

	if (!f->root[0])
		skip();
	start(f, &talk, "trap : TERM; echo up; while :; do read nothing; done");
	talk_read_until(&talk, "\"stdout\"");
	freeze(f, "/freeze?maxWaitMs=5000", "\"frozen\":2");
	/* The teardown does the rest: frozen commands can be killed, the watchdog keeps nothing
	 * alive. */
	talk_close(&talk);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_079_a_frozen_workload_and_a_lively_envd),
		TEST(conformance_118_conformance_124_real_guests),
		TEST(a_new_envd_thaws_what_the_old_one_froze),
		TEST(stopping_while_frozen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
