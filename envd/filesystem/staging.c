#include "envd/filesystem/staging.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "envd/filesystem/copy.h"

#ifndef FALLOC_FL_KEEP_SIZE
#define FALLOC_FL_KEEP_SIZE 1
#define FALLOC_FL_PUNCH_HOLE 2
#endif

/* Held in memory while its space is freed where it came from and taken in the target. */
#define MOVE_PIECE_BYTES (64 * 1024)

static int open_unnamed(int directory)
{
	int fd = openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);

	return fd < 0 ? -errno : fd;
}

/* struct statx of the kernel's interface, of which the mount id (Linux 5.8) has no other way out;
 * libc's headers differ about it. */
struct mount_facts {
	uint32_t mask;
	char before[140];
	uint64_t mount_id;
	char after[104];
};
#define WANT_MOUNT_ID 0x1000u

/* 0 where the kernel does not tell. */
static uint64_t mount_id(int fd)
{
	struct mount_facts facts = {0};

	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, WANT_MOUNT_ID, &facts) < 0 ||
	    !(facts.mask & WANT_MOUNT_ID))
		return 0;
	return facts.mount_id;
}

/* The topmost directory of the mount that holds `directory`, or -1. */
static int open_mount_root(int directory)
{
	int at = openat(directory, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);

	while (at >= 0) {
		auto_close int up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		struct stat here, above;

		if (up < 0 || fstat(at, &here) < 0 || fstat(up, &above) < 0)
			break;
		/* Two mounts of one file system cannot be linked across. */
		if (here.st_dev != above.st_dev || mount_id(at) != mount_id(up) ||
		    here.st_ino == above.st_ino)
			break;
		close_fd(&at);
		at = take_fd(&up);
	}
	return at;
}

static bool has_default_acl(int directory)
{
	auto_close int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 && fgetxattr(fd, "system.posix_acl_default", NULL, 0) > 0;
}

int staging_open(const struct place *place, enum staging_use use)
{
	if (use == STAGING_TO_COPY || !has_default_acl(place->directory)) {
		auto_close int top = open_mount_root(place->directory);
		int fd = top >= 0 ? open_unnamed(top) : -EBADF;

		if (fd >= 0)
			return fd;
	}
	return open_unnamed(place->directory);
}

int staging_link(int fd, const struct place *place)
{
	char path[32];

	/* Needs CAP_DAC_READ_SEARCH; the other way needs /proc. */
	if (linkat(fd, "", place->directory, place->name, AT_EMPTY_PATH) == 0)
		return 0;
	if (errno == EEXIST)
		return -EEXIST;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, path, place->directory, place->name, AT_SYMLINK_FOLLOW) < 0 ? -errno
											    : 0;
}

int staging_copy(int fd, int target)
{
	struct stat st;
	int64_t copied;

	if (fstat(fd, &st) < 0)
		return -errno;
	/* No space must be known before the first old byte is gone. File systems that cannot
	 * reserve are tried all the same. */
	if (st.st_size && fallocate(target, FALLOC_FL_KEEP_SIZE, 0, st.st_size) < 0 &&
	    (errno == ENOSPC || errno == EDQUOT))
		return -ENOSPC;
	copied = copy_content(fd, target, st.st_size);
	if (copied < 0)
		return (int)copied;
	if (copied < st.st_size)
		return -EIO;
	return ftruncate(target, st.st_size) < 0 ? -errno : 0;
}

int staging_move(int fd, int target)
{
	auto_free char *piece = xmalloc(MOVE_PIECE_BYTES);
	int64_t done = 0;
	int status;

	if (ftruncate(target, 0) < 0)
		return -errno;
	for (;;) {
		ssize_t got = pread(fd, piece, MOVE_PIECE_BYTES, done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : 0;
		/* The piece is in memory, so its space can be freed before it is needed. */
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, done, got) < 0 &&
		    errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
			return -errno;
		status = copy_write_all(target, piece, (size_t)got, done);
		if (status < 0)
			return status;
		done += got;
	}
}

