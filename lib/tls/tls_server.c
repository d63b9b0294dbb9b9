#include "lib/tls/tls_server.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>

#include "lib/log.h"
#include "lib/limits.h"

/* The cheapest that is safe first; a client without AES in hardware says so by wanting ChaCha
 * first. */
#define CIPHERS_13 "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define CIPHERS_12 \
	"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:" \
	"ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:" \
	"ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305"
#define GROUPS "X25519:P-256:P-384"
#define SIGNATURES \
	"ECDSA+SHA256:ed25519:ECDSA+SHA384:ECDSA+SHA512:RSA-PSS+SHA256:RSA-PSS+SHA384:" \
	"RSA-PSS+SHA512:RSA+SHA256:RSA+SHA384:RSA+SHA512"

struct tls_server {
	SSL_CTX *context;
	struct tls_tickets *tickets;
	pthread_mutex_t lock; /* of `store`, the pointer */
	struct tls_store *store;
	bool http2;
};

/* What belongs to one connection beyond OpenSSL's own; freed with the SSL. */
struct tls_facts {
	struct stream_security security;
	struct tls_store *store;
	struct tls_choice choice;
	const struct tls_certificate *shown; /* the one that the handshake used */
	char *server_name; /* as asked for; NULL: none */
};

/* Where an SSL keeps its facts: a number that OpenSSL gives out once for the whole process. */
static int facts_index = -1;
static pthread_once_t facts_once = PTHREAD_ONCE_INIT;

static void free_facts(void *ssl, void *pointer, CRYPTO_EX_DATA *data, int index, long number,
		       void *user)
{
	struct tls_facts *facts = pointer;

	(void)ssl;
	(void)data;
	(void)index;
	(void)number;
	(void)user;
	if (!facts)
		return;
	tls_store_release(facts->store);
	free(facts->server_name);
	free(facts);
}

static void make_facts_index(void)
{
	facts_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_facts);
}

static struct tls_facts *facts_of(const SSL *ssl)
{
	return SSL_get_ex_data(ssl, facts_index);
}

/* ---- callbacks of the handshake ---- */

static int on_server_name(SSL *ssl, int *alert, void *user)
{
	struct tls_facts *facts = facts_of(ssl);
	const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
	bool known;

	(void)user;
	/* An address is no name that could be asked for (RFC 6066 section 3), though some clients
	 * do. */
	if (name && tls_host_is_address(name))
		name = NULL;
	if (name && !facts->server_name)
		facts->server_name = xstrdup(name);
	known = tls_store_choose(facts->store, name, &facts->choice);
	for (size_t i = TLS_KEY_KINDS; i-- > 0;) {
		const struct tls_certificate *c = facts->choice.of[i];

		if (c && !SSL_use_cert_and_key(ssl, c->leaf, c->key, c->chain, 1)) {
			*alert = SSL_AD_INTERNAL_ERROR;
			return SSL_TLSEXT_ERR_ALERT_FATAL;
		}
	}
	return known ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

/* RFC 7301: of what the client offers the best that is spoken here; if that is none, the handshake
 * fails and says so (contract/proxy.md S89). */
static int on_alpn(SSL *ssl, const unsigned char **ret_name, unsigned char *ret_len,
		   const unsigned char *offer, unsigned len, void *user)
{
	static const unsigned char with_http2[] = "\2h2\10http/1.1\10http/1.0";
	const struct tls_server *tls = user;
	const unsigned char *ours = with_http2 + (tls->http2 ? 0 : 3);
	unsigned char *chosen;

	(void)ssl;
	if (SSL_select_next_proto(&chosen, ret_len, ours,
				  (unsigned)(with_http2 + sizeof(with_http2) - 1 - ours), offer,
				  len) != OPENSSL_NPN_NEGOTIATED)
		return SSL_TLSEXT_ERR_ALERT_FATAL;
	*ret_name = chosen;
	return SSL_TLSEXT_ERR_OK;
}

/* ---- the context ---- */

static SSL_CTX *context_new(struct tls_server *tls)
{
	/* Any constant will do. Tickets have it in them, so another one would make those of an
	 * earlier version worthless to its successor. */
	static const unsigned char session_context[] = "proxy";
	SSL_CTX *context = SSL_CTX_new(TLS_server_method());

	if (!context)
		return NULL;
	SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
					     SSL_OP_CIPHER_SERVER_PREFERENCE |
					     SSL_OP_PRIORITIZE_CHACHA);
	SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_timeout(context, TLS_SESSION_S);
	SSL_CTX_set_tlsext_servername_callback(context, on_server_name);
	SSL_CTX_set_alpn_select_cb(context, on_alpn, tls);
	if (!SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) ||
	    !SSL_CTX_set_ciphersuites(context, CIPHERS_13) ||
	    !SSL_CTX_set_cipher_list(context, CIPHERS_12) ||
	    !SSL_CTX_set1_groups_list(context, GROUPS) ||
	    !SSL_CTX_set1_sigalgs_list(context, SIGNATURES) ||
	    !SSL_CTX_set_session_id_context(context, session_context,
					    sizeof(session_context) - 1) ||
	    tls_tickets_use(tls->tickets, context) < 0) {
		SSL_CTX_free(context);
		return NULL;
	}
	return context;
}

