/* Whole requests: a real server on a thread of its own, blocking sockets here. */
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <zlib.h>

#include "envd/app.h"
#include "envd/filesystem/files.h"
#include "envd/filesystem/filesystem_service.h"
#include "envd/filesystem/path.h"
#include "lib/http_server.h"
#include "lib/json.h"
#include "lib/limits.h"
#include "tests/support/cmocka.h"

#define ANSWER_BYTES_MAX (96 * 1024 * 1024)
#define PATIENCE_MS 20000

static struct {
	struct app app; /* the server thread's */
	uv_async_t stop;
	pthread_t thread;
	sem_t wanted, ready, gone;
	unsigned port;
} server;

static struct arena arena;
static char root[64];

/* ---- the server ---- */

static void dispatch(struct http_exchange *ex)
{
	struct app *app = ex->server_user;

	for (size_t i = 0; i < FILESYSTEM_SERVICE_METHODS; i++)
		if (str_equal(ex->request.path, str_of(filesystem_service_methods[i].path))) {
			rpc_dispatch(ex, &filesystem_service_methods[i], app, NULL);
			return;
		}
	if (str_equal(ex->request.path, STR("/files/compose")))
		files_compose(ex, &app->sandbox);
	else if (str_equal(ex->request.method, STR("POST")))
		files_post(ex, &app->sandbox);
	else
		files_get(ex, &app->sandbox);
}

static void on_server_stopped(void *user)
{
	(void)user;
	uv_close((uv_handle_t *)&server.stop, NULL);
}

static void on_stop(uv_async_t *handle)
{
	(void)handle;
	http_server_stop(server.app.server, on_server_stopped, NULL);
	http_server_abort(server.app.server);
}

static void serve_once(void)
{
	const struct http_server_config config = {.dispatch = dispatch, .user = &server.app,
						  .idle_timeout_ms = 60000, .connections_max = 1000};

	memset(&server.app, 0, sizeof(server.app));
	loop_init(&server.app.loop);
	sandbox_init(&server.app.sandbox, &server.app.loop);
	uv_async_init(&server.app.loop.uv, &server.stop, on_stop);
	if (http_server_listen(&server.app.loop, &config, "127.0.0.1", 0, &server.app.server) < 0)
		abort();
	server.port = http_server_port(server.app.server);
	sem_post(&server.ready);
	loop_run(&server.app.loop);
	sandbox_fini(&server.app.sandbox);
	/* Asserts that every exchange, job and handle is gone. */
	loop_fini(&server.app.loop);
}

/* One thread for all tests: what a thread keeps for its next call is not a leak while it lives. */
static void *serve(void *argument)
{
	(void)argument;
	for (;;) {
		sem_wait(&server.wanted);
		serve_once();
		sem_post(&server.gone);
	}
	return NULL;
}

static int start_thread(void **state)
{
	(void)state;
	json_init();
	sem_init(&server.wanted, 0, 0);
	sem_init(&server.ready, 0, 0);
	sem_init(&server.gone, 0, 0);
	return pthread_create(&server.thread, NULL, serve, NULL);
}

static int setup(void **state)
{
	(void)state;
	arena_init(&arena, 256 * 1024 * 1024);
	memcpy(root, "/tmp/test_files.XXXXXX", 23);
	assert_non_null(mkdtemp(root));
	assert_int_equal(chmod(root, 0755), 0);
	sem_post(&server.wanted);
	sem_wait(&server.ready);
	return 0;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	uv_async_send(&server.stop);
	sem_wait(&server.gone);
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	assert_int_equal(system(command), 0); /* lint-ok: a test's own folder */
	arena_release(&arena);
	return 0;
}

/* ---- the client ---- */

struct answer {
	int status;
	const char *head;
	const char *body;
	size_t len;
	bool was_reset;
};

static int connect_server(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server.port),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

/* False when the server does not take it any more. */
static bool send_all(int fd, const void *data, size_t len)
{
	const char *at = data;

	while (len) {
		ssize_t put = send(fd, at, len, MSG_NOSIGNAL);

		if (put < 0)
			return false;
		at += put;
		len -= (size_t)put;
	}
	return true;
}

static void send_text(int fd, const char *text)
{
	assert_true(send_all(fd, text, strlen(text)));
}

static void wait_readable(int fd)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};

	assert_int_equal(poll(&ready, 1, PATIENCE_MS), 1);
}

static void read_to_end(int fd, struct answer *answer, size_t max)
{
	size_t capacity = 65536, used = 0;
	char *all = malloc(capacity + 1), *body;

	*answer = (struct answer){0};
	assert_non_null(all);
	for (;;) {
		ssize_t got;

		if (used == capacity) {
			assert_true(capacity < max);
			capacity *= 2;
			all = realloc(all, capacity + 1);
			assert_non_null(all);
		}
		wait_readable(fd);
		got = read(fd, all + used, capacity - used);
		if (got < 0)
			answer->was_reset = true;
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	all[used] = '\0';
	answer->head = arena_strndup(&arena, all, used);
	assert_non_null(answer->head);
	free(all);
	body = strstr((char *)answer->head, "\r\n\r\n");
	if (!body)
		return;
	*body = '\0';
	answer->body = body + 4;
	answer->len = used - (size_t)(answer->body - answer->head);
	answer->status = (int)strtol(answer->head + 9, NULL, 10);
}

/* Takes the chunked coding off. */
static void unchunk(struct answer *answer)
{
	const char *at = answer->body;
	char *out = (char *)answer->body;
	size_t used = 0;

	for (;;) {
		size_t len = strtoul(at, NULL, 16);

		at = strstr(at, "\r\n");
		assert_non_null(at);
		at += 2;
		if (len == 0)
			break;
		memmove(out + used, at, len);
		used += len;
		at += len + 2;
	}
	out[used] = '\0';
	answer->len = used;
}

static void check_header(const struct answer *answer, const char *name, const char *want)
{
	const char *line = arena_printf(&arena, "\r\n%s: ", name);
	const char *found = strstr(answer->head, line);

	if (!want) {
		assert_null(found);
		return;
	}
	assert_non_null(found);
	found += strlen(line);
	assert_string_equal(arena_strndup(&arena, found, strcspn(found, "\r")), want);
}

static const char *encode(const char *path)
{
	char *encoded = arena_alloc(&arena, 3 * strlen(path) + 1), *at = encoded;

	for (; *path; path++)
		at += snprintf(at, 4, "%%%02X", (unsigned char)*path);
	return encoded;
}

static const char *at(const char *relative)
{
	return path_join(root, relative, &arena);
}

static struct answer get(const char *path, const char *headers)
{
	struct answer answer;
	int fd = connect_server();

	send_text(fd, arena_printf(&arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
				   "%s\r\n", encode(path), headers ? headers : ""));
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	return answer;
}

static const char *post_head(const char *path, const char *type, size_t len, const char *headers)
{
	return arena_printf(&arena, "POST /files%s%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
			    "Content-Type: %s\r\nContent-Length: %zu\r\n%s\r\n", path ? "?path=" : "",
			    path ? encode(path) : "", type, len, headers ? headers : "");
}

static struct answer post(const char *path, const void *body, size_t len, const char *headers)
{
	struct answer answer;
	int fd = connect_server();

	send_text(fd, post_head(path, "application/octet-stream", len, headers));
	send_all(fd, body, len);
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	return answer;
}

static struct answer call(const char *method, const char *body)
{
	struct answer answer;
	int fd = connect_server();

	send_text(fd, arena_printf(&arena, "POST /filesystem.Filesystem/%s HTTP/1.1\r\nHost: x\r\n"
				   "Connection: close\r\nContent-Type: application/json\r\n"
				   "Content-Length: %zu\r\n\r\n%s", method, strlen(body), body));
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	return answer;
}

static char *make_bytes(size_t len, unsigned seed)
{
	char *bytes = malloc(len);

	assert_non_null(bytes);
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1103515245 + 12345;
		bytes[i] = (char)(seed >> 16);
	}
	return bytes;
}

