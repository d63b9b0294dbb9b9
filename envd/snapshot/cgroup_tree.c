#include "envd/snapshot/cgroup_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#define EVENTS_BYTES 1024
#define PROC_BYTES_MAX (256 * 1024)
#define PROC_BYTES_FIRST 4096

void cgroup_tree_init(struct cgroup_tree *tree, const char *root)
{
	*tree = (struct cgroup_tree){.self_file = "/proc/self/cgroup",
				     .mounts_file = "/proc/self/mountinfo"};
	if (!root || !*root)
		return;
	tree->root = realpath(root, NULL);
	if (!tree->root)
		tree->root = xstrdup(root);
}

void cgroup_tree_fini(struct cgroup_tree *tree)
{
	free(tree->root);
	tree->root = NULL;
}

static int build(const struct cgroup_tree *tree, const char *path, const char *file,
		 char room[PATH_MAX])
{
	int len = snprintf(room, PATH_MAX, "%s%s%s%s%s", tree->root, *path ? "/" : "", path,
			   *file ? "/" : "", file);

	return len < 0 || len >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static ssize_t read_small(const struct cgroup_tree *tree, const char *path, const char *file,
			  char *text, size_t size)
{
	char room[PATH_MAX];
	int status = build(tree, path, file, room);
	auto_close int fd = status < 0 ? -1 : open(room, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (status < 0)
		return status;
	if (fd < 0)
		return -errno;
	len = read(fd, text, size);
	return len < 0 ? -errno : len;
}

/* The cgroup may vanish between the opening of its file and the reading. */
static int vanished_as_absent(ssize_t status)
{
	return status == -ENODEV ? -ENOENT : (int)status;
}

int cgroup_tree_is_asked(const struct cgroup_tree *tree, const char *path, bool *ret_asked)
{
	char text[16];
	ssize_t len = read_small(tree, path, "cgroup.freeze", text, sizeof(text));

	if (len < 0)
		return vanished_as_absent(len);
	*ret_asked = str_equal(
		str_trim((struct str){text, len && text[len - 1] == '\n' ? (size_t)len - 1
									 : (size_t)len}),
		STR("1"));
	return 0;
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

static struct str take_word(struct str *rest)
{
	struct str word;

	while (rest->len && is_space(*rest->p)) {
		rest->p++;
		rest->len--;
	}
	word.p = rest->p;
	while (rest->len && !is_space(*rest->p)) {
		rest->p++;
		rest->len--;
	}
	word.len = (size_t)(rest->p - word.p);
	return word;
}

int cgroup_parse_frozen(struct str events)
{
	struct str line;

	while (str_split(&events, '\n', &line))
		if (str_equal(take_word(&line), STR("frozen")))
			return str_equal(take_word(&line), STR("1"));
	return 0;
}

int cgroup_tree_is_frozen(const struct cgroup_tree *tree, const char *path, bool *ret_frozen)
{
	char text[EVENTS_BYTES];
	ssize_t len = read_small(tree, path, "cgroup.events", text, sizeof(text));

	if (len < 0)
		return vanished_as_absent(len);
	*ret_frozen = cgroup_parse_frozen((struct str){text, (size_t)len}) == 1;
	return 0;
}

int cgroup_tree_ask(struct cgroup_tree *tree, const char *path, bool freeze)
{
	char room[PATH_MAX];
	int status = build(tree, path, "cgroup.freeze", room);
	auto_close int fd = -1;

	if (status < 0)
		return status;
	if (tree->on_write)
		tree->on_write(tree, path, freeze);
	fd = open(room, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, freeze ? "1" : "0", 1) < 0)
		return vanished_as_absent(-errno);
	return 0;
}

bool cgroup_tree_exists(const struct cgroup_tree *tree, const char *path)
{
	char room[PATH_MAX];

	return build(tree, path, "", room) == 0 && access(room, F_OK) == 0;
}

int cgroup_tree_list(const struct cgroup_tree *tree, const char *path,
		     struct path_list *ret_children)
{
	char room[PATH_MAX];
	int status = build(tree, path, "", room);
	struct dirent *entry;
	DIR *listing;

	if (status < 0)
		return status;
	listing = opendir(room);
	if (!listing)
		return -errno;
	while (status == 0 && (entry = readdir(listing))) {
		int len;

		if (entry->d_type != DT_DIR || strcmp(entry->d_name, ".") == 0 ||
		    strcmp(entry->d_name, "..") == 0)
			continue;
		len = snprintf(room, sizeof(room), "%s%s%s", path, *path ? "/" : "", entry->d_name);
		if (len < 0 || len >= (int)sizeof(room))
			status = -ENAMETOOLONG;
		else
			status = path_list_append(ret_children, room);
	}
	closedir(listing);
	path_list_sort(ret_children);
	return status;
}

void cgroup_tree_walk(const struct cgroup_tree *tree, size_t visited_max,
		      void (*visit)(void *user, const char *path), void *user,
		      struct cgroup_walk *ret_walk)
{
	struct path_list queue, children;
	size_t next = 0;
	int status;

	*ret_walk = (struct cgroup_walk){0};
	path_list_init(&queue);
	path_list_init(&children);
	if (path_list_append(&queue, "") < 0)
		ret_walk->truncated = true;
	for (; next < queue.count; next++) {
		if (next > 0)
			visit(user, queue.paths[next]);
		path_list_clear(&children);
		status = cgroup_tree_list(tree, queue.paths[next], &children);
		if (status == -ENOMEM)
			ret_walk->truncated = true;
		/* What is too deep to be named cannot have been changed by us either. */
		else if (status < 0 && status != -ENOENT && status != -ENAMETOOLONG)
			ret_walk->failures++;
		for (size_t i = 0; i < children.count; i++) {
			/* The first in the queue is the root, which does not count. */
			if (queue.count > visited_max ||
			    path_list_append(&queue, children.paths[i]) < 0) {
				ret_walk->truncated = true;
				break;
			}
		}
	}
	ret_walk->visited = queue.count ? queue.count - 1 : 0;
	path_list_fini(&children);
	path_list_fini(&queue);
}

struct str cgroup_parse_own(struct str text)
{
	struct str line;

	while (str_split(&text, '\n', &line))
		if (str_starts_with(line, STR("0::/")))
			return (struct str){line.p + 3, line.len - 3};
	return (struct str){NULL, 0};
}

bool cgroup_is_at_or_below(struct str path, struct str above)
{
	return str_starts_with(path, above) &&
	       (path.len == above.len || above.len == 0 || path.p[above.len] == '/');
}

/* The hierarchy's top is spelled "/" by the kernel and "" here, so that paths below can be
 * joined. */
static struct str without_slash(struct str path)
{
	return str_equal(path, STR("/")) ? (struct str){path.p, 0} : path;
}

/* 41 31 0:38 /mounted/part /mount/point rw,relatime shared:5 - cgroup2 cgroup2 rw */
static bool parse_mount(struct str line, struct str *ret_part, struct str *ret_point)
{
	struct str word;

	for (int i = 0; i < 3; i++)
		take_word(&line);
	*ret_part = without_slash(take_word(&line));
	*ret_point = without_slash(take_word(&line));
	while ((word = take_word(&line)).len)
		if (str_equal(word, STR("-")))
			return str_equal(take_word(&line), STR("cgroup2"));
	return false;
}

struct str cgroup_parse_mounts(struct str text, struct str root, char *room, size_t size)
{
	struct str line, part, point, found = {NULL, 0};
	size_t longest = 0;
	int len;

	root = without_slash(root);
	while (str_split(&text, '\n', &line)) {
		if (!parse_mount(line, &part, &point) || !cgroup_is_at_or_below(root, point) ||
		    (found.p && point.len < longest))
			continue;
		/* Of several mounts in one place the last is on top. */
		len = snprintf(room, size, "%.*s%.*s", (int)part.len, part.p,
			       (int)(root.len - point.len), root.p + point.len);
		if (len < 0 || (size_t)len >= size)
			continue;
		found = (struct str){room, (size_t)len};
		longest = point.len;
	}
	return found;
}

/* A file of /proc; NUL-terminated. NULL when it cannot be read. */
static char *read_proc(const char *path, size_t *ret_len)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0, size = PROC_BYTES_FIRST;
	auto_free char *text = NULL;

	if (fd < 0)
		return NULL;
	text = xmalloc(size);
	for (;;) {
		ssize_t got = read(fd, text + len, size - 1 - len);

		if (got < 0)
			return NULL;
		len += (size_t)got;
		if (got == 0 || len + 1 >= PROC_BYTES_MAX)
			break;
		if (len + 1 == size) {
			size *= 2;
			text = xrealloc(text, size);
		}
	}
	text[len] = '\0';
	*ret_len = len;
	return take_ptr(&text);
}

/* Everything from the root down to `own`. */
static int add_chain(struct path_list *chain, struct str own)
{
	char path[PATH_MAX];

	if (own.len >= sizeof(path))
		return -ENAMETOOLONG;
	for (size_t i = 1; i <= own.len; i++) {
		if (i < own.len && own.p[i] != '/')
			continue;
		memcpy(path, own.p + 1, i - 1);
		path[i - 1] = '\0';
		if (path_list_insert(chain, path) < 0)
			return -ENOMEM;
	}
	return 0;
}

int cgroup_tree_chain(const struct cgroup_tree *tree, struct path_list *ret_chain)
{
	size_t self_len = 0, mounts_len = 0;
	auto_free char *self = read_proc(tree->self_file, &self_len);
	auto_free char *mounts = read_proc(tree->mounts_file, &mounts_len);
	struct str own = {NULL, 0}, top = STR(""), found;
	char room[PATH_MAX];

	if (path_list_insert(ret_chain, "") < 0)
		return -ENOMEM;
	if (self)
		own = cgroup_parse_own((struct str){self, self_len});
	if (!own.p)
		return -ENODATA;
	if (mounts && tree->root) {
		found = cgroup_parse_mounts((struct str){mounts, mounts_len}, str_of(tree->root),
					    room, sizeof(room));
		top = found.p ? found : top;
	}
	own = without_slash(own);
	/* "/.." is how a place outside the cgroup namespace reads. */
	if (!cgroup_is_at_or_below(own, top) || cgroup_is_at_or_below(own, STR("/..")))
		return 0;
	str_skip(&own, top.len);
	return add_chain(ret_chain, own);
}
