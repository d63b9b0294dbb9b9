#include "tests/support/site.h"

#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/filesystem/files.h"
#include "envd/filesystem/filesystem_service.h"
#include "envd/filesystem/path.h"
#include "lib/http_server.h"
#include "lib/json.h"
#include "tests/support/cmocka.h"
#include "tests/support/held.h"

struct site site;

#define PATIENCE_MS 20000

static void dispatch(struct http_exchange *ex)
{
	struct app *app = ex->server_user;

	for (size_t i = 0; i < FILESYSTEM_SERVICE_METHODS; i++)
		if (str_equal(ex->request.path, str_of(filesystem_service_methods[i].path))) {
			rpc_dispatch(ex, &filesystem_service_methods[i], &app->filesystem, NULL);
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
	message_close(&site.stop);
}

static void on_stop(struct message *stop)
{
	(void)stop;
	http_server_stop(site.app.server, on_server_stopped, NULL);
	http_server_abort(site.app.server);
}

static void serve_once(void)
{
	const struct http_server_config config = {.dispatch = dispatch,
						  .user = &site.app,
						  .idle_timeout_ms = 60000,
						  .connections_max = 1000,
						  .connections_open = &site.connections};

	memset(&site.app, 0, sizeof(site.app));
	loop_init(&site.app.loop);
	sandbox_init(&site.app.sandbox, &site.app.loop);
	site.app.filesystem.sandbox = &site.app.sandbox;
	message_open(&site.stop, &site.app.loop, on_stop);
	if (http_server_listen(&site.app.loop, &config, "127.0.0.1", 0, &site.app.server) < 0)
		abort();
	site.port = http_server_port(site.app.server);
	sem_post(&site.ready);
	loop_run(&site.app.loop);
	sandbox_fini(&site.app.sandbox);
	/* Asserts that every exchange, job and handle is gone. */
	loop_fini(&site.app.loop);
}

/* One thread for all tests: what a thread keeps for its next call is not a leak while it lives. */
static void *serve(void *argument)
{
	(void)argument;
	for (;;) {
		sem_wait(&site.wanted);
		serve_once();
		sem_post(&site.gone);
	}
	return NULL;
}

int site_start_thread(void **state)
{
	(void)state;
	signal(SIGPIPE, SIG_IGN); /* as every program here does */
	json_init();
	sem_init(&site.wanted, 0, 0);
	sem_init(&site.ready, 0, 0);
	sem_init(&site.gone, 0, 0);
	return pthread_create(&site.thread, NULL, serve, NULL);
}

static bool has_no_connections(size_t unused)
{
	(void)unused;
	return atomic_load(&site.connections) == 0;
}

int site_setup(void **state)
{
	(void)state;
	arena_init(&site.arena, 256 * 1024 * 1024);
	folder_open(&site.folder);
	sem_post(&site.wanted);
	sem_wait(&site.ready);
	/* libuv opens a descriptor of its own for the first connection, and keeps it. */
	assert_int_equal(site_get(site_at("none"), NULL).status, 404);
	site_wait_until(has_no_connections, 0);
	site.descriptors = folder_count("/proc/self/fd");
	return 0;
}

int site_teardown(void **state)
{
	(void)state;
	message_post(&site.stop);
	sem_wait(&site.gone);
	folder_close(&site.folder);
	arena_release(&site.arena);
	return 0;
}

int site_connect_server(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)site.port),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

bool site_send_all(int fd, const void *data, size_t len)
{
	const char *site_at = data;

	while (len) {
		ssize_t put = send(fd, site_at, len, MSG_NOSIGNAL);

		if (put < 0)
			return false;
		site_at += put;
		len -= (size_t)put;
	}
	return true;
}

void site_send_text(int fd, const char *text)
{
	assert_true(site_send_all(fd, text, strlen(text)));
}

void site_wait_readable(int fd)
{
	struct pollfd ready = {.fd = fd, .events = POLLIN};

	if (poll(&ready, 1, PATIENCE_MS) != 1)
		fail_msg("the server sent nothing within %d ms; it has %llu connections",
			 PATIENCE_MS, (unsigned long long)atomic_load(&site.connections));
}

void site_read_to_end(int fd, struct answer *answer, size_t max)
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
		site_wait_readable(fd);
		got = read(fd, all + used, capacity - used);
		if (got < 0)
			answer->was_reset = true;
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	all[used] = '\0';
	answer->head = arena_strndup(&site.arena, all, used);
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

void site_unchunk(struct answer *answer)
{
	const char *site_at = answer->body;
	char *out = (char *)answer->body;
	size_t used = 0;

	for (;;) {
		size_t len = strtoul(site_at, NULL, 16);

		site_at = strstr(site_at, "\r\n");
		assert_non_null(site_at);
		site_at += 2;
		if (len == 0)
			break;
		memmove(out + used, site_at, len);
		used += len;
		site_at += len + 2;
	}
	out[used] = '\0';
	answer->len = used;
}