static void write_bytes(const char *relative, const void *data, size_t len)
{
	int fd = open(at(relative), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, len), len);
	close(fd);
}

static void check_file(const char *relative, const void *want, size_t len)
{
	int fd = open(at(relative), O_RDONLY | O_CLOEXEC);
	char *got = malloc(len + 1);
	size_t have = 0;
	ssize_t piece;

	assert_true(fd >= 0);
	assert_non_null(got);
	while ((piece = read(fd, got + have, len + 1 - have)) > 0)
		have += (size_t)piece;
	assert_int_equal(have, len);
	assert_memory_equal(got, want, len);
	free(got);
	close(fd);
}

static size_t count_entries(const char *path)
{
	DIR *directory = opendir(path);
	size_t count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 2;
}

/* After a first request, because the server opens things when it needs them. */
static size_t count_descriptors(void)
{
	assert_int_equal(get(at("none"), NULL).status, 404);
	return count_entries("/proc/self/fd");
}

/* Nobody is told when a server has noticed a reset: waits for what must come of it. */
static void wait_until(bool (*condition)(size_t), size_t argument)
{
	for (int waited = 0; !condition(argument); waited += 5) {
		assert_true(waited < PATIENCE_MS);
		poll(NULL, 0, 5);
	}
}

static bool has_descriptors(size_t count)
{
	return count_entries("/proc/self/fd") <= count;
}

/* ---- tests ---- */

static void case_090_empty_files_both_ways(void **state)
{
	struct answer answer;

	(void)state;
	answer = post(at("f"), "", 0, NULL);
	assert_int_equal(answer.status, 200);
	assert_string_equal(answer.body, arena_printf(&arena, "[{\"name\":\"f\",\"path\":\"%s\",\"type\":"
						      "\"file\"}]", at("f")));
	check_file("f", "", 0);
	answer = get(at("f"), NULL);
	assert_int_equal(answer.status, 200);
	assert_int_equal(answer.len, 0);
	check_header(&answer, "Content-Length", "0");
	check_header(&answer, "Content-Type", "text/plain; charset=utf-8");
	answer = get(at("f"), "Accept-Encoding: gzip\r\nRange: bytes=0-4\r\n");
	assert_int_equal(answer.status, 200);
	assert_int_equal(answer.len, 0);
	answer = get(at("f"), "Accept-Encoding: gzip\r\n");
	assert_int_equal(answer.status, 200);
	check_header(&answer, "Content-Encoding", "gzip");
	unchunk(&answer);
	assert_int_equal(answer.len, 20); /* header, an empty block, trailer */
}

static void files_of_every_size_round_trip(void **state)
{
	static const size_t sizes[] = {1, 4095, 65535, 65536, 65537, 262143, 262144, 262145, 600000,
				       5000000, 20000000};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
		char *bytes = make_bytes(sizes[i], (unsigned)i);
		struct answer answer = post(at("f.bin"), bytes, sizes[i], NULL);

		assert_int_equal(answer.status, 200);
		check_file("f.bin", bytes, sizes[i]);
		answer = get(at("f.bin"), NULL);
		assert_int_equal(answer.status, 200);
		check_header(&answer, "Content-Type", "application/octet-stream");
		check_header(&answer, "Vary", "Accept-Encoding");
		check_header(&answer, "Accept-Ranges", "bytes");
		check_header(&answer, "Content-Length", arena_printf(&arena, "%zu", sizes[i]));
		assert_int_equal(answer.len, sizes[i]);
		assert_memory_equal(answer.body, bytes, sizes[i]);
		free(bytes);
		arena_release(&arena);
	}
}

static void case_084_chunked_bodies_and_forms(void **state)
{
	char *bytes = make_bytes(3000000, 9), chunk_head[32];
	struct answer answer;
	const char *part;
	int fd;

	(void)state;
	fd = connect_server();
	send_text(fd, arena_printf(&arena, "POST /files?path=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
				   "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n"
				   "Expect: 100-continue\r\n\r\n", encode(at("chunked"))));
	wait_readable(fd);
	assert_int_equal(read(fd, chunk_head, sizeof(chunk_head)), 25);
	assert_memory_equal(chunk_head, "HTTP/1.1 100 Continue\r\n\r\n", 25);
	for (size_t done = 0, len; done < 3000000; done += len) {
		len = size_min(1 + done / 7, 3000000 - done);
		snprintf(chunk_head, sizeof(chunk_head), "%zx\r\n", len);
		send_text(fd, chunk_head);
		assert_true(send_all(fd, bytes + done, len));
		send_text(fd, "\r\n");
	}
	send_text(fd, "0\r\n\r\n");
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 200);
	check_file("chunked", bytes, 3000000);

	part = arena_printf(&arena, "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%s\""
				    "\r\n\r\n", at("dir/form"));
	fd = connect_server();
	send_text(fd, post_head(NULL, "multipart/form-data; boundary=b", strlen(part) + 3000000 + 9,
				"X-Metadata-Purpose: test\r\n"));
	send_text(fd, part);
	assert_true(send_all(fd, bytes, 3000000));
	send_text(fd, "\r\n--b--\r\n");
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 200);
	check_file("dir/form", bytes, 3000000);
	if (getxattr(at("dir/form"), "user.e2b.purpose", chunk_head, sizeof(chunk_head)) == 4)
		assert_string_equal(answer.body,
				    arena_printf(&arena, "[{\"metadata\":{\"purpose\":\"test\"},\"name\":"
						 "\"form\",\"path\":\"%s\",\"type\":\"file\"}]",
						 at("dir/form")));
	free(bytes);
}

static void conformance_088_a_form_without_files_is_an_empty_list(void **state)
{
	struct answer answer;
	int fd = connect_server();

	(void)state;
	send_text(fd, post_head(NULL, "multipart/form-data; boundary=b", 7, NULL));
	send_text(fd, "--b--\r\n");
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 200);
	assert_string_equal(answer.body, "[]");
}

static void check_error(const struct answer *answer, int status, const char *message)
{
	assert_int_equal(answer->status, status);
	assert_string_equal(answer->body, arena_printf(&arena, "{\"code\":%d,\"message\":\"%s\"}\n", status,
						       message));
	check_header(answer, "Content-Type", "application/json; charset=utf-8");
	check_header(answer, "X-Content-Type-Options", "nosniff");
}

