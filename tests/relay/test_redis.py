"""The shared catalog in a real Redis: what is in it is found, at once; what Redis cannot say is never "not found"."""
import json
import tempfile
import unittest

from redis_support import KEY, SOON, RedisTest, record
from support import Proxy, answered, closed_port, main, one_of, wait_for


class Found(RedisTest):
    def test_known_before_the_proxy_starts(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record(execution="e7"))
        server = self.serve()
        proxy = self.start_proxy(redis)
        self.assertEqual(proxy.ask(self.host(server)).status, 200)  # whether connected yet or not
        self.scanned()
        body = proxy.call("GET", "/sandboxes/abc")[1]
        self.assertEqual((body["lifecycle_id"], body["address"], body["state"]), ("e7", "127.0.0.1", "running"))

    def test_over_tcp_with_database_and_password_file(self):
        redis = self.start_redis(password="s3cr=t/@:")
        redis.client.pipeline([("SELECT", 3), ("SET", KEY + "abc", record())])
        server = self.serve()
        with tempfile.NamedTemporaryFile("w", suffix=".password") as file:
            file.write("s3cr=t/@:\n")
            file.flush()
            proxy = self.start_proxy(redis, "--redis-password-file", file.name,
                                     url=f"redis://localhost:{redis.port}/3")
            self.assertEqual(proxy.ask(self.host(server)).status, 200)
        redis.client.call("SET", KEY + "def", record())  # in database 3, whose notifications are asked for
        wait_for(lambda: self.known("def"), "the notification")

    def test_password_in_the_url_percent_encoded(self):
        redis = self.start_redis(password="p@ss:word/1")
        redis.client.call("SET", KEY + "abc", record())
        server = self.serve()
        proxy = self.start_proxy(redis, url=f"redis://default:p%40ss%3Aword%2F1@127.0.0.1:{redis.port}")
        self.assertEqual(proxy.ask(self.host(server)).status, 200)
        self.assertFalse([line for line in proxy.log if "p@ss" in line or "p%40ss" in line])

    def test_wrong_password_is_unavailable_and_said_without_it(self):
        redis = self.start_redis(password="right")
        proxy = self.start_proxy(redis, url=f"unix://:wrong1234@{redis.path}")
        proxy.logged("WRONGPASS")
        answer = proxy.ask("80-abc.sandbox.test")
        self.assertEqual((answer.status, answer.get("X-Proxy-Error")), (503, "catalog_unavailable"))
        self.assertFalse([line for line in proxy.log if "wrong1234" in line])

    def test_made_a_moment_ago_is_found_before_anybody_tells(self):
        redis = self.start_redis(notify="")  # nobody tells at all
        server = self.serve()
        proxy = self.start_proxy(redis)
        self.connected()
        for number in range(50):
            redis.client.call("SET", f"{KEY}new{number}", record())
            self.assertEqual(proxy.ask(self.host(server, f"new{number}")).status, 200)

    def test_one_question_for_many_requests(self):
        redis = self.start_redis()
        server = self.serve()
        proxy = self.start_proxy(redis)
        self.scanned()
        for attempt in range(5):  # on a busy machine the proxy may have given up before Redis speaks again
            redis.client.call("CONFIG", "RESETSTAT")
            clients = [proxy.connect() for _ in range(100)]
            redis.client.call("CLIENT", "PAUSE", 800, "ALL")  # answers nobody for a while; a second would be too long
            for client in clients:
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server, f'late{attempt}')}\r\n\r\n")
            statuses = {client.response().status for client in clients}
            for client in clients:
                client.close()
            if 503 not in statuses:
                break
            self.connected()
            self.scanned()
        self.assertEqual(statuses, {502})
        reads = [line for line in redis.client.call("INFO", "commandstats").decode().split("\r\n")
                 if line.startswith("cmdstat_getrange")]
        calls = int(reads[0].split("calls=")[1].split(",")[0])
        # One for those who came before it was put to Redis, one for those after it.
        self.assertLessEqual(calls, 4)

    def test_keys_beside_e2bs_own(self):
        redis = self.start_redis()
        server = self.serve()
        proxy = self.start_proxy(redis)
        redis.client.call("SET", KEY + "abc", record(
            traffic_access_token="tok", mask_request_host="localhost:${PORT}", connection_limit=3, somebody_elses=[1]))
        self.assertEqual(proxy.ask(self.host(server)).status, 403)
        answer = proxy.ask(self.host(server), fields="e2b-traffic-access-token: tok\r\n")
        fields = dict((key.lower(), value) for key, value in answer.json()["fields"])
        self.assertEqual(fields["host"], f"localhost:{server.port}")
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["connection_limit"], 3)
        redis.client.call("SET", KEY + "def", record(address="", state="paused"))
        self.assertEqual(proxy.ask("80-def.sandbox.test").get("X-Proxy-Error"), "sandbox_paused")


