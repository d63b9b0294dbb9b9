#include "envd/jobs/job_record.h"

#include <signal.h>

#include "envd/limits.h"
#include "lib/digest.h"
#include "lib/json.h"

#define MAGIC "envd-job 1 "
#define CHECKSUM_DIGITS 16

bool job_id_is_valid(struct str id)
{
	if (id.len == 0 || id.len >= JOB_ID_BYTES)
		return false;
	for (size_t i = 0; i < id.len; i++)
		if (!((id.p[i] >= 'a' && id.p[i] <= 'z') || (id.p[i] >= '0' && id.p[i] <= '9')))
			return false;
	return true;
}

/* ---- copies ---- */

static size_t size_of(const char *text)
{
	return strlen(text) + 1;
}

static const char *put(char **room, const char *text)
{
	char *copy = *room;

	*room += size_of(text);
	return memcpy(copy, text, size_of(text));
}

int job_record_copy(const struct job_record *record, struct job_record *ret_copy)
{
	size_t size = record->argc * sizeof(char *) + size_of(record->name) +
		      size_of(record->client_key) + size_of(record->cwd) +
		      size_of(record->user_name) + size_of(record->webhook_url) +
		      size_of(record->webhook_key) + size_of(record->message);
	struct job_record copy = *record;
	const char **argv;
	char *room;
	size_t i;

	for (i = 0; i < record->argc; i++)
		size += size_of(record->argv[i]);
	argv = copy.texts = malloc(size);
	if (!argv)
		return -ENOMEM;
	room = (char *)(argv + record->argc);
	for (i = 0; i < record->argc; i++)
		argv[i] = put(&room, record->argv[i]);
	copy.argv = argv;
	copy.name = put(&room, record->name);
	copy.client_key = put(&room, record->client_key);
	copy.cwd = put(&room, record->cwd);
	copy.user_name = put(&room, record->user_name);
	copy.webhook_url = put(&room, record->webhook_url);
	copy.webhook_key = put(&room, record->webhook_key);
	copy.message = put(&room, record->message);
	*ret_copy = copy;
	return 0;
}

void job_record_fini(struct job_record *record)
{
	if (record->texts)
		wipe((char *)(uintptr_t)record->webhook_key, strlen(record->webhook_key));
	free(record->texts);
	record->texts = NULL;
}

/* ---- the end ---- */

/* Killed after its time was over, and by nobody else. */
static bool has_timed_out(const struct job_record *record)
{
	return record->exit.timed_out && record->exit.signal == SIGKILL &&
	       !record->stop_requested_ms;
}

void job_record_settle(struct job_record *record)
{
	struct exit_record *exit = &record->exit;

	exit->stopped = record->stop_requested_ms != 0;
	exit->timed_out = has_timed_out(record);
	record->failure = JOB_FAILURE_NONE;
	if (record->stop_requested_ms) {
		record->state = JOB_CANCELLED;
	} else if (exit->exited && exit->code == 0) {
		record->state = JOB_COMPLETED;
	} else {
		record->state = JOB_FAILED;
		if (exit->timed_out)
			record->failure = JOB_FAILURE_TIME_LIMIT;
		else if (exit->out_of_memory)
			record->failure = JOB_FAILURE_OUT_OF_MEMORY;
		else
			record->failure = exit->exited ? JOB_FAILURE_EXIT_CODE : JOB_FAILURE_SIGNAL;
	}
}

/* ---- the fields that are numbers, for both ways ---- */

enum number_type { NUMBER_U64, NUMBER_I64, NUMBER_U32, NUMBER_INT, NUMBER_BOOL, NUMBER_U16 };

struct number_field {
	const char *name;
	enum number_type type;
	size_t offset;
};

#define FIELD(name, type, member) \
	{ \
		name, type, offsetof(struct job_record, member) \
	}

