"""What the relay tests are made of: the real proxy, a scripted server in the sandbox's place that records
every byte it gets, and a client that sends bytes as written. Ports come from the kernel, every wait has
a deadline, nothing sleeps to synchronise.
"""
import atexit
import http.client
import inspect
import json
import os
import re
import resource
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PATIENCE = 30  # for what never comes: a machine that runs tests may stall for long
# The metadata service of clouds as IPv6 addresses that lead there through a translator or a tunnel.
INSIDE_IPV6 = ("64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:1:a9:fea9:fe00:0", "::ffff:0:a9fe:a9fe", "2002:a9fe:a9fe::",
               "64:ff9b::a9fe:a9fe", "2001:0:808:808:0:0:5601:5601", "2001:0:a9fe:a9fe::1", "fd00::5efe:a9fe:a9fe", "::a9fe:a9fe")
# RELAY_TLS=1: what a test's clients say goes over TLS, where the test does not choose itself.
OVER_TLS = os.environ.get("RELAY_TLS") == "1"


def program():
    given = os.environ.get("PROXY_BIN")
    return given or os.path.join(ROOT, os.environ.get("OUT", "build"), "dev", "bin", "proxy")


class Certificates:
    """A directory with a certificate authority of our own and one certificate, as `proxy dev-certificate` makes
    them, once for a test run."""

    directory = None

    @classmethod
    def get(cls):
        if not cls.directory:
            holder = tempfile.mkdtemp(prefix="relay-certificates-")
            atexit.register(shutil.rmtree, holder, ignore_errors=True)
            subprocess.run([program(), "dev-certificate", holder], check=True, stdout=subprocess.DEVNULL)
            cls.directory = holder
        return cls.directory


class TlsSocket:
    """TLS over a connected socket, with the calls that Connection makes. Unlike Python's own it can end one
    direction (close_notify, then FIN) and go on reading; an end of the peer without close_notify is a reset.
    One thread may send while another receives."""

    def __init__(self, sock, context, name=None, session=None):
        self.raw = sock
        self.state, self.order = threading.Lock(), threading.Lock()  # of the TLS engine; of what is sent
        self.unsent = b""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=name, session=session)
        try:
            self.pump(self.tls.do_handshake)
        except BaseException:
            sock.close()
            raise

    def flush(self, call, *arguments):
        """A call that makes the engine say something, which is sent."""
        with self.order:
            try:
                with self.state:
                    call(*arguments)
            finally:
                with self.state:
                    data = self.outgoing.read()
                if data:
                    self.raw.sendall(data)
        self.flush_rest()

    def flush_rest(self):
        """What is left to say, unless somebody is just sending, who then looks here afterwards: a receiver that waits
        for a sender whose bytes nobody takes because nobody receives would wait for ever."""
        while self.outgoing.pending and self.order.acquire(blocking=False):
            try:
                with self.state:
                    data = self.outgoing.read()
                self.raw.sendall(data)
            finally:
                self.order.release()

    def pump(self, call, *arguments):
        while True:
            try:
                with self.state:
                    return call(*arguments)
            except ssl.SSLWantReadError:
                pass
            finally:
                if self.outgoing.pending:
                    try:
                        self.flush_rest()
                    except OSError:  # an alert that nobody takes any more
                        pass
            data = self.raw.recv(65536)
            if data:
                self.incoming.write(data)
            else:
                self.incoming.write_eof()

    def sendall(self, data):
        if self.unsent:  # of send()
            self.raw.sendall(self.unsent)
            self.unsent = b""
        for at in range(0, len(data), 1 << 20):
            self.flush(self.tls.write, data[at:at + (1 << 20)])

    def send(self, data):
        """For sockets that do not block: BlockingIOError when the kernel takes nothing."""
        while True:
            if self.unsent:
                self.unsent = self.unsent[self.raw.send(self.unsent):]
                continue
            if not data:
                return 0
            with self.state:
                self.tls.write(data)
                self.unsent = self.outgoing.read()
            try:
                self.unsent = self.unsent[self.raw.send(self.unsent):]
            except BlockingIOError:
                pass
            return len(data)

    def recv(self, count):
        try:
            return self.pump(self.tls.read, count)
        except ssl.SSLZeroReturnError:
            return b""
        except ssl.SSLEOFError as error:
            raise ConnectionResetError("the end came without close_notify") from error

    def shutdown(self, how):
        if how == socket.SHUT_WR:
            try:
                self.flush(self.tls.unwrap)
            except ssl.SSLWantReadError:
                pass
        self.raw.shutdown(how)

    def close(self):
        self.raw.close()

    def __getattr__(self, name):
        return getattr(self.raw, name)


