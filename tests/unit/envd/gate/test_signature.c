#include "envd/gate/signature_http.h"
#include "tests/support/cmocka.h"

#define NOW 1700000000

static const struct signature_subject subject = {
	.path = {"/path/to/demo.txt", 17},
	.user_name = {"root", 4},
	.operation = "write",
	.expires = true,
	.expiration = NOW,
};

static void check(const struct signature_subject *s, const char *token, const char *want)
{
	char signature[SIGNATURE_BYTES];

	signature_make(s, str_of(token), signature);
	assert_string_equal(signature, want);
}

static void conformance_001_conformance_002_signatures_of_the_vectors(void **state)
{
	(void)state;
	check(&subject, "secret-access-token", "v1_lBs3UB8YidWbWkExnyxa81tZNSbGcpXdicXNVcYFZAs");
	check(&(struct signature_subject){STR("/path/to/resource.txt"), STR("user"), "read"},
	      "secret-access-token", "v1_/0lpZh0CqgZvu5XIwq2wcliltum4wAS2H36jVjFApV0");
	check(&(struct signature_subject){STR("demo.txt"), {NULL, 0}, "read"}, "tok",
	      "v1_g+4O6usFSRH68mPCdXPiQ9HJzMNcAPqLGWSrN/4dhDk");
	check(&(struct signature_subject){STR("hello.txt"), STR("user"), "read"},
	      "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
}

static void conformance_003_conformance_004_conformance_005_what_is_accepted(void **state)
{
	char signature[SIGNATURE_BYTES], other[SIGNATURE_BYTES];
	const struct str token = STR("secret-access-token");
	struct signature_subject changed;

	(void)state;
	signature_make(&subject, token, signature);
	assert_null(signature_check(&subject, token, str_of(signature), NOW - 3600));
	assert_null(signature_check(&subject, token, str_of(signature), NOW));
	assert_string_equal(signature_check(&subject, token, str_of(signature), NOW + 1),
			    "signature is already expired");
	assert_string_equal(signature_check(&subject, token, STR("v1_wrong_signature"), NOW),
			    "invalid signature");
	assert_string_equal(signature_check(&subject, token, STR(""), NOW), "invalid signature");
	/* A wrong one is not told that it is expired, too. */
	assert_string_equal(signature_check(&subject, token, STR("v1_wrong_signature"), NOW + 1),
			    "invalid signature");
	/* Every byte counts. */
	for (size_t i = 0; i < SIGNATURE_BYTES - 1; i++) {
		memcpy(other, signature, sizeof(other));
		other[i] ^= 1;
		assert_non_null(signature_check(&subject, token, str_of(other), NOW));
	}
	assert_non_null(signature_check(&subject, token,
					(struct str){signature, SIGNATURE_BYTES - 2}, NOW));
	assert_non_null(signature_check(&subject, STR("another token"), str_of(signature), NOW));
	/* So does every part. */
	changed = subject;
	changed.operation = "read";
	assert_non_null(signature_check(&changed, token, str_of(signature), NOW));
	changed = subject;
	changed.expiration++;
	assert_non_null(signature_check(&changed, token, str_of(signature), NOW));
	changed = subject;
	changed.expires = false;
	assert_non_null(signature_check(&changed, token, str_of(signature), NOW));
	changed = subject;
	changed.path.len--;
	assert_non_null(signature_check(&changed, token, str_of(signature), NOW));
	changed = subject;
	changed.user_name = (struct str){NULL, 0};
	assert_non_null(signature_check(&changed, token, str_of(signature), NOW));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conformance_001_conformance_002_signatures_of_the_vectors),
		cmocka_unit_test(conformance_003_conformance_004_conformance_005_what_is_accepted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