static const struct number_field number_fields[] = {
	FIELD("sequence", NUMBER_U64, sequence),
	FIELD("argvIsCut", NUMBER_BOOL, argv_is_cut),
	FIELD("hasTerminal", NUMBER_BOOL, has_terminal),
	FIELD("cols", NUMBER_U16, size.cols),
	FIELD("rows", NUMBER_U16, size.rows),
	FIELD("memoryBytes", NUMBER_U64, limits.memory_bytes),
	FIELD("pids", NUMBER_U32, limits.pids),
	FIELD("cpuMillis", NUMBER_U32, limits.cpu_millis),
	FIELD("wallTimeMs", NUMBER_U64, wall_time_ms),
	FIELD("outputBytes", NUMBER_U64, output_bytes),
	FIELD("notEnforced", NUMBER_U32, not_enforced),
	FIELD("stopGraceMs", NUMBER_U64, stop_grace_ms),
	FIELD("stdinMode", NUMBER_INT, stdin_mode),
	FIELD("outputMode", NUMBER_INT, output_mode),
	FIELD("state", NUMBER_INT, state),
	FIELD("failure", NUMBER_INT, failure),
	FIELD("pid", NUMBER_INT, pid),
	FIELD("createdMs", NUMBER_I64, created_ms),
	FIELD("stopRequestedMs", NUMBER_I64, stop_requested_ms),
	FIELD("startedMs", NUMBER_I64, exit.started_ms),
	FIELD("endedMs", NUMBER_I64, exit.ended_ms),
	FIELD("endedSteadyMs", NUMBER_I64, ended_steady_ms),
	FIELD("hasExit", NUMBER_BOOL, has_exit),
	FIELD("exited", NUMBER_BOOL, exit.exited),
	FIELD("code", NUMBER_INT, exit.code),
	FIELD("signal", NUMBER_INT, exit.signal),
	FIELD("coreDumped", NUMBER_BOOL, exit.core_dumped),
	FIELD("timedOut", NUMBER_BOOL, exit.timed_out),
	FIELD("stopped", NUMBER_BOOL, exit.stopped),
	FIELD("outOfMemory", NUMBER_BOOL, exit.out_of_memory),
	FIELD("userUs", NUMBER_U64, exit.user_us),
	FIELD("systemUs", NUMBER_U64, exit.system_us),
	FIELD("peakRssBytes", NUMBER_U64, exit.peak_rss_bytes),
	FIELD("cgroupKind", NUMBER_INT, place.kind),
	FIELD("cgroupNumber", NUMBER_U64, place.number),
	FIELD("cgroupMark", NUMBER_U64, place.lasting_mark),
	FIELD("outputIncomplete", NUMBER_BOOL, output_incomplete),
	FIELD("webhookAttempts", NUMBER_U32, webhook_attempts),
	FIELD("webhookDelivered", NUMBER_BOOL, webhook_delivered),
};

_Static_assert(sizeof(enum job_state) == sizeof(int) && sizeof(pid_t) == sizeof(int) &&
		       sizeof(unsigned) == sizeof(uint32_t),
	       "the types of the table");

/* 64-bit ones keep their bits; JSON has only signed integers here. */
static int64_t get_number(const struct job_record *record, const struct number_field *field)
{
	const void *at = (const char *)record + field->offset;

	switch (field->type) {
	case NUMBER_U64:
	case NUMBER_I64:
		return *(const int64_t *)at;
	case NUMBER_U32:
		return *(const uint32_t *)at;
	case NUMBER_INT:
		return *(const int *)at;
	case NUMBER_BOOL:
		return *(const bool *)at;
	case NUMBER_U16:
		return *(const uint16_t *)at;
	}
	return 0;
}

static void set_number(struct job_record *record, const struct number_field *field, int64_t value)
{
	void *at = (char *)record + field->offset;

	switch (field->type) {
	case NUMBER_U64:
	case NUMBER_I64:
		*(int64_t *)at = value;
		break;
	case NUMBER_U32:
		*(uint32_t *)at = (uint32_t)value;
		break;
	case NUMBER_INT:
		*(int *)at = (int)value;
		break;
	case NUMBER_BOOL:
		*(bool *)at = value != 0;
		break;
	case NUMBER_U16:
		*(uint16_t *)at = (uint16_t)value;
		break;
	}
}

struct text_field {
	const char *name;
	size_t offset;
};

#define TEXT(name, member) \
	{ \
		name, offsetof(struct job_record, member) \
	}

static const struct text_field text_fields[] = {
	TEXT("name", name),
	TEXT("clientKey", client_key),
	TEXT("cwd", cwd),
	TEXT("userName", user_name),
	TEXT("webhookUrl", webhook_url),
	TEXT("webhookKey", webhook_key),
	TEXT("message", message),
};

static const char **text_at(struct job_record *record, const struct text_field *field)
{
	return (const char **)((char *)record + field->offset);
}

/* ---- writing ---- */

static int write_pair(struct buf *b, const char *name, const char *text)
{
	int status = buf_printf(b, ",\"%s\":", name);

	return status < 0 ? status : json_write_string(b, str_of(text), false);
}

static int write_object(const struct job_record *record, struct buf *b)
{
	int status = buf_printf(b, "{\"id\":\"%s\",\"bootId\":\"%s\"", record->id, record->boot_id);
	size_t i;

	for (i = 0; i < ARRAY_LENGTH(text_fields) && status == 0; i++)
		status = write_pair(
			b, text_fields[i].name,
			*text_at((struct job_record *)(uintptr_t)record, &text_fields[i]));
	for (i = 0; i < ARRAY_LENGTH(number_fields) && status == 0; i++) {
		int64_t value = get_number(record, &number_fields[i]);

		if (value != 0)
			status = buf_printf(b, ",\"%s\":%lld", number_fields[i].name,
					    (long long)value);
	}
	if (status == 0)
		status = buf_append_str(b, STR(",\"argv\":["));
	for (i = 0; i < record->argc && status == 0; i++) {
		if (i > 0)
			status = buf_append_str(b, STR(","));
		if (status == 0)
			status = json_write_string(b, str_of(record->argv[i]), false);
	}
	return status < 0 ? status : buf_append_str(b, STR("]}\n"));
}

