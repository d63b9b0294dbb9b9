#!/usr/bin/env python3
"""Masked hosts: what a server that wants to be called localhost sees of its own page, and of every other one; masks for
single ports; and how a server that does not want an upgrade says so."""
import json
import socket

from http2_support import Client
from support import OVER_TLS, Test, answer, main, wait_for
from tunnel_support import ASK, SWITCH, upgrade

SCHEME = "https" if OVER_TLS else "http"
HANDSHAKE = ASK.replace("Origin: http://page.test\r\n", "")
MASK = "msk=127.0.0.1,mask=localhost:${PORT}"


class MaskTest(Test):
    def mask(self, *flags, mask=MASK):
        self.requests = []

        def script(connection):
            while True:
                request = connection.request()
                if not request.line:
                    return
                self.requests.append(request)
                if request.get("Upgrade"):
                    connection.send(SWITCH)
                    connection.take_all()
                    return
                connection.send(answer("ok", fields="Connection: close\r\n"))

        self.server = self.serve(script)
        self.start("--sandbox", mask, *flags, sandboxes=())
        self.name = self.host(self.server, "msk")
        self.masked = f"localhost:{self.server.port}"

    def ask(self, fields, host=None, method="GET", target="/"):
        """What the server sees of a request, or of an upgrade."""
        count = len(self.requests)
        if method == "UPGRADE":
            with self.proxy.connect() as client:
                client.send(f"GET {target} HTTP/1.1\r\nHost: {host or self.name}\r\n{HANDSHAKE}{fields}\r\n")
                self.assertEqual(client.response().status, 101)
        else:
            body = b"x" if method == "POST" else b""
            self.assertEqual(self.proxy.ask(host or self.name, target, method, fields, body).status, 200, fields)
        self.assertEqual(len(self.requests), count + 1)
        return self.requests[-1]


