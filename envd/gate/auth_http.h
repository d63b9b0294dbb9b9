/*
 * Who may call, and as whom: the access-token gate, the rules of /files, and the user name of Basic
 * authorization (contract/envd.md 3; case 141). The functions that "pass" answer the request
 * themselves when it does not; nothing of its body has been read by then.
 */
#ifndef ENVD_GATE_AUTH_HTTP_H
#define ENVD_GATE_AUTH_HTTP_H

#include "envd/init/sandbox.h"
#include "lib/http_exchange.h"

/* The gate before every route that is not exempt from it. */
bool auth_pass_token(struct http_exchange *ex, const struct sandbox *sandbox);
/* GET and POST /files: a token in the header, or a signature in the query. */
bool auth_pass_files(struct http_exchange *ex, const struct sandbox *sandbox);

/* The user named by "Authorization: Basic", whose password says nothing. False when there is none:
 * no header, another scheme, not base64, no colon. The name may be empty or hold any byte. Answers
 * nothing. */
bool auth_basic_name(struct http_exchange *ex, struct str *ret_name);
/* A copy that lives as long as the exchange, for who looks it up himself; NULL after an answer:
 * names that cannot exist are refused here. */
const char *auth_take_name(struct http_exchange *ex, struct str name);
/* Looks the name up in a job and then calls `passed` with a name that lives as long as the
 * exchange; an unknown user is answered in the caller's protocol. */
void auth_check_user(struct http_exchange *ex, const struct sandbox *sandbox, struct str name,
		     void (*passed)(struct http_exchange *ex, const char *name));

#endif