int tls_server_new(struct tls_store *store, struct tls_server **ret_tls, struct err *err)
{
	struct tls_server *tls = xcalloc(1, sizeof(*tls));

	pthread_mutex_init(&tls->lock, NULL);
	tls->store = store;
	pthread_once(&facts_once, make_facts_index);
	tls->tickets = facts_index < 0 ? NULL : tls_tickets_new();
	if (tls->tickets)
		tls->context = context_new(tls);
	if (!tls->context) {
		const char *reason = ERR_reason_error_string(ERR_peek_last_error());

		err_set(err, ERR_INTERNAL, "TLS cannot be set up (%s)", reason ? reason : "?");
		ERR_clear_error();
		tls_server_free(tls);
		return -EPROTO;
	}
	*ret_tls = tls;
	return 0;
}

void tls_server_free(struct tls_server *tls)
{
	SSL_CTX_free(tls->context);
	if (tls->tickets)
		tls_tickets_free(tls->tickets);
	tls_store_release(tls->store);
	pthread_mutex_destroy(&tls->lock);
	free(tls);
}

void tls_server_offer_http2(struct tls_server *tls)
{
	tls->http2 = true;
}

void tls_server_set_store(struct tls_server *tls, struct tls_store *store)
{
	struct tls_store *before;

	pthread_mutex_lock(&tls->lock);
	before = tls->store;
	tls->store = store;
	pthread_mutex_unlock(&tls->lock);
	tls_store_release(before);
}

struct tls_store *tls_server_hold_store(struct tls_server *tls)
{
	struct tls_store *store;

	pthread_mutex_lock(&tls->lock);
	store = tls_store_hold(tls->store);
	pthread_mutex_unlock(&tls->lock);
	return store;
}

void tls_server_rotate_tickets(struct tls_server *tls)
{
	if (!tls_tickets_rotate(tls->tickets))
		log_error("tls", "no randomness for new ticket keys");
}

size_t tls_server_export_tickets(struct tls_server *tls,
				 unsigned char ret_keys[TLS_TICKET_KEYS_BYTES])
{
	return tls_tickets_export(tls->tickets, ret_keys);
}

bool tls_server_import_tickets(struct tls_server *tls, const unsigned char *keys, size_t len)
{
	return tls_tickets_import(tls->tickets, keys, len);
}

/* ---- one connection ---- */

static bool covers(const struct stream_security *security, struct str host)
{
	const struct tls_facts *facts = container_of(security, struct tls_facts, security);

	if (host.len && host.p[host.len - 1] == '.')
		host.len--;
	/* Who asked for no name, or for this very one, got what there is and was not misled
	 * (contract/proxy.md S81, S88). */
	if (!facts->server_name || str_equal_nocase(host, str_of(facts->server_name)))
		return true;
	return tls_certificate_covers(facts->shown, host);
}

SSL *tls_server_connection_new(struct tls_server *tls)
{
	SSL *ssl = SSL_new(tls->context);
	struct tls_facts *facts;

	if (!ssl)
		return NULL;
	facts = xcalloc(1, sizeof(*facts));
	facts->store = tls_server_hold_store(tls);
	facts->security.covers = covers;
	if (!SSL_set_ex_data(ssl, facts_index, facts)) {
		free_facts(NULL, facts, NULL, 0, 0, NULL);
		SSL_free(ssl);
		return NULL;
	}
	SSL_set_accept_state(ssl);
	return ssl;
}

/* Which of the offered certificates the client has seen; after a resumption, what it would see. */
static const struct tls_certificate *find_shown(const SSL *ssl, const struct tls_facts *facts)
{
	const X509 *leaf = SSL_get_certificate(ssl);
	const struct tls_certificate *any = NULL;

	for (size_t i = TLS_KEY_KINDS; i-- > 0;) {
		const struct tls_certificate *c = facts->choice.of[i];

		if (c && c->leaf == leaf)
			return c;
		any = c ? c : any;
	}
	return any;
}

const struct stream_security *tls_server_security_of(SSL *ssl)
{
	struct tls_facts *facts = facts_of(ssl);

	facts->shown = find_shown(ssl, facts);
	facts->security.version = SSL_get_version(ssl);
	facts->security.cipher = SSL_get_cipher_name(ssl);
	return &facts->security;
}

bool tls_server_chose_http2(const SSL *ssl)
{
	const unsigned char *name;
	unsigned len;

	SSL_get0_alpn_selected(ssl, &name, &len);
	return len == 2 && memcmp(name, "h2", 2) == 0;
}
