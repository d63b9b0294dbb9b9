#!/usr/bin/env python3
"""The numbers for Prometheus: their form, those that every process has, and what is counted when."""
import os
import resource
import subprocess
import sys
import time
import unittest

from dns_support import NameServer
from redis_support import Redis
from support import ROOT, Test, answer, main, pace, program, wait_for

sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from prometheus import parse  # noqa: E402


class Metrics(Test):
    def families(self):
        return parse(self.proxy.call("GET", "/metrics")[1])

    def value(self, name, ending="", **labels):
        return self.families()[name].samples[name + ending, tuple(sorted(labels.items()))]

    def test_the_form_is_what_prometheus_reads(self):
        redis, dns = Redis(), NameServer()
        self.addCleanup(redis.stop)
        self.addCleanup(dns.stop)
        server = self.serve()
        self.start("--redis", redis.url, "--dns-template", "{id}.test", "--dns-server", dns.address, "--wake-url", "http://127.0.0.1:9/")
        for path in ("/a", "/b"):
            self.proxy.ask(self.host(server), path)
        self.proxy.ask("1-nosuch.d")
        families = self.families()
        for name in ("proxy_requests_total", "proxy_redis_connected", "proxy_dns_records", "proxy_wakes_total", "proxy_errors_total"):
            self.assertIn(name, families)
        for name, family in families.items():
            if not name.startswith(("orchestrator_proxy_", "client_proxy_")):  # those are as others have called them
                self.assertNotRegex(name, "(milli|micro)seconds|_(ms|us|min|minutes|hours)(_|$)", family.help)

    def test_numbers_that_every_process_has(self):
        begun = time.time()
        proxy = self.start()
        families = self.families()
        expected = {"process_cpu_seconds_total": "counter", "process_open_fds": "gauge", "process_max_fds": "gauge",
                    "process_virtual_memory_bytes": "gauge", "process_resident_memory_bytes": "gauge", "process_start_time_seconds": "gauge"}
        self.assertEqual({name: families[name].type for name in families if name.startswith("process_")}, expected)
        value = {name: families[name].samples[name, ()] for name in expected}
        self.assertLess(abs(value["process_start_time_seconds"] - begun), 60)
        self.assertEqual(self.value("process_start_time_seconds"), value["process_start_time_seconds"], "always the same")
        self.assertEqual(value["process_max_fds"], resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE)[0])
        for _ in range(3):  # connections of these questions come and go
            if abs(self.value("process_open_fds") - proxy.descriptors()) <= 2:
                break
        else:
            self.fail("the descriptors are not so many")
        ratio = self.value("process_resident_memory_bytes") / 1024 / proxy.memory_kib()
        self.assertTrue(0.5 < ratio < 2, ratio)
        self.assertGreater(value["process_virtual_memory_bytes"], value["process_resident_memory_bytes"])
        cpu = value["process_cpu_seconds_total"]
        wait_for(lambda: self.value("process_cpu_seconds_total") > cpu, "work that is counted")
        ticks = os.sysconf("SC_CLK_TCK")
        with open(f"/proc/{proxy.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        self.assertLess(abs(self.value("process_cpu_seconds_total") - (int(fields[11]) + int(fields[12])) / ticks), 5)

    def test_the_program_says_which_one_it_is(self):
        self.start()
        told = dict(line.split() for line in subprocess.run([program(), "-version"], capture_output=True, text=True, check=True).stdout.splitlines())
        self.assertEqual(self.value("proxy_build_info", version=told["proxy"], commit=told["commit"], profile=told["profile"]), 1)

    def test_answers_are_counted_by_the_class_of_their_status(self):
        def script(connection):
            status = connection.request().line.split()[1][1:]
            if status == "101":
                connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                connection.take_all()
            elif status == "103":
                connection.send("HTTP/1.1 103 Early Hints\r\n\r\n")
                connection.send(answer())
            elif status == "cut":
                connection.abort()
            else:
                connection.send(answer(status=f"{status} Any"))

        server = self.serve(script)
        proxy = self.start()
        for status in ("200", "201", "302", "404", "499", "500", "cut"):
            proxy.ask(self.host(server), f"/{status}")
        with proxy.connect() as client:
            client.send(f"GET /103 HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
            self.assertEqual([client.response().status for _ in range(2)], [103, 200], "which is one answer")
        with proxy.connect() as client:
            client.send(f"GET /101 HTTP/1.1\r\nHost: {self.host(server)}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            self.assertEqual(client.response().status, 101)
        proxy.ask("1-nosuch.d")  # 502, by the proxy
        with proxy.connect() as client:  # and one that is no request at all
            client.send("nonsense\r\n\r\n")
            self.assertEqual(client.response().status, 400)
        expected = {"1xx": 1, "2xx": 3, "3xx": 1, "4xx": 3, "5xx": 3, "other": 0}

        def counted():
            samples = self.families()["proxy_responses_total"].samples
            return {dict(labels)["code"]: value for (_, labels), value in samples.items()}

        wait_for(lambda: sum(counted().values()) >= 11, "all of them")
        self.assertEqual(counted(), expected)
        wait_for(lambda: self.value("proxy_request_duration_seconds", "_count") == 11, "the durations of all")
        self.assertEqual(self.value("proxy_time_to_first_byte_seconds", "_count"), 11)

    def test_durations_are_told_in_seconds(self):
        def script(connection):
            connection.request()
            pace(0.3)  # what is measured
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            pace(0.4)
            connection.send("ok")

        server = self.serve(script)
        proxy = self.start()
        self.assertEqual(proxy.ask(self.host(server)).body, b"ok")
        wait_for(lambda: self.value("proxy_request_duration_seconds", "_count") == 1, "its end")
        first, whole = (self.value(name, "_sum") for name in ("proxy_time_to_first_byte_seconds", "proxy_request_duration_seconds"))
        self.assertGreaterEqual(first, 0.25)
        self.assertGreaterEqual(whole, 0.65)
        self.assertGreaterEqual(whole, first)
        self.assertLess(whole, 60)
        self.assertEqual(self.value("proxy_request_duration_seconds", "_bucket", le="0.25"), 0)
        self.assertEqual(self.value("proxy_request_duration_seconds", "_bucket", le="3600"), 1)
        self.assertEqual(self.value("orchestrator_proxy_connection_duration_milliseconds", "_count"), 1, "the old name stays")

    @unittest.skipIf(os.getuid() != 0, "only root can hide it")
    @unittest.skipIf("asan" in program(), "the sanitizer itself looks there")
    def test_without_proc_the_rest_is_told(self):
        self.prefix = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"')
        self.start()
        names = [name for name in self.families() if name.startswith("process_")]
        self.assertEqual(names, ["process_cpu_seconds_total", "process_max_fds"])


if __name__ == "__main__":
    main()
