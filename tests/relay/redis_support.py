"""A real redis-server for one test: on a unix socket and a port of its own, in a directory of its own."""
import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from support import PATIENCE, Test, wait_for

NOTIFY = "Kg$xe"
KEY = "sandbox:catalog:"
# What one proxy changes, the others are told: within a second where the machine does nothing else. Until the next scan
# would find it, it is a minute.
SOON = 15


def encode(*arguments):
    parts = [f"*{len(arguments)}\r\n".encode()]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


class RedisError(Exception):
    pass


class RedisClient:
    """As much of the protocol as tests need."""

    def __init__(self, path, password=None):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        try:
            self.sock.connect(path)
        except OSError:
            self.sock.close()
            raise
        self.file = self.sock.makefile("rb")
        if password:
            self.call("AUTH", password)

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            return RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        return rest

    def call(self, *arguments):
        return self.pipeline([arguments])[0]

    def pipeline(self, commands):
        self.sock.sendall(b"".join(encode(*command) for command in commands))
        replies = [self.read() for _ in commands]
        for reply in replies:
            if isinstance(reply, RedisError):
                raise reply
        return replies

    def close(self):
        self.file.close()
        self.sock.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """`notify` is what it tells of changes; "" nothing. Data is lost when it is stopped, unless `keep`."""

    def __init__(self, notify=NOTIFY, password=None, keep=False, path=None, extra=()):
        if not shutil.which("redis-server"):
            raise unittest.SkipTest("redis-server is not installed")
        self.directory = tempfile.mkdtemp(prefix="redis-")
        self.path = path or os.path.join(self.directory, "socket")
        self.notify, self.password, self.keep, self.extra = notify, password, keep, extra
        self.process = self.client = None
        self.port = free_port()
        self.start()

    def start(self):
        for _ in range(5):
            command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.path,
                       "--save", "", "--appendonly", "yes" if self.keep else "no", "--dir", self.directory,
                       "--appendfsync", "no",  # else what it has said OK to may wait for a slow disk, and die with it
                       "--notify-keyspace-events", self.notify, *self.extra]
            if self.password:
                command += ["--requirepass", self.password]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_for(lambda: self.process.poll() is not None or self.answers(), "redis-server")
            if self.process.poll() is None:
                return
            self.port = free_port()  # somebody else was quicker
        raise AssertionError("redis-server does not start")

    def answers(self):
        try:
            client = RedisClient(self.path, self.password)
        except (OSError, RedisError):
            return False
        try:
            client.call("PING")
        except (OSError, RedisError):
            client.close()
            return False
        self.client = client
        return True

    @property
    def url(self):
        secret = f":{self.password}@" if self.password else ""
        return f"unix://{secret}{self.path}"

    def stop(self):
        if self.client:
            self.client.close()
        self.client = None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)

    def restart(self):
        self.stop()
        self.start()

    def close(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def record(address="127.0.0.1", execution="e1", **more):
    """As E2B writes it."""
    return json.dumps({"orchestrator_id": "node1", "orchestrator_ip": address, "execution_id": execution,
                       "sandbox_started_at": "2026-11-28T00:00:00Z", "sandbox_max_length_in_hours": 24, **more})


class RedisTest(Test):
    def start_redis(self, **options):
        redis = Redis(**options)
        self.addCleanup(redis.close)
        return redis

    def start_proxy(self, redis, *flags, url=None):
        proxy = self.start("--redis", url or redis.url, "--allow-loopback-upstreams", *flags, sandboxes=())
        return proxy

    def connected(self, proxy=None):
        proxy = proxy or self.proxy
        wait_for(lambda: proxy.metric("proxy_redis_connected") == 1, "the connection to Redis")

    def scanned(self, proxy=None, times=1):
        proxy = proxy or self.proxy
        wait_for(lambda: proxy.metric("proxy_redis_scans_total") >= times, "a scan", 2 * PATIENCE)

    def known(self, sandbox, proxy=None):
        return (proxy or self.proxy).call("GET", f"/sandboxes/{sandbox}")[0] == 200
