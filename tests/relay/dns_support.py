"""A name server for one test, on a port from the kernel (UDP, and TCP for those that are cut), that says what the test wants and counts what it is
asked. Names are kept without the template's rest: `names["abc"]` is what abc.<anything> resolves to."""
import ipaddress
import socket
import struct
import threading

from support import Test, pace, wait_for

A, AAAA = 1, 28
NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5


class NameServer:
    def __init__(self, host="127.0.0.1", port=0):
        self.names = {}       # label: list of addresses, or one of the codes above
        self.ttl = 1
        self.silent = False
        self.garbage = None   # bytes behind a good header
        self.delay = 0        # seconds before each answer by UDP
        self.cut = False      # UDP answers are empty and say that there is more, by TCP; "part": they are not empty
        self.tcp = "answer"   # or "silent", "close", "slow"
        self.extra = {}       # label: records before the addresses, as bytes
        self.asked = []       # (label, type)
        self.streams = []
        self.hold = threading.Event()
        self.hold.set()
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.listener = socket.socket()
        while True:  # until a port is free for both
            self.sock.bind((host, port))
            try:
                self.listener.bind(self.sock.getsockname())
                break
            except OSError:
                self.sock.close()
                if port:
                    raise
                self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.address = f"{host}:{self.sock.getsockname()[1]}"
        self.listener.listen(64)
        self.threads = [threading.Thread(target=call, daemon=True) for call in (self.serve, self.serve_streams)]
        for thread in self.threads:
            thread.start()

    def serve_streams(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.streams.append(sock)
            if self.tcp == "close":
                sock.close()
            elif self.tcp != "silent":
                threading.Thread(target=self.serve_stream, args=(sock,), daemon=True).start()

    def serve_stream(self, sock):
        try:
            size = struct.unpack("!H", sock.recv(2, socket.MSG_WAITALL))[0]
            query = sock.recv(size, socket.MSG_WAITALL)
            answer = self.answer(query, *self.parse(query))
            data = struct.pack("!H", len(answer)) + answer
            if self.tcp != "slow":
                sock.sendall(data)
                return
            for byte in data:
                sock.sendall(bytes([byte]))
                pace(0.5)
        except OSError:
            pass
        finally:
            sock.close()

    @staticmethod
    def parse(query):
        """(the question, its first label, its type)"""
        at, labels = 12, []
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        return query[12:at + 5], labels[0], struct.unpack("!H", query[at + 1:at + 3])[0]

    def serve(self):
        while True:
            try:
                query, peer = self.sock.recvfrom(4096)
            except OSError:
                return
            if not query:
                return
            question, label, kind = self.parse(query)
            self.asked.append((label, kind))
            self.hold.wait(30)
            if self.silent:
                continue
            if self.cut == "part":
                answer = self.answer(query, question, label, kind)
                answer = answer[:2] + bytes([answer[2] | 2]) + answer[3:]
            elif self.cut:
                answer = query[:2] + struct.pack("!HHHHH", 0x8380, 1, 0, 0, 0) + question
            else:
                answer = self.answer(query, question, label, kind)
            if self.delay:
                timer = threading.Timer(self.delay, self.send, (answer, peer))
                timer.daemon = True
                timer.start()
            else:
                self.send(answer, peer)

    def send(self, answer, peer):
        try:
            self.sock.sendto(answer, peer)
        except OSError:
            pass

    def answer(self, query, question, label, kind):
        known = self.names.get(label, NXDOMAIN)
        code = known if isinstance(known, int) else NOERROR
        records = list(self.extra.get(label, []))
        for text in known if code == NOERROR and not isinstance(known, int) else []:
            address = ipaddress.ip_address(text)
            if (A if address.version == 4 else AAAA) == kind:
                records.append(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, self.ttl, len(address.packed)) +
                               address.packed)
        header = query[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0)
        if self.garbage is not None:
            return query[:2] + struct.pack("!HHHHH", 0x8180, 1, 5, 0, 0) + question + self.garbage
        return header + question + b"".join(records)

    def count(self, label):
        return sum(1 for asked, _ in self.asked if asked == label)

    def stop(self):
        self.hold.set()
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.sock.close()
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        for sock in (self.listener, *self.streams):
            sock.close()
        for thread in self.threads:
            thread.join(5)


class DnsTest(Test):
    def start_dns(self, *flags, template="{id}.pods.test", sandboxes=()):
        self.dns = NameServer()
        self.addCleanup(self.dns.stop)
        return self.start("--dns-template", template, "--dns-server", self.dns.address, "--allow-loopback-upstreams",
                          *flags, sandboxes=sandboxes)

    def known(self, sandbox):
        return self.proxy.call("GET", f"/sandboxes/{sandbox}")[0] == 200

    def cause(self, host):
        answer = self.proxy.ask(host)
        return answer.status, answer.get("X-Proxy-Error")

    def told(self, host, *expected):
        """A machine that stalls may be too late with the name server's answer; then it is asked once more."""
        def is_told():
            got = self.cause(host)
            self.assertIn(got, (expected, (503, "catalog_unavailable")))
            return got == expected

        wait_for(is_told, f"{expected}")
