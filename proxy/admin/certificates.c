#include "proxy/admin/certificates.h"

#include "lib/tls/tls_reload.h"

static const struct http_exchange_handler handler;

static void on_told(void *user, const struct tls_load_result *result, const struct err *err)
{
	struct http_exchange *ex = user;
	char body[64];

	if (!ex->closed && (err || result->failed)) {
		http_respond_error(ex, 409, "%s; what was there before stays",
				   err ? err->message : result->message);
	} else if (!ex->closed) {
		snprintf(body, sizeof(body), "{\"certificates\":%zu}\n", result->certificates);
		http_respond(ex, 200, "application/json", str_of(body));
	}
	http_exchange_release(ex);
}

void certificates_reload(struct tls_reload *reload, struct http_exchange *ex)
{
	if (!reload) {
		http_respond_error(ex, 404, "this proxy does not listen for TLS");
		return;
	}
	http_exchange_set_handler(ex, &handler, NULL);
	http_exchange_hold(ex);
	tls_reload_now(reload, on_told, ex);
}
