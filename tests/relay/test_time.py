#!/usr/bin/env python3
"""What takes minutes and hours, by a clock that runs faster (fast_clock.c): who is slow on purpose is cut off at
the limits of lib/limits.h and proxy/limits.h, and what only rests is not."""
import math
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from handover_support import Following, is_alive, resume
from support import PATIENCE, Test, answer, main, pace, program, quiet_for, wait_for
from tls_support import anyone

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: rest\r\nConnection: Upgrade\r\n\r\n"
# Seconds that pass in the proxy in one of ours.
FAST = 1000


@unittest.skipIf("asan" in program(), "the sanitizers' own preloading comes first")
class Clock(Test):
    workers = 1

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fast_clock.c")
        subprocess.run(["gcc", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-o", f"{cls.folder}/fast_clock.so", source, "-ldl"], check=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def start(self, *flags, **options):
        with open(f"{self.folder}/speed", "w+b") as file:
            file.write(bytes(72))
            file.flush()
            self.setting = mmap.mmap(file.fileno(), 72)
        self.slot, now = 0, time.monotonic_ns()
        self.current = (1.0, now, now, math.inf)
        self.run_at(1)
        return super().start(*flags, env={"LD_PRELOAD": f"{self.folder}/fast_clock.so", "FAST_CLOCK": f"{self.folder}/speed"}, **options)

    def shown(self):
        """Seconds on the proxy's clock."""
        return self.shown_at(time.monotonic_ns()) / 1e9

    def shown_at(self, now):
        speed, real, shown, stop = self.current
        return min(shown + (now - real) * speed, stop)

    def run_at(self, speed, seconds=math.inf):
        """For so many seconds of its own; then it stands still."""
        now = time.monotonic_ns()
        shown = self.shown_at(now)
        self.current = (float(speed), now, shown, shown + seconds * 1e9)
        self.slot = 1 - self.slot
        self.setting[8 + 32 * self.slot:40 + 32 * self.slot] = struct.pack("4d", *self.current)
        self.setting[:8] = struct.pack("Q", self.slot)

    def pass_time(self, seconds, speed=FAST):
        """The test is that they pass, however little happens; no more of them on a busy machine."""
        self.run_at(speed, seconds)
        quiet_for(seconds / speed)
        self.run_at(1)

    def assert_ends_after(self, limit, condition, step=1):
        """Seconds pass in the proxy, in steps; the one that goes past the limit makes the condition true."""
        began = self.shown()
        while True:
            self.pass_time(step)
            passed = self.shown() - began
            if passed > limit + 2:
                self.run_at(0.01)  # it is due, however busy the machine is, at the second look: a millisecond later
                wait_for(condition, "the end")
                self.run_at(1)
                return
            quiet_for(0.02)  # what became due has had time to happen
            if condition():
                self.assertLess(limit, passed + 2, "too early")
                return

    def is_over(self, client):
        """Takes what has come."""
        client.sock.settimeout(0.001)
        try:
            while client.read_some():
                pass
            return True
        except TimeoutError:
            return False
        finally:
            client.sock.settimeout(PATIENCE)


class Time(Clock):
    def test_s054_a_head_that_dribbles(self):
        """HTTP_HEAD_TIMEOUT_MS, from its first byte, however often another comes."""
        server = self.serve()
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\nX: ")

            def over():
                if not self.is_over(client):
                    client.send("y")
                    return False
                return True

            self.assert_ends_after(30, over)
            response = client.response()
        self.assertEqual((response.status, response.get("Connection"), response.get("X-Proxy-Error")), (408, "close", "bad_request"))
        self.assertEqual(server.connections, [])

    def test_s056_who_connects_and_says_nothing(self):
        """HTTP_FIRST_BYTE_TIMEOUT_MS."""
        proxy = self.start()
        with proxy.connect() as client:
            self.assert_ends_after(60, lambda: self.is_over(client), 2)
            self.assertEqual(client.received, b"")

    def test_s055_a_body_that_dribbles(self):
        """HTTP_BODY_IDLE_TIMEOUT_MS, in which at least HTTP_BODY_PROGRESS_BYTES have to come."""
        server = self.serve()
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 100000\r\n\r\n")
            wait_for(lambda: proxy.active("abc") == 1, "the exchange")

            def over():
                if not self.is_over(client):
                    client.send("y")
                    return False
                return True

            self.assert_ends_after(120, over, 5)
            response = client.response()
        self.assertEqual((response.status, response.get("Connection"), response.get("X-Proxy-Error")), (408, "close", "bad_request"))
        self.assertEqual(proxy.metric("proxy_errors_total", **{"class": "bad_request"}), 1)
        wait_for(lambda: server.connections[0].reset, "the reset at the server")

    def test_s055_a_body_that_is_merely_slow(self):
        """A kilobyte every twenty seconds, for ten minutes."""
        server = self.serve()
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 30720\r\n\r\n")
            wait_for(lambda: proxy.active("abc") == 1, "the exchange")
            for number in range(1, 31):
                self.pass_time(20)
                client.send("y" * 1024)
                wait_for(lambda: server.received.count(b"y") == 1024 * number, "the kilobyte")
            self.assertEqual(client.response().json()["body"], "y" * 30720)

    def test_s055_who_never_reads(self):
        """HTTP_WRITE_STALL_TIMEOUT_MS, both ways."""
        def script(connection):
            connection.head()
            if not sends:
                stop.wait(60)
                return
            connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.send(b"x" * 65536)

        stop = threading.Event()
        sends = True
        server = self.serve(script)
        proxy = self.start()
        began = self.shown()
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            wait_for(lambda: proxy.active("abc") == 1, "the exchange")
            self.settle(proxy)
            # The kernel may take a little more now and then, which begins it anew.
            self.wait_for_stall(began, lambda: proxy.active("abc") == 0)
            client.take_all()
            self.assertTrue(client.reset)
        wait_for(lambda: getattr(server.connections[0], "broken", False), "the server's notice")
        sends = False
        began = self.shown()
        with proxy.connect() as client:
            client.sock.setblocking(False)
            client.sock.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 1000000000\r\n\r\n".encode())
            wait_for(lambda: proxy.active("abc") == 1, "the exchange")

            def push():
                try:
                    while True:
                        client.sock.send(bytes(65536))
                except BlockingIOError:
                    return proxy.active("abc") == 0
                except OSError:
                    return True

            for _ in range(20):
                push()
                pace(0.02)
            self.wait_for_stall(began, push)
        stop.set()

    def wait_for_stall(self, began, condition):
        """`began`: before what stalls; on a busy machine it may have stalled for some time already."""
        while not condition():
            self.assertLess(self.shown() - began, 1000, "nothing ends it")
            self.pass_time(5)
            quiet_for(0.02)
        self.assertGreater(self.shown() - began, 148)

    @staticmethod
    def settle(proxy):
        """Until everything on the way is full."""
        stable = [-1, 0]

        def settled():
            now = proxy.memory_kib()
            stable[:] = [now, stable[1] + 1 if now == stable[0] else 0]
            return stable[1] > 30

        wait_for(settled)

    def test_s074_an_hour_of_keepalive_messages(self):
        """A message every 50 seconds, as clients of envd ask for."""
        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number in range(72):
                self.assertTrue(go.acquire(timeout=PATIENCE))
                connection.send(b"e\r\n{\"n\":%8d}\r\n" % number)
            connection.send(b"0\r\n\r\n")

        go = threading.Semaphore(0)
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Type: application/connect+json\r\nContent-Length: 0\r\n\r\n")
            client.head()
            for number in range(72):
                self.pass_time(50)
                go.release()
                self.assertEqual(client.take(19), b"e\r\n{\"n\":%8d}\r\n" % number)
            self.assertEqual(client.take(5), b"0\r\n\r\n")

    def test_s067_s030_two_hours_without_a_byte(self):
        """A tunnel, a stream of events, and a question that takes its time."""
        def script(connection):
            path = connection.request().line.split()[1]
            connection.send({"/tunnel": SWITCH, "/events": b"HTTP/1.1 200 OK\r\n\r\n", "/wait": b""}[path])
            go.wait(PATIENCE)
            connection.send(answer("late") if path == "/wait" else b"still here")

        go = threading.Event()
        server = self.serve(script)
        proxy = self.start()
        clients = {path: proxy.connect() for path in ("/tunnel", "/events", "/wait")}
        for path, client in clients.items():
            self.addCleanup(client.close)
            fields = "Connection: Upgrade\r\nUpgrade: rest\r\n" if path == "/tunnel" else ""
            client.send(f"GET {path} HTTP/1.1\r\nHost: {self.host(server)}\r\n{fields}\r\n")
            if path != "/wait":
                client.head()
        wait_for(lambda: proxy.active("abc") == 3, "all three")
        self.pass_time(7200)
        self.assertEqual(proxy.active("abc"), 3)
        go.set()
        self.assertEqual(clients["/tunnel"].take_all(), b"still here")
        self.assertTrue(clients["/events"].take_until(b"still here").endswith(b"still here"))
        self.assertEqual(clients["/wait"].response().body, b"late")

    def test_s065_a_half_closed_tunnel_does_not_rest_for_ever(self):
        """PROXY_HALF_CLOSED_MS, counted from the last byte."""
        def script(connection):
            connection.request()
            connection.send(SWITCH)
            connection.take_all()
            ended.set()
            stop.wait(2 * PATIENCE)

        ended, stop = threading.Event(), threading.Event()
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: Upgrade\r\nUpgrade: rest\r\n\r\n")
            client.head()
            client.half_close()
            self.assertTrue(ended.wait(PATIENCE))
            self.pass_time(3000)
            self.assertFalse(self.is_over(client))
            self.pass_time(1000)
            wait_for(lambda: proxy.active("abc") == 0, "its end")
            client.take_all()
            self.assertTrue(client.reset)
        stop.set()


class TicketKeys(Clock, Following):
    def test_s090_restarts_do_not_make_keys_last_longer(self):
        """TLS_SESSION_S, after which the current key is the last one, and then none."""
        self.start(over_tls=True)
        context = anyone()
        session = resume(self.proxy, context).session
        for hours, reused in ((3, True), (3, True), (1.5, True), (1.5, False)):
            self.pass_time(hours * 3600, 20 * FAST)
            wait_for(lambda: resume(self.proxy, context, session).session_reused == reused, f"resumed: {reused}")
            pid = self.pids[-1]
            self.restart()
            self.assertEqual(resume(self.proxy, context, session).session_reused, reused)
            self.pass_time(30)
            wait_for(lambda: not is_alive(pid), "the old one's end")


if __name__ == "__main__":
    main()
