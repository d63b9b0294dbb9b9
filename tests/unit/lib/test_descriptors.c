/* How descriptors are shared out. */
#include <sys/resource.h>
#include <unistd.h>

#include "envd/limits.h"
#include "lib/descriptors.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/valgrind.h"

static void limit_to(rlim_t count)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = count;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void case_183_shares_leave_some_for_every_kind(void **state)
{
	const size_t shared = DESCRIPTORS_PARTS_CONNECTIONS + DESCRIPTORS_PARTS_FORWARDED +
			      DESCRIPTORS_PARTS_KEPT;

	(void)state;
	assert_true(shared < DESCRIPTORS_PARTS);
	limit_to(64);
	assert_int_equal(descriptors_share(DESCRIPTORS_PARTS_CONNECTIONS), 24);
	limit_to(512);
	assert_int_equal(descriptors_share(DESCRIPTORS_PARTS_CONNECTIONS), 192);
}

static void case_183_the_last_ones_are_not_for_work_that_stays(void **state)
{
	const size_t max = 256, kept = max / DESCRIPTORS_PARTS;
	int taken[256];
	size_t count = 0;
	struct err err;

	(void)state;
	NOT_UNDER_VALGRIND("it keeps descriptors of its own above the limit");
	limit_to(max);
	assert_int_equal(descriptors_check(&err), 0);
	for (int fd; count < ARRAY_LENGTH(taken) && (fd = dup(STDERR_FILENO)) >= 0; count++) {
		taken[count] = fd;
		assert_int_equal(descriptors_check(&err),
				 (size_t)fd + 1 < max - kept ? 0 : -EMFILE);
	}
	assert_int_equal(errno, EMFILE);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	assert_non_null(strstr(err.message, "RLIMIT_NOFILE"));
	/* Whatever the number: a hole is a descriptor that is free. */
	close(taken[0]);
	assert_int_equal(descriptors_check(&err), 0);
	for (size_t i = 1; i < count; i++)
		close(taken[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_183_shares_leave_some_for_every_kind),
		cmocka_unit_test(case_183_the_last_ones_are_not_for_work_that_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
