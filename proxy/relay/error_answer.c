#include "proxy/relay/error_answer.h"

#include "lib/json_writer.h"

/* More of a path than this tells nobody anything. */
#define PATH_SHOWN_BYTES 512
#define BODY_BYTES_MAX (16 * 1024)
#define ERROR_MESSAGE_BYTES 256

struct cause {
	int status;
	const char *class;
	const char *message; /* may hold one %d: the connection limit */
	const char *title;
	unsigned retry_after_s; /* 0: trying again does not help */
	bool shows_port, shows_path, shows_limit;
	const char *page; /* what people read instead of `message`; NULL: that */
	const char *hint; /* what they can do; NULL: nothing */
	const char *of_host; /* instead of `message` where no sandbox is meant; NULL: that */
};

#define OPENING_WAKES "Opening this page wakes it. Reload it in a few seconds."

static const struct cause causes[ERROR_CAUSES] = {
	[ERROR_BAD_REQUEST] = {400, "bad_request", "Bad request", "Bad Request"},
	[ERROR_INVALID_HOST] = {400, "invalid_host", "Invalid host", "Invalid Host"},
	[ERROR_INVALID_PORT] = {400, "invalid_port", "Invalid sandbox port", "Invalid Port"},
	[ERROR_INVALID_ID] = {400, "invalid_id", "Invalid sandbox ID", "Invalid Sandbox ID"},
	[ERROR_HEADER_MISSING] = {400, "header_missing", "missing header", "Missing Header"},
	[ERROR_HEADER_REPEATED] = {400, "header_repeated",
				   "routing headers must be given once, by one pair of names",
				   "Repeated Header"},
	[ERROR_MISDIRECTED] = {421, "misdirected",
			       "The certificate of this connection is not one for this host",
			       "Misdirected Request"},
	[ERROR_METHOD] = {405, "method_not_allowed", "This method is not relayed to sandboxes",
			  "Method Not Allowed"},
	[ERROR_EXPECTATION] = {417, "expectation_failed",
			       "The only expectation that can be met is 100-continue",
			       "Expectation Failed"},
	[ERROR_INTERNAL_PATH] = {404, "internal_path",
				 "This endpoint is reserved for the control plane",
				 "Endpoint Not Available", .shows_path = true},
	[ERROR_NOT_FOUND] = {502, "sandbox_not_found", "The sandbox was not found",
			     "Sandbox Not Found",
			     .hint = "It may have ended, or its name is another one."},
	/* Clients must see the same as for a sandbox that is gone: "is it running?" means no. */
	[ERROR_PAUSED] =
		{502, "sandbox_paused", "The sandbox was not found", "Sandbox Is Asleep",
		 .page = "This sandbox is paused. What it holds is kept, but nothing runs in it "
			 "now.",
		 .hint = "Opening this page does not wake it. Its owner does, by connecting to it: "
			 "with Sandbox.connect and its id in the SDK, or from the command line or "
			 "the "
			 "dashboard. Then reload this page."},
	[ERROR_TRANSITIONAL] = {409, "sandbox_transitioning",
				"The sandbox is still transitioning, try again shortly",
				"Sandbox Still Transitioning", 1,
				.page = "This sandbox is just being paused, or woken.",
				.hint = "Reload this page in a moment."},
	/* Both are compared by suites of clients, word by word. */
	[ERROR_TOKEN_MISSING] =
		{403, "token_missing",
		 "Sandbox is secured with traffic access token. Token header "
		 "'e2b-traffic-access-token' is missing",
		 "Missing Traffic Access Token", .page = "This sandbox is private.",
		 .hint = "A browser gets in by an access link, which its owner can make."},
	[ERROR_TOKEN_INVALID] =
		{403, "token_invalid",
		 "Sandbox is secured with traffic access token. Provided token in header "
		 "'e2b-traffic-access-token' is invalid",
		 "Invalid Traffic Access Token"},
	[ERROR_LINK_INVALID] = {403, "link_invalid", "The access link is invalid or has expired",
				"Invalid Access Link"},
	[ERROR_CROSS_SITE] = {403, "cross_site",
			      "Pages of other hosts cannot use the access that this host was given",
			      "Request From Another Site"},
	[ERROR_LIMIT] = {429, "too_many_connections",
			 "Too many connections to the sandbox (limit: %d)", "Too Many Connections",
			 1, .shows_limit = true},
	[ERROR_CLIENT_SHARE] = {429, "client_share",
				"Too much is open at once from this client's address",
				"Too Many Requests", 1},
	[ERROR_SANDBOX_SHARE] =
		{429, "sandbox_share",
		 "The sandbox has more requests open than its share of the proxy",
		 "Too Many Requests", 1,
		 .of_host = "This host has more requests open than its share of the proxy"},
	[ERROR_CATALOG] = {503, "catalog_unavailable",
			   "It is not known at the moment whether this sandbox exists",
			   "Try Again Shortly", 1},
	[ERROR_PORT_CLOSED] = {502, "port_closed", "The sandbox is running but port is not open",
			       "Closed Port Error", .shows_port = true,
			       .of_host = "Nothing listens at the server of this host"},
	[ERROR_UPSTREAM_TIMEOUT] =
		{502, "upstream_timeout",
		 "The sandbox is running but did not accept the connection in time",
		 "Sandbox Not Responding", .shows_port = true,
		 .of_host = "The server of this host did not accept the connection in time"},
	[ERROR_UPSTREAM_RESET] =
		{502, "upstream_reset",
		 "The server in the sandbox closed the connection without an answer",
		 "Connection Closed", .shows_port = true,
		 .of_host = "The server of this host closed the connection without an answer"},
	[ERROR_UPSTREAM_PROTOCOL] =
		{502, "upstream_protocol",
		 "The server in the sandbox did not answer with valid HTTP", "Not HTTP",
		 .shows_port = true,
		 .of_host = "The server of this host did not answer with valid HTTP"},
	[ERROR_UPSTREAM_UNREACHABLE] = {502, "upstream_unreachable",
					"The sandbox is running but its network is not reachable",
					"Sandbox Not Reachable", .shows_port = true,
					.of_host = "The server of this host is not reachable"},
	[ERROR_UPGRADE_REFUSED] = {403, "upgrade_refused",
				   "The server in the sandbox refused the upgrade",
				   "Upgrade Refused", .shows_port = true,
				   .of_host = "The server of this host refused the upgrade"},
	[ERROR_ADDRESS_REFUSED] =
		{502, "address_refused",
		 "The sandbox's address is not one that may be connected to", "Address Refused",
		 .shows_port = true,
		 .of_host =
			 "The address of this host's server is not one that may be connected to"},
	[ERROR_OVERLOADED] = {503, "overloaded",
			      "The proxy has no room for this request at the moment",
			      "Try Again Shortly", 1},
	[ERROR_WAKE_DENIED] =
		{403, "wake_denied",
		 "The sandbox cannot be resumed with the given credentials, check the "
		 "access token",
		 "Unable to Resume Sandbox",
		 .page = "This sandbox is paused, and this request may not wake it.",
		 .hint = "Its owner can, with the right access token. Then reload this page."},
	[ERROR_WAKE_LIMIT] = {429, "wake_limit", "Sandbox limit reached", "Sandbox Limit Reached",
			      5},
	[ERROR_WAKE_UNAVAILABLE] = {503, "wake_unavailable",
				    "The sandbox is paused and cannot be resumed at the moment",
				    "Try Again Shortly", 5, .hint = OPENING_WAKES},
	[ERROR_WAKE_TIMEOUT] = {503, "wake_timeout", "The sandbox was not resumed in time",
				"Try Again Shortly", 5, .hint = OPENING_WAKES},
	[ERROR_WAKE_QUEUE] = {503, "wake_queue_full",
			      "Too many requests wait for the sandbox to be resumed",
			      "Try Again Shortly", 5, .hint = OPENING_WAKES},
};

