/* Freezing, thawing, the watchdog and the audit in /init, over HTTP (contract/envd.md 2.4, 2.9). */
#include "envd/limits.h"
#include "envd/process/cgroup.h"
#include "tests/support/cmocka.h"
#include "tests/support/snapshot_lab.h"

static bool is_frozen(struct snapshot_lab *f)
{
	return cgroup_lab_is_asked(&f->lab, "user") && cgroup_lab_is_asked(&f->lab, "ptys");
}

static bool is_thawed(void *user)
{
	struct snapshot_lab *f = user;

	return !cgroup_lab_is_asked(&f->lab, "user") && !cgroup_lab_is_asked(&f->lab, "ptys");
}

/* The times of an answer are 0 or not; everything else is known. */
static void assert_frozen_answer(const struct talk_answer *answer, const char *before_sweep,
				 const char *between, const char *before_wait)
{
	char text[512];
	const char *at = text;

	assert_int_equal(answer->status, 200);
	agent_assert_header(answer, "Content-Type", "application/json");
	agent_assert_header(answer, "Cache-Control", "no-store");
	snprintf(text, sizeof(text), "%.*s", (int)answer->body.len, answer->body.p);
	if (strncmp(at, before_sweep, strlen(before_sweep)) != 0)
		fail_msg("%s", text);
	at += strlen(before_sweep);
	at += strspn(at, "0123456789");
	if (strncmp(at, between, strlen(between)) != 0)
		fail_msg("%s", text);
	at += strlen(between);
	if (strncmp(at, before_wait, strlen(before_wait)) != 0)
		fail_msg("%s", text);
	at += strlen(before_wait);
	at += strspn(at, "0123456789");
	assert_string_equal(at, "}\n");
}

static void conformance_103_freeze_and_wait(void **state)
{
	struct snapshot_lab *f = *state;
	struct talk_answer answer = post(f, "/freeze?maxWaitMs=1000", "");

	assert_frozen_answer(
		&answer,
		"{\"allowlisted\":0,\"failed\":0,\"frozen\":2,\"mode\":\"legacy\",\"notFrozen\":0,"
		"\"preFrozen\":0,\"requested\":2,\"sweepMs\":",
		",\"truncated\":false,\"unobservable\":0,\"visited\":0,", "\"waitMs\":");
	assert_true(is_frozen(f));
	assert_non_null(strstr(f->agent.log, "workload frozen"));
	/* The order of the writes is that of the log of the tree: see the unit tests. */
	answer = post(f, "/unfreeze", "");
	assert_int_equal(answer.status, 204);
	agent_assert_header(&answer, "Cache-Control", "no-store");
	agent_assert_body(&answer, "");
	assert_true(is_thawed(f));
}

static void conformance_107_freeze_without_a_wait(void **state)
{
	static const char *const targets[] = {"/freeze", "/freeze?maxWaitMs=0",
					      "/freeze?maxWaitMs=-5", "/freeze?mode=nonsense",
					      "/freeze?mode="};
	struct snapshot_lab *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(targets); i++) {
		struct talk_answer answer = post(f, targets[i], "");

		assert_int_equal(answer.status, 204);
		agent_assert_body(&answer, "");
		agent_assert_header(&answer, "Content-Type", NULL);
		assert_true(is_frozen(f));
		assert_status(f, "/unfreeze", "", 204);
	}
	assert_null(strstr(f->agent.log, "\"level\":\"warn\""));
}

static void conformance_105_conformance_107_failed_writes_are_no_error(void **state)
{
	struct snapshot_lab *f = *state;
	struct talk_answer answer;

	cgroup_lab_break(&f->lab, "user", "cgroup.freeze");
	cgroup_lab_break(&f->lab, "ptys", "cgroup.freeze");
	assert_status(f, "/freeze", "", 204);
	answer = post(f, "/freeze?maxWaitMs=1000&mode=legacy", "");
	assert_frozen_answer(
		&answer,
		"{\"allowlisted\":0,\"failed\":2,\"frozen\":0,\"mode\":\"legacy\",\"notFrozen\":0,"
		"\"preFrozen\":0,\"requested\":0,\"sweepMs\":",
		",\"truncated\":false,\"unobservable\":0,\"visited\":0,", "\"waitMs\":");
	/* Nothing was frozen, so there is nothing to watch. */
	assert_false(alarm_is_set(&f->agent.app.snapshot.freezer.watchdog));
}

