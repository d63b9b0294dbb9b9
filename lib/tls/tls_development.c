#include "lib/tls/tls_development.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/tls/tls_certificate.h"

#define DAY_S (24 * 3600)
#define AUTHORITY_DAYS 3650
/* Some clients refuse certificates of more than 398 days. */
#define CERTIFICATE_DAYS 397
/* What ends sooner is made anew. */
#define RENEW_DAYS 30
/* Clocks of virtual machines lag behind. */
#define BACKDATED_S DAY_S
#define SERIAL_BITS 127
#define PATH_BYTES 4096
#define EXTENSION_BYTES 1024

struct paths {
	char authority[PATH_BYTES], authority_key[PATH_BYTES];
	char certificate[PATH_BYTES], key[PATH_BYTES];
};

/* Who signs. */
struct authority {
	X509 *certificate;
	EVP_PKEY *key;
};

static int fail(struct err *err, const char *what)
{
	const char *reason = ERR_reason_error_string(ERR_peek_last_error());

	ERR_clear_error();
	return err_set(err, ERR_INTERNAL, "%s: %s", what, reason ? reason : "unknown fault");
}

/* ---- files ---- */

static int join(const char *directory, const char *name, char *ret_path, struct err *err)
{
	int len = snprintf(ret_path, PATH_BYTES, "%s/%s", directory, name);

	if (len < 0 || len >= PATH_BYTES)
		return err_set(err, ERR_INVALID_ARGUMENT, "%s: the path is too long", directory);
	return 0;
}

static int make_paths(const char *directory, struct paths *ret_paths, struct err *err)
{
	if (join(directory, "ca.pem", ret_paths->authority, err) < 0 ||
	    join(directory, "ca-key.pem", ret_paths->authority_key, err) < 0 ||
	    join(directory, "tls.crt", ret_paths->certificate, err) < 0 ||
	    join(directory, "tls.key", ret_paths->key, err) < 0)
		return -EINVAL;
	return 0;
}

/* Whole or not at all: written beside, then renamed. */
static int write_file(const char *path, BIO *content, mode_t mode, struct err *err)
{
	char temporary[PATH_BYTES + 8];
	char *data;
	long len = BIO_get_mem_data(content, &data);
	auto_close int fd = -1;

	snprintf(temporary, sizeof(temporary), "%s.new", path);
	unlink(temporary);
	fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0 || fchmod(fd, mode) < 0 || write(fd, data, (size_t)len) != len ||
	    fsync(fd) < 0 || rename(temporary, path) < 0) {
		int status = err_set_sys(err, ERR_PERMISSION_DENIED, errno, "write %s", path);

		unlink(temporary);
		return status;
	}
	return 0;
}

static int write_key(const char *path, EVP_PKEY *key, struct err *err)
{
	BIO *content = BIO_new(BIO_s_secmem());
	int status = -ENOMEM;

	if (!content || !PEM_write_bio_PKCS8PrivateKey(content, key, NULL, NULL, 0, NULL, NULL))
		fail(err, "write a key");
	else
		status = write_file(path, content, 0600, err);
	BIO_free(content);
	return status;
}

/* The certificate, and who signed it if `issuer` is given. */
static int write_certificate(const char *path, X509 *certificate, X509 *issuer, struct err *err)
{
	BIO *content = BIO_new(BIO_s_mem());
	int status = -ENOMEM;

	if (!content || !PEM_write_bio_X509(content, certificate) ||
	    (issuer && !PEM_write_bio_X509(content, issuer)))
		fail(err, "write a certificate");
	else
		status = write_file(path, content, 0644, err);
	BIO_free(content);
	return status;
}

/* ---- making certificates ---- */

static bool add_extension(X509 *certificate, X509 *issuer, int kind, const char *value)
{
	X509_EXTENSION *extension;
	X509V3_CTX context;
	bool added;

	X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
	extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
	added = extension && X509_add_ext(certificate, extension, -1);
	X509_EXTENSION_free(extension);
	return added;
}

static bool set_serial(X509 *certificate)
{
	BIGNUM *number = BN_new();
	bool done = number && BN_rand(number, SERIAL_BITS, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) &&
		    BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate));

	BN_free(number);
	return done;
}

