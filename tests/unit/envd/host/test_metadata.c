/* The host's metadata service, played by a server of this process, as the poller and POST /init use
 * it (contract/envd.md 1.9, 2.4 step 4). */
#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "envd/app.h"
#include "envd/host/metadata.h"
#include "envd/limits.h"
#include "envd/routes.h"
#include "envd/init/init.h"
#include "lib/digest.h"
#include "lib/json.h"
#include "lib/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/talk.h"

struct fixture {
	struct app app; /* its loop and sandbox */
	struct http_server *server, *host;
	struct metadata_settings settings;
	struct talk talk;
	bool talking;
	unsigned stopped;
	char folder[64];
	/* What the host says. */
	const char *token;
	char content[512];
	int status;
	unsigned token_asked, content_asked;
	bool is_slow; /* the token is given by answer_late */
	struct http_exchange *late;
	char seen_token[64], seen_accept[64], seen_ttl[16];
};

static void copy_header(const struct http_exchange *ex, struct str name, char *to, size_t size)
{
	struct str value = http_headers_get(&ex->request.headers, name);

	snprintf(to, size, "%.*s", (int)value.len, value.p ? value.p : "");
}

static void on_late_closed(struct http_exchange *ex, int status)
{
	struct fixture *f = ex->user;

	f->late = NULL;
}

static const struct http_exchange_handler late = {.on_closed = on_late_closed};

static bool is_asked(void *user)
{
	return ((struct fixture *)user)->late != NULL;
}

static void answer_late(struct fixture *f)
{
	http_respond(take_ptr(&f->late), f->status, "text/plain", str_of(f->token));
}

static void play_host(struct http_exchange *ex)
{
	struct fixture *f = ex->server_user;

	if (str_equal(ex->request.method, STR("PUT")) &&
	    str_equal(ex->request.target, STR("/latest/api/token"))) {
		f->token_asked++;
		copy_header(ex, STR("X-metadata-token-ttl-seconds"), f->seen_ttl,
			    sizeof(f->seen_ttl));
		if (f->is_slow) {
			f->late = ex;
			http_exchange_set_handler(ex, &late, f);
			return;
		}
		http_respond(ex, f->status, "text/plain", str_of(f->token));
		return;
	}
	assert_true(str_equal(ex->request.method, STR("GET")));
	assert_true(str_equal(ex->request.target, STR("/")));
	f->content_asked++;
	copy_header(ex, STR("X-metadata-token"), f->seen_token, sizeof(f->seen_token));
	copy_header(ex, STR("Accept"), f->seen_accept, sizeof(f->seen_accept));
	http_respond(ex, f->status, "application/json", str_of(f->content));
}

static void say(struct fixture *f, const char *id, const char *hash)
{
	snprintf(f->content, sizeof(f->content),
		 "{\"instanceID\":\"%s\",\"envID\":\"tpl\",\"address\":\"\",\"accessTokenHash\":\"%"
		 "s\"}",
		 id, hash);
}

static void say_token(struct fixture *f, const char *token)
{
	char hash[2 * DIGEST_SHA512_BYTES + 1];

	digest_sha512_hex(str_of(token), hash);
	say(f, "sbx1", hash);
}

static int setup(void **state)
{
	struct fixture *f = xcalloc(1, sizeof(*f));
	struct http_server_config config = routes_server_config(&f->app);

	json_init();
	log_init(LOG_DEBUG, LOG_JSON, -1);
	alarm(60);
	snprintf(f->folder, sizeof(f->folder), "/tmp/envd-metadata-XXXXXX");
	assert_non_null(mkdtemp(f->folder));
	loop_init(&f->app.loop);
	sandbox_init(&f->app.sandbox, &f->app.loop);
	f->server = http_server_new(&f->app.loop, &config);
	config.dispatch = play_host;
	config.user = f;
	config.on_finished = NULL;
	assert_int_equal(http_server_listen(&f->app.loop, &config, "127.0.0.1", 0, &f->host), 0);
	f->token = "t0ken";
	f->status = 200;
	say(f, "sbx1", "");
	f->settings = (struct metadata_settings){
		.loop = &f->app.loop,
		.environment = &f->app.sandbox.environment,
		.address = {.sin_family = AF_INET,
			    .sin_port = htons((uint16_t)http_server_port(f->host)),
			    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)},
		.run_directory = f->folder,
	};
	*state = f;
	return 0;
}

