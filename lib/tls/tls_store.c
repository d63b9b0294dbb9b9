#include "lib/tls/tls_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/limits.h"
#include "lib/log.h"

/* A name and who has it; sorted by name, then by the order in which certificates were given. */
struct tls_name {
	const char *text;
	size_t certificate;
};

struct tls_store {
	atomic_size_t holds;
	struct tls_certificate **certificates;
	size_t count;
	struct tls_name *names;
	size_t names_count;
};

/* ---- loading ---- */

struct load {
	struct tls_store *store, *previous;
	struct tls_load_result *result;
	struct err *err;
};

static struct tls_certificate *find_source(const struct tls_store *store, const char *source)
{
	for (size_t i = 0; store && i < store->count; i++)
		if (strcmp(store->certificates[i]->source, source) == 0)
			return store->certificates[i];
	return NULL;
}

static void note_failure(struct load *load)
{
	if (load->result->failed++ == 0)
		snprintf(load->result->message, sizeof(load->result->message), "%s",
			 load->err->message);
	log_warn("tls", "a certificate cannot be loaded", LOG_S("error", load->err->message));
}

static int add_pair(struct load *load, const char *certificate_path, const char *key_path)
{
	struct tls_store *store = load->store;
	struct tls_certificate *c;
	int status;

	if (store->count == TLS_CERTIFICATES_MAX)
		return err_set(load->err, ERR_RESOURCE_EXHAUSTED, "more than %d certificates",
			       TLS_CERTIFICATES_MAX);
	status = tls_certificate_load(certificate_path, key_path, &c, load->err);
	if (status < 0) {
		if (!load->previous)
			return status;
		note_failure(load);
		c = find_source(load->previous, certificate_path);
		if (!c)
			return 0;
		atomic_fetch_add(&c->holds, 1);
	}
	store->certificates = xrealloc(store->certificates,
				       (store->count + 1) * sizeof(*store->certificates));
	store->certificates[store->count++] = c;
	return 0;
}

