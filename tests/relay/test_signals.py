#!/usr/bin/env python3
"""Signals that end nothing: the access log is opened anew and certificates are read again at SIGHUP, at every moment of
the proxy's life."""
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

from handover_support import Following, is_alive
from support import OVER_TLS, PATIENCE, Test, main, program, wait_for


def paths(file):
    """Of the requests that a log tells of; every line is whole."""
    try:
        with open(file, encoding="utf-8") as lines:
            return [json.loads(line)["path"] for line in lines]
    except FileNotFoundError:
        return []


class Rotation(Test):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.log = os.path.join(self.folder, "access.log")

    def moved(self, number=1):
        """Moves the log away as logrotate does."""
        os.rename(self.log, f"{self.log}.{number}")
        return f"{self.log}.{number}"

    def hang_up(self, result="reopened_total"):
        """Until the log is opened anew, or could not be."""
        name = f"proxy_access_log_{result}"
        before = self.proxy.metric(name)
        self.proxy.process.send_signal(signal.SIGHUP)
        wait_for(lambda: self.proxy.metric(name) > before, name)

    def written(self, path, file=None):
        self.proxy.ask("1-nosuch.d", path)
        wait_for(lambda: path in paths(file or self.log), f"the line of {path} in {file or self.log}")

    def check(self, proxy):
        self.written("/before")
        old = self.moved()
        self.written("/between", old)  # nobody has told it yet
        self.hang_up()
        self.written("/after")
        self.assertEqual((paths(old), paths(self.log)), (["/before", "/between"], ["/after"]))
        self.assertEqual(os.stat(self.log).st_mode & 0o777, os.stat(old).st_mode & 0o777)
        descriptors = proxy.descriptors()
        for number in range(2, 12):
            self.moved(number)
            self.hang_up()
        self.written("/last")
        self.assertEqual(paths(self.log), ["/last"])
        self.assertLessEqual(proxy.descriptors(), descriptors + 1, "none is left behind")

    def test_case_187_the_log_is_rotated_without_tls(self):
        self.check(self.start("--access-log", self.log, over_tls=False))

    def test_case_187_the_log_is_rotated_with_tls(self):
        proxy = self.start("--access-log", self.log, over_tls=True)
        before = proxy.metric("proxy_certificate_reloads_total")
        self.check(proxy)
        wait_for(lambda: proxy.metric("proxy_certificate_reloads_total") > before, "the certificates read again")

    def test_case_187_nothing_to_open_anew(self):
        for flags in ((), ("--access-log", "-")):
            proxy = self.start(*flags, over_tls=False)
            for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE, signal.SIGXFSZ) * 5:
                proxy.process.send_signal(number)
                self.assertEqual(proxy.ask("1-nosuch.d").status, 502)
            self.assertEqual(proxy.metric("proxy_access_log_reopened_total"), 0)
            self.assertEqual(proxy.stop(), 0)

    def test_case_187_no_line_is_lost_or_torn_while_logs_are_rotated(self):
        proxy = self.start("--access-log", self.log, workers=3)
        asked, stop = [0] * 4, threading.Event()

        def ask(index):
            with proxy.connect() as client:
                while not stop.is_set():
                    client.send(f"GET /{index}-{asked[index]} HTTP/1.1\r\nHost: 1-nosuch.d\r\n\r\n")
                    self.assertEqual(client.response().status, 502)
                    asked[index] += 1

        threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(len(asked))]
        for thread in threads:
            thread.start()
        count = 0
        try:
            for count in range(1, 21):
                before = sum(asked)
                wait_for(lambda: sum(asked) > before + 20 and os.path.exists(self.log), "more requests")
                self.moved(count)
                self.hang_up()
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        files = [self.log, *(f"{self.log}.{number}" for number in range(1, count + 1))]
        wait_for(lambda: sum(len(paths(file)) for file in files) >= sum(asked), "all lines")
        found = sorted(path for file in files for path in paths(file))
        self.assertEqual(found, sorted(f"/{index}-{number}" for index, total in enumerate(asked) for number in range(total)))
        self.assertEqual(proxy.metric("proxy_access_log_dropped_total"), 0)

    def test_case_187_a_log_that_cannot_be_opened_stays_where_it_was(self):
        place = os.path.join(self.folder, "place")
        os.mkdir(place)
        self.log = os.path.join(place, "access.log")
        proxy = self.start("--access-log", self.log)
        self.written("/before")
        elsewhere = os.path.join(self.folder, "elsewhere")
        os.rename(place, elsewhere)
        old = os.path.join(elsewhere, "access.log")
        self.hang_up("reopen_failures_total")
        proxy.logged("cannot be opened anew", "no such file or directory")
        self.written("/gone", old)
        os.mkdir(place)
        os.mkdir(self.log)  # a directory has taken its name
        self.hang_up("reopen_failures_total")
        os.rmdir(self.log)
        os.mkfifo(self.log)  # nobody reads this, and nobody waits for that
        self.hang_up("reopen_failures_total")
        self.written("/still", old)
        os.unlink(self.log)
        self.hang_up()
        self.written("/back")
        self.assertEqual(paths(old), ["/before", "/gone", "/still"])

    def test_case_187_a_full_disk_costs_lines_and_nothing_else(self):
        proxy = self.start("--access-log", self.log)
        self.written("/before")
        os.unlink(self.log)
        os.symlink("/dev/full", self.log)
        self.hang_up()
        proxy.ask("1-nosuch.d", "/lost")
        wait_for(lambda: proxy.metric("proxy_access_log_dropped_total") == 1, "the line that is counted")
        os.unlink(self.log)
        self.hang_up()
        self.written("/after")
        self.assertEqual(paths(self.log), ["/after"])
        self.assertEqual(proxy.metric("proxy_access_log_dropped_total"), 1)

    @unittest.skipIf(OVER_TLS, "the key is root's alone")
    @unittest.skipIf(os.getuid() != 0, "only root can become somebody else")
    def test_case_187_somebody_else_opens_the_log_anew(self):
        nobody = pwd.getpwnam("nobody")
        os.chmod(self.folder, 0o755)
        proxy = self.start("--access-log", self.log, "--user", "nobody")
        self.written("/before")
        old = self.moved()
        self.hang_up("reopen_failures_total")  # the folder is not that account's
        self.written("/still", old)
        with open(self.log, "w", encoding="ascii"):  # as logrotate's "create"
            os.chown(self.log, nobody.pw_uid, nobody.pw_gid)
        self.hang_up()
        self.written("/after")
        self.assertEqual(proxy.metric("proxy_access_log_reopened_total"), 1)

    def test_case_187_at_the_very_end(self):
        """Whichever comes last, the end is an orderly one."""
        for _ in range(5):
            proxy = self.start("--access-log", self.log)
            stop = threading.Event()

            def pester():
                while not stop.is_set():
                    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                        proxy.process.send_signal(number)

            thread = threading.Thread(target=pester, daemon=True)
            proxy.process.send_signal(signal.SIGTERM)
            thread.start()
            try:
                self.assertEqual(proxy.process.wait(PATIENCE), 0)
            finally:
                stop.set()
                thread.join(PATIENCE)
                proxy.stop()


