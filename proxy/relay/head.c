#include "proxy/relay/head.h"

#include "lib/limits.h"
#include "proxy/relay/upstream.h"
#include "proxy/route/access.h"
#include "proxy/catalog/host_mask.h"

enum field_class {
	FIELD_ORDINARY, /* passes; Connection may name it away */
	FIELD_PROTECTED, /* passes even when Connection names it */
	FIELD_HOP, /* ends here, both ways */
	FIELD_LENGTH, /* the same; each side frames by itself */
	FIELD_ENDS_UP, /* ends here on the way to the sandbox */
	FIELD_CONNECTION,
	FIELD_HOST,
	FIELD_TE,
	FIELD_EXPECT,
	FIELD_TOKEN,
	FIELD_COOKIE,
};

static bool is(struct str name, struct str known)
{
	return str_equal_nocase(name, known);
}

/* By length first: most fields are decided by one comparison of a number. */
static enum field_class classify(struct str name)
{
	switch (name.len) {
	case 2:
		return is(name, STR("TE")) ? FIELD_TE : FIELD_ORDINARY;
	case 4:
		return is(name, STR("Host")) ? FIELD_HOST : FIELD_ORDINARY;
	case 6:
		if (is(name, STR("Expect")))
			return FIELD_EXPECT;
		if (is(name, STR("Cookie")))
			return FIELD_COOKIE;
		return is(name, STR("Origin")) ? FIELD_PROTECTED : FIELD_ORDINARY;
	case 7:
		if (is(name, STR("Upgrade")))
			return FIELD_HOP;
		return is(name, STR("Trailer")) ? FIELD_ENDS_UP : FIELD_ORDINARY;
	case 9:
		return is(name, STR("Forwarded")) ? FIELD_ENDS_UP : FIELD_ORDINARY;
	case 10:
		if (is(name, STR("Connection")))
			return FIELD_CONNECTION;
		return is(name, STR("Keep-Alive")) ? FIELD_HOP : FIELD_ORDINARY;
	case 12:
		return is(name, STR("Content-Type")) ? FIELD_PROTECTED : FIELD_ORDINARY;
	case 13:
		/* Only the proxy says why it was the proxy that answered. */
		if (is(name, STR("X-Proxy-Error")))
			return FIELD_HOP;
		return is(name, STR("Authorization")) ? FIELD_PROTECTED : FIELD_ORDINARY;
	case 14:
		if (is(name, STR("Content-Length")))
			return FIELD_LENGTH;
		if (is(name, STR("X-Access-Token")))
			return FIELD_PROTECTED;
		return is(name, STR("HTTP2-Settings")) || is(name, STR("E2b-Sandbox-Id"))
			       ? FIELD_ENDS_UP
			       : FIELD_ORDINARY;
	case 15:
		return is(name, STR("X-Forwarded-For")) ? FIELD_ENDS_UP : FIELD_ORDINARY;
	case 16:
		if (is(name, STR("Proxy-Connection")))
			return FIELD_HOP;
		if (is(name, STR("Content-Encoding")))
			return FIELD_PROTECTED;
		return is(name, STR("X-Forwarded-Host")) || is(name, STR("E2b-Sandbox-Port"))
			       ? FIELD_ENDS_UP
			       : FIELD_ORDINARY;
	case 17:
		if (is(name, STR("Transfer-Encoding")))
			return FIELD_HOP;
		return is(name, STR("X-Forwarded-Proto")) || is(name, STR("Novita-Sandbox-Id"))
			       ? FIELD_ENDS_UP
			       : FIELD_ORDINARY;
	case 18:
		return is(name, STR("Proxy-Authenticate")) ? FIELD_HOP : FIELD_ORDINARY;
	case 19:
		if (is(name, STR("Proxy-Authorization")))
			return FIELD_HOP;
		return is(name, STR("Novita-Sandbox-Port")) ? FIELD_ENDS_UP : FIELD_ORDINARY;
	case 24:
		return is(name, STR("E2b-Traffic-Access-Token")) ? FIELD_TOKEN : FIELD_ORDINARY;
	default:
		return FIELD_ORDINARY;
	}
}

