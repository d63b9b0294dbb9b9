#!/usr/bin/env python3
"""Many sleeping sandboxes and many requests at once: what is bounded, in which order, and that nothing is left over."""
import collections
import random
import threading
import time

from support import PATIENCE, Cut, answer, main, one_of, pace, wait_for
from wake_support import Waking


class Many(Waking):
    """Many sandboxes at once: what is bounded, and that nothing is left over."""

    def sandboxes(self, count):
        for i in range(count):
            self.proxy.call("PUT", f"/sandboxes/s{i}", {"address": "127.0.0.1", "state": "paused", "auto_resume": "any"})

    def asker(self, server, sandbox):
        client = self.proxy.connect()
        self.addCleanup(client.close)
        client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server, sandbox)}\r\n\r\n")
        return client

    def test_s020_calls_at_a_time_and_one_that_is_not_made_any_more(self):
        server = self.serve()
        proxy = self.begin("--allow-loopback-upstreams", reply=answer('{"state":"running"}'))
        self.hook.go.clear()
        self.sandboxes(70)
        first = [self.asker(server, f"s{i}") for i in range(64)]
        self.hook.asked(64)
        rest = [self.asker(server, f"s{i}") for i in range(64, 70)]
        self.waiting(70)
        rest.pop().close()  # s69: nobody has been asked about it, and nobody will be
        self.waiting(69)
        self.assertEqual(len(self.hook.questions), 64)
        self.hook.go.set()
        for client in first + rest:
            self.assertEqual(client.response().status, 200)
        self.assertEqual(sorted(question["sandboxId"] for question in self.hook.questions), sorted(f"s{i}" for i in range(69)))
        self.assertEqual(proxy.metric("proxy_wake_call_seconds_count"), 69)

    def test_s010_s018_s032_a_storm_leaves_nothing_behind(self):
        """Requests come and leave while sandboxes wake, fall asleep, move and die, and the hook says this and that."""
        own = {}

        def who(connection):
            while connection.request().line:
                connection.send(answer(own[connection.sock.getsockname()[0]]))

        port = None
        for i in range(4):
            host = f"127.0.1.{i + 1}"
            own[host] = f"s{i}"
            server = self.serve(who, host=host, port=port or 0)
            port = server.port
        proxy = self.begin("--allow-loopback-upstreams", "--wake-timeout-ms", "300", "--wake-waiters", "20")
        random.seed(10)

        def reply(connection):
            chance = random.random()
            if chance < 0.2:
                connection.abort()
            elif chance < 0.4:
                connection.send(answer("", random.choice(["403 No", "404 No", "409 No", "429 No", "503 No", "200 OK"])))
            elif chance < 0.5:
                connection.take_all()  # until the proxy has had enough
            else:
                connection.send(answer('{"state":"running"}'))

        self.hook.reply = reply
        self.hook.go.set()
        began = time.monotonic()
        wrong, answers = [], collections.Counter()

        def goes_on():
            took = time.monotonic() - began
            return took < 3 or (answers[200] <= 10 and took < PATIENCE)

        def fate(i):
            draw = random.Random(i)
            while goes_on():
                body = draw.choice([{"state": "paused"}, {"state": "paused"}, {"state": "pausing"}, {"state": "resuming"}, {"state": "running"},
                                    {"state": "stopping"}, None])
                if body is None:
                    proxy.call("DELETE", f"/sandboxes/s{i}")
                    proxy.call("PUT", f"/sandboxes/s{i}", {"address": f"127.0.1.{i + 1}", "state": "paused", "auto_resume": "any"})
                else:
                    proxy.call("PATCH", f"/sandboxes/s{i}", body)
                pace(draw.random() * 0.02)

        def client(i):
            draw = random.Random(100 + i)
            while goes_on():
                sandbox = f"s{draw.randrange(4)}"
                with proxy.connect() as connection:
                    connection.send(f"GET / HTTP/1.1\r\nHost: {port}-{sandbox}.d\r\n\r\n")
                    if draw.random() < 0.4:
                        pace(draw.random() * 0.05)
                        connection.abort()
                        continue
                    try:
                        response = connection.response()
                    except Cut:
                        continue
                    if response and response.status == 200 and response.body.decode() != sandbox:
                        wrong.append((sandbox, response.body))
                    answers[response.get("X-Proxy-Error") or response.status if response else "cut"] += 1

        for i in range(4):
            proxy.call("PUT", f"/sandboxes/s{i}", {"address": f"127.0.1.{i + 1}", "state": "paused", "auto_resume": "any"})
        threads = [threading.Thread(target=fate, args=(i,)) for i in range(4)] + [threading.Thread(target=client, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(answers[200], 10)
        self.waiting(0)
        wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of all")
        for i in range(4):
            self.assertEqual(proxy.active(f"s{i}"), 0)
        used = proxy.call("GET", "/activity")[1]["sandboxes"]
        self.assertEqual([(each["unanswered"], each["streams"], each["tunnels"]) for each in used], [(0, 0, 0)] * len(used))


class OneWorker(Waking):
    workers = 1

    def test_s026_in_order_of_arrival(self):
        server = self.serve()
        proxy = self.begin(reply=answer('{"state":"running"}'))

        def is_in_order():
            proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
            self.hook.go.clear()
            first, clients = len(server.connections), []
            for i in range(50):
                clients.append(self.client(server, f"/{i}"))
                self.waiting(i + 1)
            self.hook.go.set()
            for client in clients:
                self.assertEqual(client.response().status, 200)
            return [connection.received.split()[1].decode() for connection in server.connections[first:]] == [f"/{i}" for i in range(50)]

        # Where the proxy stands still between a connection and its request, the kernel ends the handshakes itself, the last one first.
        one_of(is_in_order, "the order of arrival")


if __name__ == "__main__":
    main()
