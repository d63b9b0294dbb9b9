#include "tests/support/process_lab.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/user.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/turn.h"

/* ---- the lab ---- */

static const char *cgroup_root(char *path, size_t size)
{
	static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(mounts); i++) {
		snprintf(path, size, "%s/cgroup.controllers", mounts[i]);
		if (access(path, F_OK) != 0)
			continue;
		snprintf(path, size, "%s/envd-test-%d", mounts[i], getpid());
		if (mkdir(path, 0755) == 0 || errno == EEXIST)
			return path;
	}
	return NULL;
}

bool lab_has_cgroups(void)
{
	char path[PATH_MAX];

	return cgroup_root(path, sizeof(path)) != NULL;
}

void lab_need_cgroups(void)
{
	if (geteuid() != 0 || !lab_has_cgroups())
		skip();
}

void lab_open_with_cgroups(struct process_lab *lab)
{
	static const struct lab_options with_cgroups = {.with_cgroups = true};

	lab_need_cgroups();
	lab_open(lab, &with_cgroups);
}

void lab_open(struct process_lab *lab, const struct lab_options *options)
{
	static const struct lab_options none;
	struct process_table_config config = {0};
	char root[PATH_MAX];

	if (!options)
		options = &none;
	memset(lab, 0, sizeof(*lab));
	signal(SIGPIPE, SIG_IGN);
	log_init(LOG_ERROR, LOG_TEXT, -1);
	strcpy(lab->directory, "/tmp/process-lab-XXXXXX");
	assert_non_null(mkdtemp(lab->directory));
	assert_int_equal(chmod(lab->directory, 0755), 0);
	loop_init(&lab->loop);
	sandbox_init(&lab->sandbox, &lab->loop);
	config.loop = &lab->loop;
	config.sandbox = &lab->sandbox;
	config.with_cgroups = options->with_cgroups;
	config.cgroup_root = options->with_cgroups ? cgroup_root(root, sizeof(root)) : NULL;
	config.kill_scope_leader = options->kill_scope_leader;
	config.adopts_orphans = options->adopts_orphans;
	config.set_nofile = options->nofile > 0;
	config.nofile = (struct rlimit){options->nofile, options->nofile};
	lab->table = process_table_new(&config);
}

static void on_stopped(struct process_table *table, void *user)
{
	struct process_lab *lab = user;

	lab->stopped = true;
}

void lab_take_pad(struct process_lab *lab)
{
	assert_null(lab->table->pad.plan);
	lab->table->pad.plan = &lab->other;
}

void lab_free_pad(struct process_lab *lab)
{
	if (lab->table->pad.plan == &lab->other)
		lab->table->pad.plan = NULL;
}

void lab_close(struct process_lab *lab)
{
	static const char *const kinds[] = {"user", "ptys", "socats", "."};
	char path[PATH_MAX], command[PATH_MAX + 16];
	size_t i;

	process_table_stop(lab->table, 500, on_stopped, lab);
	lab_run_until(lab, &lab->stopped);
	lab_free_pad(lab);
	process_table_free(lab->table);
	uv_run(&lab->loop.uv, UV_RUN_DEFAULT);
	sandbox_fini(&lab->sandbox);
	loop_fini(&lab->loop);
	if (cgroup_root(path, sizeof(path))) {
		for (i = 0; i < ARRAY_LENGTH(kinds); i++) {
			snprintf(command, sizeof(command), "%s/%s", path, kinds[i]);
			rmdir(strcmp(kinds[i], ".") == 0 ? path : command);
		}
	}
	snprintf(command, sizeof(command), "rm -rf %s", lab->directory);
	assert_int_equal(system(command), 0);
}

void lab_run_until(struct process_lab *lab, const bool *flag)
{
	TURN_UNTIL(&lab->loop, *flag);
}

void lab_run_until_true(struct process_lab *lab, bool (*condition)(void *user), void *user)
{
	TURN_UNTIL(&lab->loop, condition(user));
}