static void hierarchy_over_http(void **state)
{
	struct snapshot_lab *f = *state;
	struct talk_answer answer;

	cgroup_lab_make(&f->lab, "guest");
	cgroup_lab_make(&f->lab, "kept");
	cgroup_lab_freeze(&f->lab, "kept", true);
	answer = post(f, "/freeze?mode=hierarchy&maxCgroups=100&maxWaitMs=1000", "");
	assert_frozen_answer(&answer,
			     "{\"allowlisted\":1,\"failed\":0,\"frozen\":3,\"mode\":\"hierarchy\","
			     "\"notFrozen\":0,"
			     "\"preFrozen\":1,\"requested\":3,\"sweepMs\":",
			     ",\"truncated\":false,\"unobservable\":0,\"visited\":5,",
			     "\"waitMs\":");
	answer = post(f, "/freeze?mode=hierarchy&maxCgroups=1&maxWaitMs=1000", "");
	assert_frozen_answer(&answer,
			     "{\"allowlisted\":0,\"failed\":0,\"frozen\":3,\"mode\":\"hierarchy\","
			     "\"notFrozen\":0,"
			     "\"preFrozen\":1,\"requested\":3,\"sweepMs\":",
			     ",\"truncated\":true,\"unobservable\":0,\"visited\":1,",
			     "\"waitMs\":");
	assert_status(f, "/unfreeze", "", 204);
	assert_true(is_thawed(f));
	assert_true(cgroup_lab_is_asked(&f->lab, "kept"));
	assert_false(cgroup_lab_is_asked(&f->lab, "guest"));
}

static void parameters_are_checked(void **state)
{
	static const struct {
		const char *target, *body;
	} table[] = {
		{"/freeze?maxWaitMs=soon",
		 "Invalid format for parameter maxWaitMs: error binding string parameter: "
		 "strconv.ParseInt: parsing \"soon\": invalid syntax\n"},
		{"/freeze?maxCgroups=",
		 "Invalid format for parameter maxCgroups: error binding string parameter: "
		 "strconv.ParseInt: parsing \"\": invalid syntax\n"},
		{"/freeze?maxWaitMs=1.5",
		 "Invalid format for parameter maxWaitMs: error binding string parameter: "
		 "strconv.ParseInt: parsing \"1.5\": invalid syntax\n"},
		{"/freeze?maxWaitMs=99999999999999999999",
		 "Invalid format for parameter maxWaitMs: error binding string parameter: "
		 "strconv.ParseInt: parsing \"99999999999999999999\": value out of range\n"},
		{"/freeze?mode=legacy&mode=legacy",
		 "Invalid format for parameter mode: multiple values for single "
		 "value parameter 'mode'\n"},
	};
	struct snapshot_lab *f = *state;

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct talk_answer answer = post(f, table[i].target, "");

		assert_int_equal(answer.status, 400);
		agent_assert_header(&answer, "Content-Type", "text/plain; charset=utf-8");
		agent_assert_body(&answer, table[i].body);
	}
	assert_true(is_thawed(f));
}

