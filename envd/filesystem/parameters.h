/*
 * Header values of the form `type; name=value; name="value"` (RFC 2045, RFC 2183), as browsers,
 * SDKs and the reference write and read them: in a quoted string '\' escapes only when followed by
 * one of ()<>@,;:\"/[]?= and is a character of its own otherwise, raw UTF-8 is accepted; `name*`
 * has RFC 2231's charset''percent form, `name*0`, `name*1*` are its continuations. Pure.
 */
#ifndef ENVD_FILESYSTEM_PARAMETERS_H
#define ENVD_FILESYSTEM_PARAMETERS_H

#include "lib/arena.h"

/* What stands before the first ';', without blanks around it. */
struct str parameters_type(struct str value);
/* The parameter of that name (lower case is compared without case). 1: found (*ret_text is NUL-
 * terminated and lives in the arena; the last one given wins, `name*` over `name` where its charset
 * is one that is UTF-8), 0: none, -EINVAL: the value is malformed before or at it, -ENOMEM. */
int parameters_get(struct str value, struct str name, struct arena *arena,
		   struct str *ret_text) NODISCARD;

#endif
