#include "envd/process/cgroup_spare.h"

#include "lib/base.h"

void cgroup_spare_init(struct cgroup_spare *spare, struct cgroups *cgroups)
{
	*spare = (struct cgroup_spare){.cgroups = cgroups, .place = {.kind = CGROUP_NONE}};
	pthread_mutex_init(&spare->lock, NULL);
}

/* What was there before. */
static struct cgroup_place exchange(struct cgroup_spare *spare, struct cgroup_place place)
{
	struct cgroup_place before;

	pthread_mutex_lock(&spare->lock);
	before = spare->place;
	spare->place = place;
	pthread_mutex_unlock(&spare->lock);
	return before;
}

void cgroup_spare_fini(struct cgroup_spare *spare)
{
	(void)cgroup_remove(spare->cgroups,
			    exchange(spare, (struct cgroup_place){.kind = CGROUP_NONE}));
	pthread_mutex_destroy(&spare->lock);
}

bool cgroup_spare_is_missing(struct cgroup_spare *spare)
{
	bool is_missing;

	if (!spare->cgroups->available)
		return false;
	pthread_mutex_lock(&spare->lock);
	is_missing = spare->place.kind == CGROUP_NONE;
	pthread_mutex_unlock(&spare->lock);
	return is_missing;
}

void cgroup_spare_make(struct cgroup_spare *spare)
{
	struct cgroup_place place;
	auto_close int fd = -1;

	if (cgroup_create(spare->cgroups, CGROUP_USER, &place, &fd) == 0)
		(void)cgroup_remove(spare->cgroups, exchange(spare, place));
}

bool cgroup_spare_take(struct cgroup_spare *spare, struct cgroup_place *ret_place, int *ret_fd)
{
	struct cgroup_place place = exchange(spare, (struct cgroup_place){.kind = CGROUP_NONE});
	int fd;

	if (place.kind == CGROUP_NONE)
		return false;
	fd = cgroup_open(spare->cgroups, place);
	if (fd < 0) {
		(void)cgroup_remove(spare->cgroups, place);
		return false;
	}
	*ret_place = place;
	*ret_fd = fd;
	return true;
}