static void conformance_061_download_errors(void **state)
{
	struct answer answer;
	int fd;

	(void)state;
	write_bytes("f", "x", 1);
	answer = get(root, NULL);
	check_error(&answer, 400, arena_printf(&arena, "path '%s' is a directory", root));
	answer = get(at("none"), NULL);
	check_error(&answer, 404, arena_printf(&arena, "path '%s' does not exist", at("none")));
	check_header(&answer, "Content-Disposition", NULL);
	answer = get(at("f/x"), NULL);
	check_error(&answer, 500, arena_printf(&arena, "error checking if path exists '%s': stat %s: not a "
					       "directory", at("f/x"), at("f/x")));
	answer = get("~other", NULL);
	check_error(&answer, 400, "error expanding and resolving path '~other': failed to expand path '' "
				  "for user 'root': cannot expand user-specific home dir");
	answer = get(at("f"), "Accept-Encoding: br, identity;q=0\r\n");
	check_error(&answer, 406, "error parsing Accept-Encoding: no acceptable encoding found, supported: "
				  "[gzip]");
	answer = get(at("f"), "Accept-Encoding: gzip; q=1,*; q=0\r\nRange: bytes=0-4\r\n");
	check_error(&answer, 406, "identity encoding not acceptable for Range or conditional request");
	check_header(&answer, "Vary", "Accept-Encoding");
	fd = connect_server();
	send_text(fd, arena_printf(&arena, "GET /files?path=%s&username= HTTP/1.1\r\nHost: x\r\n"
				   "Connection: close\r\n\r\n", encode(at("f"))));
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	check_error(&answer, 401, "error looking up user '': user: unknown user ");
	fd = connect_server();
	send_text(fd, "GET /files?path=%2Fa%00b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	check_error(&answer, 400, "error expanding and resolving path '/a': invalid NUL byte");
	fd = connect_server();
	send_text(fd, "GET /files?path=a&path=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.status, 400);
	assert_string_equal(answer.body, "Invalid format for parameter path: multiple values for single "
					 "value parameter 'path'\n");
}

/* What a gzip body holds; NULL when it is not a whole one. */
static const char *gunzip(const struct answer *answer, size_t *ret_len)
{
	z_stream stream = {.next_in = (unsigned char *)answer->body, .avail_in = (uInt)answer->len};
	size_t capacity = 1 << 20, used = 0;
	char *out = malloc(capacity + 1), *copy;
	int status = Z_OK;

	assert_non_null(out);
	assert_int_equal(inflateInit2(&stream, 15 + 16), Z_OK);
	while (status == Z_OK) {
		if (used == capacity) {
			capacity *= 2;
			out = realloc(out, capacity + 1);
			assert_non_null(out);
		}
		stream.next_out = (unsigned char *)out + used;
		stream.avail_out = (uInt)(capacity - used);
		status = inflate(&stream, Z_NO_FLUSH);
		used = capacity - stream.avail_out;
	}
	inflateEnd(&stream);
	copy = status == Z_STREAM_END && stream.avail_in == 0 ? arena_strndup(&arena, out, used) : NULL;
	free(out);
	*ret_len = used;
	return copy;
}

static void check_gzip(struct answer *answer, const void *want, size_t len)
{
	const char *content;
	size_t have;

	assert_int_equal(answer->status, 200);
	check_header(answer, "Content-Encoding", "gzip");
	check_header(answer, "Transfer-Encoding", "chunked");
	check_header(answer, "Content-Length", NULL);
	check_header(answer, "Last-Modified", NULL);
	check_header(answer, "Accept-Ranges", NULL);
	check_header(answer, "Vary", "Accept-Encoding");
	unchunk(answer);
	content = gunzip(answer, &have);
	assert_non_null(content);
	assert_int_equal(have, len);
	assert_memory_equal(content, want, len);
}

#define DIGITS "0123456789"
/* 2001-09-09T01:46:40Z */
#define MODIFIED 1000000000
#define MODIFIED_TEXT "Sun, 09 Sep 2001 01:46:40 GMT"

static const char *write_dated(void)
{
	const struct timespec times[2] = {{.tv_sec = MODIFIED}, {.tv_sec = MODIFIED, .tv_nsec = 5}};

	write_bytes("f.txt", DIGITS, 10);
	assert_int_equal(utimensat(AT_FDCWD, at("f.txt"), times, 0), 0);
	return at("f.txt");
}

static void conformance_062_case_102_one_range(void **state)
{
	static const struct {
		const char *range, *content_range, *body;
		int status;
	} table[] = {
		{"bytes=2-4", "bytes 2-4/10", "234", 206},
		{"bytes=0-0", "bytes 0-0/10", "0", 206},
		{"bytes=5-9", "bytes 5-9/10", "56789", 206},
		{"bytes=5-", "bytes 5-9/10", "56789", 206},
		{"bytes=-3", "bytes 7-9/10", "789", 206},
		{"bytes=-30", "bytes 0-9/10", DIGITS, 206},
		{"bytes=8-99", "bytes 8-9/10", "89", 206},
		{"bytes= 3 - 4 ", "bytes 3-4/10", "34", 206},
		{"bytes=20-,1-2", "bytes 1-2/10", "12", 206},
		{"bytes=,,7-7,", "bytes 7-7/10", "7", 206},
		{"bytes=0-99999999999999999999", "bytes 0-9/10", DIGITS, 206},
		{"bytes=0-,0-", NULL, DIGITS, 200},
		{"bytes=", NULL, DIGITS, 200},
		{"bytes=10-", "bytes */10", "invalid range: failed to overlap\n", 416},
		{"bytes=9999-", "bytes */10", "invalid range: failed to overlap\n", 416},
		{"bytes=10-,-0", "bytes */10", "invalid range: failed to overlap\n", 416},
		{"bytes=4-2", NULL, "invalid range\n", 416},
		{"bytes=a-b", NULL, "invalid range\n", 416},
		{"bytes=3", NULL, "invalid range\n", 416},
		{"bytes=--3", NULL, "invalid range\n", 416},
		{"bytes=-", NULL, "invalid range\n", 416},
		{"bytes=0-1,x", NULL, "invalid range\n", 416},
		{"lines=0-1", NULL, "invalid range\n", 416},
		{"", NULL, DIGITS, 200},
	};
	const char *path = write_dated();

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct answer answer = get(path, arena_printf(&arena, "Range: %s\r\n", table[i].range));

		if (answer.status != table[i].status)
			fail_msg("%s: %d", table[i].range, answer.status);
		assert_string_equal(answer.body, table[i].body);
		check_header(&answer, "Content-Range", table[i].content_range);
		check_header(&answer, "Content-Length",
			     arena_printf(&arena, "%zu", strlen(table[i].body)));
		check_header(&answer, "Vary", "Accept-Encoding");
		check_header(&answer, "Content-Type", "text/plain; charset=utf-8");
		check_header(&answer, "Content-Disposition", "inline; filename=f.txt");
		check_header(&answer, "Accept-Ranges", answer.status == 416 ? NULL : "bytes");
		check_header(&answer, "Last-Modified", answer.status == 416 ? NULL : MODIFIED_TEXT);
	}
}

static void case_102_several_ranges(void **state)
{
	const char *path = write_dated(), *type, *boundary, *want;
	struct answer answer = get(path, "Range: bytes=5-6,0-1, -1\r\n");

	(void)state;
	assert_int_equal(answer.status, 206);
	check_header(&answer, "Content-Range", NULL);
	type = strstr(answer.head, "Content-Type: multipart/byteranges; boundary=");
	assert_non_null(type);
	boundary = arena_strndup(&arena, type + 45, strcspn(type + 45, "\r"));
	want = arena_printf(&arena,
			    "--%s\r\nContent-Range: bytes 5-6/10\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n56"
			    "\r\n--%s\r\nContent-Range: bytes 0-1/10\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n01"
			    "\r\n--%s\r\nContent-Range: bytes 9-9/10\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n9"
			    "\r\n--%s--\r\n", boundary, boundary, boundary, boundary);
	assert_string_equal(answer.body, want);
	check_header(&answer, "Content-Length", arena_printf(&arena, "%zu", strlen(want)));
}

static void case_102_ranges_of_a_large_file(void **state)
{
	size_t len = 3000000;
	char *bytes = make_bytes(len, 11);
	const char *body;
	struct answer answer;

	(void)state;
	write_bytes("f", bytes, len);
	answer = get(at("f"), "Range: bytes=1000000-1999999\r\nAccept-Encoding: gzip\r\n");
	assert_int_equal(answer.status, 206);
	check_header(&answer, "Content-Encoding", NULL);
	assert_int_equal(answer.len, 1000000);
	assert_memory_equal(answer.body, bytes + 1000000, answer.len);
	answer = get(at("f"), "Range: bytes=65530-65550\r\n");
	assert_int_equal(answer.len, 21);
	assert_memory_equal(answer.body, bytes + 65530, 21);
	/* Backwards: the start comes last. */
	answer = get(at("f"), "Range: bytes=2000000-2999999, 0-999999\r\n");
	assert_int_equal(answer.status, 206);
	body = memmem(answer.body, answer.len, "\r\n\r\n", 4);
	assert_memory_equal(body + 4, bytes + 2000000, 1000000);
	body = memmem(body + 4 + 1000000, 500, "\r\n\r\n", 4);
	assert_memory_equal(body + 4, bytes, 1000000);
	free(bytes);
}

static void case_102_conditions(void **state)
{
	static const struct {
		const char *headers;
		int status;
	} table[] = {
		{"If-Modified-Since: " MODIFIED_TEXT "\r\n", 304},
		{"If-Modified-Since: Sun, 09 Sep 2001 01:46:41 GMT\r\n", 304},
		{"If-Modified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n", 200},
		{"If-Modified-Since: Sunday, 09-Sep-01 01:46:40 GMT\r\n", 304},
		{"If-Modified-Since: Sun Sep  9 01:46:40 2001\r\n", 304},
		{"If-Modified-Since: yesterday\r\n", 200},
		{"If-Modified-Since: " MODIFIED_TEXT " x\r\n", 200},
		{"If-None-Match: *\r\n", 304},
		{"If-None-Match: \"a\", W/\"b\"\r\n", 200},
		{"If-None-Match: \"a\"\r\nIf-Modified-Since: " MODIFIED_TEXT "\r\n", 200},
		{"If-Match: *\r\n", 200},
		{"If-Match: \"a\"\r\n", 412},
		{"If-Unmodified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n", 412},
		{"If-Unmodified-Since: " MODIFIED_TEXT "\r\n", 200},
		{"If-Unmodified-Since: never\r\n", 200},
		{"If-Match: *\r\nIf-Unmodified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n", 200},
		{"Range: bytes=1-2\r\nIf-Range: " MODIFIED_TEXT "\r\n", 206},
		{"Range: bytes=1-2\r\nIf-Range: Sun, 09 Sep 2001 01:46:41 GMT\r\n", 200},
		{"Range: bytes=1-2\r\nIf-Range: \"tag\"\r\n", 200},
		{"Range: bytes=1-2\r\nIf-Modified-Since: " MODIFIED_TEXT "\r\n", 304},
		{"Range: bytes=99-\r\nIf-Match: \"a\"\r\n", 412},
	};
	const char *path = write_dated();

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct answer answer = get(path, table[i].headers);

		if (answer.status != table[i].status)
			fail_msg("%s: %d", table[i].headers, answer.status);
		check_header(&answer, "Last-Modified", MODIFIED_TEXT);
		check_header(&answer, "Vary", "Accept-Encoding");
		check_header(&answer, "Content-Encoding", NULL);
		if (answer.status == 304 || answer.status == 412) {
			assert_int_equal(answer.len, 0);
			check_header(&answer, "Content-Type", NULL);
			check_header(&answer, "Content-Length", answer.status == 412 ? "0" : NULL);
		}
		if (answer.status == 200)
			assert_string_equal(answer.body, DIGITS);
	}
}

