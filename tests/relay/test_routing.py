#!/usr/bin/env python3
"""Which sandbox a request reaches, which it never reaches, and what the answer says then."""
import json
import os
import socket
import tempfile
import threading

from http2_support import Client
from support import INSIDE_IPV6, OVER_TLS, PATIENCE, Connection, Test, answer, closed_port, main, wait_for

BROWSER = "User-Agent: Mozilla/5.0 (X11) Chrome/120\r\nAccept: text/html,*/*;q=0.8\r\n"


class Routing(Test):
    def seen(self, response):
        """What the server says it got."""
        self.assertEqual(response.status, 200, response.body)
        return response.json()

    def test_s002_case_147_host_variants(self):
        proxy, server = self.start(), self.serve()
        port = server.port
        for host in (f"{port}-abc.d", f"{port}-ABC.Sandbox.Test", f"{port}-abc.d.", f"{port}-abc.d:443",
                     f"{port}-abc.d.:443", f"{port}-abc-old-node.d", f"{port}-abc.a.b.c.d"):
            self.assertEqual(dict(self.seen(proxy.ask(host))["fields"])["Host"], host)
        # Absolute form: its authority counts, and Host is rewritten to it.
        with proxy.connect() as client:
            client.send(f"GET http://{port}-abc.d/x?y=%20 HTTP/1.1\r\nHost: {port}-abc.d\r\n\r\n")
            got = self.seen(client.response())
        self.assertEqual(got["line"], "GET /x?y=%20 HTTP/1.1")
        for host in ("abc.d", "8080.d", "-abc.d", "8080-.d", "d", "127.0.0.1", "[::1]:80", "", "8080-" + "a" * 300 + ".d",
                     f"user@{port}-abc.d", f"{port}-abc.d/x", f"{port}-abc<script>.d", f"{port}-abc.d:99999", f"{port}-abc.d:0"):
            response = proxy.ask(host)
            self.assertEqual(response.status, 400, host)
            self.assertEqual(response.json()["code"], 400)
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {port}-abc.d\r\nHost: {port}-abc.d\r\n\r\n")
            response = client.response()
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (400, "bad_request"))
        self.assertEqual(len(server.connections), 8)

    def test_s004_case_148_ports(self):
        proxy = self.start()
        for port in ("x", "0", "-1", "+80", "080", "65536", "70000", "99999999999", "8 0", "\xef\xbc\x98"):
            response = proxy.ask(f"{port}-abc.d")
            self.assertEqual(response.status, 400, port)
        self.assertEqual(proxy.ask("x-abc.d").json(), {"message": "Invalid sandbox port", "code": 400})
        # Its own ports: never dialled, whoever asks.
        for port in (proxy.port, proxy.admin_port):
            response = proxy.ask(f"{port}-abc.d", "/sandboxes")
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "address_refused"))
        self.assertEqual(proxy.metric("proxy_dials_total"), 0)
        self.assertTrue(wait_for(lambda: any("address refused" in line for line in proxy.log)))

    def test_s003_case_149_routing_headers(self):
        proxy = self.start(sandboxes=("abc", "other"))
        server, second = self.serve(), self.serve()
        pair = f"E2b-Sandbox-Id: other\r\nE2b-Sandbox-Port: {second.port}\r\n"
        # On a per-sandbox host they are ignored, and do not pass on.
        got = self.seen(proxy.ask(self.host(server), fields=pair))
        self.assertNotIn("e2b-sandbox-id", {name.lower() for name, _ in got["fields"]})
        self.assertEqual(len(second.connections), 0)
        # On shared hosts they count, whatever Connection says about them.
        for host in ("sandbox.test", "localhost", "127.0.0.1:80", "[::1]"):
            for vendor in ("E2b", "Novita", "e2B"):
                fields = (f"{vendor}-Sandbox-Id: other\r\n{vendor}-Sandbox-Port: {second.port}\r\n"
                          f"Connection: {vendor}-Sandbox-Id\r\n")
                got = self.seen(proxy.ask(host, fields=fields))
                self.assertFalse([name for name, _ in got["fields"] if "sandbox" in name.lower()])
        self.assertEqual(dict(self.seen(proxy.ask("sandbox.test:81", fields=pair))["fields"])["Host"],
                         f"{second.port}-other.test:81")
        self.assertEqual(dict(self.seen(proxy.ask("localhost:81", fields=pair))["fields"])["Host"], "localhost:81")
        before = len(second.connections)
        for fields, message in (
                ("E2b-Sandbox-Id: other\r\n", "missing header"),
                (f"E2b-Sandbox-Port: {second.port}\r\n", "missing header"),
                (pair + "E2b-Sandbox-Id: abc\r\n", "routing headers must be given once, by one pair of names"),
                (pair + "Novita-Sandbox-Id: other\r\n", "routing headers must be given once, by one pair of names"),
                ("E2b-Sandbox-Id: Other\r\nE2b-Sandbox-Port: 80\r\n", "Invalid sandbox ID"),
                ("E2b-Sandbox-Id: other\r\nE2b-Sandbox-Port: 080\r\n", "Invalid sandbox port"),
                ("", "Invalid host")):
            response = proxy.ask("sandbox.test", fields=fields)
            self.assertEqual((response.status, response.json()["message"]), (400, message))
        self.assertEqual(len(second.connections), before)

    def test_default_sandbox(self):
        server = self.serve()
        proxy = self.start("--sandbox", f"dev=127.0.0.1,envd={server.port}", "--default-sandbox", "dev")
        debug = "E2b-Sandbox-Id: debug_sandbox_id\r\nE2b-Sandbox-Port: 49983\r\n"
        for fields in ("", debug):
            self.assertEqual(self.seen(proxy.ask("localhost:49983", "/health", fields=fields))["line"],
                             "GET /health HTTP/1.1")
        # Its control endpoints stay closed, and other hosts do not fall back.
        self.assertEqual(proxy.ask("localhost:49983", "/init", "POST").status, 404)
        self.assertEqual(proxy.ask("example.com").status, 400)
        self.assertEqual(proxy.ask("49983-nosuch.test").status, 502)

    def test_s001_case_150_answers_differ_by_cause(self):
        keeper, closed = closed_port()
        proxy = self.start("--sandbox", "nap=127.0.0.1,state=paused", "--sandbox", "mid=127.0.0.1,state=resuming")
        response = proxy.ask("3000-nosuch.d")
        self.assertEqual(response.body, b'{"sandboxId":"nosuch","message":"The sandbox was not found","code":502}')
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "sandbox_not_found"))
        self.assertEqual(response.get("Content-Type"), "application/json; charset=utf-8")
        response = proxy.ask(f"{closed}-abc.d")
        self.assertEqual(response.body, b'{"sandboxId":"abc","message":"The sandbox is running but port is not open",'
                                        b'"port":%d,"code":502}' % closed)
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "port_closed"))
        response = proxy.ask("3000-nap.d")
        self.assertEqual(response.body, b'{"sandboxId":"nap","message":"The sandbox was not found","code":502}')
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "sandbox_paused"))
        response = proxy.ask("3000-mid.d")
        self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After")),
                         (409, "sandbox_transitioning", "1"))
        self.assertEqual(list(response.json()), ["sandboxId", "message", "code"])
        # A browser gets a page, its scripts and WebSockets do not.
        page = proxy.ask(f"{closed}-abc.d", fields=BROWSER + "Sec-Fetch-Mode: navigate\r\n")
        self.assertEqual(page.get("Content-Type"), "text/html; charset=utf-8")
        self.assertTrue(page.body.startswith(b"<html") and page.body.endswith(b"</html>"))
        self.assertIn(b"no service running on port %d" % closed, page.body)
        for mode in ("cors", "websocket"):
            self.assertIn("json", proxy.ask("1-nosuch.d", fields=BROWSER + f"Sec-Fetch-Mode: {mode}\r\n").get("Content-Type"))
        self.assertIn("json", proxy.ask("1-nosuch.d", fields="User-Agent: Mozilla\r\nAccept: application/json\r\n").get("Content-Type"))
        keeper.close()

    def test_case_198_people_read_that_a_sandbox_sleeps(self):
        proxy = self.start("--sandbox", "nap=127.0.0.1,state=paused", "--sandbox", "any=127.0.0.1,state=paused,resume=any",
                           "--sandbox", "off=127.0.0.1,state=pausing", "--sandbox", "mid=127.0.0.1,state=resuming",
                           "--sandbox", "end=127.0.0.1,state=stopping")
        opened = BROWSER + "Sec-Fetch-Mode: navigate\r\n"
        for name, status, cause, told, untold in (
                ("nap", 502, "sandbox_paused", ("Sandbox Is Asleep", "paused", "does not wake it", "Sandbox.connect"), "not found"),
                ("any", 502, "sandbox_paused", ("Sandbox Is Asleep", "Sandbox.connect"), "not found"),  # nobody here can be asked
                ("off", 409, "sandbox_transitioning", ("just being paused, or woken", "Reload"), "not found"),
                ("mid", 409, "sandbox_transitioning", ("just being paused, or woken", "Reload"), "not found"),
                ("end", 502, "sandbox_not_found", ("Sandbox Not Found", "may have ended"), "sleep")):
            for port in (3000, 49983):
                page, data = proxy.ask(f"{port}-{name}.d", fields=opened), proxy.ask(f"{port}-{name}.d")
                self.assertEqual((page.status, page.get("X-Proxy-Error"), page.get("Content-Type")), (status, cause, "text/html; charset=utf-8"))
                text = page.body.decode()
                for part in told:
                    self.assertIn(part, text, name)
                self.assertNotIn(untold, text, name)
                self.assertEqual((data.status, data.get("X-Proxy-Error")), (status, cause))
                message = "The sandbox was not found" if status == 502 else "The sandbox is still transitioning, try again shortly"
                self.assertEqual(data.json(), {"sandboxId": name, "message": message, "code": status})

    def test_s001_incomplete_catalog(self):
        proxy = self.start("--catalog-incomplete", sandboxes=())
        response = proxy.ask("3000-abc.d")
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (503, "catalog_unavailable"))
        self.assertNotIn(b"not found", response.body)
        self.assertEqual(response.get("Retry-After"), "1")
        self.assertEqual(proxy.call("PUT", "/catalog", {"complete": True})[0], 200)
        self.assertEqual(proxy.ask("3000-abc.d").status, 502)

    def test_s006_html_is_escaped_and_head_has_no_body(self):
        proxy = self.start()
        path = "/init;%22'<script>alert(1)<script>&\xff"
        for fields in (BROWSER, ""):
            # The raw 8-bit byte is not for the parser to pass; the rest is.
            response = proxy.ask("49983-abc.d", path[:-1], fields=fields)
            self.assertEqual(response.status, 404)
            self.assertNotIn(b"<script>", response.body)
            self.assertEqual(int(response.get("Content-Length")), len(response.body))
        response = proxy.ask("49983-abc.d", path[:-1])
        self.assertEqual(response.json()["path"], path[:-1])
        self.assertEqual(list(response.json()), ["message", "path", "code"])
        with proxy.connect() as client:
            client.send("HEAD / HTTP/1.1\r\nHost: 1-nosuch.d\r\n\r\nGET / HTTP/1.1\r\nHost: 1-nosuch.d\r\n\r\n")
            head, get = client.response(to_head=True), client.response()
            self.assertEqual((head.status, get.status), (502, 502))
            self.assertEqual(head.get("Content-Length"), get.get("Content-Length"))

    def test_s007_cors(self):
        proxy = self.start("--sandbox", "priv=127.0.0.1,token=secret")
        response = proxy.ask("3000-nosuch.d", fields="Origin: http://page.test\r\n")
        self.assertEqual((response.status, response.get("Access-Control-Allow-Origin"), response.get("Vary")),
                         (502, "http://page.test", "Origin"))
        self.assertIn("X-Proxy-Error", response.get("Access-Control-Expose-Headers"))
        self.assertIsNone(proxy.ask("3000-nosuch.d").get("Access-Control-Allow-Origin"))
        # A preflight never carries the token; the real request shows what is wrong.
        response = proxy.ask("3000-priv.d", method="OPTIONS", fields=(
            "Origin: http://page.test\r\nAccess-Control-Request-Method: POST\r\n"
            "Access-Control-Request-Headers: e2b-traffic-access-token\r\n"))
        self.assertEqual((response.status, response.get("Access-Control-Allow-Methods"),
                          response.get("Access-Control-Allow-Headers")), (204, "POST", "e2b-traffic-access-token"))
        self.assertEqual(proxy.ask("3000-priv.d", method="POST", fields="Origin: http://page.test\r\n").status, 403)

    def test_s008_case_143_internal_paths(self):
        server = self.serve()
        proxy = self.start("--sandbox", f"abd=127.0.0.1,envd={server.port}", sandboxes=())
        for path in ("/init", "//init", "/./init", "/files/../init", "/init/", "/%69nit", "/init%2f", "/init?x", "/init;a",
                     "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade"):
            for method in ("GET", "POST", "OPTIONS"):
                known = proxy.ask("49983-abd.d", path, method)
                unknown = proxy.ask("49983-xyz.d", path, method)
                self.assertEqual(known.status, 404, path)
                self.assertEqual((known.body, known.fields), (unknown.body, unknown.fields))
        for target in ("http://49983-abd.d/init", "http://49983-abd.d//%69nit?y"):
            with proxy.connect() as client:
                client.send(f"POST {target} HTTP/1.1\r\nHost: 49983-abd.d\r\nContent-Length: 0\r\n\r\n")
                self.assertEqual(client.response().status, 404)
        with proxy.connect() as client:  # not even a path
            client.send("POST \\init HTTP/1.1\r\nHost: 49983-abd.d\r\nContent-Length: 0\r\n\r\n")
            self.assertIn(client.response().status, (400, 404))
        # Nor by the port where envd really is.
        for path in ("/init", "//%69nit?x"):
            self.assertEqual(proxy.ask(self.host(server, "abd"), path, "POST").status, 404, path)
        self.assertEqual(len(server.connections), 0)
        for path in ("/initialize", "/init/nested", "/INIT", "/%2569nit"):
            self.assertEqual(proxy.ask("49983-abd.d", path).status, 200, path)
        user = self.serve()
        self.assertEqual(proxy.ask(f"{user.port}-abd.d", "/init").status, 200)

    def test_s009_case_164_traffic_token(self):
        server, envd = self.serve(), self.serve()
        proxy = self.start("--sandbox", f"priv=127.0.0.1,token=s3cret,envd={envd.port}", "--access-log", "-")
        host = self.host(server, "priv")
        name = "E2B-Traffic-Access-Token"
        for fields, status, cause in (
                ("", 403, "token_missing"), (f"{name}: wrong\r\n", 403, "token_invalid"),
                (f"{name}: s3cre\r\n", 403, "token_invalid"), (f"{name}: s3cret\r\n{name}: s3cret\r\n", 403, "token_invalid"),
                (f"{name}: \r\n", 403, "token_invalid"), (f"Cookie: {name}=s3cret\r\n", 403, "token_missing")):
            response = proxy.ask(host, "/?e2b-traffic-access-token=s3cret", fields=fields)
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (status, cause))
            found = "Token header 'e2b-traffic-access-token' is missing" if cause == "token_missing" else (
                "Provided token in header 'e2b-traffic-access-token' is invalid")
            self.assertEqual(response.json(), {
                "sandboxId": "priv", "message": f"Sandbox is secured with traffic access token. {found}", "code": 403})
            self.assertEqual(list(response.json()), ["sandboxId", "message", "code"])
        self.assertEqual(len(server.connections), 0)
        own = f"{name}: s3cret\r\nAuthorization: Bearer app\r\nX-Access-Token: app\r\nConnection: Authorization, X-Access-Token\r\n"
        got = self.seen(proxy.ask(host, fields=own))
        self.assertNotIn(b"s3cret", server.received)
        self.assertEqual(dict(got["fields"])["Authorization"], "Bearer app")
        self.assertEqual(dict(got["fields"])["X-Access-Token"], "app")
        # In a trailer it is no token.
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{name}: s3cret\r\n\r\n")
            self.assertEqual(client.response().status, 403)
        # envd checks for itself.
        self.seen(proxy.ask("49983-priv.d"))
        wait_for(lambda: len(proxy.out) >= 9, "the access log")
        self.assertNotIn("s3cret", "\n".join(proxy.out))
        self.assertTrue(all(json.loads(line)["sandbox"] == "priv" for line in proxy.out))

    def test_s068_case_163_masked_host_and_forwarded_fields(self):
        server, envd = self.serve(), self.serve()
        proxy = self.start("--sandbox", f"msk=127.0.0.1,mask=localhost:${{PORT}},envd={envd.port}")
        host = self.host(server, "msk")
        sent = ("X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: gopher\r\nX-Forwarded-Host: evil\r\n"
                "Forwarded: for=6.6.6.6\r\nX-Forwarded-Port: 81\r\nVia: 1.0 me\r\nOrigin: http://a\r\n")
        fields = dict(self.seen(proxy.ask(host, fields=sent))["fields"])
        self.assertEqual(fields["Host"], f"localhost:{server.port}")
        self.assertEqual(fields["X-Forwarded-Host"], host)
        self.assertEqual((fields["Via"], fields["Origin"], fields["X-Forwarded-Port"]), ("1.0 me", "http://a", "81"))
        self.assertFalse({"X-Forwarded-For", "X-Forwarded-Proto", "Forwarded"} & set(fields))
        self.assertNotIn(b"6.6.6.6", server.received)
        fields = dict(self.seen(proxy.ask("49983-msk.d", fields=sent))["fields"])
        self.assertEqual(fields["Host"], "49983-msk.d")
        self.assertNotIn("X-Forwarded-Host", fields)

    def test_s092_forwarded_fields_by_option(self):
        server = self.serve()
        proxy = self.start("--forwarded-headers")
        fields = self.seen(proxy.ask(self.host(server), fields="X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\n"))["fields"]
        self.assertEqual([value for name, value in fields if name == "X-Forwarded-For"], ["127.0.0.1"])
        self.assertEqual([value for name, value in fields if name == "X-Forwarded-Proto"],
                         ["https" if OVER_TLS else "http"])
        self.assertEqual(dict(fields)["X-Forwarded-Host"], self.host(server))

    def test_s005_case_185_addresses_that_are_not_dialled(self):
        proxy = self.start(sandboxes=())
        for address in ("127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "224.0.0.1", "::ffff:127.0.0.1", *INSIDE_IPV6):
            status, body = proxy.call("PUT", "/sandboxes/bad", {"address": address})
            self.assertEqual(status, 400, address)
            self.assertIn("address", body["message"])
        # A name is judged when it is resolved.
        self.assertEqual(proxy.call("PUT", "/sandboxes/bad", {"address": "localhost"})[0], 201)
        response = proxy.ask("3000-bad.d")
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "address_refused"))
        self.assertEqual(proxy.metric("proxy_dials_total"), 0)

    def test_names_and_ipv6_case_169(self):
        proxy = self.start("--sandbox", "six=::1", "--sandbox", "named=localhost", "--allow-loopback-upstreams")
        six, four = self.serve(host="::1"), self.serve()
        self.seen(proxy.ask(self.host(six, "six")))
        self.seen(proxy.ask(self.host(four, "named")))
        if any(entry[4][0] == "::1" for entry in socket.getaddrinfo("localhost", 80)):
            self.seen(proxy.ask(self.host(six, "named")))
        self.assertEqual(proxy.call("PUT", "/sandboxes/late", {"address": "no-such-name.invalid"})[0], 201)
        response = proxy.ask("80-late.d")
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "upstream_unreachable"))

    def test_case_158_redirects_pass_unchanged(self):
        targets = ("/rel", "http://x.test/abs", "//other.test", "http://169.254.169.254/latest", "https://x")
        replies = [(code, target) for code in (301, 302, 307, 308) for target in targets]
        queue = list(replies)

        def script(connection):
            connection.request()
            code, target = queue.pop(0)
            connection.send(answer("", f"{code} Moved", f"Location: {target}\r\n"))

        server = self.serve(script)
        proxy = self.start()
        for code, target in replies:
            response = proxy.ask(self.host(server))
            self.assertEqual((response.status, response.get("Location")), (code, target))
        self.assertEqual(len(server.connections), len(replies))

    def test_case_166_environment_has_no_effect(self):
        server = self.serve()
        dead = "http://127.0.0.1:1"
        proxy = self.start(env={name: dead for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY")})
        self.seen(proxy.ask(self.host(server)))

    def test_case_157_private_upgrade_is_refused_plainly(self):
        server = self.serve()
        proxy = self.start("--sandbox", "priv=127.0.0.1,token=t")
        upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n"
        with proxy.connect() as client:
            client.send(f"GET /?token=t HTTP/1.1\r\nHost: {self.host(server, 'priv')}\r\n{upgrade}\r\n")
            response = client.response()
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (403, "token_missing"))
        self.assertEqual(len(server.connections), 0)

    def test_s053_methods(self):
        server = self.serve()
        proxy = self.start()
        for method in ("TRACE", "CONNECT"):
            target = "127.0.0.1:80" if method == "CONNECT" else "/"
            response = proxy.ask(self.host(server), target, method)
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (405, "method_not_allowed"), method)
        response = proxy.ask(self.host(server), "*", "OPTIONS")
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (400, "bad_request"))
        self.assertEqual(len(server.connections), 0)
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"):
            self.assertEqual(proxy.ask(self.host(server), method=method).status, 200, method)
            self.assertTrue(server.connections[-1].received.startswith(method.encode()))

    def test_s096_access_log_cannot_be_forged(self):
        server = self.serve()
        self.workers = 1
        proxy = self.start("--access-log", "-")
        proxy.ask(self.host(server), "/a%0d%0ab?secret=1", fields='User-Agent: x","status":1\t\xff\r\n')
        proxy.ask(self.host(server), "/plain")
        self.assertEqual(proxy.ask(self.host(server), fields="User-Agent: \x1b[31m\r\n").status, 400)
        wait_for(lambda: len(proxy.out) >= 3, "the access log")
        entry = json.loads(proxy.out[0])
        self.assertEqual((entry["path"], entry["query"], entry["status"]), ("/a%0d%0ab", "(masked)", 200))
        self.assertNotIn("secret", proxy.out[0])
        self.assertNotIn("query", json.loads(proxy.out[1]))
        self.assertEqual(json.loads(proxy.out[2])["error"], "bad_request")
        self.assertNotIn("\x1b", "".join(proxy.out))

    def entry(self, path):
        """The line of the log about a request for this path."""
        def found():
            return [line for line in map(json.loads, list(self.proxy.out)) if line["path"] == path]

        return wait_for(found, f"the line of {path}")[0]

    def test_the_access_log_says_how_and_where_to(self):
        def script(connection):
            request = connection.request()
            late.wait(0 if "/quick" in request.line else 0.3)  # what is measured
            connection.send(answer("ok"))

        late = threading.Event()
        server = self.serve(script)
        proxy = self.start("--access-log", "-", "--sandbox", "six=::1", "--sandbox", "evil=169.254.169.254")
        proxy.ask(self.host(server), "/quick-1.1")
        proxy.ask(self.host(server), "/quick-1.0", version="1.0")
        with Client(proxy) as client:
            client.ask(self.host(server), "/quick-2")
        six = self.serve(host="::1")
        proxy.ask(self.host(six, "six"), "/six")
        proxy.ask(self.host(server), "/slow")
        keeper, closed = closed_port()
        with keeper:
            proxy.ask(f"{closed}-abc.test", "/closed")
        proxy.ask("80-evil.test", "/evil")
        proxy.ask("80-nosuch.test", "/nosuch")
        with proxy.connect() as client:
            client.send("nonsense\r\n\r\n")
            client.response()
        there = f"127.0.0.1:{server.port}"
        for path, protocol, upstream in (("/quick-1.1", "HTTP/1.1", there), ("/quick-1.0", "HTTP/1.0", there), ("/quick-2", "HTTP/2", there),
                                         ("/six", "HTTP/1.1", f"[::1]:{six.port}"), ("/slow", "HTTP/1.1", there),
                                         ("/closed", "HTTP/1.1", f"127.0.0.1:{closed}"), ("/evil", "HTTP/1.1", None),
                                         ("/nosuch", "HTTP/1.1", None), ("", None, None)):
            line = self.entry(path)
            self.assertEqual((line.get("protocol"), line.get("upstream")), (protocol, upstream), path)
            self.assertLessEqual(line["first_byte_ms"], line["duration_ms"])
        self.assertGreaterEqual(self.entry("/slow")["first_byte_ms"], 250)

    def test_the_access_log_tells_no_first_byte_of_what_never_came(self):
        server = self.serve(Connection.take_all)
        proxy = self.start("--access-log", "-")
        client = proxy.connect()
        client.send(f"GET /left HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        wait_for(lambda: server.connections and b"/left" in server.received, "the request")
        client.close()
        line = self.entry("/left")
        self.assertEqual((line["status"], line["end"], line["upstream"]), (0, "cut_by_client", f"127.0.0.1:{server.port}"))
        self.assertNotIn("first_byte_ms", line)

    def test_the_access_log_tells_which_trace_a_request_belongs_to(self):
        def script(connection):
            if "/tunnel" in connection.request().line:
                connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                connection.take_all()
            else:
                connection.send(answer())

        server = self.serve(script)
        proxy = self.start("--access-log", "-")
        good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        proxy.ask(self.host(server), "/good", fields=f"traceparent: {good}\r\n")
        proxy.ask("1-nosuch.d", "/own", fields=f"Traceparent: {good}\r\n")
        proxy.ask(self.host(server), "/bad", fields='Traceparent: 00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n')
        proxy.ask(self.host(server), "/secret", fields="Traceparent: s3cret-token\r\n")
        proxy.ask(self.host(server), "/twice", fields=f"Traceparent: {good}\r\nTraceparent: {good}\r\n")
        with Client(proxy) as client:
            client.ask(self.host(server), "/two", fields=[("traceparent", good)])
        for path, fields in (("/tunnel", f"Traceparent: {good}\r\n"), ("/tunnel-twice", f"Traceparent: {good}\r\n" * 2)):
            with proxy.connect() as client:
                client.send(f"GET {path} HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{fields}\r\n")
                self.assertEqual(client.response().status, 101)
        for path, expected in (("/good", good), ("/own", good), ("/bad", None), ("/secret", None), ("/twice", None), ("/two", good),
                               ("/tunnel", good), ("/tunnel-twice", None)):
            self.assertEqual(self.entry(path).get("traceparent"), expected, path)
        self.assertNotIn("s3cret", "\n".join(proxy.out))
        self.assertIn(f"traceparent: {good}".encode(), server.received, "and the server gets it as it came")

    def stuck_log(self):
        """The path of a pipe that nobody reads from, and its reading end."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "log")
        os.mkfifo(path)
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reading)
        return path, reading

    def ask_often(self, proxy, connections, requests):
        """So many answers by the proxy itself, each a long line of the log."""
        one = f"GET /{'a' * 1000} HTTP/1.1\r\nHost: 1-nosuch.d\r\n"
        for _ in range(connections):
            with proxy.connect() as client:
                client.send((one + "\r\n") * (requests - 1) + one + "Connection: close\r\n\r\n")
                self.assertEqual(client.take_all().count(b"HTTP/1.1 502"), requests)

    def test_access_log_that_nobody_reads_stops_nothing(self):
        path, _ = self.stuck_log()
        server = self.serve()
        self.workers = 5  # more than there are threads for blocking work
        proxy = self.start("--access-log", path, "--sandbox", "named=localhost")
        self.ask_often(proxy, 200, 3)
        for _ in range(3):
            self.assertEqual(proxy.ask(self.host(server, "named")).status, 200)
        self.assertEqual(proxy.metric("proxy_access_log_dropped_total"), 0)
        self.assertEqual(proxy.stop(), 0)

    def test_access_log_lines_are_whole_or_counted(self):
        path, reading = self.stuck_log()
        self.workers = 3
        proxy = self.start("--access-log", path)
        self.ask_often(proxy, 30, 300)
        self.assertGreater(proxy.metric("proxy_access_log_dropped_total"), 0)
        text = b""

        def read_more():
            nonlocal text
            try:
                text += os.read(reading, 30000)
            except BlockingIOError:
                pass
            # The last ones may be dropped after their answers have come.
            return text.count(b"\n") + proxy.metric("proxy_access_log_dropped_total") == 9000

        # A pipe that was full is tried again five times a second.
        wait_for(read_more, "the rest of the log", 4 * PATIENCE)
        for line in text.splitlines():
            self.assertEqual(json.loads(line)["status"], 502)


if __name__ == "__main__":
    main()
