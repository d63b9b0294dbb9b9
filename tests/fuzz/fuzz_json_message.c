/*
 * JSON to a message and back: what is accepted is written in a form that reads back as the same
 * text, and the binary form of it says the same.
 */
#include "envd/rpc/binary.h"
#include "envd/rpc/json_decode.h"
#include "envd/rpc/json_encode.h"
#include "tests/fuzz/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ProtobufCMessage *decode(const ProtobufCMessageDescriptor *type, struct str text,
				struct arena *arena, struct err *err)
{
	const struct json_value *value;
	ProtobufCMessage *message;

	if (json_parse(text, arena, &value, err) < 0 ||
	    json_decode(type, value, arena, &message, err) < 0)
		return NULL;
	return message;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready;
	const ProtobufCMessageDescriptor *type;
	ProtobufCMessage *message, *again;
	struct buf one, two, binary;
	struct arena arena;
	struct err err;

	if (!ready)
		json_init();
	ready = true;
	if (size < 1)
		return 0;
	type = message_types[data[0] % ARRAY_LENGTH(message_types)];
	arena_init(&arena, 64 * 1024 * 1024);
	buf_init(&one, 8 * 1024 * 1024);
	buf_init(&two, 8 * 1024 * 1024);
	buf_init(&binary, 8 * 1024 * 1024);
	message = decode(type, (struct str){(const char *)data + 1, size - 1}, &arena, &err);
	if (message) {
		assert(json_encode(message, &one) == 0);
		again = decode(type, buf_str(&one), &arena, &err);
		assert(again);
		assert(json_encode(again, &two) == 0);
		assert(str_equal(buf_str(&one), buf_str(&two)));
		assert(binary_encode(message, &binary) == 0);
		assert(binary_decode(type, buf_str(&binary), &arena, &again, &err) == 0);
		buf_clear(&two);
		assert(json_encode(again, &two) == 0);
		assert(str_equal(buf_str(&one), buf_str(&two)));
	} else {
		assert(err.kind == ERR_INVALID_ARGUMENT || err.kind == ERR_RESOURCE_EXHAUSTED);
		assert(str_is_utf8(str_of(err.message)));
	}
	buf_fini(&one);
	buf_fini(&two);
	buf_fini(&binary);
	arena_release(&arena);
	return 0;
}
