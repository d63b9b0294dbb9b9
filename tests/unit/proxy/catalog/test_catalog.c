#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "proxy/catalog/catalog.h"

static struct sandbox_entry entry_of(const char *id, const char *address)
{
	return (struct sandbox_entry){
		.id = id,
		.state = SANDBOX_RUNNING,
		.address = address,
		.lifecycle_id = "",
		.traffic_token = "",
		.mask_host = "",
		.envd_token_hash = "",
		.connection_limit = CATALOG_NO_LIMIT,
	};
}

static struct catalog_record *put(struct catalog *catalog, const struct sandbox_entry *entry)
{
	struct catalog_record *record;
	struct err err;

	if (catalog_put(catalog, entry, "", &record, &err) < 0)
		fail_msg("%s", err.message);
	return record;
}

static void set_state(struct sandbox_entry *entry, void *user)
{
	entry->state = *(enum sandbox_state *)user;
}

static struct catalog_record *change_state(struct catalog *catalog, const char *id,
					   enum sandbox_state state)
{
	struct catalog_record *record;
	struct err err;

	if (catalog_edit(catalog, str_of(id), "", set_state, &state, &record, &err) < 0)
		fail_msg("%s", err.message);
	return record;
}

static void add_find_remove(void **state)
{
	struct catalog *catalog = catalog_new(2, 1000, 16);
	struct sandbox_entry entry = entry_of("abc", "10.0.0.5");
	struct catalog_record *record, *found;
	struct err err;

	(void)state;
	assert_int_equal(catalog_find(catalog, STR("abc"), &found), -ENOENT);
	entry.traffic_token = "secret";
	entry.mask_host = "localhost:${PORT}";
	record = put(catalog, &entry);
	assert_int_equal(catalog_find(catalog, STR("abc"), &found), 0);
	assert_ptr_equal(found, record);
	assert_string_equal(found->entry.address, "10.0.0.5");
	assert_string_equal(found->entry.traffic_token, "secret");
	assert_string_equal(found->entry.mask_host, "localhost:${PORT}");
	assert_int_equal(strlen(found->entry.lifecycle_id), 32);
	assert_int_equal(found->address.any.sa_family, AF_INET);
	catalog_record_release(found);

	assert_int_equal(catalog_remove(catalog, STR("abc"), "other", &err), -EPROTO);
	assert_int_equal(err.kind, ERR_FAILED_PRECONDITION);
	assert_int_equal(catalog_remove(catalog, STR("abc"), record->entry.lifecycle_id, &err), 0);
	assert_int_equal(catalog_find(catalog, STR("abc"), &found), -ENOENT);
	assert_true(lifecycle_has_ended(record->lifecycle));
	assert_string_equal(record->entry.address, "10.0.0.5"); /* a reference keeps it whole */
	catalog_record_release(record);
	assert_true(catalog_remove(catalog, STR("abc"), "", &err) < 0);
	assert_int_equal(err.kind, ERR_NOT_FOUND);
	assert_int_equal(catalog_count(catalog), 0);
	catalog_free(catalog);
}

/* Who takes back what he said takes nothing of what somebody else has said since. */
static void removing_what_one_origin_said(void **state)
{
	struct catalog *catalog = catalog_new(1, 10, 4);
	struct sandbox_entry entry = entry_of("abc", "10.0.0.5");
	struct catalog_record *record;

	(void)state;
	assert_false(catalog_remove_of(catalog, STR("abc"), SANDBOX_FROM_REDIS));
	entry.origin = SANDBOX_FROM_REDIS;
	catalog_record_release(put(catalog, &entry));
	assert_false(catalog_remove_of(catalog, STR("abc"), SANDBOX_FROM_ADMIN));
	entry.origin = SANDBOX_FROM_ADMIN;
	catalog_record_release(put(catalog, &entry));
	assert_false(catalog_remove_of(catalog, STR("abc"), SANDBOX_FROM_REDIS));
	assert_int_equal(catalog_find(catalog, STR("abc"), &record), 0);
	assert_true(catalog_remove_of(catalog, STR("abc"), SANDBOX_FROM_ADMIN));
	assert_true(lifecycle_has_ended(record->lifecycle));
	catalog_record_release(record);
	assert_int_equal(catalog_count(catalog), 0);
	catalog_free(catalog);
}

