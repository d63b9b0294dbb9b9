#include "envd/process/cgroup_spare.h"

#include "lib/base.h"

void cgroup_spare_init(struct cgroup_spare *spare, struct cgroups *cgroups)
{
	spare->cgroups = cgroups;
	spare->count = spare->asked = 0;
	pthread_mutex_init(&spare->lock, NULL);
}

static void put(struct cgroup_spare *spare, struct cgroup_place place)
{
	pthread_mutex_lock(&spare->lock);
	spare->places[spare->count++] = place;
	pthread_mutex_unlock(&spare->lock);
}

/* Locked. {CGROUP_NONE} when there is none. */
static struct cgroup_place take_last(struct cgroup_spare *spare)
{
	return spare->count > 0 ? spare->places[--spare->count]
				: (struct cgroup_place){.kind = CGROUP_NONE};
}

/* Down to so many. */
static void remove_surplus(struct cgroup_spare *spare, size_t wanted)
{
	struct cgroup_place place;

	do {
		pthread_mutex_lock(&spare->lock);
		place = spare->count > wanted ? take_last(spare)
					      : (struct cgroup_place){.kind = CGROUP_NONE};
		pthread_mutex_unlock(&spare->lock);
		(void)cgroup_remove(spare->cgroups, place);
	} while (place.kind != CGROUP_NONE);
}

void cgroup_spare_fini(struct cgroup_spare *spare)
{
	remove_surplus(spare, 0);
	pthread_mutex_destroy(&spare->lock);
}

static size_t count_of(struct cgroup_spare *spare)
{
	size_t count;

	pthread_mutex_lock(&spare->lock);
	count = spare->count;
	pthread_mutex_unlock(&spare->lock);
	return count;
}

bool cgroup_spare_is_missing(struct cgroup_spare *spare)
{
	return spare->cgroups->available && count_of(spare) == 0;
}

bool cgroup_spare_has_many(struct cgroup_spare *spare)
{
	return count_of(spare) > 1;
}

void cgroup_spare_sweep(struct cgroup_spare *spare)
{
	struct cgroup_place place;
	size_t wanted, count;

	pthread_mutex_lock(&spare->lock);
	count = spare->count;
	wanted = spare->asked < 1 ? 1 : spare->asked;
	spare->asked = 0;
	pthread_mutex_unlock(&spare->lock);
	if (wanted > CGROUP_SPARES_MAX)
		wanted = CGROUP_SPARES_MAX;
	/* Nobody else adds to them. */
	for (; count < wanted; count++) {
		auto_close int fd = -1;

		if (cgroup_create(spare->cgroups, CGROUP_USER, &place, &fd) < 0 ||
		    place.kind == CGROUP_NONE)
			return;
		put(spare, place);
	}
	remove_surplus(spare, wanted);
}

bool cgroup_spare_take(struct cgroup_spare *spare, struct cgroup_place *ret_place, int *ret_fd)
{
	struct cgroup_place place;
	int fd;

	pthread_mutex_lock(&spare->lock);
	spare->asked++;
	place = take_last(spare);
	pthread_mutex_unlock(&spare->lock);
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
