/*
 * The certificates of the TLS listener, read from files once and then never changed: a reload makes
 * a new store. Connections hold the store they began with.
 *
 * A certificate is given as "CERT.pem,KEY.pem", as one file that holds both, or as a directory:
 * there, in the order of their names ("default.*" first), every NAME.crt or NAME.pem with a
 * NAME.key beside it, and every NAME.pem that holds its key. Certificate files hold the leaf first,
 * then what is between it and a root.
 *
 * Which is shown is decided by the name the client asks for (SNI): a certificate with exactly that
 * name, else one with the wildcard for it ("*.a.b" stands for x.a.b, neither for a.b nor for
 * x.y.a.b), else the first one given (contract/proxy.md S88). Where several fit equally there is
 * one per kind of key, of these the first, and OpenSSL takes the ECDSA one if the client can.
 */
#ifndef LIB_TLS_TLS_STORE_H
#define LIB_TLS_TLS_STORE_H

#include "lib/tls/tls_certificate.h"

/* The certificates that may be shown, one of each kind of key; NULL where there is none. */
struct tls_choice {
	const struct tls_certificate *of[TLS_KEY_KINDS];
};

struct tls_store;

/* What a load could not read; in a reload each keeps the certificate it had. */
struct tls_load_result {
	size_t certificates, failed;
	char message[ERR_MESSAGE_BYTES]; /* of the first failure; "" when there was none */
};

/* Reads all sources (blocking). Without `previous`, any failure fails the whole (err says which);
 * with it, what cannot be read keeps what it had there. */
int tls_store_load(const char *const *sources, size_t count, struct tls_store *previous,
		   struct tls_store **ret_store, struct tls_load_result *ret_result,
		   struct err *err) NODISCARD;
struct tls_store *tls_store_hold(struct tls_store *store);
void tls_store_release(struct tls_store *store);
/* `name` may be NULL or unknown: the default. True when it is one of the certificates' names. */
bool tls_store_choose(const struct tls_store *store, const char *name,
		      struct tls_choice *ret_choice);
/* When the first of them expires, in Unix time. */
int64_t tls_store_expires_s(const struct tls_store *store);
size_t tls_store_count(const struct tls_store *store);

#endif
