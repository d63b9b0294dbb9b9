/*
 * Waits of a server that no test sees the end of. A test copies them and shortens the one it is
 * about.
 */
#ifndef TESTS_SUPPORT_LONG_WAITS_H
#define TESTS_SUPPORT_LONG_WAITS_H

#include "lib/http_server.h"

extern const struct http_server_timeouts long_waits;

#endif
