/* Binary to a message, to JSON and back: both forms of what is accepted say the same. */
#include "envd/rpc/binary.h"
#include "envd/rpc/json_decode.h"
#include "envd/rpc/json_encode.h"
#include "tests/fuzz/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready;
	const ProtobufCMessageDescriptor *type;
	const struct json_value *value;
	ProtobufCMessage *message, *again;
	struct buf one, two;
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
	if (binary_decode(type, (struct str){(const char *)data + 1, size - 1}, &arena, &message,
			  &err) == 0) {
		assert(json_encode(message, &one) == 0);
		assert(str_is_utf8(buf_str(&one)));
		assert(json_parse(buf_str(&one), &arena, &value, &err) == 0);
		assert(json_decode(type, value, &arena, &again, &err) == 0);
		assert(json_encode(again, &two) == 0);
		assert(str_equal(buf_str(&one), buf_str(&two)));
		/* And once more through the binary form of what came back. */
		buf_clear(&two);
		assert(binary_encode(again, &two) == 0);
		assert(binary_decode(type, buf_str(&two), &arena, &message, &err) == 0);
		buf_clear(&two);
		assert(json_encode(message, &two) == 0);
		assert(str_equal(buf_str(&one), buf_str(&two)));
	} else {
		assert(err.kind == ERR_INVALID_ARGUMENT || err.kind == ERR_RESOURCE_EXHAUSTED);
	}
	buf_fini(&one);
	buf_fini(&two);
	arena_release(&arena);
	return 0;
}
