/* What the output of very many processes, whose readers are behind, keeps together. */
#include "envd/limits.h"
#include "envd/process/output_log.h"
#include "tests/support/cmocka.h"
#include "tests/support/held.h"

enum { LOGS = 600 };

static void logs_of_all_processes_have_a_sum(void **state)
{
	static struct output_log logs[LOGS];
	char *bytes = calloc(1, PROCESS_READ_BYTES);
	size_t before, sum = 0;

	(void)state;
	assert_non_null(bytes);
	before = held_bytes();
	for (size_t i = 0; i < LOGS; i++) {
		output_log_init(&logs[i]);
		while (output_log_has_room(&logs[i]))
			output_log_append(&logs[i], OUTPUT_STDOUT,
					  (struct str){bytes, PROCESS_READ_BYTES});
		assert_true(logs[i].memory >=
			    PROCESS_READ_BYTES); /* nobody waits for the readers of others */
		assert_true(logs[i].memory <= PROCESS_LOG_BYTES);
		sum += logs[i].memory;
	}
	assert_true(sum > PROCESS_LOGS_BYTES_MAX);
	assert_true(sum <= PROCESS_LOGS_BYTES_MAX + PROCESS_LOG_BYTES +
				   LOGS * (PROCESS_READ_BYTES + 1024));
	assert_true(held_at_most(before + sum + LOGS * 1024));
	/* What has been taken makes room, for this one and all others. */
	for (size_t i = 0; i < LOGS / 2; i++)
		output_log_trim(&logs[i], logs[i].end);
	assert_true(output_log_has_room(&logs[0]));
	assert_true(output_log_has_room(&logs[LOGS - 1]));
	for (size_t i = 0; i < LOGS; i++)
		output_log_fini(&logs[i]);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(logs_of_all_processes_have_a_sum),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
