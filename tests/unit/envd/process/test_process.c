/* Commands from start to end, on a real loop with real processes. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static uint64_t now_ms(struct process_lab *lab)
{
	uv_update_time(&lab->loop.uv);
	return loop_now_ms(&lab->loop);
}

/* Runs `script` and returns when it has ended. */
static void run_shell(struct process_lab *lab, struct capture *run, const char *script)
{
	capture_init(run);
	capture_shell(lab, run, script);
	capture_wait(lab, run);
	if (run->failed)
		fail_msg("%s", run->err.message);
}

static void open_terminal(struct process_lab *lab, struct capture *run, const char *script)
{
	const char *const args[] = {"sh", "-c", script, NULL};
	struct process_spec spec;

	lab_spec(&spec, args);
	spec.with_terminal = true;
	spec.size = (struct terminal_size){.cols = 133, .rows = 37};
	capture_init(run);
	capture_open(lab, run, &spec);
}

static void open_with_stdin(struct process_lab *lab, struct capture *run, const char *script)
{
	const char *const args[] = {"sh", "-c", script, NULL};
	struct process_spec spec;

	lab_spec(&spec, args);
	spec.with_stdin = true;
	capture_init(run);
	capture_open(lab, run, &spec);
	lab_run_until(lab, &run->started);
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

static void wait_for_text(struct process_lab *lab, struct capture *run, enum output_stream stream,
			  const char *text)
{
	struct expected_text expected = {run, stream, text};

	lab_run_until_true(lab, has_text, &expected);
}

/* How many live processes have this word as an argument. */
static size_t count_with_argument(const char *word)
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

static bool none_with_argument(void *user)
{
	return count_with_argument(user) == 0;
}

static bool one_with_argument(void *user)
{
	return count_with_argument(user) == 1;
}

/* ---- output and end ---- */

static void conformance_132_start_first_end_last(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	run_shell(&lab, &run, "echo hello; echo oops >&2; exit 3");
	assert_string_equal(run.order, "soe");
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "hello\n");
	assert_string_equal(capture_text(&run, OUTPUT_STDERR), "oops\n");
	assert_true(run.record.exited);
	assert_int_equal(run.record.code, 3);
	assert_true(run.record.ended_ms >= run.record.started_ms);
	assert_true(run.record.peak_rss_bytes > 0);
	assert_null(process_table_find(lab.table, run.pid));
	capture_fini(&run);
	lab_close(&lab);
}

static void check_background_child(const char *script)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;

	lab_open(&lab, NULL);
	began = now_ms(&lab);
	run_shell(&lab, &run, script);
	assert_true(now_ms(&lab) - began < 2000);
	assert_int_equal(run.record.code, 4);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "hi\n");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_001_background_child_holds_the_pipe(void **state)
{
	check_background_child("sleep 5 & echo hi; exit 4");
	check_background_child("setsid sleep 5 & echo hi; exit 4");
	check_background_child("sleep 5 >/dev/null & echo hi; exit 4");
}

/* The child left behind writes a megabyte after the leader's exit: it must neither block nor die. */
static void case_001_left_child_is_not_killed_by_sigpipe(void **state)
{
	struct process_lab lab;
	struct capture run, look;
	char script[512], check[256];

	lab_open(&lab, NULL);
	snprintf(script, sizeof(script),
		 "(sleep 0.4; head -c 1000000 /dev/zero && echo survived > %s/ok) & echo hi; exit 4",
		 lab.directory);
	run_shell(&lab, &run, script);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "hi\n");
	snprintf(check, sizeof(check), "for i in $(seq 200); do [ -s %s/ok ] && break; sleep 0.05; done; cat %s/ok",
		 lab.directory, lab.directory);
	run_shell(&lab, &look, check);
	assert_string_equal(capture_text(&look, OUTPUT_STDOUT), "survived\n");
	capture_fini(&look);
	capture_fini(&run);
	lab_close(&lab);
}

static void conformance_154_end_follows_the_leader(void **state)
{
	check_background_child("sh -c 'sleep 5' & echo hi; exit 4");
}

