/* The key of a WebSocket's opening handshake, and the answer to it. */
#include "tests/support/cmocka.h"

#include "lib/tls/websocket_key.h"

/* The example of RFC 6455 section 1.3. */
static void websocket_keys(void **state)
{
	char one[WEBSOCKET_KEY_BYTES + 1], other[WEBSOCKET_KEY_BYTES + 1];
	struct str key = STR("dGhlIHNhbXBsZSBub25jZQ==");

	(void)state;
	assert_true(websocket_key_accepts(key, STR("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
	assert_false(websocket_key_accepts(key, STR("s3pPLMBiTxaQ9kYGzzhZRbK+xOp=")));
	assert_false(websocket_key_accepts(key, (struct str){NULL, 0}));
	assert_int_equal(websocket_key_make(one), 0);
	assert_int_equal(websocket_key_make(other), 0);
	assert_int_equal(strlen(one), WEBSOCKET_KEY_BYTES);
	assert_string_not_equal(one, other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(websocket_keys),
	};

	return cmocka_run_group_tests_name("websocket_key", tests, NULL, NULL);
}
