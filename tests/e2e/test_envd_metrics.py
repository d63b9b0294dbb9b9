"""What envd tells Prometheus: the form, who gets it, and that its numbers follow what happens."""

import json
import os
import sys
import threading
import unittest
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "support"), os.path.join(HERE, "..", "support")]

from programs import ANSWER_S, eventually, main, start_envd  # noqa: E402
from prometheus import parse  # noqa: E402

# As Prometheus 2.49 and 3 send it.
SCRAPES = ("application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
           "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
           "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2")
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class EnvdMetrics(unittest.TestCase):
    label = "envd metrics"

    @classmethod
    def setUpClass(cls):
        cls.envd = start_envd()
        cls.addClassCleanup(cls.envd.stop)

    def ask(self, accept=None):
        headers = {} if accept is None else {"Accept": accept}
        with urllib.request.urlopen(urllib.request.Request(f"{self.envd.url}/metrics", headers=headers), timeout=ANSWER_S) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def families(self):
        return parse(self.ask(SCRAPES[0])[1])

    def value(self, name, **labels):
        return self.families()[name].samples[name, tuple(sorted(labels.items()))]

    def test_who_scrapes_gets_text_and_all_others_the_json(self):
        for accept in SCRAPES:
            kind, text = self.ask(accept)
            self.assertEqual(kind, TEXT)
            self.assertGreater(len(parse(text)), 50)
        for accept in (None, "*/*", "application/json", "application/json, text/plain, */*", "text/plain"):
            kind, text = self.ask(accept)
            self.assertEqual((kind, list(json.loads(text))[0]), ("application/json", "ts"), accept)

    def test_each_bound_says_how_much_there_may_be(self):
        families = self.families()
        for name in ("process_open_fds", "process_max_fds", "process_resident_memory_bytes", "process_cpu_seconds_total", "envd_build_info",
                     "envd_sandbox_cpus", "envd_sandbox_memory_used_bytes", "envd_sandbox_disk_used_bytes"):
            self.assertIn(name, families)
        bounds = [name for name in families if name.endswith("_max")]
        self.assertGreater(len(bounds), 15)
        for name in bounds:
            now, most = families[name[:-4]], families[name]
            for (_, labels), value in most.samples.items():
                self.assertTrue(0 <= now.samples[name[:-4], labels] <= value, name)
        for name, family in families.items():
            self.assertTrue(name.startswith(("envd_", "process_")), name)
            self.assertNotRegex(name, "(milli|micro)seconds|_(ms|us|kib|mib|pct)(_|$)", family.help)

    def test_the_numbers_follow_what_happens(self):
        before = self.value("envd_processes")
        head = b'{"process":{"cmd":"/bin/cat"},"stdin":true}'
        request = urllib.request.Request(f"{self.envd.url}/process.Process/Start", len(head).to_bytes(5, "big") + head,
                                         {"Content-Type": "application/connect+json", "Authorization": "Basic cm9vdDo="})
        stream = urllib.request.urlopen(request, timeout=ANSWER_S)  # which has begun: there is the process
        try:
            self.assertEqual(self.value("envd_processes"), before + 1)
            self.assertGreaterEqual(self.value("envd_connections"), 2)
        finally:
            length = int.from_bytes(stream.read(5)[1:], "big")
            pid = json.loads(stream.read(length))["event"]["start"]["pid"]
            os.kill(pid, 9)
            stream.close()
        eventually("the process is gone", lambda: self.value("envd_processes") == before)

    def test_two_who_ask_do_not_disturb_the_load_of_the_json(self):
        self.ask()
        done = threading.Event()
        threading.Thread(target=lambda: (sum(range(3_000_000)), done.set())).start()
        done.wait(ANSWER_S)
        first = self.value("envd_sandbox_cpu_busy_seconds_total")
        self.assertGreater(first, 0)
        self.assertGreater(json.loads(self.ask()[1])["cpu_used_pct"], 0)


if __name__ == "__main__":
    main()