static void conformance_108_conformance_126_without_cgroups(void **state)
{
	struct snapshot_lab *f = *state;
	struct cgroups cgroups;
	struct talk_answer answer;

	/* A folder that is none: the manager gives up, and with it the freezer. */
	cgroups_init(&cgroups, f->lab.root, true);
	assert_false(cgroups.available);
	assert_null(cgroups.root);
	snapshot_service_close(&f->agent.app.snapshot);
	snapshot_service_fini(&f->agent.app.snapshot);
	snapshot_lab_open_service(f, cgroups.root);
	cgroups_fini(&cgroups);
	answer = post(f, "/freeze?maxWaitMs=10000&mode=hierarchy", "");
	assert_frozen_answer(
		&answer,
		"{\"allowlisted\":0,\"failed\":0,\"frozen\":0,\"mode\":\"legacy\",\"notFrozen\":0,"
		"\"preFrozen\":0,\"requested\":2,\"sweepMs\":",
		",\"truncated\":false,\"unobservable\":2,\"visited\":0,", "\"waitMs\":");
	assert_false(alarm_is_set(&f->agent.app.snapshot.freezer.watchdog));
	assert_status(f, "/unfreeze", "", 204);
	assert_status(f, "/init", "", 204);
}

static void conformance_110_a_thaw_that_fails_says_so(void **state)
{
	struct snapshot_lab *f = *state;
	struct talk_answer answer;

	assert_status(f, "/freeze", "", 204);
	cgroup_lab_break(&f->lab, "user", "cgroup.freeze");
	answer = post(f, "/unfreeze", "");
	assert_int_equal(answer.status, 500);
	agent_assert_header(&answer, "Content-Type", "application/json; charset=utf-8");
	assert_true(str_starts_with(answer.body, STR("{\"code\":500,\"message\":\"thaw: ")));
	assert_false(cgroup_lab_is_asked(&f->lab, "ptys"));
}

static void on_held(struct turn *turn)
{
}

static void conformance_111_who_holds_the_lock_keeps_thaws_out(void **state)
{
	struct snapshot_lab *f = *state;
	struct turn_queue *queue = &f->agent.app.snapshot.freezer.turns;
	struct turn holder = {0};
	struct talk thaw, init;

	assert_status(f, "/freeze", "", 204);
	assert_int_equal(turn_take(queue, &holder, on_held), 0);
	post_later(f, &thaw, "/unfreeze");
	wait_for_waiters(f, queue, 1);
	post_later(f, &init, "/init");
	wait_for_waiters(f, queue, 2);
	assert_true(is_frozen(f));
	turn_leave(queue, &holder);
	talk_read_all(&thaw);
	talk_read_all(&init);
	assert_int_equal(talk_parse(&thaw).status, 204);
	assert_int_equal(talk_parse(&init).status, 204);
	assert_true(is_thawed(f));
	talk_close(&thaw);
	talk_close(&init);
}

static void conformance_113_a_client_that_leaves_frees_the_lock(void **state)
{
	struct snapshot_lab *f = *state;
	struct turn_queue *queue = &f->agent.app.snapshot.freezer.turns;
	struct turn holder = {0};
	struct talk talk, other;

	/* During the wait: nothing ever freezes here. */
	f->agent.app.snapshot.freezer.freeze.tree.on_write = NULL;
	post_later(f, &talk, "/freeze?maxWaitMs=50000");
	talk_wait(&f->agent.app.loop, turns_are_busy, queue);
	talk_close(&talk);
	talk_wait(&f->agent.app.loop, turns_are_free, queue);
	assert_true(alarm_is_set(&f->agent.app.snapshot.freezer.watchdog));
	assert_status(f, "/unfreeze", "", 204);
	/* In the queue: the freeze is forgotten, the thaw is not. */
	assert_int_equal(turn_take(queue, &holder, on_held), 0);
	post_later(f, &talk, "/freeze");
	wait_for_waiters(f, queue, 1);
	talk_close(&talk);
	wait_for_waiters(f, queue, 0);
	cgroup_lab_freeze(&f->lab, "user", true);
	post_later(f, &other, "/unfreeze");
	wait_for_waiters(f, queue, 1);
	talk_close(&other);
	turn_leave(queue, &holder);
	talk_wait(&f->agent.app.loop, turns_are_free, queue);
	assert_true(is_thawed(f));
}

