/*
 * Tells a service manager that waits for it (systemd's Type=notify) what becomes of this process,
 * by the protocol of sd_notify(3): one datagram to the socket that NOTIFY_SOCKET names. Without
 * that variable nothing happens.
 */
#ifndef PROXY_SERVICE_NOTIFY_H
#define PROXY_SERVICE_NOTIFY_H

#include "lib/base.h"

/* "READY=1", "STOPPING=1", "MAINPID=%d", "RELOADING=1". */
void service_notify(const char *format, ...) PRINTF_LIKE(1, 2);

#endif