const char *error_cause_name(enum error_cause cause)
{
	return causes[cause].class;
}

int error_answer_status(const struct error_answer *answer)
{
	return answer->cause == ERROR_BAD_REQUEST && answer->status ? answer->status
								    : causes[answer->cause].status;
}

static bool contains_nocase(struct str text, struct str part)
{
	for (size_t i = 0; i + part.len <= text.len; i++)
		if (str_equal_nocase((struct str){text.p + i, part.len}, part))
			return true;
	return false;
}

static bool looks_like_browser(struct str user_agent)
{
	static const struct str marks[] = {STR("mozilla"), STR("chrome"), STR("safari"),
					   STR("firefox"), STR("edge"),	  STR("opera"),
					   STR("msie")};

	for (size_t i = 0; i < ARRAY_LENGTH(marks); i++)
		if (contains_nocase(user_agent, marks[i]))
			return true;
	return false;
}

/* A request made by a script rather than by a person opening a page. */
static bool is_scripted(const struct http_headers *headers)
{
	static const struct str modes[] = {STR("cors"), STR("no-cors"), STR("same-origin"),
					   STR("websocket")};
	struct str mode = http_headers_get(headers, STR("Sec-Fetch-Mode"));

	for (size_t i = 0; i < ARRAY_LENGTH(modes); i++)
		if (str_equal_nocase(mode, modes[i]))
			return true;
	if (str_equal_nocase(mode, STR("navigate")))
		return false;
	return http_headers_get(headers, STR("X-Requested-With")).len > 0;
}

