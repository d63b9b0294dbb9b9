#!/usr/bin/env python3
"""soak.py [SECONDS [SEED]]: random traffic with random ends, while sandboxes come, go, move and sleep and the
proxy is replaced under way. In the suite it runs for ten seconds; half an hour is for releases.

Every server stamps its address into every record it sends, every client its sandbox's id. So it shows:
- no byte of one sandbox in an answer, an upload or a tunnel of another, or of two of its lives in one;
- an answer that looks complete is complete, and in order;
- all counters are back at zero in the end, the descriptors as in the beginning, the memory flat: from time to time
  everybody rests, and what is resident then has in the last quarter of these moments (its median) grown by no more than
  GROWTH_KIB over the second one. In runs of less than a minute there is too little of it to be so strict.
"""
import collections
import errno
import http.client
import os
import random
import re
import socket
import statistics
import sys
import threading
import time

from support import Connection, Cut, Proxy, pace, wait_for

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 10
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
ADDRESSES = [f"127.0.7.{n}" for n in range(1, 9)]
SANDBOXES = [f"box{n}" for n in range(6)]
RECORD = 32
CLIENTS = 12
LONG = SECONDS >= 60
RESTARTS = 10 if LONG else 3
REST_SECONDS = max(0.5, SECONDS / 120)
# AddressSanitizer keeps what is freed, and its own notes.
GROWTH_KIB = 256 if LONG and "asan" not in os.environ.get("PROXY_BIN", "") else 4096
CHANGES_KEPT = 4096  # PROXY_CHANGES_KEPT of proxy/limits.h
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: soak\r\nConnection: Upgrade\r\n\r\n"


def records(who, count, first=0):
    return b"".join(b"%15s|%014d|\n" % (who.encode(), n) for n in range(first, first + count))


class Wrong(Exception):
    """What must never happen."""


