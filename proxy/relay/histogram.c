#include "proxy/relay/histogram.h"

const struct histogram_bounds histogram_milliseconds = {
	{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 5000, 10000, 60000, 600000, 3600000}};
const struct histogram_bounds histogram_amounts = {
	{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000}};

void histogram_observe(struct histogram *h, const struct histogram_bounds *bounds, uint64_t value)
{
	size_t at = 0;

	while (at < HISTOGRAM_BOUNDS && value > bounds->upper[at])
		at++;
	counter_add(&h->counts[at]);
	counter_set(&h->sum, counter_read(&h->sum) + value);
}

void histogram_add(struct histogram *h, const struct histogram *from)
{
	for (size_t i = 0; i <= HISTOGRAM_BOUNDS; i++)
		counter_set(&h->counts[i],
			    counter_read(&h->counts[i]) + counter_read(&from->counts[i]));
	counter_set(&h->sum, counter_read(&h->sum) + counter_read(&from->sum));
}

/* Each number is told divided by `unit`. */
static int write_divided(struct buf *b, const struct histogram *h,
			 const struct histogram_bounds *bounds, double unit, const char *name,
			 const char *help)
{
	uint64_t total = 0;
	int status = buf_printf(b, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);

	for (size_t i = 0; i < HISTOGRAM_BOUNDS && status == 0; i++) {
		total += counter_read(&h->counts[i]);
		status = buf_printf(b, "%s_bucket{le=\"%.10g\"} %llu\n", name,
				    (double)bounds->upper[i] / unit, (unsigned long long)total);
	}
	total += counter_read(&h->counts[HISTOGRAM_BOUNDS]);
	return status < 0
		       ? status
		       : buf_printf(b, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.*f\n%s_count %llu\n",
				    name, (unsigned long long)total, name, unit > 1 ? 3 : 0,
				    (double)counter_read(&h->sum) / unit, name,
				    (unsigned long long)total);
}

int histogram_write(struct buf *b, const struct histogram *h, const struct histogram_bounds *bounds,
		    const char *name, const char *help)
{
	return write_divided(b, h, bounds, 1, name, help);
}

int histogram_write_seconds(struct buf *b, const struct histogram *h,
			    const struct histogram_bounds *bounds, const char *name,
			    const char *help)
{
	return write_divided(b, h, bounds, 1000, name, help);
}
