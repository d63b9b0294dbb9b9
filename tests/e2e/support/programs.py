"""Starts envd and the proxy for the Python tests, and runs the tests with one line for each."""

import json
import os
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


def eventually(what, ask, deadline=5.0):
    end = time.monotonic() + deadline
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what}")
        time.sleep(0.01)


class Program:
    def __init__(self, arguments, url, health):
        self.log = tempfile.TemporaryFile()
        self.child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=self.log,
                                      stderr=self.log, env={"PATH": os.environ["PATH"]})
        self.url = url

        def is_up():
            if self.child.poll() is not None:
                self.log.seek(0)
                raise AssertionError(f"{arguments[0]} ended at start: {self.log.read().decode()}")
            try:
                with urllib.request.urlopen(health, timeout=2) as answer:
                    return answer.status < 300
            except OSError:
                return False

        eventually(f"{arguments[0]} answers", is_up, 20)

    def stop(self):
        self.child.terminate()
        try:
            self.child.wait(8)
        finally:
            self.child.kill()
            self.child.wait()
            self.log.close()


def start_envd():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    envd = Program([os.environ["ENVD_BIN"], "-isnotfc", "-port", str(port)], url, f"{url}/health")
    envd.port = port
    request = urllib.request.Request(f"{url}/init", json.dumps({"defaultUser": "user"}).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 204
    return envd


def start_proxy(sandbox, envd_port):
    port, admin = free_port(), free_port()
    arguments = [os.environ["PROXY_BIN"], "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}",
                 "--sandbox", f"{sandbox}=127.0.0.1,envd={envd_port}", "--default-sandbox", sandbox,
                 "--drain-ms", "1000"]
    return Program(arguments, f"http://localhost:{port}", f"http://127.0.0.1:{admin}/health")


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
        name = f"{getattr(test, 'label', '')}: {getattr(test, '_testMethodName', test)[5:].replace('_', ' ')}"
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