static void entries_are_checked(void **state)
{
	struct catalog *catalog = catalog_new(1, 2, 4);
	struct sandbox_entry entries[] = {
		entry_of("", "10.0.0.5"),     entry_of("A", "10.0.0.5"),
		entry_of("a-b", "10.0.0.5"),  entry_of("a", ""),
		entry_of("a", "10.0.0.5:80"), entry_of("a", "http://x"),
		entry_of("a", "host name"),   entry_of("a", "10.0.0.5"),
		entry_of("a", "10.0.0.5"),    entry_of("a", "10.0.0.5"),
	};
	struct err err;

	(void)state;
	entries[7].envd_port = 65536;
	entries[8].connection_limit = -2;
	entries[9].mask_host = "a\r\nX: y";
	for (size_t i = 0; i < ARRAY_LENGTH(entries); i++) {
		assert_true(catalog_put(catalog, &entries[i], "", NULL, &err) < 0);
		assert_int_equal(err.kind, ERR_INVALID_ARGUMENT);
	}
	entries[3].state = SANDBOX_PAUSED; /* a paused one is nowhere */
	assert_int_equal(catalog_put(catalog, &entries[3], "", NULL, &err), 0);
	entries[4] = entry_of("b", "sandbox-b.internal");
	assert_int_equal(catalog_put(catalog, &entries[4], "", NULL, &err), 0);
	entries[4].id = "c";
	assert_true(catalog_put(catalog, &entries[4], "", NULL, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	catalog_free(catalog);
}

static void s018_lifecycles(void **state)
{
	struct catalog *catalog = catalog_new(1, 10, 16);
	struct sandbox_entry entry = entry_of("a", "10.0.0.5");
	struct catalog_record *first = put(catalog, &entry), *second, *third;

	(void)state;
	/* The same again, and a pause that begins: one life goes on. */
	second = put(catalog, &entry);
	assert_ptr_equal(first->lifecycle, second->lifecycle);
	catalog_record_release(second);
	second = change_state(catalog, "a", SANDBOX_PAUSING);
	assert_ptr_equal(first->lifecycle, second->lifecycle);
	assert_false(lifecycle_has_ended(first->lifecycle));
	catalog_record_release(second);

	/* The pause ends it; the id is still shown; resuming makes a new one. */
	second = change_state(catalog, "a", SANDBOX_PAUSED);
	assert_true(lifecycle_has_ended(first->lifecycle));
	assert_ptr_not_equal(first->lifecycle, second->lifecycle);
	assert_string_equal(first->entry.lifecycle_id, second->entry.lifecycle_id);
	third = change_state(catalog, "a", SANDBOX_RUNNING);
	assert_string_not_equal(second->entry.lifecycle_id, third->entry.lifecycle_id);
	catalog_record_release(first);
	catalog_record_release(second);

	/* Another address, envd port or given id: another life. */
	entry.address = "10.0.0.6";
	first = put(catalog, &entry);
	assert_true(lifecycle_has_ended(third->lifecycle));
	catalog_record_release(third);
	entry.envd_port = 5000;
	second = put(catalog, &entry);
	assert_true(lifecycle_has_ended(first->lifecycle));
	entry.lifecycle_id = "run-2";
	third = put(catalog, &entry);
	assert_true(lifecycle_has_ended(second->lifecycle));
	assert_string_equal(third->entry.lifecycle_id, "run-2");
	catalog_record_release(first);
	catalog_record_release(second);
	first = put(catalog, &entry);
	assert_ptr_equal(first->lifecycle, third->lifecycle);
	catalog_record_release(first);
	catalog_record_release(third);
	catalog_free(catalog);
}

static void s001_incomplete_catalog_does_not_know(void **state)
{
	struct catalog *catalog = catalog_new(1, 10, 16);
	struct catalog_record *found;

	(void)state;
	catalog_set_complete(catalog, false);
	assert_int_equal(catalog_find(catalog, STR("a"), &found), -EAGAIN);
	catalog_set_complete(catalog, true);
	assert_int_equal(catalog_find(catalog, STR("a"), &found), -ENOENT);
	catalog_free(catalog);
}

struct counter {
	struct catalog_listener listener;
	int calls;
};

static void count_call(struct catalog_listener *listener)
{
	container_of(listener, struct counter, listener)->calls++;
}

static void change_feed(void **state)
{
	struct catalog *catalog = catalog_new(1, 100, 4);
	struct sandbox_entry entry = entry_of("a", "10.0.0.5");
	struct counter counter = {.listener.notify = count_call};
	struct catalog_change changes[8];
	struct err err;
	uint64_t revision;
	size_t count;

	(void)state;
	catalog_listen(catalog, &counter.listener);
	catalog_record_release(put(catalog, &entry));
	catalog_record_release(change_state(catalog, "a", SANDBOX_PAUSED));
	assert_int_equal(catalog_remove(catalog, STR("a"), "", &err), 0);
	assert_int_equal(counter.calls, 3);
	assert_int_equal(catalog_changes(catalog, 0, changes, 2), 2);
	assert_int_equal(changes[0].kind, CATALOG_PUT);
	assert_int_equal(changes[0].record->entry.state, SANDBOX_RUNNING);
	assert_int_equal(changes[1].record->entry.state, SANDBOX_PAUSED);
	revision = changes[1].revision;
	catalog_record_release(changes[0].record);
	catalog_record_release(changes[1].record);
	assert_int_equal(catalog_changes(catalog, revision, changes, 8), 1);
	assert_int_equal(changes[0].kind, CATALOG_REMOVED);
	assert_string_equal(changes[0].record->entry.id, "a");
	catalog_record_release(changes[0].record);
	assert_int_equal(catalog_changes(catalog, 3, changes, 8), 0);
	assert_int_equal(catalog_changes(catalog, 4, changes, 8), -EOVERFLOW); /* the future */

	for (int i = 0; i < 5; i++)
		catalog_record_release(put(catalog, &entry));
	assert_int_equal(catalog_changes(catalog, 3, changes, 8), -EOVERFLOW);
	count = (size_t)catalog_changes(catalog, 4, changes, 8);
	assert_int_equal(count, 4);
	assert_int_equal(changes[3].revision, 8);
	for (size_t i = 0; i < count; i++)
		catalog_record_release(changes[i].record);
	catalog_unlisten(catalog, &counter.listener);
	catalog_record_release(put(catalog, &entry));
	assert_int_equal(counter.calls, 8);
	catalog_free(catalog);
}

static void case_167_limit_is_exact(void **state)
{
	struct catalog *catalog = catalog_new(1, 10, 4);
	struct sandbox_entry entry = entry_of("a", "10.0.0.5");
	struct catalog_record *record;

	(void)state;
	entry.connection_limit = 2;
	record = put(catalog, &entry);
	assert_int_equal(catalog_admit(record), 1);
	assert_int_equal(catalog_admit(record), 2);
	assert_int_equal(catalog_admit(record), -EBUSY);
	lifecycle_leave(record->lifecycle);
	assert_int_equal(catalog_admit(record), 2);
	lifecycle_leave(record->lifecycle);
	lifecycle_leave(record->lifecycle);
	assert_int_equal(record->lifecycle->active, 0);
	catalog_record_release(record);
	entry.connection_limit = 0;
	record = put(catalog, &entry);
	assert_int_equal(catalog_admit(record), -EBUSY);
	catalog_record_release(record);
	entry.connection_limit = -1;
	record = put(catalog, &entry);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(catalog_admit(record), i + 1);
	for (int i = 0; i < 1000; i++)
		lifecycle_leave(record->lifecycle);
	catalog_record_release(record);
	catalog_free(catalog);
}

struct admissions {
	struct catalog_record *record;
	_Atomic uint8_t *told; /* by number, how often */
};

enum { ADMISSIONS_EACH = 20000 };

static void *admit_many(void *user)
{
	struct admissions *admissions = user;

	for (int i = 0; i < ADMISSIONS_EACH; i++)
		atomic_fetch_add(&admissions->told[catalog_admit(admissions->record)], 1);
	return NULL;
}

/* The number is one's own, whoever else comes at that moment: numbers of a sandbox's connections
 * are counted by it. */
static void every_admission_is_told_a_number_of_its_own(void **state)
{
	struct catalog *catalog = catalog_new(1, 10, 4);
	struct sandbox_entry entry = entry_of("a", "10.0.0.5");
	struct admissions admissions;
	pthread_t threads[4];
	size_t count = ARRAY_LENGTH(threads) * ADMISSIONS_EACH;

	(void)state;
	entry.connection_limit = -1;
	admissions.record = put(catalog, &entry);
	admissions.told = xcalloc(count + 1, 1);
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, admit_many, &admissions), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 1; i <= count; i++)
		assert_int_equal(admissions.told[i], 1);
	for (size_t i = 0; i < count; i++)
		lifecycle_leave(admissions.record->lifecycle);
	free((void *)admissions.told);
	catalog_record_release(admissions.record);
	catalog_free(catalog);
}

