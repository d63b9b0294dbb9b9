/*
 * In which order the two streams of a job have grown, as far as looks at them can tell: the file
 * `order` in its folder, so that it is also known to the next envd and long after. A mark says how
 * far both had come; from one mark to the next, all bytes of one stream come before all of the
 * other. Where there is no mark, nothing is known. Blocking, for the pool.
 */
#ifndef ENVD_JOBS_JOB_ORDER_H
#define ENVD_JOBS_JOB_ORDER_H

#include "envd/jobs/job_store.h"

struct job_mark {
	uint64_t ends[JOB_STREAMS];
	enum job_stream first; /* of what came since the mark before */
};

/* Of who writes; all zero at first. */
struct job_order {
	struct job_mark before, last;
	uint64_t count; /* of marks, with `last` */
	bool is_loaded;
};

/* What a look has found, and which stream had grown first since the last one. The file is made when
 * both have grown; it holds JOB_ORDER_MARKS_MAX, of which every other one is dropped when they are
 * reached. A disk that takes none costs nothing but the order. */
void job_order_note(struct job_order *order, const struct job_store *store, const char *id,
		    const uint64_t ends[JOB_STREAMS], enum job_stream first);
/* The first mark beyond these offsets, in the open file. False: none is. */
bool job_order_find(int fd, const uint64_t offsets[JOB_STREAMS],
		    struct job_mark *ret_mark) NODISCARD;

#endif
