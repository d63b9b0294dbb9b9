#!/usr/bin/env python3
"""HTTP/2 towards clients: what HTTP/1.1 does, seen through streams."""
import base64
import hashlib
import json
import struct
import threading
import time

from http2_support import ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, Client, Codes, Raw, SettingCodes, frame, head
from support import PATIENCE, Proxy, Test, answer, main, one_of, plain, program, wait_for

MEGABYTE = 1 << 20


def accept_of(request):
    key = request.get("Sec-WebSocket-Key") or ""
    return base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()


def upgrade(connection):
    """Accepts an upgrade; the request."""
    request = connection.request()
    connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    f"Sec-WebSocket-Accept: {accept_of(request)}\r\nX-Seen: yes\r\n\r\n")
    return request


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


class Streams(Test):
    def test_s073_one_reader_that_stalls_disturbs_no_other(self):
        def events(connection):
            request = connection.request()
            if "stall" in request.line:
                connection.sock.settimeout(None)  # it is the proxy that ends it
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            if "stall" in request.line:
                while True:
                    connection.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            for n in range(20):
                connection.send(f"7\r\nevent{n:02}\r\n")
            connection.send("0\r\n\r\n")

        server = self.serve(events)
        proxy = self.start()
        with Client(proxy) as client:
            stalled = client.open(self.host(server), "/stall")
            client.stalled.add(stalled)
            client.until(lambda: len(client.answers[stalled].body) >= 65535)
            before = proxy.memory_kib()
            streams = [client.open(self.host(server), f"/{n}") for n in range(99)]
            for stream in streams:
                self.assertEqual(client.answer(stream).body, b"".join(b"event%02d" % n for n in range(20)))
            self.assertEqual(len(client.answers[stalled].body), 65535)
            self.assertLess(proxy.memory_kib() - before, 8 * 1024)
            client.h2.reset_stream(stalled)
            client.flush()
            wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0)

    def test_s072_each_event_comes_by_itself(self):
        seen = threading.Semaphore(0)
        events = [b"data: 1\n\n", b"data: \xc3", b"\xa9\r\n", b":", b"\n" * 3, b"x" * 300000, b"end"]

        def script(connection):
            connection.request()
            connection.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in events:
                connection.send(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                # Nothing more until the client has it: what is held back would never come.
                self.assertTrue(seen.acquire(timeout=PATIENCE))
            connection.send("0\r\n\r\n")

        server = self.serve(script)
        with Client(self.start()) as client:
            stream = client.open(self.host(server))
            expected = b""
            for event in events:
                expected += event
                client.until(lambda expected=expected: client.answers[stream].body == expected)
                seen.release()
            self.assertTrue(client.answer(stream).ended)

    def test_s083_no_window_then_one_by_settings(self):
        server = self.serve(lambda connection: (connection.request(), connection.send(answer(b"y" * 100000))))
        proxy = self.start()
        import h2.settings
        with Client(proxy, settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}) as client:
            streams = [client.open(self.host(server)) for _ in range(3)]
            client.until(lambda: all(client.answers[stream].status for stream in streams))
            self.assertEqual(client.answers[streams[0]].body, b"")
            client.h2.increment_flow_control_window(200000, streams[1])
            client.flush()
            self.assertEqual(len(client.answer(streams[1]).body), 100000)
            self.assertEqual(client.answers[streams[0]].body, b"")
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 500000})
            client.flush()
            for stream in (streams[0], streams[2]):
                self.assertEqual(len(client.answer(stream).body), 100000)

    def test_s087_more_streams_than_allowed_are_refused(self):
        release = threading.Event()

        def script(connection):
            connection.request()
            release.wait(PATIENCE)
            connection.send(answer("late"))

        server = self.serve(script)
        proxy = self.start()
        with Client(proxy) as client:
            import h2.settings
            self.assertEqual(client.settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS], 100)
            # A client that does not mind.
            client.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
            client.h2.remote_settings.acknowledge()
            streams = [client.open(self.host(server)) for _ in range(110)]
            for stream in streams[100:]:
                self.assertEqual(client.answer(stream).reset, Codes.REFUSED_STREAM)
            wait_for(lambda: proxy.metric("proxy_dials_total") == 100)
            release.set()
            for stream in streams[:100]:
                self.assertEqual(client.answer(stream).body, b"late")
            self.assertEqual(client.ask(self.host(server)).body, b"late")
        self.assertEqual(proxy.metric("proxy_http2_refused_total"), 10)

    def test_idle_connections_cost_little_and_serve_as_before(self):
        server = self.serve()
        proxy = self.start()

        def ask(client):
            self.assertEqual(client.ask(self.host(server), fields=[("x-kept", "in HPACK's table")]).status, 200)

        def connect(count):
            clients = [Client(proxy) for _ in range(count)]
            for client in clients:
                self.addCleanup(client.close)
                ask(client)
            return clients

        clients = connect(50)
        wait_for(lambda: proxy.metric("proxy_http2_connections_resting") == 50)
        before = proxy.memory_kib()
        clients += connect(200)
        wait_for(lambda: proxy.metric("proxy_http2_connections_resting") == 250)
        each = (proxy.memory_kib() - before) / 200
        if "asan" not in program():
            self.assertLess(each, 22 if proxy.over_tls else 6, "KiB for a connection that rests")
        for client in clients:
            ask(client)
        self.assertEqual(proxy.metric("proxy_http2_requests_total"), 500)

    def test_s084_drain_loses_no_request(self):
        release = threading.Event()

        def script(connection):
            connection.request()
            release.wait(PATIENCE)
            connection.send(answer("finished"))

        def is_drained():
            release.clear()
            server = self.serve(script)
            proxy = self.start("--drain-ms", str(drain_ms))
            # By hand: for python-h2 a connection is over with the first GOAWAY.
            with Raw(proxy) as client:
                client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, head(self.host(server))))
                wait_for(lambda: proxy.metric("proxy_dials_total") == 1)
                began = time.monotonic()
                proxy.process.send_signal(15)
                # When two thirds of the time are over also to who has requests open.
                notice = client.read_until(GOAWAY)
                # This one crosses the notice, and is still served.
                client.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, head(self.host(server))))
                ping = client.read_until(PING)
                if ping:
                    client.send(frame(PING, ACK, 0, ping[3]))
                last = client.read_until(GOAWAY)
                client.send(frame(HEADERS, END_HEADERS | END_STREAM, 5, head(self.host(server))))
                release.set()
                while client.read_frame():
                    pass
                took = time.monotonic() - began
                bodies = {stream: payload for kind, _, stream, payload in client.frames if kind == DATA}
                reset = client.connection.reset
            self.assertEqual(proxy.stop(), 0)
            if took * 1000 >= drain_ms:
                return False  # on a machine that stalls the time was over before
            self.assertEqual((notice[3], last[3]), (struct.pack(">II", 2 ** 31 - 1, 0), struct.pack(">II", 3, 0)))
            self.assertEqual(bodies, {1: b"finished", 3: b"finished"})
            self.assertFalse(reset)
            return True

        drain_ms = 9000
        one_of(is_drained, "an end before the time is over")

    def test_s084_clients_that_take_goaway_for_the_end_lose_nothing(self):
        release = threading.Event()

        def script(connection):
            connection.request()
            release.wait(PATIENCE)
            connection.send(answer("finished"))

        server = self.serve(script)
        proxy = self.start()
        with Client(proxy) as client:
            stream = client.open(self.host(server))
            wait_for(lambda: proxy.metric("proxy_dials_total") == 1)
            proxy.process.send_signal(15)
            wait_for(lambda: proxy.call("GET", "/health")[0] == 503)
            another = client.open(self.host(server))
            wait_for(lambda: proxy.metric("proxy_dials_total") == 2)
            release.set()
            self.assertEqual([client.answer(each).body for each in (stream, another)], [b"finished"] * 2)
            client.until(lambda: client.goaways)
        self.assertEqual(proxy.stop(), 0)

    def test_s071_drain_ends_what_stays(self):
        def script(connection):
            upgrade(connection)
            connection.take_all()

        server = self.serve(script)
        proxy = self.start("--drain-ms", "300")
        with Client(proxy) as client:
            stream = client.open(self.host(server), method="CONNECT", protocol="websocket", end=False)
            client.until(lambda: client.answers[stream].status == 200)
            proxy.process.send_signal(15)
            rest = b""
            try:
                while piece := client.connection.sock.recv(65536):
                    rest += piece
                self.fail("the connection ended as if nothing was cut")
            except ConnectionResetError:
                pass
            self.assertIn(frame(GOAWAY, 0, 0, struct.pack(">II", stream, 0)), rest)
            self.assertNotIn(frame(DATA, END_STREAM, stream), rest)
        self.assertEqual(proxy.stop(), 0)

    def test_sandbox_that_goes_resets_its_streams_alone(self):
        def script(connection):
            connection.request()
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            connection.take_all()

        server, other = self.serve(script), self.serve(plain)
        proxy = self.start(sandboxes=("abc", "def"))
        with Client(proxy) as client:
            stream = client.open(self.host(server))
            client.until(lambda: client.answers[stream].body)
            proxy.call("DELETE", "/sandboxes/abc")
            self.assertEqual(client.answer(stream).reset, Codes.INTERNAL_ERROR)
            self.assertEqual(client.ask(self.host(other, "def")).status, 200)