void head_summarise(const struct http_request *request, struct head_summary *ret_summary)
{
	memset(ret_summary, 0, sizeof(*ret_summary));
	for (size_t i = 0; i < request->headers.count; i++) {
		const struct http_header *field = &request->headers.items[i];

		switch (classify(field->name)) {
		case FIELD_TOKEN:
			ret_summary->traffic_token = field->value;
			ret_summary->traffic_tokens++;
			break;
		case FIELD_TE:
			ret_summary->te_trailers |= str_list_has_token(field->value,
								       STR("trailers"));
			break;
		case FIELD_ENDS_UP:
			host_name_take_header(&ret_summary->routing, field->name, field->value);
			break;
		case FIELD_LENGTH:
			ret_summary->has_length = true;
			break;
		case FIELD_ORDINARY:
		case FIELD_PROTECTED:
		case FIELD_HOP:
		case FIELD_CONNECTION:
		case FIELD_HOST:
		case FIELD_EXPECT:
		case FIELD_COOKIE:
			break;
		}
	}
}

static bool is_followable(struct str token)
{
	return token.len && !str_equal_nocase(token, STR("h2c")) &&
	       !str_equal_nocase(token, STR("h2")) &&
	       !(token.len >= 4 &&
		 (str_equal_nocase((struct str){token.p, 4}, STR("TLS/")) ||
		  (token.len >= 5 && str_equal_nocase((struct str){token.p, 5}, STR("HTTP/")))));
}

struct str head_upgrade(struct str tokens, struct arena *arena)
{
	struct str rest = tokens, token, kept = {0};
	bool dropped = false;

	while (str_split(&rest, ',', &token))
		dropped |= !is_followable(str_trim(token));
	if (!dropped)
		return tokens;
	rest = tokens;
	while (str_split(&rest, ',', &token)) {
		char *joined;

		token = str_trim(token);
		if (!is_followable(token))
			continue;
		joined = kept.p ? arena_printf(arena, "%.*s, %.*s", (int)kept.len, kept.p,
					       (int)token.len, token.p)
				: arena_strndup(arena, token.p, token.len);
		if (!joined)
			return (struct str){0};
		kept = str_of(joined);
	}
	return kept;
}

static bool is_connection(struct str name)
{
	return name.len == 10 && is(name, STR("Connection"));
}

/* True when a Connection field of these headers names `name`. */
static bool is_named(const struct http_headers *headers, struct str name)
{
	for (size_t i = 0; i < headers->count; i++)
		if (is_connection(headers->items[i].name) &&
		    str_list_has_token(headers->items[i].value, name))
			return true;
	return false;
}

/* Most Connection fields say "keep-alive", "close" or "upgrade" and name no field. */
static bool connection_names_fields(const struct http_headers *headers)
{
	for (size_t i = 0; i < headers->count; i++) {
		struct str rest = headers->items[i].value, token;

		if (!is_connection(headers->items[i].name))
			continue;
		while (str_split(&rest, ',', &token)) {
			token = str_trim(token);
			if (token.len && !str_equal_nocase(token, STR("keep-alive")) &&
			    !str_equal_nocase(token, STR("close")) &&
			    !str_equal_nocase(token, STR("upgrade")))
				return true;
		}
	}
	return false;
}

static bool is_masked(const struct head_request *head)
{
	return host_mask_covers(head->entry->mask_host, head->target->port);
}

static struct str host_for_sandbox(const struct head_request *head, struct arena *arena)
{
	const struct host_name *target = head->target;

	if (is_masked(head))
		return host_mask_apply(head->entry->mask_host, target->port, arena);
	/* An app sees the name of its own sandbox, whichever name the client shared with others. */
	if (target->domain.p)
		return str_of(arena_printf(arena, "%u-%s.%.*s", target->port, target->id,
					   (int)target->domain.len, target->domain.p));
	return head->request->authority;
}

static struct str address_of(const char *peer)
{
	const char *colon = strrchr(peer, ':');
	struct str address = {peer, colon ? (size_t)(colon - peer) : strlen(peer)};

	if (address.len >= 2 && address.p[0] == '[')
		address = (struct str){address.p + 1, address.len - 2};
	return address;
}

static void append(struct http_headers *headers, struct str name, struct str value)
{
	assert(headers->count < headers->capacity);
	headers->items[headers->count++] = (struct http_header){name, value};
}

static int append_cookies(struct http_headers *headers, const struct http_header *field,
			  struct arena *arena)
{
	int status;
	struct str value = access_strip_cookies(field->value, arena, &status);

	if (status == 0 && value.p)
		append(headers, field->name, value);
	return status;
}

/* The page was opened by a link that was not exchanged, as by a form. */
static bool tells_link(const struct head_request *head, const struct http_header *field)
{
	static const struct str parameter = STR(ACCESS_PARAMETER "=");

	return is(field->name, STR("Referer")) && field->value.len > parameter.len &&
	       sandbox_port_is_private(head->entry, head->target->port) &&
	       memmem(field->value.p, field->value.len, parameter.p, parameter.len);
}