bool error_answer_wants_html(const struct http_headers *headers)
{
	bool json = false, html = false;

	for (size_t i = 0; i < headers->count; i++) {
		if (!str_equal_nocase(headers->items[i].name, STR("Accept")))
			continue;
		json |= contains_nocase(headers->items[i].value, STR("application/json"));
		html |= contains_nocase(headers->items[i].value, STR("text/html"));
	}
	if (json && !html)
		return false;
	return !is_scripted(headers) &&
	       looks_like_browser(http_headers_get(headers, STR("User-Agent")));
}

static void format_message(const struct error_answer *answer, bool for_people, char *ret_text,
			   size_t size)
{
	const struct cause *cause = &causes[answer->cause];
	const char *usual = for_people && cause->page ? cause->page : cause->message;

	if (answer->host && cause->of_host)
		snprintf(ret_text, size, "%s", cause->of_host);
	else if (cause->shows_limit)
		snprintf(ret_text, size, "Too many connections to the sandbox (limit: %d)",
			 answer->connection_limit);
	else
		snprintf(ret_text, size, "%s", answer->detail ? answer->detail : usual);
}

/* Where the server of a host listens is nobody's business. */
static bool shows_port(const struct error_answer *answer)
{
	return causes[answer->cause].shows_port && !answer->host;
}

static struct str shown_path(const struct http_request *request)
{
	return (struct str){request->path.p, size_min(request->path.len, PATH_SHOWN_BYTES)};
}

/* The keys in the order the contract lists them. */
static int write_json(const struct error_answer *answer, const struct http_request *request,
		      const char *message, struct buf *body)
{
	const struct cause *cause = &causes[answer->cause];
	struct json_writer w;

	json_writer_init(&w, body);
	w.html_safe = true;
	json_writer_object(&w, NULL);
	if (answer->sandbox_id && !cause->shows_path)
		json_writer_text(&w, "sandboxId", str_of(answer->sandbox_id));
	json_writer_text(&w, "message", str_of(message));
	if (shows_port(answer))
		json_writer_uint(&w, "port", answer->port);
	if (cause->shows_path)
		json_writer_text(&w, "path", shown_path(request));
	json_writer_int(&w, "code", error_answer_status(answer));
	if (cause->shows_limit)
		json_writer_int(&w, "connectionLimit", answer->connection_limit);
	json_writer_object_end(&w);
	return json_writer_status(&w);
}