static void on_stopped(void *user)
{
	((struct fixture *)user)->stopped++;
}

static bool is_stopped(void *user)
{
	struct fixture *f = user;

	return f->stopped == 2;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where)
{
	return remove(path);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	if (f->talking)
		talk_close(&f->talk);
	http_server_stop(f->server, on_stopped, f);
	http_server_stop(f->host, on_stopped, f);
	talk_wait(&f->app.loop, is_stopped, f);
	if (f->app.sandbox.metadata)
		metadata_service_close(f->app.sandbox.metadata);
	loop_run(&f->app.loop);
	sandbox_fini(&f->app.sandbox);
	loop_fini(&f->app.loop);
	nftw(f->folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
	free(f);
	return 0;
}

static bool is_at_rest(void *user)
{
	const struct fixture *f = user;

	return metadata_service_is_at_rest(f->app.sandbox.metadata);
}

static void open_service(struct fixture *f)
{
	f->app.sandbox.metadata = metadata_service_new(&f->settings);
	talk_wait(&f->app.loop, is_at_rest, f);
}

static struct talk_answer init(struct fixture *f, const char *body)
{
	struct talk_answer answer;
	unsigned tries = 5;
	uint64_t began;
	char head[128];

	/* On a machine that stalls the service, which is ours, may be given up. */
	do {
		if (f->talking)
			talk_close(&f->talk);
		f->talking = true;
		began = uv_hrtime();
		snprintf(head, sizeof(head),
			 "POST /init HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n", strlen(body));
		answer = talk_request(&f->talk, &f->app.loop, f->server, head, str_of(body));
	} while (answer.status == 401 && (uv_hrtime() - began) / 1000000 >= METADATA_CHECK_MS &&
		 --tries > 0);
	return answer;
}

static void assert_known(struct fixture *f, const char *id)
{
	const char *const names[] = {"E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"};
	const char *const wanted[] = {id, "tpl"};

	for (size_t i = 0; i < 2; i++) {
		char path[128], text[64] = "";
		int fd;

		assert_string_equal(environment_get(&f->app.sandbox.environment, names[i]),
				    wanted[i]);
		snprintf(path, sizeof(path), "%s/.%s", f->folder, names[i]);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(read(fd, text, sizeof(text)), strlen(wanted[i]));
		close(fd);
		assert_string_equal(text, wanted[i]);
	}
}

static void assert_refused(struct fixture *f, const char *body, const char *message)
{
	struct talk_answer answer = init(f, body);

	assert_int_equal(answer.status, 401);
	assert_true(str_equal(answer.body, str_of(message)));
}

static void it_is_asked_at_start_and_then_left_alone(void **state)
{
	struct fixture *f = *state;

	open_service(f);
	assert_known(f, "sbx1");
	assert_string_equal(f->seen_ttl, "60");
	assert_string_equal(f->seen_token, "t0ken");
	assert_string_equal(f->seen_accept, "application/json");
	assert_int_equal(f->token_asked, 1);
	assert_int_equal(f->content_asked, 1);
}

static bool was_asked_thrice(void *user)
{
	return ((struct fixture *)user)->content_asked >= 3;
}

static void it_is_asked_again_until_the_answer_makes_sense(void **state)
{
	struct fixture *f = *state;

	snprintf(f->content, sizeof(f->content), "not JSON");
	f->app.sandbox.metadata = metadata_service_new(&f->settings);
	talk_wait(&f->app.loop, was_asked_thrice, f);
	assert_null(environment_get(&f->app.sandbox.environment, "E2B_SANDBOX_ID"));
	snprintf(f->content, sizeof(f->content), "{\"instanceID\":7}");
	f->content_asked = 0;
	talk_wait(&f->app.loop, was_asked_thrice, f);
	say(f, "sbx2", "");
	talk_wait(&f->app.loop, is_at_rest, f);
	assert_known(f, "sbx2");
}

/* Statuses are not looked at (contract/envd.md 1.9); missing keys are empty texts. */
static void what_is_not_looked_at(void **state)
{
	struct fixture *f = *state;

	f->status = 500;
	snprintf(f->content, sizeof(f->content), "{\"ENVID\":\"tpl\"}");
	open_service(f);
	assert_known(f, "");
}

static bool was_token_asked_thrice(void *user)
{
	return ((struct fixture *)user)->token_asked >= 3;
}

static void a_token_that_is_empty_or_no_header_is_none(void **state)
{
	struct fixture *f = *state;

	f->token = "";
	f->app.sandbox.metadata = metadata_service_new(&f->settings);
	talk_wait(&f->app.loop, was_token_asked_thrice, f);
	f->token = "a\r\nX-Evil: 1";
	f->token_asked = 0;
	talk_wait(&f->app.loop, was_token_asked_thrice, f);
	assert_int_equal(f->content_asked, 0);
}

/* A resumed sandbox is another one than was paused. */
static void each_init_refreshes(void **state)
{
	struct fixture *f = *state;

	open_service(f);
	assert_int_equal(init(f, "{\"accessToken\":\"one\"}").status, 204);
	talk_wait(&f->app.loop, is_at_rest, f);
	assert_known(f, "sbx1");
	say(f, "sbx2", "");
	/* Trusted: nobody is asked before the answer, but afterwards. */
	assert_int_equal(init(f, "{\"accessToken\":\"one\"}").status, 204);
	talk_wait(&f->app.loop, is_at_rest, f);
	assert_known(f, "sbx2");
}

static void conformance_018_a_known_token_needs_nobody(void **state)
{
	struct fixture *f = *state;
	struct talk_answer answer;

	open_service(f);
	sandbox_set_access_token(&f->app.sandbox, STR("one"));
	say_token(f, "other");
	f->token_asked = 0;
	answer = init(f, "{\"accessToken\":\"one\",\"timestamp\":\"bad\"}");
	assert_int_equal(answer.status, 400);
	assert_int_equal(f->token_asked, 0);
	assert_int_equal(init(f, "{\"accessToken\":\"one\"}").status, 204);
}

static void conformance_019_conformance_023_conformance_024_the_hash_decides(void **state)
{
	struct fixture *f = *state;

	open_service(f);
	sandbox_set_access_token(&f->app.sandbox, STR("one"));
	say_token(f, "two");
	assert_refused(f, "{\"accessToken\":\"three\"}", "access token validation failed");
	assert_int_equal(init(f, "{\"accessToken\":\"two\"}").status, 204);
	assert_true(sandbox_token_matches(&f->app.sandbox, STR("two")));
	/* The same look is what the environment has. */
	talk_wait(&f->app.loop, is_at_rest, f);
	assert_known(f, "sbx1");
	f->token = "";
	assert_refused(f, "{\"accessToken\":\"three\"}", "access token validation failed");
	say(f, "x", "");
	assert_refused(f, "{\"accessToken\":\"three\"}", "access token validation failed");
}

static void conformance_020_conformance_021_conformance_022_first_setup(void **state)
{
	struct fixture *f = *state;

	open_service(f);
	f->token = "";
	assert_int_equal(init(f, "{}").status, 204);
	assert_null(f->app.sandbox.access_token);
	assert_int_equal(init(f, "{\"accessToken\":\"one\"}").status, 204);
	sandbox_set_access_token(&f->app.sandbox, (struct str){NULL, 0});
	f->token = "t0ken";
	assert_int_equal(init(f, "{\"accessToken\":\"two\"}").status, 204);
	/* A hash of another token guards the first set-up too. */
	sandbox_set_access_token(&f->app.sandbox, (struct str){NULL, 0});
	say_token(f, "three");
	assert_refused(f, "{\"accessToken\":\"two\"}", "access token validation failed");
	assert_refused(f, "{}", "access token reset not authorized");
}

static void conformance_025_conformance_026_conformance_027_resetting(void **state)
{
	struct fixture *f = *state;

	open_service(f);
	sandbox_set_access_token(&f->app.sandbox, STR("one"));
	say_token(f, "two");
	assert_refused(f, "{}", "access token reset not authorized");
	f->token = "";
	assert_refused(f, "{}", "access token reset not authorized");
	f->token = "t0ken";
	say_token(f, "");
	assert_int_equal(init(f, "{}").status, 204);
	assert_null(f->app.sandbox.access_token);
}

static void conformance_027_comparing(void **state)
{
	struct init_request request = {.token = STR("one")};
	char hash[2 * DIGEST_SHA512_BYTES + 1];

	(void)state;
	digest_sha512_hex(STR("one"), hash);
	assert_int_equal(init_compare_hash(&request, hash), INIT_METADATA_MATCHES);
	assert_int_equal(init_compare_hash(&request, ""), INIT_METADATA_NONE);
	request.token = STR("two");
	assert_int_equal(init_compare_hash(&request, hash), INIT_METADATA_DIFFERS);
	request.token = (struct str){NULL, 0};
	assert_int_equal(init_compare_hash(&request, hash), INIT_METADATA_DIFFERS);
	assert_int_equal(init_compare_hash(&request, ""), INIT_METADATA_NONE);
	digest_sha512_hex(STR(""), hash);
	assert_int_equal(init_compare_hash(&request, hash), INIT_METADATA_MATCHES);
}

/* Nobody listens: an answer all the same, within the host's patience. */
static void a_service_that_is_not_there_costs_no_time(void **state)
{
	struct fixture *f = *state;
	uint64_t began, took = UINT64_MAX;

	f->settings.address.sin_port = htons(1);
	f->app.sandbox.metadata = metadata_service_new(&f->settings);
	for (int tries = 0; tries < 5 && took >= UINT64_C(1000) * 1000 * 1000; tries++) {
		began = uv_hrtime();
		assert_int_equal(init(f, "{\"accessToken\":\"one\"}").status, 204);
		took = uv_hrtime() - began;
	}
	assert_true(took < UINT64_C(1000) * 1000 * 1000);
	assert_refused(f, "{\"accessToken\":\"two\"}", "access token validation failed");
}

static bool has_no_holder(void *user)
{
	const struct fixture *f = user;

	return !f->app.sandbox.init_turns.holder;
}

static bool has_holder(void *user)
{
	return !has_no_holder(user);
}

static void send_init(struct fixture *f, const char *body)
{
	char head[128];
	int len = snprintf(head, sizeof(head),
			   "POST /init HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
			   strlen(body), body);

	f->talking = true;
	talk_open(&f->talk, &f->app.loop, f->server);
	talk_send(&f->talk, head, (size_t)len);
	talk_wait(&f->app.loop, has_holder, f);
}

/* Accepts, and says nothing. */
static int open_silent(struct fixture *f)
{
	struct sockaddr_in silent = {.sin_family = AF_INET,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(silent);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&silent, sizeof(silent)), 0);
	assert_int_equal(listen(fd, 16), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&silent, &len), 0);
	f->settings.address = silent;
	return fd;
}