static void conformance_056_case_102_encodings(void **state)
{
	static const struct {
		const char *accept, *more;
		int status;
		bool is_gzip;
	} table[] = {
		{"gzip", "", 200, true},
		{"GZIP", "", 200, true},
		{"gzip, deflate, br", "", 200, true},
		{"*, identity;q=0", "", 200, true},
		{"gzip;q=0", "", 200, false},
		{"br", "", 200, false},
		{"*", "", 200, false},
		{"gzip;q=0.5, identity", "", 200, false},
		{"identity;q=0", "", 406, false},
		{"*;q=0", "", 406, false},
		{"gzip; q=1,*; q=0", "Range: bytes=0-4\r\n", 406, false},
		{"gzip, identity;q=0", "If-None-Match: *\r\n", 406, false},
		{"gzip, identity;q=0", "If-Modified-Since: x\r\n", 406, false},
		{"gzip, identity;q=0", "If-Range: x\r\n", 406, false},
		{"gzip, deflate", "Range: bytes=1-3\r\n", 206, false},
		{"gzip", "If-None-Match: *\r\n", 304, false},
		{"gzip", "If-Match: *\r\n", 200, true},
	};
	const char *path = write_dated();

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct answer answer = get(path, arena_printf(&arena, "Accept-Encoding: %s\r\n%s",
							      table[i].accept, table[i].more));

		if (answer.status != table[i].status)
			fail_msg("%s %s: %d", table[i].accept, table[i].more, answer.status);
		if (table[i].is_gzip)
			check_gzip(&answer, DIGITS, 10);
		else
			check_header(&answer, "Content-Encoding", NULL);
		if (answer.status == 406)
			check_error(&answer, 406, table[i].more[0] ? "identity encoding not acceptable for Range "
								     "or conditional request"
								   : "error parsing Accept-Encoding: no acceptable "
								     "encoding found, supported: [gzip]");
	}
}

