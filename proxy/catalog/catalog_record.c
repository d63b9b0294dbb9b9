/* What the catalog holds: records. */
#include "proxy/catalog/catalog_private.h"
#include "proxy/catalog/sandbox_fields.h"

int catalog_admit(struct catalog_record *record)
{
	struct lifecycle *l = record->lifecycle;
	int limit = record->entry.connection_limit;
	int active = atomic_load_explicit(&l->active, memory_order_relaxed);

	while (active >= 0 && (limit < 0 || active < limit))
		if (atomic_compare_exchange_weak_explicit(&l->active, &active, active + 1,
							  memory_order_relaxed,
							  memory_order_relaxed))
			return active + 1;
	return active < 0 ? -ESTALE : -EBUSY;
}

void catalog_record_hold(struct catalog_record *record)
{
	atomic_fetch_add_explicit(&record->references, 1, memory_order_relaxed);
}

void catalog_record_release(struct catalog_record *record)
{
	if (atomic_fetch_sub_explicit(&record->references, 1, memory_order_acq_rel) != 1)
		return;
	lifecycle_release(record->lifecycle);
	sandbox_entry_wipe_secrets(&record->entry);
	free(record);
}

struct catalog_record *catalog_record_new(const struct sandbox_entry *entry,
					  struct lifecycle *lifecycle)
{
	struct sandbox_entry own = *entry;
	struct catalog_record *record;

	own.lifecycle_id = ""; /* the lifecycle has it already */
	record = xcalloc(1, sizeof(*record) + sandbox_entry_text_bytes(&own));
	sandbox_entry_place_texts(&own, record->text);
	own.lifecycle_id = lifecycle->id;
	record->entry = own;
	record->lifecycle = lifecycle;
	if (address_parse(str_of(entry->address), &record->address) < 0)
		record->address.any.sa_family = AF_UNSPEC;
	atomic_init(&record->references, 1);
	return record;
}

struct catalog_record *catalog_record_apart(const struct sandbox_entry *entry, size_t worker_count)
{
	return catalog_record_new(entry, lifecycle_new(worker_count, entry->lifecycle_id));
}

bool catalog_record_continues(const struct catalog_record *old, const struct sandbox_entry *entry)
{
	return sandbox_state_is_live(old->entry.state) && sandbox_state_is_live(entry->state) &&
	       strcmp(old->entry.address, entry->address) == 0 &&
	       old->entry.envd_port == entry->envd_port &&
	       (!*entry->lifecycle_id || strcmp(old->lifecycle->id, entry->lifecycle_id) == 0);
}

static const char *const state_names[] = {
	[SANDBOX_RUNNING] = "running",	 [SANDBOX_PAUSING] = "pausing",
	[SANDBOX_PAUSED] = "paused",	 [SANDBOX_RESUMING] = "resuming",
	[SANDBOX_STOPPING] = "stopping",
};

const char *sandbox_state_name(enum sandbox_state state)
{
	return state_names[state];
}

int sandbox_state_parse(struct str name, enum sandbox_state *ret_state)
{
	for (size_t i = 0; i < ARRAY_LENGTH(state_names); i++)
		if (str_equal(name, str_of(state_names[i]))) {
			*ret_state = (enum sandbox_state)i;
			return 0;
		}
	return -EINVAL;
}