class Changes(RedisTest):
    def test_s018_moves_and_leaves_at_once(self):
        redis = self.start_redis()
        there, elsewhere = self.serve(), self.serve(host="127.0.0.2")
        redis.client.call("SET", KEY + "abc", record())
        proxy = self.start_proxy(redis)
        self.scanned()
        with proxy.connect() as client:  # a body under way, to where it was
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(there)}\r\nContent-Length: 10\r\n\r\nabc")
            wait_for(lambda: b"abc" in there.received, "the first bytes")
            redis.client.call("SET", KEY + "abc", record(address="127.0.0.2", execution="e2"))
            client.read_some()
            self.assertTrue(client.eof or client.reset or b"502" in client.received[:20])
        answer = proxy.ask(f"{elsewhere.port}-abc.sandbox.test")
        self.assertEqual(answer.status, 200)
        self.assertNotIn(b"defghij", there.received)
        redis.client.call("DEL", KEY + "abc")
        wait_for(lambda: not self.known("abc"), "the removal")
        self.assertEqual(proxy.ask(self.host(there)).get("X-Proxy-Error"), "sandbox_not_found")

    def test_same_address_and_new_execution_is_another_life(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record())
        proxy = self.start_proxy(redis)
        self.scanned()
        redis.client.call("SET", KEY + "abc", record(execution="e2"))
        wait_for(lambda: proxy.call("GET", "/sandboxes/abc")[1]["lifecycle_id"] == "e2", "the new life")

    def test_expiry(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record())
        server = self.serve()
        proxy = self.start_proxy(redis)
        self.assertEqual(proxy.ask(self.host(server)).status, 200)
        redis.client.call("SET", KEY + "abc", record(), "PX", 300)
        wait_for(lambda: not self.known("abc"), "the expiry")
        self.assertEqual(proxy.ask(self.host(server)).status, 502)

    def test_told_by_the_channel(self):
        redis = self.start_redis(notify="")
        proxy = self.start_proxy(redis)
        self.scanned()
        told = 0
        for number in range(5):
            scans = proxy.metric("proxy_redis_scans_total")
            name = f"told{number}"
            redis.client.pipeline([("SET", KEY + name, record()), ("PUBLISH", "sandbox:catalog:changes", name)])
            wait_for(lambda name=name: self.known(name), "the message")
            told += proxy.metric("proxy_redis_scans_total") == scans  # else a scan may have found it
        self.assertGreater(told, 0)
        self.assertEqual(proxy.metric("proxy_redis_notified"), 0)

    def test_told_by_nobody(self):
        redis = self.start_redis(notify="")
        redis.client.call("SET", KEY + "old", record())
        proxy = self.start_proxy(redis)
        wait_for(lambda: self.known("old"), "the first scan")
        redis.client.pipeline([("SET", KEY + "abc", record()), ("DEL", KEY + "old")])
        wait_for(lambda: self.known("abc") and not self.known("old"), "the next scan")
        proxy.logged("notifications are off")

    def test_notifications_turned_on(self):
        redis = self.start_redis(notify="Ez")
        proxy = self.start_proxy(redis, "--redis-set-notifications")
        self.scanned()
        self.assertEqual(proxy.metric("proxy_redis_notified"), 1)
        flags = redis.client.call("CONFIG", "GET", "notify-keyspace-events")[1].decode()
        self.assertTrue(set("KEg$xez") <= set(flags), flags)
        redis.client.call("SET", KEY + "abc", record())
        wait_for(lambda: self.known("abc"), "the notification", SOON)

    def test_without_the_right_to_ask_for_the_configuration(self):
        redis = self.start_redis()
        redis.client.call("ACL", "SETUSER", "reader", "on", ">pw", "~sandbox:*", "&*", "+@read", "+@pubsub", "+ping",
                          "+auth", "+select")
        proxy = self.start_proxy(redis, url=f"unix://reader:pw@{redis.path}")
        self.scanned()
        redis.client.call("SET", KEY + "abc", record())
        wait_for(lambda: self.known("abc"), "the notification", SOON)
        self.assertEqual(proxy.metric("proxy_redis_notified"), 1)

    def test_s029_moved_and_nobody_told(self):
        """The port is closed where it was: Redis is asked before that is the answer."""
        redis = self.start_redis(notify="")
        redis.client.call("SET", KEY + "abc", record(address="127.0.0.3"))
        server = self.serve(nobody_at="127.0.0.3")
        proxy = self.start_proxy(redis)
        self.scanned()
        names = iter(range(100))

        def is_found():
            name = f"abc{next(names)}"
            redis.client.call("SET", KEY + name, record(address="127.0.0.3"))
            before = proxy.metric("proxy_dial_retries_total")
            with proxy.connect() as client:
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server, name)}\r\n\r\n")
                wait_for(lambda: proxy.metric("proxy_dial_retries_total") > before or answered([client]), "the first attempt")
                redis.client.call("SET", KEY + name, record(execution="e2"))
                response = client.response()
            self.assertIn((response.status, response.get("X-Proxy-Error")), ((200, None), (502, "port_closed"), (503, "catalog_unavailable")))
            return response.status == 200

        one_of(is_found, "the new address")

    def test_s032_removed_while_it_is_dialled(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record())
        keeper, port = closed_port()
        self.addCleanup(keeper.close)
        proxy = self.start_proxy(redis)
        self.scanned()
        names = iter(range(100))

        def is_not_found():
            name = f"abc{next(names)}"
            redis.client.call("SET", KEY + name, record())
            retries, dials = proxy.metric("proxy_dial_retries_total"), proxy.metric("proxy_dials_total")
            with proxy.connect() as client:
                client.send(f"GET / HTTP/1.1\r\nHost: {port}-{name}.sandbox.test\r\n\r\n")
                wait_for(lambda: proxy.metric("proxy_dial_retries_total") > retries or answered([client]), "the first attempt")
                redis.client.call("DEL", KEY + name)
                answer = client.response()
            told = (answer.status, answer.get("X-Proxy-Error"))
            self.assertIn(told, ((502, "sandbox_not_found"), (502, "port_closed"), (503, "catalog_unavailable")))
            return told == (502, "sandbox_not_found") and proxy.metric("proxy_dials_total") - dials < 8

        one_of(is_not_found, "an end before the last attempt")

    def test_command_line_and_admin_come_first(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "mine", record(address="127.0.0.9"))
        server = self.serve()
        proxy = self.start_proxy(redis, "--sandbox", "mine=127.0.0.1")
        self.scanned()
        self.assertEqual(proxy.call("GET", "/sandboxes/mine")[1]["address"], "127.0.0.1")
        redis.client.call("SET", KEY + "mine", record(address="127.0.0.8"))
        redis.client.call("SET", KEY + "mark", record())
        wait_for(lambda: self.known("mark"), "the notifications")
        self.assertEqual(proxy.call("GET", "/sandboxes/mine")[1]["address"], "127.0.0.1")
        redis.client.call("DEL", KEY + "mine")
        redis.client.call("DEL", KEY + "mark")
        wait_for(lambda: not self.known("mark"), "the notifications")
        self.assertEqual(proxy.ask(self.host(server, "mine")).status, 200)