/* Trickling output keeps the drain going, but only for its limit. */
static void case_001_drain_is_bounded(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;

	lab_open(&lab, NULL);
	began = now_ms(&lab);
	run_shell(&lab, &run, "(i=0; while [ $i -lt 120 ]; do echo x; sleep 0.02; i=$((i+1)); done) & "
			     "sleep 0.1; exit 0");
	/* On a busy machine the trickle may pause long enough to count as quiet: that is sooner. */
	assert_in_range(now_ms(&lab) - began, PROCESS_DRAIN_QUIET_MS, PROCESS_DRAIN_MAX_MS + 1200);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_002_closed_output_is_not_the_end(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;

	lab_open(&lab, NULL);
	began = now_ms(&lab);
	run_shell(&lab, &run, "exec >&- 2>&-; sleep 0.4; exit 7");
	assert_true(now_ms(&lab) - began >= 400);
	assert_string_equal(run.order, "se");
	assert_int_equal(run.record.code, 7);
	/* Nothing spins on the closed pipe meanwhile. */
	assert_true(run.record.user_us + run.record.system_us < 300000);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_003_nothing_is_lost_at_the_end(void **state)
{
	struct process_lab lab;
	struct capture first;
	size_t i;

	lab_open(&lab, NULL);
	run_shell(&lab, &first, "seq 1 3000");
	for (i = 0; i < 60; i++) {
		struct capture run;

		run_shell(&lab, &run, i % 2 ? "seq 1 3000; exit 3" : "seq 1 3000; printf x; exit 3");
		assert_string_equal(run.order, "soe");
		assert_int_equal(run.record.code, 3);
		assert_int_equal(buf_length(&run.output[0]),
				 buf_length(&first.output[0]) + (i % 2 ? 0 : 1));
		assert_memory_equal(buf_data(&run.output[0]), buf_data(&first.output[0]),
				    buf_length(&first.output[0]));
		capture_fini(&run);
	}
	capture_fini(&first);
	lab_close(&lab);
}

static void case_012_characters_stay_whole(void **state)
{
	struct process_lab lab;
	struct capture run;
	struct str text;
	size_t i;

	lab_open(&lab, NULL);
	/* 40,000 four-byte characters behind one odd byte: every full pipe ends inside one. */
	run_shell(&lab, &run, "printf x; yes '😀😀😀😀' | head -n 10000 | tr -d '\\n'");
	text = buf_str(&run.output[0]);
	assert_int_equal(text.len, 1 + 160000);
	assert_true(str_is_utf8(text));
	for (i = 1; i < text.len; i += 4)
		assert_memory_equal(text.p + i, "😀", 4);
	capture_fini(&run);
	/* A half one at the very end is delivered as it is, before the end. */
	run_shell(&lab, &run, "printf 'ab\\360\\237'; exit 9");
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "ab\360\237");
	assert_string_equal(run.order, "soe");
	assert_int_equal(run.record.code, 9);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_012_torn_character_does_not_wait_for_ever(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "printf 'ab\\360\\237'; sleep 30");
	wait_for_text(&lab, &run, OUTPUT_STDOUT, "ab\360\237");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_013_lines_do_not_matter(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	run_shell(&lab, &run, "printf 'a\\n\\nb\\r\\n\\r\\nc\\rd'");
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "a\n\nb\r\n\r\nc\rd");
	capture_fini(&run);
	capture_init(&run);
	capture_shell(&lab, &run, "printf partial; sleep 30");
	wait_for_text(&lab, &run, OUTPUT_STDOUT, "partial");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_011_bytes_are_not_altered(void **state)
{
	struct process_lab lab;
	struct capture run;
	char script[400], path[160], *bytes = xmalloc(2000000);
	uint32_t seed = 1;
	FILE *file;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 2000000; i++) {
		seed = seed * 1664525 + 1013904223;
		bytes[i] = (char)(seed >> 24);
	}
	snprintf(path, sizeof(path), "%s/random", lab.directory);
	file = fopen(path, "we");
	assert_int_equal(fwrite(bytes, 1, 2000000, file), 2000000);
	fclose(file);
	snprintf(script, sizeof(script), "cat %s; cat %s >&2", path, path);
	run_shell(&lab, &run, script);
	assert_int_equal(buf_length(&run.output[0]), 2000000);
	assert_int_equal(buf_length(&run.output[1]), 2000000);
	assert_memory_equal(buf_data(&run.output[0]), bytes, 2000000);
	assert_memory_equal(buf_data(&run.output[1]), bytes, 2000000);
	assert_true(run.largest <= LOOP_SCRATCH_BYTES);
	free(bytes);
	capture_fini(&run);
	lab_close(&lab);
}

/* Records of 64 bytes on both channels at full speed, and a reader that takes its time: each channel
 * is an unbroken sequence. */
static void check_records(struct str text, size_t line_len, const char *tag)
{
	char expected[80];
	size_t i;

	assert_int_equal(text.len % line_len, 0);
	for (i = 0; i < text.len / line_len; i++) {
		snprintf(expected, sizeof(expected), "%s%059zu", tag, i);
		assert_memory_equal(text.p + i * line_len, expected, 60);
	}
}

static void case_010_records_are_not_mixed(void **state)
{
	static const char script[] = "awk 'BEGIN { for (i = 0; i < 4000; i++) { "
				     "printf \"a%059d___\\n\", i; "
				     "printf \"b%059d___\\n\", i > \"/dev/stderr\" } }'";
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	run.slow = true;
	capture_shell(&lab, &run, script);
	while (!run.ended) {
		capture_drain(&run);
		lab_run_for(&lab, 1);
	}
	assert_int_equal(buf_length(&run.output[0]), 4000 * 64);
	assert_int_equal(buf_length(&run.output[1]), 4000 * 64);
	check_records(buf_str(&run.output[0]), 64, "a");
	check_records(buf_str(&run.output[1]), 64, "b");
	capture_fini(&run);
	open_terminal(&lab, &run, "stty raw; awk 'BEGIN { for (i = 0; i < 4000; i++) "
				  "printf \"t%059d___\\n\", i }'");
	run.slow = true;
	while (!run.ended) {
		capture_drain(&run);
		lab_run_for(&lab, 1);
	}
	assert_int_equal(buf_length(&run.output[2]), 4000 * 64);
	check_records(buf_str(&run.output[2]), 64, "t");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_063_a_terminal_s_command_runs_once(void **state)
{
	struct process_lab lab;
	struct capture run;
	char script[128];
	size_t i;

	lab_open(&lab, NULL);
	snprintf(script, sizeof(script), "echo x >> %s/n", lab.directory);
	for (i = 0; i < 20; i++) {
		open_terminal(&lab, &run, script);
		capture_wait(&lab, &run);
		capture_fini(&run);
	}
	snprintf(script, sizeof(script), "wc -l < %s/n", lab.directory);
	run_shell(&lab, &run, script);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "20\n");
	capture_fini(&run);
	lab_close(&lab);
}

/* The hog is chosen by the kernel (a limit of version 1 cgroups, which it moves itself into), the
 * agent and everybody else live on. */
static void case_076_a_memory_hog_dies_alone(void **state)
{
	struct process_lab lab;
	struct capture hog, other;
	char directory[64], script[512];
	size_t i;

	snprintf(directory, sizeof(directory), "/sys/fs/cgroup/memory/envd-test-%d", getpid());
	if (geteuid() != 0 || mkdir(directory, 0755) < 0)
		skip();
	lab_open(&lab, NULL);
	capture_init(&other);
	capture_shell(&lab, &other, "exec sleep 30");
	snprintf(script, sizeof(script),
		 "echo 20000000 > %s/memory.limit_in_bytes; echo $$ > %s/cgroup.procs; "
		 "exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'",
		 directory, directory);
	for (i = 0; i < 3; i++) {
		run_shell(&lab, &hog, script);
		assert_int_equal(hog.record.signal, SIGKILL);
		assert_false(hog.record.stopped);
		capture_fini(&hog);
	}
	assert_false(other.ended);
	capture_fini(&other);
	lab_close(&lab);
	assert_int_equal(rmdir(directory), 0);
}

static void case_018_tmp_is_not_needed(void **state)
{
	struct process_lab lab;
	struct capture run;

	/* The table keeps no state in the file system at all; what could break is a cwd. */
	lab_open(&lab, NULL);
	run_shell(&lab, &run, "mkdir -p $PWD/gone; cd gone; rmdir ../gone; exec sh -c 'echo ok'");
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "ok\n");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_028_a_burst_keeps_apart(void **state)
{
	enum { COUNT = 200 };
	static struct capture runs[COUNT];
	struct process_lab lab;
	char script[64], expected[16];
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < COUNT; i++) {
		snprintf(script, sizeof(script), "echo %zu; exit %zu", i, i % 200);
		capture_init(&runs[i]);
		capture_shell(&lab, &runs[i], script);
	}
	for (i = 0; i < COUNT; i++) {
		capture_wait(&lab, &runs[i]);
		snprintf(expected, sizeof(expected), "%zu\n", i);
		assert_string_equal(capture_text(&runs[i], OUTPUT_STDOUT), expected);
		assert_int_equal(runs[i].record.code, i % 200);
		capture_fini(&runs[i]);
	}
	lab_close(&lab);
}

