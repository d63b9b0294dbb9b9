/*
 * A loop, a real HTTP server and methods whose behaviour the test chooses, for whole-call tests of
 * envd/rpc. The request is a process.StartRequest everywhere but in the client stream: its `cmd`
 * says what the handler does.
 *
 *   unary          "echo": a ListResponse whose one process has the request's config and pid 7;
 *                  "fail": not_found; "wait": nothing until the test answers through last_call;
 *                  "drop": drops the message, then waits
 *   server stream  "echo": start, one stdout event per argument, end of stream; "last": one event
 *                  through rpc_send_last; "empty": the end at once; "fail": not_found first;
 *                  "late": start, then internal; "flood": 1024 events of 64 KiB at the client's
 *                  pace; "tiny": 10,000 events; "wait"; "drop"
 *   client stream  notes each message; `manual` leaves asking for the next to the test
 */
#ifndef TESTS_SUPPORT_RPC_FIXTURE_H
#define TESTS_SUPPORT_RPC_FIXTURE_H

#include "envd/rpc/rpc.h"
#include "lib/http_server.h"
#include "tests/support/wire_client.h"

#define RPC_FIXTURE_FLOOD_EVENTS 1024
#define RPC_FIXTURE_FLOOD_BYTES 65536
#define RPC_FIXTURE_TINY_EVENTS 10000

struct rpc_fixture {
	struct loop loop;
	struct http_server *server;
	bool stopped;
	/* What happened. */
	unsigned started, closed, deadlines, messages, message_ends, message_errors, drained, full;
	int closed_status;
	struct rpc_call *last_call;
	struct rpc_call seen; /* a copy of the last call's public part, as start saw it */
	char notes[4096]; /* of client stream messages: "start 7;data hello;" */
	struct err last_error;
	/* What handlers do. */
	bool handle_deadline; /* on_deadline ends the stream itself */
	bool hold; /* take a hold at start */
	bool manual;
	bool handle_message_error;
	bool reject; /* every call is answered with rpc_reject */
	unsigned flooded;
};

/* cmocka's setup and teardown; *state is the fixture. */
int rpc_fixture_setup(void **state);
int rpc_fixture_teardown(void **state);

/* A connection with one request on it; `headers` are whole lines. Content-Length is added. */
void rpc_request(struct rpc_fixture *f, struct wire_client *c, const char *path,
		 const char *headers, struct str body);
/* The same and its response; `Connection: close` is added. */
void rpc_exchange(struct rpc_fixture *f, const char *path, const char *headers, struct str body,
		  struct wire_response *ret_response);
/* {flags, payload} of the next envelope in a body, cut off *rest; false at the end. */
bool rpc_take_envelope(struct str *rest, unsigned *ret_flags, struct str *ret_payload);
/* One envelope around `payload`, in memory the next call reuses. */
struct str rpc_envelope(unsigned flags, struct str payload);

#endif
