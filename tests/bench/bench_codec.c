/*
 * How fast messages become bytes and back: GB/s of payload (process output or input), by size, for
 * both codecs. Prints one line a measurement: name, payload bytes, GB/s.
 */
#include <time.h>

#include "envd/rpc/base64.h"
#include "envd/rpc/binary.h"
#include "envd/rpc/json_decode.h"
#include "envd/rpc/json_encode.h"
#include "lib/json.h"
#include "proto/process.pb-c.h"

#define MEASURE_SECONDS 0.3
#define MESSAGE_MAX (1024 * 1024)

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* The reader's side of the bytes, so that the compiler keeps the work. */
static void consume(const void *bytes)
{
	__asm__ volatile("" ::"r"(bytes) : "memory");
}

struct bench {
	size_t len;
	Process__StartResponse response;
	Process__ProcessEvent event;
	Process__ProcessEvent__DataEvent data;
	struct buf out;
	struct buf text; /* a SendInputRequest */
};

static void run(const char *name, struct bench *b, void (*once)(struct bench *b))
{
	double start = now(), end;
	size_t rounds = 0;

	do {
		for (int i = 0; i < 16; i++)
			once(b);
		rounds += 16;
		end = now();
	} while (end - start < MEASURE_SECONDS);
	printf("%-14s %8zu %8.2f GB/s\n", name, b->len,
	       (double)(rounds * b->len) / 1e9 / (end - start));
}

static void encode_base64(struct bench *b)
{
	base64_encode(b->data.stdout.data, b->len, buf_data(&b->out));
	consume(buf_data(&b->out));
}

static void encode_json(struct bench *b)
{
	buf_clear(&b->out);
	if (json_encode(&b->response.base, &b->out) < 0)
		abort();
	consume(buf_data(&b->out));
}

static void encode_binary(struct bench *b)
{
	buf_clear(&b->out);
	if (binary_encode(&b->response.base, &b->out) < 0)
		abort();
	consume(buf_data(&b->out));
}

static void decode_json(struct bench *b)
{
	const struct json_value *value;
	struct arena tree, message_arena;
	ProtobufCMessage *message;
	struct err err;

	arena_init(&tree, 16 * MESSAGE_MAX);
	arena_init(&message_arena, 16 * MESSAGE_MAX);
	if (json_parse(buf_str(&b->text), &tree, &value, &err) < 0 ||
	    json_decode(&process__send_input_request__descriptor, value, &message_arena, &message,
			&err) < 0)
		abort();
	consume(message);
	arena_release(&tree);
	arena_release(&message_arena);
}

static void fill(struct bench *b)
{
	char *room;
	size_t encoded = base64_encoded_length(b->len);

	buf_clear(&b->text);
	if (buf_append_str(&b->text, STR("{\"process\":{\"pid\":7},\"input\":{\"stdin\":\"")) < 0 ||
	    buf_reserve(&b->text, encoded, &room) < 0)
		abort();
	base64_encode(b->data.stdout.data, b->len, room);
	buf_commit(&b->text, encoded);
	if (buf_append_str(&b->text, STR("\"}}")) < 0)
		abort();
}

int main(void)
{
	static const size_t sizes[] = {64, 1024, 32 * 1024, 64 * 1024, MESSAGE_MAX};
	uint8_t *payload = xmalloc(MESSAGE_MAX);
	struct bench b;
	char *room;

	json_init();
	for (size_t i = 0; i < MESSAGE_MAX; i++)
		payload[i] = (uint8_t)(i * 2654435761u >> 13);
	process__start_response__init(&b.response);
	process__process_event__init(&b.event);
	process__process_event__data_event__init(&b.data);
	b.response.event = &b.event;
	b.event.event_case = PROCESS__PROCESS_EVENT__EVENT_DATA;
	b.event.data = &b.data;
	b.data.output_case = PROCESS__PROCESS_EVENT__DATA_EVENT__OUTPUT_STDOUT;
	buf_init(&b.out, 4 * MESSAGE_MAX);
	buf_init(&b.text, 4 * MESSAGE_MAX);
	if (buf_reserve(&b.out, 2 * MESSAGE_MAX, &room) < 0)
		abort();
	for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
		b.len = sizes[i];
		b.data.stdout = (ProtobufCBinaryData){b.len, payload};
		fill(&b);
		run("base64", &b, encode_base64);
		run("json-encode", &b, encode_json);
		run("json-decode", &b, decode_json);
		run("binary-encode", &b, encode_binary);
	}
	buf_fini(&b.out);
	buf_fini(&b.text);
	free(payload);
	return 0;
}
