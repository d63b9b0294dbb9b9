"""A name server for one test, on a UDP port from the kernel, that says what the test wants and counts what it is
asked. Names are kept without the template's rest: `names["abc"]` is what abc.<anything> resolves to."""
import ipaddress
import socket
import struct
import threading

A, AAAA = 1, 28
NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5


class NameServer:
    def __init__(self):
        self.names = {}       # label: list of addresses, or one of the codes above
        self.ttl = 1
        self.silent = False
        self.garbage = None   # bytes behind a good header
        self.asked = []       # (label, type)
        self.hold = threading.Event()
        self.hold.set()
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.sock.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                query, peer = self.sock.recvfrom(4096)
            except OSError:
                return
            if not query:
                return
            at, labels = 12, []
            while query[at]:
                labels.append(query[at + 1:at + 1 + query[at]].decode())
                at += 1 + query[at]
            kind = struct.unpack("!H", query[at + 1:at + 3])[0]
            self.asked.append((labels[0], kind))
            self.hold.wait(30)
            if self.silent:
                continue
            answer = self.answer(query, query[12:at + 5], labels[0], kind)
            try:
                self.sock.sendto(answer, peer)
            except OSError:
                return

    def answer(self, query, question, label, kind):
        known = self.names.get(label, NXDOMAIN)
        code = known if isinstance(known, int) else NOERROR
        records = []
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
        self.thread.join(5)