static int64_t add_saturating(int64_t a, uint64_t b)
{
	return b > (uint64_t)(INT64_MAX - a) ? INT64_MAX : a + (int64_t)b;
}

bool staging_would_fit(int fd, int target, int64_t more)
{
	struct statvfs fs;
	struct stat old, staged;
	int64_t room = 0;

	if (fstat(target, &old) < 0 || fstat(fd, &staged) < 0)
		return false;
	if (more < 0)
		return old.st_blocks > 0 && old.st_blocks >= staged.st_blocks / 8;
	room = add_saturating(room, (uint64_t)old.st_blocks * 512);
	if (fstatvfs(fd, &fs) == 0) {
		uint64_t bytes;

		if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &bytes))
			bytes = INT64_MAX;
		room = add_saturating(room, bytes);
	}
	return more <= room;
}

/* The one piece of state that threads share: which files are being published right now, and which
 * are written directly. */
static pthread_mutex_t turns_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turns_changed = PTHREAD_COND_INITIALIZER;
static struct staging_turn *turns;
static struct staging_direct *directs;

static bool is_same(const struct staging_turn *a, const struct staging_turn *b)
{
	return a->device == b->device && a->inode == b->inode;
}

static bool is_taken(const struct staging_turn *wanted)
{
	for (struct staging_turn *turn = turns; turn; turn = turn->next)
		if (is_same(turn, wanted))
			return true;
	return false;
}

static void take(struct staging_turn *turn)
{
	while (is_taken(turn))
		pthread_cond_wait(&turns_changed, &turns_lock);
	turn->next = turns;
	turns = turn;
}

static void end(struct staging_turn *turn)
{
	for (struct staging_turn **at = &turns; *at; at = &(*at)->next) {
		if (*at == turn) {
			*at = turn->next;
			break;
		}
	}
	pthread_cond_broadcast(&turns_changed);
}

void staging_turn_take(struct staging_turn *turn, const struct stat *st)
{
	turn->device = st->st_dev;
	turn->inode = st->st_ino;
	pthread_mutex_lock(&turns_lock);
	take(turn);
	pthread_mutex_unlock(&turns_lock);
}

void staging_turn_end(struct staging_turn *turn, int status)
{
	pthread_mutex_lock(&turns_lock);
	for (struct staging_direct *direct = directs; direct && status != STAGING_UNCHANGED;
	     direct = direct->next)
		if (is_same(&direct->turn, turn))
			direct->ended = status < 0 ? status : 1;
	end(turn);
	pthread_mutex_unlock(&turns_lock);
}

bool staging_direct_begin(struct staging_direct *direct, const struct stat *st)
{
	bool is_free;

	*direct = (struct staging_direct){.turn = {.device = st->st_dev, .inode = st->st_ino}};
	pthread_mutex_lock(&turns_lock);
	is_free = !is_taken(&direct->turn);
	for (struct staging_direct *other = directs; other && is_free; other = other->next)
		is_free = !is_same(&other->turn, &direct->turn);
	if (is_free) {
		direct->next = directs;
		directs = direct;
	}
	pthread_mutex_unlock(&turns_lock);
	return is_free;
}

int staging_direct_resume(struct staging_direct *direct)
{
	int ended;

	pthread_mutex_lock(&turns_lock);
	take(&direct->turn);
	ended = direct->ended;
	pthread_mutex_unlock(&turns_lock);
	return ended;
}

void staging_direct_pause(struct staging_direct *direct)
{
	pthread_mutex_lock(&turns_lock);
	end(&direct->turn);
	pthread_mutex_unlock(&turns_lock);
}

void staging_direct_end(struct staging_direct *direct)
{
	pthread_mutex_lock(&turns_lock);
	for (struct staging_direct **at = &directs; *at; at = &(*at)->next) {
		if (*at == direct) {
			*at = direct->next;
			break;
		}
	}
	pthread_mutex_unlock(&turns_lock);
}
