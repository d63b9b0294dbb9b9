#!/usr/bin/env python3
"""Bodies both ways: streaming, backpressure, early answers, clients that leave."""
import threading

from support import PATIENCE, Connection, Test, answer, main, one_of, quiet_for, unread, wait_for

MEGABYTE = 1 << 20


class Bodies(Test):
    def test_s059_large_bodies_both_ways_in_constant_memory(self):
        size = 200 * MEGABYTE
        block = bytes(range(256)) * 4096

        def script(connection):
            line, _ = connection.head()
            if line.startswith("POST"):
                left = size
                while left:
                    left -= len(connection.take(min(left, MEGABYTE)))
                    connection.received = b""
                connection.send(answer("all"))
                return
            connection.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")
            for _ in range(size // len(block)):
                connection.send(block)

        server = self.serve(script)
        proxy = self.start()
        proxy.ask("1-nosuch.d")
        before = proxy.memory_kib()
        peak = 0
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            client.head()
            for number in range(size // len(block)):
                self.assertEqual(client.take(len(block)), block)
                client.received = b""
                if number % 20 == 0:
                    peak = max(peak, proxy.memory_kib())
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: {size}\r\n\r\n")
            for number in range(size // len(block)):
                client.send(block)
                if number % 20 == 0:
                    peak = max(peak, proxy.memory_kib())
            self.assertEqual(client.response().body, b"all")
        self.assertLess(peak - before, 8 * 1024)

    def test_s055_a_reader_that_stops_stops_the_sender(self):
        sent = [0]

        def script(connection):
            connection.request()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            connection.sock.settimeout(None)
            connection.sock.setblocking(False)
            piece = b"x" * 65536
            while not stop.is_set():
                try:
                    sent[0] += connection.sock.send(piece)
                except BlockingIOError:
                    stop.wait(0.005)

        stop = threading.Event()
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            client.head()
            stable = [-1, 0]

            def settled():
                stable[1] = stable[1] + 1 if sent[0] == stable[0] else 0
                stable[0] = sent[0]
                return stable[1] > 60

            wait_for(settled, "a stop of the sender")
            # Kernel buffers hold some megabytes; the proxy itself a bounded part.
            self.assertLess(sent[0], 32 * MEGABYTE)
            self.assertLess(proxy.memory_kib(), 40 * 1024)
            at = sent[0]
            for _ in range(200):
                client.take(MEGABYTE // 4)
                client.received = b""
            wait_for(lambda: sent[0] > at, "more after reading on")
            stop.set()
            client.abort()

    def test_s055_a_server_that_does_not_read_stops_the_client(self):
        def script(connection):
            connection.head()
            stop.wait(PATIENCE)

        stop = threading.Event()
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: {1 << 40}\r\n\r\n")
            client.sock.setblocking(False)
            total, quiet = 0, 0
            while quiet < 100:
                try:
                    total += client.sock.send(b"x" * 65536)
                    quiet = 0
                except BlockingIOError:
                    quiet += 1
                    stop.wait(0.005)
            self.assertLess(total, 32 * MEGABYTE)
            self.assertLess(proxy.memory_kib(), 40 * 1024)
        stop.set()
        wait_for(lambda: proxy.active("abc") == 0, "the end")

    def test_s016_case_161_early_answer_to_a_large_upload(self):
        for keeps_reading in (True, False):
            for expect in ("", "Expect: 100-continue\r\n"):
                with self.subTest(keeps_reading=keeps_reading, expect=expect):
                    def script(connection, keeps_reading=keeps_reading):
                        connection.head()
                        connection.send(answer("too much", "413 Payload Too Large"))
                        if keeps_reading:
                            while connection.read_some():
                                connection.received = connection.buffer = b""

                    server = self.serve(script)
                    if not self.proxy:
                        self.start()
                    size = 50 * MEGABYTE
                    with self.proxy.connect() as client:
                        client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\n{expect}Content-Length: {size}\r\n\r\n")
                        response = [None]

                        def read(client=client, response=response):
                            response[0] = client.response()

                        reader = threading.Thread(target=read)
                        reader.start()
                        if not expect:
                            try:
                                for _ in range(size // MEGABYTE):
                                    client.send(b"x" * MEGABYTE)
                            except OSError:
                                pass
                        reader.join(PATIENCE)
                        self.assertIsNotNone(response[0])
                        self.assertEqual((response[0].status, response[0].body), (413, b"too much"))

    def test_s050_expectations(self):
        def script(connection):
            _, fields = connection.head()
            if dict(fields).get("Expect"):
                seen.append("expect")
            if behaviour == "continue":
                connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif behaviour == "refuse":
                connection.send(answer("no", "417 Expectation Failed"))
                return
            body = connection.take(3)
            connection.send(answer(body))

        seen = []
        behaviour = "continue"
        server = self.serve(script)
        proxy = self.start()
        head = f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 3\r\n"
        with proxy.connect() as client:
            client.send(head + "Expect: 100-Continue\r\n\r\n")
            self.assertEqual(client.response().status, 100)
            client.send("abc")
            self.assertEqual(client.response().body, b"abc")
        self.assertEqual(seen, ["expect"])
        behaviour = "refuse"

        def is_refused():
            with proxy.connect() as client:
                client.send(head + "Expect: 100-continue\r\n\r\n")
                response = client.response()
                if response.status == 100:
                    return False  # on a machine that stalls the server did not say so within a second
                self.assertEqual((response.status, response.body), (417, b"no"))
                self.assertEqual(client.take_all(), b"")
                return True

        one_of(is_refused, "a refusal before the proxy goes on")
        behaviour = "ignore"  # a server that knows nothing of it: the proxy says it after a second
        with proxy.connect() as client:
            client.send(head + "Expect: 100-continue\r\n\r\n")
            self.assertEqual(client.response().status, 100)
            client.send("abc")
            self.assertEqual(client.response().body, b"abc")
        # Never before it is known where the request goes.
        for host in ("1-nosuch.d", "x"):
            with proxy.connect() as client:
                client.send(f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
                self.assertGreaterEqual(client.response().status, 400)
        with proxy.connect() as client:
            client.send(head + "Expect: 200-maybe\r\n\r\nabc")
            response = client.response()
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (417, "expectation_failed"))

    def test_s020_client_that_aborts_aborts_the_request(self):
        for body, how in ((False, Connection.abort), (True, Connection.abort), (False, Connection.close), (True, Connection.close)):
            with self.subTest(body=body, how=how.__name__):
                def script(connection, body=body):
                    connection.head()
                    if body:
                        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
                    arrived.set()
                    connection.take_all()
                    gone.set()

                arrived, gone = threading.Event(), threading.Event()
                server = self.serve(script)
                if not self.proxy:
                    self.start()
                client = self.proxy.connect()
                client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 10\r\n\r\nabc")
                self.assertTrue(arrived.wait(PATIENCE))
                how(client)
                self.assertTrue(gone.wait(PATIENCE))
                self.assertTrue(server.connections[0].reset)

    @staticmethod
    def stays_behind(sock):
        """Some of what was sent has not been read, and is not going to be."""
        for _ in range(20):
            if unread(sock) == 0:
                return False
            quiet_for(0.005)
        return True

    def test_s020_client_that_leaves_while_its_upload_is_held_back(self):
        """The server reads nothing, so the proxy does not either; it notices all the same."""
        for how in (Connection.abort, Connection.close, Connection.half_close):
            with self.subTest(how=how.__name__):
                def script(connection):
                    connection.head()
                    go.wait(2 * PATIENCE)
                    connection.take_all()

                go = threading.Event()
                server = self.serve(script)
                if not self.proxy:
                    self.start()
                client = self.proxy.connect()
                client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 100000000\r\n\r\n")
                # Until some of it stays behind, but not so much that its end would find no room.
                while not self.stays_behind(client.sock):
                    client.send(bytes(65536))
                how(client)
                wait_for(lambda: self.proxy.active("abc") == 0, "the end of the exchange")
                go.set()
                wait_for(lambda: server.connections[0].reset, "the reset at the server")
                client.close()

    def test_long_poll_without_a_byte(self):
        """No limit of its own on how long an answer takes; the client's idle connection is no matter."""
        def script(connection):
            connection.request()
            go.wait(PATIENCE)
            connection.send(answer("late"))

        go = threading.Event()
        server = self.serve(script)
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            client.sock.settimeout(2)
            with self.assertRaises(TimeoutError):
                client.sock.recv(1)
            go.set()
            client.sock.settimeout(PATIENCE)
            self.assertEqual(client.response().body, b"late")

    def test_chunked_upload(self):
        server = self.serve()
        proxy = self.start()
        with proxy.connect() as client:
            client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number in range(100):
                client.send(b"%x\r\n%s\r\n" % (number + 1, b"z" * (number + 1)))
            client.send("0\r\n\r\n")
            self.assertEqual(client.response().json()["body"], "z" * 5050)


if __name__ == "__main__":
    main()
