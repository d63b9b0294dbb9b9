#include "proxy/catalog/sandbox_fields.h"

#include "proxy/catalog/host_mask.h"

#define LIMIT_MAX INT32_MAX
#define PORT_MAX 65535
/* Of a key that somebody may have meant. */
#define KEY_BYTES_MAX 40

/* ---- what texts may say ---- */

static int check_plain(const char *text, struct err *err)
{
	size_t len = strlen(text);
	bool is_plain = len <= CATALOG_TEXT_BYTES_MAX;

	for (size_t i = 0; i < len && is_plain; i++)
		is_plain = text[i] > ' ' && text[i] != 0x7f;
	return is_plain ? 0
			: err_set(err, ERR_INVALID_ARGUMENT,
				  "texts are at most %d printable ASCII bytes without blanks",
				  CATALOG_TEXT_BYTES_MAX);
}

static int check_id(const char *text, struct err *err)
{
	return host_name_is_id(str_of(text)) ? 0
					     : err_set(err, ERR_INVALID_ARGUMENT,
						       "id must match [a-z0-9]+, at most %d bytes",
						       HOST_NAME_ID_BYTES_MAX);
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

int catalog_check_address(const char *text, struct err *err)
{
	union address address;
	struct str path;
	int status = check_plain(text, err);

	if (status < 0)
		return status;
	if (address_is_netns(str_of(text)))
		return address_parse_netns(str_of(text), &path, &address) == 0
			       ? 0
			       : err_set(err, ERR_INVALID_ARGUMENT,
					 "a namespace is netns:/PATH or netns:/PATH,IP-ADDRESS");
	if (address_parse(str_of(text), &address) < 0 && !is_dialable_name(text))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "address must be an IP address, a host name or netns:/PATH, without "
			       "a port");
	return 0;
}

static int check_mask(const char *text, struct err *err)
{
	int status = check_plain(text, err);

	return status < 0 ? status : host_mask_check(text, err);
}

/* "" or the lower-case hex of SHA-256. */
static int check_token_hash(const char *text, struct err *err)
{
	if (!*text || (strlen(text) == 64 && strspn(text, "0123456789abcdef") == 64))
		return 0;
	return err_set(err, ERR_INVALID_ARGUMENT,
		       "the hash of envd's token is 64 lower-case hexadecimal digits");
}

/* ---- the table ---- */

#define MEMBER(member) \
	.offset = offsetof(struct sandbox_entry, member), \
	.size = sizeof(((struct sandbox_entry *)NULL)->member)

const struct sandbox_field sandbox_fields[] = {
	{"id", SANDBOX_FIELD_TEXT, SANDBOX_FIELD_SHOWN, MEMBER(id), .check = check_id},
	{"state", SANDBOX_FIELD_STATE, SANDBOX_FIELD_SET, MEMBER(state), .usage = "NAME"},
	{"address", SANDBOX_FIELD_TEXT, SANDBOX_FIELD_SET, MEMBER(address),
	 .redis = "orchestrator_ip", .check = catalog_check_address},
	{"envd_port", SANDBOX_FIELD_PORT, SANDBOX_FIELD_SET, MEMBER(envd_port), .usage = "PORT",
	 .flag = "envd"},
	{"lifecycle_id", SANDBOX_FIELD_TEXT, SANDBOX_FIELD_SET, MEMBER(lifecycle_id), .usage = "ID",
	 .flag = "lifecycle", .redis = "execution_id"},
	{"traffic_access_token", SANDBOX_FIELD_TEXT, SANDBOX_FIELD_SET, MEMBER(traffic_token),
	 .usage = "TEXT", .flag = "token", .shown = "private"},
	{"mask_request_host", SANDBOX_FIELD_TEXT, SANDBOX_FIELD_SET, MEMBER(mask_host),
	 .usage = "HOST[;PORT=HOST]...", .flag = "mask", .check = check_mask},
	{"auto_resume", SANDBOX_FIELD_RESUME, SANDBOX_FIELD_SET, MEMBER(auto_resume),
	 .usage = "any|off", .flag = "resume"},
	{"envd_access_token_sha256", SANDBOX_FIELD_TEXT, SANDBOX_FIELD_SET, MEMBER(envd_token_hash),
	 .usage = "SHA256", .flag = "envdhash", .shown = "envd_secure", .check = check_token_hash},
	{"connection_limit", SANDBOX_FIELD_LIMIT, SANDBOX_FIELD_SET, MEMBER(connection_limit),
	 .usage = "N", .flag = "limit"},
	{"trusted", SANDBOX_FIELD_FLAG, SANDBOX_FIELD_INTERNAL, MEMBER(trusted)},
	{"origin", SANDBOX_FIELD_ORIGIN, SANDBOX_FIELD_INTERNAL, MEMBER(origin)},
	{"origin_version", SANDBOX_FIELD_VERSION, SANDBOX_FIELD_INTERNAL, MEMBER(origin_version)},
	{0},
};
_Static_assert(ARRAY_LENGTH(sandbox_fields) <= 32, "a patch has a bit for each");

/* ---- finding one ---- */

