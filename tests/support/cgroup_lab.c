#include "tests/support/cgroup_lab.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/cmocka.h"

static void join(const struct cgroup_lab *lab, const char *path, const char *file,
		 char room[PATH_MAX])
{
	int len = snprintf(room, PATH_MAX, "%s/%s%s%s", lab->root, path, *path ? "/" : "", file);

	assert_true(len > 0 && len < PATH_MAX);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

void cgroup_lab_open(struct cgroup_lab *lab)
{
	snprintf(lab->root, sizeof(lab->root), "/tmp/cgroup-lab-XXXXXX");
	assert_non_null(mkdtemp(lab->root));
	snprintf(lab->self, sizeof(lab->self), "%s/self", lab->root);
	cgroup_lab_place_envd(lab, "0::/\n");
	cgroup_lab_make(lab, "user");
	cgroup_lab_make(lab, "ptys");
	cgroup_lab_make(lab, "socats");
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *ftw)
{
	return remove(path);
}

void cgroup_lab_close(struct cgroup_lab *lab)
{
	assert_int_equal(nftw(lab->root, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void cgroup_lab_adopt(struct cgroup_lab *lab, struct cgroup_tree *tree)
{
	tree->self_file = lab->self;
	tree->mounts_file = "/nonexistent";
	tree->on_write = cgroup_lab_obey;
	tree->user = lab;
}

void cgroup_lab_place_envd(struct cgroup_lab *lab, const char *text)
{
	write_file(lab->self, text);
}

void cgroup_lab_write(struct cgroup_lab *lab, const char *path, const char *file, const char *text)
{
	char room[PATH_MAX];

	join(lab, path, file, room);
	write_file(room, text);
}

static void make_one(struct cgroup_lab *lab, const char *path)
{
	char room[PATH_MAX];

	join(lab, path, "", room);
	if (mkdir(room, 0755) < 0) {
		assert_int_equal(errno, EEXIST);
		return;
	}
	cgroup_lab_write(lab, path, "cgroup.freeze", "0\n");
	cgroup_lab_write(lab, path, "cgroup.events", "populated 1\nfrozen 0\n");
	cgroup_lab_write(lab, path, "cgroup.procs", "");
}

void cgroup_lab_make(struct cgroup_lab *lab, const char *path)
{
	char above[PATH_MAX];

	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		snprintf(above, sizeof(above), "%.*s", (int)(slash - path), path);
		make_one(lab, above);
	}
	make_one(lab, path);
}

void cgroup_lab_remove(struct cgroup_lab *lab, const char *path)
{
	char room[PATH_MAX];

	join(lab, path, "", room);
	assert_int_equal(nftw(room, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void cgroup_lab_drop(struct cgroup_lab *lab, const char *path, const char *file)
{
	char room[PATH_MAX];

	join(lab, path, file, room);
	assert_int_equal(unlink(room), 0);
}

void cgroup_lab_break(struct cgroup_lab *lab, const char *path, const char *file)
{
	char room[PATH_MAX];

	cgroup_lab_drop(lab, path, file);
	join(lab, path, file, room);
	/* It loops: ELOOP, for root as well. */
	assert_int_equal(symlink(room, room), 0);
}

bool cgroup_lab_is_asked(struct cgroup_lab *lab, const char *path)
{
	char room[PATH_MAX], value = 0;
	int fd;

	join(lab, path, "cgroup.freeze", room);
	fd = open(room, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(read(fd, &value, 1), 1);
	close(fd);
	return value == '1';
}

static void settle(struct cgroup_lab *lab, const char *path, bool freeze)
{
	char room[PATH_MAX], child[PATH_MAX];
	struct dirent *entry;
	struct stat status;
	DIR *listing;

	join(lab, path, "cgroup.events", room);
	if (lstat(room, &status) == 0 && S_ISREG(status.st_mode))
		write_file(room, freeze ? "populated 1\nfrozen 1\n" : "populated 1\nfrozen 0\n");
	join(lab, path, "", room);
	listing = opendir(room);
	while (listing && (entry = readdir(listing))) {
		if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
			continue;
		snprintf(child, sizeof(child), "%.2000s/%.2000s", path, entry->d_name);
		/* Who is frozen for himself stays so. */
		if (freeze || !cgroup_lab_is_asked(lab, child))
			settle(lab, child, freeze);
	}
	if (listing)
		closedir(listing);
}

void cgroup_lab_freeze(struct cgroup_lab *lab, const char *path, bool freeze)
{
	cgroup_lab_write(lab, path, "cgroup.freeze", freeze ? "1\n" : "0\n");
	settle(lab, path, freeze);
}

void cgroup_lab_obey(struct cgroup_tree *tree, const char *path, bool freeze)
{
	settle(tree->user, path, freeze);
}
