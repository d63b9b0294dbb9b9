/*
 * A socket that the loop has lent to a job of the pool (stream_lend, stream_lend_input): the bytes
 * need not change threads, nor be kept for one another, where the one that has them in its cache
 * goes on with them.
 *
 * A job waits for files and never for a peer: where the socket takes or brings no more it ends, and
 * the loop does the waiting. Nor does it keep its thread for long when others could use it.
 *
 * Belongs to whoever asked for the socket: the loop before and after the job, the job while it
 * runs.
 */
#ifndef LIB_LENT_SOCKET_H
#define LIB_LENT_SOCKET_H

#include "lib/job.h"

struct lent_socket {
	int fd; /* ours to close; negative: none is lent */
	int64_t until_ms; /* monotonic: how long the job may go on; 0: it has not begun */
	bool is_blocked; /* it takes, or brings, no more now */
};

/* For the loop: the job will have the socket; or none, of a negative errno that lending it gave. */
void lent_socket_begin(struct lent_socket *lent, int fd);
/* For the loop: the job is over, or will not be. May be called twice. */
void lent_socket_end(struct lent_socket *lent);
/* For the job, before it waits for a file: its time runs from the first call on, and the socket is
 * asked anew whether it is blocked. */
void lent_socket_use(struct lent_socket *lent);
/* Whether the job may go on with another piece: the socket is not blocked, nobody waits for the
 * thread, and the job has not had it for long. Turns of the loop between jobs are gaps, which cost
 * more than their time where they let the peer's processor fall asleep. */
bool lent_socket_goes_on(const struct lent_socket *lent, const struct job *job);
/* What the peer has sent, `size` bytes at most; 0: nothing now, or nothing more, which the loop
 * finds out by itself. */
size_t lent_socket_receive(struct lent_socket *lent, char *room, size_t size);

#endif
