/* GET /metrics: reading, load, form (contract/envd.md 2.3). */
#include "envd/init/metrics_http.h"
#include "tests/support/cmocka.h"

static const char stat_text[] = "cpu  100 20 30 1000 50 6 4 10 15 5\n"
				"cpu0 50 10 15 500 25 3 2 5 8 2\n"
				"cpu1 50 10 15 500 25 3 2 5 7 3\n"
				"intr 12345 1 2 3\nctxt 1\ncpufreq 1\n";

static void stat_is_read(void **state)
{
	struct metrics_cpu cpu;
	unsigned count;

	assert_int_equal(metrics_parse_stat(str_of(stat_text), &cpu, &count), 0);
	assert_int_equal(count, 2);
	assert_int_equal(cpu.busy, 170);
	assert_int_equal(cpu.total, 1220);
	/* Old kernels have fewer columns. */
	assert_int_equal(metrics_parse_stat(STR("cpu  1 2 3 4\n"), &cpu, &count), 0);
	assert_int_equal(cpu.busy, 6);
	assert_int_equal(cpu.total, 10);
	assert_int_equal(metrics_parse_stat(STR("cpu  1 2 3\n"), &cpu, &count), -EPROTO);
	assert_int_equal(metrics_parse_stat(STR(""), &cpu, &count), -EPROTO);
	assert_int_equal(metrics_parse_stat(STR("cpu x\n"), &cpu, &count), -EPROTO);
}

static void meminfo_is_read(void **state)
{
	struct metrics_memory memory;

	assert_int_equal(metrics_parse_meminfo(STR("MemTotal:    2048 kB\nMemFree:  100 kB\n"
						   "MemAvailable:    1024 kB\nBuffers: 7 kB\n"
						   "Cached:  300 kB\nSwapCached: 9 kB\n"
						   "SReclaimable:  12 kB\n"),
					       &memory),
			 0);
	assert_int_equal(memory.total, 2048 * 1024);
	assert_int_equal(memory.available, 1024 * 1024);
	assert_int_equal(memory.cached, 312 * 1024);
	assert_int_equal(metrics_parse_meminfo(STR("MemTotal: 2048 kB\nMemFree: 100 kB\n"
						   "Buffers: 7 kB\nCached: 300 kB\n"),
					       &memory),
			 0);
	assert_int_equal(memory.available, 407 * 1024);
	assert_int_equal(metrics_parse_meminfo(STR("MemFree: 1 kB\n"), &memory), -EPROTO);
	assert_int_equal(metrics_parse_meminfo(STR("MemTotal: lots\n"), &memory), -EPROTO);
}

static void load_is_a_share(void **state)
{
	static const struct {
		struct metrics_cpu before, after;
		unsigned hundredths;
	} table[] = {
		{{0, 0}, {0, 0}, 0},
		{{100, 1000}, {100, 2000}, 0},
		{{100, 1000}, {90, 2000}, 0},
		{{100, 1000}, {101, 1000}, 10000},
		{{100, 1000}, {1100, 2000}, 10000},
		{{100, 1000}, {2100, 2000}, 10000},
		{{0, 0}, {1, 3}, 3333},
		{{0, 0}, {2, 3}, 6667},
		{{0, 0}, {1, 1000000}, 0},
	};

	for (size_t i = 0; i < ARRAY_LENGTH(table); i++)
		assert_int_equal(metrics_load(&table[i].before, &table[i].after),
				 table[i].hundredths);
}

static void json_has_the_agreed_form(void **state)
{
	static const struct {
		struct metrics_cpu cpu;
		const char *text;
	} loads[] = {
		{{0, 1000}, "0"},     {{75, 1000}, "7.5"}, {{1234, 10000}, "12.34"},
		{{5, 10000}, "0.05"}, {{1, 1}, "100"},
	};
	struct metrics_sample sample = {
		.unix_seconds = 1700000000,
		.cpu_count = 2,
		.memory = {.total = 2147483648, .available = 1610612737, .cached = 5},
		.disk_total = 9000000000000,
		.disk_used = 7,
	};
	const struct metrics_cpu before = {0, 0};

	for (size_t i = 0; i < ARRAY_LENGTH(loads); i++) {
		char want[512];
		struct buf b;

		sample.cpu = loads[i].cpu;
		buf_init(&b, 4096);
		assert_int_equal(metrics_write_json(&b, &sample, &before), 0);
		snprintf(want, sizeof(want),
			 "{\"ts\":1700000000,\"cpu_count\":2,\"cpu_used_pct\":%s,\"mem_total_mib\":"
			 "2048,"
			 "\"mem_used_mib\":511,\"mem_total\":2147483648,\"mem_used\":536870911,"
			 "\"mem_cache\":5,\"disk_used\":7,\"disk_total\":9000000000000}\n",
			 loads[i].text);
		assert_int_equal(buf_length(&b), strlen(want));
		assert_memory_equal(buf_data(&b), want, strlen(want));
		buf_fini(&b);
	}
}

static void this_machine_is_read(void **state)
{
	struct metrics_sample sample;
	struct metrics_cpu cpu;

	assert_int_equal(metrics_read_cpu(&cpu), 0);
	assert_int_equal(metrics_read(&sample), 0);
	assert_true(sample.unix_seconds > 1700000000);
	assert_true(sample.cpu_count >= 1);
	assert_true(sample.cpu.total >= cpu.total);
	assert_true(sample.memory.total > 0 && sample.memory.available <= sample.memory.total);
	assert_true(sample.disk_total > 0 && sample.disk_used <= sample.disk_total);
}

static void prometheus_gets_text_and_others_json(void **state)
{
	static const struct {
		const char *accept;
		bool is_text;
	} table[] = {
		{"text/plain;version=0.0.4", true},
		{"Text/Plain; Version=\"0.0.4\"", true},
		{"application/openmetrics-text", true},
		{"application/openmetrics-text;version=1.0.0;q=0.5,"
		 "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,"
		 "*/*;q=0.2",
		 true},
		{"text/plain;version=0.0.4;q=0.5, */*;q=0.1", true},
		{"text/plain;version=0.0.4;q=0.5, application/json;q=0.1, */*", true},
		{"text/plain;version=0.0.4, */*", true},
		{"", false},
		{"*/*", false},
		{"text/*", false},
		{"text/plain", false},
		{"text/plain;version=1.0.0", false},
		{"application/json, text/plain, */*", false},
		{"text/plain;version=0.0.4;q=0", false},
		{"text/plain;version=0.0.4;q=0.5, application/json", false},
		{"text/plain;version=0.0.4;q=0.5, application/*", false},
		{"text/plain;version=0.0.4;q=0.5, */*;q=0.6", false},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct http_header field = {STR("accept"), str_of(table[i].accept)};
		const struct http_headers headers = {.items = &field, .count = 1};

		if (metrics_text_is_wanted(&headers) != table[i].is_text)
			fail_msg("%s", table[i].accept);
	}
	assert_false(metrics_text_is_wanted(&(struct http_headers){0}));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stat_is_read),
		cmocka_unit_test(meminfo_is_read),
		cmocka_unit_test(load_is_a_share),
		cmocka_unit_test(json_has_the_agreed_form),
		cmocka_unit_test(this_machine_is_read),
		cmocka_unit_test(prometheus_gets_text_and_others_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
