"""The part `relay` of the bench: what the proxy costs beside nginx and haproxy where `proxy` (small answers over kept
connections) does not look: connections made anew for each request, large bodies, many idle connections, one event to a
thousand readers, and the echo of a WebSocket."""
import contextlib
import os
import selectors
import socket
import statistics
import threading
import time

import bench
import rivals

ASK = "GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n"
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
SWITCH = (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
          b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
READERS, EVENTS, ECHOES = 1000, 20, 3000
IDLE = 10000


def ask(port, host, path="/", more=""):
    sock = socket.create_connection(("127.0.0.1", port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(ASK.format(path=path, host=host, more=more).encode())
    return sock


def head(sock):
    text = b""
    while b"\r\n\r\n" not in text:
        piece = sock.recv(4096)
        if not piece:
            raise RuntimeError(f"no head: {text!r}")
        text += piece
    if not text.startswith((b"HTTP/1.1 200", b"HTTP/1.1 101")):
        raise RuntimeError(f"refused: {text[:100]!r}")
    return text


class Streams(threading.Thread):
    """A server that keeps readers for events and echoes upgraded connections."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = self.listener.getsockname()[1]
        self.readers = []
        self.start()

    def run(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            text = sock.recv(4096)
            if b"pgrade: websocket" in text:
                sock.sendall(SWITCH)
                threading.Thread(target=self.echo, args=(sock,), daemon=True).start()
            else:
                sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                self.readers.append(sock)

    @staticmethod
    def echo(sock):
        with sock:
            while True:
                data = sock.recv(4096)
                if not data:
                    return
                sock.sendall(data)

    def close(self):
        self.listener.close()
        for sock in self.readers:
            sock.close()


def fan_out(server, port, host):
    """Milliseconds from the moment an event is sent to all until each reader has it: p50, p99."""
    server.readers.clear()
    clients = []
    for _ in range(READERS):
        clients.append(ask(port, host, "/events"))
    for client in clients:
        head(client)
        client.setblocking(False)
    while len(server.readers) < READERS:
        time.sleep(0.01)
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client, selectors.EVENT_READ)
    took = []
    event = b"14\r\ndata: 0123456789ab\n\n\r\n"
    for _ in range(EVENTS):
        sent = {}
        waiting = READERS
        began = time.perf_counter()
        for reader in server.readers:
            reader.sendall(event)
        while waiting:
            for key, _ in selector.select(10):
                key.fileobj.recv(4096)
                sent[key.fd] = time.perf_counter()
                waiting -= 1
        took += [(at - began) * 1000 for at in sent.values()]
    selector.close()
    for client in clients:
        client.close()
    took.sort()
    return statistics.median(took), took[len(took) * 99 // 100]


def echo(_, port, host):
    """Microseconds of a round trip of one small frame: p50, p99."""
    with ask(port, host, "/echo", UPGRADE) as sock:
        head(sock)
        took = []
        for _ in range(ECHOES):
            began = time.perf_counter()
            sock.sendall(b"\x81\x84abcdwxyz")
            sock.recv(4096)
            took.append((time.perf_counter() - began) * 1e6)
    took.sort()
    return statistics.median(took), took[len(took) * 99 // 100]


def idle_kib(pid, port, host):
    def connect():
        client = ask(port, host)
        head(client)
        return client

    return bench.connection_kib(pid, connect, IDLE)


def nginx(folder, port, back, files, streams):
    return rivals.nginx_proxy(folder, port, back, http=rivals.upstream("files", files), connections=19000, locations=f"""
            location /fresh {{ proxy_pass http://127.0.0.1:{back}; proxy_set_header Connection close; }}
            location /mib {{ proxy_pass http://files; proxy_set_header Connection ""; }}
            location /events {{ proxy_pass http://127.0.0.1:{streams}; proxy_buffering off; }}
            location /echo {{ proxy_pass http://127.0.0.1:{streams}; proxy_set_header Connection upgrade;
              proxy_set_header Upgrade websocket; }}""")


def haproxy(folder, port, back, files, streams):
    return rivals.haproxy(folder, port, back, connections=10500, routes="""use_backend fresh if { path /fresh }
    use_backend files if { path /mib }
    use_backend streams if { path /events /echo }""", backends=f"""
backend fresh
    http-reuse never
    option http-server-close
    server back 127.0.0.1:{back}
backend files
    server files 127.0.0.1:{files}
backend streams
    server streams 127.0.0.1:{streams}""")


def measure():
    bench.allow_many_descriptors()
    with contextlib.ExitStack() as stack:
        folder, file_folder = (stack.enter_context(bench.temporary_folder()) for _ in range(2))
        with open(f"{file_folder}/mib", "wb") as file:
            file.write(os.urandom(bench.MIB))
        streams = Streams()
        stack.callback(streams.close)
        files = stack.enter_context(rivals.nginx_files(file_folder, file_folder)).port
        back = stack.enter_context(bench.backend()).port
        three = {
            "nginx": nginx(folder, bench.free_port(), back, files, streams.port),
            "haproxy": haproxy(folder, bench.free_port(), back, files, streams.port),
            # By itself it counts on two descriptors for each; these rest.
            "proxy": bench.proxy(back, "--connections-max", "10500", "--sandbox", f"files=127.0.0.1,envd={files}")}
        for each in three.values():
            stack.enter_context(each)
        compare(three, back, streams)


def compare(three, back, streams):
    names = ("nginx", "haproxy", "proxy")

    def hosts(port, sandbox="bench"):
        return {"nginx": "bench", "haproxy": "bench", "proxy": f"{port}-{sandbox}.localhost"}

    host = hosts(back)
    fresh = {name: bench.load(name, three[name].pid, three[name].port, host[name], path="/fresh") for name in names}
    cost, best = fresh["proxy"][0], min(fresh["nginx"][0], fresh["haproxy"][0])
    bench.row("request, upstream dialled anew, CPU", f"{cost:.1f} µs, {fresh['proxy'][1]:.0f}/s",
              f"nginx {fresh['nginx'][0]:.1f}, haproxy {fresh['haproxy'][0]:.1f} µs", cost / fresh["nginx"][0],
              "≤ 50 µs or nginx's", cost <= max(50, fresh["nginx"][0]) or cost <= best)
    host = hosts(49983, "files")
    mib = {name: bench.load(name, three[name].pid, three[name].port, host[name], "-c8", path="/mib") for name in names}
    bench.row("1 MiB answers, CPU", f"{mib['proxy'][0]:.0f} µs, {mib['proxy'][1] * bench.MIB / 1e9:.2f} GB/s",
              f"nginx {mib['nginx'][0]:.0f}, haproxy {mib['haproxy'][0]:.0f} µs", mib["proxy"][0] / mib["nginx"][0])
    host = hosts(49983)
    idle = {name: idle_kib(three[name].pid, three[name].port, host[name]) for name in names}
    bench.row(f"{IDLE:,} idle connections, each", f"{idle['proxy']:.2f} KiB",
              f"nginx {idle['nginx']:.2f}, haproxy {idle['haproxy']:.2f} KiB", target="≤ 2 KiB", good=idle["proxy"] <= 2)
    host = hosts(streams.port)
    for what, run, unit, slack in (("event to 1,000 readers", fan_out, "ms", 50), ("WebSocket echo", echo, "µs", 1000)):
        # The best of three each, in turn: a busy machine adds milliseconds to any of them.
        sides = ((streams.port, "bench"), *((three[name].port, host[name]) for name in names))
        rounds = [[run(streams, *side) for side in sides] for _ in range(3)]
        direct, nginx, haproxy, ours = (min(results) for results in zip(*rounds))
        beside = (("nginx", nginx), ("haproxy", haproxy), ("direct", direct))
        bench.row(f"{what}, p50 / p99", f"{ours[0]:.1f} / {ours[1]:.1f} {unit}",
                  ", ".join(f"{name} {p50:.1f} / {p99:.1f}" for name, (p50, p99) in beside) + f" {unit}",
                  ours[0] / nginx[0], f"p99 direct + {slack} {unit}", ours[1] <= direct[1] + slack)