def described(condition):
    """What a wait is for that nobody has put into words: its source, and what it knows."""
    try:
        known = inspect.getclosurevars(condition).nonlocals
        return f"{' '.join(inspect.getsource(condition).split())}, with {known}"
    except (OSError, TypeError):
        return repr(condition)


def wait_for(condition, what=None, patience=PATIENCE):
    """Polls a condition that another process makes true; the value it came to. In vain, it says for what (a text, or a
    function that tells how things stand by then) and what the last look gave."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            told = what() if callable(what) else what or described(condition)
            raise AssertionError(f"not within {patience} s: {told}; the last look gave {value!r}")
        time.sleep(0.005)


def quiet_for(seconds):
    """The time is the subject: nothing may happen in it, or what happens in it is counted. Who waits for something to
    happen asks for it (wait_for); packaging/lint.py refuses sleeps anywhere else."""
    time.sleep(seconds)


def pace(seconds):
    """A client or server of the test's own is slow, late, or leaves at a moment of its choice."""
    time.sleep(seconds)


def in_time(limit, attempt, tries=5):
    """For what takes at most `limit` seconds: `attempt` says how many it took. Of several attempts one has to be in
    time, because a busy machine is late now and then, and a fault is late each time."""
    took = []
    while len(took) < tries:
        took.append(attempt())
        if took[-1] <= limit:
            return
    raise AssertionError(f"took {took} s each time, not {limit}")


def one_of(attempt, what, tries=5):
    """For what a machine that stalls can spoil, as everything that has to happen within the three seconds of a dial: of
    several attempts one has to be true. `attempt` itself sees to it that the others have failed as they may."""
    if not any(attempt() for _ in range(tries)):
        raise AssertionError(f"{what}: never in {tries} attempts")


class Connection:
    """A TCP connection with helpers for raw bytes; both the client and the server use it."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.settimeout(PATIENCE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""  # everything, ever
        self.buffer = b""    # not yet taken
        self.reset = False
        self.eof = False

    def send(self, data):
        self.sock.sendall(data.encode("latin-1") if isinstance(data, str) else data)

    def read_some(self):
        """More bytes into the buffer; False at the end or a reset."""
        if self.eof or self.reset:
            return False
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            self.reset = True
            return False
        if not data:
            self.eof = True
            return False
        self.received += data
        self.buffer += data
        return True

    def take(self, count):
        while len(self.buffer) < count and self.read_some():
            pass
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def take_until(self, mark):
        while mark not in self.buffer and self.read_some():
            pass
        at = self.buffer.find(mark)
        at = len(self.buffer) if at < 0 else at + len(mark)
        taken, self.buffer = self.buffer[:at], self.buffer[at:]
        return taken

    def take_all(self):
        while self.read_some():
            pass
        taken, self.buffer = self.buffer, b""
        return taken

    def head(self):
        """A request or response head: (first line, [(name, value)])."""
        text = self.take_until(b"\r\n\r\n").decode("latin-1")
        lines = text.split("\r\n")
        return lines[0], [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:] if line]

    def request(self):
        """A whole request, body included."""
        line, fields = self.head()
        return Message(line, fields, self.body(fields, False))

    def response(self, to_head=False):
        line, fields = self.head()
        if not line:
            return None
        status = int(line.split(" ")[1])
        if status == 101 or 100 <= status < 200 or to_head or status in (204, 304):
            return Message(line, fields, b"")
        return Message(line, fields, self.body(fields, True))

    def body(self, fields, until_close):
        lookup = {name.lower(): value for name, value in fields}
        if lookup.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                line = self.take_until(b"\r\n")
                if not line.endswith(b"\r\n"):
                    raise Cut(body)
                size = int(line.split(b";")[0], 16)
                if size == 0:
                    self.trailers = []
                    while True:
                        line = self.take_until(b"\r\n")
                        if line in (b"\r\n", b""):
                            return body
                        self.trailers.append(line.decode().strip())
                piece = self.take(size + 2)
                body += piece[:size]
                if len(piece) < size + 2:
                    raise Cut(body)
        if "content-length" in lookup:
            size = int(lookup["content-length"])
            body = self.take(size)
            if len(body) < size:
                raise Cut(body)
            return body
        return self.take_all() if until_close else b""

    def abort(self):
        """RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def half_close(self):
        self.sock.shutdown(socket.SHUT_WR)

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()


