/*
 * `proxy dev-certificate DIR [-domain NAME]`: certificates for one's own machine
 * (lib/tls/tls_development.h), because some clients of sandboxes accept only https
 * (contract/sdk.md 2.2). The proxy takes them by `-certificate DIR`.
 */
#ifndef PROXY_DEV_CERTIFICATE_H
#define PROXY_DEV_CERTIFICATE_H

/* A whole program: argv[0] is the word "dev-certificate". The exit code. */
int dev_certificate_main(int argc, char **argv);

#endif
