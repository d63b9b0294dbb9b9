/*
 * Sends a file through a socket without a copy (sendfile), for jobs of the pool to which the loop
 * has lent the socket (stream_lend). It waits for the file and never for the peer.
 *
 * The kernel refers to the pages of the file until the peer has them, and on the same kernel until
 * the peer's program has read them. So what changes in the file meanwhile may still change what is
 * on its way, which for bytes that were copied is over: who is sent a file that is overwritten in
 * place gets old and new bytes mixed, as with a copy, only later still. When a file is cut, but not
 * to nothing, the kernel fills the rest of the page in which it now ends with zeros, and they
 * arrive in place of what was sent; such a page may be megabytes large. All other pages keep what
 * they held. A sender to whom that matters must be able to tell that the file was cut, and must not
 * have finished by then: it copies the last file_send_tail() bytes, which is more than can be on
 * its way.
 *
 * A struct file_send belongs to one sender, whose jobs use it one at a time.
 */
#ifndef LIB_FILE_SEND_H
#define LIB_FILE_SEND_H

#include "lib/lent_socket.h"

struct file_send {
	struct lent_socket socket;
	size_t piece_bytes; /* of the next go, which follows how fast the file can be read; 0 to
			       begin with */
};

/* Sends from `offset` on up to `len` bytes, or fewer: those of one go. How many were sent, which is
 * less than there was room for only at the end of the file; or a negative errno. -ENOSYS: not this
 * file, or not on this kernel, and nothing was sent. */
ssize_t file_send(struct file_send *send, int file, int64_t offset, size_t len) NODISCARD;
/* How much a connection can hold that its peer has not read, be the peer on the same kernel (and
 * its network not set up for more than ours), and FILE_SEND_TAIL_BYTES. A negative errno when that
 * is not known. */
int64_t file_send_tail(void);

#endif