/* By a reset, and in the polite way. */
static void case_142_who_leaves_while_the_service_is_asked_gives_up_its_turn(void **state)
{
	struct fixture *f = *state;
	int fd = open_silent(f);
	uint64_t began;

	f->app.sandbox.metadata = metadata_service_new(&f->settings);
	for (int is_polite = 0; is_polite < 2; is_polite++) {
		uint64_t took_ms = UINT64_MAX;

		/* Of several attempts one has to be in time: a machine may stall. */
		for (int tries = 0; tries < 5 && took_ms >= METADATA_CHECK_MS * 3 / 4; tries++) {
			send_init(f, "{}");
			began = uv_hrtime();
			if (is_polite)
				assert_int_equal(shutdown(f->talk.fd, SHUT_WR), 0);
			else
				talk_close(&f->talk);
			talk_wait(&f->app.loop, has_no_holder, f);
			took_ms = (uv_hrtime() - began) / 1000000;
			if (took_ms >= METADATA_CHECK_MS * 3 / 4)
				f->app.sandbox.initialised =
					false; /* the service was given up before */
			if (is_polite)
				talk_close(&f->talk);
			f->talking = false;
		}
		assert_true(took_ms < METADATA_CHECK_MS * 3 / 4);
	}
	assert_false(f->app.sandbox.initialised);
	close(fd);
}

