#include "proxy/token_file.h"

#include <fcntl.h>
#include <unistd.h>

int token_file_read(const char *path, char ret_token[TOKEN_FILE_BYTES_MAX + 1], struct err *err)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len = fd < 0 ? -1 : read(fd, ret_token, TOKEN_FILE_BYTES_MAX);
	bool good;

	if (len < 0)
		return err_set_sys(err, ERR_INVALID_ARGUMENT, errno, "read %s", path);
	while (len > 0 && (ret_token[len - 1] == '\n' || ret_token[len - 1] == '\r'))
		len--;
	ret_token[len] = '\0';
	good = len > 0;
	for (ssize_t i = 0; i < len; i++)
		good &= ret_token[i] > ' ' && ret_token[i] < 0x7f;
	return good ? 0 : err_set(err, ERR_INVALID_ARGUMENT, "%s must hold one token", path);
}