/* In small pieces: when the machine stalls, one of them is over at once and not all of the time. */
void lab_run_for(struct process_lab *lab, uint64_t ms)
{
	uint64_t piece, until;

	do {
		piece = ms < 10 ? ms : 10;
		ms -= piece;
		until = uv_hrtime() + piece * 1000000;
		do
			turn_loop(&lab->loop);
		while (uv_hrtime() < until);
	} while (ms > 0);
}

/* ---- captures ---- */

static void note(struct capture *capture, char letter)
{
	size_t len = strlen(capture->order);

	/* A run of outputs is one letter: how many there are is the kernel's business. */
	if (letter == 'o' && len > 0 && capture->order[len - 1] == 'o')
		return;
	if (len + 1 < sizeof(capture->order))
		capture->order[len] = letter;
}

static struct capture *capture_of(struct process_subscriber *subscriber)
{
	return container_of(subscriber, struct capture, subscriber);
}

static void on_started(struct process_subscriber *subscriber)
{
	struct capture *capture = capture_of(subscriber);

	capture->started = true;
	capture->pid = subscriber->process->pid;
	note(capture, 's');
}

static int on_output(struct process_subscriber *subscriber, enum output_stream stream,
		     struct str bytes)
{
	struct capture *capture = capture_of(subscriber);

	assert_int_equal(buf_append(&capture->output[stream], bytes.p, bytes.len), 0);
	capture->events++;
	capture->largest = size_max(capture->largest, bytes.len);
	note(capture, 'o');
	return capture->slow ? OUTPUT_FULL : 0;
}

static size_t queued(struct process_subscriber *subscriber)
{
	return capture_of(subscriber)->queued;
}

static void on_keepalive(struct process_subscriber *subscriber)
{
	note(capture_of(subscriber), 'k');
}

static void on_ended(struct process_subscriber *subscriber, const struct exit_record *record)
{
	struct capture *capture = capture_of(subscriber);

	assert_false(capture->ended);
	capture->ended = true;
	capture->record = *record;
	note(capture, 'e');
}

static void on_failed(struct process_subscriber *subscriber, const struct err *err)
{
	struct capture *capture = capture_of(subscriber);

	capture->failed = true;
	capture->err = *err;
	note(capture, 'f');
}

static const struct process_subscriber_ops capture_ops = {
	.on_started = on_started,
	.on_output = on_output,
	.queued = queued,
	.on_keepalive = on_keepalive,
	.on_ended = on_ended,
	.on_failed = on_failed,
};

void capture_init(struct capture *capture)
{
	size_t i;

	memset(capture, 0, sizeof(*capture));
	capture->subscriber.ops = &capture_ops;
	for (i = 0; i < ARRAY_LENGTH(capture->output); i++)
		buf_init(&capture->output[i], SIZE_MAX / 2);
}

void capture_fini(struct capture *capture)
{
	size_t i;

	process_unsubscribe(&capture->subscriber);
	for (i = 0; i < ARRAY_LENGTH(capture->output); i++)
		buf_fini(&capture->output[i]);
}

const char *lab_user_name(void)
{
	static char name[64] = "root";
	const struct passwd *own = geteuid() ? getpwuid(geteuid()) : NULL;

	if (own)
		snprintf(name, sizeof(name), "%s", own->pw_name);
	return name;
}

void lab_spec(struct process_spec *spec, const char *const *args)
{
	*spec = (struct process_spec){
		.command = args[0], .args = args + 1, .user_name = lab_user_name()};
	while (args[spec->arg_count + 1])
		spec->arg_count++;
}

void capture_open(struct process_lab *lab, struct capture *capture, const struct process_spec *spec)
{
	struct err err;

	uv_update_time(&lab->loop.uv);
	if (process_open(lab->table, spec, &capture->subscriber, &capture->process, &err) < 0)
		fail_msg("refused: %s", err.message);
}

