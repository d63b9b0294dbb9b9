/* Commands from start to end, on a real loop with real processes: output and death. */
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static void conformance_132_start_first_end_last(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	lab_run_shell(&lab, &run, "echo hello; echo oops >&2; exit 3");
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

/* Those that wait are nothing yet but what was asked for; without that a burst needs the
 * descriptors and the memory of all its commands at once. */
static void of_a_burst_few_are_under_way(void **state)
{
	struct capture runs[4 * JOB_STARTS_MAX];
	struct process_lab lab;

	lab_open(&lab, NULL);
	for (size_t i = 0; i < ARRAY_LENGTH(runs); i++) {
		capture_init(&runs[i]);
		capture_shell(&lab, &runs[i], "exit 3");
	}
	assert_int_equal(lab.loop.starts_running, JOB_STARTS_MAX);
	assert_int_equal(lab.loop.start_jobs, ARRAY_LENGTH(runs));
	for (size_t i = 0; i < ARRAY_LENGTH(runs); i++) {
		capture_wait(&lab, &runs[i]);
		assert_int_equal(runs[i].record.code, 3);
		capture_fini(&runs[i]);
	}
	lab_close(&lab);
}

/* `command` leaves a child behind and its number in $!; the child lives longer than the lab
 * waits. */
static void check_background_child(const char *command)
{
	struct process_lab lab;
	struct capture run, look;
	char script[256];

	lab_open(&lab, NULL);
	snprintf(script, sizeof(script), "%s echo hi; echo $! >%s/pid; exit 4", command,
		 lab.directory);
	lab_run_shell(&lab, &run, script);
	assert_int_equal(run.record.code, 4);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "hi\n");
	snprintf(script, sizeof(script), "kill -KILL $(cat %s/pid)", lab.directory);
	lab_run_shell(&lab, &look, script);
	assert_int_equal(look.record.code, 0);
	capture_fini(&look);
	capture_fini(&run);
	lab_close(&lab);
}

static void case_001_background_child_holds_the_pipe(void **state)
{
	check_background_child("sleep 1000 &");
	check_background_child("setsid sleep 1000 &");
	check_background_child("sleep 1000 >/dev/null &");
}

/* The child left behind writes a megabyte after the leader's exit: it must neither block nor
 * die. */
static void case_001_left_child_is_not_killed_by_sigpipe(void **state)
{
	struct process_lab lab;
	struct capture run, look;
	char script[512], check[256];

	lab_open(&lab, NULL);
	snprintf(
		script, sizeof(script),
		"(sleep 0.4; head -c 1000000 /dev/zero && echo survived > %s/ok) & echo hi; exit 4",
		lab.directory);
	lab_run_shell(&lab, &run, script);
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "hi\n");
	snprintf(check, sizeof(check),
		 "for i in $(seq 600); do [ -s %s/ok ] && break; sleep 0.05; done; cat %s/ok",
		 lab.directory, lab.directory);
	lab_run_shell(&lab, &look, check);
	assert_string_equal(capture_text(&look, OUTPUT_STDOUT), "survived\n");
	capture_fini(&look);
	capture_fini(&run);
	lab_close(&lab);
}

static void conformance_154_end_follows_the_leader(void **state)
{
	check_background_child("sh -c 'exec sleep 1000' &");
}

/* Trickling output keeps the drain going, but only for its limit. */
static void case_001_drain_is_bounded(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began, took_ms = UINT64_MAX;

	lab_open(&lab, NULL);
	/* Of several attempts one has to be in time: a machine may stall. */
	for (int tries = 0; tries < 5 && took_ms > PROCESS_DRAIN_MAX_MS + 1200; tries++) {
		began = lab_now_ms(&lab);
		lab_run_shell(
			&lab, &run,
			"(i=0; while [ $i -lt 120 ]; do echo x; sleep 0.02; i=$((i+1)); done) & "
			"sleep 0.1; exit 0");
		took_ms = lab_now_ms(&lab) - began;
		capture_fini(&run);
	}
	/* On a busy machine the trickle may pause long enough to count as quiet: that is sooner. */
	assert_in_range(took_ms, PROCESS_DRAIN_QUIET_MS, PROCESS_DRAIN_MAX_MS + 1200);
	lab_close(&lab);
}