/* "default" first: it names what is shown to who asks for nothing else. */
static int compare_files(const struct dirent **a, const struct dirent **b)
{
	bool a_first = strncmp((*a)->d_name, "default.", 8) == 0;
	bool b_first = strncmp((*b)->d_name, "default.", 8) == 0;

	if (a_first != b_first)
		return a_first ? -1 : 1;
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_certificate_name(const struct dirent *entry)
{
	struct str name = str_of(entry->d_name);

	return name.p[0] != '.' &&
	       (str_ends_with(name, STR(".crt")) || str_ends_with(name, STR(".pem")));
}

static bool holds_key(const char *path)
{
	char *text;
	size_t len;
	struct err err;
	bool found;

	if (tls_file_read(path, &text, &len, &err) < 0)
		return false;
	found = memmem(text, len, "PRIVATE KEY-----", 16) &&
		memmem(text, len, "CERTIFICATE-----", 16);
	wipe(text, len);
	free(text);
	return found;
}

static int add_from_directory(struct load *load, const char *directory, const char *name)
{
	char path[4096], key[4096];
	int len = snprintf(path, sizeof(path), "%s/%s", directory, name);

	if (len < 0 || (size_t)len >= sizeof(path))
		return err_set(load->err, ERR_INVALID_ARGUMENT, "%s: the path is too long", name);
	snprintf(key, sizeof(key), "%.*s.key", len - 4, path);
	if (access(key, F_OK) == 0)
		return add_pair(load, path, key);
	if (str_ends_with(str_of(name), STR(".pem")) && holds_key(path))
		return add_pair(load, path, path);
	log_debug("tls", "no key beside this certificate, skipped", LOG_S("file", path));
	return 0;
}

static int add_directory(struct load *load, const char *directory)
{
	struct dirent **entries;
	size_t before = load->store->count + load->result->failed;
	int count = scandir(directory, &entries, is_certificate_name, compare_files);
	int status = 0;

	if (count < 0)
		return err_set_sys(load->err, ERR_INVALID_ARGUMENT, errno, "read %s", directory);
	for (int i = 0; i < count; i++) {
		if (status == 0)
			status = add_from_directory(load, directory, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	if (status == 0 && load->store->count + load->result->failed == before)
		return err_set(load->err, ERR_INVALID_ARGUMENT,
			       "%s holds no NAME.crt or NAME.pem with its NAME.key", directory);
	return status;
}

/* A whole source that cannot be read (its directory is gone) keeps what it had. */
static void keep_directory(struct load *load, const char *directory)
{
	size_t len = strlen(directory);

	note_failure(load);
	for (size_t i = 0; i < load->previous->count; i++) {
		struct tls_certificate *c = load->previous->certificates[i];

		if (strncmp(c->source, directory, len) != 0 || c->source[len] != '/')
			continue;
		atomic_fetch_add(&c->holds, 1);
		load->store->certificates = xrealloc(load->store->certificates,
						     (load->store->count + 1) *
							     sizeof(*load->store->certificates));
		load->store->certificates[load->store->count++] = c;
	}
}

static int add_source(struct load *load, const char *source)
{
	const char *comma = strchr(source, ',');
	struct stat facts;
	int status;

	if (comma) {
		auto_free char *path = xstrndup(source, (size_t)(comma - source));

		return add_pair(load, path, comma + 1);
	}
	if (stat(source, &facts) == 0 && !S_ISDIR(facts.st_mode))
		return add_pair(load, source, source);
	status = add_directory(load, source);
	if (status < 0 && load->previous) {
		keep_directory(load, source);
		return 0;
	}
	return status;
}

static int compare_names(const void *a, const void *b)
{
	const struct tls_name *x = a, *y = b;
	int order = strcmp(x->text, y->text);

	if (order)
		return order;
	return x->certificate < y->certificate ? -1 : x->certificate > y->certificate;
}

static void index_names(struct tls_store *store)
{
	size_t total = 0;

	for (size_t i = 0; i < store->count; i++)
		total += store->certificates[i]->names_count;
	store->names = xcalloc(size_max(total, 1), sizeof(*store->names));
	for (size_t i = 0; i < store->count; i++) {
		const struct tls_certificate *c = store->certificates[i];

		for (size_t j = 0; j < c->names_count; j++)
			store->names[store->names_count++] = (struct tls_name){c->names[j], i};
	}
	qsort(store->names, store->names_count, sizeof(*store->names), compare_names);
}

int tls_store_load(const char *const *sources, size_t count, struct tls_store *previous,
		   struct tls_store **ret_store, struct tls_load_result *ret_result,
		   struct err *err)
{
	struct tls_store *store = xcalloc(1, sizeof(*store));
	struct load load = {store, previous, ret_result, err};
	int status = 0;

	memset(ret_result, 0, sizeof(*ret_result));
	store->holds = 1;
	for (size_t i = 0; i < count && status == 0; i++)
		status = add_source(&load, sources[i]);
	if (status == 0 && store->count == 0)
		status = err_set(err, ERR_INVALID_ARGUMENT, "no certificate can be loaded");
	if (status < 0) {
		tls_store_release(store);
		return status;
	}
	index_names(store);
	ret_result->certificates = store->count;
	*ret_store = store;
	return 0;
}

struct tls_store *tls_store_hold(struct tls_store *store)
{
	atomic_fetch_add_explicit(&store->holds, 1, memory_order_relaxed);
	return store;
}

void tls_store_release(struct tls_store *store)
{
	if (atomic_fetch_sub(&store->holds, 1) > 1)
		return;
	for (size_t i = 0; i < store->count; i++)
		tls_certificate_release(store->certificates[i]);
	free(store->certificates);
	free(store->names);
	free(store);
}

/* ---- choosing ---- */

static size_t first_with_name(const struct tls_store *store, const char *name)
{
	size_t low = 0, high = store->names_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (strcmp(store->names[middle].text, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The first of each kind of key that has the name. */
static bool choose_by_name(const struct tls_store *store, const char *name,
			   struct tls_choice *ret_choice)
{
	bool found = false;

	for (size_t i = first_with_name(store, name);
	     i < store->names_count && strcmp(store->names[i].text, name) == 0; i++) {
		const struct tls_certificate *c = store->certificates[store->names[i].certificate];

		if (!ret_choice->of[c->kind])
			ret_choice->of[c->kind] = c;
		found = true;
	}
	return found;
}

bool tls_store_choose(const struct tls_store *store, const char *name,
		      struct tls_choice *ret_choice)
{
	const struct tls_certificate *first = store->certificates[0];
	char text[256], wildcard[258];

	memset(ret_choice, 0, sizeof(*ret_choice));
	if (name && tls_host_normalise(str_of(name), text, sizeof(text)) == 0 && text[0] != '*' &&
	    (choose_by_name(store, text, ret_choice) ||
	     (tls_host_wildcard(text, wildcard, sizeof(wildcard)) &&
	      choose_by_name(store, wildcard, ret_choice))))
		return true;
	ret_choice->of[first->kind] = first;
	/* Its twins with another kind of key stand beside it. */
	if (first->names_count)
		choose_by_name(store, first->names[0], ret_choice);
	return false;
}

int64_t tls_store_expires_s(const struct tls_store *store)
{
	int64_t soonest = INT64_MAX;

	for (size_t i = 0; i < store->count; i++)
		if (store->certificates[i]->expires_s < soonest)
			soonest = store->certificates[i]->expires_s;
	return soonest;
}

size_t tls_store_count(const struct tls_store *store)
{
	return store->count;
}
