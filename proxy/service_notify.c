#include "proxy/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void service_notify(const char *format, ...)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	auto_close int fd = -1;
	char text[128];
	va_list arguments;
	socklen_t len;

	if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(address.sun_path))
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	memcpy(address.sun_path, path, strlen(path));
	/* '@' stands for the NUL that abstract names begin with. */
	if (address.sun_path[0] == '@')
		address.sun_path[0] = '\0';
	len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		(void)sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT,
			     (struct sockaddr *)&address, len);
}
