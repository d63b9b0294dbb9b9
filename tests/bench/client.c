/*
 * A lean client for measuring envd: plain sockets, no allocation while measuring, so that what it
 * costs itself stays small beside the server. Prints one JSON object.
 *
 *   client PORT start COUNT           Start(/bin/true) to its end, COUNT times over one connection
 *   client PORT stream BYTES          Start(head -c BYTES /dev/zero), reads it all
 *   client PORT hold COUNT            COUNT idle processes with open streams; ends at EOF of stdin
 *   client PORT parallel COUNT        COUNT commands at once, output and exit code of each checked
 *   client PORT download PATH         GET /files, reads it all
 *   client PORT upload PATH BYTES     POST /files with BYTES zero bytes
 *   client PORT health PROGRAM [ARGUMENT..]
 *                                     starts the program, time until /health on PORT is answered
 *   client - sink COMMAND             runs sh -c COMMAND with a socket as stdout, reads it all
 */
#include "lib/base.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES (256 * 1024)

struct reader {
	int fd;
	size_t at, len;
	size_t chunk_left;
	bool chunked, done;
	char buffer[BUFFER_BYTES];
};

static int port;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, " (%s)\n", strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int try_connect(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1;

	if (fd < 0)
		die("socket");
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

static struct reader *open_connection(void)
{
	struct reader *r = xcalloc(1, sizeof(*r));

	r->fd = try_connect();
	if (r->fd < 0)
		die("connect to port %d", port);
	return r;
}

static void close_connection(struct reader *r)
{
	close(r->fd);
	free(r);
}

static void send_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t sent = send(fd, data, len, MSG_NOSIGNAL);

		if (sent < 0)
			die("send");
		data += sent;
		len -= (size_t)sent;
	}
}

static bool fill(struct reader *r)
{
	ssize_t got = recv(r->fd, r->buffer, sizeof(r->buffer), 0);

	if (got < 0)
		die("recv");
	r->at = 0;
	r->len = (size_t)got;
	return got > 0;
}

static char next_raw(struct reader *r)
{
	if (r->at == r->len && !fill(r))
		die("the connection ended early");
	return r->buffer[r->at++];
}

/* Copies (or, without `data`, skips) exactly `len` bytes as they stand on the wire. */
static void take_raw(struct reader *r, char *data, size_t len)
{
	while (len) {
		size_t piece;

		if (r->at == r->len && !fill(r))
			die("the connection ended early");
		piece = size_min(len, r->len - r->at);
		if (data) {
			memcpy(data, r->buffer + r->at, piece);
			data += piece;
		}
		r->at += piece;
		len -= piece;
	}
}

static void read_line(struct reader *r, char *line, size_t size)
{
	size_t len = 0;
	char c;

	while ((c = next_raw(r)) != '\n')
		if (len + 1 < size)
			line[len++] = c;
	while (len && line[len - 1] == '\r')
		len--;
	line[len] = '\0';
}

/* Reads a response head; returns the status, and the length in *ret_length (-1 when chunked). */
static int read_head(struct reader *r, int64_t *ret_length)
{
	char line[4096];
	int status;

	read_line(r, line, sizeof(line));
	if (sscanf(line, "HTTP/1.1 %d", &status) != 1)
		die("no response: %s", line);
	r->chunked = r->done = false;
	r->chunk_left = 0;
	*ret_length = 0;
	for (;;) {
		read_line(r, line, sizeof(line));
		if (!line[0])
			break;
		if (strncasecmp(line, "content-length:", 15) == 0)
			*ret_length = strtoll(line + 15, NULL, 10);
		if (strncasecmp(line, "transfer-encoding:", 18) == 0) {
			r->chunked = true;
			*ret_length = -1;
		}
	}
	return status;
}