class Unreadable(RedisTest):
    def test_wrong_data_is_never_not_found(self):
        redis = self.start_redis()
        server = self.serve()
        proxy = self.start_proxy(redis)
        self.scanned()
        bad = {"notjson": "{", "list": "[]", "noaddress": record(address=""), "number": json.dumps({"orchestrator_ip": 5}),
               "state": record(state="flying"), "empty": "", "large": record(junk="x" * 20000),
               "deep": "[" * 3000, "twice": '{"orchestrator_ip":"127.0.0.1","orchestrator_ip":"127.0.0.2"}',
               "nul": '{"orchestrator_ip":"127.0.0.1\\u0000"}', "port": record(address="127.0.0.1:80"),
               "bytes": b"\xff\xfe"}
        for name, value in bad.items():
            before = proxy.metric("proxy_redis_unreadable_total")
            redis.client.call("SET", KEY + name, value)
            answer = proxy.ask(self.host(server, name))
            self.assertEqual((name, answer.status, answer.get("X-Proxy-Error")), (name, 503, "catalog_unavailable"))
            self.assertGreater(proxy.metric("proxy_redis_unreadable_total"), before)
        redis.client.call("HSET", KEY + "hash", "a", "b")
        self.assertEqual(proxy.ask(self.host(server, "hash")).status, 503)
        proxy.logged("record unreadable")
        redis.client.call("SET", KEY + "notjson", record())
        self.assertEqual(proxy.ask(self.host(server, "notjson")).status, 200)

    def test_unreadable_takes_away_what_was_known(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record())
        proxy = self.start_proxy(redis)
        self.scanned()
        redis.client.call("SET", KEY + "abc", "{")
        wait_for(lambda: not self.known("abc"), "the notification")
        self.assertEqual(proxy.ask("80-abc.sandbox.test").status, 503)

    def test_s005_case_185_address_that_is_never_dialled(self):
        redis = self.start_redis()
        proxy = self.start_proxy(redis)
        addresses = ("169.254.169.254", "0.0.0.0", "::", "fe80::1", "224.0.0.1", "fd00:ec2::254", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::")
        for number, address in enumerate(addresses):
            redis.client.call("SET", f"{KEY}bad{number}", record(address=address))
            answer = proxy.ask(f"80-bad{number}.sandbox.test")
            self.assertEqual((answer.status, answer.get("X-Proxy-Error")), (502, "address_refused"))
        redis.client.call("SET", KEY + "self", record(address="127.0.0.1"))
        answer = proxy.ask(f"{proxy.admin_port}-self.sandbox.test")
        self.assertEqual(answer.get("X-Proxy-Error"), "address_refused")
        self.assertEqual(proxy.metric("proxy_errors_total", **{"class": "address_refused"}), len(addresses) + 1)
        proxy.logged("address refused", "169.254.169.254")

    def test_loopback_from_redis_needs_the_flag(self):
        redis = self.start_redis()
        redis.client.call("SET", KEY + "abc", record())
        proxy = self.start("--redis", redis.url, sandboxes=())
        self.assertEqual(proxy.ask("80-abc.sandbox.test").get("X-Proxy-Error"), "address_refused")


class Flags(unittest.TestCase):
    def refused(self, *flags):
        with self.assertRaises(AssertionError) as caught:
            Proxy(*flags)
        return str(caught.exception)

    def test_wrong_urls_are_said_without_the_password(self):
        for url in ("http://x", "redis://", "redis://user@host", "redis://:hush1@host:0", "redis://:hush1@host:x",
                    "redis://:hush1@host/db", "redis://:hush1%zz@host", "rediss://:hush1@host", "unix://:hush1@relative",
                    "redis://[::1", "redis://a b"):
            said = self.refused("--redis", url)
            self.assertIn("Redis URL" if "rediss" not in url else "rediss", said)
            self.assertNotIn("hush1", said)

    def test_files_and_flags_that_need_it(self):
        self.assertIn("need", self.refused("--redis-set-notifications"))
        self.assertIn("/nonexistent", self.refused("--redis", "redis://x", "--redis-password-file", "/nonexistent"))


if __name__ == "__main__":
    main()
