#include "lib/prometheus.h"

void prometheus_begin(struct prometheus *p, const char *name, const char *type, const char *help)
{
	if (p->status == 0)
		p->status = buf_printf(p->b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
				       type);
}

void prometheus_number(struct prometheus *p, const char *name, const char *labels, double value)
{
	int places = value == (double)(int64_t)value ? 0 : 3;

	if (p->status == 0 && labels)
		p->status = buf_printf(p->b, "%s{%s} %.*f\n", name, labels, places, value);
	else if (p->status == 0)
		p->status = buf_printf(p->b, "%s %.*f\n", name, places, value);
}

void prometheus_gauge(struct prometheus *p, const char *name, const char *help, double value)
{
	prometheus_begin(p, name, "gauge", help);
	prometheus_number(p, name, NULL, value);
}

void prometheus_counter(struct prometheus *p, const char *name, const char *help, double value)
{
	prometheus_begin(p, name, "counter", help);
	prometheus_number(p, name, NULL, value);
}
