#!/usr/bin/env python3
"""Sandboxes that come and go, limits, and the proxy's own end."""
import random
import signal
import socket
import threading

from support import PATIENCE, Connection, Test, answer, answered, closed_port, main, one_of, pace, wait_for
from tunnel_support import ASK, STREAM, SWITCH, held


class Lifecycle(Test):
    def begin(self, server, path, sandbox="abc"):
        client = self.proxy.connect()
        self.addCleanup(client.close)
        fields = ASK if path == "/tunnel" else ""
        client.send(f"GET {path} HTTP/1.1\r\nHost: {self.host(server, sandbox)}\r\n{fields}\r\n")
        if path != "/wait":
            client.head()
            client.take(1)
        return client

    def test_case_154_everything_ends_with_the_sandbox(self):
        server = self.serve(held)
        proxy = self.start("--allow-loopback-upstreams", sandboxes=("other",))
        changes = [("DELETE", None), ("PATCH", {"state": "paused"}), ("PATCH", {"lifecycle_id": "next"}),
                   ("PATCH", {"address": "10.255.255.1"}), ("PATCH", {"state": "stopping"})]
        for method, body in changes:
            with self.subTest(method=method, body=body):
                proxy.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1"})
                clients = [self.begin(server, path) for path in ("/download", "/stream", "/tunnel", "/wait")]
                bystander = self.begin(server, "/stream", "other")
                wait_for(lambda: proxy.metric("proxy_active_exchanges") == 5, "all of them")
                self.assertIn(proxy.call(method, "/sandboxes/abc", body)[0], (200, 204))
                for client in clients[:3]:
                    client.take_all()
                    self.assertTrue(client.reset, "a cut body must not look complete")
                response = clients[3].response()
                self.assertEqual((response.status, response.json()["message"]), (502, "The sandbox was not found"))
                wait_for(lambda: proxy.metric("proxy_active_exchanges") == 1, "the end of all but one")
                bystander.sock.settimeout(0.2)
                with self.assertRaises(TimeoutError):
                    bystander.sock.recv(1)
                bystander.close()
                wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of that one, too")
                if method == "DELETE":
                    self.assertEqual(proxy.ask("1-abc.d").get("X-Proxy-Error"), "sandbox_not_found")

    def test_s029_s032_pause_or_end_while_dialling(self):
        keeper, port = closed_port()
        proxy = self.start("--allow-loopback-upstreams")
        for change, status, cause in (({"state": "paused"}, 502, "sandbox_paused"), ({"state": "pausing"}, 409, "sandbox_transitioning"),
                                      (None, 502, "sandbox_not_found")):
            def is_told(change=change, status=status, cause=cause):
                proxy.call("PUT", "/sandboxes/abc", {"address": "127.0.0.1", "state": "running"})
                before = proxy.metric("proxy_dial_retries_total")
                with proxy.connect() as client:
                    client.send(f"GET / HTTP/1.1\r\nHost: {port}-abc.d\r\n\r\n")
                    wait_for(lambda: proxy.metric("proxy_dial_retries_total") > before or answered([client]), "the first retry")
                    if change:
                        proxy.call("PATCH", "/sandboxes/abc", change)
                    else:
                        proxy.call("DELETE", "/sandboxes/abc")
                    response = client.response()
                told = (response.status, response.get("X-Proxy-Error"))
                self.assertIn(told, ((status, cause), (502, "port_closed")))  # the change came too late
                return told == (status, cause)

            one_of(is_told, cause)
        keeper.close()

    def test_s018_a_sandbox_that_moves_while_it_is_dialled(self):
        keeper, port = closed_port()
        proxy = self.start("--allow-loopback-upstreams")
        server = self.serve(host="127.0.0.2", nobody_at="127.0.0.1")

        def is_found():
            proxy.call("PATCH", "/sandboxes/abc", {"address": "127.0.0.1"})
            before = proxy.metric("proxy_dial_retries_total")
            with proxy.connect() as client:
                client.send(f"GET / HTTP/1.1\r\nHost: {server.port}-abc.d\r\n\r\n")
                wait_for(lambda: proxy.metric("proxy_dial_retries_total") > before or answered([client]), "the first retry")
                self.assertEqual(proxy.call("PATCH", "/sandboxes/abc", {"address": "127.0.0.2"})[0], 200)
                response = client.response()
            self.assertIn((response.status, response.get("X-Proxy-Error")), ((200, None), (502, "port_closed")))
            return response.status == 200

        one_of(is_found, "the new address")
        keeper.close()

    def test_s010_case_167_limit_and_its_release(self):
        kill = threading.Event()

        def script(connection):
            connection.request()
            connection.send(SWITCH + b"x" if b"Upgrade" in connection.received else STREAM)
            connection.sock.settimeout(0.02)
            while not kill.is_set():
                try:
                    if not connection.read_some():
                        return
                except TimeoutError:
                    pass
            connection.abort()

        server = self.serve(script)
        proxy = self.start("--sandbox", "lim=127.0.0.1,limit=10")
        for cycle in range(6):
            clients = [self.begin(server, "/tunnel", "lim") for _ in range(10)]
            response = proxy.ask(self.host(server, "lim"), "/stream")
            self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After")),
                             (429, "too_many_connections", "1"))
            self.assertEqual(list(response.json()), ["sandboxId", "message", "code", "connectionLimit"])
            self.assertIn("(limit: 10)", response.json()["message"])
            self.begin(server, "/stream").close()  # another sandbox is not concerned
            if cycle == 0:
                for client in clients:
                    client.abort()
            elif cycle == 1:
                for client in clients:
                    client.close()
            elif cycle == 2:
                kill.set()
            elif cycle == 3:
                for client in clients:
                    client.half_close()
            elif cycle == 4:
                proxy.call("PATCH", "/sandboxes/lim", {"lifecycle_id": "next"})
            else:
                for client in clients:
                    client.send("more")
                    client.close()
            wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, f"the end of cycle {cycle}")
            self.assertEqual(proxy.active("lim"), 0)
            kill.clear()
        proxy.call("PATCH", "/sandboxes/lim", {"connection_limit": 0})
        self.assertEqual(proxy.ask(self.host(server, "lim")).status, 429)
        proxy.call("PATCH", "/sandboxes/lim", {"connection_limit": None})
        self.begin(server, "/stream", "lim").close()

    def test_s010_random_ends_leak_nothing(self):
        chance = random.Random(10)

        def script(connection):
            """Stops at a random point in a random way."""
            request = connection.request()
            if not request.line:
                return
            whole = SWITCH + b"x" * 5000 if request.get("Upgrade") else answer("y" * 20000)
            cut = chance.choice([0, len(whole) // 3, len(whole), len(whole)])
            connection.send(whole[:cut])
            if chance.random() < 0.3:
                connection.abort()

        server = self.serve(script)
        proxy = self.start()
        proxy.ask(self.host(server))
        descriptors = None

        def client_thread(seed):
            mine = random.Random(seed)
            for _ in range(250):
                client = proxy.connect()
                fields = ASK if mine.random() < 0.4 else ""
                body = "Content-Length: 5000\r\n" if not fields and mine.random() < 0.5 else ""
                try:
                    client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\n{fields}{body}\r\n")
                    part = mine.choice([0, 10, 5000])
                    if body:
                        client.send("z" * part)
                    if mine.random() < 0.6 and (not body or part == 5000):
                        client.read_some()
                except OSError:
                    pass
                mine.choice([Connection.close, Connection.abort])(client)

        threads = [threading.Thread(target=client_thread, args=(seed,)) for seed in range(8)]
        wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0)
        descriptors = proxy.descriptors()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of all exchanges")
        self.assertEqual(proxy.active("abc"), 0)
        # Each worker opens one for itself when it first watches clients that wait (lib/hangup.h).
        wait_for(lambda: proxy.descriptors() <= descriptors + self.workers, "the descriptors of the beginning")

    def test_case_152_posts_to_a_server_that_closes_idle_connections(self):
        """Each is delivered exactly once, however the server's keep-alive ends."""
        bodies = []
        lock = threading.Lock()

        def script(connection):
            while True:
                request = connection.request()
                if not request.line:
                    return
                with lock:
                    bodies.append(request.body)
                connection.send(answer("got it"))
                connection.sock.settimeout(0.05)
                try:
                    if not connection.read_some():
                        return
                except TimeoutError:
                    return
                connection.sock.settimeout(PATIENCE)

        server = self.serve(script)
        proxy = self.start("--reuse-user-ports")
        failed = []

        def send(base):
            chance = random.Random(base)
            with proxy.connect() as client:
                for number in range(100):
                    body = f"{base + number:08}"
                    client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 8\r\n\r\n{body}")
                    response = client.response()
                    if response.status != 200:
                        failed.append(response.body)
                    pace(chance.random() * 0.06)

        threads = [threading.Thread(target=send, args=(base * 1000,)) for base in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(sorted(bodies), sorted(set(bodies)))
        self.assertEqual(len(bodies), 800)

    def test_s098_churn_while_serving(self):
        server = self.serve()
        proxy = self.start("--allow-loopback-upstreams")
        stop = threading.Event()
        changes = [0]

        def churn():
            while not stop.is_set():
                number = changes[0]
                proxy.call("PUT", f"/sandboxes/c{number % 50}", {"address": f"10.0.0.{number % 200 + 1}"})
                proxy.call("DELETE", f"/sandboxes/c{(number + 25) % 50}")
                changes[0] += 1

        thread = threading.Thread(target=churn)
        thread.start()
        with proxy.connect() as client:
            served = 0
            while served < 500 or changes[0] < 20:
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
                self.assertEqual(client.response().status, 200)
                served += 1
                self.assertTrue(thread.is_alive())
        stop.set()
        thread.join()

    def test_case_171_many_sandboxes_on_the_shared_host(self):
        server = self.serve()
        proxy = self.start("--allow-loopback-upstreams", sandboxes=())
        for number in range(300):
            self.assertEqual(proxy.call("PUT", f"/sandboxes/s{number}", {"address": "127.0.0.1"})[0], 201)
        with proxy.connect() as client:
            for number in range(300):
                client.send(f"GET /{number} HTTP/1.1\r\nHost: sandbox.test\r\nE2b-Sandbox-Id: s{number}\r\nE2b-Sandbox-Port: {server.port}\r\n\r\n")
                got = client.response().json()
                self.assertEqual((got["line"], dict(got["fields"])["Host"]), (f"GET /{number} HTTP/1.1", f"{server.port}-s{number}.test"))


class End(Test):
    """SIGTERM: case 170, S71, S95."""

    def begin(self, server, path):
        client = self.proxy.connect()
        self.addCleanup(client.close)
        client.send(f"GET {path} HTTP/1.1\r\nHost: {self.host(server)}\r\n{ASK if path == '/tunnel' else ''}\r\n")
        return client

    def test_s095_case_170_drain(self):
        go = threading.Event()

        def script(connection):
            path = connection.request().line.split()[1]
            if path == "/slow":
                connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ")
                go.wait(PATIENCE)
                connection.send(b"whole")
            elif path == "/tunnel":
                connection.send(SWITCH)
                connection.take_all()
            else:
                connection.send(STREAM)
                connection.take_all()

        server = self.serve(script)
        proxy = self.start("--drain-ms", "8000")
        slow, tunnel, stream = (self.begin(server, path) for path in ("/slow", "/tunnel", "/stream"))
        idle = proxy.connect()
        self.addCleanup(idle.close)
        for client in (slow, tunnel, stream):
            client.head()
        proxy.process.send_signal(15)
        wait_for(lambda: proxy.call("GET", "/health") == (503, "draining\n"), "draining")
        idle.send("GET / HTTP/1.1\r\nHost: 1-abc.d\r\n\r\n")
        idle.take_all()
        self.assertNotIn(b"HTTP/1.1 2", idle.received)
        wait_for(self.is_refused, "the end of listening")
        go.set()
        self.assertEqual(slow.take(10), b"half whole")
        slow.take_all()
        self.assertTrue(slow.eof)
        for client in (tunnel, stream):
            client.take_all()
            self.assertTrue(client.reset)
        self.assertEqual(proxy.process.wait(PATIENCE), 0)

    def is_refused(self):
        try:
            self.proxy.connect().close()
            return False
        except OSError:
            return True

    def test_s071_second_signal_does_not_wait(self):
        server = self.serve(held)
        proxy = self.start("--drain-ms", "600000")
        tunnel = self.begin(server, "/tunnel")
        tunnel.head()
        proxy.process.send_signal(15)
        wait_for(lambda: proxy.call("GET", "/health")[0] == 503, "draining")
        self.assertEqual(proxy.active("abc"), 1)
        proxy.process.send_signal(15)
        tunnel.take_all()
        self.assertTrue(tunnel.reset)
        self.assertEqual(proxy.process.wait(PATIENCE), 0)

    def test_metrics_that_are_asked_for_at_the_very_end(self):
        """What they are taken from is being closed then."""
        proxy = self.start("--drain-ms", "5000")

        def is_admin_closed():
            try:
                socket.create_connection(("127.0.0.1", proxy.admin_port), PATIENCE).close()
                return False
            except ConnectionRefusedError:
                return True

        with Connection(socket.create_connection(("127.0.0.1", proxy.admin_port), PATIENCE)) as client:
            client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
            proxy.call("GET", "/health")  # it has come there
            proxy.process.send_signal(signal.SIGTERM)
            wait_for(is_admin_closed, "no more calls of the admin API")
            client.send(b"\r\n")
            self.assertEqual(client.response().status, 200)
        self.assertEqual(proxy.process.wait(PATIENCE), 0)

    def test_drain_delay_keeps_accepting(self):
        server = self.serve()
        proxy = self.start("--drain-delay-ms", "600000")
        proxy.process.send_signal(15)
        wait_for(lambda: proxy.call("GET", "/health")[0] == 503, "draining")
        self.assertEqual(proxy.ask(self.host(server)).status, 200)
        proxy.process.send_signal(15)
        self.assertEqual(proxy.process.wait(PATIENCE), 0)

    def test_end_while_dialling_and_resolving(self):
        keeper, port = closed_port()
        proxy = self.start("--drain-ms", "100")
        proxy.call("PUT", "/sandboxes/name", {"address": "some-name.invalid"})
        clients = [self.proxy.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(f"GET / HTTP/1.1\r\nHost: {port}-{('abc', 'name')[number % 2]}.d\r\n\r\n")
        wait_for(lambda: proxy.metric("proxy_dial_retries_total") > 0 or answered(clients), "a dial")
        self.assertEqual(proxy.stop(), 0)
        for client in clients:
            client.close()
        keeper.close()


if __name__ == "__main__":
    main()