class Pages(MaskTest):
    def test_case_189_the_own_page_is_masked_with_the_host(self):
        self.mask()
        for method in ("GET", "POST", "UPGRADE"):
            seen = self.ask(f"Origin: {SCHEME}://{self.name}\r\nReferer: {SCHEME}://{self.name}/a%20b?c=//d&e=http://{self.name}\r\n",
                            method=method)
            self.assertEqual(seen.all("Host"), [self.masked], method)
            self.assertEqual(seen.all("Origin"), [f"http://{self.masked}"], method)
            self.assertEqual(seen.all("Referer"), [f"http://{self.masked}/a%20b?c=//d&e=http://{self.name}"], method)
            # Who knows this field compares Origin with it, and it would be foreign.
            self.assertEqual(seen.all("X-Forwarded-Host"), [], method)
            seen = self.ask("", method=method)
            self.assertEqual((seen.get("Host"), seen.get("Origin"), seen.get("X-Forwarded-Host")), (self.masked, None, self.name))

    def test_case_189_every_other_page_is_seen_as_it_is(self):
        self.mask()
        name, port = self.name, self.server.port
        label, domain = name.split(".", 1)
        other_scheme = [] if not OVER_TLS else [f"http://{name}"]
        foreign = [
            f"{SCHEME}://{port}-other.{domain}", f"{SCHEME}://{port + 1}-msk.{domain}", f"{SCHEME}://{label}-x.{domain}",
            f"{SCHEME}://{name}.evil.test", f"{SCHEME}://evil.{name}", f"{SCHEME}://evil{name}", f"{SCHEME}://{name}x", f"{SCHEME}://{domain}",
            f"{SCHEME}://user@{name}", f"{SCHEME}://{name}@evil.test", f"{SCHEME}://{name}:pw@evil.test",
            f"{SCHEME}://{name.upper()}", f"{SCHEME.upper()}://{name}", f"{SCHEME}://{name}.", f"{SCHEME}://{name}:",
            f"{SCHEME}://{name}:443", f"{SCHEME}://{name}:80", f"{SCHEME}://{name}:8443",
            "null", "", name, f"//{name}", f"{SCHEME}:{name}", f"{SCHEME}:/{name}", f"ws://{name}", f"file://{name}", f"{SCHEME}://", SCHEME,
            f"{SCHEME}://{name} {SCHEME}://{name}", f"{SCHEME}://{name}, {SCHEME}://{name}", f"{SCHEME}://{name}\\", f"{SCHEME}://{name};x",
            f"http://{self.masked}", "http://evil.test", f"http://evil.test/{SCHEME}://{name}", *other_scheme]
        for origin in foreign:
            seen = self.ask(f"Origin: {origin}\r\nReferer: {origin}\r\n")
            self.assertEqual(seen.all("Host"), [self.masked], origin)
            self.assertEqual(seen.all("Origin"), [origin])
            self.assertEqual(seen.all("Referer"), [origin])
            self.assertEqual(seen.all("X-Forwarded-Host"), [name], origin)
        # An Origin is no more than that.
        for rest in ("/", "/a", "?", "#"):
            seen = self.ask(f"Origin: {SCHEME}://{name}{rest}\r\nReferer: {SCHEME}://{name}{rest}\r\n")
            self.assertEqual(seen.all("Origin"), [f"{SCHEME}://{name}{rest}"])
            self.assertEqual(seen.all("Referer"), [f"http://{self.masked}{rest}"])
        for origin in (f"{SCHEME}://{port}-other.{domain}", "null"):
            for method in ("POST", "UPGRADE"):
                self.assertEqual(self.ask(f"Origin: {origin}\r\n", method=method).all("Origin"), [origin])

    def test_case_189_several_origins_are_nobodys(self):
        self.mask()
        own = f"{SCHEME}://{self.name}"
        for method in ("GET", "POST", "UPGRADE"):
            seen = self.ask(f"Origin: {own}\r\norigin: http://evil.test\r\nReferer: {own}/\r\nReferer: {own}/\r\n", method=method)
            self.assertEqual(seen.all("Origin"), [own, "http://evil.test"])
            self.assertEqual(seen.all("Referer"), [f"{own}/", f"{own}/"])
            self.assertEqual(self.ask(f"Origin: {own}\r\nOrigin: {own}\r\n", method=method).all("Origin"), [own, own])

    def test_case_189_a_host_is_compared_as_browsers_write_it(self):
        self.mask()
        default = 443 if OVER_TLS else 80
        for host in (f"{self.name}:{default}", f"{self.name}:", self.name.upper()):
            seen = self.ask(f"Origin: {SCHEME}://{self.name}\r\n", host=host)
            self.assertEqual(seen.get("Origin"), f"http://{self.masked}", host)
        for host in (f"{self.name}:8443", f"{self.name}."):
            self.assertEqual(self.ask(f"Origin: {SCHEME}://{self.name}\r\n", host=host).get("Origin"), f"{SCHEME}://{self.name}", host)
            self.assertEqual(self.ask(f"Origin: {SCHEME}://{host}\r\n", host=host).get("Origin"), f"http://{self.masked}", host)
        named_before = self.name.replace("-msk.", "-msk-node1.")
        self.assertEqual(self.ask(f"Origin: {SCHEME}://{named_before}\r\n", host=named_before).get("Origin"), f"http://{self.masked}")

    def test_case_189_without_a_mask_nothing_changes(self):
        self.mask(mask="msk=127.0.0.1")
        for method in ("GET", "POST", "UPGRADE"):
            seen = self.ask(f"Origin: {SCHEME}://{self.name}\r\nReferer: {SCHEME}://{self.name}/x\r\n", method=method)
            self.assertEqual((seen.get("Host"), seen.get("Origin"), seen.get("Referer"), seen.get("X-Forwarded-Host")),
                             (self.name, f"{SCHEME}://{self.name}", f"{SCHEME}://{self.name}/x", None))

    def test_case_189_envd_sees_pages_as_they_are(self):
        server = self.serve()
        proxy = self.start("--sandbox", f"{MASK},envd={server.port}", sandboxes=())
        fields = dict(proxy.ask("49983-msk.d", fields=f"Origin: {SCHEME}://49983-msk.d\r\n").json()["fields"])
        self.assertEqual((fields["Host"], fields["Origin"]), ("49983-msk.d", f"{SCHEME}://49983-msk.d"))

    def test_case_189_a_host_that_sandboxes_share_is_nobodys_own(self):
        self.mask()
        route = f"E2b-Sandbox-Id: msk\r\nE2b-Sandbox-Port: {self.server.port}\r\n"
        for host in ("sandbox.sandbox.test", "localhost"):
            for origin in (f"{SCHEME}://{host}", f"{SCHEME}://{self.name}"):
                seen = self.ask(f"{route}Origin: {origin}\r\n", host=host)
                self.assertEqual((seen.get("Host"), seen.get("Origin"), seen.get("X-Forwarded-Host")), (self.masked, origin, host))

    def test_case_189_over_plain_http_tls_may_have_ended_in_front(self):
        if OVER_TLS:
            self.skipTest("the clients come over TLS")
        self.mask()
        self.assertEqual(self.ask(f"Origin: https://{self.name}\r\n").get("Origin"), f"http://{self.masked}")
        self.assertEqual(self.ask(f"Origin: https://{self.name}\r\nX-Forwarded-Proto: http\r\n").get("Origin"), f"http://{self.masked}")
        self.assertEqual(self.proxy.stop(), 0)
        self.mask("--behind-tls")
        self.assertEqual(self.ask(f"Origin: https://{self.name}\r\n", host=f"{self.name}:443").get("Origin"), f"http://{self.masked}")
        self.assertEqual(self.ask(f"Origin: http://{self.name}\r\n").get("Origin"), f"http://{self.name}")
        self.assertEqual(self.ask(f"Origin: http://{self.name}\r\nX-Forwarded-Proto: http\r\n").get("Origin"), f"http://{self.name}")

    def test_case_189_forwarded_fields_do_not_contradict_the_mask(self):
        self.mask("--forwarded-headers")
        seen = self.ask(f"Origin: {SCHEME}://{self.name}\r\n")
        self.assertEqual((seen.get("Origin"), seen.get("X-Forwarded-Host"), seen.get("X-Forwarded-Proto")),
                         (f"http://{self.masked}", None, SCHEME))
        self.assertEqual(self.ask("Origin: http://evil.test\r\n").get("X-Forwarded-Host"), self.name)

    def test_case_189_the_same_over_http2(self):
        self.mask()
        own = f"{SCHEME}://{self.name}"
        rows = ((own, f"http://{self.masked}"), ("null", "null"), (f"{own}.evil.test", f"{own}.evil.test"), (own.upper(), own.upper()))
        with Client(self.proxy) as client:
            for origin, expected in rows:
                for method in ("GET", "POST"):
                    got = client.answer(client.open(self.name, "/x", method, [("origin", origin), ("referer", f"{origin}/p?q")], scheme=SCHEME))
                    self.assertEqual(got.status, 200)
                    seen = self.requests[-1]
                    self.assertEqual((seen.all("Host"), seen.all("Origin")), ([self.masked], [expected]))
                    self.assertEqual(seen.all("Referer"), [f"{expected}/p?q"])
            got = client.answer(client.open(self.name, "/", "GET", [("origin", own), ("origin", own)], scheme=SCHEME))
            self.assertEqual((got.status, self.requests[-1].all("Origin")), (200, [own, own]))

    def test_case_189_websockets_over_http2(self):
        requests, count = [], 0
        server = self.serve(lambda connection: (requests.append(upgrade(connection)), connection.take_all()))
        self.start("--sandbox", MASK, sandboxes=())
        name = self.host(server, "msk")
        with Client(self.proxy) as client:
            for origin, expected in ((f"{SCHEME}://{name}", f"http://localhost:{server.port}"), ("https://evil.test", "https://evil.test")):
                stream = client.open(name, "/ws", "CONNECT", [("sec-websocket-version", "13"), ("origin", origin)], end=False, protocol="websocket")
                client.until(lambda: client.answers[stream].status)
                self.assertEqual(client.answers[stream].status, 200)
                count += 1
                wait_for(lambda count=count: len(requests) == count, "what the server has got")
                self.assertEqual((requests[-1].get("Host"), requests[-1].get("Origin")), (f"localhost:{server.port}", expected))


