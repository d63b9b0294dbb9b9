#!/usr/bin/env python3
"""WebSockets over HTTP/2: an extended CONNECT becomes an upgrade."""
import base64
import json
import threading

from http2_support import Client, Codes
from support import PATIENCE, Test, answer, main, wait_for
from tunnel_support import upgrade


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