void site_check_header(const struct answer *answer, const char *name, const char *want)
{
	const char *line = arena_printf(&site.arena, "\r\n%s: ", name);
	const char *found = strstr(answer->head, line);

	if (!want) {
		assert_null(found);
		return;
	}
	assert_non_null(found);
	found += strlen(line);
	assert_string_equal(arena_strndup(&site.arena, found, strcspn(found, "\r")), want);
}

const char *site_encode(const char *path)
{
	char *encoded = arena_alloc(&site.arena, 3 * strlen(path) + 1), *site_at = encoded;

	for (; *path; path++)
		site_at += snprintf(site_at, 4, "%%%02X", (unsigned char)*path);
	return encoded;
}

const char *site_at(const char *relative)
{
	return path_join(site.folder.path, relative, &site.arena);
}

struct answer site_get(const char *path, const char *headers)
{
	struct answer answer;
	int fd = site_connect_server();

	site_send_text(
		fd, arena_printf(&site.arena,
				 "GET /files?path=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
				 "%s\r\n",
				 site_encode(path), headers ? headers : ""));
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	return answer;
}

const char *site_post_head(const char *path, const char *type, size_t len, const char *headers)
{
	return arena_printf(&site.arena,
			    "POST /files%s%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
			    "Content-Type: %s\r\nContent-Length: %zu\r\n%s\r\n",
			    path ? "?path=" : "", path ? site_encode(path) : "", type, len,
			    headers ? headers : "");
}

struct answer site_post(const char *path, const void *body, size_t len, const char *headers)
{
	struct answer answer;
	int fd = site_connect_server();

	site_send_text(fd, site_post_head(path, "application/octet-stream", len, headers));
	site_send_all(fd, body, len);
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	return answer;
}

struct answer site_call(const char *method, const char *body)
{
	struct answer answer;
	int fd = site_connect_server();

	site_send_text(fd, arena_printf(&site.arena,
					"POST /filesystem.Filesystem/%s HTTP/1.1\r\nHost: x\r\n"
					"Connection: close\r\nContent-Type: application/json\r\n"
					"Content-Length: %zu\r\n\r\n%s",
					method, strlen(body), body));
	site_read_to_end(fd, &answer, ANSWER_BYTES_MAX);
	return answer;
}

void site_check_file(const char *relative, const void *want, size_t len)
{
	folder_check(site_at(relative), want, len);
}

char *site_make_bytes(size_t len, unsigned seed)
{
	char *bytes = malloc(len);

	assert_non_null(bytes);
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1103515245 + 12345;
		bytes[i] = (char)(seed >> 16);
	}
	return bytes;
}

void site_write_bytes(const char *relative, const void *data, size_t len)
{
	folder_write(site_at(relative), data, len);
}

static void show_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;

	while (directory && (entry = readdir(directory))) {
		char path[32], target[128];
		struct stat st = {0};
		ssize_t len;

		if (entry->d_name[0] == '.' ||
		    dirfd(directory) == (int)strtol(entry->d_name, NULL, 10))
			continue;
		snprintf(path, sizeof(path), "/proc/self/fd/%.12s", entry->d_name);
		len = readlink(path, target, sizeof(target));
		if (len < 0 || stat(path, &st) < 0)
			continue;
		print_error("    %s: %.*s, %lld bytes\n", entry->d_name, (int)len, target,
			    (long long)st.st_size);
	}
	if (directory)
		closedir(directory);
}

void site_wait_for(bool (*condition)(size_t), size_t argument, const char *what, const char *file,
		   int line)
{
	for (int waited = 0; !condition(argument); waited += 5) {
		if (waited >= PATIENCE_MS) {
			print_error("%s:%d: not within %d ms: %s(%zu)\n", file, line, PATIENCE_MS,
				    what, argument);
			print_error("  %llu connections, %zu bytes held, %zu descriptors (at rest "
				    "%zu):\n",
				    (unsigned long long)atomic_load(&site.connections),
				    held_bytes(), folder_count("/proc/self/fd"), site.descriptors);
			show_descriptors();
			_fail(file, line);
		}
		poll(NULL, 0, 5);
	}
}

bool site_is_at_rest(size_t unused)
{
	(void)unused;
	return folder_count("/proc/self/fd") <= site.descriptors;
}

void site_check_error(const struct answer *answer, int status, const char *message)
{
	assert_int_equal(answer->status, status);
	assert_string_equal(
		answer->body,
		arena_printf(&site.arena, "{\"code\":%d,\"message\":\"%s\"}\n", status, message));
	site_check_header(answer, "Content-Type", "application/json; charset=utf-8");
	site_check_header(answer, "X-Content-Type-Options", "nosniff");
}
