#!/usr/bin/env python3
"""Bodies both ways: dialling, streaming, backpressure, early answers, cuts, and what ends when."""
import signal
import socket
import threading
import time

from support import PATIENCE, Connection, Cut, Server, Test, answer, closed_port, in_time, main, one_of, plain, unread, wait_for

MEGABYTE = 1 << 20


class Dialling(Test):
    def test_s011_closed_port_is_retried_for_about_three_seconds(self):
        keeper, port = closed_port()
        proxy = self.start()

        def is_as_planned():
            before = proxy.metric("proxy_dials_total")
            began = time.monotonic()
            response = proxy.ask(f"{port}-abc.d")
            took = time.monotonic() - began
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "port_closed"))
            self.assertLess(2.5, took)
            dials = proxy.metric("proxy_dials_total") - before
            self.assertLessEqual(dials, 8)
            return dials == 8 and took < 10

        one_of(is_as_planned, "eight attempts within ten seconds")
        keeper.close()

    def test_s011_client_that_leaves_ends_the_retries(self):
        keeper, port = closed_port()
        proxy = self.start()
        for end in (Connection.close, Connection.abort):
            def ends_early(end=end):
                before = proxy.metric("proxy_dials_total")
                client = proxy.connect()
                client.send(f"GET / HTTP/1.1\r\nHost: {port}-abc.d\r\n\r\n")
                wait_for(lambda: proxy.metric("proxy_dials_total") > before, "the dial")
                end(client)
                wait_for(lambda: proxy.active("abc") == 0, "the end of the dial")
                return proxy.metric("proxy_dials_total") - before < 8

            one_of(ends_early, "an end before the last")
        keeper.close()

    def test_s012_case_151_server_that_starts_late(self):
        proxy = self.start()

        def is_served():
            late = Server(plain)
            self.servers.append(late)
            before = proxy.metric("proxy_dial_retries_total")
            with proxy.connect() as client:
                client.send(f"POST /once HTTP/1.1\r\nHost: {self.host(late)}\r\nContent-Length: 3\r\n\r\nabc")
                wait_for(lambda: proxy.metric("proxy_dial_retries_total") >= before + 3, "the third try")
                late.start()
                response = client.response()
            if response.status == 502 and response.get("X-Proxy-Error") == "port_closed":
                return False  # it was too late
            self.assertEqual((response.status, response.json()["body"]), (200, "abc"))
            self.assertEqual(late.received.count(b"POST /once"), 1)
            return True

        one_of(is_served, "an answer of the late one")

    def test_s011_silent_host_has_the_same_budget(self):
        # A full accept queue drops SYNs, as a frozen guest does.
        deaf = socket.socket()
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
            fillers.append(filler)
        proxy = self.start()

        def ask():
            began = time.monotonic()
            response = proxy.ask(f"{deaf.getsockname()[1]}-abc.d")
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "upstream_timeout"))
            return time.monotonic() - began

        in_time(10, ask)
        for sock in (deaf, *fillers):
            sock.close()

    def test_s019_server_restarts_between_requests(self):
        first = self.serve()
        proxy = self.start("--sandbox", f"dev=127.0.0.1,envd={first.port}")
        self.assertEqual(proxy.ask("49983-dev.d").status, 200)
        port = first.port
        first.stop()
        second = Server(plain, port=port).start()
        self.servers.append(second)
        for _ in range(5):
            self.assertEqual(proxy.ask("49983-dev.d", method="POST", body="x").status, 200)