static void too_many_waiters_are_refused_but_never_init(void **state)
{
	struct snapshot_lab *f = *state;
	struct turn_queue *queue = &f->agent.app.snapshot.freezer.turns;
	struct turn holder = {0};
	struct talk talks[FREEZE_WAITERS_MAX], init;

	assert_int_equal(turn_take(queue, &holder, on_held), 0);
	for (size_t i = 0; i < ARRAY_LENGTH(talks); i++) {
		post_later(f, &talks[i], i % 2 ? "/freeze" : "/unfreeze");
		wait_for_waiters(f, queue, i + 1);
	}
	assert_status(f, "/freeze", "", 503);
	assert_status(f, "/unfreeze", "", 503);
	post_later(f, &init, "/init");
	wait_for_waiters(f, queue, ARRAY_LENGTH(talks) + 1);
	turn_leave(queue, &holder);
	for (size_t i = 0; i < ARRAY_LENGTH(talks); i++) {
		talk_read_all(&talks[i]);
		assert_int_equal(talk_parse(&talks[i]).status, 204);
		talk_close(&talks[i]);
	}
	talk_read_all(&init);
	assert_int_equal(talk_parse(&init).status, 204);
	talk_close(&init);
	assert_true(is_thawed(f));
}

static bool is_disarmed(void *user)
{
	struct snapshot_lab *f = user;

	return !alarm_is_set(&f->agent.app.snapshot.freezer.watchdog) &&
	       !f->agent.app.snapshot.freezer.rescue;
}

static void conformance_123_the_watchdog_thaws(void **state)
{
	struct snapshot_lab *f = *state;

	assert_true(is_disarmed(f));
	f->agent.app.snapshot.freezer.watchdog_ms = 20;
	assert_status(f, "/freeze", "", 204);
	talk_wait(&f->agent.app.loop, is_thawed, f);
	talk_wait(&f->agent.app.loop, is_disarmed, f);
	assert_non_null(strstr(f->agent.log, "the watchdog does"));
}

static void conformance_123_a_clean_thaw_disarms(void **state)
{
	struct snapshot_lab *f = *state;
	struct freezer *freezer = &f->agent.app.snapshot.freezer;

	assert_int_equal(freezer->watchdog_ms, 10 * 60 * 1000);
	assert_status(f, "/freeze", "", 204);
	assert_true(alarm_is_set(&freezer->watchdog));
	assert_true(freezer->watchdog.due_ms > loop_now_ms(freezer->loop) + 9 * 60 * 1000);
	/* Nor does it keep the loop, when all else has ended. */
	assert_true(freezer->watchdog.is_idle);
	assert_status(f, "/freeze", "", 204);
	assert_status(f, "/unfreeze", "", 204);
	talk_wait(&f->agent.app.loop, is_disarmed, f);
	/* Frozen again right behind a thaw: it is armed. */
	assert_status(f, "/freeze", "", 204);
	assert_status(f, "/init", "", 204);
	talk_wait(&f->agent.app.loop, is_disarmed, f);
	assert_null(strstr(f->agent.log, "watchdog"));
}

static void conformance_123_a_dirty_thaw_leaves_it_armed(void **state)
{
	struct snapshot_lab *f = *state;
	struct freezer *freezer = &f->agent.app.snapshot.freezer;
	uint64_t due;

	cgroup_lab_make(&f->lab, "a");
	cgroup_lab_make(&f->lab, "b");
	assert_status(f, "/freeze", "", 204);
	due = freezer->watchdog.due_ms;
	freezer->freeze.walk_max = 2;
	assert_status(f, "/unfreeze", "", 500);
	assert_true(alarm_is_set(&freezer->watchdog));
	assert_true(freezer->watchdog.due_ms <= due);
	freezer->freeze.walk_max = FREEZE_CGROUPS_MAX;
	assert_status(f, "/unfreeze", "", 204);
	talk_wait(&f->agent.app.loop, is_disarmed, f);
}

static bool has_failed_twice(void *user)
{
	struct snapshot_lab *f = user;
	const char *first = strstr(f->agent.log, "the watchdog could not thaw everything");

	return first && strstr(first + 1, "the watchdog could not thaw everything");
}

