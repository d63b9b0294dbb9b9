#include "proxy/dev_certificate.h"

#include "lib/options.h"
#include "lib/tls/tls_development.h"

/* Flags may stand before and behind the directory. */
static enum options_result read_arguments(int argc, char **argv, const char **ret_directory,
					  const char **ret_domain)
{
	static const char program[] = "proxy dev-certificate";
	static const char summary[] = "proxy dev-certificate DIR [flags]\n"
				      "Makes a certificate authority for this machine, and a "
				      "certificate for *.DOMAIN by it, in DIR.\n"
				      "Run again, it keeps what is still good.\n";
	const struct option options[] = {
		{"domain", OPTION_STRING, ret_domain, "default sbx.localhost"},
		{0},
	};
	enum options_result result;
	int at, rest;

	result = options_parse(options, program, summary, argc, argv, &at);
	if (result != OPTIONS_OK)
		return result;
	*ret_directory = at < argc ? argv[at] : NULL;
	if (*ret_directory)
		result = options_parse(options, program, summary, argc - at, argv + at, &rest);
	if (result != OPTIONS_OK)
		return result;
	if (*ret_directory && at + rest == argc)
		return OPTIONS_OK;
	fprintf(stderr, "%s: one directory is needed\n", program);
	return OPTIONS_BAD;
}

int dev_certificate_main(int argc, char **argv)
{
	const char *directory = NULL, *domain = "sbx.localhost";
	struct err err;
	bool made;

	switch (read_arguments(argc, argv, &directory, &domain)) {
	case OPTIONS_OK:
		break;
	case OPTIONS_HELP:
		return 0;
	case OPTIONS_BAD:
		return 2;
	}
	if (tls_development_make(directory, domain, &made, &err) < 0) {
		fprintf(stderr, "proxy dev-certificate: %s\n", err.message);
		return 1;
	}
	printf("%s: trust %s/ca.pem, serve with -certificate %s\n", made ? "made" : "nothing to do",
	       directory, directory);
	return 0;
}
