#include "envd/rpc/binary.h"

#include "envd/rpc/field.h"
#include "envd/rpc/json_decode.h"
#include "envd/rpc/json_encode.h"
#include "lib/limits.h"

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static bool take_varint(struct str *rest, uint64_t *ret_value)
{
	uint64_t value = 0;

	for (unsigned shift = 0; shift < 70; shift += 7) {
		unsigned char c;

		if (rest->len == 0)
			return false;
		c = (unsigned char)*rest->p;
		rest->p++;
		rest->len--;
		if (shift == 63 && c > 1)
			return false;
		value |= (uint64_t)(c & 0x7F) << shift;
		if (!(c & 0x80)) {
			*ret_value = value;
			return true;
		}
	}
	return false;
}

static bool take_bytes(struct str *rest, uint64_t len, struct str *ret_bytes)
{
	if (len > rest->len)
		return false;
	*ret_bytes = (struct str){rest->p, (size_t)len};
	str_skip(rest, (size_t)len);
	return true;
}

/* The value of one field, without its tag; *ret_bytes is set for WIRE_BYTES only. */
static bool take_value(struct str *rest, unsigned wire, struct str *ret_bytes)
{
	struct str skipped;
	uint64_t number;

	switch (wire) {
	case WIRE_VARINT:
		return take_varint(rest, &number);
	case WIRE_FIXED64:
		return take_bytes(rest, 8, &skipped);
	case WIRE_FIXED32:
		return take_bytes(rest, 4, &skipped);
	case WIRE_BYTES:
		return take_varint(rest, &number) && take_bytes(rest, number, ret_bytes);
	default: /* groups, which proto3 does not have, and nonsense */
		return false;
	}
}

static unsigned wire_of(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_BOOL:
	case PROTOBUF_C_TYPE_ENUM:
		return WIRE_VARINT;
	case PROTOBUF_C_TYPE_SFIXED32:
	case PROTOBUF_C_TYPE_FIXED32:
	case PROTOBUF_C_TYPE_FLOAT:
		return WIRE_FIXED32;
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return WIRE_FIXED64;
	case PROTOBUF_C_TYPE_STRING:
	case PROTOBUF_C_TYPE_BYTES:
	case PROTOBUF_C_TYPE_MESSAGE:
		break;
	}
	return WIRE_BYTES;
}

static int check(const ProtobufCMessageDescriptor *type, struct str bytes, unsigned depth,
		 struct err *err);

static int check_packed(const ProtobufCFieldDescriptor *field, struct str bytes, struct err *err)
{
	struct str unused;

	while (bytes.len > 0) {
		if (!take_value(&bytes, wire_of(field->type), &unused))
			return err_set(err, ERR_INVALID_ARGUMENT, "field \"%s\": cut short",
				       field->name);
	}
	return 0;
}

static int check_field(const ProtobufCFieldDescriptor *field, unsigned wire, struct str bytes,
		       unsigned depth, struct err *err)
{
	if (wire != wire_of(field->type)) {
		if (wire == WIRE_BYTES && field->label == PROTOBUF_C_LABEL_REPEATED)
			return check_packed(field, bytes, err);
		return err_set(err, ERR_INVALID_ARGUMENT, "field \"%s\": unexpected wire type %u",
			       field->name, wire);
	}
	if (field->type == PROTOBUF_C_TYPE_MESSAGE)
		return check(field->descriptor, bytes, depth + 1, err);
	if (field->type != PROTOBUF_C_TYPE_STRING)
		return 0;
	if (!str_is_utf8(bytes))
		return err_set(err, ERR_INVALID_ARGUMENT, "field \"%s\": invalid UTF-8",
			       field->name);
	if (memchr(bytes.p, '\0', bytes.len))
		return err_set(err, ERR_INVALID_ARGUMENT, "field \"%s\": string holds NUL",
			       field->name);
	return 0;
}

static int check(const ProtobufCMessageDescriptor *type, struct str bytes, unsigned depth,
		 struct err *err)
{
	if (depth > JSON_DEPTH_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "nested more than %d deep",
			       JSON_DEPTH_MAX);
	while (bytes.len > 0) {
		const ProtobufCFieldDescriptor *field;
		struct str content = {"", 0};
		uint64_t tag;
		int status;

		if (!take_varint(&bytes, &tag) || tag >> 3 == 0 || tag >> 3 >= (uint64_t)1 << 29 ||
		    !take_value(&bytes, tag & 7, &content))
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "cannot parse invalid wire-format data");
		field = protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
		status = field ? check_field(field, tag & 7, content, depth, err) : 0;
		if (status < 0)
			return status;
	}
	return 0;
}

struct unpack {
	struct arena *arena;
	bool refused;
};

static void *unpack_alloc(void *user, size_t size)
{
	struct unpack *u = user;
	void *memory = arena_alloc(u->arena, size);

	if (!memory)
		u->refused = true;
	return memory;
}

static void unpack_free(void *user, void *pointer)
{
}

struct map_slot {
	const char *key;
	size_t index;
};

