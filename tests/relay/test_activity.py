#!/usr/bin/env python3
"""How much sandboxes are used, as the admin API tells it: what counts, what does not, and how it is watched."""
import http.client
import json
import threading
import time

from support import PATIENCE, Test, answer, main, wait_for
from tunnel_support import ASK, SWITCH

LONG = 400  # milliseconds


class Activity(Test):
    def of(self, sandbox="abc", tunnels=None):
        query = f"?tunnels={tunnels}" if tunnels else ""
        status, told = self.proxy.call("GET", "/activity" + query)
        self.assertEqual(status, 200)
        return {entry["id"]: entry for entry in told["sandboxes"]}[sandbox]

    def rest(self, key="idle_ms", **options):
        """Until it says that nothing has happened for long."""
        return wait_for(lambda: (entry := self.of(**options))[key] >= LONG and entry, f"a rest by {key}")

    def is_used_since(self, began, key="idle_ms", **options):
        """Not true of one that has rested LONG by then, however long it takes to ask."""
        return self.of(**options)[key] <= (time.monotonic() - began) * 1000 + LONG / 2

    def hold(self):
        """A server whose answers the test gives one piece after the other."""
        pieces = []
        go = threading.Semaphore(0)

        def serve(connection):
            connection.request()
            while go.acquire(timeout=PATIENCE):
                piece = pieces.pop(0)
                if piece is None:
                    return
                connection.send(piece)

        def push(piece):
            pieces.append(piece)
            go.release()

        return self.serve(serve), push

    def client(self, server, fields="", sandbox="abc"):
        client = self.proxy.connect()
        self.addCleanup(client.close)
        client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server, sandbox)}\r\n{fields}\r\n")
        return client

    def test_s030_a_request_that_waits_keeps_it_busy_a_stream_its_bytes(self):
        server, push = self.hold()
        self.start(sandboxes=("abc", "other"))
        before = self.rest()
        self.assertEqual((before["unanswered"], before["streams"], before["tunnels"], before["state"]), (0, 0, 0, "running"))
        client = self.client(server)
        wait_for(lambda: self.of()["unanswered"] == 1, "the request")
        busy = self.rest("request_idle_ms")
        self.assertEqual((busy["idle_ms"], busy["streams"]), (0, 0))
        push(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.head()
        rests = self.rest()  # a silent stream is no work
        self.assertEqual((rests["unanswered"], rests["streams"], rests["tunnels"]), (0, 1, 0))
        began = time.monotonic()
        push(b"2\r\n:\n\r\n")  # a heartbeat's comment is bytes
        client.take_until(b":\n\r\n")
        self.assertTrue(self.is_used_since(began))
        self.rest()
        client.close()
        wait_for(lambda: self.of()["streams"] == 0, "the end")
        push(None)
        self.assertGreaterEqual(self.of("other")["idle_ms"], 3 * LONG)

    def test_s030_what_tunnels_count_for(self):
        server, push = self.hold()
        self.start()
        client = self.client(server, ASK)
        push(SWITCH)
        client.head()
        wait_for(lambda: self.of()["tunnels"] == 1, "the tunnel")
        self.rest()
        self.assertEqual(self.of(tunnels="open")["idle_ms"], 0)
        self.assertGreaterEqual(self.of(tunnels="none")["idle_ms"], LONG)
        began = time.monotonic()
        client.send(b"\x89\x80abcd")  # a ping is bytes
        wait_for(lambda: self.is_used_since(began), "the ping to count")
        self.assertGreaterEqual(self.of(tunnels="none")["idle_ms"], LONG)
        self.rest()
        began = time.monotonic()
        push(b"\x8a\x00")
        client.take(2)
        wait_for(lambda: self.is_used_since(began), "the pong to count")
        client.abort()
        wait_for(lambda: self.of(tunnels="open")["tunnels"] == 0, "its end")
        self.rest(tunnels="open")
        push(None)

    def test_s030_uploads_count_and_new_lives_begin_anew(self):
        def script(connection):
            connection.head()
            connection.take_all()

        server = self.serve(script)
        self.start()
        client = self.client(server, "Transfer-Encoding: chunked\r\n")
        self.rest("request_idle_ms")
        began = time.monotonic()
        client.send(b"1\r\nx\r\n")
        wait_for(lambda: self.is_used_since(began, "request_idle_ms"), "the byte to count")
        first = self.rest("request_idle_ms")["lifecycle_id"]
        began = time.monotonic()
        self.proxy.call("PATCH", "/sandboxes/abc", {"lifecycle_id": "next"})
        self.assertEqual(client.response().status, 502)
        now = self.of()
        self.assertNotEqual(now["lifecycle_id"], first)
        self.assertTrue(self.is_used_since(began))
        self.assertEqual((now["unanswered"], now["streams"]), (0, 0))
        self.assertEqual(self.of(tunnels="open")["lifecycle_id"], "next")

    def test_s031_probes_are_no_activity_and_wake_nobody(self):
        hook = self.serve(lambda connection: connection.request() and connection.send(answer('{"state":"running"}')))
        envd = self.serve()
        proxy = self.start("--sandbox", f"abc=127.0.0.1,envd={envd.port},resume=any", "--probe", "GET 49983 /health", "--probe", "HEAD * *",
                           "--wake-url", f"http://127.0.0.1:{hook.port}/", sandboxes=())
        self.rest()
        self.assertEqual(proxy.ask("49983-abc.d", "/health?x").status, 200)
        self.assertEqual(proxy.ask("49983-abc.d", "/health", "HEAD").status, 200)
        self.assertGreaterEqual(self.of()["idle_ms"], LONG)
        began = time.monotonic()
        self.assertEqual(proxy.ask("49983-abc.d", "/healthy").status, 200)
        self.assertTrue(self.is_used_since(began))
        proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
        for method in ("GET", "HEAD"):
            self.assertEqual(proxy.ask("49983-abc.d", "/health", method).get("X-Proxy-Error"), "sandbox_paused")
        self.assertEqual(hook.connections, [])
        self.assertEqual(proxy.ask(f"{envd.port}-abc.d", "/health").status, 200)
        self.assertEqual(len(hook.connections), 1)

    def watch(self, query=""):
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.admin_port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        connection.request("GET", "/activity?watch=1" + query)
        return connection.getresponse()

    def test_s033_watched_once_a_second(self):
        server = self.serve()
        proxy = self.start(sandboxes=("abc", "other"))
        self.rest()
        watch = self.watch()
        self.assertEqual(watch.getheader("Content-Type"), "application/x-ndjson")
        first = [json.loads(watch.readline()) for _ in range(2)]
        self.assertEqual(sorted(entry["id"] for entry in first), ["abc", "other"])
        began = time.monotonic()
        for _ in range(20):
            proxy.ask(self.host(server))
        seen = []
        while {} not in seen:
            seen.append(json.loads(watch.readline()))
        # At most one line a second for it, none for the other.
        self.assertLessEqual(len(seen) - 1, time.monotonic() - began + 2)
        self.assertEqual({entry.get("id") for entry in seen[:-1]}, {"abc"})
        self.assertEqual(proxy.call("GET", "/activity?tunnels=maybe")[0], 400)
        self.assertEqual(proxy.call("POST", "/activity")[0], 405)
        self.assertEqual(proxy.stop(), 0)
        watch.read()  # ends in order

    def test_many_sandboxes_and_a_reader_that_is_slow(self):
        proxy = self.start()
        for i in range(500):
            proxy.call("PUT", f"/sandboxes/x{i}", {"address": "10.0.0.1", "lifecycle_id": "l" * 250})
        status, told = proxy.call("GET", "/activity")
        self.assertEqual((status, len(told["sandboxes"])), (200, 501))
        watch = self.watch("&tunnels=open")
        lines = [json.loads(watch.readline()) for _ in range(501)]
        self.assertEqual(len({entry["id"] for entry in lines}), 501)


if __name__ == "__main__":
    main()
