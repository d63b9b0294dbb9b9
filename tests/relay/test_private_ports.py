#!/usr/bin/env python3
"""Browsers on private ports: links, cookies, preflights, and what pages of others cannot do with them."""
import hashlib
import hmac
import json
import time
import urllib.parse

from support import Test, answer, main, wait_for
from tunnel_support import ASK, SWITCH

BROWSER = "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/140\r\nAccept: text/html,*/*\r\n"
OPENED = BROWSER + "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nSec-Fetch-Site: none\r\n"
TOKEN = "s3cret-token"
HANDSHAKE = ASK.replace("Origin: http://page.test\r\n", "")


def sign(kind, port, expiry, sandbox="priv", token=TOKEN):
    """As proxy/route/access.h says, by somebody else's means."""
    text = f"sandbox-access-v1\n{kind}\n{sandbox}\n{port}\n{expiry}"
    return f"v1.{expiry}.{hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()}"


def soon(seconds=60):
    return int(time.time()) + seconds


class PrivatePorts(Test):
    def begin(self, *flags, script=None, more=""):
        self.server = self.serve(script) if script else self.serve()
        self.begin_flags = flags
        self.start("--sandbox", f"priv=127.0.0.1,token={TOKEN}{more}", "--sandbox", f"other=127.0.0.1,token={TOKEN}",
                   "--access-log", "-", *flags, sandboxes=(), over_tls=False)  # names of cookies depend on it
        self.name = self.host(self.server, "priv")
        return self.proxy

    def link(self, **changes):
        return "sandbox_access=" + sign("link", **{"port": self.server.port, "expiry": soon(), **changes})

    def cookie(self, **changes):
        return sign("cookie", **{"port": self.server.port, "expiry": soon(), **changes})

    def open(self, target, fields=OPENED, **options):
        return self.proxy.ask(self.name, target, fields=fields, **options)

    def refused(self, response, cause):
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (403, cause))

    def seen(self, response):
        self.assertEqual(response.status, 200, response.body)
        return response.json()

    def finish(self):
        if self.server.received:
            self.assertNotIn(TOKEN.encode(), self.server.received)
            self.assertNotIn(b"v1.", self.server.received)
        super().finish()
        self.assertNotRegex("\n".join(self.proxy.out + self.proxy.log), r"(?<!TLS)v1\.")

    def test_case_157_a_link_becomes_a_cookie_and_a_clean_url(self):
        self.begin()
        response = self.open(f"/app?a=%20b&{self.link()}&c")
        self.assertEqual((response.status, response.get("Location"), response.body), (303, "/app?a=%20b&c", b""))
        self.assertEqual(response.get("Cache-Control"), "no-store")
        self.assertIsNone(response.get("X-Proxy-Error"))
        cookie, *attributes = response.get("Set-Cookie").split("; ")
        self.assertEqual(attributes, ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Lax"])
        name, value = cookie.split("=", 1)
        self.assertEqual(name, "sandbox-access")
        self.assertAlmostEqual(int(value.split(".")[1]), soon(43200), delta=30)
        self.assertEqual(self.server.received, b"")
        got = self.seen(self.open("/app?a=%20b&c", OPENED + f"Cookie: theme=dark; {cookie}; {name} = {value};  x=\"y\"\r\n"))
        self.assertEqual(got["line"], "GET /app?a=%20b&c HTTP/1.1")
        self.assertEqual(dict(got["fields"])["Cookie"], "theme=dark;  x=\"y\"")
        # The page's own requests: fetch, EventSource, and WebSocket.
        own = f"Origin: http://{self.name}\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nCookie: {cookie}\r\n"
        self.assertNotIn("Cookie", dict(self.seen(self.open("/api", own, method="POST", body="x"))["fields"]))

    def test_case_157_websocket_with_cookie_or_link(self):
        def script(connection):
            connection.request()
            connection.send(SWITCH + b"hello")
            connection.take_all()

        self.begin(script=script)
        own = f"Origin: http://{self.name}\r\n"
        for target, fields in (("/ws", f"{own}Cookie: sandbox-access={self.cookie()}\r\n"), ("/ws", f"Cookie: sandbox-access={self.cookie()}\r\n"),
                               (f"/ws?{self.link()}", ""), (f"/ws?{self.link()}", "Origin: http://elsewhere.test\r\n")):
            with self.proxy.connect() as client:
                client.send(f"GET {target} HTTP/1.1\r\nHost: {self.name}\r\n{HANDSHAKE}{fields}\r\n")
                self.assertIn("101", client.head()[0])
                self.assertEqual(client.take(5), b"hello")
        # Browsers send no Sec-Fetch fields with a handshake, but always the origin.
        for fields in (f"Origin: http://evil.test\r\nCookie: sandbox-access={self.cookie()}\r\n",
                       f"Origin: http://{self.host(self.server, 'other')}\r\nCookie: sandbox-access={self.cookie()}\r\n",
                       f"Origin: null\r\nCookie: sandbox-access={self.cookie()}\r\n"):
            with self.proxy.connect() as client:
                client.send(f"GET /ws HTTP/1.1\r\nHost: {self.name}\r\n{HANDSHAKE}{fields}\r\n")
                self.refused(client.response(), "cross_site")

    def test_case_157_a_link_lets_programs_in_each_time(self):
        self.begin()
        for fields in ("", "Sec-Fetch-Mode: cors\r\nOrigin: http://dashboard.test\r\n", BROWSER + "Sec-Fetch-Mode: no-cors\r\n"):
            got = self.seen(self.open(f"/events?{self.link()}&x=1", fields))
            self.assertEqual(got["line"], "GET /events?x=1 HTTP/1.1")
        self.assertEqual(self.seen(self.open(f"/?{self.link()}", OPENED, method="POST", body="x"))["line"], "POST / HTTP/1.1")
        # Where sandboxes share a host, there is no cookie for one of them.
        fields = OPENED + f"E2b-Sandbox-Id: priv\r\nE2b-Sandbox-Port: {self.server.port}\r\n"
        self.assertEqual(self.seen(self.proxy.ask("localhost", f"/?{self.link()}", fields=fields))["line"], "GET / HTTP/1.1")
        self.refused(self.proxy.ask("localhost", "/", fields=fields + f"Cookie: sandbox-access={self.cookie()}\r\n"), "token_missing")
        # The header works beside it, and the parameter still does not reach the app.
        got = self.seen(self.open("/?sandbox_access=nonsense&b", f"e2b-traffic-access-token: {TOKEN}\r\n"))
        self.assertEqual(got["line"], "GET /?b HTTP/1.1")
        # Nor in a spelling that only the app would take for it.
        escaped = self.link().replace("sandbox_access", "%73andbox%5Faccess")
        got = self.seen(self.open(f"/?a&{escaped}&b", f"e2b-traffic-access-token: {TOKEN}\r\n"))
        self.assertEqual(got["line"], "GET /?a&b HTTP/1.1")
        self.assertEqual(self.seen(self.open(f"/?{escaped}", ""))["line"], "GET / HTTP/1.1")
        self.refused(self.open(f"/?{escaped}&{self.link()}", ""), "link_invalid")

    def test_case_172_links_that_are_no_good(self):
        self.begin()
        for query in (self.link(expiry=soon(-1)), self.link(expiry=soon(8 * 24 * 3600)), self.link(port=1), self.link(sandbox="other"),
                      self.link(token="other"), "sandbox_access=" + self.cookie(), "sandbox_access=", "sandbox_access", f"sandbox_access={TOKEN}",
                      self.link() + "&" + self.link(), self.link() + "0", self.link().replace("=v1", "=v2")):
            for fields in ("", OPENED):
                with self.subTest(query=query, fields=fields):
                    self.refused(self.open("/?" + query, fields), "link_invalid")
        self.assertEqual(self.server.received, b"")
        # An old link in the history of a browser that is in already: on to the page, and no longer stay.
        response = self.open(f"/x?{self.link(expiry=soon(-1))}", OPENED + f"Cookie: sandbox-access={self.cookie()}\r\n")
        self.assertEqual((response.status, response.get("Location"), response.get("Set-Cookie")), (303, "/x", None))

    def test_case_172_cookies_that_are_no_good(self):
        self.begin()
        elsewhere = self.serve()
        for value in (self.cookie(expiry=soon(-1)), self.cookie(expiry=soon(43300)), self.cookie(port=elsewhere.port),
                      self.cookie(sandbox="other"), self.cookie(token="x"), sign("link", self.server.port, soon()), TOKEN, ""):
            self.refused(self.open("/", OPENED + f"Cookie: sandbox-access={value}\r\n"), "token_missing")
        # On other hosts, and under the other name.
        good = OPENED + f"Cookie: sandbox-access={self.cookie()}\r\n"
        self.refused(self.proxy.ask(self.host(elsewhere, "priv"), fields=good), "token_missing")
        self.refused(self.proxy.ask(self.host(self.server, "other"), fields=good), "token_missing")
        self.refused(self.open("/", good.replace("sandbox-access", "__Host-sandbox-access")), "token_missing")
        # A wrong header is not made good by a cookie.
        self.refused(self.open("/", good + "e2b-traffic-access-token: wrong\r\n"), "token_invalid")
        # Cookies that others have set do not keep it from working, unless there are many.
        stuffed = "; ".join(["sandbox-access=v1.9.x"] * 3 + [f"sandbox-access={self.cookie()}"])
        self.seen(self.open("/", OPENED + f"Cookie: {stuffed}\r\n"))
        self.refused(self.open("/", OPENED + f"Cookie: {'sandbox-access=x; ' * 1000}{stuffed}\r\n"), "token_missing")
        # It ends with the token, not with the lifecycle.
        self.proxy.call("PATCH", "/sandboxes/priv", {"lifecycle_id": "next"})
        self.seen(self.open("/", good))
        self.proxy.call("PATCH", "/sandboxes/priv", {"traffic_access_token": "new"})
        self.refused(self.open("/", good), "token_missing")

    def test_case_172_redirects_stay_on_the_host(self):
        self.begin()
        for path, location in (("//evil.test/", "/.//evil.test/"), ("///evil.test", "/.///evil.test"), ("/\\evil.test", "/./\\evil.test"),
                               ("/%0d%0aSet-Cookie:%20a=b", "/%0d%0aSet-Cookie:%20a=b"), ("/javascript:alert(1)", "/javascript:alert(1)"),
                               ("/?next=//evil.test", "/?next=//evil.test")):
            response = self.open(f"{path}{'&' if '?' in path else '?'}{self.link()}")
            if response.status == 400:  # the parser does not take it at all
                continue
            self.assertEqual((response.status, response.get("Location")), (303, location))
            ends = urllib.parse.urljoin(f"http://{self.name}/", location.replace("\\", "/"))
            self.assertEqual(urllib.parse.urlsplit(ends).netloc, self.name)
            self.assertEqual(len(response.all("Set-Cookie")), 1)
        response = self.open(f"http://{self.name}/deep?{self.link()}")
        self.assertEqual((response.status, response.get("Location")), (303, "/deep"))

    def test_case_172_what_pages_of_others_cannot_do(self):
        self.begin()
        cookie = f"Cookie: sandbox-access={self.cookie()}\r\n"
        sibling = f"Origin: http://{self.host(self.server, 'other')}\r\n"
        for method, fields in (
                ("POST", sibling + "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n"),
                ("POST", sibling + "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"),
                ("POST", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"),
                ("GET", sibling + "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n"),
                ("GET", "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n"),
                ("GET", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n"),
                ("GET", "Origin: null\r\n"), ("GET", "Origin: \r\n"), ("POST", f"Origin: http://{self.name}.evil.test\r\n"),
                ("POST", f"Origin: {self.name}\r\n"), ("POST", f"Origin: http://{self.name}\r\nOrigin: http://evil.test\r\n")):
            with self.subTest(method=method, fields=fields):
                self.refused(self.open("/", BROWSER + fields + cookie, method=method), "cross_site")
        self.assertEqual(self.server.received, b"")
        for method, fields in (
                ("GET", "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"),
                ("HEAD", "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"),
                ("POST", f"Origin: http://{self.name.upper()}\r\nSec-Fetch-Site: same-origin\r\n"), ("GET", "")):
            self.assertEqual(self.open("/", BROWSER + fields + cookie, method=method).status, 200)

    def test_behind_tls_cookies_are_for_https(self):
        self.begin("--behind-tls", "--access-cookie-seconds", "60")
        response = self.open(f"/?{self.link()}")
        cookie, *attributes = response.get("Set-Cookie").split("; ")
        self.assertEqual(attributes, ["Path=/", "Max-Age=60", "HttpOnly", "SameSite=Lax", "Secure"])
        self.assertTrue(cookie.startswith("__Host-sandbox-access=v1."))
        own = f"Sec-Fetch-Site: same-origin\r\nOrigin: https://{self.name}\r\nCookie: {cookie}\r\n"
        self.seen(self.open("/", own))
        self.refused(self.open("/", own.replace("__Host-", "")), "token_missing")
        self.refused(self.open("/", own.replace("https://", "http://")), "cross_site")

    def test_frames_of_the_operators_own_dashboard(self):
        self.begin("--embed-origin", "https://dash.test", "--embed-origin", "http://dash.test:81", "--behind-tls")
        framed = BROWSER + "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n"
        cookie = f"Cookie: __Host-sandbox-access={self.cookie()}\r\n"
        for referer in ("https://dash.test/", "https://dash.test", "http://dash.test:81/x"):
            self.seen(self.open("/", framed + cookie + f"Referer: {referer}\r\n"))
        for referer in ("https://dash.test.evil.test/", "http://dash.test/", "https://dash.test:81/", "https://evil.test/https://dash.test/", ""):
            self.refused(self.open("/", framed + cookie + f"Referer: {referer}\r\n"), "cross_site")
        self.refused(self.open("/", framed + cookie), "cross_site")
        mine = "Referer: https://dash.test/\r\n"
        for fields in (framed.replace("iframe", "image"), framed.replace("navigate", "cors"), framed + "Origin: https://dash.test\r\n"):
            self.refused(self.open("/", fields + cookie + mine), "cross_site")
        self.refused(self.open("/", framed + cookie + mine, method="POST"), "cross_site")
        response = self.open(f"/?{self.link()}", framed + mine)
        self.assertEqual(response.get("Set-Cookie").split("; ")[1:],
                         ["Path=/", "Max-Age=43200", "HttpOnly", "SameSite=None", "Secure", "Partitioned"])
        response = self.open(f"/?{self.link()}", framed + "Referer: https://evil.test/\r\n")
        self.assertIn("SameSite=Lax", response.get("Set-Cookie"))

    def test_s007_preflights_need_no_token_and_reach_nobody(self):
        self.begin(more=",limit=0")
        asks = "Origin: http://page.test\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: e2b-traffic-access-token\r\n"
        for fields in (asks, asks + "Cookie: sandbox-access=x\r\n", asks + "e2b-traffic-access-token: wrong\r\n"):
            response = self.open("/", fields, method="OPTIONS")
            self.assertEqual((response.status, response.body), (204, b""))
            self.assertEqual((response.get("Access-Control-Allow-Origin"), response.get("Access-Control-Allow-Methods"),
                              response.get("Access-Control-Allow-Headers"), response.get("Vary"), response.get("X-Proxy-Error")),
                             ("http://page.test", "PUT", "e2b-traffic-access-token", "Origin", None))
        self.assertEqual(self.proxy.metric("proxy_errors_total", **{"class": "token_missing"}), 0)
        self.refused(self.open("/", "", method="OPTIONS"), "token_missing")
        self.refused(self.open("/", "Origin: http://page.test\r\n", method="OPTIONS"), "token_missing")
        # The refusal itself can be read by the page.
        response = self.open("/", "Origin: http://page.test\r\nSec-Fetch-Mode: cors\r\n")
        self.assertEqual((response.status, response.get("Access-Control-Allow-Origin")), (403, "http://page.test"))
        self.assertEqual(self.server.received, b"")

    def test_s007_public_ports_answer_preflights_themselves(self):
        self.begin()
        self.proxy.call("PATCH", "/sandboxes/priv", {"traffic_access_token": None})
        fields = "Origin: http://page.test\r\nAccess-Control-Request-Method: PUT\r\n"
        got = self.seen(self.open("/?sandbox_access=mine", fields, method="OPTIONS"))
        self.assertEqual(got["line"], "OPTIONS /?sandbox_access=mine HTTP/1.1")

    def test_s031_links_and_a_sandbox_that_sleeps(self):
        hook = self.serve(lambda connection: connection.request() and connection.send(answer('{"state":"running"}')))
        self.begin("--wake-url", f"http://127.0.0.1:{hook.port}/", more=",state=paused,resume=any")
        preflight = "Origin: http://page.test\r\nAccess-Control-Request-Method: PUT\r\n"
        self.assertEqual(self.open("/", preflight, method="OPTIONS").status, 204)
        self.refused(self.open(f"/?{self.link(expiry=soon(-1))}"), "link_invalid")
        cookie = OPENED.replace("none", "same-site") + f"Cookie: sandbox-access={self.cookie()}\r\n"
        self.refused(self.open("/", cookie.replace("navigate", "cors")), "cross_site")
        self.assertEqual(self.open(f"/?{self.link()}").status, 303)
        self.assertEqual(hook.connections, [])
        self.seen(self.open("/", cookie))
        self.assertEqual(len(hook.connections), 1)

    def test_links_by_the_admin_api(self):
        proxy = self.begin()
        port = self.server.port
        status, made = proxy.call("POST", "/sandboxes/priv/links", {"port": port})
        self.assertEqual((status, made["port"], list(made)), (201, port, ["port", "expires_at", "parameter", "path"]))
        self.assertAlmostEqual(made["expires_at"], soon(3600), delta=30)
        self.assertEqual(made["parameter"], "sandbox_access=" + sign("link", port, made["expires_at"]))
        self.assertEqual(self.open(made["path"]).get("Location"), "/")
        status, made = proxy.call("POST", "/sandboxes/priv/links",
                                  {"port": port, "seconds": 60, "path": "/a?b=1", "base": "https://box.test:8443"})
        self.assertEqual((status, made["url"]), (201, f"https://{port}-priv.box.test:8443{made['path']}"))
        self.assertEqual(self.open(made["path"]).get("Location"), "/a?b=1")
        for body in ({}, {"port": 0}, {"port": 65536}, {"port": 49983}, {"port": "80"}, {"port": 80, "seconds": 0}, [], {"port": 80, "x": 1},
                     {"port": 80, "seconds": 8 * 24 * 3600}, {"port": 80, "path": ""}, {"port": 80, "path": "x"}, {"port": 80, "path": "/a b"},
                     {"port": 80, "path": "/a#b"}, {"port": 80, "path": "/\r\nx"}, {"port": 80, "path": 1}, {"port": 80, "base": "box.test"},
                     {"port": 80, "base": "https://"}, {"port": 80, "base": "https://a/b"}, {"port": 80, "base": "https://u@a"}):
            self.assertEqual(proxy.call("POST", "/sandboxes/priv/links", body)[0], 400, body)
        self.assertEqual(proxy.call("POST", "/sandboxes/nobody/links", {"port": 80})[0], 404)
        self.assertEqual(proxy.call("GET", "/sandboxes/priv/links")[0], 405)
        proxy.call("PATCH", "/sandboxes/other", {"traffic_access_token": None})
        self.assertEqual(proxy.call("POST", "/sandboxes/other/links", {"port": 80})[0], 409)
        wait_for(lambda: len(proxy.out) >= 2, "the access log")
        entries = [json.loads(line) for line in proxy.out]
        self.assertEqual([entry.get("error") for entry in entries], [None, None])


if __name__ == "__main__":
    main()