static void conformance_057_conformance_084_gzip_answers(void **state)
{
	static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 131072, 1000000, 20000000};
	char *text = malloc(20000000), *noise = make_bytes(2000000, 3);
	struct answer answer;

	(void)state;
	assert_non_null(text);
	for (size_t i = 0; i < 20000000; i++)
		text[i] = "some text that is written again and again, "[i % 43] + (i % 4001 == 0);
	for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
		write_bytes("f.txt", text, sizes[i]);
		answer = get(at("f.txt"), "Accept-Encoding: gzip\r\n");
		check_header(&answer, "Content-Type", "text/plain; charset=utf-8");
		check_gzip(&answer, text, sizes[i]);
	}
	/* Not by content, in the reference. */
	write_bytes("text", text, 100);
	answer = get(at("text"), "Accept-Encoding: gzip\r\n");
	check_header(&answer, "Content-Type", "application/octet-stream");
	check_gzip(&answer, text, 100);
	/* What does not shrink is sent as it is, unless the client insists. */
	write_bytes("f", noise, 2000000);
	answer = get(at("f"), "Accept-Encoding: gzip\r\n");
	check_header(&answer, "Content-Encoding", NULL);
	check_header(&answer, "Content-Length", "2000000");
	assert_memory_equal(answer.body, noise, 2000000);
	answer = get(at("f"), "Accept-Encoding: gzip, identity;q=0\r\n");
	check_gzip(&answer, noise, 2000000);
	write_bytes("f", noise, 1000);
	answer = get(at("f"), "Accept-Encoding: gzip\r\n");
	check_gzip(&answer, noise, 1000);
	free(text);
	free(noise);
}

static void case_103_a_broken_gzip_answer_does_not_end_well(void **state)
{
	size_t len = 400000000, used = 0;
	char *piece = malloc(1 << 20);
	int fd;
	ssize_t got;

	(void)state;
	assert_non_null(piece);
	write_bytes("f", "text", 4);
	assert_int_equal(truncate(at("f"), (off_t)len), 0);
	fd = connect_server();
	send_text(fd, arena_printf(&arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n"
				   "Connection: close\r\n\r\n", encode(at("f"))));
	wait_readable(fd);
	assert_true(read(fd, piece, 1000) > 0);
	assert_int_equal(truncate(at("f"), 100000), 0);
	while ((got = read(fd, piece, 1 << 20)) > 0)
		used += (size_t)got;
	assert_true(got < 0); /* a reset: neither the gzip text nor the chunks have ended */
	assert_true(used < len);
	close(fd);
	free(piece);
}

static void gzip_for_many_at_once_stays_small(void **state)
{
	size_t len = 2000000, descriptors = count_descriptors();
	int connections[FILE_COMPRESSIONS_MAX + 20], waiting[FILE_COMPRESSIONS_FORCED_MAX + 5];
	size_t plain = 0, served = 0, refused = 0;
	char *text = calloc(1, len);

	(void)state;
	/* Half of it noise, so that a socket's buffers do not take it all. */
	assert_non_null(text);
	for (unsigned i = 0, seed = 1; i < len; i++)
		text[i] = (char)((seed = seed * 1103515245 + 12345) >> 20 & 15);
	write_bytes("f", text, len);
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		connections[i] = connect_server();
		send_text(connections[i], arena_printf(&arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n"
						       "Connection: close\r\nAccept-Encoding: gzip\r\n\r\n",
						       encode(at("f"))));
	}
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		struct answer answer;

		read_to_end(connections[i], &answer, ANSWER_BYTES_MAX);
		if (strstr(answer.head, "Content-Encoding: gzip")) {
			check_gzip(&answer, text, len);
		} else {
			assert_int_equal(answer.len, len);
			assert_memory_equal(answer.body, text, len);
			plain++;
		}
	}
	assert_true(plain <= 20);
	wait_until(has_descriptors, descriptors);
	/* Who takes nothing else is refused beyond a number: these read nothing, so none is done. */
	write_bytes("f", "", 0);
	assert_int_equal(truncate(at("f"), (off_t)1 << 40), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(waiting); i++) {
		waiting[i] = connect_server();
		send_text(waiting[i], arena_printf(&arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n"
						   "Accept-Encoding: gzip, identity;q=0\r\n\r\n",
						   encode(at("f"))));
	}
	for (size_t i = 0; i < ARRAY_LENGTH(waiting); i++) {
		char head[16] = "";

		wait_readable(waiting[i]);
		assert_true(read(waiting[i], head, 12) == 12);
		served += strcmp(head + 9, "200") == 0;
		refused += strcmp(head + 9, "503") == 0;
	}
	assert_int_equal(served, FILE_COMPRESSIONS_FORCED_MAX);
	assert_int_equal(refused, ARRAY_LENGTH(waiting) - FILE_COMPRESSIONS_FORCED_MAX);
	for (size_t i = 0; i < ARRAY_LENGTH(waiting); i++)
		close(waiting[i]);
	wait_until(has_descriptors, descriptors);
	free(text);
}

static struct answer compose(const char *body, size_t len)
{
	struct answer answer;
	int fd = connect_server();

	send_text(fd, arena_printf(&arena, "POST /files/compose HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
				   "Content-Length: %zu\r\n\r\n", len));
	send_all(fd, body, len);
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	return answer;
}

static void conformance_100_composed_files_can_be_downloaded(void **state)
{
	size_t len = 3000000, descriptors = count_descriptors();
	char *bytes = make_bytes(len, 21);
	const char *body;
	struct answer answer;

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(post(at(arena_printf(&arena, "p%d", i)), bytes + 1000000 * i, 1000000, NULL).status,
				 200);
	body = arena_printf(&arena, "{\"source_paths\":[\"%s/p0\",\"%s/p1\",\"%s/p2\"],\"destination\":\"%s/<f>\"}",
			    root, root, root, root);
	answer = compose(body, strlen(body));
	assert_int_equal(answer.status, 200);
	check_header(&answer, "Content-Type", "application/json");
	assert_string_equal(answer.body, arena_printf(&arena, "{\"name\":\"\\u003cf\\u003e\",\"path\":\"%s/"
						      "\\u003cf\\u003e\",\"type\":\"file\"}\n", root));
	answer = get(at("<f>"), NULL);
	assert_int_equal(answer.len, len);
	assert_memory_equal(answer.body, bytes, len);
	assert_int_equal(count_entries(root), 1);
	answer = compose(body, strlen(body));
	check_error(&answer, 404, arena_printf(&arena, "source file not found: %s/p0", root));
	answer = compose("", 0);
	assert_int_equal(answer.status, 400);
	answer = compose(bytes, 2000000);
	assert_true(answer.was_reset || answer.status == 413);
	wait_until(has_descriptors, descriptors);
	free(bytes);
}

static void case_099_a_client_that_leaves_changes_nothing_or_all(void **state)
{
	size_t descriptors = count_descriptors();
	struct linger hard = {.l_onoff = 1};
	const char *body;
	struct stat st;

	(void)state;
	write_bytes("part", "", 0);
	assert_int_equal(truncate(at("part"), 100000000), 0);
	body = arena_printf(&arena, "{\"source_paths\":[\"%s/part\",\"%s/part\"],\"destination\":\"%s/f\"}", root,
			    root, root);
	for (int round = 0; round < 3; round++) {
		int fd = connect_server();

		write_bytes("f", "old", 3);
		send_text(fd, arena_printf(&arena, "POST /files/compose HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n"
					   "\r\n%.*s", strlen(body), round == 0 ? 10 : (int)strlen(body), body));
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		if (round == 2)
			poll(NULL, 0, 10);
		close(fd);
		/* Connections are accepted in turn. */
		assert_int_equal(get(at("none"), NULL).status, 404);
		wait_until(has_descriptors, descriptors);
		assert_int_equal(stat(at("f"), &st), 0);
		assert_true(st.st_size == (st.st_size == 3 ? 3 : 200000000));
		assert_int_equal(count_entries(root), st.st_size == 3 ? 2 : 1);
		if (st.st_size != 3) {
			write_bytes("part", "", 0);
			assert_int_equal(truncate(at("part"), 100000000), 0);
		}
	}
}