/* Bytes above ASCII are shown as "?", so that the page is valid UTF-8 whatever was sent. */
static int write_escaped(struct buf *body, struct str text)
{
	int status = 0;

	for (size_t i = 0; i < text.len && status == 0; i++) {
		char c = text.p[i];

		if (c == '<' || c == '>' || c == '&' || c == '"' || c == '\'')
			status = buf_printf(body, "&#%d;", c);
		else if ((unsigned char)c < ' ' || (unsigned char)c > 0x7e)
			status = buf_append(body, "?", 1);
		else
			status = buf_append(body, &c, 1);
	}
	return status;
}

static int write_row(struct buf *body, struct str label, struct str value)
{
	int status = buf_append_str(body, STR("<tr><th>"));

	if (status == 0)
		status = buf_append_str(body, label);
	if (status == 0)
		status = buf_append_str(body, STR("</th><td>"));
	if (status == 0)
		status = write_escaped(body, value);
	return status < 0 ? status : buf_append_str(body, STR("</td></tr>"));
}

static int write_html(const struct error_answer *answer, const struct http_request *request,
		      const char *message, struct buf *body)
{
	const struct cause *cause = &causes[answer->cause];
	const char *title = answer->host && cause->of_host ? "Server Not Available" : cause->title;
	char port[16];
	int status;

	status = buf_printf(
		body,
		"<html lang=\"en\"><head><meta charset=\"utf-8\"><title>%s</title><style>"
		"body{font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:15vh auto;"
		"padding:0 1em;color:#222}th{text-align:left;padding-right:1.5em;"
		"font-weight:normal;color:#777}h1{font-size:1.4em}</style></head><body>"
		"<h1>%s</h1><p>",
		title, title);
	if (status == 0)
		status = write_escaped(body, str_of(message));
	if (status == 0 && answer->cause == ERROR_PORT_CLOSED && !answer->host)
		status = buf_printf(body,
				    "</p><p>There is no service running on port %u. Start one that "
				    "listens on 0.0.0.0 and reload this page.",
				    answer->port);
	if (status == 0 && cause->hint)
		status = buf_printf(body, "</p><p>%s", cause->hint);
	if (status == 0)
		status = buf_append_str(body, STR("</p><table>"));
	if (status == 0 && answer->sandbox_id && !cause->shows_path)
		status = write_row(body, STR("Sandbox"), str_of(answer->sandbox_id));
	if (status == 0 && shows_port(answer)) {
		snprintf(port, sizeof(port), "%u", answer->port);
		status = write_row(body, STR("Port"), str_of(port));
	}
	if (status == 0)
		status = write_row(body, STR("Host"), request->authority);
	if (status == 0 && cause->shows_path)
		status = write_row(body, STR("Path"), shown_path(request));
	return status < 0 ? status : buf_append_str(body, STR("</table></body></html>"));
}

int error_answer_body(const struct error_answer *answer, const struct http_request *request,
		      bool html, struct buf *body)
{
	char message[ERROR_MESSAGE_BYTES];

	format_message(answer, html, message, sizeof(message));
	return html ? write_html(answer, request, message, body)
		    : write_json(answer, request, message, body);
}

bool error_answer_is_preflight(const struct http_request *request)
{
	return str_equal(request->method, STR("OPTIONS")) &&
	       http_headers_get(&request->headers, STR("Origin")).p &&
	       http_headers_get(&request->headers, STR("Access-Control-Request-Method")).len > 0;
}

/* Every page may see an answer of ours, for there is nothing in it. By its name, because "*" would
 * not do for requests that may carry cookies. */
