#include "envd/filesystem/entry.h"

#include <sys/xattr.h>

#include "envd/filesystem/path.h"
#include "envd/filesystem/place.h"

/* The kernel's own bounds (linux/limits.h). */
#define XATTR_LIST_BYTES 65536
#define XATTR_VALUE_BYTES 65536
#define PERMISSIONS_BYTES 16

/* Mode bits as clients know them (contract 4.6): "-rw-r--r--", "dtrwxrwxrwx", "Dcrw-rw-rw-". */
static void format_permissions(mode_t mode, char ret_text[PERMISSIONS_BYTES])
{
	static const char rwx[] = "rwxrwxrwx";
	char *at = ret_text;

	/* The reference's letters stand in the order d a l T L D p S u g c t. */
	if (S_ISDIR(mode))
		*at++ = 'd';
	if (S_ISLNK(mode))
		*at++ = 'L';
	if (S_ISBLK(mode) || S_ISCHR(mode))
		*at++ = 'D';
	if (S_ISFIFO(mode))
		*at++ = 'p';
	if (S_ISSOCK(mode))
		*at++ = 'S';
	if (mode & S_ISUID)
		*at++ = 'u';
	if (mode & S_ISGID)
		*at++ = 'g';
	if (S_ISCHR(mode))
		*at++ = 'c';
	if (mode & S_ISVTX)
		*at++ = 't';
	if (at == ret_text)
		*at++ = '-';
	for (unsigned i = 0; i < 9; i++)
		*at++ = mode & 1U << (8 - i) ? rwx[i] : '-';
	*at = '\0';
}

/* Permission texts repeat: a listing of a hundred thousand files has a handful. */
static const char *permissions_of(mode_t mode, struct arena *arena)
{
	char text[PERMISSIONS_BYTES];

	if ((mode & (S_IFMT | 07777)) == (S_IFREG | 0644))
		return "-rw-r--r--";
	if ((mode & (S_IFMT | 07777)) == (S_IFDIR | 0755))
		return "drwxr-xr-x";
	if ((mode & (S_IFMT | 07777)) == (S_IFLNK | 0777))
		return "Lrwxrwxrwx";
	format_permissions(mode, text);
	return arena_strdup(arena, text);
}

static enum entry_type type_of(mode_t mode)
{
	return S_ISREG(mode) ? ENTRY_FILE : S_ISDIR(mode) ? ENTRY_DIRECTORY : ENTRY_UNSPECIFIED;
}

static int fill_link(struct entry *entry, const char *path, struct stat *ret_final,
		     struct arena *arena)
{
	struct place place;
	struct err ignored;

	entry->type = ENTRY_UNSPECIFIED;
	entry->mode = 0;
	entry->symlink_target = entry->path;
	ret_final->st_mode = 0;
	if (place_find(path, NULL, PLACE_FOLLOW, &place, &ignored) < 0)
		return 0;
	if (place.exists) {
		entry->type = type_of(place.st.st_mode);
		entry->mode = place.st.st_mode & 0777;
		entry->symlink_target = path_show(arena_strdup(arena, place.path), arena);
		*ret_final = place.st;
	}
	place_close(&place);
	return entry->symlink_target ? 0 : -ENOMEM;
}

/* Reads attributes either by descriptor or by path. */
struct attributes {
	int fd;
	const char *path; /* NULL: use fd */
};

static ssize_t list_attributes(const struct attributes *from, char *names, size_t size)
{
	return from->path ? listxattr(from->path, names, size) : flistxattr(from->fd, names, size);
}

static ssize_t get_attribute(const struct attributes *from, const char *name, char *value,
			     size_t size)
{
	return from->path ? getxattr(from->path, name, value, size)
			  : fgetxattr(from->fd, name, value, size);
}

static int add_metadata(struct entry_metadata **items, size_t *count, size_t room, const char *key,
			struct str value, struct arena *arena)
{
	struct entry_metadata item = {arena_strdup(arena, key), arena_str(arena, value).p};

