#!/usr/bin/env python3
"""Streams of one HTTP/2 connection: windows, limits, drains, and that none disturbs another."""
import struct
import threading
import time

from http2_support import ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, Client, Codes, Raw, frame, head
from support import PATIENCE, Test, answer, main, one_of, plain, program, wait_for
from tunnel_support import upgrade


class Streams(Test):
    def test_s073_one_reader_that_stalls_disturbs_no_other(self):
        def events(connection):
            request = connection.request()
            if "stall" in request.line:
                connection.sock.settimeout(None)  # it is the proxy that ends it
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            if "stall" in request.line:
                while True:
                    connection.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            for n in range(20):
                connection.send(f"7\r\nevent{n:02}\r\n")
            connection.send("0\r\n\r\n")

        server = self.serve(events)
        proxy = self.start()
        with Client(proxy) as client:
            stalled = client.open(self.host(server), "/stall")
            client.stalled.add(stalled)
            client.until(lambda: len(client.answers[stalled].body) >= 65535)
            before = proxy.memory_kib()
            streams = [client.open(self.host(server), f"/{n}") for n in range(99)]
            for stream in streams:
                self.assertEqual(client.answer(stream).body, b"".join(b"event%02d" % n for n in range(20)))
            self.assertEqual(len(client.answers[stalled].body), 65535)
            self.assertLess(proxy.memory_kib() - before, 8 * 1024)
            client.h2.reset_stream(stalled)
            client.flush()
            wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0)

    def test_s072_each_event_comes_by_itself(self):
        seen = threading.Semaphore(0)
        events = [b"data: 1\n\n", b"data: \xc3", b"\xa9\r\n", b":", b"\n" * 3, b"x" * 300000, b"end"]

        def script(connection):
            connection.request()
            connection.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in events:
                connection.send(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                # Nothing more until the client has it: what is held back would never come.
                self.assertTrue(seen.acquire(timeout=PATIENCE))
            connection.send("0\r\n\r\n")

        server = self.serve(script)
        with Client(self.start()) as client:
            stream = client.open(self.host(server))
            expected = b""
            for event in events:
                expected += event
                client.until(lambda expected=expected: client.answers[stream].body == expected)
                seen.release()
            self.assertTrue(client.answer(stream).ended)

    def test_s083_no_window_then_one_by_settings(self):
        server = self.serve(lambda connection: (connection.request(), connection.send(answer(b"y" * 100000))))
        proxy = self.start()
        import h2.settings
        with Client(proxy, settings={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}) as client:
            streams = [client.open(self.host(server)) for _ in range(3)]
            client.until(lambda: all(client.answers[stream].status for stream in streams))
            self.assertEqual(client.answers[streams[0]].body, b"")
            client.h2.increment_flow_control_window(200000, streams[1])
            client.flush()
            self.assertEqual(len(client.answer(streams[1]).body), 100000)
            self.assertEqual(client.answers[streams[0]].body, b"")
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 500000})
            client.flush()
            for stream in (streams[0], streams[2]):
                self.assertEqual(len(client.answer(stream).body), 100000)

    def test_s087_more_streams_than_allowed_are_refused(self):
        release = threading.Event()

        def script(connection):
            connection.request()
            release.wait(PATIENCE)
            connection.send(answer("late"))

        server = self.serve(script)
        proxy = self.start()
        with Client(proxy) as client:
            import h2.settings
            self.assertEqual(client.settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS], 100)
            # A client that does not mind.
            client.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
            client.h2.remote_settings.acknowledge()
            streams = [client.open(self.host(server)) for _ in range(110)]
            for stream in streams[100:]:
                self.assertEqual(client.answer(stream).reset, Codes.REFUSED_STREAM)
            wait_for(lambda: proxy.metric("proxy_dials_total") == 100)
            release.set()
            for stream in streams[:100]:
                self.assertEqual(client.answer(stream).body, b"late")
            self.assertEqual(client.ask(self.host(server)).body, b"late")
        self.assertEqual(proxy.metric("proxy_http2_refused_total"), 10)

    def test_idle_connections_cost_little_and_serve_as_before(self):
        server = self.serve()
        proxy = self.start()

        def ask(client):
            self.assertEqual(client.ask(self.host(server), fields=[("x-kept", "in HPACK's table")]).status, 200)

        def connect(count):
            clients = [Client(proxy) for _ in range(count)]
            for client in clients:
                self.addCleanup(client.close)
                ask(client)
            return clients

        clients = connect(50)
        wait_for(lambda: proxy.metric("proxy_http2_connections_resting") == 50)
        before = proxy.memory_kib()
        clients += connect(200)
        wait_for(lambda: proxy.metric("proxy_http2_connections_resting") == 250)
        each = (proxy.memory_kib() - before) / 200
        if "asan" not in program():
            self.assertLess(each, 22 if proxy.over_tls else 6, "KiB for a connection that rests")
        for client in clients:
            ask(client)
        self.assertEqual(proxy.metric("proxy_http2_requests_total"), 500)

    def test_s084_drain_loses_no_request(self):
        release = threading.Event()

        def script(connection):
            connection.request()
            release.wait(PATIENCE)
            connection.send(answer("finished"))

        def is_drained():
            release.clear()
            server = self.serve(script)
            proxy = self.start("--drain-ms", str(drain_ms))
            # By hand: for python-h2 a connection is over with the first GOAWAY.
            with Raw(proxy) as client:
                client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, head(self.host(server))))
                wait_for(lambda: proxy.metric("proxy_dials_total") == 1)
                began = time.monotonic()
                proxy.process.send_signal(15)
                # When two thirds of the time are over also to who has requests open.
                notice = client.read_until(GOAWAY)
                # This one crosses the notice, and is still served.
                client.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, head(self.host(server))))
                ping = client.read_until(PING)
                if ping:
                    client.send(frame(PING, ACK, 0, ping[3]))
                last = client.read_until(GOAWAY)
                client.send(frame(HEADERS, END_HEADERS | END_STREAM, 5, head(self.host(server))))
                release.set()
                while client.read_frame():
                    pass
                took = time.monotonic() - began
                bodies = {stream: payload for kind, _, stream, payload in client.frames if kind == DATA}
                reset = client.connection.reset
            self.assertEqual(proxy.stop(), 0)
            if took * 1000 >= drain_ms:
                return False  # on a machine that stalls the time was over before
            self.assertEqual((notice[3], last[3]), (struct.pack(">II", 2 ** 31 - 1, 0), struct.pack(">II", 3, 0)))
            self.assertEqual(bodies, {1: b"finished", 3: b"finished"})
            self.assertFalse(reset)
            return True

        drain_ms = 9000
        one_of(is_drained, "an end before the time is over")

    def test_s084_clients_that_take_goaway_for_the_end_lose_nothing(self):
        release = threading.Event()

        def script(connection):
            connection.request()
            release.wait(PATIENCE)
            connection.send(answer("finished"))

        server = self.serve(script)
        proxy = self.start()
        with Client(proxy) as client:
            stream = client.open(self.host(server))
            wait_for(lambda: proxy.metric("proxy_dials_total") == 1)
            proxy.process.send_signal(15)
            wait_for(lambda: proxy.call("GET", "/health")[0] == 503)
            another = client.open(self.host(server))
            wait_for(lambda: proxy.metric("proxy_dials_total") == 2)
            release.set()
            self.assertEqual([client.answer(each).body for each in (stream, another)], [b"finished"] * 2)
            client.until(lambda: client.goaways)
        self.assertEqual(proxy.stop(), 0)

    def test_s071_drain_ends_what_stays(self):
        def script(connection):
            upgrade(connection)
            connection.take_all()

        server = self.serve(script)
        proxy = self.start("--drain-ms", "300")
        with Client(proxy) as client:
            stream = client.open(self.host(server), method="CONNECT", protocol="websocket", end=False)
            client.until(lambda: client.answers[stream].status == 200)
            proxy.process.send_signal(15)
            rest = b""
            try:
                while piece := client.connection.sock.recv(65536):
                    rest += piece
                self.fail("the connection ended as if nothing was cut")
            except ConnectionResetError:
                pass
            self.assertIn(frame(GOAWAY, 0, 0, struct.pack(">II", stream, 0)), rest)
            self.assertNotIn(frame(DATA, END_STREAM, stream), rest)
        self.assertEqual(proxy.stop(), 0)

    def test_sandbox_that_goes_resets_its_streams_alone(self):
        def script(connection):
            connection.request()
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            connection.take_all()

        server, other = self.serve(script), self.serve(plain)
        proxy = self.start(sandboxes=("abc", "def"))
        with Client(proxy) as client:
            stream = client.open(self.host(server))
            client.until(lambda: client.answers[stream].body)
            proxy.call("DELETE", "/sandboxes/abc")
            self.assertEqual(client.answer(stream).reset, Codes.INTERNAL_ERROR)
            self.assertEqual(client.ask(self.host(other, "def")).status, 200)


if __name__ == "__main__":
    main()
