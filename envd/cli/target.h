/*
 * Which envd a command talks to, and as whom: the options and variables that all commands of
 * envd/cli share, read into one struct, with the address looked up. A command runs alone in its
 * process, so that looking up may block, and so may writing to its standard output.
 *
 *   -url URL, ENVD_URL         http://host[:port] or https:// (lib/tls/tls_client.h);
 *                              http://127.0.0.1:49983 when nothing is said
 *   -sandbox ID, ENVD_SANDBOX  behind a proxy: which sandbox is meant (routing headers,
 *                              contract/proxy.md 1.3)
 *   -user NAME, ENVD_USER      as whom; the sandbox's default user when nothing is said
 *   ENVD_ACCESS_TOKEN          the access token; not an option, because others can read those
 */
#ifndef ENVD_CLI_TARGET_H
#define ENVD_CLI_TARGET_H

#include <sys/socket.h>

#include "lib/err.h"
#include "lib/http.h"
#include "lib/loop.h"
#include "lib/options.h"

struct addrinfo;
struct tls_client;

struct target {
	struct loop loop;
	struct arena arena; /* of what follows */
	const char *url, *sandbox, *user; /* as given; NULL: not */
	bool json; /* -json: for programs */
	struct str authority; /* for Host */
	struct http_headers fields; /* that go with every request */
	struct addrinfo *addresses;
	bool is_secure; /* https */
	const char *host, *port; /* to connect to */
	struct tls_client *tls; /* with https */
};

/* The rows of an options table that every command has. */
#define TARGET_OPTIONS(target) \
	{"url", OPTION_STRING, &(target)->url, \
	 "where envd or a proxy is (default ENVD_URL, or http://127.0.0.1:49983)"}, \
		{"sandbox", OPTION_STRING, &(target)->sandbox, \
		 "which sandbox, when the URL is a proxy's (default ENVD_SANDBOX)"}, \
		{"user", OPTION_STRING, &(target)->user, \
		 "as whom (default ENVD_USER, or the sandbox's default user)"}, \
	{ \
		"json", OPTION_BOOL, &(target)->json, "print JSON, for programs" \
	}

void target_init(struct target *target);
/* After the options were read. Fills err with invalid_argument or unavailable. */
int target_open(struct target *target, struct err *err) NODISCARD;
/* Runs the loop until nothing is open on it. */
void target_run(struct target *target);
void target_fini(struct target *target);

#endif
