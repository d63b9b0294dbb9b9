#!/usr/bin/env python3
"""`make bench`: measures what is promised, beside other programs, in one run, and prints one table.

Parts, all without arguments: size start footprint exec stream parallel files jobs proxy relay tls http2. Absolute times depend
on the machine; ratios to what ran beside them do not. Nothing here asserts: a missed target is marked.
"""
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import relay_part
import tls_part

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
OUT = os.environ.get("OUT", "build")
ENVD = os.environ.get("ENVD_BIN", f"{OUT}/static/bin/envd")
PROXY = os.environ.get("PROXY_BIN", f"{OUT}/opt/bin/proxy")
CLIENT = f"{OUT}/opt/bench/client"
SPAWN_LOOP = f"{OUT}/opt/bench/spawn_loop"
BACKEND = f"{OUT}/opt/bench/backend"
MIB = 1024 * 1024
rows = []


def row(what, value, beside="", ratio=None, target="", good=None):
    """One line of the table; `good` is None where there is no target to hold."""
    rows.append((what, value, beside, "" if ratio is None else f"{ratio:.2f}", target, {None: "", True: "ok", False: "MISSED"}[good]))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for_port(port, process=None):
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline or (process and process.poll() is not None):
                raise
            time.sleep(0.02)


class Running:
    """A program that is ended by its own process id, and waited for."""

    def __init__(self, *command, **more):
        more.setdefault("stdout", subprocess.DEVNULL)
        self.process = subprocess.Popen(command, stdin=more.pop("stdin", subprocess.DEVNULL), **more)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def envd(*flags):
    port = free_port()
    log = open(f"{OUT}/bench-envd.log", "ab")
    running = Running(ENVD, "-isnotfc", "-port", str(port), *flags, stdout=log, stderr=log)
    running.port = port
    wait_for_port(port, running.process)
    client(port, "start", 1)
    return running


