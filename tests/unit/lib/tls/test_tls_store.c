/* Certificates from files, and which one a name gets. */
#include "tests/support/cmocka.h"

#include <ftw.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/log.h"
#include "lib/tls/tls_development.h"
#include "lib/tls/tls_store.h"

static char directory[] = "/tmp/test-tls-store-XXXXXX";

static int remove_one(const char *path, const struct stat *facts, int type, struct FTW *at)
{
	(void)facts;
	(void)type;
	(void)at;
	return remove(path);
}

static int set_up(void **state)
{
	(void)state;
	log_init(LOG_ERROR, LOG_TEXT, -1);
	memcpy(directory + sizeof(directory) - 7, "XXXXXX", 6);
	return mkdtemp(directory) ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	return nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static char *path_of(const char *name)
{
	char *path;

	assert_true(asprintf(&path, "%s/%s", directory, name) > 0);
	return path;
}

static FILE *create(const char *name, const char *mode)
{
	auto_free char *path = path_of(name);
	FILE *file = fopen(path, mode);

	assert_non_null(file);
	return file;
}

static void write_text(const char *name, const char *text)
{
	FILE *file = create(name, "w");

	fputs(text, file);
	fclose(file);
}

/* A self-signed certificate with these alternative names ("DNS:a,DNS:b"; NULL: none) and this
 * common name, appended to a file, and its key to another. */
static void make_pair(const char *certificate_name, const char *key_name, const char *names,
		      const char *common_name, bool rsa)
{
	EVP_PKEY *key = rsa ? EVP_RSA_gen(2048) : EVP_EC_gen("P-256");
	X509 *c = X509_new();
	X509_NAME *subject = X509_get_subject_name(c);
	FILE *file;

	assert_non_null(key);
	X509_set_version(c, X509_VERSION_3);
	ASN1_INTEGER_set(X509_get_serialNumber(c), 1);
	X509_gmtime_adj(X509_getm_notBefore(c), -60);
	X509_gmtime_adj(X509_getm_notAfter(c), 3600);
	X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)common_name,
				   -1, -1, 0);
	X509_set_issuer_name(c, subject);
	X509_set_pubkey(c, key);
	if (names) {
		X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name,
								names);

		assert_non_null(extension);
		X509_add_ext(c, extension, -1);
		X509_EXTENSION_free(extension);
	}
	assert_true(X509_sign(c, key, EVP_sha256()) > 0);
	file = create(certificate_name, "a");
	assert_true(PEM_write_X509(file, c));
	fclose(file);
	file = create(key_name, "a");
	assert_true(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL));
	fclose(file);
	X509_free(c);
	EVP_PKEY_free(key);
}

static int load(const char *const *sources, size_t count, struct tls_store *previous,
		struct tls_store **ret_store, struct tls_load_result *ret_result, struct err *err)
{
	const char *full[8] = {NULL};
	char *texts[8];
	int status;

	for (size_t i = 0; i < count; i++) {
		const char *comma = strchr(sources[i], ',');

		if (comma)
			assert_true(asprintf(&texts[i], "%s/%.*s,%s/%s", directory,
					     (int)(comma - sources[i]), sources[i], directory,
					     comma + 1) > 0);
		else
			texts[i] = path_of(sources[i]);
		full[i] = texts[i];
	}
	status = tls_store_load(full, count, previous, ret_store, ret_result, err);
	for (size_t i = 0; i < count; i++)
		free(texts[i]);
	return status;
}

static struct tls_store *load_good(const char *const *sources, size_t count)
{
	struct tls_load_result result;
	struct tls_store *store;
	struct err err;

