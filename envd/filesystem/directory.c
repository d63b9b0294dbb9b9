#include "envd/filesystem/directory.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the kernel writes (man 2 getdents64); libc's headers differ about its name. */
struct kernel_entry {
	uint64_t inode;
	int64_t offset;
	unsigned short length;
	unsigned char type;
	char name[];
};

int directory_open(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

void directory_reader_init(struct directory_reader *reader, int fd)
{
	reader->fd = fd;
	reader->at = reader->end = 0;
	reader->offset = 0;
}

int directory_reader_seek(struct directory_reader *reader, int fd, int64_t offset)
{
	directory_reader_init(reader, fd);
	reader->offset = offset;
	return lseek(fd, offset, SEEK_SET) < 0 ? -errno : 0;
}

int directory_reader_next(struct directory_reader *reader, const char **ret_name)
{
	for (;;) {
		const struct kernel_entry *entry;

		if (reader->at == reader->end) {
			long got = syscall(SYS_getdents64, reader->fd, reader->buffer,
					   sizeof(reader->buffer));

			if (got < 0)
				return -errno;
			if (got == 0)
				return 0;
			reader->at = 0;
			reader->end = (size_t)got;
		}
		entry = (const void *)(reader->buffer + reader->at);
		reader->at += entry->length;
		reader->offset = entry->offset;
		if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
			continue;
		*ret_name = entry->name;
		return 1;
	}
}

struct directory_id directory_id_of(const struct stat *st)
{
	return (struct directory_id){st->st_dev, st->st_ino};
}

int directory_ascend(int *fd, struct directory_id parent)
{
	auto_close int up = openat(*fd, "..", O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (up < 0 || fstat(up, &st) < 0)
		return -errno;
	if (st.st_dev != parent.device || st.st_ino != parent.inode)
		return -ESTALE;
	close_fd(fd);
	*fd = take_fd(&up);
	return 0;
}