static void conformance_123_a_dirty_rescue_tries_again(void **state)
{
	struct snapshot_lab *f = *state;
	struct freezer *freezer = &f->agent.app.snapshot.freezer;

	cgroup_lab_make(&f->lab, "a");
	cgroup_lab_make(&f->lab, "b");
	freezer->watchdog_ms = 10;
	freezer->freeze.walk_max = 2;
	assert_status(f, "/freeze", "", 204);
	talk_wait(&f->agent.app.loop, has_failed_twice, f);
	freezer->freeze.walk_max = FREEZE_CGROUPS_MAX;
	talk_wait(&f->agent.app.loop, is_disarmed, f);
}

static bool is_rescue_waiting(void *user)
{
	const struct freezer *freezer = user;

	return freezer->rescue && freezer->rescue->turn.state == TURN_WAITING;
}

static bool has_no_rescue(void *user)
{
	const struct freezer *freezer = user;

	return !freezer->rescue;
}

/* The watchdog fires behind a thaw and a new freeze that it knows nothing of. */
static void conformance_123_a_superseded_watchdog_does_nothing(void **state)
{
	struct snapshot_lab *f = *state;
	struct freezer *freezer = &f->agent.app.snapshot.freezer;
	struct turn holder = {0};
	struct talk thaw, freeze;

	assert_status(f, "/freeze", "", 204);
	assert_int_equal(turn_take(&freezer->turns, &holder, on_held), 0);
	post_later(f, &thaw, "/unfreeze");
	wait_for_waiters(f, &freezer->turns, 1);
	post_later(f, &freeze, "/freeze");
	wait_for_waiters(f, &freezer->turns, 2);
	/* Ten minutes have passed. */
	alarm_set(freezer->loop, &freezer->watchdog, 0);
	talk_wait(&f->agent.app.loop, is_rescue_waiting, freezer);
	turn_leave(&freezer->turns, &holder);
	talk_read_all(&thaw);
	talk_read_all(&freeze);
	talk_wait(&f->agent.app.loop, has_no_rescue, freezer);
	talk_wait(&f->agent.app.loop, turns_are_free, &freezer->turns);
	assert_true(is_frozen(f));
	assert_true(alarm_is_set(&freezer->watchdog));
	talk_close(&thaw);
	talk_close(&freeze);
	assert_status(f, "/unfreeze", "", 204);
}

static void conformance_033_a_stale_init_thaws(void **state)
{
	struct snapshot_lab *f = *state;

	f->agent.app.sandbox.is_standalone = true; /* the clock stays as it is */
	assert_status(f, "/init",
		      "{\"timestamp\":\"2023-11-14T22:13:22Z\",\"envVars\":{\"A\":\"new\"}}", 204);
	assert_status(f, "/freeze", "", 204);
	assert_status(f, "/init",
		      "{\"timestamp\":\"2023-11-14T22:12:22Z\",\"envVars\":{\"A\":\"old\"}}", 204);
	assert_string_equal(environment_get(&f->agent.app.sandbox.environment, "A"), "new");
	assert_true(is_thawed(f));
	/* A thaw that fails does not make the host's /init fail. */
	assert_status(f, "/freeze", "", 204);
	cgroup_lab_break(&f->lab, "user", "cgroup.freeze");
	assert_status(f, "/init", "", 204);
	assert_non_null(strstr(f->agent.log, "the workload cannot be thawed"));
}

static void conformance_034_an_unauthorised_init_thaws_nothing(void **state)
{
	struct snapshot_lab *f = *state;

	assert_status(f, "/freeze", "", 204);
	sandbox_set_access_token(&f->agent.app.sandbox, STR("secret"));
	assert_status(f, "/init", "", 401);
	assert_status(f, "/init", "{\"accessToken\":\"wrong\"}", 401);
	assert_status(f, "/init", "{", 400);
	assert_true(is_frozen(f));
	assert_status(f, "/init", "{\"accessToken\":\"secret\"}", 204);
	assert_true(is_thawed(f));
}

