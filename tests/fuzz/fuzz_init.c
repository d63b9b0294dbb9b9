/*
 * The body of /init, then applying it: the same body again changes nothing more, what was internal
 * stays, the environment stays sorted, and a token that was accepted stands in the body as it is.
 * Bodies that are no JSON are also tried as what /metrics reads.
 */
#include "envd/init/init.h"
#include "envd/init/metrics.h"
#include "lib/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_environment(const struct environment *env)
{
	for (size_t i = 1; i < env->count; i++)
		assert(strcmp(env->entries[i - 1].name, env->entries[i].name) < 0);
	assert(strcmp(environment_get(env, "E2B_SANDBOX"), "true") == 0);
}

static void check_proc_files(struct str text)
{
	struct metrics_memory memory;
	struct metrics_cpu cpu;
	unsigned count;

	if (metrics_parse_stat(text, &cpu, &count) == 0)
		assert(count <= text.len);
	if (metrics_parse_meminfo(text, &memory) == 0)
		assert(memory.available <= memory.total);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct loop loop;
	static bool is_ready;
	struct str body = {(const char *)data, size};
	struct init_request request;
	struct sandbox sandbox;
	struct arena arena;
	size_t count;
	struct err err;

	if (!is_ready) {
		json_init();
		loop_init(&loop);
		is_ready = true;
	}
	arena_init(&arena, 16 * 1024 * 1024);
	if (init_parse(body, &arena, &request, &err) == 0) {
		sandbox_init(&sandbox, &loop);
		environment_set_internal(&sandbox.environment, "E2B_SANDBOX", "true");
		init_apply(&sandbox, &request);
		check_environment(&sandbox.environment);
		count = sandbox.environment.count;
		assert(!request.token.p || init_is_trusted(&sandbox, &request));
		assert(!request.token.p ||
		       memmem(body.p, body.len, request.token.p, request.token.len));
		init_apply(&sandbox, &request);
		check_environment(&sandbox.environment);
		assert(sandbox.environment.count == count);
		sandbox_fini(&sandbox);
	} else {
		assert(err.message[0]);
		check_proc_files(body);
	}
	arena_release_wiped(&arena);
	return 0;
}
