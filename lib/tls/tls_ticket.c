#include "lib/tls/tls_ticket.h"

#include <openssl/core_names.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <pthread.h>

#define NAME_BYTES 16
#define KEY_BYTES 32

struct ticket_key {
	unsigned char name[NAME_BYTES], cipher[KEY_BYTES], mac[KEY_BYTES];
};

static_assert(sizeof(struct ticket_key) == TLS_TICKET_KEY_BYTES, "it is exported as it is");

struct tls_tickets {
	pthread_rwlock_t lock;
	struct ticket_key current, last;
	bool has_last;
	EVP_CIPHER *cipher; /* fetched once: looking it up costs more than using it */
};

struct tls_tickets *tls_tickets_new(void)
{
	struct tls_tickets *tickets = xcalloc(1, sizeof(*tickets));

	pthread_rwlock_init(&tickets->lock, NULL);
	tickets->cipher = EVP_CIPHER_fetch(NULL, "AES-256-CBC", NULL);
	if (!tickets->cipher || !tls_tickets_rotate(tickets)) {
		tls_tickets_free(tickets);
		return NULL;
	}
	tickets->has_last = false; /* that was the empty one */
	return tickets;
}

void tls_tickets_free(struct tls_tickets *tickets)
{
	EVP_CIPHER_free(tickets->cipher);
	pthread_rwlock_destroy(&tickets->lock);
	wipe(tickets, sizeof(*tickets));
	free(tickets);
}

bool tls_tickets_rotate(struct tls_tickets *tickets)
{
	struct ticket_key fresh;

	if (RAND_bytes(fresh.name, NAME_BYTES) != 1 ||
	    RAND_priv_bytes(fresh.cipher, KEY_BYTES) != 1 ||
	    RAND_priv_bytes(fresh.mac, KEY_BYTES) != 1)
		return false;
	pthread_rwlock_wrlock(&tickets->lock);
	tickets->last = tickets->current;
	tickets->has_last = true;
	tickets->current = fresh;
	pthread_rwlock_unlock(&tickets->lock);
	wipe(&fresh, sizeof(fresh));
	return true;
}

size_t tls_tickets_export(struct tls_tickets *tickets,
			  unsigned char ret_keys[TLS_TICKET_KEYS_BYTES])
{
	size_t len = sizeof(tickets->current);

	pthread_rwlock_rdlock(&tickets->lock);
	memcpy(ret_keys, &tickets->current, sizeof(tickets->current));
	if (tickets->has_last) {
		memcpy(ret_keys + len, &tickets->last, sizeof(tickets->last));
		len += sizeof(tickets->last);
	}
	pthread_rwlock_unlock(&tickets->lock);
	return len;
}

bool tls_tickets_import(struct tls_tickets *tickets, const unsigned char *keys, size_t len)
{
	if (len != TLS_TICKET_KEY_BYTES && len != TLS_TICKET_KEYS_BYTES)
		return false;
	pthread_rwlock_wrlock(&tickets->lock);
	memcpy(&tickets->current, keys, sizeof(tickets->current));
	tickets->has_last = len == TLS_TICKET_KEYS_BYTES;
	if (tickets->has_last)
		memcpy(&tickets->last, keys + sizeof(tickets->current), sizeof(tickets->last));
	pthread_rwlock_unlock(&tickets->lock);
	return true;
}

static bool start_mac(EVP_MAC_CTX *mac, const struct ticket_key *key)
{
	const OSSL_PARAM params[] = {
		OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, (void *)key->mac, KEY_BYTES),
		OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)"SHA256", 0),
		OSSL_PARAM_construct_end(),
	};

	return EVP_MAC_CTX_set_params(mac, params) == 1;
}

/* OpenSSL's question, with its answers: 1 go on, 2 go on and give a new ticket, 0 without a ticket,
 * -1 failed. */
static int on_ticket(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher,
		     EVP_MAC_CTX *mac, int encrypt)
{
	struct tls_tickets *tickets = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
	struct ticket_key key;
	int result = 1;

	pthread_rwlock_rdlock(&tickets->lock);
	key = tickets->current;
	if (!encrypt && memcmp(name, key.name, NAME_BYTES) != 0) {
		result = tickets->has_last && memcmp(name, tickets->last.name, NAME_BYTES) == 0 ? 2
												: 0;
		key = tickets->last;
	}
	pthread_rwlock_unlock(&tickets->lock);
	if (result == 1 && SSL_version(ssl) == TLS1_3_VERSION)
		result = 2; /* clients use each but once (RFC 8446 appendix C.4) */
	if (encrypt) {
		memcpy(name, key.name, NAME_BYTES);
		if (RAND_bytes(iv, EVP_CIPHER_get_iv_length(tickets->cipher)) != 1 ||
		    !EVP_EncryptInit_ex2(cipher, tickets->cipher, key.cipher, iv, NULL))
			result = -1;
	} else if (result && !EVP_DecryptInit_ex2(cipher, tickets->cipher, key.cipher, iv, NULL)) {
		result = -1;
	}
	if (result > 0 && !start_mac(mac, &key))
		result = -1;
	wipe(&key, sizeof(key));
	return result;
}

int tls_tickets_use(struct tls_tickets *tickets, SSL_CTX *context)
{
	SSL_CTX_set_app_data(context, tickets);
	return SSL_CTX_set_tlsext_ticket_key_evp_cb(context, on_ticket) ? 0 : -ENOMEM;
}