static bool is_called(struct str name, const char *spelling)
{
	return spelling && str_equal(name, str_of(spelling));
}

const struct sandbox_field *sandbox_field_find(struct str name)
{
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		if (f->reach == SANDBOX_FIELD_SET && is_called(name, f->name))
			return f;
	return NULL;
}

const struct sandbox_field *sandbox_field_find_flag(struct str name)
{
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		if (f->usage && (is_called(name, f->name) || is_called(name, f->flag)))
			return f;
	return NULL;
}

static char folded(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c + ('a' - 'A'));
	return c == '-' ? '_' : c;
}

/* How many bytes must be put in, left out or changed to make one of the other (Levenshtein). */
static size_t distance(struct str a, struct str b)
{
	size_t row[KEY_BYTES_MAX + 1];

	for (size_t j = 0; j <= b.len; j++)
		row[j] = j;
	for (size_t i = 0; i < a.len; i++) {
		size_t diagonal = row[0];

		row[0] = i + 1;
		for (size_t j = 0; j < b.len; j++) {
			size_t changed = diagonal + (folded(a.p[i]) != folded(b.p[j]));

			diagonal = row[j + 1];
			row[j + 1] = size_min(changed, 1 + size_min(row[j], row[j + 1]));
		}
	}
	return row[b.len];
}

/* Whether words were only left out of it, as in "mask_host". */
static bool is_shortened(struct str key, struct str whole)
{
	size_t at = 0;

	for (size_t i = 0; i < whole.len && at < key.len; i++)
		at += folded(whole.p[i]) == folded(key.p[at]);
	return key.len >= 4 && at == key.len;
}

/* The lower the nearer. */
static size_t unlikeness(struct str key, const char *spelling)
{
	struct str whole = str_of(spelling ? spelling : "");
	size_t steps;

	if (!spelling || whole.len > KEY_BYTES_MAX || key.len > KEY_BYTES_MAX)
		return SIZE_MAX;
	steps = distance(key, whole);
	return steps <= key.len / 3 + 1 || is_shortened(key, whole) ? steps : SIZE_MAX;
}

int sandbox_field_unknown(struct str key, struct err *err)
{
	const struct sandbox_field *nearest = NULL;
	size_t least = SIZE_MAX;

	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		size_t by_name = size_min(unlikeness(key, f->name), unlikeness(key, f->redis));
		size_t by_other = size_min(unlikeness(key, f->flag), unlikeness(key, f->shown));

		if (f->reach != SANDBOX_FIELD_SET || size_min(by_name, by_other) >= least)
			continue;
		least = size_min(by_name, by_other);
		nearest = f;
	}
	return err_set(err, ERR_INVALID_ARGUMENT, "unknown key \"%.*s\"%s%s%s",
		       (int)size_min(key.len, 64), key.p, nearest ? ", did you mean \"" : "",
		       nearest ? nearest->name : "", nearest ? "\"?" : "");
}

/* ---- setting one ---- */

static int refuse(struct str key, const char *wanted, struct err *err)
{
	return err_set(err, ERR_INVALID_ARGUMENT, "%.*s must be %s", (int)size_min(key.len, 64),
		       key.p, wanted);
}

static int check_number(const struct sandbox_field *field, struct str key, int64_t number,
			struct err *err)
{
	bool is_port = field->kind == SANDBOX_FIELD_PORT;
	int64_t least = is_port ? 1 : CATALOG_NO_LIMIT, most = is_port ? PORT_MAX : LIMIT_MAX;

	if (number >= least && number <= most)
		return 0;
	return err_set(err, ERR_INVALID_ARGUMENT, "%.*s must be within %lld and %lld", (int)key.len,
		       key.p, (long long)least, (long long)most);
}

int sandbox_field_set_number(const struct sandbox_field *field, struct str key, int64_t number,
			     struct sandbox_entry *entry, struct err *err)
{
	int status = check_number(field, key, number, err);

	if (status < 0)
		return status;
	if (field->kind == SANDBOX_FIELD_PORT)
		*(unsigned *)sandbox_field_of(field,
					      entry) = number == ENVD_PORT ? 0 : (unsigned)number;
	else
		*(int *)sandbox_field_of(field, entry) = (int)number;
	return 0;
}

static int parse_number(const struct sandbox_field *field, struct str key, const char *text,
			struct sandbox_entry *entry, struct err *err)
{
	uint64_t number;

	if (str_to_u64(str_of(text), INT64_MAX, &number) < 0)
		return refuse(key, "a number", err);
	return sandbox_field_set_number(field, key, (int64_t)number, entry, err);
}

int sandbox_field_parse(const struct sandbox_field *field, struct str key, const char *text,
			struct sandbox_entry *entry, struct err *err)
{
	void *member = sandbox_field_of(field, entry);
	bool is_any = strcmp(text, "any") == 0;
	uint64_t version;

