/*
 * One certificate with its key and chain, read from PEM files, and the names it stands for. It does
 * not change once loaded; several stores may hold it.
 */
#ifndef LIB_TLS_TLS_CERTIFICATE_H
#define LIB_TLS_TLS_CERTIFICATE_H

#include <stdatomic.h>

#include "lib/err.h"

enum tls_key_kind { TLS_KEY_ECDSA, TLS_KEY_RSA, TLS_KEY_OTHER, TLS_KEY_KINDS };

struct tls_certificate {
	atomic_size_t holds;
	struct x509_st *leaf; /* OpenSSL's X509 */
	struct stack_st_X509 *chain; /* STACK_OF(X509); NULL: none */
	struct evp_pkey_st *key; /* EVP_PKEY */
	enum tls_key_kind kind;
	char *source; /* what it was read from, for logs */
	char **names; /* lower case, without a final dot; addresses in their usual form */
	size_t names_count;
	int64_t expires_s; /* Unix time */
};

/* Blocking. The key must belong to the certificate and need no password, and OpenSSL must be
 * willing to use both; err says what is wrong. */
int tls_certificate_load(const char *certificate_path, const char *key_path,
			 struct tls_certificate **ret_certificate, struct err *err) NODISCARD;
void tls_certificate_release(struct tls_certificate *certificate);
/* Whether the certificate stands for a host: a name, or an address with or without brackets. */
bool tls_certificate_covers(const struct tls_certificate *certificate, struct str host);

/* A host as names are compared: lower case, no brackets, no final dot, addresses in their usual
 * form. -EINVAL for what is none. */
int tls_host_normalise(struct str host, char *ret_text, size_t size) NODISCARD;
/* "*.b.c" for "a.b.c", both normalised: a wildcard stands for one whole label (RFC 6125
 * section 6.4.3). False for addresses and single labels. */
bool tls_host_wildcard(const char *name, char *ret_text, size_t size);
/* A literal address, without brackets. */
bool tls_host_is_address(const char *name);
/* The whole file, at most TLS_FILE_BYTES_MAX; the caller wipes and frees it. */
int tls_file_read(const char *path, char **ret_text, size_t *ret_len, struct err *err) NODISCARD;

#endif