/* Dropping what nobody uses never ends what somebody does. */
static void retired_only_when_unused(void **state)
{
	struct catalog *catalog = catalog_new(1, 10, 4);
	struct sandbox_entry entry = entry_of("a", "10.0.0.5");
	struct catalog_record *record = put(catalog, &entry), *again;

	(void)state;
	assert_int_equal(catalog_admit(record), 1);
	assert_false(catalog_retire(catalog, record));
	assert_false(lifecycle_has_ended(record->lifecycle));
	lifecycle_leave(record->lifecycle);
	assert_true(catalog_retire(catalog, record));
	assert_true(lifecycle_has_ended(record->lifecycle));
	/* Who had found it a moment before looks again. */
	assert_int_equal(catalog_admit(record), -ESTALE);
	assert_false(catalog_retire(catalog, record));
	assert_false(catalog_remove_record(catalog, record));
	again = put(catalog, &entry);
	assert_false(catalog_remove_record(catalog, record)); /* not this one */
	assert_int_equal(catalog_admit(again), 1);
	lifecycle_leave(again->lifecycle);
	assert_true(catalog_remove_record(catalog, again));
	assert_int_equal(catalog_count(catalog), 0);
	catalog_record_release(record);
	catalog_record_release(again);
	catalog_free(catalog);
}

