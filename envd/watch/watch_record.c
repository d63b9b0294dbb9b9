#include "envd/watch/watch_record.h"

struct head {
	uint32_t length;
	uint8_t type, cause;
	uint16_t error;
};

static_assert(sizeof(struct head) == WATCH_RECORD_HEAD_BYTES, "as documented");

int watch_record_append(struct buf *b, const struct watch_record *record)
{
	struct head head = {
		.length = (uint32_t)record->text.len,
		.type = (uint8_t)record->type,
		.cause = (uint8_t)record->cause,
		.error = (uint16_t)record->error,
	};
	char *room;
	int status;

	if (record->text.len > WATCH_RECORD_TEXT_MAX)
		return -ENAMETOOLONG;
	status = buf_reserve(b, sizeof(head) + record->text.len, &room);
	if (status < 0)
		return status;
	memcpy(room, &head, sizeof(head));
	if (record->text.len)
		memcpy(room + sizeof(head), record->text.p, record->text.len);
	buf_commit(b, sizeof(head) + record->text.len);
	return 0;
}

int watch_record_take(struct str *bytes, struct watch_record *ret_record)
{
	struct head head;

	if (bytes->len < sizeof(head))
		return 0;
	memcpy(&head, bytes->p, sizeof(head));
	if (head.length > WATCH_RECORD_TEXT_MAX || head.type > WATCH_RECORD_DRAINED ||
	    head.cause > WATCH_CAUSE_ENTRIES)
		return -EPROTO;
	if (bytes->len < sizeof(head) + head.length)
		return 0;
	*ret_record = (struct watch_record){
		.type = (enum watch_record_type)head.type,
		.cause = (enum watch_cause)head.cause,
		.error = head.error,
		.text = {bytes->p + sizeof(head), head.length},
	};
	str_skip(bytes, sizeof(head) + head.length);
	return 1;
}