static void case_054_death_by_signal(void **state)
{
	static const struct {
		const char *script, *text;
		int code;
	} rows[] = {
		{"kill -9 $$", "signal: killed", -1},
		{"kill -TERM $$", "signal: terminated", -1},
		{"ulimit -c 0; kill -SEGV $$", "signal: segmentation fault", -1},
		{"ulimit -c 0; kill -ABRT $$", "signal: aborted", -1},
		{"kill -40 $$", "signal: signal 40", -1},
		{"exit 137", "exit status 137", 137},
		{"exit 255", "exit status 255", 255},
		{"exit 256", "exit status 0", 0},
		{"exit 0", "exit status 0", 0},
	};
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < ARRAY_LENGTH(rows); i++) {
		char text[EXIT_STATUS_TEXT_BYTES];
		struct capture run;

		run_shell(&lab, &run, rows[i].script);
		exit_record_status_text(&run.record, text);
		assert_string_equal(text, rows[i].text);
		assert_int_equal(run.record.code, rows[i].code);
		assert_true(run.record.exited == (rows[i].code >= 0));
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void conformance_155_killed_by_itself(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	run_shell(&lab, &run, "kill -9 $$");
	assert_false(run.record.exited);
	assert_int_equal(run.record.signal, SIGKILL);
	assert_int_equal(run.record.code, -1);
	assert_false(run.record.stopped);
	capture_fini(&run);
	lab_close(&lab);
}

/* ---- subscribers and pace ---- */

/* Both see the same from the second one's attach on. */
static void conformance_145_fan_out(void **state)
{
	struct process_lab lab;
	struct capture first, second, third;
	struct str tail;

	lab_open(&lab, NULL);
	open_with_stdin(&lab, &first, "echo one; read x; seq 1 20000; exit 5");
	wait_for_text(&lab, &first, OUTPUT_STDOUT, "one\n");
	capture_init(&second);
	capture_init(&third);
	capture_subscribe(&second, first.process);
	capture_subscribe(&third, first.process);
	capture_fini(&third);
	capture_fini(&third); /* leaving twice does no harm */
	assert_true(process_table_find(lab.table, first.pid) == first.process);
	assert_true(write(first.process->input.fd, "\n", 1) == 1);
	capture_wait(&lab, &first);
	capture_wait(&lab, &second);
	tail = buf_str(&first.output[0]);
	tail.p += 4;
	tail.len -= 4;
	assert_true(str_equal(tail, buf_str(&second.output[0])));
	assert_int_equal(second.record.code, 5);
	capture_fini(&first);
	capture_fini(&second);
	lab_close(&lab);
}

/* One reader is full from the first event on, the other keeps up: it gets everything, and the slow
 * one, as it drains, gets exactly the same, including the end. */
static void case_069_slow_reader_gets_the_same_later(void **state)
{
	struct process_lab lab;
	struct capture fast, slow;

	lab_open(&lab, NULL);
	open_with_stdin(&lab, &fast, "read x; seq 1 15000; seq 1 100 >&2; exit 6");
	capture_init(&slow);
	slow.slow = true;
	capture_subscribe(&slow, fast.process);
	assert_true(write(fast.process->input.fd, "\n", 1) == 1);
	capture_wait(&lab, &fast);
	assert_false(slow.ended);
	while (!slow.ended) {
		capture_drain(&slow);
		lab_run_for(&lab, 1);
	}
	assert_int_equal(buf_length(&fast.output[0]), buf_length(&slow.output[0]));
	assert_memory_equal(buf_data(&fast.output[0]), buf_data(&slow.output[0]),
			    buf_length(&fast.output[0]));
	assert_true(str_equal(buf_str(&fast.output[1]), buf_str(&slow.output[1])));
	assert_int_equal(slow.record.code, 6);
	assert_true(slow.largest <= LOOP_SCRATCH_BYTES);
	capture_fini(&fast);
	capture_fini(&slow);
	lab_close(&lab);
}

/* A single slow reader: the program waits, memory stays small, and what was in the pipe when the
 * program ended still arrives, however late. */
static void case_004_program_waits_for_its_reader(void **state)
{
	struct process_lab lab;
	struct capture slow;
	size_t before;

	lab_open(&lab, NULL);
	capture_init(&slow);
	slow.slow = true;
	capture_shell(&lab, &slow, "head -c 3000000 /dev/zero; exit 8");
	lab_run_for(&lab, 300);
	before = buf_length(&slow.output[0]);
	assert_true(before < 3000000);
	lab_run_for(&lab, 200);
	assert_int_equal(buf_length(&slow.output[0]), before);
	while (!slow.ended) {
		capture_drain(&slow);
		lab_run_for(&lab, 1);
	}
	assert_int_equal(buf_length(&slow.output[0]), 3000000);
	assert_int_equal(slow.record.code, 8);
	capture_fini(&slow);
	lab_close(&lab);
}

static void case_004_the_rest_arrives_after_a_long_pause(void **state)
{
	struct process_lab lab;
	struct capture slow;
	size_t i;

	lab_open(&lab, NULL);
	capture_init(&slow);
	slow.slow = true;
	/* One event makes it full, then 60 KB fit into the pipe, and the program ends. */
	capture_shell(&lab, &slow, "echo x; sleep 0.2; head -c 60000 /dev/zero; exit 8");
	lab_run_for(&lab, PROCESS_DRAIN_MAX_MS + 700);
	assert_false(slow.ended);
	assert_null(process_table_find(lab.table, slow.pid));
	for (i = 0; i < 20 && !slow.ended; i++) {
		capture_drain(&slow);
		lab_run_for(&lab, 20);
	}
	capture_wait(&lab, &slow);
	assert_int_equal(buf_length(&slow.output[0]), 60002);
	capture_fini(&slow);
	lab_close(&lab);
}

static void case_006_stalled_reader_is_cut_and_the_others_go_on(void **state)
{
	struct process_lab lab;
	struct capture stalled, fine;
	size_t before;

	lab_open(&lab, NULL);
	capture_init(&stalled);
	stalled.slow = true;
	stalled.queued = 1000;
	capture_shell(&lab, &stalled, "exec yes");
	lab_run_until(&lab, &stalled.started);
	capture_init(&fine);
	capture_subscribe(&fine, stalled.process);
	lab_run_for(&lab, 200);
	/* The log is full: the stalled one holds both up. */
	before = buf_length(&fine.output[0]);
	assert_true(fine.process->output.paused);
	assert_true(fine.process->output.log.memory <= PROCESS_LOG_BYTES);
	/* Its time passes, as the loop's clock sees it. */
	stalled.subscriber.reader.stall_due_ms = loop_now_ms(&lab.loop);
	process_subscriber_drained(&fine.subscriber); /* anything that makes it look */
	later_call(&lab.loop, &fine.process->replan);
	lab_run_until(&lab, &stalled.failed);
	assert_int_equal(stalled.err.kind, ERR_RESOURCE_EXHAUSTED);
	lab_run_for(&lab, 100);
	assert_true(buf_length(&fine.output[0]) > before);
	assert_false(fine.process->output.paused);
	capture_fini(&stalled);
	capture_fini(&fine);
	lab_close(&lab);
}

/* Slow is not stalled: as long as its peer takes something, it stays. */
static void case_006_slow_reader_with_progress_stays(void **state)
{
	struct process_lab lab;
	struct capture slow;
	size_t i;

	lab_open(&lab, NULL);
	capture_init(&slow);
	slow.slow = true;
	slow.queued = 1000000;
	capture_shell(&lab, &slow, "exec yes");
	lab_run_for(&lab, 100);
	for (i = 0; i < 3; i++) {
		slow.queued -= 10;
		slow.subscriber.reader.stall_due_ms = loop_now_ms(&lab.loop);
		later_call(&lab.loop, &slow.process->replan);
		lab_run_for(&lab, 20);
		assert_false(slow.failed);
	}
	slow.subscriber.reader.stall_due_ms = loop_now_ms(&lab.loop);
	later_call(&lab.loop, &slow.process->replan);
	lab_run_until(&lab, &slow.failed);
	capture_fini(&slow);
	lab_close(&lab);
}

static void case_007_readers_come_and_go(void **state)
{
	enum { READERS = 8 };
	struct capture readers[READERS], source;
	struct process_lab lab;
	size_t i, round;
	uint32_t seed = 7;

	lab_open(&lab, NULL);
	capture_init(&source);
	capture_shell(&lab, &source,
		      "i=0; while [ $i -lt 60000 ]; do echo $i; i=$((i+1)); done");
	lab_run_until(&lab, &source.started);
	for (i = 0; i < READERS; i++) {
		capture_init(&readers[i]);
		readers[i].slow = i % 3 == 0;
		capture_subscribe(&readers[i], source.process);
	}
	for (round = 0; !source.ended; round++) {
		struct capture *one = &readers[(seed = seed * 1664525 + 1013904223) % READERS];

		lab_run_for(&lab, 3);
		for (i = 0; i < READERS; i++)
			if (readers[i].slow)
				capture_drain(&readers[i]);
		if (round % 10 == 0 && !source.ended &&
		    process_table_find(lab.table, source.pid)) {
			/* Until it left, its lines were consecutive. */
			capture_fini(one);
			capture_init(one);
			one->slow = round % 20 == 0;
			capture_subscribe(one, source.process);
		}
	}
	for (i = 0; i < READERS; i++) {
		struct str text, line;
		uint64_t number, expected = UINT64_MAX;

		while (!readers[i].ended && readers[i].subscriber.process) {
			capture_drain(&readers[i]);
			lab_run_for(&lab, 1);
		}
		text = buf_str(&readers[i].output[0]);
		str_split(&text, '\n', &line); /* may have begun in the middle of a line */
		while (text.len > 0 && str_split(&text, '\n', &line) && text.len > 0) {
			assert_int_equal(str_to_u64(line, UINT32_MAX, &number), 0);
			assert_true(expected == UINT64_MAX || number == expected);
			expected = number + 1;
		}
		capture_fini(&readers[i]);
	}
	capture_fini(&source);
	lab_close(&lab);
}

static void case_034_nobody_attached_never_blocks(void **state)
{
	struct process_lab lab;
	struct capture run, later_one;

	lab_open(&lab, NULL);
	open_with_stdin(&lab, &run, "head -c 2000000 /dev/zero; echo done; read x; echo live; exit 2");
	process_unsubscribe(&run.subscriber);
	lab_run_for(&lab, 300);
	capture_init(&later_one);
	capture_subscribe(&later_one, run.process);
	assert_true(write(run.process->input.fd, "\n", 1) == 1);
	capture_wait(&lab, &later_one);
	/* No replay: it sees what came after it. */
	assert_string_equal(capture_text(&later_one, OUTPUT_STDOUT), "live\n");
	assert_int_equal(later_one.record.code, 2);
	capture_fini(&later_one);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_005_disconnect_is_not_an_end(void **state)
{
	struct process_lab lab;
	struct capture run, again;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "sleep 0.3; exit 5");
	lab_run_until(&lab, &run.started);
	process_unsubscribe(&run.subscriber);
	lab_run_for(&lab, 50);
	assert_false(run.ended);
	assert_ptr_equal(process_table_find(lab.table, run.pid), run.process);
	capture_init(&again);
	capture_subscribe(&again, run.process);
	capture_wait(&lab, &again);
	assert_int_equal(again.record.code, 5);
	capture_fini(&again);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_008_cancel_before_the_start(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 60; i++) {
		struct capture run;

		capture_init(&run);
		capture_shell(&lab, &run, "sleep 0.01");
		/* At once, during the job, after the clone, after the exec. */
		lab_run_for(&lab, i % 4);
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void conformance_133_cancelled_before_start(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "sleep 30");
	capture_fini(&run);
	lab_run_for(&lab, 50);
	assert_int_equal(lab.table->count, 0);
	lab_close(&lab);
}

static void keepalives_come_when_nothing_else_does(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;
	size_t count = 0, i;

	lab_open(&lab, NULL);
	capture_init(&run);
	run.subscriber.keepalive_ms = 50;
	began = now_ms(&lab);
	capture_shell(&lab, &run, "sleep 0.4; echo x; exit 3");
	capture_wait(&lab, &run);
	/* At the interval, not more often, and never before the start. */
	assert_true(strncmp(run.order, "skk", 3) == 0);
	assert_non_null(strchr(run.order, 'o'));
	for (i = 0; run.order[i]; i++)
		count += run.order[i] == 'k';
	assert_true(count <= (now_ms(&lab) - began) / 50);
	capture_fini(&run);
	lab_close(&lab);
}

/* What is sent puts the next one off. */
static void output_puts_keepalives_off(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	run.subscriber.keepalive_ms = 500;
	capture_shell(&lab, &run, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo; sleep 0.06; done");
	capture_wait(&lab, &run);
	assert_string_equal(run.order, "soe");
	capture_fini(&run);
	lab_close(&lab);
}

/* ---- signals and time ---- */

struct killed {
	struct process_kill_waiter waiter;
	bool done;
	pid_t pid;
	int leader_status; /* of kill(pid, 0) at the moment of the answer */
};

static void on_killed(struct process_kill_waiter *waiter)
{
	struct killed *killed = container_of(waiter, struct killed, waiter);

	killed->done = true;
	killed->leader_status = kill(killed->pid, 0) < 0 ? errno : 0;
}

static void kill_and_wait(struct process_lab *lab, struct capture *run, struct killed *killed)
{
	*killed = (struct killed){.waiter.on_killed = on_killed, .pid = run->pid};
	process_kill(run->process, &killed->waiter);
	lab_run_until(lab, &killed->done);
}

static void case_035_gone_from_the_list_after_a_kill(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 20; i++) {
		struct capture run;
		struct killed killed;

		capture_init(&run);
		capture_shell(&lab, &run, "sleep 30 && echo x");
		lab_run_until(&lab, &run.started);
		kill_and_wait(&lab, &run, &killed);
		/* Collected when the kill is answered (contract/sdk.md 0.12). */
		assert_int_equal(killed.leader_status, ESRCH);
		assert_null(process_table_find(lab.table, run.pid));
		capture_wait(&lab, &run);
		assert_int_equal(run.record.signal, SIGKILL);
		assert_true(run.record.stopped);
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void check_tree_kill(bool with_cgroups, const char *script, const char *const *words)
{
	struct lab_options options = {.with_cgroups = with_cgroups};
	struct process_lab lab;
	struct capture run;
	struct killed killed;

	lab_open(&lab, &options);
	capture_init(&run);
	capture_shell(&lab, &run, script);
	wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	kill_and_wait(&lab, &run, &killed);
	for (; *words; words++)
		lab_run_until_true(&lab, none_with_argument, (void *)(uintptr_t)*words);
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_051_kill_reaches_the_whole_tree(void **state)
{
	static const char *const words[] = {"777.25", "778.25", "779.25", NULL};
	static const char script[] =
		"sleep 777.25 & (sleep 778.25 & wait) & (set -m; sleep 779.25 & wait) & "
		"sleep 0.1; echo ready; wait";

	check_tree_kill(false, script, words);
	check_tree_kill(true, script, words);
}

static void conformance_147_kill_of_a_shell_with_children(void **state)
{
	static const char *const words[] = {"780.25", NULL};

	check_tree_kill(false, "sh -c 'sleep 780.25 && echo done' & echo ready; wait", words);
}

/* Without a cgroup there is nothing that connects the escapee to the command: it stays (documented),
 * with one it goes as well. */
static void case_052_escapees(void **state)
{
	static const char *const words[] = {"888.25", "889.25", NULL};
	struct process_lab lab;
	struct capture run;
	struct killed killed;

	if (lab_has_cgroups() && geteuid() == 0)
		check_tree_kill(true,
				"setsid sleep 888.25 & (nohup sleep 889.25 >/dev/null 2>&1 &); "
				"sleep 0.1; echo ready; sleep 100",
				words);
	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "setsid sleep 3.125 & sleep 0.1; echo ready; sleep 100");
	wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	kill_and_wait(&lab, &run, &killed);
	lab_run_until_true(&lab, one_with_argument, (void *)(uintptr_t) "3.125");
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_051_term_reaches_the_group(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run,
		      "(trap 'echo child; exit' TERM; echo ready; while :; do sleep 0.02; done) & "
		      "trap 'wait; echo parent; exit 9' TERM; while :; do sleep 0.02; done");
	wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	assert_int_equal(process_terminate(run.process), 0);
	capture_wait(&lab, &run);
	assert_non_null(strstr(capture_text(&run, OUTPUT_STDOUT), "child\n"));
	assert_non_null(strstr(capture_text(&run, OUTPUT_STDOUT), "parent\n"));
	assert_int_equal(run.record.code, 9);
	assert_true(run.record.stopped);
	capture_fini(&run);
	lab_close(&lab);
}

static void kill_scope_leader_spares_the_children(void **state)
{
	struct lab_options options = {.kill_scope_leader = true};
	struct process_lab lab;
	struct capture run;
	struct killed killed;

	lab_open(&lab, &options);
	capture_init(&run);
	capture_shell(&lab, &run, "sleep 2.375 & echo ready; wait");
	wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	kill_and_wait(&lab, &run, &killed);
	assert_int_equal(killed.leader_status, ESRCH);
	lab_run_until_true(&lab, one_with_argument, (void *)(uintptr_t) "2.375");
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_055_a_stopped_process_dies_at_once(void **state)
{
	struct process_lab lab;
	struct capture run;
	struct killed killed;
	uint64_t began;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "echo ready; kill -STOP $$; echo never");
	wait_for_text(&lab, &run, OUTPUT_STDOUT, "ready");
	lab_run_for(&lab, 50);
	began = now_ms(&lab);
	kill_and_wait(&lab, &run, &killed);
	assert_true(now_ms(&lab) - began < 500);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.signal, SIGKILL);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_056_kill_does_not_wait_for_pending_output(void **state)
{
	struct process_lab lab;
	struct capture stalled;
	struct killed killed;
	uint64_t began;

	lab_open(&lab, NULL);
	capture_init(&stalled);
	stalled.slow = true;
	capture_shell(&lab, &stalled, "exec yes");
	lab_run_for(&lab, 100);
	began = now_ms(&lab);
	kill_and_wait(&lab, &stalled, &killed);
	assert_true(now_ms(&lab) - began < 500);
	assert_int_equal(killed.leader_status, ESRCH);
	assert_false(stalled.ended);
	/* What was in the pipe and the end are still there for it. */
	while (!stalled.ended) {
		capture_drain(&stalled);
		lab_run_for(&lab, 1);
	}
	assert_int_equal(stalled.record.signal, SIGKILL);
	capture_fini(&stalled);
	lab_close(&lab);
}

static void open_with_deadline(struct process_lab *lab, struct capture *run, const char *script,
			       uint64_t ms)
{
	const char *const args[] = {"sh", "-c", script, NULL};
	struct process_spec spec;

	lab_spec(&spec, args);
	spec.deadline_ms = now_ms(lab) + ms;
	capture_init(run);
	capture_open(lab, run, &spec);
}

static void case_046_timeout_is_deadline_exceeded(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 10; i++) {
		struct capture run, other;
		uint64_t began = now_ms(&lab);

		open_with_deadline(&lab, &run, "echo a; sleep 20", 120);
		lab_run_until(&lab, &run.started);
		capture_init(&other);
		capture_subscribe(&other, run.process);
		capture_wait(&lab, &run);
		assert_in_range(now_ms(&lab) - began, 115, 1200);
		assert_string_equal(run.order, "sof");
		assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "a\n");
		assert_int_equal(run.err.kind, ERR_DEADLINE_EXCEEDED);
		assert_string_equal(run.err.message, "context deadline exceeded");
		/* Everybody else sees how it really ended. */
		capture_wait(&lab, &other);
		assert_int_equal(other.record.signal, SIGKILL);
		assert_true(other.record.timed_out);
		assert_int_equal(kill(run.pid, 0), -1);
		assert_true(process_table_find_exit(lab.table, run.pid)->record.timed_out);
		capture_fini(&run);
		capture_fini(&other);
	}
	lab_close(&lab);
}

static void case_047_timeout_leaves_no_spinner(void **state)
{
	static const char *const word = "spinner-47";
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	open_with_deadline(&lab, &run,
			   "sh -c 'while :; do :; done' spinner-47 & "
			   "sh -c 'while :; do :; done' spinner-47 & sleep 100",
			   150);
	capture_wait(&lab, &run);
	assert_int_equal(run.err.kind, ERR_DEADLINE_EXCEEDED);
	lab_run_until_true(&lab, none_with_argument, (void *)(uintptr_t)word);
	capture_fini(&run);
	lab_close(&lab);
}

/* Its reader is stalled, so the output cannot be delivered: the stream ends in time all the same. */
static void case_046_stalled_reader_hears_of_the_timeout(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;

	lab_open(&lab, NULL);
	began = now_ms(&lab);
	open_with_deadline(&lab, &run, "exec yes", 150);
	run.slow = true;
	capture_wait(&lab, &run);
	assert_true(now_ms(&lab) - began < 150 + PROCESS_KILL_WAIT_MS + 500);
	assert_int_equal(run.err.kind, ERR_DEADLINE_EXCEEDED);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_049_no_deadline_no_end(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "exec sleep 30");
	lab_run_until(&lab, &run.started);
	process_unsubscribe(&run.subscriber);
	lab_run_for(&lab, 200);
	assert_ptr_equal(process_table_find(lab.table, run.pid), run.process);
	capture_fini(&run);
	lab_close(&lab);
}

/* The deadline belongs to the process: a client that has left does not take it along. */
static void case_049_deadline_outlives_its_client(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	open_with_deadline(&lab, &run, "exec sleep 30", 150);
	lab_run_until(&lab, &run.started);
	capture_fini(&run);
	lab_run_for(&lab, 600);
	assert_null(process_table_find(lab.table, run.pid));
	assert_true(process_table_find_exit(lab.table, run.pid)->record.timed_out);
	lab_close(&lab);
}

/* ---- stopping ---- */

static void case_073_stop_terminates_then_kills(void **state)
{
	struct process_lab lab;
	struct capture trapper, ignorer, terminal;

	lab_open(&lab, NULL);
	capture_init(&trapper);
	capture_shell(&lab, &trapper,
		      "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.02; done");
	capture_init(&ignorer);
	capture_shell(&lab, &ignorer, "trap '' TERM; echo ready; while :; do sleep 0.02; done");
	open_terminal(&lab, &terminal, "echo ready; exec bash -i || exec sh -i");
	wait_for_text(&lab, &trapper, OUTPUT_STDOUT, "ready");
	wait_for_text(&lab, &ignorer, OUTPUT_STDOUT, "ready");
	wait_for_text(&lab, &terminal, OUTPUT_TERMINAL, "ready");
	lab_close(&lab);
	assert_true(trapper.ended);
	assert_int_equal(trapper.record.code, 3);
	assert_string_equal(capture_text(&trapper, OUTPUT_STDOUT), "ready\nbye\n");
	assert_true(ignorer.ended);
	assert_int_equal(ignorer.record.signal, SIGKILL);
	assert_true(terminal.ended);
	capture_fini(&trapper);
	capture_fini(&ignorer);
	capture_fini(&terminal);
}

static void nothing_starts_while_stopping(void **state)
{
	static const char *const args[] = {"true", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct process *process;
	struct capture run;
	struct err err;

	lab_open(&lab, NULL);
	capture_init(&run);
	lab_spec(&spec, args);
	lab.table->phase = TABLE_TERMINATING;
	assert_true(process_open(lab.table, &spec, &run.subscriber, &process, &err) < 0);
	assert_int_equal(err.kind, ERR_UNAVAILABLE);
	lab.table->phase = TABLE_OPEN;
	capture_fini(&run);
	lab_close(&lab);
}

/* ---- terminals ---- */

static void case_057_the_size_is_there_from_the_first_instruction(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 20; i++) {
		struct capture run;

		open_terminal(&lab, &run, "stty size");
		capture_wait(&lab, &run);
		assert_string_equal(capture_text(&run, OUTPUT_TERMINAL), "37 133\r\n");
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void case_058_resize_arrives(void **state)
{
	struct process_lab lab;
	struct capture run, pipe;
	size_t i;

	lab_open(&lab, NULL);
	open_terminal(&lab, &run, "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done");
	wait_for_text(&lab, &run, OUTPUT_TERMINAL, "ready");
	for (i = 1; i <= 100; i++) {
		struct terminal_size size = {.cols = (uint16_t)(100 + i), .rows = 50};

		assert_int_equal(process_resize(run.process, size), 0);
	}
	wait_for_text(&lab, &run, OUTPUT_TERMINAL, "50 200\r\n");
	capture_init(&pipe);
	capture_shell(&lab, &pipe, "sleep 30");
	lab_run_until(&lab, &pipe.started);
	assert_int_equal(process_resize(pipe.process, (struct terminal_size){80, 24}), -ENOTTY);
	capture_fini(&pipe);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_060_the_terminal_s_end_is_no_error(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;

	lab_open(&lab, NULL);
	open_terminal(&lab, &run, "echo bye");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_TERMINAL), "bye\r\n");
	assert_string_equal(run.order, "soe");
	assert_int_equal(run.record.code, 0);
	capture_fini(&run);
	/* A child keeps the slave open: the end follows the leader. */
	began = now_ms(&lab);
	open_terminal(&lab, &run, "trap '' HUP; sleep 4 & echo bye; exit 3");
	capture_wait(&lab, &run);
	assert_true(now_ms(&lab) - began < 2500);
	assert_int_equal(run.record.code, 3);
	capture_fini(&run);
	lab_close(&lab);
}

/* Nobody has the terminal open for a while, and the leader lives: no hang-up, no lost output. */
static void case_060_a_terminal_closed_and_opened_again(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	open_terminal(&lab, &run,
		      "echo one; exec <&- >&- 2>&-; sleep 0.3; echo two >/dev/tty; sleep 0.1; exit 5");
	capture_wait(&lab, &run);
	assert_string_equal(capture_text(&run, OUTPUT_TERMINAL), "one\r\ntwo\r\n");
	assert_int_equal(run.record.code, 5);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_061_much_output_just_before_the_exit(void **state)
{
	struct process_lab lab;
	size_t i;

	lab_open(&lab, NULL);
	for (i = 0; i < 40; i++) {
		struct capture run;

		open_terminal(&lab, &run, "head -c 20480 /dev/zero | tr '\\0' h");
		capture_wait(&lab, &run);
		assert_int_equal(buf_length(&run.output[OUTPUT_TERMINAL]), 20480);
		capture_fini(&run);
	}
	lab_close(&lab);
}

static void case_064_unicode_and_term_by_default(void **state)
{
	static const struct spawn_variable given[] = {{"LANG", "POSIX"}, {"TERM", "vt100"}};
	static const char *const args[] = {"sh", "-c", "echo $TERM $LANG; stty -a", NULL};
	struct process_lab lab;
	struct process_spec spec;
	struct capture run;

	lab_open(&lab, NULL);
	lab_spec(&spec, args);
	spec.with_terminal = true;
	spec.size = (struct terminal_size){80, 24};
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "xterm-256color C.UTF-8\r\n"));
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), " iutf8"));
	capture_fini(&run);
	spec.variables = given;
	spec.variable_count = 2;
	capture_init(&run);
	capture_open(&lab, &run, &spec);
	capture_wait(&lab, &run);
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "vt100 POSIX\r\n"));
	capture_fini(&run);
	lab_close(&lab);
}

