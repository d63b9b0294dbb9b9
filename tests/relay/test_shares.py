#!/usr/bin/env python3
"""What one client can take from the others: memory by heads that HPACK makes large, connections to sandboxes by
streams to servers that never answer. Attacks come from 127.0.0.1, neighbours from 127.0.0.2."""
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import unittest

from http2_support import END_HEADERS, END_STREAM, HEADERS, RST_STREAM, SETTINGS, Client, Codes, Raw, frame, head
from support import OVER_TLS, PATIENCE, Test, answered, main, plain, wait_for

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


    def test_case_180_heads_that_nothing_repeats(self):
        """Large heads are no more with honest bytes: what is refused is refused early."""
        silent, server = SilentServer(self), self.serve(plain)
        self.start(sandboxes=("abc", "def"))
        before = self.proxy.memory_kib()
        with Neighbour(self.proxy, self.host(server, "def"), 0.02) as neighbour:
            self.attack(self.host(silent), literal(b"x-large", os.urandom(6000).hex().encode()), connections=40, streams=40)
            grown = self.proxy.memory_kib() - before
        self.assertEqual(neighbour.statuses(), {"200"})
        self.assertGreater(self.proxy.metric("proxy_http2_heads_refused_total"), 0.8 * 40 * 40)
        if not SANITIZED:
            self.assertLess(grown, self.GROWTH_KIB)

    def test_case_180_one_connection_has_less_than_its_client(self):
        silent = SilentServer(self)
        self.start()
        # 32 KB each, so that it is the connection's sum that says no.
        (raw,), _ = self.attack(self.host(silent), repeated(8), connections=1, first=literal(b"x-large", b"v" * 3900))
        self.assertEqual(self.proxy.metric("proxy_heads_refused_total", by="client"), 0)
        self.assertGreater(self.refused_of(raw), 50)
        with Client(self.proxy) as client:
            self.assertEqual(client.ask("1-nosuch.sandbox.test").status, 502, "another connection of the same client")

    def test_case_180_a_client_that_goes_on_is_calmed(self):
        silent = SilentServer(self)
        self.start()
        (raw,), _ = self.attack(self.host(silent), repeated(15), connections=1, first=literal(b"x-large", b"v" * 3900))
        for n in range(100, 600):
            raw.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, head(self.host(silent), repeated(15))))
        self.assertEqual(raw.goaway(), Codes.ENHANCE_YOUR_CALM)

    def test_case_180_websockets_over_http2(self):
        """The heads of upgrades count while they wait; those of tunnels are forgotten."""
        silent = SilentServer(self)
        self.start()
        name = self.host(silent)

        def block(extra):
            def text(value):
                return bytes([len(value)]) + value
            return (b"\x02" + text(b"CONNECT") + b"\x87\x84" + b"\x01" + text(name.encode()) + b"\x00" + text(b":protocol")
                    + text(b"websocket") + b"\x00" + text(b"sec-websocket-version") + text(b"13") + extra)
        before = self.proxy.memory_kib()
        clients = [Raw(self.proxy) for _ in range(50)]
        for raw in clients:
            self.addCleanup(raw.connection.close)
            raw.send(b"".join(frame(HEADERS, END_HEADERS, 2 * n + 1, block(repeated(15) if n else literal(b"x-large", b"v" * 3900)))
                              for n in range(self.STREAMS)))
        wait_for(lambda: self.seen() >= 50 * self.STREAMS, "the last stream to be seen")
        self.assertGreater(self.proxy.metric("proxy_http2_heads_refused_total"), 0.9 * 50 * self.STREAMS)
        if not SANITIZED:
            self.assertLess(self.proxy.memory_kib() - before, self.GROWTH_KIB)

    def test_case_180_heads_by_http_1(self):
        silent, server = SilentServer(self), self.serve(plain)
        self.start(sandboxes=("abc", "def"))
        before = self.proxy.memory_kib()
        large = "".join(f"X-Large-{n}: {'v' * 3900}\r\n" for n in range(15))
        clients = [self.proxy.connect() for _ in range(300)]
        with Neighbour(self.proxy, self.host(server, "def"), 0.02) as neighbour:
            for client in clients:
                self.addCleanup(client.close)
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(silent)}\r\n{large}\r\n")
            wait_for(lambda: self.proxy.metric("proxy_requests_total") - len(neighbour.answers) >= 300, "all requests to be seen")
            grown = self.proxy.memory_kib() - before
            told = answered(clients)
        self.assertEqual(neighbour.statuses(), {"200"})
        self.assertGreater(len(told), 200)
        for client in told:
            response = client.response()
            self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After")), (429, "client_share", "1"))
        if not SANITIZED:
            self.assertLess(grown, self.GROWTH_KIB)
        for client in clients:
            client.close()
        wait_for(lambda: self.proxy.metric("proxy_heads_bytes") == 0, "the end of what counted")

    def test_case_180_heads_of_answers(self):
        """A client and its own sandbox: large heads of answers that the client does not take."""
        fields = "".join(f"X-Large-{n}: {'v' * 3900}\r\n" for n in range(15))

        def script(connection):
            connection.request()
            connection.send(f"HTTP/1.1 200 OK\r\n{fields}Content-Length: 1\r\n\r\n")
            connection.take_all()

        server, other = self.serve(script), self.serve(plain)
        self.start(sandboxes=("abc", "def"))
        before = self.proxy.memory_kib()
        name = self.host(server)
        clients = [Raw(self.proxy) for _ in range(10)]
        with Neighbour(self.proxy, self.host(other, "def"), 0.02) as neighbour:
            for raw in clients:
                self.addCleanup(raw.connection.close)
                raw.send(b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, head(name)) for n in range(60)))
            wait_for(lambda: len(server.connections) + self.proxy.metric("proxy_errors_total", **{"class": "client_share"}) >= 600,
                     "all streams to have come through")
            wait_for(lambda: self.proxy.metric("proxy_heads_refused_total", by="client") > 0, "the client's share to be used up")
            grown = self.proxy.memory_kib() - before
        self.assertEqual(neighbour.statuses(), {"200"})
        if not SANITIZED:
            self.assertLess(grown, 2 * self.GROWTH_KIB)  # 600 exchanges besides