void capture_shell(struct process_lab *lab, struct capture *capture, const char *script)
{
	const char *const args[] = {"sh", "-c", script, NULL};
	struct process_spec spec;

	lab_spec(&spec, args);
	capture_open(lab, capture, &spec);
}

void capture_subscribe(struct capture *capture, struct process *process)
{
	capture->process = process;
	capture->pid = process->pid;
	process_subscribe(process, &capture->subscriber);
}

static bool is_over(void *user)
{
	const struct capture *capture = user;

	return capture->ended || capture->failed;
}

void capture_wait(struct process_lab *lab, struct capture *capture)
{
	lab_run_until_true(lab, is_over, capture);
}

void capture_drain(struct capture *capture)
{
	process_subscriber_drained(&capture->subscriber);
}

bool capture_is_held_up(void *user)
{
	const struct capture *capture = user;

	return capture->process->output.paused;
}

const char *capture_text(struct capture *capture, enum output_stream stream)
{
	struct buf *output = &capture->output[stream];

	assert_int_equal(buf_append(output, "", 1), 0);
	output->end--;
	return buf_data(output);
}

const char *report_value(struct capture *capture, const char *name, char *value, size_t size)
{
	struct str rest = buf_str(&capture->output[OUTPUT_STDOUT]), line;
	size_t len = strlen(name);

	if (rest.len == 0)
		rest = buf_str(&capture->output[OUTPUT_TERMINAL]);
	value[0] = '\0';
	while (str_split(&rest, '\n', &line)) {
		line = str_trim(line);
		if (line.len > len + 1 && memcmp(line.p, name, len) == 0 && line.p[len] == ':') {
			while (line.len > 0 && line.p[line.len - 1] == '\r')
				line.len--;
			snprintf(value, size, "%.*s", (int)(line.len - len - 2), line.p + len + 2);
			break;
		}
	}
	return value;
}

/* The path of the report program of this build. */
static const char *report_program(void)
{
	static char path[PATH_MAX + 32];
	char self[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *tests;

	assert_true(len > 0);
	self[len] = '\0';
	tests = strstr(self, "/tests/unit/");
	assert_non_null(tests);
	*tests = '\0';
	snprintf(path, sizeof(path), "%s/tests/support/report", self);
	return path;
}

uint64_t lab_now_ms(struct process_lab *lab)
{
	uv_update_time(&lab->loop.uv);
	return loop_now_ms(&lab->loop);
}

void lab_run_shell(struct process_lab *lab, struct capture *run, const char *script)
{
	capture_init(run);
	capture_shell(lab, run, script);
	capture_wait(lab, run);
	if (run->failed)
		fail_msg("%s", run->err.message);
}

void lab_open_terminal(struct process_lab *lab, struct capture *run, const char *script)
{
	const char *const args[] = {"sh", "-c", script, NULL};
	struct process_spec spec;

	lab_spec(&spec, args);
	spec.with_terminal = true;
	spec.size = (struct terminal_size){.cols = 133, .rows = 37};
	capture_init(run);
	capture_open(lab, run, &spec);
}

struct expected_text {
	struct capture *run;
	enum output_stream stream;
	const char *text;
};

static bool has_text(void *user)
{
	struct expected_text *expected = user;

	return strstr(capture_text(expected->run, expected->stream), expected->text) != NULL;
}

void lab_wait_for_text(struct process_lab *lab, struct capture *run, enum output_stream stream,
		       const char *text)
{
	struct expected_text expected = {run, stream, text};
	uint64_t deadline = uv_hrtime() + TURN_DEADLINE_MS * 1000000ull;

	while (!has_text(&expected)) {
		if (uv_hrtime() > deadline)
			fail_msg("\"%s\" did not come, but \"%s\"", text,
				 capture_text(run, stream));
		turn_loop(&lab->loop);
	}
}

size_t lab_count_with_argument(const char *word)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	size_t count = 0;

	assert_non_null(proc);
	while ((entry = readdir(proc))) {
		char path[300], text[4096];
		ssize_t len, at;
		int fd;

		snprintf(path, sizeof(path), "/proc/%s/cmdline", entry->d_name);
		fd = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? open(path, O_RDONLY) : -1;
		if (fd < 0)
			continue;
		len = read(fd, text, sizeof(text) - 1);
		close(fd);
		for (at = 0; len > 0 && at < len; at += (ssize_t)strlen(text + at) + 1) {
			text[len] = '\0';
			if (strcmp(text + at, word) == 0) {
				count++;
				break;
			}
		}
	}
	closedir(proc);
	return count;
}

