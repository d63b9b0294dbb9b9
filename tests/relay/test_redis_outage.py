#!/usr/bin/env python3
"""Redis is gone, hangs, is another one, or is none: what is known goes on being served, and what Redis cannot say is
never "not found"."""
import os
import tempfile
import threading
import time

from redis_support import KEY, RedisTest, record
from support import answer, in_time, main, one_of, wait_for


class Outage(RedisTest):
    def test_s001_outage_serves_what_is_known_and_does_not_know_the_rest(self):
        redis = self.start_redis(keep=True)
        redis.client.call("SET", KEY + "abc", record())
        server = self.serve()
        proxy = self.start_proxy(redis)
        self.scanned()
        absent = proxy.ask(self.host(server, "nobody"))
        self.assertEqual((absent.status, absent.get("X-Proxy-Error")), (502, "sandbox_not_found"))
        redis.stop()
        wait_for(lambda: proxy.metric("proxy_redis_connected") == 0, "the loss")
        for _ in range(20):
            self.assertEqual(proxy.ask(self.host(server)).status, 200)

        def ask_for_nobody():
            started = time.monotonic()
            unknown = proxy.ask(self.host(server, "nobody"))
            self.assertEqual((unknown.status, unknown.get("X-Proxy-Error")), (503, "catalog_unavailable"))
            self.assertNotIn(b"not found", unknown.body)
            self.assertTrue(unknown.get("Retry-After"))
            return time.monotonic() - started

        in_time(1.5, ask_for_nobody)
        redis.start()
        redis.client.call("SET", KEY + "def", record())
        wait_for(lambda: proxy.ask(self.host(server, "def")).status == 200, "the connection")
        self.assertEqual(proxy.ask(self.host(server, "nobody")).status, 502)
        self.assertEqual(proxy.ask(self.host(server)).status, 200)

    def test_not_there_when_the_proxy_starts(self):
        directory = tempfile.mkdtemp()
        path = os.path.join(directory, "socket")
        self.addCleanup(os.rmdir, directory)
        server = self.serve()
        proxy = self.start("--redis", f"unix://{path}", "--allow-loopback-upstreams", sandboxes=("mine",))
        self.assertEqual(proxy.ask(self.host(server, "mine")).status, 200)
        self.assertEqual(proxy.ask(self.host(server)).status, 503)
        redis = self.start_redis(path=path)
        redis.client.call("SET", KEY + "abc", record())
        wait_for(lambda: proxy.ask(self.host(server)).status == 200, "the connection")
        redis.close()
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))

    def test_hangs(self):
        """It is there and says nothing: every call has a second."""
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record())
        server = self.serve()
        proxy = self.start_proxy(redis)
        self.scanned()
        redis.process.send_signal(19)
        try:
            def ask():
                started = time.monotonic()
                unknown = proxy.ask(self.host(server, "nobody"))
                self.assertEqual(unknown.get("X-Proxy-Error"), "catalog_unavailable")
                return time.monotonic() - started

            in_time(8, ask)
            self.assertEqual(proxy.ask(self.host(server)).status, 200)
        finally:
            redis.process.send_signal(18)
        wait_for(lambda: proxy.ask(self.host(server, "nobody")).get("X-Proxy-Error") == "sandbox_not_found",
                 "the connection")

    def test_failover_to_one_with_other_data(self):
        first = self.start_redis()
        first.client.pipeline([("SET", KEY + "abc", record()), ("SET", KEY + "gone", record())])
        server = self.serve()
        proxy = self.start_proxy(first)
        self.scanned()
        self.assertTrue(self.known("gone"))
        path = first.path
        first.stop()
        os.path.exists(path) and os.unlink(path)
        second = self.start_redis(path=path)
        second.client.pipeline([("SET", KEY + "abc", record(execution="e2")), ("SET", KEY + "def", record())])
        wait_for(lambda: self.known("def") and not self.known("gone"), "the other one's data")
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["lifecycle_id"], "e2")
        self.assertEqual(proxy.ask(self.host(server, "def")).status, 200)
        self.assertEqual(proxy.metric("proxy_redis_losses_total"), 1)

    def test_a_connection_cut_is_not_noticed_by_requests(self):
        redis = self.start_redis()
        server = self.serve()
        proxy = self.start_proxy(redis)
        self.scanned()
        for number in range(20):
            self.connected()
            redis.client.call("SET", f"{KEY}cut{number}", record())
            redis.client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            self.assertEqual(proxy.ask(self.host(server, f"cut{number}")).status, 200)

    def test_s001_s018_redis_comes_and_goes_under_load(self):
        """What exists is never "not found" and never somebody else's; what does not exist is never found."""
        redis = self.start_redis(keep=True)
        servers = {}
        for number in range(8):
            name = f"box{number}"
            servers[name] = self.serve(lambda connection, name=name: connection.request() and connection.send(
                answer(name, fields="Connection: close\r\n")), host=f"127.0.1.{number + 1}")
            redis.client.call("SET", KEY + name, record(address=f"127.0.1.{number + 1}", execution=name))
        proxy = self.start_proxy(redis)
        self.scanned()
        over, wrong, counts = threading.Event(), [], {"known": 0, "absent": 0, "unknown": 0}

        def hammer(start):
            number = start
            while not over.is_set():
                number += 1
                name = f"box{number % 8}"
                got = proxy.ask(f"{servers[name].port}-{name}.sandbox.test")
                counts["known"] += 1
                if got.status != 200 or got.body.decode() != name:
                    wrong.append((name, got.line, got.body))
                got = proxy.ask(f"80-never{number}.sandbox.test")
                counts["absent" if got.status == 502 else "unknown"] += 1
                if got.get("X-Proxy-Error") not in ("sandbox_not_found", "catalog_unavailable"):
                    wrong.append(("never", got.line, got.body))

        threads = [threading.Thread(target=hammer, args=(start,)) for start in (0, 3, 5)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(4):
                before = counts["unknown"]
                redis.stop()
                wait_for(lambda before=before: counts["unknown"] > before + 5, "answers without Redis")
                redis.start()
                before = counts["absent"]
                wait_for(lambda before=before: counts["absent"] > before + 5, "answers with Redis", 30)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])
        for name in servers:
            self.assertTrue(self.known(name))

    def test_not_a_redis(self):
        def speaks_http(connection):
            connection.take_until(b"PING")
            connection.send("HTTP/1.1 400 Bad Request\r\n\r\n")

        other = self.serve(speaks_http)

        def is_told():
            proxy = self.start("--redis", f"redis://127.0.0.1:{other.port}", sandboxes=())
            self.assertEqual(proxy.ask("80-abc.sandbox.test").status, 503)
            proxy.logged("not connected")  # the first reason alone
            self.assertEqual(proxy.stop(), 0)  # its log is complete then
            # A machine that stalls may be too slow for it to be more than an answer that does not come.
            return any("not Redis" in line for line in proxy.log)

        one_of(is_told, "the reason")


if __name__ == "__main__":
    main()