/* Hosts that wait 50 ms for each of their attempts, and a service that takes longer for its answer.
 * False when the machine was so slow that the question was given up. */
static bool ask_impatiently(struct fixture *f, unsigned attempts)
{
	f->token_asked = 0;
	f->is_slow = true;
	for (unsigned i = 0; i < attempts; i++) {
		send_init(f, "{\"accessToken\":\"one\"}");
		if (i == 0)
			talk_wait(&f->app.loop, is_asked, f);
		talk_close(&f->talk);
		f->talking = false;
		talk_wait(&f->app.loop, has_no_holder, f);
	}
	f->is_slow = false;
	if (f->late && f->token_asked == 1) {
		answer_late(f);
		talk_wait(&f->app.loop, is_at_rest, f);
		return true;
	}
	if (f->late)
		answer_late(f);
	talk_wait(&f->app.loop, is_at_rest, f);
	usleep((METADATA_KEPT_MS + 100) * 1000);
	return false;
}

static void case_142_a_slow_service_serves_impatient_hosts(void **state)
{
	struct fixture *f = *state;
	unsigned tries = 5;
	uint64_t began;
	int status;

	f->app.sandbox.metadata = metadata_service_new(&f->settings);
	metadata_service_refresh(f->app.sandbox.metadata);
	talk_wait(&f->app.loop, is_at_rest, f);
	say_token(f, "one");
	do {
		sandbox_set_access_token(&f->app.sandbox, STR("old"));
		do {
			assert_true(tries-- > 0);
			began = uv_hrtime();
		} while (!ask_impatiently(f, 4));
		/* One question for all of them; its answer has come while nobody waited, and is
		 * kept for a while. */
		status = init(f, "{\"accessToken\":\"one\"}").status;
	} while ((f->token_asked > 1 || status != 204) &&
		 (uv_hrtime() - began) / 1000000 >= METADATA_KEPT_MS);
	assert_int_equal(status, 204);
	assert_int_equal(f->token_asked, 1);
	assert_true(sandbox_token_matches(&f->app.sandbox, STR("one")));
	assert_known(f, "sbx1");
}