static void large_listings_are_whole_and_may_be_left(void **state)
{
	size_t descriptors = count_descriptors(), names = 0;
	struct linger hard = {.l_onoff = 1};
	const char *body = arena_printf(&arena, "{\"path\":\"%s\"}", root);
	struct answer answer;

	(void)state;
	for (int i = 0; i < 3000; i++)
		write_bytes(arena_printf(&arena, "entry-%04d", i), "", 0);
	answer = call("ListDir", body);
	assert_int_equal(answer.status, 200);
	for (const char *found = answer.body; (found = strstr(found, "\"name\":\"entry-")); found++)
		names++;
	assert_int_equal(names, 3000);
	assert_string_equal(answer.body + answer.len - 3, "}]}");
	for (int round = 0; round < 10; round++) {
		int fd = connect_server();

		send_text(fd, arena_printf(&arena, "POST /filesystem.Filesystem/ListDir HTTP/1.1\r\nHost: x\r\n"
					   "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
					   strlen(body), body));
		if (round & 1)
			wait_readable(fd);
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		close(fd);
	}
	assert_int_equal(get(at("none"), NULL).status, 404);
	wait_until(has_descriptors, descriptors);
}

static void conformance_055_only_the_base_name_is_told(void **state)
{
	struct answer answer;

	(void)state;
	assert_int_equal(mkdir(at("a"), 0755), 0);
	assert_int_equal(mkdir(at("a/b"), 0755), 0);
	write_bytes("a/b/c.txt", "x", 1);
	answer = get(at("a/b/c.txt"), NULL);
	check_header(&answer, "Content-Disposition", "inline; filename=c.txt");
}

static void conformance_054_names_in_content_disposition(void **state)
{
	static const struct {
		const char *name, *want;
	} table[] = {
		{"test.txt", "inline; filename=test.txt"},
		{"presentation.pptx", "inline; filename=presentation.pptx"},
		{"archive.tar.gz", "inline; filename=archive.tar.gz"},
		{".env", "inline; filename=.env"},
		{"my document.pdf", "inline; filename=\"my document.pdf\""},
		{"file\"name.txt", "inline; filename=\"file\\\"name.txt\""},
		{"file\\name.txt", "inline; filename=\"file\\\\name.txt\""},
		{"\xE6\x96\x87\xE6\xA1\xA3.pdf", "inline; filename*=utf-8''%E6%96%87%E6%A1%A3.pdf"},
		{"a\r\nSet-Cookie: x", "inline; filename*=utf-8''a%0D%0ASet-Cookie%3A%20x"},
		{"\xFF\xFE", "inline; filename*=utf-8''%FF%FE"},
	};

	(void)state;
	assert_int_equal(mkdir(at("nested"), 0755), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		const char *relative = path_join("nested", table[i].name, &arena);
		struct answer answer;

		write_bytes(relative, "x", 1);
		answer = get(at(relative), NULL);
		assert_int_equal(answer.status, 200);
		check_header(&answer, "Content-Disposition", table[i].want);
	}
}

static void download_types_follow_name_and_content(void **state)
{
	static const struct {
		const char *name, *content, *want;
	} table[] = {
		{"a.HTML", "x", "text/html; charset=utf-8"},
		{"a.json", "x", "application/json"},
		{"a.md", "# text", "text/plain; charset=utf-8"},
		{"page", "\n <!doctype html><p>", "text/html; charset=utf-8"},
		{"image", "\x89PNG\r\n\x1A\n....", "image/png"},
		{"binary", "\x01\x02\x03", "application/octet-stream"},
		{"dir.png/plain", "x", "text/plain; charset=utf-8"},
		{"document.pdf", "x", "application/pdf"},
	};

	(void)state;
	assert_int_equal(mkdir(at("dir.png"), 0755), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct answer answer;

		write_bytes(table[i].name, table[i].content, strlen(table[i].content));
		answer = get(at(table[i].name), NULL);
		check_header(&answer, "Content-Type", table[i].want);
		assert_non_null(strstr(answer.head, "\r\nLast-Modified: "));
	}
}

static void case_101_two_hundred_fifos_do_not_hold_anything(void **state)
{
	int connections[200];
	struct answer answer;

	(void)state;
	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		connections[i] = connect_server();
		if (i & 1)
			send_text(connections[i],
				  arena_printf(&arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n"
					       "Connection: close\r\n\r\n", encode(at("fifo"))));
		else
			send_text(connections[i], post_head(at("fifo"), "application/octet-stream", 100, NULL));
	}
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		read_to_end(connections[i], &answer, ANSWER_BYTES_MAX);
		check_error(&answer, 400, arena_printf(&arena, i & 1 ? "path '%s' is not a regular file"
							       : "path is not a regular file: %s",
						       at("fifo")));
	}
	answer = get("/dev/zero", NULL);
	assert_int_equal(answer.status, 400);
	answer = get("/dev/tty", NULL);
	assert_int_equal(answer.status, 400);
}

static void files_of_proc_are_read_to_their_end(void **state)
{
	struct answer answer = get("/proc/self/status", NULL);

	(void)state;
	assert_int_equal(answer.status, 200);
	assert_non_null(strstr(answer.body, "nonvoluntary_ctxt_switches:"));
	answer = get("/proc/self/cmdline", NULL);
	assert_int_equal(answer.status, 200);
	assert_true(answer.len > 0);
	/* Longer than what is read ahead, so its length is not known. */
	answer = get("/proc/kallsyms", NULL);
	if (answer.status == 200 && strstr(answer.head, "chunked")) {
		unchunk(&answer);
		assert_true(answer.len > 65536);
		assert_true(answer.body[answer.len - 1] == '\n');
	}
	/* sysfs says 4096 whatever there is. */
	answer = get("/sys/kernel/mm/transparent_hugepage/enabled", NULL);
	if (answer.status == 200)
		assert_true(answer.len > 0 && answer.len < 200);
}

static void case_088_a_reset_or_short_body_keeps_the_old(void **state)
{
	size_t len = 1000000, descriptors = count_descriptors();
	char *bytes = make_bytes(len, 4);
	struct linger hard = {.l_onoff = 1};

	(void)state;
	assert_int_equal(mkdir(at("d"), 0755), 0);
	write_bytes("d/f", "old", 3);
	for (int round = 0; round < 6; round++) {
		bool is_form = round & 1, is_new = round >= 4;
		const char *path = at(is_new ? "d/new" : "d/f");
		int fd = connect_server();

		send_text(fd, post_head(path, is_form ? "multipart/form-data; boundary=b"
						      : "application/octet-stream", 2 * len, NULL));
		if (is_form)
			send_text(fd, "--b\r\nContent-Disposition: form-data; name=file\r\n\r\n");
		assert_true(send_all(fd, bytes, len));
		if (round == 2)
			assert_int_equal(shutdown(fd, SHUT_WR), 0);
		else if (round != 3)
			assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
		if (round == 2) {
			struct answer answer;

			/* A client that ends early may be told so, never that all is well. */
			read_to_end(fd, &answer, ANSWER_BYTES_MAX);
			assert_true(answer.status == 0 || answer.status >= 400);
		} else {
			close(fd);
		}
		/* The upload's descriptors go when the server has noticed; the connection's too. */
		wait_until(has_descriptors, descriptors);
		check_file("d/f", "old", 3);
		assert_int_equal(count_entries(at("d")), 1);
	}
	free(bytes);
}