static int compare_slots(const void *a, const void *b)
{
	const struct map_slot *x = a, *y = b;
	int order = strcmp(x->key, y->key);

	return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* Of entries with one key the last is kept; the others keep their order. */
static bool unite_keys(ProtobufCMessage **entries, size_t *count, struct arena *arena)
{
	const ProtobufCFieldDescriptor *key = entries[0]->descriptor->fields;
	struct map_slot *slots = arena_alloc_array(arena, *count, sizeof(*slots));
	size_t kept = 0;

	if (!slots)
		return false;
	for (size_t i = 0; i < *count; i++)
		slots[i] = (struct map_slot){*(char **)field_at(entries[i], key->offset), i};
	qsort(slots, *count, sizeof(*slots), compare_slots);
	for (size_t i = 0; i + 1 < *count; i++) {
		if (strcmp(slots[i].key, slots[i + 1].key) == 0)
			entries[slots[i].index] = NULL;
	}
	for (size_t i = 0; i < *count; i++) {
		if (entries[i])
			entries[kept++] = entries[i];
	}
	*count = kept;
	return true;
}

/* protobuf-c sees a map as a list; here it becomes one. */
static bool unite_maps(ProtobufCMessage *message, struct arena *arena)
{
	const ProtobufCMessageDescriptor *type = message->descriptor;

	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &type->fields[i];
		ProtobufCMessage **values = field_at(message, field->offset);
		size_t one = 1, *count = &one;

		if (field->type != PROTOBUF_C_TYPE_MESSAGE ||
		    (field_is_oneof(field) && *field_oneof_case(message, field) != field->id))
			continue;
		if (field->label == PROTOBUF_C_LABEL_REPEATED) {
			count = field_count(message, field);
			values = *(ProtobufCMessage ***)values;
		}
		if (*count > 1 && field_is_map(field) &&
		    values[0]->descriptor->fields[0].type == PROTOBUF_C_TYPE_STRING &&
		    !unite_keys(values, count, arena))
			return false;
		for (size_t k = 0; k < *count; k++) {
			if (values[k] && !unite_maps(values[k], arena))
				return false;
		}
	}
	return true;
}

int binary_decode(const ProtobufCMessageDescriptor *type, struct str bytes, struct arena *arena,
		  ProtobufCMessage **ret_message, struct err *err)
{
	struct unpack u = {.arena = arena};
	ProtobufCAllocator allocator = {unpack_alloc, unpack_free, &u};
	int status = check(type, bytes, 0, err);

	if (status < 0)
		return status;
	*ret_message = protobuf_c_message_unpack(type, &allocator, bytes.len,
						 (const uint8_t *)bytes.p);
	if (*ret_message && unite_maps(*ret_message, arena))
		return 0;
	if (u.refused || *ret_message)
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "message needs too much memory");
	return err_set(err, ERR_INVALID_ARGUMENT, "cannot parse invalid wire-format data");
}

static bool strings_are_utf8(const ProtobufCMessage *message);

static bool value_is_utf8(const ProtobufCFieldDescriptor *field, const void *value)
{
	const void *pointer;

	if (field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_MESSAGE)
		return true;
	pointer = *(void *const *)value;
	if (!pointer)
		return true;
	return field->type == PROTOBUF_C_TYPE_STRING ? str_is_utf8(str_of(pointer))
						     : strings_are_utf8(pointer);
}

static bool strings_are_utf8(const ProtobufCMessage *message)
{
	const ProtobufCMessageDescriptor *type = message->descriptor;

	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &type->fields[i];
		const char *value = field_at(message, field->offset);
		size_t size = field_element_size(field);
		size_t count = 1;

		if (field_is_oneof(field) && *field_oneof_case(message, field) != field->id)
			continue;
		if (field->label == PROTOBUF_C_LABEL_REPEATED) {
			count = *field_count(message, field);
			value = *(char *const *)value;
		}
		for (size_t k = 0; k < count; k++) {
			if (!value_is_utf8(field, value + k * size))
				return false;
		}
	}
	return true;
}

static int pack(const ProtobufCMessage *message, struct buf *out)
{
	size_t len = protobuf_c_message_get_packed_size(message);
	char *room;
	int status = buf_reserve(out, len, &room);

	if (status < 0)
		return status;
	protobuf_c_message_pack(message, (uint8_t *)room);
	buf_commit(out, len);
	return 0;
}

/* By way of JSON, whose writer replaces bad bytes; rare, so what counts is that it is right. */
static int pack_repaired(const ProtobufCMessage *message, struct buf *out)
{
	const struct json_value *value;
	ProtobufCMessage *repaired;
	struct arena arena;
	struct buf text;
	struct err err;
	int status;

	buf_init(&text, out->max);
	arena_init(&arena, SIZE_MAX / 2);
	status = json_encode(message, &text);
	if (status == 0 && (json_parse(buf_str(&text), &arena, &value, &err) < 0 ||
			    json_decode(message->descriptor, value, &arena, &repaired, &err) < 0))
		status = -ENOMEM;
	if (status == 0)
		status = pack(repaired, out);
	arena_release(&arena);
	buf_fini(&text);
	return status;
}

int binary_encode(const ProtobufCMessage *message, struct buf *out)
{
	return strings_are_utf8(message) ? pack(message, out) : pack_repaired(message, out);
}
