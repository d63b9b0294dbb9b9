"""Sandboxes that only DNS knows, as in Kubernetes: a scripted name server beside the real proxy."""
import threading
import time
import unittest

from dns_support import NOERROR, REFUSED, SERVFAIL, DnsTest, NameServer
from support import PATIENCE, Proxy, answered, in_time, main, one_of, wait_for


class Answers(DnsTest):
    def test_found(self):
        proxy = self.start_dns()
        server = self.serve()
        self.dns.names["abc"] = ["127.0.0.1"]
        began = time.monotonic()
        self.told(self.host(server), 200, None)
        body = proxy.call("GET", "/sandboxes/abc")[1]
        self.assertEqual((body["address"], body["lifecycle_id"]), ("127.0.0.1", "127.0.0.1"))
        for _ in range(10):
            self.told(self.host(server), 200, None)
        # Asked for once, and sent or asked for again each second at most.
        self.assertLessEqual(self.dns.count("abc"), 1 + int(time.monotonic() - began))

    def test_found_by_ipv6_alone(self):
        self.start_dns()
        server = self.serve(host="::1")
        self.dns.names["abc"] = ["::1"]
        self.told(self.host(server), 200, None)

    def test_s001_no_such_name_no_answer_and_no_address_are_told_apart(self):
        proxy = self.start_dns()
        server = self.serve()
        self.dns.names.update(broken=SERVFAIL, refused=REFUSED, bare=[], noerror=NOERROR)
        self.told(self.host(server, "nobody"), 502, "sandbox_not_found")
        self.told(self.host(server, "bare"), 502, "sandbox_not_found")
        self.assertEqual(self.cause(self.host(server, "broken")), (503, "catalog_unavailable"))
        self.assertEqual(self.cause(self.host(server, "refused")), (503, "catalog_unavailable"))
        self.dns.silent = True

        def ask():
            started = time.monotonic()
            self.assertEqual(self.cause(self.host(server, "silent")), (503, "catalog_unavailable"))
            return time.monotonic() - started

        in_time(10, ask)
        proxy.logged("no answer from a name server")
        self.assertGreaterEqual(proxy.metric("proxy_dns_failed_total"), 2)

    def test_no_such_name_is_remembered_for_a_moment_only(self):
        proxy = self.start_dns()
        server = self.serve()
        began = time.monotonic()
        for _ in range(20):
            self.told(self.host(server), 502, "sandbox_not_found")
        self.assertLessEqual(self.dns.count("abc"), 2 * (time.monotonic() - began + 1))  # of both kinds, once a second
        self.dns.names["abc"] = ["127.0.0.1"]
        wait_for(lambda: proxy.ask(self.host(server)).status == 200, "the name")

    def test_one_question_for_many_requests(self):
        proxy = self.start_dns()
        server = self.serve()
        names = iter(range(100))

        def all_are_served():
            name = f"abc{next(names)}"
            self.dns.names[name] = ["127.0.0.1"]
            self.dns.hold.clear()
            clients = [proxy.connect() for _ in range(100)]
            began = time.monotonic()
            for client in clients:
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server, name)}\r\n\r\n")
            wait_for(lambda: self.dns.count(name), "the question")
            wait_for(lambda: proxy.metric("proxy_active_exchanges") == 100 or answered(clients), "all of them")
            self.dns.hold.set()
            statuses = {client.response().status for client in clients}
            for client in clients:
                client.close()
            # It is sent again when no answer has come within a second, and asked for again a second after the answer.
            self.assertLessEqual(self.dns.count(name), 2 + 2 * int(time.monotonic() - began))
            self.assertLessEqual(statuses, {200, 503})
            wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "their end")
            return statuses == {200}

        one_of(all_are_served, "an answer for each")

    def test_s020_client_leaves_while_it_waits(self):
        proxy = self.start_dns()
        names = iter(range(100))

        def leave():
            self.dns.hold.clear()
            name = f"abc{next(names)}"
            failed = proxy.metric("proxy_dns_failed_total")
            with proxy.connect() as client:
                client.send(f"GET / HTTP/1.1\r\nHost: 80-{name}.sandbox.test\r\n\r\n")
                wait_for(lambda: self.dns.count(name), "the question")
                client.abort()
                wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end")
            failed = proxy.metric("proxy_dns_failed_total") - failed
            self.dns.hold.set()
            return failed

        in_time(0, leave)  # no lookup has failed meanwhile: it did not wait for the end of its own

    def test_stops_while_it_waits(self):
        proxy = self.start_dns()
        self.dns.silent = True
        client = proxy.connect()
        client.send("GET / HTTP/1.1\r\nHost: 80-abc.sandbox.test\r\n\r\n")
        wait_for(lambda: self.dns.asked, "the question")
        for _ in range(3):
            proxy.process.send_signal(15)
        client.take_all()
        client.close()
        self.assertEqual(proxy.process.wait(PATIENCE), 0)

    def test_s005_rebinding_to_what_is_never_dialled(self):
        """DNS says what it likes: every address is judged when it is dialled."""
        proxy = self.start_dns()
        for number, address in enumerate(("169.254.169.254", "0.0.0.0", "::ffff:169.254.169.254", "fe80::1", "::")):
            self.dns.names[f"bad{number}"] = [address]
            self.told(f"80-bad{number}.sandbox.test", 502, "address_refused")
        self.dns.names["self"] = ["127.0.0.1"]
        self.told(f"{proxy.admin_port}-self.sandbox.test", 502, "address_refused")
        self.assertEqual(proxy.metric("proxy_errors_total", **{"class": "address_refused"}), 6)
        proxy.logged("address refused", "169.254.169.254")

    def test_s005_loopback_needs_the_flag(self):
        self.dns = NameServer()
        self.addCleanup(self.dns.stop)
        self.start("--dns-template", "{id}.pods.test", "--dns-server", self.dns.address, sandboxes=())
        self.dns.names["abc"] = ["127.0.0.1"]
        self.told("80-abc.sandbox.test", 502, "address_refused")

    def test_garbage(self):
        proxy = self.start_dns()
        for number, garbage in enumerate((b"", b"\xc0", b"\xc0\x0c" * 50, b"\xff" * 400, b"\x00" * 11,
                                          b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\xff\xff\x7f")):
            self.dns.garbage = garbage
            status = proxy.ask(f"80-garbage{number}.sandbox.test").status
            self.assertIn(status, (502, 503))
        self.dns.garbage = None
        server = self.serve()
        self.dns.names["abc"] = ["127.0.0.1"]
        self.told(self.host(server), 200, None)

    def test_more_addresses_than_are_looked_at(self):
        proxy = self.start_dns()
        server = self.serve()
        self.dns.names["abc"] = ["127.0.0.1"] + [f"127.9.8.{number}" for number in range(24)]
        self.told(self.host(server), 200, None)
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["address"], "127.0.0.1")

    def test_other_sources_come_first(self):
        proxy = self.start_dns(sandboxes=("mine",))
        server = self.serve()
        self.dns.names.update(mine=["127.0.0.9"], later=["127.0.0.9"])
        self.told(self.host(server, "mine"), 200, None)
        self.assertEqual(self.dns.count("mine"), 0)
        proxy.call("PUT", "/sandboxes/later", {"address": "127.0.0.1"})
        self.told(self.host(server, "later"), 200, None)
        self.assertEqual(proxy.call("DELETE", "/sandboxes/later")[0], 204)
        self.assertEqual(self.dns.count("later"), 0)
        self.dns.names["later"] = ["127.0.0.1"]
        self.told(self.host(server, "later"), 200, None)
        self.assertGreater(self.dns.count("later"), 0)


class Time(DnsTest):
    def test_s018_another_address_is_another_life(self):
        proxy = self.start_dns()
        gate = threading.Event()
        self.addCleanup(gate.set)
        old = self.serve(lambda connection: (connection.request(), gate.wait(PATIENCE)))
        new = self.serve(host="127.0.0.2")
        self.dns.names["abc"] = ["127.0.0.1"]
        with proxy.connect() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {self.host(old)}\r\n\r\n")
            wait_for(lambda: old.received, "the request")
            self.dns.names["abc"] = ["127.0.0.2"]
            client.read_some()  # reset, or told that the sandbox it went to is gone
            self.assertTrue(client.reset or client.eof or b" 502 " in client.received)
        self.told(self.host(new), 200, None)
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["lifecycle_id"], "127.0.0.2")

    def test_order_of_addresses_does_not_matter(self):
        proxy = self.start_dns()
        self.serve()
        self.dns.names["abc"] = ["127.0.0.3", "127.0.0.2"]
        server = self.serve(host="127.0.0.2", nobody_at="127.0.0.3")
        self.told(self.host(server), 200, None)
        before = proxy.call("GET", "/sandboxes/abc")[1]
        self.dns.names["abc"] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        asked = self.dns.count("abc")
        wait_for(lambda: self.dns.count("abc") > asked + 1, "two refreshes")
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["revision"], before["revision"])

    def test_gone_pod_is_not_found(self):
        self.start_dns()
        server = self.serve()
        self.dns.names["abc"] = ["127.0.0.1"]
        self.told(self.host(server), 200, None)
        del self.dns.names["abc"]
        wait_for(lambda: not self.known("abc"), "the removal")
        self.told(self.host(server), 502, "sandbox_not_found")

    def test_name_server_fails_and_what_is_known_stays(self):
        proxy = self.start_dns()
        server = self.serve()
        self.dns.names["abc"] = ["127.0.0.1"]
        self.told(self.host(server), 200, None)
        self.dns.names["abc"] = SERVFAIL
        failed = proxy.metric("proxy_dns_failed_total")
        wait_for(lambda: proxy.metric("proxy_dns_failed_total") > failed + 1, "failed refreshes")
        self.told(self.host(server), 200, None)

    def test_s029_moved_and_not_yet_told(self):
        """The port is closed where it was: DNS is asked again before that is the answer."""
        proxy = self.start_dns()
        self.dns.ttl = 3600
        server = self.serve(host="127.0.0.2", nobody_at="127.0.0.1")
        names = iter(range(100))

        def is_found():
            name = f"abc{next(names)}"
            self.dns.names[name] = ["127.0.0.1"]
            before = proxy.metric("proxy_dial_retries_total")
            with proxy.connect() as client:
                client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server, name)}\r\n\r\n")
                wait_for(lambda: proxy.metric("proxy_dial_retries_total") > before or answered([client]), "the first attempt")
                self.dns.names[name] = ["127.0.0.2"]
                response = client.response()
            self.assertIn((response.status, response.get("X-Proxy-Error")), ((200, None), (502, "port_closed"), (503, "catalog_unavailable")))
            return response.status == 200

        one_of(is_found, "the new address")

    def test_many_ids_of_a_wildcard(self):
        class Wildcard(dict):
            def get(self, key, default=None):
                return ["127.0.0.1"]

        proxy = self.start_dns()
        self.dns.names = Wildcard()
        server = self.serve()
        with proxy.connect() as client:
            for number in range(500):
                def is_found(number=number):
                    client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server, f'w{number}')}\r\n\r\n")
                    return client.response().status == 200

                wait_for(is_found, "an answer")
        self.assertEqual(proxy.metric("proxy_dns_records"), 500)


class Flags(unittest.TestCase):
    def refused(self, *flags):
        with self.assertRaises(AssertionError) as caught:
            Proxy(*flags)
        return str(caught.exception)

    def test_templates(self):
        for template in ("pods.test", "{id}..test", "{id}.pods test", "{id}.{id}.test", "{ID}.test", "{id}:80",
                         "a" * 300 + "{id}", "{id}." + "a" * 64):
            self.assertIn("DNS template", self.refused("--dns-template", template))
        self.assertIn("-dns-server", self.refused("--dns-server", "127.0.0.1"))
        for server in ("::1", "localhost", "127.0.0.1:x", "127.0.0.1:99999"):
            self.assertIn("-dns-server", self.refused("--dns-template", "{id}.test", "--dns-server", server))


if __name__ == "__main__":
    main()