	switch (field->kind) {
	case SANDBOX_FIELD_TEXT:
		*(const char **)member = text;
		return 0;
	case SANDBOX_FIELD_STATE:
		if (sandbox_state_parse(str_of(text), member) < 0)
			return refuse(key, "running, pausing, paused, resuming or stopping", err);
		return 0;
	case SANDBOX_FIELD_RESUME:
		if (!is_any && strcmp(text, "off") != 0)
			return refuse(key, "\"any\" or \"off\"", err);
		*(bool *)member = is_any;
		return 0;
	case SANDBOX_FIELD_PORT:
	case SANDBOX_FIELD_LIMIT:
		return parse_number(field, key, text, entry, err);
	case SANDBOX_FIELD_VERSION:
		if (str_to_u64(str_of(text), UINT64_MAX, &version) < 0)
			return refuse(key, "a number", err);
		*(uint64_t *)member = version;
		return 0;
	case SANDBOX_FIELD_FLAG:
	case SANDBOX_FIELD_ORIGIN:
		break;
	}
	return refuse(key, "no text", err);
}

void sandbox_field_unset(const struct sandbox_field *field, struct sandbox_entry *entry)
{
	struct sandbox_entry none;

	sandbox_entry_init(&none, "");
	sandbox_field_copy(field, &none, entry);
}

void sandbox_field_copy(const struct sandbox_field *field, const struct sandbox_entry *from,
			struct sandbox_entry *to)
{
	memcpy(sandbox_field_of(field, to), sandbox_field_of(field, from), field->size);
}

void sandbox_fields_usage(char *ret_usage, size_t size)
{
	size_t len = (size_t)snprintf(ret_usage, size, "id=ADDRESS");

	for (const struct sandbox_field *f = sandbox_fields; f->name && len < size; f++)
		if (f->usage)
			len += (size_t)snprintf(ret_usage + len, size - len, "[,%s=%s]", f->name,
						f->usage);
	assert(len < size);
}

/* ---- whole entries ---- */

void sandbox_entry_init(struct sandbox_entry *entry, const char *id)
{
	*entry = (struct sandbox_entry){
		.state = SANDBOX_RUNNING,
		.connection_limit = CATALOG_NO_LIMIT,
		.origin = SANDBOX_FROM_ADMIN,
	};
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		if (f->kind == SANDBOX_FIELD_TEXT)
			*(const char **)sandbox_field_of(f, entry) = "";
	entry->id = id;
}

size_t sandbox_entry_text_bytes(const struct sandbox_entry *entry)
{
	size_t size = 0;

	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		if (f->kind == SANDBOX_FIELD_TEXT)
			size += strlen(sandbox_field_text(f, entry)) + 1;
	return size;
}

void sandbox_entry_place_texts(struct sandbox_entry *entry, char *memory)
{
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		size_t size;

		if (f->kind != SANDBOX_FIELD_TEXT)
			continue;
		size = strlen(sandbox_field_text(f, entry)) + 1;
		memcpy(memory, sandbox_field_text(f, entry), size);
		*(const char **)sandbox_field_of(f, entry) = memory;
		memory += size;
	}
}

void sandbox_entry_wipe_secrets(const struct sandbox_entry *entry)
{
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++)
		if (f->shown)
			wipe((char *)(uintptr_t)sandbox_field_text(f, entry),
			     strlen(sandbox_field_text(f, entry)));
}

bool sandbox_entry_equals(const struct sandbox_entry *a, const struct sandbox_entry *b)
{
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		const void *of_a = sandbox_field_of(f, a), *of_b = sandbox_field_of(f, b);

		if (f->kind == SANDBOX_FIELD_TEXT) {
			if (strcmp(sandbox_field_text(f, a), sandbox_field_text(f, b)) != 0)
				return false;
		} else if (f->kind != SANDBOX_FIELD_VERSION && memcmp(of_a, of_b, f->size) != 0) {
			return false;
		}
	}
	return true;
}

static int check_field(const struct sandbox_field *field, const struct sandbox_entry *entry,
		       struct err *err)
{
	const void *member = sandbox_field_of(field, entry);
	unsigned port;

	switch (field->kind) {
	case SANDBOX_FIELD_TEXT:
		return field->check ? field->check(sandbox_field_text(field, entry), err)
				    : check_plain(sandbox_field_text(field, entry), err);
	case SANDBOX_FIELD_PORT:
		port = *(const unsigned *)member;
		return check_number(field, str_of(field->name), port ? port : ENVD_PORT, err);
	case SANDBOX_FIELD_LIMIT:
		return check_number(field, str_of(field->name), *(const int *)member, err);
	case SANDBOX_FIELD_STATE:
	case SANDBOX_FIELD_RESUME:
	case SANDBOX_FIELD_FLAG:
	case SANDBOX_FIELD_ORIGIN:
	case SANDBOX_FIELD_VERSION:
		break;
	}
	return 0;
}

int sandbox_entry_check(const struct sandbox_entry *entry, struct err *err)
{
	for (const struct sandbox_field *f = sandbox_fields; f->name; f++) {
		int status = check_field(f, entry, err);

		if (status < 0)
			return status;
	}
	if (!*entry->address && sandbox_state_is_live(entry->state))
		return err_set(err, ERR_INVALID_ARGUMENT, "a %s sandbox needs an address",
			       sandbox_state_name(entry->state));
	return 0;
}