/* The page that a request of a masked host comes from, masked like it (catalog/host_mask.h); the
 * field as it is for every other page. A host that sandboxes share is nobody's own. -ENOMEM when
 * the arena refuses. */
static int mask_page(const struct head_request *head, struct str host, struct http_header *field,
		     bool *ret_masked_origin, struct arena *arena)
{
	bool is_origin = is(field->name, STR("Origin"));
	size_t own;
	char *masked;

	if ((!is_origin && !is(field->name, STR("Referer"))) || head->target->shared ||
	    !is_masked(head) || http_headers_count(&head->request->headers, field->name) != 1)
		return 0;
	own = host_mask_own_origin(field->value, head->request->authority, head->secure);
	if (own == 0 || (is_origin && own != field->value.len))
		return 0;
	masked = arena_printf(arena, "http://%.*s%.*s", (int)host.len, host.p,
			      (int)(field->value.len - own), field->value.p + own);
	if (!masked)
		return -ENOMEM;
	field->value = str_of(masked);
	*ret_masked_origin |= is_origin;
	return 0;
}

int head_for_sandbox(const struct head_request *head, struct arena *arena,
		     struct http_header *items, struct http_headers *ret_headers)
{
	const struct http_headers *from = &head->request->headers;
	bool names_fields = connection_names_fields(from);
	bool masked_origin = false;
	struct str host = host_for_sandbox(head, arena);

	if (!host.p)
		return -ENOMEM;
	*ret_headers = (struct http_headers){items, 0, HEAD_FIELDS_MAX};
	append(ret_headers, STR("Host"), host);
	for (size_t i = 0; i < from->count && i < HTTP_HEADERS_MAX; i++) {
		enum field_class class = classify(from->items[i].name);
		struct http_header field = from->items[i];

		if (class == FIELD_PROTECTED ||
		    (class == FIELD_ORDINARY && !tells_link(head, &field) &&
		     !(names_fields && is_named(from, field.name)))) {
			if (mask_page(head, host, &field, &masked_origin, arena) < 0)
				return -ENOMEM;
			append(ret_headers, field.name, field.value);
		} else if (class == FIELD_COOKIE &&
			   append_cookies(ret_headers, &field, arena) < 0) {
			return -ENOMEM;
		}
	}
	if (head->summary->te_trailers)
		append(ret_headers, STR("TE"), STR("trailers"));
	if (head->expect_continue)
		append(ret_headers, STR("Expect"), STR("100-continue"));
	if (head->forwarded_fields) {
		append(ret_headers, STR("X-Forwarded-For"), address_of(head->peer));
		append(ret_headers, STR("X-Forwarded-Proto"),
		       head->secure ? STR("https") : STR("http"));
	}
	/* Servers that know this field compare Origin with it instead of with Host. */
	if ((head->forwarded_fields || is_masked(head)) && !masked_origin)
		append(ret_headers, STR("X-Forwarded-Host"), head->request->authority);
	return 0;
}

static struct str join_target(struct str path, struct str query, struct arena *arena)
{
	if (!path.len)
		path = STR("/");
	if (!query.p)
		return path;
	return str_of(
		arena_printf(arena, "%.*s?%.*s", (int)path.len, path.p, (int)query.len, query.p));
}

struct str head_target(const struct http_request *request, bool is_private, struct arena *arena)
{
	int status;
	struct str query;

	if (is_private && request->query.p) {
		query = access_strip_query(request->query, arena, &status);
		if (status < 0)
			return (struct str){0};
		if (query.p != request->query.p)
			return join_target(request->path, query, arena);
	}
	if (request->target.len && request->target.p[0] == '/')
		return request->target;
	return join_target(request->path, request->query, arena);
}

/* Answers whose pieces mean something one by one: events, lines, the messages of an RPC. */
static bool is_event_stream(struct str type)
{
	static const struct str beginnings[] = {
		STR("text/event-stream"), STR("application/connect+"), STR("application/grpc"),
		STR("application/x-ndjson")};

	for (size_t i = 0; i < ARRAY_LENGTH(beginnings); i++)
		if (type.len >= beginnings[i].len &&
		    is((struct str){type.p, beginnings[i].len}, beginnings[i]))
			return true;
	return false;
}

/* The server sets a cookie that only the proxy gives to browsers. */
static bool sets_own_cookie(const struct http_header *field)
{
	return field->name.len == 10 && is(field->name, STR("Set-Cookie")) &&
	       access_is_own_cookie(field->value);
}