static void case_088_a_truncated_form_is_an_error(void **state)
{
	struct answer answer;
	int fd = connect_server();
	const char *body = "--b\r\nContent-Disposition: form-data; name=file\r\n\r\nhalf of it";

	(void)state;
	write_bytes("f", "old", 3);
	send_text(fd, post_head(at("f"), "multipart/form-data; boundary=b", strlen(body), NULL));
	send_text(fd, body);
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	check_error(&answer, 500, "error reading form: multipart: unexpected EOF");
	check_file("f", "old", 3);
}

static void case_103_a_file_that_shrinks_breaks_the_download_off(void **state)
{
	size_t len = 30000000, used = 0;
	char *bytes = make_bytes(len, 5), *piece = malloc(1 << 20);
	struct answer answer;
	int fd;
	ssize_t got;

	(void)state;
	assert_non_null(piece);
	write_bytes("f", bytes, len);
	fd = connect_server();
	send_text(fd, arena_printf(&arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n\r\n", encode(at("f"))));
	wait_readable(fd);
	assert_true(read(fd, piece, 1000) > 0);
	assert_int_equal(truncate(at("f"), 1000000), 0);
	while ((got = read(fd, piece, 1 << 20)) > 0)
		used += (size_t)got;
	assert_true(got < 0); /* a reset, not an orderly end */
	assert_true(used < len);
	close(fd);
	/* Growth is not seen, deletion neither. */
	write_bytes("f", bytes, len);
	fd = connect_server();
	send_text(fd, arena_printf(&arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
				   "\r\n", encode(at("f"))));
	wait_readable(fd);
	assert_int_equal(truncate(at("f"), (off_t)len + 5000), 0);
	assert_int_equal(unlink(at("f")), 0);
	read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	assert_int_equal(answer.len, len);
	assert_memory_equal(answer.body, bytes, len);
	free(bytes);
	free(piece);
}

static void case_104_abandoned_downloads_hold_nothing(void **state)
{
	size_t len = 20000000, descriptors = count_descriptors();
	struct linger hard = {.l_onoff = 1};
	char *bytes = make_bytes(len, 6), byte;
	int connections[50];
	struct answer answer;

	(void)state;
	write_bytes("f", bytes, len);
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		connections[i] = connect_server();
		send_text(connections[i], arena_printf(&arena, "GET /files?path=%s HTTP/1.1\r\nHost: x\r\n\r\n",
						       encode(at("f"))));
	}
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		wait_readable(connections[i]);
		assert_int_equal(read(connections[i], &byte, 1), 1);
	}
	/* All are stuck; others are served. */
	write_bytes("other", "x", 1);
	answer = get(at("other"), NULL);
	assert_int_equal(answer.status, 200);
	for (size_t i = 0; i < ARRAY_LENGTH(connections); i++) {
		setsockopt(connections[i], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		close(connections[i]);
	}
	wait_until(has_descriptors, descriptors);
	free(bytes);
}

struct uploader {
	pthread_t thread;
	const char *request;
	int status;
};

static void *upload_it(void *argument)
{
	struct uploader *uploader = argument;
	char head[256] = "";
	int fd = connect_server();

	if (send_all(fd, uploader->request, strlen(uploader->request)) && read(fd, head, 255) > 12)
		uploader->status = (int)strtol(head + 9, NULL, 10);
	close(fd);
	return NULL;
}

static void conformance_086_parallel_uploads_into_new_directories(void **state)
{
	struct uploader uploaders[64];

	(void)state;
	for (int round = 0; round < 5; round++) {
		struct answer answer;

		for (size_t i = 0; i < ARRAY_LENGTH(uploaders); i++) {
			const char *path = at(arena_printf(&arena, "p%d/a/b/c/f%zu", round, i));

			uploaders[i].status = 0;
			uploaders[i].request = arena_printf(
				&arena, "%sx", post_head(path, "application/octet-stream", 1, NULL));
		}
		for (size_t i = 0; i < ARRAY_LENGTH(uploaders); i++)
			assert_int_equal(pthread_create(&uploaders[i].thread, NULL, upload_it,
							&uploaders[i]), 0);
		for (size_t i = 0; i < ARRAY_LENGTH(uploaders); i++) {
			pthread_join(uploaders[i].thread, NULL);
			assert_int_equal(uploaders[i].status, 200);
		}
		assert_int_equal(count_entries(at(arena_printf(&arena, "p%d/a/b/c", round))),
				 ARRAY_LENGTH(uploaders));
		answer = call("Remove", arena_printf(&arena, "{\"path\":\"%s\"}",
						     at(arena_printf(&arena, "p%d", round))));
		assert_int_equal(answer.status, 200);
	}
}

static void case_095_an_upload_is_there_after_its_answer(void **state)
{
	(void)state;
	for (int i = 0; i < 300; i++) {
		char text[32];
		struct answer answer;

		snprintf(text, sizeof(text), "number %d", i);
		answer = post(at(i % 3 ? "same" : arena_printf(&arena, "new%d", i)), text, strlen(text), NULL);
		assert_int_equal(answer.status, 200);
		check_file(i % 3 ? "same" : arena_printf(&arena, "new%d", i), text, strlen(text));
	}
}

static void errors_come_before_the_body_and_reach_the_client(void **state)
{
	size_t len = 3000000;
	char *bytes = make_bytes(len, 7);
	struct answer answer;

	(void)state;
	/* More than what is read and thrown away: the answer comes all the same. */
	answer = post(root, bytes, len, NULL);
	check_error(&answer, 400, arena_printf(&arena, "path is a directory: %s", root));
	answer = post(root, bytes, 100, NULL);
	check_error(&answer, 400, arena_printf(&arena, "path is a directory: %s", root));
	answer = post(at("f"), bytes, 100, "Content-Encoding: br\r\n");
	check_error(&answer, 400, "error decompressing request body: unsupported Content-Encoding: br, "
				  "supported: [gzip]");
	answer = post(at("f"), bytes, 100, "Content-Encoding: gzip\r\n");
	check_error(&answer, 400, "error decompressing request body: failed to create gzip reader: gzip: "
				  "invalid header");
	free(bytes);
}

static void case_097_hostile_names_round_trip(void **state)
{
	static const char *const names[] = {"a\nb", "quote\"'", "x;y", " lead", "-rf", "#?&+%", "a%2Fb",
					    "\xC3\xA4\xE6\x97\xA5\xF0\x9F\x99\x82", "\xFF\xFE", "\xC3("};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
		const char *path = at(names[i]), *shown = path_show(path, &arena);
		struct answer answer = post(path, "content", 7, NULL);
		struct buf quoted;

		assert_int_equal(answer.status, 200);
		buf_init(&quoted, 4096);
		assert_int_equal(json_write_string(&quoted, str_of(shown), true), 0);
		assert_non_null(strstr(answer.body, arena_strndup(&arena, buf_data(&quoted),
								  buf_length(&quoted))));
		for (int round = 0; round < 2; round++) {
			answer = get(round ? shown : path, NULL);
			assert_int_equal(answer.status, 200);
			assert_string_equal(answer.body, "content");
		}
		answer = call("Stat", arena_printf(&arena, "{\"path\":%.*s}", (int)buf_length(&quoted),
						   buf_data(&quoted)));
		assert_int_equal(answer.status, 200);
		answer = call("Move", arena_printf(&arena, "{\"source\":%.*s,\"destination\":\"%s\"}",
						   (int)buf_length(&quoted), buf_data(&quoted), at("plain")));
		assert_int_equal(answer.status, 200);
		answer = call("Move", arena_printf(&arena, "{\"destination\":%.*s,\"source\":\"%s\"}",
						   (int)buf_length(&quoted), buf_data(&quoted), at("plain")));
		assert_int_equal(answer.status, 200);
		answer = call("ListDir", arena_printf(&arena, "{\"path\":\"%s\"}", root));
		assert_int_equal(answer.status, 200);
		assert_non_null(strstr(answer.body, "\"entries\":[{"));
		answer = call("Remove", arena_printf(&arena, "{\"path\":%.*s}", (int)buf_length(&quoted),
						     buf_data(&quoted)));
		assert_int_equal(answer.status, 200);
		assert_string_equal(answer.body, "{}");
		buf_fini(&quoted);
		assert_int_equal(count_entries(root), 0);
	}
}