bool lab_none_with_argument(void *user)
{
	return lab_count_with_argument(user) == 0;
}

static void on_killed(struct process_kill_waiter *waiter)
{
	struct killed *killed = container_of(waiter, struct killed, waiter);

	killed->done = true;
	killed->leader_status = kill(killed->pid, 0) < 0 ? errno : 0;
}

void lab_kill_and_wait(struct process_lab *lab, struct capture *run, struct killed *killed)
{
	*killed = (struct killed){.waiter.on_killed = on_killed, .pid = run->pid};
	process_kill(run->process, &killed->waiter);
	lab_run_until(lab, &killed->done);
}

static char passwd_path[128], group_path[128];

void lab_write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

void lab_make_accounts(struct process_lab *lab)
{
	char text[512];

	snprintf(passwd_path, sizeof(passwd_path), "%s/passwd", lab->directory);
	snprintf(group_path, sizeof(group_path), "%s/group", lab->directory);
	snprintf(text, sizeof(text),
		 "root:x:0:0:root:/root:/bin/sh\n"
		 "tester:x:12345:12345::%s:/bin/sh\n"
		 "homeless:x:12346:12346::/nonexistent:/usr/sbin/nologin\n",
		 lab->directory);
	lab_write_text(passwd_path, text);
	lab_write_text(
		group_path,
		"root:x:0:\ntester:x:12345:\ndocker:x:777:tester\nextra:x:888:other,tester\n");
	user_set_files(passwd_path, group_path);
}

void lab_run_report(struct process_lab *lab, struct capture *run, struct process_spec *spec)
{
	static const char *const no_args[] = {NULL};

	spec->command = report_program();
	spec->args = no_args;
	spec->arg_count = 0;
	if (!spec->user_name)
		spec->user_name = lab_user_name();
	capture_init(run);
	capture_open(lab, run, spec);
	capture_wait(lab, run);
	if (run->failed)
		fail_msg("%s", run->err.message);
	assert_int_equal(run->record.code, 0);
}

bool lab_has_variable(struct capture *run, const char *entry)
{
	char line[4200];

	snprintf(line, sizeof(line), "env: %s\n", entry);
	return strstr(capture_text(run, OUTPUT_STDOUT), line) != NULL;
}

void lab_expect_refusal(struct process_lab *lab, const struct process_spec *spec,
			enum err_kind kind, const char *text)
{
	struct capture run;

	capture_init(&run);
	capture_open(lab, &run, spec);
	capture_wait(lab, &run);
	assert_string_equal(run.order, "f");
	assert_int_equal(run.err.kind, kind);
	if (!strstr(run.err.message, text))
		fail_msg("'%s' does not contain '%s'", run.err.message, text);
	capture_fini(&run);
}

void lab_expect_code(struct process_lab *lab, const char *const *args, int code,
		     const char *message)
{
	struct process_spec spec;
	struct capture run;

	lab_spec(&spec, args);
	capture_init(&run);
	capture_open(lab, &run, &spec);
	capture_wait(lab, &run);
	assert_string_equal(run.order, "soe");
	assert_int_equal(run.record.code, code);
	assert_string_equal(capture_text(&run, OUTPUT_STDERR), message);
	capture_fini(&run);
}
