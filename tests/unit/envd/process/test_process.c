/* Commands from start to end, on a real loop with real processes. */
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/process_lab.h"

static void conformance_132_start_first_end_last(void **state)
{
	struct process_lab lab;
	struct capture run;

	lab_open(&lab, NULL);
	capture_init(&run);
	capture_shell(&lab, &run, "echo hello");
	capture_wait(&lab, &run);
	assert_string_equal(run.order, "soe");
	assert_string_equal(capture_text(&run, OUTPUT_STDOUT), "hello\n");
	assert_true(run.record.exited);
	assert_int_equal(run.record.code, 0);
	assert_null(process_table_find(lab.table, run.pid));
	capture_fini(&run);
	lab_close(&lab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conformance_132_start_first_end_last),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