def check(data, first=0):
    """Who stamped these records, all of them and in order; None when there is not one whole record."""
    who = None
    for n in range(len(data) // RECORD):
        stamp, number, end = data[n * RECORD:(n + 1) * RECORD].split(b"|")
        who = who or stamp.strip().decode()
        if stamp.strip().decode() != who or int(number) != first + n or end != b"\n":
            raise Wrong(f"record {first + n} of {who} is {data[n * RECORD:(n + 1) * RECORD]!r}")
    return who


class Book:
    """Which sandbox was where, and until when that may have been so."""

    def __init__(self):
        self.lock = threading.Lock()
        self.places = {name: collections.deque(maxlen=64) for name in SANDBOXES}

    def moves(self, sandbox, address):
        """It is going to; the old place counts until the proxy has said that it knows."""
        with self.lock:
            self.places[sandbox].append([address, float("inf")])

    def moved(self, sandbox):
        now = time.monotonic()
        with self.lock:
            for place in list(self.places[sandbox])[:-1]:
                place[1] = min(place[1], now)

    def place(self, sandbox):
        return self.places[sandbox][-1][0]

    def places_since(self, sandbox, begin):
        with self.lock:
            return {address for address, until in self.places[sandbox] if until >= begin}


class Soak:
    def __init__(self):
        self.book = Book()
        self.stop = threading.Event()
        self.busy = threading.Event()  # not while everybody rests
        self.busy.set()
        self.wrong = []
        self.counts = collections.Counter()
        self.servers = []
        self.proxy = None
        self.port = self.admin_lock = None
        self.old = []

    def fail(self, error):
        self.wrong.append(error)
        self.stop.set()

    # ---- the sandboxes ----

    def listen(self):
        port = 0
        for address in ADDRESSES:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            port = listener.getsockname()[1]
            listener.listen(256)
            self.servers.append(listener)
            threading.Thread(target=self.accept, args=(listener, address), daemon=True).start()
        self.server_port = port

    def accept(self, listener, address):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(Connection(sock), address), daemon=True).start()

    def serve(self, connection, address):
        chance = random.Random()
        try:
            with connection:
                while self.answer(connection, address, chance):
                    connection.received = b""
        except (OSError, Cut, ValueError):
            pass  # whoever cut it has counted it
        except Wrong as error:
            self.fail(error)

    def answer(self, connection, address, chance):
        line, fields = connection.head()
        if not line:
            return False
        host = [value for name, value in fields if name.lower() == "host"][0]
        sandbox = re.match(r"\d+-(\w+)\.", host).group(1)
        path = line.split()[1]
        if path == "/tunnel":
            connection.send(SWITCH + records(address, 1))
            self.tunnel(connection, address, sandbox)
            return False
        if path == "/early":
            connection.send(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % RECORD + records(address, 1))
            return False
        body = connection.body(fields, False)
        who = check(body)
        if who and who != sandbox:
            raise Wrong(f"upload of {who} at {host}")
        count = chance.choice((1, 5, 200, 3000))
        cut = chance.random() < 0.1
        data = records(address, count // 2 if cut else count)
        if path == "/length":
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (count * RECORD))
            self.dribble(connection, data, chance)
        elif path == "/chunks":
            connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for at in range(0, len(data), 777 * RECORD):
                piece = data[at:at + 777 * RECORD]
                connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            if not cut:
                connection.send(b"0\r\n\r\n")
        else:
            connection.send(b"HTTP/1.0 200 OK\r\nX-Records: %d\r\n\r\n" % count + data)
            if cut:
                connection.abort()
            return False
        if cut:
            (Connection.abort, Connection.close)[chance.random() < 0.5](connection)
            return False
        return chance.random() < 0.9

    @staticmethod
    def dribble(connection, data, chance):
        while data:
            size = chance.choice((1, 100, 5000, len(data)))
            connection.send(data[:size])
            data = data[size:]
            if size == 1:
                pace(0.001)

    @staticmethod
    def tunnel(connection, address, sandbox):
        """Answers each record with one of its own."""
        number = 0
        while True:
            record = connection.take(RECORD)
            if len(record) < RECORD:
                return
            if check(record, number) != sandbox:
                raise Wrong(f"a tunnel of {sandbox} carries {record!r}")
            number += 1
            connection.send(records(address, 1, number))

    # ---- the clients ----

    def client(self, number):
        chance = random.Random(SEED * 1000 + number)
        while not self.stop.is_set():
            if not self.busy.wait(0.5):
                continue
            try:
                with self.proxy.connect() as connection:
                    while self.busy.is_set() and not self.stop.is_set() and self.exchange(connection, chance):
                        connection.received = b""
            except ConnectionRefusedError:
                self.counts["refused"] += 1
                pace(0.01)
            except Cut:
                self.counts["cut"] += 1
            except Wrong as error:
                self.fail(error)
            except TimeoutError:
                self.fail(Wrong("nothing came for fifteen seconds"))
            except OSError as error:
                if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                    self.fail(error)
                self.counts["reset"] += 1
            except Exception as error:  # pylint: disable=broad-except
                self.fail(error)

    def exchange(self, connection, chance):
        """One request, perhaps broken off; true when the connection may carry another."""
        sandbox = chance.choice(SANDBOXES)
        path = chance.choice(("/length", "/chunks", "/end", "/tunnel", "/early"))
        begin = time.monotonic()
        host = f"{self.server_port}-{sandbox}.soak.test"
        head = f"{'POST' if path != '/tunnel' else 'GET'} {path} HTTP/1.1\r\nHost: {host}\r\n"
        ending = chance.choice((Connection.close, Connection.abort, Connection.half_close)) if chance.random() < 0.2 else None
        if path == "/tunnel":
            connection.send(head + "Connection: Upgrade\r\nUpgrade: soak\r\n\r\n")
        else:
            body = records(sandbox, chance.choice((0, 3, 100, 2000)))
            if chance.random() < 0.5:
                connection.send(head + f"Content-Length: {len(body)}\r\n\r\n")
            else:
                connection.send(head + "Transfer-Encoding: chunked\r\n\r\n")
                body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
            if ending and chance.random() < 0.5:
                connection.send(body[:chance.randrange(len(body) + 1)])
                ending(connection)
                self.counts["left"] += 1
                return False
            connection.send(body)
        if ending and chance.random() < 0.5:
            ending(connection)
            self.counts["left"] += 1
            return False
        response = connection.response()
        if response is None:
            self.counts["closed"] += 1
            return False
        error = response.get("X-Proxy-Error")
        if error:
            self.counts[error] += 1
            return (response.get("Connection") or "") != "close"
        if response.status == 101:
            self.in_tunnel(connection, sandbox, begin, chance, ending)
            return False
        self.judge(response.body, sandbox, begin)
        wanted = response.get("X-Records")
        if wanted and len(response.body) != int(wanted) * RECORD:
            raise Wrong(f"{len(response.body)} bytes of {wanted} records look complete")
        if len(response.body) % RECORD:
            raise Wrong(f"a complete answer of {len(response.body)} bytes")
        self.counts["complete"] += 1
        return (response.get("Connection") or "") != "close"

    def judge(self, data, sandbox, begin, first=0):
        who = check(data, first)
        if who and who not in self.book.places_since(sandbox, begin):
            raise Wrong(f"{who} answered for {sandbox}, which was at {self.book.places_since(sandbox, begin)}")
        return who

    def in_tunnel(self, connection, sandbox, begin, chance, ending):
        count = chance.choice((1, 10, 300))
        who = self.judge(connection.take(RECORD), sandbox, begin)
        for number in range(count):
            if self.stop.is_set() or not self.busy.is_set():
                return
            connection.send(records(sandbox, 1, number))
            record = connection.take(RECORD)
            if len(record) < RECORD:
                self.counts["tunnel cut"] += 1
                return
            if check(record, number + 1) != who:
                raise Wrong(f"a tunnel of {sandbox} to {who} brings {record!r}")
        if ending:
            ending(connection)
        self.counts["tunnel"] += 1

    # ---- what happens to sandboxes and proxy ----

    def begin_proxy(self):
        fresh = Proxy("--allow-loopback-upstreams", "--drain-ms", "1500", port=self.port or 0)
        self.port = fresh.port
        for sandbox in SANDBOXES:
            self.put(sandbox, fresh)
        self.proxy = fresh

    def put(self, sandbox, proxy=None):
        """Where the book says that it is."""
        address = self.book.place(sandbox)
        status, answer = (proxy or self.proxy).call("PUT", f"/sandboxes/{sandbox}", {"address": address})
        if status not in (200, 201):
            raise Wrong(f"PUT {sandbox}: {status} {answer}")
        self.book.moved(sandbox)

    def churn(self):
        chance = random.Random(SEED)
        try:
            while not self.stop.wait(chance.uniform(0.005, 0.05)):
                with self.admin_lock:
                    self.change(chance.choice(SANDBOXES), chance)
        except Exception as error:  # pylint: disable=broad-except
            self.fail(error)

    def change(self, sandbox, chance):
        call = self.proxy.call
        what = chance.randrange(6)
        self.counts["changes"] += 1
        if what < 2:
            # Addresses go from one sandbox to another, as slots of a host do.
            self.book.moves(sandbox, chance.choice(ADDRESSES))
            self.put(sandbox)
        elif what == 2:
            call("PATCH", f"/sandboxes/{sandbox}", {"lifecycle_id": f"{chance.random()}"})
        elif what == 3:
            call("PATCH", f"/sandboxes/{sandbox}", {"state": "paused"})
            self.stop.wait(chance.uniform(0, 0.03))
            call("PATCH", f"/sandboxes/{sandbox}", {"state": "running"})
        elif what == 4:
            call("DELETE", f"/sandboxes/{sandbox}")
            self.stop.wait(chance.uniform(0, 0.03))
            self.put(sandbox)
        else:
            extra = f"/sandboxes/extra{chance.randrange(1000)}"
            call("PUT", extra, {"address": "10.0.0.1"})
            call("DELETE", extra)

    def replace(self):
        """A new proxy on the same port; the old one, which learns of no more changes, is drained."""
        with self.admin_lock:
            old = self.proxy
            self.begin_proxy()
            self.end_proxy(old)
        self.counts["restarts"] += 1

    def end_proxy(self, proxy):
        code = proxy.stop()
        noise = [line for line in proxy.log if "Sanitizer" in line or "runtime error" in line]
        if code != 0 or noise:
            raise Wrong(f"the proxy ended with {code}: {noise or proxy.log[-5:]}")

    def fill_feed(self):
        """The catalog remembers so many changes: until it does memory grows, and only until then."""
        admin = http.client.HTTPConnection("127.0.0.1", self.proxy.admin_port, timeout=30)
        with self.admin_lock:
            for n in range(CHANGES_KEPT):  # each the end of a life
                admin.request("PUT", "/sandboxes/moving", b'{"address":"10.0.0.%d"}' % (n % 2 + 1))
                response = admin.getresponse()
                response.read()
                if response.status not in (200, 201):
                    raise Wrong(f"change {n}: {response.status}")
            self.proxy.call("DELETE", "/sandboxes/moving")
        admin.close()

    def rest(self):
        """What is resident when nobody asks for anything."""
        with self.admin_lock:
            self.busy.clear()
            try:
                wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0, "the end of all exchanges")
                return self.proxy.memory_kib()
            finally:
                self.busy.set()

    def run(self):
        began = time.monotonic()
        self.admin_lock = threading.Lock()
        for number, sandbox in enumerate(SANDBOXES):
            self.book.moves(sandbox, ADDRESSES[number])
        self.listen()
        self.begin_proxy()
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(CLIENTS)]
        threads.append(threading.Thread(target=self.churn))
        for thread in threads:
            thread.start()
        try:
            # Replaced in the first half, watched in the second.
            for _ in range(RESTARTS):
                if self.stop.wait(SECONDS / 2 / RESTARTS):
                    break
                self.replace()
            if LONG:
                self.fill_feed()
            memory = [self.rest()]
            while not self.stop.wait(REST_SECONDS) and (time.monotonic() - began < SECONDS or len(memory) < 8):
                memory.append(self.rest())
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(30)
        if not self.wrong:
            self.settle(memory)
        self.proxy.process.poll() is None and self.end_proxy(self.proxy)

    def settle(self, memory):
        wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0, "the end of all exchanges")
        for sandbox in SANDBOXES:
            if self.proxy.active(sandbox):
                raise Wrong(f"{sandbox} still counts {self.proxy.active(sandbox)}")
        fresh = Proxy("--allow-loopback-upstreams")
        try:
            for _ in range(40):  # every loop has served somebody
                fresh.ask("1-nobody.soak.test")
            fresh.metric("proxy_requests_total")
            empty = fresh.descriptors()
        finally:
            fresh.stop()
        # One set for each worker to notice who leaves is opened when it is first needed.
        wait_for(lambda: self.proxy.descriptors() <= empty + 2, f"no more than {empty} + 2 descriptors")
        print(f"descriptors: {self.proxy.descriptors()}; memory at rest, KiB: {' '.join(map(str, memory))}")
        quarter = len(memory) // 4
        medians = [statistics.median(memory[n * quarter:(n + 1) * quarter]) for n in range(3)]
        medians.append(statistics.median(memory[3 * quarter:]))
        print(f"medians of the quarters: {' '.join(f'{each:.0f}' for each in medians)}; "
              f"the last may be {GROWTH_KIB} more than the second")
        if medians[3] > medians[1] + GROWTH_KIB:
            raise Wrong(f"memory grew from {medians[1]:.0f} to {medians[3]:.0f} KiB")


def main():
    print(f"seed {SEED}, {SECONDS:.0f} s", flush=True)
    soak = Soak()
    try:
        soak.run()
    except Exception as error:  # pylint: disable=broad-except
        soak.wrong.append(error)
    for listener in soak.servers:
        listener.close()
    print(dict(sorted(soak.counts.items())))
    for error in soak.wrong:
        print(f"WRONG: {type(error).__name__}: {error}")
    print("FAILED" if soak.wrong else "OK")
    sys.stdout.flush()
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
