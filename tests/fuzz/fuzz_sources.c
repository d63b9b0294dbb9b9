/*
 * What sources of the catalog hand in: records of a Redis, its URL, DNS templates, addresses.
 * Whatever comes, what is accepted can be written and reads the same again, and the catalog takes
 * it or refuses it in words.
 *
 * Input: one byte that says what it is, and the text.
 */
#include "proxy/sources/dns_name.h"
#include "proxy/sources/redis_record.h"
#include "proxy/sources/redis_url.h"

#define CHECK(condition) \
	do { \
		if (!(condition)) \
			__builtin_trap(); \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_record(struct str value)
{
	struct sandbox_entry entry, again;
	struct catalog *catalog;
	struct arena arena;
	struct err err;
	struct buf b;

	arena_init(&arena, 512 * 1024);
	buf_init(&b, 1024 * 1024);
	if (redis_record_read(value, "abc", &arena, &entry, &err) == 0) {
		CHECK(entry.origin == SANDBOX_FROM_REDIS && !entry.trusted);
		CHECK(redis_record_write(&b, &entry, "now") == 0);
		CHECK(redis_record_read(buf_str(&b), "abc", &arena, &again, &err) == 0 ||
		      err.kind == ERR_RESOURCE_EXHAUSTED);
		CHECK(strcmp(entry.address, again.address) == 0 ||
		      err.kind == ERR_RESOURCE_EXHAUSTED);
		catalog = catalog_new(1, 4, 4);
		if (catalog_put(catalog, &entry, "", NULL, &err) < 0)
			CHECK(err.kind == ERR_INVALID_ARGUMENT && *err.message);
		catalog_free(catalog);
	} else {
		CHECK(err.kind == ERR_INVALID_ARGUMENT || err.kind == ERR_RESOURCE_EXHAUSTED);
	}
	buf_fini(&b);
	arena_release(&arena);
}

static void try_url(struct str text)
{
	struct redis_url url;
	struct err err;

	if (redis_url_parse(text, &url, &err) < 0) {
		CHECK(*err.message);
		return;
	}
	CHECK((*url.host != 0) != (*url.path != 0));
	CHECK(*url.path || (url.port >= 1 && url.port <= 65535));
}

static void try_template(struct str text)
{
	struct dns_template template;
	char name[DNS_NAME_BYTES];
	struct err err;

	if (dns_template_parse(text, &template, &err) < 0)
		return;
	CHECK(dns_template_expand(&template, "i", name) == 0 && strlen(name) < DNS_NAME_BYTES);
}

static void try_address(struct str text)
{
	union address address;
	struct str path;

	if (address_parse_netns(text, &path, &address) == 0) {
		CHECK(path.len > 1 && path.p[0] == '/' && path.len < ADDRESS_NETNS_PATH_BYTES);
		CHECK(path.p >= text.p && path.p + path.len <= text.p + text.len);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready;
	struct str text;

	if (!ready)
		json_init();
	ready = true;
	if (size == 0)
		return 0;
	text = (struct str){(const char *)data + 1, size - 1};
	switch (data[0] & 3) {
	case 0:
		try_record(text);
		break;
	case 1:
		try_url(text);
		break;
	case 2:
		try_template(text);
		break;
	default:
		try_address(text);
		break;
	}
	return 0;
}
