#!/usr/bin/env python3
"""Odd and hostile HTTP/1 requests: what the sandbox gets of them counts, not only what the client is told
(contract/proxy.md 3.4 and 3.11)."""
from support import Test, answer, main, wait_for


class Smuggling(Test):
    def setUp(self):
        super().setUp()
        self.server = self.serve(self.script)
        self.start()

    @staticmethod
    def script(connection):
        """Answers what is a request, in its strictest reading; keeps what is behind it in sight."""
        while True:
            request = connection.request()
            if not request.line:
                return
            connection.send(answer("got it"))
            if request.get("Connection") == "close":
                connection.half_close()

    def send(self, raw):
        """Raw bytes ("HOST" stands for the sandbox's name); the status and whether the connection closed."""
        before = len(self.server.received)
        data = raw if isinstance(raw, bytes) else raw.encode("latin-1")
        data = data.replace(b"HOST", self.host(self.server).encode())
        with self.proxy.connect() as client:
            client.send(data)
            response = client.response()
            if response and response.status >= 400:
                self.assertEqual(client.take_all(), b"", "one answer, then the end")
        # Only when all its connections have come and ended has the server seen everything.
        wait_for(lambda: len(self.server.threads) == self.proxy.metric("proxy_dials_total"), "the server's connections")
        wait_for(lambda: not any(thread.is_alive() for thread in self.server.threads), "the server's end")
        closed = response is None or client.eof or client.reset
        return response.status if response else 0, closed, self.server.received[before:]

    def refused(self, raw, status=400):
        got, closed, seen = self.send(raw)
        self.assertEqual((got, closed, seen), (status, True, b""), raw[:200])

    def passed(self, raw):
        got, _, seen = self.send(raw)
        self.assertEqual(got, 200, raw[:200])
        return seen

    def post(self, fields, body="abc", version="1.1"):
        return f"POST / HTTP/{version}\r\nHost: HOST\r\n{fields}\r\n{body}"

    def test_s034_case_165_length_and_coding(self):
        chunks = "3\r\nabc\r\n0\r\n\r\n"
        self.refused(self.post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", chunks))
        self.refused(self.post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", chunks))
        self.refused(self.post("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", chunks))

    def test_s035_lengths(self):
        for value in ("3\r\nContent-Length: 3", "3\r\nContent-Length: 4", "+3", "-1", "3, 3", "0x3", "18446744073709551619",
                      "99999999999999999999999", "", "3 3", "3;", "\t", "1e1"):
            self.refused(self.post(f"Content-Length: {value}\r\n"))

    def test_s036_codings(self):
        chunks = "3\r\nabc\r\n0\r\n\r\n"
        for value in ("xchunked", "chunked, identity", "gzip, chunked", "identity", "\"chunked\"", "chunked;q=1", "chunked chunked"):
            got, closed, seen = self.send(self.post(f"Transfer-Encoding: {value}\r\n", chunks))
            self.assertIn(got, (400, 501), value)
            self.assertEqual((closed, seen), (True, b""), value)
        self.refused(self.post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunks))
        self.refused(self.post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", chunks))
        self.refused(self.post("Transfer-Encoding:\x0bchunked\r\n", chunks))
        for value in ("Chunked", "\tchunked ", "CHUNKED"):
            seen = self.passed(self.post(f"Transfer-Encoding: {value}\r\n", chunks))
            self.assertTrue(seen.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), seen)
            self.assertEqual(seen.lower().count(b"transfer-encoding: chunked\r\n"), 1)

    def test_s037_coding_on_http_1_0(self):
        self.refused(self.post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n", "1.0"))
        self.refused(self.post("Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n", "1.0"))

    def test_s038_folded_lines(self):
        self.refused(self.post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"))
        self.refused(self.post("X-Abc: a\r\n b\r\nContent-Length: 3\r\n"))
        self.refused("GET / HTTP/1.1\r\n Host: HOST\r\n\r\n")

    def test_s039_s042_bad_bytes_in_fields(self):
        for line in ("X-Abc:\rTransfer-Encoding: chunked", "X-Abc: a\rb", "X-Abc: a\0b", "X-Abc : a", "X Abc: a", ": a", "no colon",
                     "X-\xe9: a", "X-Abc: \x01", "X(a): b", "X-Abc\t: a", "X-Abc: a\nTransfer-Encoding: chunked"):
            self.refused(self.post(f"{line}\r\nContent-Length: 3\r\n"))
        seen = self.passed(self.post("Content_Length: 7\r\nContent-Length: 3\r\n"))
        self.assertTrue(seen.endswith(b"\r\n\r\nabc"))
        self.assertEqual(seen.count(b"\r\nContent-Length: 3\r\n"), 1)

    def test_s040_chunks(self):
        head = "Transfer-Encoding: chunked\r\n"
        for body in ("0x3\r\nabc\r\n0\r\n\r\n", "3\nabc\r\n0\r\n\r\n", "+3\r\nabc\r\n0\r\n\r\n", " 3\r\nabc\r\n0\r\n\r\n",
                     "3;x\ny\r\nabc\r\n0\r\n\r\n", "3\r\nabcXX0\r\n\r\n", "3\r\nabc0\r\n\r\n", "ffffffffffffffffff\r\nabc",
                     "-3\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n0 x\r\n\r\n", "3\r\nabc\r\n\r\n", "g\r\nabc"):
            got, closed, seen = self.send(self.post(head, body))
            self.assertNotEqual(got, 200, body)
            self.assertTrue(closed, body)
            # The head had gone on; the sandbox never sees an end of this body, nor what came behind.
            self.assertNotIn(b"0\r\n\r\n", seen, body)
        # Told by name, and counted, like what is wrong with a head.
        before = self.proxy.metric("proxy_errors_total", **{"class": "bad_request"})
        with self.proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(self.server)}\r\n{head}\r\n3\r\nabcXX")
            response = client.response()
        self.assertEqual((response.status, response.get("X-Proxy-Error"), response.json()["code"]), (400, "bad_request", 400))
        self.assertEqual(self.proxy.metric("proxy_errors_total", **{"class": "bad_request"}), before + 1)
        got, closed, seen = self.send(self.post(head, "3;" + "x" * 20000 + "\r\nabc\r\n0\r\n\r\n"))
        self.assertNotEqual(got, 200)
        got, closed, seen = self.send(self.post(head, "0" * 20000 + "3\r\nabc\r\n0\r\n\r\n"))
        self.assertNotEqual(got, 200)
        seen = self.passed(self.post(head, '3;a=b\r\nabc\r\n2;x\r\nde\r\n0;z\r\n\r\n'))
        self.assertNotIn(b";", seen.split(b"\r\n\r\n", 1)[1])

    def test_s041_trailers(self):
        head = "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n"
        seen = self.passed(self.post(head, "3\r\nabc\r\n0\r\nX-Sum: 1\r\nAuthorization: x\r\nE2b-Traffic-Access-Token: y\r\n"
                                           "Cookie: a=b\r\n\r\n"))
        self.assertTrue(seen.endswith(b"0\r\nX-Sum: 1\r\n\r\n"), seen)

    def test_case_184_framing_in_trailers_breaks_no_request(self):
        head = "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\nConnection: X-Hop\r\n"
        for lines in ("Content-Length: 5", "Content-Length: x", "Content-Length: 1\r\nContent-Length: 2", "Transfer-Encoding: chunked",
                      "Transfer-Encoding: gzip", "Host: other", "Connection: close", "Connection: upgrade\r\nUpgrade: websocket",
                      "Trailer: Host", "Range: bytes=0-1\r\nIf-None-Match: *\r\nExpect: 100-continue\r\nX-Hop: 1",
                      "E2b-Sandbox-Id: other\r\nNovita-Sandbox-Port: 1\r\nX-Access-Token: t\r\nX-Proxy-Error: x"):
            seen = self.passed(self.post(head, f"3\r\nabc\r\n0\r\n{lines}\r\nX-Sum: 1\r\n\r\n"))
            self.assertTrue(seen.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"), (lines, seen))

    def test_s043_hosts(self):
        self.refused("GET / HTTP/1.1\r\n\r\n")
        self.refused("GET / HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n")
        self.refused("GET / HTTP/1.1\r\nHost: HOST HOST\r\n\r\n")
        self.refused("GET / HTTP/1.1\r\nHost: x@HOST\r\n\r\n")
        self.refused("GET http://HOST/ HTTP/1.1\r\nHost: 80-other.test\r\n\r\n")
        for host in ("HOST, HOST", "HOST/x", "h" * 300 + ".HOST"):
            got, _, seen = self.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
            self.assertEqual((got, seen), (400, b""), host)
        got, _, seen = self.send("GET / HTTP/1.0\r\n\r\n")
        self.assertEqual((got, seen), (400, b""))

    def test_s044_request_lines(self):
        for line in ("GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET /a b HTTP/1.1", "GET\t/ HTTP/1.1", "GET /a\rb HTTP/1.1",
                     "GET /#x HTTP/1.1", "get / HTTP/1.1", "GET / HTTP/1", "GET / http/1.1", "GET /", "GET / HTTP/1.1 ", "/ HTTP/1.1"):
            got, closed, seen = self.send(f"{line}\r\nHost: HOST\r\n\r\n")
            self.assertTrue(400 <= got < 600, f"{line!r} gave {got}")
            self.assertEqual((closed, seen), (True, b""), line)
        for version in ("1.2", "2.0", "0.9", "3.0"):
            got, closed, seen = self.send(f"GET / HTTP/{version}\r\nHost: HOST\r\n\r\n")
            self.assertIn(got, (400, 505), version)
            self.assertEqual((closed, seen), (True, b""), version)
        for target, status in (("/" + "x" * 16000, 200), ("/" + "x" * 40000, 414)):
            got, _, seen = self.send(f"GET {target} HTTP/1.1\r\nHost: HOST\r\n\r\n")
            self.assertEqual(got, status)
            self.assertEqual(target.encode() in seen, status == 200)

    def test_s047_connection_names(self):
        seen = self.passed(self.post("Connection: Content-Length, Host, close\r\nContent-Length: 3\r\n"))
        self.assertTrue(seen.endswith(b"\r\n\r\nabc"))
        self.assertIn(b"\r\nContent-Length: 3\r\n", seen)
        self.assertIn(b"\r\nHost: ", seen)
        fields = ("X-Auth: 1\r\nAuthorization: a\r\nX-Access-Token: b\r\nCookie: c\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\n"
                  "Proxy-Authorization: secret\r\nTE: gzip, trailers\r\n"
                  "Connection: X-Auth, Authorization,X-Access-Token , cookie\r\nConnection: keep-alive, TE\r\n")
        seen = self.passed(f"GET / HTTP/1.1\r\nHost: HOST\r\n{fields}\r\n")
        for gone in (b"X-Auth", b"Keep-Alive", b"Proxy-", b"secret", b"gzip"):
            self.assertNotIn(gone, seen)
        for kept in (b"Authorization: a\r\n", b"X-Access-Token: b\r\n", b"Cookie: c\r\n", b"TE: trailers\r\n"):
            self.assertIn(kept, seen)

    def test_s048_h2c_is_never_passed(self):
        for upgrade in ("h2c", "H2C", "h2c, TLS/1.0", "TLS/1.2", "HTTP/2.0"):
            seen = self.passed(f"GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\n"
                               "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n")
            self.assertNotIn(b"pgrade", seen)
            self.assertNotIn(b"Settings", seen)
        seen = self.passed("POST / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc")
        self.assertTrue(seen.endswith(b"\r\n\r\nabc"))
        # The preface itself is no request: it is answered with SETTINGS, and only at the very beginning.
        before = len(self.server.received)
        with self.proxy.connect() as client:
            client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            self.assertEqual(client.take(9)[3:], b"\x04\x00\x00\x00\x00\x00")
        self.assertEqual(self.server.received[before:], b"")
        before = len(self.server.received)
        with self.proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(self.server)}\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            self.assertEqual(client.response().status, 200)
            self.assertGreaterEqual(client.response().status, 400)
            self.assertEqual(client.take_all(), b"")
        self.assertNotIn(b"PRI", self.server.received[before:])

    def test_s049_blank_lines_and_what_follows(self):
        self.passed("\r\n\r\nGET / HTTP/1.1\r\nHost: HOST\r\n\r\n")
        got, _, seen = self.send("\r\n" * 10000 + "GET / HTTP/1.1\r\nHost: HOST\r\n\r\n")
        self.assertEqual((got, seen), (400, b""))
        seen = self.passed("GET /1 HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\nGET /2 HTTP/1.1\r\nHost: HOST\r\n\r\n")
        self.assertNotIn(b"/2", seen)

    def test_s045_bodies_where_few_expect_them(self):
        for method in ("GET", "DELETE", "OPTIONS"):
            seen = self.passed(f"{method} / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\n\r\nabc")
            self.assertTrue(seen.endswith(b"\r\n\r\nabc"), method)
        seen = self.passed("GET / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n")
        self.assertIn(b"Content-Length: 0\r\n", seen)
        seen = self.passed("POST / HTTP/1.1\r\nHost: HOST\r\n\r\n")
        self.assertNotIn(b"ncoding", seen)

    def test_s058_large_heads(self):
        many = "".join(f"X-{i}: {i}\r\n" for i in range(150))
        self.assertIn(b"X-149: 149\r\n", self.passed(f"GET / HTTP/1.1\r\nHost: HOST\r\n{many}\r\n"))
        big = "X-Big: " + "a" * 32000 + "\r\n"
        self.assertIn(big.encode(), self.passed(f"GET / HTTP/1.1\r\nHost: HOST\r\n{big}\r\n"))
        for fields in ("".join(f"X-{i}: {i}\r\n" for i in range(300)), "X-Big: " + "a" * 70000 + "\r\n", ("X: " + "a" * 1000 + "\r\n") * 100):
            self.refused(f"GET / HTTP/1.1\r\nHost: HOST\r\n{fields}\r\n", 431)

    def test_s046_pipelining_routes_each_request(self):
        second = self.serve(self.script)
        other = self.host(second, "abc")
        with self.proxy.connect() as client:
            client.send(f"GET /1 HTTP/1.1\r\nHost: {self.host(self.server)}\r\n\r\n"
                        "GET /2 HTTP/1.1\r\nHost: 1-nosuch.test\r\n\r\n"
                        f"POST /3 HTTP/1.1\r\nHost: {other}\r\nContent-Length: 3\r\n\r\nabc"
                        f"GET /4 HTTP/1.1\r\nHost: {self.host(self.server)}\r\n\r\n")
            self.assertEqual([client.response().status for _ in range(4)], [200, 502, 200, 200])
        self.assertTrue(second.received.startswith(b"POST /3 ") and second.received.endswith(b"\r\n\r\nabc"))
        self.assertEqual(self.server.received.count(b"GET /"), 2)
        self.assertNotIn(b"/3", self.server.received)

    def test_s042_s044_s053_what_other_proxies_disagree_about(self):
        """The rows of contract/proxy.md 3.11 that no other test has, with our answer to each."""
        chunks = "3\r\nabc\r\n0\r\n\r\n"
        rows = [
            ("bare LF line ends", "GET / HTTP/1.1\nHost: HOST\n\n", 400),
            ("one bare LF", "GET / HTTP/1.1\r\nHost: HOST\nX: y\r\n\r\n", 400),
            ("chunk size ends LF", self.post("Transfer-Encoding: chunked\r\n", chunks.replace("3\r\n", "3\n")), 400),
            ("NUL in a value", "GET / HTTP/1.1\r\nHost: HOST\r\nX: a\0b\r\n\r\n", 400),
            ("NUL in the target", "GET /\0 HTTP/1.1\r\nHost: HOST\r\n\r\n", 400),
            ("first field begins with a blank", "GET / HTTP/1.1\r\n X: y\r\nHost: HOST\r\n\r\n", 400),
            ("HTTP/1.2", "GET / HTTP/1.2\r\nHost: HOST\r\n\r\n", (400, 505)),
            ("an expectation nobody knows", "GET / HTTP/1.1\r\nHost: HOST\r\nExpect: miracles\r\n\r\n", 417),
            ("TRACE", "TRACE / HTTP/1.1\r\nHost: HOST\r\n\r\n", 405),
            ("CONNECT", "CONNECT HOST HTTP/1.1\r\nHost: HOST\r\n\r\n", 405),
            ("OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: HOST\r\n\r\n", 400),
            ("an unknown method", "FROB / HTTP/1.1\r\nHost: HOST\r\n\r\n", 501),
            ("Host that is a blank", "GET / HTTP/1.1\r\nHost: \r\n\r\n", 400),
            ("codings on HTTP/1.0", self.post("Transfer-Encoding: chunked\r\n", chunks, "1.0"), 400),
        ]
        for what, raw, status in rows:
            with self.subTest(what):
                got, closed, seen = self.send(raw)
                self.assertIn(got, status if isinstance(status, tuple) else (status,))
                if "chunk size" in what:
                    self.assertNotIn(b"0\r\n\r\n", seen)  # its head had gone on
                else:
                    self.assertEqual(seen, b"")
                self.assertTrue(closed)
        # These pass, unchanged.
        for target in ("/%e2%82%ac", "/a//b/./../c", "/;a=b?c;d=%zz&&=", "/~!$&'()*+,;=:@-._", "/%2e%2e/%00"):
            self.assertTrue(self.passed(f"GET {target} HTTP/1.1\r\nHost: HOST\r\n\r\n").startswith(f"GET {target} HTTP/1.1\r\n".encode()))
        # WebDAV's methods are known.
        self.passed("PROPFIND / HTTP/1.1\r\nHost: HOST\r\n\r\n")

    def test_s044_bytes_beyond_ascii_in_a_target(self):
        """UTF-8 or not, they pass as they are; nowhere else, and nothing else with them."""
        every = bytes(range(0x80, 0x100))
        for target in (b"/\xe2\x82\xac", b"/a?b=\xc3\xa4&\xff", b"/" + every + b"?" + every, b"/\xc0\xafinit", b"/" + b"\xc4\x8d\xc4\x8a" * 4000):
            seen = self.passed(b"GET " + target + b" HTTP/1.1\r\nHost: HOST\r\n\r\n")
            self.assertEqual(seen.split(b"\r\n")[0], b"GET " + target + b" HTTP/1.1")
        seen = self.passed(b"GET http://HOST/\xc3\xa4?\xc3 HTTP/1.1\r\nHost: HOST\r\n\r\n")
        self.assertEqual(seen.split(b"\r\n")[0], b"GET /\xc3\xa4?\xc3 HTTP/1.1")
        for byte in (*range(0x21), 0x7F):
            for line in (b"GET /\xc3\xa4%c\xc3\xa4 HTTP/1.1", b"GET /\xc3\xa4?a%c\xc3 HTTP/1.1"):
                self.refused(line % byte + b"\r\nHost: HOST\r\n\r\n")
        for line in (b"GET http://\xc3\xa4HOST/ HTTP/1.1", b"GET \xc3\xa4 HTTP/1.1", b"GET /x HT\xd4P/1.1", b"GET /x \xa0HTTP/1.1"):
            self.refused(line + b"\r\nHost: HOST\r\n\r\n")
        for host in (b"\xc3\xa4HOST", b"HOST\xa0"):
            self.refused(b"GET /\xc3\xa4 HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")

    def test_canonical_form(self):
        """What leaves is made anew: one spelling of framing, nothing copied raw."""
        seen = self.passed("POST /a%2Fb?x=1;y=%zz&z HTTP/1.1\r\nhOsT:   HOST  \r\nX-Abc:\t v \r\nCONTENT-LENGTH:3\r\n\r\nabc")
        lines = seen.split(b"\r\n")
        self.assertEqual(lines[0], b"POST /a%2Fb?x=1;y=%zz&z HTTP/1.1")
        self.assertEqual(lines[1], b"Host: " + self.host(self.server).encode())
        self.assertEqual(lines[2], b"X-Abc: v")
        self.assertEqual(set(lines[3:5]), {b"Connection: close", b"Content-Length: 3"})
        self.assertEqual(seen.split(b"\r\n\r\n", 1)[1], b"abc")


if __name__ == "__main__":
    main()
