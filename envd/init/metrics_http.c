#include "envd/init/metrics_http.h"

#include <unistd.h>

#include "lib/accept.h"

/* What Accept says, in thousandths; of JSON what the item says that describes it best. */
struct wishes {
	unsigned text, json, json_precision;
};

static bool is_text(const struct accept_item *item)
{
	if (str_equal_nocase(item->name, STR("text/plain")))
		return str_equal(accept_parameter(item, STR("version")), STR("0.0.4"));
	return str_equal_nocase(item->name, STR("application/openmetrics-text"));
}

/* 0: it is not about JSON. */
static unsigned json_precision(const struct accept_item *item)
{
	if (str_equal_nocase(item->name, STR("application/json")))
		return 3;
	if (str_equal_nocase(item->name, STR("application/*")))
		return 2;
	return str_equal(item->name, STR("*/*"));
}

static void read_wishes(struct wishes *wishes, struct str value)
{
	struct accept_item item;

	while (accept_next(&value, &item)) {
		unsigned precision = json_precision(&item);

		if (is_text(&item) && item.quality > wishes->text)
			wishes->text = item.quality;
		if (precision > wishes->json_precision) {
			wishes->json_precision = precision;
			wishes->json = item.quality;
		}
	}
}

bool metrics_text_is_wanted(const struct http_headers *headers)
{
	struct wishes wishes = {0};

	for (size_t i = 0; i < headers->count; i++)
		if (str_equal_nocase(headers->items[i].name, STR("Accept")))
			read_wishes(&wishes, headers->items[i].value);
	return wishes.text > 0 && wishes.text >= wishes.json;
}

void metrics_text_write(struct prometheus *p, const struct metrics_sample *sample)
{
	const struct metrics_memory *memory = &sample->memory;

	prometheus_gauge(p, "envd_sandbox_cpus", "Processors of the sandbox.", sample->cpu_count);
	prometheus_counter(p, "envd_sandbox_cpu_busy_seconds_total",
			   "Time that processors of the sandbox have worked, together.",
			   (double)sample->cpu.busy / (double)sysconf(_SC_CLK_TCK));
	prometheus_gauge(p, "envd_sandbox_memory_size_bytes", "Memory of the sandbox.",
			 (double)memory->total);
	prometheus_gauge(p, "envd_sandbox_memory_used_bytes",
			 "Of this, what is not available to programs.",
			 (double)(memory->total - memory->available));
	prometheus_gauge(p, "envd_sandbox_memory_cached_bytes",
			 "Of this, what holds files and can be taken back.",
			 (double)memory->cached);
	prometheus_gauge(p, "envd_sandbox_disk_size_bytes", "The root file system of the sandbox.",
			 (double)sample->disk_total);
	prometheus_gauge(p, "envd_sandbox_disk_used_bytes", "Of this, what is in use.",
			 (double)sample->disk_used);
}
