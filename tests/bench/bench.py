"""What the parts of the bench share: the table, programs that are measured and what they use, clients and load."""
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
OUT = os.environ.get("OUT", "build")
ENVD = os.environ.get("ENVD_BIN", f"{OUT}/static/bin/envd")
PROXY = os.environ.get("PROXY_BIN", f"{OUT}/opt/bin/proxy")
CLIENT = f"{OUT}/opt/bench/client"
SPAWN_LOOP = f"{OUT}/opt/bench/spawn_loop"
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


@contextlib.contextmanager
def temporary_folder(parent=None):
    """Others may look into it, as nginx does with an account of its own."""
    folder = tempfile.mkdtemp(prefix="bench-", dir=parent)
    os.chmod(folder, 0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def allow_many_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


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


def logged(name, port, *command):
    """A program that adds to a log of its own, once it listens."""
    with open(f"{OUT}/bench-{name}.log", "ab") as log:
        running = Running(*command, stdout=log, stderr=log)
    running.port = port
    wait_for_port(port, running.process)
    return running


def envd(*flags):
    port = free_port()
    running = logged("envd", port, ENVD, "-isnotfc", "-port", str(port), *flags)
    client(port, "start", 1)
    return running


def backend():
    """A server of small answers, behind the proxies."""
    running = Running(f"{OUT}/opt/bench/backend", stdout=subprocess.PIPE, text=True)
    running.port = int(running.process.stdout.readline())
    return running


def proxy(back, *flags):
    """Its sandbox `bench` has the port `back` for envd's, connections to which are kept."""
    port = free_port()
    return logged("proxy", port, PROXY, "--listen", f"127.0.0.1:{port}", "--admin", "none", "--workers", "1",
                  "--sandbox", f"bench=127.0.0.1,envd={back}", *flags)


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