/* Everything but names, extensions and the signature. */
static X509 *certificate_new(EVP_PKEY *key, const char *name, int days)
{
	X509 *certificate = X509_new();
	X509_NAME *subject;

	if (!certificate)
		return NULL;
	subject = X509_get_subject_name(certificate);
	if (!X509_set_version(certificate, X509_VERSION_3) || !set_serial(certificate) ||
	    !X509_gmtime_adj(X509_getm_notBefore(certificate), -BACKDATED_S) ||
	    !X509_time_adj_ex(X509_getm_notAfter(certificate), days, -BACKDATED_S, NULL) ||
	    !X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)name,
					-1, -1, 0) ||
	    !X509_set_pubkey(certificate, key)) {
		X509_free(certificate);
		return NULL;
	}
	return certificate;
}

/* What it may vouch for. A domain below localhost needs no mention of its own. */
static void write_constraints(const char *domain, char *ret_text, size_t size)
{
	snprintf(ret_text, size,
		 "critical,permitted;DNS:localhost%s%s,permitted;IP:127.0.0.0/255.0.0.0,"
		 "permitted;IP:::1/ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		 str_ends_with(str_of(domain), STR(".localhost")) ? "" : ",permitted;DNS:",
		 str_ends_with(str_of(domain), STR(".localhost")) ? "" : domain);
}

static int make_authority(const struct paths *paths, const char *domain,
			  struct authority *ret_authority, struct err *err)
{
	char constraints[EXTENSION_BYTES], name[64];
	EVP_PKEY *key = EVP_EC_gen("P-256");
	unsigned char tag[4];
	X509 *c;