void head_for_client(const struct http_response *response, struct http_exchange *ex)
{
	static const struct str buffering = STR("X-Accel-Buffering");
	const struct http_headers *from = &response->headers;
	bool names_fields = connection_names_fields(from);

	for (size_t i = 0; i < from->count; i++) {
		const struct http_header *field = &from->items[i];
		enum field_class class = classify(field->name);

		/* What the server speaks instead, to which the next request may upgrade. */
		if (response->status == 426 && is(field->name, STR("Upgrade")))
			class = FIELD_PROTECTED;
		if (class == FIELD_HOP || class == FIELD_LENGTH || class == FIELD_CONNECTION)
			continue;
		if (class == FIELD_ORDINARY && names_fields && is_named(from, field->name))
			continue;
		if (class == FIELD_ORDINARY && sets_own_cookie(field))
			continue;
		http_response_header(ex, field->name, field->value);
	}
	/* nginx, where there is one in front, would collect them. */
	if (is_event_stream(http_headers_get(from, STR("Content-Type"))) &&
	    !http_headers_get(from, buffering).p)
		http_response_header(ex, buffering, STR("no"));
}

void head_unmask_location(const struct sandbox_entry *entry, const struct host_name *target,
			  struct http_exchange *ex)
{
	struct str host;

	if (target->shared || !host_mask_covers(entry->mask_host, target->port))
		return;
	host = host_mask_apply(entry->mask_host, target->port, &ex->arena);
	for (size_t i = 0; i < ex->response_headers.count; i++) {
		struct http_header *field = &ex->response_headers.items[i];
		struct str authority = ex->request.authority;
		size_t masked = is(field->name, STR("Location")) && host.p
					? host_mask_masked_origin(field->value, host)
					: 0;
		char *location;

		if (!masked)
			continue;
		/* Without a scheme it is the one by which the client came, whoever ended its
		 * TLS. */
		location = arena_printf(&ex->arena, "//%.*s%.*s", (int)authority.len, authority.p,
					(int)(field->value.len - masked), field->value.p + masked);
		if (location)
			field->value = str_of(location);
	}
}

void head_interim(const struct http_headers *from, struct http_header *items,
		  struct http_headers *ret_headers)
{
	*ret_headers = (struct http_headers){items, 0, HTTP_HEADERS_MAX};
	for (size_t i = 0; i < from->count && ret_headers->count < HTTP_HEADERS_MAX; i++) {
		enum field_class class = classify(from->items[i].name);

		if ((class == FIELD_ORDINARY || class == FIELD_PROTECTED) &&
		    !sets_own_cookie(&from->items[i]))
			append(ret_headers, from->items[i].name, from->items[i].value);
	}
}

/* Trailers come after decisions were made from the head, so they may not speak about those (RFC
 * 9110 section 6.5.1): what the request is to do, who sent it, what the answer is, and how its body
 * is to be read. The rest of these are not FIELD_ORDINARY. */
static bool may_trail(struct str name)
{
	static const struct str refused[] = {
		/* requests */
		STR("Max-Forwards"),
		STR("Pragma"),
		STR("Range"),
		STR("If-Range"),
		STR("If-Match"),
		STR("If-None-Match"),
		STR("If-Modified-Since"),
		STR("If-Unmodified-Since"),
		/* answers */
		STR("Age"),
		STR("Date"),
		STR("Expires"),
		STR("Location"),
		STR("Retry-After"),
		STR("Vary"),
		STR("Warning"),
		STR("WWW-Authenticate"),
		STR("Set-Cookie"),
		STR("Content-Range"),
		/* both */
		STR("Cache-Control"),
	};

	if (classify(name) != FIELD_ORDINARY)
		return false;
	for (size_t i = 0; i < ARRAY_LENGTH(refused); i++)
		if (is(name, refused[i]))
			return false;
	return true;
}

void head_trailers(const struct http_headers *trailers, const struct http_headers *head,
		   struct http_header *items, struct http_headers *ret_trailers)
{
	bool names_fields = trailers->count && connection_names_fields(head);

	*ret_trailers = (struct http_headers){items, 0, HTTP_TRAILERS_MAX};
	for (size_t i = 0; i < trailers->count && ret_trailers->count < HTTP_TRAILERS_MAX; i++)
		if (may_trail(trailers->items[i].name) &&
		    !(names_fields && is_named(head, trailers->items[i].name)))
			append(ret_trailers, trailers->items[i].name, trailers->items[i].value);
}
