#include "envd/filesystem/user.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *passwd_path = "/etc/passwd";
static const char *group_path = "/etc/group";

void user_set_files(const char *passwd, const char *group)
{
	passwd_path = passwd ? passwd : "/etc/passwd";
	group_path = group ? group : "/etc/group";
}

/* Reads a file line by line through one buffer of fixed size. */
struct line_reader {
	int fd;
	size_t start, end, total;
	bool skipping; /* inside a line that did not fit */
	bool at_end;
	/* On the caller's stack, of which only what a file fills is touched: a start reads two
	 * files. */
	char buffer[USER_LINE_BYTES_MAX];
};

static int reader_open(struct line_reader *reader, const char *path)
{
	struct stat st;

	reader->start = reader->end = reader->total = 0;
	reader->skipping = reader->at_end = false;
	/* A FIFO in place of the file must not hold a pool thread. */
	reader->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (reader->fd < 0)
		return -errno;
	if (fstat(reader->fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		close_fd(&reader->fd);
		return -EINVAL;
	}
	return 0;
}

static void reader_close(struct line_reader *reader)
{
	close_fd(&reader->fd);
}

/* More bytes into the buffer; false at the end of the file, on errors, and past the size limit. */
static bool reader_fill(struct line_reader *reader)
{
	ssize_t got;

	if (reader->at_end)
		return false;
	if (reader->start) {
		memmove(reader->buffer, reader->buffer + reader->start,
			reader->end - reader->start);
		reader->end -= reader->start;
		reader->start = 0;
	}
	if (reader->end == USER_LINE_BYTES_MAX) {
		reader->end = 0;
		reader->skipping = true;
	}
	do
		got = read(reader->fd, reader->buffer + reader->end,
			   USER_LINE_BYTES_MAX - reader->end);
	while (got < 0 && errno == EINTR);
	if (got <= 0 || reader->total >= USER_FILE_BYTES_MAX) {
		reader->at_end = true;
		return false;
	}
	reader->end += (size_t)got;
	reader->total += (size_t)got;
	return true;
}

static bool reader_next(struct line_reader *reader, struct str *ret_line)
{
	for (;;) {
		char *line = reader->buffer + reader->start;
		size_t have = reader->end - reader->start;
		char *newline = have ? memchr(line, '\n', have) : NULL;
		bool skip = reader->skipping;

		if (newline) {
			reader->start += (size_t)(newline - line) + 1;
			reader->skipping = false;
			if (skip)
				continue;
			*ret_line = (struct str){line, (size_t)(newline - line)};
			return true;
		}
		if (reader_fill(reader))
			continue;
		/* The last line needs no newline. The buffer may have moved. */
		line = reader->buffer + reader->start;
		have = reader->end - reader->start;
		reader->start = reader->end;
		*ret_line = (struct str){line, have};
		return have && !reader->skipping;
	}
}

static bool parse_id(struct str text, uint32_t *ret_id)
{
	uint64_t value;

	/* The highest id means "no change" to chown and is nobody's. */
	if (str_to_u64(text, UINT32_MAX - 1, &value) < 0)
		return false;
	*ret_id = (uint32_t)value;
	return true;
}

struct passwd_line {
	struct str name, home, shell;
	uint32_t uid, gid;
};

static bool is_clean_line(struct str line)
{
	return line.len && line.p[0] != '+' && line.p[0] != '-' && line.p[0] != '#' &&
	       !memchr(line.p, '\0', line.len);
}

static bool parse_passwd(struct str line, struct passwd_line *ret)
{
	struct str fields[7];
	size_t count = 0;

	if (!is_clean_line(line))
		return false;
	while (count < 7 && str_split(&line, ':', &fields[count]))
		count++;
	if (count < 7 || line.p || !fields[0].len || !parse_id(fields[2], &ret->uid) ||
	    !parse_id(fields[3], &ret->gid))
		return false;
	ret->name = fields[0];
	ret->home = fields[5];
	ret->shell = fields[6];
	return true;
}

struct group_line {
	struct str name, members;
	uint32_t gid;
};

static bool parse_group(struct str line, struct group_line *ret)
{
	struct str fields[4];
	size_t count = 0;

	if (!is_clean_line(line))
		return false;
	while (count < 4 && str_split(&line, ':', &fields[count]))
		count++;
	if (count < 4 || !fields[0].len || !parse_id(fields[2], &ret->gid))
		return false;
	ret->name = fields[0];
	ret->members = fields[3];
	return true;
}

static bool lists_member(struct str members, struct str name)
{
	struct str member;

	while (str_split(&members, ',', &member))
		if (str_equal(member, name))
			return true;
	return false;
}

static bool is_member_of(const struct user *user, gid_t gid)
{
	for (size_t i = 0; i < user->group_count; i++)
		if (user->groups[i] == gid)
			return true;
	return false;
}

bool user_may(const struct user *user, uid_t owner, gid_t group, mode_t mode, unsigned want)
{
	unsigned have;

	if (user->uid == 0)
		return true;
	if (user->uid == owner)
		have = mode >> 6 & 7;
	else if (is_member_of(user, group))
		have = mode >> 3 & 7;
	else
		have = mode & 7;
	return (have & want) == want;
}

static int add_group(struct user *user, size_t *capacity, gid_t gid, struct arena *arena)
{
	if (user->group_count == *capacity) {
		size_t larger = *capacity ? *capacity * 2 : 8;
		gid_t *groups = arena_alloc_array(arena, larger, sizeof(*groups));

		if (!groups)
			return -ENOMEM;
		if (user->group_count)
			memcpy(groups, user->groups, user->group_count * sizeof(*groups));
		user->groups = groups;
		*capacity = larger;
	}
	user->groups[user->group_count++] = gid;
	return 0;
}

static int load_groups(struct user *user, struct arena *arena)
{
	struct line_reader reader;
	struct group_line group;
	struct str line;
	size_t capacity = 0;
	int status = add_group(user, &capacity, user->gid, arena);

	if (status < 0 || reader_open(&reader, group_path) < 0)
		return status;
	while (status == 0 && user->group_count < USER_GROUPS_MAX && reader_next(&reader, &line))
		if (parse_group(line, &group) && lists_member(group.members, str_of(user->name)) &&
		    !is_member_of(user, group.gid))
			status = add_group(user, &capacity, group.gid, arena);
	reader_close(&reader);
	return status;
}

static int fill_user(const struct passwd_line *found, struct arena *arena, struct user *ret_user)
{
	/* A home that is not absolute cannot be joined with anything: the root directory then. */
	struct str home = found->home.len && found->home.p[0] == '/' ? found->home : STR("/");

	*ret_user = (struct user){
		.name = arena_str(arena, found->name).p,
		.home = arena_str(arena, home).p,
		.shell = arena_str(arena, found->shell).p,
		.uid = found->uid,
		.gid = found->gid,
	};
	if (!ret_user->name || !ret_user->home || !ret_user->shell)
		return -ENOMEM;
	return load_groups(ret_user, arena);
}

static struct passwd_line builtin_root(void)
{
	struct stat st;
	bool has_home = stat("/root", &st) == 0 && S_ISDIR(st.st_mode);

	return (struct passwd_line){.name = STR("root"),
				    .home = has_home ? STR("/root") : STR("/"),
				    .shell = STR("/bin/sh")};
}

static bool is_own(const char *name)
{
	char number[16];

	snprintf(number, sizeof(number), "%u", (unsigned)geteuid());
	return geteuid() != 0 && strcmp(name, number) == 0;
}

static int make_own(struct arena *arena, struct user *ret_user)
{
	const char *home = getenv("HOME"), *shell = getenv("SHELL");
	struct passwd_line entry = {.uid = geteuid(), .gid = getegid()};
	char number[16];

	snprintf(number, sizeof(number), "%u", (unsigned)entry.uid);
	entry.name = str_of(number);
	entry.home = home ? str_of(home) : STR("/");
	entry.shell = shell && shell[0] == '/' ? str_of(shell) : STR("/bin/sh");
	return fill_user(&entry, arena, ret_user);
}

/* 1: found. */
static int find_entry(const char *name, struct arena *arena, struct user *ret_user)
{
	struct line_reader reader;
	struct passwd_line entry;
	struct str line;
	int status = reader_open(&reader, passwd_path);

	if (status == -ENOENT && strcmp(name, "root") == 0) {
		entry = builtin_root();
		status = fill_user(&entry, arena, ret_user);
		return status < 0 ? status : 1;
	}
	if (status < 0)
		return status == -ENOENT ? 0 : status;
	while (reader_next(&reader, &line)) {
		if (!parse_passwd(line, &entry))
			continue;
		if (str_equal(entry.name, str_of(name))) {
			status = fill_user(&entry, arena, ret_user);
			status = status < 0 ? status : 1;
			break;
		}
	}
	reader_close(&reader);
	return status;
}

static int find_user(const char *name, struct arena *arena, struct user *ret_user)
{
	int status = find_entry(name, arena, ret_user);

	if (status != 0 || !is_own(name))
		return status;
	status = make_own(arena, ret_user);
	return status < 0 ? status : 1;
}

/* Of what comes back by itself: the same may work in a moment. */
static bool is_shortage(int status)
{
	return status == -ENOMEM || status == -EMFILE || status == -ENFILE;
}

int user_lookup(const char *name, struct arena *arena, struct user *ret_user, struct err *err)
{
	int status = find_user(name, arena, ret_user);

	if (status == 1)
		return 0;
	if (status == 0) {
		err_set(err, ERR_NOT_FOUND, "user: unknown user %s", name);
		err->sys = ENOENT;
		return -ENOENT;
	}
	return err_set_sys(err, is_shortage(status) ? ERR_RESOURCE_EXHAUSTED : ERR_INTERNAL, status,
			   "user: lookup of %s", name);
}

struct id_name {
	uint32_t id;
	const char *name;
};

/* Sorted by id; numbers that have no name are entered when they are first asked for. */
struct id_table {
	struct id_name *items;
	size_t count, capacity;
};

struct user_names {
	struct arena *arena;
	struct id_table users, groups;
};

static size_t table_position(const struct id_table *table, uint32_t id)
{
	size_t low = 0, high = table->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (table->items[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The first name given to an id stays. NULL when the table is full or the arena refuses. */
static const char *table_add(struct id_table *table, struct arena *arena, uint32_t id,
			     struct str name)
{
	size_t at = table_position(table, id);
	const char *copy;

	if (at < table->count && table->items[at].id == id)
		return table->items[at].name;
	if (table->count == USER_NAMES_MAX)
		return NULL;
	if (table->count == table->capacity) {
		size_t capacity = table->capacity ? table->capacity * 2 : 32;
		struct id_name *items = arena_alloc_array(arena, capacity, sizeof(*items));

		if (!items)
			return NULL;
		if (table->count)
			memcpy(items, table->items, table->count * sizeof(*items));
		table->items = items;
		table->capacity = capacity;
	}
	copy = arena_str(arena, name).p;
	if (!copy)
		return NULL;
	memmove(&table->items[at + 1], &table->items[at],
		(table->count - at) * sizeof(*table->items));
	table->items[at] = (struct id_name){id, copy};
	table->count++;
	return copy;
}

struct user_names *user_names_load(struct arena *arena)
{
	struct user_names *names = arena_new(arena, struct user_names);
	struct line_reader reader;
	struct passwd_line entry;
	struct group_line group;
	struct str line;

	if (!names)
		return NULL;
	names->arena = arena;
	if (reader_open(&reader, passwd_path) == 0) {
		while (reader_next(&reader, &line))
			if (parse_passwd(line, &entry) &&
			    !table_add(&names->users, arena, entry.uid, entry.name))
				break;
		reader_close(&reader);
	} else if (!table_add(&names->users, arena, 0, STR("root"))) {
		return NULL;
	}
	if (reader_open(&reader, group_path) == 0) {
		while (reader_next(&reader, &line))
			if (parse_group(line, &group) &&
			    !table_add(&names->groups, arena, group.gid, group.name))
				break;
		reader_close(&reader);
	}
	return names;
}

static const char *name_of(struct user_names *names, struct id_table *table, uint32_t id)
{
	size_t at = table_position(table, id);
	const char *name;
	char text[16];

	if (at < table->count && table->items[at].id == id)
		return table->items[at].name;
	snprintf(text, sizeof(text), "%u", (unsigned)id);
	name = table_add(table, names->arena, id, str_of(text));
	if (!name)
		name = arena_strdup(names->arena, text);
	return name ? name : "";
}

const char *user_names_user(struct user_names *names, uid_t uid)
{
	return name_of(names, &names->users, uid);
}

const char *user_names_group(struct user_names *names, gid_t gid)
{
	return name_of(names, &names->groups, gid);
}
