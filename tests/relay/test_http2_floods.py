#!/usr/bin/env python3
"""HTTP/2 clients that do harm (contract/proxy.md S76-S79, S83): each is stopped by its name, GOAWAY with
ENHANCE_YOUR_CALM, at a bounded cost, and disturbs nobody else."""
import collections
import fcntl
import os
import socket
import struct
import termios
import threading

from http2_support import (ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS,
                           WINDOW_UPDATE, Client, Codes, Raw, frame, head)
from support import PATIENCE, Test, answer, main, plain, quiet_for, wait_for

FLOOD = 100000
SEND_BUFFER = 16 << 10
BURST_CONNECTIONS, BURST_BYTES, BURST_LEFT_KIB = 6, 200 << 10, 12 * 1024
SANITIZED = "asan" in os.environ.get("PROXY_BIN", "")
CPU_SECONDS = 3 if SANITIZED else 0.7
GROWTH_KIB = 24 * 1024 if SANITIZED else 4 * 1024


def unread(sock):
    return struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"\0" * 4))[0]


class Floods(Test):
    workers = 1

    def cpu(self):
        with open(f"/proc/{self.proxy.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def flood(self, make, client=None, code=Codes.ENHANCE_YOUR_CALM, before=b""):
        """Sends make(0), make(1), ... until the proxy has had enough; how many went out."""
        cpu, memory = self.cpu(), self.proxy.memory_kib()
        calmed = self.proxy.metric("proxy_http2_calmed_total")
        with client or Raw(self.proxy) as raw:
            # What the sockets hold goes out also while the proxy does not have its turn: less than a flood.
            raw.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            raw.send(before)
            sent = 0
            # Whoever does not read what comes back is a flood of its own; this one reads.
            codes = []
            reader = threading.Thread(target=lambda: codes.append(raw.goaway()))
            reader.start()
            while sent < FLOOD and not codes:
                if not raw.send(b"".join(make(n) for n in range(sent, sent + 200))):
                    break
                sent += 200
            reader.join(PATIENCE)
            self.assertEqual(codes, [code])
        self.assertLess(self.cpu() - cpu, CPU_SECONDS)
        self.assertLess(self.proxy.memory_kib() - memory, GROWTH_KIB)
        if code == Codes.ENHANCE_YOUR_CALM:
            self.assertEqual(self.proxy.metric("proxy_http2_calmed_total"), calmed + 1)
        return sent

    def setUp(self):
        super().setUp()
        self.server = self.serve(plain)
        self.start()
        self.name = self.host(self.server)

    def tearDown(self):
        with Client(self.proxy) as client:
            self.assertEqual(client.ask(self.name).status, 200)

    def test_s076_rapid_reset(self):
        block = head(self.name)
        self.flood(lambda n: frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, block)
                   + frame(RST_STREAM, 0, 2 * n + 1, struct.pack(">I", Codes.CANCEL)))
        wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0)
        self.assertLess(self.proxy.metric("proxy_dials_total"), 300)

    def test_s077_resets_that_the_proxy_is_made_to_send(self):
        block = head(self.name)
        for provocation in (lambda stream: frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 2 ** 31 - 1)),
                            lambda stream: frame(DATA, END_STREAM, stream, b"longer than it may be")):
            self.flood(lambda n, p=provocation: frame(HEADERS, END_HEADERS, 2 * n + 1, block + b"\x0f\x0d\x013") + p(2 * n + 1))
            wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0)
        self.assertLess(self.proxy.metric("proxy_dials_total"), 600)

    def test_s077_requests_that_are_refused(self):
        self.flood(lambda n: frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, b"\x82\x87\x84\x41\x02@@"))
        self.assertEqual(self.proxy.metric("proxy_dials_total"), 0)

    def test_s078_control_frames(self):
        for name, flood in {
                "ping": lambda n: frame(PING, 0, 0, b"01234567"),
                "settings": lambda n: frame(SETTINGS),
                "acknowledged": lambda n: frame(PING, ACK, 0, b"01234567"),
                "priority": lambda n: frame(PRIORITY, 0, 2 * n + 1, b"\0\0\0\0\x10"),
                "window": lambda n: frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
                "unknown": lambda n: frame(0x77, 0, n, b"x"),
                "update": lambda n: frame(0x10, 0, 0, b"\0\0\0\1u=0"),
        }.items():
            with self.subTest(name):
                self.assertLess(self.flood(flood), FLOOD)

    def test_s078_frames_of_one_request(self):
        block = head(self.name)
        open_request = frame(HEADERS, END_HEADERS, 1, block)
        self.flood(lambda n: frame(DATA, 0, 1), before=open_request)
        self.flood(lambda n: frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)), before=open_request)
        self.flood(lambda n: frame(CONTINUATION, 0, 1, b"\0\1a\0"), before=frame(HEADERS, 0, 1, block))

    def test_s078_frames_of_a_stream_that_is_over(self):
        block = head(self.name)
        self.flood(lambda n: frame(DATA, 0, 1, b"x"), code=Codes.STREAM_CLOSED,
                   before=frame(HEADERS, END_HEADERS, 1, block) + frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))

    def test_a_stream_born_as_the_parent_of_a_busy_one(self):
        """As browsers' exclusive dependencies have it; the library once ended the whole proxy for that."""
        def script(connection):
            connection.request()
            connection.send(answer(b"x" * (64 << 20)))

        large = self.serve(script)
        with Raw(self.proxy) as raw:
            raw.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2 ** 31 - 1))
                     + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2 ** 31 - 65536))
                     + frame(HEADERS, END_HEADERS | END_STREAM, 1, head(self.host(large))))
            # It is busy once the sockets hold all they can.
            seen = collections.deque(maxlen=40)

            def is_full():
                seen.append(unread(raw.connection.sock))
                return len(seen) == 40 and seen[0] == seen[-1] > 100000

            wait_for(is_full, "full sockets")
            raw.send(frame(HEADERS, END_HEADERS | END_STREAM | 0x20, 3, struct.pack(">IB", 1 << 31, 255) + head(self.name)))
            with Client(self.proxy) as client:
                self.assertEqual(client.ask(self.name).status, 200)

    def test_s079_bombs(self):
        value = 4000
        name = head(self.name)
        plant = b"\x60\x7f" + bytes([(value - 127) % 128 + 128, (value - 127) // 128]) + b"c" * value
        block = name + plant
        bomb = block + b"\xbe" * (16384 - len(block))
        self.flood(lambda n: frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, bomb))
        # As much as may be, over and over: each is answered 431, until that is too much.
        small = block + b"\xbe" * 20
        self.flood(lambda n: frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, small))
        self.assertEqual(self.proxy.metric("proxy_dials_total"), 0)

    def test_s079_broken_compression(self):
        for block in (b"\xff\xff\xff\xff\x7f", b"\xc0", b"\x3f\xff\xff\xff\x7f", b"\x82\x40\x85\xff\xff\xff\xff\xff\0"):
            with Raw(self.proxy) as raw:
                raw.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block))
                self.assertEqual(raw.goaway(), Codes.COMPRESSION_ERROR)
        # Changes of the table's size that never end.
        with Raw(self.proxy) as raw:
            raw.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x20\x3f\xe1\x1f" * 3000 + head(self.name)))
            while raw.read_frame() and raw.frames[-1][0] not in (GOAWAY, RST_STREAM, HEADERS):
                pass

    def test_s083_windows_that_stay_shut(self):
        """A hundred streams on each of some connections that take nothing hold what their marks say, no more."""
        def script(connection):
            connection.request()
            connection.send(f"HTTP/1.1 200 OK\r\nContent-Length: {1 << 20}\r\n\r\n".encode() + bytes(1 << 20))

        server = self.serve(script)
        before = self.proxy.memory_kib()
        clients = []
        for _ in range(3):
            raw = Raw(self.proxy)
            clients.append(raw)
            raw.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
            raw.send(b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, head(self.host(server))) for n in range(100)))
        wait_for(lambda: self.proxy.metric("proxy_dials_total") >= 300)
        self.settle()
        # The marks and one read beyond, and what the allocator makes of that.
        self.assertLess(self.proxy.memory_kib() - before, 300 * (64 + 64 + 64) * (3 if SANITIZED else 1))
        with Client(self.proxy) as client:
            self.assertEqual(client.ask(self.name).status, 200)
        for raw in clients:
            raw.connection.close()

    def burst(self, server, before):
        """Streams that wait for their windows, each with what its marks allow, and are served when these open."""
        dials = self.proxy.metric("proxy_dials_total")
        raws = [Raw(self.proxy) for _ in range(BURST_CONNECTIONS)]
        for raw in raws:
            self.addCleanup(raw.connection.close)
            raw.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
            raw.send(b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, head(self.host(server))) for n in range(100)))
        wait_for(lambda: self.proxy.metric("proxy_dials_total") >= dials + 100 * len(raws))
        wait_for(lambda: self.proxy.memory_kib() - before > 4 * BURST_LEFT_KIB, "what the marks allow")
        for raw in raws:
            raw.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30)))
        for raw in raws:
            ended = 0
            while ended < 100:
                kind, flags, _, _ = raw.read_frame()
                ended += kind == DATA and flags & END_STREAM
                raw.connection.received = b""
            raw.frames.clear()
        wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0, "the end of what was read to the end")

    def test_what_a_burst_took_is_given_back(self):
        """Memory at rest is near what it was, not near what it has been, though the burst has left something everywhere."""
        def script(connection):
            connection.request()
            connection.send(answer(bytes(BURST_BYTES)))

        server = self.serve(script)
        before = self.proxy.memory_kib()
        # With the first one malloc learns that such buffers are worth keeping.
        for _ in range(2):
            self.burst(server, before)
        if not SANITIZED:
            wait_for(lambda: self.proxy.memory_kib() - before < BURST_LEFT_KIB, "what the burst took")

    def settle(self):
        """Until the proxy does nothing any more."""
        wait_for(lambda: self.idle(), "the proxy's rest")

    def idle(self):
        cpu = self.cpu()
        quiet_for(0.2)
        return self.cpu() - cpu < 0.02

    def test_s078_a_client_that_reads_nothing(self):
        """Answers to frames pile up only so far."""
        memory = self.proxy.memory_kib()
        with Raw(self.proxy) as raw:
            raw.connection.sock.settimeout(0.5)
            for _ in range(2000):
                if not raw.send(frame(PING, 0, 0, b"01234567") * 100):
                    break
        self.assertLess(self.proxy.memory_kib() - memory, GROWTH_KIB)

    def test_slow_heads_and_half_frames_hold_little(self):
        before = self.proxy.memory_kib()
        raws = []
        for _ in range(100):
            raw = Raw(self.proxy)
            raws.append(raw)
            raw.send(frame(HEADERS, 0, 1, head(self.name)) + b"\0\x40\0\x09\0\0\0\0\1" + bytes(100))
        self.settle()
        self.assertLess(self.proxy.memory_kib() - before, 100 * 100 * (4 if SANITIZED else 1))
        self.assertEqual(self.proxy.metric("proxy_dials_total"), 0)
        for raw in raws:
            raw.connection.close()


if __name__ == "__main__":
    main()