class WebSockets(Test):
    def connect(self, client, server, fields=()):
        return client.open(self.host(server), "/chat?x=1", "CONNECT", [("sec-websocket-version", "13"), *fields], end=False,
                           protocol="websocket")

    def test_s069_extended_connect_becomes_an_upgrade(self):
        requests = []

        def script(connection):
            requests.append(upgrade(connection))
            while connection.read_some():
                connection.send(connection.buffer)
                connection.buffer = b""

        server = self.serve(script)
        proxy = self.start()
        with Client(proxy) as client:
            import h2.settings
            self.assertEqual(client.settings[h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL], 1)
            stream = self.connect(client, server, [("sec-websocket-protocol", "chat"), ("origin", "http://x"), ("sec-websocket-key", "mine")])
            client.until(lambda: client.answers[stream].status)
            got = client.answers[stream]
            self.assertEqual((got.status, got.get("x-seen"), got.get("upgrade"), got.get("sec-websocket-accept")), (200, "yes", None, None))
            for size in (1, 1000, 300000):
                before = len(got.body)
                client.send(stream, b"z" * size)
                client.until(lambda: len(got.body) == before + size)
            # Half-close: the server goes on until it has seen the end.
            client.send(stream, b"bye", end=True)
            client.until(lambda: got.ended)
            self.assertTrue(got.body.endswith(b"bye"))
        self.assertEqual(requests[0].line, "GET /chat?x=1 HTTP/1.1")
        self.assertEqual(requests[0].get("Upgrade"), "websocket")
        self.assertEqual(requests[0].get("sec-websocket-protocol"), "chat")
        self.assertEqual(len(base64.b64decode(requests[0].get("Sec-WebSocket-Key"))), 16)
        self.assertEqual(len(requests[0].all("Sec-WebSocket-Key")), 1)
        self.assertEqual(proxy.metric("proxy_tunnels_total"), 1)

    def test_s063_a_refusal_is_passed_on(self):
        server = self.serve(lambda connection: (connection.request(), connection.send(answer("who?", "401 Unauthorized"))))
        with Client(self.start()) as client:
            stream = self.connect(client, server)
            got = client.answer(stream)
            self.assertEqual((got.status, got.body), (401, b"who?"))

    def test_s064_an_answer_that_is_none_to_our_key(self):
        def script(connection):
            connection.request()
            connection.send("HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: wrong\r\n\r\nframes")
            connection.take_all()

        server = self.serve(script)
        with Client(self.start()) as client:
            got = client.answer(self.connect(client, server))
            self.assertEqual((got.status, got.get("x-proxy-error")), (502, "upstream_protocol"))
            self.assertEqual((json.loads(got.body)["sandboxId"], json.loads(got.body)["port"]), ("abc", server.port))
        self.assertEqual(self.proxy.metric("proxy_errors_total", **{"class": "upstream_protocol"}), 1)
        self.assertEqual(self.proxy.metric("proxy_tunnels_total"), 0)
        wait_for(lambda: server.connections[0].reset, "the reset at the server")

    def test_s063_s069_an_ordinary_answer_is_no_websocket(self):
        """To extended CONNECT any 2xx would say that there is one."""
        def script(connection):
            request = connection.request()
            status = request.line.split("=")[1].split()[0]
            connection.send(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n" if status != "206" else
                            "HTTP/1.1 206 X\r\nConnection: close\r\n\r\nno frames")

        server = self.serve(script)
        with Client(self.start()) as client:
            for status in (200, 204, 206, 299, 302, 304, 401, 426, 503):
                stream = client.open(self.host(server), f"/?status={status}", "CONNECT", [("sec-websocket-version", "13")], end=False,
                                     protocol="websocket")
                got = client.answer(stream)
                if status < 300:
                    self.assertEqual((got.status, got.get("x-proxy-error"), json.loads(got.body)["port"]),
                                     (502, "upstream_protocol", server.port), status)
                else:
                    self.assertEqual((got.status, got.get("x-proxy-error"), got.body), (status, None, b""))
        self.assertEqual(self.proxy.metric("proxy_tunnels_total"), 0)

    def test_plain_connect_and_other_protocols_are_refused(self):
        server = self.serve()
        with Client(self.start()) as client:
            stream = client.h2.get_next_available_stream_id()
            from http2_support import Answer
            client.answers[stream] = Answer()
            client.h2.send_headers(stream, [(":method", "CONNECT"), (":authority", self.host(server))])
            client.flush()
            self.assertEqual(client.answer(stream).status, 405)
            self.assertEqual(client.answer(client.open(self.host(server), method="CONNECT", protocol="connect-udp", end=False)).status, 501)

    def test_s065_the_server_ends_first(self):
        def script(connection):
            upgrade(connection)
            connection.send("last words")
            connection.half_close()
            self.assertEqual(connection.take_all(), b"mine come later")

        server = self.serve(script)
        with Client(self.start()) as client:
            stream = self.connect(client, server)
            client.until(lambda: client.answers[stream].ended)
            self.assertEqual(client.answers[stream].body, b"last words")
            client.send(stream, b"mine come later", end=True)
            wait_for(lambda: server.threads and not server.threads[0].is_alive())

    def test_s066_resets_pass_both_ways(self):
        done = threading.Event()

        def script(connection):
            request = upgrade(connection)
            if "reset" in (request.get("x-mode") or ""):
                connection.take(1)
                connection.abort()
                return
            connection.take_all()
            if connection.reset:
                done.set()

        server = self.serve(script)
        with Client(self.start()) as client:
            stream = self.connect(client, server, [("x-mode", "reset")])
            client.until(lambda: client.answers[stream].status)
            client.send(stream, b"x")
            self.assertEqual(client.answer(stream).reset, Codes.CANCEL)
            stream = self.connect(client, server)
            client.until(lambda: client.answers[stream].status)
            client.h2.reset_stream(stream, Codes.CANCEL)
            client.flush()
            self.assertTrue(done.wait(PATIENCE))

    def test_s068_masked_hosts_are_masked_for_websockets_too(self):
        requests = []
        server = self.serve(lambda connection: (requests.append(upgrade(connection)), connection.take_all()))
        with Client(self.start("--sandbox", "abc=127.0.0.1,mask=localhost:${PORT}", sandboxes=())) as client:
            stream = self.connect(client, server)
            client.until(lambda: client.answers[stream].status)
            wait_for(lambda: requests)
            self.assertEqual(requests[0].get("Host"), f"localhost:{server.port}")
            self.assertEqual(requests[0].get("X-Forwarded-Host"), self.host(server))


if __name__ == "__main__":
    main()
