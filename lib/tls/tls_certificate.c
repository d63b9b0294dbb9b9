#include "lib/tls/tls_certificate.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/limits.h"

void tls_certificate_release(struct tls_certificate *c)
{
	if (!c || atomic_fetch_sub(&c->holds, 1) > 1)
		return;
	X509_free(c->leaf);
	sk_X509_pop_free(c->chain, X509_free);
	EVP_PKEY_free(c->key);
	for (size_t i = 0; i < c->names_count; i++)
		free(c->names[i]);
	free(c->names);
	free(c->source);
	free(c);
}

/* ---- names ---- */

int tls_host_normalise(struct str host, char *ret_text, size_t size)
{
	unsigned char address[sizeof(struct in6_addr)];

	if (host.len >= 2 && host.p[0] == '[' && host.p[host.len - 1] == ']')
		host = (struct str){host.p + 1, host.len - 2};
	else if (host.len && host.p[host.len - 1] == '.')
		host.len--;
	if (host.len == 0 || host.len >= size || memchr(host.p, '\0', host.len))
		return -EINVAL;
	for (size_t i = 0; i < host.len; i++)
		ret_text[i] = (char)tolower((unsigned char)host.p[i]);
	ret_text[host.len] = '\0';
	if (inet_pton(AF_INET6, ret_text, address) == 1)
		inet_ntop(AF_INET6, address, ret_text, (socklen_t)size);
	return 0;
}

static void add_name(struct tls_certificate *c, struct str text)
{
	char name[256];

	if (c->names_count == TLS_NAMES_MAX || tls_host_normalise(text, name, sizeof(name)) < 0)
		return;
	c->names = xrealloc(c->names, (c->names_count + 1) * sizeof(*c->names));
	c->names[c->names_count++] = xstrdup(name);
}

static void add_address(struct tls_certificate *c, const ASN1_OCTET_STRING *address)
{
	char text[INET6_ADDRSTRLEN];
	int len = ASN1_STRING_length(address);

	if ((len == 4 || len == 16) &&
	    inet_ntop(len == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(address), text,
		      sizeof(text)))
		add_name(c, str_of(text));
}

static void add_common_name(struct tls_certificate *c)
{
	const X509_NAME *subject = X509_get_subject_name(c->leaf);
	int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
	unsigned char *text;
	int len;

	if (at < 0)
		return;
	len = ASN1_STRING_to_UTF8(&text,
				  X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
	if (len > 0)
		add_name(c, (struct str){(const char *)text, (size_t)len});
	if (len >= 0)
		OPENSSL_free(text);
}

/* The names of a certificate are its alternative ones; only without any the common name counts. */
static void read_names(struct tls_certificate *c)
{
	GENERAL_NAMES *names = X509_get_ext_d2i(c->leaf, NID_subject_alt_name, NULL, NULL);

	for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
		int type;
		void *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);

		if (type == GEN_DNS)
			add_name(c, (struct str){(const char *)ASN1_STRING_get0_data(value),
						 (size_t)ASN1_STRING_length(value)});
		else if (type == GEN_IPADD)
			add_address(c, value);
	}
	if (!names)
		add_common_name(c);
	GENERAL_NAMES_free(names);
}

static bool has_name(const struct tls_certificate *c, const char *name)
{
	for (size_t i = 0; i < c->names_count; i++)
		if (strcmp(c->names[i], name) == 0)
			return true;
	return false;
}

bool tls_host_is_address(const char *name)
{
	unsigned char address[sizeof(struct in6_addr)];

	return inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1;
}

bool tls_host_wildcard(const char *name, char *ret_text, size_t size)
{
	const char *dot = strchr(name, '.');

	if (!dot || dot == name || tls_host_is_address(name))
		return false;
	return (size_t)snprintf(ret_text, size, "*%s", dot) < size;
}

bool tls_certificate_covers(const struct tls_certificate *c, struct str host)
{
	char name[256], wildcard[258];

	if (tls_host_normalise(host, name, sizeof(name)) < 0 || name[0] == '*')
		return false;
	return has_name(c, name) ||
	       (tls_host_wildcard(name, wildcard, sizeof(wildcard)) && has_name(c, wildcard));
}

/* ---- reading ---- */

static const char *library_reason(void)
{
	const char *reason = ERR_reason_error_string(ERR_peek_error());

	return reason ? reason : "unknown fault";
}