static void conformance_125_init_tells_whether_the_freeze_held(void **state)
{
	struct snapshot_lab *f = *state;
	struct talk_answer answer;

	cgroup_lab_make(&f->lab, "guest");
	assert_status(f, "/freeze?mode=hierarchy", "", 204);
	answer = post(f, "/init", "");
	assert_int_equal(answer.status, 204);
	agent_assert_header(
		&answer, "X-Envd-Freeze-Audit",
		"{\"visited\":4,\"frozen\":3,\"escaped\":0,\"violations\":0,\"truncated\":false}");
	assert_true(is_thawed(f));
	/* Once; not after a thaw; and not for a legacy freeze. */
	answer = post(f, "/init", "");
	agent_assert_header(&answer, "X-Envd-Freeze-Audit", NULL);
	assert_status(f, "/freeze?mode=hierarchy", "", 204);
	assert_status(f, "/unfreeze", "", 204);
	answer = post(f, "/init", "");
	agent_assert_header(&answer, "X-Envd-Freeze-Audit", NULL);
	assert_status(f, "/freeze", "", 204);
	answer = post(f, "/init", "");
	agent_assert_header(&answer, "X-Envd-Freeze-Audit", NULL);
	/* Offenders are named in the log and only counted on the wire. */
	assert_status(f, "/freeze?mode=hierarchy", "", 204);
	cgroup_lab_freeze(&f->lab, "guest", false);
	cgroup_lab_freeze(&f->lab, "socats", true);
	answer = post(f, "/init", "");
	agent_assert_header(
		&answer, "X-Envd-Freeze-Audit",
		"{\"visited\":4,\"frozen\":2,\"escaped\":1,\"violations\":1,\"truncated\":false}");
	assert_non_null(strstr(f->agent.log, "\"cgroup\":\"guest\""));
}

static void the_gate_guards_them_all(void **state)
{
	static const char *const targets[] = {"/freeze", "/unfreeze", "/fsfreeze", "/fsthaw",
					      "/collapse"};
	struct snapshot_lab *f = *state;

	sandbox_set_access_token(&f->agent.app.sandbox, STR("secret"));
	for (size_t i = 0; i < ARRAY_LENGTH(targets); i++)
		assert_status(f, targets[i], "", 401);
	assert_true(is_thawed(f));
}

static void standalone_leaves_the_machine_alone(void **state)
{
	struct snapshot_lab *f = *state;

	cgroup_lab_make(&f->lab, "session.slice");
	f->agent.app.snapshot.is_standalone = true;
	assert_status(f, "/freeze?mode=hierarchy", "", 204);
	assert_false(cgroup_lab_is_asked(&f->lab, "session.slice"));
	assert_status(f, "/unfreeze", "", 204);
	assert_status(f, "/fsfreeze", "", 403);
	assert_status(f, "/fsthaw", "", 403);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, snapshot_lab_setup, snapshot_lab_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(conformance_103_freeze_and_wait),
		TEST(conformance_107_freeze_without_a_wait),
		TEST(conformance_105_conformance_107_failed_writes_are_no_error),
		TEST(hierarchy_over_http),
		TEST(parameters_are_checked),
		TEST(conformance_108_conformance_126_without_cgroups),
		TEST(conformance_110_a_thaw_that_fails_says_so),
		TEST(conformance_111_who_holds_the_lock_keeps_thaws_out),
		TEST(conformance_113_a_client_that_leaves_frees_the_lock),
		TEST(too_many_waiters_are_refused_but_never_init),
		TEST(conformance_123_the_watchdog_thaws),
		TEST(conformance_123_a_clean_thaw_disarms),
		TEST(conformance_123_a_dirty_thaw_leaves_it_armed),
		TEST(conformance_123_a_dirty_rescue_tries_again),
		TEST(conformance_123_a_superseded_watchdog_does_nothing),
		TEST(conformance_033_a_stale_init_thaws),
		TEST(conformance_034_an_unauthorised_init_thaws_nothing),
		TEST(conformance_125_init_tells_whether_the_freeze_held),
		TEST(the_gate_guards_them_all),
		TEST(standalone_leaves_the_machine_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