	if (!item.key || !item.value)
		return -ENOMEM;
	if (!*items)
		*items = arena_alloc_array(arena, room, sizeof(**items));
	if (!*items)
		return -ENOMEM;
	(*items)[(*count)++] = item;
	return 0;
}

static int compare_keys(const void *a, const void *b)
{
	const struct entry_metadata *left = a, *right = b;

	return strcmp(left->key, right->key);
}

static int read_metadata(const struct attributes *from, struct arena *arena,
			 struct entry_metadata **ret_metadata, size_t *ret_count)
{
	static const char prefix[] = ENTRY_METADATA_PREFIX;
	ssize_t size = list_attributes(from, NULL, 0);
	auto_free char *names = NULL, *value = NULL;
	size_t room = 0;
	int status = 0;

	*ret_metadata = NULL;
	*ret_count = 0;
	if (size <= 0)
		return 0;
	names = xmalloc(XATTR_LIST_BYTES);
	value = xmalloc(XATTR_VALUE_BYTES);
	size = list_attributes(from, names, XATTR_LIST_BYTES);
	for (ssize_t at = 0; at < size; at += (ssize_t)strlen(names + at) + 1)
		room += strncmp(names + at, prefix, sizeof(prefix) - 1) == 0;
	for (ssize_t at = 0; at < size && status == 0; at += (ssize_t)strlen(names + at) + 1) {
		const char *key = names + at + sizeof(prefix) - 1;
		struct str text = {value, 0};
		ssize_t len;

		if (strncmp(names + at, prefix, sizeof(prefix) - 1) != 0 ||
		    !str_is_utf8(str_of(key)))
			continue;
		len = get_attribute(from, names + at, value, XATTR_VALUE_BYTES);
		if (len < 0)
			continue;
		text.len = (size_t)len;
		if (str_is_utf8(text) && !memchr(value, '\0', text.len))
			status = add_metadata(ret_metadata, ret_count, room, key, text, arena);
	}
	if (*ret_count > 1)
		qsort(*ret_metadata, *ret_count, sizeof(**ret_metadata), compare_keys);
	return status;
}

int entry_read_metadata(int fd, struct arena *arena, struct entry_metadata **ret_metadata,
			size_t *ret_count)
{
	struct attributes from = {.fd = fd};

	return read_metadata(&from, arena, ret_metadata, ret_count);
}

static bool is_representable(const struct timespec *time)
{
	/* What a protobuf Timestamp can hold. */
	return (time->tv_sec != 0 || time->tv_nsec != 0) && time->tv_sec >= -62135596800 &&
	       time->tv_sec <= 253402300799;
}

int entry_fill(struct entry *entry, const char *path, const struct stat *st,
	       struct user_names *names, struct arena *arena)
{
	struct attributes from = {.fd = -1, .path = path};
	struct stat final = *st;

	*entry = (struct entry){
		.path = path_show(path, arena),
		.type = type_of(st->st_mode),
		.mode = st->st_mode & 0777,
		.size = st->st_size,
		.permissions = permissions_of(st->st_mode, arena),
		.owner = path_show(user_names_user(names, st->st_uid), arena),
		.group = path_show(user_names_group(names, st->st_gid), arena),
		.modified = st->st_mtim,
		.has_modified = is_representable(&st->st_mtim),
	};
	if (!entry->path || !entry->permissions || !entry->owner || !entry->group)
		return -ENOMEM;
	entry->name = path_base(entry->path);
	if (S_ISLNK(st->st_mode) && fill_link(entry, path, &final, arena) < 0)
		return -ENOMEM;
	/* Nothing else can carry attributes of the user namespace. */
	if (!S_ISREG(final.st_mode) && !S_ISDIR(final.st_mode))
		return 0;
	return read_metadata(&from, arena, &entry->metadata, &entry->metadata_count);
}