/* The next `len` bytes of a chunked body; false at its end (only allowed before the first byte). */
static bool take_body(struct reader *r, char *data, size_t len)
{
	char line[64];
	bool first = true;

	while (len) {
		size_t piece;

		if (r->chunk_left == 0) {
			if (r->done)
				return false;
			read_line(r, line, sizeof(line));
			r->chunk_left = strtoull(line, NULL, 16);
			if (r->chunk_left == 0) {
				do
					read_line(r, line, sizeof(line));
				while (line[0]);
				r->done = true;
				if (!first)
					die("the body ended inside a message");
				return false;
			}
		}
		piece = size_min(len, r->chunk_left);
		take_raw(r, data, piece);
		if (data)
			data += piece;
		len -= piece;
		r->chunk_left -= piece;
		if (r->chunk_left == 0)
			read_line(r, line, sizeof(line));
		first = false;
	}
	return true;
}

static void send_start(int fd, const char *command, const char *arguments)
{
	char body[1024], head[1024];
	int body_len = snprintf(body + 5, sizeof(body) - 5,
				"{\"process\":{\"cmd\":\"%s\",\"args\":[%s]},\"stdin\":false}",
				command, arguments);
	int head_len = snprintf(
		head, sizeof(head),
		"POST /process.Process/Start HTTP/1.1\r\nHost: bench\r\n"
		"Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\n"
		"Authorization: Basic cm9vdDo=\r\nContent-Length: %d\r\n\r\n",
		body_len + 5);
	uint32_t len = htonl((uint32_t)body_len);
	char message[sizeof(head) + sizeof(body)];

	body[0] = 0;
	memcpy(body + 1, &len, sizeof(len));
	memcpy(message, head, (size_t)head_len);
	memcpy(message + head_len, body, (size_t)body_len + 5);
	send_all(fd, message, (size_t)head_len + (size_t)body_len + 5);
}

struct outcome {
	uint64_t payload_chars; /* base64 characters of output */
	uint64_t messages;
	bool ended;
	char end[512]; /* the end event, or the error of the end-of-stream message */
};

