#include "envd/forward/tcp_listeners.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "envd/limits.h"

/* <netinet/tcp.h> has it as an enum, under another name in each libc. */
#define STATE_LISTEN 10

static int open_socket(struct tcp_listeners *listeners)
{
	if (listeners->fd >= 0)
		return 0;
	listeners->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK,
			       NETLINK_SOCK_DIAG);
	return listeners->fd < 0 ? -errno : 0;
}

void tcp_listeners_close(struct tcp_listeners *listeners)
{
	close_fd(&listeners->fd);
	listeners->fd = -1;
}

static int ask(const struct tcp_listeners *listeners, int family)
{
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 request;
	} message = {
		.head = {.nlmsg_len = sizeof(message),
			 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
		.request = {.sdiag_family = (uint8_t)family,
			    .sdiag_protocol = IPPROTO_TCP,
			    .idiag_states = 1U << STATE_LISTEN},
	};
	const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};

	if (sendto(listeners->fd, &message, sizeof(message), 0, (const struct sockaddr *)&kernel,
		   sizeof(kernel)) < 0)
		return -errno;
	return 0;
}

static void look_at(const struct tcp_listeners *listeners, const struct inet_diag_msg *message)
{
	static const uint32_t loopback6[4] = {0, 0, 0, 1};
	const uint32_t *address = message->id.idiag_src;
	unsigned port = ntohs(message->id.idiag_sport);
	bool is_mapped = message->idiag_family == AF_INET6 && !address[0] && !address[1] &&
			 address[2] == htonl(0xffff);
	uint32_t low = ntohl(address[message->idiag_family == AF_INET6 ? 3 : 0]);

	if (message->idiag_family == AF_INET || is_mapped) {
		if (low == INADDR_LOOPBACK)
			listeners->on_loopback(listeners->user, AF_INET, port);
		return;
	}
	if (memcmp(address, loopback6, 12) == 0 && low == 1)
		listeners->on_loopback(listeners->user, AF_INET6, port);
}

/* One datagram of the answer: 1 when it was the last, 0, or a negative errno. */
static int read_part(const struct tcp_listeners *listeners, size_t len, bool *ret_disturbed)
{
	const struct nlmsghdr *head = (const struct nlmsghdr *)(const void *)listeners->buffer;

	for (; NLMSG_OK(head, len); head = NLMSG_NEXT(head, len)) {
		const struct nlmsgerr *error = NLMSG_DATA(head);

		if (head->nlmsg_flags & NLM_F_DUMP_INTR)
			*ret_disturbed = true;
		switch (head->nlmsg_type) {
		case NLMSG_DONE:
			return 1;
		case NLMSG_ERROR:
			return error->error ? error->error : -EPROTO;
		case SOCK_DIAG_BY_FAMILY:
			if (head->nlmsg_len >= NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
				look_at(listeners, NLMSG_DATA(head));
			break;
		default:
			break;
		}
	}
	return 0;
}

static int scan_family(struct tcp_listeners *listeners, int family, size_t *read_bytes)
{
	bool disturbed = false;
	int status = ask(listeners, family);

	while (status == 0) {
		ssize_t len = recv(listeners->fd, listeners->buffer, listeners->buffer_len,
				   MSG_TRUNC);

		if (len < 0 && errno == EINTR)
			continue;
		if (len < 0)
			return -errno;
		if ((size_t)len > listeners->buffer_len)
			return -EMSGSIZE;
		status = read_part(listeners, (size_t)len, &disturbed);
		*read_bytes += (size_t)len;
		if (status == 0 && *read_bytes > FORWARD_SCAN_BYTES_MAX) {
			tcp_listeners_close(listeners); /* the rest of the answer goes with it */
			return 1;
		}
	}
	if (status < 0)
		return status;
	return disturbed ? 1 : 0;
}

int tcp_listeners_scan(struct tcp_listeners *listeners)
{
	size_t read_bytes = 0;
	int status = open_socket(listeners);
	int status6;

	if (status < 0)
		return status;
	status = scan_family(listeners, AF_INET, &read_bytes);
	if (status < 0) {
		tcp_listeners_close(listeners);
		return status;
	}
	/* Closed after too much; the newer half of the world then has to wait. */
	if (listeners->fd < 0)
		return status;
	status6 = scan_family(listeners, AF_INET6, &read_bytes);
	if (status6 == -ENOENT) /* no IPv6 in this kernel */
		return status;
	if (status6 < 0)
		tcp_listeners_close(listeners);
	return status6 ? status6 : status;
}
