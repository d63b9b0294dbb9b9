"""PyPI's `websockets`, unmodified, on both sides of the proxy: its server in the sandbox, its clients outside (the
threaded one in plaintext, asyncio's over TLS; scenarios 61, 62, 65 and 66 of the proxy's contract)."""

import asyncio
import os
import socket
import ssl
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))

import websockets.asyncio.client  # noqa: E402
import websockets.exceptions  # noqa: E402
import websockets.sync.client  # noqa: E402
import websockets.sync.server  # noqa: E402
from programs import eventually, free_port, main, metric, start_proxy  # noqa: E402

MEGABYTE = 1 << 20
PATIENT = {"open_timeout": 60, "close_timeout": 60}  # it is ten seconds otherwise, for all of a handshake on a busy machine


def handle(connection):
    """Echoes; some words have a meaning."""
    if connection.request.path == "/greet?twice=1":
        connection.send("hello")
        connection.send("again")
    try:
        for message in connection:
            if message == "close me":
                connection.close(4321, "as you wish")
            elif message == "drop me":
                connection.socket.close()
            elif message == "headers":
                connection.send("\n".join(f"{name}: {value}" for name, value in connection.request.headers.raw_items()))
            else:
                connection.send(message)
    except websockets.exceptions.ConnectionClosed:
        pass


class WebSockets(unittest.TestCase):
    label = "websockets"
    secure = False

    @classmethod
    def setUpClass(cls):
        cls.port = free_port()
        cls.server = websockets.sync.server.serve(
            handle, "127.0.0.1", cls.port, subprotocols=["chat"], max_size=64 * MEGABYTE, **PATIENT,
            select_subprotocol=lambda connection, offered: "chat" if "chat" in offered else None)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.front = free_port()
        cls.proxy = start_proxy("py1", free_port(), tls_port=cls.front if cls.secure else None)
        if not cls.secure:
            cls.front = int(cls.proxy.url.rsplit(":", 1)[1])
        cls.name = f"{cls.port}-py1.sbx.localhost"

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.proxy.stop()

    def connect(self, path="/", **options):
        return websockets.sync.client.connect(f"ws://{self.name}:{self.front}{path}", max_size=64 * MEGABYTE, **PATIENT,
                                              sock=socket.create_connection(("127.0.0.1", self.front), 30), **options)

    def pong_comes(self, client, data):
        return client.ping(data).wait(30)

    def test_text_and_bytes_come_back_as_they_went(self):
        with self.connect() as client:
            for message in ("", "a", "ü€𝄞", b"", b"\0\xff", "x" * 70000, os.urandom(3 * MEGABYTE)):
                client.send(message)
                self.assertEqual(client.recv(30), message)

    def test_fragments_pings_and_compression(self):
        for compression in ("deflate", None):
            with self.connect(compression=compression) as client:
                client.send(["one ", "two ", "three"])
                self.assertEqual(client.recv(30), "one two three")
                client.send([b"\1" * 50000, b"\2" * 50000])
                self.assertEqual(client.recv(30), b"\1" * 50000 + b"\2" * 50000)
                self.assertTrue(self.pong_comes(client, b"are you there"))
                self.assertEqual(bool(client.protocol.extensions), compression is not None)

    def test_what_the_server_says_first(self):
        with self.connect("/greet?twice=1") as client:
            self.assertEqual([client.recv(30), client.recv(30)], ["hello", "again"])

    def test_the_handshake_passes(self):
        with self.connect(subprotocols=["other", "chat"], origin="http://page.test", additional_headers={"Cookie": "a=b", "Authorization": "Basic eA=="}) as client:
            self.assertEqual(client.subprotocol, "chat")
            client.send("headers")
            lines = client.recv(30).split("\n")
        for line in (f"Host: {self.name}:{self.front}", "Origin: http://page.test", "Cookie: a=b", "Authorization: Basic eA=="):
            self.assertIn(line, lines)

    def test_closing_codes_both_ways(self):
        with self.connect() as client:
            client.send("close me")
            with self.assertRaises(websockets.exceptions.ConnectionClosedError) as closed:
                client.recv(30)
            self.assertEqual((closed.exception.rcvd.code, closed.exception.rcvd.reason), (4321, "as you wish"))
        with self.connect() as client:
            client.close(4000, "enough")
        self.assertEqual((client.close_code, client.close_reason), (4000, "enough"))

    def test_a_connection_that_is_dropped(self):
        with self.connect() as client:
            client.send("drop me")
            with self.assertRaises(websockets.exceptions.ConnectionClosedError) as closed:
                client.recv(30)
            self.assertIsNone(closed.exception.rcvd, "no closing frame came")

    def test_fifty_at_once_and_none_is_left(self):
        failed = []

        def talk(number):
            try:
                with self.connect() as client:
                    for turn in range(20):
                        client.send(f"{number} {turn}")
                        if client.recv(30) != f"{number} {turn}":
                            failed.append(number)
            except Exception as error:  # pylint: disable=broad-except
                failed.append(error)

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        eventually("all exchanges are over", lambda: metric(self.proxy, "proxy_active_exchanges") == 0)

    def test_refusals_reach_the_client(self):
        self.name, name = self.name.replace("py1", "nobody"), self.name
        try:
            with self.assertRaises(websockets.exceptions.InvalidStatus) as refused:
                self.connect()
        finally:
            self.name = name
        self.assertEqual(refused.exception.response.status_code, 502)


class AsyncioClient:
    """The library's client for asyncio, with the calls of the threaded one.

    Over TLS the threaded one cannot be used: its thread that receives is in SSL_read while another is in SSL_write on
    the same SSL object, which OpenSSL does not allow and Python 3.11 does not lock. With TLS 1.3 the tickets come just
    then, right after the handshake. In about one of a thousand connections the request is then never sent though the
    write returned without an error (seen by a relay between the two: nothing follows the client's Finished), and both
    sides wait, here for the proxy's 60 s. Measured with 50 threads and 1,000 connections a run: 0 to 4 such ends
    through this proxy, 0 to 10 through nginx, none with TLS 1.2 (which has no message after the handshake), and none
    in 10,000 handshakes and upgrades, cut in random places, of a client that uses its SSL object from one thread."""

    loop = None

    def __init__(self, uri, **options):
        cls = AsyncioClient
        if not cls.loop:
            cls.loop = asyncio.new_event_loop()
            threading.Thread(target=cls.loop.run_forever, daemon=True).start()
        self.client = self.wait(self.open(uri, options), 60)

    @staticmethod
    async def open(uri, options):
        return await websockets.asyncio.client.connect(uri, **options)

    async def ping(self, data):
        await (await self.client.ping(data))

    def wait(self, awaitable, seconds):
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(awaitable, seconds), self.loop).result()

    def send(self, message):
        self.wait(self.client.send(message), 60)

    def recv(self, seconds):
        return self.wait(self.client.recv(), seconds)

    def pong_comes(self, data, seconds):
        self.wait(self.ping(data), seconds)
        return True

    def close(self, *why):
        self.wait(self.client.close(*why), 60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getattr__(self, name):
        return getattr(self.client, name)


class SecureWebSockets(WebSockets):
    label = "websockets over TLS"
    secure = True

    def connect(self, path="/", **options):
        context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
        return AsyncioClient(f"wss://{self.name}:{self.front}{path}", ssl=context, max_size=64 * MEGABYTE, **PATIENT,
                             host="127.0.0.1", proxy=None, **options)

    def pong_comes(self, client, data):
        return client.pong_comes(data, 30)


if __name__ == "__main__":
    main()
