#include "lib/err.h"

/* Cuts at most three bytes so that a truncated message is still UTF-8. */
static void trim_partial_character(char *text)
{
	size_t len = strlen(text);
	size_t back = 0;

	while (back < 4 && back < len && ((unsigned char)text[len - 1 - back] & 0xC0) == 0x80)
		back++;
	if (back < len && !str_is_utf8((struct str){text + len - back - 1, back + 1}) &&
	    (unsigned char)text[len - 1 - back] >= 0xC0)
		text[len - back - 1] = '\0';
}

PRINTF_LIKE(2, 0)
static void set_message(struct err *err, const char *format, va_list arguments)
{
	int len = vsnprintf(err->message, sizeof(err->message), format, arguments);

	if (len < 0)
		err->message[0] = '\0';
	if (len >= (int)sizeof(err->message))
		trim_partial_character(err->message);
}

int err_set(struct err *err, enum err_kind kind, const char *format, ...)
{
	va_list arguments;

	err->kind = kind;
	err->sys = 0;
	va_start(arguments, format);
	set_message(err, format, arguments);
	va_end(arguments);
	return -EPROTO;
}

static void append(struct err *err, const char *text)
{
	size_t used = strlen(err->message);
	int len = snprintf(err->message + used, sizeof(err->message) - used, "%s", text);

	if (len >= (int)(sizeof(err->message) - used))
		trim_partial_character(err->message);
}

int err_set_sys(struct err *err, enum err_kind kind, int sys, const char *format, ...)
{
	va_list arguments;

	err->kind = kind;
	err->sys = sys < 0 ? -sys : sys;
	va_start(arguments, format);
	set_message(err, format, arguments);
	va_end(arguments);
	append(err, ": ");
	append(err, errno_text(sys));
	return err->sys ? -err->sys : -EPROTO;
}

void err_wrap(struct err *err, const char *format, ...)
{
	char inner[ERR_MESSAGE_BYTES];
	va_list arguments;

	memcpy(inner, err->message, sizeof(inner));
	va_start(arguments, format);
	set_message(err, format, arguments);
	va_end(arguments);
	append(err, ": ");
	append(err, inner);
}

static const struct {
	const char *name;
	int http_status;
} kinds[] = {
	[ERR_OK] = {"ok", 200},
	[ERR_CANCELED] = {"canceled", 499},
	[ERR_UNKNOWN] = {"unknown", 500},
	[ERR_INVALID_ARGUMENT] = {"invalid_argument", 400},
	[ERR_DEADLINE_EXCEEDED] = {"deadline_exceeded", 504},
	[ERR_NOT_FOUND] = {"not_found", 404},
	[ERR_ALREADY_EXISTS] = {"already_exists", 409},
	[ERR_PERMISSION_DENIED] = {"permission_denied", 403},
	[ERR_RESOURCE_EXHAUSTED] = {"resource_exhausted", 429},
	[ERR_FAILED_PRECONDITION] = {"failed_precondition", 400},
	[ERR_ABORTED] = {"aborted", 409},
	[ERR_OUT_OF_RANGE] = {"out_of_range", 400},
	[ERR_UNIMPLEMENTED] = {"unimplemented", 501},
	[ERR_INTERNAL] = {"internal", 500},
	[ERR_UNAVAILABLE] = {"unavailable", 503},
	[ERR_DATA_LOSS] = {"data_loss", 500},
	[ERR_UNAUTHENTICATED] = {"unauthenticated", 401},
};

const char *err_kind_name(enum err_kind kind)
{
	return (size_t)kind < ARRAY_LENGTH(kinds) ? kinds[kind].name : "unknown";
}

int err_kind_http_status(enum err_kind kind)
{
	return (size_t)kind < ARRAY_LENGTH(kinds) ? kinds[kind].http_status : 500;
}

