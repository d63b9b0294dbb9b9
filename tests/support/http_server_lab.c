#include "tests/support/http_server_lab.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/log.h"
#include "tests/support/cmocka.h"

struct server_lab server_lab;

static void on_closed(struct http_exchange *ex, int status)
{
	server_lab.closed++;
	server_lab.status = status;
	if (ex == server_lab.waiting)
		server_lab.waiting = NULL;
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	struct iovec piece = {(void *)data, len};

	if (http_response_write(ex, &piece, 1) == HTTP_FULL)
		http_request_body_pause(ex);
}

static void on_body_end(struct http_exchange *ex)
{
	http_response_end(ex, NULL);
}

static void on_drained(struct http_exchange *ex)
{
	http_request_body_resume(ex);
}

static const struct http_exchange_handler echo = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static const struct http_exchange_handler quiet = {.on_closed = on_closed};

void server_lab_dispatch(struct http_exchange *ex)
{
	server_lab.dispatched++;
	if (str_equal(ex->request.path, STR("/echo"))) {
		http_exchange_set_handler(ex, &echo, NULL);
		http_request_body_start(ex);
		http_response_begin(ex, 200, HTTP_LENGTH_CHUNKED);
	} else if (str_equal(ex->request.path, STR("/tunnel"))) {
		http_exchange_set_handler(ex, &echo, NULL);
		http_response_begin(ex, 101, HTTP_LENGTH_TUNNEL);
	} else if (str_equal(ex->request.path, STR("/wait"))) {
		http_exchange_set_handler(ex, &quiet, NULL);
		server_lab.waiting = ex;
	} else if (str_equal(ex->request.path, STR("/known"))) {
		ex->client_is_known = true;
		http_respond(ex, 200, NULL, STR("hello"));
	} else if (str_equal(ex->request.path, STR("/refuse"))) {
		http_respond(ex, 413, NULL, STR("too large\n"));
	} else {
		http_respond(ex, 200, NULL, STR("hello"));
	}
}

void server_lab_on_stopped(void *user)
{
	*(bool *)user = true;
}

void server_lab_start(struct http_server_config config)
{
	memset(&server_lab, 0, sizeof(server_lab));
	log_init(LOG_ERROR, LOG_TEXT, -1);
	loop_init(&server_lab.loop);
	config.dispatch = server_lab_dispatch;
	assert_int_equal(
		http_server_listen(&server_lab.loop, &config, "127.0.0.1", 0, &server_lab.server),
		0);
	assert_true(http_server_port(server_lab.server) > 0);
}

void server_lab_stop(void)
{
	http_server_stop(server_lab.server, server_lab_on_stopped, &server_lab.stopped);
	http_server_abort(server_lab.server);
	loop_run(&server_lab.loop);
	assert_true(server_lab.stopped);
	loop_fini(&server_lab.loop);
}

int server_lab_connect(unsigned port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)port),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		abort();
	return fd;
}

void server_lab_send(int fd, const char *text)
{
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}
