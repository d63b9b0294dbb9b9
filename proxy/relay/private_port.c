/*
 * Who may reach a port of a private sandbox (contract/proxy.md 1.11, S9, cases 157, 172): the
 * traffic token by header, or what route/access.h describes by query parameter or cookie.
 *
 * A header or a parameter was put there by somebody who has it. A cookie is sent by the browser
 * whatever page asked for the request, and pages of other sandboxes are "same-site" to it unless
 * the domain is on the Public Suffix List, so SameSite alone does not hold them off. Therefore a
 * request with a cookie alone must come from a page of this very host, or open a page: anything
 * else could use the visitor's access for somebody else's page (cross-site request forgery).
 */
#include <time.h>

#include "proxy/limits.h"
#include "proxy/relay/relay_private.h"
#include "proxy/route/access.h"

static struct str field(const struct relay *r, struct str name)
{
	return http_headers_get(&r->ex->request.headers, name);
}

static bool is_safe(struct str method)
{
	return str_equal(method, STR("GET")) || str_equal(method, STR("HEAD"));
}

/* The clients' side is TLS, here or in front of the proxy. */
static bool is_secure(const struct relay *r)
{
	return r->ex->security || r->context->options->behind_tls;
}

/* ---- requests of pages ---- */

/* A person opens a page: what can be sent on, and will show in the address bar. */
static bool is_navigation(const struct relay *r)
{
	struct str mode = field(r, STR("Sec-Fetch-Mode"));

	if (!is_safe(r->ex->request.method) || r->ex->request.upgrade.p)
		return false;
	return mode.p ? str_equal_nocase(mode, STR("navigate"))
		      : error_answer_wants_html(&r->ex->request.headers);
}

/* "https://3000-abc.domain" for the host that the request is for. */
static bool is_own_origin(const struct relay *r, struct str origin)
{
	static const struct str schemes[] = {STR("https://"), STR("http://")};

	for (size_t i = 0; i < (is_secure(r) ? 1 : ARRAY_LENGTH(schemes)); i++)
		if (str_starts_with(origin, schemes[i]))
			return str_equal_nocase((struct str){origin.p + schemes[i].len,
							     origin.len - schemes[i].len},
						r->ex->request.authority);
	return false;
}

/* In a frame of a page that the operator trusts with it. A page cannot give itself out as another
 * one in Referer, only leave it away. */
static bool is_embedded(const struct relay *r)
{
	const struct option_list *origins = r->context->options->embed_origins;
	struct str referer = field(r, STR("Referer"));

	if (!str_equal_nocase(field(r, STR("Sec-Fetch-Dest")), STR("iframe")))
		return false;
	for (size_t i = 0; i < origins->count; i++)
		if (access_is_of_origin(referer, str_of(origins->items[i])))
			return true;
	return false;
}

static bool comes_from_own_page(const struct relay *r)
{
	struct str origin = field(r, STR("Origin")), site = field(r, STR("Sec-Fetch-Site"));

	if (origin.p && (!is_own_origin(r, origin) ||
			 http_headers_count(&r->ex->request.headers, STR("Origin")) > 1))
		return false;
	if (!site.p || str_equal_nocase(site, STR("same-origin")) ||
	    str_equal_nocase(site, STR("none")))
		return true;
	/* Another site may link to a page, and not load it or post to it; few may frame it. */
	if (!is_navigation(r))
		return false;
	return str_equal_nocase(field(r, STR("Sec-Fetch-Dest")), STR("document")) || is_embedded(r);
}

/* ---- credentials ---- */

static struct access_scope scope_of(const struct relay *r)
{
	return (struct access_scope){
		.token = str_of(r->record->entry.traffic_token),
		.id = str_of(r->target.id),
		.port = r->target.port,
	};
}

static struct str cookie_name(const struct relay *r)
{
	return is_secure(r) ? STR(ACCESS_COOKIE_SECURE) : STR(ACCESS_COOKIE);
}

