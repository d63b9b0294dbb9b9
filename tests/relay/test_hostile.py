#!/usr/bin/env python3
"""Peers that are slow, silent, or mean harm; and running short of descriptors."""
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import unittest

from support import OVER_TLS, PATIENCE, Connection, TlsSocket, Test, answer, answered, main, program, wait_for

MEGABYTE = 1 << 20


class Short(Test):
    """A proxy that may have few descriptors."""

    workers = 1
    descriptors = 256

    def test_s057_idle_connections_make_room(self):
        server = self.serve()
        proxy = self.start()
        idle = []
        for number in range(300):
            client = proxy.connect()
            self.addCleanup(client.close)
            idle.append(client)
            if number % 2:
                client.send("GET / HTTP/1.1\r\nHost: 1-nosuch.d\r\n\r\n")
        # However many there are, somebody who wants something is served at once.
        for _ in range(20):
            self.assertEqual(proxy.ask(self.host(server)).status, 200)
        self.assertLess(proxy.descriptors(), 256)

    @unittest.skipIf(OVER_TLS, "clients that the proxy has not accepted cannot even greet it")
    def test_s025_no_descriptors_left(self):
        def script(connection):
            connection.request()
            go.wait(4 * PATIENCE)
            connection.send(answer("late"))

        go = threading.Event()
        server = self.serve(script)
        # With fewer connections than one address may have requests: by shares alone there is always room.
        proxy = self.start("--connections-max", "40", sandboxes=("abc", "def", "ghi"))
        # All that is allowed is busy. Who waits in the kernel's queue and sees nobody go is told so.
        clients = []
        for number in range(150):  # each says at once what it wants: one that only rests would make room
            clients.append(proxy.connect())
            self.addCleanup(clients[-1].close)
            name = self.host(server, ("abc", "def", "ghi")[number % 3])
            clients[-1].send(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")
        wait_for(lambda: len(server.connections) >= 40, "a full house")
        before = self.cpu_ticks()
        wait_for(lambda: sum("no room" in line for line in proxy.log) > 0, "the first to be turned away")
        wait_for(lambda: proxy.metric("proxy_active_exchanges") + len(answered(clients)) == 150, "a place or an answer for each")
        admitted = proxy.metric("proxy_active_exchanges")
        refused = [client.response() for client in answered(clients)]
        self.assertEqual(len(refused), 150 - admitted)
        for response in refused:
            self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After"), response.get("Connection")),
                             (503, "overloaded", "1", "close"))
            self.assertEqual(response.json()["code"], 503)
        self.assertLess(self.cpu_ticks() - before, 30, "it must not spin while it waits")
        self.assertEqual(proxy.metric("proxy_active_exchanges"), admitted)
        go.set()
        served = [client.response().body for client in clients if not client.received]
        self.assertEqual(served, [b"late"] * admitted)
        for client in clients:
            client.close()
        wait_for(lambda: proxy.descriptors() < 100, "the end of their connections")
        self.assertEqual(proxy.ask(self.host(server)).status, 200)

    def cpu_ticks(self):
        with open(f"/proc/{self.proxy.process.pid}/stat", encoding="ascii") as stat:
            return sum(int(x) for x in stat.read().split()[13:15])

    @unittest.skipIf(OVER_TLS, "nobody can be told before a handshake: the connection just ends")
    def test_s025_no_descriptor_for_one_more(self):
        """Also when somebody else in the process has taken them, so that counting connections does not help."""
        server = self.serve()
        proxy = self.start()
        waiting = proxy.connect()
        waiting.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        self.assertEqual(waiting.response().status, 200)
        wait_for(lambda: not subprocess.run(["ss", "-tnH", "state", "established", "state", "close-wait", f"dport = :{server.port}"],
                                            capture_output=True, check=True).stdout, "the end of the connection to the sandbox")
        limits = resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE)
        wait_for(lambda: proxy.descriptors() == 1 + max(int(name) for name in os.listdir(f"/proc/{proxy.process.pid}/fd")),
                 "descriptors without a gap")
        resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (proxy.descriptors(), limits[1]))
        # One that is in already cannot be connected on ...
        waiting.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        # ... and one more is let in only to be told.
        before = self.cpu_ticks()
        response = proxy.ask(self.host(server))
        self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After")), (503, "overloaded", "1"))
        response = waiting.response()
        self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After")), (503, "overloaded", "1"))
        self.assertLess(self.cpu_ticks() - before, 30)
        resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, limits)
        self.assertEqual(proxy.ask(self.host(server)).status, 200)
        waiting.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        self.assertEqual(waiting.response().status, 200)
        waiting.close()


