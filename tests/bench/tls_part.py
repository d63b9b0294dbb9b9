"""The parts `tls` and `http2` of the bench: what encryption and HTTP/2 towards clients cost the proxy beside nginx and
haproxy, all with one cipher."""
import contextlib
import os
import re
import socket
import ssl
import struct
import subprocess
import time

import bench
import rivals

NAMES = ("nginx", "haproxy", "proxy")
HOSTS = {"nginx": "bench", "haproxy": "bench", "proxy": "49983-bench.localhost"}
# What the proxy chooses where a client leaves it the choice.
CIPHER = "TLS_AES_128_GCM_SHA256"
ROUNDS = 3
IDLE = 2000


def nginx(folder, ports, back):
    return rivals.nginx_proxy(folder, ports["https"], back, kept=200, connections=8000, listen=f"""
            listen 127.0.0.1:{ports["tls"]} ssl; listen 127.0.0.1:{ports["http"]} http2; listen 127.0.0.1:{ports["https"]} ssl http2;
            ssl_protocols TLSv1.2 TLSv1.3; ssl_conf_command Ciphersuites {CIPHER};
            ssl_certificate {folder}/tls.crt; ssl_certificate_key {folder}/tls.key;""")


def haproxy(folder, ports, back):
    return rivals.haproxy(folder, ports["https"], back, connections=8000, settings=f"""
    tune.ssl.default-dh-param 2048
    ssl-default-bind-ciphersuites {CIPHER}""", binds=f"""
    bind 127.0.0.1:{ports["tls"]} ssl crt {folder}/both.pem alpn http/1.1
    bind 127.0.0.1:{ports["http"]} proto h2
    bind 127.0.0.1:{ports["https"]} ssl crt {folder}/both.pem alpn h2""")


def make_certificate(folder):
    subprocess.run([bench.PROXY, "dev-certificate", folder], check=True, stdout=subprocess.DEVNULL)
    os.chmod(f"{folder}/tls.key", 0o644)
    with open(f"{folder}/both.pem", "w", encoding="ascii") as both:
        for name in ("tls.crt", "tls.key"):
            with open(f"{folder}/{name}", encoding="ascii") as file:
                both.write(file.read())


@contextlib.contextmanager
def programs():
    """The three side by side: their process ids, and their ports by name and `tls` (HTTP/1.1), `http` and `https` (HTTP/2)."""
    bench.allow_many_descriptors()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(bench.temporary_folder())
        make_certificate(folder)
        back = stack.enter_context(bench.backend()).port
        ports = {name: {kind: bench.free_port() for kind in ("tls", "http", "https")} for name in NAMES}
        running = {
            "nginx": nginx(folder, ports["nginx"], back),
            "haproxy": haproxy(folder, ports["haproxy"], back),
            "proxy": bench.proxy(back, "--certificate", folder, "--listen-tls", f"127.0.0.1:{ports['proxy']['https']}")}
        ports["proxy"].update(http=running["proxy"].port, tls=ports["proxy"]["https"])
        for each in running.values():
            stack.enter_context(each)
        yield {name: each.pid for name, each in running.items()}, ports


def best_in_turn(kinds, load):
    """What `load(name, kind)` found, by name and kind, the best of some each. In turn: the machine is another one a minute
    later, how many requests come together decides what one costs, and on a busy machine they come one by one."""
    rounds = [{(name, kind): load(name, kind) for kind in kinds for name in NAMES} for _ in range(ROUNDS)]
    return {key: min(each[key] for each in rounds) for key in rounds[0]}


def print_costs(results, kind, what, has_target=True):
    cost, rate = results["proxy", kind]
    better = min(results[name, kind][0] for name in ("haproxy", "nginx"))
    for name in ("haproxy", "nginx"):
        beside, beside_rate = results[name, kind]
        hold = {"target": "≤ 1.00 ×", "good": cost <= beside} if has_target and beside == better else {}
        bench.row(f"{what} (beside {name})", f"{cost:.1f} µs, {rate:.0f}/s", f"{name} {beside:.1f} µs, {beside_rate:.0f}/s",
                  cost / beside, **hold)


