/* WebSockets over HTTP/2 (RFC 8441): extended CONNECT, the upgrade that it becomes, both ends. */
#include <openssl/evp.h>
#include <openssl/sha.h>

#include "lib/tls/websocket_key.h"
#include "proxy/front/http2_private.h"
#include "tests/support/cmocka.h"
#include "tests/support/http2_lab.h"

#define WEBSOCKET \
	":method: CONNECT\n:protocol: websocket\n:scheme: https\n:authority: a\n:path: /chat\n" \
	"sec-websocket-version: 13\nsec-websocket-protocol: p\norigin: http://x\n"

static int accept_upgrade(size_t heard, const char *accept)
{
	struct http_exchange *ex = lab.heard[heard].ex;

	http_response_header(ex, STR("Upgrade"), STR("websocket"));
	http_response_header(ex, STR("Sec-WebSocket-Accept"), str_of(accept));
	http_response_header(ex, STR("Sec-WebSocket-Protocol"), STR("p"));
	return http_response_begin(ex, 101, HTTP_LENGTH_TUNNEL);
}

/* What a server answers to the key that this request brought. */
static void answer_to(size_t heard, char *ret_accept)
{
	const struct http_headers *headers = &lab.heard[heard].ex->request.headers;
	struct str key = http_headers_get(headers, STR("sec-websocket-key"));
	unsigned char digest[SHA_DIGEST_LENGTH];
	char joined[100];

	assert_int_equal(http_headers_count(headers, STR("sec-websocket-key")), 1);
	assert_int_equal(key.len, WEBSOCKET_KEY_BYTES);
	snprintf(joined, sizeof(joined), "%.*s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", (int)key.len,
		 key.p);
	SHA1((unsigned char *)joined, strlen(joined), digest);
	EVP_EncodeBlock((unsigned char *)ret_accept, digest, sizeof(digest));
}

static void s069_websocket_becomes_an_upgrade(void **state)
{
	const struct http_request *r;
	char text[] = "xyz";
	struct iovec piece = {text, 3};
	char accept[64];
	int32_t id;

	(void)state;
	id = http2_lab_ask(WEBSOCKET "sec-websocket-key: mine\n", true);
	r = &lab.heard[0].ex->request;
	assert_str(r->method, "GET");
	assert_str(r->path, "/chat");
	assert_str(r->upgrade, "websocket");
	assert_int_equal(r->length, HTTP_LENGTH_NONE);
	http2_lab_send(id, "early", 5, false);
	assert_int_equal(buf_length(&lab.heard[0].body), 0);
	answer_to(0, accept);
	lab.heard[0].ex->forget_head = true;
	accept_upgrade(0, accept);
	http2_lab_settle();
	assert_null(http_headers_get(&r->headers, STR("origin")).p);
	assert_str(r->path, "/chat");
	assert_string_equal(http2_lab_seen(id)->status, "200");
	assert_true(http2_lab_has_field(id, "sec-websocket-protocol: p\n"));
	assert_false(http2_lab_has_field(id, "sec-websocket-accept"));
	assert_false(http2_lab_has_field(id, "upgrade"));
	assert_str(buf_str(&lab.heard[0].body), "early");
	assert_int_equal(http_response_write(lab.heard[0].ex, &piece, 1), 0);
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "xyz");
	/* Each direction ends by itself. */
	http2_lab_send(id, "bye", 3, true);
	assert_int_equal(lab.heard[0].ends, 1);
	assert_int_equal(lab.heard[0].closed, 0);
	assert_int_equal(http_response_write(lab.heard[0].ex, &piece, 1), 0);
	assert_int_equal(http_response_end(lab.heard[0].ex, NULL), 0);
	http2_lab_settle();
	assert_str(buf_str(&http2_lab_seen(id)->body), "xyzxyz");
	assert_int_equal(lab.heard[0].closed, 1);
	assert_int_equal(lab.heard[0].status, 0);
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
}

static void s069_our_end_first_and_resets(void **state)
{
	char accept[64];
	int32_t id;

	(void)state;
	id = http2_lab_ask(WEBSOCKET, true);
	answer_to(0, accept);
	accept_upgrade(0, accept);
	assert_int_equal(http_response_end(lab.heard[0].ex, NULL), 0);
	http2_lab_settle();
	assert_true(http2_lab_seen(id)->ended);
	assert_false(http2_lab_seen(id)->closed);
	assert_int_equal(lab.heard[0].closed, 0);
	http2_lab_send(id, "more", 4, true);
	assert_str(buf_str(&lab.heard[0].body), "more");
	assert_int_equal(lab.heard[0].status, 0);
	assert_int_equal(lab.heard[0].closed, 1);

	id = http2_lab_ask(WEBSOCKET, true);
	answer_to(1, accept);
	accept_upgrade(1, accept);
	http_exchange_abort(lab.heard[1].ex);
	http2_lab_settle();
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_CANCEL);
	assert_false(http2_lab_seen(id)->ended);
}

static void s064_an_answer_that_does_not_fit_the_key(void **state)
{
	int32_t id;

	(void)state;
	id = http2_lab_ask(WEBSOCKET, true);
	assert_int_equal(accept_upgrade(0, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), -EPROTO);
	/* Any 2xx would be taken for a WebSocket. */
	assert_int_equal(http_response_begin(lab.heard[0].ex, 200, 0), -EPROTO);
	assert_int_equal(http_response_begin(lab.heard[0].ex, 299, HTTP_LENGTH_CHUNKED), -EPROTO);
	http2_lab_settle();
	assert_string_equal(http2_lab_seen(id)->status, "");
	assert_int_equal(lab.heard[0].closed, 0);
	/* The handler may still say so. */
	lab.heard[0].ex->response_headers.count = 0;
	http_respond(lab.heard[0].ex, 502, "text/plain", STR("no"));
	http2_lab_settle();
	assert_string_equal(http2_lab_seen(id)->status, "502");
	assert_str(buf_str(&http2_lab_seen(id)->body), "no");
	assert_int_equal(lab.heard[0].closed, 1);
	assert_true(http2_lab_seen(id)->closed);
}

static void s063_an_upgrade_that_is_refused(void **state)
{
	int32_t id;

	(void)state;
	id = http2_lab_ask(WEBSOCKET, true);
	http_respond(lab.heard[0].ex, 401, "text/plain", STR("who?"));
	http2_lab_settle();
	assert_string_equal(http2_lab_seen(id)->status, "401");
	assert_str(buf_str(&http2_lab_seen(id)->body), "who?");
	assert_int_equal(http2_lab_seen(id)->code, NGHTTP2_NO_ERROR);
}

int main(void)
{
#define TEST(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, http2_lab_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(s069_websocket_becomes_an_upgrade, http2_lab_set_up_patient),
		TEST(s069_our_end_first_and_resets, http2_lab_set_up_patient),
		TEST(s064_an_answer_that_does_not_fit_the_key, http2_lab_set_up_patient),
		TEST(s063_an_upgrade_that_is_refused, http2_lab_set_up_patient),
	};

	return cmocka_run_group_tests_name("http2_websocket", tests, NULL, NULL);
}
