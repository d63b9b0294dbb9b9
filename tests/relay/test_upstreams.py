#!/usr/bin/env python3
"""Connections to sandboxes: dialling, retries, and what is kept for the next request."""
import socket
import threading
import time

from support import PATIENCE, Connection, Server, Test, answer, closed_port, in_time, main, one_of, plain, wait_for


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


if __name__ == "__main__":
    main()