class Answers(MaskTest):
    def test_case_189_redirects_to_the_masked_host_lead_to_the_public_one(self):
        location = []

        def script(connection):
            connection.request()
            connection.send(f"HTTP/1.1 302 Found\r\nlocation: {location[-1]}\r\nX-Location: {location[-1]}\r\nContent-Length: 0\r\n"
                            "Set-Cookie: a=b; Domain=localhost\r\nAccess-Control-Allow-Origin: http://localhost\r\nConnection: close\r\n\r\n")

        server = self.serve(script)
        proxy = self.start("--sandbox", MASK)
        name, plain = self.host(server, "msk"), self.host(server, "abc")
        masked = f"localhost:{server.port}"
        for sent, expected in ((f"http://{masked}/login?next=http://{masked}/", f"//{name}/login?next=http://{masked}/"),
                               (f"https://{masked}/x", f"//{name}/x"), (f"http://{masked}", f"//{name}"), (f"http://{masked}?q", f"//{name}?q"),
                               (f"http://{masked}//evil.test/", f"//{name}//evil.test/")):
            location.append(sent)
            got = proxy.ask(name)
            self.assertEqual((got.status, got.all("Location"), got.get("X-Location")), (302, [expected], sent))
            # Neither of these is for browsers that are at the public host, and neither hurts there.
            self.assertEqual((got.get("Set-Cookie"), got.get("Access-Control-Allow-Origin")), ("a=b; Domain=localhost", "http://localhost"))
            self.assertEqual(proxy.ask(plain).get("Location"), sent)
            shared = proxy.ask("localhost", fields=f"E2b-Sandbox-Id: msk\r\nE2b-Sandbox-Port: {server.port}\r\n")
            self.assertEqual(shared.get("Location"), sent)
        for sent in ("/login", "//evil.test/", f"http://localhost:{server.port}1/", "http://localhost/", f"http://{masked}.evil.test/",
                     f"http://{masked}@evil.test/", f"http://u@{masked}/", f"ftp://{masked}/", masked, ""):
            location.append(sent)
            self.assertEqual(proxy.ask(name).get("Location"), sent)


