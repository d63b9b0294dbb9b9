/*
 * Sockets inside other network namespaces, for sandboxes whose address is `netns:PATH` (address.h):
 * what such a socket connects to is the sandbox's own 127.0.0.1, with no forwarder in between.
 *
 * A socket belongs for ever to the namespace of the thread that made it, and only that moment needs
 * the thread to be there. So a desk (one per worker) has a helper thread that goes from namespace
 * to namespace and makes sockets; connecting and all the rest happen on the worker's loop. The
 * helper is started by the first request, goes home when there is nothing to do, because whoever
 * stays keeps a namespace alive.
 *
 * A path may lead into a file system that does not answer (FUSE, NFS). So there are two lanes, one
 * for paths where there are none (/proc/PID/ns/NAME, /run/netns/NAME) and one for all others, where
 * a helper that hangs for longer than PROXY_NETNS_STUCK_MS is left behind and another one takes its
 * place. While it hangs its path is not tried again, and there are at most PROXY_NETNS_STUCK_MAX of
 * them.
 *
 * PATH must be a network namespace and not the proxy's own, where 127.0.0.1 is the host's (S5);
 * both are judged on the open file, each time, because names change hands. Entering needs
 * CAP_SYS_ADMIN.
 */
#ifndef PROXY_ROUTE_NETNS_H
#define PROXY_ROUTE_NETNS_H

#include "lib/list.h"
#include "lib/loop.h"
#include "proxy/route/address.h"

struct netns_helper;
struct netns_request;

enum { NETNS_KERNEL_LANE, NETNS_OTHER_LANE, NETNS_LANES };

struct netns_desk {
	struct loop *loop;
	struct netns_helper *helpers[NETNS_LANES]; /* NULL until somebody asks */
	struct list_node stuck;
	size_t stuck_count;
};

void netns_desk_open(struct netns_desk *desk, struct loop *loop);
/* Every request must be answered or cancelled. */
void netns_desk_close(struct netns_desk *desk);
/*
 * `family` is AF_INET or AF_INET6. 0 and *ret_request, or -EAGAIN: there is no thread to be had, or
 * -ETIMEDOUT: somebody has waited in vain for this path already. `fd` of on_socket, which comes
 * from the loop, is a non-blocking TCP socket that the receiver owns, or a negative errno: -ENOENT
 * (or another one of opening a file), -ENOTTY not a network namespace, -ELOOP the proxy's own,
 * -EPERM no right to enter.
 */
int netns_ask(struct netns_desk *desk, struct str path, int family,
	      void (*on_socket)(void *user, int fd), void *user,
	      struct netns_request **ret_request) NODISCARD;
/* on_socket does not come any more. Not to be called after it came. */
void netns_cancel(struct netns_request *request);

#endif
