"""Starts envd and the proxy for the Python tests, and runs the tests with one line for each."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../.."))


last_port = os.getpid() * 97 % 30000


def free_port():
    """From the range that support/enter.sh keeps the kernel's own choices out of."""
    global last_port
    while True:
        last_port = (last_port + 1) % 30000
        try:
            with socket.socket() as server:
                server.bind(("0.0.0.0", 10000 + last_port))
                return 10000 + last_port
        except OSError:
            pass


ASKED_AT_LEAST = 5
ANSWER_S = 60  # what is answered at once, on a machine that may stand still meanwhile
REPORT = re.compile(r"Sanitizer|runtime error:|Assertion .* failed|envd-watch was killed.*signal\W+(?:4|6|7|8|11)\b")
running = []


def late(what, deadline):
    """The failure of a wait; `what` is a text, or a function that says how things stand by now."""
    logs = "".join(f"\n-- {program.name}\n{program.output()[-3000:]}" for program in running)
    return AssertionError(f"not within {deadline} s: {what() if callable(what) else what}{logs}")


def eventually(what, ask, deadline=20.0):
    """A machine that stood still for longer than the deadline has not been asked often, and is asked some more."""
    end = time.monotonic() + deadline
    asked = 0
    while True:
        answer = ask()
        if answer:
            return answer
        asked += 1
        if time.monotonic() > end and asked >= ASKED_AT_LEAST:
            raise late(what, deadline)
        time.sleep(0.01)


class Program:
    def __init__(self, arguments, url, health):
        self.name = os.path.basename(arguments[0])
        self.log = tempfile.TemporaryFile()
        self.child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=self.log,
                                      stderr=self.log, env={"PATH": os.environ["PATH"]})
        self.url = url

        def is_up():
            if self.child.poll() is not None:
                raise AssertionError(f"{arguments[0]} ended at start: {self.output()}")
            try:
                with urllib.request.urlopen(health, timeout=2) as answer:
                    return answer.status < 300
            except OSError:
                return False

        running.append(self)
        eventually(f"{arguments[0]} answers", is_up, 20)

    def output(self):
        """What it has said so far. Its own writes share the file's position, so it is not moved."""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), size, 0).decode("utf-8", "replace")

    def stop(self):
        self.child.terminate()
        try:
            self.child.wait(20)
        finally:
            self.kill()

    def kill(self):
        self.child.kill()
        self.child.wait()
        running.remove(self)
        output = self.output()
        self.log.close()
        found = REPORT.search(output)
        assert not found, output[max(found.start() - 200, 0):][:8000]


def tls_folder():
    """A certificate for *.sbx.localhost, which run.sh has made and told Node.js and Python to trust."""
    return os.environ["E2E_TLS"]


def start_envd(port=None, access_token=None):
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    envd = Program([os.environ["ENVD_BIN"], "-isnotfc", "-port", str(port)], url, f"{url}/health")
    envd.port = port
    init = {"defaultUser": "user"}
    if access_token:
        init["accessToken"] = access_token
    request = urllib.request.Request(f"{url}/init", json.dumps(init).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        assert answer.status == 204
    return envd


def start_proxy(sandbox, envd_port, tls_port=None, traffic_token=None):
    """In plaintext it has the sandbox as the default one, for debug mode's own id; with a tls_port it speaks https there."""
    port, admin = free_port(), free_port()
    record = f"{sandbox}=127.0.0.1,envd={envd_port}"
    if traffic_token:
        record += f",token={traffic_token}"
    arguments = [os.environ["PROXY_BIN"], "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}",
                 "--sandbox", record, "--drain-ms", "1000"]
    if tls_port:
        arguments += ["--listen-tls", f"127.0.0.1:{tls_port}", "--certificate", tls_folder()]
    else:
        arguments += ["--default-sandbox", sandbox]
    proxy = Program(arguments, f"http://localhost:{port}", f"http://127.0.0.1:{admin}/health")
    proxy.admin = f"http://127.0.0.1:{admin}"
    return proxy


def metric(proxy, name):
    """A number of the proxy's metrics."""
    with urllib.request.urlopen(f"{proxy.admin}/metrics", timeout=ANSWER_S) as answer:
        return next(int(line[len(name):]) for line in answer.read().decode().split("\n") if line.startswith(f"{name} "))


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.passed = 0
        self.started = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()

    def line(self, word, test, text=""):
        milliseconds = round((time.monotonic() - self.started) * 1000)
        name = str(test)  # of a class that could not be set up
        if hasattr(test, "label"):
            name = f"{test.label}: {test._testMethodName[5:].replace('_', ' ')}"
        print(f"{word:7} {name} ({milliseconds} ms){text}", flush=True)

    def addSuccess(self, test):
        self.passed += 1
        self.line("ok", test)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.line("not ok", test, "\n" + self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.line("not ok", test, "\n" + self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line("skip", test, f" {reason}")


def main(module="__main__"):
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[module])
    result = Result()
    suite.run(result)
    failed = len(result.failures) + len(result.errors)
    print(f"# pass {result.passed}\n# fail {failed}\n# skipped {len(result.skipped)}")
    sys.exit(1 if failed or not result.passed else 0)