class ByPort(MaskTest):
    def seen(self, name, server):
        return dict(self.proxy.ask(self.host(server, name)).json()["fields"])["Host"]

    def test_case_189_masks_of_single_ports(self):
        one, two, three = (self.serve() for _ in range(3))
        masks = f"localhost:${{PORT}};{two.port}=app.test;{three.port}="
        self.start("--sandbox", f"all=127.0.0.1,mask={masks}", "--sandbox", f"one=127.0.0.1,mask={two.port}=[::1]:${{PORT}}",
                   "--allow-loopback-upstreams", sandboxes=())
        status, made = self.proxy.call("PUT", "/sandboxes/api", {"address": "127.0.0.1", "mask_request_host": masks})
        self.assertEqual((status, made["mask_request_host"]), (201, masks))
        for name in ("all", "api"):
            self.assertEqual([self.seen(name, server) for server in (one, two, three)],
                             [f"localhost:{one.port}", "app.test", self.host(three, name)])
        self.assertEqual([self.seen("one", server) for server in (one, two)], [self.host(one, "one"), f"[::1]:{two.port}"])
        own = f"Origin: {SCHEME}://"
        for server, expected in ((two, "http://app.test"), (three, f"{SCHEME}://{self.host(three, 'all')}")):
            fields = dict(self.proxy.ask(self.host(server, "all"), fields=f"{own}{self.host(server, 'all')}\r\n").json()["fields"])
            self.assertEqual(fields["Origin"], expected)
        # A change, and its end.
        self.assertEqual(self.proxy.call("PATCH", "/sandboxes/api", {"mask_request_host": f"{one.port}=x.test"})[0], 200)
        self.assertEqual([self.seen("api", server) for server in (one, two)], ["x.test", self.host(two, "api")])
        self.assertEqual(self.proxy.call("PATCH", "/sandboxes/api", {"mask_request_host": None})[1]["mask_request_host"], "")
        self.assertEqual(self.seen("api", one), self.host(one, "api"))

    def test_case_189_malformed_masks_are_refused_with_the_reason(self):
        proxy = self.start(sandboxes=())
        for mask, reason in (
                ("http://localhost", "a mask is HOST or HOST:PORT"), ("localhost/x", "a mask is HOST"), ("u@localhost", "a mask is HOST"),
                ("localhost:", "a mask is HOST"), ("localhost:0", "a mask is HOST"), ("localhost:65536", "a mask is HOST"),
                ("localhost:1${PORT}", "a mask is HOST"), ("localhost:${port}", "a mask is HOST"), ("${PORT", "a mask is HOST"),
                (":80", "a mask is HOST"), ("::1", "a mask is HOST"), ("[::1", "a mask is HOST"), ("[127.0.0.1]", "a mask is HOST"),
                ("3000=a b", "without blanks"), ("a;b", "there is another one for all ports"), (";", "another one for all ports"), ("a;", "all ports"),
                ("3000=a;3000=b", "this port has another mask already"), ("0=a", "a port from 1 to 65535"), ("=a", "a port from 1 to 65535"),
                ("65536=a", "a port from 1 to 65535"), ("x=a", "a port from 1 to 65535"), ("3000=a=b", "a mask is HOST"),
                ("49983=a", "the port of envd is never masked"), ("x" * 300, "255"), ({"3000": "a"}, "must be a string"), (3000, "must be a string")):
            status, answered = proxy.call("PUT", "/sandboxes/abc", {"address": "10.0.0.1", "mask_request_host": mask})
            self.assertEqual(status, 400, mask)
            self.assertIn(reason, answered["message"], mask)
            if isinstance(mask, str) and "=" in mask and " " not in mask:
                self.assertIn(mask.split(";")[-1], answered["message"])
        for mask in ("localhost", "a_b.test:1", "127.0.0.1:${PORT}", "[::1]:80", "${PORT}.test", "1=", "1=a;2=b;c", "LOCALHOST"):
            self.assertIn(proxy.call("PUT", "/sandboxes/abc", {"address": "10.0.0.1", "mask_request_host": mask})[0], (200, 201), mask)