static void sources_do_not_overrule_people(void **state)
{
	static const struct {
		enum sandbox_origin old, new;
		bool replaced;
	} rows[] = {
		{SANDBOX_FROM_DNS, SANDBOX_FROM_DNS, true},
		{SANDBOX_FROM_DNS, SANDBOX_FROM_REDIS, true},
		{SANDBOX_FROM_REDIS, SANDBOX_FROM_REDIS, true},
		{SANDBOX_FROM_REDIS, SANDBOX_FROM_DNS, false},
		{SANDBOX_FROM_ADMIN, SANDBOX_FROM_REDIS, false},
		{SANDBOX_FROM_COMMAND_LINE, SANDBOX_FROM_DNS, false},
		{SANDBOX_FROM_REDIS, SANDBOX_FROM_ADMIN, true},
		{SANDBOX_FROM_COMMAND_LINE, SANDBOX_FROM_ADMIN, true},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		struct catalog *catalog = catalog_new(1, 10, 4);
		struct sandbox_entry entry = entry_of("a", "10.0.0.5");
		struct err err;
		int status;

		entry.origin = rows[i].old;
		catalog_record_release(put(catalog, &entry));
		entry.origin = rows[i].new;
		status = catalog_put(catalog, &entry, "", NULL, &err);
		assert_int_equal(status == 0, rows[i].replaced);
		if (status < 0)
			assert_int_equal(err.kind, ERR_ALREADY_EXISTS);
		catalog_free(catalog);
	}
}

/* What catalog_put would do, without doing it. */
static void preview(void **state)
{
	struct catalog *catalog = catalog_new(1, 1, 4);
	struct sandbox_entry entry = entry_of("a", "10.0.0.5");
	char id[CATALOG_TEXT_BYTES_MAX + 1];
	struct catalog_record *record;
	struct err err;

	(void)state;
	assert_int_equal(catalog_preview(catalog, &entry, "", id, &err), 0);
	assert_int_equal(strlen(id), 32);
	assert_int_equal(catalog_count(catalog), 0);
	record = put(catalog, &entry);
	assert_int_equal(catalog_preview(catalog, &entry, "", id, &err), 0);
	assert_string_equal(id, record->lifecycle->id);
	assert_true(catalog_preview(catalog, &entry, "other", id, &err) < 0);
	assert_int_equal(err.kind, ERR_FAILED_PRECONDITION);
	entry.state = SANDBOX_PAUSED;
	assert_int_equal(catalog_preview(catalog, &entry, "", id, &err), 0);
	assert_string_equal(id, record->lifecycle->id);
	entry.state = SANDBOX_RUNNING;
	entry.address = "10.0.0.6";
	assert_int_equal(catalog_preview(catalog, &entry, "", id, &err), 0);
	assert_string_not_equal(id, record->lifecycle->id);
	entry.lifecycle_id = "given";
	assert_int_equal(catalog_preview(catalog, &entry, record->lifecycle->id, id, &err), 0);
	assert_string_equal(id, "given");
	entry.address = "";
	assert_true(catalog_preview(catalog, &entry, "", id, &err) < 0);
	entry = entry_of("b", "10.0.0.5");
	assert_true(catalog_preview(catalog, &entry, "", id, &err) < 0);
	assert_int_equal(err.kind, ERR_RESOURCE_EXHAUSTED);
	catalog_record_release(record);
	catalog_free(catalog);
}

