"""The part `jobs` of the bench: background jobs, beside a bare spawn and nginx."""
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import time

import bench
import rivals


class Jobs:
    """Calls of jobs.Jobs in JSON, over one connection each."""

    service = "jobs.Jobs"
    headers = {"Content-Type": "application/json"}

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, method, **message):
        self.connection.request("POST", f"/{self.service}/{method}", json.dumps(message), self.headers)

    def receive(self):
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{self.service}: {answer.status} {text[:100]}")
        return json.loads(text)

    def call(self, method, **message):
        self.send(method, **message)
        return self.receive()

    def create(self, *argv):
        return self.call("Create", command={"argv": argv})["job"]


def measure():
    with bench.temporary_folder() as folder, bench.envd("-jobs-dir", f"{folder}/jobs") as server:
        measure_jobs(server, folder)


def measure_jobs(server, folder):
    jobs, waiter = Jobs(server.port), Jobs(server.port)
    starts, ends = [], []
    for _ in range(300):
        began = time.perf_counter()
        job = jobs.create("sleep", "100")
        starts.append(time.perf_counter() - began)
        waiter.send("Wait", ids=[job["id"]])
        time.sleep(0.002)  # until it waits
        began = time.perf_counter()
        os.kill(job["pid"], signal.SIGKILL)
        waiter.receive()
        ends.append(time.perf_counter() - began)
    bare = json.loads(subprocess.run([bench.SPAWN_LOOP, "500"], capture_output=True, text=True, check=True).stdout)["spawn_p50_us"]
    bench.row("job: Create to running, p50", f"{statistics.median(starts) * 1e6:.0f} µs", f"vfork+exec+wait {bare:.0f} µs",
              statistics.median(starts) * 1e6 / bare)
    bench.row("job: exit to answered Wait, p50", f"{statistics.median(ends) * 1e6:.0f} µs")
    size = 64 * bench.MIB
    job = jobs.create("sh", "-c", f"yes 'a line of a log, as long as such lines are' | head -c {size}")
    jobs.call("Wait", ids=[job["id"]])
    path = f"{folder}/jobs/{job['id']}/stdout"
    os.link(path, f"{folder}/log")
    os.chmod(path, 0o644)
    with rivals.nginx_files(folder, folder) as nginx:
        # In turns, as what else the machine does must not count against one alone; the first of each warms up.
        rounds = [(bench.client(nginx.port, "download", "/log")["seconds"],
                   bench.client(server.port, "download", f"/jobs/{job['id']}/stdout")["seconds"]) for _ in range(16)][1:]
    beside, ours = (statistics.median(each) for each in zip(*rounds))
    bench.row("job: replay of a 64 MiB log", f"{size / ours / 1e9:.2f} GB/s", f"nginx with sendfile {size / beside / 1e9:.2f} GB/s",
              beside / ours, "≥ 0.90 ×", beside / ours >= 0.9)
    beside, ours = (min(each) for each in zip(*rounds))
    bench.row("  the best of 15", f"{size / ours / 1e9:.2f} GB/s", f"nginx with sendfile {size / beside / 1e9:.2f} GB/s", beside / ours)
    count = 500
    idle = bench.status_kib(server.pid, "VmRSS")
    made = [jobs.create("sleep", "100") for _ in range(count)]
    time.sleep(0.5)
    each = (bench.status_kib(server.pid, "VmRSS") - idle) / count
    keepers = [pid for pid in bench.family(server.pid) if pid != server.pid and status_name(pid) == "envd-job"]
    own = statistics.mean(rollup_kib(pid, "Pss") for pid in keepers)
    bench.row(f"job: resident for each idle one, {count}: keeper and in envd", f"{own + each:.1f} KiB ({own:.1f} + {each:.1f})",
              target="≤ 8 KiB", good=own + each <= 8)
    bench.row("  its keeper, with the page of code that all share", f"{statistics.mean(rollup_kib(pid, 'Rss') for pid in keepers):.1f} KiB",
              f"{statistics.mean(bench.status_kib(pid, 'VmPTE') for pid in keepers):.0f} KiB of page tables")
    before = bench.wakeups(server.pid)
    time.sleep(3)
    bench.row("  wake-ups of envd with them", f"{(bench.wakeups(server.pid) - before) / 3:.1f} /s")
    for job in made:
        os.kill(job["pid"], signal.SIGKILL)


def status_name(pid):
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        return file.read().strip()


def rollup_kib(pid, field):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":"))