class Ports(unittest.TestCase):
    """In a network namespace of its own, where eight ports are all there are for outgoing connections."""

    def test_s025_no_ports_left_towards_a_server(self):
        if os.geteuid() != 0:
            self.skipTest("needs the rights to make a network namespace")
        inside = subprocess.run(["unshare", "-n", sys.executable, "-B", os.path.abspath(__file__), "Inside.few_ports"],
                                capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(inside.returncode, 0, inside.stderr)


class Inside(Test):
    sources = iter(range(20000, 30000))  # what the test itself connects from

    def connect(self, port):
        sock = socket.socket()
        sock.bind(("127.0.0.1", next(self.sources)))
        sock.connect(("127.0.0.1", port))
        over_tls = self.proxy.over_tls and port == self.proxy.port
        return Connection(TlsSocket(sock, self.proxy.tls_context()) if over_tls else sock)

    @staticmethod
    def ports(first, last):
        with open("/proc/sys/net/ipv4/ip_local_port_range", "w", encoding="ascii") as ports:
            ports.write(f"{first} {last}")

    def turned_away(self):
        with self.connect(self.proxy.admin_port) as admin:
            admin.send("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            text = admin.response().body.decode()
        found = re.search(r'proxy_errors_total{class="overloaded"} (\d+)', text)
        return int(found.group(1)) if found else 0

    def few_ports(self):
        def script(connection):
            connection.request()
            go.wait(4 * PATIENCE)
            connection.send(answer("late"))

        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        go = threading.Event()
        server = self.serve(script, port=8000)
        proxy = self.start()
        self.ports(50000, 50007)
        self.addCleanup(self.ports, 32768, 60999)
        clients = [self.connect(proxy.port) for _ in range(12)]
        for client in clients:
            self.addCleanup(client.close)
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: close\r\n\r\n")
        wait_for(lambda: self.turned_away() + len(server.connections) == 12, "the end of all tries")
        refused = [client.response() for client in wait_for(lambda: len(answered(clients)) == 4 and answered(clients), "four answers")]
        self.assertEqual([(each.status, each.get("X-Proxy-Error"), each.get("Retry-After")) for each in refused],
                         [(503, "overloaded", "1")] * 4)
        go.set()
        served = [client.response().body for client in clients if not client.received]
        self.assertEqual(served, [b"late"] * 8)
        with self.connect(proxy.port) as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: close\r\n\r\n")
            self.assertEqual(client.response().body, b"late")


class Hostile(Test):
    def test_s099_endless_headers_and_trailers(self):
        def script(connection):
            path = connection.request().line.split()[1]
            start = {"/head": b"HTTP/1.1 200 OK\r\n", "/interim": b"",
                     "/trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"}[path]
            line = b"HTTP/1.1 103 Early\r\nX: y\r\n\r\n" if path == "/interim" else b"X-Endless: " + b"y" * 50 + b"\r\n"
            connection.send(start)
            while True:
                connection.send(line * 100)

        server = self.serve(script)
        proxy = self.start()
        for path in ("/head", "/interim"):
            with proxy.connect() as client:
                client.send(f"GET {path} HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: close\r\n\r\n")
                response = client.response()
                while response.status == 103:
                    response = client.response()
                self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "upstream_protocol"))
        with proxy.connect() as client:
            client.send(f"GET /trailer HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            client.take_all()
            self.assertTrue(client.reset)
        self.assertLess(proxy.memory_kib(), 40 * 1024)

    def test_s099_infinite_body_to_a_client_that_left(self):
        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.send(b"x" * 65536)

        server = self.serve(script)
        proxy = self.start()
        client = proxy.connect()
        client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        client.take(MEGABYTE)
        client.close()
        wait_for(lambda: proxy.active("abc") == 0, "the end")
        wait_for(lambda: getattr(server.connections[0], "broken", False), "the server's notice")

    def test_s099_the_admin_port_is_out_of_reach(self):
        proxy = self.start("--allow-loopback-upstreams", "--sandbox", "evil=localhost")
        for port in (proxy.admin_port, proxy.port):
            for sandbox in ("abc", "evil"):
                response = proxy.ask(f"{port}-{sandbox}.d", "/sandboxes")
                self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "address_refused"))

    def test_s022_s054_dribbled_heads(self):
        """A server may take its time for an answer; the client that gives up frees everything."""
        def script(connection):
            connection.request()
            for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000:
                connection.send(bytes([byte]))
                stop.wait(0.01)
                if stop.is_set():
                    return

        stop = threading.Event()
        server = self.serve(script)
        proxy = self.start()
        client = proxy.connect()
        client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        wait_for(lambda: proxy.active("abc") == 1)
        client.close()
        wait_for(lambda: proxy.active("abc") == 0, "the end")
        stop.set()
        # From a client it may come in pieces of any size.
        with proxy.connect() as client:
            good = self.serve()
            for byte in f"GET / HTTP/1.1\r\nHost: {self.host(good)}\r\n\r\n":
                client.send(byte)
            self.assertEqual(client.response().status, 200)

    def test_s091_other_protocols_on_the_port(self):
        proxy = self.start()
        for first in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(200), b"SSH-2.0-x\r\n", b"\x05\x01\x00", b"\0" * 100,
                      b"EHLO x\r\n", os.urandom(5000)):
            with proxy.connect() as client:
                client.send(first)
                client.half_close()
                rest = client.take_all()
                self.assertTrue(rest == b"" or rest.startswith(b"HTTP/1.1 4") or rest.startswith(b"HTTP/1.1 5"), rest[:60])

    def test_s093_ipv6_listener(self):
        server = self.serve()
        process = subprocess.Popen([program(), "--listen", "[::1]:0", "--admin", "none", "--sandbox", "abc=127.0.0.1", "--access-log", "-"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.start()
        line = process.stdout.readline().decode().strip()
        self.assertRegex(line, r"^proxy listening on \[::1\]:\d+$")
        port = int(line.rsplit(":", 1)[1])
        with Connection(socket.create_connection(("::1", port))) as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: close\r\n\r\n")
            self.assertEqual(client.response().status, 200)
        self.assertIn(b'"peer":"[::1]:', process.stdout.readline())
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0)
        process.stdout.close()
        process.stderr.close()

    def test_s094_two_of_them_share_the_port_while_one_replaces_the_other(self):
        server = self.serve()
        proxy = self.start(sandboxes=("abc",))
        failures, count = [], [0]
        stop = threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    response = proxy.ask(self.host(server))
                    count[0] += 1
                    if response is None or response.status != 200:
                        failures.append(response and response.body)
                except OSError as error:
                    failures.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        second = subprocess.Popen([program(), *proxy.listen(proxy.port), "--admin", "none", "--sandbox", "abc=127.0.0.1"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.assertIn(str(proxy.port), second.stdout.readline().decode())
        wait_for(lambda: count[0] > 50)
        stop.set()
        thread.join()
        self.assertEqual(failures, [])
        second.terminate()
        self.assertEqual(second.wait(PATIENCE), 0)
        second.stdout.close()

    def test_s097_metrics_name_no_sandbox(self):
        server = self.serve()
        proxy = self.start()
        for _ in range(3):
            self.assertEqual(proxy.ask(self.host(server)).status, 200)
        proxy.ask("1-nosuch.d")
        text = proxy.call("GET", "/metrics")[1]
        self.assertNotIn("abc", text)
        self.assertNotIn("nosuch", text)
        self.assertIn("proxy_requests_total 4\n", text)
        self.assertIn('proxy_errors_total{class="sandbox_not_found"} 1\n', text)
        for line in text.strip().split("\n"):
            self.assertRegex(line, r"^(# (HELP|TYPE) \w+ .+|\w+(\{\w+=\"[\w.+]+\"(,\w+=\"[\w.]+\")*\})? \d+(\.\d+)?)$")

    def test_known_dashboards_find_their_numbers(self):
        gate = threading.Event()

        def script(connection):
            connection.request()
            gate.wait(PATIENCE)
            connection.send(answer())

        server = self.serve(script)
        proxy = self.start("--allow-loopback-upstreams", sandboxes=())
        proxy.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1", "connection_limit": 2})
        waiting = [proxy.connect() for _ in range(2)]
        for client in waiting:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        wait_for(lambda: len(server.connections) == 2, "both")
        self.assertEqual(proxy.ask(self.host(server)).status, 429)
        for prefix in ("client_proxy_proxy", "orchestrator_proxy"):
            wait_for(lambda: proxy.metric(f"{prefix}_server_connections_open") == 2, "the refused one's end")
            wait_for(lambda: proxy.metric(f"{prefix}_pool_connections_open") == 2, "both of theirs")
            self.assertIn(proxy.metric(f"{prefix}_pool_size"), (1, 2))
        self.assertEqual(proxy.metric("orchestrator_proxy_connections_blocked_total"), 1)
        gate.set()
        for client in waiting:
            self.assertEqual(client.response().status, 200)
            client.close()
        wait_for(lambda: proxy.metric("orchestrator_proxy_server_connections_open") == 0, "their end")
        wait_for(lambda: proxy.metric("orchestrator_proxy_pool_connections_open") == 0, "their connections' end")
        wait_for(lambda: proxy.metric("orchestrator_proxy_pool_size") == 0, "the end of all that is kept of it")
        wait_for(lambda: proxy.metric("orchestrator_proxy_connection_duration_milliseconds_count") == 3, "all three")
        self.assertEqual(proxy.metric("orchestrator_proxy_connections_per_sandbox_bucket", le="1"), 1)
        self.assertEqual(proxy.metric("orchestrator_proxy_connections_per_sandbox_bucket", le="2"), 2)

    @unittest.skipIf(OVER_TLS, "a handshake waits just so")
    def test_the_operator_may_allow_fewer_connections(self):
        server = self.serve()
        self.workers = 1
        proxy = self.start("--connections-max", "2")
        first, second, third = (proxy.connect() for _ in range(3))
        for client in (first, second):
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            self.assertEqual(client.response().status, 200)
        self.assertEqual(proxy.metric("orchestrator_proxy_server_connections_open"), 2)
        third.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        first.close()
        self.assertEqual(third.response().status, 200, "it has waited for room")
        second.close()
        third.close()

    @unittest.skipIf(OVER_TLS, "the descriptors are the same")
    def test_the_operator_may_allow_more_connections_than_have_a_second_descriptor(self):
        server = self.serve()
        self.workers = 1
        self.descriptors = 200
        proxy = self.start("--connections-max", "100")
        clients = [proxy.connect() for _ in range(90)]
        for client in clients:
            self.addCleanup(client.close)
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            self.assertEqual(client.response().status, 200)
        self.assertEqual(proxy.metric("orchestrator_proxy_server_connections_open"), 90)

    def test_s100_cookies_pass_as_the_server_set_them(self):
        """Whose domain it is, is for the operator to say (Public Suffix List); see the README."""
        def script(connection):
            connection.request()
            connection.send(answer("ok", fields="Set-Cookie: a=1; Domain=.sandbox.test; Path=/\r\nSet-Cookie: b=2\r\n"))

        server = self.serve(script)
        proxy = self.start()
        self.assertEqual(proxy.ask(self.host(server)).all("Set-Cookie"), ["a=1; Domain=.sandbox.test; Path=/", "b=2"])


if __name__ == "__main__":
    main()