/* Pages of sibling hosts may have set cookies of the same name; one good one is enough. */
static bool has_good_cookie(const struct relay *r)
{
	const struct http_headers *headers = &r->ex->request.headers;
	const struct access_scope scope = scope_of(r);
	int64_t now = (int64_t)time(NULL);
	struct str name = cookie_name(r);
	unsigned looked_at = 0;

	for (size_t i = 0; i < headers->count; i++) {
		struct str rest = headers->items[i].value, value;

		if (!str_equal_nocase(headers->items[i].name, STR("Cookie")))
			continue;
		while (access_next_cookie(&rest, name, &value)) {
			if (looked_at++ >= PROXY_ACCESS_COOKIES_MAX)
				return false;
			if (access_verify(ACCESS_BY_COOKIE, &scope, value, now,
					  r->context->options->access_cookie_seconds))
				return true;
		}
	}
	return false;
}

static bool is_good_link(const struct relay *r, struct str value)
{
	const struct access_scope scope = scope_of(r);

	return access_verify(ACCESS_LINK, &scope, value, (int64_t)time(NULL),
			     PROXY_LINK_SECONDS_MAX);
}

static void set_cookie(struct relay *r)
{
	const struct access_scope scope = scope_of(r);
	int64_t seconds = r->context->options->access_cookie_seconds;
	char credential[ACCESS_TEXT_BYTES], cookie[ACCESS_TEXT_BYTES + 128];

	access_sign(ACCESS_BY_COOKIE, &scope, (int64_t)time(NULL) + seconds, credential);
	/* In a frame of another site only such a cookie is kept, for frames of that site alone. */
	snprintf(cookie, sizeof(cookie), "%s=%s; Path=/; Max-Age=%lld; HttpOnly; SameSite=%s",
		 cookie_name(r).p, credential, (long long)seconds,
		 !is_secure(r)	  ? "Lax"
		 : is_embedded(r) ? "None; Secure; Partitioned"
				  : "Lax; Secure");
	http_response_header_copy(r->ex, STR("Set-Cookie"), str_of(cookie));
	wipe(credential, sizeof(credential));
	wipe(cookie, sizeof(cookie));
}

/* The same URL without the parameter, which must not stay in the address bar, the history, or in
 * the Referer fields of what the page loads. (This request's Referer goes on with it:
 * is_embedded.) */
static void send_on(struct relay *r, bool with_cookie)
{
	struct http_exchange *ex = r->ex;
	int status;
	struct str query = access_strip_query(ex->request.query, &ex->arena, &status);
	struct str location = access_clean_location(ex->request.path, query, &ex->arena);

	if (status < 0 || !location.p) {
		relay_fail(r, ERROR_OVERLOADED);
		return;
	}
	relay_answered(r);
	if (with_cookie)
		set_cookie(r);
	http_response_header(ex, STR("Location"), location);
	http_response_header(ex, STR("Cache-Control"), STR("no-store"));
	http_respond(ex, 303, NULL, (struct str){0});
}

/* ---- the decision ---- */

static bool link_allows(struct relay *r, unsigned count, struct str value)
{
	bool good = count == 1 && is_good_link(r, value);

	/* Cookies of a host that sandboxes share would be sent to all of them. */
	if (is_navigation(r) && !r->target.shared && (good || has_good_cookie(r)))
		send_on(r, good);
	else if (good)
		return true;
	else
		relay_fail(r, ERROR_LINK_INVALID);
	return false;
}

static bool cookie_allows(struct relay *r)
{
	if (r->target.shared || !has_good_cookie(r)) {
		relay_fail(r, ERROR_TOKEN_MISSING);
		return false;
	}
	if (comes_from_own_page(r))
		return true;
	relay_fail(r, ERROR_CROSS_SITE);
	return false;
}

static bool header_allows(struct relay *r)
{
	if (r->summary.traffic_tokens == 1 &&
	    str_equal_constant_time(r->summary.traffic_token,
				    str_of(r->record->entry.traffic_token)))
		return true;
	relay_fail(r, ERROR_TOKEN_INVALID);
	return false;
}

bool relay_token_allows(struct relay *r)
{
	struct str value;
	unsigned links;

	if (!sandbox_port_is_private(&r->record->entry, r->target.port))
		return true;
	/* A preflight never carries anything that would let it in. The request that follows
	 * does. */
	if (error_answer_is_preflight(&r->ex->request)) {
		relay_answered(r);
		error_answer_preflight(r->ex);
		return false;
	}
	if (r->summary.traffic_tokens > 0)
		return header_allows(r);
	links = access_in_query(r->ex->request.query, &value);
	return links > 0 ? link_allows(r, links, value) : cookie_allows(r);
}
