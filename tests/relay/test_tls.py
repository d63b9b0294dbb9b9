#!/usr/bin/env python3
"""TLS in front of sandboxes: which certificate whom, ALPN, tickets, ends, and clients that mean harm."""
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import threading
import time
import unittest

from support import PATIENCE, Certificates, Connection, TlsSocket, answer, in_time, main, one_of, program, unread, wait_for
from tls_support import Tls, anyone, fingerprint, self_signed


class Names(Tls):
    def test_s088_names_and_certificates(self):
        directory = self.directory()
        sources = {name: self_signed(directory, name, names, key) for name, names, key in (
            ("first", "DNS:first.test", "ec"), ("wild", "DNS:*.wild.test,DNS:wild.test", "ec"),
            ("exact", "DNS:1-exact.wild.test", "ec"), ("rsa", "DNS:*.wild.test", "rsa"))}
        server = self.serve()
        proxy = self.start(*(flag for source in sources.values() for flag in ("--certificate", source)))
        prints = {name: fingerprint(source.split(",")[0]) for name, source in sources.items()}
        here = f"{server.port}-abc"
        table = [
            # asked for, host, certificate, status
            (None, f"{here}.wild.test", "first", 200),          # no name: the default, routed by Host
            (None, f"{here}.anything.test", "first", 200),
            ("unknown.test", "unknown.test", "first", 400),     # routed by Host, which names no sandbox
            (f"{here}.unknown.test", f"{here}.unknown.test", "first", 200),
            (f"x.{here}.wild.test", f"x.{here}.wild.test", "first", 400),  # two labels: no wildcard stands for it
            (f"{here}.wild.test", f"{here}.wild.test", "wild", 200),
            (f"{here}.WILD.test", f"{here}.wild.test:{proxy.tls_port}", "wild", 200),
            (f"{here}.wild.test", f"{here}.wild.test.", "wild", 200),
            ("1-other.wild.test", f"{here}.wild.test", "wild", 200),      # another name of the same certificate
            ("wild.test", f"{here}.wild.test", "wild", 200),
            ("1-exact.wild.test", "1-exact.wild.test", "exact", 502),
            # What the certificate of this connection does not stand for (421, RFC 9110 section 15.5.20).
            (f"{here}.wild.test", f"{here}.elsewhere.test", "wild", 421),
            ("1-exact.wild.test", f"{here}.wild.test", "exact", 421),
            (f"{here}.unknown.test", f"{here}.wild.test", "first", 421),
            (f"{here}.wild.test", f"x.{here}.wild.test", "wild", 400),
        ]
        for asked, host, certificate, status in table:
            with self.subTest(asked=asked, host=host):
                client = self.connect(asked)
                self.assertEqual(self.shown(client), prints[certificate])
                response = self.ask(client, host)
                self.assertEqual(response.status, status, response.body)
                if status == 421:
                    self.assertEqual(response.get("X-Proxy-Error"), "misdirected")
        # Who cannot do ECDSA gets the RSA certificate of the same name.
        for cipher, certificate in (("ECDHE-RSA-AES128-GCM-SHA256", "rsa"), ("ECDHE-ECDSA-AES128-GCM-SHA256", "wild")):
            context = anyone(maximum_version=ssl.TLSVersion.TLSv1_2)
            context.set_ciphers(cipher)
            client = self.connect(f"{here}.wild.test", context)
            self.assertEqual(self.shown(client), prints[certificate])
            self.assertEqual(self.ask(client, f"{here}.wild.test").status, 200)

    def test_s088_a_literal_address_as_server_name(self):
        server = self.serve()
        proxy = self.start()
        out = subprocess.run(["openssl", "s_client", "-quiet", "-connect", f"127.0.0.1:{proxy.tls_port}", "-servername", "127.0.0.1"],
                             input=f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: close\r\n\r\n".encode(),
                             capture_output=True, timeout=PATIENCE, check=False)
        # OpenSSL's client sends it although it is no name: the same as none.
        self.assertIn(b"HTTP/1.1 200", out.stdout)

    def test_dev_certificate_is_trusted_by_name(self):
        server = self.serve()
        proxy = self.start("--certificate", Certificates.get())
        context = ssl.create_default_context(cafile=os.path.join(Certificates.get(), "ca.pem"))
        host = f"{server.port}-abc.sbx.localhost"
        for name, asked in ((host, host), ("localhost", host), (None, "127.0.0.1")):
            if name is None:
                sock = self.raw()
                with context.wrap_socket(sock, server_hostname=asked):
                    continue
            client = self.connect(name, context)
            self.assertEqual(self.ask(client, host).status, 200)
        with self.assertRaises(ssl.SSLCertVerificationError):
            self.connect("3000-abc.elsewhere.test", context)
        out = subprocess.run(["curl", "-sS", "--cacert", os.path.join(Certificates.get(), "ca.pem"), "--resolve",
                              f"{host}:{proxy.tls_port}:127.0.0.1", f"https://{host}:{proxy.tls_port}/x"],
                             capture_output=True, timeout=PATIENCE, check=True)
        self.assertEqual(json.loads(out.stdout)["line"], "GET /x HTTP/1.1")

    def test_mistakes_at_the_start_are_named(self):
        directory = self.directory()
        one, other = self_signed(directory, "one", "DNS:a"), self_signed(directory, "other", "DNS:b")
        mixed = one.split(",")[0] + "," + other.split(",")[1]
        for flags, says, code in ((["--listen-tls", "127.0.0.1:0"], "needs -certificate", 2),
                                  (["--listen-tls", "nonsense"], "-listen-tls must be", 2),
                                  (["--listen", "none"], "cannot both be", 2),
                                  (["--listen", "127.0.0.1:9", "--listen-tls", "127.0.0.1:9"], "the same port", 2),
                                  (["--certificate", one], "needs -listen-tls", 2),
                                  (["--listen-tls", "127.0.0.1:0", "--certificate", mixed], "does not belong", 1),
                                  (["--listen-tls", "127.0.0.1:0", "--certificate", "/nowhere"], "/nowhere", 1)):
            out = subprocess.run([program(), *flags, "--admin", "none"], capture_output=True, timeout=PATIENCE, check=False)
            self.assertEqual((out.returncode, says in out.stderr.decode()), (code, True), out.stderr)
        self.start()


