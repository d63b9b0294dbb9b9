#include "envd/init/text_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

int text_file_read(const char *path, char **ret_text, size_t *ret_len)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	auto_free char *text = NULL;
	struct stat st;
	size_t len = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	if (st.st_size > TEXT_FILE_BYTES_MAX)
		return -EFBIG;
	text = malloc((size_t)st.st_size + 1);
	if (!text)
		return -ENOMEM;
	while (len < (size_t)st.st_size) {
		ssize_t got = read(fd, text + len, (size_t)st.st_size - len);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		len += (size_t)got;
	}
	text[len] = '\0';
	*ret_text = take_ptr(&text);
	*ret_len = len;
	return 0;
}

int text_file_write(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t put = write(fd, text, len);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		text += put;
		len -= (size_t)put;
	}
	return 0;
}

/* A file beside `path` with its owner and mode; -errno leaves nothing behind. */
static int write_beside(const char *path, const struct stat *like, const char *text, size_t len,
			char ret_name[PATH_MAX])
{
	auto_close int fd = -1;
	int status = snprintf(ret_name, PATH_MAX, "%s.XXXXXX", path);

	if (status < 0 || status >= PATH_MAX)
		return -ENAMETOOLONG;
	fd = mkostemp(ret_name, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	status = text_file_write(fd, text, len);
	if (status == 0 &&
	    (fchown(fd, like->st_uid, like->st_gid) < 0 || fchmod(fd, like->st_mode & 07777) < 0))
		status = -errno;
	if (status < 0)
		unlink(ret_name);
	return status;
}

static int write_into(const char *path, const char *text, size_t len)
{
	auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);
	int status;

	if (fd < 0)
		return -errno;
	/* The old end goes last, so that a reader sees too much rather than nothing. */
	status = text_file_write(fd, text, len);
	if (status == 0 && ftruncate(fd, (off_t)len) < 0)
		status = -errno;
	return status;
}

int text_file_replace(const char *path, const char *text, size_t len)
{
	auto_free char *real = realpath(path, NULL);
	char beside[PATH_MAX];
	struct stat st;

	if (!real || stat(real, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	/* Another name of the file would go on showing the old content. */
	if (st.st_nlink == 1 && write_beside(real, &st, text, len, beside) == 0) {
		if (rename(beside, real) == 0)
			return 0;
		unlink(beside);
	}
	return write_into(real, text, len);
}

int text_file_append(const char *path, const char *text, size_t len)
{
	auto_close int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	struct stat st;
	int status;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	status = text_file_write(fd, text, len);
	/* Half a text is worse than none; where even this fails, nothing can be done. */
	if (status < 0 && ftruncate(fd, st.st_size) < 0)
		return status;
	return status;
}

int text_file_make_folders(const char *path)
{
	char folder[PATH_MAX];

	if (snprintf(folder, sizeof(folder), "%s", path) >= (int)sizeof(folder))
		return -ENAMETOOLONG;
	for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(folder, 0755) < 0 && errno != EEXIST)
			return -errno;
		*slash = '/';
	}
	return 0;
}

int text_file_create(const char *path, const char *text, size_t len)
{
	auto_close int fd = -1;
	int status = text_file_make_folders(path);

	if (status < 0)
		return status;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	return text_file_write(fd, text, len);
}