enum err_kind err_kind_from_errno(int sys)
{
	switch (sys < 0 ? -sys : sys) {
	case 0:
		return ERR_OK;
	case ENOENT:
	case ESRCH:
		return ERR_NOT_FOUND;
	case EEXIST:
		return ERR_ALREADY_EXISTS;
	case EACCES:
	case EPERM:
	case EROFS:
		return ERR_PERMISSION_DENIED;
	case EINVAL:
	case ENAMETOOLONG:
	case ENOTDIR:
	case EISDIR:
	case ELOOP:
	case E2BIG:
	case EILSEQ:
	case ENXIO:
	case ENODEV:
	case ESPIPE:
		return ERR_INVALID_ARGUMENT;
	case EFBIG:
	case EOVERFLOW:
	case ERANGE:
		return ERR_OUT_OF_RANGE;
	case ENOMEM:
	case EMFILE:
	case ENFILE:
	case EAGAIN:
	case ENOSPC:
	case EDQUOT:
	case ENOBUFS:
		return ERR_RESOURCE_EXHAUSTED;
	case ENOSYS:
	case EOPNOTSUPP:
		return ERR_UNIMPLEMENTED;
	case ECANCELED:
		return ERR_CANCELED;
	case ETIMEDOUT:
		return ERR_DEADLINE_EXCEEDED;
	case EPIPE:
	case EBUSY:
	case ENOTEMPTY:
	case ETXTBSY:
	case EXDEV:
	case EMLINK:
	case ENODATA:
	case ENOKEY:
		return ERR_FAILED_PRECONDITION;
	case ESTALE:
	case EDEADLK:
		return ERR_ABORTED;
	case ENOTCONN:
	case EHOSTDOWN:
	case ECONNABORTED:
		return ERR_UNAVAILABLE;
	default:
		return ERR_INTERNAL;
	}
}

const char *errno_text(int sys)
{
	switch (sys < 0 ? -sys : sys) {
	case 0:
		return "success";
	case EPERM:
		return "operation not permitted";
	case ENOENT:
		return "no such file or directory";
	case ESRCH:
		return "no such process";
	case EINTR:
		return "interrupted system call";
	case EIO:
		return "input/output error";
	case ENXIO:
		return "no such device or address";
	case E2BIG:
		return "argument list too long";
	case ENOEXEC:
		return "exec format error";
	case EBADF:
		return "bad file descriptor";
	case ECHILD:
		return "no child processes";
	case EAGAIN:
		return "resource temporarily unavailable";
	case ENOMEM:
		return "cannot allocate memory";
	case EACCES:
		return "permission denied";
	case EFAULT:
		return "bad address";
	case ENOTBLK:
		return "block device required";
	case EBUSY:
		return "device or resource busy";
	case EEXIST:
		return "file exists";
	case EXDEV:
		return "invalid cross-device link";
	case ENODEV:
		return "no such device";
	case ENOTDIR:
		return "not a directory";
	case EISDIR:
		return "is a directory";
	case EINVAL:
		return "invalid argument";
	case ENFILE:
		return "too many open files in system";
	case EMFILE:
		return "too many open files";
	case ENOTTY:
		return "inappropriate ioctl for device";
	case ETXTBSY:
		return "text file busy";
	case EFBIG:
		return "file too large";
	case ENOSPC:
		return "no space left on device";
	case ESPIPE:
		return "illegal seek";
	case EROFS:
		return "read-only file system";
	case EMLINK:
		return "too many links";
	case EPIPE:
		return "broken pipe";
	case ERANGE:
		return "numerical result out of range";
	case EDEADLK:
		return "resource deadlock avoided";
	case ENAMETOOLONG:
		return "file name too long";
	case ENOSYS:
		return "function not implemented";
	case ENOTEMPTY:
		return "directory not empty";
	case ELOOP:
		return "too many levels of symbolic links";
	case EOVERFLOW:
		return "value too large for defined data type";
	case EILSEQ:
		return "invalid or incomplete multibyte or wide character";
	case EPROTO:
		return "protocol error";
	case EOPNOTSUPP:
		return "operation not supported";
	case EADDRINUSE:
		return "address already in use";
	case EADDRNOTAVAIL:
		return "cannot assign requested address";
	case ENETUNREACH:
		return "network is unreachable";
	case ECONNABORTED:
		return "software caused connection abort";
	case ECONNRESET:
		return "connection reset by peer";
	case ENOBUFS:
		return "no buffer space available";
	case ENOTCONN:
		return "transport endpoint is not connected";
	case ETIMEDOUT:
		return "connection timed out";
	case ECONNREFUSED:
		return "connection refused";
	case EHOSTUNREACH:
		return "no route to host";
	case EALREADY:
		return "operation already in progress";
	case EINPROGRESS:
		return "operation now in progress";
	case ESTALE:
		return "stale file handle";
	case EDQUOT:
		return "disk quota exceeded";
	case ECANCELED:
		return "operation canceled";
	case ENODATA:
		return "no data available";
	case EHOSTDOWN:
		return "host is down";
	case ENOKEY:
		return "required key not available";
	case EBADMSG:
		return "bad message";
	case 4095:
		return "end of file"; /* UV_EOF */
	default:
		return "unexpected system error";
	}
}
