#!/usr/bin/env python3
"""What one client can take from the others: memory by heads that HPACK makes large, connections to sandboxes by
streams to servers that never answer. Attacks come from 127.0.0.1, neighbours from 127.0.0.2."""
import os
import socket
import subprocess
import sys
import threading
import unittest

from http2_support import END_HEADERS, END_STREAM, HEADERS, RST_STREAM, Codes, Raw, frame, head
from support import OVER_TLS, PATIENCE, Test, main, plain, wait_for

SANITIZED = "asan" in os.environ.get("PROXY_BIN", "")


class SilentServer:
    """Accepts whatever comes (the kernel does), and never answers. It costs no thread and no descriptor."""

    def __init__(self, test, backlog=4096):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(backlog)
        self.port = self.listener.getsockname()[1]
        self.taken = []
        self.thread = threading.Thread(target=self.take, daemon=True)
        self.thread.start()
        test.addCleanup(self.stop)

    def take(self):
        while True:
            try:
                self.taken.append(self.listener.accept()[0])
            except OSError:
                return

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.taken:
            sock.close()


# A process of its own, so that what this one does is not what it waits for.
ASK = """
import socket, sys, time
port, host, pause = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
while True:
    began, answer = time.monotonic(), b""
    try:
        with socket.create_connection(("127.0.0.1", port), 30, source_address=("127.0.0.2", 0)) as sock:
            sock.sendall(f"GET / HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode())
            while piece := sock.recv(65536):
                answer += piece
    except OSError as error:
        answer = f"HTTP/1.1 {error!r}".replace(" ", "_", 9).encode()
    print(answer.split(b" ")[1].decode() if b" " in answer else answer, time.monotonic() - began, flush=True)
    time.sleep(pause)
"""


class Neighbour:
    """Asks again and again from another address, until the end of the block; every answer and how long it took."""

    def __init__(self, proxy, host, pause=0.5):
        self.command = [sys.executable, "-c", ASK, str(proxy.port), host, str(pause)]
        self.process, self.answers = None, []

    def read(self):
        for line in self.process.stdout:
            status, seconds = line.split()
            self.answers.append((status, float(seconds)))

    def statuses(self):
        return {status for status, _ in self.answers}

    def slowest(self):
        return max(seconds for _, seconds in self.answers)

    def more(self, count):
        wanted = len(self.answers) + count
        wait_for(lambda: len(self.answers) >= wanted, "more answers for the neighbour")

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        self.more(2)
        return self

    def __exit__(self, *_):
        self.more(2)
        self.process.kill()
        self.process.wait(PATIENCE)
        self.thread.join(PATIENCE)
        self.process.stdout.close()


def literal(name, value):
    """A field for HPACK's dynamic table; the newest one is number 62 from then on."""
    def length(count):
        if count < 127:
            return bytes([count])
        rest, out = count - 127, bytes([127])
        while rest >= 128:
            out += bytes([rest % 128 + 128])
            rest //= 128
        return out + bytes([rest])
    return b"\x40" + length(len(name)) + name + length(len(value)) + value


def repeated(times):
    return b"\xbe" * times


@unittest.skipIf(OVER_TLS, "frames by hand in plain text; TLS adds nothing to what is counted")
class Heads(Test):
    CONNECTIONS, STREAMS = 150, 100
    GROWTH_KIB = 10 * 1024

    def attack(self, name, extra, connections=CONNECTIONS, streams=STREAMS, first=b""):
        """Opens streams whose heads end in `extra`, the first one of each connection in `first`; the connections,
        and how many bytes were sent, once the proxy has seen all."""
        data = frame(HEADERS, END_HEADERS | END_STREAM, 1, head(name, first)) + b"".join(
            frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, head(name, extra)) for n in range(1, streams))
        clients = [Raw(self.proxy) for _ in range(connections)]
        for raw in clients:
            self.addCleanup(raw.connection.close)
        seen = self.seen()
        for raw in clients:
            raw.send(data)
        wait_for(lambda: self.seen() >= seen + connections * streams, "the last stream to be seen")
        return clients, connections * len(data)

    def seen(self):
        return self.proxy.metric("proxy_http2_requests_total") + self.proxy.metric("proxy_http2_heads_refused_total")

    def refused_of(self, raw, streams=STREAMS):
        """How many streams of that connection were refused, of those that are over."""
        raw.connection.sock.settimeout(0.2)
        try:
            while len(raw.frames) < 10 * streams and raw.read_frame():
                pass
        except TimeoutError:
            pass
        codes = [int.from_bytes(got[3], "big") for got in raw.frames if got[0] == RST_STREAM]
        self.assertEqual(set(codes) - {Codes.REFUSED_STREAM}, set())
        return len(codes)

    def test_case_180_heads_that_a_table_repeats_take_no_memory(self):
        silent, server = SilentServer(self), self.serve(plain)
        self.start(sandboxes=("abc", "def"))
        with Neighbour(self.proxy, self.host(server, "def"), 0.02) as quiet:
            quiet.more(40)
        before = self.proxy.memory_kib()
        with Neighbour(self.proxy, self.host(server, "def"), 0.02) as neighbour:
            clients, sent = self.attack(self.host(silent), repeated(15), first=literal(b"x-large", b"v" * 3900))
            grown = self.proxy.memory_kib() - before
        refused = self.proxy.metric("proxy_http2_heads_refused_total")
        print(f"{sent} bytes sent, {refused} refused, memory +{grown} KiB, "
              f"slowest {neighbour.slowest():.3f} s (quiet {quiet.slowest():.3f})")
        self.assertLess(sent, 2.2e6)
        self.assertEqual(neighbour.statuses(), {"200"})
        self.assertGreater(refused, 0.9 * self.CONNECTIONS * self.STREAMS)
        self.assertGreater(self.refused_of(clients[-1]), 0.9 * self.STREAMS)
        self.assertGreater(self.proxy.metric("proxy_heads_refused_total", by="client"), 0)
        if not SANITIZED:
            self.assertLess(grown, self.GROWTH_KIB)
            self.assertLess(neighbour.slowest(), quiet.slowest() + 0.5)
        for raw in clients:
            raw.connection.close()
        wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0, "the end of the attack")
        wait_for(lambda: self.proxy.metric("proxy_heads_bytes") == 0, "the end of what counted")


if __name__ == "__main__":
    main()
