#include "lib/digest.h"

#include <sys/random.h>
#include <sys/syscall.h>

#include "tests/support/cmocka.h"
#include "tests/support/refusal.h"

static void check_sha256(const struct str *pieces, size_t count, const char *want)
{
	unsigned char digest[DIGEST_SHA256_BYTES];
	char hex[2 * DIGEST_SHA256_BYTES + 1];

	digest_sha256(pieces, count, digest);
	for (size_t i = 0; i < sizeof(digest); i++)
		snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	assert_string_equal(hex, want);
}

/* The examples of FIPS 180-4. */
static void sha256_of_pieces(void **state)
{
	const struct str whole = STR("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq");
	const char *want = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";

	(void)state;
	check_sha256(NULL, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	check_sha256(&STR("abc"), 1,
		     "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	for (size_t cut = 0; cut <= whole.len; cut++) {
		const struct str pieces[] = {
			{whole.p, cut}, {NULL, 0}, {whole.p + cut, whole.len - cut}};

		check_sha256(pieces, ARRAY_LENGTH(pieces), want);
	}
}

static void sha512_in_hex(void **state)
{
	char hex[2 * DIGEST_SHA512_BYTES + 1];

	(void)state;
	digest_sha512_hex(STR(""), hex);
	assert_string_equal(hex,
			    "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce"
			    "47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e");
	digest_sha512_hex(STR("abc"), hex);
	assert_string_equal(hex,
			    "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
			    "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f");
}

/* RFC 4231, test case 2; and a key that is longer than a block, case 6. */
static void hmac_of_pieces(void **state)
{
	static const struct str pieces[] = {STR("what do ya want "), STR(""), STR("for nothing?")};
	static const struct str text = STR(
		"Test Using Larger Than Block-Size Key - Hash Key First");
	static const unsigned char jefe[] = {0x5b, 0xdc, 0xc1, 0x46},
				   large[] = {0x60, 0xe4, 0x31, 0x59};
	unsigned char mac[DIGEST_SHA256_BYTES];
	char key[131];

	(void)state;
	digest_hmac_sha256(STR("Jefe"), pieces, ARRAY_LENGTH(pieces), mac);
	assert_memory_equal(mac, jefe, sizeof(jefe));
	assert_int_equal(mac[31], 0x43);
	memset(key, 0xaa, sizeof(key));
	digest_hmac_sha256((struct str){key, sizeof(key)}, &text, 1, mac);
	assert_memory_equal(mac, large, sizeof(large));
	assert_int_equal(mac[31], 0x54);
}

/* SipHash-2-4 of nothing, under a key of zeros. */
#define SHORT_UNDER_NO_KEY 0x1e924b9d737700d7u

/* As before the kernel has gathered its randomness. */
static int early_in_a_machines_life(void)
{
	refusal_of_call(SYS_getrandom, 2, GRND_NONBLOCK, EAGAIN);
	return digest_short(STR("")) == SHORT_UNDER_NO_KEY;
}

/* ... where the kernel does not know how to give what it has by then. */
static int early_on_an_old_kernel(void)
{
	refusal_of_call(SYS_getrandom, 2, GRND_INSECURE, EINVAL);
	return early_in_a_machines_life();
}

static void short_digests_are_under_a_key_from_the_first_on(void **state)
{
	(void)state;
	refusal_in_child(early_in_a_machines_life);
	refusal_in_child(early_on_an_old_kernel);
	assert_true(digest_short(STR("")) != SHORT_UNDER_NO_KEY);
	assert_true(digest_short(STR("a")) == digest_short(STR("a")));
	assert_true(digest_short(STR("a")) != digest_short(STR("b")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sha256_of_pieces),
		cmocka_unit_test(sha512_in_hex),
		cmocka_unit_test(hmac_of_pieces),
		cmocka_unit_test(short_digests_are_under_a_key_from_the_first_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