static void case_066_killing_a_terminal_ends_its_session(void **state)
{
	struct process_lab lab;
	struct capture run;
	struct killed killed;

	lab_open(&lab, NULL);
	open_terminal(&lab, &run,
		      "exec bash -c 'set -m; sleep 991.5 & disown; sleep 992.5 & echo ready; wait'");
	wait_for_text(&lab, &run, OUTPUT_TERMINAL, "ready");
	kill_and_wait(&lab, &run, &killed);
	lab_run_until_true(&lab, none_with_argument, (void *)(uintptr_t) "991.5");
	lab_run_until_true(&lab, none_with_argument, (void *)(uintptr_t) "992.5");
	capture_wait(&lab, &run);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_068_job_control(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	open_terminal(&lab, &run, "exec bash --norc -i");
	wait_for_text(&lab, &run, OUTPUT_TERMINAL, "# ");
	assert_true(write(run.process->terminal_fd, "tty; sleep 100 &\n", 17) == 17);
	wait_for_text(&lab, &run, OUTPUT_TERMINAL, "[1] ");
	assert_true(write(run.process->terminal_fd, "fg\n", 3) == 3);
	wait_for_text(&lab, &run, OUTPUT_TERMINAL, "fg\r\n");
	lab_run_for(&lab, 100);
	assert_true(write(run.process->terminal_fd, "\032", 1) == 1);
	wait_for_text(&lab, &run, OUTPUT_TERMINAL, "Stopped");
	assert_true(write(run.process->terminal_fd, "bg\nkill %1\nexit 4\nexit 4\n", 25) == 25);
	capture_wait(&lab, &run);
	assert_int_equal(run.record.code, 4);
	assert_non_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "/dev/pts/"));
	assert_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "no job control"));
	assert_null(strstr(capture_text(&run, OUTPUT_TERMINAL), "cannot set terminal process group"));
	capture_fini(&run);
	lab_close(&lab);
}

