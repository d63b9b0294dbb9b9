#include "envd/jobs/job_record.h"

#include <signal.h>

#include "envd/limits.h"
#include "lib/digest.h"
#include "lib/json.h"
#include "lib/json_writer.h"

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

/* ---- the fields: what is copied, written and read ---- */

struct field {
	const char *name;
	size_t offset, size; /* size: of a number */
};

#define FIELD(name, member) \
	{ \
		name, offsetof(struct job_record, member), \
			sizeof(((struct job_record *)0)->member) \
	}

static const struct field texts[] = {
	FIELD("name", name),
	FIELD("clientKey", client_key),
	FIELD("cwd", cwd),
	FIELD("userName", user_name),
	FIELD("webhookUrl", webhook_url),
	FIELD("webhookKey", webhook_key),
	FIELD("message", message),
};

static const struct field numbers[] = {
	FIELD("sequence", sequence),
	FIELD("argvIsCut", argv_is_cut),
	FIELD("hasTerminal", has_terminal),
	FIELD("cols", size.cols),
	FIELD("rows", size.rows),
	FIELD("memoryBytes", limits.memory_bytes),
	FIELD("pids", limits.pids),
	FIELD("cpuMillis", limits.cpu_millis),
	FIELD("wallTimeMs", wall_time_ms),
	FIELD("outputBytes", output_bytes),
	FIELD("notEnforced", not_enforced),
	FIELD("stopGraceMs", stop_grace_ms),
	FIELD("stdinMode", stdin_mode),
	FIELD("outputMode", output_mode),
	FIELD("state", state),
	FIELD("failure", failure),
	FIELD("pid", pid),
	FIELD("createdMs", created_ms),
	FIELD("stopRequestedMs", stop_requested_ms),
	FIELD("startedMs", exit.started_ms),
	FIELD("endedMs", exit.ended_ms),
	FIELD("endedSteadyMs", ended_steady_ms),
	FIELD("hasExit", has_exit),
	FIELD("exited", exit.exited),
	FIELD("code", exit.code),
	FIELD("signal", exit.signal),
	FIELD("coreDumped", exit.core_dumped),
	FIELD("timedOut", exit.timed_out),
	FIELD("stopped", exit.stopped),
	FIELD("outOfMemory", exit.out_of_memory),
	FIELD("userUs", exit.user_us),
	FIELD("systemUs", exit.system_us),
	FIELD("peakRssBytes", exit.peak_rss_bytes),
	FIELD("cgroupKind", place.kind),
	FIELD("cgroupNumber", place.number),
	FIELD("cgroupMark", place.lasting_mark),
	FIELD("outputIncomplete", output_incomplete),
	FIELD("webhookAttempts", webhook_attempts),
	FIELD("webhookDelivered", webhook_delivered),
};

_Static_assert(sizeof(enum job_state) == sizeof(int32_t) && sizeof(pid_t) == sizeof(int32_t) &&
		       sizeof(unsigned) == sizeof(uint32_t),
	       "the sizes of the table's numbers");

/* 64-bit ones keep their bits, as all others do: JSON has only signed integers here. */
static int64_t get_number(const struct job_record *record, const struct field *field)
{
	const void *at = (const char *)record + field->offset;

	switch (field->size) {
	case sizeof(int64_t):
		return *(const int64_t *)at;
	case sizeof(int32_t):
		return *(const int32_t *)at;
	case sizeof(uint16_t):
		return *(const uint16_t *)at;
	default:
		return *(const bool *)at;
	}
}

static void set_number(struct job_record *record, const struct field *field, int64_t value)
{
	void *at = (char *)record + field->offset;

	switch (field->size) {
	case sizeof(int64_t):
		*(int64_t *)at = value;
		break;
	case sizeof(int32_t):
		*(int32_t *)at = (int32_t)value;
		break;
	case sizeof(uint16_t):
		*(uint16_t *)at = (uint16_t)value;
		break;
	default:
		*(bool *)at = value != 0;
		break;
	}
}

static const char **text_at(const struct job_record *record, const struct field *field)
{
	return (const char **)((char *)(uintptr_t)record + field->offset);
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
	size_t size = record->argc * sizeof(char *), i;
	struct job_record copy = *record;
	const char **argv;
	char *room;

	for (i = 0; i < ARRAY_LENGTH(texts); i++)
		size += size_of(*text_at(record, &texts[i]));
	for (i = 0; i < record->argc; i++)
		size += size_of(record->argv[i]);
	argv = copy.texts = malloc(size);
	if (!argv)
		return -ENOMEM;
	room = (char *)(argv + record->argc);
	for (i = 0; i < record->argc; i++)
		argv[i] = put(&room, record->argv[i]);
	copy.argv = argv;
	for (i = 0; i < ARRAY_LENGTH(texts); i++)
		*text_at(&copy, &texts[i]) = put(&room, *text_at(record, &texts[i]));
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

void job_record_set_lost(struct job_record *record, enum job_failure failure, const char *message)
{
	struct job_record changed, copy;

	record->state = record->stop_requested_ms ? JOB_CANCELLED : JOB_FAILED;
	record->failure = failure;
	if (!record->exit.ended_ms)
		record->exit.ended_ms = wall_clock_ms();
	record->exit.code = -1;
	changed = *record;
	changed.message = message;
	if (job_record_copy(&changed, &copy) < 0)
		return;
	job_record_fini(record);
	*record = copy;
}

/* ---- writing ---- */

static int write_object(const struct job_record *record, struct buf *b)
{
	struct json_writer w;
	size_t i;

	json_writer_init(&w, b);
	json_writer_object(&w, NULL);
	json_writer_text(&w, "id", str_of(record->id));
	json_writer_text(&w, "bootId", str_of(record->boot_id));
	for (i = 0; i < ARRAY_LENGTH(texts); i++)
		json_writer_text(&w, texts[i].name, str_of(*text_at(record, &texts[i])));
	for (i = 0; i < ARRAY_LENGTH(numbers); i++)
		if (get_number(record, &numbers[i]))
			json_writer_int(&w, numbers[i].name, get_number(record, &numbers[i]));
	json_writer_array(&w, "argv");
	for (i = 0; i < record->argc; i++)
		json_writer_text(&w, NULL, str_of(record->argv[i]));
	json_writer_array_end(&w);
	json_writer_object_end(&w);
	return json_writer_status(&w) < 0 ? json_writer_status(&w) : buf_append_str(b, STR("\n"));
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

/* "" when there is none. */
static const char *read_text(const struct json_value *value)
{
	return value && json_type(value) == JSON_STRING ? json_string(value).p : "";
}

static int read_fixed(const struct json_value *object, struct str key, char *room, size_t size)
{
	const char *text = read_text(json_get(object, key));

	if (strlen(text) >= size)
		return -EBADMSG;
	memcpy(room, text, strlen(text) + 1);
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
	for (i = 0; i < count; i++)
		argv[i] = read_text(json_at(list, i));
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
	for (i = 0; i < ARRAY_LENGTH(texts); i++)
		*text_at(&record, &texts[i]) = read_text(json_get(object, str_of(texts[i].name)));
	for (i = 0; i < ARRAY_LENGTH(numbers); i++) {
		value = json_get(object, str_of(numbers[i].name));
		if (value)
			set_number(&record, &numbers[i], json_int(value));
	}
	if (read_argv(object, arena, &record) < 0)
		return -ENOMEM;
	if (!is_sound(&record))
		return -EBADMSG;
	*ret_record = record;
	return 0;
}