static void allow_origin(struct http_exchange *ex)
{
	http_response_header(ex, STR("Access-Control-Allow-Origin"),
			     http_headers_get(&ex->request.headers, STR("Origin")));
	http_response_header(ex, STR("Access-Control-Allow-Credentials"), STR("true"));
	http_response_header(ex, STR("Access-Control-Expose-Headers"),
			     STR("X-Proxy-Error, Retry-After"));
	http_response_header(ex, STR("Vary"), STR("Origin"));
}

static void respond_preflight(struct http_exchange *ex)
{
	const struct http_headers *headers = &ex->request.headers;
	struct str fields = http_headers_get(headers, STR("Access-Control-Request-Headers"));

	http_response_header(ex, STR("Access-Control-Allow-Methods"),
			     http_headers_get(headers, STR("Access-Control-Request-Method")));
	if (fields.len)
		http_response_header(ex, STR("Access-Control-Allow-Headers"), fields);
	http_respond(ex, 204, NULL, (struct str){0});
}

void error_answer_preflight(struct http_exchange *ex)
{
	allow_origin(ex);
	respond_preflight(ex);
}

/* Something is wrong with the sandbox, or with the access to it, and not with the request. */
static bool is_of_sandbox(int status)
{
	return status == 403 || status == 409 || status == 429 || status >= 500;
}

void error_answer_send(struct http_exchange *ex, const struct error_answer *answer)
{
	const struct cause *cause = &causes[answer->cause];
	int status = error_answer_status(answer);
	bool html = error_answer_wants_html(&ex->request.headers);
	char retry_after[16];
	struct buf body;

	http_response_header(ex, STR("X-Proxy-Error"), str_of(cause->class));
	http_response_header(ex, STR("Cache-Control"), STR("no-store"));
	if (http_headers_get(&ex->request.headers, STR("Origin")).p) {
		allow_origin(ex);
		if (error_answer_is_preflight(&ex->request) && is_of_sandbox(status)) {
			respond_preflight(ex);
			return;
		}
	}
	if (cause->retry_after_s) {
		snprintf(retry_after, sizeof(retry_after), "%u",
			 answer->retry_after_s ? answer->retry_after_s : cause->retry_after_s);
		http_response_header_copy(ex, STR("Retry-After"), str_of(retry_after));
	}
	if (status == 405)
		http_response_header(ex, STR("Allow"),
				     STR("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
	http_response_header(ex, STR("X-Content-Type-Options"), STR("nosniff"));
	buf_init(&body, BODY_BYTES_MAX);
	if (error_answer_body(answer, &ex->request, html, &body) < 0)
		buf_clear(&body); /* the status says the most important part */
	http_respond(ex, status,
		     html ? "text/html; charset=utf-8" : "application/json; charset=utf-8",
		     buf_str(&body));
	buf_fini(&body);
}

struct str error_answer_full(void)
{
	return STR("HTTP/1.1 503 Service Unavailable\r\n"
		   "Content-Type: application/json; charset=utf-8\r\n"
		   "X-Content-Type-Options: nosniff\r\nX-Proxy-Error: overloaded\r\n"
		   "Access-Control-Allow-Origin: *\r\nRetry-After: 1\r\nConnection: close\r\n"
		   "Content-Length: 77\r\n\r\n"
		   "{\"message\":\"The proxy has no room for this request at the "
		   "moment\",\"code\":503}");
}

struct str error_answer_plain_http(void)
{
	return STR("HTTP/1.1 400 Bad Request\r\n"
		   "Content-Type: application/json; charset=utf-8\r\n"
		   "X-Content-Type-Options: nosniff\r\nX-Proxy-Error: bad_request\r\n"
		   "Connection: close\r\nContent-Length: 48\r\n\r\n"
		   "{\"code\":400,\"message\":\"this port speaks HTTPS\"}\n");
}