int tls_file_read(const char *path, char **ret_text, size_t *ret_len, struct err *err)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat facts;
	auto_free char *text = NULL;
	size_t len = 0;
	ssize_t n;

	if (fd < 0 || fstat(fd, &facts) < 0)
		return err_set_sys(err, ERR_INVALID_ARGUMENT, errno, "read %s", path);
	if (!S_ISREG(facts.st_mode) || facts.st_size > TLS_FILE_BYTES_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s is not a file of at most %d bytes",
			       path, TLS_FILE_BYTES_MAX);
	text = xmalloc((size_t)facts.st_size + 1);
	while (len < (size_t)facts.st_size &&
	       (n = read(fd, text + len, (size_t)facts.st_size - len)) != 0) {
		if (n < 0)
			return err_set_sys(err, ERR_INVALID_ARGUMENT, errno, "read %s", path);
		len += (size_t)n;
	}
	text[len] = '\0';
	*ret_text = take_ptr(&text);
	*ret_len = len;
	return 0;
}

/* Keys that ask for a password are none that a server can use by itself. */
static int no_password(char *room, int size, int writing, void *user)
{
	(void)room;
	(void)size;
	(void)writing;
	(void)user;
	return -1;
}

static int parse_certificates(struct tls_certificate *c, BIO *bio, const char *path,
			      struct err *err)
{
	X509 *next;

	c->leaf = PEM_read_bio_X509_AUX(bio, NULL, no_password, NULL);
	if (!c->leaf)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s holds no certificate (%s)", path,
			       library_reason());
	while ((next = PEM_read_bio_X509(bio, NULL, no_password, NULL))) {
		if (!c->chain)
			c->chain = sk_X509_new_null();
		if (!c->chain || !sk_X509_push(c->chain, next)) {
			X509_free(next);
			return err_set(err, ERR_RESOURCE_EXHAUSTED, "out of memory");
		}
	}
	if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s: a broken certificate (%s)", path,
			       library_reason());
	return 0;
}

static int parse_key(struct tls_certificate *c, BIO *bio, const char *path, struct err *err)
{
	c->key = PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL);
	if (!c->key)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s holds no usable private key (%s)",
			       path, library_reason());
	if (!X509_check_private_key(c->leaf, c->key))
		return err_set(err, ERR_INVALID_ARGUMENT,
			       "the private key in %s does not belong to the certificate %s", path,
			       c->source);
	c->kind = EVP_PKEY_get_base_id(c->key) == EVP_PKEY_EC	 ? TLS_KEY_ECDSA
		  : EVP_PKEY_get_base_id(c->key) == EVP_PKEY_RSA ? TLS_KEY_RSA
								 : TLS_KEY_OTHER;
	return 0;
}

/* One file, for one of the two parsers. */
static int parse_file(struct tls_certificate *c, const char *path,
		      int (*parse)(struct tls_certificate *, BIO *, const char *, struct err *),
		      struct err *err)
{
	char *text;
	size_t len;
	BIO *bio;
	int status = tls_file_read(path, &text, &len, err);

	if (status < 0)
		return status;
	ERR_clear_error();
	bio = BIO_new_mem_buf(text, (int)len);
	status = bio ? parse(c, bio, path, err)
		     : err_set(err, ERR_RESOURCE_EXHAUSTED, "out of memory");
	ERR_clear_error();
	BIO_free(bio);
	wipe(text, len);
	free(text);
	return status;
}

/* The library judges what it would refuse to use later: key sizes, curves, digests. */
static int check_usable(const struct tls_certificate *c, struct err *err)
{
	SSL_CTX *context = SSL_CTX_new(TLS_server_method());
	int usable = context && SSL_CTX_use_cert_and_key(context, c->leaf, c->key, c->chain, 1);
	int status = usable ? 0
			    : err_set(err, ERR_INVALID_ARGUMENT, "%s cannot be used (%s)",
				      c->source, library_reason());

	ERR_clear_error();
	SSL_CTX_free(context);
	return status;
}

static int64_t expiry_of(const X509 *leaf)
{
	struct tm when;

	if (!ASN1_TIME_to_tm(X509_get0_notAfter(leaf), &when))
		return INT64_MAX;
	return (int64_t)timegm(&when);
}

int tls_certificate_load(const char *certificate_path, const char *key_path,
			 struct tls_certificate **ret_certificate, struct err *err)
{
	struct tls_certificate *c = xcalloc(1, sizeof(*c));
	int status;

	c->holds = 1;
	c->source = xstrdup(certificate_path);
	status = parse_file(c, certificate_path, parse_certificates, err);
	if (status == 0)
		status = parse_file(c, key_path, parse_key, err);
	if (status == 0)
		status = check_usable(c, err);
	if (status < 0) {
		tls_certificate_release(c);
		return status;
	}
	read_names(c);
	c->expires_s = expiry_of(c->leaf);
	*ret_certificate = c;
	return 0;
}
