#!/usr/bin/env python3
"""Who makes room when there is none: connections that keep a place and ask nothing, in every state that one can be in.
Those of clients that have asked nothing yet go first, and who asks something is served at once."""
import socket
import time
import unittest

import test_tls
from http2_support import END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, head
from support import OVER_TLS, PATIENCE, Connection, Test, in_time, main, wait_for
from tls_support import Tls, anyone

NOBODY = "1-nosuch.sandbox.test"
GOOD = b"GET / HTTP/1.1\r\nHost: " + NOBODY.encode() + b"\r\n\r\n"
HELLO = PREFACE + frame(SETTINGS)
BLOCK = head(NOBODY)
ASKED = frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK)


def endless(stream):
    """A head that END_HEADERS would have to follow."""
    return frame(HEADERS, END_STREAM, stream, BLOCK)


class Room:
    """Fills the proxy with what rests, and asks beside it. What is sent first has an answer before the rest is."""

    PLACES = 24

    def fill(self, first, rest):
        clients = []
        for _ in range(self.PLACES - 1):
            client = self.attacker()
            clients.append(client)
            self.addCleanup(client.close)
            client.send(first or rest)
        if first:
            for client in clients:
                self.assertTrue(client.read_some())
                client.send(rest)
        return clients

    def ask(self, client, host):
        client.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
        self.assertEqual(client.response().status, 200)

    def served(self, host):
        """Seconds until the answer. The connection stays, so that the next one needs another place."""
        began = time.monotonic()
        client = self.proxy.connect()
        self.addCleanup(client.close)
        self.ask(client, host)
        return time.monotonic() - began

    def check(self, first, rest):
        server = self.serve()
        self.start("--connections-max", str(self.PLACES), workers=1)
        attackers = self.fill(first, rest)
        wait_for(lambda: self.proxy.metric("orchestrator_proxy_server_connections_open") == len(attackers), "all of them")
        with self.proxy.connect() as known:
            self.ask(known, self.host(server))
            rested = time.monotonic() + 0.6
            wait_for(lambda: time.monotonic() > rested, "the time after which all may be closed")
            in_time(0.5, lambda: self.served(self.host(server)))
            self.ask(known, self.host(server))  # it has rested for less long, or its client has asked before


@unittest.skipIf(OVER_TLS, "bytes by hand; below are those over TLS")
class Plain(Room, Test):
    def attacker(self):
        return Connection(socket.create_connection(("127.0.0.1", self.proxy.port), PATIENCE))

    def test_case_180_silence(self):
        self.check(b"", b"")

    def test_case_180_heads_that_never_end(self):
        self.check(b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-")

    def test_case_180_half_a_preface(self):
        self.check(b"", PREFACE[:10])

    def test_case_180_http_2_that_only_says_hello(self):
        self.check(b"", HELLO)

    def test_case_180_http_2_without_settings(self):
        self.check(b"", PREFACE)

    def test_case_180_http_2_heads_that_never_end(self):
        self.check(b"", HELLO + endless(1))

    def test_case_180_heads_that_never_end_after_a_request(self):
        self.check(GOOD, b"GET / HTTP/1.1\r\nHost: a\r\nX-")

    def test_case_180_bodies_that_nobody_waits_for(self):
        self.check(f"POST / HTTP/1.1\r\nHost: {NOBODY}\r\nContent-Length: 1000000\r\n\r\n".encode(), b"x")

    def test_case_180_ends_that_are_not_answered(self):
        self.check(GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b"x")

    def test_case_180_http_2_that_rests_after_a_request(self):
        self.check(HELLO + ASKED, b"")

    def test_case_180_http_2_heads_that_never_end_after_a_request(self):
        self.check(HELLO + ASKED, endless(3))


class OverTls(Room, Tls):
    def start(self, *flags, **options):
        return super().start("--listen", "none", *flags, **options)

    def attacker(self):
        return Connection(self.raw())

    def greeted(self, protocol):
        return self.connect(None, self.offer(protocol))

    def offer(self, protocol):
        context = anyone()
        context.set_alpn_protocols([protocol])
        return context

    def test_case_180_silence(self):
        self.check(b"", b"")

    def test_case_180_half_a_hello(self):
        self.check(b"", test_tls.Handshakes.client_hello()[:20])

    def test_case_180_handshakes_that_never_end(self):
        self.check(b"", test_tls.Handshakes.client_hello())

    def test_case_180_heads_that_never_end(self):
        self.attacker = lambda: self.greeted("http/1.1")
        self.check(b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-")

    def test_case_180_http_2_heads_that_never_end(self):
        self.attacker = lambda: self.greeted("h2")
        self.check(b"", HELLO + endless(1))


if __name__ == "__main__":
    main()
