#include "tests/support/long_waits.h"

const struct http_server_timeouts long_waits = {
	.first_byte = 60000,
	.head = 60000,
	.body_idle = 60000,
	.write_stall = 60000,
	.linger = 60000,
	.linger_total = 60000,
};