def print_idle(idle, what):
    bench.row(f"{what}, of {IDLE:,}", f"{idle['proxy']:.1f} KiB", f"haproxy {idle['haproxy']:.1f}, nginx {idle['nginx']:.1f} KiB",
              target="≤ 20 KiB", good=idle["proxy"] <= 20)


def measure_http1():
    with programs() as (pids, ports):
        def load(name, kind):
            return bench.load(name, pids[name], ports[name]["tls"], HOSTS[name], *kinds[kind], scheme="https")

        kinds = {"kept": (), "anew": ("-H", "Connection: close")}
        results = best_in_turn(kinds, load)
        idle = {name: idle_kib(pids[name], ports[name]["tls"], HOSTS[name], ask_by_http1) for name in NAMES}
    print_costs(results, "kept", "proxied request over TLS 1.3, CPU")
    print_costs(results, "anew", "  the same, each on a connection of its own", has_target=False)
    print_idle(idle, "idle TLS connection")


def measure_http2():
    with programs() as (pids, ports):
        results = best_in_turn(("http", "https"), lambda name, scheme: load_http2(
            name, pids[name], ports[name][scheme], HOSTS[name], scheme))
        # Some tidy up behind a connection of HTTP/2 once it has been idle for a while.
        idle = {name: idle_kib(pids[name], ports[name]["https"], HOSTS[name], ask_by_http2, "h2", rest_s=2) for name in NAMES}
    print_costs(results, "https", "proxied request by HTTP/2 over TLS, CPU")
    print_costs(results, "http", "  the same in plain text")
    print_idle(idle, "idle HTTP/2 connection over TLS")


def idle_kib(pid, port, host, ask, protocol="http/1.1", rest_s=0):
    """Resident memory of a connection over TLS that has served a request and rests."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])

    def connect():
        client = context.wrap_socket(socket.create_connection(("127.0.0.1", port)))
        ask(client, host)
        return client

    return bench.connection_kib(pid, connect, IDLE, rest_s)


def ask_by_http1(client, host):
    client.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    if not client.recv(4096).startswith(b"HTTP/1.1 200"):
        raise RuntimeError("no answer over TLS")


def http2_frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def ask_by_http2(client, host):
    head = b"\x82\x87\x84\x01" + bytes([len(host)]) + host.encode()
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4) + http2_frame(1, 5, 1, head))
    data, ended = b"", False
    while not ended:
        piece = client.recv(65536)
        if not piece:
            raise RuntimeError("no answer by HTTP/2")
        data += piece
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            kind, flags = data[3:5]
            if kind == 4 and not flags:
                client.sendall(http2_frame(4, 1))
            ended |= kind in (0, 1) and flags & 1
            data = data[9 + int.from_bytes(data[:3], "big"):]


def load_http2(name, pid, port, host, scheme):
    """The same by HTTP/2: eight connections with 16 requests at once on each."""
    command = ["h2load", "-t1", "-c8", "-m16", "--warm-up-time=1", "-D3", f"--connect-to=127.0.0.1:{port}", f"{scheme}://{host}:{port}/"]
    before, began = bench.cpu_seconds(bench.family(pid)), time.monotonic()
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used, took = bench.cpu_seconds(bench.family(pid)) - before, time.monotonic() - began
    counts = re.search(r"(\d+) total, \d+ started, (\d+) done, (\d+) succeeded", out)
    rate = float(re.search(r"finished in [\d.]+\w+, ([\d.]+) req/s", out).group(1))
    if not counts or counts.group(2) != counts.group(3):
        raise RuntimeError(f"{name}: {out}")
    # h2load counts after the warm-up only; what the processes used is of all of it.
    return used / (rate * took) * 1e6, rate
