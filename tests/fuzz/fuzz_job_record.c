/* Any bytes as a job's record file: as they are, and with a head that fits them, so that what is
 * behind the checksum is reached. What is accepted is written again and must read the same. */
#include "envd/jobs/job_record.h"
#include "lib/digest.h"
#include "lib/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_same(const struct job_record *a, const struct job_record *b)
{
	assert(strcmp(a->id, b->id) == 0 && strcmp(a->boot_id, b->boot_id) == 0);
	assert(strcmp(a->name, b->name) == 0 && strcmp(a->client_key, b->client_key) == 0);
	assert(strcmp(a->message, b->message) == 0 && a->argc == b->argc);
	for (size_t i = 0; i < a->argc; i++)
		assert(strcmp(a->argv[i], b->argv[i]) == 0);
	assert(a->state == b->state && a->exit.code == b->exit.code && a->sequence == b->sequence);
	assert(a->place.lasting_mark == b->place.lasting_mark &&
	       a->exit.ended_ms == b->exit.ended_ms);
}

static void try(struct str text)
{
	struct job_record record, copy, again;
	struct arena arena, second;
	struct buf written;

	arena_init(&arena, 4 * 1024 * 1024);
	arena_init(&second, 16 * 1024 * 1024);
	buf_init(&written, 16 * 1024 * 1024);
	if (job_record_read(text, &arena, &record) == 0) {
		assert(job_record_copy(&record, &copy) == 0);
		check_same(&record, &copy);
		/* What is longer written than read is too large to be written at all. */
		if (job_record_write(&copy, &written) == 0) {
			assert(job_record_read(buf_str(&written), &second, &again) == 0);
			check_same(&record, &again);
		}
		job_record_settle(&copy);
		job_record_fini(&copy);
	}
	buf_fini(&written);
	arena_release(&second);
	arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready;
	struct str object = {(const char *)data, size};
	unsigned char digest[DIGEST_SHA256_BYTES];
	struct buf whole;

	if (!ready)
		json_init();
	ready = true;
	try(object);
	digest_sha256(&object, 1, digest);
	buf_init(&whole, 16 * 1024 * 1024);
	if (buf_append_str(&whole, STR("envd-job 1 ")) == 0) {
		for (size_t i = 0; i < 8; i++)
			assert(buf_printf(&whole, "%02x", digest[i]) == 0);
		assert(buf_printf(&whole, " %zu\n", size) == 0);
		if (size == 0 || buf_append(&whole, data, size) == 0)
			try(buf_str(&whole));
	}
	buf_fini(&whole);
	return 0;
}