static void make_checksum(struct str text, char ret_hex[CHECKSUM_DIGITS + 1])
{
	unsigned char digest[DIGEST_SHA256_BYTES];

	digest_sha256(&text, 1, digest);
	for (size_t i = 0; i < CHECKSUM_DIGITS / 2; i++)
		snprintf(ret_hex + 2 * i, 3, "%02x", digest[i]);
}

int job_record_write(const struct job_record *record, struct buf *b)
{
	char checksum[CHECKSUM_DIGITS + 1];
	struct buf object;
	int status;

	buf_init(&object, JOB_RECORD_BYTES_MAX);
	status = write_object(record, &object);
	if (status == 0) {
		make_checksum(buf_str(&object), checksum);
		status = buf_printf(b, MAGIC "%s %zu\n", checksum, buf_length(&object));
	}
	if (status == 0)
		status = buf_append_str(b, buf_str(&object));
	buf_fini_wiped(&object);
	return status;
}

/* ---- reading ---- */

static int read_head(struct str *text)
{
	char checksum[CHECKSUM_DIGITS + 1];
	struct str line, found;
	uint64_t len;

	if (!str_starts_with(*text, STR(MAGIC)) || !str_split(text, '\n', &line))
		return -EBADMSG;
	str_skip(&line, sizeof(MAGIC) - 1);
	if (!str_split(&line, ' ', &found) || str_to_u64(line, JOB_RECORD_BYTES_MAX, &len) < 0 ||
	    len != text->len)
		return -EBADMSG;
	make_checksum(*text, checksum);
	return str_equal(found, str_of(checksum)) ? 0 : -EBADMSG;
}

static int read_fixed(const struct json_value *object, struct str key, char *room, size_t size)
{
	const struct json_value *value = json_get(object, key);
	struct str text = value ? json_string(value) : (struct str){NULL, 0};

	if (text.len >= size)
		return -EBADMSG;
	if (text.len)
		memcpy(room, text.p, text.len);
	room[text.len] = '\0';
	return 0;
}

static int read_argv(const struct json_value *object, struct arena *arena,
		     struct job_record *record)
{
	const struct json_value *list = json_get(object, STR("argv"));
	size_t count = list ? json_length(list) : 0, i;
	const char **argv = arena_alloc_array(arena, count + 1, sizeof(*argv));

	if (!argv)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		const struct json_value *element = json_at(list, i);

		argv[i] = element && json_type(element) == JSON_STRING ? json_string(element).p
								       : "";
	}
	record->argv = argv;
	record->argc = count;
	return 0;
}

static bool is_sound(const struct job_record *record)
{
	return job_id_is_valid(str_of(record->id)) && record->state >= JOB_PENDING &&
	       record->state <= JOB_CANCELLED && record->failure >= JOB_FAILURE_NONE &&
	       record->failure <= JOB_FAILURE_LOST && record->stdin_mode >= JOB_STDIN_NONE &&
	       record->stdin_mode <= JOB_STDIN_FILE && record->output_mode >= JOB_OUTPUT_SPLIT &&
	       record->output_mode <= JOB_OUTPUT_MERGED && record->place.kind >= CGROUP_NONE &&
	       (int)record->place.kind < CGROUP_KINDS;
}

int job_record_read(struct str text, struct arena *arena, struct job_record *ret_record)
{
	const struct json_value *object, *value;
	struct job_record record = {.texts = NULL};
	struct err err;
	size_t i;

	if (read_head(&text) < 0)
		return -EBADMSG;
	if (json_parse(text, arena, &object, &err) < 0)
		return err.kind == ERR_RESOURCE_EXHAUSTED ? -ENOMEM : -EBADMSG;
	if (json_type(object) != JSON_OBJECT ||
	    read_fixed(object, STR("id"), record.id, sizeof(record.id)) < 0 ||
	    read_fixed(object, STR("bootId"), record.boot_id, sizeof(record.boot_id)) < 0)
		return -EBADMSG;
	for (i = 0; i < ARRAY_LENGTH(text_fields); i++) {
		value = json_get(object, str_of(text_fields[i].name));
		*text_at(&record, &text_fields[i]) = value && json_type(value) == JSON_STRING
							     ? json_string(value).p
							     : "";
	}
	for (i = 0; i < ARRAY_LENGTH(number_fields); i++) {
		value = json_get(object, str_of(number_fields[i].name));
		if (value)
			set_number(&record, &number_fields[i], json_int(value));
	}
	if (read_argv(object, arena, &record) < 0)
		return -ENOMEM;
	if (!is_sound(&record))
		return -EBADMSG;
	*ret_record = record;
	return 0;
}