class Refusals(Test):
    """A server that does not want an upgrade."""

    def handshake(self, server):
        with self.proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n{ASK}\r\n")
            return client.response()

    def over_http2(self, server):
        with Client(self.proxy) as client:
            return client.answer(client.open(self.host(server), "/", "CONNECT", [("sec-websocket-version", "13")], end=False, protocol="websocket"))

    def refusing(self, said, ends="half_close"):
        """A server that says this to a request, and how it ends."""
        def script(connection):
            connection.request()
            for piece in said:
                connection.send(piece)
            if ends:
                getattr(connection, ends)()
                if ends == "half_close":
                    connection.take_all()
            else:
                connection.take_all()
                held.append(connection)

        held = []
        return self.serve(script)

    def test_case_189_a_status_reaches_the_client_with_its_body(self):
        self.start()
        for said, status, body in (
                ("HTTP/1.1 403 Forbidden\r\n\r\n", 403, b""), ("HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\nwho?", 401, b"who?"),
                ("HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nno", 426, b"no"),
                ("HTTP/1.0 403 Forbidden\r\nContent-Type: text/plain\r\n\r\nold", 403, b"old"), ("HTTP/1.1 400\r\n\r\n", 400, b""),
                ("HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhm\r\n0\r\n\r\n", 404, b"hm"),
                ("HTTP/1.1 503 Later\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n", 503, b"")):
            for ends in ("half_close", "close"):
                server = self.refusing([said], ends)
                for got in (self.handshake(server), self.over_http2(server)):
                    self.assertEqual((got.status, got.body, got.get("x-proxy-error")), (status, body, None), said)

    def test_case_189_a_word_and_the_end_is_a_refusal(self):
        self.start()
        for said, words in ((["Unauthorized"], "Unauthorized"), (["Forbidden\r\n"], "Forbidden"), (["no\nreally not\n"], "no"),
                            (["Un", "auth", "orized"], "Unauthorized"), (["HTTP/1.1 403 Forbidden\n\n"], "HTTP/1.1 403 Forbidden"),
                            (["<b>\"x\"</b>"], "<b>\"x\"</b>"), (["x" * 128], "x" * 128)):
            for ends in ("half_close", "close"):
                server = self.refusing(said, ends)
                for got in (self.handshake(server), self.over_http2(server)):
                    self.assertEqual((got.status, got.get("x-proxy-error")), (403, "upgrade_refused"), said)
                    self.assertEqual(json.loads(got.body)["message"], f"The server in the sandbox refused the upgrade: {words}")
        self.assertEqual(self.proxy.metric("proxy_errors_total", **{"class": "upgrade_refused"}), 28)

    def test_case_189_what_is_neither_http_nor_words(self):
        self.start()
        for said, ends in ((["\x01\x02\x03"], "half_close"), (["x" * 129], None), (["x" * 129], "half_close"), (["\r\nno"], "half_close"),
                           (["SSH-2.0-OpenSSH_9.2p1\r\n"], None), (["gr\xfc\xdfe"], "close"), (["HTTP/1.1 4xx No\r\n\r\n"], None)):
            server = self.refusing(said, ends)
            for got in (self.handshake(server), self.over_http2(server)):
                self.assertEqual((got.status, got.get("x-proxy-error")), (502, "upstream_protocol"), said)
            wait_for(lambda: not any(thread.is_alive() for thread in server.threads), "the end at the server")
        # Nothing at all: not even a word.
        for got in (self.handshake(self.refusing([], "close")), self.over_http2(self.refusing([], "close"))):
            self.assertEqual((got.status, got.get("x-proxy-error")), (502, "upstream_reset"))
        # To who asked for no upgrade it is no refusal.
        self.assertEqual(self.proxy.ask(self.host(self.refusing(["Unauthorized"]))).get("X-Proxy-Error"), "upstream_protocol")

    def test_case_189_a_client_that_leaves_while_the_end_is_waited_for(self):
        self.start()
        server = self.refusing(["SSH-2.0-x\r\n"], None)
        client = self.proxy.connect()
        client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n{ASK}\r\n")
        wait_for(lambda: server.connections and server.connections[0].buffer == b"" and server.received, "the request")
        client.sock.shutdown(socket.SHUT_RDWR)
        client.close()
        wait_for(lambda: server.threads and not server.threads[0].is_alive(), "the end at the server")


if __name__ == "__main__":
    main()