def client(port, *arguments):
    result = subprocess.run([CLIENT, str(port), *map(str, arguments)], capture_output=True, text=True, timeout=300)
    if result.returncode:
        raise RuntimeError(f"client {' '.join(map(str, arguments))}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def status_kib(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(rf"^{field}:\s+(\d+)", file.read(), flags=re.M).group(1))


def family(pid):
    """The process and its descendants."""
    found, queue = [], [pid]
    while queue:
        each = queue.pop()
        found.append(each)
        try:
            for thread in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{thread}/children", encoding="ascii") as file:
                    queue += map(int, file.read().split())
        except FileNotFoundError:
            pass
    return found


def connection_kib(pid, connect, count, rest_s=0):
    """Resident memory of a program and its children for each connection that `connect()` makes, once all have rested so long."""
    def resident():
        time.sleep(rest_s)
        return sum(status_kib(each, "RssAnon") for each in family(pid))

    held = [connect() for _ in range(100)]
    before = resident()
    held += [connect() for _ in range(count)]
    after = resident()
    for client in held:
        client.close()
    return (after - before) / count


def cpu_seconds(pids):
    """What the scheduler gave them so far, in nanosecond resolution, all threads."""
    total = 0
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
        except FileNotFoundError:
            pass
    return total / 1e9


def wakeups(pid):
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as file:
            total += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", file.read(), flags=re.M).group(1))
    return total


def part_size():
    size = os.path.getsize(ENVD)
    row("envd, static, stripped", f"{size / 1024:.0f} KiB", target="≤ 1024 KiB", good=size <= MIB)


def part_start():
    times = []
    for _ in range(21):
        port = free_port()
        times.append(client(port, "health", ENVD, "-isnotfc", "-port", port)["health_us"])
    median = statistics.median(times)
    row("start to first answered /health", f"{median / 1000:.2f} ms", target="≤ 5 ms", good=median <= 5000)


def part_footprint():
    port = free_port()
    with Running(ENVD, "-isnotfc", "-port", str(port), stderr=subprocess.DEVNULL) as fresh:
        wait_for_port(port, fresh.process)
        time.sleep(0.3)
        idle = status_kib(fresh.pid, "VmRSS")
        row("idle resident memory (VmRSS)", f"{idle} KiB", f"{status_kib(fresh.pid, 'RssAnon')} KiB of it anonymous",
            target="≤ 1024 KiB", good=idle <= 1024)
        before = wakeups(fresh.pid)
        time.sleep(5)
        rate = (wakeups(fresh.pid) - before) / 5
        row("idle wake-ups", f"{rate:.1f} /s", target="0 /s", good=rate == 0)
    count = 1000
    with envd() as server:
        idle = status_kib(server.pid, "VmRSS")
        holder = subprocess.Popen([CLIENT, str(server.port), "hold", str(count)], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            if not holder.stdout.readline():
                raise RuntimeError("the idle processes could not be started")
            time.sleep(0.5)
            each = (status_kib(server.pid, "VmRSS") - idle) / count
            row(f"per idle process with its open stream, {count}", f"{each:.1f} KiB", target="≤ 16 KiB", good=each <= 16)
        finally:
            holder.stdin.close()
            holder.wait()


def part_exec():
    bare = json.loads(subprocess.run([SPAWN_LOOP, "2000"], capture_output=True, text=True, check=True).stdout)
    with envd() as server:
        ours = client(server.port, "start", 2000)
    again = json.loads(subprocess.run([SPAWN_LOOP, "2000"], capture_output=True, text=True, check=True).stdout)
    spawn = (bare["spawn_p50_us"] + again["spawn_p50_us"]) / 2
    p50, p99 = ours["start_p50_us"], ours["start_p99_us"]
    limit = 1.5 * spawn + 150
    row("Start(/bin/true) to end, p50", f"{p50:.0f} µs", f"vfork+exec+wait {spawn:.0f} µs", p50 / spawn,
        f"≤ {limit:.0f} µs (1.5 × + 150)", p50 <= limit)
    bare99 = (bare["spawn_p99_us"] + again["spawn_p99_us"]) / 2
    row("Start(/bin/true) to end, p99", f"{p99:.0f} µs", f"vfork+exec+wait {bare99:.0f} µs", p99 / bare99)


def part_stream():
    payload = 2_000_000_000
    cat = json.loads(subprocess.run([CLIENT, "-", "sink", f"head -c {payload * 4 // 3} /dev/zero | cat"],
                                    capture_output=True, text=True, check=True).stdout)
    with envd() as server:
        client(server.port, "stream", 50_000_000)
        before = cpu_seconds([server.pid])
        ours = client(server.port, "stream", payload)
        cpu = cpu_seconds([server.pid]) - before
        peak = status_kib(server.pid, "VmHWM")
    wall, beside = payload / ours["seconds"] / 1e9, payload / cat["seconds"] / 1e9
    row("output streaming, JSON, payload", f"{wall:.2f} GB/s", f"cat of the same as base64 {beside:.2f} GB/s",
        wall / beside, "≥ 1 GB/s or ≥ 0.60 ×", wall >= min(1.0, 0.6 * beside))
    row("  payload per CPU second of envd", f"{payload / cpu / 1e9:.2f} GB", "its own time alone", target="≥ 1 GB", good=payload / cpu >= 1e9)
    row("  peak resident memory", f"{peak} KiB")


def part_parallel():
    with envd() as server:
        idle = status_kib(server.pid, "VmRSS")
        result = client(server.port, "parallel", 1000)
        deadline = time.monotonic() + 45
        after = status_kib(server.pid, "VmRSS")
        while after > idle + 1024 and time.monotonic() < deadline:
            time.sleep(1)
            after = status_kib(server.pid, "VmRSS")
        row("1,000 commands at once, all checked", f"{result['seconds']:.2f} s", f"memory before {idle}, after {after} KiB",
            target="≤ 1 MiB left", good=after <= idle + 1024)


def part_files():
    size = 1 << 30
    folder = tempfile.mkdtemp(prefix="bench-")
    try:
        path = f"{folder}/file"
        with open(path, "wb") as file:
            for _ in range(size // MIB):
                file.write(b"\0" * MIB)
        os.chmod(folder, 0o755)
        port = free_port()
        with open(f"{folder}/nginx.conf", "w", encoding="ascii") as file:
            file.write(NGINX_COMMON.format(folder=folder) + f"""
            http {{ access_log off; sendfile on; tcp_nopush on; {nginx_paths(folder)}
              server {{ listen 127.0.0.1:{port}; root {folder}; }} }}""")
        with nginx(folder, port), envd() as server:
            measure_downloads(server.port, port, path, size)
        with envd() as server:
            measure_uploads(server.port, folder, size)
    finally:
        shutil.rmtree(folder)


def measure_downloads(ours_port, port, path, size):
    """In turns, and the median: both have luck or not with which of the two processors sleeps when the client is woken,
    which makes a factor of two, nginx (it corks the socket) more often not."""
    target = f"/files?username=root&path={path}"
    status = client(ours_port, "download", target)["status"]
    if status != 200:
        raise RuntimeError(f"download answered {status}")
    rounds = [(client(port, "download", "/file")["seconds"], client(ours_port, "download", target)["seconds"]) for _ in range(12)][1:]
    beside, ours = (statistics.median(each) for each in zip(*rounds))
    row("download of 1 GiB", f"{size / ours / 1e9:.2f} GB/s", f"nginx with sendfile {size / beside / 1e9:.2f} GB/s",
        beside / ours, "≥ 0.90 ×", beside / ours >= 0.9)
    beside, ours = (min(each) for each in zip(*rounds))
    row("  the best of 11", f"{size / ours / 1e9:.2f} GB/s", f"nginx with sendfile {size / beside / 1e9:.2f} GB/s", beside / ours)


def measure_uploads(port, folder, size):
    """Alternately and each into memory that the one before has just freed: in a virtual machine a page cache that
    grows for the first time, or again after it was given back to the host, costs several times the copying, and
    would count against whoever comes first."""
    plain, new, over = [], [], []

    def upload(times):
        result = client(port, "upload", f"/files?username=root&path={folder}/up", size)
        if result["status"] != 200:
            raise RuntimeError(f"upload answered {result['status']}")
        times.append(result["seconds"])

    for _ in range(10):
        plain.append(plain_copy(f"{folder}/plain", size))
        os.unlink(f"{folder}/plain")
        upload(new)
        os.unlink(f"{folder}/up")
    # A new file is published as it is; an existing one keeps its inode and gets the content copied.
    upload([])
    for _ in range(4):
        upload(over)
    os.unlink(f"{folder}/up")
    # The first of each has warmed up.
    plain, new, over = (statistics.median(times[1:]) for times in (plain, new, over))
    row("upload of 1 GiB", f"{size / new / 1e9:.2f} GB/s", f"socket to file {size / plain / 1e9:.2f} GB/s",
        plain / new, "≥ 0.90 ×", plain / new >= 0.9)
    row("  the same over an existing file", f"{size / over / 1e9:.2f} GB/s", "written twice where files cannot share blocks")


def plain_copy(path, size):
    """A socket copied to a file with the same client sending."""
    port = free_port()
    program = (
        "import socket,sys\n"
        f"s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('127.0.0.1',{port})); s.listen(1)\n"
        "print('ready',flush=True); c,_=s.accept(); b=bytearray(262144); head=c.recv(4096); n=len(head)-head.index(b'\\r\\n\\r\\n')-4\n"
        f"f=open({path!r},'wb',buffering=0); m=memoryview(b)\n"
        f"while n<{size}:\n g=c.recv_into(b)\n f.write(m[:g])\n n+=g\n"
        "c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n')\n"
    )
    with Running(sys.executable, "-c", program, stdout=subprocess.PIPE) as server:
        server.process.stdout.readline()
        return client(port, "upload", "/x", size)["seconds"]


NGINX_COMMON = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 1024; }}
"""


def nginx_paths(folder):
    return " ".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))


def nginx(folder, port):
    running = Running("nginx", "-p", folder, "-c", f"{folder}/nginx.conf", stderr=subprocess.DEVNULL)
    wait_for_port(port, running.process)
    return running


def load(name, pid, port, host, *flags, scheme="http", path="/"):
    """Keep-alive requests for five seconds; CPU per request of the proxy's processes, and requests per second."""
    command = ["wrk", "-t1", "-c32", "-H", f"Host: {host}", *flags, f"{scheme}://127.0.0.1:{port}{path}"]
    subprocess.run(command[:3] + ["-d1s"] + command[3:], capture_output=True, text=True, check=True)
    before = cpu_seconds(family(pid))
    out = subprocess.run(command[:3] + ["-d5s"] + command[3:], capture_output=True, text=True, check=True).stdout
    used = cpu_seconds(family(pid)) - before
    requests = int(re.search(r"(\d+) requests in", out).group(1))
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    if bad or "Socket errors" in out:
        raise RuntimeError(f"{name}: {out}")
    return used / requests * 1e6, float(re.search(r"Requests/sec:\s+([\d.]+)", out).group(1))


def part_proxy():
    folder = tempfile.mkdtemp(prefix="bench-")
    os.chmod(folder, 0o755)
    try:
        with Running(BACKEND, stdout=subprocess.PIPE, text=True) as backend:
            back = int(backend.process.stdout.readline())
            ports = {name: free_port() for name in ("nginx", "haproxy", "proxy", "admin")}
            with open(f"{folder}/nginx.conf", "w", encoding="ascii") as file:
                file.write(NGINX_COMMON.format(folder=folder) + f"""
                http {{ access_log off; {nginx_paths(folder)} keepalive_requests 100000000;
                  upstream back {{ server 127.0.0.1:{back}; keepalive 64; keepalive_requests 100000000; }}
                  server {{ listen 127.0.0.1:{ports['nginx']};
                    location / {{ proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection "";
                      proxy_set_header Host $host; }} }} }}""")
            with open(f"{folder}/haproxy.cfg", "w", encoding="ascii") as file:
                file.write(f"""
global
    nbthread 1
defaults
    mode http
    timeout connect 3s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend front
    bind 127.0.0.1:{ports['haproxy']}
    default_backend back
backend back
    server back 127.0.0.1:{back}
""")
            results = {}
            with nginx(folder, ports["nginx"]) as other:
                results["nginx"] = load("nginx", other.pid, ports["nginx"], "bench")
            with Running("haproxy", "-q", "-f", f"{folder}/haproxy.cfg", stderr=subprocess.DEVNULL) as other:
                wait_for_port(ports["haproxy"], other.process)
                results["haproxy"] = load("haproxy", other.pid, ports["haproxy"], "bench")
            log = open(f"{OUT}/bench-proxy.log", "ab")
            with Running(PROXY, "--listen", f"127.0.0.1:{ports['proxy']}", "--admin", f"127.0.0.1:{ports['admin']}",
                         "--workers", "1", "--sandbox", f"bench=127.0.0.1,envd={back}", stdout=log, stderr=log) as ours:
                wait_for_port(ports["proxy"], ours.process)
                # envd's port: connections to it are kept.
                results["proxy"] = load("proxy", ours.pid, ports["proxy"], "49983-bench.localhost")
                resident = status_kib(ours.pid, "VmRSS")
            cost, rate = results["proxy"]
            for name in ("haproxy", "nginx"):
                beside, beside_rate = results[name]
                target = {"target": "≤ 1.00 ×", "good": cost <= beside} if name == "haproxy" else {}
                row(f"proxied request, CPU (beside {name})", f"{cost:.1f} µs, {rate:.0f}/s",
                    f"{name} {beside:.1f} µs, {beside_rate:.0f}/s", cost / beside, **target)
            row("  proxy resident memory, 32 connections", f"{resident} KiB")
    finally:
        shutil.rmtree(folder)


def part_jobs():
    import jobs
    folder = tempfile.mkdtemp(prefix="bench-")
    try:
        with envd("-jobs-dir", f"{folder}/jobs") as server:
            jobs.measure(sys.modules[__name__], server, folder)
    finally:
        shutil.rmtree(folder)


def part_relay():
    relay_part.measure(sys.modules[__name__])


def part_tls():
    tls_part.measure_http1(sys.modules[__name__])


def part_http2():
    tls_part.measure_http2(sys.modules[__name__])


PARTS = ("size", "start", "footprint", "exec", "stream", "parallel", "files", "jobs", "proxy", "relay", "tls", "http2")


def print_table():
    head = ("what", "measured", "beside", "ratio", "target", "")
    table = [head] + rows
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    for number, line in enumerate(table):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths).rstrip())


def end_leftovers():
    """Commands that outlive their envd come to us (subreaper)."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
        if not pids:
            return
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main():
    parts = sys.argv[1:] or PARTS
    failed = False
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    for name in parts:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            globals()[f"part_{name}"]()
        except (RuntimeError, OSError, subprocess.SubprocessError, AttributeError, ValueError) as error:
            failed = True
            row(name, f"could not be measured: {error}"[:160])
        end_leftovers()
    print_table()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
