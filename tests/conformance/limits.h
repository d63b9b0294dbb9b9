/*
 * The test server's largest message is what the runner asks for, not a constant: this is put in
 * front of every file it is compiled from.
 */
#ifndef TESTS_CONFORMANCE_LIMITS_H
#define TESTS_CONFORMANCE_LIMITS_H

#include "envd/limits.h"

extern int receive_limit_bytes;

#undef RPC_MESSAGE_BYTES_MAX
#define RPC_MESSAGE_BYTES_MAX receive_limit_bytes

#endif
