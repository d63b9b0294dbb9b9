/*
 * The one error type. Below, functions return 0 or a positive result, or a negative errno (which
 * is also libuv's error space). Where a person will read the error - RPC, REST, start-up - they
 * fill a struct err on the caller's stack: a kind, the errno behind it if there is one, and a
 * message. Kinds are the Connect codes; one table maps a kind to its name and HTTP status, another
 * an errno to a kind. Functions return a negative value and fill *err only on failure.
 */
#ifndef LIB_ERR_H
#define LIB_ERR_H

#include "lib/base.h"

/* The numbers are gRPC's, which Connect shares. */
enum err_kind {
	ERR_OK = 0,
	ERR_CANCELED = 1,
	ERR_UNKNOWN = 2,
	ERR_INVALID_ARGUMENT = 3,
	ERR_DEADLINE_EXCEEDED = 4,
	ERR_NOT_FOUND = 5,
	ERR_ALREADY_EXISTS = 6,
	ERR_PERMISSION_DENIED = 7,
	ERR_RESOURCE_EXHAUSTED = 8,
	ERR_FAILED_PRECONDITION = 9,
	ERR_ABORTED = 10,
	ERR_OUT_OF_RANGE = 11,
	ERR_UNIMPLEMENTED = 12,
	ERR_INTERNAL = 13,
	ERR_UNAVAILABLE = 14,
	ERR_DATA_LOSS = 15,
	ERR_UNAUTHENTICATED = 16,
};

#define ERR_MESSAGE_BYTES 1024

struct err {
	enum err_kind kind;
	int sys; /* positive errno, 0 when none */
	char message[ERR_MESSAGE_BYTES];
};

/* Fills *err; returns -EINVAL-like negative (-err->sys, or -EPROTO when there is no errno) so that
 * `return err_set(err, ...)` reads well. The message may be cut at ERR_MESSAGE_BYTES, never inside
 * a UTF-8 sequence. */
int err_set(struct err *err, enum err_kind kind, const char *format, ...) PRINTF_LIKE(3, 4);
/* The same with an errno (either sign); ": <errno_text>" is appended to the message. */
int err_set_sys(struct err *err, enum err_kind kind, int sys, const char *format, ...)
	PRINTF_LIKE(4, 5);
/* Puts "<text>: " in front of the message. */
void err_wrap(struct err *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* "invalid_argument" and so on (contract/envd.md 4.1). */
const char *err_kind_name(enum err_kind kind);
/* The status of a unary Connect error (contract/envd.md 4.1). */
int err_kind_http_status(enum err_kind kind);
enum err_kind err_kind_from_errno(int sys);
/* The error text in the form clients know: lower case, "no such file or directory". Accepts either
 * sign. Independent of libc and locale. */
const char *errno_text(int sys);

#endif