@unittest.skipIf(OVER_TLS, "the descriptors are the same")
class Exchanges(Test):
    descriptors = 20000
    CONNECTIONS, STREAMS = 215, 98

    def setUp(self):
        super().setUp()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        if hard < self.descriptors:
            self.skipTest(f"needs {self.descriptors} descriptors")

    def attack(self, *names):
        """Each connection's streams go to one of the names; once all have been counted."""
        blocks = [b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, head(name)) for n in range(self.STREAMS))
                  for name in names]
        before = self.seen()
        clients = [Raw(self.proxy) for _ in range(self.CONNECTIONS)]
        for number, raw in enumerate(clients):
            self.addCleanup(raw.connection.close)
            raw.send(blocks[number % len(blocks)])
        wait_for(lambda: self.seen() - before >= self.CONNECTIONS * self.STREAMS, "all streams to be seen")
        return clients

    def seen(self):
        return self.proxy.metric("proxy_http2_requests_total") + self.proxy.metric("proxy_http2_shares_refused_total")

    def refused(self, bound):
        return self.proxy.metric("proxy_exchanges_refused_total", by=bound)

    def test_case_181_one_client_of_one_sandbox_leaves_descriptors_for_others(self):
        silent, server = SilentServer(self), self.serve(plain)
        self.start(sandboxes=("abc", "def"))
        share = self.proxy.metric("proxy_exchanges_max")
        with Neighbour(self.proxy, self.host(server, "def")) as neighbour:
            self.attack(self.host(silent))
            wait_for(lambda: self.proxy.active("abc") >= 0.45 * share, "the sandbox's share to be taken")
            neighbour.more(4)
            # Nor does another sandbox of the same address, for one sandbox does not take its share.
            self.assertEqual(self.proxy.ask(self.host(server, "def")).status, 200)
            told = self.proxy.ask(self.host(silent))
            self.assertEqual((told.status, told.get("X-Proxy-Error"), told.get("Retry-After")), (429, "sandbox_share", "1"))
            neighbour.more(2)
        print(f"active {self.proxy.active('abc')} of {share}, neighbour's slowest {neighbour.slowest():.3f} s")
        self.assertEqual(neighbour.statuses(), {"200"})
        self.assertLessEqual(self.proxy.active("abc"), share / 2 + 1)
        self.assertGreater(self.refused("sandbox"), 0)
        self.assertEqual(self.refused("all"), 0)
        self.assertEqual(self.proxy.metric("proxy_errors_total", **{"class": "overloaded"}), 0)

    def test_case_181_one_client_of_many_sandboxes_leaves_descriptors_for_others(self):
        silent, server = SilentServer(self), self.serve(plain)
        mine = [f"a{n}" for n in range(8)]
        self.start(sandboxes=(*mine, "def"))
        share = self.proxy.metric("proxy_exchanges_max")
        with Neighbour(self.proxy, self.host(server, "def")) as neighbour:
            clients = []
            for _ in range(5):
                # Once more where the silent server was so slow to accept that connections to it were given up.
                clients += self.attack(*(self.host(silent, name) for name in mine))
                told = self.proxy.ask(self.host(server, "def"))
                if told.status == 429:
                    break
            neighbour.more(4)
            self.assertEqual((told.status, told.get("X-Proxy-Error"), told.get("Retry-After")), (429, "client_share", "1"))
            neighbour.more(2)
        self.assertEqual(neighbour.statuses(), {"200"})
        self.assertLessEqual(self.proxy.metric("proxy_active_exchanges"), share * 2 / 3 + 2)
        self.assertGreater(self.refused("client"), 0)
        self.assertEqual(self.refused("all"), 0)
        # What it had is there again when it leaves.
        for raw in clients:
            raw.connection.close()
        wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0, "the end of the attack")
        self.assertEqual(self.proxy.ask(self.host(server, "def")).status, 200)
        wait_for(lambda: self.proxy.metric("proxy_clients") == 0, "no client to be left")

    def test_case_181_refusals_that_nobody_takes_are_bounded(self):
        """With a window of 0 even the answer that there is no share would wait in memory."""
        silent = SilentServer(self)
        mine = [f"a{n}" for n in range(8)]
        self.start(sandboxes=mine)
        no_window = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
        clients = [Raw(self.proxy) for _ in range(self.CONNECTIONS)]
        for number, raw in enumerate(clients):
            self.addCleanup(raw.connection.close)
            raw.send(no_window + b"".join(frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, head(self.host(silent, mine[number % 8])))
                                          for n in range(self.STREAMS)))
        wait_for(lambda: self.proxy.metric("proxy_http2_requests_total")
                 + self.proxy.metric("proxy_http2_shares_refused_total") >= self.CONNECTIONS * self.STREAMS, "all streams to be seen")
        self.assertGreater(self.proxy.metric("proxy_http2_shares_refused_total"), 0)
        share = self.proxy.metric("proxy_exchanges_max")
        self.assertLessEqual(self.proxy.metric("proxy_active_exchanges"), share * 2 / 3 + 2 + 256)

    def test_case_181_peers_that_stand_for_many_clients_have_no_share_of_their_own(self):
        silent, server = SilentServer(self), self.serve(plain)
        mine = [f"a{n}" for n in range(8)]
        self.start("--load-balancer", "127.0.0.0/8", sandboxes=(*mine, "def"))
        share = self.proxy.metric("proxy_exchanges_max")
        self.attack(*(self.host(silent, name) for name in mine))
        self.assertEqual(self.refused("client"), 0)
        self.assertGreater(self.proxy.metric("proxy_active_exchanges"), 0.7 * share)
        self.assertEqual(self.proxy.ask(self.host(server, "def")).status, 200)


if __name__ == "__main__":
    main()