#define CHURN_IDS 3000
#define CHURN_ROUNDS 4

struct churn {
	struct catalog *catalog;
	atomic_bool stop;
	atomic_uint wrong, found, over;
};

static void name_of(unsigned i, char *ret_id)
{
	snprintf(ret_id, 16, "i%u", i);
}

static void *look_up(void *user)
{
	struct churn *churn = user;
	unsigned i = 0;

	while (!atomic_load(&churn->stop)) {
		struct catalog_record *record;
		char id[16];

		name_of(i++ % CHURN_IDS, id);
		if (catalog_find(churn->catalog, str_of(id), &record) < 0)
			continue;
		atomic_fetch_add(&churn->found, 1);
		if (strcmp(record->entry.id, id) != 0 ||
		    strcmp(record->entry.address, "10.0.0.5") != 0)
			atomic_fetch_add(&churn->wrong, 1);
		int active = catalog_admit(record);

		if (active > 0) {
			if (active > 3 || record->lifecycle->active > 3)
				atomic_fetch_add(&churn->over, 1);
			lifecycle_leave(record->lifecycle);
		}
		catalog_record_release(record);
	}
	return NULL;
}

/* Readers of several threads beside a writer that adds, changes and removes everything again and
 * again: every picture is whole, limits are exact, nothing is left behind. */
static void s098_churn(void **state)
{
	struct churn churn = {.catalog = catalog_new(4, CHURN_IDS, 64)};
	pthread_t threads[4];
	struct err err;
	char id[16];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, look_up, &churn), 0);
	for (int round = 0; round < CHURN_ROUNDS || !atomic_load(&churn.found); round++) {
		for (unsigned i = 0; i < CHURN_IDS; i++) {
			struct sandbox_entry entry;

			name_of(i, id);
			entry = entry_of(id, "10.0.0.5");
			entry.connection_limit = 3;
			assert_int_equal(catalog_put(churn.catalog, &entry, "", NULL, &err), 0);
		}
		assert_int_equal(catalog_count(churn.catalog), CHURN_IDS);
		for (unsigned i = 0; i < CHURN_IDS; i++) {
			name_of(i, id);
			if (i % 3 == 0)
				catalog_record_release(
					change_state(churn.catalog, id, SANDBOX_PAUSED));
			assert_int_equal(catalog_remove(churn.catalog, str_of(id), "", &err), 0);
		}
		assert_int_equal(catalog_count(churn.catalog), 0);
	}
	atomic_store(&churn.stop, true);
	for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(churn.wrong, 0);
	assert_int_equal(churn.over, 0);
	assert_true(churn.found > 0);
	catalog_free(churn.catalog);
}

static void snapshot_is_whole(void **state)
{
	struct catalog *catalog = catalog_new(1, 5000, 4);
	struct catalog_record **records;
	uint64_t revision;
	size_t count;
	char id[16];

	(void)state;
	for (unsigned i = 0; i < 5000; i++) {
		struct sandbox_entry entry;

		name_of(i, id);
		entry = entry_of(id, "10.0.0.5");
		catalog_record_release(put(catalog, &entry));
	}
	records = catalog_snapshot(catalog, &count, &revision);
	assert_int_equal(count, 5000);
	assert_int_equal(revision, 5000);
	catalog_snapshot_free(records, count);
	catalog_free(catalog);
}

static void state_names(void **state)
{
	enum sandbox_state parsed;

	(void)state;
	for (int i = SANDBOX_RUNNING; i <= SANDBOX_STOPPING; i++) {
		const char *name = sandbox_state_name((enum sandbox_state)i);

		assert_int_equal(sandbox_state_parse(str_of(name), &parsed), 0);
		assert_int_equal(parsed, i);
	}
	assert_int_equal(sandbox_state_parse(STR("asleep"), &parsed), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(add_find_remove),
		cmocka_unit_test(removing_what_one_origin_said),
		cmocka_unit_test(entries_are_checked),
		cmocka_unit_test(s018_lifecycles),
		cmocka_unit_test(s001_incomplete_catalog_does_not_know),
		cmocka_unit_test(change_feed),
		cmocka_unit_test(case_167_limit_is_exact),
		cmocka_unit_test(every_admission_is_told_a_number_of_its_own),
		cmocka_unit_test(s098_churn),
		cmocka_unit_test(snapshot_is_whole),
		cmocka_unit_test(state_names),
		cmocka_unit_test(retired_only_when_unused),
		cmocka_unit_test(sources_do_not_overrule_people),
		cmocka_unit_test(preview),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
