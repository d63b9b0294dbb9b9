#include "lib/tls/tls_client.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "lib/limits.h"
#include "lib/tls/tls_certificate.h"
#include "lib/tls/tls_stream.h"

struct tls_client {
	struct http_call_security security;
	SSL_CTX *context;
	struct tls_buffers *buffers;
	char *server_name;
};

/* An address is no name that a server could be asked for (RFC 6066 section 3). */
static bool set_name(SSL *ssl, const char *name)
{
	if (tls_host_is_address(name))
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name);
	return SSL_set1_host(ssl, name) && SSL_set_tlsext_host_name(ssl, name);
}

static SSL *connection_new(const struct tls_client *client)
{
	SSL *ssl = SSL_new(client->context);

	if (!ssl)
		return NULL;
	SSL_set_connect_state(ssl);
	if (!set_name(ssl, client->server_name)) {
		SSL_free(ssl);
		return NULL;
	}
	return ssl;
}

static int open_stream(const struct http_call_security *security, struct stream *carrier,
		       void (*on_ready)(struct stream *stream, int status), void *user,
		       struct stream **ret_stream)
{
	const struct tls_client *client = container_of(security, struct tls_client, security);
	SSL *ssl = connection_new(client);
	int status;

	ERR_clear_error();
	if (!ssl)
		return -ENOMEM;
	status = tls_stream_open(client->buffers, ssl, carrier, on_ready, user, ret_stream);
	if (status < 0) {
		SSL_free(ssl);
		return status;
	}
	status = tls_stream_start(*ret_stream, "", 0);
	if (status < 0)
		tls_stream_detach(*ret_stream);
	return status;
}

/* What is wrong with a certificate says more than the alert that it was answered with. */
static const char *reason_of(const struct stream *stream)
{
	long verified = SSL_get_verify_result(tls_stream_ssl(stream));

	return verified == X509_V_OK ? tls_stream_reason(stream)
				     : X509_verify_cert_error_string(verified);
}

static SSL_CTX *context_new(void)
{
	static const unsigned char protocols[] = "\10http/1.1";
	SSL_CTX *context = SSL_CTX_new(TLS_client_method());

	if (!context)
		return NULL;
	SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
	SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
	if (!SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) ||
	    SSL_CTX_set_alpn_protos(context, protocols, sizeof(protocols) - 1) != 0 ||
	    !SSL_CTX_set_default_verify_paths(context)) {
		SSL_CTX_free(context);
		return NULL;
	}
	return context;
}

int tls_client_new(const char *server_name, struct tls_client **ret_client, struct err *err)
{
	struct tls_client *client;
	SSL_CTX *context = context_new();

	if (!context) {
		const char *reason = ERR_reason_error_string(ERR_peek_last_error());

		err_set(err, ERR_INTERNAL, "TLS cannot be set up (%s)", reason ? reason : "?");
		ERR_clear_error();
		return -EPROTO;
	}
	client = xcalloc(1, sizeof(*client));
	client->security = (struct http_call_security){
		.open = open_stream, .reason = reason_of, .timeout_ms = TLS_HANDSHAKE_TIMEOUT_MS};
	client->context = context;
	client->buffers = tls_buffers_new();
	client->server_name = xstrdup(server_name);
	*ret_client = client;
	return 0;
}

void tls_client_free(struct tls_client *client)
{
	SSL_CTX_free(client->context);
	tls_buffers_free(client->buffers);
	free(client->server_name);
	free(client);
}

const struct http_call_security *tls_client_security(const struct tls_client *client)
{
	return &client->security;
}
