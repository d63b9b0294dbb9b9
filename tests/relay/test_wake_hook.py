#!/usr/bin/env python3
"""A wake-up hook that is slow, odd or hostile, and a catalog that changes while it works: whatever it does, waiters
get the answer that the catalog allows, and neither memory nor connections stay behind.
"""
import json

from handover_support import Following
from http2_support import Client
from support import PATIENCE, answer, closed_port, main, pace
from wake_support import SLEEPS, Hook, Waking

YES = '{"state":"running"}'


class Answers(Waking):
    def table(self, rows):
        server = self.serve()
        for reply, status, cause in rows:
            with self.subTest(reply=reply):
                self.hook.reply = reply
                self.proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
                response = self.proxy.ask(self.host(server))
                self.assertEqual((response.status, response.get("X-Proxy-Error")), (status, cause))

    def test_s028_odd_but_good_answers(self):
        def piecewise(connection):
            for byte in answer(YES):
                connection.send(bytes([byte]))

        def later(connection):
            connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
            pace(0.2)
            connection.send(b"13\r\n" + YES[1:].encode() + b" \r\n0\r\nX-T: 1\r\n\r\n")

        self.begin(reply=b"")
        self.table([
            (piecewise, 200, None),
            (later, 200, None),
            (b"HTTP/1.1 200 OK\r\n\r\n" + YES.encode(), 200, None),
            (b"HTTP/1.0 200 OK\r\n\r\n" + YES.encode(), 200, None),
            (b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer(YES), 200, None),
            (answer(YES, "201 Created"), 200, None),
            (answer(YES) + b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 200, None),
            (answer(YES, fields="Connection: keep-alive\r\n"), 200, None),
        ])

    def test_s028_what_a_refusal_carries_does_not_matter(self):
        self.begin(reply=b"")
        page = "<html>" + "x" * 200000
        self.table([
            (answer(page, "403 Forbidden"), 403, "wake_denied"),
            (answer(page, "404 Not Found"), 502, "sandbox_not_found"),
            (answer(page, "410 Gone"), 502, "sandbox_not_found"),
            (answer(page, "409 Conflict"), 409, "sandbox_transitioning"),
            (answer(page, "429 Too Many"), 429, "wake_limit"),
            (answer("\xff\xfe", "429 Too Many"), 429, "wake_limit"),
            (answer('{"message":5}', "429 Too Many"), 429, "wake_limit"),
            (answer('{"message":"a\\u0000b\\r\\nSet-Cookie: x"}', "429 Too Many"), 429, "wake_limit"),
        ])

    def test_s028_bad_answers(self):
        def endless_head(connection):
            connection.send(b"HTTP/1.1 200 OK\r\n")
            while True:
                connection.send(b"X-A: " + b"a" * 1000 + b"\r\n")

        def endless_body(connection):
            connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                connection.send(b"1000\r\n" + b" " * 4096 + b"\r\n")

        def endless_interim(connection):
            while True:
                connection.send(b"HTTP/1.1 102 Processing\r\n\r\n")

        def half_chunk(connection):
            connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n13\r\n" + YES.encode() + b"\r\n")

        proxy = self.begin("--wake-timeout-ms", "20000", reply=b"")
        before = proxy.memory_kib()
        deep = "[" * 30000 + "]" * 30000
        self.table([(reply, 503, "wake_unavailable") for reply in (
            endless_head, endless_body, endless_interim, half_chunk,
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
            b"HTTP/1.1 200 OK\r\nContent-Length: 19\r\nTransfer-Encoding: chunked\r\n\r\n" + YES.encode(),
            b"HTTP/2.0 200 OK\r\n\r\n" + YES.encode(),
            answer("{}", "200 OK", "Content-Encoding: gzip\r\n")[:-2] + b"\x1f\x8b",
            answer(deep), answer('{"a":' * 9000), answer('{"state":"running","state":"paused"}'), answer('{"state":"flying"}'),
            answer('{"address":"127.0.0.1:80"}'), answer('{"address":"\\u0000"}'), answer('{"lifecycle_id":"' + "x" * 1000 + '"}'),
            answer('{"id":"other","state":"running"}'), answer('{"connection_limit":99999999999999999999}'),
            answer(b"\xff{}"), answer('{"state":"running"} x'), answer("null"), answer("0"),
        )])
        self.assertLess(proxy.memory_kib() - before, 8192)


