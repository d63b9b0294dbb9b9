"""A sandbox that sleeps, and the hook that wakes it: a scripted server."""
import json
import threading

from support import Test, wait_for

SLEEPS = "127.0.0.1,state=paused,resume=any,lifecycle=first"


class Hook:
    """What stands at --wake-url: keeps every question, and answers when and as it is told."""

    def __init__(self, test, reply=None):
        self.test, self.reply = test, reply
        self.questions, self.fields = [], []
        self.go = threading.Event()
        if reply is not None:
            self.go.set()
        self.server = test.serve(self.script)
        self.url = f"http://localhost:{self.server.port}/wake?x=1"  # a name, with several addresses

    def script(self, connection):
        request = connection.request()
        if not request.line:
            return
        self.fields.append((request.line, request.fields))
        self.questions.append(json.loads(request.body))
        while not self.go.wait(0.02):
            if self.left(connection):
                return
        if callable(self.reply):
            self.reply(connection)
        elif self.reply is not None:
            connection.send(self.reply)

    @staticmethod
    def left(connection):
        connection.sock.settimeout(0.001)
        try:
            return not connection.read_some()
        except TimeoutError:
            return False

    def asked(self, times=1):
        wait_for(lambda: len(self.questions) >= times, f"question {times}")


class Waking(Test):
    def begin(self, *flags, sandbox=SLEEPS, reply=None):
        self.hook = Hook(self, reply)
        return self.start("--wake-url", self.hook.url, "--sandbox", f"abc={sandbox}", *flags, sandboxes=("other",))

    def wake(self, **changes):
        self.proxy.call("PATCH", "/sandboxes/abc", {"state": "running", **changes})

    def waiting(self, count):
        wait_for(lambda: self.proxy.metric("proxy_wake_waiting") == count, f"{count} to wait")

    def client(self, server, target="/", fields="", body=""):
        client = self.proxy.connect()
        self.addCleanup(client.close)
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        client.send(f"{'POST' if body else 'GET'} {target} HTTP/1.1\r\nHost: {self.host(server)}\r\n{fields}{length}\r\n{body}")
        return client

    def finish(self):
        if self.proxy.process.poll() is None:
            self.waiting(0)
        super().finish()
