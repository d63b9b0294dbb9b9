#!/usr/bin/env python3
"""A name server that is sick or hostile: one that answers in part, slowly, by TCP or not at all is never "no such
sandbox", and nobody else waits for it."""
import os
import socket
import struct
import tempfile
import threading
import time
import unittest

from dns_support import A, SERVFAIL, DnsTest, NameServer
from netns_support import can_mount
from support import INSIDE_IPV6, in_time, main, wait_for


def cname(label, ttl=60):
    data = bytes([len(label)]) + label.encode() + b"\x00"
    return b"\xc0\x0c" + struct.pack("!HHIH", 5, 1, ttl, len(data)) + data


def address(label, text, ttl=60):
    return bytes([len(label)]) + label.encode() + b"\x00" + struct.pack("!HHIH", A, 1, ttl, 4) + socket.inet_aton(text)


class Hostile(DnsTest):
    def begin(self, *flags, **options):
        proxy = self.start_dns(*flags, **options)
        self.server = self.serve()
        return proxy

    def ask(self, sandbox):
        """(status, cause, seconds)"""
        began = time.monotonic()
        status, cause = self.cause(self.host(self.server, sandbox))
        return status, cause, time.monotonic() - began

    def found(self, sandbox):
        """It is found, and never said not to be there; a busy machine may be too late with an answer. The seconds."""
        self.dns.names.setdefault(sandbox, ["127.0.0.1"])

        def is_found():
            status, cause, seconds = self.ask(sandbox)
            self.assertIn((status, cause), ((200, None), (503, "catalog_unavailable")))
            return status == 200 and [seconds]

        return wait_for(is_found, f"an answer about {sandbox}")[0]

    def test_s001_cut_answers_are_asked_for_by_tcp(self):
        self.begin()
        self.dns.cut = True
        self.dns.names["abc"] = ["127.0.0.1"] + [f"127.1.{i // 250}.{i % 250 + 1}" for i in range(500)]
        self.told(self.host(self.server, "abc"), 200, None)
        self.told(self.host(self.server, "nobody"), 502, "sandbox_not_found")
        self.dns.cut, self.dns.tcp = "part", "close"
        self.dns.names["part"] = ["127.0.0.1"]
        self.assertEqual(self.ask("part")[:2], (503, "catalog_unavailable"))

    def test_s001_by_tcp_nothing_comes(self):
        self.begin()
        names = iter(range(100))
        for how in ("silent", "slow"):
            with self.subTest(how):
                def slowest():
                    results, number = [], next(names)
                    threads = [threading.Thread(target=lambda i=i: results.append(self.ask(f"{how}{number}x{i}"))) for i in range(4)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    self.assertEqual({result[:2] for result in results}, {(503, "catalog_unavailable")})
                    return max(result[2] for result in results)

                self.dns.tcp, self.dns.cut = how, True
                in_time(6, slowest)
                self.dns.tcp, self.dns.cut = "answer", False
                # Nobody is still waiting for those.
                self.found(f"after{how}")

    def test_s001_many_questions_nobody_answers(self):
        self.begin()
        self.dns.silent = True
        threads = [threading.Thread(target=self.ask, args=(f"n{i}",)) for i in range(40)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(self.dns.asked) >= 2, "the first questions")
        self.dns.silent = False
        self.found("abc")
        for thread in threads:
            thread.join()

    def test_s098_a_slow_name_server_keeps_nobody_from_being_found(self):
        """Each answer takes a quarter of a second, and many sandboxes are asked for again every second."""
        proxy = self.begin()
        self.dns.delay = 0.25
        self.dns.ttl = 0
        names = [f"s{i}" for i in range(60)]
        threads = [threading.Thread(target=self.found, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: proxy.metric("proxy_dns_records") == 60, "all of them")
        asked = self.dns.count("s0")
        wait_for(lambda: self.dns.count("s0") > asked + 1, "them to be asked for again")
        news = iter(range(100))
        in_time(1.5, lambda: self.found(f"new{next(news)}"))

    def test_s001_made_up_answers(self):
        """Packets that are no answer to what was asked."""
        self.begin()
        plain = self.dns.answer
        self.dns.names["abc"] = ["127.0.0.1"]

        def answer(query, question, label, kind):
            good = plain(query, question, label, kind)
            other = bytes([good[0] ^ 1]) + good[1:]
            for bad in (other, good[:2] + bytes([good[2] & 0x7f]) + good[3:], good[:12] + good[12:].replace(b"abc", b"abd"), good[:11], b"", b"x",
                        query):
                self.dns.send(bad, self.dns.peer)
            return good

        receive = self.dns.sock.recvfrom

        class Socket:
            def __getattr__(_, name):  # pylint: disable=no-self-argument
                return getattr(self.dns.real, name)

            def recvfrom(_, size):  # pylint: disable=no-self-argument
                query, self.dns.peer = receive(size)
                return query, self.dns.peer

        self.dns.real, self.dns.sock = self.dns.sock, Socket()
        self.ask("wake")  # the thread sits in the plain one until then
        self.dns.answer = answer
        self.told(self.host(self.server, "abc"), 200, None)

    def test_s001_nobody_at_the_name_servers_port(self):
        self.begin()
        self.dns.stop()
        names = iter(range(100))

        def ask():
            status, cause, seconds = self.ask(f"abc{next(names)}")
            self.assertEqual((status, cause), (503, "catalog_unavailable"))
            return seconds

        in_time(2, ask)

    def test_s001_aliases(self):
        self.begin()
        self.dns.names.update(alias=[], dangling=[], loop=[])
        self.dns.extra.update(alias=[cname("target"), address("target", "127.0.0.1")], dangling=[cname("nowhere")], loop=[cname("loop")] * 20)
        self.told(self.host(self.server, "alias"), 200, None)
        self.told(self.host(self.server, "dangling"), 502, "sandbox_not_found")
        self.told(self.host(self.server, "loop"), 502, "sandbox_not_found")

    def test_s005_case_185_what_must_never_be_dialled(self):
        proxy = self.start_dns()
        self.server = self.serve()
        for address in ("169.254.169.254", "0.0.0.0", "::", "fe80::1", "::ffff:169.254.169.254", "fd00:ec2::254", "224.0.0.1",
                        "255.255.255.255", "ff02::1", "::ffff:0:0", *INSIDE_IPV6):
            with self.subTest(address):
                name = "x" + address.encode().hex()
                self.dns.names[name] = [address]
                self.told(self.host(self.server, name), 502, "address_refused")
        self.dns.names["self"] = ["127.0.0.1"]
        for port in (proxy.port, proxy.admin_port):
            self.told(f"{port}-self.d", 502, "address_refused")

    def test_s001_servfail_for_one_family(self):
        """No IPv4 address, and the question for the other kind fails: nobody knows."""
        self.begin()
        plain = self.dns.answer

        def answer(query, question, label, kind):
            if label == "half" and kind != A:
                return query[:2] + struct.pack("!HHHHH", 0x8180 | SERVFAIL, 1, 0, 0, 0) + question
            return plain(query, question, label, kind)

        self.dns.answer = answer
        self.dns.names["half"] = []
        self.assertEqual(self.ask("half")[:2], (503, "catalog_unavailable"))

    def test_s018_time_to_live_of_nothing_and_for_ever(self):
        proxy = self.begin()
        for ttl in (0, 0x80000001, 0xffffffff):
            self.dns.ttl = ttl
            name = f"t{ttl}"
            self.dns.names[name] = ["127.0.0.1"]
            self.told(self.host(self.server, name), 200, None)
            del self.dns.names[name]
            wait_for(lambda name=name: proxy.call("GET", f"/sandboxes/{name}")[0] == 404, "it to be forgotten")

    def test_s004_names_that_are_too_long(self):
        self.begin(template="{id}." + ".".join(["p" * 63] * 3) + ".test")
        self.told(self.host(self.server, "a" * 40), 502, "sandbox_not_found")
        self.told(self.host(self.server, "a" * 57), 502, "sandbox_not_found")


@unittest.skipUnless(can_mount(), "needs root and mount namespaces")
class System(DnsTest):
    """The system's name servers, which always have port 53: here at addresses that nobody else uses."""

    def begin(self, count, silent=()):
        pid = os.getpid()
        hosts = [f"127.{64 + pid // 16384 % 64}.{pid // 64 % 256}.{1 + pid % 64 * 3 + i}" for i in range(count)]
        file = tempfile.NamedTemporaryFile("w", suffix=".resolv")  # pylint: disable=consider-using-with
        file.write("search test\noptions ndots:5\n" + "".join(f"nameserver {host}\n" for host in hosts))
        file.flush()
        self.addCleanup(file.close)
        self.prefix = ("unshare", "--mount", "sh", "-c", f'mount --bind {file.name} /etc/resolv.conf && exec "$@"', "sh")
        self.dns = NameServer(hosts[-1], 53)
        self.addCleanup(self.dns.stop)
        for host in silent:
            other = NameServer(hosts[host], 53)
            other.silent = True
            self.addCleanup(other.stop)
        self.dns.names["abc"] = ["127.0.0.1"]
        self.server = self.serve()
        return self.start("--dns-template", "{id}.pods.test", "--allow-loopback-upstreams", sandboxes=())

    def test_s001_it_is_asked(self):
        self.begin(1)
        self.told(self.host(self.server, "abc"), 200, None)
        self.told(self.host(self.server, "nobody"), 502, "sandbox_not_found")
        self.assertEqual({name for name, _ in self.dns.asked}, {"abc", "nobody"})

    def test_s001_the_second_when_nobody_is_at_the_first(self):
        self.begin(2)
        names = iter(range(100))

        def ask():
            name = f"abc{next(names)}"
            self.dns.names[name] = ["127.0.0.1"]
            began = time.monotonic()
            self.told(self.host(self.server, name), 200, None)
            return time.monotonic() - began

        in_time(0.9, ask)  # it is told at once

    def test_s001_the_third_when_the_others_are_silent(self):
        self.begin(3, silent=(0, 1))
        self.told(self.host(self.server, "abc"), 200, None)


if __name__ == "__main__":
    main()
