/*
 * The certificates' life beside the connections, on the main loop: loaded at the start, loaded
 * again (in the pool) on demand (SIGHUP, the admin API), and when a file near them changes, and
 * ticket keys renewed from time to time. Running connections go on with what they have; new ones
 * get the new certificates. A file that cannot be used keeps the certificate that came from it
 * before, and the log, the metrics and the answer to who asked say so (contract/proxy.md S90).
 */
#ifndef LIB_TLS_TLS_RELOAD_H
#define LIB_TLS_TLS_RELOAD_H

#include "lib/loop.h"
#include "lib/tls/tls_server.h"

struct tls_reload;

struct tls_reload_totals {
	uint64_t done, failed; /* reloads; those in which something could not be loaded */
	size_t certificates;
	int64_t expires_s; /* the first of them, Unix time */
};

/* Told of one load, on the loop: 0 and what came of it, or what made all of it fail. */
typedef void tls_reload_told(void *user, const struct tls_load_result *result,
			     const struct err *err);

/* Loads and sets up (blocking; at the start). `sources` as in tls_store.h, borrowed. */
int tls_reload_open(struct loop *loop, const char *const *sources, size_t count,
		    struct tls_reload **ret_reload, struct err *err) NODISCARD;
struct tls_server *tls_reload_tls(const struct tls_reload *reload);
/* When ticket keys are renewed next, in milliseconds from now. */
uint64_t tls_reload_tickets_due_ms(const struct tls_reload *reload);
/* The keys of another process (tls_ticket.h), and when they are to be renewed: their age counts,
 * however often one process follows another. False when they are not whole: its own stay. */
bool tls_reload_import_tickets(struct tls_reload *reload, const unsigned char *keys, size_t len,
			       uint64_t due_ms);
/* Loads again. `told` (NULL: nobody is) comes exactly once, perhaps at once and in any case before
 * the loop ends; a second request during a load is one more load. */
void tls_reload_now(struct tls_reload *reload, tls_reload_told *told, void *user);
/* Any thread. */
void tls_reload_totals(struct tls_reload *reload, struct tls_reload_totals *ret_totals);
/* Closes its handles; who waits for a load is told `why` nothing comes of it. tls_reload_free once
 * the loop has ended, and nobody uses the struct tls_server. */
void tls_reload_close(struct tls_reload *reload, const char *why);
void tls_reload_free(struct tls_reload *reload);

#endif
