#!/usr/bin/env python3
"""Answers of every form: where they end, what is passed on of them, and when."""
import signal
import threading
import time

from http2_support import Client
from support import PATIENCE, Connection, Cut, Test, answer, in_time, main


def late_framing(connection):
    """In its trailers this server says everything that only heads may say."""
    while connection.request().line:
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: X-Hop\r\n\r\n2\r\nok\r\n0\r\n"
                        "Content-Length: 9\r\nContent-Length: x\r\nTransfer-Encoding: chunked\r\nHost: other\r\nConnection: close, upgrade\r\n"
                        "Upgrade: websocket\r\nTrailer: X-Sum\r\nX-Hop: 1\r\nLocation: /\r\nVary: *\r\nX-Sum: 7\r\n\r\n")


class Responses(Test):
    def through(self, script, *flags):
        server = self.serve(script)
        return server, self.start(*flags)

    def test_s021_close_delimited(self):
        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.0 200 OK\r\n\r\nhello")
            if cut:
                arrived.wait(PATIENCE)
                connection.abort()

        arrived = threading.Event()
        cut = False
        server, proxy = self.through(script)
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            response = client.response()
            self.assertEqual((response.get("Transfer-Encoding"), response.body), ("chunked", b"hello"))
        response = proxy.ask(self.host(server), version="1.0")
        self.assertEqual((response.get("Transfer-Encoding"), response.body), (None, b"hello"))
        cut = True
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            client.take_until(b"hello")
            arrived.set()
            self.assertNotIn(b"0\r\n\r\n", client.take_all())
            self.assertTrue(client.reset)

    def test_s021_a_reset_right_behind_the_last_byte(self):
        """Also when both are there before the proxy looks."""
        def script(connection):
            connection.request()
            asked.set()
            go.wait(PATIENCE)
            connection.send(b"HTTP/1.0 200 OK\r\n\r\nhello")
            connection.abort()
            gone.set()

        server, proxy = self.through(script)
        for _ in range(5):
            asked, go, gone = threading.Event(), threading.Event(), threading.Event()
            with proxy.connect() as client:
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
                self.assertTrue(asked.wait(PATIENCE))
                proxy.process.send_signal(signal.SIGSTOP)
                go.set()
                self.assertTrue(gone.wait(PATIENCE))
                proxy.process.send_signal(signal.SIGCONT)
                got = client.take_all()
            self.assertTrue(client.reset or b" 502 " in got, got)
            self.assertNotIn(b"0\r\n\r\n", got)

    def test_s017_cut_in_the_middle_is_a_reset(self):
        for head, how in (("Content-Length: 100000", Connection.abort), ("Content-Length: 100000", Connection.close),
                          ("Transfer-Encoding: chunked", Connection.abort), ("Transfer-Encoding: chunked", Connection.close)):
            with self.subTest(head=head, how=how.__name__):
                def script(connection, head=head, how=how):
                    connection.request()
                    connection.send(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nhello\r\n")
                    arrived.wait(PATIENCE)
                    how(connection)

                arrived = threading.Event()
                server = self.serve(script)
                if not self.proxy:
                    self.start()
                with self.proxy.connect() as client:
                    client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
                    client.take_until(b"hello")
                    arrived.set()
                    rest = client.take_all()
                    self.assertTrue(client.reset)
                    self.assertNotIn(b"0\r\n\r\n", rest)

    def test_s023_s052_answers_that_are_not_http(self):
        cases = [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x15\x03\x01\x00\x02\x02\x46", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                 b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"HTTP/1.1 99 Low\r\n\r\n",
                 b"HTTP/1.1 1000 High\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                 b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad name: x\r\n\r\n",
                 b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200000 + b"\r\n\r\n", b"HTTP/1.1 103 Early\r\n\r\n" * 50]
        for reply in cases:
            with self.subTest(reply=reply[:40]):
                def script(connection, reply=reply):
                    connection.request()
                    connection.send(reply)
                    connection.take_all()

                server = self.serve(script)
                if not self.proxy:
                    self.start()
                with self.proxy.connect() as client:
                    client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: close\r\n\r\n")
                    response = client.response()
                    while response.status == 103:
                        response = client.response()
                self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "upstream_protocol"))
                self.assertNotIn(b"SSH", response.body)

    def test_s014_server_that_closes_without_an_answer(self):
        for how in (Connection.close, Connection.abort):
            def script(connection, how=how):
                connection.request()
                how(connection)

            server = self.serve(script)
            if not self.proxy:
                self.start()
            response = self.proxy.ask(self.host(server))
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "upstream_reset"))
            self.assertEqual(len(server.connections), 1)

    def test_s024_large_response_heads_pass(self):
        fields = "".join(f"Set-Cookie: c{i}={'x' * 300}\r\n" for i in range(150))

        def script(connection):
            connection.request()
            connection.send(answer("ok", fields=fields))

        server, proxy = self.through(script)
        response = proxy.ask(self.host(server))
        self.assertEqual(response.all("Set-Cookie"), [f"c{i}={'x' * 300}" for i in range(150)])

    def test_s051_interim_responses(self):
        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n")
            connection.send(answer("done"))

        server, proxy = self.through(script)
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            first, second, last = (client.response() for _ in range(3))
        self.assertEqual((first.status, second.status, second.get("Link"), last.status, last.body),
                         (102, 103, "</a>", 200, b"done"))
        self.assertIsNone(second.get("Connection"))
        self.assertEqual(proxy.ask(self.host(server), version="1.0").status, 200)

    def test_hop_by_hop_fields_of_responses_end_here(self):
        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.1 200 Fine\r\nConnection: X-Hop, close, Content-Length, Set-Cookie\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
                            b"Proxy-Authenticate: Basic\r\nSet-Cookie: a=b\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\nServer: mine\r\n"
                            b"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2;x=y\r\nok\r\n0\r\nX-Sum: 7\r\nSet-Cookie: late=1\r\n\r\n")

        server, proxy = self.through(script)
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            response = client.response()
            self.assertEqual(response.body, b"ok")
            trailers = client.trailers
        names = [name.lower() for name, _ in response.fields]
        for gone in ("x-hop", "keep-alive", "proxy-authenticate"):
            self.assertNotIn(gone, names)
        self.assertEqual((response.get("Date"), response.get("Server")), ("Tue, 15 Nov 1994 08:12:31 GMT", "mine"))
        self.assertEqual(names.count("date"), 1)
        self.assertEqual(trailers, ["X-Sum: 7"])

    def test_case_184_s041_framing_in_trailers_breaks_no_answer(self):
        server, proxy = self.through(late_framing)
        with proxy.connect() as client:
            for _ in range(2):  # and the connection goes on
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
                response = client.response()
                self.assertEqual((response.status, response.body, client.trailers), (200, b"ok", ["X-Sum: 7"]))
        with Client(proxy) as client:
            for _ in range(2):
                got = client.ask(self.host(server))
                self.assertEqual((got.status, got.body, got.trailers, got.ended), (200, b"ok", [("x-sum", "7")], True))

    def test_case_186_only_the_proxy_says_its_errors(self):
        def script(connection):
            request = connection.request()
            if "/tunnel" in request.line:
                connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                                "X-Proxy-Error: port_closed\r\nX-Own: 1\r\n\r\n")
                connection.take_all()
                return
            connection.send("HTTP/1.1 103 Early Hints\r\nx-proxy-error: sandbox_paused\r\nX-Own: 1\r\n\r\n"
                            "HTTP/1.1 502 Bad Gateway\r\nX-PROXY-ERROR: sandbox_not_found\r\nX-Own: 1\r\nTransfer-Encoding: chunked\r\n"
                            "Set-Cookie: sandbox-access=v1.1.00\r\nSet-Cookie:  __Host-sandbox-access = x; Path=/\r\nSet-Cookie: sandbox-accessory=1\r\n\r\n"
                            "2\r\nok\r\n0\r\nX-Proxy-Error: late\r\nX-Sum: 7\r\n\r\n")

        server, proxy = self.through(script)
        host = self.host(server)
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Proxy-Error: mine\r\n\r\n")
            hint, last = client.response(), client.response()
            self.assertEqual([(each.status, each.get("X-Proxy-Error"), each.get("X-Own")) for each in (hint, last)],
                             [(103, None, "1"), (502, None, "1")])
            self.assertEqual((last.body, client.trailers), (b"ok", ["X-Sum: 7"]))
            self.assertEqual(last.all("Set-Cookie"), ["sandbox-accessory=1"])
        self.assertNotIn(b"X-Proxy-Error", server.received)
        with proxy.connect() as client:
            client.send(f"GET /tunnel HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            upgraded = client.response()
            self.assertEqual((upgraded.status, upgraded.get("X-Proxy-Error"), upgraded.get("X-Own")), (101, None, "1"))
        self.assertEqual(proxy.ask("1-nosuch.test").get("X-Proxy-Error"), "sandbox_not_found")

    def test_case_179_event_streams_are_not_for_collecting(self):
        kinds = {"/events": ("Content-Type: text/event-stream; charset=utf-8", "no"), "/connect": ("content-type: Application/Connect+json", "no"),
                 "/grpc": ("Content-Type: application/grpc-web+proto", "no"), "/lines": ("Content-Type: application/x-ndjson", "no"),
                 "/own": ("Content-Type: text/event-stream\r\nx-accel-buffering: yes", "yes"), "/json": ("Content-Type: application/json", None),
                 "/text": ("Content-Type: text/event", None), "/none": ("X-A: b", None)}

        def script(connection):
            connection.send(answer("ok", fields=kinds[connection.request().line.split()[1]][0] + "\r\n"))

        server, proxy = self.through(script)
        with Client(proxy) as http2:
            for path, (field, expected) in kinds.items():
                self.assertEqual(proxy.ask(self.host(server), path).all("X-Accel-Buffering"), [expected] if expected else [], field)
                self.assertEqual(http2.ask(self.host(server), path).get("x-accel-buffering"), expected, field)

    def test_s045_head_204_304(self):
        replies = {"/head": b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", "/204": b"HTTP/1.1 204 No Content\r\n\r\n",
                   "/304": b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 99\r\n\r\n"}

        def script(connection):
            connection.send(replies[connection.request().line.split()[1]])

        server, proxy = self.through(script)
        with proxy.connect() as client:
            for method, path, status in (("HEAD", "/head", 200), ("GET", "/204", 204), ("GET", "/304", 304), ("HEAD", "/head", 200)):
                client.send(f"{method} {path} HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
                response = client.response(to_head=True)
                self.assertEqual(response.status, status)
                if method == "HEAD":
                    self.assertEqual(response.get("Content-Length"), "1234")
                if status == 204:
                    self.assertIsNone(response.get("Content-Length"))

    def test_s072_case_160_each_piece_at_once(self):
        for head, frame in (("Content-Type: text/event-stream\r\nTransfer-Encoding: chunked", True),
                            ("Content-Type: application/json\r\nContent-Encoding: gzip", False)):
            go = threading.Semaphore(0)
            sent = []

            def script(connection, head=head, frame=frame):
                connection.request()
                connection.send(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n")
                for number in range(30):
                    go.acquire()
                    piece = f"data: {number}\n\n".encode()
                    sent.append(time.monotonic())
                    connection.send(b"%x\r\n%s\r\n" % (len(piece), piece) if frame else piece)

            server = self.serve(script)
            if not self.proxy:
                self.start()

            def usual():
                del sent[:]
                with self.proxy.connect() as client:
                    client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
                    client.head()
                    took = []
                    for number in range(30):
                        go.release()
                        self.assertIn(b"data: %d\n" % number, client.take_until(b"\n\n\r\n"))
                        took.append(time.monotonic() - sent[number])
                    return sorted(took)[15]

            # What waits for more waits for ever here; what waits for a timer does so each time.
            in_time(0.05, usual)

    def test_s075_a_million_tiny_chunks(self):
        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for start in range(0, 200000, 10000):
                connection.send(b"".join(b"1\r\n%c\r\n" % (97 + i % 26) for i in range(start, start + 10000)))
            connection.send(b"0\r\n\r\n")

        server, proxy = self.through(script)
        response = proxy.ask(self.host(server), version="1.0")
        self.assertEqual(response.body, bytes(97 + i % 26 for i in range(200000)))

    def test_s060_encodings_are_not_touched(self):
        def script(connection):
            request = connection.request()
            connection.send(answer(b"\x1f\x8b not really", fields=f"Content-Encoding: gzip\r\nX-Got: {request.get('Accept-Encoding')}\r\n"))

        server, proxy = self.through(script)
        response = proxy.ask(self.host(server), fields="Accept-Encoding: br;q=1, gzip\r\n")
        self.assertEqual((response.body, response.get("Content-Encoding"), response.get("X-Got")),
                         (b"\x1f\x8b not really", "gzip", "br;q=1, gzip"))
        self.assertEqual(proxy.ask(self.host(server)).get("X-Got"), "None")


if __name__ == "__main__":
    main()