static void case_053_interactive_shell_without_a_terminal(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	run_shell(&lab, &run, "bash --norc -ic 'echo hi; sleep 0.1; echo done' 2>/dev/null; echo $?");
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "hi\ndone\n0\n");
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conformance_132_start_first_end_last),
		cmocka_unit_test(case_001_background_child_holds_the_pipe),
		cmocka_unit_test(case_001_left_child_is_not_killed_by_sigpipe),
		cmocka_unit_test(conformance_154_end_follows_the_leader),
		cmocka_unit_test(case_001_drain_is_bounded),
		cmocka_unit_test(case_002_closed_output_is_not_the_end),
		cmocka_unit_test(case_003_nothing_is_lost_at_the_end),
		cmocka_unit_test(case_012_characters_stay_whole),
		cmocka_unit_test(case_012_torn_character_does_not_wait_for_ever),
		cmocka_unit_test(case_013_lines_do_not_matter),
		cmocka_unit_test(case_011_bytes_are_not_altered),
		cmocka_unit_test(case_010_records_are_not_mixed),
		cmocka_unit_test(case_063_a_terminal_s_command_runs_once),
		cmocka_unit_test(case_076_a_memory_hog_dies_alone),
		cmocka_unit_test(case_018_tmp_is_not_needed),
		cmocka_unit_test(case_028_a_burst_keeps_apart),
		cmocka_unit_test(case_054_death_by_signal),
		cmocka_unit_test(conformance_155_killed_by_itself),
		cmocka_unit_test(conformance_145_fan_out),
		cmocka_unit_test(case_069_slow_reader_gets_the_same_later),
		cmocka_unit_test(case_004_program_waits_for_its_reader),
		cmocka_unit_test(case_004_the_rest_arrives_after_a_long_pause),
		cmocka_unit_test(case_006_stalled_reader_is_cut_and_the_others_go_on),
		cmocka_unit_test(case_006_slow_reader_with_progress_stays),
		cmocka_unit_test(case_007_readers_come_and_go),
		cmocka_unit_test(case_034_nobody_attached_never_blocks),
		cmocka_unit_test(case_005_disconnect_is_not_an_end),
		cmocka_unit_test(case_008_cancel_before_the_start),
		cmocka_unit_test(conformance_133_cancelled_before_start),
		cmocka_unit_test(keepalives_come_when_nothing_else_does),
		cmocka_unit_test(output_puts_keepalives_off),
		cmocka_unit_test(case_035_gone_from_the_list_after_a_kill),
		cmocka_unit_test(case_051_kill_reaches_the_whole_tree),
		cmocka_unit_test(conformance_147_kill_of_a_shell_with_children),
		cmocka_unit_test(case_052_escapees),
		cmocka_unit_test(case_051_term_reaches_the_group),
		cmocka_unit_test(kill_scope_leader_spares_the_children),
		cmocka_unit_test(case_055_a_stopped_process_dies_at_once),
		cmocka_unit_test(case_056_kill_does_not_wait_for_pending_output),
		cmocka_unit_test(case_046_timeout_is_deadline_exceeded),
		cmocka_unit_test(case_047_timeout_leaves_no_spinner),
		cmocka_unit_test(case_046_stalled_reader_hears_of_the_timeout),
		cmocka_unit_test(case_049_no_deadline_no_end),
		cmocka_unit_test(case_049_deadline_outlives_its_client),
		cmocka_unit_test(case_073_stop_terminates_then_kills),
		cmocka_unit_test(nothing_starts_while_stopping),
		cmocka_unit_test(case_057_the_size_is_there_from_the_first_instruction),
		cmocka_unit_test(case_058_resize_arrives),
		cmocka_unit_test(case_060_the_terminal_s_end_is_no_error),
		cmocka_unit_test(case_060_a_terminal_closed_and_opened_again),
		cmocka_unit_test(case_061_much_output_just_before_the_exit),
		cmocka_unit_test(case_064_unicode_and_term_by_default),
		cmocka_unit_test(case_066_killing_a_terminal_ends_its_session),
		cmocka_unit_test(case_068_job_control),
		cmocka_unit_test(case_053_interactive_shell_without_a_terminal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