class Waiting(Waking):
    workers = 1

    def test_s026_a_thousand_waiters_half_of_which_leave(self):
        server = self.serve()
        proxy = self.begin("--wake-waiters", "1000", reply=answer(YES))
        self.hook.go.clear()
        clients = [self.client(server) for _ in range(1000)]
        self.waiting(1000)
        self.assertEqual(proxy.ask(self.host(server)).get("X-Proxy-Error"), "wake_queue_full")
        for client in clients[::2]:
            client.abort()
        self.waiting(500)
        self.hook.go.set()
        for client in clients[1::2]:
            self.assertEqual(client.response().status, 200)
            client.close()
        self.assertEqual(len(self.hook.questions), 1)

    def test_s050_no_100_before_it_runs(self):
        server = self.serve()
        proxy = self.begin(reply=answer(YES))
        self.hook.go.clear()
        client = proxy.connect()
        self.addCleanup(client.close)
        client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        self.waiting(1)
        client.sock.settimeout(0.3)
        with self.assertRaises(TimeoutError):
            client.read_some()
        client.sock.settimeout(PATIENCE)
        self.hook.go.set()
        client.send("hi")
        response = client.response()
        while response.status == 100:
            response = client.response()
        self.assertEqual(response.json()["body"], "hi")

    def test_s027_http2_streams_wait_with_bodies(self):
        server = self.serve()
        proxy = self.begin(reply=answer(YES))
        self.hook.go.clear()
        before = proxy.memory_kib()
        clients = [Client(proxy) for _ in range(4)]
        opened = []
        for client in clients:
            self.addCleanup(client.close)
            for _ in range(50):
                stream = client.open(self.host(server), method="POST", end=False)
                window = client.h2.local_flow_control_window(stream)
                sent = 0
                while window > sent:
                    size = min(client.h2.max_outbound_frame_size, window - sent, client.h2.local_flow_control_window(stream))
                    if size <= 0:
                        break
                    client.h2.send_data(stream, b"x" * size)
                    sent += size
                client.flush()
                opened.append((client, stream, sent))
        self.waiting(200)
        self.assertLess(proxy.memory_kib() - before, 24 * 1024, "200 bodies wait in the windows, not in memory")
        for client, stream, sent in opened[::2]:
            client.h2.reset_stream(stream, 8)
            client.flush()
        self.waiting(100)
        self.hook.go.set()
        for client, stream, sent in opened[1::2]:
            client.send(stream, b"y", end=True)
            got = client.answer(stream)
            self.assertEqual(got.status, 200)
            self.assertEqual(len(json.loads(got.body)["body"]), sent + 1)


class Changes(Waking):
    def test_s018_a_new_life_asleep_is_asked_about_again(self):
        server = self.serve()
        proxy = self.begin("--wake-timeout-ms", "20000", "--allow-loopback-upstreams", reply=answer(YES))
        for reply in (answer(YES), answer("", "404 Not Found"), answer("")):
            with self.subTest(reply=reply):
                proxy.call("DELETE", "/sandboxes/abc")
                proxy.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1", "state": "paused", "auto_resume": "any", "lifecycle_id": "first"})
                self.hook.go.clear()
                del self.hook.questions[:]
                self.hook.reply = reply
                client = self.client(server)
                self.hook.asked()
                proxy.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1", "state": "paused", "auto_resume": "any", "lifecycle_id": "second"})
                self.hook.reply = lambda connection, first=reply: connection.send(first if len(self.hook.questions) < 2 else answer(YES))
                self.hook.go.set()
                response = client.response()
                self.assertEqual((response.status, response.get("X-Proxy-Error")), (200, None))
                self.assertEqual([question["lifecycleId"] for question in self.hook.questions], ["first", "second"])

    def test_s018_no_from_the_hook_about_a_life_that_is_over(self):
        server = self.serve()
        proxy = self.begin(reply=b"")

        def reply(connection):
            proxy.call("PATCH", "/sandboxes/abc", {"state": "running", "lifecycle_id": f"n{len(self.hook.questions)}"})
            connection.send(answer("", "404 Not Found"))

        self.hook.reply = reply
        for _ in range(30):
            proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
            self.assertEqual(proxy.ask(self.host(server)).status, 200)


class Addresses(Waking):
    def test_s028_running_at_an_address_that_refuses(self):
        keeper, port = closed_port()
        self.addCleanup(keeper.close)
        proxy = self.begin(reply=answer(YES))
        response = proxy.ask(f"{port}-abc.d")
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "port_closed"))
        self.assertEqual(len(self.hook.questions), 1)


class Restart(Following):
    """The proxy is replaced while requests wait."""

    def begin(self, reply=None):
        self.hook = Hook(self, reply)
        return self.start("--wake-url", self.hook.url, "--sandbox", f"abc={SLEEPS}", sandboxes=())

    def waiter(self, server):
        client = self.proxy.connect()
        self.addCleanup(client.close)
        client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        return client

    def test_s026_who_waits_goes_on_whoever_tells(self):
        server = self.serve()
        proxy = self.begin()
        first = self.waiter(server)
        self.hook.asked()
        self.restart()
        second = self.waiter(server)
        self.hook.asked(2)
        proxy.call("PATCH", "/sandboxes/abc", {"state": "running"})
        self.assertEqual(first.response().status, 200)
        self.assertEqual(second.response().status, 200)

    def test_s026_each_asks_for_its_own(self):
        server = self.serve()
        self.begin(answer('{"state":"running","lifecycle_id":"second"}'))
        self.hook.go.clear()
        first = self.waiter(server)
        self.hook.asked()
        self.restart()
        self.hook.go.set()
        self.assertEqual(first.response().status, 200)
        self.assertEqual(self.waiter(server).response().status, 200)
        self.assertLessEqual(len(self.hook.questions), 2)


if __name__ == "__main__":
    main()