class Reuse(Test):
    """Kept connections, which only envd's port has."""

    def envd(self, script):
        server = self.serve(script)
        return server, self.start("--sandbox", f"dev=127.0.0.1,envd={server.port}", sandboxes=("abc",))

    workers = 1

    def test_user_ports_get_a_fresh_connection_each(self):
        server = self.serve()
        proxy = self.start()
        with proxy.connect() as client:
            for _ in range(3):
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
                self.assertEqual(client.response().status, 200)
        self.assertEqual(len(server.connections), 3)
        self.assertEqual(server.received.count(b"Connection: close\r\n"), 3)

    def test_s025_the_server_ends_a_connection_first(self):
        """Who ends it first keeps its ports for a minute, and the host has the fewer."""
        def script(connection):
            connection.request()
            connection.send(answer("ok"))
            connection.sock.settimeout(0.3)
            try:
                early.append(connection.read_some())
            except TimeoutError:
                early.append(None)
            connection.sock.settimeout(PATIENCE)
            try:
                if ends:
                    connection.half_close()
                connection.take_all()
            except OSError:  # it was given up before
                connection.reset = True
            resets.append(connection.reset)

        server = self.serve(script)
        proxy = self.start()
        for ends in (True, False):
            outcomes = []
            # One that does not come to its end is given up after a second. On a busy machine that may be before the
            # server has had its turn; then once more.
            while len(outcomes) < 5 and outcomes[-1:] != [(True, [None], [not ends])]:
                early, resets = [], []
                began = time.monotonic()
                self.assertEqual(proxy.ask(self.host(server)).status, 200)
                wait_for(lambda: proxy.active("abc") == 0, "the end of the exchange")
                nothing_waited_for = time.monotonic() - began < 0.25
                wait_for(lambda: resets, "the end at the server")
                outcomes.append((nothing_waited_for, early, resets))
            self.assertEqual(outcomes[-1], (True, [None], [not ends]), outcomes)

    def test_envd_port_is_kept(self):
        server, proxy = self.envd(plain)
        with proxy.connect() as client:
            for number in range(20):
                client.send(f"POST /{number} HTTP/1.1\r\nHost: 49983-dev.d\r\nContent-Length: 1\r\n\r\nx")
                self.assertEqual(client.response().status, 200)
        self.assertEqual(len(server.connections), 1)
        self.assertNotIn(b"onnection:", server.received)
        self.assertEqual(proxy.metric("proxy_upstream_reused_total"), 19)

    def test_s014_dead_connection_replays_only_what_is_safe(self):
        def script(connection):
            """Answers one request, then dies on the second without a byte."""
            first = len(server.connections) % 2
            connection.request()
            connection.send(answer("one"))
            if first:
                connection.request()
            else:
                plain(connection)

        server, proxy = self.envd(script)
        self.assertEqual(proxy.ask("49983-dev.d").status, 200)
        response = proxy.ask("49983-dev.d", "/again")
        self.assertEqual((response.status, response.body), (200, b"one"))
        self.assertEqual(server.received.count(b"GET /again"), 2)
        self.assertEqual(proxy.metric("proxy_replays_total"), 1)
        wait_for(lambda: proxy.metric("proxy_upstream_idle") == 1, "a kept connection")

    def test_s014_case_152_a_post_is_never_sent_twice(self):
        def script(connection):
            connection.request()
            connection.send(answer("one"))
            connection.request()

        server, proxy = self.envd(script)
        self.assertEqual(proxy.ask("49983-dev.d").status, 200)
        wait_for(lambda: proxy.metric("proxy_upstream_idle") == 1, "a kept connection")
        response = proxy.ask("49983-dev.d", "/post", "POST", body="x")
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "upstream_reset"))
        self.assertEqual(server.received.count(b"POST /post"), 1)

    def test_s015_what_comes_unasked_is_no_answer(self):
        go = threading.Event()

        def script(connection):
            connection.request()
            connection.send(answer("one"))
            go.wait(PATIENCE)
            connection.send(answer("poison"))
            connection.take_all()

        server, proxy = self.envd(script)
        self.assertEqual(proxy.ask("49983-dev.d").body, b"one")
        wait_for(lambda: proxy.metric("proxy_upstream_idle") == 1, "a kept connection")
        go.set()
        wait_for(lambda: proxy.metric("proxy_upstream_idle") == 0, "its end")
        self.assertEqual(proxy.ask("49983-dev.d").body, b"one")
        self.assertEqual(len(server.connections), 2)

    def test_s015_end_of_a_kept_connection(self):
        def script(connection):
            connection.request()
            connection.send(answer("one"))

        server, proxy = self.envd(script)
        for _ in range(10):
            self.assertEqual(proxy.ask("49983-dev.d", method="POST", body="x").status, 200)
            # The client has its answer before the connection is among those kept.
            wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of the exchange")
            wait_for(lambda: proxy.metric("proxy_upstream_idle") == 0, "the end noticed")
        self.assertEqual(len(server.connections), 10)

    def test_s045_bodies_where_none_belong_spoil_the_connection(self):
        replies = [b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", b"HTTP/1.1 304 Not Modified\r\n\r\nxx",
                   b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokEXTRA"]

        def script(connection):
            connection.request()
            connection.send(replies.pop(0))
            connection.take_all()

        server, proxy = self.envd(script)
        with proxy.connect() as client:
            for status in (204, 304, 200):
                client.send("GET / HTTP/1.1\r\nHost: 49983-dev.d\r\n\r\n")
                self.assertEqual(client.response().status, status)
            self.assertEqual(client.buffer, b"")
        self.assertEqual(len(server.connections), 3)

    def test_s018_case_154_nothing_kept_survives_its_lifecycle(self):
        first, second = self.serve(), self.serve()
        proxy = self.start("--allow-loopback-upstreams", sandboxes=())
        proxy.call("PUT", "/sandboxes/box", {"address": "127.0.0.1", "envd_port": first.port, "lifecycle_id": "one"})
        self.assertEqual(proxy.ask("49983-box.d").status, 200)
        wait_for(lambda: proxy.metric("proxy_upstream_idle") == 1, "a kept connection")
        proxy.call("PUT", "/sandboxes/box", {"address": "127.0.0.1", "envd_port": first.port, "lifecycle_id": "two"})
        wait_for(lambda: proxy.metric("proxy_upstream_idle") == 0, "its end")
        self.assertEqual(proxy.ask("49983-box.d").status, 200)
        proxy.call("PATCH", "/sandboxes/box", {"envd_port": second.port})
        self.assertEqual(proxy.ask("49983-box.d", "/moved").status, 200)
        self.assertIn(b"GET /moved", second.received)
        self.assertEqual(len(first.connections), 2)


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

    def test_s041_framing_in_trailers_is_not_passed(self):
        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nContent-Length: 9\r\n\r\n")

        server, proxy = self.through(script)
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            with self.assertRaises(Cut):
                client.response()
        self.assertNotIn(b"ength", client.received.partition(b"\r\n\r\n")[2])

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


class Bodies(Test):
    def test_s059_large_bodies_both_ways_in_constant_memory(self):
        size = 200 * MEGABYTE
        block = bytes(range(256)) * 4096

        def script(connection):
            line, _ = connection.head()
            if line.startswith("POST"):
                left = size
                while left:
                    left -= len(connection.take(min(left, MEGABYTE)))
                    connection.received = b""
                connection.send(answer("all"))
                return
            connection.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")
            for _ in range(size // len(block)):
                connection.send(block)

        server = self.serve(script)
        proxy = self.start()
        proxy.ask("1-nosuch.d")
        before = proxy.memory_kib()
        peak = 0
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            client.head()
            for number in range(size // len(block)):
                self.assertEqual(client.take(len(block)), block)
                client.received = b""
                if number % 20 == 0:
                    peak = max(peak, proxy.memory_kib())
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: {size}\r\n\r\n")
            for number in range(size // len(block)):
                client.send(block)
                if number % 20 == 0:
                    peak = max(peak, proxy.memory_kib())
            self.assertEqual(client.response().body, b"all")
        self.assertLess(peak - before, 8 * 1024)

    def test_s055_a_reader_that_stops_stops_the_sender(self):
        sent = [0]

        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            connection.sock.settimeout(None)
            connection.sock.setblocking(False)
            piece = b"x" * 65536
            while not stop.is_set():
                try:
                    sent[0] += connection.sock.send(piece)
                except BlockingIOError:
                    stop.wait(0.005)

        stop = threading.Event()
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            client.head()
            stable = [-1, 0]

            def settled():
                stable[1] = stable[1] + 1 if sent[0] == stable[0] else 0
                stable[0] = sent[0]
                return stable[1] > 60

            wait_for(settled, "a stop of the sender")
            # Kernel buffers hold some megabytes; the proxy itself a bounded part.
            self.assertLess(sent[0], 32 * MEGABYTE)
            self.assertLess(proxy.memory_kib(), 40 * 1024)
            at = sent[0]
            for _ in range(200):
                client.take(MEGABYTE // 4)
                client.received = b""
            wait_for(lambda: sent[0] > at, "more after reading on")
            stop.set()
            client.abort()

    def test_s055_a_server_that_does_not_read_stops_the_client(self):
        def script(connection):
            connection.head()
            stop.wait(PATIENCE)

        stop = threading.Event()
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: {1 << 40}\r\n\r\n")
            client.sock.setblocking(False)
            total, quiet = 0, 0
            while quiet < 100:
                try:
                    total += client.sock.send(b"x" * 65536)
                    quiet = 0
                except BlockingIOError:
                    quiet += 1
                    stop.wait(0.005)
            self.assertLess(total, 32 * MEGABYTE)
            self.assertLess(proxy.memory_kib(), 40 * 1024)
        stop.set()
        wait_for(lambda: proxy.active("abc") == 0, "the end")

    def test_s016_case_161_early_answer_to_a_large_upload(self):
        for keeps_reading in (True, False):
            for expect in ("", "Expect: 100-continue\r\n"):
                with self.subTest(keeps_reading=keeps_reading, expect=expect):
                    def script(connection, keeps_reading=keeps_reading):
                        connection.head()
                        connection.send(answer("too much", "413 Payload Too Large"))
                        if keeps_reading:
                            while connection.read_some():
                                connection.received = connection.buffer = b""

                    server = self.serve(script)
                    if not self.proxy:
                        self.start()
                    size = 50 * MEGABYTE
                    with self.proxy.connect() as client:
                        client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\n{expect}Content-Length: {size}\r\n\r\n")
                        response = [None]

                        def read(client=client, response=response):
                            response[0] = client.response()

                        reader = threading.Thread(target=read)
                        reader.start()
                        if not expect:
                            try:
                                for _ in range(size // MEGABYTE):
                                    client.send(b"x" * MEGABYTE)
                            except OSError:
                                pass
                        reader.join(PATIENCE)
                        self.assertIsNotNone(response[0])
                        self.assertEqual((response[0].status, response[0].body), (413, b"too much"))

    def test_s050_expectations(self):
        def script(connection):
            _, fields = connection.head()
            if dict(fields).get("Expect"):
                seen.append("expect")
            if behaviour == "continue":
                connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif behaviour == "refuse":
                connection.send(answer("no", "417 Expectation Failed"))
                return
            body = connection.take(3)
            connection.send(answer(body))

        seen = []
        behaviour = "continue"
        server = self.serve(script)
        proxy = self.start()
        head = f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 3\r\n"
        with proxy.connect() as client:
            client.send(head + "Expect: 100-Continue\r\n\r\n")
            self.assertEqual(client.response().status, 100)
            client.send("abc")
            self.assertEqual(client.response().body, b"abc")
        self.assertEqual(seen, ["expect"])
        behaviour = "refuse"

        def is_refused():
            with proxy.connect() as client:
                client.send(head + "Expect: 100-continue\r\n\r\n")
                response = client.response()
                if response.status == 100:
                    return False  # on a machine that stalls the server did not say so within a second
                self.assertEqual((response.status, response.body), (417, b"no"))
                self.assertEqual(client.take_all(), b"")
                return True

        one_of(is_refused, "a refusal before the proxy goes on")
        behaviour = "ignore"  # a server that knows nothing of it: the proxy says it after a second
        with proxy.connect() as client:
            client.send(head + "Expect: 100-continue\r\n\r\n")
            self.assertEqual(client.response().status, 100)
            client.send("abc")
            self.assertEqual(client.response().body, b"abc")
        # Never before it is known where the request goes.
        for host in ("1-nosuch.d", "x"):
            with proxy.connect() as client:
                client.send(f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
                self.assertGreaterEqual(client.response().status, 400)
        with proxy.connect() as client:
            client.send(head + "Expect: 200-maybe\r\n\r\nabc")
            response = client.response()
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (417, "expectation_failed"))

    def test_s020_client_that_aborts_aborts_the_request(self):
        for body, how in ((False, Connection.abort), (True, Connection.abort), (False, Connection.close), (True, Connection.close)):
            with self.subTest(body=body, how=how.__name__):
                def script(connection, body=body):
                    connection.head()
                    if body:
                        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
                    arrived.set()
                    connection.take_all()
                    gone.set()

                arrived, gone = threading.Event(), threading.Event()
                server = self.serve(script)
                if not self.proxy:
                    self.start()
                client = self.proxy.connect()
                client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 10\r\n\r\nabc")
                self.assertTrue(arrived.wait(PATIENCE))
                how(client)
                self.assertTrue(gone.wait(PATIENCE))
                self.assertTrue(server.connections[0].reset)

    @staticmethod
    def stays_behind(sock):
        """Some of what was sent has not been read, and is not going to be."""
        for _ in range(20):
            if unread(sock) == 0:
                return False
            time.sleep(0.005)
        return True

    def test_s020_client_that_leaves_while_its_upload_is_held_back(self):
        """The server reads nothing, so the proxy does not either; it notices all the same."""
        for how in (Connection.abort, Connection.close, Connection.half_close):
            with self.subTest(how=how.__name__):
                def script(connection):
                    connection.head()
                    go.wait(2 * PATIENCE)
                    connection.take_all()

                go = threading.Event()
                server = self.serve(script)
                if not self.proxy:
                    self.start()
                client = self.proxy.connect()
                client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 100000000\r\n\r\n")
                # Until some of it stays behind, but not so much that its end would find no room.
                while not self.stays_behind(client.sock):
                    client.send(bytes(65536))
                how(client)
                wait_for(lambda: self.proxy.active("abc") == 0, "the end of the exchange")
                go.set()
                wait_for(lambda: server.connections[0].reset, "the reset at the server")
                client.close()

    def test_long_poll_without_a_byte(self):
        """No limit of its own on how long an answer takes; the client's idle connection is no matter."""
        def script(connection):
            connection.request()
            go.wait(PATIENCE)
            connection.send(answer("late"))

        go = threading.Event()
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            client.sock.settimeout(2)
            with self.assertRaises(TimeoutError):
                client.sock.recv(1)
            go.set()
            client.sock.settimeout(PATIENCE)
            self.assertEqual(client.response().body, b"late")

    def test_chunked_upload(self):
        server = self.serve()
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number in range(100):
                client.send(b"%x\r\n%s\r\n" % (number + 1, b"z" * (number + 1)))
            client.send("0\r\n\r\n")
            self.assertEqual(client.response().json()["body"], "z" * 5050)


if __name__ == "__main__":
    main()