class Cut(Exception):
    """A body ended before it was complete."""

    def __init__(self, body):
        super().__init__(f"cut after {len(body)} bytes")
        self.body = body


class Message:
    def __init__(self, line, fields, body):
        self.line, self.fields, self.body = line, fields, body
        if line.startswith("HTTP/"):
            self.status = int(line.split(" ")[1])

    def get(self, name):
        values = [value for key, value in self.fields if key.lower() == name.lower()]
        return values[0] if values else None

    def all(self, name):
        return [value for key, value in self.fields if key.lower() == name.lower()]

    def json(self):
        return json.loads(self.body)


def answer(body=b"ok", status="200 OK", fields=""):
    body = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {status}\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body


def plain(connection):
    """The usual script: answers every request with what it got, as JSON."""
    while True:
        request = connection.request()
        if not request.line:
            return
        connection.send(answer(json.dumps(
            {"line": request.line, "fields": request.fields, "body": request.body.decode("latin-1")})))
        if (request.get("Connection") or "").lower() == "close":
            return


class Server:
    """Stands where a program in the sandbox would. `script(connection)` runs for each connection in a thread
    of its own; the connection is closed when it returns. Exceptions of scripts fail the test. `nobody_at`: another
    address where its port is closed, which a server of another test could have otherwise."""

    def __init__(self, script=plain, host="127.0.0.1", port=0, nobody_at=None):
        self.script = script
        while True:
            self.listener = self.bind(host, port)
            self.port = self.listener.getsockname()[1]
            try:
                self.keeper = nobody_at and self.bind(nobody_at, self.port, reuse=False)
                break
            except OSError:  # somebody is there: with another port
                self.listener.close()
                if port:
                    raise
        self.connections, self.errors, self.threads = [], [], []
        self.listening = False

    @staticmethod
    def bind(host, port, reuse=True):
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            sock.bind((host, port))
        except OSError:
            sock.close()
            raise
        return sock

    def start(self):
        self.listener.listen(1024)  # what finds no room there comes a second later
        self.listening = True
        thread = threading.Thread(target=self.accept, daemon=True)
        thread.start()
        return self

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            connection = Connection(sock)
            sock.settimeout(None)  # who is served ends it, or stop(): on a slow machine a tunnel rests for long
            self.connections.append(connection)
            thread = threading.Thread(target=self.serve, args=(connection,), daemon=True)
            thread.start()
            self.threads.append(thread)

    def serve(self, connection):
        try:
            self.script(connection)
        except (OSError, Cut):
            connection.broken = True  # what the other side did is for the test to judge
        except Exception as error:  # pylint: disable=broad-except
            self.errors.append(error)
        finally:
            try:
                connection.sock.close()
            except OSError:
                pass

    @property
    def received(self):
        return b"".join(connection.received for connection in self.connections)

    def stop(self):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()
        if self.keeper:
            self.keeper.close()
        for connection in self.connections:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Proxy:
    def __init__(self, *flags, env=None, workers=2, descriptors=None, over_tls=None, port=0, prefix=()):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        self.over_tls = OVER_TLS if over_tls is None else over_tls
        self.certificates = [] if "--certificate" in flags or not self.over_tls else ["--certificate", Certificates.get()]
        self.process = subprocess.Popen(
            [*prefix, program(), *self.listen(port), "--admin", "127.0.0.1:0", "--workers", str(workers), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limit if descriptors else None,
            # Under AddressSanitizer freed memory must not count as growth.
            env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1:quarantine_size_mb=1", **(env or {})})
        self.out, self.log = [], []
        line = self.process.stdout.readline().decode()
        match = re.match(r"proxy listening on (?:none|\S+:(\d+))(?:, TLS on \S+:(\d+))?, admin on \S+:(\d+)$", line.strip())
        if not match:
            raise AssertionError(f"not ready: {line!r} {self.process.stderr.read().decode()}")
        self.plain_port, self.tls_port, self.admin_port = (int(port) if port else None for port in match.groups())
        self.port = self.tls_port if self.over_tls else self.plain_port
        self.collectors = [threading.Thread(target=self.collect, args=pair, daemon=True)
                           for pair in ((self.process.stdout, self.out), (self.process.stderr, self.log))]
        for thread in self.collectors:
            thread.start()

    def listen(self, port):
        """The flags by which a proxy listens as this one does."""
        plain = "none" if OVER_TLS and self.over_tls else f"127.0.0.1:{port}"
        tls = f"127.0.0.1:{port}" if self.over_tls else "none"
        return ["--listen", plain, "--listen-tls", tls, *self.certificates]

    @staticmethod
    def collect(stream, lines):
        for line in stream:
            lines.append(line.decode("utf-8", "replace").rstrip("\n"))

    def connect(self):
        sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        return Connection(TlsSocket(sock, self.tls_context()) if self.over_tls else sock)

    @staticmethod
    def tls_context(authority=None):
        context = ssl.create_default_context(cafile=authority or os.path.join(Certificates.get(), "ca.pem"))
        context.check_hostname = False
        return context

    def ask(self, host, target="/", method="GET", fields="", body=b"", version="1.1"):
        """One request on a connection of its own; the response."""
        with self.connect() as client:
            body = body.encode() if isinstance(body, str) else body
            length = f"Content-Length: {len(body)}\r\n" if body or method in ("POST", "PUT") else ""
            client.send(f"{method} {target} HTTP/{version}\r\nHost: {host}\r\n{fields}{length}"
                        "Connection: close\r\n\r\n".encode("latin-1") + body)
            return client.response(to_head=method == "HEAD")

    def call(self, method, path, body=None, fields=None):
        """The admin API: (status, parsed JSON or text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=PATIENCE)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), fields or {})
            response = connection.getresponse()
            text = response.read().decode()
            is_json = "json" in (response.getheader("Content-Type") or "")
            return response.status, json.loads(text) if is_json and text else text
        finally:
            connection.close()

    def metric(self, name, **labels):
        text = self.call("GET", "/metrics")[1]
        label = "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else ""
        for line in text.split("\n"):
            if line.startswith(f"{name}{label} "):
                return int(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}{label}")

    def active(self, sandbox):
        return self.call("GET", f"/sandboxes/{sandbox}")[1]["active"]

    def logged(self, *words):
        """Waits for a line of its log with all these words: it comes by a pipe, later than an answer may."""
        wait_for(lambda: any(all(word in line for word in words) for line in self.log), f"a line with {words}")

    def memory_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, number=15):
        """Ends it; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        for thread in self.collectors:
            thread.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()
        return code


class Test(unittest.TestCase):
    """Every test checks in its end that no script failed, nothing is left active, and the proxy ends well."""

    flags = ()
    workers = 2
    descriptors = None  # as many as this process may have
    prefix = ()  # a program that becomes the proxy

    def setUp(self):
        self.servers = []
        self.proxy = None

    def start(self, *flags, sandboxes=("abc",), env=None, workers=None, over_tls=None):
        given = [flag for name in sandboxes for flag in ("--sandbox", f"{name}=127.0.0.1")]
        self.proxy = Proxy(*given, *self.flags, *flags, env=env, workers=workers or self.workers,
                           descriptors=self.descriptors, over_tls=over_tls, prefix=self.prefix)
        self.addCleanup(self.finish)
        return self.proxy

    def serve(self, script=plain, **options):
        server = Server(script, **options).start()
        self.servers.append(server)
        return server

    def finish(self):
        for server in self.servers:
            server.stop()
        if self.proxy.process.poll() is None:
            wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0, "the end of all exchanges")
        code = self.proxy.stop()
        self.assertEqual(code, 0, "\n".join(self.proxy.log))
        for server in self.servers:
            for error in server.errors:
                raise error
        noise = [line for line in self.proxy.log if "Sanitizer" in line or "runtime error" in line]
        self.assertEqual(noise, [])

    def host(self, server, sandbox="abc"):
        return f"{server.port}-{sandbox}.sandbox.test"


def unread(sock):
    """Bytes that came for the other end of this connection and that its program has not read."""
    mine, theirs = sock.getsockname()[1], sock.getpeername()[1]
    line = subprocess.run(["ss", "-tnH", f"sport = :{theirs} and dport = :{mine}"], capture_output=True, text=True, check=True).stdout
    return int(line.split()[1]) if line else 0


def answered(clients):
    """Those for whom something has come."""
    for client in clients:
        client.sock.settimeout(0.001)
        try:
            client.buffer or client.read_some()
        except TimeoutError:
            pass
        client.sock.settimeout(PATIENCE)
    return [client for client in clients if client.received or client.reset or client.eof]


def closed_port():
    """A port that nobody listens on, for as long as the socket is kept."""
    keeper = socket.socket()
    keeper.bind(("127.0.0.1", 0))
    return keeper, keeper.getsockname()[1]


def main():
    unittest.main(verbosity=2)
