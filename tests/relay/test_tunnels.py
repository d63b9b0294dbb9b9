#!/usr/bin/env python3
"""Upgrades: the handshake, raw bytes both ways, and the ends of a tunnel."""
import json
import os
import threading

from support import OVER_TLS, Connection, Test, answer, main, program, quiet_for, wait_for
from tunnel_support import ASK, SWITCH

MEGABYTE = 1 << 20


class Tunnels(Test):
    def open(self, client, server, fields=ASK, extra=b"", sandbox="abc"):
        client.send(f"GET /socket?x=1 HTTP/1.1\r\nHost: {self.host(server, sandbox)}\r\n{fields}\r\n".encode() + extra)
        return client.response()

    def echo(self, connection):
        connection.request()
        connection.send(SWITCH)
        while connection.read_some():
            data, connection.buffer = connection.buffer, b""
            connection.send(data)

    def test_s061_case_155_handshake_passes_exactly(self):
        server = self.serve(self.echo)
        proxy = self.start()
        with proxy.connect() as client:
            response = self.open(client, server)
            self.assertEqual((response.status, response.get("Upgrade"), response.get("Connection")), (101, "WebSocket", "Upgrade"))
            self.assertEqual(response.get("Sec-WebSocket-Accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
            self.assertEqual(response.get("Sec-WebSocket-Protocol"), "chat")
            self.assertIsNone(response.get("Content-Length"))
            self.assertIsNone(response.get("Transfer-Encoding"))
            seen = server.received
            for line in ASK.split("\r\n")[2:-1]:
                self.assertIn(line.encode() + b"\r\n", seen)
            self.assertEqual(seen.count(b"\r\nUpgrade: websocket\r\n"), 1)
            self.assertEqual(seen.count(b"\r\nConnection: Upgrade\r\n"), 1)
            for frame in (b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", b"\xc1\x87" + os.urandom(11), b"GET / HTTP/1.1\r\n\r\n"):
                client.send(frame)
                self.assertEqual(client.take(len(frame)), frame)
            client.half_close()
            self.assertEqual(client.take_all(), b"")
            self.assertFalse(client.reset)
        self.assertEqual(proxy.metric("proxy_tunnels_total"), 1)

    def test_s062_first_frames_come_with_the_handshake(self):
        def script(connection):
            connection.request()
            connection.send(SWITCH + b"first frame")
            self.assertEqual(connection.take(11), b"early bytes")
            connection.send(b"second")

        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            self.assertEqual(self.open(client, server, extra=b"early bytes").status, 101)
            self.assertEqual(client.take_all(), b"first framesecond")

    def test_s062_bytes_for_a_tunnel_that_never_was(self):
        def script(connection):
            connection.request()
            connection.send(answer("no", "403 Forbidden"))
            connection.take_all()

        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            response = self.open(client, server, extra=b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual((response.status, response.body), (403, b"no"))
            self.assertEqual(client.take_all(), b"")
        self.assertNotIn(b"smuggled", server.received)

    def test_s063_refusals_pass_with_their_body(self):
        for status in ("401 Unauthorized", "404 Not Found", "200 OK", "426 Upgrade Required"):
            def script(connection, status=status):
                connection.request()
                connection.send(answer(f"because {status}", status, "Upgrade: websocket\r\nWWW-Authenticate: Basic\r\n"))

            server = self.serve(script)
            if not self.proxy:
                self.start()
            with self.proxy.connect() as client:
                response = self.open(client, server)
            self.assertEqual((response.status, response.body.decode()), (int(status[:3]), f"because {status}"))
            self.assertEqual(response.get("WWW-Authenticate"), "Basic")

    def test_upgrade_required_says_to_what(self):
        def script(connection):
            while (request := connection.request()).line:
                status = request.line.split(" ")[1][1:].replace("-", " ")
                connection.send(answer("no", status, "Upgrade: tls/1.2\r\nConnection: Upgrade\r\n"))

        server = self.serve(script)
        proxy = self.start()
        for version, fields, status, expected in (
                ("1.1", "", "426-Upgrade-Required", ("tls/1.2", "Upgrade")),
                ("1.1", "Connection: close\r\n", "426-Upgrade-Required", ("tls/1.2", "close, Upgrade")),
                ("1.0", "Connection: keep-alive\r\n", "426-Upgrade-Required", ("tls/1.2", "keep-alive, Upgrade")),
                ("1.1", "", "200-OK", (None, None))):
            with self.subTest(version=version, fields=fields, status=status), proxy.connect() as client:
                client.send(f"GET /{status} HTTP/{version}\r\nHost: {self.host(server)}\r\n{fields}\r\n")
                response = client.response()
                self.assertEqual((response.get("Upgrade"), response.get("Connection")), expected)
                self.assertEqual((response.status, response.body), (int(status[:3]), b"no"))

    def test_s064_wrong_switches(self):
        cases = [(b"HTTP/1.1 101 Ok\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\nbytes", ASK),
                 (b"HTTP/1.1 101 Ok\r\nUpgrade: websocket\r\n\r\nbytes", ASK),
                 (b"HTTP/1.1 101 Ok\r\nConnection: Upgrade\r\n\r\nbytes", ASK),
                 (SWITCH + b"bytes", ""), (SWITCH + b"bytes", "Connection: Upgrade\r\nUpgrade: h2c\r\n"),
                 (SWITCH + b"bytes", "Upgrade: websocket\r\n")]
        for reply, fields in cases:
            def script(connection, reply=reply):
                connection.request()
                connection.send(reply)
                connection.take_all()

            server = self.serve(script)
            if not self.proxy:
                self.start()
            with self.subTest(reply=reply[:60], fields=fields[:30]), self.proxy.connect() as client:
                response = self.open(client, server, fields)
                self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "upstream_protocol"))
                self.assertNotIn(b"bytes", client.received)
        # Any protocol that both sides name passes as it is.
        for token in ("tcp", "foo/1.0"):
            def other(connection, token=token):
                connection.request()
                connection.send(f"HTTP/1.1 101 Ok\r\nUpgrade: {token}\r\nConnection: upgrade\r\n\r\n")
                connection.send(connection.take(3))

            server = self.serve(other)
            with self.proxy.connect() as client:
                self.assertEqual(self.open(client, server, f"Connection: Upgrade\r\nUpgrade: {token}\r\n").status, 101)
                client.send("abc")
                self.assertEqual(client.take_all(), b"abc")

    def test_s065_case_168_half_close_keeps_the_other_direction(self):
        def script(connection):
            connection.request()
            connection.send(SWITCH)
            self.assertEqual(connection.take_all(), b"question")
            for _ in range(80):
                connection.send(b"y" * 65536)

        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            self.open(client, server)
            client.send("question")
            client.half_close()
            self.assertEqual(client.take_all(), b"y" * (5 * MEGABYTE))
            self.assertFalse(client.reset)

    def test_s065_half_close_from_the_server(self):
        def script(connection):
            connection.request()
            connection.send(SWITCH + b"bye")
            connection.half_close()
            got.append(connection.take_all())

        got = []
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            self.open(client, server)
            self.assertEqual(client.take_all(), b"bye")
            for _ in range(16):
                client.send(b"z" * 65536)
            client.half_close()
            wait_for(lambda: got, "the rest")
        self.assertEqual(got[0], b"z" * MEGABYTE)

    def test_s066_a_reset_is_passed_on_as_a_reset(self):
        def script(connection):
            connection.request()
            connection.send(SWITCH)
            if server_resets:
                connection.take(2)
                connection.abort()
                return
            connection.take_all()
            ended.append(connection.reset)

        ended = []
        server_resets = True
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            self.open(client, server)
            client.send("go")
            client.take_all()
            self.assertTrue(client.reset)
        server_resets = False
        client = proxy.connect()
        self.open(client, server)
        client.abort()
        wait_for(lambda: ended, "the end at the server")
        self.assertEqual(ended, [True])

    def test_s067_a_silent_tunnel_stays(self):
        server = self.serve(self.echo)
        proxy = self.start()
        with proxy.connect() as client:
            self.open(client, server)
            quiet_for(3)
            client.send("still here")
            self.assertEqual(client.take(10), b"still here")

    def test_s070_upgrade_on_http_1_0(self):
        def script(connection):
            request = connection.request()
            connection.send(answer(str(request.get("Upgrade")), "426 Upgrade Required"))

        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.0\r\nHost: {self.host(server)}\r\n{ASK}\r\n")
            response = client.response()
        self.assertEqual((response.status, response.body), (426, b"None"))

    def test_case_155_64_megabytes_each_way(self):
        size = 64 * MEGABYTE
        block = os.urandom(MEGABYTE)

        def script(connection):
            connection.request()
            connection.send(SWITCH)
            for _ in range(size // MEGABYTE):
                piece = connection.take(MEGABYTE)
                connection.received = b""
                connection.send(piece)

        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            self.open(client, server)

            def push():
                for _ in range(size // MEGABYTE):
                    client.send(block)

            pusher = threading.Thread(target=push)
            pusher.start()
            for _ in range(size // MEGABYTE):
                self.assertEqual(client.take(MEGABYTE), block)
                client.received = b""
            pusher.join()
            self.assertLess(proxy.memory_kib(), 40 * 1024)

    def test_s055_a_slow_reader_of_a_tunnel_loses_nothing(self):
        def script(connection):
            connection.request()
            connection.send(SWITCH)
            for number in range(200):
                connection.send(bytes([number]) * 65536)

        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            self.open(client, server)
            # Only when both kernels and the proxy are full does the reader begin.
            stable = [-1, 0]

            def settled():
                now = proxy.memory_kib()
                stable[1] = stable[1] + 1 if now == stable[0] else 0
                stable[0] = now
                return stable[1] > 50

            wait_for(settled)
            for number in range(200):
                self.assertEqual(client.take(65536), bytes([number]) * 65536)
            self.assertEqual(client.take_all(), b"")

    def test_case_168_five_hundred_tunnels(self):
        server = self.serve(self.echo)
        proxy = self.start()
        clients = [proxy.connect() for _ in range(500)]
        for number, client in enumerate(clients):
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n{ASK}\r\n")
        for number, client in enumerate(clients):
            self.assertEqual(client.response().status, 101)
            client.send(f"{number:03}")
        for number, client in enumerate(clients):
            self.assertEqual(client.take(3), b"%03d" % number)
        self.assertEqual(proxy.active("abc"), 500)
        for number, client in enumerate(clients):
            (Connection.close, Connection.abort, Connection.half_close)[number % 3](client)
        wait_for(lambda: proxy.active("abc") == 0, "the end of all")
        for client in clients:
            client.close()

    def test_an_open_tunnel_needs_little_and_its_log_line_is_whole(self):
        server = self.serve(self.echo)
        proxy = self.start("--access-log", "-")
        fields = ASK + "User-Agent: Mozilla/5.0 (" + "x" * 100 + ")\r\nX-Large: " + "y" * 8000 + "\r\n"

        def open_some(count):
            clients = [proxy.connect() for _ in range(count)]
            for client in clients:
                self.addCleanup(client.close)
                self.assertEqual(self.open(client, server, fields).status, 101)
            return clients

        clients = open_some(50)
        before = proxy.memory_kib()
        clients += open_some(300)
        each = (proxy.memory_kib() - before) / 300
        if "asan" not in program():
            self.assertLess(each, 22 if OVER_TLS else 5, "KiB for a tunnel that rests")
        for client in clients:
            client.send("ping")
            self.assertEqual(client.take(4), b"ping")
            client.close()
        wait_for(lambda: len(proxy.out) == 350, "a line for each")
        line = json.loads(proxy.out[-1])
        self.assertEqual((line["method"], line["host"], line["path"], line["query"], line["tunnel"], line["status"]),
                         ("GET", self.host(server), "/socket", "(masked)", True, 101))
        self.assertTrue(line["user_agent"].startswith("Mozilla/5.0 (xxx"))

    def test_masked_host_is_the_same_for_upgrades_s068(self):
        server = self.serve(self.echo)
        proxy = self.start("--sandbox", "msk=127.0.0.1,mask=localhost:${PORT}")
        with proxy.connect() as client:
            self.assertEqual(self.open(client, server, sandbox="msk").status, 101)
        self.assertIn(f"\r\nHost: localhost:{server.port}\r\n".encode(), server.received)
        self.assertIn(f"\r\nX-Forwarded-Host: {self.host(server, 'msk')}\r\n".encode(), server.received)
        self.assertIn(b"\r\nOrigin: http://page.test\r\n", server.received)


if __name__ == "__main__":
    main()