/* What was found for others does not refuse anybody: the sandbox may be another one by now. */
static void a_kept_answer_that_does_not_fit_is_asked_for_anew(void **state)
{
	struct fixture *f = *state;

	f->app.sandbox.metadata = metadata_service_new(&f->settings);
	metadata_service_refresh(f->app.sandbox.metadata);
	talk_wait(&f->app.loop, is_at_rest, f);
	sandbox_set_access_token(&f->app.sandbox, STR("old"));
	say_token(f, "one");
	for (int tries = 0; !ask_impatiently(f, 1); tries++)
		assert_true(tries < 5);
	say_token(f, "two");
	assert_int_equal(init(f, "{\"accessToken\":\"two\"}").status, 204);
}

static void a_silent_service_is_given_up_in_time(void **state)
{
	struct fixture *f = *state;
	int fd = open_silent(f);
	uint64_t began = uv_hrtime();

	f->app.sandbox.metadata = metadata_service_new(&f->settings);
	assert_int_equal(init(f, "{\"accessToken\":\"one\"}").status, 204);
	assert_true((uv_hrtime() - began) / 1000000 < 10 * METADATA_CHECK_MS);
	close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(it_is_asked_at_start_and_then_left_alone),
		TEST(it_is_asked_again_until_the_answer_makes_sense),
		TEST(what_is_not_looked_at),
		TEST(a_token_that_is_empty_or_no_header_is_none),
		TEST(each_init_refreshes),
		TEST(conformance_018_a_known_token_needs_nobody),
		TEST(conformance_019_conformance_023_conformance_024_the_hash_decides),
		TEST(conformance_020_conformance_021_conformance_022_first_setup),
		TEST(conformance_025_conformance_026_conformance_027_resetting),
		TEST(conformance_027_comparing),
		TEST(a_service_that_is_not_there_costs_no_time),
		TEST(case_142_who_leaves_while_the_service_is_asked_gives_up_its_turn),
		TEST(case_142_a_slow_service_serves_impatient_hosts),
		TEST(a_kept_answer_that_does_not_fit_is_asked_for_anew),
		TEST(a_silent_service_is_given_up_in_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