class Handshakes(Tls):
    def test_s089_alpn(self):
        self.start()
        for offered, chosen in (([], None), (["http/1.1"], "http/1.1"), (["h2"], "h2"), (["http/1.1", "h2"], "h2"),
                                (["spdy/3", "http/1.1"], "http/1.1"), (["http/1.0"], "http/1.0"), (["spdy/3", "h3"], "refused")):
            with self.subTest(offered=offered):
                context = anyone()
                if offered:
                    context.set_alpn_protocols(offered)
                if chosen == "refused":
                    with self.assertRaisesRegex(ssl.SSLError, "(?i)no.application.protocol"):
                        self.connect(None, context)
                    continue
                client = self.connect(None, context)
                self.assertEqual(client.sock.tls.selected_alpn_protocol(), chosen)
                if chosen != "h2":
                    self.assertEqual(self.ask(client, "1-nosuch.d").status, 502)
                else:
                    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
                    self.assertEqual(client.take(9)[3], 4)  # SETTINGS

    def test_s089_versions_and_ciphers(self):
        proxy = self.start()
        for version, works in (("-tls1", False), ("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)):
            out = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{proxy.tls_port}", version, "-cipher",
                                  "DEFAULT@SECLEVEL=0"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)
            self.assertEqual(out.returncode == 0, works, out.stdout + out.stderr)
            self.assertEqual(b"Max Early Data: 0" in out.stdout or b"Early data was not sent" in out.stdout, version == "-tls1_3")
            self.assertEqual(b"Secure Renegotiation IS supported" in out.stdout, version == "-tls1_2")
        for cipher in ("AES128-SHA", "AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES128-SHA256"):
            context = anyone(maximum_version=ssl.TLSVersion.TLSv1_2)
            context.set_ciphers(cipher + ":@SECLEVEL=0")
            with self.assertRaises(ssl.SSLError):
                self.connect(None, context)
        metric = lambda **labels: proxy.metric("proxy_tls_handshakes_total", **labels)
        wait_for(lambda: metric(result="failed") == 6, "the failures in the metrics")
        # The client's part of 1.3 is over before ours is.
        wait_for(lambda: [metric(result="ok", version=version) for version in ("TLSv1.2", "TLSv1.3")] == [1, 1], "one of each version")

    def test_tickets_are_good_at_every_worker(self):
        proxy = self.start()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = anyone(maximum_version=version)
            client = self.connect("a.sbx.localhost", context)
            self.ask(client, "1-nosuch.d", close=False)
            session = client.sock.tls.session
            before = proxy.metric("proxy_tls_resumed_total")
            for _ in range(24):  # the kernel spreads them over both workers
                again = self.connect("a.sbx.localhost", context, session)
                self.assertTrue(again.sock.tls.session_reused)
                self.assertEqual(self.ask(again, "1-nosuch.sbx.localhost").status, 502)
                again.close()
            self.assertEqual(proxy.metric("proxy_tls_resumed_total") - before, 24)

    def test_s091_the_wrong_protocol_on_either_port(self):
        proxy = self.start()
        for request in (b"GET / HTTP/1.1\r\nHost: 1-abc.d\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
                        b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"G" + b"x" * 100000):
            client = Connection(self.raw())
            client.send(request)
            response = client.response()
            self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Connection")), (400, "bad_request", "close"))
            self.assertIn("HTTPS", response.json()["message"])
            self.assertEqual((client.take_all(), client.reset), (b"", False))
        self.assertEqual(proxy.metric("proxy_tls_handshakes_total", result="plain_http"), 5)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            TlsSocket(self.raw(proxy.plain_port), anyone())
        client = Connection(self.raw(proxy.plain_port))
        client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
        self.assertEqual(client.response().status, 400)
        self.assertEqual(client.take_all(), b"")

    def test_garbage_gets_an_alert_and_an_end(self):
        proxy = self.start()
        numbers = random.Random(7)
        hello = self.client_hello()
        for case in range(60):
            client = Connection(self.raw())
            if case % 3 == 0:
                data = bytes([numbers.choice([0x16, 0x80, 0x15, 0x00, 0xff])]) + numbers.randbytes(numbers.randint(0, 400))
            elif case % 3 == 1:
                data = bytearray(hello)
                for _ in range(numbers.randint(1, 8)):
                    data[numbers.randrange(5, len(data))] ^= 1 << numbers.randrange(8)
            else:
                data = b"\x16\x03\x03\xff\xff" + numbers.randbytes(70000)
            try:
                client.send(bytes(data))
                client.half_close()
            except OSError:
                continue
            reply = client.take_all()  # an alert, a ServerHello, or nothing; but an end
            self.assertIn(reply[:1], (b"", b"\x15", b"\x16"))
        client = self.connect()
        self.assertEqual(self.ask(client, "1-nosuch.d").status, 502)
        wait_for(lambda: proxy.descriptors() < 40, "all of them gone")

    @staticmethod
    def client_hello(name=None):
        out = ssl.MemoryBIO()
        client = anyone().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return out.read()

    def test_s056_slow_handshakes_end_in_ten_seconds(self):
        proxy = self.start()
        hello = self.client_hello()

        def drip(client, stop):
            for byte in hello[:-1]:
                if stop.wait(0.05):
                    return
                try:
                    client.send(bytes([byte]))
                except OSError:
                    return

        def until_the_last_ends():
            before = proxy.metric("proxy_tls_handshakes_total", result="timeout")
            began = time.monotonic()
            silent, header, part, whole = (Connection(self.raw()) for _ in range(4))
            header.send(hello[:3])
            whole.send(hello)
            answered = len(whole.take(5))
            dripping, stop = Connection(self.raw()), threading.Event()
            part.send(hello[:-1])
            thread = threading.Thread(target=drip, args=(dripping, stop))
            thread.start()
            try:
                for client in (silent, header, part, whole, dripping):
                    client.take_all()
                    self.assertTrue(client.eof or client.reset)
                    self.assertGreater(time.monotonic() - began, 9)
                took = time.monotonic() - began
            finally:
                stop.set()
                thread.join()
            self.assertEqual(answered, 5)
            self.assertEqual(proxy.metric("proxy_tls_handshakes_total", result="timeout") - before, 5)
            return took

        in_time(20, until_the_last_ends)

    def test_many_handshakes_at_once(self):
        proxy = self.start()
        steady = self.connect()
        count = 300

        def shake(sock, client, incoming, outgoing):
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    incoming.write(sock.recv(65536))
            sock.sendall(outgoing.read())

        def are_served():
            waiting = []
            before = proxy.metric("proxy_tls_handshakes_total", result="ok", version="TLSv1.3")
            began = time.monotonic()
            for _ in range(count):
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                client = anyone().wrap_bio(incoming, outgoing)
                with self.assertRaises(ssl.SSLWantReadError):
                    client.do_handshake()
                waiting.append((self.raw(), client, incoming, outgoing, outgoing.read()))
            for sock, _, _, _, hello in waiting:
                sock.sendall(hello)
            # Who was there before is served in between.
            self.assertEqual(self.ask(steady, "1-nosuch.d", close=False).status, 502)
            try:
                for sock, client, incoming, outgoing, _ in waiting:
                    shake(sock, client, incoming, outgoing)
            except (ConnectionError, ssl.SSLError):
                self.assertGreater(time.monotonic() - began, 9)  # the time of a handshake was over
                return False
            wait_for(lambda: proxy.metric("proxy_tls_handshakes_total", result="ok", version="TLSv1.3") == before + count)
            return True

        wait_for(lambda: proxy.metric("proxy_tls_handshakes_total", result="ok", version="TLSv1.3") == 1, "the first")
        one_of(are_served, "all of them within ten seconds")

    def test_the_last_flight_and_the_first_request_in_any_two_pieces(self):
        server = self.serve()
        self.start()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            cut, flight = 0, b"?"
            while cut < len(flight):
                sock, incoming, outgoing = self.raw(), ssl.MemoryBIO(), ssl.MemoryBIO()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = anyone(maximum_version=version).wrap_bio(incoming, outgoing)

                def until(call, *arguments):
                    while True:
                        try:
                            return call(*arguments)
                        except ssl.SSLWantReadError:
                            sock.sendall(outgoing.read())
                            incoming.write(sock.recv(65536))

                until(client.do_handshake)
                client.write(f"GET /{cut} HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n".encode())
                flight = outgoing.read()  # by 1.3 the client's Finished is in it
                sock.sendall(flight[:cut])
                wait_for(lambda: unread(sock) == 0, "the first piece taken")
                sock.sendall(flight[cut:])
                self.assertIn(b"200 OK", until(client.read, 65536))
                sock.close()
                cut += 1

    def test_clients_that_leave_in_the_handshake(self):
        proxy = self.start()
        hello = self.client_hello()
        for number in range(90):
            client = Connection(self.raw())
            client.send(hello[:(0, 40, len(hello))[number % 3]])
            if number % 2:
                client.abort()
            else:
                client.close()
        wait_for(lambda: proxy.descriptors() < 40, "all of them gone")
        wait_for(lambda: proxy.metric("proxy_tls_handshakes_total", result="left") == 90, "their number")


class Short(Tls):
    """A proxy that may have few descriptors."""

    descriptors = 256

    def test_s057_handshakes_that_rest_make_room(self):
        server = self.serve()
        proxy = self.start("--listen", "none", workers=1)
        hello = Handshakes.client_hello()
        for number in range(300):
            client = Connection(self.raw())
            client.send(hello[:(0, 20, len(hello))[number % 3]])
        for _ in range(20):
            client = self.connect()
            self.assertEqual(self.ask(client, self.host(server)).status, 200)
        self.assertLess(proxy.descriptors(), 256)


class Ends(Tls):
    def test_s090_a_body_that_ends_with_the_connection_ends_with_close_notify(self):
        def script(connection):
            request = connection.request()
            connection.send("HTTP/1.0 200 OK\r\n\r\nhello")
            if "cut" in request.line:
                seen.wait(PATIENCE)
                connection.abort()

        seen = threading.Event()
        server = self.serve(script)
        self.start()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            client = self.connect(None, anyone(maximum_version=version))
            client.send(f"GET /whole HTTP/1.0\r\nHost: {self.host(server)}\r\n\r\n")
            self.assertTrue(client.take_all().endswith(b"\r\n\r\nhello"))
            self.assertEqual((client.eof, client.reset), (True, False))
            client = self.connect(None, anyone(maximum_version=version))
            seen.clear()
            client.send(f"GET /cut HTTP/1.0\r\nHost: {self.host(server)}\r\n\r\n")
            client.take_until(b"hello")
            seen.set()
            client.take_all()
            self.assertEqual((client.eof, client.reset), (False, True))

    def test_s090_an_upload_needs_no_close_notify_and_a_tunnel_does(self):
        ends = []

        def script(connection):
            request = connection.request()
            if "Upgrade" not in str(request.fields):
                connection.send(answer(str(len(request.body))))
                return
            connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
            ends.append((connection.take_all(), connection.eof, connection.reset))

        server = self.serve(script)
        self.start()
        client = self.connect()
        client.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: 100000\r\n\r\n" + "x" * 100000)
        self.assertEqual(client.response().body, b"100000")
        client.close()
        for orderly in (True, False):
            client = self.connect()
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
            self.assertEqual(client.response().status, 101)
            client.send("last words")
            if orderly:
                client.half_close()
            else:
                client.sock.raw.shutdown(socket.SHUT_WR)
            wait_for(lambda: ends, "the end in the sandbox")
            self.assertEqual(ends.pop(), (b"last words", orderly, not orderly))

    def test_a_drain_says_goodbye(self):
        proxy = self.start()
        idle, fresh = self.connect(), self.connect()
        self.assertEqual(self.ask(idle, "1-nosuch.d", close=False).status, 502)
        handshake = Connection(self.raw())
        proxy.process.send_signal(signal.SIGTERM)
        for client in (idle, fresh):
            self.assertEqual((client.take_all(), client.eof, client.reset), (b"", True, False))
        handshake.take_all()
        self.assertEqual(proxy.process.wait(PATIENCE), 0)

    def test_what_is_known_of_a_connection(self):
        server = self.serve()
        proxy = self.start("--forwarded-headers", "--access-log", "-")
        seen = self.ask(self.connect(), self.host(server)).json()
        self.assertIn(["X-Forwarded-Proto", "https"], seen["fields"])
        plain = Connection(self.raw(proxy.plain_port))
        self.assertIn(["X-Forwarded-Proto", "http"], self.ask(plain, self.host(server)).json()["fields"])
        lines = wait_for(lambda: len(proxy.out) == 2 and proxy.out, "two lines")
        self.assertEqual({json.loads(line).get("tls") for line in lines}, {"TLSv1.3", None})

    @unittest.skipIf("asan" in program(), "sanitizers take more")
    def test_idle_connections_are_small(self):
        proxy = self.start(workers=1)

        def idle(count):
            clients = [self.connect() for _ in range(count)]
            for client in clients:
                self.ask(client, "1-nosuch.d", close=False)
            return proxy.memory_kib()

        before = idle(50)
        after = idle(500)
        self.assertLess((after - before) / 500, 20)


if __name__ == "__main__":
    main()
