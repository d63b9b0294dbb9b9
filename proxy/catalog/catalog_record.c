/* What the catalog holds: records, and what an entry may say. */
#include "proxy/catalog/catalog_private.h"
#include "proxy/catalog/host_mask.h"

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
	wipe(record->text, strlen(record->entry.traffic_token));
	free(record);
}

/* Copies a text behind the record; the token comes first so that it can be wiped. */
static const char *place(char **at, const char *text)
{
	size_t size = strlen(text) + 1;
	char *placed = *at;

	memcpy(placed, text, size);
	*at += size;
	return placed;
}

struct catalog_record *catalog_record_new(const struct sandbox_entry *entry,
					  struct lifecycle *lifecycle)
{
	size_t size = strlen(entry->id) + strlen(entry->address) + strlen(entry->traffic_token) +
		      strlen(entry->mask_host) + strlen(entry->envd_token_hash) + 5;
	struct catalog_record *record = xcalloc(1, sizeof(*record) + size);
	char *at = record->text;

	record->entry = *entry;
	record->entry.traffic_token = place(&at, entry->traffic_token);
	record->entry.id = place(&at, entry->id);
	record->entry.address = place(&at, entry->address);
	record->entry.mask_host = place(&at, entry->mask_host);
	record->entry.envd_token_hash = place(&at, entry->envd_token_hash);
	record->lifecycle = lifecycle;
	record->entry.lifecycle_id = lifecycle->id;
	if (address_parse(str_of(entry->address), &record->address) < 0)
		record->address.any.sa_family = AF_UNSPEC;
	atomic_init(&record->references, 1);
	return record;
}

void sandbox_entry_init(struct sandbox_entry *entry, const char *id)
{
	*entry = (struct sandbox_entry){
		.id = id,
		.state = SANDBOX_RUNNING,
		.address = "",
		.lifecycle_id = "",
		.traffic_token = "",
		.mask_host = "",
		.envd_token_hash = "",
		.connection_limit = CATALOG_NO_LIMIT,
		.origin = SANDBOX_FROM_ADMIN,
	};
}

static bool is_plain_text(const char *text)
{
	size_t len = strlen(text);

	if (len > CATALOG_TEXT_BYTES_MAX)
		return false;
	for (size_t i = 0; i < len; i++)
		if (text[i] <= ' ' || text[i] == 0x7f)
			return false;
	return true;
}

/* A name that the resolver may be asked for: letters, digits, "-._", no port. */
static bool is_dialable_name(const char *text)
{
	for (; *text; text++)
		if (!(*text >= 'a' && *text <= 'z') && !(*text >= 'A' && *text <= 'Z') &&
		    !(*text >= '0' && *text <= '9') && *text != '-' && *text != '.' && *text != '_')
			return false;
	return true;
}

/* "" or the lower-case hex of SHA-256. */
static bool is_token_hash(const char *text)
{
	return !*text || (strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64);
}

int catalog_check_entry(const struct sandbox_entry *entry, struct err *err)
{
	union address address;
	struct str path;
	int status;

	if (!host_name_is_id(str_of(entry->id)))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "id must match [a-z0-9]+, at most %d bytes", HOST_NAME_ID_BYTES_MAX);
	if (!is_plain_text(entry->address) || !is_plain_text(entry->lifecycle_id) ||
	    !is_plain_text(entry->traffic_token) || !is_plain_text(entry->mask_host))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "texts are at most %d printable ASCII bytes without blanks",
			       CATALOG_TEXT_BYTES_MAX);
	if (!is_token_hash(entry->envd_token_hash))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "the hash of envd's token is 64 lower-case hexadecimal digits");
	if (!*entry->address && sandbox_state_is_live(entry->state))
		return err_set(err, ERR_INVALID_ARGUMENT, "a %s sandbox needs an address",
			       sandbox_state_name(entry->state));
	if (address_is_netns(str_of(entry->address))) {
		if (address_parse_netns(str_of(entry->address), &path, &address) < 0)
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "a namespace is netns:/PATH or netns:/PATH,IP-ADDRESS");
	} else if (address_parse(str_of(entry->address), &address) < 0 &&
		   !is_dialable_name(entry->address)) {
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "address must be an IP address, a host name or netns:/PATH, without "
			       "a port");
	}
	status = host_mask_check(entry->mask_host, err);
	if (status < 0)
		return status;
	if (entry->envd_port > 65535)
		return err_set(err, ERR_INVALID_ARGUMENT, "envd_port must be within 1 and 65535");
	if (entry->connection_limit < CATALOG_NO_LIMIT)
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "connection_limit must be -1 (none), 0 (refuse all) or a number");
	return 0;
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