class Start(unittest.TestCase):
    def test_case_187_before_it_serves(self):
        """It waits for the reader of its log, and gets every signal meanwhile."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            os.mkfifo(path)
            process = subprocess.Popen([program(), "--listen", "127.0.0.1:0", "--admin", "none", "--access-log", path],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.stderr.close)
            self.addCleanup(process.kill)

            def waits():
                with open(f"/proc/{process.pid}/status", encoding="latin-1") as status:
                    text = status.read()
                ignored = int(re.search(r"SigIgn:\s*(\w+)", text).group(1), 16)
                return re.search(r"State:\s*S", text) and ignored & 1 << signal.SIGPIPE - 1 or process.poll() is not None

            wait_for(waits, "the proxy in its start")
            for number in (signal.SIGHUP, signal.SIGUSR1):
                os.kill(process.pid, number)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            self.addCleanup(os.close, reader)
            self.assertIn(b"proxy listening on", process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE), 0)


class Handover(Following):
    def test_case_187_both_proxies_of_a_handover(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        log = os.path.join(folder, "access.log")
        gate = threading.Event()
        self.addCleanup(gate.set)

        def script(connection):
            connection.request()
            gate.wait(PATIENCE)
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        server = self.serve(script)
        proxy = self.start("--access-log", log)
        client = proxy.connect()
        self.addCleanup(client.close)
        client.send(f"GET /held HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        wait_for(lambda: server.connections, "the request")
        old, new = proxy.process.pid, self.restart()
        os.rename(log, log + ".1")
        for pid in (old, new):
            os.kill(pid, signal.SIGHUP)
        wait_for(lambda: sum("opened anew" in line for line in proxy.log) == 2, "both")
        self.assertEqual(proxy.ask("1-nosuch.d", "/new").status, 502)
        gate.set()
        self.assertEqual(client.response().status, 200)
        wait_for(lambda: sorted(paths(log)) == ["/held", "/new"], "both lines")
        wait_for(lambda: not is_alive(old), "the old one's end")

    def test_case_187_while_a_successor_starts(self):
        self.start()
        old = self.pids[0]
        for _ in range(3):
            count = self.serving()
            os.kill(self.pids[-1], signal.SIGUSR2)

            def serves(pid=self.pids[-1], count=count):
                os.kill(pid, signal.SIGHUP)
                return self.serving() > count

            wait_for(serves, "a successor")
            self.pids.append(wait_for(lambda: [int(json.loads(line)["pid"]) for line in self.proxy.log
                                               if "a successor serves" in line][len(self.pids) - 1:], "its pid")[0])
        self.assertEqual(self.proxy.ask("1-nosuch.d").status, 502)
        wait_for(lambda: not is_alive(old), "the first one's end")


if __name__ == "__main__":
    main()