/* Reads messages until the end of the stream; with `until_start` only the first one. */
static void read_stream(struct reader *r, struct outcome *o, bool until_start)
{
	static const char data_prefix[] = "{\"event\":{\"data\":{\"std";
	unsigned char head[5];

	while (take_body(r, (char *)head, sizeof(head))) {
		size_t len = (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 |
			     head[4];
		char start[512];
		size_t seen = size_min(len, sizeof(start) - 1);

		take_body(r, start, seen);
		start[seen] = '\0';
		if (len > seen)
			take_body(r, NULL, len - seen);
		o->messages++;
		if (head[0] & 2) {
			if (strstr(start, "error"))
				snprintf(o->end, sizeof(o->end), "%s", start);
			continue;
		}
		if (strncmp(start, data_prefix, sizeof(data_prefix) - 1) == 0) {
			o->payload_chars += len -
					    (sizeof("{\"event\":{\"data\":{\"stdout\":\"\"}}}") -
					     1);
		} else if (strstr(start, "\"end\":")) {
			o->ended = true;
			snprintf(o->end, sizeof(o->end), "%s", start);
		}
		if (until_start)
			return;
	}
}

static void expect_stream(struct reader *r)
{
	int64_t length;
	int status = read_head(r, &length);

	if (status != 200 || length != -1)
		die("Start answered %d", status);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void print_times(const char *name, uint64_t *times, size_t count)
{
	qsort(times, count, sizeof(*times), compare);
	printf("{\"%s_p50_us\": %.1f, \"%s_p99_us\": %.1f, \"count\": %zu}\n", name,
	       (double)times[count / 2] / 1e3, name, (double)times[count * 99 / 100] / 1e3, count);
}

static void measure_start(size_t count)
{
	struct reader *r = open_connection();
	uint64_t *times = xcalloc(count, sizeof(*times));

	for (size_t i = 0; i < count + 20; i++) {
		struct outcome o = {0};
		uint64_t began = now_ns();

		send_start(r->fd, "/bin/true", "");
		expect_stream(r);
		read_stream(r, &o, false);
		if (!o.ended)
			die("no end event: %s", o.end);
		if (i >= 20) /* the first ones warm up */
			times[i - 20] = now_ns() - began;
	}
	print_times("start", times, count);
	free(times);
	close_connection(r);
}

static void measure_stream(uint64_t bytes)
{
	struct reader *r = open_connection();
	struct outcome o = {0};
	char arguments[128];
	uint64_t began = now_ns();
	struct rusage usage;

	snprintf(arguments, sizeof(arguments), "\"-c\",\"%llu\",\"/dev/zero\"",
		 (unsigned long long)bytes);
	send_start(r->fd, "head", arguments);
	expect_stream(r);
	read_stream(r, &o, false);
	began = now_ns() - began;
	if (!o.ended)
		die("no end event: %s", o.end);
	/* Padding makes it a little more than 4/3, never less. */
	if (o.payload_chars / 4 * 3 < bytes || o.payload_chars / 4 * 3 > bytes + o.messages * 2)
		die("%llu characters for %llu bytes", (unsigned long long)o.payload_chars,
		    (unsigned long long)bytes);
	getrusage(RUSAGE_SELF, &usage);
	printf("{\"seconds\": %.4f, \"messages\": %llu, \"client_cpu\": %.4f}\n",
	       (double)began / 1e9, (unsigned long long)o.messages,
	       (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
	close_connection(r);
}

static void hold(size_t count)
{
	struct reader **all = xcalloc(count, sizeof(*all));
	struct rlimit files = {.rlim_cur = count + 64, .rlim_max = count + 64};
	char c;

	setrlimit(RLIMIT_NOFILE, &files);
	for (size_t i = 0; i < count; i++) {
		struct outcome o = {0};

		all[i] = open_connection();
		send_start(all[i]->fd, "/bin/sleep", "\"100000\"");
		expect_stream(all[i]);
		read_stream(all[i], &o, true);
	}
	printf("{\"held\": %zu}\n", count);
	fflush(NULL);
	while (read(0, &c, 1) > 0)
		;
}

static void measure_parallel(size_t count)
{
	struct reader **all = xcalloc(count, sizeof(*all));
	struct rlimit files = {.rlim_cur = count + 64, .rlim_max = count + 64};
	uint64_t began;

	setrlimit(RLIMIT_NOFILE, &files);
	for (size_t i = 0; i < count; i++)
		all[i] = open_connection();
	began = now_ns();
	for (size_t i = 0; i < count; i++)
		send_start(all[i]->fd, "/bin/sh", "\"-c\",\"echo out; echo err >&2; exit 7\"");
	for (size_t i = 0; i < count; i++) {
		struct outcome o = {0};

		expect_stream(all[i]);
		read_stream(all[i], &o, false);
		/* "out\n" and "err\n" are eight characters each. */
		if (!o.ended || o.payload_chars != 16 || !strstr(o.end, "\"exitCode\":7"))
			die("command %zu: %llu characters, %s", i,
			    (unsigned long long)o.payload_chars, o.end);
		close_connection(all[i]);
	}
	printf("{\"seconds\": %.3f}\n", (double)(now_ns() - began) / 1e9);
}

static void take_all(struct reader *r, int64_t length)
{
	if (length >= 0) {
		take_raw(r, NULL, (size_t)length);
		return;
	}
	while (take_body(r, NULL, 1))
		if (r->chunk_left && r->at < r->len) {
			size_t piece = size_min(r->chunk_left - 1, r->len - r->at);

			take_body(r, NULL, piece);
		}
}

static void measure_download(const char *path)
{
	struct reader *r = open_connection();
	char head[1024];
	int64_t length;
	uint64_t began = now_ns();
	int status;

	snprintf(head, sizeof(head), "GET %s HTTP/1.1\r\nHost: bench\r\n\r\n", path);
	send_all(r->fd, head, strlen(head));
	status = read_head(r, &length);
	take_all(r, length);
	printf("{\"status\": %d, \"seconds\": %.4f, \"length\": %lld}\n", status,
	       (double)(now_ns() - began) / 1e9, (long long)length);
	close_connection(r);
}

static void measure_upload(const char *path, uint64_t bytes)
{
	static char block[BUFFER_BYTES];
	struct reader *r = open_connection();
	char head[1024];
	int64_t length;
	uint64_t began = now_ns();
	int status;

	snprintf(head, sizeof(head),
		 "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Type: application/octet-stream\r\n"
		 "Content-Length: %llu\r\n\r\n",
		 path, (unsigned long long)bytes);
	send_all(r->fd, head, strlen(head));
	while (bytes) {
		size_t piece = (size_t)(bytes < sizeof(block) ? bytes : sizeof(block));

		send_all(r->fd, block, piece);
		bytes -= piece;
	}
	status = read_head(r, &length);
	take_all(r, length);
	printf("{\"status\": %d, \"seconds\": %.4f}\n", status, (double)(now_ns() - began) / 1e9);
	close_connection(r);
}

static bool health_answers(void)
{
	static const char request[] =
		"GET /health HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
	char answer[512];
	int fd = try_connect();
	ssize_t got;

	if (fd < 0)
		return false;
	send_all(fd, request, sizeof(request) - 1);
	got = recv(fd, answer, sizeof(answer) - 1, 0);
	close(fd);
	return got >= 12 && memcmp(answer, "HTTP/1.1 204", 12) == 0;
}

static void measure_health(char **command)
{
	uint64_t began = now_ns();
	pid_t pid = vfork(); // lint-ok: the cheapest start, so that the program alone is measured

	if (pid == 0) {
		execv(command[0], command);
		_exit(127);
	}
	while (!health_answers()) {
		struct timespec pause = {.tv_nsec = 50 * 1000};

		if (waitpid(pid, NULL, WNOHANG) == pid || now_ns() - began > 10000000000u)
			die("%s does not answer", command[0]);
		nanosleep(&pause, NULL);
	}
	printf("{\"health_us\": %.1f}\n", (double)(now_ns() - began) / 1e3);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void measure_sink(const char *command)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static char buffer[BUFFER_BYTES];
	struct rusage usage;
	uint64_t began, bytes = 0;
	ssize_t got;
	pid_t pid;
	int out, in;

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&address, &len) < 0)
		die("listen");
	port = ntohs(address.sin_port);
	out = try_connect();
	in = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (out < 0 || in < 0)
		die("connect");
	began = now_ns();
	pid = fork();
	if (pid == 0) {
		dup2(out, 1);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	close(out);
	while ((got = recv(in, buffer, sizeof(buffer), 0)) > 0)
		bytes += (uint64_t)got;
	began = now_ns() - began;
	wait4(pid, NULL, 0, &usage);
	printf("{\"seconds\": %.4f, \"bytes\": %llu, \"cpu\": %.4f}\n", (double)began / 1e9,
	       (unsigned long long)bytes,
	       (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
}

int main(int argc, char **argv)
{
	const char *what = argc > 3 ? argv[2] : "";

	port = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0;
	if (strcmp(what, "start") == 0)
		measure_start(strtoul(argv[3], NULL, 10));
	else if (strcmp(what, "stream") == 0)
		measure_stream(strtoull(argv[3], NULL, 10));
	else if (strcmp(what, "hold") == 0)
		hold(strtoul(argv[3], NULL, 10));
	else if (strcmp(what, "parallel") == 0)
		measure_parallel(strtoul(argv[3], NULL, 10));
	else if (strcmp(what, "download") == 0)
		measure_download(argv[3]);
	else if (strcmp(what, "upload") == 0 && argc > 4)
		measure_upload(argv[3], strtoull(argv[4], NULL, 10));
	else if (strcmp(what, "health") == 0)
		measure_health(argv + 3);
	else if (strcmp(what, "sink") == 0)
		measure_sink(argv[3]);
	else
		die("usage: see the head of tests/bench/client.c");
	return 0;
}