static void case_002_closed_output_is_not_the_end(void **state)
{
	struct process_lab lab;
	struct capture run;
	uint64_t began;

	lab_open(&lab, NULL);
	began = lab_now_ms(&lab);
	lab_run_shell(&lab, &run, "exec >&- 2>&-; sleep 0.4; exit 7");
	assert_true(lab_now_ms(&lab) - began >= 400);
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
	lab_run_shell(&lab, &first, "seq 1 3000");
	for (i = 0; i < 60; i++) {
		struct capture run;

		lab_run_shell(&lab, &run,
			      i % 2 ? "seq 1 3000; exit 3" : "seq 1 3000; printf x; exit 3");
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
	lab_run_shell(&lab, &run, "printf x; yes '😀😀😀😀' | head -n 10000 | tr -d '\\n'");
	text = buf_str(&run.output[0]);
	assert_int_equal(text.len, 1 + 160000);
	assert_true(str_is_utf8(text));
	for (i = 1; i < text.len; i += 4)
		assert_memory_equal(text.p + i, "😀", 4);
	capture_fini(&run);
	/* A half one at the very end is delivered as it is, before the end. */
	lab_run_shell(&lab, &run, "printf 'ab\\360\\237'; exit 9");
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
	lab_wait_for_text(&lab, &run, OUTPUT_STDOUT, "ab\360\237");
	capture_fini(&run);
	lab_close(&lab);
}

static void case_013_lines_do_not_matter(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	lab_run_shell(&lab, &run, "printf 'a\\n\\nb\\r\\n\\r\\nc\\rd'");
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "a\n\nb\r\n\r\nc\rd");
	capture_fini(&run);
	capture_init(&run);
	capture_shell(&lab, &run, "printf partial; sleep 30");
	lab_wait_for_text(&lab, &run, OUTPUT_STDOUT, "partial");
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
	lab_run_shell(&lab, &run, script);
	assert_int_equal(buf_length(&run.output[0]), 2000000);
	assert_int_equal(buf_length(&run.output[1]), 2000000);
	assert_memory_equal(buf_data(&run.output[0]), bytes, 2000000);
	assert_memory_equal(buf_data(&run.output[1]), bytes, 2000000);
	assert_true(run.largest <= LOOP_SCRATCH_BYTES);
	free(bytes);
	capture_fini(&run);
	lab_close(&lab);
}

/* Records of 64 bytes on both channels at full speed, and a reader that takes its time: each
 * channel is an unbroken sequence. */
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
	lab_open_terminal(&lab, &run,
			  "stty raw; awk 'BEGIN { for (i = 0; i < 4000; i++) "
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
		lab_open_terminal(&lab, &run, script);
		capture_wait(&lab, &run);
		capture_fini(&run);
	}
	snprintf(script, sizeof(script), "wc -l < %s/n", lab.directory);
	lab_run_shell(&lab, &run, script);
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
		lab_run_shell(&lab, &hog, script);
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
	lab_run_shell(&lab, &run,
		      "mkdir -p $PWD/gone; cd gone; rmdir ../gone; exec sh -c 'echo ok'");
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

		lab_run_shell(&lab, &run, rows[i].script);
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
	lab_run_shell(&lab, &run, "kill -9 $$");
	assert_false(run.record.exited);
	assert_int_equal(run.record.signal, SIGKILL);
	assert_int_equal(run.record.code, -1);
	assert_false(run.record.stopped);
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conformance_132_start_first_end_last),
		cmocka_unit_test(of_a_burst_few_are_under_way),
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
