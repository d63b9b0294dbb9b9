#!/usr/bin/env python3
"""HTTP/2 towards clients: what HTTP/1.1 does, seen through streams."""
import hashlib
import json
import threading

from http2_support import Client, Codes, SettingCodes
from support import PATIENCE, Proxy, Test, answer, main, wait_for

MEGABYTE = 1 << 20


class Requests(Test):
    def seen(self, answered):
        """What the server of `plain` got."""
        self.assertEqual(answered.status, 200, answered.body)
        return json.loads(answered.body)

    def test_s081_each_stream_is_routed_by_its_own_authority(self):
        one, other = self.serve(), self.serve()
        proxy = self.start(sandboxes=("abc", "def"))
        with Client(proxy) as client:
            streams = [(client.open(self.host(server, sandbox), f"/{n}"), server, sandbox, n)
                       for n, (server, sandbox) in enumerate([(one, "abc"), (other, "def"), (one, "def"), (other, "abc")] * 5)]
            for stream, server, sandbox, n in streams:
                seen = self.seen(client.answer(stream))
                self.assertEqual(seen["line"], f"GET /{n} HTTP/1.1")
                self.assertIn(["Host", self.host(server, sandbox)], seen["fields"])
            missing = client.ask(self.host(one, "nobody"))
            self.assertEqual((missing.status, missing.get("x-proxy-error")), (502, "sandbox_not_found"))
            self.assertEqual(client.ask("nonsense").status, 400)
            self.assertEqual(self.seen(client.ask(self.host(one)))["line"], "GET / HTTP/1.1")
        self.assertEqual(proxy.metric("proxy_http2_connections_total"), 1)
        self.assertEqual(proxy.metric("proxy_http2_requests_total"), 23)

    def test_s081_hosts_of_the_certificate_share_a_connection_and_no_other(self):
        server = self.serve()
        self.proxy = proxy = Proxy("--sandbox", "abc=127.0.0.1", "--sandbox", "def=127.0.0.1", over_tls=True)
        self.addCleanup(self.finish)
        with Client(proxy, name=f"{server.port}-abc.sbx.localhost") as client:
            self.assertEqual(client.ask(f"{server.port}-abc.sbx.localhost").status, 200)
            self.assertEqual(client.ask(f"{server.port}-def.sbx.localhost:{proxy.port}").status, 200)
            self.assertEqual(client.ask(f"{server.port}-def.elsewhere.test").status, 421)
            self.assertEqual(client.ask(f"{server.port}-abc.sbx.localhost").status, 200)

    def test_s081_tokens_belong_to_their_sandbox(self):
        server = self.serve()
        proxy = self.start("--sandbox", "one=127.0.0.1,token=secret", "--sandbox", "two=127.0.0.1,token=other", sandboxes=())
        with Client(proxy) as client:
            fields = [("e2b-traffic-access-token", "secret")]
            self.assertEqual(client.ask(self.host(server, "one")).status, 403)
            seen = self.seen(client.ask(self.host(server, "one"), fields=fields))
            self.assertNotIn("secret", str(seen))
            self.assertEqual(client.ask(self.host(server, "two"), fields=fields).status, 403)

    def test_s080_what_http2_forbids_never_reaches_the_sandbox(self):
        server = self.serve()
        proxy = self.start()
        host = self.host(server)
        with Client(proxy) as client:
            for fields in ([("connection", "x")], [("upgrade", "websocket")], [("transfer-encoding", "chunked")], [("te", "gzip")],
                           [("X-Upper", "1")], [("x", "a\r\nsmuggled: 1")], [("x", "a\nb")], [("keep-alive", "1")], [("x y", "1")],
                           [("content-length", "5")], [(":path", "/2")]):
                reset = client.ask(host, fields=fields)
                self.assertEqual((reset.status, reset.reset), (None, Codes.PROTOCOL_ERROR), fields)
            for path in ("", "x", "/a b", "/ä b", "/ä\x01", "/ä\x7f", "/\r\nx: y", "http://evil/"):
                reset = client.ask(host, path)
                self.assertEqual((reset.status, reset.reset), (None, Codes.PROTOCOL_ERROR), path)
            self.assertEqual(client.ask(host, fields=[("host", "other")]).status, 400)
            self.assertEqual(client.ask(host, method="FOO").status, 501)
            self.assertEqual(client.ask(host, method="TRACE").status, 405)
            for length, body in (("3", b"abcd"), ("5", b"abcd")):
                reset = client.ask(host, method="POST", fields=[("content-length", length)], body=body)
                self.assertEqual(reset.reset, Codes.PROTOCOL_ERROR)
            self.assertEqual(client.ask(host).status, 200)
        wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0)
        # Of the two whose body did not fit its length the heads may have gone out before that showed.
        lines = [connection.received.split(b"\r\n")[0] for connection in server.connections]
        self.assertEqual([line for line in lines if line and not line.startswith(b"POST")], [b"GET / HTTP/1.1"])
        self.assertNotIn(b"smuggled", server.received)

    def test_s082_cookie_crumbs_become_one_field(self):
        server = self.serve()
        with Client(self.start()) as client:
            seen = self.seen(client.ask(self.host(server), fields=[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2"), ("cookie", "c=3")]))
            self.assertEqual([value for name, value in seen["fields"] if name == "cookie"], ["a=1; b=2; c=3"])

    def test_case_165_the_same_request_is_the_same_by_http1_and_http2(self):
        server = self.serve()
        proxy = self.start()
        host = self.host(server)
        requests = [
            ("GET", "/", [], None), ("GET", "/a%2Fb//c/../d?x=1;y=%zz&&", [("accept", "*/*"), ("x-a", "1"), ("x-a", "2")], None),
            ("HEAD", "/h", [], None), ("DELETE", "/d", [], None), ("OPTIONS", "/o", [("origin", "http://x")], None),
            ("GET", "/ä€𝄞?ü=%fc", [], None), ("GET", b"/\xff\xc3?\x80", [], None),
            ("POST", "/p", [("content-length", "5"), ("content-type", "text/plain")], b"hello"),
            ("POST", "/empty", [("content-length", "0")], b""), ("PUT", "/u", [("content-length", "70000")], b"x" * 70000),
            ("PATCH", "/latin", [("x-l", "caf\xe9"), ("content-length", "1")], b"\xff"),
            ("GET", "/hop", [("te", "trailers"), ("forwarded", "for=x"), ("x-forwarded-for", "9.9.9.9"), ("e2b-sandbox-id", "zzz")], None),
            ("GET", "/auth", [("authorization", "Bearer t"), ("cookie", "a=b; c=d"), ("x-access-token", "k")], None),
        ]
        for method, path, fields, body in requests:
            before = len(server.received)
            path = path if isinstance(path, bytes) else path.encode()
            with proxy.connect() as client:
                lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
                client.send(f"{method} ".encode() + path + f" HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n".encode("latin-1") + (body or b""))
                first = client.response(to_head=method == "HEAD")
            by_http1 = server.received[before:]
            self.assertEqual(by_http1.split(b"\r\n")[0], f"{method} ".encode() + path + b" HTTP/1.1")
            before = len(server.received)
            with Client(proxy) as client:
                second = client.ask(host, path, method, [(n, v.encode("latin-1")) for n, v in fields], body=body)
            self.assertEqual(server.received[before:], by_http1, (method, path))
            self.assertEqual((second.status, second.body), (first.status, first.body))

    def test_body_without_a_length_is_chunked_for_the_sandbox(self):
        server = self.serve()
        with Client(self.start()) as client:
            stream = client.open(self.host(server), method="POST", end=False)
            client.send(stream, b"one ")
            client.send(stream, b"two", end=True)
            seen = self.seen(client.answer(stream))
            self.assertEqual(seen["body"], "one two")
            self.assertIn(["Transfer-Encoding", "chunked"], seen["fields"])

    def test_s050_expect_continue_and_other_interim_answers(self):
        def script(connection):
            _, fields = connection.head()
            connection.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
            self.assertEqual(connection.body(fields, False), b"body")
            connection.send(answer("done"))

        server = self.serve(script)
        with Client(self.start()) as client:
            stream = client.open(self.host(server), method="POST", fields=[("expect", "100-continue"), ("content-length", "4")], end=False)
            client.until(lambda: len(client.answers[stream].interim) == 2)
            self.assertEqual([hint[":status"] for hint in client.answers[stream].interim], ["103", "100"])
            self.assertEqual(client.answers[stream].interim[0]["link"], "</a>")
            client.send(stream, b"body", end=True)
            self.assertEqual(client.answer(stream).body, b"done")

    def test_answers_of_every_form(self):
        forms = {
            "/length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", "5"),
            "/empty": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", "0"),
            "/chunked": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, b"abcde", None),
            "/nothing": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200, b"", None),
            "/close": (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, b"until the end", None),
            "/204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", None),
            "/304": (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", 304, b"", None),
            "/hop": (b"HTTP/1.1 200 OK\r\nConnection: close, x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-UP: 2\r\n"
                     b"Content-Length: 1\r\n\r\nx", 200, b"x", "1"),
        }

        def script(connection):
            request = connection.request()
            connection.send(forms[request.line.split(" ")[1]][0])

        server = self.serve(script)
        with Client(self.start()) as client:
            for path, (_, status, body, length) in forms.items():
                got = client.ask(self.host(server), path)
                self.assertEqual((got.status, got.body, got.get("content-length"), got.reset), (status, body, length, None), path)
                for name in ("connection", "keep-alive", "transfer-encoding", "x-hop"):
                    self.assertIsNone(got.get(name))
            self.assertEqual(got.get("x-up"), "2")
            got = client.ask(self.host(server), "/length", "HEAD")
            self.assertEqual((got.status, got.body, got.get("content-length")), (200, b"", "5"))

    def test_s086_trailers_and_te(self):
        def script(connection):
            request = connection.request()
            self.assertEqual(request.get("TE"), "trailers")
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Grpc-Status\r\n\r\n"
                            "4\r\nbody\r\n0\r\nGrpc-Status: 0\r\nContent-Type: no\r\n\r\n")

        server = self.serve(script)
        with Client(self.start()) as client:
            got = client.ask(self.host(server), fields=[("te", "trailers")])
            self.assertEqual((got.body, got.trailers), (b"body", [("grpc-status", "0")]))

    def test_s086_trailers_of_requests(self):
        trailers = []

        def script(connection):
            connection.request()
            trailers.append(connection.trailers)
            connection.send(answer("ok"))

        server = self.serve(script)
        proxy = self.start()
        with Client(proxy) as client:
            stream = client.open(self.host(server), method="POST", end=False)
            client.send(stream, b"body")
            client.h2.send_headers(stream, [("x-checksum", "1234"), ("authorization", "no"), ("host", "no")], end_stream=True)
            client.flush()
            self.assertEqual(client.answer(stream).status, 200)
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nTransfer-Encoding: chunked\r\n\r\n"
                        "4\r\nbody\r\n0\r\nX-Checksum: 1234\r\nCookie: no\r\n\r\n")
            self.assertEqual(client.response().status, 200)
        self.assertEqual([[line.lower() for line in lines] for lines in trailers], [["x-checksum: 1234"]] * 2)

    def test_case_184_framing_in_trailers_of_requests(self):
        """Fields that HTTP/2 knows no more are malformed there, wherever they stand (RFC 9113 section 8.2.2)."""
        def script(connection):
            request = connection.request()
            seen.append((request.body, [line.lower() for line in connection.trailers]))
            connection.send(answer("ok"))

        seen = []
        server = self.serve(script)
        with Client(self.start()) as client:
            for fields, fits in (([("content-length", "4")], True), ([("host", "other")], True), ([("trailer", "x-sum")], True),
                                 ([("range", "bytes=0-1"), ("expect", "100-continue"), ("e2b-sandbox-id", "other")], True),
                                 ([("content-length", "5")], False), ([("connection", "close")], False), ([("upgrade", "x")], False),
                                 ([("transfer-encoding", "chunked")], False), ([(":path", "/other")], False)):
                stream = client.open(self.host(server), method="POST", end=False)
                client.send(stream, b"body")
                client.h2.send_headers(stream, [*fields, ("x-sum", "7")], end_stream=True)
                client.flush()
                got = client.answer(stream)
                self.assertEqual((got.status, got.reset), (200, None) if fits else (None, Codes.PROTOCOL_ERROR), fields)
                self.assertEqual(client.goaways, [])
        self.assertEqual(seen, [(b"body", ["x-sum: 7"])] * 4)

    def test_case_161_an_early_answer_ends_the_upload(self):
        def script(connection):
            connection.head()
            connection.take(1000)
            connection.send(answer("too large", "413 Content Too Large", "Connection: close\r\n"))
            connection.take_all()

        server = self.serve(script)
        with Client(self.start()) as client:
            stream = client.open(self.host(server), method="POST", end=False)
            client.send(stream, b"x" * (10 * MEGABYTE))
            got = client.answer(stream)
            client.until(lambda: client.answers[stream].reset is not None or got.ended)
            self.assertEqual((got.status, got.body), (413, b"too large"))
            self.assertEqual(client.ask("x").status, 400)

    def test_s034_an_upstream_that_breaks_off_is_never_an_end(self):
        for response in (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
                         b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"):
            server = self.serve(lambda connection, response=response: (connection.request(), connection.send(response)))
            proxy = self.start()
            with Client(proxy) as client:
                got = client.ask(self.host(server))
                self.assertEqual((got.status, got.body, got.ended, got.reset), (200, b"half", False, Codes.INTERNAL_ERROR))
            self.doCleanups()
            self.servers.clear()

    def test_s020_a_client_that_cancels_resets_the_sandbox_s_connection(self):
        gone = threading.Event()

        def script(connection):
            connection.request()
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            connection.take_all()
            if connection.reset:
                gone.set()

        server = self.serve(script)
        with Client(self.start()) as client:
            stream = client.open(self.host(server))
            client.until(lambda: client.answers[stream].body)
            client.h2.reset_stream(stream, Codes.CANCEL)
            client.flush()
            self.assertTrue(gone.wait(PATIENCE))
            other = self.serve()
            self.assertEqual(client.ask(self.host(other)).status, 200)

    def test_large_bodies_both_ways_in_constant_memory(self):
        size = 40 * MEGABYTE

        def script(connection):
            request_line, fields = connection.head()
            if request_line.startswith("POST"):
                digest, left = hashlib.md5(), int(dict((n.lower(), v) for n, v in fields)["content-length"])
                while left:
                    piece = connection.take(min(left, 65536))
                    if not piece:
                        return
                    digest.update(piece)
                    left -= len(piece)
                connection.send(answer(digest.hexdigest()))
                return
            connection.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")
            for n in range(size // 65536):
                connection.send(bytes([n % 251]) * 65536)

        server = self.serve(script)
        proxy = self.start()
        with Client(proxy) as client:
            before = proxy.memory_kib()
            stream = client.open(self.host(server))
            digest, got = hashlib.md5(), 0
            while not client.answers[stream].over:
                client.read()
                digest.update(client.answers[stream].body)
                got += len(client.answers[stream].body)
                client.answers[stream].body = b""
            expected = hashlib.md5()
            for n in range(size // 65536):
                expected.update(bytes([n % 251]) * 65536)
            self.assertEqual((got, digest.hexdigest()), (size, expected.hexdigest()))
            body = bytes(range(256)) * 4096 * 10
            sent = client.ask(self.host(server), method="POST", fields=[("content-length", str(len(body)))], body=body)
            self.assertEqual(sent.body.decode(), hashlib.md5(body).hexdigest())
            self.assertLess(proxy.memory_kib() - before, 8 * 1024)

    def test_every_answer_ends_while_its_connection_stays(self):
        """Around the marks, and whatever the window was while it came: read to its end by the client, it is over for all."""
        def script(connection):
            line, _ = connection.head()
            _, kind, size = line.split()[1].split("/")
            body = bytes(int(size))
            if kind == "chunks":
                connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for at in range(0, len(body), 30000):
                    connection.send(b"%x\r\n%s\r\n" % (len(body[at:at + 30000]), body[at:at + 30000]))
                connection.send(b"0\r\n\r\n")
            else:
                length = f"Content-Length: {size}\r\n" if kind == "length" else ""
                connection.send(f"HTTP/1.1 200 OK\r\n{length}Connection: close\r\n\r\n".encode() + body)

        server = self.serve(script)
        proxy = self.start()
        dials = 0
        for window in (0, 1, 30000, 65535):
            with Client(proxy, {SettingCodes.INITIAL_WINDOW_SIZE: window}) as client:
                asked = {client.open(self.host(server), f"/{kind}/{size}"): size for kind in ("length", "chunks", "end")
                         for size in (0, 1, 16384, 65535, 65536, 66000, 82000, 131000, 131072, 150000, 400000)}
                client.stalled.update(asked)
                dials += len(asked)
                wait_for(lambda: proxy.metric("proxy_dials_total") >= dials)
                for stream in asked:
                    client.h2.increment_flow_control_window(MEGABYTE, stream)
                client.flush()
                for stream, size in asked.items():
                    self.assertEqual(len(client.answer(stream).body), size)
                    self.assertTrue(client.answers[stream].ended)
                wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of what has been read to its end")

    def test_s075_tiny_chunks_keep_their_bytes(self):
        def script(connection):
            connection.request()
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + "1\r\nx\r\n" * 100000 + "0\r\n\r\n")

        server = self.serve(script)
        with Client(self.start()) as client:
            self.assertEqual(client.ask(self.host(server)).body, b"x" * 100000)


if __name__ == "__main__":
    main()
