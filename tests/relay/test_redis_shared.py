#!/usr/bin/env python3
"""Several proxies on one Redis, and a wake-up hook that writes there: a change through one is there for all."""
import json
import socket
import threading

from redis_support import KEY, SOON, RedisTest, record
from support import Connection, Proxy, answer, main, wait_for


class Shared(RedisTest):
    """Several proxies on one Redis: a change through one is there in the others."""

    def start_pair(self, redis, *flags):
        first = self.start_proxy(redis, *flags)
        second = Proxy("--redis", redis.url, "--allow-loopback-upstreams", *flags, workers=self.workers)
        self.addCleanup(lambda: self.assertEqual(second.stop(), 0, "\n".join(second.log)))
        for proxy in (first, second):
            self.scanned(proxy)
        return first, second

    def test_put_patch_and_delete_through_either(self):
        redis = self.start_redis()
        server = self.serve()
        first, second = self.start_pair(redis)
        status, made = first.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1", "traffic_access_token": "t1"})
        self.assertEqual(status, 201)
        wait_for(lambda: self.known("abc", second), "the other one", SOON)
        seen = second.call("GET", "/sandboxes/abc")[1]
        for key in ("lifecycle_id", "address", "private", "connection_limit", "envd_port", "state", "auto_resume"):
            self.assertEqual(seen[key], made[key], key)
        for proxy in (first, second):
            self.assertEqual(proxy.ask(self.host(server)).status, 403)
            self.assertEqual(proxy.ask(self.host(server), fields="e2b-traffic-access-token: t1\r\n").status, 200)
        value = json.loads(redis.client.call("GET", KEY + "abc"))
        self.assertEqual((value["orchestrator_ip"], value["execution_id"]), ("127.0.0.1", made["lifecycle_id"]))
        # The other way: only what the body names, null takes away.
        status, changed = second.call("PATCH", "/sandboxes/abc", {"traffic_access_token": None, "connection_limit": 7})
        self.assertEqual((status, changed["private"], changed["connection_limit"]), (200, False, 7))
        self.assertEqual(changed["lifecycle_id"], made["lifecycle_id"])
        wait_for(lambda: first.call("GET", "/sandboxes/abc")[1]["connection_limit"] == 7, "the first one", SOON)
        self.assertEqual(first.ask(self.host(server)).status, 200)
        self.assertEqual(first.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1"})[0], 200)
        # A lifecycle id binds a change.
        self.assertEqual(first.call("DELETE", "/sandboxes/abc?lifecycle_id=other")[0], 409)
        now = first.call("GET", "/sandboxes/abc")[1]["lifecycle_id"]
        self.assertEqual(first.call("DELETE", f"/sandboxes/abc?lifecycle_id={now}")[0], 204)
        self.assertFalse(self.known("abc", first))
        wait_for(lambda: not self.known("abc", second), "the other one", SOON)
        self.assertIsNone(redis.client.call("GET", KEY + "abc"))
        self.assertEqual(first.call("DELETE", "/sandboxes/abc")[0], 404)
        self.assertEqual(first.call("PATCH", "/sandboxes/abc", {"connection_limit": 1})[0], 404)

    def test_case_189_masks_of_single_ports_go_through_redis(self):
        redis = self.start_redis()
        one, two = self.serve(), self.serve()
        first, second = self.start_pair(redis)

        def names(proxy):
            return [dict(proxy.ask(self.host(server)).json()["fields"])["Host"] for server in (one, two)]

        masks = f"localhost:${{PORT}};{two.port}="
        self.assertEqual(first.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1", "mask_request_host": masks})[0], 201)
        wait_for(lambda: self.known("abc", second), "the other one", SOON)
        for proxy in (first, second):
            self.assertEqual(names(proxy), [f"localhost:{one.port}", self.host(two)])
        self.assertEqual(json.loads(redis.client.call("GET", KEY + "abc"))["mask_request_host"], masks)
        self.assertEqual(second.call("PATCH", "/sandboxes/abc", {"mask_request_host": f"{two.port}=app.test"})[0], 200)
        wait_for(lambda: names(first) == [self.host(one), "app.test"], "the change", SOON)
        self.assertEqual(second.call("PATCH", "/sandboxes/abc", {"mask_request_host": "a;b"})[0], 400)
        self.assertEqual(names(second), [self.host(one), "app.test"])
        # Somebody else's mistake is no sandbox that does not exist.
        redis.client.call("SET", KEY + "abc", record(mask_request_host="http://localhost"))
        wait_for(lambda: first.ask(self.host(one)).get("X-Proxy-Error") == "catalog_unavailable", "the record that makes no sense", SOON)

    def test_behind_one_name(self):
        """Both listen at the same address: the kernel gives a connection to either."""
        redis = self.start_redis()
        server = self.serve()
        first = self.start_proxy(redis)
        second = Proxy("--redis", redis.url, "--allow-loopback-upstreams", "--listen", f"127.0.0.1:{first.port}",
                       workers=self.workers)
        self.addCleanup(lambda: self.assertEqual(second.stop(), 0, "\n".join(second.log)))
        for proxy in (first, second):
            self.scanned(proxy)
        for number in range(40):
            name, maker = f"one{number}", (first, second)[number % 2]
            self.assertEqual(maker.call("PUT", f"/sandboxes/{name}", {"address": "127.0.0.1"})[0], 201)
            for _ in range(5):
                self.assertEqual(first.ask(self.host(server, name)).status, 200)
        for proxy in (first, second):
            self.assertGreater(proxy.metric("proxy_requests_total"), 20)

    def test_pause_here_resets_there(self):
        redis = self.start_redis()
        gate = threading.Event()
        server = self.serve(lambda connection: (connection.request(), gate.wait(15)))
        first, second = self.start_pair(redis)
        first.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1"})
        wait_for(lambda: self.known("abc", second), "the other one", SOON)
        before = second.call("GET", "/sandboxes/abc")[1]["lifecycle_id"]
        with second.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 0\r\n\r\n")
            wait_for(lambda: server.received, "the request")
            self.assertEqual(first.call("PATCH", "/sandboxes/abc", {"state": "paused"})[0], 200)
            client.read_some()
        self.assertEqual(second.ask(self.host(server)).get("X-Proxy-Error"), "sandbox_paused")
        self.assertEqual(second.call("PATCH", "/sandboxes/abc", {"state": "running"})[0], 200)
        wait_for(lambda: first.call("GET", "/sandboxes/abc")[1]["state"] == "running", "the first one", SOON)
        after = [proxy.call("GET", "/sandboxes/abc")[1]["lifecycle_id"] for proxy in (first, second)]
        self.assertEqual(after[0], after[1])
        self.assertNotEqual(after[0], before)
        gate.set()

    def test_the_rights_it_needs_and_no_others(self):
        """Those that the README names, in another database."""
        rights = ("+getrange +exists +scan +ping +select +subscribe +psubscribe +config|get "
                  "+eval +get +set +del +pttl +pexpire +publish").split()
        redis = self.start_redis()
        redis.client.call("ACL", "SETUSER", "proxy", "on", ">pw", "~sandbox:catalog:*", "&*", *rights)
        server = self.serve()
        proxy = self.start_proxy(redis, url=f"unix://proxy:pw@{redis.path}?db=2")
        self.scanned()
        self.assertEqual(proxy.metric("proxy_redis_notified"), 1)
        self.assertEqual(proxy.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1"})[0], 201)
        self.assertEqual(proxy.ask(self.host(server)).status, 200)
        self.assertEqual(proxy.call("PATCH", "/sandboxes/abc", {"connection_limit": 3})[0], 200)
        self.assertEqual(proxy.ask(self.host(server, "nobody")).status, 502)
        self.assertEqual(proxy.call("DELETE", "/sandboxes/abc")[0], 204)
        self.assertEqual([line for line in proxy.log if "NOPERM" in line], [])

    def test_e2bs_keys_and_expiry_survive_a_patch(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record(team="t5", nested={"a": [1, "x"]}), "EX", 3600)
        proxy = self.start_proxy(redis)
        self.scanned()
        self.assertEqual(proxy.call("PATCH", "/sandboxes/abc", {"address": "127.0.0.3"})[0], 200)
        value = json.loads(redis.client.call("GET", KEY + "abc"))
        self.assertEqual((value["orchestrator_ip"], value["team"], value["nested"], value["orchestrator_id"],
                          value["sandbox_max_length_in_hours"]), ("127.0.0.3", "t5", {"a": [1, "x"]}, "node1", 24))
        self.assertNotEqual(value["execution_id"], "e1")  # at another address it is another life
        self.assertGreater(redis.client.call("PTTL", KEY + "abc"), 3500 * 1000)

    def test_newer_execution_survives_a_late_delete(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record(execution="old"))
        proxy = self.start_proxy(redis)
        self.scanned()
        redis.client.call("SET", KEY + "abc", record(execution="new"))
        self.assertEqual(proxy.call("DELETE", "/sandboxes/abc?lifecycle_id=old")[0], 409)
        self.assertIn(b"new", redis.client.call("GET", KEY + "abc"))

    def test_refused_before_it_reaches_redis(self):
        redis = self.start_redis()
        proxy = self.start_proxy(redis)
        self.scanned()
        for body in ({"address": ""}, {"address": "169.254.169.254"}, {"adress": "127.0.0.1"}, {"address": "a b"}):
            self.assertEqual(proxy.call("PUT", "/sandboxes/abc", body)[0], 400, body)
        self.assertIsNone(redis.client.call("GET", KEY + "abc"))

    def test_without_redis_nothing_changes(self):
        redis = self.start_redis(keep=True)
        redis.client.call("SET", KEY + "abc", record())
        proxy = self.start_proxy(redis, "--sandbox", "mine=127.0.0.1")
        self.scanned()
        redis.stop()
        wait_for(lambda: proxy.metric("proxy_redis_connected") == 0, "the loss")
        self.assertEqual(proxy.call("PUT", "/sandboxes/def", {"address": "127.0.0.1"})[0], 503)
        self.assertEqual(proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})[0], 503)
        self.assertEqual(proxy.call("DELETE", "/sandboxes/abc")[0], 503)
        self.assertTrue(self.known("abc"))
        self.assertFalse(self.known("def"))
        # What belongs to this proxy alone needs nobody.
        self.assertEqual(proxy.call("PATCH", "/sandboxes/mine", {"connection_limit": 2})[0], 200)
        self.assertEqual(proxy.call("DELETE", "/sandboxes/mine")[0], 204)

    def test_client_of_the_admin_api_leaves_while_redis_hangs(self):
        redis = self.start_redis()
        proxy = self.start_proxy(redis)
        self.scanned()
        redis.client.call("CLIENT", "PAUSE", 400, "ALL")
        with Connection(socket.create_connection(("127.0.0.1", proxy.admin_port))) as client:
            client.send("DELETE /sandboxes/abc HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.abort()
        with Connection(socket.create_connection(("127.0.0.1", proxy.admin_port))) as client:
            body = '{"address":"127.0.0.1"}'
            client.send(f"PUT /sandboxes/abc HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}")
            client.abort()
        self.assertEqual(proxy.call("GET", "/sandboxes")[0], 200)


class Woken(RedisTest):
    """As E2B does it: what sleeps is not in Redis, and a hook is asked about what is not there."""

    def begin(self, reply):
        redis, questions = self.start_redis(), []

        def script(connection):
            request = connection.request()
            if request.line:
                questions.append(request.json())
                connection.send(reply(redis))

        hook = self.serve(script)
        self.start_proxy(redis, "--wake-url", f"http://127.0.0.1:{hook.port}/", "--wake-unknown")
        self.scanned()
        return redis, questions

    def test_the_hook_writes_to_redis_and_says_nothing(self):
        server = self.serve()

        def reply(redis):
            redis.client.call("SET", KEY + "abc", record(execution="e5"))
            return answer("")

        _, questions = self.begin(reply)
        self.assertEqual(self.proxy.ask(self.host(server)).status, 200)
        self.assertEqual(self.proxy.call("GET", "/sandboxes/abc")[1]["lifecycle_id"], "e5")
        self.assertEqual(len(questions), 1)

    def test_what_the_hook_said_holds_until_redis_knows(self):
        server = self.serve()
        redis, questions = self.begin(lambda _: answer('{"address":"127.0.0.1","lifecycle_id":"h1"}'))
        self.assertEqual(self.proxy.ask(self.host(server)).status, 200)
        self.assertEqual(self.proxy.call("PATCH", "/sandboxes/abc", {"connection_limit": 9})[0], 200)
        redis.client.call("SET", KEY + "mark", record())
        wait_for(lambda: self.known("mark"), "the notifications")
        self.assertEqual(self.proxy.call("GET", "/sandboxes/abc")[1]["connection_limit"], 9)
        redis.client.call("SET", KEY + "abc", record(execution="h1"))
        wait_for(lambda: self.proxy.call("GET", "/sandboxes/abc")[1]["connection_limit"] == -1, "Redis' word")
        redis.client.call("DEL", KEY + "abc")
        wait_for(lambda: not self.known("abc"), "the end")
        self.assertEqual(len(questions), 1)

    def test_the_hook_is_not_asked_while_redis_is_gone(self):
        redis, questions = self.begin(lambda _: answer('{"address":"127.0.0.1"}'))
        redis.stop()
        wait_for(lambda: self.proxy.metric("proxy_redis_connected") == 0, "the loss")
        self.assertEqual(self.proxy.ask("80-abc.sandbox.test").get("X-Proxy-Error"), "catalog_unavailable")
        self.assertEqual(questions, [])


if __name__ == "__main__":
    main()