	/* Browsers tell authorities apart by name. */
	RAND_bytes(tag, sizeof(tag));
	snprintf(name, sizeof(name), "Sandbox development CA %02x%02x%02x%02x", tag[0], tag[1],
		 tag[2], tag[3]);
	write_constraints(domain, constraints, sizeof(constraints));
	c = key ? certificate_new(key, name, AUTHORITY_DAYS) : NULL;
	ret_authority->certificate = c;
	ret_authority->key = key;
	if (!c || !X509_set_issuer_name(c, X509_get_subject_name(c)) ||
	    !add_extension(c, c, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
	    !add_extension(c, c, NID_key_usage, "critical,keyCertSign,cRLSign") ||
	    !add_extension(c, c, NID_subject_key_identifier, "hash") ||
	    !add_extension(c, c, NID_name_constraints, constraints) ||
	    !X509_sign(c, key, EVP_sha256()))
		return fail(err, "make the certificate authority");
	if (write_key(paths->authority_key, key, err) < 0)
		return -EPERM;
	return write_certificate(paths->authority, c, NULL, err);
}

static int make_certificate(const struct paths *paths, const char *domain,
			    const struct authority *authority, struct err *err)
{
	char names[EXTENSION_BYTES];
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *issuer = authority->certificate, *c = NULL;
	int status;

	snprintf(names, sizeof(names),
		 "DNS:*.%s,DNS:%s,DNS:localhost,IP:127.0.0.1,IP:0:0:0:0:0:0:0:1", domain, domain);
	if (key)
		c = certificate_new(key, "sandboxes", CERTIFICATE_DAYS);
	if (!c || !X509_set_issuer_name(c, X509_get_subject_name(issuer)) ||
	    !add_extension(c, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
	    !add_extension(c, issuer, NID_key_usage, "critical,digitalSignature") ||
	    !add_extension(c, issuer, NID_ext_key_usage, "serverAuth") ||
	    !add_extension(c, issuer, NID_subject_key_identifier, "hash") ||
	    !add_extension(c, issuer, NID_authority_key_identifier, "keyid") ||
	    !add_extension(c, issuer, NID_subject_alt_name, names) ||
	    !X509_sign(c, authority->key, EVP_sha256())) {
		status = fail(err, "make the certificate");
	} else {
		/* The key first: a certificate that waits for its key is an error, a key is
		 * none. */
		status = write_key(paths->key, key, err);
		if (status == 0)
			status = write_certificate(paths->certificate, c, issuer, err);
	}
	X509_free(c);
	EVP_PKEY_free(key);
	return status;
}

/* ---- what is there already ---- */

static bool lasts(const struct tls_certificate *c)
{
	return c->expires_s > (int64_t)time(NULL) + RENEW_DAYS * DAY_S;
}

/* Whether it may vouch for the domain; one without constraints may. */
static bool permits(X509 *authority, const char *domain)
{
	NAME_CONSTRAINTS *constraints = X509_get_ext_d2i(authority, NID_name_constraints, NULL,
							 NULL);
	bool permitted = !constraints;

	for (int i = 0; constraints && i < sk_GENERAL_SUBTREE_num(constraints->permittedSubtrees);
	     i++) {
		int type;
		const GENERAL_SUBTREE *tree = sk_GENERAL_SUBTREE_value(
			constraints->permittedSubtrees, i);
		const ASN1_STRING *name = GENERAL_NAME_get0_value(tree->base, &type);
		struct str suffix;

		if (type != GEN_DNS)
			continue;
		suffix = (struct str){(const char *)ASN1_STRING_get0_data(name),
				      (size_t)ASN1_STRING_length(name)};
		if (str_ends_with(str_of(domain), suffix) &&
		    (strlen(domain) == suffix.len ||
		     domain[strlen(domain) - suffix.len - 1] == '.'))
			permitted = true;
	}
	NAME_CONSTRAINTS_free(constraints);
	return permitted;
}

/* The authority that is there and can go on; false when there is none. */
static bool load_authority(const struct paths *paths, const char *domain,
			   struct authority *ret_authority)
{
	struct tls_certificate *c;
	struct err ignored;
	bool good;

	if (tls_certificate_load(paths->authority, paths->authority_key, &c, &ignored) < 0)
		return false;
	good = lasts(c) && permits(c->leaf, domain) && X509_up_ref(c->leaf) &&
	       EVP_PKEY_up_ref(c->key);
	if (good)
		*ret_authority = (struct authority){c->leaf, c->key};
	tls_certificate_release(c);
	return good;
}

static bool certificate_is_good(const struct paths *paths, const char *domain,
				const struct authority *authority)
{
	char host[300];
	struct tls_certificate *c;
	struct err ignored;
	bool good;

	if (tls_certificate_load(paths->certificate, paths->key, &c, &ignored) < 0)
		return false;
	snprintf(host, sizeof(host), "a.%s", domain);
	good = lasts(c) && tls_certificate_covers(c, str_of(host)) &&
	       X509_verify(c->leaf, authority->key) == 1;
	ERR_clear_error();
	tls_certificate_release(c);
	return good;
}

/* ---- the whole ---- */

static bool is_domain(struct str domain)
{
	struct str label;

	if (domain.len == 0 || domain.len > 200)
		return false;
	while (str_split(&domain, '.', &label)) {
		if (label.len == 0 || label.len > 63 || label.p[0] == '-')
			return false;
		for (size_t i = 0; i < label.len; i++)
			if (!((label.p[i] >= 'a' && label.p[i] <= 'z') || label.p[i] == '-' ||
			      (label.p[i] >= '0' && label.p[i] <= '9')))
				return false;
	}
	return true;
}

int tls_development_make(const char *directory, const char *domain, bool *ret_made, struct err *err)
{
	struct authority authority = {NULL, NULL};
	struct paths paths;
	int status = 0;

	*ret_made = false;
	if (!is_domain(str_of(domain)))
		return err_set(err, ERR_INVALID_ARGUMENT, "\"%s\" is not a domain (in lower case)",
			       domain);
	if (mkdir(directory, 0755) < 0 && errno != EEXIST)
		return err_set_sys(err, ERR_PERMISSION_DENIED, errno, "make %s", directory);
	if (make_paths(directory, &paths, err) < 0)
		return -EINVAL;
	if (!load_authority(&paths, domain, &authority)) {
		*ret_made = true;
		status = make_authority(&paths, domain, &authority, err);
	}
	if (status == 0 && !certificate_is_good(&paths, domain, &authority)) {
		*ret_made = true;
		status = make_certificate(&paths, domain, &authority, err);
	}
	X509_free(authority.certificate);
	EVP_PKEY_free(authority.key);
	return status;
}