static void check_failure(const char *method, const char *body, int status, const char *want)
{
	struct answer answer = call(method, body);

	assert_int_equal(answer.status, status);
	assert_string_equal(answer.body, want);
}

static void calls_answer_as_the_contract_says(void **state)
{
	struct answer answer;

	(void)state;
	answer = call("MakeDir", arena_printf(&arena, "{\"path\":\"%s\"}", at("d")));
	assert_int_equal(answer.status, 200);
	assert_non_null(strstr(answer.body, "\"permissions\":\"drwxr-xr-x\""));
	check_failure("MakeDir", arena_printf(&arena, "{\"path\":\"%s\"}", at("d")), 409,
		      arena_printf(&arena, "{\"code\":\"already_exists\",\"message\":\"directory already "
				   "exists: %s\"}", at("d")));
	check_failure("Stat", arena_printf(&arena, "{\"path\":\"%s\"}", at("none")), 404,
		      arena_printf(&arena, "{\"code\":\"not_found\",\"message\":\"file not found: lstat %s: no "
				   "such file or directory\"}", at("none")));
	check_failure("ListDir", arena_printf(&arena, "{\"path\":\"%s\",\"depth\":1}", at("d")), 200, "{}");
	check_failure("Remove", arena_printf(&arena, "{\"path\":\"%s\"}", at("none")), 200, "{}");
	check_failure("Stat", "{\"path\":\"~other/x\"}", 400,
		      "{\"code\":\"invalid_argument\",\"message\":\"failed to expand path '' for user 'root': "
		      "cannot expand user-specific home dir\"}");
	/* Moving across file systems, in two steps inside. */
	write_bytes("f", "moved", 5);
	answer = call("Move", arena_printf(&arena, "{\"source\":\"%s\",\"destination\":\"/dev/shm/%s\"}",
					   at("f"), path_base(root)));
	assert_int_equal(answer.status, 200);
	answer = call("Move", arena_printf(&arena, "{\"destination\":\"%s\",\"source\":\"/dev/shm/%s\"}",
					   at("f"), path_base(root)));
	assert_int_equal(answer.status, 200);
	check_file("f", "moved", 5);
}

static void removing_nothing_in_particular_is_refused(void **state)
{
	static const char *const paths[] = {"", ".", "./", "..", "x/..", "x/./", "/.", "/"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(paths); i++) {
		struct answer answer = call("Remove", arena_printf(&arena, "{\"path\":\"%s\"}", paths[i]));

		assert_int_equal(answer.status, 400);
		assert_non_null(strstr(answer.body, "\"code\":\"invalid_argument\""));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(case_090_empty_files_both_ways, setup, teardown),
		cmocka_unit_test_setup_teardown(files_of_every_size_round_trip, setup, teardown),
		cmocka_unit_test_setup_teardown(case_084_chunked_bodies_and_forms, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_088_a_form_without_files_is_an_empty_list, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_061_download_errors, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_062_case_102_one_range, setup, teardown),
		cmocka_unit_test_setup_teardown(case_102_several_ranges, setup, teardown),
		cmocka_unit_test_setup_teardown(case_102_ranges_of_a_large_file, setup, teardown),
		cmocka_unit_test_setup_teardown(case_102_conditions, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_056_case_102_encodings, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_057_conformance_084_gzip_answers, setup, teardown),
		cmocka_unit_test_setup_teardown(case_103_a_broken_gzip_answer_does_not_end_well, setup, teardown),
		cmocka_unit_test_setup_teardown(gzip_for_many_at_once_stays_small, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_100_composed_files_can_be_downloaded, setup, teardown),
		cmocka_unit_test_setup_teardown(case_099_a_client_that_leaves_changes_nothing_or_all, setup, teardown),
		cmocka_unit_test_setup_teardown(large_listings_are_whole_and_may_be_left, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_055_only_the_base_name_is_told, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_054_names_in_content_disposition, setup, teardown),
		cmocka_unit_test_setup_teardown(download_types_follow_name_and_content, setup, teardown),
		cmocka_unit_test_setup_teardown(case_101_two_hundred_fifos_do_not_hold_anything, setup, teardown),
		cmocka_unit_test_setup_teardown(files_of_proc_are_read_to_their_end, setup, teardown),
		cmocka_unit_test_setup_teardown(case_088_a_reset_or_short_body_keeps_the_old, setup, teardown),
		cmocka_unit_test_setup_teardown(case_088_a_truncated_form_is_an_error, setup, teardown),
		cmocka_unit_test_setup_teardown(case_103_a_file_that_shrinks_breaks_the_download_off, setup, teardown),
		cmocka_unit_test_setup_teardown(case_104_abandoned_downloads_hold_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(conformance_086_parallel_uploads_into_new_directories, setup, teardown),
		cmocka_unit_test_setup_teardown(case_095_an_upload_is_there_after_its_answer, setup, teardown),
		cmocka_unit_test_setup_teardown(errors_come_before_the_body_and_reach_the_client, setup, teardown),
		cmocka_unit_test_setup_teardown(case_097_hostile_names_round_trip, setup, teardown),
		cmocka_unit_test_setup_teardown(calls_answer_as_the_contract_says, setup, teardown),
		cmocka_unit_test_setup_teardown(removing_nothing_in_particular_is_refused, setup, teardown),
	};

	return cmocka_run_group_tests(tests, start_thread, NULL);
}