	if (load(sources, count, NULL, &store, &result, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(result.failed, 0);
	return store;
}

/* The file name of the certificate that a name gets. */
static const char *chosen(const struct tls_store *store, const char *name, enum tls_key_kind kind)
{
	struct tls_choice choice;

	tls_store_choose(store, name, &choice);
	return choice.of[kind] ? strrchr(choice.of[kind]->source, '/') + 1 : "none";
}

static void s088_names_get_their_certificate(void **state)
{
	static const char *const sources[] = {"default.pem,k0", "wild.pem,k1", "exact.pem,k2",
					      "second.pem,k3", "rsa.pem,k4"};
	static const struct {
		const char *name, *ecdsa, *rsa;
		bool known;
	} table[] = {
		{NULL, "default.pem", "none", false},
		{"", "default.pem", "none", false},
		{"unknown.test", "default.pem", "none", false},
		{"d.test", "default.pem", "none", true},
		{"a.wild.test", "wild.pem", "rsa.pem", true},
		{"A.Wild.TEST", "wild.pem", "rsa.pem", true},
		{"a.wild.test.", "wild.pem", "rsa.pem", true},
		{"wild.test", "default.pem", "none", false},
		{"b.a.wild.test", "default.pem", "none", false},
		{"*.wild.test", "default.pem", "none", false},
		{"exact.wild.test", "exact.pem", "none", true},
		{"10.0.0.1", "exact.pem", "none", true},
		{"10.0.0.2", "default.pem", "none", false},
		{"twice.test", "exact.pem", "none", true},
		{"common.test", "second.pem", "none", true},
		{".", "default.pem", "none", false},
	};
	struct tls_store *store;

	(void)state;
	make_pair("default.pem", "k0", "DNS:d.test", "x", false);
	make_pair("wild.pem", "k1", "DNS:*.wild.test", "common-name-does-not-count.test", false);
	make_pair("exact.pem", "k2", "DNS:exact.wild.test,IP:10.0.0.1,DNS:twice.test", "x", false);
	make_pair("second.pem", "k3", NULL, "common.test", false);
	make_pair("rsa.pem", "k4", "DNS:*.wild.test", "x", true);
	store = load_good(sources, ARRAY_LENGTH(sources));
	assert_int_equal(tls_store_count(store), ARRAY_LENGTH(sources));
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		struct tls_choice choice;

		assert_string_equal(chosen(store, table[i].name, TLS_KEY_ECDSA), table[i].ecdsa);
		assert_string_equal(chosen(store, table[i].name, TLS_KEY_RSA), table[i].rsa);
		assert_int_equal(tls_store_choose(store, table[i].name, &choice), table[i].known);
	}
	assert_string_equal(chosen(store, "common-name-does-not-count.test", TLS_KEY_ECDSA),
			    "default.pem");
	tls_store_release(store);
}

static void a_directory_has_an_order_and_only_pairs_count(void **state)
{
	static const char *const source = ".";
	struct tls_store *store;

	(void)state;
	make_pair("b.crt", "b.key", "DNS:b.test", "x", false);
	make_pair("a.pem", "a.pem", "DNS:a.test", "x", false);
	make_pair("default.crt", "default.key", "DNS:z.test", "x", true);
	make_pair("c.pem", "c.key", "DNS:c.test", "x", false);
	make_pair("ca.crt", "elsewhere", "DNS:ca.test", "x", false);
	make_pair(".hidden.crt", ".hidden.key", "DNS:hidden.test", "x", false);
	write_text("notes.txt", "not a certificate");
	write_text("public.pem", "not one either");
	store = load_good(&source, 1);
	assert_int_equal(tls_store_count(store), 4);
	assert_string_equal(chosen(store, NULL, TLS_KEY_RSA), "default.crt");
	assert_string_equal(chosen(store, "a.test", TLS_KEY_ECDSA), "a.pem");
	assert_string_equal(chosen(store, "b.test", TLS_KEY_ECDSA), "b.crt");
	assert_string_equal(chosen(store, "c.test", TLS_KEY_ECDSA), "c.pem");
	tls_store_release(store);
}

static void what_cannot_be_used_is_named(void **state)
{
	static const struct {
		const char *source, *says;
	} table[] = {
		{"missing.pem,k", "read "},
		{"good.pem,missing", "read "},
		{"good.pem,other", "does not belong to the certificate"},
		{"garbage,k", "holds no certificate"},
		{"good.pem,garbage", "holds no usable private key"},
		{"good.pem,locked", "holds no usable private key"},
		{"cut.pem,k", "a broken certificate"},
		{"good.pem,directory", "is not a file"},
		{"directory", "holds no NAME.crt"},
		{"nowhere", "read "},
		{"good.pem", "holds no usable private key"},
	};
	EVP_PKEY *key = EVP_EC_gen("P-256");
	auto_free char *path = path_of("directory");
	struct tls_load_result result;
	struct tls_store *store;
	struct err err;
	FILE *file;

	(void)state;
	make_pair("good.pem", "k", "DNS:a.test", "x", false);
	make_pair("unused", "other", "DNS:a.test", "x", false);
	make_pair("cut.pem", "unused", "DNS:a.test", "x", false);
	file = create("cut.pem", "a");
	fputs("-----BEGIN CERTIFICATE-----\nMIIB", file);
	fclose(file);
	write_text("garbage", "garbage");
	assert_int_equal(mkdir(path, 0700), 0);
	file = create("locked", "w");
	assert_true(
		PEM_write_PKCS8PrivateKey(file, key, EVP_aes_128_cbc(), "secret", 6, NULL, NULL));
	fclose(file);
	EVP_PKEY_free(key);
	for (size_t i = 0; i < ARRAY_LENGTH(table); i++) {
		assert_true(load(&table[i].source, 1, NULL, &store, &result, &err) < 0);
		if (!strstr(err.message, table[i].says))
			fail_msg("%s: \"%s\" does not say \"%s\"", table[i].source, err.message,
				 table[i].says);
	}
}

static void s090_a_reload_keeps_what_it_cannot_replace(void **state)
{
	static const char *const sources[] = {"one.pem,one-key", "two"};
	auto_free char *two = path_of("two"), *moved = path_of("moved"), *one = path_of("one.pem");
	struct tls_store *first, *second, *third;
	struct tls_load_result result;
	struct tls_choice choice;
	struct err err;

	(void)state;
	assert_int_equal(mkdir(two, 0700), 0);
	make_pair("one.pem", "one-key", "DNS:one.test", "x", false);
	make_pair("two/x.crt", "two/x.key", "DNS:two.test", "x", false);
	make_pair("two/y.crt", "two/y.key", "DNS:three.test", "x", false);
	first = load_good(sources, 2);

	/* One goes bad, another is renewed for another name. */
	write_text("one-key", "-----BEGIN");
	write_text("two/x.crt", "");
	write_text("two/x.key", "");
	make_pair("two/x.crt", "two/x.key", "DNS:renewed.test", "x", false);
	assert_int_equal(load(sources, 2, first, &second, &result, &err), 0);
	assert_int_equal(result.failed, 1);
	assert_int_equal(result.certificates, 3);
	assert_non_null(strstr(result.message, "one-key"));
	assert_true(tls_store_choose(second, "one.test", &choice));
	assert_true(tls_store_choose(second, "renewed.test", &choice));
	assert_false(tls_store_choose(second, "two.test", &choice));
	tls_store_release(first);
	assert_string_equal(chosen(second, "one.test", TLS_KEY_ECDSA), "one.pem");

	/* Everything is gone. */
	assert_int_equal(rename(two, moved), 0);
	assert_int_equal(unlink(one), 0);
	assert_int_equal(load(sources, 2, second, &third, &result, &err), 0);
	assert_int_equal(result.failed, 2);
	assert_int_equal(result.certificates, 3);
	tls_store_release(second);
	assert_true(tls_store_choose(third, "three.test", &choice));
	tls_store_release(third);
}

static void the_first_to_expire_is_known(void **state)
{
	static const char *const source = "a.pem,a.key";
	struct tls_store *store;
	int64_t now = (int64_t)time(NULL);

	(void)state;
	make_pair("a.pem", "a.key", "DNS:a.test", "x", false);
	store = load_good(&source, 1);
	assert_in_range(tls_store_expires_s(store), (uint64_t)(now + 3500), (uint64_t)(now + 3700));
	tls_store_release(store);
}

/* ---- proxy dev-certificate ---- */

static bool same_file(const char *a, const char *b)
{
	char x[4096], y[4096];
	auto_free char *path_a = path_of(a), *path_b = path_of(b);
	FILE *file_a = fopen(path_a, "r"), *file_b = fopen(path_b, "r");
	size_t len_a, len_b;

	assert_true(file_a && file_b);
	len_a = fread(x, 1, sizeof(x), file_a);
	len_b = fread(y, 1, sizeof(y), file_b);
	fclose(file_a);
	fclose(file_b);
	return len_a == len_b && memcmp(x, y, len_a) == 0;
}

static void keep_copy(const char *name, const char *copy)
{
	auto_free char *from = path_of(name), *to = path_of(copy);

	unlink(to);
	assert_int_equal(link(from, to), 0);
}

static void make_development(const char *domain, bool expect_made)
{
	struct err err;
	bool made;

	if (tls_development_make(directory, domain, &made, &err) < 0)
		fail_msg("%s", err.message);
	assert_int_equal(made, expect_made);
}

static void development_certificates_stay_while_they_are_good(void **state)
{
	static const char *const source = ".";
	auto_free char *key = path_of("tls.key"), *authority_key = path_of("ca-key.pem");
	struct tls_choice choice;
	struct tls_store *store;
	struct stat facts;

	(void)state;
	make_development("sbx.localhost", true);
	assert_int_equal(stat(key, &facts), 0);
	assert_int_equal(facts.st_mode & 0777, 0600);
	assert_int_equal(stat(authority_key, &facts), 0);
	assert_int_equal(facts.st_mode & 0777, 0600);
	keep_copy("ca.pem", "old-ca");
	keep_copy("tls.crt", "old-tls");

	make_development("sbx.localhost", false);
	assert_true(same_file("ca.pem", "old-ca"));
	assert_true(same_file("tls.crt", "old-tls"));

	/* Another domain below localhost: the same authority. */
	make_development("other.localhost", true);
	assert_true(same_file("ca.pem", "old-ca"));
	assert_false(same_file("tls.crt", "old-tls"));

	/* One that this authority may not vouch for. */
	make_development("sandboxes.test", true);
	assert_false(same_file("ca.pem", "old-ca"));
	make_development("sandboxes.test", false);

	/* A lost key, a certificate of somebody else's. */
	assert_int_equal(unlink(key), 0);
	make_development("sandboxes.test", true);
	write_text("tls.crt", "");
	write_text("tls.key", "");
	make_pair("tls.crt", "tls.key", "DNS:*.sandboxes.test", "x", false);
	make_development("sandboxes.test", true);

	store = load_good(&source, 1);
	assert_int_equal(tls_store_count(store), 1);
	assert_true(tls_store_choose(store, "3000-abc.sandboxes.test", &choice));
	assert_true(tls_store_choose(store, "sandboxes.test", &choice));
	assert_true(tls_store_choose(store, "localhost", &choice));
	assert_true(tls_certificate_covers(choice.of[TLS_KEY_ECDSA], STR("127.0.0.1")));
	assert_true(tls_certificate_covers(choice.of[TLS_KEY_ECDSA], STR("[::1]")));
	assert_true(tls_certificate_covers(choice.of[TLS_KEY_ECDSA], STR("[0:0::1]")));
	tls_store_release(store);
}

static void development_domains_are_checked(void **state)
{
	static const char *const domains[] = {
		"", ".", "a..b", "a.", "-a.b", "A.b", "a b", "a,DNS:evil.test", "*.a", "a/b"};
	struct err err;
	bool made;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(domains); i++)
		assert_true(tls_development_make(directory, domains[i], &made, &err) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(s088_names_get_their_certificate, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(a_directory_has_an_order_and_only_pairs_count,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_cannot_be_used_is_named, set_up, tear_down),
		cmocka_unit_test_setup_teardown(s090_a_reload_keeps_what_it_cannot_replace, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(the_first_to_expire_is_known, set_up, tear_down),
		cmocka_unit_test_setup_teardown(development_certificates_stay_while_they_are_good,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(development_domains_are_checked, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
