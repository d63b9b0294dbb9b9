"""The parts `tls` and `http2` of the bench: what encryption and HTTP/2 towards clients cost the proxy beside nginx and
haproxy, all with one cipher."""
import contextlib
import os
import re
import resource
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import time

NAMES = ("nginx", "haproxy", "proxy")
HOSTS = {"nginx": "bench", "haproxy": "bench", "proxy": "49983-bench.localhost"}
# What the proxy chooses where a client leaves it the choice.
CIPHER = "TLS_AES_128_GCM_SHA256"
ROUNDS = 3


def write_nginx(bench, folder, ports, back):
    with open(f"{folder}/nginx.conf", "w", encoding="ascii") as file:
        file.write(f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
        events {{ worker_connections 8000; }} worker_rlimit_nofile 20000;
        http {{ access_log off; {bench.nginx_paths(folder)} keepalive_requests 100000000;
          ssl_protocols TLSv1.2 TLSv1.3; ssl_conf_command Ciphersuites {CIPHER};
          ssl_certificate {folder}/tls.crt; ssl_certificate_key {folder}/tls.key;
          upstream back {{ server 127.0.0.1:{back}; keepalive 200; keepalive_requests 100000000; }}
          server {{ listen 127.0.0.1:{ports['nginx', 'tls']} ssl;
            listen 127.0.0.1:{ports['nginx', 'http']} http2; listen 127.0.0.1:{ports['nginx', 'https']} ssl http2;
            location / {{ proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection "";
              proxy_set_header Host $host; }} }} }}""")


def write_haproxy(folder, ports, back):
    with open(f"{folder}/haproxy.cfg", "w", encoding="ascii") as file:
        file.write(f"""
global
    nbthread 1
    maxconn 8000
    tune.ssl.default-dh-param 2048
    ssl-default-bind-ciphersuites {CIPHER}
defaults
    mode http
    timeout connect 3s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend front
    bind 127.0.0.1:{ports['haproxy', 'tls']} ssl crt {folder}/both.pem alpn http/1.1
    bind 127.0.0.1:{ports['haproxy', 'http']} proto h2
    bind 127.0.0.1:{ports['haproxy', 'https']} ssl crt {folder}/both.pem alpn h2
    default_backend back
backend back
    server back 127.0.0.1:{back}
""")


@contextlib.contextmanager
def programs(bench):
    """The three side by side: their process ids, and their ports by name and `tls` (HTTP/1.1), `http` and `https` (HTTP/2)."""
    folder = tempfile.mkdtemp(prefix="bench-")
    os.chmod(folder, 0o755)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        subprocess.run([bench.PROXY, "dev-certificate", folder], check=True, stdout=subprocess.DEVNULL)
        os.chmod(f"{folder}/tls.key", 0o644)
        with open(f"{folder}/both.pem", "w", encoding="ascii") as both:
            for name in ("tls.crt", "tls.key"):
                with open(f"{folder}/{name}", encoding="ascii") as file:
                    both.write(file.read())
        backend = stack.enter_context(bench.Running(bench.BACKEND, stdout=subprocess.PIPE, text=True))
        back = int(backend.process.stdout.readline())
        ports = {(name, kind): bench.free_port() for name in NAMES for kind in ("tls", "http", "https")}
        ports["proxy", "tls"] = ports["proxy", "https"]
        write_nginx(bench, folder, ports, back)
        write_haproxy(folder, ports, back)
        log = stack.enter_context(open(f"{bench.OUT}/bench-proxy.log", "ab"))
        running = {
            "nginx": stack.enter_context(bench.nginx(folder, ports["nginx", "https"])),
            "haproxy": stack.enter_context(bench.Running("haproxy", "-q", "-f", f"{folder}/haproxy.cfg", stderr=subprocess.DEVNULL)),
            "proxy": stack.enter_context(bench.Running(
                bench.PROXY, "--listen", f"127.0.0.1:{ports['proxy', 'http']}", "--admin", "none", "--certificate", folder,
                "--listen-tls", f"127.0.0.1:{ports['proxy', 'https']}", "--workers", "1",
                "--sandbox", f"bench=127.0.0.1,envd={back}", stdout=log, stderr=log))}
        for port in ports.values():
            bench.wait_for_port(port)
        yield {name: each.pid for name, each in running.items()}, ports


def best_in_turn(kinds, load):
    """What `load(name, kind)` found, by name and kind, the best of some each. In turn: the machine is another one a minute
    later, how many requests come together decides what one costs, and on a busy machine they come one by one."""
    rounds = [{(name, kind): load(name, kind) for kind in kinds for name in NAMES} for _ in range(ROUNDS)]
    return {key: min(each[key] for each in rounds) for key in rounds[0]}


def print_costs(bench, results, kind, what, has_target=True):
    cost, rate = results["proxy", kind]
    better = min(results[name, kind][0] for name in ("haproxy", "nginx"))
    for name in ("haproxy", "nginx"):
        beside, beside_rate = results[name, kind]
        hold = {"target": "≤ 1.00 ×", "good": cost <= beside} if has_target and beside == better else {}
        bench.row(f"{what} (beside {name})", f"{cost:.1f} µs, {rate:.0f}/s", f"{name} {beside:.1f} µs, {beside_rate:.0f}/s",
                  cost / beside, **hold)


def print_idle(bench, idle, what):
    bench.row(f"{what}, of 2,000", f"{idle['proxy']:.1f} KiB", f"haproxy {idle['haproxy']:.1f}, nginx {idle['nginx']:.1f} KiB",
              target="≤ 20 KiB", good=idle["proxy"] <= 20)


def measure_http1(bench):
    with programs(bench) as (pids, ports):
        def load(name, kind):
            return bench.load(name, pids[name], ports[name, "tls"], HOSTS[name], *kinds[kind], scheme="https")

        kinds = {"kept": (), "anew": ("-H", "Connection: close")}
        results = best_in_turn(kinds, load)
        idle = {name: idle_tls_kib(bench, pids[name], ports[name, "tls"], HOSTS[name]) for name in NAMES}
    print_costs(bench, results, "kept", "proxied request over TLS 1.3, CPU")
    print_costs(bench, results, "anew", "  the same, each on a connection of its own", has_target=False)
    print_idle(bench, idle, "idle TLS connection")


def measure_http2(bench):
    with programs(bench) as (pids, ports):
        results = best_in_turn(("http", "https"), lambda name, scheme: load_http2(
            bench, name, pids[name], ports[name, scheme], HOSTS[name], scheme))
        idle = {name: idle_http2_kib(bench, pids[name], ports[name, "https"], HOSTS[name]) for name in NAMES}
    print_costs(bench, results, "https", "proxied request by HTTP/2 over TLS, CPU")
    print_costs(bench, results, "http", "  the same in plain text")
    print_idle(bench, idle, "idle HTTP/2 connection over TLS")


def idle_tls_kib(bench, pid, port, host, count=2000):
    """Resident memory of a connection over TLS that has served a request and rests."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def connect():
        client = context.wrap_socket(socket.create_connection(("127.0.0.1", port)))
        client.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        if not client.recv(4096).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("no answer over TLS")
        return client

    return bench.connection_kib(pid, connect, count)


def http2_frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def idle_http2_kib(bench, pid, port, host, count=2000):
    """The same of one that speaks HTTP/2, once it has been idle for two seconds."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    head = b"\x82\x87\x84\x01" + bytes([len(host)]) + host.encode()

    def connect():
        client = context.wrap_socket(socket.create_connection(("127.0.0.1", port)))
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
        return client

    return bench.connection_kib(pid, connect, count, rest_s=2)


def load_http2(bench, name, pid, port, host, scheme):
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
